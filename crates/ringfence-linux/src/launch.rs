//! Starts a box: process 1 in new namespaces, which builds its root, gives up every privilege, starts the command, reaps
//! and forwards signals, and takes everything with it when the command ends.
//!
//! All memory is prepared before the fork; afterwards there are only system calls. Process 1 never writes to the standard
//! descriptors, never reads a file of the box, and trusts nothing it shares a namespace with. The owner learns what
//! happened over one socket, and treats what it reads there as hostile.

mod inside;

use std::borrow::Cow;
use std::ffi::CString;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
};

use crate::builder::{self, Builder, Prepared};
use crate::landlock;
use crate::order::{Letter, Order};
use crate::seccomp::SockFilter;
use crate::seed::{Growing, Husk, Maps, Seed, Soil};
use crate::setup::{Idmaps, Step};
use crate::sys::{self, Fork, PointerList, Stack};

pub(crate) use inside::{
    Begun, Failure, at, kept_processors, let_go, loopback_up, map_ids, namespace, process_one, send_with, this_process,
};

/// Everything that boxes of a kind are made from; as many can be started as one likes.
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

/// What is one box's own.
#[derive(Debug)]
pub struct Start {
    /// Control groups to join: `0` is written to each.
    pub groups: Vec<OwnedFd>,
    /// Where the kernel can, process 1 is born in this one instead.
    pub born_in: Option<OwnedFd>,
    pub terminal: Terminal,
    /// Descriptors 0, 1 and 2 of the command; the slave of the box's own terminal where `None`.
    pub stdio: [Option<OwnedFd>; 3],
    /// Where there is room for an order, the box waits for one, and runs that instead of the command of [`Spec`].
    pub order: Option<Letter>,
    /// Names on the host are still being made: where the first is needed ([`Step::Names`]), process 1 waits for
    /// [`Launched::named`].
    pub unnamed: bool,
}

impl Start {
    /// Forks process 1 in its group, or where that cannot be, outside.
    pub(crate) fn fork(
        &mut self,
        inside: impl FnOnce(BorrowedFd<'_>) -> Option<Fork>,
        outside: impl FnOnce() -> Result<Fork, Errno>,
    ) -> Result<Fork, Errno> {
        if let Some(forked) = self.born_in.as_ref().and_then(|group| inside(group.as_fd())) {
            return Ok(forked);
        }
        self.born_in = None;
        outside()
    }
}

impl Spec {
    /// What a [`Seed`] for this box must have been made of; `None` where none can be.
    pub(crate) fn soil(&self) -> Option<Soil> {
        let maps = match &self.identity {
            Identity::Mapped(maps) => Some(maps.clone()),
            Identity::Entered { .. } => None,
            Identity::Outside(_) | Identity::Kept => return None,
        };
        Some(Soil { namespaces: self.namespaces, maps })
    }

    pub(crate) fn idmaps(&self) -> Option<&Idmaps> {
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

/// Whether the command gets a terminal of the box's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminal {
    None,
    Own { rows: u16, columns: u16 },
}

/// Where setting up stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Groups,
    IdMaps,
    /// The step with this index.
    Step(usize),
    Pivot,
    Hostname,
    Loopback,
    UserNamespaces,
    Become,
    Capabilities,
    NoNewPrivileges,
    Limits,
    Landlock,
    Filter,
    Terminal,
    Fork,
    /// The command's own process: session, descriptors, working directory.
    Session,
    Stdio,
    WorkingDirectory,
    /// The program that builds the box.
    Builder,
    /// What a parked box was told to run.
    Order,
}

impl Stage {
    const FIXED: [Stage; 19] = [
        Stage::Groups,
        Stage::IdMaps,
        Stage::Pivot,
        Stage::Hostname,
        Stage::Loopback,
        Stage::UserNamespaces,
        Stage::Become,
        Stage::Capabilities,
        Stage::NoNewPrivileges,
        Stage::Limits,
        Stage::Landlock,
        Stage::Filter,
        Stage::Terminal,
        Stage::Fork,
        Stage::Session,
        Stage::Stdio,
        Stage::WorkingDirectory,
        Stage::Builder,
        Stage::Order,
    ];

