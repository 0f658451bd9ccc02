//! The registry of skills on real databases: the same tests on SQLite and on PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ringfence::code::requirements::Requirements;
use ringfence::code::{Language, Status};
use ringfence::policy::layers::content_hash;
use ringfence::records::{Begin, End, Filter, Journal, Place, Recorder, Redactor, Store};
use ringfence::skills::registry::Which;
use ringfence::skills::scan::Verdict;
use ringfence::skills::{New, Registry, Scanner, Schema, Skill, SkillError, Source};
use serde_json::json;

struct Shelf {
    dir: tempfile::TempDir,
    place: Place,
}

impl Shelf {
    fn registry(&self) -> Registry {
        Registry::open(&self.place).unwrap()
    }

    fn sql(&self, statements: &str) -> Result<(), String> {
        match &self.place {
            Place::File(path) => {
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.execute_batch(statements).map_err(|error| error.to_string())
            }
            Place::Url(url) => {
                let mut client = postgres::Client::connect(url, postgres::NoTls).unwrap();
                client.batch_execute(statements).map_err(|error| error.to_string())
            }
        }
    }
}

fn on_both(test: fn(&Shelf)) {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::File(dir.path().join("records.db"));
    test(&Shelf { dir, place });
    let Some(postgres) = ringfence_testing::Postgres::start() else { return };
    test(&Shelf { dir: tempfile::tempdir().unwrap(), place: Place::Url(postgres.database("skills")) });
}

fn new(name: &str, code: &str) -> New {
    New {
        name: name.to_owned(),
        version: None,
        language: Language::named("python").unwrap(),
        code: code.to_owned(),
        source: None,
        requirements: None,
        inputs: None,
        hosts: Vec::new(),
        sandbox_required: true,
    }
}

fn which(text: &str) -> Which {
    Which::parse(text)
}

fn verdict(skill: &Skill) -> Verdict {
    skill.scan.as_ref().unwrap().verdict
}

#[test]
fn versions_are_kept() {
    on_both(|shelf| {
        let mut registry = shelf.registry();
        let first = registry.add(&new("greet", "print('a')"), &Scanner::InProcess).unwrap();
        assert_eq!((first.version.as_str(), first.hash.as_str()), ("1", content_hash(b"print('a')").as_str()));
        assert_eq!((first.language.as_str(), first.source, verdict(&first)), ("python", Source::Local, Verdict::Clean));
        // The same once more is the same.
        assert_eq!(registry.add(&new("greet", "print('a')"), &Scanner::InProcess).unwrap().version, "1");
        let second = registry.add(&new("greet", "print('é \u{1F600} \\' ; --')"), &Scanner::InProcess).unwrap();
        assert_eq!(second.version, "2");
        let named = registry
            .add(&New { version: Some("1.0+x".into()), ..new("greet", "print('a')") }, &Scanner::InProcess)
            .unwrap();
        assert_eq!(named.hash, first.hash);
        assert_eq!(registry.find(&which("greet")).unwrap().version, "1.0+x");
        assert_eq!(registry.find(&which("greet@2")).unwrap().code, "print('é \u{1F600} \\' ; --')");
        assert_eq!(registry.find(&which(&format!("greet@{}", second.hash))).unwrap().version, "2");
        // The beginning of a hash will do, if it says which.
        let digits = second.hash.strip_prefix("sha256:").unwrap();
        for short in [&digits[..6], &digits[..40], &second.hash[..15]] {
            assert_eq!(registry.find(&which(&format!("greet@{short}"))).unwrap().version, "2");
            assert_eq!(registry.versions(&which(&format!("greet@{short}"))).unwrap().skills.len(), 1);
        }
        for none in [&digits[..5], "sha256:", "ffffffffff"] {
            assert!(matches!(registry.find(&which(&format!("greet@{none}"))), Err(SkillError::NoVersion { .. })));
        }
        let versions = registry.versions(&which("greet")).unwrap().skills;
        assert_eq!(versions.iter().map(|s| s.version.as_str()).collect::<Vec<_>>(), ["1.0+x", "2", "1"]);
        let taken = registry.add(&New { version: Some("1".into()), ..new("greet", "print('b')") }, &Scanner::InProcess);
        assert!(matches!(taken, Err(SkillError::VersionTaken { .. })), "{taken:?}");
        registry.add(&new("another", "1"), &Scanner::InProcess).unwrap();
        let names: Vec<String> =
            registry.list().unwrap().skills.into_iter().map(|s| s.name + "@" + &s.version).collect();
        assert_eq!(names, ["another@1", "greet@1.0+x"]);

        assert!(matches!(registry.find(&which("nobody")), Err(SkillError::NoSkill(_))));
        assert!(matches!(registry.find(&which("greet@9")), Err(SkillError::NoVersion { .. })));
        assert!(matches!(registry.find(&which("' OR 1=1 --")), Err(SkillError::NoSkill(_))));

        // Code goes with the last version that has it.
        let removed = registry.remove(&which("greet@1")).unwrap();
        assert_eq!((removed.versions.len(), removed.versions[0].version.as_str(), removed.others), (1, "1", 2));
        assert_eq!(registry.find(&which("greet")).unwrap().code, "print('a')");
        let removed = registry.remove(&which("greet")).unwrap();
        assert_eq!((removed.versions.len(), removed.others), (2, 0));
        assert!(matches!(registry.remove(&which("greet")), Err(SkillError::NoSkill(_))));
        let other = New { language: Language::named("bash").unwrap(), ..new("greet", "print('a')") };
        assert_eq!(registry.add(&other, &Scanner::InProcess).unwrap().language, "bash");
        assert!(matches!(
            registry.add(&new("greet2", "print('a')"), &Scanner::InProcess),
            Err(SkillError::OtherLanguage(_))
        ));
    });
}

