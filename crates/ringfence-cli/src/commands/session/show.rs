//! `ringfence session list`, `show` and `logs`.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use ringfence::policy::limits::{format_duration, format_size};
use ringfence::session::{
    Event, ExecutionInfo, ExecutionState, Info, REMEMBERED, REMEMBERED_BYTES, SessionError, State, Usage,
};
use serde_json::{Value, json};

use super::exec::write;
use crate::args::SessionLogs;
use crate::failure::{Failure, Kind};
use crate::output;
use crate::report;

/// A session in JSON; times in milliseconds, points in time since 1970.
pub fn described(info: &Info) -> Value {
    let at = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis);
    let (state, ended) = match info.state {
        State::Live => ("live", None),
        State::Ended(end) => ("ended", Some(end)),
        State::Unknown => ("unknown", None),
    };
    json!({
        "id": info.id,
        "name": info.name,
        "state": state,
        "ended": ended,
        "profile": info.profile,
        "engine": info.engine,
        "workdir": info.workdir.to_string_lossy(),
        "workdir_inside": info.workdir_inside.to_string_lossy(),
        "created_ms": at(info.created),
        "idle_ms": info.idle.map(millis),
        "idle_at_ms": info.idle_at.map(at),
        "expires_ms": info.expires.map(at),
        "timeout_ms": info.timeout.map(millis),
        "timeout_ceiling_ms": info.timeout_ceiling.map(millis),
        "supervisor": info.pid,
        "executions": info.executions,
        "running": info.running,
        "caches": info.caches,
        "requirements": info.requirements,
        "left": info.left,
        "unreachable": info.unreachable,
        "frozen": info.frozen,
        "memory": info.memory,
        "cpus": info.cpus,
        "processes": info.processes,
    })
}

