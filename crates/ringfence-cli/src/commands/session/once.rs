//! `ringfence run` on an engine of containers: a session of one command.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::sync::Mutex;

use ringfence::engines::docker::{self, images::Progress};
use ringfence::policy::policy::Root;
use ringfence::records::Caller;
use ringfence::session::{Create, Exec, Session};
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
        create.records(situation.records.clone())
    });
    let carried = !args.json && terminal::at_both_ends();
    // Taken over before the command runs, so that none is lost.
    let signals = if carried { shell::take_signals()? } else { exec::take_signals()? };
    super::within(async |sessions| {
        let made = match create {
            Ok(create) => sessions.create_owned(create).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        let session = made.map_err(|failure| record::failed(situation, &command, None, failure))?;
        let run = async |session: &Session| {
            if !policy.caches.names.is_empty() {
                super::say_caches(session).await?;
            }
            let exec = Exec::new(command).caller(Caller::of_this_process());
            // Said by name: a session's own limit leaves terminals out.
            let exec = policy.limits.timeout.map_or(exec.clone(), |limit| exec.timeout(limit));
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
            let output = execution.output().await;
            let outcome = output.outcome.clone();
            let summary = Summary::of_session(output, session.id(), &id, record);
            output::json(&summary.under(Engine::Docker, &policy.profile, report))?;
            Ok(outcome)
        };
        sessions.use_up(session, run).await
    })
}

/// Pulls the image of a policy when it is not here, with a bar for a person.
pub fn fetch_image(situation: &Situation) -> Result<(), Failure> {
    let Root::Image(name) = &situation.resolved.policy.root else { return Ok(()) };
    let person = std::io::stderr().is_terminal();
    let bar = Mutex::new(Bar::default());
    let progress = |progress: Progress| {
        if let Ok(mut bar) = bar.lock()
            && person
            && let Some(line) = bar.next(progress)
        {
            output::prompt(&format!("\r\x1b[K{}", output::printable(&line)));
        }
    };
    let found = docker::find_image(&situation.facts, name, &progress);
    if bar.lock().is_ok_and(|bar| !bar.shown.is_empty()) {
        output::prompt("\r\x1b[K");
    }
    found?;
    Ok(())
}

/// How far a pull has come, over all layers.
#[derive(Default)]
struct Bar {
    /// Bytes so far and of how many, by layer.
    layers: BTreeMap<String, (u64, u64)>,
    shown: String,
}

impl Bar {
    /// What is to be shown now, when that is something else.
    fn next(&mut self, progress: Progress) -> Option<String> {
        const CELLS: u64 = 24;
        if let (Some(layer), Some((done, all))) = (progress.layer, progress.bytes) {
            let of = self.layers.entry(layer).or_default();
            // After it was fetched it is unpacked, which counts from the beginning.
            *of = (of.0.max(done), all);
        }
        let sum = self.layers.values().fold((0u64, 0u64), |sum, of| (sum.0 + of.0.min(of.1), sum.1 + of.1));
        let part = |of: u64| (sum.0 * of).checked_div(sum.1).unwrap_or(0);
        let (full, free) = (part(CELLS), CELLS - part(CELLS));
        let bar = format!("[{}{}] {:>3} %", "#".repeat(full as usize), "-".repeat(free as usize), part(100));
        let line = format!("{bar} {}", progress.status);
        (line != self.shown).then(|| {
            self.shown.clone_from(&line);
            line
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_over_all_layers() {
        let mut bar = Bar::default();
        let mut say = |layer: &str, status: &str, bytes| {
            bar.next(Progress { layer: Some(layer.to_owned()), status: status.to_owned(), bytes })
        };
        assert_eq!(say("a", "Waiting", None).unwrap(), "[------------------------]   0 % Waiting");
        assert_eq!(say("a", "Downloading", Some((50, 100))).unwrap(), "[############------------]  50 % Downloading");
        assert_eq!(say("b", "Downloading", Some((0, 100))).unwrap(), "[######------------------]  25 % Downloading");
        assert_eq!(say("b", "Downloading", Some((0, 100))), None);
        say("a", "Downloading", Some((100, 100)));
        assert_eq!(say("a", "Extracting", Some((1, 100))).unwrap(), "[############------------]  50 % Extracting");
    }
}
