//! Looks after a running box from outside until it has ended: time, the limits that no kernel interface holds, and whoever
//! else waits for something (a terminal, captured output, signals).
//!
//! Nothing here depends on the box's good will: its process 1 is killed when time is up, and everything in it with it.

#[cfg(test)]
mod tests;

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_linux::limits::{self, Census};
use ringfence_linux::sys::{self, Fork, Wait};
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::Limits;
pub use ringfence_policy::outcome::{Ended, Outcome, Reason};
use ringfence_policy::plan::Plan;
use ringfence_policy::policy::Policy;
use ringfence_policy::tree::Tree;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use crate::denials::Tracer;
use crate::engines::{EngineError, Event, Running};
use crate::watch::{self, Loss, Names, Watch as HostWatch};

/// Between TERM and KILL.
pub const GRACE: Duration = Duration::from_secs(2);
/// How often a tree without a control group is counted.
const LOOK: Duration = Duration::from_millis(50);

/// Bytes of a note: five numbers.
const NOTE: usize = 40;

/// A signal as people know it: `SIGTERM (signal 15)`.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 16] = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    match NAMES.iter().find(|(number, _)| *number == signal) {
        Some((number, name)) => format!("{name} (signal {number})"),
        None => format!("signal {signal}"),
    }
}

/// A descriptor to wait for, under a key of the companion's choice.
pub type Wanted<'a> = (usize, BorrowedFd<'a>, PollFlags);

/// What waits beside a box and has a say in its end.
pub trait Companion {
    /// Descriptors to wait for.
    fn wants(&self) -> Vec<Wanted<'_>>;
    /// The descriptor of this key is ready.
    fn ready(&mut self, key: usize, flags: PollFlags, running: &Running) -> Result<(), Errno>;
    /// The box's own terminal is there.
    fn terminal(&mut self, _master: OwnedFd) {}
    /// The command was stopped by a signal. Its time goes on.
    fn stopped(&mut self, _signal: i32, _running: &Running) -> Result<(), Errno> {
        Ok(())
    }
    /// Whether this process is to stop next, as a job of a shell does.
    fn is_to_pause(&self) -> bool {
        false
    }
    /// Stops this process until it is continued. Limits are watched by another process meanwhile.
    fn pause(&mut self, _running: &Running) -> Result<(), Errno> {
        Ok(())
    }
    /// End the box by force at this time.
    fn give_up_at(&self) -> Option<Instant> {
        None
    }
    /// The box is gone: read what is left.
    fn drain(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}

/// Waits until the command and everything else in the box has ended.
pub fn supervise(
    running: Running,
    policy: &Policy,
    facts: &Facts,
    companion: &mut dyn Companion,
) -> Result<Outcome, EngineError> {
    supervise_over(running, policy, facts, companion, None)
}

/// As [`supervise`]. What the host takes from the sandbox meanwhile is put back, and told to `lost`. With a strict plan the
/// sandbox ends then.
pub fn supervise_watched<'a>(
    running: Running,
    plan: &'a Plan,
    policy: &'a Policy,
    facts: &Facts,
    companion: &mut dyn Companion,
    lost: &'a mut (dyn FnMut(&Loss) + 'a),
) -> Result<Outcome, EngineError> {
    let begins = Instant::now() + watch::BEGINS;
    supervise_over(running, policy, facts, companion, Some(Host { plan, lost, begins, watch: None }))
}

/// The host beside a living sandbox.
struct Host<'a> {
    plan: &'a Plan,
    lost: &'a mut (dyn FnMut(&Loss) + 'a),
    /// When the watch begins.
    begins: Instant,
    watch: Option<HostWatch>,
}

impl Host<'_> {
    fn next(&self) -> Option<Instant> {
        self.watch.as_ref().map_or(Some(self.begins), HostWatch::next)
    }

    fn look(&mut self, running: &Running, policy: &Policy, facts: &Facts, now: Instant) -> bool {
        if now < self.begins {
            return false;
        }
        let new = || HostWatch::new(Names::of(self.plan, policy), &facts.registry, now);
        let losses = self.watch.get_or_insert_with(new).look(now, || running.handles());
        self.tell(&losses)
    }

    fn ready(&mut self) -> bool {
        let losses = self.watch.as_mut().map(HostWatch::ready).unwrap_or_default();
        self.tell(&losses)
    }

    /// Whether the sandbox must end.
    fn tell(&mut self, losses: &[Loss]) -> bool {
        losses.iter().for_each(|loss| (self.lost)(loss));
        losses.iter().any(|loss| loss.ends(self.plan))
    }
}

