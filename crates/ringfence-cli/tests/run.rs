//! `ringfence run` through the program: exit codes, streams, JSON, limits, signals.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{Done, Place};

#[test]
fn exit_codes() {
    let place = Place::new();
    place.write("project/data", "not a program");
    place.write("project/script", "exit 9");
    let script = place.project.join("script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let table: &[(&[&str], i32)] = &[
        (&["true"], 0),
        (&["false"], 1),
        (&["sh", "-c", "exit 42"], 42),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["sh", "-c", "kill -KILL $$"], 128 + 9),
        (&["no-such-program"], 127),
        (&["./no-such-program"], 127),
        (&["./data"], 126),
        (&["./script"], 9),
        (&["--timeout", "200ms", "sleep", "60"], 124),
        (&["--timeout", "200ms", "sh", "-c", "trap '' TERM; sleep 60"], 124),
    ];
    for (args, code) in table {
        let done = place.ringfence(&[&["run"], *args].concat());
        assert_eq!(done.code, *code, "{args:?}: {}", done.err);
    }
    assert_eq!(place.names(), ["data", "script"]);
}

#[test]
fn flags_end_at_the_command() {
    let place = Place::new();
    place.ringfence(&["run", "echo", "-n", "--json", "--", "-C", "x"]).expect(0, "--json -- -C x");
    place.ringfence(&["run", "--", "echo", "--", "a"]).expect(0, "-- a\n");
    place.ringfence(&["run", "--network=false", "echo", "--network"]).expect(0, "--network\n");
}

#[test]
fn bad_input_gives_one_error_and_starts_nothing() {
    let place = Place::new();
    place.write("bad.toml", "network = \"open\"\n\n[limits]\nmemry = \"1g\"\n");
    let typo = place.home.join("bad.toml");
    let table: &[(&[&str], &str)] = &[
        (&["--bogus", "touch", "made"], "--bogus"),
        (&["--engine", "chroot", "touch", "made"], "chroot"),
        (&["--profile", "agnet", "touch", "made"], "did you mean `agent`?"),
        (&["--preset", "@cache", "touch", "made"], "did you mean `@caches`?"),
        (&["--ro", "/no/such/path", "touch", "made"], "`/no/such/path`"),
        (&["--rw", "", "touch", "made"], "path is empty"),
        (&["--exclude", "a[b", "touch", "made"], "a[b"),
        (&["--config", "/no/such/file", "touch", "made"], "/no/such/file"),
        (
            &["--config", typo.to_str().unwrap(), "touch", "made"],
            "bad.toml:4: unknown key `limits.memry` (did you mean `memory`?)",
        ),
        (&["-C", "/no/such/dir", "touch", "made"], "/no/such/dir"),
        (&["--memory", "lots", "touch", "made"], "--memory: `lots` is not a size"),
        (&["--timeout", "soon", "touch", "made"], "--timeout: `soon` is not a duration"),
        (&["--cpus", "0", "touch", "made"], "--cpus"),
        (&["--pids", "0", "touch", "made"], "--pids"),
        (&["--network=maybe", "touch", "made"], "maybe"),
        (&["--env", "=x", "touch", "made"], "--env"),
        (&["--optional", "limit.memry", "touch", "made"], "limit.memory"),
        (&["--allow-syscall", "NOT A CALL", "touch", "made"], "--allow-syscall"),
        (&["--profile", "shell", "--timeout", "2h", "touch", "made"], "10m"),
    ];
    for (args, part) in table {
        let done = place.ringfence(&[&["run"], *args].concat());
        assert_eq!((done.code, done.out.as_str()), (125, ""), "{args:?}: {}", done.err);
        assert!(done.err.contains(part), "{args:?}: {}", done.err);
        assert_eq!(done.err.matches("error:").count(), 1, "{args:?}: {}", done.err);
        assert!(!done.err.contains("os error"), "{}", done.err);
    }
    assert_eq!(place.names(), [""; 0]);
    assert_eq!(place.ringfence(&["no-such-subcommand"]).code, 125);
    assert_eq!(place.ringfence(&["--help"]).code, 0);
    assert_eq!(place.ringfence(&["run", "--help"]).code, 0);
    assert_eq!(place.ringfence(&["--version"]).code, 0);
}

