//! Boxes that stay: a box with a guest in it, on any engine, from its making until nothing of it is left.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_guest::frame::Kind;
use ringfence_guest::message::Settings;
use ringfence_linux::launch::Event;
use ringfence_linux::limits::{Refusals, Usage};
use ringfence_linux::sys::Waited;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::Plan;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::limits::{is_of_commands, rlimits};
use super::{Engine, EngineError, Running, StdioSpec, docker, start};
use crate::keeper::Keeper;

/// How long a guest may take until its first word.
pub(super) const GUEST_ANSWERS: Duration = Duration::from_secs(30);

/// Starts a box with a guest in it, for a plan made by [`plan_guest`](ringfence_policy::plan::plan_guest). Returns when the
/// guest has spoken: its first frame can be read from the socket, which is all there is to talk to it. The box ends when the
/// socket is closed, and at the latest with [`Running::finish`]; events of the box mean nothing any more.
pub fn start_guest(engine: Engine, plan: &Plan, facts: &Facts) -> Result<(Running, OwnedFd), EngineError> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(EngineError::Guest)?;
    let null = |flags| rustix::fs::open(c"/dev/null", flags | OFlags::CLOEXEC, Mode::empty());
    let nothing = || null(OFlags::RDWR).map_err(EngineError::Stdio);
    let running = start(engine, plan, facts, StdioSpec::Files([theirs, nothing()?, nothing()?]))?;
    // A few bytes into an empty socket: never partly. That the guest is gone is told by whoever waits for it.
    let _ = rustix::net::send(&ours, &first_words(plan, running.held())?, SendFlags::NOSIGNAL);
    await_guest(&running, &ours)?;
    Ok((running, ours))
}

/// Whom a box with a guest is for.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// The id of its session.
    pub session: &'a str,
    /// The name of its session.
    pub name: Option<&'a str>,
    pub profile: &'a str,
    /// Where state of this user lies.
    pub state: &'a Path,
}

/// A box with a guest in it.
#[derive(Debug)]
pub enum Inhabited {
    /// A tree of processes of this host.
    Process(Running),
    /// A container, and who keeps what it needs on this host.
    Container(docker::Container, Option<Arc<Keeper>>),
}

/// Makes a box with a guest in it, on any engine. The plan's environment becomes that of the box.
pub fn inhabit(
    engine: Engine,
    plan: &mut Plan,
    facts: &Facts,
    about: About<'_>,
) -> Result<(Inhabited, OwnedFd), EngineError> {
    if engine != Engine::Docker {
        return start_guest(engine, plan, facts).map(|(running, channel)| (Inhabited::Process(running), channel));
    }
    let keeper = Keeper::start(&plan.stubs, None, &facts.registry, facts.spare.as_deref())?;
    let made = docker::container::start(plan, facts, crate::guest::PROGRAM, about, &|_| {})?;
    rustix::io::write(&made.channel, &first_words(plan, None)?).map_err(EngineError::Guest)?;
    // Whoever takes the socket over finds the guest's first word in it, or its end.
    let mut ready = [PollFd::new(&made.channel, PollFlags::IN)];
    let patience = Timespec { tv_sec: GUEST_ANSWERS.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut ready, Some(&patience)) {
        Ok(0) => return Err(EngineError::Silent),
        Ok(_) => {}
        Err(errno) => return Err(EngineError::Guest(errno)),
    }
    plan.env = made.env;
    Ok((Inhabited::Container(made.container, keeper), made.channel))
}

impl Inhabited {
    /// The id of process 1 as the host sees it.
    pub fn pid(&self) -> i32 {
        match self {
            Inhabited::Process(running) => running.pid(),
            Inhabited::Container(container, _) => container.pid(),
        }
    }

    /// Whether the kernel limits the tree as a whole.
    pub fn has_group(&self) -> bool {
        match self {
            Inhabited::Process(running) => running.has_group(),
            Inhabited::Container(..) => true,
        }
    }

    /// Makes room for the guest's own processes, one for each command, so that they do not count against the caller. A
    /// container has the room that it was made with.
    pub fn make_room(&self, commands: u64) -> Result<(), EngineError> {
        match self {
            Inhabited::Process(running) => running.make_room(commands),
            Inhabited::Container(..) => Ok(()),
        }
    }

    /// What the box used so far, as its control group counts; nothing where there is none.
    pub fn usage(&self) -> Usage {
        match self {
            Inhabited::Process(running) => running.usage(),
            Inhabited::Container(container, _) => container.usage(),
        }
    }

    /// What its control group refuses, for whoever asks often; `None` where there is none.
    pub fn refusals(&self) -> Option<Refusals> {
        match self {
            Inhabited::Process(running) => running.refusals(),
            Inhabited::Container(container, _) => container.refusals(),
        }
    }

    /// What became of the package caches that the policy asks for.
    pub fn caches(&self) -> &[docker::volumes::Cache] {
        match self {
            Inhabited::Process(_) => &[],
            Inhabited::Container(container, _) => container.caches(),
        }
    }

    /// Ends whatever is left and waits until nothing of the box is there.
    pub fn finish(self) -> Result<(Option<Waited>, Usage), EngineError> {
        match self {
            Inhabited::Process(running) => running.finish(),
            Inhabited::Container(container, keeper) => {
                let usage = container.finish()?;
                drop(keeper);
                Ok((None, usage))
            }
        }
    }
}

/// What a guest is told before anything else.
fn first_words(plan: &Plan, processes: Option<u64>) -> Result<Vec<u8>, EngineError> {
    let limits = rlimits(plan).into_iter().filter(is_of_commands).collect();
    let mut first = Vec::new();
    ringfence_guest::frame::put_message(&mut first, 0, Kind::Input, &Settings { limits, processes })
        .map_err(|_| EngineError::Guest(Errno::INVAL))?;
    Ok(first)
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
