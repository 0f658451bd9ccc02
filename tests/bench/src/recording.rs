//! What recording takes of an execution's time: a beginning with a report of the usual length, and an end.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Instant;

use ringfence::policy::Guarantee;
use ringfence::records::{Begin, End, Recorder, Redactor};
use ringfence::report::{Answer, Report, State};
use serde::{Deserialize, Serialize};

use crate::measure::Failure;

/// Microseconds of one execution. It may spend 100.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Recording {
    pub executions: usize,
    pub median_us: f64,
    /// The 99th percentile.
    pub worst_us: f64,
}

/// Records executions in a directory that is not there yet, and not afterwards.
pub fn measure(dir: &Path, executions: usize) -> Result<Recording, Failure> {
    let by = "what enforces it, in about as many words as it takes".to_owned();
    let answer = |id: &Guarantee| Answer { id: *id, state: State::Enforced, by: by.clone() };
    let guarantees = Guarantee::ALL.iter().map(answer).collect();
    let report = Report { engine: "native".into(), guarantees, devices: Vec::new() };
    let command: Vec<OsString> = ["cargo", "test", "--workspace", "--no-fail-fast"].map(OsString::from).to_vec();
    let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut times = Vec::with_capacity(executions);
    for _ in 0..executions {
        let started = Instant::now();
        // As a run does it, which has a recorder of its own; a session keeps one.
        let pairs = env.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        let recorder = Recorder::new(dir, Redactor::new(pairs, &[]), Some(64 << 20));
        let ticket = recorder.begin(&Begin {
            profile: Some("agent"),
            engine: Some("native"),
            sandbox: None,
            command: &command,
            workdir: Some(dir),
            report: Some(&report),
            caller: None,
            skill: None,
        });
        ticket.end(&End::failed("it did not start")).map_err(|error| error.to_string())?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    std::fs::remove_dir_all(dir).map_err(|error| format!("cannot remove `{}`: {error}", dir.display()))?;
    times.sort_by(f64::total_cmp);
    let at = |hundredth: usize| times.get(times.len() * hundredth / 100).copied().unwrap_or_default();
    Ok(Recording { executions, median_us: at(50), worst_us: at(99) })
}
