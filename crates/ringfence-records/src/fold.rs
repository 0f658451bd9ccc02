//! One line of the journal into the database. A line that comes twice counts once, and the two halves of an execution come in
//! any order, or alone.

use super::database::{Database, DatabaseError, Value};
use super::journal::{Begun, Ended, Line};

/// What a row takes beside its texts.
const ROW: usize = 300;

pub fn line(database: &mut Database, line: Line) -> Result<(), DatabaseError> {
    let Line { id, begin, end } = line;
    // Not one of ours: it would not sort among them.
    let Ok(time) = ulid::Ulid::from_string(&id).map(|id| i64::try_from(id.timestamp_ms()).unwrap_or(0)) else {
        return Ok(());
    };
    if let Some(begin) = begin {
        fold_begin(database, &id, begin)?;
    }
    if let Some(end) = end {
        fold_end(database, &id, time, end)?;
    }
    Ok(())
}

fn fold_begin(database: &mut Database, id: &str, begin: Begun) -> Result<(), DatabaseError> {
    let Begun { time, profile, engine, sandbox, command, workdir, caller, owner, report, skill } = begin;
    let (skill, hash, version) =
        skill.map_or((None, None, None), |skill| (Some(skill.name), Some(skill.hash), skill.version));
    let line = command.join(" ");
    let json = |value: serde_json::Result<String>| value.unwrap_or_default();
    let command = json(serde_json::to_string(&command));
    let caller = json(serde_json::to_string(&caller));
    let owner = json(serde_json::to_string(&owner));
    let report = report.map(|report| report.get().to_owned());
    let size = ROW
        + [&line, &command, &caller, &owner].iter().map(|text| text.len()).sum::<usize>()
        + report.as_ref().map_or(0, String::len);
    // The end may have come first, and the beginning may come twice.
    database.execute(
        "INSERT INTO executions
             (id, began, status, profile, engine, sandbox, command, line, workdir, caller, owner, report, size, skill,
              skill_hash, skill_version)
         VALUES ($1, $2, 'running', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
         ON CONFLICT (id) DO UPDATE SET
             began = excluded.began, profile = excluded.profile, engine = excluded.engine, sandbox = excluded.sandbox,
             command = excluded.command, line = excluded.line, workdir = excluded.workdir, caller = excluded.caller,
             owner = excluded.owner, report = excluded.report, size = executions.size + excluded.size,
             skill = excluded.skill, skill_hash = excluded.skill_hash,
             skill_version = excluded.skill_version
         WHERE executions.owner IS NULL",
        &[
            id.into(),
            time.into(),
            profile.into(),
            engine.into(),
            sandbox.into(),
            command.into(),
            line.into(),
            workdir.into(),
            caller.into(),
            owner.into(),
            report.into(),
            integer(size as u64),
            skill.into(),
            hash.into(),
            version.into(),
        ],
    )?;
    Ok(())
}

fn fold_end(database: &mut Database, id: &str, time: i64, end: Ended) -> Result<(), DatabaseError> {
    let Ended {
        time: ended,
        status,
        exit_code,
        signal,
        reason,
        error,
        duration_us,
        cpu_us,
        peak_memory,
        stdout,
        stderr,
    } = end;
    let reason = reason.and_then(|reason| serde_json::to_value(reason).ok()?.as_str().map(str::to_owned));
    let texts = [&error, &stdout.head, &stdout.tail, &stderr.head, &stderr.tail];
    let size: usize = texts.iter().filter_map(|text| text.as_ref()).map(String::len).sum();
    // Without a beginning, which is lost or comes later, it stands alone.
    let alone = "INSERT INTO executions (id, began, status, command, line, size)
                 VALUES ($1, $2, 'running', '[]', '', 300) ON CONFLICT (id) DO NOTHING";
    database.execute(alone, &[id.into(), time.into()])?;
    database.execute(
        "UPDATE executions SET
             ended = $1, status = $2, exit_code = $3, signal = $4, reason = $5, error = $6, duration_us = $7, cpu_us = $8,
             peak_memory = $9, stdout_bytes = $10, stdout_head = $11, stdout_tail = $12, stderr_bytes = $13,
             stderr_head = $14, stderr_tail = $15, size = size + $16
         WHERE id = $17 AND ended IS NULL",
        &[
            ended.into(),
            status.name().into(),
            exit_code.map(i64::from).into(),
            signal.map(i64::from).into(),
            reason.into(),
            error.into(),
            duration_us.map_or(Value::Null, integer),
            cpu_us.map_or(Value::Null, integer),
            peak_memory.map_or(Value::Null, integer),
            stdout.bytes.map_or(Value::Null, integer),
            stdout.head.into(),
            stdout.tail.into(),
            stderr.bytes.map_or(Value::Null, integer),
            stderr.head.into(),
            stderr.tail.into(),
            integer(size as u64),
            id.into(),
        ],
    )?;
    Ok(())
}

fn integer(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}
