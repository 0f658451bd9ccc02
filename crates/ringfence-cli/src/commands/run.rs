//! `ringfence run`: from the command line to the command, and back to an exit code.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use ringfence::denials::Denial;
use ringfence::policy::facts::Facts;
use ringfence::policy::git;
use ringfence::policy::limits::{format_duration, format_size};
use ringfence::policy::plan::Plan;
use ringfence::sandbox::{Begun, Finished, Planned, runs_one_shot};
use ringfence::session::{Output, Tried};
use ringfence::{Capture, Ended, EngineError, EngineRef, Outcome, Reason, Report, Sandbox, StdioSpec, records};
use rustix::io::Errno;
use serde::Serialize;

use crate::args::Run;
use crate::companions::signals::Signals;
use crate::companions::tee::Tee;
use crate::companions::terminal::{self, Relay, Settings};
use crate::companions::through::Through;
use crate::companions::{hand_over, let_go};
use crate::failure::{Described, Failure, Kind};
use crate::host;
use crate::output;
use crate::report;

/// Runs it. With `--json`, a failure of Ringfence itself is a JSON object as well.
pub fn run(args: &Run) -> Result<ExitCode, Failure> {
    let result = prepare_and_run(args);
    if let (Err(failure), true) = (&result, args.json) {
        output::json(&Summary::failed(failure))?;
    }
    result
}

fn prepare_and_run(args: &Run) -> Result<ExitCode, Failure> {
    let sandbox = if args.dry_run { host::look(&args.policy)? } else { host::sandbox(&args.policy, &args.command)? };
    host::warn(&sandbox, args.verbose);
    let command = command(args, sandbox.facts());
    let planned = match sandbox.plan(&command) {
        Ok(planned) => planned,
        Err(error) if args.dry_run => return Err(error.into()),
        Err(error) => {
            let failure = elsewhere(Failure::from(error), args, &sandbox, &command);
            let record = sandbox.failed(&command, None, &failure.message);
            return Err(failure.recorded(record));
        }
    };
    for warning in &planned.plan.warnings {
        output::say(&format!("warning: {}", output::one_line(warning)));
    }
    if args.dry_run {
        return dry_run(args, &planned, &sandbox);
    }
    let (engine, profile) = (planned.engine, &sandbox.policy().profile);
    if args.verbose {
        output::say(&format!("ringfence: profile {profile}, engine {engine}"));
    }
    let started = file_clock();
    if !runs_one_shot(engine) {
        write_report(args, &planned.report)?;
        let outcome = super::session::once(args, &sandbox, command, engine, &planned.report)?;
        return Ok(close(&outcome, &planned.plan, &sandbox, started));
    }
    let begun = sandbox.begin(planned)?;
    // Before anything starts: what cannot be written must not end a command that did well.
    let begun = match write_report(args, begun.report()) {
        Ok(()) => begun,
        Err(failure) => return Err(given_up(begun, failure)),
    };
    let (finished, captures) = execute(args, begun, &sandbox)?;
    let Finished { outcome, report, record, plan, lost } = finished;
    lost.iter().for_each(|reason| output::say(&host::weakened(reason)));
    if !lost.is_empty() {
        write_report(args, &report)?;
    }
    if let Some(captures) = captures {
        output::json(&Summary::ended(&outcome, captures, engine, profile, &report, record))?;
    }
    let code = close(&outcome, &plan, &sandbox, started);
    // The process ends now, and all of this with it: thousands of small pieces need not be given back one by one.
    std::mem::forget((plan, report, outcome, sandbox));
    Ok(code)
}

/// With what helps where the program is not found.
fn elsewhere(failure: Failure, args: &Run, sandbox: &Sandbox, command: &[OsString]) -> Failure {
    let Some(name) = command.first().filter(|_| failure.kind == Kind::NotFound) else { return failure };
    if args.report == Some(None) {
        return failure.hint(format!("to write the report to a file: --report={}", Path::new(name).display()));
    }
    let path = sandbox.facts().env.get(std::ffi::OsStr::new("PATH"));
    let outside = path.iter().flat_map(std::env::split_paths).map(|dir| dir.join(name)).find(|file| file.is_file());
    match outside {
        Some(file) => failure.hint(format!(
            "it is `{}`, where the sandbox of profile `{}` does not look: show its directory with --ro, and call it by its path",
            file.display(),
            sandbox.policy().profile
        )),
        None => failure,
    }
}

