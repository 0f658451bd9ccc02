//! The guard beside the real git: what it refuses is what git does.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::super::{AskGit, git};
use super::line;
use crate::guards::Verdict;

/// The real git, in its own home.
struct Real {
    home: tempfile::TempDir,
}

impl Real {
    /// A repository `r` with branch `main`, a remote `origin` (`o.git`) and one changed file `f`.
    fn new() -> Real {
        let real = Real { home: tempfile::tempdir().unwrap() };
        for line in [
            "git init -q --bare -b main o.git",
            "git init -q -b main r",
            "git -C o.git config receive.denyDeleteCurrent ignore",
            "git -C r remote add origin ../o.git",
            "git -C r commit -q --allow-empty -m zero",
        ] {
            real.must(line);
        }
        fs::write(real.repo().join("f"), "committed").unwrap();
        for line in ["git -C r add f", "git -C r commit -q -m one", "git -C r push -q -u origin main"] {
            real.must(line);
        }
        real.change();
        real
    }

    fn repo(&self) -> PathBuf {
        self.home.path().join("r")
    }

    fn change(&self) {
        fs::write(self.repo().join("f"), "changed").unwrap();
        fs::write(self.repo().join("new"), "untracked").unwrap();
    }

    fn run(&self, dir: &Path, args: &[OsString]) -> Output {
        Command::new("git")
            .args(args)
            .current_dir(dir)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.home.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@b"), ("GIT_EDITOR", "true")])
            .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@b"), ("LC_ALL", "C")])
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn must(&self, text: &str) -> String {
        let output = self.run(self.home.path(), &line(text));
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn verdict(&self, dir: &Path, text: &str, temp: &[&Path]) -> Verdict {
        let run = |args: &[OsString]| {
            let output = self.run(dir, args);
            output.status.success().then_some(output.stdout)
        };
        let temp = temp.iter().map(|path| path.to_path_buf()).collect();
        git(&line(text), &AskGit { run, temp })
    }

    /// Whether the uncommitted work is still there.
    fn has_work(&self) -> bool {
        let read = |name| fs::read_to_string(self.repo().join(name)).unwrap_or_default();
        read("f") == "changed" && read("new") == "untracked"
    }
}

#[test]
fn git_loses_the_work_where_the_guard_says_so() {
    let real = Real::new();
    real.must("git -C r branch side");
    let table = [
        ("git reset --hard", true),
        ("git reset -q --keep HEAD", false),
        ("git reset -q -- --hard", false),
        ("git -p --git-dir .git --work-tree=. reset --hard", true),
        ("git clean -qdf", true),
        ("git clean --f", true),
        ("git clean -fe -n", true),
        ("git clean -n -e -f", false),
        ("git clean -fn", false),
        ("git -c clean.requireForce=no clean -q", true),
        ("git checkout f", true),
        ("git checkout .", true),
        ("git checkout :/", true),
        ("git checkout '*'", true),
        ("git checkout HEAD f", true),
        ("git checkout -q side", false),
        ("git checkout -qf", true),
        ("git checkout -b f", false),
        ("git checkout nothing", false),
        ("git restore f", true),
        ("git restore --staged f", false),
        ("git switch -qf main", true),
        ("git rm -qf f", true),
        ("git rm -q f", false),
        ("git read-tree --reset -u HEAD", true),
        ("git checkout-index -fa", true),
    ];
    for (text, loses) in table {
        real.must("git -C r reset -q --hard main");
        real.must("git -C r checkout -q -f main");
        real.change();
        let verdict = real.verdict(&real.repo(), text, &[]);
        assert_eq!(verdict == Verdict::Allow, !loses, "{text}: {verdict:?}");
        let output = real.run(&real.repo(), &line(text));
        assert_eq!(!real.has_work(), loses, "{text}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn git_overwrites_the_remote_where_the_guard_says_so() {
    let real = Real::new();
    let (theirs, ours) = ("git -C o.git update-ref refs/heads/main", "git -C r commit -q --amend --allow-empty -m two");
    real.must("git -C r branch base");
    let base = real.must("git -C r rev-parse main~0").trim().to_owned();
    let tree = real.must("git -C r rev-parse main:").trim().to_owned();
    real.must(ours);
    // Somebody else's commit on the remote, of which we have not heard.
    let their = real.must(&format!("git -C o.git commit-tree {tree} -p {base} -m theirs")).trim().to_owned();
    for (text, loses, allowed) in [
        ("git push origin main", false, true),
        ("git push --force-with-lease origin main", false, true),
        ("git push --force-w origin main", false, true),
        ("git push --force --force-with-lease origin main", true, false),
        ("git push --force-with-lease origin +main", true, false),
        ("git push -qf origin main", true, false),
        ("git push origin main --force", true, false),
        ("git push -o -f origin main", false, true),
        ("git push origin +main:main", true, false),
        ("git push -fn origin main", false, true),
        ("git push --mirror origin", true, false),
        ("git push --prune origin refs/heads/none*:refs/heads/m*", true, false),
    ] {
        real.must(&format!("{theirs} {their}"));
        real.must(&format!("git -C r update-ref refs/remotes/origin/main {base}"));
        assert_eq!(real.verdict(&real.repo(), text, &[]) == Verdict::Allow, allowed, "{text}");
        let output = real.run(&real.repo(), &line(text));
        let now = real.run(&real.home.path().join("o.git"), &line("git rev-parse -q --verify main"));
        let lost = String::from_utf8_lossy(&now.stdout).trim() != their;
        assert_eq!(lost, loses, "{text}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn git_skips_hooks_where_the_guard_says_so() {
    let real = Real::new();
    let hook = real.repo().join(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    for (text, skips) in [
        ("git commit --allow-empty -m x", false),
        ("git commit --allow-empty -nm x", true),
        ("git commit --allow-empty -m -n", false),
        ("git commit --allow-empty -mn", false),
        ("git commit --allow-empty -uno -m x", false),
        ("git -c core.hooksPath=/dev/null commit --allow-empty -m x", true),
    ] {
        let refused = real.verdict(&real.repo(), text, &[]) != Verdict::Allow;
        assert_eq!(refused, skips, "{text}");
        let committed = real.run(&real.repo(), &line(text)).status.success();
        assert_eq!(committed, skips, "{text}");
    }
}

#[test]
fn git_moves_branches_where_the_guard_says_so() {
    let real = Real::new();
    let tip = real.must("git -C r rev-parse main").trim().to_owned();
    for (text, loses) in [
        ("git branch -f main main~1", true),
        ("git branch -f side main~1", true),
        ("git branch -f side HEAD", false),
        ("git branch -M side", false),
        ("git branch -M old side", true),
        ("git branch -d side", false),
        ("git checkout -q -B side main~1", true),
        ("git switch -q -C side main", false),
        ("git fetch -q . old:side", false),
    ] {
        let repo = real.home.path().join("branches");
        let _ = fs::remove_dir_all(&repo);
        let _ = fs::remove_dir_all(real.home.path().join("w"));
        real.must("git clone -q --no-local r branches");
        real.must("git -C branches branch side");
        real.must("git -C branches branch old main~1");
        let verdict = real.verdict(&repo, text, &[]);
        assert_eq!(verdict == Verdict::Allow, !loses, "{text}: {verdict:?}");
        let output = real.run(&repo, &line(text));
        let side = real.run(&repo, &line("git rev-parse -q --verify refs/heads/side"));
        // `main` is checked out, so that git itself refuses to move it by force.
        let moved = side.status.success() && String::from_utf8_lossy(&side.stdout).trim() != tip;
        assert_eq!(moved, loses && !text.contains("-f main"), "{text}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn throwaway_is_what_lies_in_the_temp_directory_with_all_that_belongs_to_it() {
    let real = Real::new();
    let home = real.home.path();
    let temp = home.join("temp");
    fs::create_dir(&temp).unwrap();
    for text in [
        "git clone -q o.git temp/clone",
        "git init -q --bare temp/bare.git",
        "git -C temp/clone remote add near ../bare.git",
        "git -C r worktree add -q ../temp/linked -b linked",
        "git init -q temp/alone",
    ] {
        real.must(text);
    }
    let clone = temp.join("clone").display().to_string();
    for (dir, text, exempt) in [
        ("r", "git reset --hard", false),
        ("temp/clone", "git reset --hard", true),
        ("temp/clone", "git stash pop", true),
        ("temp/clone", "git commit --no-verify", true),
        ("r", &format!("git -C {clone} reset --hard"), true),
        ("temp/clone", "git -C ../../r reset --hard", false),
        ("temp/clone", "git --work-tree=../../r reset --hard", false),
        ("temp/clone", "git --git-dir=../../r/.git branch -D x", false),
        ("temp/linked", "git branch -D x", false),
        ("temp/bare.git", "git branch -D x", true),
        ("temp/clone", "git push -f", false),
        ("temp/clone", "git push -f origin", false),
        ("temp/clone", "git push -f near", true),
        ("temp/clone", "git push -f ../bare.git", true),
        ("temp/clone", "git push -f ../../o.git", false),
        ("temp/clone", "git push -f https://example.org/x.git", false),
        ("temp/alone", "git reset --hard", true),
        ("temp", "git reset --hard", false),
        (".", "git reset --hard", false),
    ] {
        let verdict = real.verdict(&home.join(dir), text, &[&temp]);
        assert_eq!(verdict == Verdict::Allow, exempt, "{dir}: {text}: {verdict:?}");
    }
}
