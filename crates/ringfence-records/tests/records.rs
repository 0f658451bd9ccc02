//! Records on real databases: the same tests on SQLite and on PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_records::{
    Begin, End, Filter, Journal, Place, Record, Recorder, Redactor, Status, Store, StoreError, journal,
};

/// The version of the tables.
const LATEST: i64 = 4;

/// A directory with a journal, and a database.
struct Archive {
    dir: tempfile::TempDir,
    place: Place,
}

impl Archive {
    fn new(place: impl Fn(&Path) -> Place) -> Archive {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        Archive { dir, place }
    }

    fn journal(&self) -> Journal {
        Journal::new(self.dir.path())
    }

    fn recorder(&self) -> Recorder {
        Recorder::new(self.dir.path(), Redactor::default(), None)
    }

    /// Records one that ended.
    fn ran(&self, command: &[&str], profile: &str, sandbox: Option<&str>) {
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let begin = begin(&command, profile, sandbox);
        let end = End { status: Status::Exited, exit_code: Some(3), error: None, ..End::failed("") };
        self.recorder().begin(&begin).end(&end).unwrap();
    }

    fn store(&self) -> Store {
        let mut store = Store::open(&self.place).unwrap();
        store.refresh(&self.journal()).unwrap();
        store
    }

    /// Writes lines as they are.
    fn write(&self, lines: &[String]) {
        use std::io::Write;
        let mut file =
            std::fs::OpenOptions::new().append(true).create(true).open(self.dir.path().join("journal")).unwrap();
        lines.iter().for_each(|line| file.write_all(format!("{line}\n").as_bytes()).unwrap());
    }

    /// Every database statement, as a person would run it.
    fn sql(&self, statements: &str) {
        match &self.place {
            Place::File(path) => rusqlite::Connection::open(path).unwrap().execute_batch(statements).unwrap(),
            Place::Url(url) => {
                postgres::Client::connect(url, postgres::NoTls).unwrap().batch_execute(statements).unwrap();
            }
        }
    }
}

fn begin<'a>(command: &'a [OsString], profile: &'a str, sandbox: Option<&'a str>) -> Begin<'a> {
    let workdir = Some(Path::new("/work"));
    Begin {
        profile: Some(profile),
        engine: Some("native"),
        sandbox,
        command,
        workdir,
        report: None,
        caller: None,
        skill: None,
    }
}

fn commands(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| record.command.join(" ")).collect()
}

fn sqlite(dir: &Path) -> Place {
    Place::File(dir.join("records.db"))
}

fn on_both(test: fn(&dyn Fn() -> Archive)) {
    test(&|| Archive::new(sqlite));
    let Some(postgres) = ringfence_testing::Postgres::start() else { return };
    let count = std::cell::Cell::new(0);
    test(&|| {
        count.set(count.get() + 1);
        let url = postgres.database(&format!("records{}", count.get()));
        Archive::new(|_| Place::Url(url.clone()))
    });
}

#[test]
fn filters() {
    on_both(|archive| {
        let archive = archive();
        archive.ran(&["git", "Push", "100%"], "agent", None);
        archive.ran(&["say", "it's \"quoted\" \\ é"], "shell", Some("s-1"));
        archive.recorder().failed(&begin(&["nope".into()], "agent", None), "not found").unwrap();
        let running = archive.recorder().begin(&begin(&["sleep".into()], "shell", Some("s-2")));
        let mut store = archive.store();
        let mut found = |filter: Filter| commands(&store.list(&filter).unwrap()).join("|");
        let all = Filter::default;
        assert_eq!(found(all()).split('|').count(), 4);
        assert_eq!(found(Filter { limit: Some(1), ..all() }), "sleep");
        assert_eq!(
            found(Filter { profile: Some("agent".into()), status: Some(Status::Exited), ..all() }),
            "git Push 100%"
        );
        assert_eq!(found(Filter { status: Some(Status::Failed), ..all() }), "nope");
        assert_eq!(found(Filter { status: Some(Status::Running), ..all() }), "sleep");
        assert_eq!(found(Filter { sandbox: Some("s-1".into()), ..all() }), "say it's \"quoted\" \\ é");
        for (text, expected) in [
            ("git push", "git Push 100%"),
            ("100%", "git Push 100%"),
            ("1_0", ""),
            ("\"quoted\" \\ é", "say it's \"quoted\" \\ é"),
            ("'; DROP TABLE executions; --", ""),
        ] {
            assert_eq!(found(Filter { command: Some(text.into()), ..all() }), expected, "{text}");
        }
        assert_eq!(found(Filter { since: Some(i64::MAX), ..all() }), "");
        assert_eq!(found(Filter { since: Some(0), ..all() }).split('|').count(), 4);

        let records = store.list(&Filter::default()).unwrap();
        for record in &records {
            assert_eq!(store.show(&record.id.to_lowercase()).unwrap(), *record);
        }
        assert!(matches!(store.show("01"), Err(StoreError::Ambiguous { count: 4, .. })));
        assert!(matches!(store.show("ZZ"), Err(StoreError::NoRecord(_))));
        assert!(matches!(store.show(""), Err(StoreError::NoRecord(_))));
        drop(running);
        assert_eq!(archive.store().show(&records[0].id).unwrap().status, Status::Interrupted);
    });
}