#[test]
fn what_may_not_run() {
    on_both(|shelf| {
        let mut registry = shelf.registry();
        let schema = r#"{"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}"#;
        let inputs = Some(Schema::parse(schema, "schema").unwrap());
        let double = registry.add(&New { inputs, ..new("double", "result = x * 2") }, &Scanner::InProcess).unwrap();
        let code = double.code(json!({ "x": 21 }), Verdict::Clean, None, None).unwrap();
        assert_eq!((code.name.as_deref(), &code.inputs), (Some("double.py"), &json!({ "x": 21 })));
        assert!(matches!(
            double.code(json!({ "x": "21" }), Verdict::Clean, None, None),
            Err(SkillError::Inputs { .. })
        ));
        // The time of the check counts as part of the run.
        let list = r#"{"properties": {"x": {"items": {"type": "integer"}}}}"#;
        let list = Some(Schema::parse(list, "schema").unwrap());
        let list = registry.add(&New { inputs: list, ..new("list", "len(x)") }, &Scanner::InProcess).unwrap();
        let started = std::time::Instant::now();
        let code = list.code(json!({ "x": vec![1; 300_000] }), Verdict::Clean, None, None).unwrap();
        assert!(code.spent >= Duration::from_millis(1) && code.spent <= started.elapsed(), "{:?}", code.spent);
        registry.remove(&which("list")).unwrap();
        // Added again without a word about them, its inputs are what they were; also under another version.
        for version in [None, Some("5".to_owned())] {
            let again = registry.add(&New { version, ..new("double", "result = x * 2") }, &Scanner::InProcess).unwrap();
            assert!(matches!(
                again.code(json!({ "x": "21" }), Verdict::Clean, None, None),
                Err(SkillError::Inputs { .. })
            ));
        }
        assert_eq!(registry.remove(&which("double@5")).unwrap().versions.len(), 1);
        // What came from the community does not become somebody's own by a word.
        let source = Some(Source::Community);
        registry.add(&New { source, ..new("theirs", "2") }, &Scanner::InProcess).unwrap();
        for (version, sandbox_required) in [(None, true), (Some("1".to_owned()), false), (Some("7".to_owned()), true)] {
            let relabelled = New { source: Some(Source::Local), version, sandbox_required, ..new("theirs", "2") };
            assert!(matches!(registry.add(&relabelled, &Scanner::InProcess), Err(SkillError::OfTheCommunity { .. })));
        }
        assert_eq!(registry.add(&new("theirs", "2"), &Scanner::InProcess).unwrap().source, Source::Community);
        // Nor by another name.
        let renamed = New { source: Some(Source::Local), ..new("mine", "2") };
        assert!(matches!(registry.add(&renamed, &Scanner::InProcess), Err(SkillError::OfTheCommunity { .. })));
        let optional = New { source: None, sandbox_required: false, ..new("mine", "2") };
        assert!(matches!(registry.add(&optional, &Scanner::InProcess), Err(SkillError::SandboxRequired)));
        let unnamed = registry.add(&New { source: None, ..new("mine", "2") }, &Scanner::InProcess).unwrap();
        assert!(unnamed.source == Source::Community && unnamed.sandbox_required);
        registry.remove(&which("mine")).unwrap();
        registry.remove(&which("theirs")).unwrap();
        let vouched = New { source: Some(Source::Local), ..new("theirs", "2") };
        assert_eq!(registry.add(&vouched, &Scanner::InProcess).unwrap().source, Source::Local);

        let bad = registry
            .add(&new("bad", "import base64\nexec(base64.b64decode('cHJpbnQoMSk='))"), &Scanner::InProcess)
            .unwrap();
        assert_eq!(verdict(&bad), Verdict::Dangerous);
        assert!(!bad.scan.as_ref().unwrap().findings.is_empty());
        for allowed in [Verdict::Clean, Verdict::Review] {
            assert!(matches!(bad.code(json!({}), allowed, None, None), Err(SkillError::Verdict { .. })));
        }
        assert!(bad.code(json!({}), Verdict::Dangerous, None, None).is_ok());
        // One that nobody scanned is not let through unseen.
        shelf.sql("UPDATE skills SET verdict = NULL, findings = NULL, scanned = NULL WHERE name = 'bad'").unwrap();
        let unseen = registry.find(&which("bad")).unwrap();
        assert!(unseen.scan.is_none());
        assert!(matches!(unseen.code(json!({}), Verdict::Dangerous, None, None), Err(SkillError::NotScanned { .. })));
        assert_eq!(verdict(&registry.rescan(&which("bad"), &Scanner::InProcess).unwrap()), Verdict::Dangerous);

        assert_eq!(registry.set_disabled(&which("double"), true).unwrap().versions.len(), 1);
        let disabled = registry.find(&which("double")).unwrap();
        assert!(matches!(
            disabled.code(json!({ "x": 1 }), Verdict::Dangerous, None, None),
            Err(SkillError::Disabled { .. })
        ));
        // Adding it once more does not let it run again.
        assert!(registry.add(&new("double", "result = x * 2"), &Scanner::InProcess).unwrap().disabled);
        registry.set_disabled(&which("double"), false).unwrap();
        assert!(registry.find(&which("double")).unwrap().code(json!({ "x": 1 }), Verdict::Clean, None, None).is_ok());

        let declared = "import urllib.request\nurllib.request.urlopen('https://api.example.org/x')";
        let undeclared = registry.add(&new("net", declared), &Scanner::InProcess).unwrap();
        let hosts = vec!["api.example.org".to_owned()];
        let known = registry
            .add(&New { hosts, version: Some("2".into()), ..new("net", declared) }, &Scanner::InProcess)
            .unwrap();
        assert!(verdict(&known) < verdict(&undeclared), "{:?} {:?}", known.scan, undeclared.scan);
        assert_eq!(verdict(&registry.rescan(&which("net@2"), &Scanner::InProcess).unwrap()), verdict(&known));
    });
}

