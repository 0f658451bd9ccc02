//! Commands of sandboxes, recorded: one begins, is started, is watched, and ends. That it cannot be recorded never stops
//! one, unless its policy is strict about it.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use ringfence_linux::sys::locked;
use ringfence_policy::layers::Resolved;
use ringfence_policy::plan::Plan;
use ringfence_policy::records::Records;
use ringfence_policy::{Cure, Failure, Guarantee};

use super::{Planned, Sandbox, SandboxError};
use crate::code::CodeError;
use crate::engines::{self, EngineError, EngineRef, Running, StdioSpec};
use crate::facts::inside_sandbox;
use crate::host::{Host, HostError, Notice};
use crate::records::{Begin, End, JournalError, Recorder, Redactor, Seen, SkillRun, Ticket};
use crate::report::{Answer, Report};
use crate::session::Info;
use crate::supervise::{Companion, Outcome, supervise_watched};
use crate::watch::Loss;

/// The record of an execution that has begun.
#[derive(Debug)]
pub(crate) struct Entry {
    /// `None` where nothing is recorded.
    pub(super) ticket: Option<Ticket>,
    host: Host,
    /// That something is wrong was said already, or need not be said.
    said: bool,
}

impl Entry {
    /// Records the beginning, and answers for it in the report. An error only where the policy is strict about it.
    pub fn begin(
        sandbox: &Sandbox,
        command: &[OsString],
        skill: Option<&SkillRun>,
        engine: EngineRef,
        strict: bool,
        report: &mut Report,
    ) -> Result<Entry, SandboxError> {
        let host = sandbox.host.clone();
        let Some(recorder) = sandbox.recorder_of_all() else { return Ok(Entry { ticket: None, host, said: true }) };
        // What is read later is about a record that could be written.
        report.recorded(None::<&JournalError>);
        let begin = Begin { engine: Some(engine.name()), report: Some(report), skill, ..sandbox.begins(command) };
        let mut ticket = recorder.begin(&begin);
        let Some(trouble) = ticket.trouble() else { return Ok(Entry { ticket: Some(ticket), host, said: false }) };
        report.recorded(Some(trouble));
        // Records are hidden in a box; the run around this one has its own.
        let inside = inside_sandbox();
        if !inside && strict && !sandbox.policy().optional.contains(&Guarantee::RecordComplete) {
            let cures = vec![Cure::host("make room for the journal"), Cure::set("strict", "false")];
            let reason = ticket.take_trouble().map_or_else(String::new, |trouble| trouble.to_string());
            return Err(EngineError::Unmet {
                engine: engine.name(),
                guarantee: Guarantee::RecordComplete,
                reason,
                cures,
            }
            .into());
        }
        if !inside {
            host.notice(Notice::NotRecorded(trouble));
        }
        Ok(Entry { ticket: Some(ticket), host, said: true })
    }

    pub fn of(ticket: Ticket, host: &Host) -> Entry {
        Entry { ticket: Some(ticket), host: host.clone(), said: false }
    }

    /// The id of the record, where there is one so far.
    pub fn id(&self) -> Option<&str> {
        self.ticket.as_ref().filter(|ticket| ticket.trouble().is_none()).map(Ticket::id)
    }

    /// The command ended. The id of its record, where there is one.
    pub fn end(self, outcome: &Outcome, seen: [Seen<'_>; 2], report: &mut Report) -> Option<String> {
        self.close(&End::of(outcome, seen), |error| report.recorded(Some(error)))
    }

    /// Records the end as it is. The id of the record, where there is one.
    pub fn close(self, end: &End<'_>, failed: impl FnOnce(&JournalError)) -> Option<String> {
        let Entry { ticket, host, said } = self;
        let ticket = ticket?;
        let id = ticket.id().to_owned();
        let Err(error) = ticket.end(end) else { return Some(id) };
        failed(&error);
        if !said {
            host.notice(Notice::EndNotRecorded(&error));
        }
        None
    }

    /// It failed to start. The failure, which knows its record.
    pub fn failed(self, error: SandboxError) -> SandboxError {
        let record = self.give_up(&error.to_string());
        error.recorded(record)
    }

    /// It does not run, for a reason that is no failure of ours. The id of the record that says so.
    pub fn give_up(self, why: &str) -> Option<String> {
        self.close(&End::failed(&plain(why)), |_| {})
    }
}

/// The message without the numbers that system errors carry (`(os error 13)`): the words say it.
pub fn plain(message: &str) -> String {
    let mut parts = message.split(" (os error ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-').trim_start_matches(')'));
    }
    out
}

impl SandboxError {
    /// What went wrong with the sandbox itself, whole.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            SandboxError::Engine(error) | SandboxError::Code(CodeError::Engine(error)) => Some(error.failure()),
            SandboxError::Session(error) => error.failure(),
            SandboxError::Recorded { error, .. } => error.failure(),
            _ => None,
        }
    }

    /// With the record that says that it failed, where there is one.
    fn recorded(self, record: Option<String>) -> SandboxError {
        match (self, record) {
            (recorded @ SandboxError::Recorded { .. }, _) => recorded,
            (error, Some(record)) => SandboxError::Recorded { error: Box::new(error), record },
            (error, None) => error,
        }
    }
}

