//! Starts a box: process 1 in new namespaces, which builds its root, gives up every privilege, starts the command, reaps
//! and forwards signals, and takes everything with it when the command ends.
//!
//! All memory is prepared before the fork; afterwards there are only system calls. Process 1 never writes to the standard
//! descriptors, never reads a file of the box, and trusts nothing it shares a namespace with. The owner learns what
//! happened over one socket, and treats what it reads there as hostile.

pub mod beside;
pub mod builder;
pub mod detach;
mod inside;
pub mod pages;
pub mod reopen;
pub mod setup;
pub mod starter;
pub mod userns;

use std::borrow::Cow;
use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::landlock;
use crate::seccomp::SockFilter;
use crate::sys::{self, Fork, PointerList, Stack, Wait};
use builder::{Builder, Prepared};
use setup::{Idmaps, Step, View};

pub(crate) use inside::{Failure, at};

/// Everything that a box is made from, but for what only the one that starts has ([`Start`]).
#[derive(Debug)]
pub struct Spec {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    pub identity: Identity,
    /// The first builds the root, the others fill it.
    pub steps: Vec<Step>,
    /// Bring the loopback of an own network namespace up.
    pub loopback: bool,
    /// Leave user namespaces open inside.
    pub nesting: bool,
    /// Process 1 stays until it is killed, so that the owner can count what is there when the command ends, if anything is.
    pub lingers: bool,
    /// `RLIMIT_*` and value.
    pub rlimits: Vec<(u32, u64)>,
    /// Run on some processors only; the stand-in for a share of them. A program can undo it.
    pub processors: Option<Processors>,
    pub landlock: Option<landlock::Rules>,
    pub filter: Option<Cow<'static, [SockFilter]>>,
    /// The filter reports calls; its listener goes to the owner.
    pub listens: bool,
    pub workdir: CString,
    pub program: CString,
    pub argv: PointerList,
    /// `argv` for a script without an interpreter line.
    pub script_argv: PointerList,
    pub env: PointerList,
    /// What process 1 becomes instead of starting the command: this program, with `argv`, no environment, and the standard
    /// descriptors as its only ones. It says nothing to the owner any more.
    pub becomes: Option<OwnedFd>,
    /// For the command's process until it executes.
    pub stack: Stack,
}

/// Groups and descriptors of a box.
#[derive(Debug)]
pub struct Start {
    /// Control groups to join: `0` is written to each.
    pub groups: Vec<OwnedFd>,
    /// Where the kernel can, process 1 is born in this one instead.
    pub born_in: Option<OwnedFd>,
    pub terminal: Terminal,
    /// Descriptors 0, 1 and 2 of the command; the slave of the box's own terminal where `None`.
    pub stdio: [Option<OwnedFd>; 3],
}

impl Spec {
    fn idmaps(&self) -> Option<&Idmaps> {
        match &self.identity {
            Identity::Entered { idmaps, .. } => Some(idmaps),
            _ => None,
        }
    }
}

/// So many processors, beginning at one that differs from box to box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processors {
    pub count: usize,
    pub offset: usize,
}

/// How the box's user ids relate to the host's.
#[derive(Debug)]
pub enum Identity {
    /// Run by an ordinary user: the box maps this one user, by itself.
    Mapped(Maps),
    /// Run by root: mounts are made with root's rights, then the box enters this prepared namespace as this user.
    Entered { userns: OwnedFd, idmaps: Idmaps, uid: u32, gid: u32 },
    /// Another program builds the box, and `program` is that.
    Outside(Builder),
    /// No namespace of its own: what the box already lives in stays (a nested run).
    Kept,
}

/// How the user and group ids of a user namespace are mapped, as the kernel takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maps {
    pub uids: CString,
    pub gids: CString,
}

/// Whether the command gets a terminal of the box's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminal {
    None,
    Own { rows: u16, columns: u16 },
}

macro_rules! stages {
    ($($(#[$doc:meta])* $stage:ident $act:literal),* $(,)?) => {
        /// Where setting up stopped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Stage {
            /// The step with this index.
            Step(usize),
            /// The finished view does not show this one as it was planned: a step, or where another program builds the box, a
            /// place of [`Builder::view`].
            View(usize),
            $($(#[$doc])* $stage,)*
        }

        impl Stage {
            const FIXED: &[Stage] = &[$(Stage::$stage),*];
        }

        impl fmt::Display for Stage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Stage::Step(index) => write!(f, "carry out step {index}"),
                    Stage::View(index) => write!(f, "find what step {index} mounted"),
                    $(Stage::$stage => f.write_str($act),)*
                }
            }
        }
    };
}

