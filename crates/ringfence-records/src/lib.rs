//! Records: what is kept of every execution.
//!
//! A [`Recorder`] writes a line to a [journal] when an execution begins and another when it has ended. The [`Store`] is the
//! database that whoever looks folds the journal into. A run never opens the database, never waits for it, and goes on
//! whatever happens to either: what could not be recorded is said by the [`Ticket`], and by the report. Where records are is
//! the caller's to say; nothing here looks for a home directory.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod capture;
pub mod database;
mod fold;
pub mod journal;
mod migrations;
mod owner;
pub mod redact;
mod store;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfence_policy::{Ended, Outcome, Reason, Report};
use serde::{Deserialize, Serialize};

pub use capture::Capture;
pub use database::Place;
pub use journal::{Journal, JournalError, Stream};
pub use owner::{Caller, Owner};
pub use redact::Redactor;
pub use store::{Filter, Folded, Pruned, Record, Store, StoreError};

use journal::{Begun, Line};

/// Kept of the head of a stream, and of its tail.
const KEPT: usize = 4 << 10;

/// How an execution stands, or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Begun, and whoever runs it is alive.
    Running,
    /// It ended by itself.
    Exited,
    /// A signal ended it.
    Signaled,
    /// Ringfence itself failed.
    Failed,
    /// Begun, and whoever ran it is gone without a word.
    Interrupted,
    /// Its session ended under it, and said so. Told by its reason: in the database it is `signaled`.
    Lost,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 6] =
        [Status::Running, Status::Exited, Status::Signaled, Status::Failed, Status::Interrupted, Status::Lost];

    /// The word for it in JSON and in the database.
    pub fn name(self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Exited => "exited",
            Status::Signaled => "signaled",
            Status::Failed => "failed",
            Status::Interrupted => "interrupted",
            Status::Lost => "lost",
        }
    }

    /// The status of such a word.
    pub fn parse(name: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// An execution that begins.
#[derive(Debug, Clone, Copy, Default)]
pub struct Begin<'a> {
    /// The profile of its policy.
    pub profile: Option<&'a str>,
    /// The engine that runs it.
    pub engine: Option<&'a str>,
    /// The session or the container; `None` for a box of one command.
    pub sandbox: Option<&'a str>,
    /// The command.
    pub command: &'a [OsString],
    /// The working directory.
    pub workdir: Option<&'a Path>,
    /// What was promised, and how far each promise is kept.
    pub report: Option<&'a Report>,
    /// Who asked for it; `None`: the process that started this one.
    pub caller: Option<&'a Caller>,
    /// The skill that it runs, if it runs one.
    pub skill: Option<&'a SkillRun>,
}

/// Which skill an execution runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillRun {
    /// The name of the skill.
    pub name: String,
    /// Not known of what ran before it was recorded.
    #[serde(default)]
    pub version: Option<String>,
    /// Of the code that runs: `sha256:…`.
    pub hash: String,
}

/// How an execution ended.
#[derive(Debug, Clone)]
pub struct End<'a> {
    /// How it ended.
    pub status: Status,
    /// The exit code, where it exited.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why Ringfence ended it, if it did.
    pub reason: Option<Reason>,
    /// What Ringfence itself had to say.
    pub error: Option<&'a str>,
    /// From start to end.
    pub duration: Option<Duration>,
    /// CPU time of the whole tree.
    pub cpu: Option<Duration>,
    /// Bytes of memory at most.
    pub peak_memory: Option<u64>,
    /// What was seen of stdout and stderr.
    pub seen: [Seen<'a>; 2],
}

/// What was seen of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub enum Seen<'a> {
    /// The command had the caller's own descriptor.
    #[default]
    Nothing,
    /// How much it was, and nothing of it is to be kept.
    Bytes(u64),
    /// Its head and tail are to be kept.
    Output(&'a Capture),
}

