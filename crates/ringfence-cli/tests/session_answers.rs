//! What `ringfence session …` answers: logs that are harmless on a terminal, what is not kept, names, one JSON object each.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/person.rs"]
mod person;
#[path = "support/sessions.rs"]
mod sessions;
mod support;

use person::Terminal;
use sessions::Here;
use support::Done;

#[test]
fn logs_do_not_act_on_a_terminal() {
    let here = Here::new();
    let id = here.create(&[]);
    let script = r"printf 'title \033]0;evil\007 end\n'; printf 'wrong \033[2J\n' >&2";
    here.session(&["exec", &id, "--", "sh", "-c", script]);
    // Into a pipe, byte for byte.
    let raw = here.session(&["logs", &id, "1"]);
    assert_eq!((raw.out.as_str(), raw.err.as_str()), ("title \x1b]0;evil\x07 end\n", "wrong \x1b[2J\n"));
    let mut terminal = Terminal::open(&here.0);
    for which in [id.clone(), format!("{id} 1"), format!("{id} 1 --follow")] {
        let shown = terminal.line(&format!("$R session logs {which}"));
        assert!(shown.contains(r"title \u{1b}]0;evil\u{7} end") && shown.contains(r"wrong \u{1b}[2J"), "{shown:?}");
        assert!(!shown.contains("\x1b]0;") && !shown.contains("\x1b[2J"), "{shown:?}");
    }
}

#[test]
fn what_there_is_no_log_of() {
    let here = Here::new();
    let id = here.create(&[]);
    let missing = |execution: &str, words: &str| {
        let done = here.session(&["logs", &id, execution]);
        assert!(done.code == 125 && done.err.contains(words), "{execution}: {}", done.err);
    };
    here.session(&["exec", &id, "--", "/none/such"]);
    missing("1", "could not be started");
    missing("2", "no execution `2`");
    here.session(&["exec", &id, "--", "true"]).expect(0, "");
    missing("1", "could not be started");
    for _ in 0..66 {
        here.session(&["exec", &id, "--", "true"]).expect(0, "");
    }
    missing("2", "is not kept any more: the last 64");
    here.session(&["logs", &id, "68"]).expect(0, "");
}

#[test]
fn a_session_that_nobody_knows_is_ended() {
    let here = Here::new();
    for flags in [&[][..], &["--json"], &["named"]] {
        let mut command = here.0.command([&["session", "create"], flags].concat());
        command.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        let done = Done::new(command.output().unwrap());
        assert!(done.code == 125 && done.err.contains("was ended again"), "{}: {}", done.code, done.err);
        assert_eq!(here.session(&["list", "--json"]).json()["sessions"].as_array().unwrap().len(), 0);
    }
    // One that somebody has stays.
    let id = here.create(&["mine"]);
    let mut command = here.0.command(["session", "create", "mine", "--reuse"]);
    command.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let done = Done::new(command.output().unwrap());
    assert!(done.code == 125 && done.err.contains(&id), "{}: {}", done.code, done.err);
    here.session(&["exec", "mine", "--", "true"]).expect(0, "");
}

#[test]
fn names_and_words() {
    let here = Here::new();
    for (name, words) in [("s-0123456789ab", "looks like an id"), (".x", "begin with `.`"), ("a b", "letters, digits")]
    {
        let done = here.session(&["create", name]);
        assert!(done.code == 125 && done.err.contains(words), "{name}: {}", done.err);
    }
    let done = here.session(&["create", "--", "-x"]);
    assert!(done.code == 125 && done.err.contains("begin with `-`"), "{}", done.err);
    // Both words for both kinds of flags.
    here.create(&["w", "--idle", "none", "--life", "never", "--memory", "never", "--pids", "none"]);
    here.session(&["stop", "w"]).expect(0, "");
    for name in ["w", "nobody"] {
        let done = here.session(&["exec", name, "--", "true"]);
        assert!(done.code == 125 && done.err.contains("--reuse"), "{name}: {}", done.err);
    }
}

#[test]
fn one_object_each() {
    let here = Here::new();
    let (id, other) = (here.create(&["one"]), here.create(&["two"]));
    let started = here.session(&["exec", "one", "--background", "--json", "--", "sleep", "60"]).json();
    assert_eq!((&started["status"], &started["execution"]), (&"running".into(), &"1".into()));
    assert!(started["record"].as_str().is_some_and(|record| record.len() == 26), "{started}");
    let stopped = here.session(&["stop", "one", "1", "--json"]).json();
    assert_eq!((&stopped["session"], &stopped["execution"]), (&id.as_str().into(), &"1".into()));
    let extended = here.session(&["extend", "one", "--life", "never", "--json"]).json();
    assert_eq!((&extended["id"], &extended["expires_ms"]), (&id.as_str().into(), &serde_json::Value::Null));
    let stopped = here.session(&["stop", "one", "--json"]).json();
    assert_eq!((&stopped["session"], &stopped["state"]), (&id.as_str().into(), &"ended".into()));
    let removed = here.session(&["rm", "two", "nobody", "--json"]);
    assert_eq!((removed.code, &removed.json()["removed"]), (125, &serde_json::json!(["two"])), "{other}");
    assert_eq!(removed.json()["failed"][0]["session"], "nobody");
    let cleared = here.0.ringfence(&["gc", "--json"]).json();
    assert_eq!(cleared, serde_json::json!({ "ended": [id], "lost": [], "installations": 0 }));
    // What was not tried has no number, and says so.
    let failed = here.session(&["exec", "nobody", "--json", "--", "true"]).json();
    for key in ["session", "execution", "record"] {
        assert_eq!(failed.get(key), Some(&serde_json::Value::Null), "{failed}");
    }
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
