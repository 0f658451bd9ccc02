//! `ringfence session cp`: what it refuses, what it leaves out and says so, and that the rest is copied.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

use support::{Done, Place};

/// A place with one session, which ends with the test.
struct Here {
    place: Place,
    id: String,
    /// What stands in the project as long as it lives.
    stand_ins: Vec<String>,
}

impl Here {
    fn new() -> Here {
        let place = Place::new();
        let done = place.ringfence(&["session", "create"]);
        assert_eq!(done.code, 0, "{}", done.err);
        Here { id: done.out.trim().to_owned(), stand_ins: place.names(), place }
    }

    fn inside(&self, path: &str) -> String {
        format!("{}:{path}", self.id)
    }

    fn copy(&self, from: &str, to: &str) -> Done {
        self.place.ringfence(&["session", "cp", from, to])
    }

    fn sh(&self, script: &str) -> String {
        let done = self.place.ringfence(&["session", "exec", &self.id, "--", "sh", "-c", script]);
        assert_eq!(done.code, 0, "{}", done.err);
        done.out
    }

    fn names(&self, below: &str) -> Vec<String> {
        let mut names = support::names(&self.place.project.join(below));
        names.retain(|name| !self.stand_ins.contains(name));
        names
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        for pid in sessions::supervisors(&self.place.home) {
            sessions::kill(pid, libc::SIGKILL);
        }
    }
}

#[test]
fn one_that_is_interrupted_leaves_nothing() {
    let here = Here::new();
    here.sh("truncate -s 8G /tmp/large");
    let out = here.place.home.join("out");
    std::fs::create_dir(&out).unwrap();
    // It has no name before it is complete.
    let begun = |pid: u32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(&out) && to != out))
    };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGKILL] {
        let arguments = ["session", "cp", &here.inside("/tmp/large"), &out.to_string_lossy()];
        let mut copying = here.place.command(arguments).spawn().unwrap();
        sessions::wait("it begins", || begun(copying.id()));
        sessions::kill(copying.id() as i32, signal);
        let ended = copying.wait().unwrap();
        assert_eq!(ended.code().or(ended.signal().map(|signal| 128 + signal)), Some(128 + signal));
        assert!(support::names(&out).is_empty(), "{signal}: {:?}", support::names(&out));
    }
    here.sh("truncate -s 0 /tmp/large");
    assert_eq!(here.copy(&here.inside("/tmp/large"), &out.to_string_lossy()).code, 0);
    assert_eq!(support::names(&out), ["large"]);
    // What stands there is replaced.
    here.sh("echo new >/tmp/large");
    assert_eq!(here.copy(&here.inside("/tmp/large"), &out.to_string_lossy()).code, 0);
    assert_eq!(
        (support::names(&out), std::fs::read(out.join("large")).unwrap()),
        (vec!["large".into()], b"new\n".into())
    );
}

/// What was not copied, by the paths that are named.
fn named(done: &Done) -> Vec<String> {
    let lines = done.err.lines().filter_map(|line| line.strip_prefix("warning: not copied: `"));
    let mut named: Vec<String> = lines.map(|line| line.split('`').next().unwrap().to_owned()).collect();
    named.sort();
    named
}

