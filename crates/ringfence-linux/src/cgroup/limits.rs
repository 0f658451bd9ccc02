//! Limits on a whole tree of processes: control groups of either version, and what stands in where a user has none.
//!
//! Mirrors `ringfence_policy::limits`. A group is made before the fork, joined by process 1 as its first act, and read and
//! removed when the box has ended.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use ringfence_policy::limits::Limits;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::{scope, sys};

/// Which kernel interface limits a tree here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    /// Control groups v2: groups are made in this directory, whose controllers are on.
    V2(PathBuf),
    /// Control groups v1: a directory for each controller. That of the freezer may be missing.
    V1 { memory: PathBuf, pids: PathBuf, cpu: PathBuf, freezer: Option<PathBuf> },
    /// None that this user may use; the reason.
    None(String),
}

/// Why a group could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    #[error("cannot make control group `{}`: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot set `{}` to {value}: {source}", path.display())]
    Set { path: PathBuf, value: String, source: io::Error },
    #[error("there are no control groups although there seemed to be: {0}")]
    NotTaken(String),
    #[error("cannot remove control group `{}`: {source}", path.display())]
    Remove { path: PathBuf, source: io::Error },
}

pub(crate) const V2_ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

impl Home {
    /// Where this process may make groups, or could when something starts. Changes nothing. Looked for once: each look takes a
    /// hundredth of a short run, and there were four.
    pub fn look() -> Home {
        static SEEN: OnceLock<Home> = OnceLock::new();
        TAKEN.get().unwrap_or_else(|| SEEN.get_or_init(|| Home::find(false))).clone()
    }

    /// The same for what starts something. A process that may make groups nowhere, and has said that it may be, is moved to
    /// where it may.
    pub fn take() -> Home {
        TAKEN.get_or_init(|| Home::find(true)).clone()
    }

    fn find(takes: bool) -> Home {
        let own = own_groups();
        let path_of = |controller: &str| path_of(&own, controller);
        let v1 = |controller: &str| {
            let (controllers, path) = path_of(controller)?;
            let dir = Path::new(V2_ROOT).join(controllers).join(path.trim_start_matches('/'));
            writable(&dir).then_some(dir)
        };
        if path_of("memory").is_some() {
            return match (v1("memory"), v1("pids"), v1("cpu")) {
                (Some(memory), Some(pids), Some(cpu)) => Home::V1 { memory, pids, cpu, freezer: v1("freezer") },
                _ => Home::None("the control groups (v1) of this host belong to root".to_owned()),
            };
        }
        if path_of("").is_none() {
            return Home::None("no control groups are mounted".to_owned());
        }
        let none = "no control group is delegated to this user";
        if !takes {
            return delegated(&own, false).unwrap_or_else(|| match scope::could_enter() {
                None => Home::None(none.to_owned()),
                Some(Ok(())) => Home::V2(Path::new(V2_ROOT).join("scope-to-be-made")),
                Some(Err(error)) => Home::None(format!("{none}, and {error}")),
            });
        }
        // It is asked for once.
        if let Some(error) = scope::failed() {
            return Home::None(format!("{none}, and {error}"));
        }
        delegated(&own, true).unwrap_or_else(|| match scope::enter() {
            None => Home::None(none.to_owned()),
            Some(Ok(())) => delegated(&own_groups(), true).unwrap_or_else(|| Home::None(none.to_owned())),
            Some(Err(error)) => Home::None(format!("{none}, and {error}")),
        })
    }

    /// The directories of a group with this name, made or not.
    fn dirs(&self, name: &str) -> Vec<PathBuf> {
        match self {
            Home::V2(dir) => vec![dir.join(name)],
            Home::V1 { memory, pids, cpu, .. } => [memory, pids, cpu].iter().map(|d| d.join(name)).collect(),
            Home::None(_) => Vec::new(),
        }
    }

    /// The directory that a group of this name is frozen in, where that is one of its own: made when it is needed.
    fn freezer(&self, name: &str) -> Option<PathBuf> {
        match self {
            Home::V1 { freezer, .. } => Some(freezer.as_ref()?.join(name)),
            Home::V2(_) | Home::None(_) => None,
        }
    }

