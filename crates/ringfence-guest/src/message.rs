//! Messages: what is asked of a guest, and what it answers.
//!
//! Paths and arguments are bytes, as the kernel has them. Every number that a guest sends is a claim, not a fact: the host
//! checks what it relies on.

use serde::{Deserialize, Serialize};

use crate::frame::{Greeting, Message};

/// The guest takes pipes that come with a request.
pub const PIPES: u64 = 1;

/// The guest may open streams towards the host, with a [`HostRequest`] each, as many as the host has granted.
pub const HOST_STREAMS: u64 = 2;

/// Streams that the guest opens have numbers from here on. Those that the host opens have lower ones.
pub const FIRST_HOST_STREAM: u32 = 1 << 31;

/// The guest confines itself where [`Settings::confined`] says so, before anything else.
pub const CONFINES: u64 = 4;

/// What this release says first, as a guest (a `Reply` on stream 0) and as a host.
pub const GREETING: Greeting = Greeting { oldest: 1, newest: 1, features: PIPES | HOST_STREAMS | CONFINES };

/// The first frame to a guest, an `Input` on stream 0. The engine sends it when it starts the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostHello {
    pub greeting: Greeting,
    pub settings: Settings,
}

/// What holds for every command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// `RLIMIT_*` and value, for each command and not for the guest: it lives long, and needs descriptors for each stream.
    pub limits: Vec<(u32, u64)>,
    /// How many processes there may be beside the guest's reapers of commands, where no control group counts them.
    pub processes: Option<u64>,
    /// The guest confines itself and all that it starts with Landlock: these files and directories can be written, and no
    /// others. A guest that cannot ends.
    pub confined: Option<Vec<Vec<u8>>>,
}

/// What opens a stream. The guest answers each with replies on the same stream, the last of which is `Done`, `Exited` or
/// `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    Exec(Exec),
    /// Contents of a regular file as data on `Out`, then `Done`.
    Read {
        path: Vec<u8>,
        offset: u64,
        length: Option<u64>,
        /// A pipe came with the request, and the contents go into it.
        piped: bool,
    },
    /// Contents from data on `In`, or from a pipe, until the end of `In`, then `Done`.
    Write(Write),
    /// What a directory holds, down to this depth (1: itself only), as `Entries`, then `Done`.
    List {
        path: Vec<u8>,
        depth: u16,
    },
    /// One entry, links not followed, then `Done`.
    Stat {
        path: Vec<u8>,
    },
    MakeDirectory {
        path: Vec<u8>,
        mode: u32,
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
    /// `Changed` for each change until the stream is closed; `Started` when it is being watched.
    Watch {
        path: Vec<u8>,
        recursive: bool,
    },
    /// A TCP connection to a port of the box's own loopback: `Started`, then data both ways, `Done` when both ended.
    Connect {
        port: u16,
    },
    /// `Done`: the guest is there.
    Ping,
}

impl Request {
    /// How many pipes come with it.
    pub fn pipes(&self) -> usize {
        match self {
            Request::Exec(exec) if exec.piped => 2,
            Request::Read { piped: true, .. } | Request::Write(Write { piped: true, .. }) => 1,
            _ => 0,
        }
    }
}

/// A command. The guest looks the program up in the `PATH` of `env` when it has no slash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value`: all of it, nothing is added.
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    /// A terminal of its own: then there is no `Err`.
    pub terminal: Option<Size>,
    /// Data follows on `In`; else its standard input is empty.
    pub stdin: bool,
    /// Two pipes came with the request, and they are its outputs: nothing comes on `Out` and `Err`.
    pub piped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    pub path: Vec<u8>,
    pub mode: u32,
    /// Make the directories above it.
    pub parents: bool,
    pub how: WriteMode,
    /// A pipe came with the request, and the contents come from it. It ends before `In` does.
    pub piped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteMode {
    /// A new file takes the name when it is complete: readers see the old one or the new one.
    Replace,
    /// It must not be there.
    Create,
    Append,
}

/// More for a stream that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// To the command's process group; `tree`: to everything that descends from the command, double forks and new sessions
    /// included. After a `tree` signal `Exited` is said when all of them are gone, so that a KILL can follow a TERM which the
    /// command itself obeyed and a descendant did not.
    Signal {
        signal: i32,
        tree: bool,
    },
    Resize(Size),
    /// On stream 0: the guest may open so many more streams towards the host. Each that it opens takes one away.
    HostStreams {
        more: u32,
    },
}

/// What a stream towards the host is to reach. The host answers with a [`Reply`], before which the guest sends nothing more
/// on the stream. There is nothing to reach so far, so the answer is always `Unsupported`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostRequest {}

/// What a guest answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The command was executed; a watch (0) or a connection (0) stands. Before any data.
    Started {
        pid: u32,
    },
    /// The command ended, and what it wrote has been sent. The last reply, which ends every channel; `Eof` comes before it
    /// only for a channel that the command closed while it ran. What it left in the background goes on.
    Exited(Exited),
    Entries(Vec<Entry>),
    Changed(Changed),
    /// The last reply of a request that did well; `bytes` of contents that were moved.
    Done {
        bytes: u64,
    },
    /// The last reply of a request that did not.
    Failed {
        step: Step,
        errno: i32,
    },
    /// The only reply to a request that this guest does not know.
    Unsupported,
}

impl Reply {
    /// Whether nothing follows on its stream.
    pub fn is_last(&self) -> bool {
        matches!(self, Reply::Done { .. } | Reply::Failed { .. } | Reply::Exited(_) | Reply::Unsupported)
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    /// As `waitpid` has it.
    pub status: i32,
    pub user_micros: u64,
    pub system_micros: u64,
    /// Of the largest process, in bytes.
    pub peak_memory: u64,
}

/// Where a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The request makes no sense here, or there are too many at once.
    Refuse,
    Fork,
    Terminal,
    WorkingDirectory,
    Execute,
    Open,
    Read,
    Write,
    Rename,
    Remove,
    MakeDirectory,
    Watch,
    Connect,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative to what was listed; as asked for in a `Stat`.
    pub path: Vec<u8>,
    pub kind: EntryKind,
    pub size: u64,
    pub mode: u32,
    /// Nanoseconds since 1970.
    pub modified: i64,
    /// Where a symbolic link leads.
    pub target: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Relative to what is watched.
    pub path: Vec<u8>,
    pub change: Change,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Created,
    Written,
    Removed,
    Attributes,
    /// Some were missed: look again.
    Overflow,
}

impl Message for Greeting {
    const VARIANTS: Option<u32> = None;
}

impl Message for HostHello {
    const VARIANTS: Option<u32> = None;
}

impl Message for Request {
    const VARIANTS: Option<u32> = Some(11);
}

impl Message for Input {
    const VARIANTS: Option<u32> = Some(3);
}

impl Message for HostRequest {
    const VARIANTS: Option<u32> = Some(0);
}

impl Message for Reply {
    const VARIANTS: Option<u32> = Some(7);
}
