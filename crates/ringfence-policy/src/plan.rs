//! The plan: policy + facts of this host = ordered steps, printable before anything runs.
//!
//! `plan()` is pure but for looking paths up. It decides everything that an engine enforces: which mounts, in which order,
//! with which stand-ins. An engine compiles the plan into its own form and never adds or drops a rule.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::guarantee::Guarantee;
use crate::limits::Limits;
use crate::policy::Network;
use crate::rules::Kind;

/// What an engine enforces, ready to be compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What the box sees, in the order in which it is mounted.
    pub mounts: Vec<Mount>,
    /// Names that must exist on the host while the box lives, so that something can be mounted on them.
    pub stubs: Vec<Stub>,
    pub network: Network,
    pub nesting: bool,
    /// Ids of the command inside.
    pub uid: u32,
    pub gid: u32,
    /// Where the command starts, inside.
    pub workdir: PathBuf,
    /// The whole environment of the command.
    pub env: Vec<(OsString, OsString)>,
    /// Program (a path inside) and arguments.
    pub command: Command,
    pub limits: Limits,
    pub allow_syscalls: Vec<String>,
    pub trace_denials: bool,
    pub strict: bool,
    pub promises: Vec<Promise>,
}

/// What is executed inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Absolute path of the program inside the box.
    pub program: PathBuf,
    /// `argv`, the first as the user wrote it.
    pub args: Vec<OsString>,
}

/// One promise of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    pub guarantee: Guarantee,
    /// The policy lets the box start without it.
    pub optional: bool,
}

/// One step that shapes what the box sees. Every path is absolute and free of symlinks; targets are paths inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mount {
    /// A host file or tree with all that is mounted below it; never set-user-id, never a device.
    Bind { source: PathBuf, target: PathBuf, writable: bool, kind: Kind },
    /// Private writable space.
    Tmpfs { target: PathBuf, mode: u32, size: u64, inodes: u64 },
    /// A fresh procfs of the box's own PID namespace.
    Proc { target: PathBuf },
    /// Minimal devices: null, zero, full, random, urandom, tty, own pts, shm of the given size; the rest read-only.
    Dev { target: PathBuf, shm_size: u64, shm_inodes: u64 },
    /// A directory in private space (parents included).
    Dir { target: PathBuf, mode: u32 },
    /// An empty file in private space, to mount on.
    File { target: PathBuf },
    /// A symbolic link in private space.
    Symlink { target: PathBuf, to: PathBuf },
    /// An empty, unreadable stand-in. `passable`: a rule exposes something below, so that it can be walked through.
    Hide { target: PathBuf, kind: Kind, passable: bool },
    /// An empty, readable, read-only stand-in for a protected path that is not there.
    Empty { target: PathBuf, kind: Kind },
    /// A text file in private space or on a mount point, read-only (`/run/ringfence/box.json`, a blocked program's note).
    Text { target: PathBuf, text: String, mode: u32 },
    /// Makes private space read-only once all its mount points are made (not what is mounted below).
    Seal { target: PathBuf },
}

/// A name made on the host before the box starts and taken away when it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    pub path: PathBuf,
    pub kind: Kind,
}
