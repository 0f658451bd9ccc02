//! Records of a session's executions: begun before the guest has answered, or before it is asked where nothing may run
//! without one; ended when nobody waits for it any more.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use ringfence_guest::message::Step;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::format_duration;
use ringfence_policy::plan::Plan;
use serde::{Deserialize, Serialize};

use super::super::error::SessionError;
use super::super::exec::outcome;
use super::super::info::State;
use super::super::protocol::{ExecRequest, Refusal};
use super::Supervisor;
use super::client::Client;
use super::executions::{Execution, Recording};
use super::signals::LATE;
use super::streams::To;
use super::worker::{Done, Job};
use crate::records::redact::plain;
use crate::records::{Begin, Caller, End, JournalError, Recorder, Redactor, Seen, Ticket};

/// What is to be recorded, and where.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Wanted {
    #[serde(with = "ringfence_policy::wire::path")]
    pub dir: PathBuf,
    pub policy: ringfence_policy::records::Records,
    /// Nothing runs without a record.
    pub strict: bool,
}

/// Writes them.
#[derive(Debug)]
pub struct Records {
    recorder: Recorder,
    redactor: Redactor,
    wanted: Wanted,
    /// That one could not be written was told, and none was written since.
    said: bool,
    last: Option<Last>,
}

/// Who asked last, with which variables for the command, and the recorder that was made for that.
#[derive(Debug)]
struct Last {
    client: u64,
    env: Vec<Vec<u8>>,
    recorder: Recorder,
}

/// StateFile of the name of a program.
const PROGRAM: usize = 64;

impl Records {
    pub fn new(wanted: Wanted, facts: &Facts, plan: &Plan) -> Records {
        let secrets = &wanted.policy.secrets;
        let mut redactor = Redactor::new(pairs(facts.env.iter()), secrets);
        redactor.add_all(pairs(plan.env.iter().map(|(name, value)| (name, value))), secrets);
        let recorder = Recorder::new(&wanted.dir, redactor.clone(), wanted.policy.max_size);
        Records { recorder, redactor, wanted, said: false, last: None }
    }

    /// One that keeps out what is secret to this client, and what the command gets. Looked up once for most: clients ask
    /// again and again with the same environment.
    fn recorder_for(&mut self, token: u64, client: Option<&Client>, ask: &ExecRequest) -> Recorder {
        if let Some(last) = self.last.as_ref().filter(|last| last.client == token && last.env == ask.env) {
            return last.recorder.clone();
        }
        let variables = client.map_or(&[][..], |client| &client.variables);
        let entries: Vec<Vec<u8>> = variables.iter().chain(&ask.env).cloned().collect();
        let recorder = self.recorder_without(&entries);
        self.last = Some(Last { client: token, env: ask.env.clone(), recorder: recorder.clone() });
        recorder
    }

    /// Why nothing more is recorded while so much waits already.
    fn is_behind(&self) -> JournalError {
        let source = io::Error::other("the disk does not keep up");
        JournalError::Write { path: self.wanted.dir.clone(), source }
    }

    /// One that keeps the secrets among these `NAME=value` entries out, too.
    fn recorder_without(&self, env: &[Vec<u8>]) -> Recorder {
        let split = |entry: &Vec<u8>| {
            let at = entry.iter().position(|b| *b == b'=').unwrap_or(entry.len());
            let value = entry.get(at + 1..).unwrap_or_default();
            (OsStr::from_bytes(&entry[..at]).to_owned(), OsStr::from_bytes(value).to_owned())
        };
        let entries: Vec<(OsString, OsString)> = env.iter().map(split).collect();
        let mut redactor = self.redactor.clone();
        redactor.add_all(pairs(entries.iter().map(|(name, value)| (name, value))), &self.wanted.policy.secrets);
        // Mostly they are known: those of whoever made the session.
        if redactor == self.redactor {
            return self.recorder.clone();
        }
        Recorder::new(&self.wanted.dir, redactor, self.wanted.policy.max_size)
    }
}

/// The command as it was asked for.
fn words(ask: &ExecRequest) -> Vec<OsString> {
    ask.argv.iter().map(|word| OsString::from_vec(word.clone())).collect()
}