/// Lines in any order, twice, without their other half.
#[test]
fn folding_again_changes_nothing() {
    on_both(|archive| {
        let archive = archive();
        archive.ran(&["one"], "agent", None);
        archive.journal().seal().unwrap();
        let segment = archive.journal().segments().unwrap().remove(0);
        let text = std::fs::read_to_string(&segment).unwrap();
        let lines: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        let once = archive.store().list(&Filter::default()).unwrap();
        assert_eq!((once.len(), once[0].status, once[0].exit_code), (1, Status::Exited, Some(3)));

        archive.write(&lines);
        archive.write(&lines);
        assert_eq!(archive.store().list(&Filter::default()).unwrap(), once);

        let before = archive.store().prune(None, None).unwrap();
        let other = ["01ARZ3NDEKTSV4RRFFQ69G5FAV", &once[0].id];
        let renamed: Vec<String> = lines.iter().rev().map(|line| line.replace(other[1], other[0])).collect();
        archive.write(&renamed[..1]);
        let alone = archive.store().show(other[0]).unwrap();
        assert_eq!((alone.status, alone.command.len()), (Status::Exited, 0));
        archive.write(&renamed);
        let both = archive.store().show(other[0]).unwrap();
        assert_eq!((both.status, both.command.join(" ").as_str(), both.began), (Status::Exited, "one", once[0].began));
        assert_eq!(archive.store().prune(None, None).unwrap().left, before.left + 1);

        archive.write(&["{}".into(), "{\"id\":\"x\"}".into(), "no json".into(), "[".repeat(5000), "\u{0}".into()]);
        let folded = Store::open(&archive.place).unwrap().refresh(&archive.journal()).unwrap();
        assert_eq!(folded.broken, 4);
        assert_eq!(archive.store().list(&Filter::default()).unwrap().len(), 2);
    });
}

/// A writer that is gone, one whose number is somebody else's now, one before the last start, one that lives.
#[test]
fn what_was_interrupted() {
    on_both(|archive| {
        let archive = archive();
        let living = archive.recorder().begin(&begin(&["living".into()], "agent", None));
        archive.journal().seal().unwrap();
        let text = std::fs::read_to_string(archive.journal().segments().unwrap().remove(0)).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        let with = |name: &str, id: &str, key: &str, value: serde_json::Value| {
            let mut line = line.clone();
            line["id"] = id.into();
            line["begin"]["command"] = vec![name].into();
            line["begin"]["owner"][key] = value;
            line.to_string()
        };
        archive.write(&[
            with("gone", "01ARZ3NDEKTSV4RRFFQ69G5FA0", "pid", i32::MAX.into()),
            with("reused", "01ARZ3NDEKTSV4RRFFQ69G5FA1", "start", 1.into()),
            with("earlier", "01ARZ3NDEKTSV4RRFFQ69G5FA2", "boot", "another".into()),
            with("elsewhere", "01ARZ3NDEKTSV4RRFFQ69G5FA3", "namespace", "pid:[1]".into()),
        ]);
        let mut store = archive.store();
        let mut with_status = |status| {
            let mut found = commands(&store.list(&Filter { status: Some(status), ..Filter::default() }).unwrap());
            found.sort();
            found.join(" ")
        };
        assert_eq!(with_status(Status::Interrupted), "earlier gone reused");
        assert_eq!(with_status(Status::Running), "elsewhere living");
        // Its end was on the way all the same.
        let mut end: serde_json::Value =
            serde_json::from_str(&with("", "01ARZ3NDEKTSV4RRFFQ69G5FA0", "pid", 1.into())).unwrap();
        end.as_object_mut().unwrap().remove("begin");
        let stream = serde_json::json!({ "bytes": 5, "head": null, "tail": null });
        end["end"] = serde_json::json!({ "time": 1, "status": "exited", "exit_code": 0, "signal": null, "reason": "time",
            "error": null, "duration_us": 5, "cpu_us": 5, "peak_memory": 5, "stdout": stream, "stderr": stream });
        archive.write(&[end.to_string()]);
        let found = archive.store().show("01ARZ3NDEKTSV4RRFFQ69G5FA0").unwrap();
        assert_eq!(
            (found.status, found.reason.as_deref(), found.stdout.bytes),
            (Status::Exited, Some("time"), Some(5))
        );
        drop(living);
    });
}