    /// As a box says it to its owner.
    pub fn number(self) -> i32 {
        match self {
            Stage::Step(index) => 1000 + index as i32,
            fixed => Self::FIXED.iter().position(|s| *s == fixed).unwrap_or(0) as i32,
        }
    }

    fn decode(number: i32) -> Option<Stage> {
        match usize::try_from(number).ok()? {
            n if n >= 1000 => Some(Stage::Step(n - 1000)),
            n => Self::FIXED.get(n).copied(),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Groups => "join the control group",
            Stage::IdMaps => "map user ids",
            Stage::Step(index) => return write!(f, "carry out step {index}"),
            Stage::Pivot => "change the root",
            Stage::Hostname => "set the host name",
            Stage::Loopback => "bring loopback up",
            Stage::UserNamespaces => "close user namespaces",
            Stage::Become => "become the sandbox user",
            Stage::Capabilities => "drop capabilities",
            Stage::NoNewPrivileges => "forbid new privileges",
            Stage::Limits => "set resource limits",
            Stage::Landlock => "apply Landlock",
            Stage::Filter => "install the system-call filter",
            Stage::Terminal => "open a terminal",
            Stage::Fork => "fork the command",
            Stage::Session => "start a session",
            Stage::Stdio => "set up standard descriptors",
            Stage::WorkingDirectory => "enter the working directory",
            Stage::Builder => "build the sandbox",
            Stage::Order => "take the command",
        })
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
    /// Where the filter reports sockets, and the network namespace in which they are made.
    Network { listener: OwnedFd, namespace: OwnedFd },
    /// The box stands and waits for an order; its mount namespace, where the owner does not have it.
    Parked(Option<OwnedFd>),
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
const PARKED: i32 = 7;
pub(crate) const NETWORK: i32 = 8;

type Message = [u8; 12];

pub(crate) fn message(kind: i32, a: i32, b: i32) -> Message {
    let mut bytes = [0; 12];
    for (slot, value) in bytes.chunks_exact_mut(4).zip([kind, a, b]) {
        slot.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// A started box.
#[derive(Debug)]
pub struct Launched {
    /// Process 1, as the host sees it, where it is a child of this process.
    pid: Option<rustix::process::Pid>,
    events: OwnedFd,
    /// Process 1 lives outside the box, so that its end is not by itself the end of the box.
    outside: Option<Outside>,
    /// Process 1 is a child of somebody else, who reaps it.
    adopted: Option<OwnedFd>,
    /// What it grew from, until that is gone.
    husk: Option<Husk>,
    /// Its mount namespace, which therefore does not go with it: the kernel takes long to take it down.
    mounts: Option<OwnedFd>,
    reaped: bool,
}

#[derive(Debug)]
struct Outside {
    /// Where the starter says that a builder's box stands. Process 1 reads it; here it is only looked at.
    started: OwnedFd,
    /// Where the builder has written its number.
    number: OwnedFd,
}

/// What process 1 is made from.
pub(crate) struct Seedling {
    pub spec: Arc<Spec>,
    pub start: Start,
    /// Its end of the socket.
    pub owner: OwnedFd,
}

/// A box whose process 1 is being forked.
#[derive(Debug)]
pub struct Launching(Option<Progress>);

#[derive(Debug)]
enum Progress {
    /// By a seed; with this process's end of the socket.
    Growing(Growing, OwnedFd),
    Forked(Launched),
}

/// Forks process 1, in the seed's namespaces where there is one for it. Failures of its set-up come as [`Event::Failed`].
pub fn launch(spec: Arc<Spec>, start: Start, seed: Option<Seed>) -> Result<Launching, Errno> {
    let (events, owner) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let seedling = Seedling { spec, start, owner };
    let growing = match seed {
        Some(seed) => seed.grow(seedling),
        None => Err(seedling),
    };
    let progress = match growing {
        Ok(growing) => Progress::Growing(growing, events),
        Err(seedling) => Progress::Forked(fork(seedling, events)?),
    };
    Ok(Launching(Some(progress)))
}

impl Launching {
    /// The box, which runs.
    pub fn finish(mut self) -> Result<Launched, Errno> {
        match self.0.take() {
            Some(progress) => progress.finish(),
            None => Err(Errno::CANCELED),
        }
    }
}

impl Progress {
    fn finish(self) -> Result<Launched, Errno> {
        let (growing, events) = match self {
            Progress::Growing(growing, events) => (growing, events),
            Progress::Forked(launched) => return Ok(launched),
        };
        let unnamed = growing.is_unnamed();
        match growing.finish() {
            Ok((pid, husk)) => {
                let mut launched = Launched::new(pid, events, None, Some(husk));
                if !unnamed {
                    launched.part();
                }
                Ok(launched)
            }
            Err(seedling) => fork(seedling, events),
        }
    }
}

impl Drop for Launching {
    /// For an owner that gave up half-way.
    fn drop(&mut self) {
        // What it grew ends with it; where it grew nothing, nothing is forked for it.
        if let Some(Progress::Growing(growing, events)) = self.0.take()
            && let Ok((pid, husk)) = growing.finish()
        {
            drop(Launched::new(pid, events, None, Some(husk)));
        }
    }
}

/// Forks process 1 from this process.
fn fork(mut seedling: Seedling, events: OwnedFd) -> Result<Launched, Errno> {
    let Seedling { spec, start, owner } = &mut seedling;
    let prepared = match &spec.identity {
        Identity::Outside(builder) => Some(Prepared::new(builder, spec, start)?),
        _ => None,
    };
    let again = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
    let outside = match &prepared {
        Some(p) => Some(Outside { started: again(&p.started)?, number: again(&p.number.0)? }),
        None => None,
    };
    // A signal for process 1 waits until it takes them over; as the first of its PID namespace it would otherwise ignore it.
    let _blocked = sys::SignalsBlocked::new()?;
    let forked = start.fork(|group| sys::fork_into(group, spec.namespaces, None), || sys::fork(spec.namespaces));
    match forked? {
        Fork::Parent(pid) => Ok(Launched::new(pid, events, outside, None)),
        Fork::Child => process_one(spec, start, prepared.as_ref(), owner, Begun::Nothing),
    }
}

impl Launched {
    fn new(pid: rustix::process::Pid, events: OwnedFd, outside: Option<Outside>, husk: Option<Husk>) -> Launched {
        Launched { pid: Some(pid), events, outside, adopted: None, husk, mounts: None, reaped: false }
    }

    /// A box whose process 1 somebody else forked: its descriptor, and the socket where it says what happens.
    pub fn adopt(process: OwnedFd, events: OwnedFd) -> Launched {
        Launched { pid: None, events, outside: None, adopted: Some(process), husk: None, mounts: None, reaped: false }
    }

    /// The number of process 1, as the host sees it; 0 when it has ended and somebody else has reaped it.
    pub fn pid(&self) -> i32 {
        let pid = self.pid.or_else(|| self.adopted.as_ref().and_then(pid_of));
        pid.map_or(0, |pid| pid.as_raw_nonzero().get())
    }

    /// Readable when the next event is there.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits until a builder's box stands, or does not: then `messages`, which it writes to, may say why.
    pub fn is_built(&self, messages: &OwnedFd, limit: Duration) -> bool {
        let Some(Outside { started, .. }) = &self.outside else { return true };
        let mut ready = [
            rustix::event::PollFd::new(started, rustix::event::PollFlags::IN),
            rustix::event::PollFd::new(messages, rustix::event::PollFlags::IN),
        ];
        let limit = rustix::event::Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 };
        while let Err(Errno::INTR) = rustix::event::poll(&mut ready, Some(&limit)) {}
        ready[0].revents().contains(rustix::event::PollFlags::IN)
    }

    /// The next event; waits for it.
    pub fn next_event(&self) -> Result<Event, Errno> {
        let mut bytes: Message = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.events, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                // It ended with a word of ours unread. That is told once, and before what it said last.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                result => break result?,
            }
        };
        let (mut fd, mut second) = (None, None);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                (fd, second) = (fds.next(), fds.next());
            }
        }
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
            (12, NETWORK, Some(listener)) => Ok(Event::Network { listener, namespace: second.ok_or(Errno::PROTO)? }),
            (12, PARKED, mounts) => Ok(Event::Parked(mounts)),
            (12, STOPPED, _) => Ok(Event::Stopped(word(4))),
            (12, EXITED, _) => Ok(Event::Exited { status: word(4) }),
            _ => Err(Errno::PROTO),
        }
    }

    /// Tells a box that waits for it that the names on the host are there.
    pub fn named(&mut self) {
        // One that is gone tells so by itself.
        let _ = rustix::net::send(&self.events, &[1], SendFlags::NOSIGNAL);
        self.part();
    }

    /// Waits until nothing is left of the seed.
    fn part(&mut self) {
        let mounts = self.husk.take().and_then(Husk::join);
        self.hold(mounts);
    }

    /// Holds the mount namespace of the box, so that it does not go with process 1. An owner of many boxes needs its
    /// descriptors for them. `None` changes nothing.
    pub fn hold(&mut self, mounts: Option<OwnedFd>) {
        let Some(mounts) = mounts else { return };
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.map_or(u64::MAX, |n| n / 4);
        if (mounts.as_raw_fd() as u64) < most {
            self.mounts = Some(mounts);
        }
    }

    /// Tells a parked box what to run; `E2BIG` when that is too long to be told.
    pub fn order(&self, order: &Order, stdio: [BorrowedFd<'_>; 3]) -> Result<(), Errno> {
        order.send(&self.events, stdio)
    }

    /// Sends a signal to process 1, which forwards it to the command's process group; KILL ends the box at once.
    pub fn signal(&self, signal: i32) -> Result<(), Errno> {
        if self.outside.is_some() && signal == libc::SIGKILL {
            // Process 1 sees its owner go, ends the builder and all it started, and waits for them.
            return rustix::net::shutdown(&self.events, rustix::net::Shutdown::Both);
        }
        if let Some(process) = &self.adopted {
            let signal = rustix::process::Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
            return rustix::process::pidfd_send_signal(process, signal);
        }
        // The pid cannot have been reused: it stays ours until `reap`.
        sys::kill(self.pid.ok_or(Errno::SRCH)?.as_raw_nonzero().get(), signal)
    }

    /// Waits until process 1, and so everything in its namespace, is gone. What is left of it goes with the descriptor.
    pub fn reap(mut self) -> Result<(Option<sys::Waited>, Option<OwnedFd>), Errno> {
        self.reaped = true;
        Ok((self.wait()?, self.mounts.take()))
    }

    fn wait(&self) -> Result<Option<sys::Waited>, Errno> {
        let Some(process) = &self.adopted else {
            let waited = sys::wait(self.pid(), true, false);
            if let (Some(outside), Ok(Some(process_one))) = (&self.outside, &waited)
                && libc::WIFSIGNALED(process_one.status)
            {
                builder::abandoned(&outside.number);
            }
            return waited;
        };
        // Readable when it has ended, and it ends after all others of its PID namespace.
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(process, PollFlags::IN)], None))?;
        Ok(None)
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

/// Which process a descriptor of one means.
fn pid_of(process: &OwnedFd) -> Option<rustix::process::Pid> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    // One that has ended already has no number any more.
    pid.filter(|pid| *pid > 0).and_then(rustix::process::Pid::from_raw)
}
