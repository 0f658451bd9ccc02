//! `ringfence run` on an engine of containers: a session of one command.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::sync::Mutex;

use ringfence::engines::docker::{self, images::Progress};
use ringfence::policy::policy::Root;
use ringfence::session::{Create, Exec};
use ringfence::{Engine, Outcome, Report};

use super::super::run::Summary;
use super::{exec, shell};
use crate::args::Run;
use crate::companions::terminal;
use crate::failure::Failure;
use crate::output;
use crate::record;
use crate::situation::Situation;

/// Runs a command in a session of its own, which ends with it and which writes its record.
pub fn once(args: &Run, situation: &Situation, command: Vec<OsString>, report: &Report) -> Result<Outcome, Failure> {
    let policy = &situation.resolved.policy;
    let create = fetch_image(situation).map(|()| {
        let choice = situation.resolved.engine;
        let create = Create::new(policy.clone(), situation.facts.clone()).choice(choice);
        create.idle(None).life(None).records(situation.records.clone())
    });
    let carried = !args.json && terminal::at_both_ends();
    // Taken over before the command runs, so that none is lost.
    let signals = if carried { shell::take_signals()? } else { exec::take_signals()? };
    super::within(async |sessions| {
        let made = match create {
            Ok(create) => sessions.create(create).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        let session = made.map_err(|failure| record::failed(situation, &command, None, failure))?;
        let run = async {
            let exec = Exec::new(command);
            // Said by name: a session's own limit leaves terminals out.
            let exec = policy.limits.timeout.map_or(exec.clone(), |limit| exec.timeout(limit));
            if carried {
                return shell::carry(session.exec(exec.terminal(shell::size())).await?, signals).await;
            }
            let execution = session.exec(exec.stdin(true)).await?;
            tokio::spawn(exec::pass_signals(signals.watch()?, execution.controls()));
            tokio::spawn(exec::pass_stdin(execution.controls()));
            if !args.json {
                return exec::follow(execution).await;
            }
            let (id, record) = (execution.id().to_owned(), execution.record().map(str::to_owned));
            let output = execution.output().await;
            let outcome = output.outcome.clone();
            let summary = Summary::of_session(output, session.id(), &id, record);
            output::json(&summary.under(Engine::Docker, &policy.profile, report))?;
            Ok(outcome)
        };
        let ended = run.await;
        let removed = sessions.remove(session.id()).await;
        let outcome = ended?;
        removed?;
        Ok(outcome)
    })
}

/// Pulls the image of a policy when it is not here, with a line about it for a person.
pub fn fetch_image(situation: &Situation) -> Result<(), Failure> {
    let Root::Image(name) = &situation.resolved.policy.root else { return Ok(()) };
    let person = std::io::stderr().is_terminal();
    let last = Mutex::new(String::new());
    let progress = |progress: Progress| {
        let line = match (progress.layer, progress.bytes) {
            (Some(layer), Some((done, all))) if all > 0 => {
                format!("{layer}: {} {} %", progress.status, done * 100 / all)
            }
            (Some(layer), _) => format!("{layer}: {}", progress.status),
            (None, _) => progress.status,
        };
        if let Ok(mut last) = last.lock()
            && person
            && *last != line
        {
            output::prompt(&format!("\r\x1b[K{}", output::printable(&line)));
            *last = line;
        }
    };
    let found = docker::find_image(&situation.facts, name, &progress);
    if last.lock().is_ok_and(|last| !last.is_empty()) {
        output::prompt("\r\x1b[K");
    }
    found?;
    Ok(())
}
