//! What clients and the supervisor of a session say to each other, in the same frames as the guest's.
//!
//! A client opens a stream with a [`ClientRequest`]. The supervisor answers with [`SupervisorReply`]s on the same stream;
//! [`SupervisorReply::is_last`] tells the last one. Both sides belong to one user, and still check each other's bounds.
//!
//! A session lives longer than the release that made it: messages change only as [`ringfence_guest::frame`] says, and each
//! side greets the other first. This protocol and the guest's are separate; the supervisor translates. Descriptions of
//! sizes, steps and entries are the same in both.

use ringfence_guest::frame::{Greeting, Message};
use ringfence_guest::message::{Changed, Entry, Size, Step, WriteMode};
use serde::{Deserialize, Serialize};

use super::info::{End, LimitChange, Usage};
use crate::records::Caller;
use crate::supervise::Reason;

/// Pipes that come with a request about a file reach the guest. Without it, contents go through frames.
pub const PIPES: u64 = 1;

/// `ChangeLimits` can change the time limit of commands.
pub const TIME_LIMITS: u64 = 2;

/// What this release says first, as a client and as a supervisor.
pub const GREETING: Greeting = Greeting { oldest: 1, newest: 1, features: PIPES | TIME_LIMITS };

/// The first frame of a supervisor, a `Reply` on stream 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorHello {
    pub greeting: Greeting,
    /// Bytes of each output that are kept.
    pub output: u64,
}

/// The first frame of a client, an `Input` on stream 0. A command may follow before the client has heard the supervisor:
/// what an `Exec` looks like must not come to mean something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    pub greeting: Greeting,
}

impl Message for SupervisorHello {
    const VARIANTS: Option<u32> = None;
}

impl Message for ClientHello {
    const VARIANTS: Option<u32> = None;
}

impl Message for ClientRequest {
    const VARIANTS: Option<u32> = Some(25);
}

impl Message for ClientInput {
    const VARIANTS: Option<u32> = Some(6);
}

impl Message for SupervisorReply {
    const VARIANTS: Option<u32> = Some(11);
}

/// Opens a stream. Relative paths are below the working directory of the session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ClientRequest {
    Exec(ExecRequest),
    /// The output of an execution from its first kept byte on.
    Attach {
        execution: u64,
    },
    /// `NAME=value`, the client's own environment, before its first command. A command gets nothing of it: the supervisor
    /// keeps what is secret in it out of the records. There is no reply.
    Environment {
        variables: Vec<Vec<u8>>,
    },
    Info,
    Report,
    Executions,
    Placeholders,
    /// Sets what is left of its life and its idle time. `None` leaves one as it is, `u64::MAX` is without end.
    Extend {
        life_ms: Option<u64>,
        idle_ms: Option<u64>,
    },
    /// The session ends with this connection, and not for idleness.
    TieToConnection,
    /// The session is in use as long as this stream is open.
    KeepInUse,
    Stop,
    /// Contents of a regular file: data on `Out`, or into a pipe that came with the request, then `Done`.
    ReadFile {
        path: Vec<u8>,
        offset: u64,
        length: Option<u64>,
        piped: bool,
    },
    /// Contents of a file: data on `In`, or out of a pipe that came with the request. `Eof` on `In` completes it.
    WriteFile {
        path: Vec<u8>,
        permissions: u32,
        /// Make the directories above it.
        parents: bool,
        mode: WriteMode,
        piped: bool,
    },
    /// Down to this depth (1: the directory itself).
    ListDirectory {
        path: Vec<u8>,
        depth: u16,
    },
    /// One entry; links are not followed.
    Stat {
        path: Vec<u8>,
    },
    MakeDirectory {
        path: Vec<u8>,
        permissions: u32,
        parents: bool,
    },
    Move {
        from: Vec<u8>,
        to: Vec<u8>,
        replace: bool,
    },
    Remove {
        path: Vec<u8>,
        recursive: bool,
    },
    Watch {
        path: Vec<u8>,
        recursive: bool,
    },
    /// A TCP connection to a port of the sandbox's own loopback.
    ConnectPort {
        port: u16,
    },
    Usage,
    /// Stops everything in the sandbox until `Thaw`.
    Freeze,
    Thaw,
    ChangeLimits(LimitChange),
    /// What of the host the policy of the session hides and protects.
    Guarded,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value`, on top of the session's.
    pub env: Vec<Vec<u8>>,
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

/// What a client copies to the supervisor of each output that it reads from a pipe: so many bytes of its beginning as
/// they come, and so many of its end, with what was skipped between, when the command has ended.
pub const COPIED: usize = 32 * 1024;

impl ClientRequest {
    /// Whether it begins nothing and changes nothing, but for the end.
    pub fn only_looks(&self) -> bool {
        use ClientRequest::{Executions, Guarded, Info, Placeholders, Report, Stop, Usage};
        matches!(self, Info | Report | Executions | Placeholders | Guarded | Usage | Stop)
    }

    /// How many pipes come with it.
    pub fn pipes(&self) -> usize {
        match self {
            ClientRequest::Exec(exec) if exec.piped => 2,
            ClientRequest::ReadFile { piped: true, .. } | ClientRequest::WriteFile { piped: true, .. } => 1,
            _ => 0,
        }
    }
}

/// More for an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientInput {
    Signal {
        signal: i32,
        tree: bool,
    },
    Resize(Size),
    /// A context works from now on, and may for so long (`u64::MAX`: without end); without it, it waits.
    ContextTime {
        ms: Option<u64>,
    },
    /// TERM, and KILL after the grace, for everything that descends from it.
    Stop,
    /// Bytes of a pipe that are not copied, before the data that follows.
    OutputSkipped {
        stderr: bool,
        bytes: u64,
    },
    /// Everything that is to be copied of its pipes was.
    OutputComplete,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum SupervisorReply {
    /// The command runs.
    ExecutionStarted {
        execution: u64,
        /// The id of its record.
        record: Option<String>,
        /// Why it has none, said once.
        record_error: Option<String>,
    },
    /// The command could not be started.
    ExecutionFailed {
        execution: u64,
        record: Option<String>,
        step: Step,
        errno: i32,
    },
    ExecutionEnded(ExecutionEnd),
    /// Bytes that are not kept any more, before the data that follows on `Out` or `Err`.
    OutputSkipped {
        stderr: bool,
        bytes: u64,
    },
    /// The watch or the connection stands.
    Ready,
    Entries(Vec<Entry>),
    Changed(Changed),
    /// The request did well; `bytes` of contents were moved.
    Done {
        bytes: u64,
    },
    /// What `Info`, `Report`, `Executions`, `Placeholders` and `Guarded` ask for, as a [document](super::document).
    Document(Vec<u8>),
    Refused(Refusal),
    Usage(Usage),
}

impl SupervisorReply {
    /// Whether nothing follows on its stream.
    pub fn is_last(&self) -> bool {
        use SupervisorReply::{Changed, Entries, ExecutionStarted, OutputSkipped, Ready};
        !matches!(self, ExecutionStarted { .. } | OutputSkipped { .. } | Ready | Entries(_) | Changed(_))
    }
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionEnd {
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
    SessionEnded(End),
    /// This sandbox cannot do that.
    Unsupported,
    /// A limit above the one that the session was made with.
    AboveLimit,
    /// It is frozen: its guest does nothing until it is thawed.
    Frozen,
    NotChanged(String),
    /// The supervisor, or the guest, is of a release that does not know the request.
    UnknownRequest,
}
