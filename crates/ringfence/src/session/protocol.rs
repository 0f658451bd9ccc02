//! What clients and the supervisor of a session say to each other, in the same frames as the guest's.
//!
//! A client opens streams with an [`Ask`]; the supervisor answers with [`Answer`]s, the last of which is `Ended`, `Refused`,
//! `Done` or the last reply of the guest. Both sides are of one user, and still check each other's bounds.

use ringfence_guest::message::{Reply, Request, Size, Step};
use serde::{Deserialize, Serialize};

use super::info::{End, ExecutionInfo, Info, StandIn};
use crate::records::Caller;
use crate::report::Report;
use crate::supervise::Reason;

/// Said by the supervisor in its first frame. A command may be asked for before that was heard: what `Ask::Exec` looks
/// like must not come to mean something else.
pub const VERSION: u16 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u16,
    /// Bytes of each output that are kept.
    pub output: u64,
}

/// What opens a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    Exec(ExecAsk),
    /// The output of an execution from its first kept byte on.
    Attach {
        id: u64,
    },
    /// Anything but a command: passed on to the guest.
    Guest(Request),
    Info,
    Report,
    Executions,
    Extend {
        life_ms: Option<u64>,
        idle_ms: Option<u64>,
    },
    /// It ends when this client goes, and not for idleness.
    Own,
    Stop,
    /// It is in use as long as this stream is open.
    Hold,
    /// `NAME=value`, the client's own environment, before its first command. Nothing of it reaches a command: what of it is
    /// secret is kept out of the records. Not answered.
    Introduce {
        variables: Vec<Vec<u8>>,
    },
    StandIns,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecAsk {
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value`, on top of the session's.
    pub env: Vec<Vec<u8>>,
    /// Below the working directory when it is relative.
    pub cwd: Option<Vec<u8>>,
    pub terminal: Option<Size>,
    pub stdin: bool,
    pub timeout_ms: Option<u64>,
    pub background: bool,
    /// An interpreter that waits for code, by its language and name.
    pub context: Option<String>,
    /// Two pipes came with it, for its outputs. They stay empty where these must come through the supervisor.
    pub piped: bool,
    /// For whom the client asks, for the record; without it, for itself.
    pub caller: Option<Caller>,
}

/// What a client tells of each output that it reads from a pipe: so much of its beginning as it comes, and so much of its
/// end, with what was skipped between, when the command has ended.
pub const TOLD: usize = 32 * 1024;

impl Ask {
    /// How many pipes come with it.
    pub fn pipes(&self) -> usize {
        match self {
            Ask::Exec(exec) if exec.piped => 2,
            Ask::Guest(request) => request.pipes(),
            _ => 0,
        }
    }
}

/// More for an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Say {
    Signal {
        signal: i32,
        tree: bool,
    },
    Resize(Size),
    /// A context works from now on, and may for so long (`u64::MAX`: without end); without it, it waits.
    Allow {
        ms: Option<u64>,
    },
    /// TERM, and KILL after the grace, for everything that descends from it.
    Stop,
    /// Bytes of a pipe that are not told of, before the data that follows.
    Skipped {
        stderr: bool,
        bytes: u64,
    },
    /// Everything that came of its pipes was told.
    Told,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Of the guest, to what was passed on.
    Guest(Reply),
    /// The command runs.
    Begun {
        id: u64,
        /// The id of its record.
        record: Option<String>,
        /// Why it has none, said once.
        trouble: Option<String>,
    },
    /// Bytes that are not kept any more, before the data that follows on `Out` or `Err`.
    Skipped {
        stderr: bool,
        bytes: u64,
    },
    Ended(Finished),
    Info(Box<Info>),
    Report(Report),
    Executions(Vec<ExecutionInfo>),
    Done,
    Refused(Refusal),
    /// The command could not be started.
    NotBegun {
        id: u64,
        record: Option<String>,
        step: Step,
        errno: i32,
    },
    StandIns(Vec<StandIn>),
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// As `waitpid` has it.
    pub status: i32,
    pub reason: Option<Reason>,
    pub duration_us: u64,
    pub cpu_us: u64,
    pub peak_memory: u64,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    NoExecution,
    TimeoutAboveCeiling {
        ceiling_ms: u64,
    },
    Failed {
        step: Step,
        errno: i32,
    },
    TooMany,
    BadRequest,
    /// The policy insists on a record, and none can be written.
    NotRecorded(String),
    Ended(End),
}

#[cfg(test)]
mod tests {
    use ringfence_guest::frame::{self, Kind};

    use super::*;

    /// These bytes are on their way before either side knows the other's version: change them only with [`VERSION`].
    #[test]
    fn the_first_frames_are_as_they_were() {
        let framed = |kind, message: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            message(&mut bytes);
            assert_eq!(bytes[8], kind);
            assert_eq!(bytes[..4], ((bytes.len() - frame::HEADER) as u32).to_le_bytes());
            bytes[frame::HEADER..].to_vec()
        };
        let hello = Hello { version: VERSION, output: 1 << 20 };
        let greeting = framed(3, &|out| frame::put_message(out, 0, Kind::Reply, &hello).unwrap());
        assert_eq!(greeting, b"\x06\x80\x80\x40");
        let ask = Ask::Exec(ExecAsk {
            argv: vec![b"sh".to_vec(), b"-c".to_vec()],
            env: vec![b"A=b".to_vec()],
            cwd: Some(b"/x".to_vec()),
            terminal: None,
            stdin: true,
            timeout_ms: Some(300),
            background: false,
            context: None,
            piped: true,
            caller: Some(Caller { uid: 1000, pid: 7, program: Some("bash".to_owned()) }),
        });
        let asked = framed(1, &|out| frame::put_message(out, 1, Kind::Open, &ask).unwrap());
        let expected: &[&[u8]] =
            &[b"\0\x02\x02sh\x02-c\x01\x03A=b\x01\x02/x\0\x01\x01\xac\x02\0\0\x01", b"\x01\xe8\x07\x0e\x01\x04bash"];
        assert_eq!(asked, expected.concat());
        let introduce = Ask::Introduce { variables: vec![b"T=hunter2".to_vec()] };
        let told = framed(1, &|out| frame::put_message(out, 1, Kind::Open, &introduce).unwrap());
        assert_eq!(told, b"\x0a\x01\x09T=hunter2");
    }
}
