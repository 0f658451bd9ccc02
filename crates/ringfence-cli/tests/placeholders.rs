//! Placeholders through the program: many sandboxes in a project, and what others do to them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use support::{Done, Place};

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}

/// Tries to make names that something outside would execute.
const PLANT: &str =
    "for name in .envrc .mcp.json .vscode/tasks.json .cursor/mcp.json .idea/x .devcontainer/x .ringfence.toml \
     .git .git/hooks/pre-commit .git/commondir .git/config.worktree refs/x ~/.claude/hooks/x; do
        { echo planted >\"$name\"; } 2>/dev/null && echo \"planted $name\"
    done; dir=$(mktemp -d ./allowed-XXXXXXXX) && rmdir \"$dir\" && exit 7";

/// An empty project and one with a repository.
fn projects(place: &Place) -> [PathBuf; 2] {
    let repository = place.project.join("repository");
    let empty = place.project.join("empty");
    fs::create_dir(&empty).unwrap();
    let git = std::process::Command::new("git").arg("init").arg("-q").arg(&repository).status().unwrap();
    assert!(git.success());
    [empty, repository]
}

/// Every name below a directory.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(tree(&entry.path()));
        }
        found.push(entry.path());
    }
    found.sort();
    found
}

/// `RINGFENCE_RUNS` sandboxes, 2 to 32 at a time, in one directory and in two.
#[test]
fn parallel_runs_disturb_each_other_in_nothing() {
    let runs: u32 = std::env::var("RINGFENCE_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    for engine in support::engines() {
        let place = Place::new();
        let dirs = projects(&place);
        // What the first run makes for good.
        place.run(&["--engine", engine], "true").expect(0, "");
        let before = tree(&place.project);
        for (threads, dirs) in [(2, &dirs[..]), (32, &dirs[..1]), (32, &dirs[1..]), (16, &dirs[..])] {
            let (left, trouble) = (AtomicU32::new(runs / 4), Mutex::new(BTreeMap::new()));
            let work = || {
                while let Ok(n) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) {
                    let mut command = place.command(["run", "--engine", engine, "sh", "-c", PLANT]);
                    let done = Done::new(command.current_dir(&dirs[n as usize % dirs.len()]).output().unwrap());
                    if (done.code, done.out.as_str(), done.err.as_str()) != (7, "", "") {
                        *trouble.lock().unwrap().entry(format!("{done:?}")).or_insert(0) += 1;
                    }
                }
            };
            std::thread::scope(|scope| (0..threads).map(|_| scope.spawn(work)).for_each(drop));
            let trouble: BTreeMap<String, u32> = trouble.into_inner().unwrap();
            assert!(trouble.is_empty(), "{engine}, {threads} at a time in {}: {trouble:#?}", dirs.len());
            assert_eq!(tree(&place.project), before, "{engine}, {threads} at a time in {}", dirs.len());
        }
    }
}

/// Another user, or a sandbox of another directory, locks all that it can see: no placeholder stays for that, none is taken for
/// the user's own, and none can be planted when the lock is let go. No start waits.
#[test]
fn a_lock_makes_no_placeholder_plantable() {
    for engine in support::engines() {
        let place = Place::new();
        let before = place.names();
        let mut first = place.command(["run", "--engine", engine, "sh", "-c", "echo up; read line"]);
        let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
        let paths = tree(&place.project);
        assert!(paths.contains(&place.project.join(".envrc")), "{paths:?}");
        // One is locked for itself alone, as no sandbox does, the others are shared.
        let lock = |(n, path): (usize, &PathBuf)| {
            let file = fs::File::open(path).ok()?;
            let how = if n % 2 == 0 { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
            rustix::fs::flock(&file, how).unwrap();
            Some(file)
        };
        let locked: Vec<fs::File> = paths.iter().enumerate().filter_map(lock).collect();
        let begun = Instant::now();
        drop(first.stdin.take());
        first.wait().unwrap();
        assert_eq!(place.names(), before, "{engine}");
        let script = format!("echo up; read line; {PLANT}");
        let mut second = place.command(["run", "--engine", engine, "sh", "-c", &script]);
        let mut second = second.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(second.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{engine}: {:?}", begun.elapsed());
        drop(locked);
        // Others come and go meanwhile.
        place.run(&["--engine", engine], "true").expect(0, "");
        drop(second.stdin.take());
        let done = Done::new(second.wait_with_output().unwrap());
        assert_eq!((done.code, done.out.as_str()), (7, ""), "{engine}: {done:?}");
        assert_eq!(place.names(), before, "{engine}");
    }
}

/// Ringfence and its janitor are killed together: the next run knows what is left, and takes nothing of it for the user's own.
#[test]
fn what_a_killed_janitor_left_goes_with_the_next_run() {
    for engine in support::engines() {
        let place = Place::new();
        let before = place.names();
        let mut killed = place.command(["run", "--engine", engine, "sh", "-c", "echo up; sleep 1000"]);
        let mut killed = killed.stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(killed.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
        let janitors = children(killed.id());
        // Stopped first, so that none of them begins to clear up.
        for signal in [rustix::process::Signal::STOP, rustix::process::Signal::KILL] {
            for pid in janitors.iter().copied().chain([killed.id()]) {
                let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
                rustix::process::kill_process(pid, signal).unwrap();
            }
        }
        killed.wait().unwrap();
        assert!(place.project.join(".envrc").is_dir(), "{engine}");
        place.run(&["--engine", engine], "true").expect(0, "");
        assert_eq!(place.names(), before, "{engine}");
    }
}

/// All child processes.
fn children(of: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}