#[test]
fn what_is_executed_outside_does_not_come_out() {
    let here = Here::new();
    here.sh("mkdir -p /tmp/b/sub/.VSCODE /tmp/b/bare/refs /tmp/b/bare/objects /tmp/b/src; cd /tmp/b
         git init -q . || mkdir -p .git/hooks; echo '[core] fsmonitor = touch /tmp/x' >.git/config
         echo x >sub/.VSCODE/tasks.json; echo x >.envrc; echo x >src/main.rs; echo x >src/ruff.toml
         echo 'ref: refs/heads/main' >bare/HEAD; echo x >bare/config; echo x >bare/README");
    let out = here.place.home.join("out");
    std::fs::create_dir(&out).unwrap();
    here.place.write("mine/b/.git/config", "mine");
    here.place.write("mine/b/src/ruff.toml", "mine");
    here.place.write("mine/b/bare/README", "mine");
    let left = [
        "/tmp/b/.envrc",
        "/tmp/b/.git",
        "/tmp/b/bare/HEAD",
        "/tmp/b/bare/config",
        "/tmp/b/bare/objects",
        "/tmp/b/bare/refs",
        "/tmp/b/sub/.VSCODE",
    ];
    // A new place.
    let done = here.copy(&here.inside("/tmp/b"), &out.to_string_lossy());
    assert_eq!((done.code, named(&done)), (125, left.map(str::to_owned).to_vec()), "{}", done.err);
    assert!(done.err.contains("7 entries were not copied") && done.err.contains("--include-protected"), "{}", done.err);
    assert_eq!(support::names(&out.join("b")), ["bare", "src", "sub"]);
    assert_eq!(support::names(&out.join("b/bare")), ["README"]);
    // Into a repository that is there, whose files stay. Lint configuration is not replaced.
    let mine = here.place.home.join("mine");
    let done = here.copy(&here.inside("/tmp/b"), &mine.to_string_lossy());
    let mut with_lint = left.map(str::to_owned).to_vec();
    with_lint.insert(6, "/tmp/b/src/ruff.toml".to_owned());
    assert_eq!((done.code, named(&done)), (125, with_lint), "{}", done.err);
    let read = |path: &str| std::fs::read_to_string(here.place.home.join(path)).unwrap();
    assert_eq!((read("mine/b/.git/config"), read("mine/b/src/ruff.toml")), ("mine".into(), "mine".into()));
    assert_eq!(
        (read("mine/b/bare/README"), support::names(&mine.join("b/.git"))),
        ("x\n".into(), vec!["config".into()])
    );
    // In two steps.
    here.sh("mkdir -p /tmp/one/r/objects /tmp/one/r/refs /tmp/two/r; cp /tmp/b/bare/HEAD /tmp/two/r");
    let two = here.place.home.join("two");
    let dots = |path: &str| here.copy(&here.inside(path), &two.to_string_lossy());
    assert_eq!(dots("/tmp/one").code, 0);
    assert_eq!(named(&here.copy(&here.inside("/tmp/two/r"), &two.to_string_lossy())), ["/tmp/two/r/HEAD"]);
    // All of it, when it is wanted; and what is named itself.
    let all = here.place.home.join("all");
    let arguments = ["session", "cp", "--include-protected", &here.inside("/tmp/b"), &all.to_string_lossy()];
    assert_eq!(here.place.ringfence(&arguments).code, 0);
    assert!(all.join(".git/config").is_file() && all.join("sub/.VSCODE/tasks.json").is_file());
    assert!(all.join("bare/HEAD").is_file());
    here.copy(&here.inside("/tmp/b/.envrc"), &out.to_string_lossy()).expect(0, "");
    let done = here.copy(&here.inside("/tmp/b/.git"), &out.to_string_lossy());
    assert!(done.code == 125 && done.err.contains("--include-protected") && !out.join(".git").exists(), "{}", done.err);
    here.copy(&here.inside("/tmp/b/sub/.VSCODE"), &out.join(".vscode").to_string_lossy()).expect(0, "");
}

#[test]
fn what_the_session_protects_is_not_replaced_from_above() {
    let place = Place::new();
    place.write("project/kept/a", "mine");
    place.write("project/.vscode/tasks.json", "mine");
    place.write("project/hidden.key", "mine");
    let done = place.ringfence(&["session", "create", "--ro", "kept", "--exclude", "*.key"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let here = Here { id: done.out.trim().to_owned(), stand_ins: place.names(), place };
    here.sh("mkdir -p /tmp/b/project/kept /tmp/b/project/.vscode; cd /tmp/b/project
             for name in kept/a kept/b .vscode/tasks.json hidden.key new.key free; do echo x >$name; done");
    let done = here.copy(&here.inside("/tmp/b/project"), "..");
    let left = [".vscode", "hidden.key", "kept", "new.key"].map(|name| format!("/tmp/b/project/{name}"));
    assert_eq!((done.code, named(&done)), (125, left.to_vec()), "{}", done.err);
    for name in ["kept/a", ".vscode/tasks.json", "hidden.key"] {
        assert_eq!(std::fs::read_to_string(here.place.project.join(name)).unwrap(), "mine", "{name}");
    }
    assert_eq!(std::fs::read_to_string(here.place.project.join("free")).unwrap(), "x\n");
}

#[test]
fn what_is_hidden_does_not_go_in() {
    let place = Place::new();
    for name in ["a", ".env", "sub/.env", "secret/key", "secret/deep/key"] {
        place.write(&format!("project/{name}"), "text");
    }
    let done = place.ringfence(&["session", "create", "--exclude", "secret", "--exclude", "**/.env"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let here = Here { id: done.out.trim().to_owned(), stand_ins: place.names(), place };
    // One that came later.
    here.place.write("project/later/.env", "text");
    let done = here.copy(".", &here.inside("/tmp/all"));
    let left = ["./.env", "./later/.env", "./secret", "./sub/.env"].map(str::to_owned);
    assert_eq!((done.code, named(&done)), (125, left.to_vec()), "{}", done.err);
    assert_eq!(here.sh("cd /tmp/all; find . -name .env -o -name '*key*' -o -name a"), "./a\n");
    // What is named is what is meant.
    here.copy("secret", &here.inside("/tmp/named")).expect(0, "");
    here.copy("sub/.env", &here.inside("/tmp/named/")).expect(0, "");
    assert_eq!(here.sh("cd /tmp/named; find . -type f | sort"), "./.env\n./deep/key\n./key\n");
}

/// The memory of what copies, which keeps no list.
#[test]
fn very_many_names_take_little_memory() {
    let here = Here::new();
    let mut dir = here.place.home.join("many");
    for _ in 0..12 {
        dir.push("d".repeat(200));
    }
    std::fs::create_dir_all(&dir).unwrap();
    for name in 0..20_000 {
        std::fs::write(dir.join(format!("{name}-{}", "x".repeat(200))), b"").unwrap();
    }
    let (from, to) = (here.place.home.join("many"), here.inside("/tmp/many"));
    let mut copying = here.place.command(["session", "cp", &from.to_string_lossy(), &to]).spawn().unwrap();
    let most = std::iter::repeat_with(|| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let text = std::fs::read_to_string(format!("/proc/{}/status", copying.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).map(str::to_owned);
        (line, copying.try_wait().unwrap().is_none())
    });
    let peak = most.take_while(|(_, runs)| *runs).filter_map(|(line, _)| line).last().unwrap();
    let peak: u64 = peak.trim().split(' ').next().unwrap().parse().unwrap();
    assert!(peak < 64 << 10, "{peak} KiB");
}

#[test]
fn stand_ins_do_not_come_out() {
    let here = Here::new();
    here.place.write("project/file", "text");
    here.place.write("project/.editor/settings", "{}");
    std::fs::create_dir(here.place.project.join("empty")).unwrap();
    assert!(here.stand_ins.contains(&".vscode".to_owned()), "{:?}", here.stand_ins);
    for (number, from) in ["/workspace", ".", "", "/workspace/"].into_iter().enumerate() {
        let out = here.place.home.join(format!("out-{number}"));
        assert_eq!(here.copy(&here.inside(from), &out.to_string_lossy()).code, 0);
        assert_eq!(support::names(&out), [".editor", "empty", "file"], "{from}");
    }
    let done = here.copy(&here.inside(".vscode"), &here.place.home.to_string_lossy());
    assert!(done.code == 125 && done.err.contains("stands in"), "{}", done.err);
    assert!(!here.place.home.join(".vscode").exists());
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let here = Here::new();
    here.place.write("project/dir/deep/file", "text");
    std::fs::create_dir(here.place.home.join("project/other")).unwrap();
    let refused = |from: &str, to: &str| {
        let done = here.copy(from, to);
        assert_eq!(done.code, 125, "{from} to {to}: {}", done.err);
        assert!(done.err.contains("into itself") && done.err.len() < 600, "{from} to {to}: {}", done.err);
        assert_eq!((here.names(""), here.names("dir")), (vec!["dir".into(), "other".into()], vec!["deep".to_owned()]));
    };
    let inside = |path: &str| here.inside(path);
    refused(".", &inside("/workspace/again"));
    refused(".", &inside("/workspace/dir/deep/"));
    refused(".", &inside("/workspace"));
    refused("dir", &inside("/workspace"));
    refused("dir", &inside("dir/deep/again"));
    refused(&here.place.project.to_string_lossy(), &inside("again"));
    // The way out.
    refused(&inside("/workspace"), "again");
    refused(&inside("/workspace"), "dir/deep/again");
    refused(&inside("dir"), ".");
    refused(&inside("dir"), "dir");
    // Through a link inside, which leads there as well.
    here.sh("ln -s /workspace/dir /tmp/link");
    refused("dir", &inside("/tmp/link/again"));
    // Beside it, and elsewhere, it is copied.
    here.copy("dir", &inside("/workspace/other")).expect(0, "");
    here.copy(".", &inside("/tmp/all")).expect(0, "");
    here.copy(&inside("dir"), "third").expect(0, "");
    assert_eq!(here.sh("cd /tmp/all && find . | sort"), here.sh("rm -r third; find . | sort"));
    assert_eq!(here.sh("cat other/dir/deep/file"), "text");
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_copied() {
    let here = Here::new();
    let script = "mkdir -p d/closed d/empty d/open; echo a >d/a; echo b >d/open/b; echo no >d/shut; echo no >d/closed/x
                  ln -s a d/link; mkfifo d/pipe; chmod 0 d/shut d/closed";
    let check = |done: Done, links: bool| {
        assert_eq!(done.code, 125, "{}", done.err);
        for name in ["d/closed`", "d/shut`", "d/link`", "d/pipe`"] {
            assert_eq!(done.err.matches(name).count(), 1, "{name}: {}", done.err);
        }
        assert!(done.err.contains("4 entries were not copied") && links == done.err.contains("tar"), "{}", done.err);
    };
    here.sh(&format!("cd /tmp; {script}"));
    check(here.copy(&here.inside("/tmp/d"), "out"), true);
    assert_eq!(
        (here.names("out"), here.names("out/open")),
        (["a", "empty", "open"].map(str::to_owned).to_vec(), vec!["b".into()])
    );
    if !support::is_root() {
        here.sh(script);
        check(here.copy("d", &here.inside("/tmp/in")), true);
        assert_eq!(here.sh("ls /tmp/in /tmp/in/open"), "/tmp/in:\na\nempty\nopen\n\n/tmp/in/open:\nb\n");
        let closed = here.place.project.join("d/closed");
        std::fs::set_permissions(closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn a_copy_that_fails_leaves_nothing_behind() {
    let here = Here::new();
    here.sh("cd /tmp; echo no >shut; mkdir closed; chmod 0 shut closed; mkfifo pipe; ln -s shut link");
    for from in ["/tmp/shut", "/tmp/closed", "/tmp/pipe", "/tmp/link", "/tmp/none", "/proc/1/mem"] {
        let done = here.copy(&here.inside(from), "out");
        assert_eq!((done.code, here.names("").len()), (125, 0), "{from}: {}", done.err);
    }
    // What is read with an error.
    let done = here.copy("/proc/self/mem", &here.inside("/tmp/mem"));
    assert_eq!((done.code, here.sh("ls /tmp/mem 2>&1 || true").contains("No such file")), (125, true), "{}", done.err);
    // What stands in the way stays.
    here.place.write("project/dir/file", "text");
    here.sh("echo kept >/tmp/dir");
    assert_eq!(here.copy("dir", &here.inside("/tmp/dir")).code, 125);
    assert_eq!(here.sh("cat /tmp/dir"), "kept\n");
    // And so does what is no file, on the host: `/dev/null` would be one.
    let pipe = here.place.project.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let done = here.copy(&here.inside("/tmp/dir"), "pipe");
    assert!(done.code == 125 && done.err.contains("not replaced"), "{}: {}", done.code, done.err);
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&pipe.symlink_metadata().unwrap().file_type()));
}

#[test]
fn paths_that_name_nothing() {
    let here = Here::new();
    here.place.write("project/file", "text");
    for (from, to, words) in [
        ("", here.inside("x").as_str(), "empty"),
        (&here.inside("file"), "", "empty"),
        (&here.inside("file"), "-", "-- cat"),
        ("-", &here.inside("x"), "--stdin"),
    ] {
        let done = here.copy(from, to);
        assert!(done.code == 125 && done.err.contains(words), "{from} to {to}: {}: {}", done.code, done.err);
    }
    assert_eq!(here.names(""), ["file"]);
    here.copy(&here.inside("file"), "./-").expect(0, "");
    // Long names are not told in full.
    let long = "x/".repeat(1500);
    let done = here.copy(&here.inside(&long), "out");
    assert!(done.code == 125 && done.err.len() < 500, "{}", done.err);
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