stages! {
    Groups "join the control group",
    IdMaps "map user ids",
    Pivot "change the root",
    Hostname "set the host name",
    Loopback "bring loopback up",
    UserNamespaces "close user namespaces",
    Become "become the sandbox user",
    Capabilities "drop capabilities",
    NoNewPrivileges "forbid new privileges",
    Limits "set resource limits",
    Landlock "apply Landlock",
    Filter "install the system-call filter",
    Terminal "open a terminal",
    Fork "fork the command",
    /// The command's own process: session, descriptors, working directory.
    Session "start a session",
    Stdio "set up standard descriptors",
    WorkingDirectory "enter the working directory",
    /// The program that builds the box.
    Builder "build the sandbox",
}

/// From these numbers on a stage is a step, or a place of the view.
const STEPS: i32 = 1000;
const VIEW: i32 = 1 << 24;

impl Stage {
    /// As a box says it to its owner.
    pub fn number(self) -> i32 {
        match self {
            Stage::Step(index) => STEPS + index as i32,
            Stage::View(index) => VIEW + index as i32,
            fixed => Self::FIXED.iter().position(|s| *s == fixed).unwrap_or(0) as i32,
        }
    }

    fn decode(number: i32) -> Option<Stage> {
        match usize::try_from(number).ok()? {
            n if n >= VIEW as usize => Some(Stage::View(n - VIEW as usize)),
            n if n >= STEPS as usize => Some(Stage::Step(n - STEPS as usize)),
            n => Self::FIXED.get(n).copied(),
        }
    }
}

/// What the owner hears from a box.
#[derive(Debug)]
pub enum Event {
    /// Setting up failed; the command was not started.
    Failed { stage: Stage, errno: Errno },
    /// The program could not be executed.
    NotExecuted(Errno),
    /// The master side of the box's own terminal.
    Terminal(OwnedFd),
    /// Where the filter reports calls.
    Listener(OwnedFd),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command ended with this `waitpid` status.
    Exited { status: i32 },
    /// The socket closed: process 1 is gone, or has become the program that it was to become.
    Closed,
}

const FAILED: i32 = 1;
const NOT_EXECUTED: i32 = 2;
const TERMINAL: i32 = 3;
const STOPPED: i32 = 4;
const EXITED: i32 = 5;
const LISTENER: i32 = 6;

type Message = [u8; 12];

/// So long process 1 may take to kill what it started.
const PATIENCE: Duration = Duration::from_secs(2);

