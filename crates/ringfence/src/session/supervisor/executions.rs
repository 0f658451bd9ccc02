//! Executions of a session, as its supervisor knows them: their clocks, what they wrote, who listens.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use ringfence_guest::frame::{Channel, WINDOW};

use super::super::info::{ExecutionInfo, ExecutionState};
use super::super::protocol::{Finished, TOLD};
use crate::capture::Capture;
use crate::records::Ticket;
use crate::supervise::{GRACE, Reason};

/// A client's stream.
pub type Place = (u64, u32);

/// From KILL to the end of the whole box.
const PATIENCE: Duration = Duration::from_secs(2);
/// A command that the guest does not even start in this time is not going to be.
const START: Duration = Duration::from_secs(30);
/// What is kept of a foreground execution, whose output went to its client.
const FOREGROUND_LOG: u64 = 2 * TOLD as u64;
/// Ended executions that are remembered, and bytes of their output.
pub const REMEMBERED: usize = 64;
pub const REMEMBERED_BYTES: u64 = 16 << 20;
/// Of a command line that is listed.
const COMMAND: usize = 512;

#[derive(Debug)]
pub struct Execution {
    pub id: u64,
    /// Of the guest.
    pub stream: u32,
    pub command: Vec<String>,
    pub background: bool,
    pub terminal: bool,
    /// It is an interpreter that waits for code.
    pub context: Option<String>,
    /// It was given code, and its caller has not said that it is done.
    pub works: bool,
    /// The guest said that it runs.
    pub begun: bool,
    pub started: Instant,
    pub started_at: SystemTime,
    /// Who waits in the foreground.
    pub owner: Option<Place>,
    /// Who follows it.
    pub attached: Vec<Place>,
    /// Stdout and stderr.
    pub log: [Capture; 2],
    /// Its outputs are pipes of its client's, which says what comes of them for the log: whether it has said all of it.
    /// `None` when they come through here.
    pub told: Option<bool>,
    pub input: Input,
    /// What was read for nobody and not granted again yet.
    pub owed: [u32; 2],
    pub clock: Clock,
    pub reason: Option<Reason>,
    /// Kills for memory in the box before it began.
    pub kills_before: u64,
    /// Forks refused in the box before it began, and processor time that was used, where that is limited.
    pub refused_before: u64,
    pub time_before: Duration,
    /// No other execution ran at any time while it did.
    pub alone: bool,
    pub finished: Option<Finished>,
    /// Its record until it has ended, and the id of it.
    pub ticket: Option<Ticket>,
    pub record: Option<String>,
    /// Why there is none, to be told.
    pub trouble: Option<String>,
}

/// What is on its way to the standard input.
#[derive(Debug, Default)]
pub struct Input {
    pub wanted: bool,
    /// Chunks, and whose window they fill.
    pub queue: VecDeque<(Place, Vec<u8>)>,
    /// What the guest takes.
    pub credit: u32,
    pub ending: bool,
    pub ended: bool,
}

/// When something must happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// It may run until then.
    Runs(Option<Instant>),
    /// TERM was sent; KILL comes then.
    Asked(Instant),
    /// KILL was sent; the box is killed then.
    Killed(Instant),
}

impl Clock {
    pub fn at(self) -> Option<Instant> {
        match self {
            Clock::Runs(at) => at,
            Clock::Asked(at) | Clock::Killed(at) => Some(at),
        }
    }
}

/// What a clock that ran out asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    Term,
    Kill,
    EndBox,
}

impl Execution {
    /// One that was just asked for.
    pub fn new(id: u64, stream: u32, argv: &[Vec<u8>], background: bool, output: u64) -> Execution {
        let log = Capture::new(if background { output } else { output.min(FOREGROUND_LOG) });
        Execution {
            id,
            stream,
            command: listed(argv),
            background,
            terminal: false,
            context: None,
            works: false,
            begun: false,
            started: Instant::now(),
            started_at: SystemTime::now(),
            owner: None,
            attached: Vec::new(),
            log: [log.clone(), log],
            told: None,
            input: Input { credit: WINDOW, ..Input::default() },
            owed: [0; 2],
            clock: Clock::Runs(None),
            reason: None,
            kills_before: 0,
            refused_before: 0,
            time_before: Duration::ZERO,
            alone: true,
            finished: None,
            ticket: None,
            record: None,
            trouble: None,
        }
    }

