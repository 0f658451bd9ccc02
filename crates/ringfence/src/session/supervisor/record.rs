//! Records of a session's executions: begun before the guest has answered, or before it is asked where nothing may run
//! without one; ended when nobody waits for it any more.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use ringfence_policy::facts::Facts;
use ringfence_policy::limits::format_duration;
use ringfence_policy::plan::Plan;
use serde::{Deserialize, Serialize};

use super::super::error::SessionError;
use super::super::exec::outcome;
use super::super::info::State;
use super::super::protocol::{ExecAsk, Refusal};
use super::Supervisor;
use super::client::Client;
use super::executions::Execution;
use crate::records::redact::plain;
use crate::records::{Begin, Caller, End, JournalError, Recorder, Redactor, Seen};

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

/// Kept of the name of a program.
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
    fn recorder_for(&mut self, token: u64, client: Option<&Client>, ask: &ExecAsk) -> Recorder {
        if let Some(last) = self.last.as_ref().filter(|last| last.client == token && last.env == ask.env) {
            return last.recorder.clone();
        }
        let variables = client.map_or(&[][..], |client| &client.variables);
        let entries: Vec<Vec<u8>> = variables.iter().chain(&ask.env).cloned().collect();
        let recorder = self.recorder_without(&entries);
        self.last = Some(Last { client: token, env: ask.env.clone(), recorder: recorder.clone() });
        recorder
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
fn words(ask: &ExecAsk) -> Vec<OsString> {
    ask.argv.iter().map(|word| OsString::from_vec(word.clone())).collect()
}

fn pairs<'a>(
    entries: impl Iterator<Item = (&'a OsString, &'a OsString)>,
) -> impl Iterator<Item = (&'a OsStr, &'a OsStr)> {
    entries.map(|(name, value)| (name.as_os_str(), value.as_os_str()))
}

impl Supervisor {
    /// Begins the record of an execution. That it cannot be written stops nothing, unless the policy says so.
    pub(super) fn record(&mut self, execution: &mut Execution, ask: &ExecAsk, client: u64) -> Result<(), Refusal> {
        let caller = self.caller(ask, client);
        let Some(records) = &mut self.records else { return Ok(()) };
        let command: Vec<OsString> = match &execution.context {
            // How an interpreter is started says nothing to anybody.
            Some(context) => std::iter::once("context").chain(context.split('/')).map(OsString::from).collect(),
            None => words(ask),
        };
        let ticket = records.recorder_for(client, self.clients.get(&client), ask).begin(&Begin {
            profile: Some(&self.info.profile),
            engine: Some(&self.info.engine),
            sandbox: Some(&self.info.id),
            command: &command,
            workdir: Some(&self.info.workdir),
            report: Some(&self.report),
            caller: caller.as_ref(),
            skill: None,
        });
        match ticket.trouble() {
            Some(trouble) if records.wanted.strict => return Err(Refusal::NotRecorded(trouble.to_string())),
            Some(trouble) => {
                if !std::mem::replace(&mut records.said, true) {
                    execution.trouble = Some(trouble.to_string());
                }
                self.has_a_gap(trouble);
            }
            None => {
                // The next trouble is another one.
                records.said = false;
                execution.record = Some(ticket.id().to_owned());
            }
        }
        execution.ticket = Some(ticket);
        Ok(())
    }

    /// A client has told its environment.
    pub(super) fn introduced(&mut self, token: u64, variables: Vec<Vec<u8>>) {
        if let (Some(client), Some(records)) = (self.clients.get_mut(&token), &mut self.records) {
            client.variables = variables;
            records.last = None;
        }
    }

    /// Whom a command is for: what its client says, as far as that is nobody else's.
    fn caller(&self, ask: &ExecAsk, client: u64) -> Option<Caller> {
        let client = self.clients.get(&client).map(|client| &client.caller)?;
        let said = ask.caller.as_ref().map(|said| Caller {
            uid: client.uid,
            pid: said.pid,
            program: said.program.as_ref().map(|name| plain(&name.chars().take(PROGRAM).collect::<String>())),
        });
        Some(said.unwrap_or_else(|| client.clone()))
    }

    /// Records a command that was not even tried.
    pub(super) fn record_refused(&mut self, ask: &ExecAsk, client: u64, refusal: &Refusal) {
        let caller = self.caller(ask, client);
        let Some(records) = &mut self.records else { return };
        let error = match refusal {
            Refusal::TimeoutAboveCeiling { ceiling_ms } => SessionError::TimeoutAboveCeiling {
                asked: format_duration(Duration::from_millis(ask.timeout_ms.unwrap_or_default())),
                ceiling: format_duration(Duration::from_millis(*ceiling_ms)),
            },
            other => other.clone().into_error(&self.info.id),
        };
        let begin = Begin {
            profile: Some(&self.info.profile),
            engine: Some(&self.info.engine),
            sandbox: Some(&self.info.id),
            command: &words(ask),
            workdir: Some(&self.info.workdir),
            report: Some(&self.report),
            caller: caller.as_ref(),
            skill: None,
        };
        let written = records.recorder_for(client, self.clients.get(&client), ask).failed(&begin, &error.to_string());
        if let Err(trouble) = written {
            self.has_a_gap(&trouble);
        }
    }

    /// Not all of this session is recorded: the report says so from now on.
    fn has_a_gap(&mut self, trouble: &JournalError) {
        let before = self.report.clone();
        self.report.recorded(Some(trouble));
        // What is kept of one that has ended says so, and stays.
        if self.report != before && self.info.state == State::Live {
            // Whoever asks the session itself is told all the same.
            let _ = self.place.keep(&self.kept());
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
            let (Some(ticket), Some(finished)) = (execution.ticket.take(), &execution.finished) else { continue };
            let seen = execution.log.each_ref().map(|log| match output {
                // Its client went before it had said how much it was.
                _ if execution.told == Some(false) => Seen::Nothing,
                true => Seen::Output(log),
                false => Seen::Bytes(log.total()),
            });
            // This one is found without an end by the next look at the records.
            if let Err(trouble) = ticket.end(&End::of(&outcome(finished), seen)) {
                self.has_a_gap(&trouble);
            }
        }
        for (ticket, step, errno) in std::mem::take(&mut self.unstarted) {
            let error = std::io::Error::from_raw_os_error(errno.clamp(1, 4095));
            if let Err(trouble) = ticket.end(&End::failed(&format!("cannot start it ({step:?}): {error}"))) {
                self.has_a_gap(&trouble);
            }
        }
        self.executions.trim();
    }
}
