//! What a test looks at on the host, to see that nothing is left and that nobody was hurt.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Tries until it holds; false when it did not in time.
pub fn eventually(within: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + within;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn pids() -> Vec<i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Processes whose command line holds this text.
pub fn processes_with(text: &str) -> Vec<i32> {
    let holds = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(text.len()).any(|w| w == text.as_bytes())
    };
    pids().into_iter().filter(|pid| *pid as u32 != std::process::id()).filter(holds).collect()
}

/// Whether the command whose command line holds this text runs, in mounts of its own.
pub fn running_in_a_box(text: &str) -> bool {
    let mounts = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    processes_with(text).iter().any(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let program = line.split(|b| *b == 0).next().unwrap_or_default();
        // Of a user's box the namespace cannot be read, once its process is not traceable; then the name must do.
        program.ends_with(b"/probe") && mounts(&pid.to_string()) != mounts("self")
    })
}

/// What a box could leave behind on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Mounts of this namespace.
    pub mounts: Vec<String>,
    pub cgroups: BTreeSet<PathBuf>,
    /// Namespaces that some process lives in; of an ordinary user, those that it may see.
    pub namespaces: BTreeSet<String>,
    /// Processes of this user, by pid and name, without kernel threads.
    pub processes: BTreeSet<String>,
    /// Open descriptors of this process.
    pub descriptors: usize,
    /// Names in the places where temporary files go.
    pub files: BTreeSet<PathBuf>,
}

impl State {
    pub fn now() -> State {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        State {
            mounts: mounts.lines().map(str::to_owned).collect(),
            cgroups: cgroups(),
            namespaces: namespaces(),
            processes: processes(),
            descriptors: fs::read_dir("/proc/self/fd").into_iter().flatten().count(),
            files: files(),
        }
    }

    /// What is there now and was not then, in words; empty when nothing is.
    pub fn left_since(&self, then: &State) -> String {
        let mut left = Vec::new();
        left.extend(self.mounts.iter().filter(|m| !then.mounts.contains(m)).map(|m| format!("mount {m}")));
        left.extend(self.cgroups.difference(&then.cgroups).map(|c| format!("cgroup {}", c.display())));
        left.extend(self.namespaces.difference(&then.namespaces).map(|n| format!("namespace {n}")));
        left.extend(self.processes.difference(&then.processes).map(|p| format!("process {p}")));
        left.extend(self.files.difference(&then.files).map(|f| format!("file {}", f.display())));
        if self.descriptors > then.descriptors {
            left.push(format!("{} descriptors", self.descriptors - then.descriptors));
        }
        left.join("; ")
    }
}

/// Waits until nothing is left of what was not there `then`: what still is, in words.
pub fn left_since(then: &State, within: Duration) -> String {
    let mut left = String::new();
    eventually(within, || {
        left = State::now().left_since(then);
        left.is_empty()
    });
    left
}

/// Launchers that this suite started.
static LAUNCHED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Remembers a launcher, whose boxes are then looked for.
pub fn launched(pid: i32) {
    LAUNCHED.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
}

fn cgroups() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut pending = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                if entry.file_name().as_encoded_bytes().starts_with(b"ringfence-") {
                    found.insert(entry.path());
                }
                pending.push(entry.path());
            }
        }
    }
    // `ringfence-PID-…`, by whoever made it: others may run boxes here too.
    let ours = LAUNCHED.lock().unwrap_or_else(PoisonError::into_inner);
    found.retain(|path| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let pid: Option<i32> = name.split('-').nth(1).and_then(|pid| pid.parse().ok());
        // Numbers come again: what this user could not have made is not this user's.
        let own = fs::metadata(path).is_ok_and(|m| m.uid() == rustix::process::getuid().as_raw());
        own && pid.is_some_and(|pid| pid as u32 == std::process::id() || ours.contains(&pid))
    });
    found
}

fn namespaces() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for pid in pids().into_iter().filter(|pid| !matches!(ancestor(*pid), Ancestor::Other)) {
        for kind in ["mnt", "pid", "net", "user", "ipc", "uts", "cgroup"] {
            if let Ok(name) = fs::read_link(format!("/proc/{pid}/ns/{kind}")) {
                found.insert(name.display().to_string());
            }
        }
    }
    found
}

