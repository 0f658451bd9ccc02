//! The database of records: folds journals in, finds what was interrupted, lists and prunes.
//!
//! Everything can be done twice, by several at once, and be stopped anywhere: a line counts once, an end counts once, and a
//! journal is removed only after what is in it is on disk.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::Serialize;

use super::database::{Database, DatabaseError, Place, Row, Value};
use super::fold;
use super::journal::{self, Journal, JournalError, Stream};
use super::migrations;
use super::owner::{Caller, Here, Owner};
use super::{SkillRun, Status, now};

/// How long to wait for somebody else who folds.
const PATIENCE: Duration = Duration::from_secs(10);

/// What went wrong with the records of the past. No run depends on it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum StoreError {
    /// The database could not be opened.
    #[error("cannot open the records in {place}: {source}")]
    Open { place: String, source: DatabaseError },
    /// The tables could not be changed to this version.
    #[error("cannot change the tables of the records to version {version} ({name}): {source}")]
    Migrate { version: i64, name: &'static str, source: DatabaseError },
    /// The tables are of a newer release.
    #[error("the records have version {found}, and this program knows up to {known}")]
    Newer { found: i64, known: i64 },
    /// No such version of the tables exists.
    #[error("there is no version {0} of the records")]
    NoVersion(i64),
    /// The journal could not be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file could not be locked.
    #[error("cannot lock `{}`: {source}", path.display())]
    Lock { path: PathBuf, source: std::io::Error },
    /// The database refused.
    #[error("cannot use the records: {0}")]
    Database(#[from] DatabaseError),
    /// No record has this id.
    #[error("there is no record `{0}`")]
    NoRecord(String),
    /// More than one id begins like this.
    #[error("`{id}` is the beginning of {count} records")]
    Ambiguous { id: String, count: usize },
}

/// What is kept of one execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// The id of the execution.
    pub id: String,
    /// Milliseconds since 1970; as a date in JSON.
    #[serde(serialize_with = "date")]
    pub began: i64,
    /// The same, where it has ended.
    #[serde(serialize_with = "date_or_none")]
    pub ended: Option<i64>,
    /// How it stands or ended.
    pub status: Status,
    /// The profile of its policy.
    pub profile: Option<String>,
    /// The engine that ran it.
    pub engine: Option<String>,
    /// The session or the container.
    pub sandbox: Option<String>,
    /// The command, redacted.
    pub command: Vec<String>,
    /// The working directory.
    pub workdir: Option<String>,
    /// Who asked for it.
    pub caller: Option<Caller>,
    /// The exit code, where it exited.
    pub exit_code: Option<i64>,
    /// The signal that ended it.
    pub signal: Option<i64>,
    /// Why Ringfence ended it, if it did.
    pub reason: Option<String>,
    /// What Ringfence itself had to say.
    pub error: Option<String>,
    /// Microseconds from start to end; milliseconds in JSON.
    #[serde(rename = "duration_ms", serialize_with = "millis")]
    pub duration_us: Option<i64>,
    /// Microseconds of CPU time; milliseconds in JSON.
    #[serde(rename = "cpu_ms", serialize_with = "millis")]
    pub cpu_us: Option<i64>,
    /// Bytes of memory at most.
    pub peak_memory: Option<i64>,
    /// What it wrote to stdout.
    pub stdout: Stream,
    /// What it wrote to stderr.
    pub stderr: Stream,
    /// What was promised, and how far each promise was kept.
    pub report: Option<serde_json::Value>,
    /// The skill that it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skill: Option<SkillRun>,
}

fn date<S: serde::Serializer>(millis: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(super::time(*millis)))
}

fn date_or_none<S: serde::Serializer>(millis: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    match millis {
        Some(millis) => date(millis, serializer),
        None => serializer.serialize_none(),
    }
}

fn millis<S: serde::Serializer>(micros: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    micros.map(|micros| micros / 1000).serialize(serializer)
}

/// Which records.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The latest so many.
    pub limit: Option<u64>,
    /// Begun at this time or later, in milliseconds since 1970.
    pub since: Option<i64>,
    /// That stand or ended like this.
    pub status: Option<Status>,
    /// Of this profile.
    pub profile: Option<String>,
    /// In the command, in capitals or not.
    pub command: Option<String>,
    /// Of this session or container.
    pub sandbox: Option<String>,
    /// Executions of this skill.
    pub skill: Option<String>,
}

/// What folding found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Folded {
    /// Lines that were read.
    pub lines: u64,
    /// Lines that could not be understood: a full disk cut them off, or somebody else wrote them.
    pub broken: u64,
}

/// What pruning removed, and what is left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Records that were removed.
    pub removed: u64,
    /// Records that are left.
    pub left: u64,
    /// Bytes that those take.
    pub size: u64,
}