/// For people: which caches are ready, and which are not and why.
pub fn caches(info: &Info) -> Vec<String> {
    let ready: Vec<&str> = info.caches.iter().filter(|c| c.failed.is_none()).map(|c| c.name.as_str()).collect();
    let mut lines = Vec::new();
    if !ready.is_empty() {
        lines.push(format!("caches ready: {}", ready.join(", ")));
    }
    let failed = info.caches.iter().filter_map(|cache| Some((&cache.name, cache.failed.as_ref()?)));
    lines.extend(failed.map(|(name, why)| format!("without cache `{name}`: {}", output::one_line(why))));
    lines
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn state(info: &Info) -> String {
    match info.state {
        State::Live if info.unreachable.is_some() => "unreachable".to_owned(),
        State::Live if info.frozen => "frozen".to_owned(),
        State::Live if info.running > 0 => format!("live, {} running", info.running),
        State::Live => "live".to_owned(),
        State::Ended(end) => format!("ended: {end}"),
        State::Unknown => "unknown".to_owned(),
    }
}

fn age(info: &Info) -> String {
    let age = info.created.elapsed().unwrap_or_default();
    let seconds = Duration::from_secs(age.as_secs());
    format_duration(if age.as_secs() >= 3600 { Duration::from_secs(age.as_secs() / 60 * 60) } else { seconds })
}

pub fn list(as_json: bool) -> Result<ExitCode, Failure> {
    super::within(async |sessions| {
        let all = sessions.list().await?;
        if as_json {
            output::json(&json!({ "sessions": all.iter().map(described).collect::<Vec<_>>() }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut rows = vec![["ID", "NAME", "PROFILE", "ENGINE", "AGE", "STATE"].map(str::to_owned)];
        rows.extend(all.iter().map(|info| {
            let name = info.name.clone().unwrap_or_else(|| "-".to_owned());
            [info.id.clone(), name, info.profile.clone(), info.engine.clone(), age(info), state(info)]
        }));
        output::data(&output::table(&rows))?;
        Ok(ExitCode::SUCCESS)
    })
}

pub fn show(session: &str, as_json: bool) -> Result<ExitCode, Failure> {
    super::within(async |sessions| {
        let info = sessions.info(session).await?;
        let mut usage = None;
        let (kept, executions) = match &info.unreachable {
            Some(_) => match sessions.report(session).await {
                // Written by another version.
                Err(SessionError::NotFound(_)) => (None, Vec::new()),
                report => (Some(report?), Vec::new()),
            },
            None => match sessions.open_live(&info.id).await {
                // Its own word: where nothing can be written, what is kept of it is old.
                Ok(session) => {
                    usage = Some(session.usage().await?);
                    (Some(session.report().await?), session.executions().await?)
                }
                // What it ran is forgotten with it, but for the records.
                Err(SessionError::Ended { .. } | SessionError::NotFound(_)) => {
                    (Some(sessions.report(&info.id).await?), Vec::new())
                }
                Err(error) => return Err(error.into()),
            },
        };
        if as_json {
            let mut value = described(&info);
            value["report"] = serde_json::to_value(&kept).unwrap_or_default();
            value["usage"] = usage.as_ref().map_or(Value::Null, used);
            value["recent"] = executions.iter().map(execution).collect();
            output::json(&value)?;
            return Ok(ExitCode::SUCCESS);
        }
        let name = info.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
        let mut text = format!("session {}{name}\nstate {}\n", info.id, state(&info));
        text += &format!("profile {}\n", info.profile);
        let [workdir, inside] =
            [&info.workdir, &info.workdir_inside].map(|dir| output::one_line(&dir.to_string_lossy()));
        text += &format!("workdir {workdir} at {inside}\n");
        let left = |at: Option<SystemTime>| match at {
            None => "never".to_owned(),
            Some(at) => {
                let left = at.duration_since(SystemTime::now()).unwrap_or_default();
                format!("in {}", format_duration(Duration::from_secs(left.as_secs())))
            }
        };
        if info.state == State::Live {
            let idle = match (info.idle, info.idle_at) {
                (Some(idle), None) => format!("for {} (it is in use)", format_duration(idle)),
                (_, at) => left(at),
            };
            text += &format!("ends {}, when idle {idle}\n", left(info.expires));
        }
        if let Some(usage) = &usage {
            text += &format!("uses {}\n", uses(usage));
        }
        for line in caches(&info) {
            text += &format!("{line}\n");
        }
        for set in &info.requirements {
            text += &format!("requirements {} at {}\n", set.id, set.at);
        }
        if let Some(why) = &info.unreachable {
            let cure = match info.state {
                State::Unknown => "`ringfence session rm` removes it",
                _ => "`ringfence session stop` ends it all the same",
            };
            text += &format!("unreachable: {}; {cure}\n", output::one_line(why));
        }
        if let Some(left) = &info.left {
            text += &format!("left behind: {}\n", output::one_line(left));
        }
        for one in &executions {
            text += &format!("execution {}  {}  {}\n", one.id, how(one), output::one_line(&one.command.join(" ")));
        }
        text += &kept.as_ref().map(report::table).unwrap_or_default();
        output::data(&text)?;
        super::say_changed(&sessions, &info.id, None).await;
        Ok(ExitCode::SUCCESS)
    })
}

fn used(usage: &Usage) -> Value {
    json!({
        "cpu_ms": usage.cpu.map(millis), "memory": usage.memory, "peak_memory": usage.peak_memory,
        "processes": usage.processes, "read_bytes": usage.read, "written_bytes": usage.written,
        "received_bytes": usage.received, "sent_bytes": usage.sent,
        "killed_for_memory": usage.killed_for_memory,
    })
}

/// For people: what is counted.
fn uses(usage: &Usage) -> String {
    let size = |name: &str, bytes: Option<u64>| Some(format!("{name} {}", format_size(bytes?)));
    let parts = [
        usage.cpu.map(|cpu| format!("CPU time {}", format_duration(Duration::from_millis(millis(cpu))))),
        size("memory", usage.memory),
        size("at most", usage.peak_memory),
        usage.processes.map(|n| format!("{n} processes")),
        size("read", usage.read),
        size("written", usage.written),
        size("received", usage.received),
        size("sent", usage.sent),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn execution(info: &ExecutionInfo) -> Value {
    let (status, code, signal, reason) = match info.state {
        ExecutionState::Running => ("running", None, None, None),
        ExecutionState::Exited { code, reason } => ("exited", Some(code), None, reason),
        ExecutionState::Signaled { signal, reason } => ("signaled", None, Some(signal), reason),
        ExecutionState::Unknown => ("unknown", None, None, None),
    };
    json!({
        "execution": info.id, "command": info.command, "background": info.background, "status": status,
        "exit_code": code, "signal": signal, "reason": reason, "stdout_bytes": info.stdout, "stderr_bytes": info.stderr,
    })
}

fn how(info: &ExecutionInfo) -> String {
    match info.state {
        ExecutionState::Running => "running".to_owned(),
        ExecutionState::Exited { code, reason } => format!("exited {code}{}", why(reason)),
        ExecutionState::Signaled { signal, reason } => format!("signal {signal}{}", why(reason)),
        ExecutionState::Unknown => "unknown".to_owned(),
    }
}

fn why(reason: Option<ringfence::Reason>) -> String {
    let name = reason.and_then(|reason| serde_json::to_value(reason).ok());
    name.and_then(|name| name.as_str().map(|name| format!(" ({name})"))).unwrap_or_default()
}

/// Why there is nothing of an execution.
fn missing(id: &str, info: &Info, executions: &[ExecutionInfo], limit: u64) -> Failure {
    let number = id.parse::<u64>().ok().filter(|number| (1..=info.executions).contains(number));
    let Some(number) = number else { return SessionError::NoExecution(id.to_owned()).into() };
    // The oldest of those that ended is forgotten first, when there are too many, or too much of their output.
    let ended: Vec<&ExecutionInfo> = executions.iter().filter(|e| e.state != ExecutionState::Running).collect();
    let after_one = ended.iter().any(|e| e.id.parse::<u64>().is_ok_and(|id| id < number));
    let bytes: u64 = ended.iter().map(|e| e.stdout + e.stderr).sum();
    let none_forgotten = ended.len() < REMEMBERED && bytes.saturating_add(2 * limit) < REMEMBERED_BYTES;
    let what = match after_one || none_forgotten {
        true => "could not be started, and wrote nothing".to_owned(),
        false if ended.len() >= REMEMBERED => format!("is not kept any more: the last {REMEMBERED} that ended are"),
        false => "could not be started, or is not kept any more".to_owned(),
    };
    Failure::new(Kind::Session, format!("execution {id} {what}"))
        .hint(format!("its record says how it ended: ringfence history --session {}", info.id))
}

pub fn logs(args: &SessionLogs) -> Result<ExitCode, Failure> {
    super::within(async |sessions| {
        let session = sessions.open_live(&args.session).await?;
        let executions = session.executions().await?;
        let one = args.execution.as_deref();
        if let Some(id) = one.filter(|id| executions.iter().all(|e| e.id != *id)) {
            return Err(missing(id, &session.info().await?, &executions, session.output_limit()));
        }
        let mut told = Vec::new();
        for info in executions.iter().filter(|e| one.is_none_or(|id| id == e.id)) {
            let (mut texts, mut written) = ([Vec::new(), Vec::new()], output::Written::default());
            if one.is_none() && !args.json {
                output::say(&format!("== {} {}: {}", info.id, how(info), output::one_line(&info.command.join(" "))));
            }
            // As much as was written until now, or until it ends.
            let all = info.stdout + info.stderr;
            let (mut seen, mut skipped) = (0, 0);
            let mut execution = session.attach(&info.id).await?;
            loop {
                if seen + skipped >= all && !args.follow {
                    break;
                }
                match execution.next().await? {
                    Some(event @ (Event::Stdout(_) | Event::Stderr(_))) => {
                        let (Event::Stdout(bytes) | Event::Stderr(bytes)) = &event else { continue };
                        let stderr = matches!(event, Event::Stderr(_));
                        match args.json {
                            true => texts[usize::from(stderr)].extend_from_slice(bytes),
                            false => write(stderr, &written.harmless(stderr, bytes))?,
                        }
                        seen += bytes.len() as u64;
                    }
                    Some(Event::Ended(_)) => break,
                    None => return Err(Failure::new(Kind::Session, "the execution ended without a word")),
                }
                skipped = execution.skipped().iter().sum();
            }
            if args.json {
                // How it is by now.
                let now = session.executions().await?.into_iter().find(|now| now.id == info.id);
                let mut value = self::execution(now.as_ref().unwrap_or(info));
                let [out, err] = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
                (value["stdout"], value["stderr"]) = (out.into(), err.into());
                let [out, err] = execution.skipped();
                (value["stdout_dropped"], value["stderr_dropped"]) = (out.into(), err.into());
                told.push(value);
            } else if skipped > 0 {
                output::say(&format!("ringfence: {skipped} bytes are not kept any more"));
            }
        }
        if args.json {
            output::json(&json!({ "session": session.id(), "executions": told }))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}
