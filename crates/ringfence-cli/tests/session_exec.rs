//! `ringfence session exec` through the program: where a command starts and with what, and what is recorded of it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sessions::{Here, kill, seconds, sleeping, wait};
use support::{Done, names};

#[test]
fn starts_where_it_is_told() {
    let here = Here::new();
    std::fs::create_dir(here.0.project.join("sub")).unwrap();
    let id = here.create(&[]);
    here.exec(&[&id, "--", "pwd"]).expect(0, "/workspace\n");
    here.exec(&[&id, "--cwd", "sub", "--", "pwd"]).expect(0, "/workspace/sub\n");
    here.exec(&[&id, "-C", "/tmp", "--", "pwd"]).expect(0, "/tmp\n");
    for wrong in ["none", "/workspace/sub/none"] {
        let done = here.exec(&[&id, "--cwd", wrong, "--", "touch", "made"]);
        assert!(done.code == 125 && done.err.contains("directory"), "{wrong}: {done:?}");
    }
    assert!(!here.0.project.join("made").exists() && !here.0.project.join("sub/made").exists());
}

#[test]
fn gets_the_variables_that_are_named() {
    let here = Here::new();
    let id = here.create(&[]);
    let script = "echo \"${PASSED-no} ${SET-no} ${ABSENT-no} ${OTHER-no}\"";
    let mut command = here.0.command([
        "session",
        "exec",
        &id,
        "--env",
        "PASSED",
        "--env",
        "SET=a=b c",
        "--env",
        "ABSENT",
        "--",
        "sh",
        "-c",
        script,
    ]);
    command.env("PASSED", "ours").env("SET", "not this").env("OTHER", "not asked for");
    Done::new(command.output().unwrap()).expect(0, "ours a=b c no no\n");
    // For that one command.
    here.exec(&[&id, "--", "sh", "-c", script]).expect(0, "no no no no\n");
}

/// A repository that a command made is named at its end, and by `stop` and `show` also where it was made in the background.
#[test]
fn names_repositories_that_were_made() {
    let make = |name: &str| {
        format!(
            "mkdir -p {name}/.git/objects {name}/.git/refs; echo ref: refs/heads/x >{name}/.git/HEAD; echo >{name}/.git/config"
        )
    };
    let here = Here::new();
    let id = here.create(&[]);
    let clean = here.exec(&[&id, "--", "sh", "-c", "mkdir sub; echo x >sub/file"]);
    assert!(clean.code == 0 && clean.err.is_empty(), "{clean:?}");
    let done = here.exec(&[&id, "--", "sh", "-c", &make("sub")]);
    assert!(done.code == 0 && done.err.contains("sub/.git` was made or changed"), "{done:?}");
    here.exec(&[&id, "--background", "--", "sh", "-c", &make("later")]);
    wait("it ran", || here.0.project.join("later/.git/config").exists());
    for act in ["show", "stop"] {
        let done = here.session(&[act, &id]);
        for name in ["sub", "later"] {
            assert!(done.err.contains(&format!("{name}/.git` was made or changed")), "{act}: {done:?}");
        }
    }
    // What a command does to break `.git`, which git then passes over.
    for (name, text) in
        [("HEAD", "ref: refs/heads/main\n"), ("config", ""), ("objects/info/x", ""), ("refs/heads/x", "")]
    {
        here.0.write(&format!("project/.git/{name}"), text);
    }
    let id = here.create(&[]);
    let done = here.exec(&[&id, "--", "rm", ".git/HEAD"]);
    assert!(done.code == 0 && done.err.contains(".git` is no repository any more"), "{done:?}");
}

#[test]
fn in_the_background_with_json() {
    let here = Here::new();
    let id = here.create(&["named"]);
    let start = Instant::now();
    let json =
        here.exec(&["named", "--background", "--json", "--", "sh", "-c", "sleep 0.3; echo later; exit 7"]).json();
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(
        (&json["status"], &json["session"], &json["execution"]),
        (&"running".into(), &id.as_str().into(), &"1".into())
    );
    here.ringfence(&["session", "logs", &id, "1", "--follow"]);
    let logs = here.ringfence(&["session", "logs", &id, "1", "--json"]).json();
    let one = &logs["executions"][0];
    assert_eq!((&one["stdout"], &one["exit_code"]), (&"later\n".into(), &7.into()));
    let failed = here.exec(&["named", "--background", "--json", "--", "/none/such"]);
    assert_eq!((failed.code, &failed.json()["status"]), (127, &"failed".into()));
}