#[test]
fn a_configuration_that_is_no_text_is_an_error() {
    let place = Place::new();
    place.write(".config/ringfence/config.toml", "network = ");
    let done = place.ringfence(&["run", "true"]);
    assert_eq!(done.code, 125);
    assert!(done.err.contains("config.toml:1:"), "{}", done.err);
    std::fs::remove_file(place.home.join(".config/ringfence/config.toml")).unwrap();

    std::os::unix::fs::symlink("/etc/passwd", place.project.join(".ringfence.toml")).unwrap();
    let done = place.ringfence(&["run", "true"]);
    assert_eq!(done.code, 125);
    assert!(done.err.contains("symbolic link"), "{}", done.err);
    std::fs::remove_file(place.project.join(".ringfence.toml")).unwrap();

    std::fs::write(place.project.join(".ringfence.toml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(place.ringfence(&["run", "true"]).err.contains("larger than 1 MiB"));
}

#[test]
fn dry_run_starts_nothing() {
    let place = Place::new();
    let done = place.ringfence(&["run", "--dry-run", "--network=false", "touch", "made"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.lines().any(|line| line.contains("touch")), "{}", done.out);
    assert_eq!(place.names(), [""; 0]);
    let json = place.ringfence(&["run", "--dry-run", "--json", "touch", "made"]).json();
    assert_eq!(json["status"], "planned");
    assert!(!json["steps"].as_array().unwrap().is_empty());
}

/// What bubblewrap's dry run prints is one command for a shell that does the same, for root too.
#[test]
fn a_dry_run_of_bubblewrap_can_be_pasted() {
    if !support::engines().contains(&"bubblewrap") {
        return;
    }
    let place = Place::new();
    place.write(".ssh/id", "key");
    let text = "echo made > here; cat here; cat ~/.ssh/id 2>/dev/null || echo hidden; touch .mcp.json 2>/dev/null || echo held; exit 3";
    let flags = ["--engine", "bubblewrap", "--env", "A=b c"];
    let printed = place.run(&[flags.as_slice(), &["--dry-run"]].concat(), text);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert_eq!(place.names(), [""; 0]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &printed.out]).current_dir(&place.project).stdin(Stdio::null());
    place.environment(&mut shell);
    let pasted = Done::new(shell.output().unwrap());
    assert_eq!((pasted.code, pasted.out.as_str()), (3, "made\nhidden\nheld\n"), "{}", pasted.err);
    assert_eq!(place.names(), ["here"]);
    let done = place.run(&flags, text);
    assert_eq!((done.code, done.out), (pasted.code, pasted.out));
}

/// Its namespaces are made on another processor meanwhile; the command may use all that its caller may.
#[test]
fn the_command_has_its_callers_processors() {
    let place = Place::new();
    let allowed = |text: &str| text.lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned);
    let own = allowed(&std::fs::read_to_string("/proc/self/status").unwrap());
    for network in ["--network=false", "--network=true"] {
        for _ in 0..10 {
            let done = place.ringfence(&["run", network, "--", "cat", "/proc/self/status"]);
            assert_eq!((done.code, allowed(&done.out)), (0, own.clone()), "{}", done.err);
        }
    }
}

/// As cron and some supervisors start programs.
#[test]
fn a_caller_that_ignores_its_children() {
    let place = Place::new();
    for command in ["run -- sh -c 'exit 7'", "run --memory 100m -- sh -c 'exit 7'"] {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.arg("-c").arg(format!("trap '' CHLD; exec \"$0\" {command}")).arg(support::program());
        shell.current_dir(&place.project).stdin(Stdio::null());
        place.environment(&mut shell);
        let done = Done::new(shell.output().unwrap());
        assert_eq!(done.code, 7, "{command}: {}", done.err);
    }
}

#[test]
fn streams_are_the_commands_own() {
    let place = Place::new();
    let done = place.run(&[], "echo out; echo err >&2; exit 3");
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (3, "out\n", "err\n"));

    // Binary, large, through a pipe in both directions.
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut child = place.command(["run", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let copy = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy));
    let done = Done::new(child.wait_with_output().unwrap());
    writer.join().unwrap().unwrap();
    assert!(done.raw == bytes && done.code == 0, "{} bytes", done.raw.len());
}