impl<'a> End<'a> {
    /// Ringfence itself failed.
    pub fn failed(error: &'a str) -> End<'a> {
        End {
            status: Status::Failed,
            exit_code: None,
            signal: None,
            reason: None,
            error: Some(error),
            duration: None,
            cpu: None,
            peak_memory: None,
            seen: [Seen::Nothing; 2],
        }
    }

    /// The command ended.
    pub fn of(outcome: &Outcome, seen: [Seen<'a>; 2]) -> End<'a> {
        let (status, exit_code, signal) = match outcome.ended {
            Ended::Exited(code) => (Status::Exited, Some(code), None),
            Ended::Signaled(signal) => (Status::Signaled, None, Some(signal)),
        };
        End {
            status,
            exit_code,
            signal,
            reason: outcome.reason,
            error: None,
            duration: Some(outcome.duration),
            cpu: Some(outcome.cpu),
            peak_memory: Some(outcome.peak_memory),
            seen,
        }
    }
}

/// A capture that holds all that a record may keep of a stream.
pub fn capture() -> Capture {
    Capture::new(2 * (KEPT + redact::SLACK) as u64)
}

/// Records executions in one directory.
#[derive(Debug, Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    journal: Journal,
    redactor: Redactor,
    /// Bounds what nobody has folded yet.
    max_size: Option<u64>,
}

impl Recorder {
    /// Writes to the journal in this directory. `max_size` bounds what is not folded yet.
    pub fn new(dir: &Path, redactor: Redactor, max_size: Option<u64>) -> Recorder {
        Recorder { shared: Arc::new(Shared { journal: Journal::new(dir), redactor, max_size }) }
    }

    /// The same, which also keeps out the secrets of this environment.
    pub fn without<'a>(&self, env: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>, named: &[String]) -> Recorder {
        let mut redactor = self.shared.redactor.clone();
        redactor.add_all(env, named);
        if redactor == self.shared.redactor {
            return self.clone();
        }
        let journal = self.shared.journal.clone();
        Recorder { shared: Arc::new(Shared { journal, redactor, max_size: self.shared.max_size }) }
    }

    /// An execution begins. It never fails: what went wrong is the ticket's to say.
    pub fn begin(&self, begin: &Begin<'_>) -> Ticket {
        let mut ticket = self.prepare(begin);
        ticket.trouble = ticket.write_begin(false).err();
        ticket
    }

    /// The same, with nothing written yet: for whoever must not wait for a disk, and has another thread do that.
    pub fn prepare(&self, begin: &Begin<'_>) -> Ticket {
        let redactor = &self.shared.redactor;
        let begun = Begun {
            time: now(),
            profile: begin.profile.map(redact::plain),
            engine: begin.engine.map(redact::plain),
            sandbox: begin.sandbox.map(redact::plain),
            command: redactor.command(begin.command),
            workdir: begin.workdir.map(|path| redactor.line(&path.to_string_lossy())),
            caller: begin.caller.cloned().unwrap_or_else(Caller::of_this_process),
            owner: Owner::of_this_process(),
            skill: begin.skill.cloned(),
            // A record that is read speaks of itself: it was written.
            report: begin.report.and_then(|report| serde_json::value::to_raw_value(report).ok()),
        };
        Ticket { recorder: self.clone(), id: new_id(), begun: Some(begun), trouble: None, ended: false }
    }

    /// How an execution ended, as it is written: without secrets.
    pub fn ended(&self, end: &End<'_>) -> journal::Ended {
        let redactor = &self.shared.redactor;
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let [stdout, stderr] = end.seen.map(|seen| stream(seen, redactor));
        journal::Ended {
            time: now(),
            status: end.status,
            exit_code: end.exit_code,
            signal: end.signal,
            reason: end.reason,
            error: end.error.map(|error| redactor.line(error)),
            duration_us: end.duration.map(micros),
            cpu_us: end.cpu.map(micros),
            peak_memory: end.peak_memory,
            stdout,
            stderr,
        }
    }

    /// An execution that ended before it could begin.
    pub fn failed(&self, begin: &Begin<'_>, error: &str) -> Result<String, JournalError> {
        let ticket = self.begin(begin);
        let id = ticket.id().to_owned();
        ticket.end(&End::failed(error)).map(|()| id)
    }
}

/// An execution that was begun. Dropped without an end, it is recorded as interrupted.
#[derive(Debug)]
pub struct Ticket {
    recorder: Recorder,
    id: String,
    /// What could not be written: it is tried again with the end.
    begun: Option<Begun>,
    trouble: Option<JournalError>,
    ended: bool,
}

impl Ticket {
    /// The id of the record.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Why the beginning could not be recorded.
    pub fn trouble(&self) -> Option<&JournalError> {
        self.trouble.as_ref()
    }

