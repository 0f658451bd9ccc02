//! Sandboxes with a guest in them: the handle that every engine returns, and what engines of this host share.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_guest::frame::Kind;
use ringfence_guest::message::{GREETING, HostHello, Settings};
use ringfence_linux::launch::Event;
use ringfence_linux::limits::{self, Load, Refusals, Usage};
use ringfence_policy::limits::Limits;
use ringfence_policy::plan::Plan;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use super::limits::{is_of_commands, rlimits};
use super::{EngineError, Running, StdioSpec};

/// How long a guest may take until its first word.
pub(super) const GUEST_ANSWERS: Duration = Duration::from_secs(30);

/// Whom a box with a guest is for.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// The id of its session.
    pub session: &'a str,
    /// The name of its session.
    pub name: Option<&'a str>,
    /// The profile of its policy.
    pub profile: &'a str,
    /// Where state of this user lies.
    pub state: &'a Path,
    /// Where the key lies that objects at a container engine are marked with: a directory that outlives a restart of the
    /// machine, and that no sandbox sees. What is marked with a key that was lost is removed by hand alone.
    pub keys: &'a Path,
}

/// A package cache that a policy asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// The name of the cache.
    pub name: String,
    /// Why the sandbox runs without it. `None`: it is ready.
    pub failed: Option<String>,
}

/// A program of this host that a sandbox needs beside it as long as it lives. Its supervisor starts it and ends it.
#[derive(Debug, Clone)]
pub struct Helper {
    /// The program.
    pub path: PathBuf,
    /// Its arguments, without its name.
    pub args: Vec<OsString>,
    /// All of its environment.
    pub env: Vec<(OsString, OsString)>,
    /// It is started again when it ends. Otherwise the session ends with it.
    pub restarts: bool,
}

/// Changes a live sandbox from outside, from any thread.
pub trait Control: fmt::Debug + Send + Sync {
    /// Whether it can be frozen here and now. Never waits.
    fn can_freeze(&self) -> bool;

    /// Whether its limits can be changed here and now. Never waits.
    fn can_limit(&self) -> bool;

    /// Stops everything in it. May wait.
    fn freeze(&self) -> Result<(), EngineError>;

    /// Lets it go on; nothing is done where it is not frozen. May wait.
    fn thaw(&self) -> Result<(), EngineError>;

    /// Sets those limits of the tree that are given. May wait.
    fn set(&self, limits: &Limits) -> Result<(), EngineError>;

    /// What it uses now, as far as that is known. Never waits: what is far away is asked beforehand.
    fn load(&self) -> Load;
}

/// By a control group of this host.
impl Control for limits::Control {
    fn can_freeze(&self) -> bool {
        self.can_freeze()
    }

    fn can_limit(&self) -> bool {
        self.can_limit()
    }

    fn freeze(&self) -> Result<(), EngineError> {
        Ok(self.freeze()?)
    }

    fn thaw(&self) -> Result<(), EngineError> {
        Ok(self.thaw()?)
    }

    fn set(&self, limits: &Limits) -> Result<(), EngineError> {
        Ok(self.set(limits)?)
    }

    fn load(&self) -> Load {
        self.load()
    }
}

/// A live sandbox with a guest in it. Dropping it without [`finish`](GuestSandbox::finish) ends it too. But for that no method
/// waits, since a loop calls it that serves many: what is far away is asked beforehand.
pub trait GuestSandbox: fmt::Debug + Send {
    /// The id of process 1 on this host. Without one nothing acts on host processes.
    fn process_id(&self) -> Option<i32> {
        None
    }

    /// What the engine itself calls it.
    fn id(&self) -> Option<&str> {
        None
    }

    /// Whether the tree as a whole is limited, so that nobody has to watch it.
    fn is_limited(&self) -> bool;

    /// Makes room for the guest's own processes, one for each command, so that they do not count against the caller.
    fn make_room(&self, _processes: u64, _commands: u64) -> Result<(), EngineError> {
        Ok(())
    }

    /// What it used so far, as far as that is counted.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    /// What its limits refuse, for whoever asks often.
    fn refusals(&self) -> Option<Refusals> {
        None
    }

    /// What freezes it and changes its limits while it lives; `None` where that cannot be done.
    fn control(&self) -> Option<Arc<dyn Control>> {
        None
    }

    /// What became of the package caches that the policy asks for.
    fn caches(&self) -> &[Cache] {
        &[]
    }

    /// Programs of this host that it needs beside it.
    fn helpers(&self) -> Vec<Helper> {
        Vec::new()
    }

    /// Ends whatever is left, and waits until nothing of it is there: as long as that takes.
    fn finish(self: Box<Self>) -> Result<Usage, EngineError>;
}