/// A session is of the directory that it was made in, wherever one stands later and whatever that is called by then.
#[test]
fn the_working_directory_is_that_of_the_creation() {
    let here = Here::new();
    let id = here.create(&[]);
    let from = |dir: &PathBuf, text: &str| {
        let mut command = here.0.command(["session", "exec", &id, "--", "sh", "-c", text]);
        Done::new(command.current_dir(dir).output().unwrap())
    };
    let elsewhere = here.0.home.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    from(&elsewhere, "pwd; echo one > one").expect(0, "/workspace\n");
    assert!(here.0.project.join("one").exists() && names(&elsewhere).is_empty());
    let renamed = here.0.home.join("renamed");
    std::fs::rename(&here.0.project, &renamed).unwrap();
    // Another one takes its name.
    std::fs::create_dir(&here.0.project).unwrap();
    from(&elsewhere, "cat one; echo two > two").expect(0, "one\n");
    assert!(renamed.join("two").exists() && names(&here.0.project).is_empty());
}

#[test]
fn a_record_has_everything() {
    let here = Here::new();
    let id = here.create(&["named"]);
    let script = "echo out; echo error >&2; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 3";
    let record = here.exec(&["named", "--json", "--", "sh", "-c", script]).json()["record"].clone();
    here.exec(&["named", "--timeout", "200ms", "--", "sleep", "60"]);
    here.exec(&["named", "--", "sh", "-c", "kill -9 $$"]);
    here.exec(&["named", "--", "/none/such"]);
    let found = here.records(&id);
    assert_eq!(found.len(), 4);
    let [failed, killed, late, exited] = <[Value; 4]>::try_from(found).unwrap();

    assert_eq!((&exited["id"], &exited["status"]), (&record, &"exited".into()));
    assert_eq!((&exited["exit_code"], &exited["signal"], &exited["reason"]), (&3.into(), &Value::Null, &Value::Null));
    assert_eq!(exited["command"], serde_json::json!(["sh", "-c", script]));
    assert_eq!((&exited["profile"], &exited["engine"]), (&"shell".into(), &"native".into()));
    assert_eq!((&exited["sandbox"], &exited["error"]), (&id.as_str().into(), &Value::Null));
    assert_eq!(exited["workdir"], here.0.project.to_str().unwrap());
    assert!(exited["caller"].is_object(), "{exited}");
    let number = |record: &Value, name: &str| record[name].as_u64().unwrap_or_else(|| panic!("{name}: {record}"));
    assert!(number(&exited, "duration_ms") > 0 && number(&exited, "cpu_ms") > 0);
    assert!(number(&exited, "peak_memory") > 100_000);
    assert_eq!((&exited["stdout"]["bytes"], &exited["stderr"]["bytes"]), (&4.into(), &6.into()));
    // Nobody asked for what it wrote.
    assert_eq!((&exited["stdout"]["head"], &exited["stdout"]["tail"]), (&Value::Null, &Value::Null));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    assert!(text(&exited["began"]) <= text(&exited["ended"]) && text(&exited["began"]).ends_with('Z'));
    let guarantees = exited["report"]["guarantees"].as_array().unwrap();
    assert!(guarantees.iter().any(|answer| answer["id"] == "proc.isolated" && answer["state"] == "enforced"));

    assert_eq!((&late["reason"], &late["command"][0]), (&"time".into(), &"sleep".into()));
    assert!(number(&late, "duration_ms") >= 200);
    assert_eq!((&killed["status"], &killed["signal"]), (&"signaled".into(), &9.into()));
    assert_eq!(failed["status"], "failed");
    assert!(
        text(&failed["error"]).contains("/none/such") || text(&failed["error"]).contains("No such file"),
        "{failed}"
    );
}

#[test]
fn head_and_tail_of_what_it_wrote_when_asked_for() {
    let here = Here::new();
    here.0.write(".config/ringfence/config.toml", "[records]\noutput = true\n");
    let id = here.create(&[]);
    let script = "echo first; head -c 300000 /dev/zero | tr '\\0' x; echo; echo last; echo error >&2";
    for flags in [&["--json"][..], &[], &["--background"]] {
        let done = here.exec(&[&[id.as_str()], flags, &["--", "sh", "-c", script]].concat());
        assert_eq!(done.code, 0, "{}", done.err);
    }
    wait("all have ended", || here.records(&id).iter().all(|record| record["status"] == "exited"));
    let found = here.records(&id);
    assert_eq!(found.len(), 3);
    for record in found {
        let out = &record["stdout"];
        assert_eq!(out["bytes"], 6 + 300_000 + 1 + 5);
        let (head, tail) = (out["head"].as_str().unwrap(), out["tail"].as_str().unwrap());
        assert!(head.starts_with("first\nxxx") && tail.ends_with("xxx\nlast\n"), "{record}");
        assert!(head.len() + tail.len() < 10_000);
        assert_eq!(record["stderr"]["head"], "error\n");
    }
}