    /// Removes groups of boxes that were killed together with whoever would have: those of processes that are gone. Not at
    /// once, since one that is just being made may be of a process that is not seen from here.
    pub fn sweep(&self) {
        let left = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let owner =
                name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
            let made = entry.metadata().and_then(|data| data.modified()).ok();
            owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
                && made.and_then(|made| made.elapsed().ok()).is_some_and(|age| age >= IN_THE_MAKING)
        };
        let entries = self
            .dirs("")
            .into_iter()
            .chain(self.freezer(""))
            .filter_map(|dir| fs::read_dir(dir).ok())
            .flatten()
            .flatten();
        for entry in entries.filter(left) {
            // Somebody is in it: then it is not left.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

static TAKEN: OnceLock<Home> = OnceLock::new();

/// How groups of boxes are called: this, the process that made one, when, and a number.
const PREFIX: &str = "ringfence-";
/// A younger group may not have its first process yet.
const IN_THE_MAKING: Duration = Duration::from_secs(60);

/// Where the owner of boxes waits, beside their groups.
const ASIDE: &str = "ringfence-owner";

/// The groups of this process; nothing read is as if none were mounted.
pub(crate) fn own_groups() -> String {
    let mut own = String::with_capacity(4096);
    let _ = fs::File::open("/proc/self/cgroup").and_then(|f| f.take(1 << 16).read_to_string(&mut own));
    own
}

/// The nearest group of version 2 in which groups can be made.
fn delegated(own: &str, takes: bool) -> Option<Home> {
    let start = Path::new(V2_ROOT).join(path_of(own, "")?.1.trim_start_matches('/'));
    // An earlier box may have moved this process aside: groups are made beside it, not below.
    let mut dirs = start.ancestors().take_while(|d| d.starts_with(V2_ROOT)).filter(|d| !d.ends_with(ASIDE));
    let usable = |dir: &&Path| {
        writable(dir) && writable(&dir.join("cgroup.procs")) && delegate(dir, *dir == start.as_path(), takes)
    };
    let found = dirs.find(usable)?;
    let (there, on) = (found.join("cgroup.controllers"), found.join("cgroup.subtree_control"));
    if takes && has_all(&["io"], &there) && !has_all(&["io"], &on) {
        // It limits nothing. Without it, use is counted in another way.
        let _ = fs::write(on, "+io");
    }
    Some(Home::V2(found.to_path_buf()))
}

pub(crate) fn has_controllers(list: &Path) -> bool {
    has_all(&CONTROLLERS, list)
}

fn has_all(controllers: &[&str], list: &Path) -> bool {
    let text = fs::read_to_string(list).unwrap_or_default();
    controllers.iter().all(|c| text.split_whitespace().any(|word| word == *c))
}

fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Switches the controllers on for groups made in this one. A group that holds processes cannot pass controllers on, so
/// that this process, when it is alone there, first moves into a group of its own.
fn delegate(dir: &Path, own: bool, takes: bool) -> bool {
    let has = |file: &str| has_controllers(&dir.join(file));
    if has("cgroup.subtree_control") {
        return !own || dir == Path::new(V2_ROOT);
    }
    if !has("cgroup.controllers") {
        return false;
    }
    let procs = || fs::read_to_string(dir.join("cgroup.procs"));
    let alone = || procs().is_ok_and(|procs| procs.split_whitespace().eq([std::process::id().to_string().as_str()]));
    if !takes {
        // The root group alone can have both groups and processes.
        let root = dir == Path::new(V2_ROOT);
        return root || procs().is_ok_and(|procs| procs.trim().is_empty()) || (own && alone());
    }
    let switch_on = || fs::write(dir.join("cgroup.subtree_control"), "+cpu +memory +pids").is_ok();
    if switch_on() {
        return true;
    }
    if !(own && alone()) {
        return false;
    }
    let aside = dir.join(ASIDE);
    let moved = fs::create_dir(&aside).or_else(|e| if aside.is_dir() { Ok(()) } else { Err(e) }).is_ok()
        && fs::write(aside.join("cgroup.procs"), "0").is_ok();
    moved && switch_on()
}

/// The group of one box; a directory for each hierarchy. Its paths are known before it is made, so that whoever removes it when
/// this process is gone can be told first.
#[derive(Debug)]
pub struct Group {
    home: Home,
    dirs: Vec<PathBuf>,
    /// What is removed with it: the directory that it is frozen in, if it was, and its own.
    paths: Vec<PathBuf>,
}

/// What a tree used, and which limits it ran into.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub peak_memory: Option<u64>,
    pub cpu: Option<Duration>,
    /// Processes killed for memory.
    pub killed_for_memory: u64,
    /// Forks refused.
    pub refused_processes: u64,
}

impl Group {
    /// A group that is still to be made; `None` where there are no groups. `number`: another one for each of this process.
    pub fn named(home: Home, number: u64) -> Option<Group> {
        // Nobody else's, who had this process id before or has it in another namespace.
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
        let name = format!("{PREFIX}{}-{now:x}-{number:x}", std::process::id());
        let dirs = home.dirs(&name);
        let paths = home.freezer(&name).into_iter().chain(dirs.iter().cloned()).collect();
        (!dirs.is_empty()).then_some(Group { home, dirs, paths })
    }