    pub fn log_of(channel: Channel) -> usize {
        usize::from(channel == Channel::Err)
    }

    /// Whether it is an interpreter without anything to do.
    pub fn waits(&self) -> bool {
        self.context.is_some() && !self.works && matches!(self.clock, Clock::Runs(_))
    }

    /// Begins to end it, for this reason; whether that is new.
    pub fn ask_to_end(&mut self, reason: Reason, now: Instant) -> bool {
        if self.finished.is_some() || !matches!(self.clock, Clock::Runs(_)) {
            return false;
        }
        self.reason.get_or_insert(reason);
        self.clock = Clock::Asked(now + GRACE);
        true
    }

    /// It is being killed, for this reason; whether that is new.
    pub fn end_at_once(&mut self, reason: Reason, now: Instant) -> bool {
        if self.finished.is_some() || matches!(self.clock, Clock::Killed(_)) {
            return false;
        }
        self.reason.get_or_insert(reason);
        self.clock = Clock::Killed(now + PATIENCE);
        true
    }

    /// What is due now. Each is said once.
    pub fn due(&mut self, now: Instant) -> Option<Due> {
        if self.finished.is_some() {
            return None;
        }
        if !self.begun && now >= self.started + START {
            return Some(Due::EndBox);
        }
        if self.clock.at().is_none_or(|at| now < at) {
            return None;
        }
        Some(match self.clock {
            Clock::Runs(_) => {
                self.ask_to_end(Reason::Time, now);
                Due::Term
            }
            Clock::Asked(_) => {
                self.clock = Clock::Killed(now + PATIENCE);
                Due::Kill
            }
            Clock::Killed(_) => Due::EndBox,
        })
    }

    /// When to look again.
    pub fn next(&self) -> Option<Instant> {
        if self.finished.is_some() {
            return None;
        }
        let start = (!self.begun).then(|| self.started + START);
        [self.clock.at(), start].into_iter().flatten().min()
    }

    pub fn info(&self) -> ExecutionInfo {
        let state = match self.finished {
            None => ExecutionState::Running,
            Some(f) if libc::WIFSIGNALED(f.status) => {
                ExecutionState::Signaled { signal: libc::WTERMSIG(f.status), reason: f.reason }
            }
            Some(f) => ExecutionState::Exited { code: libc::WEXITSTATUS(f.status), reason: f.reason },
        };
        ExecutionInfo {
            id: self.id.to_string(),
            command: self.command.clone(),
            background: self.background,
            terminal: self.terminal,
            context: self.context.clone(),
            started: self.started_at,
            state,
            stdout: self.log[0].total(),
            stderr: self.log[1].total(),
        }
    }

    fn kept_bytes(&self) -> u64 {
        self.log.iter().map(|log| log.total() - log.dropped()).sum()
    }
}

/// The command line for a list: readable, and short.
fn listed(argv: &[Vec<u8>]) -> Vec<String> {
    let mut left = COMMAND;
    let mut words = Vec::new();
    for word in argv {
        let cut = &word[..word.len().min(left)];
        left -= cut.len();
        words.push(String::from_utf8_lossy(cut).into_owned());
        if left == 0 || words.len() == COMMAND / 8 {
            words.push("…".to_owned());
            break;
        }
    }
    words
}

/// All that run, and the last that ended.
#[derive(Debug, Default)]
pub struct Executions {
    pub all: BTreeMap<u64, Execution>,
    /// How many there were.
    pub count: u64,
}

impl Executions {
    pub fn running(&self) -> impl Iterator<Item = &Execution> {
        self.all.values().filter(|e| e.finished.is_none())
    }

    /// Forgets the oldest that ended, but for those that somebody still reads or whose end is not recorded yet.
    pub fn trim(&mut self) {
        let unread = |e: &Execution| !e.attached.is_empty() || e.owner.is_some();
        let ended = |e: &Execution| e.finished.is_some() && !unread(e) && e.ticket.is_none();
        let mut count = self.all.values().filter(|e| ended(e)).count();
        let mut bytes: u64 = self.all.values().filter(|e| ended(e)).map(Execution::kept_bytes).sum();
        while count > REMEMBERED || (bytes > REMEMBERED_BYTES && count > 1) {
            let Some(oldest) = self.all.values().find(|e| ended(e)).map(|e| e.id) else { return };
            if let Some(gone) = self.all.remove(&oldest) {
                bytes -= gone.kept_bytes();
                count -= 1;
            }
        }
    }
}