fn processes() -> BTreeSet<String> {
    let own = rustix::process::getuid().as_raw();
    let mut found = BTreeSet::new();
    for pid in pids() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("").trim().to_owned();
        let kernel_thread = field("PPid:") == "2" || pid == 2;
        let uid: u32 = field("Uid:").split_whitespace().next().and_then(|u| u.parse().ok()).unwrap_or(u32::MAX);
        // Ids of a box that root started lie far from those of accounts.
        let of_a_box = own == 0 && uid >= 0x4000_0000 && uid != u32::MAX;
        // What has lost its parent may have been ours; what has another one is somebody else's.
        let ours = match ancestor(pid) {
            Ancestor::Us => true,
            Ancestor::Init => of_a_box || (own != 0 && uid == own),
            Ancestor::Other => false,
        };
        if !kernel_thread && !status.is_empty() && ours {
            found.insert(format!("{pid} {}", field("Name:")));
        }
    }
    found
}

enum Ancestor {
    Us,
    /// Nobody but process 1.
    Init,
    Other,
}

fn ancestor(mut pid: i32) -> Ancestor {
    let own = std::process::id() as i32;
    for generation in 0..64 {
        if pid == own {
            return Ancestor::Us;
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        match parent {
            Some(parent) if parent > 1 => pid = parent,
            _ if generation == 0 => return Ancestor::Init,
            _ => return Ancestor::Other,
        }
    }
    Ancestor::Other
}

/// Also when it has just gone.
fn is_locked(path: &Path) -> bool {
    let try_lock = |file: fs::File| rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    fs::File::open(path).is_ok_and(|file| try_lock(file).is_err()) || !path.exists()
}

fn files() -> BTreeSet<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let registries =
        [format!("/var/tmp/ringfence-{uid}"), "/var/lib/ringfence-placeholders".to_owned()].map(PathBuf::from);
    let mut found = BTreeSet::new();
    for dir in ["/tmp", "/var/tmp", "/dev/shm", "/run"]
        .map(Path::new)
        .into_iter()
        .chain(registries.iter().map(PathBuf::as_path))
    {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            // Other people have files there too: those of this user count, and of root's those with a telling name.
            let own = entry.metadata().is_ok_and(|m| m.uid() == uid);
            let name = entry.file_name().to_string_lossy().into_owned();
            let telling = ["ringfence", "bwrap", "probe"].iter().any(|word| name.contains(word));
            let of_the_suite =
                ["ringfence-case-", "ringfence-suite-", "ringfence-programs-", "ringfence-test-", "ringfence-kernel-"];
            // The registry stays. That the firewall is set for Docker's network stays noted until the machine restarts.
            let stays = registries.contains(&entry.path()) || name == "ringfence-docker-network";
            // A list of placeholders that a sandbox of somebody else needs. The watcher's socket stays a second longer than
            // what it watches.
            let list = registries.iter().any(|registry| registry == dir);
            let watcher = list && name.starts_with("watch-");
            let counts = uid != 0 || telling || list;
            let needed = list && is_locked(&entry.path());
            let ours = of_the_suite.iter().any(|word| name.starts_with(word));
            if own && counts && ![stays, watcher, needed, ours].contains(&true) {
                found.insert(entry.path());
            }
        }
    }
    found
}

/// The host still does its work: a process can be started, a file written, memory taken.
pub fn healthy() -> Result<(), String> {
    let output = std::process::Command::new("/bin/sh").args(["-c", "echo fine | cat"]).output();
    match output {
        Ok(output) if output.stdout == b"fine\n" => {}
        other => return Err(format!("the host cannot start processes: {other:?}")),
    }
    let dir = tempfile::tempdir().map_err(|e| format!("the host has no temporary space: {e}"))?;
    fs::write(dir.path().join("file"), vec![1; 1 << 20]).map_err(|e| format!("the host cannot write: {e}"))?;
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available: u64 = memory
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    if available < 100 << 10 { Err(format!("the host has {available} KiB of memory left")) } else { Ok(()) }
}