#[test]
fn what_cannot_be_registered() {
    on_both(|shelf| {
        let mut registry = shelf.registry();
        for name in ["", "a b", "../x", "-x", "a@b", "é", &"x".repeat(65)] {
            assert!(matches!(registry.add(&new(name, "1"), &Scanner::InProcess), Err(SkillError::Name(_))), "{name}");
        }
        for version in ["", "a/b", " 1", "1@2", "-1"] {
            let add = New { version: Some(version.into()), ..new("x", "1") };
            assert!(matches!(registry.add(&add, &Scanner::InProcess), Err(SkillError::Version(_))), "{version}");
        }
        for version in ["abcdef", "20261119"] {
            let add = New { version: Some(version.to_owned()), ..new("x", "1") };
            assert!(matches!(registry.add(&add, &Scanner::InProcess), Err(SkillError::VersionIsHash(_))), "{version}");
        }
        assert!(matches!(registry.add(&new("x", "a\0b"), &Scanner::InProcess), Err(SkillError::Nul)));
        assert!(matches!(
            registry.add(&new("x", &" ".repeat((4 << 20) + 1)), &Scanner::InProcess),
            Err(SkillError::TooLarge(_))
        ));
        let host = New { hosts: vec!["a b".into()], ..new("x", "1") };
        assert!(matches!(registry.add(&host, &Scanner::InProcess), Err(SkillError::Host(_))));
        let community = New { source: Some(Source::Community), sandbox_required: false, ..new("x", "1") };
        assert!(matches!(registry.add(&community, &Scanner::InProcess), Err(SkillError::SandboxRequired)));
        assert!(registry.list().unwrap().skills.is_empty());
        let local = New { sandbox_required: false, ..new("x", "1") };
        assert!(!registry.add(&local, &Scanner::InProcess).unwrap().sandbox_required);
        assert!(
            registry
                .add(&New { source: Some(Source::Community), ..new("y", "1") }, &Scanner::InProcess)
                .unwrap()
                .sandbox_required
        );
        // Not by the table either.
        assert!(shelf.sql("UPDATE skills SET sandbox_required = 0 WHERE name = 'y'").is_err());
        assert!(shelf.sql("UPDATE skills SET source = 'elsewhere'").is_err());
        // Code that somebody changed is not believed.
        shelf.sql("UPDATE skill_code SET code = 'import os'").unwrap();
        assert!(matches!(registry.find(&which("x")), Err(SkillError::Corrupt(row)) if row.what == "code"));
    });
}

