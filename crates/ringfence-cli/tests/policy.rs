//! Configuration, trust, and what explains them, through the program.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::Place;

#[test]
fn config_show_names_the_origin_of_every_value() {
    let place = Place::new();
    place.write(".config/ringfence/config.toml", "[limits]\nmemory = \"1g\"\n");
    place.write("project/.ringfence.toml", "network = \"none\"\n\n[files]\nexclude = [\"secret\"]\n");
    let done = place.ringfence(&["config", "show", "--timeout", "5s"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let line = |start: &str| done.out.lines().find(|l| l.starts_with(start)).unwrap_or_default().to_owned();
    assert!(line("limits.memory = 1GiB").ends_with("config.toml:2"), "{}", done.out);
    assert!(line("network = none").ends_with(".ringfence.toml:1"));
    assert!(line("limits.timeout = 5s").ends_with("# --timeout"));
    assert!(line("docker = false").ends_with("# profile agent"));
    assert!(
        line(&format!("files.exclude = {}", place.project.join("secret").display())).ends_with(".ringfence.toml:4")
    );

    let json = place.ringfence(&["config", "show", "--json"]).json();
    let values = json["values"].as_array().unwrap();
    let network = values.iter().find(|v| v["key"] == "network").unwrap();
    assert_eq!((&network["value"], &network["layer"]), (&"none".into(), &"project".into()));
}

/// A file that was meant to be read is never passed over: its rules would be missing without a word.
#[test]
fn an_own_file_that_cannot_be_read_is_an_error() {
    let place = Place::new();
    let file = place.home.join(".config/ringfence/config.toml");
    place.write("dotfiles/rf.toml", "network = \"none\"\n");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(place.home.join("dotfiles/rf.toml"), &file).unwrap();
    let done = place.ringfence(&["config", "show"]);
    assert!(done.code == 0 && done.out.contains("network = none"), "{} {}", done.out, done.err);
    std::fs::remove_file(place.home.join("dotfiles/rf.toml")).unwrap();
    let done = place.ringfence(&["run", "--", "echo", "ran"]);
    assert!(done.code == 125 && done.out.is_empty() && done.err.contains("config.toml"), "{} {}", done.code, done.err);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let done = place.ringfence(&["run", "--", "echo", "ran"]);
    assert!(done.code == 125 && done.err.contains("not a regular file"), "{} {}", done.code, done.err);
}

#[test]
fn nothing_in_proc_can_be_hidden() {
    let place = Place::new();
    for rule in ["/proc/1", "/dev/shm/x"] {
        let done = place.ringfence(&["run", "--exclude", rule, "--", "true"]);
        assert!(done.code == 125 && done.err.contains("of its own"), "{rule}: {} {}", done.code, done.err);
    }
    place.write("project/secret", "");
    assert_eq!(place.ringfence(&["run", "--exclude", "secret", "--", "true"]).code, 0);
}

#[test]
fn explain_says_which_rule_decides() {
    let place = Place::new();
    place.write(".ssh/id", "secret");
    let table: &[(&[&str], bool, bool, &str)] = &[
        (&["new"], true, true, "preset @base"),
        (&["--ro", ".", "./new"], true, false, "--ro"),
        (&["~/.ssh/id"], false, false, "preset @secrets"),
        (&["~/.aws/credentials"], false, false, "preset @secrets"),
        (&["/etc/hostname"], true, false, "root"),
        (&["/proc/1/environ"], false, false, "root"),
        (&[".mcp.json"], false, false, "preset @dotfiles"),
    ];
    std::fs::write(place.project.join("new"), "").unwrap();
    for (args, read, write, by) in table {
        let done = place.ringfence(&[&["explain", "--json"], *args].concat());
        assert_eq!(done.code, 0, "{}", done.err);
        let json = done.json();
        assert_eq!((&json["read"], &json["write"]), (&(*read).into(), &(*write).into()), "{args:?} {json}");
        assert!(json["decided_by"].as_str().unwrap().contains(by), "{args:?} {json}");
    }
    let reach = |args: &[&str]| place.ringfence(&[&["explain", "--json"], args].concat()).json()["reach"].clone();
    assert_eq!(reach(&["example.com"]), true);
    assert_eq!(reach(&["--network=false", "example.com"]), false);
    assert_eq!(reach(&["--network=false", "localhost"]), false);
    let text = place.ringfence(&["explain", "~/.ssh"]);
    assert!(text.out.contains("hidden") && text.out.contains("decided by: exclude"), "{}", text.out);
}

#[test]
fn what_explain_says_holds() {
    let place = Place::new();
    place.write(".ssh/id", "secret");
    place.write("open", "open");
    let read = |path: &str| place.run(&[], &format!("cat ~/{path}")).code == 0;
    let says = |path: &str| place.ringfence(&["explain", "--json", &format!("~/{path}")]).json()["read"] == true;
    for path in [".ssh/id", "open"] {
        assert_eq!(read(path), says(path), "{path}");
    }
}

#[test]
fn a_project_may_only_tighten_until_it_is_trusted() {
    let place = Place::new();
    place.write("outside/x", "");
    place.write("project/.ringfence.toml", "docker = false\n[files]\nrw = [\"~/outside\"]\n");
    let write = || place.run(&[], "echo y > ~/outside/x");

    let refused = write();
    assert_eq!(refused.code, 125);
    assert!(refused.err.contains(".ringfence.toml:3: makes"), "{}", refused.err);
    assert!(refused.err.contains("hint: ") && refused.err.contains("ringfence trust"), "{}", refused.err);

    // Nobody to ask.
    let asked = place.ringfence(&["trust"]);
    assert_eq!(asked.code, 125);
    assert!(asked.err.contains("--yes"), "{}", asked.err);
    assert_eq!(place.ringfence(&["trust", "--list"]).out, "");

    let trusted = place.ringfence(&["trust", "--yes"]);
    assert_eq!(trusted.code, 0, "{}", trusted.err);
    assert!(trusted.err.contains("outside` writable"), "{}", trusted.err);
    assert!(place.ringfence(&["trust", "--list"]).out.starts_with("sha256:"));
    assert_eq!(write().code, 0, "{}", write().err);

    // An edit takes the trust back; to put it back as it was gives it again.
    let text = std::fs::read_to_string(place.project.join(".ringfence.toml")).unwrap();
    place.write("project/.ringfence.toml", &format!("{text}\n"));
    assert_eq!(write().code, 125);
    place.write("project/.ringfence.toml", &text);
    assert_eq!(write().code, 0);

    assert_eq!(place.ringfence(&["trust", "--remove", "."]).code, 0);
    assert_eq!(write().code, 125);

    // The user named it.
    let file = place.project.join(".ringfence.toml");
    assert_eq!(place.run(&["--config", file.to_str().unwrap()], "echo y > ~/outside/x").code, 0);
}

#[test]
fn what_only_tightens_needs_no_trust() {
    let place = Place::new();
    place.write("project/.ringfence.toml", "network = \"none\"\n");
    assert_eq!(place.run(&[], "true").code, 0);
    let done = place.ringfence(&["trust", "--yes"]);
    assert!(done.err.contains("loosens nothing"), "{}", done.err);
    assert_eq!(place.ringfence(&["trust", "--list"]).out, "");
}

#[test]
fn a_box_cannot_trust_for_the_user() {
    let place = Place::new();
    place.write("project/.ringfence.toml", "[files]\nrw = [\"~/outside\"]\n");
    let state = place.home.join(".local/state/ringfence");
    std::fs::create_dir_all(&state).unwrap();
    place.write("none.toml", "");
    let config = place.home.join("none.toml");
    let home = place.home.to_str().unwrap();
    let done = place.ringfence(&[
        "run",
        "--config",
        config.to_str().unwrap(),
        "--rw",
        &format!("{home}/.local"),
        "--ro",
        support::program(),
        support::program(),
        "trust",
        "--yes",
    ]);
    assert_ne!(done.code, 0, "{done:?}");
    assert_eq!(place.ringfence(&["trust", "--list"]).out, "");
}

#[test]
fn doctor_finds_an_engine() {
    let place = Place::new();
    let done = place.ringfence(&["doctor"]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let json = place.ringfence(&["doctor", "--json"]).json();
    assert_eq!(json["works"], true);
    for fact in json["facts"].as_array().unwrap() {
        assert!(["ok", "degraded", "missing"].contains(&fact["state"].as_str().unwrap()));
        assert_eq!(fact["cure"].is_null(), fact["state"] == "ok", "{fact}");
    }
    assert_eq!(json["inside"], false);
}

#[test]
fn doctor_says_when_it_is_inside() {
    let place = Place::new();
    let program = support::program();
    let json = place.ringfence(&["run", "--ro", program, program, "doctor", "--json"]).json();
    assert_eq!(json["inside"], true);
    let facts = json["facts"].as_array().unwrap();
    let of = |name: &str| facts.iter().find(|fact| fact["fact"] == name).unwrap();
    assert!(of("sandbox")["detail"].as_str().unwrap().contains("inside a sandbox"));
    assert!(of("user namespaces")["cure"].as_str().unwrap().contains("--nesting"), "{}", of("user namespaces"));
}

#[test]
fn doctor_looks_for_bwrap_where_the_engine_does() {
    let place = Place::new();
    // One in PATH, that a box may have put there, is neither found nor run.
    place.write("bin/bwrap", "#!/bin/sh\ntouch ~/was-run\necho bubblewrap 9.9\n");
    let own = place.home.join("bin/bwrap");
    std::fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", place.home.join("bin").display());
    let done = support::Done::new(place.command(["doctor"]).env("PATH", path).output().unwrap());
    assert!(done.out.contains("bubblewrap") && !done.out.contains("9.9"), "{}", done.out);
    assert!(!place.home.join("was-run").exists());
}

#[test]
fn help_completions_and_manual_come_from_one_source() {
    let place = Place::new();
    let help = place.ringfence(&["run", "--help"]).out;
    assert!(help.contains("@lint/rust") && help.contains("Exit codes:"), "{help}");
    let page = place.ringfence(&["man"]).out.replace("\\-", "-");
    for flag in ["--engine", "--network", "--exclude", "--trace-denials", "--output-limit", "--report"] {
        assert!(help.contains(flag), "{flag}");
        assert!(page.contains(flag), "{flag}");
        for shell in ["bash", "zsh", "fish"] {
            let name = flag.trim_start_matches('-');
            assert!(place.ringfence(&["completions", shell]).out.contains(name), "{shell} {flag}");
        }
    }
}

#[test]
fn what_was_probably_meant() {
    let place = Place::new();
    let table: &[(&[&str], &str)] = &[
        (&["run", "--engine", "bwrap", "true"], "hint: did you mean `bubblewrap`?"),
        (&["run", "--engine", "nativ", "true"], "hint: did you mean `native`?"),
        (&["run", "--no-network", "true"], "hint: write `--network=false`"),
        (&["explain", "--no-docker", "/"], "hint: write `--docker=false`"),
        (&["run", "--preset", "@lint/rusty", "true"], "did you mean `@lint/rust`?"),
        (&["run", "--preset", "secrets", "true"], "did you mean `@secrets`?"),
        (&["npm", "test"], "hint: to run it in a sandbox: ringfence run -- npm test"),
        (&["docter"], "'doctor'"),
    ];
    for (args, hint) in table {
        let done = place.ringfence(args);
        assert_eq!(done.code, 125, "{args:?}");
        assert!(done.err.contains(hint), "{args:?}: {}", done.err);
        assert_eq!(done.err.matches("error:").count(), 1, "{args:?}: {}", done.err);
        assert!(!done.err.contains("to pass"), "{args:?}: {}", done.err);
    }
}

#[test]
fn failures_are_json_where_that_was_asked_for() {
    let place = Place::new();
    let table: &[(&[&str], &str)] = &[
        (&["run", "--json", "--ro", "/no/such", "true"], "policy"),
        (&["run", "--json", "--bogus", "true"], "usage"),
        (&["config", "show", "--json", "--preset", "@x"], "usage"),
        (&["config", "show", "--json", "--profile", "agnet"], "config"),
        (&["explain", "--json", "/x", "--ro", "/no/such"], "policy"),
        (&["explain", "--json", "--bogus"], "usage"),
        (&["doctor", "--json", "--bogus"], "usage"),
        (&["session", "show", "--json", "no-such-session"], ""),
    ];
    for (args, kind) in table {
        let done = place.ringfence(args);
        assert_ne!(done.code, 0, "{args:?}");
        let json = done.json();
        assert_eq!(json["status"], "failed", "{args:?}: {json}");
        assert!(kind.is_empty() || json["error"]["kind"] == *kind, "{args:?}: {json}");
        assert!(!json["error"]["message"].as_str().unwrap().is_empty());
        assert!(done.err.starts_with("error: "), "{args:?}: {}", done.err);
    }
}

#[test]
fn an_error_in_commands_names_file_and_line() {
    let place = Place::new();
    let file = place.home.join("own.toml");
    for (line, part) in [
        ("git = \"@gti\"", "own.toml:3: `commands.git` cannot be `@gti` (did you mean `@git`?)"),
        ("ls = \"/no/such/wrapper\"", "own.toml:3: cannot use the wrapper `/no/such/wrapper` of `ls`"),
    ] {
        place.write("own.toml", &format!("[commands]\n\n{line}\n"));
        let done = place.run(&["--config", file.to_str().unwrap()], "true");
        assert_eq!(done.code, 125);
        assert!(done.err.contains(part), "{}", done.err);
    }
}

/// A box with the host's programs alone: what it has of its own, what it sees, and what stands for the working directory.
#[test]
fn explain_knows_the_root_of_programs() {
    let place = Place::new();
    std::fs::write(place.project.join("file"), "x").unwrap();
    let shell = ["--profile", "shell"];
    for (path, answer, act) in [
        ("/usr/bin/env", "can be read, not written", "cat /usr/bin/env >/dev/null && ! touch /usr/bin/env"),
        ("/etc/passwd", "the sandbox has its own", "grep -q sandbox /etc/passwd"),
        ("/etc/group", "the sandbox has its own", "grep -q sandbox /etc/group"),
        ("/etc/hosts", "the sandbox has its own", "grep -q localhost /etc/hosts"),
        ("/etc/shadow", "hidden", "! test -e /etc/shadow"),
        ("/home/sandbox/x", "the sandbox has its own", "touch /home/sandbox/x"),
        ("/workspace/file", "can be read and written", "cat /workspace/file && echo y > /workspace/file"),
        ("/root", "hidden", "! test -e /root"),
    ] {
        let done = place.ringfence(&[&["explain"], shell.as_slice(), &[path]].concat());
        assert!(done.out.contains(answer), "{path}: {}{}", done.out, done.err);
        let done = place.run(&shell, act);
        assert_eq!(done.code, 0, "{path}: {act}: {}", done.err);
    }
    let resolver = |flags: &[&str]| place.ringfence(&[&["explain"], flags, &["/etc/resolv.conf"]].concat()).out;
    assert!(resolver(&["--profile", "shell", "--network"]).contains("can be read"), "{}", resolver(&shell));
    assert!(resolver(&shell).contains("hidden"));
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}

#[test]
fn what_a_rule_shows_is_protected_on_every_profile() {
    let place = Place::new();
    let write = "for f in .git/config .vscode/x .claude/settings.json .claude/hooks/x $MORE notes; do \
                 mkdir -p \"$(dirname $f)\"; (echo x >> $f) && echo $f; done 2>/dev/null; true";
    let more = "MORE=.codex/config.toml .cursor/mcp.json .config/opencode/plugin/x.js";
    for (at, profile) in [("project", "shell"), ("project", "skill"), (".", "shell"), (".", "skill")] {
        let dir = place.home.join(at);
        let more = if at == "." { more } else { "MORE=" };
        let flags = ["-C", dir.to_str().unwrap(), "--profile", profile, "--rw", ".", "--env", more];
        let done = place.run(&flags, write);
        assert_eq!((done.code, done.out.as_str()), (0, "notes\n"), "{profile} in {at}: {}", done.err);
    }
    place.write(".ssh/id", "key");
    place.write("open", "shown");
    let done = place.run(&["-C", place.home.to_str().unwrap(), "--profile", "skill", "--ro", "."], "cat open .ssh/id");
    assert_eq!((done.code, done.out.as_str()), (1, "shown"), "{}", done.err);
    // A project's file that steps down opens nothing of what the user's own rules open.
    place.write(".config/ringfence/config.toml", "[files]\nrw = [\"~/project\", \"~/.claude\"]\n");
    place.write(".claude/settings.json", "{}");
    place.write("project/.ringfence.toml", "profile = \"shell\"\n");
    let claude = place.home.join(".claude");
    let text = format!("cd {}; echo x > notes && echo noted; echo x > settings.json", claude.display());
    let done = place.run(&[], &text);
    assert!(done.out == "noted\n" && done.err.contains("Read-only"), "{done:?}");
}

#[test]
fn names_that_were_chosen_in_a_sandbox_do_not_act_on_a_terminal() {
    let place = Place::new();
    let name = "a\u{1b}]52;c;eA==\u{7}b\nforged";
    place.write(&format!("project/{name}/x"), "");
    let dir = place.project.join(name);
    for args in [
        &["run", "--dry-run", "-C", dir.to_str().unwrap(), "--", "true"][..],
        &["explain", "-C", dir.to_str().unwrap()],
        &["config", "show", "-C", dir.to_str().unwrap()],
    ] {
        let done = place.ringfence(args);
        assert!(done.code == 0 && done.out.contains("]52;c;eA=="), "{args:?}: {done:?}");
        assert!(!done.out.contains('\u{1b}') && done.out.contains("a\\u{1b}]52"), "{args:?}: {}", done.out);
        assert!(!done.out.lines().any(|line| line.starts_with("forged")), "{args:?}: {}", done.out);
    }
}

#[test]
fn doctor_reads_the_configuration() {
    let place = Place::new();
    let line = || {
        let done = place.ringfence(&["doctor"]);
        (done.code, done.out.lines().find(|line| line.contains("configuration")).unwrap_or_default().to_owned())
    };
    place.write(".config/ringfence/config.toml", "network = true\n");
    assert!(matches!(line(), (0, found) if found.starts_with("ok ")));
    place.write(".config/ringfence/config.toml", "netwrk = true\n");
    let (code, found) = line();
    assert!(code == 1 && found.contains("unknown key `netwrk`"), "{code} {found}");
}

/// A project below `/tmp` lasts; what the sandbox makes in its own `/tmp` does not.
#[test]
fn the_git_guard_counts_in_a_project_below_tmp() {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let place = Place::new();
    let project = dir.path().join("p");
    let make = "git init -q . && git -c user.name=A -c user.email=a@b commit -q --allow-empty -m first";
    std::fs::create_dir(&project).unwrap();
    let made = std::process::Command::new("sh").args(["-ec", make]).current_dir(&project).status().unwrap();
    assert!(made.success());
    let at = ["-C", project.to_str().unwrap()];
    let done = place.run(&at, "git reset -q --hard");
    assert!(done.code == 126 && done.err.contains("is blocked here"), "{done:?}");
    let own = format!("mkdir /tmp/own && cd /tmp/own && {make} && git reset -q --hard && echo done");
    assert_eq!(place.run(&at, &own).out, "done\n");
}
