//! `ringfence history`: what was run, by whom, and how it ended.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfence::host::Archive;
use ringfence::policy::limits::{format_duration, format_size, parse_duration, parse_size};
use ringfence::records::{Filter, Record, Status, Store, Stream};

use crate::args::{History, HistoryCommand, HistoryList, HistoryPrune};
use crate::failure::{Failure, Kind};
use crate::output::{self, one_line, printable};

pub fn history(args: &History) -> Result<ExitCode, Failure> {
    let archive = crate::host::here()?.archive()?;
    match &args.command {
        None => list(&archive, &args.list),
        Some(HistoryCommand::Show { id, json }) => show(&archive, id, *json),
        Some(HistoryCommand::Prune(prune)) => self::prune(&archive, prune),
        Some(HistoryCommand::Migrate { to }) => migrate(&archive, *to),
    }
}

fn list(archive: &Archive, args: &HistoryList) -> Result<ExitCode, Failure> {
    let usage = |flag: &str, message: String| Failure::new(Kind::Usage, format!("--{flag}: {message}"));
    let filter = Filter {
        limit: (args.limit > 0).then_some(args.limit),
        since: args.since.as_deref().map(since).transpose().map_err(|message| usage("since", message))?,
        status: args.status.map(Into::into),
        profile: args.profile.clone(),
        command: args.command.clone(),
        sandbox: args.session.as_deref().map(super::session::id_of).transpose()?,
        skill: None,
    };
    let records = archive.look()?.list(&filter)?;
    if args.json {
        output::json(&serde_json::json!({ "records": records }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::data(&rows(&records))?;
    if let (Some(session), true) = (&args.session, records.is_empty()) {
        output::say(&format!(
            "ringfence: nothing is recorded of a session `{}`, or nothing like this",
            one_line(session)
        ));
        output::say(
            "hint: `ringfence session list` has those there are; a forgotten one is found by its id, not by its name",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for each.
pub fn rows(records: &[Record]) -> String {
    let mut text = String::new();
    for record in records {
        let (began, profile) = (time(record.began), record.profile.as_deref().unwrap_or("-"));
        let command = shortened(&printable(&line(&record.command)), 100);
        let row = format!(
            "{}  {began}  {:<15}  {:>9}  {:<8}  {command}",
            record.id,
            ending(record),
            record.duration_us.map_or_else(|| "-".to_owned(), duration),
            printable(profile),
        );
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

fn show(archive: &Archive, id: &str, json: bool) -> Result<ExitCode, Failure> {
    let record = archive.look()?.show(id)?;
    if json {
        output::json(&record)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!("{key:<9} {}\n", one_line(&value)));
        }
    };
    add("id", Some(record.id.clone()));
    add("began", Some(time(record.began)));
    add("ended", record.ended.map(time));
    add("status", Some(ending(&record)));
    add("reason", record.reason.clone());
    add("error", record.error.clone());
    add("command", Some(line(&record.command)));
    add("workdir", record.workdir.clone());
    add("profile", record.profile.clone());
    add("engine", record.engine.clone());
    add("sandbox", record.sandbox.clone());
    add(
        "skill",
        record.skill.as_ref().map(|skill| {
            let version = skill.version.as_ref().map_or_else(String::new, |version| format!("@{version}"));
            format!("{}{version} ({})", skill.name, skill.hash)
        }),
    );
    add(
        "caller",
        record.caller.as_ref().map(|caller| {
            format!("{} ({}), user {}", caller.program.as_deref().unwrap_or("?"), caller.pid, caller.uid)
        }),
    );
    add("duration", record.duration_us.map(duration));
    add("cpu", record.cpu_us.map(duration));
    add("memory", record.peak_memory.and_then(|bytes| u64::try_from(bytes).ok()).map(format_size));
    for (name, stream) in [("stdout", &record.stdout), ("stderr", &record.stderr)] {
        add(name, stream.bytes.map(|bytes| format!("{bytes} bytes")));
    }
    for (name, stream) in [("stdout", &record.stdout), ("stderr", &record.stderr)] {
        text.push_str(&kept(name, stream));
    }
    let answers = record.report.as_ref().and_then(|report| report["guarantees"].as_array());
    for answer in answers.into_iter().flatten() {
        let part = |key: &str| answer[key].as_str().unwrap_or_default();
        let line = format!("{:<10} {:<24} {}", part("state"), part("id"), part("by"));
        text.push_str(&one_line(line.trim_end()));
        text.push('\n');
    }
    let devices = record.report.as_ref().and_then(|report| report["devices"].as_array());
    for device in devices.into_iter().flatten().filter_map(|device| device.as_str()) {
        text.push_str(&one_line(&format!("{:<10} {device}", "device")));
        text.push('\n');
    }
    output::data(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// What was kept of a stream, each line set off, so that none can pass for one of ours.
fn kept(name: &str, stream: &Stream) -> String {
    let mut text = String::new();
    for (part, kept) in [("", &stream.head), (" (end)", &stream.tail)] {
        if let Some(kept) = kept.as_ref().filter(|kept| !kept.is_empty()) {
            text.push_str(&format!("--- {name}{part}\n"));
            kept.lines().for_each(|line| text.push_str(&format!("    {}\n", printable(line))));
        }
    }
    text
}

fn prune(archive: &Archive, args: &HistoryPrune) -> Result<ExitCode, Failure> {
    let usage = |flag: &str, error: String| Failure::new(Kind::Usage, format!("--{flag}: {error}"));
    let age = args.older_than.as_deref().map(parse_duration).transpose();
    let age = age.map_err(|error| usage("older-than", error.to_string()))?;
    let size = args.max_size.as_deref().map(parse_size).transpose();
    let size = size.map_err(|error| usage("max-size", error.to_string()))?;
    let mut store = archive.open()?;
    // Without a word, as configured.
    let (age, size) = match (age, size) {
        (None, None) => (archive.records.keep, archive.records.max_size),
        asked => asked,
    };
    let pruned = store.prune(age, size)?;
    if args.json {
        output::json(&pruned)?;
    } else {
        let size = format!("{} KiB", pruned.size.div_ceil(1024));
        output::say(&format!("ringfence: {} records removed, {} left, {size}", pruned.removed, pruned.left));
    }
    Ok(ExitCode::SUCCESS)
}

fn migrate(archive: &Archive, to: i64) -> Result<ExitCode, Failure> {
    archive.journal.make().map_err(ringfence::records::StoreError::from)?;
    let mut store = Store::connect(&archive.place)?;
    store.migrate(to)?;
    output::say(&format!("ringfence: the records have version {to} now"));
    Ok(ExitCode::SUCCESS)
}

/// A time, or how long ago it was.
fn since(text: &str) -> Result<i64, String> {
    let millis = |time: SystemTime| {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    };
    if let Ok(ago) = parse_duration(text) {
        return Ok(millis(SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH)));
    }
    let whole = if text.len() == 10 { format!("{text} 00:00:00") } else { text.to_owned() };
    let bad =
        |_| format!("`{text}` is neither a time ago (such as `2h`) nor a time (`2026-01-31`, `2026-01-31T12:00:00Z`)");
    humantime::parse_rfc3339_weak(&whole).map(millis).map_err(bad)
}

pub fn time(millis: i64) -> String {
    humantime::format_rfc3339_seconds(ringfence::records::time(millis)).to_string()
}

fn duration(micros: i64) -> String {
    let micros = u64::try_from(micros).unwrap_or(0);
    match micros {
        0..1000 => format!("{micros}µs"),
        1000..10_000_000 => format!("{}ms", micros / 1000),
        _ => format_duration(Duration::from_secs(micros / 1_000_000)),
    }
}

/// The status with the number that belongs to it.
fn ending(record: &Record) -> String {
    let status = record.status.name();
    match (record.status, record.exit_code, record.signal) {
        (Status::Exited, Some(number), _) | (Status::Signaled, _, Some(number)) => format!("{status} {number}"),
        _ => status.to_owned(),
    }
}

/// A command as one would type it.
fn line(command: &[String]) -> String {
    let quoted = |word: &String| {
        let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%^".contains(c);
        let is_plain = !word.is_empty() && word.chars().all(plain);
        if is_plain { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
