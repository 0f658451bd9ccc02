//! Sessions for tests: a place of their own, supervised by the program that was built.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence::policy::facts::Facts;
use ringfence::policy::{Inputs, Layer, Policy, resolve};
use ringfence::session::{Create, Exec, Output, Session, Sessions};

use crate::support::{Done, Place, program};

/// A place with sessions in it. All of them end with it.
pub struct Home {
    pub place: Place,
    pub sessions: Sessions,
    facts: Facts,
}

impl Home {
    pub fn new() -> Home {
        let place = Place::new();
        let dir = place.home.join("run/sessions");
        let sessions = Sessions::new(dir, program()).on(ringfence::Host::here().unwrap());
        let facts = Facts { home: place.home.clone(), ..ringfence::facts::gather().unwrap() };
        Home { place, sessions, facts }
    }

    pub fn dir(&self) -> &Path {
        self.sessions.dir()
    }

    pub fn policy(&self, change: impl FnOnce(&mut Layer)) -> Policy {
        let mut layer = Layer::flags();
        layer.profile("shell");
        change(&mut layer);
        resolve(Inputs::new(self.place.project.clone(), self.place.home.clone(), layer)).unwrap().policy
    }

    pub fn create(&self) -> Create {
        self.create_with(|_| {})
    }

    pub fn create_with(&self, change: impl FnOnce(&mut Layer)) -> Create {
        // Not for long, should this process be killed.
        Create::new(self.policy(change), self.facts.clone()).life(Some(Duration::from_secs(600)))
    }

    pub async fn session(&self) -> Session {
        self.sessions.create(self.create()).await.unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for pid in supervisors(self.dir()) {
            kill(pid, libc::SIGKILL);
        }
    }
}

/// A place for the program, whose sessions end with the test.
pub struct Here(pub Place);

impl Here {
    pub fn new() -> Here {
        Here(Place::new())
    }

    pub fn ringfence(&self, args: &[&str]) -> Done {
        self.0.ringfence(args)
    }

    pub fn session(&self, args: &[&str]) -> Done {
        self.ringfence(&[&["session"], args].concat())
    }

    pub fn create(&self, args: &[&str]) -> String {
        let done = self.session(&[&["create"], args].concat());
        assert_eq!(done.code, 0, "{}", done.err);
        done.out.trim().to_owned()
    }

    pub fn exec(&self, args: &[&str]) -> Done {
        self.session(&[&["exec"], args].concat())
    }

    pub fn records(&self, id: &str) -> Vec<serde_json::Value> {
        let json = self.ringfence(&["history", "--json", "--session", id]).json();
        json["records"].as_array().unwrap().clone()
    }

    /// Where records are.
    pub fn dir(&self) -> PathBuf {
        self.0.home.join(".local/state/ringfence/records")
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        for pid in supervisors(&self.0.home) {
            kill(pid, libc::SIGKILL);
        }
    }
}

/// Supervisors of the sessions in this directory: those who hold a lock in it open.
pub fn supervisors(dir: &Path) -> Vec<i32> {
    let holds = |pid: &i32| {
        let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        fds.flatten().any(|fd| {
            std::fs::read_link(fd.path())
                .is_ok_and(|to| to.starts_with(dir) && to.file_name().is_some_and(|n| n == "lock"))
        })
    };
    let own = std::process::id() as i32;
    processes().into_iter().filter(|pid| *pid != own && holds(pid)).collect()
}

pub fn processes() -> Vec<i32> {
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Processes whose command line has this text in it.
pub fn running(text: &str) -> Vec<i32> {
    let has = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
    };
    let own = std::process::id() as i32;
    processes().into_iter().filter(|pid| *pid != own && has(pid)).collect()
}

/// So many seconds that no other test process sleeps.
pub fn seconds(number: u32) -> String {
    format!("{}{number:02}", 100_000 + std::process::id())
}

/// Who sleeps so long.
pub fn sleeping(seconds: &str) -> Vec<i32> {
    running(&format!("sleep\0{seconds}"))
}

pub fn kill(pid: i32, signal: i32) {
    // It may have ended this moment.
    let _ = ringfence_linux::sys::kill(pid, signal);
}

/// Process 1 of the box that a supervisor owns: its child that is a guest.
pub fn guest_of(supervisor: i32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
    let is_guest = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| !name.starts_with("ringfence"))
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_guest)
}

pub async fn sh(session: &Session, text: &str) -> Output {
    session.exec(Exec::new(["sh", "-c", text])).await.unwrap().output().await.unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Waits until something is so.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The same, where nothing else goes on.
pub fn wait(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn names(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).map(|entries| entries.flatten().map(|e| e.path()).collect()).unwrap_or_default()
}
