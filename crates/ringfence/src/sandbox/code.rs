//! Code in boxes of its own, and the packages that it requires: installed, run and recorded.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ringfence_linux::sys::locked;
use rustix::process::{Resource, Rlimit};
use tokio::net::unix::pipe::Receiver;

use super::recorded::Entry;
use super::{Sandbox, SandboxError, execution};
use crate::capture::Capture;
use crate::code::requirements::{Built, Found, Installed, Requirements, Store};
use crate::code::{self, Code, CodeResult, Contexts, Language, Pools, Ran, Status};
use crate::host::Notice;
use crate::records::{self, Seen, SkillRun};
use crate::session::{Session, Sessions};
use crate::supervise::{Ended, Outcome, Reason};

impl Sandbox {
    /// Runs code in a box of its own and records it under this command line. What it requires is installed first where it
    /// is not there yet. `cancel` is asked when everything is prepared; what it gives cancels when it becomes readable.
    /// With `pools`, an interpreter that waits there is used.
    pub fn run_code<C: AsFd, E: From<SandboxError>>(
        &self,
        code: &Code,
        command: &[OsString],
        skill: Option<&SkillRun>,
        pools: Option<&Pools>,
        cancel: impl FnOnce() -> Result<C, E>,
    ) -> Result<CodeResult, E> {
        let failed = |error: SandboxError| E::from(self.fail(command, skill, error));
        let mut cancel = Some(cancel);
        let (mut asked, mut equipped) = (None, None);
        if let (Some(wanted), Some(cancel)) = (&code.requirements, cancel.take_if(|_| code.requirements.is_some())) {
            let cancel = cancel()?;
            let installed = self.install(code.language, wanted, cancel.as_fd()).map_err(failed)?;
            equipped = Some(Code { installed: Some(installed), ..code.clone() });
            asked = Some(Ok(cancel));
        }
        let code = equipped.as_ref().unwrap_or(code);
        let (lookup, resolved) = self.judge().map_err(|error| failed(error.into()))?;
        let prepared = code::prepare(&locked(&lookup), code, &resolved.policy, &self.facts, resolved.engine.clone());
        let prepared = prepared.map_err(|error| failed(error.into()))?;
        let (engine, strict, mut report) = (prepared.engine, prepared.plan.strict, prepared.report.clone());
        let entry = Entry::begin(self, command, skill, engine, strict, &mut report)?;
        let cancel = match asked.or_else(|| cancel.map(|cancel| cancel())) {
            Some(Ok(cancel)) => cancel,
            Some(Err(error)) => {
                entry.give_up("it was not begun");
                return Err(error);
            }
            None => return Err(entry.failed(SandboxError::Unwatched).into()),
        };
        let ran = match execution::runs_one_shot(engine) {
            true => {
                let (cancel, warm) = (Some(cancel.as_fd()), resolved.service.warm);
                let ran = match pools {
                    Some(pools) => pools.run(prepared, warm, &self.facts, cancel),
                    None => prepared.run(&self.facts, cancel),
                };
                ran.map_err(SandboxError::from)
            }
            false => self.code_in_guest(code, prepared.policy, cancel.as_fd()).map(seen_from_outside),
        };
        locked(&lookup).let_go();
        match ran {
            Ok(Ran { mut result, mut outcome, captures }) => {
                // An interpreter exits with 0 also when its code has failed: a record says how the code ended, and why.
                if outcome.ended == Ended::Exited(0) {
                    outcome.ended = Ended::Exited(i32::from(result.status.exit_code()));
                }
                outcome.reason = outcome.reason.or(result.status.reason());
                // The result has the id of its record.
                if let Some(id) = entry.end(&outcome, self.seen(&captures), &mut report) {
                    result.id = id;
                }
                Ok(result)
            }
            Err(error) => Err(entry.failed(error).into()),
        }
    }

    /// Records the result of a skill that ended before it began.
    pub fn not_begun(&self, mut result: CodeResult, command: &[OsString], skill: &SkillRun) -> CodeResult {
        if let Some(recorder) = self.recorder_of_all() {
            let ticket = recorder.begin(&records::Begin { skill: Some(skill), ..self.begins(command) });
            result.id = ticket.id().to_owned();
            Note { entry: Entry::of(ticket, &self.host), keeps: false }.end(&result);
        }
        result
    }

