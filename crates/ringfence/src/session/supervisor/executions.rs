//! Executions of a session, as its supervisor knows them: their clocks, what they wrote, who listens.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use ringfence_guest::frame::{Channel, WINDOW};
use ringfence_guest::message::Request;

use super::super::info::{ExecutionInfo, ExecutionState};
use super::super::protocol::{COPIED, ExecutionEnd};
use crate::capture::Capture;
use crate::supervise::{GRACE, Reason};
use ringfence_records::Recorder;

/// A client's stream.
pub type Place = (u64, u32);

/// From KILL to the end of the whole box.
const PATIENCE: Duration = Duration::from_secs(2);
/// A command that the guest does not even start in this time is not going to be.
const START: Duration = Duration::from_secs(30);
/// So long at most its clients wait for its record to be written.
const RECORD: Duration = Duration::from_secs(1);
/// What is kept of a foreground execution, whose output went to its client.
const FOREGROUND_LOG: u64 = 2 * COPIED as u64;
/// Ended executions that are remembered.
pub const REMEMBERED: usize = 64;
/// Bytes of their output that are remembered.
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
    /// Whether that waits for its record.
    pub recording: Recording,
    /// Its clients were told that it runs. What it writes before is held: no more than the guest was granted.
    pub announced: bool,
    pub held: Vec<(Channel, Vec<u8>)>,
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
    /// When that was set.
    pub clock_set: Instant,
    pub reason: Option<Reason>,
    /// Kills for memory in the box before it began.
    pub kills_before: u64,
    /// Forks refused in the box before it began, and CPU time that was used, where that is limited.
    pub refused_before: u64,
    pub time_before: Option<Duration>,
    /// No other execution ran at any time while it did.
    pub alone: bool,
    pub finished: Option<ExecutionEnd>,
    /// What its end is recorded with, until it is; and the id of its record.
    pub recorder: Option<Recorder>,
    pub record: Option<String>,
    /// Why there is none, to be told.
    pub trouble: Option<String>,
}

/// What waits for the beginning of a record to be written.
#[derive(Debug, Default)]
pub enum Recording {
    /// The command itself: nothing may run without a record.
    Before(Box<(Request, Vec<OwnedFd>)>),
    /// That its clients are told that it runs.
    During,
    /// Nothing, or nothing any more.
    #[default]
    Settled,
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
    /// Its clients are not to wait for its record any longer.
    Announce,
    /// Nor is it itself, which is not to run without.
    Refuse,
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
            recording: Recording::Settled,
            announced: false,
            held: Vec::new(),
            started: Instant::now(),
            started_at: SystemTime::now(),
            owner: None,
            attached: Vec::new(),
            log: [log.clone(), log],
            told: None,
            input: Input { credit: WINDOW, ..Input::default() },
            owed: [0; 2],
            clock: Clock::Runs(None),
            clock_set: Instant::now(),
            reason: None,
            kills_before: 0,
            refused_before: 0,
            time_before: None,
            alone: true,
            finished: None,
            recorder: None,
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

    /// Whether the guest has been asked for it, and it has not ended.
    pub fn runs(&self) -> bool {
        self.finished.is_none() && !self.waits_for_record()
    }

    pub fn waits_for_record(&self) -> bool {
        matches!(self.recording, Recording::Before(_))
    }

    /// It is asked for only now: its time begins.
    pub fn starts(&mut self, stream: u32) {
        let now = Instant::now();
        if let Clock::Runs(Some(at)) = &mut self.clock {
            *at += now.saturating_duration_since(self.started);
        }
        (self.stream, self.started, self.started_at) = (stream, now, SystemTime::now());
        self.clock_set = now;
    }

    pub fn set_clock(&mut self, clock: Clock, now: Instant) {
        (self.clock, self.clock_set) = (clock, now);
    }

    /// Time has stood still in the sandbox since then: what was set meanwhile has lost less of it.
    fn shift_clocks(&mut self, since: Instant, now: Instant) {
        let lost = |set: Instant| now.saturating_duration_since(set.max(since));
        if let Clock::Runs(Some(at)) | Clock::Asked(at) | Clock::Killed(at) = &mut self.clock {
            *at += lost(self.clock_set);
        }
        if !self.begun {
            self.started += lost(self.started);
        }
    }

