//! `ringfence session …` through the program: names, output, JSON, exit codes, records, other users.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::io::Write;
use std::process::Stdio;

use sessions::{Here, seconds, sleeping, wait};
use support::Done;

#[test]
fn a_day_in_the_life() {
    let here = Here::new();
    let id = here.create(&["notes"]);
    here.exec(&["notes", "--", "sh", "-c", "echo hello; echo oops >&2; exit 4"]).expect(4, "hello\n");
    here.exec(&[&id, "--", "cat", "/workspace/none"]);
    let listed = here.ringfence(&["session", "list", "--json"]).json();
    assert_eq!(listed["sessions"][0]["name"], "notes");
    assert_eq!(listed["sessions"][0]["state"], "live");
    let shown = here.ringfence(&["session", "show", "notes", "--json"]).json();
    assert_eq!(shown["recent"][0]["exit_code"], 4);
    assert_eq!(shown["report"]["engine"], "native");
    assert_eq!(here.create(&["notes", "--reuse"]), id);
    let taken = here.ringfence(&["session", "create", "notes"]);
    assert_eq!(taken.code, 125);
    assert!(taken.err.contains("there is a session `notes` already"), "{}", taken.err);
    here.ringfence(&["session", "logs", "notes", "1"]).expect(0, "hello\n");
    here.ringfence(&["session", "extend", "notes", "--life", "48h"]).expect(0, "");
    here.ringfence(&["session", "stop", "notes"]).expect(0, "");
    // Once more is what is wanted already.
    here.ringfence(&["session", "stop", "notes"]).expect(0, "");
    let ended = here.exec(&["notes", "--", "true"]);
    assert_eq!(ended.code, 125);
    assert!(ended.err.contains("has ended: it was stopped"), "{}", ended.err);
    here.ringfence(&["gc"]).expect(0, &format!("{id}\n"));
    let gone = here.exec(&["notes", "--", "true"]);
    assert!(gone.err.contains("no session `notes`"), "{}", gone.err);
    // Nothing is left behind in the project.
    assert!(here.0.names().is_empty());
}

#[test]
fn a_session_of_another_policy_is_not_reused() {
    let here = Here::new();
    here.0.write("project/secret", "do-not-tell\n");
    // There from the beginning: while a session lives, a placeholder has the name.
    here.0.write("project/.ringfence.toml", "");
    let id = here.create(&["desk"]);
    here.exec(&["desk", "--", "cat", "secret"]).expect(0, "do-not-tell\n");
    // The same, also where the file has another comment and the project another repository.
    here.0.write(".config/ringfence/config.toml", "# Nothing.\n");
    assert!(std::process::Command::new("git").args(["init", "-q"]).arg(&here.0.project).status().unwrap().success());
    assert_eq!(here.create(&["desk", "--reuse"]), id);
    let others: [(&str, &[&str]); 4] = [
        ("", &["--exclude", "secret"]),
        ("", &["--timeout", "7s"]),
        ("[files]\nexclude = [\"secret\"]\n", &[]),
        ("network = \"open\"\n", &[]),
    ];
    for (file, flags) in others {
        here.0.write(".config/ringfence/config.toml", file);
        let done = here.session(&[&["create", "desk", "--reuse"], flags].concat());
        let told = done.err.contains("`desk` was made with another policy") && done.err.contains("session stop desk");
        assert!(done.code == 125 && done.out.is_empty() && told, "{file} {flags:?}: {done:?}");
    }
    // The project's own file counts too, and the cure is one.
    here.0.write(".config/ringfence/config.toml", "");
    here.0.write("project/.ringfence.toml", "[files]\nexclude = [\"secret\"]\n");
    assert_eq!(here.session(&["create", "desk", "--reuse"]).code, 125);
    here.session(&["stop", "desk"]).expect(0, "");
    assert_ne!(here.create(&["desk", "--reuse"]), id);
    let hidden = here.exec(&["desk", "--", "cat", "secret"]);
    assert!(hidden.code != 0 && !hidden.out.contains("do-not-tell"), "{hidden:?}");
    // What a session is kept with counts, also where files and flags say it.
    here.0.write(".config/ringfence/config.toml", "warm = 1\n[limits]\nidle = \"2h\"\n[records]\noutput = true\n");
    let kept = here.create(&["kept", "--life", "3h"]);
    assert_eq!(here.create(&["kept", "--reuse", "--life", "3h"]), kept);
    assert_eq!(here.session(&["create", "kept", "--reuse", "--life", "4h"]).code, 125);
}