#[test]
fn pruning() {
    on_both(|archive| {
        let archive = archive();
        let long = "x".repeat(3000);
        for n in 0..300 {
            archive.ran(&[&format!("{n}"), &long], "agent", None);
        }
        let mut store = archive.store();
        let size = |archive: &Archive| match &archive.place {
            Place::File(path) => {
                let wal = path.with_extension("db-wal").metadata().map_or(0, |data| data.len());
                path.metadata().unwrap().len() + wal
            }
            Place::Url(_) => u64::MAX,
        };
        let all = store.prune(Some(Duration::from_secs(3600)), None).unwrap();
        assert_eq!((all.removed, all.left), (0, 300));
        let large = size(&archive);
        let some = store.prune(None, Some(all.size / 3)).unwrap();
        assert!(
            some.size <= all.size / 3 && some.left == 300 - some.removed && (90..=100).contains(&some.left),
            "{some:?}"
        );
        let left = commands(&store.list(&Filter::default()).unwrap());
        assert!(left[0].starts_with("299 ") && left[some.left as usize - 1].starts_with(&format!("{} ", some.removed)));
        assert!(size(&archive) < large / 2 || large == u64::MAX, "{} {large}", size(&archive));
        // What still runs stays, however old.
        let running = archive.recorder().begin(&begin(&["running".into()], "agent", None));
        store.refresh(&archive.journal()).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let one = store.prune(Some(Duration::from_millis(1)), Some(1)).unwrap();
        assert_eq!((one.removed, one.left), (some.left, 1));
        drop(running);
        store.refresh(&archive.journal()).unwrap();
        let none = store.prune(Some(Duration::from_millis(1)), None).unwrap();
        assert_eq!((none.removed, none.left, none.size), (1, 0, 0));
    });
}

/// Up, down and up again with rows in place.
#[test]
fn migrations_go_both_ways() {
    on_both(|archive| {
        let archive = archive();
        let mut store = Store::connect(&archive.place).unwrap();
        assert_eq!(store.version().unwrap(), 0);
        store.migrate(LATEST).unwrap();
        for n in 0..20 {
            archive.ran(&["old", &format!("{n}")], "agent", Some("s"));
        }
        store.refresh(&archive.journal()).unwrap();
        let old = store.list(&Filter::default()).unwrap();
        assert_eq!(old.len(), 20);

        // To each version and back: what it did not add stays.
        for version in (1..LATEST).rev() {
            store.migrate(version).unwrap();
            assert_eq!(store.version().unwrap(), version);
            store.migrate(LATEST).unwrap();
            assert_eq!(store.list(&Filter::default()).unwrap(), old, "{version}");
        }

        store.migrate(0).unwrap();
        assert_eq!(store.version().unwrap(), 0);
        assert!(matches!(store.migrate(99), Err(StoreError::NoVersion(99))));
        store.migrate(LATEST).unwrap();
        assert!(store.list(&Filter::default()).unwrap().is_empty());

        archive.sql("INSERT INTO migrations VALUES (99, 'later', 1)");
        assert!(matches!(Store::open(&archive.place), Err(StoreError::Newer { found: 99, .. })));
        assert!(matches!(store.migrate(1), Err(StoreError::Newer { found: 99, .. })));
    });
}

