//! `ringfence code --session` and `ringfence context`: code in interpreters that stay in a session.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::time::Duration;

use ringfence::code::{Code, CodeResult, Context, Contexts};
use ringfence::policy::limits::parse_duration;
use ringfence::policy::policy::Policy;
use ringfence::records::{End, Status, Ticket};
use ringfence::session::{Create, Info, Session};
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{self, PolicyFlags};
use crate::commands::code::{Room, captured, exit_code, reason, seen};
use crate::commands::session::{fetch_image, open, within};
use crate::failure::{Failure, Kind};
use crate::situation::Situation;
use crate::{output, record};

pub fn context(command: &args::Context) -> Result<ExitCode, Failure> {
    match command {
        args::Context::List { session, json } => within(async |sessions| {
            let contexts = Contexts::of(open(&sessions, session).await?).list().await?;
            if *json {
                output::json(&serde_json::json!({ "contexts": contexts }))?;
            } else {
                let head = ["NAME", "LANGUAGE", "EXECUTION"].map(str::to_owned);
                let row = |context: Context| [context.name, context.language, context.execution];
                let rows: Vec<_> = std::iter::once(head).chain(contexts.into_iter().map(row)).collect();
                output::data(&output::table(&rows))?;
            }
            Ok(ExitCode::SUCCESS)
        }),
        args::Context::Interrupt { session, name } => within(async |sessions| {
            Contexts::of(open(&sessions, session).await?).interrupt(name).await?;
            Ok(ExitCode::SUCCESS)
        }),
        args::Context::Restart { session, name } => within(async |sessions| {
            Contexts::of(open(&sessions, session).await?).restart(name).await?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}

/// Runs code in a session, and records it.
pub fn run(args: &args::Code, session: &str, code: &Code) -> Result<(CodeResult, Room), Failure> {
    if args.required.requirements.is_some() {
        let message = "a session has the packages that it was made with: --requirements cannot be said with --session";
        return Err(Failure::new(Kind::Usage, message).hint("ringfence session create --requirements FILE"));
    }
    let timeout = args.policy.timeout.as_deref().map(parse_duration).transpose();
    let timeout = timeout.map_err(|error| Failure::new(Kind::Usage, format!("--timeout: {error}")))?;
    if (PolicyFlags { timeout: None, ..args.policy.clone() }) != PolicyFlags::default() {
        let message = "a session has its policy: only --timeout can be said with --session";
        return Err(Failure::new(Kind::Usage, message));
    }
    let mut command: Vec<OsString> = vec!["code".into(), code.language.name.into(), args.source.clone().into()];
    if let Some(name) = &args.context {
        command.extend(["--context".into(), name.into()]);
    }
    within(async |sessions| {
        let live = open(&sessions, session).await?;
        let info = live.info().await?;
        let note = Note::begin(&info, &command)?;
        let room = Room { timeout: Room::below(timeout.or(info.timeout), info.timeout_ceiling), others: false };
        let contexts = Contexts::of(live);
        let ran = match &args.context {
            Some(name) => contexts.run(name, code, timeout, cancelled()?).await,
            None => contexts.once(&format!("once-{}", note.id()), code, timeout, cancelled()?).await,
        };
        match ran {
            Ok(mut result) => {
                result.id = note.id().to_owned();
                note.end(&result);
                Ok((result, room))
            }
            Err(error) => {
                let failure = Failure::from(error);
                note.failed(&failure.message);
                Err(failure)
            }
        }
    })
}

/// Runs code in a container of its own: a session with one context, which ends with it. Cancelled when `cancel` becomes
/// readable.
pub fn once(code: &Code, policy: Policy, situation: &Situation, cancel: BorrowedFd<'_>) -> Result<CodeResult, Failure> {
    fetch_image(situation)?;
    let timeout = policy.limits.timeout;
    let create = Create::new(policy, situation.facts.clone()).choice(situation.resolved.engine);
    // The caller records it.
    within(async |sessions| {
        let cancelled = cancelled_by(cancel)?;
        let run = async |session: &Session| Contexts::of(session.clone()).once("once", code, timeout, cancelled).await;
        Ok(sessions.once(create, run).await?)
    })
}

/// Ready when a descriptor becomes readable.
pub fn cancelled_by(cancel: BorrowedFd<'_>) -> Result<impl Future<Output = ()>, Failure> {
    let failed = |error| Failure::new(Kind::Engine, format!("cannot wait for the end: {error}"));
    // Waited for as a pipe is.
    let cancel = cancel.try_clone_to_owned().and_then(Receiver::from_owned_fd_unchecked).map_err(failed)?;
    // That it cannot be waited for any more is the end as well.
    Ok(async move { drop(cancel.readable().await) })
}

/// The record of code that runs in a session.
pub struct Note {
    ticket: Ticket,
    /// Whether output is recorded.
    keeps: bool,
}

impl Note {
    pub fn begin(session: &Info, command: &[OsString]) -> Result<Note, Failure> {
        let (ticket, kept) = record::in_session(session, command)?;
        Ok(Note { ticket, keeps: kept.output })
    }

    pub fn id(&self) -> &str {
        self.ticket.id()
    }

    pub fn end(self, result: &CodeResult) {
        let captures = captured(result);
        let seen = seen(&captures, self.keeps);
        let duration = Some(Duration::from_millis(result.usage.duration_ms));
        let (status, exit_code) = (Status::Exited, Some(i32::from(exit_code(result.status))));
        let reason = reason(result.status);
        write(self.ticket, &End { status, exit_code, reason, error: None, duration, seen, ..End::failed("") });
    }

    pub fn failed(self, why: &str) {
        write(self.ticket, &End::failed(why));
    }
}

fn write(ticket: Ticket, end: &End<'_>) {
    if let Err(error) = ticket.end(end) {
        record::unrecorded(&error);
    }
}

/// Ready when somebody wants the program to end.
fn cancelled() -> Result<impl Future<Output = ()>, Failure> {
    let listen =
        |kind| signal(kind).map_err(|error| Failure::new(Kind::Engine, format!("cannot take signals: {error}")));
    let (mut interrupt, mut terminate, mut hangup) =
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}