fn supervise_over<'a>(
    running: Running,
    policy: &'a Policy,
    facts: &Facts,
    companion: &mut dyn Companion,
    host: Option<Host<'a>>,
) -> Result<Outcome, EngineError> {
    let started = Instant::now();
    let mut watch = Watch {
        host,
        limits: &policy.limits,
        started,
        reason: None,
        kill_at: None,
        killed: false,
        peak: Census::default(),
        looked: started,
        tracer: None,
        silent: false,
    };
    let ended = loop {
        if let Some(ended) = wait(&running, &mut watch, companion, (policy, facts))? {
            break ended;
        }
    };
    let duration = started.elapsed();
    // Why it failed may be seen from what is still there.
    if ended != Ended::Exited(0) && watch.watches_tree(&running) {
        watch.count(&running);
    }
    if let Some(host) = watch.host.take().and_then(|host| host.watch) {
        // Nothing of it lives unwatched. That it is gone already is what is wanted.
        let _ = running.signal(libc::SIGKILL);
        // Before its placeholders are removed: they would be made again.
        host.leave();
    }
    let (waited, usage) = running.finish()?;
    companion.drain().map_err(|e| EngineError::Lost(e.to_string()))?;
    let reason = watch.reason.or_else(|| {
        let failed = ended != Ended::Exited(0);
        if failed && usage.killed_for_memory > 0 {
            Some(Reason::Memory)
        } else if failed && (usage.refused_processes > 0 || watch.at_process_limit()) {
            Some(Reason::Processes)
        } else {
            None
        }
    });
    Ok(Outcome {
        ended,
        reason,
        duration,
        cpu: usage.cpu.unwrap_or_else(|| waited.map_or(watch.peak.cpu, |w| w.cpu.max(watch.peak.cpu))),
        peak_memory: usage.peak_memory.unwrap_or_else(|| waited.map_or(0, |w| w.peak_memory).max(watch.peak.memory)),
        denied: watch.tracer.map(Tracer::into_denials).unwrap_or_default(),
    })
}