#[test]
fn strict_refuses_what_it_cannot_record() {
    let here = Here::new();
    let unlimited = ["--memory", "none", "--cpus", "none", "--pids", "none"];
    let strict = here.create(&[&unlimited[..], &["--strict"]].concat());
    let optional = here.create(&[&unlimited[..], &["--strict", "--optional", "record.complete"]].concat());
    here.exec(&[&strict, "--", "echo", "recorded"]).expect(0, "recorded\n");
    let journal = here.dir().join("journal");
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    for _ in 0..2 {
        let refused = here.exec(&[&strict, "--", "touch", "made"]);
        assert!(refused.code == 125 && refused.err.contains("record"), "{refused:?}");
    }
    assert!(!here.0.project.join("made").exists(), "it ran");
    here.exec(&[&optional, "--", "touch", "made"]).expect(0, "");
    assert!(here.0.project.join("made").exists());
    // As soon as it can, it runs.
    std::fs::remove_dir(&journal).unwrap();
    here.exec(&[&strict, "--", "echo", "again"]).expect(0, "again\n");
    assert_eq!(here.records(&strict)[0]["command"][1], "again");
}

#[test]
fn what_a_killed_supervisor_ran_is_interrupted() {
    let here = Here::new();
    let id = here.create(&[]);
    let nap = seconds(30);
    here.exec(&[&id, "--", "echo", "done"]).expect(0, "done\n");
    here.exec(&[&id, "--background", "--", "sleep", &nap]).expect(0, "2\n");
    wait("it runs", || !sleeping(&nap).is_empty());
    assert_eq!(here.records(&id)[0]["status"], "running");
    for pid in sessions::supervisors(&here.0.home) {
        kill(pid, libc::SIGKILL);
    }
    wait("it ends", || sleeping(&nap).is_empty());
    // Killed, it may be there for a moment.
    wait("it is gone", || sessions::supervisors(&here.0.home).is_empty());
    let found = here.records(&id);
    let [last, first] = <[Value; 2]>::try_from(found).unwrap();
    assert_eq!((&last["status"], &last["ended"]), (&"interrupted".into(), &Value::Null));
    assert_eq!((&first["status"], &first["exit_code"]), (&"exited".into(), &0.into()));
}

/// Another program that has the database to itself until it is killed.
struct Locked(Child);

impl Locked {
    fn new(here: &Here) -> Locked {
        let script = "import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('BEGIN EXCLUSIVE')
print(db.execute('PRAGMA journal_mode').fetchone()[0], flush=True)
time.sleep(120)";
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", script]).arg(here.dir().join("records.db")).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut mode = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut mode).unwrap();
        assert_eq!(mode, "wal\n");
        Locked(child)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // It may have failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_locked_database_is_nobodys_trouble() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return support::skip("a locked database", "python3 is not installed");
    }
    let here = Here::new();
    let id = here.create(&[]);
    here.exec(&[&id, "--", "echo", "before"]).expect(0, "before\n");
    assert_eq!(here.records(&id).len(), 1);
    let locked = Locked::new(&here);
    // Who writes waits for ten seconds, who looks for one.
    let start = Instant::now();
    for _ in 0..3 {
        let done = here.exec(&[&id, "--", "echo", "session"]).expect(0, "session\n");
        assert_eq!(done.err, "");
        let done = here.0.run(&[], "echo run").expect(0, "run\n");
        assert_eq!(done.err, "");
    }
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    let start = Instant::now();
    let looked = here.ringfence(&["history", "--json", "--session", &id]);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert_eq!(looked.json()["records"].as_array().unwrap().len(), 4, "the journal is read all the same");
    assert!(looked.err.lines().count() == 1 && looked.err.contains("locked"), "{}", looked.err);
    drop(locked);
    let found = here.records(&id);
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|record| record["status"] == "exited"), "{found:?}");
}

/// Ignores TERM, in a session of its own, and is nobody's child.
const ORPHAN: &str = "(trap '' TERM HUP; setsid sleep @ >/dev/null 2>&1 &)";

