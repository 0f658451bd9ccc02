//! What a newcomer gets wrong, and what is said then: to people on stderr, to programs as one JSON object.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::os::unix::fs::PermissionsExt;

use serde_json::json;
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
    let done = place.ringfence(&["session", "shell", "--json", "x"]);
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

    let other = place.ringfence(&["session", "create", "one", "--reuse", "--memory", "64m"]);
    says(&other, 125, &["`one` was made with another policy", "ringfence session stop one", "another name"]);
    let again = place.ringfence(&["session", "create", "one", "--reuse", "--life", "2h"]);
    assert_eq!((again.code, again.out.trim(), again.err.as_str()), (0, id.as_str(), ""));

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
fn the_nearest_name() {
    let place = Place::new();
    let run = |flags: &[&str]| place.ringfence(&[&["run"], flags, &["--", "true"]].concat());
    let done = run(&["--net"]);
    says(&done, 125, &["did you mean `--network`?"]);
    assert!(!done.err.contains("nesting"), "{}", done.err);
    says(&run(&["--no-network"]), 125, &["write `--network=false`"]);
    says(&run(&["--preset", "@lint"]), 125, &["`@lint/ts`", "`@lint/all`"]);
    says(&run(&["--allow-syscall", "moun"]), 125, &["did you mean `mount`?"]);
    says(&run(&["--optional", "secrets"]), 125, &["did you mean `fs.secrets-hidden`?"]);
    says(&run(&["--pids", "1000000000"]), 125, &["--pids", "a number of processes from 1 to 4194240"]);
    says(&run(&["--tmp-inodes", "5"]), 125, &["--tmp-inodes", "from 64"]);
    // More than this user may have anyway is no mistake.
    let done = run(&["--pids", "4194240", "--files", "1000000000", "--tmp-inodes", "64"]);
    assert_eq!(done.code, 0, "{}", done.err);
}

#[test]
fn a_ceiling_of_time() {
    let place = Place::new();
    let done = place.ringfence(&["run", "--profile", "shell", "--timeout", "20m", "--", "true"]);
    says(&done, 125, &["10m (profile shell)", "--timeout", "`timeout_ceiling`"]);
    place.write("c.toml", "[limits]\ntimeout_ceiling = \"200ms\"\n");
    let done = place.ringfence(&["run", "--config", "../c.toml", "--", "sleep", "9"]);
    says(&done, 124, &["after 200ms", "`timeout_ceiling`"]);
    assert!(!done.err.contains("--timeout"), "{}", done.err);
    says(&place.ringfence(&["run", "--timeout", "200ms", "--", "sleep", "9"]), 124, &["--timeout allows more"]);
}

#[test]
fn a_script_whose_interpreter_is_not_there() {
    let place = Place::new();
    place.write("project/script", "#!/no/such/interpreter -x\necho\n");
    std::fs::set_permissions(place.project.join("script"), std::fs::Permissions::from_mode(0o755)).unwrap();
    for engine in support::engines() {
        let done = place.ringfence(&["run", "--engine", engine, "--", "./script"]);
        says(&done, 127, &["first line names `/no/such/interpreter`"]);
    }
}

#[test]
fn a_file_that_looks_like_a_host() {
    let place = Place::new();
    let done = place.ringfence(&["explain", "README.md"]);
    assert!(done.code == 0 && done.out.contains("for a path write ./README.md"), "{done:?}");
    for host in ["192.0.2.1", "[::1]:80", "localhost"] {
        assert!(!place.ringfence(&["explain", host]).out.contains("note:"), "{host}");
    }
    place.write("project/README.md", "");
    assert!(place.ringfence(&["explain", "README.md"]).out.contains("can be read and written"));
}

/// What no engine was made for is not told beside why those that were made for it refuse.
#[test]
fn refusals_are_about_the_policy() {
    let place = Place::new();
    let done = place.ringfence(&["run", "--strict", "--nesting", "--", "true"]);
    says(&done, 125, &["engine native cannot promise fs.disk-bounded", "hint: leave `strict` off to accept this"]);
    assert!(!done.err.contains("docker"), "{}", done.err);
    assert_eq!(done.err.matches("leave `strict` off").count(), 1, "{}", done.err);
}

