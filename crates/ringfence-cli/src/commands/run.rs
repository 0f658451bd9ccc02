//! `ringfence run`: from the command line to the command, and back to an exit code.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use ringfence::denials::Denial;
use ringfence::engines::Seed;
use ringfence::policy::git;
use ringfence::policy::limits::{format_duration, format_size};
use ringfence::policy::look::Lookup;
use ringfence::policy::plan::{self, Mount, Plan};
use ringfence::session::{Output, Tried};
use ringfence::{Capture, Ended, Engine, EngineError, Outcome, Reason, Report, StdioSpec, engines, records, supervise};
use rustix::io::Errno;
use serde::Serialize;

use crate::args::Run;
use crate::companions::capture::Captured;
use crate::companions::signals::Signals;
use crate::companions::tee::Tee;
use crate::companions::terminal::{self, Relay, Settings};
use crate::companions::through::Through;
use crate::companions::{Seen, hand_over, let_go};
use crate::failure::{Described, Failure, Kind};
use crate::output;
use crate::record::{self, Entry};
use crate::report;
use crate::situation::Situation;

/// Runs it. With `--json`, a failure of Ringfence itself is a JSON object as well.
pub fn run(args: &Run) -> Result<ExitCode, Failure> {
    let result = prepare_and_run(args);
    if let (Err(failure), true) = (&result, args.json) {
        output::json(&Summary::failed(failure))?;
    }
    result
}

fn prepare_and_run(args: &Run) -> Result<ExitCode, Failure> {
    let gathered = if args.dry_run { Situation::gather(&args.policy) } else { Situation::of_a_box(&args.policy) };
    let mut situation = match gathered {
        Ok(situation) => situation,
        Err(failure) if args.dry_run => return Err(failure),
        Err(failure) => return Err(record::refused(&args.command, failure)),
    };
    situation.warn(args.verbose);
    let command = command(args, &situation);
    if !args.dry_run && !situation.records.is_dir() {
        record::prepare(&situation);
        // What was looked up before does not know of it, and would not hide it.
        situation.lookup = Lookup::of_places(&situation.facts.home, &situation.resolved.policy.workdir);
    }
    let (plan, engine, mut report, seed) = match planned(&situation, &command, args.dry_run) {
        Ok(planned) => planned,
        Err(failure) if args.dry_run => return Err(failure),
        Err(failure) => return Err(record::failed(&situation, &command, None, failure)),
    };
    if args.dry_run {
        return dry_run(args, engine, &report, &plan, &situation);
    }
    if args.verbose {
        output::say(&format!("ringfence: profile {}, engine {engine}", situation.resolved.policy.profile));
    }
    let started = file_clock();
    if engine == Engine::Docker {
        write_report(args, &report)?;
        let outcome = super::session::once(args, &situation, command, &report)?;
        return Ok(close(&outcome, &plan, &situation, started));
    }
    let entry = Entry::begin(&situation, &command, None, engine, &plan, &mut report)?;
    // Before anything starts: what cannot be written must not end a command that did well.
    let executed = write_report(args, &report).and_then(|()| execute(args, seed, engine, &plan, &situation));
    let executed = match executed {
        Ok(executed) => executed,
        Err(failure) => return Err(entry.failed(failure)),
    };
    let outcome = &executed.outcome;
    let id = entry.end(outcome, executed.seen(situation.resolved.policy.records.output), &mut report);
    if let Some(captures) = executed.captures {
        let profile = &situation.resolved.policy.profile;
        output::json(&Summary::ended(outcome, captures, engine, profile, &report, id))?;
    }
    let code = close(outcome, &plan, &situation, started);
    // The process ends now, and all of this with it: thousands of small pieces need not be given back one by one.
    std::mem::forget((plan, report, executed.outcome, situation));
    Ok(code)
}

/// What is to be said about a command that ended, and its exit code.
fn close(outcome: &Outcome, plan: &Plan, situation: &Situation, started: SystemTime) -> ExitCode {
    for line in denials(outcome, plan) {
        output::say(&line);
    }
    if let Some(note) = note(outcome, plan) {
        output::say(&note);
    }
    for line in repositories(plan, situation, started) {
        output::say(&line);
    }
    ExitCode::from(exit_code(outcome))
}