/// One round: waits for the next thing to happen. `Some` when the command has ended.
fn wait(
    running: &Running,
    watch: &mut Watch<'_>,
    companion: &mut dyn Companion,
    (policy, facts): (&Policy, &Facts),
) -> Result<Option<Ended>, EngineError> {
    let lost = |e: Errno| EngineError::Lost(e.to_string());
    let ready: Vec<(usize, Option<usize>, PollFlags)> = {
        let wants = companion.wants();
        let mut fds = vec![PollFd::from_borrowed_fd(running.events(), PollFlags::IN)];
        // At place 1 also when nothing is told, so that the companion's places stay the same.
        let listener = watch.tracer.as_ref().map(Tracer::listener).filter(|_| !watch.silent);
        fds.push(listener.map_or(PollFd::from_borrowed_fd(running.events(), PollFlags::empty()), |listener| {
            PollFd::from_borrowed_fd(listener, PollFlags::IN)
        }));
        let host = watch.host.as_ref().and_then(|host| host.watch.as_ref()).and_then(HostWatch::descriptor);
        fds.push(host.map_or(PollFd::from_borrowed_fd(running.events(), PollFlags::empty()), |host| {
            PollFd::from_borrowed_fd(host, PollFlags::IN)
        }));
        fds.extend(wants.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)));
        sys::poll_for(&mut fds, watch.next(running, companion.give_up_at())).map_err(lost)?;
        let keys = [None; 3].into_iter().chain(wants.iter().map(|(key, ..)| Some(*key)));
        let revents = fds.iter().enumerate().zip(keys).map(|((index, fd), key)| (index, key, fd.revents()));
        revents.filter(|(.., flags)| !flags.is_empty()).collect()
    };
    for (index, key, flags) in ready {
        if let Some(key) = key {
            companion.ready(key, flags, running).map_err(lost)?;
            continue;
        }
        if index == 2 {
            if watch.host.as_mut().is_some_and(Host::ready) {
                watch.end_for_loss(running);
            }
            continue;
        }
        if index == 1 {
            // With HUP everybody who could call is gone, and it would be told again and again. ERR alone means that a signal
            // came while it was looked.
            watch.silent = flags.contains(PollFlags::HUP);
            if let Some(tracer) = watch.tracer.as_mut().filter(|_| flags.contains(PollFlags::IN)) {
                tracer.look().map_err(lost)?;
            }
            continue;
        }
        match running.next_event()? {
            Event::Exited { status } if libc::WIFSIGNALED(status) => {
                return Ok(Some(Ended::Signaled(libc::WTERMSIG(status))));
            }
            Event::Exited { status } => return Ok(Some(Ended::Exited(libc::WEXITSTATUS(status)))),
            Event::Terminal(master) => companion.terminal(master),
            Event::Listener(listener) => {
                let tree = Tree::new(policy, facts).map_err(|e| EngineError::Lost(e.to_string()))?;
                watch.tracer = Some(Tracer::new(listener, tree, policy, &facts.home));
            }
            Event::Stopped(signal) => companion.stopped(signal, running).map_err(lost)?,
            // Process 1 was killed: by us, by the kernel for memory, or by somebody on the host.
            Event::Closed => return Ok(Some(Ended::Signaled(libc::SIGKILL))),
            Event::Failed { .. } | Event::NotExecuted(_) => {
                return Err(lost(Errno::PROTO));
            }
        }
    }
    watch.look(running, companion.give_up_at());
    if companion.is_to_pause() {
        watch.while_paused(running, || companion.pause(running)).map_err(lost)?;
    }
    let now = Instant::now();
    if watch.host.as_mut().is_some_and(|host| host.look(running, policy, facts, now)) {
        watch.end_for_loss(running);
    }
    Ok(None)
}

/// Deadlines, and the limits that are watched from here.
struct Watch<'a> {
    limits: &'a Limits,
    started: Instant,
    reason: Option<Reason>,
    kill_at: Option<Instant>,
    /// It was ended by force: there is nothing left but to wait for it.
    killed: bool,
    peak: Census,
    /// When the tree was last counted.
    looked: Instant,
    tracer: Option<Tracer>,
    /// Nobody is left whose calls could be told.
    silent: bool,
    host: Option<Host<'a>>,
}