    /// Its directories, made or not.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// For whoever changes it while its sandbox lives.
    pub fn control(&self) -> Control {
        let freezer = match self.dirs.as_slice() {
            [dir] => Some(Freezer::At(dir.join("cgroup.freeze"))),
            [memory, ..] if self.paths.len() > self.dirs.len() => {
                Some(Freezer::Own { dir: self.paths[0].clone(), members: memory.join("cgroup.procs") })
            }
            _ => None,
        };
        Control { dirs: self.dirs.clone(), freezer }
    }

    /// Makes it, with these limits.
    pub fn make(&self, limits: &Limits) -> Result<(), LimitError> {
        for dir in &self.dirs {
            fs::create_dir(dir).map_err(|source| LimitError::Make { path: dir.clone(), source })?;
        }
        set(&self.dirs, limits)?;
        match self.dirs.as_slice() {
            [dir] if limits.memory.is_some() => write_if_there(&dir.join("memory.oom.group"), "1"),
            _ => Ok(()),
        }
    }

    /// How many processes there may be beside process 1, which is ours and does not count against the caller.
    pub fn set_processes(&self, most: u64) -> Result<(), LimitError> {
        set_processes(&self.dirs, most)
    }

    /// Running out of memory ends one process, the largest, and not the whole box: a guest outlives its commands.
    pub fn kill_one_by_one(&self) -> Result<(), LimitError> {
        match (&self.home, self.dirs.as_slice()) {
            (Home::V2(_), [dir]) => write_if_there(&dir.join("memory.oom.group"), "0"),
            _ => Ok(()),
        }
    }

    /// Descriptors that process 1 writes `0` to, to join; opened here, since the right to move is the opener's.
    pub fn doors(&self) -> Result<Vec<OwnedFd>, LimitError> {
        // Process 1 has one thread. Where threads can be moved one by one, one that moves itself does not wait until every
        // processor has been somewhere else, which takes longer than all the rest of a box (docs/design/speed.md).
        let list = match self.home {
            Home::V1 { .. } => "tasks",
            Home::V2(_) | Home::None(_) => "cgroup.procs",
        };
        let open = |dir: &PathBuf| {
            let path = dir.join(list);
            fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .map(OwnedFd::from)
                .map_err(|source| LimitError::Make { path, source })
        };
        self.dirs.iter().map(open).collect()
    }

    /// Where process 1 can be born into it instead, with the same gain: the directory. Version 2 has that.
    pub fn cradle(&self) -> Option<OwnedFd> {
        match (&self.home, self.dirs.as_slice()) {
            (Home::V2(_), [dir]) => fs::File::open(dir).map(OwnedFd::from).ok(),
            _ => None,
        }
    }

    /// What the tree used so far.
    pub fn usage(&self) -> Usage {
        usage(&self.dirs)
    }

    /// What it refuses, for whoever asks often.
    pub fn refusals(&self) -> Option<Refusals> {
        Refusals::of(&self.dirs)
    }