/// A version that cannot be believed is named and does not run; it hides no other skill, and no earlier version runs for it.
#[test]
fn a_bad_row_hides_no_other() {
    on_both(|shelf| {
        let mut registry = shelf.registry();
        let python = Language::named("python").unwrap();
        let wanted = |text: &str| Requirements::new(python, text.to_owned(), None).ok();
        registry.add(&new("good", "1"), &Scanner::InProcess).unwrap();
        registry.add(&new("twice", "1"), &Scanner::InProcess).unwrap();
        registry.add(&New { requirements: wanted("numpy"), ..new("twice", "2") }, &Scanner::InProcess).unwrap();
        registry.add(&New { requirements: wanted("requests"), ..new("bad", "3") }, &Scanner::InProcess).unwrap();
        registry
            .add(&New { inputs: Some(Schema::parse("{}", "x").unwrap()), ..new("odd", "4") }, &Scanner::InProcess)
            .unwrap();
        assert_eq!(registry.list().unwrap().skills.len(), 4);
        // As if a later program had written it, or another rule held now.
        shelf.sql("UPDATE skills SET requirements = REPLACE(requirements, 'numpy', '-r /etc/passwd')").unwrap();
        shelf.sql("UPDATE skills SET requirements = 'nothing' WHERE name = 'bad'").unwrap();
        shelf.sql("UPDATE skills SET inputs = '{\"type\": 7}' WHERE name = 'odd'").unwrap();
        let listed = registry.list().unwrap();
        let names: Vec<&str> = listed.skills.iter().map(|skill| skill.name.as_str()).collect();
        assert_eq!(names, ["good"]);
        let bad: Vec<(&str, &str)> = listed.unreadable.iter().map(|row| (row.name.as_str(), row.what)).collect();
        assert_eq!(bad, [("bad", "requirements"), ("odd", "inputs"), ("twice", "requirements")]);
        assert!(registry.find(&which("good")).unwrap().code(json!({}), Verdict::Clean, None, None).is_ok());
        let error = registry.find(&which("twice")).unwrap_err();
        assert!(matches!(&error, SkillError::Corrupt(row) if row.version == "2"), "{error}");
        assert!(error.to_string().contains("`twice` 2"), "{error}");
        // Asked for by its name, the earlier one is as good as ever.
        assert_eq!(registry.find(&which("twice@1")).unwrap().code, "1");
        assert_eq!(registry.versions(&which("twice")).unwrap().unreadable.len(), 1);
        // And it can be cleared away.
        registry.remove(&which("twice@2")).unwrap();
        assert_eq!(registry.find(&which("twice")).unwrap().version, "1");
    });
}

#[test]
fn executions_are_found() {
    on_both(|shelf| {
        let mut registry = shelf.registry();
        let skill = registry.add(&new("greet", "print('a')"), &Scanner::InProcess).unwrap();
        let recorder = Recorder::new(shelf.dir.path(), Redactor::default(), None);
        let command = [OsString::from("skill"), "run".into(), "greet".into()];
        let run = skill.run();
        for (sandbox, skill) in [(None, Some(&run)), (Some("s-1"), Some(&run)), (None, None)] {
            let begin = Begin {
                profile: Some("skill"),
                engine: Some("native"),
                sandbox,
                command: &command,
                workdir: None,
                report: None,
                caller: None,
                skill,
            };
            recorder.begin(&begin).end(&End::failed("no")).unwrap();
        }
        let mut store = Store::open(&shelf.place).unwrap();
        store.refresh(&Journal::new(shelf.dir.path())).unwrap();
        drop(store);
        registry.remove(&which("greet")).unwrap();
        let ran = registry.executions("greet", None).unwrap();
        assert_eq!(ran.len(), 2);
        assert!(ran.iter().all(|record| record.skill.as_ref() == Some(&run)));
        // A box of one execution has its id.
        assert_eq!(ran[0].sandbox.as_deref(), Some("s-1"));
        assert_eq!(ran[1].sandbox.as_deref(), Some(ran[1].id.as_str()));
        assert_eq!(registry.executions("greet", Some(1)).unwrap().len(), 1);
    });
}

