//! Records through the program: every run has one, nothing stops a run, `history` finds them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use support::{Done, Place, program};

fn dir(place: &Place) -> PathBuf {
    place.home.join(".local/state/ringfence/records")
}

fn records(place: &Place, flags: &[&str]) -> Vec<serde_json::Value> {
    let done = place.ringfence(&[&["history", "--json", "--limit", "0"], flags].concat());
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    done.json()["records"].as_array().unwrap().clone()
}

/// All that was written anywhere about runs.
fn written(place: &Place) -> String {
    let files = std::fs::read_dir(dir(place)).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    files.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

#[test]
fn every_run_has_a_record() {
    let place = Place::new();
    place.run(&[], "exit 3");
    place.run(&["--profile", "shell", "--timeout", "200ms"], "sleep 60");
    place.ringfence(&["run", "no-such-program"]);
    place.ringfence(&["run", "--ro", "/no/such", "true"]);
    place.write("project/data", "no program");
    place.ringfence(&["run", "./data"]);
    place.ringfence(&["run", "--memory", "lots", "true"]);
    let json = place.run(&["--json"], "kill -9 $$; echo").json();
    place.ringfence(&["run", "--dry-run", "true"]);
    place.ringfence(&["run", "--bogus"]);

    let found = records(&place, &[]);
    let seen: Vec<(&str, Option<i64>, &str)> = found
        .iter()
        .map(|r| (r["status"].as_str().unwrap(), r["exit_code"].as_i64(), r["command"][0].as_str().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [
            ("signaled", None, "sh"),
            ("failed", None, "true"),
            ("failed", None, "./data"),
            ("failed", None, "true"),
            ("failed", None, "no-such-program"),
            ("signaled", None, "sh"),
            ("exited", Some(3), "sh"),
        ]
    );
    assert_eq!(found[0]["id"], json["record"]);
    assert_eq!((&found[0]["signal"], &found[0]["stdout"]["bytes"]), (&9.into(), &0.into()));
    assert_eq!((&found[5]["reason"], &found[5]["profile"]), (&"time".into(), &"shell".into()));
    assert!(found[3]["error"].as_str().unwrap().contains("/no/such"));
    let first = &found[6];
    assert_eq!(first["engine"], "native");
    assert_eq!(first["workdir"], place.project.to_str().unwrap());
    assert_eq!(first["caller"]["pid"], std::process::id());
    assert!(first["duration_ms"].is_u64() && first["peak_memory"].as_u64().unwrap() > 0);
    let answers = first["report"]["guarantees"].as_array().unwrap();
    assert!(answers.iter().any(|a| a["id"] == "record.complete" && a["state"] == "enforced"), "{answers:?}");
    // Nothing lies about, and nobody else can read it.
    use std::os::unix::fs::PermissionsExt;
    for entry in std::fs::read_dir(dir(&place)).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{entry:?}");
    }
}

#[test]
fn lists_shows_and_filters() {
    let place = Place::new();
    place.run(&[], "echo 'two words'; exit 4");
    place.ringfence(&["run", "--profile", "shell", "true"]);
    place.ringfence(&["run", "nope"]);
    let list = place.ringfence(&["history"]);
    let lines: Vec<&str> = list.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", list.out);
    assert!(
        lines[2].contains("  exited 4 ") && lines[2].ends_with("sh -c 'echo '\\''two words'\\''; exit 4'"),
        "{}",
        list.out
    );
    let count = |flags: &[&str]| records(&place, flags).len();
    for (flags, expected) in [
        (&["--status", "exited"][..], 2),
        (&["--status", "failed"], 1),
        (&["--status", "running"], 0),
        (&["--profile", "shell"], 1),
        (&["--command", "TWO words"], 1),
        (&["--command", "three"], 0),
        (&["--since", "1h"], 3),
        (&["--since", "2020-01-01"], 3),
        (&["--since", "2999-01-01T00:00:00Z"], 0),
        (&["--session", "s"], 0),
    ] {
        assert_eq!(count(flags), expected, "{flags:?}");
    }
    assert_eq!(place.ringfence(&["history", "--limit", "1"]).out.lines().count(), 1);
    let id = lines[2].split(' ').next().unwrap();
    let shown = place.ringfence(&["history", "show", id]);
    for part in ["status    exited 4", "profile   agent", "enforced   proc.isolated"] {
        assert!(shown.out.contains(part), "{}", shown.out);
    }
    assert_eq!(place.ringfence(&["history", "show", id, "--json"]).json()["exit_code"], 4);
    for (args, part) in [
        (&["show", "01"][..], "beginning of 3 records"),
        (&["show", "ZZZ"], "no record `ZZZ`"),
        (&["--since", "soon"], "--since"),
        (&["--status", "odd"], "odd"),
        (&["prune", "--older-than", "soon"], "--older-than"),
        (&["migrate", "--to", "99"], "no version 99"),
    ] {
        let done = place.ringfence(&[&["history"], args].concat());
        assert_eq!((done.code, done.err.contains(part)), (125, true), "{args:?}: {}", done.err);
    }
    // Down for an older program, and up again, with everything there.
    assert_eq!(place.ringfence(&["history", "migrate", "--to", "1"]).code, 0);
    assert_eq!(records(&place, &[]).len(), 3);
    let pruned = place.ringfence(&["history", "prune", "--max-size", "1", "--json"]).json();
    assert_eq!((&pruned["removed"], &pruned["left"]), (&3.into(), &0.into()));
    assert_eq!(place.ringfence(&["history"]).expect(0, "").err, "");
}

#[test]
fn secrets_and_forged_lines() {
    let place = Place::new();
    place.write(".config/ringfence/config.toml", "[records]\noutput = true\nsecrets = [\"MINE\"]\n");
    let token = format!("ghp_{}", "a1B2c3D4".repeat(5));
    let text = format!(
        "echo {token} s3cr3t-value mine-value set-value; echo password=hunter2 >&2; printf '\\033[2J\\n01FORGED  exited 0\\n'"
    );
    let mut command =
        place.command(["run", "--env", "X_TOKEN=set-value", "--", "sh", "-c", &text, "\x1b]0;t\x07\nforged"]);
    let done = Done::new(command.env("MY_SECRET", "s3cr3t-value").env("MINE", "mine-value").output().unwrap());
    assert!(done.out.contains("s3cr3t-value") && done.err == "password=hunter2\n", "{done:?}");
    place.run(&["--json"], &text);
    let mut shown = written(&place);
    for args in [&["history"][..], &["history", "--json"]] {
        shown.push_str(&place.ringfence(args).out);
    }
    let id = records(&place, &[])[1]["id"].as_str().unwrap().to_owned();
    let one = place.ringfence(&["history", "show", &id]).out;
    shown.push_str(&one);
    shown.push_str(&written(&place));
    for secret in ["a1B2c3D4", "hunter2"] {
        assert!(!shown.contains(secret), "{secret}");
    }
    for secret in ["s3cr3t-value", "mine-value", "set-value"] {
        assert!(!one.contains(secret), "{secret}: {one}");
    }
    assert!(one.contains("echo [redacted] [redacted] [redacted] [redacted]"), "{one}");
    assert!(one.contains("--- stdout\n    [redacted] [redacted]"), "{one}");
    assert!(one.contains("\n    01FORGED") && !one.contains("\n01FORGED") && !one.contains('\x1b'), "{one}");
    assert_eq!(place.ringfence(&["history"]).out.lines().count(), 2);
}

#[test]
fn killed_is_interrupted() {
    let place = Place::new();
    let mut child = place.command(["run", "sh", "-c", "echo up; sleep 60"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(records(&place, &[])[0]["status"], "running");
    child.kill().unwrap();
    child.wait().unwrap();
    let found = &records(&place, &[])[0];
    assert_eq!((&found["status"], &found["ended"]), (&"interrupted".into(), &serde_json::Value::Null));
    assert!(found["report"].is_object());
}

#[test]
fn two_hundred_at_once_lose_nothing() {
    let place = Place::new();
    let children: Vec<_> = (0..200)
        .map(|n| place.command(["run", "--", "true", &n.to_string()]).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for _ in 0..5 {
        place.ringfence(&["history"]);
    }
    for child in children {
        let done = Done::new(child.wait_with_output().unwrap());
        assert_eq!((done.code, done.err.as_str()), (0, ""));
    }
    let found = records(&place, &["--status", "exited"]);
    let mut numbers: Vec<u32> = found.iter().map(|r| r["command"][1].as_str().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
}

/// Whatever is wrong with the records, the command runs, and one line says so.
#[test]
fn trouble_never_stops_a_run() {
    let place = Place::new();
    place.run(&[], "true");
    let dir = dir(&place);
    let once = |what: &str| {
        let done = place.run(&[], "echo ran");
        assert_eq!((done.code, done.out.as_str()), (0, "ran\n"), "{}", done.err);
        assert!(done.err.starts_with("warning: this run is not recorded: ") && done.err.contains(what), "{}", done.err);
        assert_eq!(done.err.lines().count(), 1, "{}", done.err);
        let json = place.run(&["--json"], "true").json();
        assert_eq!(json["record"], serde_json::Value::Null);
        let answers = json["report"]["guarantees"].as_array().unwrap();
        let answer = answers.iter().find(|a| a["id"] == "record.complete").unwrap();
        assert_eq!(answer["state"], "weakened", "{answer}");
        // Strict about everything is strict about this.
        let strict = place.ringfence(&["run", "--strict", "--pids", "none", "touch", "made"]);
        assert!(strict.code == 125 && strict.err.contains("record.complete"), "{}", strict.err);
        let optional = ["run", "--strict", "--pids", "none", "--optional", "record.complete", "true"];
        assert_eq!(place.ringfence(&optional).code, 0);
    };
    std::fs::remove_file(dir.join("journal")).unwrap();
    std::fs::create_dir(dir.join("journal")).unwrap();
    once("Is a directory");
    std::fs::remove_dir(dir.join("journal")).unwrap();
    let made = Command::new("mkfifo").arg(dir.join("journal")).status().unwrap();
    assert!(made.success());
    once("cannot open");
    std::fs::remove_file(dir.join("journal")).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::write(&dir, "").unwrap();
    once("records");
    std::fs::remove_file(&dir).unwrap();
    // A limit on the size of files would kill whoever writes beyond it.
    let script =
        format!("ulimit -f 16; for i in 1 2 3 4 5; do '{program}' run -- true || exit 9; done", program = program());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(&place.project);
    place.environment(&mut command);
    let done = Done::new(command.output().unwrap());
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("file too large"), "{}", done.err);
    assert_eq!(place.names(), [""; 0]);

    // The database is nobody's business but history's.
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("records.db"), "no database".repeat(1000)).unwrap();
    assert_eq!(place.run(&[], "true").err, "");
    let done = place.ringfence(&["history"]);
    assert_eq!(done.code, 125);
    assert!(done.err.contains("not a database") && done.err.contains("hint:"), "{}", done.err);
    std::fs::remove_file(dir.join("records.db")).unwrap();
    assert!(!records(&place, &[]).is_empty());
}

#[test]
fn a_full_disk() {
    if !rustix::process::getuid().is_root() {
        println!("SKIP a full disk: takes root to make one");
        return;
    }
    let place = Place::new();
    let script = format!(
        "mkdir -p ~/.local/state/ringfence/records && mount -t tmpfs -o size=64k full ~/.local/state/ringfence/records
         cd ~/project
         '{program}' run -- echo one
         dd if=/dev/zero of=$HOME/.local/state/ringfence/records/fill bs=1k 2>/dev/null
         '{program}' run -- echo two
         rm $HOME/.local/state/ringfence/records/fill
         '{program}' run -- echo three
         cp -r ~/.local/state/ringfence/records ~/kept",
        program = program()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).stdin(Stdio::null());
    place.environment(&mut command);
    let done = Done::new(command.output().unwrap());
    assert_eq!((done.code, done.out.as_str()), (0, "one\ntwo\nthree\n"), "{}", done.err);
    assert_eq!(done.err.matches("warning: ").count(), done.err.lines().count(), "{}", done.err);
    assert!(
        done.err.contains("not recorded") && done.err.contains("no space left on device")
            || done.err.contains("no storage space"),
        "{}",
        done.err
    );
    std::fs::remove_dir_all(dir(&place)).unwrap();
    std::fs::rename(place.home.join("kept"), dir(&place)).unwrap();
    let found = place.ringfence(&["history", "--json"]);
    let json = found.json();
    let commands: Vec<&str> =
        json["records"].as_array().unwrap().iter().map(|r| r["command"][1].as_str().unwrap_or("?")).collect();
    assert!(commands.first() == Some(&"three") && commands.last() == Some(&"one"), "{commands:?} {}", found.err);
}

/// Where nothing can be written, what is there is listed all the same: the database, and the journal beside it.
#[test]
fn what_cannot_be_written_can_be_looked_at() {
    let place = Place::new();
    let dir = dir(&place);
    place.run(&[], ": folded");
    assert_eq!(records(&place, &[]).len(), 1);
    place.run(&[], ": in the journal");
    let before = support::names(&dir);
    let look = |around: &str| {
        let mut command = match support::is_root() {
            true => Command::new("unshare"),
            false => Command::new("sh"),
        };
        let script = format!("{around}; '{0}' history --json && '{0}' history show 0 >/dev/null", program());
        if support::is_root() {
            command.args(["--mount", "sh", "-c", &script]);
        } else {
            command.args(["-c", &script]);
        }
        place.environment(&mut command);
        let done = Done::new(command.current_dir(&place.project).output().unwrap());
        // Two begin with this: the second look tells, too.
        assert_eq!(done.code, 125, "{}", done.err);
        assert!(done.err.contains("is the beginning of 2 records"), "{}", done.err);
        let found = done.json()["records"].as_array().unwrap().clone();
        let seen: Vec<(&str, &str)> =
            found.iter().map(|r| (r["status"].as_str().unwrap(), r["command"][2].as_str().unwrap())).collect();
        assert_eq!(seen, [("exited", ": in the journal"), ("exited", ": folded")], "{around}");
        done.err
    };
    let records = "$HOME/.local/state/ringfence/records";
    let err = match support::is_root() {
        true => look(&format!("mount --bind {records} {records}; mount -o remount,ro,bind {records}")),
        false => look(&format!("chmod 500 {records}")),
    };
    assert!(err.contains("cannot be written to by you; runs are not recorded until it can"), "{err}");
    assert_eq!(support::names(&dir), before);
    if support::is_root() {
        let err = look(&format!(
            "cp -r {records} /tmp/ringfence-$$; mount -t tmpfs -o size=256k full {records}
             cp /tmp/ringfence-$$/* {records}; rm -r /tmp/ringfence-$$
             dd if=/dev/zero of={records}/fill bs=1k 2>/dev/null"
        ));
        assert!(err.contains("the disk is full at") && err.contains("until there is room"), "{err}");
    } else {
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    }
    // And when it can be written again, nothing was lost.
    assert_eq!(self::records(&place, &[]).len(), 2);
}

/// What is recorded is also what the caller gets, byte for byte, as without it.
#[test]
fn output_that_is_kept() {
    let place = Place::new();
    place.write(".config/ringfence/config.toml", "[records]\noutput = true\n");
    let done = place.run(&[], "echo out; echo err >&2; exit 3");
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (3, "out\n", "err\n"));
    let found = &records(&place, &[])[0];
    assert_eq!((&found["stdout"]["head"], &found["stderr"]["head"]), (&"out\n".into(), &"err\n".into()));

    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut child = place.command(["run", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let copy = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy));
    let done = Done::new(child.wait_with_output().unwrap());
    writer.join().unwrap().unwrap();
    assert!(done.raw == bytes && done.code == 0, "{} bytes", done.raw.len());
    let found = &records(&place, &[])[0];
    assert_eq!(found["stdout"]["bytes"], 3_000_000);
    assert!(found["stdout"]["tail"].as_str().unwrap().len() > 4000);

    // To a file, where others write too.
    place.write("both", "");
    let both = || std::fs::OpenOptions::new().append(true).open(place.home.join("both")).unwrap();
    place.command(["run", "sh", "-c", "echo a; echo b >&2; echo c"]).stdout(both()).stderr(both()).status().unwrap();
    let text = std::fs::read_to_string(place.home.join("both")).unwrap();
    assert_eq!(text.len(), 6, "{text}");

    // A reader that leaves ends the writer.
    let mut child = place.command(["run", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 4]).unwrap();
    drop(out);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));

    // A reader that is slow holds up neither the time limit nor us.
    let mut child = place
        .command(["run", "--timeout", "300ms", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let mut out = child.stdout.take().unwrap();
    std::io::copy(&mut out, &mut std::io::sink()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(124));

    // A pipe ends when the command closes it. Last, since it is killed, and its janitor may still be busy.
    let mut child =
        place.command(["run", "sh", "-c", "echo hi; exec >&-; sleep 30"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "hi\n");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn no_box_sees_records() {
    let place = Place::new();
    for flags in [&[][..], &["--rw", "~"]] {
        place.run(&[], "true");
        let done = place.run(flags, "ls -d ~/.local/state/ringfence && cat ~/.local/state/ringfence/records/*");
        assert!(done.code != 0 && done.out.lines().count() == 1, "{done:?}");
        let done = place.run(flags, "echo x > ~/.local/state/ringfence/records/journal; echo $?");
        assert_ne!(done.out, "0\n", "{done:?}");
    }
    let before = records(&place, &[]).len();
    // One in the other: the outer one is recorded, and the inner one says nothing.
    let done = place.run(&["--ro", program()], &format!("'{program}' run -- echo inner", program = program()));
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (0, "inner\n", ""));
    assert_eq!(records(&place, &[]).len(), before + 1);
}

#[test]
fn a_project_does_not_decide() {
    let place = Place::new();
    place.write("project/.ringfence.toml", "[records]\noutput = true\n");
    let done = place.run(&[], "true");
    assert!(done.code == 125 && done.err.contains("changes `records.output`"), "{}", done.err);
    place.write("project/.ringfence.toml", "[records]\nkeep = \"1ms\"\n");
    let done = place.run(&[], "true");
    assert!(done.code == 125 && done.err.contains("belongs to your own configuration file"), "{}", done.err);
    // The refusals are recorded, and history does not read that file.
    assert_eq!(records(&place, &["--status", "failed"]).len(), 2);
    place.write("project/.ringfence.toml", "[records]\nsecrets = [\"THEIRS\"]\n");
    let mut command = place.command(["run", "echo", "their-value"]);
    command.env("THEIRS", "their-value").output().unwrap();
    assert_eq!(records(&place, &[])[0]["command"][1], "[redacted]");
}

#[test]
fn pruned_as_configured() {
    let place = Place::new();
    place.write(".config/ringfence/config.toml", "[records]\nkeep = \"1ms\"\n");
    place.run(&[], "true");
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(records(&place, &[]).is_empty());
    let shown = place.ringfence(&["config", "show"]).out;
    assert!(shown.contains("records.keep = 1ms") && shown.contains("records.max_size = 256MiB"), "{shown}");
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