impl Watch<'_> {
    fn watches_tree(&self, running: &Running) -> bool {
        !running.has_group() && (self.limits.memory.is_some() || self.limits.pids.is_some())
            || self.limits.cpu_time.is_some()
    }

    /// When its time is over. A limit that the clock cannot count to is none.
    fn deadline(&self) -> Option<Instant> {
        self.limits.timeout.and_then(|timeout| self.started.checked_add(timeout))
    }

    /// How long until something must be looked at.
    fn next(&self, running: &Running, give_up_at: Option<Instant>) -> Option<Duration> {
        let deadline = self.deadline().filter(|_| self.reason.is_none());
        let now = Instant::now();
        let look = self.watches_tree(running).then(|| self.looked + LOOK);
        let host = self.host.as_ref().and_then(Host::next);
        let next =
            [deadline, self.kill_at, give_up_at.filter(|_| !self.killed), look, host].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(now))
    }

    fn look(&mut self, running: &Running, give_up_at: Option<Instant>) {
        let now = Instant::now();
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill(running);
        }
        if !self.killed && give_up_at.is_some_and(|at| now >= at) {
            self.reason.get_or_insert(Reason::Cancelled);
            self.kill(running);
        }
        if self.reason.is_none() && self.deadline().is_some_and(|at| now >= at) {
            self.reason = Some(Reason::Time);
            running.terminate();
            self.kill_at = Some(now + GRACE);
        }
        // Not at each wake-up: a command that writes much would be counted all the time.
        if self.watches_tree(running) && now >= self.looked + LOOK {
            self.count(running);
            // A tree that takes long to count must not take a whole processor by it.
            self.looked = now + now.elapsed() * 3;
        }
    }

    fn count(&mut self, running: &Running) {
        let census = limits::census(running.pid());
        self.peak.processes = self.peak.processes.max(census.processes);
        self.peak.memory = self.peak.memory.max(census.memory);
        self.peak.cpu = self.peak.cpu.max(census.cpu);
        if self.limits.cpu_time.is_some_and(|limit| census.cpu >= limit) {
            self.reason.get_or_insert(Reason::CpuTime);
            self.kill(running);
        }
        let over = |limit| limits::has_more_than(limit, census.memory, running.pid());
        if !running.has_group() && self.limits.memory.is_some_and(over) {
            self.reason.get_or_insert(Reason::Memory);
            self.kill(running);
        }
    }

    /// Calls `pause`, which stops this process. A process that is no part of the stopped job counts the tree meanwhile.
    fn while_paused(&mut self, running: &Running, pause: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        if self.killed || !self.watches_tree(running) {
            return pause();
        }
        let notes = rustix::fs::memfd_create(c"watch", MemfdFlags::CLOEXEC)?;
        let owner = rustix::process::getpid();
        let watcher = match sys::fork(0)? {
            Fork::Parent(pid) => pid.as_raw_nonzero().get(),
            Fork::Child => {
                let _ = self.count_for(owner, running, &notes);
                sys::exit_now(0)
            }
        };
        let paused = pause();
        let _ = sys::kill(watcher, libc::SIGKILL);
        sys::wait(watcher, Wait::UntilEnd)?;
        self.take_note(&notes)?;
        paused
    }

    /// The life of the process that counts while its parent, the owner of the sandbox, is stopped. A stopped process has
    /// one thread at work, so that this copy of it may do what the owner does.
    fn count_for(&mut self, owner: rustix::process::Pid, running: &Running, notes: &OwnedFd) -> Result<(), Errno> {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // Signals for the job are not for this process.
        rustix::process::setsid()?;
        // A pipe of the caller's that stayed open here would not end.
        sys::close_all_but(&[running.events().as_raw_fd(), notes.as_raw_fd()]);
        while rustix::process::getppid() == Some(owner) {
            let began = Instant::now();
            if self.killed {
                // The job goes on, tells why, and ends. Again and again, for it may be about to stop only now.
                sys::kill(owner.as_raw_nonzero().get(), libc::SIGCONT)?;
            } else {
                self.count(running);
                rustix::io::pwrite(notes, &self.note(), 0)?;
            }
            sys::pause_for(LOOK + began.elapsed() * 3);
        }
        Ok(())
    }

    /// What the watch has found, for [`Watch::take_note`].
    fn note(&self) -> [u8; NOTE] {
        let reason = match self.reason {
            Some(Reason::Memory) => 1,
            Some(Reason::CpuTime) => 2,
            _ => 0,
        };
        let Census { processes, memory, cpu } = self.peak;
        let mut bytes = [0; NOTE];
        let words = [u64::from(self.killed), reason, processes, memory, cpu.as_nanos() as u64];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn take_note(&mut self, notes: &OwnedFd) -> Result<(), Errno> {
        let mut bytes = [0; NOTE];
        if rustix::io::pread(notes, &mut bytes, 0)? != NOTE {
            // It was killed before its first look.
            return Ok(());
        }
        let word = |index: usize| bytes[index * 8..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        let found = [None, Some(Reason::Memory), Some(Reason::CpuTime)];
        self.reason = self.reason.or(found.get(word(1) as usize).copied().flatten());
        self.peak = Census { processes: word(2), memory: word(3), cpu: Duration::from_nanos(word(4)) };
        if word(0) != 0 {
            self.kill_at = None;
            self.killed = true;
        }
        Ok(())
    }

    fn at_process_limit(&self) -> bool {
        // The command itself may have ended before the last count.
        self.limits.pids.is_some_and(|limit| self.peak.processes + 1 >= limit)
    }

    /// A guarantee was lost that the policy is strict about.
    fn end_for_loss(&mut self, running: &Running) {
        self.reason.get_or_insert(Reason::Lost);
        self.kill(running);
    }

    /// Ends the box at once. That it is already gone is what is wanted.
    fn kill(&mut self, running: &Running) {
        let _ = running.signal(libc::SIGKILL);
        self.kill_at = None;
        self.killed = true;
    }
}