/// A tree of processes of this host.
#[derive(Debug)]
struct HostTree(Running);

/// Starts a guest as process 1 of a box on this host: `start` makes the box, with these standard descriptors.
pub(super) fn start_on_host(
    plan: &Plan,
    start: impl FnOnce(StdioSpec) -> Result<Running, EngineError>,
) -> Result<(Box<dyn GuestSandbox>, OwnedFd), EngineError> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(EngineError::Guest)?;
    let null = || rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let nothing = || null().map_err(EngineError::Stdio);
    let running = start(StdioSpec::Files([theirs, nothing()?, nothing()?]))?;
    // A few bytes into an empty socket: never partly. That the guest is gone is told by whoever waits for it.
    let _ = rustix::net::send(&ours, &first_words(plan, running.held(), None)?, SendFlags::NOSIGNAL);
    await_guest(&running, &ours)?;
    Ok((Box::new(HostTree(running)), ours))
}

impl GuestSandbox for HostTree {
    fn process_id(&self) -> Option<i32> {
        Some(self.0.pid())
    }

    fn is_limited(&self) -> bool {
        self.0.has_group()
    }

    fn make_room(&self, processes: u64, commands: u64) -> Result<(), EngineError> {
        self.0.make_room(processes, commands)
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }

    fn refusals(&self) -> Option<Refusals> {
        self.0.refusals()
    }

    fn control(&self) -> Option<Arc<dyn Control>> {
        self.0.control()
    }

    fn finish(self: Box<Self>) -> Result<Usage, EngineError> {
        self.0.finish().map(|(_, usage)| usage)
    }
}

/// What a guest is told before anything else. `confined`: the places that can be written, where the guest is to see to it.
pub fn first_words(
    plan: &Plan,
    processes: Option<u64>,
    confined: Option<Vec<Vec<u8>>>,
) -> Result<Vec<u8>, EngineError> {
    let limits = rlimits(plan).into_iter().filter(is_of_commands).collect();
    let mut first = Vec::new();
    let hello = HostHello { greeting: GREETING, settings: Settings { limits, processes, confined } };
    ringfence_guest::frame::put_message(&mut first, 0, Kind::Input, &hello)
        .map_err(|_| EngineError::Guest(Errno::INVAL))?;
    Ok(first)
}

/// Waits until the guest's first frame, or its end, can be read from its socket.
pub fn await_first_word(channel: &OwnedFd) -> Result<(), EngineError> {
    let mut ready = [PollFd::new(channel, PollFlags::IN)];
    let patience = Timespec { tv_sec: GUEST_ANSWERS.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut ready, Some(&patience)) {
        Ok(0) => Err(EngineError::Silent),
        Ok(_) => Ok(()),
        Err(errno) => Err(EngineError::Guest(errno)),
    }
}

/// Waits until the guest has spoken, or setting up has failed.
fn await_guest(running: &Running, channel: &OwnedFd) -> Result<(), EngineError> {
    let lost = |e: Errno| EngineError::Lost(e.to_string());
    let started = Instant::now();
    let mut becoming = true;
    loop {
        let left = GUEST_ANSWERS.checked_sub(started.elapsed()).ok_or(EngineError::Silent)?;
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut ready = [
            PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(running.events(), PollFlags::IN),
        ];
        let watched = if becoming { 2 } else { 1 };
        match poll(&mut ready[..watched], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(lost(e)),
        }
        if becoming && !ready[1].revents().is_empty() {
            match running.next_event()? {
                Event::Closed => becoming = false,
                Event::Exited { status } => {
                    return Err(EngineError::Lost(format!("it ended with status {status:#x}")));
                }
                // A guest has neither a terminal of its own nor a listener.
                _ => {}
            }
        }
        if !ready[0].revents().is_empty() {
            let mut byte = [0u8];
            match rustix::net::recv(channel, &mut byte, RecvFlags::PEEK) {
                Ok((1, _)) => return Ok(()),
                // Why is told by an event, if at all.
                Ok(_) if becoming => channel_closed(running)?,
                Ok(_) => return Err(EngineError::Lost("it closed its socket".to_owned())),
                Err(Errno::INTR) => {}
                Err(e) => return Err(lost(e)),
            }
        }
    }
}

/// The socket closed before the guest spoke: what happened is the box's next event.
fn channel_closed(running: &Running) -> Result<(), EngineError> {
    match running.next_event()? {
        Event::Closed | Event::Exited { .. } => Err(EngineError::Lost("it closed its socket".to_owned())),
        _ => Ok(()),
    }
}