    /// What a record has of what was written: the output itself, or how much that was.
    fn seen<'a>(&self, captures: &'a [Capture; 2]) -> [Seen<'a>; 2] {
        seen(captures, self.resolved.service.records.output)
    }

    /// Runs code in a guest of its own: a session with one context, which ends with it.
    fn code_in_guest(
        &self,
        code: &Code,
        policy: ringfence_policy::Policy,
        cancel: BorrowedFd<'_>,
    ) -> Result<CodeResult, SandboxError> {
        self.fetch_image()?;
        let timeout = policy.limits.timeout;
        // The caller records it.
        let create = crate::session::Create { policy, records: None, ..self.create()? };
        self.within(async |sessions| {
            let cancelled = cancelled_by(cancel)?;
            let run = async |session: &Session| {
                let ran = Contexts::of(session.clone()).once("once", code, timeout, cancelled).await;
                ran.map_err(SandboxError::from)
            };
            sessions.once(create, run).await
        })
    }

    /// Packages for code under this policy: those that are there already, or installed now, which is recorded as every
    /// execution is. Cancelled when `cancel` becomes readable.
    pub fn install(
        &self,
        language: &'static Language,
        wanted: &Requirements,
        cancel: BorrowedFd<'_>,
    ) -> Result<Installed, SandboxError> {
        let (policy, engine) = (&self.resolved.policy, self.resolved.engine.clone());
        let store = Store::new(self.host.directories()?.requirements());
        self.fetch_image()?;
        let build = match store.find(language, wanted, policy, &self.facts, engine, Some(cancel))? {
            Found::Installed(installed) => return Ok(installed),
            Found::Missing(build) => build,
        };
        self.host.notice(Notice::Installing);
        let command: Vec<OsString> = build.command().to_vec();
        let (engine, strict, mut report) = (build.engine, build.plan.strict, build.report.clone());
        let entry = Entry::begin(self, &command, None, engine, strict, &mut report)?;
        let built = match execution::runs_one_shot(engine) {
            true => build.run(&self.facts, Some(cancel)).map_err(SandboxError::from),
            false => self.within(async |sessions| {
                let cancelled = cancelled_by(cancel)?;
                Ok(build.run_in(&sessions, &self.facts, cancelled).await?)
            }),
        };
        match built {
            Ok(Built { installed, outcome, captures }) => {
                entry.end(&outcome, self.seen(&captures), &mut report);
                Ok(installed?)
            }
            Err(error) => Err(entry.failed(error)),
        }
    }

    /// Does something with the sessions of the host, on a runtime of this thread alone.
    fn within<T>(&self, act: impl AsyncFnOnce(Sessions) -> Result<T, SandboxError>) -> Result<T, SandboxError> {
        let sessions = self.host.sessions()?;
        raise_descriptors();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(SandboxError::Wait)?;
        let done = runtime.block_on(act(sessions));
        // A thread that still waits for something must not hold this one up.
        runtime.shutdown_background();
        done
    }
}

/// Descriptors on their way are counted for the user, what a box sends included, and held against this limit.
pub fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // With fewer it works as well, as long as they suffice.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Ready when a descriptor becomes readable.
fn cancelled_by(cancel: BorrowedFd<'_>) -> Result<impl Future<Output = ()>, SandboxError> {
    // Waited for as a pipe is.
    let cancel = cancel.try_clone_to_owned().and_then(Receiver::from_owned_fd_unchecked).map_err(SandboxError::Wait)?;
    // That it cannot be waited for any more is the end as well.
    Ok(async move { drop(cancel.readable().await) })
}

/// What a record is made of, from the result of code that ran in a guest.
fn seen_from_outside(result: CodeResult) -> Ran {
    let outcome = Outcome {
        ended: Ended::Exited(0),
        reason: None,
        duration: Duration::from_millis(result.usage.duration_ms),
        cpu: Duration::from_millis(result.usage.cpu_ms),
        peak_memory: result.usage.peak_memory,
        denied: Vec::new(),
    };
    Ran { captures: captured(&result), outcome, result }
}

/// What the code wrote, as far as a record keeps it.
fn captured(result: &CodeResult) -> [Capture; 2] {
    [&result.stdout, &result.stderr].map(|text| {
        let mut capture = records::capture();
        capture.push(text.as_bytes());
        capture
    })
}

fn seen(captures: &[Capture; 2], keeps: bool) -> [Seen<'_>; 2] {
    match keeps {
        true => captures.each_ref().map(Seen::Output),
        false => captures.each_ref().map(|capture| Seen::Bytes(capture.total())),
    }
}

impl Status {
    /// The exit code of `ringfence code`, and of its record.
    pub fn exit_code(self) -> u8 {
        match self {
            Status::Ok => 0,
            Status::Error | Status::Denied => 1,
            Status::Timeout => 124,
            Status::SandboxError => 125,
            Status::Cancelled => 130,
            Status::Memory => 137,
        }
    }

    /// What ended code of this status, for a record.
    fn reason(self) -> Option<Reason> {
        match self {
            Status::Timeout => Some(Reason::Time),
            Status::Memory => Some(Reason::Memory),
            Status::Cancelled => Some(Reason::Cancelled),
            _ => None,
        }
    }
}

/// The record of code that runs in a session.
#[derive(Debug)]
pub struct Note {
    entry: Entry,
    /// Whether output is recorded.
    keeps: bool,
}

impl crate::Host {
    /// Begins the record of code that runs in a session.
    pub fn note(&self, session: &crate::session::Info, command: &[OsString]) -> Result<Note, SandboxError> {
        let (entry, keeps) = self.begin_in(session, command)?;
        Ok(Note { entry, keeps })
    }
}

impl Note {
    /// The id of the record.
    pub fn id(&self) -> &str {
        self.entry.ticket.as_ref().map_or("", records::Ticket::id)
    }

    /// The code has ended.
    pub fn end(self, result: &CodeResult) {
        let captures = captured(result);
        let end = records::End {
            status: records::Status::Exited,
            exit_code: Some(i32::from(result.status.exit_code())),
            reason: result.status.reason(),
            error: None,
            duration: Some(Duration::from_millis(result.usage.duration_ms)),
            seen: seen(&captures, self.keeps),
            ..records::End::failed("")
        };
        self.entry.close(&end, |_| {});
    }

    /// It could not be run, for this reason.
    pub fn failed(self, why: &str) {
        self.entry.give_up(why);
    }
}