/// The plan, the engine that will keep it, and what could be begun beside.
fn planned(
    situation: &Situation,
    command: &[OsString],
    dry: bool,
) -> Result<(Plan, Engine, Report, Option<Seed>), Failure> {
    let (choice, policy, facts) = (situation.resolved.engine, &situation.resolved.policy, &situation.facts);
    let seed = if dry { None } else { engines::begin(situation.seed.take(), choice, &situation.lookup, policy, facts) };
    let plan = plan::plan_with(&situation.lookup, policy, facts, command)
        .map_err(|error| situation.explain_plan_error(error))?;
    let (engine, report) = engines::select(choice, &plan, facts)?;
    Ok((plan, engine, report, seed.filter(|_| engine == Engine::Native)))
}

/// The command, or the user's shell.
fn command(args: &Run, situation: &Situation) -> Vec<OsString> {
    if !args.command.is_empty() {
        return args.command.clone();
    }
    let shell = situation.facts.env.get(std::ffi::OsStr::new("SHELL")).filter(|shell| {
        let path = Path::new(shell);
        path.is_absolute() && path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    });
    vec![shell.cloned().unwrap_or_else(|| "/bin/sh".into())]
}

fn dry_run(
    args: &Run,
    engine: Engine,
    report: &Report,
    plan: &Plan,
    situation: &Situation,
) -> Result<ExitCode, Failure> {
    let steps = engines::describe(engine, plan, &situation.facts)?;
    if args.json {
        let steps: Vec<&str> = steps.lines().collect();
        let profile = &situation.resolved.policy.profile;
        output::json(
            &serde_json::json!({ "status": "planned", "engine": engine.name(), "profile": profile, "steps": steps, "report": report }),
        )?;
    } else {
        output::data(&steps)?;
        write_report(args, report)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A command that was run.
struct Executed {
    outcome: Outcome,
    /// For `--json`: stdout and stderr.
    captures: Option<[Capture; 2]>,
    /// What was seen of them otherwise.
    seen: [Seen; 2],
}

impl Executed {
    /// What the record gets of stdout and stderr.
    fn seen(&self, output: bool) -> [records::Seen<'_>; 2] {
        match &self.captures {
            Some(captures) if output => captures.each_ref().map(records::Seen::Output),
            Some(captures) => captures.each_ref().map(|capture| records::Seen::Bytes(capture.total())),
            None => self.seen.each_ref().map(Seen::as_record),
        }
    }
}

/// Starts the box, and stays with it until it has ended.
fn execute(
    args: &Run,
    seed: Option<Seed>,
    engine: Engine,
    plan: &Plan,
    situation: &Situation,
) -> Result<Executed, Failure> {
    let stdio = |errno: Errno| EngineError::Stdio(errno);
    let signals = Signals::take(plan.limits.timeout).map_err(stdio)?;
    let (policy, facts) = (&situation.resolved.policy, &situation.facts);
    let start = |spec| engines::start_from(seed, engine, plan, facts, spec);
    if args.json {
        let stdin = hand_over(rustix::stdio::stdin(), false).map_err(stdio)?;
        let (mut captured, [out, err]) = Captured::new(signals, plan.limits.output).map_err(stdio)?;
        let running = start(StdioSpec::Files([stdin, out, err]))?;
        let_go(false);
        let outcome = supervise(running, policy, facts, &mut captured)?;
        return Ok(Executed {
            outcome,
            captures: Some(captured.into_captures()),
            seen: [Seen::Nothing, Seen::Nothing],
        });
    }
    if terminal::at_both_ends() {
        let (mut relay, spec) = Relay::open(signals, policy.records.output.then(records::capture)).map_err(stdio)?;
        let running = start(spec)?;
        let outcome = supervise(running, policy, facts, &mut relay)?;
        return Ok(Executed { outcome, captures: None, seen: [relay.into_seen(), Seen::Nothing] });
    }
    let _settings = Settings::remember();
    let stdin = hand_over(rustix::stdio::stdin(), false).map_err(stdio)?;
    if policy.records.output {
        let (mut tee, [out, err]) = Tee::new(signals).map_err(stdio)?;
        let running = start(StdioSpec::Files([stdin, out, err]))?;
        let_go(true);
        let outcome = supervise(running, policy, facts, &mut tee)?;
        return Ok(Executed { outcome, captures: None, seen: tee.into_seen() });
    }
    let stdout = hand_over(rustix::stdio::stdout(), true).map_err(stdio)?;
    let stderr = hand_over(rustix::stdio::stderr(), true).map_err(stdio)?;
    let running = start(StdioSpec::Files([stdin, stdout, stderr]))?;
    let_go(true);
    let outcome = supervise(running, policy, facts, &mut Through::new(signals))?;
    Ok(Executed { outcome, captures: None, seen: [Seen::Nothing, Seen::Nothing] })
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
    let Denial { act, object, rule, allow } = denial;
    format!("ringfence: denied: {act} `{object}` ({rule}); {allow} allows it")
}

/// Now, by the clock that file systems stamp with: it runs a tick behind, so that what is changed from here on is not older.
fn file_clock() -> SystemTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    SystemTime::UNIX_EPOCH + Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u32)
}

