//! The live sandbox, and those of its limits that are watched from here since nothing in the kernel holds the tree to them.

use std::io;
use std::mem::take;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_linux::limits::{self, Census, Refusals, Traffic};
use ringfence_policy::limits::Limits;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::info::{End, Usage};
use super::beside::{Bell, Beside};
use super::executions::Place;
use crate::engines::{Control, EngineError, GUEST_PROCESSES, GuestSandbox};

/// How often a tree without a cgroup is counted, while a command runs; and while none does, but for what one may have left in
/// the background.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_IDLE: Duration = Duration::from_millis(250);
/// Where nobody is left but the guest's own process for the next command. A process that was left behind and killed that one
/// may pass for it, and no event tells: so the tree is counted all the same, each time after twice as long.
const LOOK_DESERTED: Duration = Duration::from_secs(5);
const LOOK_DESERTED_LEAST: Duration = Duration::from_secs(30);
/// So many looks in a row may find too much memory, with a process killed at each, before the box is.
const MOST_OVER: u32 = 20;
/// A count that takes longer is held up by a process of the tree.
const STUCK: Duration = Duration::from_secs(2);
/// So many counts may be held up before no more are made.
const MOST_STUCK: usize = 3;

#[derive(Debug)]
pub struct Tree {
    /// `None` when the sandbox ends, or has ended.
    pub running: Option<Box<dyn GuestSandbox>>,
    bell: Bell,
    refusals: Option<Refusals>,
    /// Kills for memory and refused forks, as they were when nothing ran any more.
    pub kills: u64,
    pub refused: u64,
    /// A command has ended: they are looked up when nobody waits.
    pub look_at_counts: bool,
    /// Kills for memory by this process.
    killed: u64,
    /// Looks in a row that found too much memory.
    over: u32,
    /// The process to count from, where that is one of this host.
    root: Option<Root>,
    /// Counts it.
    counter: Option<Counter>,
    /// Since when that counts, and the clients that wait for it.
    counting: Option<(Instant, Vec<Place>)>,
    /// Counts that took too long, and are not back yet. Until they are, what may hold up a count is left out: what processes
    /// share counts for each of them.
    stuck: Vec<Counter>,
    /// When the tree was last looked at, and what the last count found, from when on.
    looked: Instant,
    census: Option<(Instant, Census)>,
    traffic: Traffic,
    /// Clients that wait for the next count.
    asking: Vec<Place>,
    /// Nobody was in it then: how long it is left alone.
    deserted: Option<Duration>,
    /// For how many commands there is room beside the processes that the policy allows.
    room: u64,
    /// Changes it from outside.
    pub control: Option<Arc<dyn Control>>,
    /// Since when everything in it stands still.
    pub frozen: Option<Instant>,
    /// Ends it.
    ender: Option<io::Result<Ender>>,
}

type Counter = Beside<Ask, Counted>;
type ToEnd = (Box<dyn GuestSandbox>, Option<Arc<dyn Control>>);
type Ender = Beside<ToEnd, Result<limits::Usage, EngineError>>;
/// What a look at the tree brought: why the session must end, and the clients that can be told what it uses.
pub type Seen = (Option<End>, Vec<Place>);

/// A process, and what tells it from another one with the same number.
#[derive(Debug, Clone)]
struct Root {
    pid: i32,
    process: Arc<OwnedFd>,
}

/// A count of the tree is asked for.
#[derive(Debug)]
struct Ask {
    root: Root,
    /// The largest process of a tree with more memory is killed.
    memory: Option<u64>,
    roughly: bool,
    /// A client waits for what it uses.
    traffic: bool,
}

#[derive(Debug)]
struct Counted {
    census: Census,
    traffic: Option<Traffic>,
    took: Duration,
    /// Whether it had more than its limit, if that was asked.
    over: Option<bool>,
    killed: bool,
}

/// Done by a thread of its own: reading how much memory a process has may wait for that process.
fn count(Ask { root, memory, roughly, traffic }: Ask) -> Counted {
    let started = Instant::now();
    let census = limits::census(root.pid);
    let over = memory.map(|limit| match roughly {
        true => census.memory > limit,
        false => limits::has_more_than(limit, census.memory, root.pid),
    });
    let killed = over == Some(true) && limits::kill_largest(root.pid, &root.process);
    let traffic = traffic.then(|| limits::traffic(root.pid));
    Counted { census, traffic, took: started.elapsed(), over, killed }
}