/// Inside, sessions and records are hidden, and only what stacks can run.
#[test]
fn the_program_inside_a_box() {
    let place = Place::new();
    let dir = place.home.parent().unwrap().join("bin");
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(support::program(), dir.join("ringfence")).unwrap();
    let (dir, program) = (dir.to_str().unwrap(), dir.join("ringfence"));
    let inside =
        |args: &[&str]| place.ringfence(&[&["run", "--ro", dir, "--", program.to_str().unwrap()], args].concat());
    for args in [&["history"][..], &["session", "create"], &["skill", "list"]] {
        says(&inside(args), 125, &["this is inside a sandbox"]);
    }
    inside(&["check", "--json"]).expect(0, "{\"inside\":true}\n");
    place.ringfence(&["check", "--json"]).expect(1, "{\"inside\":false}\n");
    inside(&["run", "--network=false", "--", "echo", "stacked"]).expect(0, "stacked\n");
    let doctor = inside(&["doctor"]);
    let native = doctor.out.lines().find(|line| line.contains("engine native")).unwrap_or_default();
    assert!(doctor.code == 0 && native.starts_with("ok") && doctor.out.contains("inside a sandbox"), "{doctor:?}");
}

#[test]
fn what_is_trusted_as_json() {
    let place = Place::new();
    place.write("project/.ringfence.toml", "docker = true\n");
    place.ringfence(&["trust", "--list", "--json"]).expect(0, "{\"trusted\":[]}\n");
    assert_eq!(place.ringfence(&["trust", "--yes"]).code, 0);
    let listed = place.ringfence(&["trust", "--list", "--json"]).json();
    let file = place.project.join(".ringfence.toml");
    assert_eq!(listed["trusted"][0]["path"].as_str(), file.to_str(), "{listed}");
    assert!(listed["trusted"][0]["hash"].as_str().is_some_and(|hash| hash.starts_with("sha256:")), "{listed}");
}

/// Whatever else is wrong with a file is told before it is to be trusted.
#[test]
fn mistakes_come_before_trust() {
    let place = Place::new();
    for (text, word) in [
        ("docker = true\n[files]\nrw = [\"[\"]\n", ".ringfence.toml:3"),
        ("docker = true\nnetwrok = true\n", "did you mean `network`?"),
        ("docker = true\nprofile = \"agnet\"\n", "did you mean `agent`?"),
        ("docker = true\n[limits]\nmemory = \"x\"\n", "not a size"),
    ] {
        place.write("project/.ringfence.toml", text);
        for args in [&["run", "--", "true"][..], &["trust", "--yes"]] {
            let done = place.ringfence(args);
            says(&done, 125, &[word]);
            assert!(!done.err.contains("trust it yet"), "{}", done.err);
        }
    }
}

/// The flags that are named after a denial work, and open no more than they must.
#[test]
fn flags_for_what_was_denied() {
    let place = Place::new();
    for name in ["HEAD", "objects/x", "refs/x", "config"] {
        place.write(&format!("project/.git/{name}"), "");
    }
    place.write("project/.git/HEAD", "ref: refs/heads/main\n");
    let text = "git config a.b c; mkdir .vscode/x; echo > ~/new; true";
    let said = place.run(&["--trace-denials"], text).err;
    for allowed in ["--preset '!@git' allows", "--preset '!@dotfiles' allows", "/new (make it first) allows"] {
        assert!(said.contains(allowed), "{allowed}: {said}");
    }
    let done = place.run(&["--trace-denials", "--json"], text).json();
    let grant = |object: &str| {
        let denied = done["denied"].as_array().unwrap();
        let found = denied.iter().find(|denial| denial["object"].as_str().unwrap().ends_with(object));
        found.unwrap_or_else(|| panic!("{object}: {done}"))["grant"].clone()
    };
    assert_eq!(grant("/.git/config"), json!({"kind": "preset", "without": "@git"}));
    assert_eq!(grant("/.vscode/x"), json!({"kind": "preset", "without": "@dotfiles"}));
    let path = place.home.join("new");
    assert_eq!(grant("/new"), json!({"kind": "path", "access": "rw", "path": path, "missing": true}));
    std::fs::write(place.home.join("new"), "").unwrap();
    let new = format!("{}/new", place.home.display());
    let flags = ["--preset", "!@git", "--preset", "!@dotfiles", "--rw", new.as_str()];
    assert_eq!(place.run(&flags, "git config a.b c && mkdir -p .vscode/x && echo > ~/new").code, 0);
}