fn pairs<'a>(
    entries: impl Iterator<Item = (&'a OsString, &'a OsString)>,
) -> impl Iterator<Item = (&'a OsStr, &'a OsStr)> {
    entries.map(|(name, value)| (name.as_os_str(), value.as_os_str()))
}

/// Why a command did not start, for its record.
pub fn not_started(step: Step, errno: i32) -> String {
    format!("cannot start it ({step:?}): {}", io::Error::from_raw_os_error(errno.clamp(1, 4095)))
}

impl Supervisor {
    /// Prepares the record of an execution, to be written by the worker; `None`: there is none. Where too much waits for the
    /// disk already, nothing more is recorded: that stops nothing, unless the policy says so.
    pub(super) fn record(
        &mut self,
        execution: &mut Execution,
        ask: &ExecRequest,
        client: u64,
    ) -> Result<Option<Box<Ticket>>, Refusal> {
        let Some(records) = &self.records else { return Ok(None) };
        if self.worker.is_full() {
            let trouble = records.is_behind();
            if records.wanted.strict {
                return Err(Refusal::NotRecorded(trouble.to_string()));
            }
            self.is_missing(execution, &trouble);
            return Ok(None);
        }
        let command: Vec<OsString> = match &execution.context {
            // How an interpreter is started says nothing to anybody.
            Some(context) => std::iter::once("context").chain(context.split('/')).map(OsString::from).collect(),
            None => words(ask),
        };
        let Some((recorder, ticket)) = self.prepare_record(ask, client, &command) else { return Ok(None) };
        (execution.recorder, execution.record) = (Some(recorder), Some(ticket.id().to_owned()));
        Ok(Some(Box::new(ticket)))
    }

    /// What a record begins with, and what it ends with.
    fn prepare_record(&mut self, ask: &ExecRequest, client: u64, command: &[OsString]) -> Option<(Recorder, Ticket)> {
        let recorder = self.records.as_mut()?.recorder_for(client, self.clients.all.get(&client), ask);
        let ticket = recorder.prepare(&Begin {
            profile: Some(&self.info.profile),
            engine: Some(&self.info.engine),
            sandbox: Some(&self.info.id),
            command,
            workdir: Some(&self.info.workdir),
            report: Some(&self.report),
            caller: self.caller(ask, client).as_ref(),
            skill: None,
        });
        Some((recorder, ticket))
    }

    /// The worker has done something.
    pub(super) fn worker_ready(&mut self) {
        for done in self.worker.take() {
            match done {
                Done::Begun { execution, trouble } => self.record_begun(execution, trouble),
                Done::Written(Ok(())) => {}
                // This one is found without an end by the next look at the records.
                Done::Written(Err(trouble)) => self.has_a_gap(&trouble),
                // What is kept of one that has ended stays.
                Done::Kept if self.worker.kept() && self.info.state == State::Live => self.worker.keep(self.kept()),
                Done::Kept | Done::Closed => {}
                Done::Looked(looked) => self.looked_for_lock(looked),
            }
        }
    }

    /// The beginning of a record was written, or could not be: what waited for it goes on.
    fn record_begun(&mut self, id: u64, trouble: Option<JournalError>) {
        let Some(mut execution) = self.executions.all.remove(&id) else { return };
        let waited = std::mem::take(&mut execution.recording);
        match (&trouble, &mut self.records) {
            (Some(_), _) if matches!(waited, Recording::Before(_)) => {}
            (Some(trouble), _) => self.is_missing(&mut execution, trouble),
            // The next trouble is another one.
            (None, Some(records)) => records.said = false,
            (None, None) => {}
        }
        self.executions.all.insert(id, execution);
        match (waited, trouble) {
            (Recording::Before(_), Some(trouble)) => {
                self.give_up(id, &Refusal::NotRecorded(trouble.to_string()));
            }
            (Recording::Before(command), None) => {
                let (request, pipes) = *command;
                let opened = self.guest.open(To::Execution(id), &request, pipes);
                self.tree.make_room(&self.plan.limits, self.guest.commands());
                match opened {
                    Ok(stream) => {
                        if let Some(execution) = self.executions.all.get_mut(&id) {
                            execution.starts(stream);
                        }
                        self.pump_input(id);
                    }
                    Err(refusal) => self.give_up(id, &refusal),
                }
            }
            (Recording::During, _) => self.announce(id),
            (Recording::Settled, _) => {}
        }
    }