/// Beside another one a command has a reaper: its parent, which finds all that it started.
#[test]
fn nothing_outlives_a_time_limit() {
    let here = Here::new();
    let id = here.create(&[]);
    let [orphan, neighbour] = [seconds(71), seconds(72)];
    let beside = format!("{}; exec sleep {neighbour}", ORPHAN.replace('@', &orphan));
    assert_eq!(here.exec(&[&id, "--background", "--", "sh", "-c", &beside]).code, 0);
    wait("they run", || !sleeping(&orphan).is_empty() && !sleeping(&neighbour).is_empty());
    let on_term = |act: &str| {
        format!("reaper=$PPID; setsid sh -c \"trap '{act}' TERM; while :; do sleep 0.02; done\" >/dev/null 2>&1 &")
    };
    let [obeys, takes_long] = ["exit 3", "sleep 0.4; exit 3"].map(|act| format!("trap '{act}' TERM"));
    let ways = [
        ("killed before the TERM", "kill -KILL $PPID".to_owned(), &obeys),
        ("killed at the TERM", on_term("kill -KILL $reaper"), &takes_long),
        ("killed after the command's end", on_term("sleep 0.3; kill -KILL $reaper"), &obeys),
        ("stopped", "(trap '' TERM; while kill -STOP $PPID; do :; done) >/dev/null 2>&1 &".to_owned(), &obeys),
    ];
    for (number, (way, attack, trap)) in (73..).zip(ways) {
        let seconds = seconds(number);
        let orphan = ORPHAN.replace('@', &seconds);
        let script = format!("{orphan}\n{attack}\n{trap}\necho ready; while :; do sleep 0.02; done");
        let done = here.exec(&[&id, "--timeout", "1s", "--json", "--", "sh", "-c", &script]);
        let left = sleeping(&seconds);
        assert!(left.is_empty(), "its reaper was {way}: told before {left:?} was gone");
        let json = done.json();
        assert_eq!((done.code, &json["reason"]), (124, &"time".into()), "{way}: {done:?}");
        assert_eq!(json["stdout"], "ready\n", "{way}");
    }
    // The other half: one that lets its reaper be, and obeys.
    let script = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let done = here.exec(&[&id, "--timeout", "1s", "--json", "--", "sh", "-c", script]);
    let json = done.json();
    assert_eq!((done.code, &json["reason"]), (124, &"time".into()), "{done:?}");
    assert_eq!(json["stdout"], "ready\nbye\n");
    assert!(!sleeping(&orphan).is_empty() && !sleeping(&neighbour).is_empty(), "a neighbour and its orphan");
}

/// A command that stops its own reaper is ended by its client all the same, with what it orphaned.
#[test]
fn who_stops_its_reaper_can_be_stopped() {
    let here = Here::new();
    let id = here.create(&[]);
    let [orphan, neighbour] = [seconds(81), seconds(82)];
    assert_eq!(here.exec(&[&id, "--background", "--", "sleep", &neighbour]).code, 0);
    for stop in ["kill -STOP $PPID", "(trap '' TERM; while kill -STOP $PPID; do :; done) >/dev/null 2>&1 &"] {
        let script = format!("{}\n{stop}\ntrap '' TERM; while :; do sleep 0.02; done", ORPHAN.replace('@', &orphan));
        let execution = here.exec(&[&id, "--background", "--", "sh", "-c", &script]).out;
        wait("it runs", || !sleeping(&orphan).is_empty() && !sleeping(&neighbour).is_empty());
        let start = Instant::now();
        here.session(&["stop", &id, execution.trim()]).expect(0, "");
        assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
        assert!(sleeping(&orphan).is_empty(), "{stop}");
    }
    assert!(!sleeping(&neighbour).is_empty(), "a neighbour");
    here.exec(&[&id, "--", "echo", "on"]).expect(0, "on\n");
}

#[test]
fn who_stops_reapers_changes_no_report() {
    let here = Here::new();
    let id = here.create(&[]);
    here.exec(&[&id, "--background", "--", "sleep", &seconds(81)]);
    let waits = |state: &str| format!("until grep -q 'State.*{state}' /proc/$PPID/status; do sleep 0.02; done; exit 7");
    let run = |script: &str| here.exec(&[&id, "--timeout", "10s", "--", "sh", "-c", script]);
    for _ in 0..2 {
        run("echo out; exit 7").expect(7, "out\n");
        run(&waits("sleeping")).expect(7, "");
    }
    // Whatever is called as a reaper is stopped, all the time.
    let stopper = "while :; do for p in /proc/[0-9]*; do
        read -r name <$p/comm && [ \"$name\" = guest ] && kill -STOP ${p#/proc/}; done; done 2>/dev/null";
    assert_eq!(here.exec(&[&id, "--background", "--", "sh", "-c", stopper]).code, 0);
    for _ in 0..3 {
        run("echo out; exit 7").expect(7, "out\n");
        run(&waits("stopped")).expect(7, "");
    }
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