    /// Removes the group; every process of the box must be gone.
    pub fn remove(mut self) -> Result<(), LimitError> {
        self.remove_within(Duration::from_secs(5))
    }

    fn remove_within(&mut self, patience: Duration) -> Result<(), LimitError> {
        let until = Instant::now() + patience;
        let mut done = Ok(());
        for path in std::mem::take(&mut self.paths) {
            let removed = remove(&path, until).map_err(|source| LimitError::Remove { path, source });
            done = done.and(removed);
        }
        done
    }
}

/// A group that somebody else made and removes.
#[derive(Debug)]
pub struct Gauge {
    dirs: Vec<PathBuf>,
    control: Control,
}

impl Gauge {
    /// The group that a process is in; `None` where it cannot be seen from here.
    pub fn of(pid: i32) -> Option<Gauge> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let dir = |controller: &str| {
            let (controllers, path) = path_of(&text, controller)?;
            Some(Path::new(V2_ROOT).join(controllers).join(path.trim_start_matches('/')))
        };
        let (dirs, main) = match dir("memory") {
            Some(memory) => (vec![memory, dir("pids")?, dir("cpu")?], "memory"),
            None => (vec![dir("")?], ""),
        };
        // One that this process is in as well is not the sandbox's alone, nor is one that the others are not called like.
        let own = own_groups();
        let is_its_own = |controller: &str| {
            let (theirs, ours) = (path_of(&text, controller)?.1, path_of(&own, controller)?.1);
            (!Path::new(ours).starts_with(theirs) && theirs == path_of(&text, main)?.1).then(|| dir(controller))?
        };
        let freezer = match dirs.as_slice() {
            [_] => is_its_own("").map(|dir| Freezer::At(dir.join("cgroup.freeze"))),
            _ => is_its_own("freezer").map(|dir| Freezer::At(dir.join("freezer.state"))),
        };
        let control = Control { dirs: is_its_own(main).map_or_else(Vec::new, |_| dirs.clone()), freezer };
        dirs.iter().all(|dir| dir.is_dir()).then_some(Gauge { dirs, control })
    }

    /// As [`Group::control`].
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    pub fn usage(&self) -> Usage {
        usage(&self.dirs)
    }

    /// As [`Group::refusals`].
    pub fn refusals(&self) -> Option<Refusals> {
        Refusals::of(&self.dirs)
    }
}

/// Changes the groups of a live sandbox from outside, and reads what it uses now. It may wait for the kernel: a tree that has
/// more than a new limit is made smaller first.
#[derive(Debug, Clone)]
pub struct Control {
    dirs: Vec<PathBuf>,
    freezer: Option<Freezer>,
}

#[derive(Debug, Clone)]
enum Freezer {
    /// The file of a group that all its processes are in.
    At(PathBuf),
    /// Version 1: a group that is made when it is needed, and whose processes are those of another.
    Own { dir: PathBuf, members: PathBuf },
}

/// What a tree uses now; `None` where nothing counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub memory: Option<u64>,
    pub processes: Option<u64>,
    pub read: Option<u64>,
    pub written: Option<u64>,
}

/// A tree that forks faster than it is moved into its freezer is given up after so long.
const FREEZING: Duration = Duration::from_secs(5);

impl Control {
    pub fn can_limit(&self) -> bool {
        self.dirs.first().is_some_and(|dir| writable(dir))
    }

    pub fn can_freeze(&self) -> bool {
        match &self.freezer {
            None => false,
            Some(Freezer::At(file)) => writable(file),
            Some(Freezer::Own { dir, .. }) => dir.parent().is_some_and(writable),
        }
    }

    /// Sets those limits of a tree that are given.
    pub fn set(&self, limits: &Limits) -> Result<(), LimitError> {
        set(&self.dirs, limits)
    }