/// It was not run. The failure, which knows its record.
fn given_up(begun: Begun, failure: Failure) -> Failure {
    let record = begun.give_up(&failure.message);
    failure.recorded(record)
}

/// What is to be said about a command that ended, and its exit code.
fn close(outcome: &Outcome, plan: &Plan, sandbox: &Sandbox, started: SystemTime) -> ExitCode {
    for line in denials(outcome, plan) {
        output::say(&line);
    }
    if let Some(note) = note(outcome, plan) {
        output::say(&note);
    }
    say_changed(sandbox.policy().workdir(), &sandbox.facts().home, started);
    ExitCode::from(exit_code(outcome))
}

/// The command, or the user's shell.
fn command(args: &Run, facts: &Facts) -> Vec<OsString> {
    if !args.command.is_empty() {
        return args.command.clone();
    }
    let shell = facts.env.get(std::ffi::OsStr::new("SHELL")).filter(|shell| {
        let path = Path::new(shell);
        path.is_absolute() && path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    });
    vec![shell.cloned().unwrap_or_else(|| "/bin/sh".into())]
}

fn dry_run(args: &Run, planned: &Planned, sandbox: &Sandbox) -> Result<ExitCode, Failure> {
    let steps = sandbox.describe(planned)?;
    let report = &planned.report;
    if args.json {
        let steps: Vec<&str> = steps.lines().collect();
        let (engine, profile) = (planned.engine.name(), &sandbox.policy().profile);
        output::json(
            &serde_json::json!({ "status": "planned", "engine": engine, "profile": profile, "steps": steps, "report": report }),
        )?;
    } else {
        // Names in it may be chosen in a sandbox.
        output::data(&steps)?;
        write_report(args, report)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Standard streams for the box, and whoever looks after them.
enum Beside {
    Relay(Relay),
    Tee(Tee),
    Through(Through),
}

/// Starts the box, and stays with it until it has ended. For `--json`, with stdout and stderr.
fn execute(args: &Run, begun: Begun, sandbox: &Sandbox) -> Result<(Finished, Option<[Capture; 2]>), Failure> {
    let records_output = sandbox.resolved().service.records.output;
    // Lives until the command has ended.
    let _settings = (!args.json && !terminal::at_both_ends()).then(Settings::remember);
    let made = streams(args, begun.plan(), records_output);
    let (beside, stdio) = match made {
        Ok(made) => made,
        Err(errno) => return Err(given_up(begun, EngineError::Stdio(errno).into())),
    };
    let started = begun.start(stdio)?;
    match beside {
        Beside::Relay(relay) => Ok((started.watch(relay, |relay| [relay.seen(), records::Seen::Nothing])?.0, None)),
        Beside::Tee(tee) => {
            let_go(!args.json);
            let (finished, tee) = started.watch(tee, |tee| {
                tee.captures().map(|capture| match records_output {
                    true => records::Seen::Output(capture),
                    false => records::Seen::Bytes(capture.total()),
                })
            })?;
            Ok((finished, args.json.then(|| tee.into_captures())))
        }
        Beside::Through(through) => {
            let_go(true);
            Ok((started.watch(through, |_| [records::Seen::Nothing; 2])?.0, None))
        }
    }
}

fn streams(args: &Run, plan: &Plan, records_output: bool) -> Result<(Beside, StdioSpec), Errno> {
    let signals = Signals::take(plan.limits.timeout)?;
    if !args.json && terminal::at_both_ends() {
        let (relay, spec) = Relay::open(signals, records_output.then(records::capture))?;
        return Ok((Beside::Relay(relay), spec));
    }
    let stdin = hand_over(rustix::stdio::stdin(), false)?;
    let (beside, [out, err]) = if args.json || records_output {
        let capture = if args.json { Capture::new(plan.limits.output) } else { records::capture() };
        let (tee, ends) = Tee::new(signals, &capture, !args.json)?;
        (Beside::Tee(tee), ends)
    } else {
        let ends = [hand_over(rustix::stdio::stdout(), true)?, hand_over(rustix::stdio::stderr(), true)?];
        (Beside::Through(Through::new(signals)), ends)
    };
    Ok((beside, StdioSpec::Files([stdin, out, err])))
}

fn write_report(args: &Run, report: &Report) -> Result<(), Failure> {
    let text = |json: bool| if json { report::json(report) } else { report::table(report) };
    match &args.report {
        None => Ok(()),
        // Part of the object on stdout already.
        Some(None) if args.json => Ok(()),
        Some(None) => {
            output::say(text(false).trim_end());
            Ok(())
        }
        // Where it lies, an earlier box may have put a link or a pipe.
        Some(Some(path)) => std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)
            .and_then(|mut file| file.write_all(text(args.json).as_bytes()))
            .map_err(|error| Failure::new(Kind::Output, format!("cannot write `{}`: {error}", path.display()))),
    }
}

/// The exit code of the program: the command's own, or why it was ended.
pub fn exit_code(outcome: &Outcome) -> u8 {
    match (outcome.reason, outcome.ended) {
        (Some(Reason::Lost), _) => 125,
        (Some(Reason::Time | Reason::CpuTime), _) => 124,
        (_, Ended::Exited(code)) => code as u8,
        (_, Ended::Signaled(signal)) => (128 + signal) as u8,
    }
}

/// What the policy refused, a line each, when that was traced; else where to find out, for a person at a terminal whose
/// command failed. A program that reads our stderr gets nothing that the command did not write.
fn denials(outcome: &Outcome, plan: &Plan) -> Vec<String> {
    // A signal was not the sandbox, and from 126 on the one who ended it has said why.
    let failed = matches!(outcome.ended, Ended::Exited(1..126)) && outcome.reason.is_none();
    let person = rustix::termios::isatty(rustix::stdio::stderr());
    if !plan.trace_denials && failed && person {
        return vec!["ringfence: if the sandbox was in the way, `--trace-denials` says where".to_owned()];
    }
    outcome.denied.iter().map(denial).collect()
}

/// One of them, for a person.
pub fn denial(denial: &Denial) -> String {
    let Denial { act, object, rule, grant } = denial;
    format!("ringfence: denied: {act} `{object}` ({rule}); {} allows it", crate::failure::grant(grant))
}

/// Now, by the clock that file systems stamp with: it runs a tick behind, so that what is changed from here on is not older.
pub fn file_clock() -> SystemTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    SystemTime::UNIX_EPOCH + Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u32)
}