#[test]
fn when_it_ends_is_configured() {
    let here = Here::new();
    here.0.write(".config/ringfence/config.toml", "[limits]\nidle = \"2h\"\nlife = \"3h\"\n");
    here.0.write("project/.ringfence.toml", "[limits]\nidle = \"1h\"\n");
    let idle_and_life = |args: &[&str]| {
        let id = here.create(args);
        let info = here.session(&["show", &id, "--json"]).json();
        let life = info["expires_ms"].as_u64().unwrap() - info["created_ms"].as_u64().unwrap();
        (info["idle_ms"].as_u64().unwrap(), (life as f64 / 60_000.0).round() as u64)
    };
    assert_eq!(idle_and_life(&[]), (3_600_000, 180));
    assert_eq!(idle_and_life(&["--idle", "90m", "--life", "26h"]), (5_400_000, 26 * 60), "flags win");
    let shown = here.ringfence(&["config", "show", "--profile", "shell"]).out;
    let has = |key: &str, text: &str, place: &str| {
        shown.lines().any(|line| line.contains(key) && line.contains(text) && line.contains(place))
    };
    assert!(has("limits.idle", "1h", ".ringfence.toml:2") && has("limits.life", "3h", "config.toml:3"), "{shown}");
    here.0.write("project/.ringfence.toml", "[limits]\nlife = \"never\"\n");
    let refused = here.session(&["create"]);
    assert!(refused.code == 125 && refused.err.contains("raises `limits.life`"), "{}", refused.err);
}

#[test]
fn exit_codes_are_those_of_run() {
    let here = Here::new();
    here.create(&["s"]);
    let table: &[(&[&str], i32)] = &[
        (&["s", "--", "true"], 0),
        (&["s", "--", "sh", "-c", "exit 42"], 42),
        (&["s", "--", "sh", "-c", "kill -9 $$"], 137),
        (&["s", "--", "no-such-program"], 127),
        (&["s", "--", "/etc/passwd"], 126),
        (&["s", "--timeout", "200ms", "--", "sleep", "60"], 124),
        (&["s", "--timeout", "1h", "--", "true"], 125),
        (&["none", "--", "true"], 125),
    ];
    for (args, code) in table {
        let done = here.exec(args);
        assert_eq!(done.code, *code, "{args:?}: {}", done.err);
    }
}

