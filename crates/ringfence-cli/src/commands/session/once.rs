//! `ringfence run` on an engine without one-shot commands: a session of one command.

use std::ffi::OsString;

use ringfence::session::{Exec, Session};
use ringfence::{EngineRef, Outcome, Report, Sandbox};

use super::super::run::Summary;
use super::{exec, shell};
use crate::args::Run;
use crate::companions::terminal;
use crate::failure::Failure;
use crate::output;

/// Runs a command in a session of its own, which ends with it and which writes its record.
pub fn once(
    args: &Run,
    sandbox: &Sandbox,
    command: Vec<OsString>,
    engine: EngineRef,
    report: &Report,
) -> Result<Outcome, Failure> {
    let policy = sandbox.policy();
    let carried = !args.json && terminal::at_both_ends();
    // Taken over before the command runs, so that none is lost.
    let signals = if carried { shell::take_signals()? } else { exec::take_signals()? };
    super::within(async |sessions| {
        let session = sandbox.guest_session(&sessions, &command).await?;
        let run = async |session: &Session| {
            if !policy.caches.names.is_empty() {
                super::say_caches(session).await?;
            }
            let exec = sandbox.in_guest(Exec::new(command));
            let signals = signals.watch()?;
            if carried {
                return shell::carry(session.exec(exec.terminal(shell::size())).await?, signals).await;
            }
            let execution = session.exec(exec.stdin(true)).await?;
            tokio::spawn(exec::pass_signals(signals, execution.controls()));
            tokio::spawn(exec::pass_stdin(execution.controls()));
            if !args.json {
                return exec::follow(execution).await;
            }
            let (id, record) = (execution.id().to_owned(), execution.record().map(str::to_owned));
            let output = execution.output().await?;
            let outcome = output.outcome.clone();
            let summary = Summary::of_session(output, session.id(), &id, record);
            output::json(&summary.under(engine, &policy.profile, report))?;
            Ok(outcome)
        };
        sessions.use_up(session, run).await
    })
}