/// Says what was left since then that git outside would go into: a `git status`, or a prompt, does what its configuration
/// says.
pub fn say_changed(workdir: &Path, home: &Path, since: SystemTime) {
    for line in git::changed_since(workdir, home, since).warnings() {
        output::say(&format!("ringfence: warning: {}", output::one_line(&line)));
    }
}

/// One sentence when a limit ended the command.
fn note(outcome: &Outcome, plan: &Plan) -> Option<String> {
    let limits = &plan.limits;
    let time = |limit| format_duration(limit);
    let text = match outcome.reason? {
        Reason::Time => {
            let after = limits.timeout.map_or_else(String::new, |limit| format!(" after {}", time(limit)));
            // Above the ceiling no flag goes.
            let ceiling = limits.timeout_ceiling.is_some() && limits.timeout == limits.timeout_ceiling;
            let more = if ceiling { super::code::CEILING } else { "--timeout" };
            format!("ended{after} (limit.time); {more} allows more")
        }
        Reason::CpuTime => {
            let after =
                limits.cpu_time.map_or_else(String::new, |limit| format!(" after {} of processor time", time(limit)));
            format!("ended{after} (limit.cpu); --cpu-time allows more")
        }
        Reason::Memory => {
            let size = limits.memory.map_or_else(String::new, |limit| format!(" at {}", format_size(limit)));
            format!("ended{size} of memory (limit.memory); --memory allows more")
        }
        Reason::Processes => {
            let count = limits.pids.map_or_else(String::new, |limit| format!(" more than {limit}"));
            format!("failed when it wanted{count} processes (limit.processes); --pids allows more")
        }
        Reason::Cancelled => "ended by force".to_owned(),
        Reason::Lost => "lost: its sandbox ended under it".to_owned(),
    };
    Some(format!("ringfence: {text}"))
}