/// Records of the past.
#[derive(Debug)]
pub struct Store {
    database: Database,
    /// How long to wait for somebody else who writes.
    patience: Duration,
}

impl Store {
    /// Opens the database and brings its tables up to date.
    pub fn open(place: &Place) -> Result<Store, StoreError> {
        Store::open_within(place, PATIENCE)
    }

    /// The same, without waiting for longer for somebody else who writes.
    pub fn open_within(place: &Place, patience: Duration) -> Result<Store, StoreError> {
        let mut store = Store::connect_within(place, patience)?;
        let known = migrations::latest();
        match store.version()? {
            found if found > known => Err(StoreError::Newer { found, known }),
            found if found == known => Ok(store),
            _ => store.migrate(known).map(|()| store),
        }
    }

    /// Opens the database as it is.
    pub fn connect(place: &Place) -> Result<Store, StoreError> {
        Store::connect_within(place, PATIENCE)
    }

    fn connect_within(place: &Place, patience: Duration) -> Result<Store, StoreError> {
        let name = match place {
            Place::File(path) => format!("`{}`", path.display()),
            // A password may be part of the address.
            Place::Url(_) => "the PostgreSQL database".to_owned(),
        };
        let failed = |source| StoreError::Open { place: name, source };
        Database::open(place, patience).map(|database| Store { database, patience }).map_err(failed)
    }

    /// What there is, where nothing can be written: the file of the database as it is and the journal beside it, taken into
    /// memory. How many lines of the journal that were.
    pub fn look(path: &Path, journal: &Journal) -> Result<(Store, Folded), StoreError> {
        // The journal first: what somebody folds meanwhile is read twice, and counts once.
        let (mut lines, mut broken) = (Vec::new(), 0);
        for file in journal.files()? {
            broken += journal::peek(&file, |line| {
                lines.push(line);
                Ok::<_, StoreError>(())
            })?;
        }
        let mut store = Store { database: Database::in_memory()?, patience: PATIENCE };
        store.migrate(migrations::latest())?;
        store.database.take_in(path, "executions")?;
        let folded = Folded { lines: lines.len() as u64, broken };
        store.database.transaction(|database| {
            lines.into_iter().try_for_each(|line| fold::line(database, line).map_err(StoreError::from))
        })?;
        let gone = store.gone()?;
        store.interrupted(gone)?;
        Ok((store, folded))
    }

    /// For what else is kept beside the records.
    pub fn database(&mut self) -> &mut Database {
        &mut self.database
    }

    /// The version of the tables; 0 when there are none.
    pub fn version(&mut self) -> Result<i64, StoreError> {
        self.database.transaction(|database| version(database).map_err(StoreError::from))
    }

    /// Changes the tables to a version, up or down, a step at a time.
    pub fn migrate(&mut self, to: i64) -> Result<(), StoreError> {
        if !(0..=migrations::latest()).contains(&to) {
            return Err(StoreError::NoVersion(to));
        }
        self.database.transaction(|database| {
            let found = version(database)?;
            let known = migrations::latest();
            if found > known {
                return Err(StoreError::Newer { found, known });
            }
            for migration in migrations::ALL.iter().filter(|m| m.version > found && m.version <= to) {
                let values = [migration.version.into(), migration.name.into(), now().into()];
                database
                    .batch(migration.up)
                    .and_then(|()| database.execute("INSERT INTO migrations VALUES ($1, $2, $3)", &values))
                    .map_err(|source| migrating(migration, source))?;
            }
            for migration in migrations::ALL.iter().rev().filter(|m| m.version <= found && m.version > to) {
                database
                    .batch(migration.down)
                    .and_then(|()| {
                        database.execute("DELETE FROM migrations WHERE version = $1", &[migration.version.into()])
                    })
                    .map_err(|source| migrating(migration, source))?;
            }
            Ok(())
        })
    }

    /// Brings everything up to date: folds the journal in, and finds out what was interrupted.
    pub fn refresh(&mut self, journal: &Journal) -> Result<Folded, StoreError> {
        let mut folded = self.fold(journal)?;
        let gone = self.gone()?;
        if gone.is_empty() {
            return Ok(folded);
        }
        // Whoever is gone now has written its last line by now: only what still has no end was interrupted.
        let more = self.fold(journal)?;
        folded = Folded { lines: folded.lines + more.lines, broken: folded.broken + more.broken };
        self.interrupted(gone)?;
        Ok(folded)
    }