    /// Begins to end it, for this reason; whether that is new.
    pub fn ask_to_end(&mut self, reason: Reason, now: Instant) -> bool {
        if self.finished.is_some() || !matches!(self.clock, Clock::Runs(_)) {
            return false;
        }
        self.reason.get_or_insert(reason);
        self.set_clock(Clock::Asked(now + GRACE), now);
        true
    }

    /// It is being killed, for this reason; whether that is new.
    pub fn end_at_once(&mut self, reason: Reason, now: Instant) -> bool {
        if self.finished.is_some() || matches!(self.clock, Clock::Killed(_)) {
            return false;
        }
        self.reason.get_or_insert(reason);
        self.set_clock(Clock::Killed(now + PATIENCE), now);
        true
    }

    /// What is due now. Each is said once.
    pub fn due(&mut self, now: Instant) -> Option<Due> {
        match self.recording {
            Recording::Before(_) => return (now >= self.started + START).then_some(Due::Refuse),
            Recording::During if now >= self.started + RECORD => {
                self.recording = Recording::Settled;
                return Some(Due::Announce);
            }
            Recording::During | Recording::Settled => {}
        }
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
                self.set_clock(Clock::Killed(now + PATIENCE), now);
                Due::Kill
            }
            Clock::Killed(_) => Due::EndBox,
        })
    }

    /// When to look again.
    pub fn next(&self) -> Option<Instant> {
        let record = match self.recording {
            Recording::Before(_) => return Some(self.started + START),
            Recording::During => Some(self.started + RECORD),
            Recording::Settled => None,
        };
        let start = (!self.begun).then(|| self.started + START);
        let clocks = [self.clock.at(), start].into_iter().filter(|_| self.finished.is_none());
        clocks.flatten().chain(record).min()
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

    /// Time stood still from then on.
    pub fn shift_clocks(&mut self, since: Instant, now: Instant) {
        self.all.values_mut().filter(|e| e.runs()).for_each(|execution| execution.shift_clocks(since, now));
    }

    /// Whether any runs.
    pub fn runs(&self) -> bool {
        self.running().next().is_some()
    }

    /// Forgets the oldest that ended, and of those that a client still has to read the output alone. Those whose end is not
    /// recorded yet stay.
    pub fn trim(&mut self) {
        let unread = |e: &Execution| !e.attached.is_empty() || e.owner.is_some();
        let ended = |e: &Execution| e.finished.is_some() && e.recorder.is_none();
        let mut count = self.all.values().filter(|e| ended(e) && !unread(e)).count();
        let mut bytes: u64 = self.all.values().filter(|e| ended(e)).map(Execution::kept_bytes).sum();
        // The newest keeps its output.
        let newest = self.all.values().rfind(|e| ended(e)).map(|e| e.id);
        let oldest: Vec<u64> = self.all.values().filter(|e| ended(e) && Some(e.id) != newest).map(|e| e.id).collect();
        for id in oldest {
            let too_large = bytes > REMEMBERED_BYTES;
            if count <= REMEMBERED && !too_large {
                return;
            }
            let Some(execution) = self.all.get_mut(&id) else { continue };
            if !unread(execution) {
                bytes -= execution.kept_bytes();
                count -= 1;
                self.all.remove(&id);
            } else if too_large {
                bytes -= execution.kept_bytes();
                execution.log.iter_mut().for_each(Capture::forget);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_loses_no_more_than_the_time_it_stood_still() {
        let second = Duration::from_secs(1);
        let frozen = Instant::now() + 10 * second;
        let (thawed, meanwhile) = (frozen + 60 * second, frozen + 50 * second);
        let execution = |id: u64, set: Instant, begun: bool| {
            let mut execution = Execution::new(id, 0, &[b"x".to_vec()], false, 0);
            execution.set_clock(Clock::Runs(Some(set + 5 * second)), set);
            (execution.begun, execution.started) = (begun, set);
            execution
        };
        let mut executions = Executions::default();
        executions.all.insert(1, execution(1, frozen - second, true));
        executions.all.insert(2, execution(2, meanwhile, false));
        let mut asked = execution(3, frozen - second, true);
        asked.ask_to_end(Reason::Cancelled, meanwhile);
        executions.all.insert(3, asked);
        executions.shift_clocks(frozen, thawed);
        let at = |id: u64| executions.all[&id].clock.at().unwrap();
        assert_eq!(at(1), thawed + 4 * second);
        assert_eq!((at(2), executions.all[&2].started), (thawed + 5 * second, thawed));
        assert_eq!(at(3), thawed + GRACE);
    }
}