impl Sandbox {
    pub(super) fn begins<'a>(&'a self, command: &'a [OsString]) -> Begin<'a> {
        let policy = self.policy();
        let (profile, workdir) = (Some(policy.profile.as_str()), Some(policy.workdir()));
        Begin { profile, command, workdir, ..Begin::default() }
    }

    /// Records a command that could not be started under its policy, for this reason. The id of its record.
    pub fn failed(&self, command: &[OsString], skill: Option<&SkillRun>, why: &str) -> Option<String> {
        let begin = Begin { skill, ..self.begins(command) };
        write_failed(&self.host, &self.recorder_of_all()?, &begin, why)
    }

    /// The same, for an error, which then knows its record.
    pub(super) fn fail(&self, command: &[OsString], skill: Option<&SkillRun>, error: SandboxError) -> SandboxError {
        match error {
            recorded @ SandboxError::Recorded { .. } => recorded,
            error => {
                let record = self.failed(command, skill, &error.to_string());
                error.recorded(record)
            }
        }
    }

    /// Begins a command that was planned.
    pub fn begin(&self, planned: Planned) -> Result<Begun, SandboxError> {
        let Planned { plan, engine, mut report, resolved, command, lookup } = planned;
        let entry = Entry::begin(self, &command, None, engine, plan.strict, &mut report)?;
        let planned = Planned { plan, engine, report, resolved, command, lookup };
        Ok(Begun { sandbox: self.clone(), planned, entry })
    }
}

fn write_failed(host: &Host, recorder: &Recorder, begin: &Begin<'_>, why: &str) -> Option<String> {
    match recorder.failed(begin, &plain(why)) {
        Ok(record) => Some(record),
        Err(trouble) => {
            if !inside_sandbox() {
                host.notice(Notice::NotRecorded(&trouble));
            }
            None
        }
    }
}

impl Host {
    /// Records a command for which there is no policy, for this reason. `workdir` is where it was to work, if that is known.
    /// The id of its record.
    pub fn refused(&self, command: &[OsString], workdir: Option<&Path>, why: &str) -> Option<String> {
        let (facts, directories) = (self.facts().ok()?, self.directories().ok()?);
        let records = Records::default();
        let recorder = Recorder::new(&directories.records(), redactor(&facts.env, &records), records.max_size);
        let workdir = self.workdir(workdir).ok();
        let workdir = workdir.as_deref();
        let begin = Begin { command, workdir, ..Begin::default() };
        write_failed(self, &recorder, &begin, why)
    }

    /// Begins the record of code that runs in a session, and says whether it gets what the code writes.
    pub(super) fn begin_in(&self, info: &Info, command: &[OsString]) -> Result<(Entry, bool), SandboxError> {
        let (facts, archive) = (self.facts().map_err(HostError::from)?, self.archive()?);
        let recorder =
            Recorder::new(archive.journal.dir(), redactor(&facts.env, &archive.records), archive.records.max_size);
        let begin = Begin {
            profile: Some(&info.profile),
            engine: Some(&info.engine),
            sandbox: Some(&info.id),
            command,
            workdir: Some(&info.workdir),
            ..Begin::default()
        };
        Ok((Entry::of(recorder.begin(&begin), self), archive.records.output))
    }
}

pub(super) fn redactor(env: &std::collections::BTreeMap<OsString, OsString>, records: &Records) -> Redactor {
    Redactor::new(env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())), &records.secrets)
}

/// A command that was recorded, and whose box is not made yet.
#[derive(Debug)]
pub struct Begun {
    sandbox: Sandbox,
    planned: Planned,
    entry: Entry,
}