    /// Executions without an end, of whoever is gone.
    fn gone(&mut self) -> Result<Vec<String>, StoreError> {
        let here = Here::look(!self.database.is_shared());
        let mut gone = Vec::new();
        for mut row in self.database.query("SELECT id, owner FROM executions WHERE status = 'running'", &[])? {
            let id = row.text()?;
            let owner = row.text()?.and_then(|owner| serde_json::from_str::<Owner>(&owner).ok());
            if owner.is_some_and(|owner| owner.is_gone(&here)) {
                gone.extend(id);
            }
        }
        Ok(gone)
    }

    fn interrupted(&mut self, ids: Vec<String>) -> Result<(), StoreError> {
        for id in ids {
            let interrupt = "UPDATE executions SET status = 'interrupted' WHERE id = $1 AND status = 'running'";
            self.database.execute(interrupt, &[id.into()])?;
        }
        Ok(())
    }

    /// Folds the journal into the database.
    pub fn fold(&mut self, journal: &Journal) -> Result<Folded, StoreError> {
        let Some(_lock) = lock(journal.dir(), self.patience)? else { return Ok(Folded::default()) };
        journal.seal()?;
        let mut folded = Folded::default();
        for segment in journal.segments()? {
            // Until nobody has written more meanwhile.
            let mut size = None;
            loop {
                let length = match segment.metadata() {
                    Ok(data) => data.len(),
                    // A writer has dropped it, since there was too much.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
                    Err(source) => return Err(JournalError::Read { path: segment, source }.into()),
                };
                if size == Some(length) {
                    std::fs::remove_file(&segment)
                        .map_err(|source| JournalError::Remove { path: segment.clone(), source })?;
                    break;
                }
                let first = size.is_none();
                size = Some(length);
                let (lines, broken) = self.fold_segment(&segment)?;
                if first {
                    folded = Folded { lines: folded.lines + lines, broken: folded.broken + broken };
                }
            }
        }
        Ok(folded)
    }

    fn fold_segment(&mut self, segment: &Path) -> Result<(u64, u64), StoreError> {
        self.database.transaction(|database| {
            let mut lines = 0;
            let broken = journal::read(segment, |line| {
                lines += 1;
                fold::line(database, line).map_err(StoreError::from)
            })?;
            Ok((lines, broken))
        })
    }

    /// The records that match, the latest first.
    pub fn list(&mut self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        let Filter { limit, since, status, profile, command, sandbox, skill } = filter;
        let mut values: Vec<Value> = Vec::new();
        let mut conditions = Vec::new();
        let mut add = |condition: &str, value: Value| {
            values.push(value);
            conditions.push(condition.replace("$?", &format!("${}", values.len())));
        };
        if let Some(since) = since {
            add("began >= $?", (*since).into());
        }
        match status {
            Some(Status::Lost) => add("reason = $?", Status::Lost.name().into()),
            Some(Status::Signaled) => {
                add("status = $?", Status::Signaled.name().into());
                add("coalesce(reason, '') <> $?", Status::Lost.name().into());
            }
            Some(status) => add("status = $?", status.name().into()),
            None => {}
        }
        if let Some(profile) = profile {
            add("profile = $?", profile.as_str().into());
        }
        if let Some(sandbox) = sandbox {
            add("sandbox = $?", sandbox.as_str().into());
        }
        if let Some(skill) = skill {
            add("skill = $?", skill.as_str().into());
        }
        if let Some(text) = command {
            let text = text.to_lowercase().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            add("lower(line) LIKE $? ESCAPE '\\'", format!("%{text}%").into());
        }
        let conditions = if conditions.is_empty() { "1 = 1".to_owned() } else { conditions.join(" AND ") };
        let limit = i64::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(i64::MAX);
        self.select(&format!("{conditions} ORDER BY began DESC, id DESC LIMIT {limit}"), &values)
    }

    /// One record, by its id or the beginning of it.
    pub fn show(&mut self, id: &str) -> Result<Record, StoreError> {
        let prefix = id.to_ascii_uppercase();
        let condition = format!("substr(id, 1, {}) = $1 ORDER BY id LIMIT 100", prefix.chars().count().max(1));
        let mut found = self.select(&condition, &[prefix.into()])?;
        match (found.len(), found.pop()) {
            (1, Some(record)) => Ok(record),
            (0, _) => Err(StoreError::NoRecord(id.to_owned())),
            (count, _) => Err(StoreError::Ambiguous { id: id.to_owned(), count }),
        }
    }

    fn select(&mut self, condition: &str, values: &[Value]) -> Result<Vec<Record>, StoreError> {
        let statement = format!("SELECT {COLUMNS} FROM executions WHERE {condition}");
        let rows = self.database.query(&statement, values)?;
        rows.into_iter().map(|row| record(row).map_err(StoreError::from)).collect()
    }

