//! What is known about a session and its executions: plain data, as clients and state files have it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ringfence_guest::message::{Entry, EntryKind};
use ringfence_policy::policy::Shown;
use serde::{Deserialize, Serialize};

use super::document::known;
use crate::engines::Cache;
use crate::sets;
use crate::supervise::Reason;

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// Unique on this host.
    pub id: String,
    /// The name it was given.
    pub name: Option<String>,
    /// The profile its policy was built from.
    pub profile: String,
    /// A hash of the policy that it was made with. Two sessions have the same one where files, flags and trust say so.
    #[serde(default)]
    pub policy: String,
    /// The engine that keeps its sandbox.
    pub engine: String,
    /// Of the host; at `workdir_inside` in the box.
    #[serde(serialize_with = "readable")]
    pub workdir: PathBuf,
    /// The working directory inside.
    #[serde(serialize_with = "readable")]
    pub workdir_inside: PathBuf,
    /// When it was made.
    pub created: SystemTime,
    /// Whether it lives.
    #[serde(deserialize_with = "known")]
    pub state: State,
    /// Of the supervisor.
    pub pid: u32,
    /// How long it may do nothing.
    pub idle: Option<Duration>,
    /// When it will end for idleness, if nothing is asked of it; none while it is in use.
    pub idle_at: Option<SystemTime>,
    /// When it will end whatever happens.
    pub expires: Option<SystemTime>,
    /// Time limit of a command that asks for none.
    pub timeout: Option<Duration>,
    /// The longest one that can be asked for.
    pub timeout_ceiling: Option<Duration>,
    /// Bytes of each output that are kept.
    pub output: u64,
    /// Executions so far.
    pub executions: u64,
    /// Commands that run now.
    pub running: u32,
    /// What became of the package caches that its policy asks for.
    #[serde(default)]
    pub caches: Vec<Cache>,
    /// Sets of packages that it was made with.
    #[serde(default)]
    pub requirements: Vec<Required>,
    /// Why something of its box is still there although it has ended.
    #[serde(default)]
    pub left: Option<String>,
    /// Why its supervisor cannot be talked to: what is said here is as old as its state file then.
    #[serde(default)]
    pub unreachable: Option<String>,
    /// Everything in it is stopped until it is thawed.
    #[serde(default)]
    pub frozen: bool,
    /// Bytes of memory that the whole tree may use now.
    #[serde(default)]
    pub memory: Option<u64>,
    /// CPUs that the whole tree may use now.
    #[serde(default)]
    pub cpus: Option<f64>,
    /// Processes and threads that the whole tree may have now.
    #[serde(default)]
    pub processes: Option<u64>,
}

/// Other limits for a live session: those that are given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitChange {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// CPUs, as a fraction.
    pub cpus: Option<f64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// The longest time of a command that starts from now on, also of one that asks for none.
    pub timeout: Option<Duration>,
}

/// What the sandbox of a session uses; `None` where nothing counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time so far.
    pub cpu: Option<Duration>,
    /// Bytes of memory now.
    pub memory: Option<u64>,
    /// Bytes of memory at most so far.
    pub peak_memory: Option<u64>,
    /// Processes and threads now, the guest's own among them.
    pub processes: Option<u64>,
    /// Bytes read from disks.
    pub read: Option<u64>,
    /// Bytes written to disks.
    pub written: Option<u64>,
    /// Processes killed for memory.
    pub killed_for_memory: u64,
    /// Bytes received from the network, where the sandbox has one of its own.
    #[serde(default)]
    pub received: Option<u64>,
    /// Bytes sent to the network.
    #[serde(default)]
    pub sent: Option<u64>,
}