fn message(kind: i32, a: i32, b: i32) -> Message {
    let mut bytes = [0; 12];
    for (slot, value) in bytes.chunks_exact_mut(4).zip([kind, a, b]) {
        slot.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// What a process outside needs to enter the mounts of a sandbox.
#[derive(Debug)]
pub struct Handles {
    /// The mount namespace.
    pub mounts: OwnedFd,
    /// The directory of the placeholders that mounts were cloned from. Only sandboxes that process 1 builds have one.
    pub placeholders: Option<OwnedFd>,
}

/// A started box.
#[derive(Debug)]
pub struct Launched {
    /// Process 1, as the host sees it.
    pid: rustix::process::Pid,
    events: OwnedFd,
    /// Where the sandbox hands its namespace out, before the command starts.
    handles: OwnedFd,
    /// A zero comes when the box is built, or why not from a starter. Looked at, and not read: process 1 of a builder reads it.
    stands: OwnedFd,
    /// Process 1 lives outside the box, so that its end is not by itself the end of the box.
    outside: Option<Outside>,
    /// No PID namespace ends with process 1. It kills what is left itself, when its owner's socket closes.
    kills_by_itself: bool,
    reaped: bool,
}

#[derive(Debug)]
struct Outside {
    /// Where the builder has written its number.
    number: OwnedFd,
}

/// Forks process 1. Failures of its set-up come as [`Event::Failed`].
pub fn launch(spec: &Spec, mut start: Start) -> Result<Launched, Errno> {
    let (events, owner) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let (handles, inner) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let prepared = match &spec.identity {
        Identity::Outside(builder) => Some(Prepared::new(builder, spec, &start, &inner)?),
        _ => None,
    };
    let again = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
    let (outside, stands, report) = match &prepared {
        Some(p) => (Some(Outside { number: again(&p.number.0)? }), again(&p.started)?, None),
        None => {
            let (stands, report) = stands()?;
            (None, stands, Some(report))
        }
    };
    let mut view = View::of(&spec.steps);
    let kills_by_itself = matches!(spec.identity, Identity::Kept);
    // A signal for process 1 waits until it takes them over; as the first of its PID namespace it would otherwise ignore it.
    let _blocked = sys::SignalsBlocked::new()?;
    let forked = match start.born_in.as_ref().and_then(|group| sys::fork_into(group.as_fd(), spec.namespaces)) {
        Some(forked) => forked,
        None => {
            start.born_in = None;
            sys::fork(spec.namespaces)?
        }
    };
    match forked {
        Fork::Parent(pid) => Ok(Launched { pid, events, handles, stands, outside, kills_by_itself, reaped: false }),
        Fork::Child => inside::process_one(spec, &start, prepared.as_ref(), &owner, &inner, &mut view, report),
    }
}

/// Where an owner sees that a box is built, and where that is said. It closes without a word when there will be none.
pub(crate) fn stands() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

impl Launched {
    /// The number of process 1, as the host sees it.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// What the sandbox handed out, once. `None`: it is not built yet, or has no mounts of its own. Never waits.
    pub fn handles(&self) -> Option<Handles> {
        let mut sent = Vec::new();
        let received =
            sys::receive_with(&self.handles, &mut [0], 2, RecvFlags::DONTWAIT, |descriptor| sent.push(descriptor));
        let mut sent = received.ok().map(|_| sent)?.into_iter();
        Some(Handles { mounts: sent.next()?, placeholders: sent.next() })
    }

    /// Readable when the next event is there.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits until the box is built and its view was looked at; false when it is not built. Then an event says why.
    pub fn is_built(&self, limit: Duration) -> bool {
        let mut word = [0; 4];
        let ready = sys::poll_until(&mut [PollFd::new(&self.stands, PollFlags::IN)], Instant::now() + limit);
        // Closed without a word, or with no word in time: it failed.
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let said = ready.is_ok_and(|count| count > 0).then(|| rustix::net::recv(&self.stands, &mut word, look));
        matches!(said, Some(Ok((4, _)))) && word == [0; 4]
    }

    /// The next event; waits for it.
    pub fn next_event(&self) -> Result<Event, Errno> {
        let mut bytes: Message = [0; 12];
        let mut fd = None;
        let received = loop {
            match sys::receive_with(&self.events, &mut bytes, 1, RecvFlags::empty(), |sent| fd = Some(sent)) {
                // It ended with a word of ours unread. That is told once, and before what it said last.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                result => break result?,
            }
        };
        if received.bytes == 0 {
            return Ok(Event::Closed);
        }
        let word = |i: usize| i32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        match (received.bytes, word(0), fd) {
            (12, FAILED, _) => Ok(Event::Failed {
                stage: Stage::decode(word(4)).ok_or(Errno::PROTO)?,
                errno: Errno::from_raw_os_error(word(8).clamp(1, 4095)),
            }),
            (12, NOT_EXECUTED, _) => Ok(Event::NotExecuted(Errno::from_raw_os_error(word(4).clamp(1, 4095)))),
            (12, TERMINAL, Some(master)) => Ok(Event::Terminal(master)),
            (12, LISTENER, Some(listener)) => Ok(Event::Listener(listener)),
            (12, STOPPED, _) => Ok(Event::Stopped(word(4))),
            (12, EXITED, _) => Ok(Event::Exited { status: word(4) }),
            _ => Err(Errno::PROTO),
        }
    }

    /// Sends a signal to process 1, which forwards it to the command's process group; KILL ends the box at once.
    pub fn signal(&self, signal: i32) -> Result<(), Errno> {
        if signal == libc::SIGKILL && (self.kills_by_itself || self.outside.is_some()) {
            // Process 1 sees its owner go, and kills what it started, or a builder and what that started.
            return rustix::net::shutdown(&self.events, rustix::net::Shutdown::Both);
        }
        // The pid cannot have been reused: it stays ours until `reap`.
        sys::kill(self.pid(), signal)
    }

    /// Waits until process 1, and so everything in its namespace, is gone.
    pub fn reap(mut self) -> Result<Option<sys::Waited>, Errno> {
        self.reaped = true;
        self.wait()
    }

    /// Whether process 1 is seen to end in this time.
    fn ends_within(&self, limit: Duration) -> bool {
        let Ok(process) = rustix::process::pidfd_open(self.pid, rustix::process::PidfdFlags::empty()) else {
            // It cannot be watched, and gets its time all the same.
            std::thread::sleep(limit);
            return false;
        };
        let ended = sys::poll_until(&mut [PollFd::new(&process, PollFlags::IN)], Instant::now() + limit);
        ended.is_ok_and(|count| count > 0)
    }

    fn wait(&self) -> Result<Option<sys::Waited>, Errno> {
        // Something in the sandbox may have stopped it.
        if self.kills_by_itself && !self.ends_within(PATIENCE) {
            sys::kill(self.pid(), libc::SIGKILL)?;
        }
        let waited = sys::wait(self.pid(), Wait::UntilEnd);
        if let (Some(outside), Ok(Some(process_one))) = (&self.outside, &waited)
            && libc::WIFSIGNALED(process_one.status)
        {
            builder::abandoned(&outside.number);
        }
        waited
    }
}

impl Drop for Launched {
    /// For an owner that gave up half-way: nothing goes on without it, and no dead process is left.
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.signal(libc::SIGKILL);
            let _ = self.wait();
        }
    }
}
