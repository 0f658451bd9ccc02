//! What a newcomer gets wrong, and what is said then: to people on stderr, to programs as one JSON object.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::os::unix::fs::PermissionsExt;

use support::{Done, Place};

fn says(done: &Done, code: i32, words: &[&str]) {
    assert_eq!(done.code, code, "{done:?}");
    for word in words {
        assert!(done.err.contains(word), "{word} in {}", done.err);
    }
}

#[test]
fn the_nearest_subcommand() {
    let place = Place::new();
    says(&place.ringfence(&["rnu", "--", "true"]), 125, &["did you mean `ringfence run`?"]);
    says(&place.ringfence(&["make", "all"]), 125, &["ringfence run -- make all"]);
}

#[test]
fn a_usage_error_in_json_is_whole() {
    let place = Place::new();
    let done = place.ringfence(&["session", "extend", "--json", "x"]);
    assert!(done.json()["error"]["message"].as_str().unwrap().contains("--json"), "{done:?}");
    let done = place.ringfence(&["explain", "--json", "--engine", "natif"]);
    let message = done.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("natif") && message.contains("bubblewrap"), "{message}");
    says(&place.ringfence(&["session", "extend", "x"]), 125, &["--life"]);
}

#[test]
fn a_program_in_private_space() {
    let place = Place::new();
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let program = dir.path().join("hello");
    std::fs::write(&program, "#!/bin/sh\necho hello\n").unwrap();
    for path in [dir.path(), &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (dir, program) = (dir.path().to_str().unwrap(), program.to_str().unwrap());
    for engine in support::engines() {
        let hidden = place.ringfence(&["run", "--engine", engine, "--", program]);
        says(&hidden, 127, &["/tmp of its own", &format!("--ro {dir}")]);
        place.ringfence(&["run", "--engine", engine, "--ro", dir, "--", program]).expect(0, "hello\n");
    }
}

#[test]
fn a_start_that_failed_is_recorded_and_says_where() {
    let place = Place::new();
    for args in [&["run", "--json", "--", "no-such-program"][..], &["run", "--json", "--profile", "x", "--", "true"]] {
        let done = place.ringfence(args);
        let id = done.json()["record"].as_str().unwrap_or_else(|| panic!("{done:?}")).to_owned();
        let record = place.ringfence(&["history", "show", &id, "--json"]).json();
        assert_eq!((record["id"].as_str(), record["status"].as_str()), (Some(id.as_str()), Some("failed")));
    }
}

#[test]
fn a_result_is_told_though_a_file_cannot_be_written() {
    let place = Place::new();
    std::fs::write(place.project.join("o.txt"), "mine").unwrap();
    std::fs::write(place.project.join("c.sh"), "echo theirs > o.txt; echo said").unwrap();
    let done = place.ringfence(&["code", "bash", "--json", "--out", "o.txt", "c.sh"]);
    says(&done, 125, &["o.txt", "--out-dir"]);
    let result = done.json();
    assert_eq!(result["stdout"], "said\n", "{result}");
    assert!(result["error"].as_str().is_some_and(|error| error.contains("o.txt")), "{result}");
    assert_eq!(std::fs::read_to_string(place.project.join("o.txt")).unwrap(), "mine");
    let done = place.ringfence(&["code", "bash", "--json", "--out", "o.txt", "--out-dir", "new", "c.sh"]);
    assert_eq!((done.code, done.json()["error"].as_str()), (0, None), "{done:?}");
    assert_eq!(std::fs::read_to_string(place.project.join("new/o.txt")).unwrap(), "theirs\n");
}

#[test]
fn sessions_by_name() {
    let place = Place::new();
    let created = place.ringfence(&["session", "create", "one", "--life", "2h"]);
    assert_eq!(created.code, 0, "{created:?}");
    let id = created.out.trim().to_owned();
    place.ringfence(&["session", "exec", "one", "--", "echo", "in one"]).expect(0, "in one\n");
    let expires = || place.ringfence(&["session", "show", "one", "--json"]).json()["expires_ms"].as_u64();

    let failed = place.ringfence(&["session", "exec", "--json", "one", "--", "/no/such/program"]);
    assert_eq!((failed.code, failed.json()["session"].as_str()), (127, Some(id.as_str())), "{failed:?}");

    let before = expires();
    says(&place.ringfence(&["session", "extend", "one", "--life", "1h"]), 125, &["already", "session stop"]);
    assert_eq!(expires(), before);
    place.ringfence(&["session", "extend", "one", "--life", "5h"]).expect(0, "");
    assert!(expires() > before);
    place.ringfence(&["session", "extend", "one", "--life", "never"]).expect(0, "");
    assert_eq!(expires(), None);

    let again = place.ringfence(&["session", "create", "one", "--reuse", "--memory", "64m"]);
    says(&again, 0, &["change nothing"]);
    assert_eq!(again.out.trim(), id);
    let plain = place.ringfence(&["session", "create", "one", "--reuse"]);
    assert_eq!((plain.code, plain.err.as_str()), (0, ""));

    place.ringfence(&["session", "stop", "one"]).expect(0, "");
    says(&place.ringfence(&["session", "logs", "one"]), 125, &["has ended", &format!("history --session {id}")]);
    for name in ["one", id.as_str()] {
        let records = place.ringfence(&["history", "--session", name]);
        assert!(records.out.contains("echo 'in one'"), "{name}: {records:?}");
    }
    says(&place.ringfence(&["session", "rm", "one", "two"]), 125, &["`one` is removed", "no session `two`"]);
    says(&place.ringfence(&["session", "show", "one"]), 125, &["no session `one`"]);
}

/// Whatever directory one happens to be in: a box, or one sentence with the cure.
#[test]
fn any_working_directory() {
    let place = Place::new();
    let own = ["/tmp", "/var/tmp"].map(|dir| tempfile::tempdir_in(dir).unwrap());
    let cannot = |dir: &str| match dir {
        "/dev" | "/dev/shm" | "/proc" | "/run" => true,
        // Where the home of this test lies.
        "/tmp" => true,
        _ => support::is_root() && matches!(dir, "/" | "/home" | "/etc" | "/usr"),
    };
    let dirs = ["/", "/tmp", "/home", "/run", "/etc", "/usr", "/dev", "/dev/shm", "/proc"];
    for engine in support::engines() {
        for dir in dirs.into_iter().chain(own.iter().filter_map(|dir| dir.path().to_str())) {
            let done =
                Done::new(place.command(["run", "--engine", engine, "--", "pwd"]).current_dir(dir).output().unwrap());
            match cannot(dir) {
                true => says(&done, 125, &["the working directory", "-C DIR"]),
                false => assert_eq!((done.code, done.out.trim()), (0, dir), "{engine} {dir}: {}", done.err),
            }
        }
    }
}

#[test]
fn a_server_in_no_project() {
    let place = Place::new();
    let done = Done::new(place.command(["mcp"]).current_dir("/dev").output().unwrap());
    says(&done, 125, &["--root DIR"]);
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