#[test]
fn one_object_that_a_model_can_read() {
    let here = Here::new();
    let id = here.create(&[]);
    let object = here.exec(&[&id, "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]).json();
    assert_eq!((&object["status"], &object["exit_code"]), (&"exited".into(), &3.into()));
    assert_eq!((&object["stdout"], &object["stderr"]), (&"out\n".into(), &"err\n".into()));
    assert_eq!(object["timed_out"], false);
    assert!(object["peak_memory"].as_u64().unwrap() > 0);
    assert_eq!(object["session"], id.as_str());
    let object = here.exec(&[&id, "--json", "--timeout", "300ms", "--", "sh", "-c", "echo so far; sleep 60"]).json();
    assert_eq!((&object["reason"], &object["timed_out"]), (&"time".into(), &true.into()));
    assert_eq!(object["stdout"], "so far\n");
    let object = here.exec(&[&id, "--json", "--", "no-such-program"]).json();
    assert_eq!((&object["status"], &object["error"]["kind"]), (&"failed".into(), &"not-found".into()));
    let object = here.exec(&[&id, "--json", "--", "head", "-c", "5000000", "/dev/zero"]).json();
    assert!(object["stdout_dropped"].as_u64().unwrap() > 3_000_000);
}

#[test]
fn input_and_signals_reach_the_command() {
    let here = Here::new();
    let id = here.create(&[]);
    let mut child = here
        .0
        .command(["session", "exec", &id, "--stdin", "--", "sort"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"b\na\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"a\nb\n");

    let script = "trap 'echo asked; exit 5' INT; echo ready; while :; do sleep 0.1; done";
    let mut child =
        here.0.command(["session", "exec", &id, "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    sessions::kill(child.id() as i32, libc::SIGINT);
    line.clear();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("asked\n", Some(5)));

    // Killed without a word: what it ran goes with it.
    let mut child = here.0.command(["session", "exec", &id, "--", "sleep", &seconds(20)]).spawn().unwrap();
    wait("it runs", || !sleeping(&seconds(20)).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    wait("it ends", || sleeping(&seconds(20)).iter().all(|pid| *pid == child.id() as i32));
    here.exec(&[&id, "--", "echo", "usable"]).expect(0, "usable\n");
}

#[test]
fn background_executions() {
    let here = Here::new();
    let id = here.create(&[]);
    let done = here.exec(&[&id, "--background", "--", "sh", "-c", "echo one; sleep 0.5; echo two"]);
    let execution = done.out.trim();
    here.ringfence(&["session", "logs", &id, execution, "--follow"]).expect(0, "one\ntwo\n");
    let done = here.exec(&[&id, "--background", "--", "sleep", &seconds(21)]);
    here.ringfence(&["session", "stop", &id, done.out.trim()]).expect(0, "");
    assert!(sleeping(&seconds(21)).is_empty());
    here.exec(&[&id, "--", "echo", "usable"]).expect(0, "usable\n");
}

#[test]
fn logs_are_whole_but_for_the_gap() {
    let here = Here::new();
    let id = here.create(&[]);
    here.exec(&[&id, "--background", "--", "sh", "-c", "yes 0123456 | head -c 5242880; echo end"]).expect(0, "1\n");
    wait("it has ended", || {
        here.ringfence(&["session", "show", &id, "--json"]).json()["recent"][0]["status"] == "exited"
    });
    let logs = here.ringfence(&["session", "logs", &id, "1"]);
    assert_eq!(logs.code, 0, "{}", logs.err);
    assert!(logs.out.starts_with("0123456\n") && logs.out.ends_with("0123456\nend\n"));
    let skipped: u64 = logs.err.split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert!(skipped > 0);
    assert_eq!(logs.out.len() as u64 + skipped, 5_242_880 + 4);
}

#[test]
fn executions_are_recorded_and_secrets_are_not() {
    let here = Here::new();
    let id = here.create(&[]);
    here.exec(&[&id, "--env", "API_TOKEN=hunter2hunter2", "--", "sh", "-c", "echo hunter2hunter2; exit 6"]);
    here.exec(&[&id, "--", "no-such-program"]);
    let records = here.ringfence(&["history", "--json", "--session", &id]);
    assert!(!records.out.contains("hunter2"), "{}", records.out);
    let text = &records.out;
    assert!(text.contains("\"exit_code\":6") && text.contains("no-such-program"), "{text}");
}

#[test]
fn what_cannot_be_recorded_is_said() {
    let here = Here::new();
    let id = here.create(&[]);
    let answer = || {
        let shown = here.ringfence(&["session", "show", &id, "--json"]).json();
        let all = shown["report"]["guarantees"].as_array().unwrap().clone();
        all.into_iter().find(|answer| answer["id"] == "record.complete").unwrap()["state"].clone()
    };
    assert_eq!(here.exec(&[&id, "--", "true"]).expect(0, "").err, "");
    assert_eq!(answer(), "enforced");
    let journal = here.0.home.join(".local/state/ringfence/records/journal");
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    let done = here.exec(&[&id, "--", "echo", "on"]).expect(0, "on\n");
    assert!(done.err.contains("not recorded"), "{}", done.err);
    assert_eq!(answer(), "weakened");
    // Once, and again when it had worked meanwhile.
    assert_eq!(here.exec(&[&id, "--", "true"]).expect(0, "").err, "");
    std::fs::remove_dir(&journal).unwrap();
    assert_eq!(here.exec(&[&id, "--", "true"]).expect(0, "").err, "");
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    assert!(here.exec(&[&id, "--", "true"]).expect(0, "").err.contains("not recorded"));
    assert_eq!(answer(), "weakened");
}

/// A session whose own state cannot be written tells the truth as well; and how it records is as it says.
#[test]
fn what_cannot_be_recorded_is_said_where_nothing_can_be_written() {
    let here = Here::new();
    let id = here.create(&[]);
    let answer = |id: &str| {
        let shown = here.ringfence(&["session", "show", id, "--json"]).json();
        let all = shown["report"]["guarantees"].as_array().unwrap().clone();
        all.into_iter().find(|answer| answer["id"] == "record.complete").unwrap()
    };
    assert!(answer(&id)["by"].as_str().unwrap().contains("during the start"), "{}", answer(&id));
    let strict = here.create(&["--strict", "--pids", "none", "--memory", "none", "--cpus", "none"]);
    assert!(answer(&strict)["by"].as_str().unwrap().contains("before the start"), "{}", answer(&strict));
    let state = here.0.home.join(".local/state/ringfence");
    let journal = state.join("records/journal");
    let _ = std::fs::remove_file(&journal);
    std::fs::create_dir(&journal).unwrap();
    std::fs::create_dir(state.join("sessions").join(&id).join("state.new")).unwrap();
    assert!(here.exec(&[&id, "--", "true"]).expect(0, "").err.contains("not recorded"));
    assert_eq!(answer(&id)["state"], "weakened");
}

#[test]
fn what_was_planted_where_a_copy_goes_is_not_used() {
    let here = Here::new();
    let id = here.create(&[]);
    here.exec(&[&id, "--", "sh", "-c", "echo new > file; echo kept > other; mkdir out"]).expect(0, "");
    for plant in ["ln other out/.ringfence-$$", "mkfifo out/.ringfence-$$"] {
        let script = format!("{plant}; exec \"$0\" session cp {id}:/workspace/file out/file");
        let mut command = std::process::Command::new("timeout");
        command.args(["20", "sh", "-c", &script, support::program()]).current_dir(&here.0.project);
        here.0.environment(&mut command);
        let done = Done::new(command.output().unwrap());
        assert_eq!(done.code, 0, "{plant}: {}", done.err);
        let read = |name: &str| std::fs::read_to_string(here.0.project.join(name)).unwrap();
        assert_eq!((read("out/file").as_str(), read("other").as_str()), ("new\n", "kept\n"), "{plant}");
    }
}

/// A box may put links where it can write, and wait for somebody to copy something there.
#[test]
fn no_symlink_of_a_box_is_followed_by_a_copy() {
    let here = Here::new();
    let id = here.create(&[]);
    let (secret, open) = (here.0.home.join("secret"), here.0.project.join("data"));
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("key"), "key\n").unwrap();
    std::fs::create_dir(&open).unwrap();
    std::fs::write(open.join("file"), "open\n").unwrap();
    let plant = format!(
        "mkdir /tmp/results; echo evil >/tmp/results/key; ln -s {0} results; ln -s {0}/key notes; ln -s {0} data/link",
        secret.display()
    );
    here.exec(&[&id, "--", "sh", "-c", &plant]).expect(0, "");
    let inside = |path: &str| format!("{id}:{path}");
    let copy = |from: &str, to: &str| here.ringfence(&["session", "cp", from, to]);
    for (from, to) in [
        ("notes", inside("/tmp/").as_str()),
        ("results/key", &inside("/tmp/")),
        (&inside("/tmp/results"), "."),
        (&inside("/tmp/results"), "results/"),
        (&inside("/tmp/results/key"), "results/key"),
    ] {
        let done = copy(from, to);
        assert_eq!(done.code, 125, "{from} to {to}: {}", done.err);
    }
    assert_eq!(std::fs::read_to_string(secret.join("key")).unwrap(), "key\n");
    here.exec(&[&id, "--", "sh", "-c", "ls /tmp"]).expect(0, "results\n");
    // The same without links; and what is a link among others is left out.
    assert_eq!(copy("data", &inside("/tmp/in")).code, 125);
    here.exec(&[&id, "--", "sh", "-c", "ls /tmp/in; cat /tmp/in/file"]).expect(0, "file\nopen\n");
    copy(&inside("/tmp/results"), "out").expect(0, "");
    assert_eq!(std::fs::read_to_string(here.0.project.join("out/key")).unwrap(), "evil\n");
    // A link in the place of a file is replaced, and not written through.
    copy(&inside("/tmp/results/key"), "notes").expect(0, "");
    assert_eq!(std::fs::read_to_string(here.0.project.join("notes")).unwrap(), "evil\n");
    assert_eq!(std::fs::read_to_string(secret.join("key")).unwrap(), "key\n");
}

#[test]
fn nobody_else_can_use_it() {
    if !support::is_root() {
        return;
    }
    let Some((uid, gid, _)) = support::user() else {
        return support::skip("another user", "there is no user `ringfence-test` (`./test` makes it)");
    };
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return support::skip("another user", "python3 is not installed");
    }
    let here = Here::new();
    let id = here.create(&["mine"]);
    // Even when every directory on the way is open, and so is the socket.
    let dir = here.0.home.join(".local/state/ringfence/sessions");
    for path in std::iter::once(dir.join(&id)).chain(dir.ancestors().take(8).map(Into::into)) {
        if path.starts_with(here.0.home.parent().unwrap()) {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
    }
    let socket = dir.join(&id).join("socket");
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let connect = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nprint(len(s.recv(100)))";
    let run = |uid: u32, gid: u32| {
        let mut command = std::process::Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".to_owned()]);
        command.args(["/usr/bin/python3", "-c", connect]).arg(&socket);
        Done::new(command.output().unwrap())
    };
    // It connects, and is shown out without a byte; its owner is greeted.
    run(uid, gid).expect(0, "0\n");
    let greeted = run(0, 0);
    assert_ne!(greeted.out, "0\n", "{}", greeted.err);
}

#[test]
fn what_could_not_be_started_is_named_in_json() {
    let here = Here::new();
    let id = here.create(&[]);
    let failed = here.exec(&[&id, "--json", "--", "/none/such"]);
    assert_eq!(failed.code, 127, "{}", failed.err);
    let json = failed.json();
    assert_eq!((&json["status"], &json["session"], &json["execution"]), (&"failed".into(), &id.into(), &"1".into()));
    let record = json["record"].as_str().unwrap().to_owned();
    let shown = here.ringfence(&["history", "show", &record, "--json"]).json();
    assert_eq!(shown["command"][0], "/none/such");
    assert_eq!(here.exec(&["nobody", "--json", "--", "true"]).json()["session"], serde_json::Value::Null);
}

#[test]
fn logs_as_json() {
    let here = Here::new();
    let id = here.create(&[]);
    here.exec(&[&id, "--", "sh", "-c", "echo out; echo err >&2; exit 3"]).expect(3, "out\n");
    here.exec(&[&id, "--", "true"]).expect(0, "");
    let logs = here.ringfence(&["session", "logs", &id, "--json"]).json();
    assert_eq!(logs["session"], id.as_str());
    let first = &logs["executions"][0];
    assert_eq!(
        (&first["stdout"], &first["stderr"], &first["exit_code"]),
        (&"out\n".into(), &"err\n".into(), &3.into())
    );
    assert_eq!(first["stdout_dropped"], 0);
    let one = here.ringfence(&["session", "logs", &id, "2", "--follow", "--json"]).json();
    assert_eq!((one["executions"].as_array().unwrap().len(), &one["executions"][0]["execution"]), (1, &"2".into()));
}

#[test]
fn a_box_does_not_fill_the_disk_through_cp() {
    let here = Here::new();
    let id = here.create(&[]);
    here.exec(&[&id, "--", "sh", "-c", "mkdir /tmp/d; truncate -s 3M /tmp/d/a /tmp/d/b"]).expect(0, "");
    let copy = |from: &str, to: &str, most: &str| {
        here.ringfence(&["session", "cp", &format!("{id}:{from}"), to, "--max-size", most])
    };
    for from in ["/tmp/d/a", "/tmp/d"] {
        let refused = copy(from, "out", "1m");
        assert_eq!(refused.code, 125, "{}", refused.err);
        assert!(refused.err.contains("--max-size"), "{}", refused.err);
    }
    assert_eq!(copy("/tmp/d", "sum", "4m").code, 125);
    // The bound is over all of them; one was complete.
    assert_eq!(std::fs::read_dir(here.0.project.join("sum")).unwrap().count(), 1);
    assert_eq!(copy("/tmp/d", "all", "6m").code, 0);
    assert_eq!(std::fs::metadata(here.0.project.join("all/b")).unwrap().len(), 3 << 20);
    assert_eq!(copy("/tmp/d/a", "one", "never").code, 0);
}

#[test]
fn hints_for_those_who_mistype() {
    let here = Here::new();
    let none = here.ringfence(&["history", "--session", "nope"]);
    assert!(none.code == 0 && none.err.contains("`nope`") && none.err.contains("hint:"), "{}", none.err);
    let usage = here.ringfence(&["session", "extend", "nope"]).err;
    assert!(usage.contains("--life") && usage.contains("--idle"), "{usage}");
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
