//! Processes of this host that belong to a session: started, watched, started again where they may be, and ended with it.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_linux::detach;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::beside::{Bell, Beside};
use crate::engines::Helper;

/// A process that ends again at once is started after so long, and then after twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// One that ran for so long did well.
const WELL: Duration = Duration::from_secs(60);

/// One that is to be started, and its number.
type Asked = (u64, Helper);
/// What became of it.
type Begun = (u64, io::Result<Running>);

/// All of them, under the numbers that the poller has them by.
#[derive(Debug)]
pub struct Children {
    bell: Bell,
    all: Vec<Owned>,
    /// Starts them, since a start waits for the disk. The kernel ends each of them with this thread, which stays as long as
    /// this does.
    starter: Option<Beside<Asked, Begun>>,
}

#[derive(Debug)]
struct Owned {
    helper: Helper,
    state: ChildState,
    wait: Duration,
}

#[derive(Debug)]
enum ChildState {
    Starts,
    Runs(Running, Instant),
    /// It is started again then.
    Waits(Instant),
    Ended,
}

/// A process, and what becomes readable when it ends.
#[derive(Debug)]
struct Running(Child, OwnedFd);

impl Children {
    pub fn new(bell: &Bell) -> Children {
        Children { bell: bell.clone(), all: Vec::new(), starter: None }
    }

    pub fn start(&mut self, helper: Helper) {
        self.all.push(Owned { helper, state: ChildState::Waits(Instant::now()), wait: FIRST_WAIT });
        self.look(Instant::now());
    }

    /// When the next one is to be started again.
    pub fn next(&self) -> Option<Instant> {
        let waits = |owned: &Owned| if let ChildState::Waits(until) = owned.state { Some(until) } else { None };
        self.all.iter().filter_map(waits).min()
    }

    /// Starts those that have waited.
    pub fn look(&mut self, now: Instant) {
        for (number, owned) in (0..).zip(&mut self.all) {
            if matches!(owned.state, ChildState::Waits(until) if now >= until) {
                let starter = match &mut self.starter {
                    Some(starter) => starter,
                    None => match Beside::start("helpers", &self.bell, |(number, helper)| (number, start(&helper))) {
                        Ok(starter) => self.starter.insert(starter),
                        Err(_) => {
                            owned.waits(now);
                            continue;
                        }
                    },
                };
                starter.give((number, owned.helper.clone()));
                owned.state = ChildState::Starts;
            }
        }
    }

    /// Some were started, or could not be: the poller waits for their end, `first` being the number of the first one. True: the
    /// session ends with one.
    pub fn started(&mut self, epoll: &OwnedFd, first: u64, now: Instant) -> bool {
        let mut ends = false;
        for (number, started) in self.starter.as_mut().map(Beside::take).unwrap_or_default() {
            let Some(owned) = at(&mut self.all, number) else { continue };
            let watched = started.and_then(|running| {
                let events = epoll::add(epoll, &running.1, EventData::new_u64(first + number), EventFlags::IN);
                Ok(events.map(|()| running)?)
            });
            match watched {
                Ok(running) => owned.state = ChildState::Runs(running, now),
                Err(_) => ends |= owned.is_over(now),
            }
        }
        ends
    }

    /// The poller says that one has ended. True: the session ends with it.
    pub fn ended(&mut self, number: u64, now: Instant) -> bool {
        let Some(owned) = at(&mut self.all, number) else { return false };
        let ChildState::Runs(Running(child, _), since) = &mut owned.state else { return false };
        // How it ended does not matter. An event of an earlier one with this number is late.
        if matches!(child.try_wait(), Ok(None)) {
            return false;
        }
        if now.saturating_duration_since(*since) >= WELL {
            owned.wait = FIRST_WAIT;
        }
        owned.is_over(now)
    }
}

fn at(all: &mut [Owned], number: u64) -> Option<&mut Owned> {
    all.get_mut(usize::try_from(number).ok()?)
}

impl Owned {
    fn waits(&mut self, now: Instant) {
        self.state = ChildState::Waits(now + self.wait);
        self.wait = LONGEST_WAIT.min(2 * self.wait);
    }

    /// It does not run any more. Whether the session ends with it.
    fn is_over(&mut self, now: Instant) -> bool {
        match self.helper.restarts {
            true => self.waits(now),
            false => self.state = ChildState::Ended,
        }
        !self.helper.restarts
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that was waited for has no number any more. It is not waited for here: a disk may hold its end up.
        let _ = self.0.kill();
    }
}

fn start(helper: &Helper) -> io::Result<Running> {
    let mut command = Command::new(&helper.path);
    command.args(&helper.args).env_clear().envs(helper.env.iter().cloned()).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    detach::belong(&mut command);
    let mut child = command.spawn()?;
    let process = Pid::from_raw(child.id().cast_signed()).ok_or(Errno::SRCH);
    match process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Ok(process) => Ok(Running(child, process)),
        Err(errno) => {
            // One that cannot be watched is not left alone.
            let _ = child.kill().and_then(|()| child.wait());
            Err(errno.into())
        }
    }
}

#[cfg(test)]
mod tests;