    /// Stops everything in it, wherever it is.
    pub fn freeze(&self) -> Result<(), LimitError> {
        let Some(Freezer::Own { dir, members }) = &self.freezer else { return self.set_frozen(true) };
        if let Err(source) = fs::create_dir(dir)
            && source.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(LimitError::Make { path: dir.clone(), source });
        }
        self.set_frozen(true)?;
        let listed = |file: &Path| -> Vec<String> {
            fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
        };
        let (inside, until) = (dir.join("cgroup.procs"), Instant::now() + FREEZING);
        loop {
            let frozen = listed(&inside);
            // What is born meanwhile is born frozen, or is in the next list.
            let mut left = listed(members);
            left.retain(|pid| !frozen.contains(pid));
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                self.set_frozen(false)?;
                let source = io::ErrorKind::TimedOut.into();
                return Err(LimitError::Set { path: inside, value: left.join(" "), source });
            }
            for pid in left {
                // It may be gone.
                let _ = fs::write(&inside, pid);
            }
        }
    }

    pub fn thaw(&self) -> Result<(), LimitError> {
        self.set_frozen(false)
    }

    fn set_frozen(&self, frozen: bool) -> Result<(), LimitError> {
        let file = match &self.freezer {
            None => return Ok(()),
            Some(Freezer::At(file)) => file.clone(),
            Some(Freezer::Own { dir, .. }) => dir.join("freezer.state"),
        };
        let v1 = file.ends_with("freezer.state");
        write(
            &file,
            match (v1, frozen) {
                (true, true) => "FROZEN",
                (true, false) => "THAWED",
                (false, true) => "1",
                (false, false) => "0",
            },
        )
    }

    pub fn load(&self) -> Load {
        let (memory, pids) = match self.dirs.as_slice() {
            [dir] => (number(&dir.join("memory.current")), dir),
            [memory, pids, _] => (number(&memory.join("memory.usage_in_bytes")), pids),
            _ => return Load::default(),
        };
        // Version 1 counts it only where it limits it, and not what is written later on behalf of a process.
        let io = fs::read_to_string(pids.join("io.stat")).ok();
        // `8:0 rbytes=1 wbytes=2 …`
        let sum = |key: &str| {
            let counted =
                |line: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
            io.as_ref().map(|text| text.lines().filter_map(counted).sum())
        };
        let (read, written) = (sum("rbytes="), sum("wbytes="));
        Load { memory, processes: number(&pids.join("pids.current")), read, written }
    }
}

fn set_processes(dirs: &[PathBuf], most: u64) -> Result<(), LimitError> {
    match dirs {
        [dir] | [_, dir, _] => write(&dir.join("pids.max"), &(most + 1).to_string()),
        _ => Ok(()),
    }
}

fn set(dirs: &[PathBuf], limits: &Limits) -> Result<(), LimitError> {
    if let Some(pids) = limits.pids {
        set_processes(dirs, pids)?;
    }
    let memory = limits.memory.map(|n| n.to_string());
    let quota = quota(limits);
    match dirs {
        [dir] => {
            if let Some(memory) = memory {
                write(&dir.join("memory.max"), &memory)?;
                write_if_there(&dir.join("memory.swap.max"), "0")?;
            }
            if let Some(quota) = quota {
                write(&dir.join("cpu.max"), &format!("{quota} 100000"))?;
            }
        }
        [memory_dir, _, cpu_dir] => {
            if let Some(memory) = memory {
                let with_swap = memory_dir.join("memory.memsw.limit_in_bytes");
                // Never below the other: a higher one is set first, and a lower one last.
                let _ = write_if_there(&with_swap, &memory);
                write(&memory_dir.join("memory.limit_in_bytes"), &memory)?;
                write_if_there(&with_swap, &memory)?;
            }
            if let Some(quota) = quota {
                write(&cpu_dir.join("cpu.cfs_period_us"), "100000")?;
                write(&cpu_dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Kills for memory and refused forks of a group, from files that stay open: after every command they are asked for.
#[derive(Debug)]
pub struct Refusals {
    kills: fs::File,
    forks: fs::File,
}

impl Refusals {
    fn of(dirs: &[PathBuf]) -> Option<Refusals> {
        let (kills, forks) = match dirs {
            [dir] => (dir.join("memory.events"), dir.join("pids.events")),
            [memory, pids, _] => (memory.join("memory.oom_control"), pids.join("pids.events")),
            _ => return None,
        };
        Some(Refusals { kills: fs::File::open(kills).ok()?, forks: fs::File::open(forks).ok()? })
    }

    /// So far.
    pub fn now(&self) -> (u64, u64) {
        let count = |file: &fs::File, key: &str| read_open(file, |text| counted(text, key));
        (count(&self.kills, "oom_kill").unwrap_or(0), count(&self.forks, "max").unwrap_or(0))
    }
}

/// Reads a short file that stays open.
fn read_open<T>(file: &fs::File, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    use std::os::unix::fs::FileExt;
    let mut text = [0; 512];
    let read = file.read_at(&mut text, 0).ok()?;
    parse(std::str::from_utf8(&text[..read]).ok()?)
}

/// The share of processors, in millionths of a second for each tenth of one.
fn quota(limits: &Limits) -> Option<u64> {
    limits.cpus.map(|cpus| ((cpus * 100_000.0) as u64).max(1000))
}

/// The controllers and the group of a line of `/proc/PID/cgroup`.
fn path_of<'a>(text: &'a str, controller: &str) -> Option<(&'a str, &'a str)> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|c| c == controller).then_some((controllers, path))
    })
}

