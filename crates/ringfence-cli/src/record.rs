//! The record of a run. That it cannot be written never stops one, and is said once.

use std::ffi::{OsStr, OsString};

use ringfence::engines::native::stacked;
use ringfence::policy::Guarantee;
use ringfence::policy::plan::Plan;
use ringfence::policy::records::Records;
use ringfence::records::{Begin, End, JournalError, Recorder, Redactor, Seen, SkillRun, Ticket};
use ringfence::{Engine, EngineError, Outcome, Report};

use crate::archive::Archive;
use crate::failure::Failure;
use crate::files::{self, Places};
use crate::output;
use crate::situation::Situation;

/// A run that has begun.
#[derive(Debug)]
pub struct Entry {
    ticket: Ticket,
    /// That something is wrong was said already, or need not be said.
    said: bool,
}

impl Entry {
    /// Records the beginning, and answers for it in the report. An error only where the policy is strict about it.
    pub fn begin(
        situation: &Situation,
        command: &[OsString],
        skill: Option<&SkillRun>,
        engine: Engine,
        plan: &Plan,
        report: &mut Report,
    ) -> Result<Entry, Failure> {
        // What is read later is about a record that could be written.
        report.recorded(None);
        let begin = Begin { engine: Some(engine.name()), report: Some(report), skill, ..begin(situation, command) };
        let ticket = recorder(situation).begin(&begin);
        let Some(trouble) = ticket.trouble() else { return Ok(Entry { ticket, said: false }) };
        report.recorded(Some(trouble));
        // Records are hidden in a box; the run around this one has its own.
        if stacked::inside() {
            return Ok(Entry { ticket, said: true });
        }
        if plan.strict && !situation.resolved.policy.optional.contains(&Guarantee::RecordComplete) {
            let cure = "make room for the journal, or leave `strict` off to run without a record".to_owned();
            let reason = trouble.to_string();
            return Err(EngineError::Unmet { engine, guarantee: Guarantee::RecordComplete, reason, cure }.into());
        }
        warn("this run is not recorded", trouble);
        Ok(Entry { ticket, said: true })
    }

    /// The command ended. The id of its record, where there is one.
    pub fn end(self, outcome: &Outcome, seen: [Seen<'_>; 2], report: &mut Report) -> Option<String> {
        let Entry { ticket, said } = self;
        let id = ticket.id().to_owned();
        match ticket.end(&End::of(outcome, seen)) {
            Ok(()) => Some(id),
            Err(error) => {
                report.recorded(Some(&error));
                if !said {
                    warn("the end of this run is not recorded", &error);
                }
                None
            }
        }
    }

    /// It failed to start. The failure, which knows its record.
    pub fn failed(self, failure: Failure) -> Failure {
        let Entry { ticket, said } = self;
        let id = ticket.id().to_owned();
        match ticket.end(&End::failed(&failure.message)) {
            Ok(()) => failure.recorded(Some(id)),
            Err(error) => {
                if !said {
                    warn("the end of this run is not recorded", &error);
                }
                failure
            }
        }
    }
}

/// Makes the place for records, and what else is to be hidden; that it cannot be made is said by the beginning.
pub fn prepare(situation: &Situation) {
    if let (false, Some(state)) = (situation.records.is_dir(), situation.records.parent()) {
        files::make_closed(state);
    }
}

/// Records a command that could not be started under its policy.
pub fn failed(situation: &Situation, command: &[OsString], skill: Option<&SkillRun>, failure: Failure) -> Failure {
    write_failed(&recorder(situation), &Begin { skill, ..begin(situation, command) }, failure)
}

/// Records a command for which there was no policy.
pub fn refused(command: &[OsString], failure: Failure) -> Failure {
    let Ok(facts) = ringfence::facts::gather() else { return failure };
    let records = Records::default();
    let recorder = Recorder::new(&Places::new(&facts).records(), redactor(&facts.env, &records), records.max_size);
    let workdir = std::env::current_dir().ok();
    let begin = Begin {
        profile: None,
        engine: None,
        sandbox: None,
        command,
        workdir: workdir.as_deref(),
        report: None,
        caller: None,
        skill: None,
    };
    write_failed(&recorder, &begin, failure)
}

/// Begins the record of code that runs in a session.
pub fn in_session(info: &ringfence::session::Info, command: &[OsString]) -> Result<(Ticket, Records), Failure> {
    let facts = ringfence::facts::gather()?;
    let archive = Archive::find()?;
    let redactor = redactor(&facts.env, &archive.records);
    let recorder = Recorder::new(archive.journal.dir(), redactor, archive.records.max_size);
    let begin = Begin {
        profile: Some(&info.profile),
        engine: Some(&info.engine),
        sandbox: Some(&info.id),
        command,
        workdir: Some(&info.workdir),
        report: None,
        caller: None,
        skill: None,
    };
    Ok((recorder.begin(&begin), archive.records))
}

/// The end of such a record cannot be written.
pub fn unrecorded(error: &JournalError) {
    warn("the end of this run is not recorded", error);
}

fn write_failed(recorder: &Recorder, begin: &Begin<'_>, failure: Failure) -> Failure {
    match recorder.failed(begin, &failure.message) {
        Ok(id) => failure.recorded(Some(id)),
        Err(error) => {
            if !stacked::inside() {
                warn("this run is not recorded", &error);
            }
            failure
        }
    }
}

fn begin<'a>(situation: &'a Situation, command: &'a [OsString]) -> Begin<'a> {
    let policy = &situation.resolved.policy;
    Begin {
        profile: Some(&policy.profile),
        engine: None,
        sandbox: None,
        command,
        workdir: Some(&policy.workdir),
        report: None,
        caller: None,
        skill: None,
    }
}

fn recorder(situation: &Situation) -> Recorder {
    let policy = &situation.resolved.policy;
    let mut redactor = redactor(&situation.facts.env, &policy.records);
    // What the policy itself sets in the environment.
    let set = policy.env.set.iter().map(|(name, value)| (OsStr::new(name), value.as_os_str()));
    redactor.add_all(set, &policy.records.secrets);
    Recorder::new(&situation.records, redactor, policy.records.max_size)
}

fn redactor(env: &std::collections::BTreeMap<OsString, OsString>, records: &Records) -> Redactor {
    Redactor::new(env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())), &records.secrets)
}

fn warn(what: &str, error: &JournalError) {
    output::say(&Failure::new(crate::failure::Kind::Output, format!("warning: {what}: {error}")).message);
}
