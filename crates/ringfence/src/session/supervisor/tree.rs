//! The live sandbox, and those of its limits that are watched from here since nothing in the kernel holds the tree to them.

use std::time::{Duration, Instant};

use ringfence_linux::limits::{self, Control, Refusals};
use ringfence_policy::limits::Limits;

use super::super::info::Usage;
use crate::engines::{GUEST_PROCESSES, GuestSandbox};

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
/// So long the end of a sandbox is waited for. Then its guest loses its connection with this process, and ends; what is left at a
/// daemon is found again.
const ENDING: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Tree {
    /// `None` when the sandbox has ended.
    pub running: Option<Box<dyn GuestSandbox>>,
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
    /// When the tree was last counted.
    looked: Instant,
    /// Nobody was in it then: how long it is left alone.
    deserted: Option<Duration>,
    /// For how many commands there is room beside the processes that the policy allows.
    room: u64,
    /// Changes it from outside.
    pub control: Option<Control>,
    /// Since when everything in it stands still.
    pub frozen: Option<Instant>,
}

impl Tree {
    pub fn new(running: Option<Box<dyn GuestSandbox>>) -> Tree {
        Tree {
            refusals: running.as_ref().and_then(|running| running.refusals()),
            control: running.as_ref().and_then(|running| running.control()),
            running,
            kills: 0,
            refused: 0,
            look_at_counts: false,
            killed: 0,
            over: 0,
            looked: Instant::now(),
            deserted: None,
            room: GUEST_PROCESSES,
            frozen: None,
        }
    }

    /// The process to count from, where no cgroup limits the memory of the tree.
    fn watched(&self, limits: &Limits) -> Option<(i32, u64)> {
        let running = self.running.as_ref().filter(|running| !running.is_limited())?;
        Some((running.process_id()?, limits.memory?))
    }

    /// When to look again. `runs`: a command does.
    pub fn next(&self, limits: &Limits, runs: bool) -> Option<Instant> {
        let needed = self.watched(limits).is_some() || (runs && limits.cpu_time.is_some());
        needed.then(|| self.looked + self.pace(runs))
    }

    fn pace(&self, runs: bool) -> Duration {
        if runs { LOOK } else { self.deserted.unwrap_or(LOOK_IDLE) }
    }

    /// Whether it is time to look. Not at each wake-up: how long too much may last would hang on how busy the session is.
    pub fn is_due(&mut self, now: Instant, runs: bool) -> bool {
        let due = now >= self.looked + self.pace(runs);
        if due {
            self.looked = now;
        }
        due
    }

    /// Counts the tree where nothing else does, and kills the largest process of one that has too much. True: it grows
    /// faster than it is killed.
    pub fn look(&mut self, limits: &Limits, now: Instant) -> bool {
        let Some((root, limit)) = self.watched(limits) else { return false };
        let census = limits::census(root);
        self.deserted = (census.processes <= 1)
            .then(|| self.deserted.map_or(LOOK_DESERTED, |pace| LOOK_DESERTED_LEAST.min(2 * pace)));
        let over = limits::has_more_than(limit, census.memory, root);
        self.over = if over { self.over + 1 } else { 0 };
        if over && limits::kill_largest(root) {
            self.killed += 1;
        }
        // A tree that takes long to count must not keep the session from its work.
        self.looked = now + now.elapsed() * 3;
        self.over > MOST_OVER
    }

    /// A command ran: it may have left something.
    pub fn may_be_inhabited(&mut self) {
        self.deserted = None;
    }

    /// CPU time of the sandbox so far. Without a cgroup, what ended unseen is missing.
    pub fn time_used(&self) -> Duration {
        let Some(running) = &self.running else { return Duration::ZERO };
        let counted = || running.process_id().map(|pid| limits::census(pid).cpu);
        running.usage().cpu.or_else(counted).unwrap_or_default()
    }

    /// Kills for memory and refused forks so far.
    pub fn counts_now(&self) -> (u64, u64) {
        let (kills, refused) = self.refusals.as_ref().map(Refusals::now).unwrap_or_default();
        (self.killed + kills, refused)
    }

    /// What nobody waits for.
    pub fn settle_counts(&mut self) {
        if std::mem::take(&mut self.look_at_counts) {
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
        let (so_far, now) = (running.usage(), self.control.as_ref().map(Control::load).unwrap_or_default());
        let pid = running.process_id().filter(|_| so_far.cpu.is_none() || now.memory.is_none());
        let counted = pid.map(limits::census);
        Usage {
            cpu: so_far.cpu.or(counted.map(|census| census.cpu)),
            memory: now.memory.or(counted.map(|census| census.memory)),
            peak_memory: so_far.peak_memory,
            processes: now.processes.or(counted.map(|census| census.processes)),
            read: now.read,
            written: now.written,
            killed_for_memory: self.killed + so_far.killed_for_memory,
        }
    }

    /// Ends the sandbox with everything in it: whether a process was killed for memory that nobody was told of, or why
    /// something is left. By a thread of its own: a daemon may not answer, or the disk with names that are to be removed.
    pub fn finish(&mut self) -> Result<bool, String> {
        let Some(running) = self.running.take() else { return Ok(false) };
        if let Some(control) = self.control.take() {
            // Where nothing is frozen there is nothing to thaw; and what is frozen does not end.
            let _ = control.thaw();
        }
        let (tell, ended) = std::sync::mpsc::channel();
        // Whether anybody waits any more is not its affair.
        let end = move || drop(tell.send(running.finish()));
        std::thread::Builder::new().spawn(end).map_err(|error| error.to_string())?;
        let finished = ended.recv_timeout(ENDING).map_err(|_| "it did not end in time".to_owned())?;
        let usage = finished.map_err(|error| error.to_string())?;
        Ok(self.killed + usage.killed_for_memory > self.kills)
    }
}