/// What a group counted: one directory of v2, or memory, pids and cpu of v1.
fn usage(dirs: &[PathBuf]) -> Usage {
    match dirs {
        [dir] => Usage {
            peak_memory: number(&dir.join("memory.peak")),
            cpu: keyed(&dir.join("cpu.stat"), "usage_usec").map(Duration::from_micros),
            killed_for_memory: keyed(&dir.join("memory.events"), "oom_kill").unwrap_or(0),
            refused_processes: keyed(&dir.join("pids.events"), "max").unwrap_or(0),
        },
        [memory, pids, _] => Usage {
            peak_memory: number(&memory.join("memory.max_usage_in_bytes")),
            cpu: None,
            killed_for_memory: keyed(&memory.join("memory.oom_control"), "oom_kill").unwrap_or(0),
            refused_processes: keyed(&pids.join("pids.events"), "max").unwrap_or(0),
        },
        _ => Usage::default(),
    }
}

impl Drop for Group {
    /// For a start that failed half-way, or a box that nobody waited for. The janitor tries again, so that a failure here is not
    /// the last word.
    fn drop(&mut self) {
        if !self.paths.is_empty() {
            let _ = self.remove_within(Duration::from_millis(100));
        }
    }
}

/// The kernel lets go of a dead process's group a moment after it was reaped.
fn remove(path: &Path, until: Instant) -> io::Result<()> {
    loop {
        match fs::remove_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

fn write(path: &Path, value: &str) -> Result<(), LimitError> {
    fs::write(path, value).map_err(|source| LimitError::Set {
        path: path.to_path_buf(),
        value: value.to_owned(),
        source,
    })
}

/// Swap accounting and group kill are not in every kernel: without swap accounting there is no swap to limit here.
fn write_if_there(path: &Path, value: &str) -> Result<(), LimitError> {
    if path.exists() { write(path, value) } else { Ok(()) }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn keyed(path: &Path, key: &str) -> Option<u64> {
    counted(&fs::read_to_string(path).ok()?, key)
}

fn counted(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

/// What a tree of processes uses right now, added up from `/proc`; the stand-in where there is no control group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    pub processes: u64,
    /// Resident bytes, shared pages counted once for each process.
    pub memory: u64,
    pub cpu: Duration,
}

/// Counts process `root` (left out itself) and everything below it, threads as processes.
pub fn census(root: i32) -> Census {
    let mut total = Census::default();
    let mut pending = children(root);
    // A bound against a tree that grows faster than it is read.
    while let Some(pid) = pending.pop() {
        if total.processes > 100_000 {
            break;
        }
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name in parentheses is chosen by the process; what follows the last one is the kernel's.
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let field = |i: usize| rest.split_whitespace().nth(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        total.processes += field(17).max(1);
        total.memory += field(21) * page_size();
        // Own time and that of children which were waited for; in ticks of 10 ms.
        total.cpu += Duration::from_millis((field(11) + field(12) + field(13) + field(14)) * 10);
        pending.extend(children(pid));
    }
    total
}

/// Bytes that a tree moved; `None` where that cannot be seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From disks and to them, by what lives of the tree and by what its processes waited for.
    pub read: Option<u64>,
    pub written: Option<u64>,
    /// From the network and to it, where the tree has one of its own, but for its loopback.
    pub received: Option<u64>,
    pub sent: Option<u64>,
}

/// What process `root` and everything below it moved so far.
pub fn traffic(root: i32) -> Traffic {
    let (mut pending, mut all) = (vec![root], Traffic::default());
    // A bound against a tree that grows faster than it is read.
    for _ in 0..100_000 {
        let Some(pid) = pending.pop() else { break };
        pending.extend(children(pid));
        let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        for (total, key) in [(&mut all.read, "read_bytes: "), (&mut all.written, "\nwrite_bytes: ")] {
            let found = text.split_once(key).and_then(|(_, rest)| rest.lines().next()?.parse::<u64>().ok());
            *total = total.map_or(found, |sum| Some(sum + found.unwrap_or(0)));
        }
    }
    let network = |who: &str| fs::read_link(format!("/proc/{who}/ns/net")).ok();
    let root = root.to_string();
    if network(&root).is_some_and(|theirs| network("self").is_some_and(|ours| ours != theirs)) {
        let text = fs::read_to_string(format!("/proc/{root}/net/dev")).unwrap_or_default();
        let devices = || text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
        let sum = |at: usize| {
            let counted = devices().filter_map(|(_, counts)| counts.split_whitespace().nth(at)?.parse::<u64>().ok());
            (!text.is_empty()).then(|| counted.sum())
        };
        (all.received, all.sent) = (sum(0), sum(8));
    }
    all
}

/// How long it may take to find out what the memory is that a tree does not share.
const EXACTLY: Duration = Duration::from_millis(200);

/// Whether the tree has more than this resident, of which `resident` is the sum: what is shared counts once. That is exact, and
/// too slow for every look; a tree that makes it slower still has what it seems to have.
pub fn has_more_than(limit: u64, resident: u64, root: i32) -> bool {
    resident > limit && proportional(root, Instant::now() + EXACTLY).is_none_or(|exactly| exactly > limit)
}

/// Proportional resident bytes of the tree; `None` when they are not known by then.
fn proportional(root: i32, until: Instant) -> Option<u64> {
    let mut pending = children(root);
    let mut total = 0;
    while let Some(pid) = pending.pop() {
        if Instant::now() > until {
            return None;
        }
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with("Pss:"));
        total += line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 1024;
        pending.extend(children(pid));
    }
    Some(total)
}

/// Kills the process below `root` that has the most memory resident, as the kernel would in a control group. Whether there was
/// one. `process` is the root's own handle: another process with its number has nothing to fear.
pub fn kill_largest(root: i32, process: &OwnedFd) -> bool {
    let below = || {
        let (mut pending, mut all) = (children(root), Vec::new());
        while let Some(pid) = pending.pop().filter(|_| all.len() < 100_000) {
            pending.extend(children(pid));
            all.push(pid);
        }
        all
    };
    let resident = |pid: &i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0)
    };
    let Some(largest) = below().into_iter().max_by_key(resident) else { return false };
    let Some(pid) = rustix::process::Pid::from_raw(largest) else { return false };
    let Ok(found) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return false };
    let lives = || {
        let mut ended = [PollFd::new(process, PollFlags::IN)];
        rustix::event::poll(&mut ended, Some(&Timespec::default())) == Ok(0)
    };
    // The number may have become that of another process before it was opened; what is still below the root is the right one,
    // while that still lives.
    below().contains(&largest)
        && lives()
        && rustix::process::pidfd_send_signal(&found, rustix::process::Signal::KILL).is_ok()
}

fn children(pid: i32) -> Vec<i32> {
    let mut all = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return all };
    for list in tasks.flatten().filter_map(|task| fs::File::open(task.path().join("children")).ok()) {
        // It went meanwhile: then its children are somebody else's, and found there.
        let _ = sys::each_child(&list, |child| all.push(child));
    }
    all
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests;