    /// Removes what is older, then the oldest until the rest takes no more than `max_size`. What still runs stays.
    pub fn prune(&mut self, older_than: Option<Duration>, max_size: Option<u64>) -> Result<Pruned, StoreError> {
        let pruned = self.database.transaction(|database| {
            let mut removed = 0;
            if let Some(age) = older_than {
                let before = now().saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
                let older = "DELETE FROM executions WHERE began < $1 AND status <> 'running'";
                removed += database.execute(older, &[before.into()])?;
            }
            if let Some(max) = max_size {
                let max = i64::try_from(max).unwrap_or(i64::MAX);
                removed += database.execute(
                    "DELETE FROM executions WHERE status <> 'running' AND id IN (
                         SELECT id FROM (
                             SELECT id, SUM(size) OVER (ORDER BY began DESC, id DESC) AS total FROM executions
                         ) AS sums WHERE total > CAST($1 AS BIGINT))",
                    &[max.into()],
                )?;
            }
            let sums = "SELECT COUNT(*), CAST(COALESCE(SUM(size), 0) AS BIGINT) FROM executions";
            let mut pruned = Pruned { removed, ..Pruned::default() };
            for mut row in database.query(sums, &[])? {
                pruned.left = unsigned(row.integer()?).unwrap_or(0);
                pruned.size = unsigned(row.integer()?).unwrap_or(0);
            }
            Ok::<_, StoreError>(pruned)
        })?;
        if pruned.removed > 0 && !self.database.is_shared() {
            // Gives the space back. Somebody who reads meanwhile puts it off to the next time.
            let given_back = self.database.query("PRAGMA incremental_vacuum", &[]);
            let _ = given_back.and_then(|_| self.database.query("PRAGMA wal_checkpoint(TRUNCATE)", &[]));
        }
        Ok(pruned)
    }
}

/// Whoever folds holds this; `None` where there is nothing to fold.
fn lock(dir: &Path, patience: Duration) -> Result<Option<File>, StoreError> {
    let path = dir.join("lock");
    let failed = |source| StoreError::Lock { path: path.clone(), source };
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let deadline = Instant::now() + patience;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}

fn migrating(migration: &migrations::Migration, source: DatabaseError) -> StoreError {
    StoreError::Migrate { version: migration.version, name: migration.name, source }
}

fn version(database: &mut Database) -> Result<i64, DatabaseError> {
    database.batch(
        "CREATE TABLE IF NOT EXISTS migrations (version BIGINT PRIMARY KEY, name TEXT NOT NULL, applied BIGINT NOT NULL)",
    )?;
    match database.query("SELECT MAX(version) FROM migrations", &[])?.pop() {
        Some(mut row) => Ok(row.integer()?.unwrap_or(0)),
        None => Ok(0),
    }
}

fn unsigned(number: Option<i64>) -> Option<u64> {
    number.and_then(|number| u64::try_from(number).ok())
}

/// In the order in which [`record`] takes them.
const COLUMNS: &str = "id, began, ended, status, profile, engine, sandbox, command, workdir, caller, exit_code, signal,
    reason, error, duration_us, cpu_us, peak_memory, stdout_bytes, stdout_head, stdout_tail, stderr_bytes, stderr_head,
    stderr_tail, report, skill, skill_hash, skill_version";

fn record(mut row: Row) -> Result<Record, DatabaseError> {
    let json = |text: Option<String>| text.unwrap_or_default();
    let mut record = Record {
        id: row.text()?.unwrap_or_default(),
        began: row.integer()?.unwrap_or(0),
        ended: row.integer()?,
        status: row.text()?.as_deref().and_then(Status::parse).ok_or(DatabaseError::Unexpected("an unknown status"))?,
        profile: row.text()?,
        engine: row.text()?,
        sandbox: row.text()?,
        command: serde_json::from_str(&json(row.text()?)).unwrap_or_default(),
        workdir: row.text()?,
        caller: serde_json::from_str(&json(row.text()?)).ok(),
        exit_code: row.integer()?,
        signal: row.integer()?,
        reason: row.text()?,
        error: row.text()?,
        duration_us: row.integer()?,
        cpu_us: row.integer()?,
        peak_memory: row.integer()?,
        stdout: Stream { bytes: unsigned(row.integer()?), head: row.text()?, tail: row.text()? },
        stderr: Stream { bytes: unsigned(row.integer()?), head: row.text()?, tail: row.text()? },
        report: serde_json::from_str(&json(row.text()?)).ok(),
        skill: match (row.text()?, row.text()?, row.text()?) {
            (Some(name), Some(hash), version) => Some(SkillRun { name, version, hash }),
            _ => None,
        },
    };
    // One story, whoever tells it: no signal ended it that anybody sent.
    if record.reason.as_deref() == Some(Status::Lost.name()) {
        (record.status, record.signal) = (Status::Lost, None);
    }
    Ok(record)
}