/// Where in a session a command ran, or was to run.
#[derive(Debug, Serialize)]
struct InSession {
    /// `None` where there is no such session.
    session: Option<String>,
    /// `None` where it did not begin.
    execution: Option<String>,
}

/// What `--json` prints.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// The id of the record.
    record: Option<String>,
    /// `exited`, `signaled`, `lost` when its sandbox ended under it, or `failed` when Ringfence itself did.
    status: &'static str,
    exit_code: Option<i32>,
    signal: Option<i32>,
    reason: Option<Reason>,
    timed_out: bool,
    stdout: String,
    stderr: String,
    stdout_dropped: u64,
    stderr_dropped: u64,
    duration_ms: u64,
    cpu_ms: u64,
    peak_memory: u64,
    engine: Option<&'static str>,
    profile: Option<String>,
    /// Nothing of it outside of sessions.
    #[serde(flatten)]
    place: Option<InSession>,
    report: Option<Report>,
    denied: Vec<Denial>,
    error: Option<Described>,
}

impl Summary {
    pub fn failed(failure: &Failure) -> Summary {
        let (record, error) = (failure.record.clone(), Some(failure.describe()));
        Summary { record, status: "failed", error, ..Summary::default() }
    }

    /// How a command ended, without what it wrote and where it ran.
    fn of(outcome: &Outcome) -> Summary {
        let (status, exit_code, signal) = match outcome.ended {
            _ if outcome.reason == Some(Reason::Lost) => ("lost", None, None),
            Ended::Exited(code) => ("exited", Some(code), None),
            Ended::Signaled(signal) => ("signaled", None, Some(signal)),
        };
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Summary {
            status,
            exit_code,
            signal,
            reason: outcome.reason,
            timed_out: matches!(outcome.reason, Some(Reason::Time | Reason::CpuTime)),
            duration_ms: millis(outcome.duration),
            cpu_ms: millis(outcome.cpu),
            peak_memory: outcome.peak_memory,
            denied: outcome.denied.clone(),
            ..Summary::default()
        }
    }

    fn ended(
        outcome: &Outcome,
        captures: [Capture; 2],
        engine: EngineRef,
        profile: &str,
        report: &Report,
        record: Option<String>,
    ) -> Summary {
        let [stdout_dropped, stderr_dropped] = captures.each_ref().map(Capture::dropped);
        let [stdout, stderr] = captures.map(text);
        Summary { record, stdout, stderr, stdout_dropped, stderr_dropped, ..Summary::of(outcome) }
            .under(engine, profile, report)
    }

    /// Where it ran, and what held.
    pub fn under(self, engine: EngineRef, profile: &str, report: &Report) -> Summary {
        Summary { engine: Some(engine.name()), profile: Some(profile.to_owned()), report: Some(report.clone()), ..self }
    }

    /// An execution that a session did not start.
    pub fn failed_in(session: Option<String>, tried: Option<Tried>, failure: &Failure) -> Summary {
        let (execution, record) = tried.map_or_else(Default::default, |tried| (Some(tried.execution), tried.record));
        Summary { place: Some(InSession { session, execution }), record, ..Summary::failed(failure) }
    }

    /// One of which nobody knows whether it ran.
    pub fn lost(self) -> Summary {
        Summary { status: "lost", reason: Some(Reason::Lost), ..self }
    }

    /// An execution in a session.
    pub fn of_session(output: Output, session: &str, execution: &str, record: Option<String>) -> Summary {
        Summary {
            record,
            stdout_dropped: output.stdout_dropped,
            stderr_dropped: output.stderr_dropped,
            place: Some(InSession { session: Some(session.to_owned()), execution: Some(execution.to_owned()) }),
            ..Summary::of(&output.outcome)
        }
        .with_output(output.stdout, output.stderr)
    }

    fn with_output(self, stdout: Vec<u8>, stderr: Vec<u8>) -> Summary {
        Summary { stdout: readable(stdout), stderr: readable(stderr), ..self }
    }
}

fn text(capture: Capture) -> String {
    readable(capture.into_bytes(|dropped| format!("\n[{dropped} bytes dropped]\n")))
}

fn readable(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