/// A step that fails leaves everything as it was.
#[test]
fn a_failed_migration_changes_nothing() {
    on_both(|archive| {
        let archive = archive();
        let mut store = Store::open(&archive.place).unwrap();
        archive.ran(&["kept"], "agent", None);
        store.refresh(&archive.journal()).unwrap();
        store.migrate(1).unwrap();
        // In the way of the second half of the step.
        archive.sql("CREATE TABLE skills (x BIGINT)");
        assert!(matches!(store.migrate(2), Err(StoreError::Migrate { version: 2, .. })));
        assert_eq!(store.version().unwrap(), 1);
        archive.sql("DROP TABLE skills");
        store.migrate(LATEST).unwrap();
        assert_eq!(commands(&store.list(&Filter::default()).unwrap()), ["kept"]);
    });
}

/// Nobody is refused because others open it for the first time, or close it as the last ones.
#[test]
fn many_open_and_close() {
    for _ in 0..20 {
        let archive = Archive::new(sqlite);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20).for_each(|_| drop(Store::open(&archive.place).unwrap())));
            }
        });
    }
}

/// Several who open, fold and prune at once.
#[test]
fn many_at_once() {
    on_both(|archive| {
        let archive = archive();
        std::thread::scope(|scope| {
            for n in 0..4 {
                let archive = &archive;
                scope.spawn(move || (0..25).for_each(|i| archive.ran(&[&format!("{n}-{i}")], "agent", None)));
                scope.spawn(move || {
                    for _ in 0..5 {
                        archive.store().prune(Some(Duration::from_secs(60)), Some(1 << 30)).unwrap();
                    }
                });
            }
        });
        let records = archive.store().list(&Filter::default()).unwrap();
        assert_eq!(records.len(), 100);
        assert!(records.iter().all(|record| record.status == Status::Exited));
    });
}

/// A database that cannot be used keeps the journal as it is.
#[test]
fn a_broken_database_costs_nothing() {
    let archive = Archive::new(sqlite);
    archive.ran(&["kept"], "agent", None);
    let Place::File(path) = &archive.place else { unreachable!() };
    std::fs::write(path, "this is no database, and long enough to look like one".repeat(100)).unwrap();
    assert!(matches!(Store::open(&archive.place), Err(StoreError::Open { .. } | StoreError::Database(_))));
    std::fs::remove_file(path).unwrap();
    assert_eq!(commands(&archive.store().list(&Filter::default()).unwrap()), ["kept"]);

    // Broken in the middle, after it was opened.
    let mut store = archive.store();
    archive.ran(&["later"], "agent", None);
    archive.sql("ALTER TABLE executions RENAME TO away");
    assert!(store.refresh(&archive.journal()).is_err());
    archive.sql("ALTER TABLE away RENAME TO executions");
    assert_eq!(commands(&archive.store().list(&Filter::default()).unwrap()), ["later", "kept"]);
}

#[test]
fn only_a_local_database() {
    for url in
        ["postgresql://example.org/x", "postgresql://192.0.2.1/x", "postgresql:///x?host=/run&hostaddr=192.0.2.1"]
    {
        let error = Store::open(&Place::Url(url.to_owned())).unwrap_err().to_string();
        assert!(error.contains("another machine") || error.contains("hostaddr"), "{url}: {error}");
    }
    let error = Store::open(&Place::Url("postgresql://u:secret@127.0.0.1:1/x".to_owned())).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"));
}

/// A folder that is killed between the database and the journal leaves what the next one finishes.
#[test]
fn a_sealed_journal_is_found_again() {
    let archive = Archive::new(sqlite);
    archive.ran(&["one"], "agent", None);
    archive.journal().seal().unwrap();
    archive.ran(&["two"], "agent", None);
    let sealed: PathBuf = archive.journal().segments().unwrap().remove(0);
    let copy = archive.dir.path().join("copy");
    std::fs::copy(&sealed, &copy).unwrap();
    assert_eq!(commands(&archive.store().list(&Filter::default()).unwrap()), ["two", "one"]);
    // As if it had not been removed.
    std::fs::rename(&copy, &sealed).unwrap();
    assert_eq!(commands(&archive.store().list(&Filter::default()).unwrap()), ["two", "one"]);
    let nothing = journal::read::<ringfence_records::JournalError>(&sealed, |_| Ok(()));
    assert!(nothing.is_err());
}