impl Tree {
    pub fn new(running: Option<Box<dyn GuestSandbox>>, bell: &Bell) -> Tree {
        let root = running.as_ref().and_then(|running| {
            let pid = running.process_id()?;
            let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
            Some(Root { pid, process: Arc::new(process) })
        });
        Tree {
            refusals: running.as_ref().and_then(|running| running.refusals()),
            control: running.as_ref().and_then(|running| running.control()),
            running,
            bell: bell.clone(),
            kills: 0,
            refused: 0,
            look_at_counts: false,
            killed: 0,
            over: 0,
            root,
            counter: None,
            counting: None,
            stuck: Vec::new(),
            looked: Instant::now(),
            census: None,
            traffic: Traffic::default(),
            asking: Vec::new(),
            deserted: None,
            room: GUEST_PROCESSES,
            frozen: None,
            ender: None,
        }
    }

    /// Its limit on memory, where no cgroup holds the tree to it.
    fn watched(&self, limits: &Limits) -> Option<u64> {
        self.running.as_ref().filter(|running| !running.is_limited() && self.root.is_some())?;
        limits.memory
    }

    /// When to look again. `runs`: a command does.
    pub fn next(&self, limits: &Limits, runs: bool) -> Option<Instant> {
        let needed = self.watched(limits).is_some() || (runs && limits.cpu_time.is_some());
        let next = || self.looked + if runs { LOOK } else { self.deserted.unwrap_or(LOOK_IDLE) };
        let stuck = self.counting.as_ref().map(|(since, _)| *since + STUCK);
        stuck.or_else(|| (needed && self.frozen.is_none()).then(next))
    }

    /// Has the tree counted where nothing else does, when it is time to. Not at each wake-up: how long too much may last would
    /// hang on how busy the session is. `None`: it was not.
    pub fn look(&mut self, limits: &Limits, runs: bool, now: Instant) -> Option<Seen> {
        self.next(limits, runs).filter(|at| now >= *at)?;
        self.looked = now;
        let mut answers = Vec::new();
        if let Some((_, clients)) = self.counting.take() {
            // The thread is left to itself, and clients are told what is known.
            self.stuck.extend(self.counter.take());
            answers = [clients, take(&mut self.asking)].concat();
        }
        let memory = self.watched(limits);
        if self.frozen.is_none()
            && (memory.is_some() || (runs && limits.cpu_time.is_some() && self.time_now().is_none()))
        {
            self.count(memory);
        }
        // A limit that cannot be watched does not hold.
        let blind = memory.is_some() && self.stuck.len() >= MOST_STUCK;
        Some((blind.then_some(End::Unruly), answers))
    }

    /// Counts for clients. Memory is looked at on the way when it is time to: while they ask, no look comes in between.
    fn count_for_clients(&mut self, limits: &Limits) {
        self.count(self.watched(limits).filter(|_| self.looked.elapsed() >= LOOK));
    }

    fn count(&mut self, memory: Option<u64>) {
        let can = self.counting.is_none() && self.stuck.len() < MOST_STUCK;
        let Some(root) = self.root.clone().filter(|_| can) else { return };
        let counter = match &mut self.counter {
            Some(counter) => counter,
            None => match Beside::start("counts", &self.bell, count) {
                Ok(counter) => self.counter.insert(counter),
                // The next look tries again.
                Err(_) => return,
            },
        };
        let (clients, roughly) = (take(&mut self.asking), !self.stuck.is_empty());
        counter.give(Ask { root, memory, roughly, traffic: !clients.is_empty() && !roughly });
        self.counting = Some((Instant::now(), clients));
    }

    /// The tree was counted, if it was. It ends when it grows faster than it is killed.
    pub fn counted(&mut self, limits: &Limits) -> Option<Seen> {
        self.stuck.retain_mut(|counter| counter.take().is_empty());
        let Counted { census, traffic, took, over, killed } = self.counter.as_mut()?.take().pop()?;
        let (asked, answers) = self.counting.take()?;
        self.census = Some((asked, census));
        self.deserted = (census.processes <= 1)
            .then(|| self.deserted.map_or(LOOK_DESERTED, |pace| LOOK_DESERTED_LEAST.min(2 * pace)));
        self.over = over.map_or(self.over, |over| if over { self.over + 1 } else { 0 });
        self.killed += u64::from(killed);
        // A count for clients alone is no look at the memory.
        if over.is_some() || self.watched(limits).is_none() {
            // A tree that takes long to count must not take a CPU for that.
            self.looked = asked + took * 4;
        }
        self.traffic = traffic.unwrap_or(self.traffic);
        // They came while it was counted for something else.
        if !self.asking.is_empty() {
            self.count_for_clients(limits);
        }
        Some(((self.over > MOST_OVER).then_some(End::Memory), answers))
    }