/// By a directory as a standard descriptor, a command would read what is hidden: `/proc/self/fd/0/../../.ssh/id`.
#[test]
fn a_directory_as_a_standard_descriptor_is_refused() {
    let place = Place::new();
    place.write(".ssh/id", "the-key");
    std::fs::create_dir(place.project.join("below")).unwrap();
    let directory = || std::fs::File::open(place.project.join("below")).unwrap();
    let read = |at: u32| ["cat".to_owned(), format!("/proc/self/fd/{at}/../../.ssh/id")];
    let why = "it is a directory, through which the command could reach every file of this host";
    let expect = |done: Done, stream: &str, nothing: &str| {
        let message = format!("error: cannot give {stream} to the sandbox: {why}\nhint: redirect ");
        assert_eq!((done.code, done.out.as_str()), (125, ""), "{}", done.err);
        assert!(done.err.contains(&message) && done.err.contains(nothing), "{}", done.err);
    };
    // Outside it works.
    let outside = std::process::Command::new("cat").args(&read(0)[1..]).stdin(directory()).output().unwrap();
    assert_eq!(outside.stdout, b"the-key");
    for engine in support::engines() {
        let command = |flags: &[&str], at: u32| {
            let flags = [&["run", "--engine", engine], flags, &["--"]].concat();
            place.command(flags.into_iter().map(str::to_owned).chain(read(at)))
        };
        let done = |command: &mut std::process::Command| Done::new(command.output().unwrap());
        expect(done(command(&[], 0).stdin(directory())), "standard input", "< /dev/null");
        expect(done(command(&[], 1).stdout(directory())), "standard output", "> /dev/null");
        // Nothing can be told where standard error is the directory.
        assert_eq!(done(command(&[], 2).stderr(directory())).code, 125);
        let json = done(command(&["--json"], 0).stdin(directory())).json();
        assert_eq!((&json["status"], &json["error"]["kind"]), (&"failed".into(), &"usage".into()));
        let hint = json["error"]["hint"].as_str().unwrap();
        assert!(json["error"]["message"].as_str().unwrap().contains(why) && hint.contains("< /dev/null"), "{json}");
        // Where what the command writes is recorded, it has pipes of ours, and the caller's standard input.
        place.write("recorded.toml", "[records]\noutput = true\n");
        let recorded = place.home.join("recorded.toml");
        let flags = ["--config", recorded.to_str().unwrap()];
        expect(done(command(&flags, 0).stdin(directory())), "standard input", "< /dev/null");
        // A file is what it is, and leads nowhere.
        let file = || std::fs::File::open(place.home.join(".ssh/id")).unwrap();
        let mut cat = place.command(["run", "--engine", engine, "--", "cat"]);
        done(cat.stdin(file())).expect(0, "the-key");
        assert_eq!(done(command(&[], 0).stdin(file())).out, "");
    }
    assert_eq!(place.names(), ["below"]);
}