/// What `/tmp` is, where a rule shows the host's.
#[test]
fn a_report_of_temporary_space() {
    let place = Place::new();
    for engine in support::engines() {
        let state = |flags: &[&str]| {
            let done = place.run(&[&["--engine", engine, "--json"], flags].concat(), "true").json();
            let guarantees = done["report"]["guarantees"].as_array().unwrap().clone();
            let found = guarantees.into_iter().find(|g| g["id"] == "fs.temp-private").unwrap();
            (found["state"].as_str().unwrap().to_owned(), found["by"].as_str().unwrap().to_owned())
        };
        assert_eq!(state(&[]).0, "enforced", "{engine}");
        let (of_host, by) = state(&["--rw", "/var/tmp"]);
        assert!(of_host == "weakened" && by.contains("`/var/tmp` is the host's"), "{engine}: {of_host} {by}");
    }
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}

#[test]
fn a_program_that_is_not_found() {
    let place = Place::new();
    place.write("bin/mine", "#!/bin/sh\n");
    std::fs::set_permissions(place.home.join("bin/mine"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = place.command(["run", "--profile", "shell", "--", "mine"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", place.home.join("bin").display()));
    says(&support::Done::new(command.output().unwrap()), 127, &["bin/mine", "profile `shell`", "--ro"]);
    says(&place.ringfence(&["run", "--", "cargo --version"]), 127, &["as words"]);
    says(&place.ringfence(&["run", "--report", "report.json", "--", "true"]), 127, &["--report=report.json"]);
    assert!(!place.ringfence(&["run", "--", "no-such-program"]).err.contains("hint"));
}

#[test]
fn flags_and_files_that_were_meant_otherwise() {
    let place = Place::new();
    says(&place.ringfence(&["mcp", "--root", "/nope"]), 125, &["`/nope`", "--root DIR"]);
    says(&place.ringfence(&["session", "create", "--idle", "0"]), 125, &["at least 1s, or `never`"]);
    let engine = place.ringfence(&["run", "--engine", "dokcer", "--", "true"]).err;
    assert_eq!(engine.matches("hint").count(), 1, "{engine}");
    let listed = place.ringfence(&["trust", "--list"]);
    assert!(listed.code == 0 && listed.out.is_empty() && listed.err.contains("no file is trusted"), "{listed:?}");
    std::fs::create_dir(place.project.join(".ringfence.toml")).unwrap();
    says(&place.ringfence(&["trust"]), 125, &["project/.ringfence.toml`: it does not exist", "end the sandbox first"]);
}

#[test]
fn a_copy_names_where_it_could_not_go() {
    let place = Place::new();
    place.write("project/a", "text");
    assert_eq!(place.ringfence(&["session", "create", "w", "--profile", "shell"]).code, 0);
    says(&place.ringfence(&["session", "cp", "a", "w:/nope/x"]), 125, &["copy `a` to `/nope/x`"]);
    assert_eq!(place.ringfence(&["session", "cp", "a", "w:b"]).code, 0);
    says(&place.ringfence(&["session", "exec", "w", "--", "no-such"]), 127, &["cannot find the program `no-such`"]);
    place.ringfence(&["session", "stop", "w"]);
}
