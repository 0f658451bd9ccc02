//! What recording takes of a run's time: a beginning with a report of the usual length, and an end.
//!
//!     cargo run --release -p ringfence --example record_cost [DIR]
//!
//! Prints the median and the 99th percentile of 10,000 executions, in microseconds. A run may spend 100 on it.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use ringfence::policy::Guarantee;
use ringfence::records::{Begin, End, Recorder, Redactor};
use ringfence::report::{Answer, Report, State};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = std::env::temp_dir().join(format!("ringfence-record-cost-{}", std::process::id()));
    let dir = std::env::args_os().nth(1).map_or(scratch, Into::into);
    let by = "what enforces it, in about as many words as it takes".to_owned();
    let answer = |id: &Guarantee| Answer { id: *id, state: State::Enforced, by: by.clone() };
    let report = Report { engine: "native".into(), guarantees: Guarantee::ALL.iter().map(answer).collect() };
    let command: Vec<OsString> = ["cargo", "test", "--workspace", "--no-fail-fast"].map(OsString::from).to_vec();
    let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..10_000 {
        let started = Instant::now();
        let pairs = env.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        let recorder = Recorder::new(&dir, Redactor::new(pairs, &[]), Some(64 << 20));
        let workdir = Some(dir.as_path());
        let begin = Begin {
            profile: Some("agent"),
            engine: Some("native"),
            sandbox: None,
            command: &command,
            workdir,
            report: Some(&report),
            caller: None,
            skill: None,
        };
        recorder.begin(&begin).end(&End::failed("it did not start"))?;
        times.push(started.elapsed());
    }
    times.sort();
    println!("median {:.1} µs, 99th percentile {:.1} µs", micros(times[5_000]), micros(times[9_900]));
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
