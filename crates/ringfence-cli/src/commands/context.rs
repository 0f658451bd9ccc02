//! `ringfence code --session` and `ringfence context`: code in interpreters that stay in a session.

use std::ffi::OsString;
use std::process::ExitCode;

use ringfence::code::{Code, CodeResult, Context, Contexts};
use ringfence::policy::limits::parse_duration;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{self, PolicyFlags};
use crate::commands::code::Room;
use crate::commands::session::{open, within};
use crate::failure::{Failure, Kind};
use crate::output;

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
        let note = crate::host::here()?.note(&info, &command)?;
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