/// Repositories below this one that the command made or changed, and that git goes into by itself: a `git status` outside,
/// or a prompt, would do what their configuration says.
fn repositories(plan: &Plan, situation: &Situation, started: SystemTime) -> Vec<String> {
    let policy = &situation.resolved.policy;
    let changed = git::changed_since(&policy.workdir, &situation.facts.home, started);
    // What was protected is as it was.
    let protected =
        |dir: &Path| plan.mounts.iter().any(|m| matches!(m, Mount::Bind { source, .. } if source.starts_with(dir)));
    let line = |dir: &PathBuf| {
        let place = dir.join(".git");
        format!(
            "ringfence: warning: `{}` was made or changed, and git goes into it by itself: read its configuration and \
             hooks before you use git outside",
            output::one_line(&place.display().to_string())
        )
    };
    changed.iter().filter(|dir| !protected(&dir.join(".git"))).map(line).collect()
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

/// What `--json` prints.
#[derive(Debug, Serialize)]
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
    /// Where it was to run; nothing of it outside of sessions, and null where there is no such session.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<Option<String>>,
    /// Its id in the session, in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution: Option<Option<String>>,
    report: Option<Report>,
    denied: Vec<Denial>,
    error: Option<Described>,
}

impl Summary {
    pub fn failed(failure: &Failure) -> Summary {
        Summary {
            record: failure.record.clone(),
            status: "failed",
            exit_code: None,
            signal: None,
            reason: None,
            timed_out: false,
            stdout: String::new(),
            stderr: String::new(),
            stdout_dropped: 0,
            stderr_dropped: 0,
            duration_ms: 0,
            cpu_ms: 0,
            peak_memory: 0,
            engine: None,
            profile: None,
            session: None,
            execution: None,
            report: None,
            denied: Vec::new(),
            error: Some(failure.describe()),
        }
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
            record: None,
            status,
            exit_code,
            signal,
            reason: outcome.reason,
            timed_out: matches!(outcome.reason, Some(Reason::Time | Reason::CpuTime)),
            stdout: String::new(),
            stderr: String::new(),
            stdout_dropped: 0,
            stderr_dropped: 0,
            duration_ms: millis(outcome.duration),
            cpu_ms: millis(outcome.cpu),
            peak_memory: outcome.peak_memory,
            engine: None,
            profile: None,
            session: None,
            execution: None,
            report: None,
            denied: outcome.denied.clone(),
            error: None,
        }
    }

    fn ended(
        outcome: &Outcome,
        captures: [Capture; 2],
        engine: Engine,
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
    pub fn under(self, engine: Engine, profile: &str, report: &Report) -> Summary {
        Summary { engine: Some(engine.name()), profile: Some(profile.to_owned()), report: Some(report.clone()), ..self }
    }

    /// An execution that a session did not start.
    pub fn failed_in(session: Option<String>, tried: Option<Tried>, failure: &Failure) -> Summary {
        let (execution, record) = tried.map_or_else(Default::default, |tried| (Some(tried.execution), tried.record));
        Summary { session: Some(session), execution: Some(execution), record, ..Summary::failed(failure) }
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
            session: Some(Some(session.to_owned())),
            execution: Some(Some(execution.to_owned())),
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