#[test]
fn many_at_once() {
    on_both(|shelf| {
        drop(shelf.registry());
        std::thread::scope(|scope| {
            for n in 0..4 {
                scope.spawn(move || {
                    let mut registry = shelf.registry();
                    (0..5).for_each(|i| {
                        drop(registry.add(&new("busy", &format!("print({n}, {i})")), &Scanner::InProcess).unwrap())
                    });
                });
            }
        });
        let mut versions: Vec<u32> = shelf
            .registry()
            .versions(&which("busy"))
            .unwrap()
            .skills
            .iter()
            .map(|s| s.version.parse().unwrap())
            .collect();
        versions.sort();
        assert_eq!(versions, (1..=20).collect::<Vec<_>>());
    });
}

/// What was there before skills had a source is from the cloud, and needs the sandbox.
#[test]
fn migrations_keep_skills_and_what_ran() {
    const LATEST: i64 = 4;
    on_both(|shelf| {
        let mut store = Store::connect(&shelf.place).unwrap();
        store.migrate(LATEST).unwrap();
        let hash = content_hash(b"print(1)");
        let recorder = Recorder::new(shelf.dir.path(), Redactor::default(), None);
        let command = [OsString::from("old")];
        recorder.begin(&Begin { command: &command, ..Begin::default() }).end(&End::failed("")).unwrap();
        store.refresh(&Journal::new(shelf.dir.path())).unwrap();
        let old = store.list(&Filter::default()).unwrap();
        assert_eq!(old.len(), 1);
        store.migrate(2).unwrap();
        shelf
            .sql(&format!(
                "INSERT INTO skill_code VALUES ('{hash}', 'python', 'print(1)', 1);
                 INSERT INTO skills (name, version, hash, added) VALUES ('greet', '1', '{hash}', 1);
                 INSERT INTO skills (name, version, hash, source, added) VALUES ('other', '1', '{hash}', 'community', 1);
                 UPDATE executions SET skill = 'greet', skill_hash = '{hash}';"
            ))
            .unwrap();
        store.migrate(LATEST).unwrap();
        let ran = store.list(&Filter { skill: Some("greet".into()), ..Filter::default() }).unwrap();
        assert_eq!(ran.len(), 1);
        let mut registry = shelf.registry();
        let greet = registry.find(&which("greet")).unwrap();
        assert_eq!((greet.source, greet.sandbox_required, greet.hosts.len()), (Source::Cloud, true, 0));
        assert!(greet.scan.is_none() && registry.rescan(&which("greet"), &Scanner::InProcess).unwrap().scan.is_some());
        assert_eq!(registry.list().unwrap().skills.len(), 2);
        drop(registry);

        // Without the tables of skills, executions are as they were, but for which skill they ran.
        store.migrate(1).unwrap();
        store.migrate(LATEST).unwrap();
        assert_eq!(store.list(&Filter::default()).unwrap(), old);
        assert!(shelf.registry().list().unwrap().skills.is_empty());
    });
}

#[test]
fn as_an_ordinary_user() {
    ringfence_testing::as_an_ordinary_user(&[]);
}

/// Inputs whose check takes longer than the time of the run: it ends as every run that is out of time, and nothing has run.
#[test]
fn inputs_are_checked_within_the_time_limit() {
    let schema = json!({ "properties": { "x": { "items": { "anyOf": vec![json!({ "type": "null" }); 100] } } } });
    let inputs = Some(Schema::parse(&schema.to_string(), "schema").unwrap());
    let dir = tempfile::tempdir().unwrap();
    let place = Place::File(dir.path().join("records.db"));
    let shelf = Shelf { dir, place };
    let skill = shelf.registry().add(&New { inputs, ..new("slow", "1") }, &Scanner::InProcess).unwrap();
    let costly = || json!({ "x": vec![7; 6_000] });
    let ended = |limit: Option<Duration>, cancel: Option<BorrowedFd<'_>>| match skill.code(
        costly(),
        Verdict::Clean,
        limit,
        cancel,
    ) {
        Err(SkillError::NotChecked { result, .. }) => (result.status, result.limit),
        other => panic!("{other:?}"),
    };
    let started = std::time::Instant::now();
    let limit = Some(Duration::from_millis(1));
    assert_eq!(ended(limit, None), (Status::Timeout, Some("timeout".to_owned())));
    let (cancel, write) = std::io::pipe().unwrap();
    drop(write);
    assert_eq!(ended(None, Some(cancel.as_fd())), (Status::Cancelled, None));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let cheap = skill.code(json!({ "x": [null] }), Verdict::Clean, Some(Duration::from_secs(10)), None);
    assert_eq!(cheap.unwrap().inputs, json!({ "x": [null] }));
}