    /// The beginning of a record takes long: whoever waits for the command is told so.
    pub(super) fn record_is_late(&mut self, id: u64) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        if self.records.as_mut().is_some_and(|records| !std::mem::replace(&mut records.said, true)) {
            execution.trouble = Some(LATE.to_owned());
        }
        self.announce(id);
    }

    /// An execution has no record. That is told once, until there is one again.
    fn is_missing(&mut self, execution: &mut Execution, trouble: &JournalError) {
        execution.record = None;
        if self.records.as_mut().is_some_and(|records| !std::mem::replace(&mut records.said, true)) {
            execution.trouble = Some(trouble.to_string());
        }
        self.has_a_gap(trouble);
    }

    /// A client has told its environment.
    pub(super) fn introduced(&mut self, token: u64, variables: Vec<Vec<u8>>) {
        if let (Some(client), Some(records)) = (self.clients.all.get_mut(&token), &mut self.records) {
            client.variables = variables;
            records.last = None;
        }
    }

    /// Whom a command is for: what its client says, as far as that is nobody else's.
    fn caller(&self, ask: &ExecRequest, client: u64) -> Option<Caller> {
        let client = self.clients.all.get(&client).map(|client| &client.caller)?;
        let said = ask.caller.as_ref().map(|said| Caller {
            uid: client.uid,
            pid: said.pid,
            program: said.program.as_ref().map(|name| plain(&name.chars().take(PROGRAM).collect::<String>())),
        });
        Some(said.unwrap_or_else(|| client.clone()))
    }

    /// Records a command that was not even tried.
    pub(super) fn record_refused(&mut self, ask: &ExecRequest, client: u64, refusal: &Refusal) {
        let error = match refusal {
            Refusal::TimeoutAboveCeiling { ceiling_ms } => SessionError::TimeoutAboveCeiling {
                asked: format_duration(Duration::from_millis(ask.timeout_ms.unwrap_or_default())),
                ceiling: format_duration(Duration::from_millis(*ceiling_ms)),
            },
            other => other.clone().into_error(&self.info.id),
        };
        if let Some(records) = self.records.as_ref().filter(|_| self.worker.is_full()) {
            let trouble = records.is_behind();
            return self.has_a_gap(&trouble);
        }
        if let Some((recorder, ticket)) = self.prepare_record(ask, client, &words(ask)) {
            let ended = Box::new(recorder.ended(&End::failed(&error.to_string())));
            self.worker.give(Job::Refused { ticket: Box::new(ticket), ended });
        }
    }

    /// Not all of this session is recorded: the report says so from now on.
    fn has_a_gap(&mut self, trouble: &JournalError) {
        let before = self.report.clone();
        self.report.recorded(Some(trouble));
        // What is kept of one that has ended says so, and stays.
        if self.report != before && self.info.state == State::Live {
            self.worker.keep(self.kept());
        }
    }

    /// Whether what commands write is recorded.
    pub(super) fn records_output(&self) -> bool {
        self.records.as_ref().is_some_and(|records| records.wanted.policy.output)
    }

    /// Whether nothing may run without a record.
    pub(super) fn records_strictly(&self) -> bool {
        self.records.as_ref().is_some_and(|records| records.wanted.strict)
    }

    /// Writes how executions ended.
    pub(super) fn record_ends(&mut self) {
        let output = self.records_output();
        for id in std::mem::take(&mut self.ended) {
            let Some(execution) = self.executions.all.get_mut(&id) else { continue };
            let Some(finished) = &execution.finished else { continue };
            let Some(recorder) = execution.recorder.take() else { continue };
            let seen = execution.log.each_ref().map(|log| match output {
                // Its client went before it had said how much it was.
                _ if execution.told == Some(false) => Seen::Nothing,
                true => Seen::Output(log),
                false => Seen::Bytes(log.total()),
            });
            let ended = Box::new(recorder.ended(&End::of(&outcome(finished), seen)));
            self.worker.give(Job::End { execution: id, ended });
        }
        self.executions.trim();
    }

    /// Writes that a command did not start.
    pub(super) fn record_unstarted(&mut self, execution: &mut Execution, why: &str) {
        if let Some(recorder) = execution.recorder.take() {
            let ended = Box::new(recorder.ended(&End::failed(why)));
            self.worker.give(Job::End { execution: execution.id, ended });
        }
    }
}