    /// The same, where nothing may run without a record: then there is nothing to record.
    pub fn take_trouble(&mut self) -> Option<JournalError> {
        self.ended |= self.trouble.is_some();
        self.trouble.take()
    }

    /// Writes the beginning of one that was only prepared. `strict`: nothing runs without a record, and so there is nothing to
    /// record when it cannot be written.
    pub fn write_begin(&mut self, strict: bool) -> Result<(), JournalError> {
        let line = Line { id: self.id.clone(), begin: self.begun.take(), end: None };
        self.append(&line).inspect_err(|_| {
            self.begun = line.begin;
            self.ended |= strict;
        })
    }

    /// It has ended.
    pub fn end(self, end: &End<'_>) -> Result<(), JournalError> {
        let ended = self.recorder.ended(end);
        self.end_as(ended)
    }

    /// It has ended like this ([`Recorder::ended`]).
    pub fn end_as(mut self, ended: journal::Ended) -> Result<(), JournalError> {
        self.write(ended)
    }

    fn write(&mut self, ended: journal::Ended) -> Result<(), JournalError> {
        self.ended = true;
        let line = Line { id: self.id.clone(), begin: self.begun.take(), end: Some(ended) };
        self.append(&line)
    }

    fn append(&self, line: &Line) -> Result<(), JournalError> {
        let Shared { journal, max_size, .. } = &*self.recorder.shared;
        journal.append(line, *max_size)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            let end = End { status: Status::Interrupted, error: None, ..End::failed("") };
            // There is nobody to tell; without it, the record is found interrupted when this process is gone.
            let _ = self.write(self.recorder.ended(&end));
        }
    }
}

fn stream(seen: Seen<'_>, redactor: &Redactor) -> Stream {
    match seen {
        Seen::Nothing => Stream::default(),
        Seen::Bytes(bytes) => Stream { bytes: Some(bytes), head: None, tail: None },
        Seen::Output(capture) => {
            const WINDOW: usize = KEPT + redact::SLACK;
            let (head, tail) = capture.parts();
            let bytes = Some(capture.total());
            if capture.dropped() == 0 && capture.total() <= 2 * KEPT as u64 {
                let whole = [head, &tail].concat();
                return Stream { bytes, head: Some(redactor.head(&whole, whole.len())), tail: None };
            }
            // Where nothing was dropped between them, both can be looked at beyond their middle.
            let whole = if capture.dropped() == 0 { [head, &tail].concat() } else { Vec::new() };
            let (head, tail) = if whole.is_empty() { (head, &tail[..]) } else { (&whole[..], &whole[..]) };
            let (head, tail) = (&head[..head.len().min(WINDOW)], &tail[tail.len().saturating_sub(WINDOW)..]);
            // Of a shorter one the edge itself is not kept: a secret may be cut off there.
            let keep = |part: &[u8]| KEPT.min(part.len().saturating_sub(redact::SLACK));
            let (kept_head, kept_tail) = (keep(head), keep(tail));
            Stream { bytes, head: Some(redactor.head(head, kept_head)), tail: Some(redactor.tail(tail, kept_tail)) }
        }
    }
}

/// The time of this moment, as records have it: milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The time of a record; one that cannot be written as a date is the last that can.
pub fn time(millis: i64) -> SystemTime {
    const LAST: u64 = 253_402_300_799_999;
    UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0).min(LAST))
}

/// An id that sorts by time, and those of one process in the order in which they were made.
pub fn new_id() -> String {
    static LAST: Mutex<u128> = Mutex::new(0);
    let mut random = [0; 16];
    // It has the time in it as well, and so nothing is lost where the kernel has no randomness yet.
    let _ = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::NONBLOCK);
    let new = ulid::Ulid::from_parts(u64::try_from(now()).unwrap_or_default(), u128::from_le_bytes(random));
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    *last = u128::from(new).max(last.wrapping_add(1));
    ulid::Ulid::from(*last).to_string()
}

#[cfg(test)]
mod tests;