impl Info {
    /// A live session of which nothing is known but that it is there.
    pub(super) fn unknown(id: &str) -> Info {
        Info {
            id: id.to_owned(),
            name: None,
            profile: "-".to_owned(),
            policy: String::new(),
            engine: "-".to_owned(),
            workdir: PathBuf::new(),
            workdir_inside: PathBuf::new(),
            created: SystemTime::UNIX_EPOCH,
            state: State::Live,
            pid: 0,
            idle: None,
            idle_at: None,
            expires: None,
            timeout: None,
            timeout_ceiling: None,
            output: 0,
            executions: 0,
            running: 0,
            caches: Vec::new(),
            requirements: Vec::new(),
            left: None,
            unreachable: None,
            frozen: false,
            memory: None,
            cpus: None,
            processes: None,
        }
    }
}

/// A set of packages in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Required {
    /// As the store has it.
    pub id: String,
    /// Where it stands inside.
    pub at: String,
}

impl Required {
    pub(super) fn of(shown: &Shown) -> Required {
        Required { id: sets::id_of(&shown.source), at: shown.target.to_string_lossy().into_owned() }
    }
}

/// What stands, as long as the session lives, in the place of a name that is protected and was missing. It is nobody's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placeholder {
    /// Inside.
    #[serde(with = "ringfence_policy::wire::path")]
    pub path: PathBuf,
    /// Of its contents, where it is a file.
    pub length: u64,
}

impl Placeholder {
    /// Whether this entry is still it; `empty` says whether a directory is.
    pub fn is(&self, entry: &Entry, empty: bool) -> bool {
        match entry.kind {
            EntryKind::Directory => empty,
            EntryKind::File => entry.size == self.length && entry.mode & 0o222 == 0,
            EntryKind::Symlink | EntryKind::Other => false,
        }
    }
}

/// For people: what is not UTF-8 is replaced.
fn readable<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Whether a session can be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It can be used.
    Live,
    /// It cannot be used any more, for this reason.
    Ended(End),
    /// Another release wrote it, and this one does not know it.
    #[default]
    Unknown,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Somebody asked for it.
    Stopped,
    /// Nothing was asked of it for too long.
    Idle,
    /// Its life was over.
    Expired,
    /// Its process 1 died.
    Died,
    /// It ran out of memory as a whole.
    Memory,
    /// The guest did not obey, or broke the protocol: the box was killed.
    Unruly,
    /// Its supervisor was killed, or the machine went down.
    Lost,
    /// Its directory was removed, so that nobody could find it any more.
    Removed,
    /// A process that it needs beside its sandbox ended.
    Helper,
    /// A newer release has another reason. It is read only, and its number is given to the next reason.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Stopped => "it was stopped",
            End::Idle => "it was idle for too long",
            End::Expired => "its life was over",
            End::Died => "its process 1 died",
            End::Memory => "it ran out of memory",
            End::Unruly => "its guest did not obey",
            End::Lost => "its supervisor was killed",
            End::Removed => "its directory was removed",
            End::Helper => "a process that it needs ended",
            End::Unknown => "another release of Ringfence knows why",
        })
    }
}

/// A command that runs in a session, or ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutionInfo {
    /// Unique in its session.
    pub id: String,
    /// As it was asked for, invalid UTF-8 replaced.
    pub command: Vec<String>,
    /// It outlives the client that started it.
    pub background: bool,
    /// It has a terminal.
    pub terminal: bool,
    /// An interpreter that waits for code: `python/name`.
    pub context: Option<String>,
    /// When it was asked for.
    pub started: SystemTime,
    /// Whether it runs, or how it ended.
    #[serde(deserialize_with = "known")]
    pub state: ExecutionState,
    /// Bytes written to stdout so far.
    pub stdout: u64,
    /// Bytes written to stderr so far.
    pub stderr: u64,
}

/// Whether a command runs, and how it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecutionState {
    /// It runs.
    Running,
    /// It ended with an exit code.
    Exited {
        /// The exit code.
        code: i32,
        /// Why Ringfence ended it, if it did.
        reason: Option<Reason>,
    },
    /// A signal ended it.
    Signaled {
        /// The signal's number.
        signal: i32,
        /// Why Ringfence ended it, if it did.
        reason: Option<Reason>,
    },
    /// Another release says so, and this one does not know it.
    #[default]
    Unknown,
}