#[test]
fn a_pipe_ends_when_the_command_closes_it() {
    let place = Place::new();
    let mut child = place
        .command(["run", "sh", "-c", "echo hi; exec >&-; sleep 30"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "hi\n");
    assert!(started.elapsed() < Duration::from_secs(20));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_reader_that_leaves_ends_the_writer() {
    let place = Place::new();
    let mut child = place.command(["run", "yes"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 4]).unwrap();
    drop(out);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
    // Our own output likewise.
    let mut child = place.command(["completions", "zsh"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn json_of_a_command() {
    let place = Place::new();
    let done = place.run(&["--json"], "echo out; printf '\\377' >&2; exit 3");
    assert_eq!(done.code, 3);
    let json = done.json();
    assert_eq!(json["status"], "exited");
    assert_eq!(json["exit_code"], 3);
    assert_eq!(json["stdout"], "out\n");
    assert_eq!(json["stderr"], "\u{fffd}");
    for key in ["signal", "reason", "error"] {
        assert!(json[key].is_null(), "{key}");
    }
    for key in ["stdout_dropped", "stderr_dropped", "duration_ms", "cpu_ms", "peak_memory"] {
        assert!(json[key].is_u64(), "{key}");
    }
    assert_eq!(json["profile"], "agent");
    assert_eq!(json["engine"], json["report"]["engine"]);
    assert!(json["denied"].as_array().unwrap().is_empty());

    let json = place.run(&["--json"], "kill -9 $$").json();
    assert_eq!((&json["status"], &json["signal"]), (&"signaled".into(), &9.into()));
    let done = place.run(&["--json", "--timeout", "200ms"], "sleep 60");
    assert_eq!((done.code, &done.json()["reason"]), (124, &"time".into()));
}

#[test]
fn json_tells_our_failures_from_the_commands() {
    let place = Place::new();
    let table: &[(&[&str], i32, &str)] = &[
        (&["no-such-program"], 127, "not-found"),
        (&["/etc/passwd"], 126, "not-executable"),
        (&["--ro", "/no/such", "true"], 125, "policy"),
        (&["--preset", "@no", "true"], 125, "usage"),
        (&["--bogus", "true"], 125, "usage"),
    ];
    for (args, code, kind) in table {
        let done = place.ringfence(&[&["run", "--json"], *args].concat());
        assert_eq!(done.code, *code, "{args:?}");
        let json = done.json();
        assert_eq!((&json["status"], &json["error"]["kind"]), (&"failed".into(), &(*kind).into()), "{args:?}");
        assert!(json["exit_code"].is_null());
    }
}

#[test]
fn a_flood_is_cut_in_the_middle() {
    let place = Place::new();
    let json = place.run(&["--json", "--output-limit", "1k"], "echo first; yes | head -c 30000000; echo last").json();
    let out = json["stdout"].as_str().unwrap();
    assert!(out.starts_with("first\ny\n") && out.ends_with("y\nlast\n"), "{out}");
    assert!(out.len() < 2000);
    assert_eq!(json["stdout_dropped"], 30_000_000 + 6 + 5 - 1024);
}

#[test]
fn reports() {
    let place = Place::new();
    let done = place.run(&["--report"], "true");
    assert!(done.err.contains("enforced   fs.root-read-only"), "{}", done.err);
    place.run(&["--json", "--report=report.json"], "true");
    let text = std::fs::read_to_string(place.project.join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(report["guarantees"].as_array().unwrap().iter().any(|g| g["id"] == "proc.isolated"));
}

#[test]
fn a_note_says_which_limit_it_was() {
    let place = Place::new();
    let done = place.run(&["--timeout", "300ms"], "sleep 60");
    assert_eq!(done.err, "ringfence: ended after 300ms (limit.time); --timeout allows more\n");
    assert_eq!(place.run(&[], "exit 1").err, "");
}

#[test]
fn without_a_command_the_users_shell() {
    let place = Place::new();
    let run = |shell: &str| {
        let mut child =
            place.command(["run"]).env("SHELL", shell).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"echo $0\n").unwrap();
        Done::new(child.wait_with_output().unwrap())
    };
    run("/bin/bash").expect(0, "/bin/bash\n");
    run("/no/such/shell").expect(0, "/bin/sh\n");
}

#[test]
fn signals_reach_the_command() {
    let place = Place::new();
    let text = "for s in HUP INT QUIT USR1 USR2 TERM; do trap \"echo $s\" $s; done; trap 'echo TERM; exit 5' TERM
                echo ready; while :; do sleep 0.05; done";
    let mut child = place.command(["run", "sh", "-c", text]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut text = String::new();
        std::io::BufRead::read_line(&mut out, &mut text).unwrap();
        text
    };
    assert_eq!(line(), "ready\n");
    use rustix::process::Signal;
    let signals = [
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::TERM, "TERM"),
    ];
    for (signal, name) in signals {
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        assert_eq!(line(), format!("{name}\n"));
    }
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn the_second_interrupt_ends_by_force() {
    let place = Place::new();
    let text = "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done";
    let mut child =
        place.command(["run", "sh", "-c", text]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    out.read_exact(&mut [0; 6]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    out.read_exact(&mut [0; 3]).unwrap();
    assert!(child.try_wait().unwrap().is_none());
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(137), None));
}

#[test]
fn check_says_which() {
    let place = Place::new();
    place.ringfence(&["check"]).expect(1, "outside\n");
    place.ringfence(&["run", "--ro", support::program(), support::program(), "check"]).expect(0, "inside\n");
}

#[test]
fn the_environment_is_the_policys() {
    let place = Place::new();
    let mut command = place.command(["run", "--env", "A=1", "--env", "LD_X", "sh", "-c", "echo $A $B $LD_X $LD_Y"]);
    let done = Done::new(command.env("B", "2").env("LD_X", "3").env("LD_Y", "4").output().unwrap());
    done.expect(0, "1 2 3\n");
}

#[test]
fn guards_stand_in_front_of_programs() {
    let place = Place::new();
    place.write("project/.ringfence.toml", "[commands]\nhead = false\n");
    let done = place.run(&[], "git --version; git reset --hard; echo $?; head -c1 /dev/null; echo $?");
    assert!(done.out.starts_with("git version "), "{done:?}");
    assert!(done.out.ends_with("\n126\n126\n"), "{done:?}");
    assert!(done.err.contains("git reset --hard is blocked here"), "{done:?}");
    assert!(done.err.contains("head is blocked here by the policy"), "{done:?}");

    place.write("wrapper", "#!/bin/sh\necho wrapped \"$@\"\nexec \"$RINGFENCE_REAL\" \"$@\"\n");
    let wrapper = place.home.join("wrapper");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.write("own.toml", &format!("[commands]\nprintf = \"{}\"\n", wrapper.display()));
    let config = place.home.join("own.toml");
    let done = place.run(&["--config", config.to_str().unwrap()], "/usr/bin/printf %s-end x");
    done.expect(0, "wrapped %s-end x\nx-end");
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}

/// Where the lists of placeholders are, a sandbox sees nothing and changes nothing, whatever is opened.
#[test]
fn the_lists_of_placeholders_are_closed() {
    let place = Place::new();
    let own = rustix::process::getuid().as_raw();
    for engine in support::engines() {
        for registry in [
            format!("/tmp/ringfence-{own}"),
            format!("/var/tmp/ringfence-{own}"),
            "/run/ringfence-placeholders".to_owned(),
        ] {
            let above = std::path::Path::new(&registry).parent().unwrap().to_str().unwrap();
            if !support::is_root() && above == "/run" {
                continue;
            }
            let text = format!(
                "ls -A {above} >/dev/null && ! ls {registry} && ! touch {registry}/x && ! mv {registry} {registry}.x"
            );
            let done = place.run(&["--engine", engine, "--rw", above], &format!("{text} 2>/dev/null"));
            assert_eq!(done.code, 0, "{engine} {registry}: {}", done.err);
        }
    }
    assert_eq!(place.names(), [""; 0]);
}

/// What is kept of sessions with a home has their environment in it.
#[test]
fn what_is_kept_of_sessions_and_records_is_closed() {
    let place = Place::new();
    // Also in the first run of all, which makes these places: one that comes while a box lives would be seen.
    let done =
        place.run(&[], "for name in sessions homes records; do ls ~/.local/state/ringfence/$name && exit 9; done");
    assert_eq!((done.code, done.err.matches("Permission denied").count()), (2, 3), "{done:?}");
    for name in ["sessions", "homes", "records"] {
        let kept = place.home.join(".local/state/ringfence").join(name);
        std::fs::create_dir_all(&kept).unwrap();
        std::fs::write(kept.join("probe"), "kept").unwrap();
        std::fs::write(place.home.join("probe"), "open").unwrap();
        for engine in support::engines() {
            let text = format!("cat ~/probe; cat {}/probe 2>/dev/null", kept.display());
            let done = place.run(&["--engine", engine], &text);
            assert_eq!(done.out, "open", "{engine} {name}: {}", done.err);
        }
    }
}

/// What the command does to its directory is as it is without Ringfence; no stand-in is left in it.
#[test]
fn a_directory_without_permissions_keeps_no_stand_in() {
    for (engine, mode) in support::engines().into_iter().flat_map(|engine| [(engine, 0o555), (engine, 0o000)]) {
        let place = Place::new();
        let done = place.run(&["--engine", engine], &format!("mkdir sub; chmod {mode:o} ."));
        assert_eq!(done.code, 0, "{engine}: {}", done.err);
        let data = std::fs::metadata(&place.project).unwrap();
        assert_eq!(data.permissions().mode() & 0o7777, mode, "{engine}");
        std::fs::set_permissions(&place.project, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(place.names(), ["sub"], "{engine} {mode:o}");
    }
}

/// What git outside would go into is named at the end.
#[test]
fn repositories_that_were_made_are_named() {
    let place = Place::new();
    let make = "mkdir -p a/b/.git/objects a/b/.git/refs; echo ref: refs/heads/x >a/b/.git/HEAD; echo >a/b/.git/config";
    let done = place.run(&[], make);
    assert!(done.code == 0 && done.err.contains("a/b/.git` was made or changed"), "{done:?}");
    let done = place.run(&[], "touch a/b/file; touch a/b/.git/index");
    assert!(done.code == 0 && done.err.is_empty(), "{done:?}");
    let done = place.run(&[], "echo '[core]' >a/b/.git/config");
    assert!(done.err.contains("a/b/.git` was made or changed"), "{done:?}");
    for (name, text) in
        [("HEAD", "ref: refs/heads/main\n"), ("config", ""), ("objects/info/x", ""), ("refs/heads/x", "")]
    {
        place.write(&format!("project/.git/{name}"), text);
    }
    let done = place.run(&[], "echo nonsense >.git/HEAD");
    assert!(done.err.contains(".git` is no repository any more"), "{done:?}");
}

/// Programs are installed below home only where `@programs` says so, and what refuses it names the preset.
#[test]
fn programs_are_installed_with_their_preset() {
    let place = Place::new();
    place.write(".local/bin/there", "");
    let install = "echo x >~/.local/bin/tool";
    let done = place.run(&["--trace-denials"], install);
    assert!(done.code != 0 && done.err.contains("--preset @programs allows it"), "{done:?}");
    assert!(!place.home.join(".local/bin/tool").exists());
    let done = place.ringfence(&["explain", "~/.local/bin/tool"]);
    assert!(done.out.contains("`--preset @programs` makes it writable"), "{done:?}");
    place.run(&["--preset", "@programs"], install).expect(0, "");
    assert!(place.home.join(".local/bin/tool").exists());
    // Also where the working directory is a part of home, or such a place itself.
    for dir in [".local", ".local/bin"] {
        let dir = place.home.join(dir).display().to_string();
        assert!(place.run(&["-C", &dir], "echo x >~/.local/bin/other").code != 0, "{dir}");
        place.run(&["-C", &dir, "--preset", "@programs"], "echo x >~/.local/bin/other").expect(0, "");
        std::fs::remove_file(place.home.join(".local/bin/other")).unwrap();
    }
    let dir = place.home.join(".local/bin").display().to_string();
    let done = place.run(&["-C", &dir], "true");
    assert!(done.err.contains("it is read-only; `--rw"), "{done:?}");
    let done = place.run(&["-C", &dir, "--rw", "."], "echo x >another");
    assert!(done.code == 0 && done.err.is_empty(), "{done:?}");
}

/// What a link of a hidden directory or of git's hooks leads to may lie in a directory that cannot be looked into. A sandbox
/// opens its own directories again, so that all of it is hidden or read-only. Root can look into it.
#[test]
fn a_closed_directory_behind_a_link_stays_closed() {
    for engine in support::engines() {
        let place = Place::new();
        for (path, text) in [
            (".ssh/id", "own"),
            ("project/.git/HEAD", "ref: refs/heads/main\n"),
            ("project/.git/config", ""),
            ("project/keys/key", "do-not-tell"),
            ("project/scripts/hooks/README", ""),
            ("project/plain/file", "plain"),
        ] {
            place.write(path, text);
        }
        for name in ["objects", "refs"] {
            std::fs::create_dir(place.project.join(".git").join(name)).unwrap();
        }
        std::os::unix::fs::symlink(place.project.join("keys/key"), place.home.join(".ssh/linked")).unwrap();
        // Bubblewrap refuses a link there, and says so.
        let hooks = engine == "native";
        if hooks {
            std::os::unix::fs::symlink("../scripts/hooks", place.project.join(".git/hooks")).unwrap();
        }
        let closed = ["keys", "scripts", "plain"].map(|name| place.project.join(name));
        let change = |mode: u32| {
            for dir in &closed {
                std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        };
        change(0);
        let text = "chmod 700 plain && cat plain/file && echo x >plain/made
                    chmod 700 keys; cat keys/key; mv keys k && cat k/key
                    chmod 700 scripts; echo x >scripts/hooks/pre-commit";
        let done = place.run(&["--engine", engine], text);
        change(0o700);
        assert_eq!(done.out, "plain", "{engine}: {}", done.err);
        assert!(place.project.join("plain/made").exists(), "{engine}: {}", done.err);
        let planted = place.project.join("scripts/hooks/pre-commit").exists();
        assert_eq!(planted, !hooks, "{engine}: {}", done.err);
    }
}

/// A server of the host's that bound its socket by a relative name, in the project.
#[test]
fn a_socket_with_a_relative_name_is_closed_too() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return support::skip("a server", "there is no /usr/bin/python3");
    }
    let server =
        "import os, socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind('rel.sock')\nos.chmod('rel.sock', 0o777)
s.listen(9)\nprint(flush=True)\nsys.stdin.read()";
    let client =
        |name: &str| format!("import socket\nsocket.socket(socket.AF_UNIX).connect('{name}')\nprint('connected')");
    for engine in support::engines() {
        let place = Place::new();
        let python = |text: &str| {
            let mut command = std::process::Command::new("/usr/bin/python3");
            command.args(["-c", text]).current_dir(&place.project).stdout(Stdio::piped()).stdin(Stdio::piped());
            command
        };
        let mut server = python(server).spawn().unwrap();
        server.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let inside = |name: &str| {
            place.ringfence(&["run", "--json", "--engine", engine, "/usr/bin/python3", "-c", &client(name)]).json()
        };
        let outside = |name: &str| String::from_utf8(python(&client(name)).output().unwrap().stdout).unwrap();
        assert_eq!(outside("rel.sock"), "connected\n");
        let done = inside("rel.sock");
        assert!(
            done["exit_code"] == 1 && done["stderr"].as_str().unwrap().contains("PermissionError"),
            "{engine}: {done}"
        );
        // Where nobody knows where it is, the report says so.
        std::fs::rename(place.project.join("rel.sock"), place.project.join("moved")).unwrap();
        let done = inside("moved");
        let closed =
            done["report"]["guarantees"].as_array().unwrap().iter().find(|g| g["id"] == "net.host-sockets-closed");
        let closed = closed.unwrap();
        assert!(closed["state"] == "weakened", "{engine}: {closed}");
        assert!(closed["by"].as_str().unwrap().contains("bound by the relative name"), "{engine}: {closed}");
        drop(server.stdin.take());
        server.wait().unwrap();
    }
}

/// The registry may be made after the plan of the first sandbox, and is no sandbox's.
#[test]
fn the_registry_is_hidden_where_its_place_is_shown() {
    // An ordinary user's lies where nothing can be shown.
    if !rustix::process::getuid().is_root() {
        return;
    }
    let place = Place::new();
    // Not bubblewrap: it cannot map the ids of what Docker mounts in there.
    let list = |dir: &str| place.ringfence(&["run", "--engine", "native", "--ro", "/var/lib", "--", "ls", dir]);
    assert_eq!(list("/var/lib").code, 0);
    let done = list("/var/lib/ringfence-placeholders");
    assert!(done.code != 0 && done.err.contains("Permission denied"), "{done:?}");
}

/// A flag wins over the configuration, in what the kernel does and not only in the plan.
#[test]
fn the_network_is_what_flag_and_configuration_say() {
    let place = Place::new();
    let host = std::fs::read_link("/proc/self/ns/net").unwrap();
    let shares = |args: &[&str]| {
        let done = place.ringfence(&[&["run"], args, &["--", "readlink", "/proc/self/ns/net"]].concat());
        assert_eq!(done.code, 0, "{}", done.err);
        done.out.trim() == host.to_str().unwrap()
    };
    let default = shares(&[]);
    for network in ["open", "none"] {
        place.write("global.toml", &format!("network = \"{network}\"\n"));
        let config = place.home.join("global.toml");
        let config = ["--config", config.to_str().unwrap()];
        assert_eq!(shares(&config), network == "open", "{network}, default {default}");
        for (flag, open) in [("--network", true), ("--network=false", false)] {
            assert_eq!(shares(&[&config[..], &[flag]].concat()), open, "{network} {flag}");
        }
    }
    // Other ids than those of the profile, and another root.
    place.ringfence(&["run", "--profile", "shell", "--", "id", "-u"]).expect(0, "1000\n");
    place.ringfence(&["run", "--timeout", "5s", "--pids", "64", "--", "echo", "limited"]).expect(0, "limited\n");
}

/// A rule that shows what is above a private place does not show the host's: its report says that it is private.
#[test]
fn private_places_stay_private_below_a_rule() {
    let place = Place::new();
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let name = file.path().to_str().unwrap();
    for engine in ["native", "bubblewrap"] {
        let look = |rule: &str| {
            let script = format!("ls /var/lib && {{ test -e {name} && echo shown; echo >/var/tmp/own; }}");
            let done = place.ringfence(&["run", "--engine", engine, "--rw", rule, "--", "sh", "-c", &script]);
            assert_eq!(done.code, 0, "{engine}: {done:?}");
            done.out.contains("shown")
        };
        assert!(!look("/var"), "{engine}");
        assert!(look("/var/tmp"), "{engine}");
        std::fs::remove_file("/var/tmp/own").unwrap();
    }
}

/// A sandbox in a sandbox that may not make namespaces: what its command leaves behind is killed at its end, and a tree that
/// stops its process 1 ends in time all the same.
#[test]
fn a_stacked_run_leaves_nothing_behind() {
    let place = Place::new();
    // Where the outer sandbox shows it.
    std::fs::copy(support::program(), place.project.join("rf")).unwrap();
    let nap = format!("100{}", std::process::id());
    let left = format!("ps -A -o args | grep -c '^[s]leep {nap}'");
    let outer = |script: &str| place.ringfence(&["run", "--", "sh", "-c", script]);
    // Outside of a stacked run it stays: the count sees it.
    outer(&format!("setsid sleep {nap} & sleep 0.2; {left}")).expect(0, "1\n");
    let probe = outer("./rf run -- true");
    if probe.err.contains("cannot promise") {
        return support::skip("what a stacked run leaves behind", probe.err.trim());
    }
    for inside in [
        format!("setsid sleep {nap} & sleep 0.2"),
        format!("for n in 1 2 3 4 5; do (setsid sh -c \"sleep {nap} & sleep {nap}\" &); done; sleep 0.2"),
    ] {
        let done = outer(&format!("./rf run -- sh -c '{inside}'; {left}"));
        assert!(done.out.ends_with("0\n"), "{inside}: {done:?}");
    }
    let begun = std::time::Instant::now();
    outer("./rf run --timeout 1s -- sh -c 'while :; do kill -STOP $PPID; done'; echo $?").expect(0, "124\n");
    assert!(begun.elapsed() < std::time::Duration::from_secs(30));
}