    /// Clients that wait for a count when the session ends.
    pub fn unanswered(&mut self) -> Vec<Place> {
        let counting = self.counting.as_mut().map(|(_, clients)| take(clients));
        [counting.unwrap_or_default(), take(&mut self.asking)].concat()
    }

    /// A command ran: it may have left something.
    pub fn may_be_inhabited(&mut self) {
        self.deserted = None;
    }

    /// CPU time of the sandbox, and when that was so. Without a cgroup, as it was last counted, and what ended unseen is missing.
    pub fn time_used(&self) -> Option<(Instant, Duration)> {
        let counted = self.census.map(|(at, census)| (at, census.cpu));
        self.time_now().map(|cpu| (Instant::now(), cpu)).or(counted)
    }

    /// The same, where a cgroup counts it.
    pub fn time_now(&self) -> Option<Duration> {
        self.running.as_ref()?.usage().cpu
    }

    /// Kills for memory and refused forks so far.
    pub fn counts_now(&self) -> (u64, u64) {
        let (kills, refused) = self.refusals.as_ref().map(Refusals::now).unwrap_or_default();
        (self.killed + kills, refused)
    }

    /// What nobody waits for.
    pub fn settle_counts(&mut self) {
        if take(&mut self.look_at_counts) {
            (self.kills, self.refused) = self.counts_now();
        }
    }

    /// The guest has a process of its own for each command, which must not count against the caller.
    pub fn make_room(&mut self, limits: &Limits, commands: u64) {
        let commands = commands.max(GUEST_PROCESSES);
        if let (true, Some(running), Some(processes)) = (commands != self.room, &self.running, limits.pids) {
            self.room = commands;
            // Without it there is less room than there should be, and a command that finds none says so.
            let _ = running.make_room(processes, commands);
        }
    }

    /// The limits are other ones: room is made anew.
    pub fn forget_room(&mut self) {
        self.room = 0;
    }

    /// For how many commands there is room.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// What it uses, as far as that is counted.
    pub fn usage(&self) -> Usage {
        let Some(running) = &self.running else { return Usage::default() };
        let (so_far, now) = (running.usage(), self.control.as_ref().map(|control| control.load()).unwrap_or_default());
        let census = self.census.map(|(_, census)| census);
        Usage {
            cpu: so_far.cpu.or(census.map(|census| census.cpu)),
            memory: now.memory.or(census.map(|census| census.memory)),
            peak_memory: so_far.peak_memory,
            processes: now.processes.or(census.map(|census| census.processes)),
            read: now.read.or(self.traffic.read),
            written: now.written.or(self.traffic.written),
            killed_for_memory: self.killed + so_far.killed_for_memory,
            received: self.traffic.received,
            sent: self.traffic.sent,
        }
    }

    /// Has the tree counted for this client; whether it has to wait for that. A cgroup counts no traffic, and one of version 1
    /// no CPU time: the tree is counted beside it too.
    pub fn count_for(&mut self, place: Place, limits: &Limits) -> bool {
        if self.running.is_none() {
            return false;
        }
        self.asking.push(place);
        self.count_for_clients(limits);
        if self.counting.is_none() {
            self.asking.clear();
        }
        self.counting.is_some()
    }

    /// Begins to end the sandbox with everything in it. By a thread of its own: a daemon may not answer, or the disk with names
    /// that are to be removed.
    pub fn finish(&mut self) {
        let Some(running) = self.running.take() else { return };
        let control = self.control.take();
        let end = |(running, control): ToEnd| {
            // Where nothing is frozen there is nothing to thaw; and what is frozen does not end.
            let _ = control.map(|control| control.thaw());
            running.finish()
        };
        // Without one its guest loses its connection with this process, as it does when the thread does not end in time.
        let mut ender = Beside::start("end", &self.bell, end);
        if let Ok(ender) = &mut ender {
            ender.give((running, control));
        }
        self.ender = Some(ender);
    }

    /// Whether the sandbox has ended: then whether a process was killed for memory that nobody was told of, or why something
    /// is left.
    pub fn finished(&mut self) -> Option<Result<bool, String>> {
        let ender = match &mut self.ender {
            None => return Some(Ok(false)),
            Some(Err(error)) => return Some(Err(format!("cannot start a thread: {error}"))),
            Some(Ok(ender)) => ender,
        };
        let usage = ender.take().pop()?.map_err(|error| error.to_string());
        Some(usage.map(|usage| self.killed + usage.killed_for_memory > self.kills))
    }
}

#[cfg(test)]
mod tests;
