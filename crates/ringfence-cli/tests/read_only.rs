//! Commands that only look change nothing on the host: not in a fresh home, runtime directory and project, and not in used
//! ones, nor in `/run` and `/dev/shm`. Commands that start something make their state, which shows that the looks would see it.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Done, Place};

/// Everything below a place, with what changes when a name comes, goes or is written to.
type Snapshot = BTreeMap<PathBuf, (u64, u32, i64, i64, u64)>;

fn snapshot(dir: &Path, into: &mut Snapshot) {
    let data = std::fs::symlink_metadata(dir).unwrap();
    into.insert(dir.to_path_buf(), (data.ino(), data.mode(), data.mtime(), data.mtime_nsec(), data.len()));
    if data.is_dir() {
        std::fs::read_dir(dir).unwrap().for_each(|entry| snapshot(&entry.unwrap().path(), into));
    }
}

/// Runs a program with a `/run` and a `/dev/shm` of its own, since other tests use those of the host: 98 when it makes a name
/// in one of them.
const APART: &str = "mount -t tmpfs none /run && mount -t tmpfs none /dev/shm || exit 99
    \"$@\"; code=$?; ls -A /run /dev/shm | grep ringfence >&2 && exit 98; exit $code";

struct Host {
    place: Place,
    runtime: PathBuf,
}

impl Host {
    fn new() -> Host {
        let place = Place::new();
        let runtime = place.home.parent().unwrap().join("runtime");
        std::fs::create_dir(&runtime).unwrap();
        std::fs::create_dir(place.project.join(".git")).unwrap();
        place.write("project/.git/HEAD", "ref: refs/heads/main\n");
        place.write("project/.env", "KEY=secret\n");
        Host { place, runtime }
    }

    fn looks(&self) -> Snapshot {
        let mut all = Snapshot::new();
        snapshot(&self.place.home, &mut all);
        snapshot(&self.runtime, &mut all);
        all
    }

    fn ringfence(&self, args: &[&str]) -> Done {
        let mut command = self.place.command(args);
        Done::new(command.env("XDG_RUNTIME_DIR", &self.runtime).output().unwrap())
    }

    /// The same, and nothing is made in places that all users share. Only root can look at that apart from other tests.
    fn looks_only(&self, args: &[&str]) -> Done {
        if !support::is_root() {
            return self.ringfence(args);
        }
        let mut command = Command::new("unshare");
        self.place.environment(&mut command);
        command.args(["--mount", "sh", "-c", APART, "sh"]).arg(support::program()).args(args);
        command.current_dir(&self.place.project).stdin(Stdio::null());
        Done::new(command.env("XDG_RUNTIME_DIR", &self.runtime).output().unwrap())
    }

    #[track_caller]
    fn changes_nothing(&self, args: &[&str], code: i32) {
        let before = self.looks();
        let done = self.looks_only(args);
        assert_eq!(done.code, code, "{args:?}: {done:?}");
        let after = self.looks();
        let changed: Vec<_> = before.iter().filter(|(path, data)| after.get(*path) != Some(data)).collect();
        let new: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).collect();
        assert!(changed.is_empty() && new.is_empty(), "{args:?} changed {changed:?} and made {new:?}");
    }
}

const LOOKS: &[(&[&str], i32)] = &[
    (&["explain"], 0),
    (&["explain", "--json", ".env"], 0),
    (&["explain", "example.com"], 0),
    (&["config", "show"], 0),
    (&["config", "show", "--json", "--profile", "skill"], 0),
    (&["run", "--dry-run", "--", "true"], 0),
    (&["run", "--dry-run", "--json", "--memory", "64m", "--pids", "32", "--", "true"], 0),
    (&["run", "--dry-run", "--profile", "shell", "--", "true"], 0),
    (&["run", "--dry-run", "--", "no-such-program-anywhere"], 127),
    (&["check"], 1),
    (&["trust", "--list"], 0),
    (&["requirements", "list"], 0),
];

/// In used places the records are brought up to date by those.
const LOOKS_AT_NOTHING: &[(&[&str], i32)] = &[
    (&["history"], 0),
    (&["history", "--json"], 0),
    (&["history", "show", "01ARZ3NDEKTSV4RRFFQ69G5FAV"], 125),
    (&["skill", "list"], 0),
    (&["skill", "show", "none"], 125),
    (&["skill", "history", "none"], 125),
];

#[test]
fn looking_changes_nothing_and_running_makes_its_state() {
    let host = Host::new();
    for (args, code) in LOOKS.iter().chain(LOOKS_AT_NOTHING) {
        host.changes_nothing(args, *code);
    }
    // The same look sees what a run makes.
    let before = host.looks();
    host.ringfence(&["run", "--", "true"]).expect(0, "");
    let after = host.looks();
    let state = host.place.home.join(".local/state/ringfence");
    for made in ["records", "sessions", "homes"].map(|name| state.join(name)) {
        assert!(!before.contains_key(&made) && after.contains_key(&made), "{}", made.display());
    }
    assert_ne!(before[&host.place.home], after[&host.place.home]);
    for (args, code) in LOOKS {
        host.changes_nothing(args, *code);
    }
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