/// A command that runs.
#[derive(Debug)]
pub struct Started {
    sandbox: Sandbox,
    planned: Planned,
    entry: Entry,
    running: Running,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub outcome: Outcome,
    /// How each guarantee was kept.
    pub report: Report,
    /// What was done.
    pub plan: Plan,
    /// The id of its record.
    pub record: Option<String>,
    /// Why the report says `weakened` for what it said `enforced` for when the command began, once each.
    pub lost: Vec<String>,
}

impl Begun {
    /// How each guarantee is kept.
    pub fn report(&self) -> &Report {
        &self.planned.report
    }

    /// What will be done.
    pub fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    /// It does not run, for a reason that is no failure of the sandbox. The id of the record that says so.
    pub fn give_up(self, why: &str) -> Option<String> {
        self.entry.give_up(why)
    }

    /// Makes the box and starts the command with these standard streams. The box lives as long as the thread that calls
    /// this.
    pub fn start(self, stdio: StdioSpec) -> Result<Started, SandboxError> {
        let Begun { sandbox, mut planned, entry } = self;
        let Planned { engine, plan, report, .. } = &planned;
        let mut fresh = None;
        let anew = || {
            let (lookup, resolved) = sandbox.judge()?;
            let plan = plan.anew(&locked(&lookup), &resolved.policy, &sandbox.facts);
            let plan = plan.map_err(|error| sandbox.explained(error))?;
            let mut fresh_report = engine.promise(&plan, &sandbox.facts)?;
            // The record has begun already.
            let of_record = |answer: &&Answer| answer.id == Guarantee::RecordComplete;
            for answer in fresh_report.guarantees.iter_mut().filter(|answer| of_record(&&**answer)) {
                if let Some(begun) = report.guarantees.iter().find(of_record) {
                    answer.clone_from(begun);
                }
            }
            let report = fresh_report;
            fresh = Some((plan.clone(), report.clone(), resolved, lookup));
            Ok::<_, SandboxError>((plan, report))
        };
        let started = engines::start_verified(*engine, plan, report, &sandbox.facts, stdio, anew);
        locked(&planned.lookup).let_go();
        if let Some((plan, report, resolved, lookup)) = fresh {
            locked(&lookup).let_go();
            planned = Planned { plan, report, resolved, lookup, ..planned };
        }
        match started {
            Ok(running) => Ok(Started { sandbox, planned, entry, running }),
            Err(error) => Err(entry.failed(error)),
        }
    }
}

impl Started {
    /// Watches the command until it has ended, and records its end. `seen` is what the companion saw of its output.
    pub fn watch<C: Companion>(
        self,
        mut companion: C,
        seen: impl FnOnce(&C) -> [Seen<'_>; 2],
    ) -> Result<(Finished, C), SandboxError> {
        let Started { sandbox, planned, entry, running } = self;
        let mut report = planned.report;
        let (plan, policy) = (&planned.plan, &planned.resolved.policy);
        let mut lost = Vec::new();
        let watched = supervise_watched(running, plan, policy, &sandbox.facts, &mut companion, &mut |loss| {
            loss.tell(&mut report);
            lost.push(loss.reason.clone());
        });
        let outcome = match watched {
            Ok(outcome) => outcome,
            Err(error) => return Err(entry.failed(error.into())),
        };
        let record = entry.end(&outcome, seen(&companion), &mut report);
        Ok((Finished { outcome, report, record, lost, plan: planned.plan }, companion))
    }

    /// Its parts, for who watches it and who records its end are not the same.
    pub(super) fn apart(self) -> (Watched, Entry, Report) {
        let Started { sandbox, planned, entry, running } = self;
        (Watched { running, plan: planned.plan, resolved: planned.resolved, sandbox }, entry, planned.report)
    }
}

/// A box to be watched.
#[derive(Debug)]
pub(super) struct Watched {
    running: Running,
    plan: Plan,
    resolved: Arc<Resolved>,
    sandbox: Sandbox,
}

impl Watched {
    pub fn until_its_end(self, companion: &mut dyn Companion) -> Result<Outcome, EngineError> {
        let host = &self.sandbox.host;
        let mut lost = |loss: &Loss| host.notice(Notice::Weakened(loss));
        let (policy, facts) = (&self.resolved.policy, &self.sandbox.facts);
        supervise_watched(self.running, &self.plan, policy, facts, companion, &mut lost)
    }
}
