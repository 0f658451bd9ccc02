//! The watcher: one process per user, which puts back the mounts that the host takes from living sandboxes.
//!
//! The kernel drops a mount when its name is removed or renamed over in another mount namespace. So the watcher looks at every
//! directory that leads to a covered name (inotify), enters the sandbox's mounts with a child, and mounts again. Owners of
//! sandboxes connect to it. A connection that closes takes its sandbox off the list; the last one ends the watcher.

mod dirs;
mod restore;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ringfence_guest::watch::{self, List, MOST_BYTES, Name, Notice, Order};
use ringfence_linux::sys;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

use dirs::{Change, Dirs};
use restore::{Found, Restorer};

/// Without sandboxes it stays so long, for the next one.
const LINGER: Duration = Duration::from_secs(1);
/// A name that is gone is left alone so long: programs remove a file, and then make it anew.
const SETTLES: Duration = Duration::from_millis(100);
/// So many sandboxes are watched at once.
const MOST_SANDBOXES: usize = 4096;
/// So many names may an owner add.
const MOST_ADDED: usize = 100_000;

/// Listens on descriptor 0. Its argument is the directory of its socket.
pub fn run() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else { return ExitCode::FAILURE };
    let Ok(listener) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) else { return ExitCode::FAILURE };
    let mut watcher = Watcher {
        dir,
        listener,
        dirs: Dirs::new(),
        sandboxes: BTreeMap::new(),
        next: 0,
        idle: Instant::now(),
        gone: BTreeMap::new(),
        restorer: Restorer::new(),
    };
    while watcher.round() {}
    ExitCode::SUCCESS
}

struct Watcher {
    dir: PathBuf,
    listener: OwnedFd,
    dirs: Dirs,
    sandboxes: BTreeMap<u64, Sandbox>,
    next: u64,
    /// Since when there is no sandbox.
    idle: Instant,
    /// Names that are gone, and when each gets its placeholder.
    gone: BTreeMap<(u64, usize), Instant>,
    restorer: Restorer,
}

/// A living sandbox.
struct Sandbox {
    owner: OwnedFd,
    /// `None`: its owner has not said yet what to watch.
    mounts: Option<OwnedFd>,
    placeholders: Option<OwnedFd>,
    ids: (u32, u32),
    names: Vec<Name>,
    /// Their paths inside, as the restorer takes them.
    inside: Vec<CString>,
    by_path: BTreeMap<PathBuf, Vec<usize>>,
    asks: BTreeSet<PathBuf>,
    /// The directories that are watched for it.
    dirs: BTreeSet<PathBuf>,
    /// The names that its owner was told of.
    told: BTreeSet<usize>,
    /// Something could not be told.
    missed: bool,
    /// Placeholders that the watcher made for it.
    made: Vec<usize>,
}

impl Sandbox {
    /// The names at this path and below it, directories first.
    fn at_or_below(&self, path: &Path) -> Vec<usize> {
        let range = self.by_path.range(path.to_path_buf()..);
        let mut names: Vec<usize> = range
            .take_while(|(other, _)| other.starts_with(path))
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        names.sort_unstable();
        names
    }

    fn tell(&mut self, notice: &Notice) {
        let send = |notice: &Notice| {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            rustix::net::send(&self.owner, &watch::encode(notice), flags).is_ok()
        };
        if self.missed && send(&Notice::Missed) {
            self.missed = false;
        }
        // An owner that is gone is seen by its socket.
        if !send(notice) {
            self.missed = true;
        }
    }
}

impl Watcher {
    /// Waits for the next thing to happen, and does it. False when the watcher is to end.
    fn round(&mut self) -> bool {
        let now = Instant::now();
        let end = self.sandboxes.is_empty().then(|| self.idle + LINGER);
        if end.is_some_and(|end| now >= end) && self.leave() {
            return false;
        }
        let until = self.gone.values().min().copied().into_iter().chain(end).min();
        let (ready, changed) = {
            let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
            let inotify = self.dirs.descriptor();
            fds.push(PollFd::from_borrowed_fd(
                inotify.unwrap_or(self.listener.as_fd()),
                if inotify.is_some() { PollFlags::IN } else { PollFlags::empty() },
            ));
            fds.extend(self.sandboxes.values().map(|sandbox| PollFd::new(&sandbox.owner, PollFlags::IN)));
            let at_most = until.map(|until| until.saturating_duration_since(now) + Duration::from_millis(1));
            if sys::poll_for(&mut fds, at_most).is_err() {
                return true;
            }
            let changed = !fds[1].revents().is_empty();
            let asked = self.sandboxes.keys().zip(&fds[2..]).filter(|(_, fd)| !fd.revents().is_empty());
            let ready: Vec<u64> = asked.map(|(id, _)| *id).collect();
            (ready, changed)
        };
        // Before anything is put back: the end of a sandbox removes its placeholders.
        for id in ready {
            self.hear(id);
        }
        if changed {
            self.changed();
        }
        self.settle();
        while let Ok(owner) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            self.welcome(owner);
        }
        true
    }

    /// Ends, unless somebody came meanwhile. Under the lock nobody can.
    fn leave(&mut self) -> bool {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(self.dir.join(watch::LOCK), flags, Mode::empty());
        let locked =
            lock.as_ref().is_ok_and(|lock| rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
        let alone = sys::poll_for(&mut waiting, Some(Duration::ZERO)) == Ok(0);
        if !alone || (lock.is_ok() && !locked) {
            self.idle = Instant::now();
            return false;
        }
        for name in [watch::SOCKET, watch::LOCK] {
            let _ = rustix::fs::unlink(self.dir.join(name));
        }
        // The directory above goes with the last that uses it.
        let _ = rustix::fs::rmdir(&self.dir);
        let _ = self.dir.parent().map(rustix::fs::rmdir);
        true
    }

    /// Only owners of this user are let in.
    fn welcome(&mut self, owner: OwnedFd) {
        let ours =
            rustix::net::sockopt::socket_peercred(&owner).is_ok_and(|peer| peer.uid == rustix::process::getuid());
        if !ours || self.sandboxes.len() >= MOST_SANDBOXES {
            return;
        }
        let sandbox = Sandbox {
            owner,
            mounts: None,
            placeholders: None,
            ids: (0, 0),
            names: Vec::new(),
            inside: Vec::new(),
            by_path: BTreeMap::new(),
            asks: BTreeSet::new(),
            dirs: BTreeSet::new(),
            told: BTreeSet::new(),
            missed: false,
            made: Vec::new(),
        };
        self.sandboxes.insert(self.next, sandbox);
        self.next += 1;
    }

    /// An owner has said something, or is gone.
    fn hear(&mut self, id: u64) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let Some(sandbox) = self.sandboxes.get(&id) else { return };
            let mut sent = Vec::new();
            let received = sys::receive_with(&sandbox.owner, &mut buffer, 3, RecvFlags::DONTWAIT, |descriptor| {
                sent.push(descriptor)
            });
            match received {
                Ok(received) if received.bytes == 0 => return self.forget(id),
                Ok(received) if sandbox.mounts.is_some() => match watch::decode(&buffer[..received.bytes]) {
                    Some(Order::Cover(name)) if sandbox.names.len() < MOST_ADDED => {
                        let index = self.add(id, name);
                        self.look(id, index.into_iter().collect());
                    }
                    _ => return self.forget(id),
                },
                Ok(_) => match self.begin(id, sent) {
                    Ok(()) => {}
                    Err(reason) => {
                        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                            sandbox.tell(&Notice::Failed(reason));
                        }
                        return self.forget(id);
                    }
                },
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => return self.forget(id),
            }
        }
    }

    /// Begins to watch a sandbox: looks at all its names once.
    fn begin(&mut self, id: u64, sent: Vec<OwnedFd>) -> Result<(), String> {
        let mut sent = sent.into_iter();
        let (Some(mounts), Some(file)) = (sent.next(), sent.next()) else { return Err("no list came".to_owned()) };
        let list: List = read(&file).as_deref().and_then(watch::decode).ok_or("the list cannot be read")?;
        self.dirs.open().map_err(|errno| format!("inotify: {errno}"))?;
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return Ok(()) };
        (sandbox.mounts, sandbox.placeholders, sandbox.ids) = (Some(mounts), sent.next(), (list.uid, list.gid));
        sandbox.asks = list.asks.into_iter().map(path).collect();
        let asks: Vec<PathBuf> = sandbox.asks.iter().cloned().collect();
        for name in list.names {
            self.add(id, name);
        }
        for dir in asks {
            self.watch_above(id, &dir.join("x"));
        }
        if let Some(errno) = self.dirs.trouble() {
            return Err(format!("inotify: {errno}"));
        }
        let all = 0..self.sandboxes.get(&id).map_or(0, |sandbox| sandbox.names.len());
        self.look(id, all.collect());
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.tell(&Notice::Watches);
        }
        Ok(())
    }

    /// Watches one more name. Its number.
    fn add(&mut self, id: u64, name: Name) -> Option<usize> {
        let sandbox = self.sandboxes.get_mut(&id)?;
        let outside = path(name.outside.clone());
        let relative = name.inside.strip_prefix(b"/").unwrap_or(&name.inside).to_vec();
        let index = sandbox.names.len();
        sandbox.inside.push(CString::new(relative).ok()?);
        sandbox.by_path.entry(outside.clone()).or_default().push(index);
        sandbox.names.push(name);
        self.watch_above(id, &outside);
        Some(index)
    }

    /// Watches every directory above a path.
    fn watch_above(&mut self, id: u64, path: &Path) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        for dir in path.ancestors().skip(1) {
            if sandbox.dirs.insert(dir.to_path_buf()) {
                self.dirs.add(dir);
            }
        }
    }

    /// The sandbox has ended, or its owner misbehaves.
    fn forget(&mut self, id: u64) {
        let Some(sandbox) = self.sandboxes.remove(&id) else { return };
        self.gone.retain(|(other, _), _| *other != id);
        sandbox.dirs.iter().for_each(|dir| self.dirs.remove(dir));
        let needed = |outside: &[u8]| {
            self.sandboxes.values().any(|other| {
                let names = other.by_path.get(Path::new(std::ffi::OsStr::from_bytes(outside)));
                names.is_some_and(|names| names.iter().any(|index| other.names[*index].placeholder.is_some()))
            })
        };
        for name in sandbox.made.iter().map(|index| &sandbox.names[*index]) {
            if !needed(&name.outside) {
                restore::unmake(name);
            }
        }
        if self.sandboxes.is_empty() {
            self.idle = Instant::now();
        }
    }

    /// Directories have changed.
    fn changed(&mut self) {
        let mut affected: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
        let changes = self.dirs.read();
        for change in changes {
            match change {
                Change::Name(path) => {
                    for (id, sandbox) in &mut self.sandboxes {
                        let names = sandbox.at_or_below(&path);
                        let asks = path.parent().is_some_and(|dir| sandbox.asks.contains(dir));
                        if names.is_empty() && asks {
                            sandbox.tell(&Notice::Appeared(path.as_os_str().as_bytes().to_vec()));
                        }
                        affected.entry(*id).or_default().extend(names);
                    }
                }
                Change::Anything => {
                    for (id, sandbox) in &mut self.sandboxes {
                        affected.entry(*id).or_default().extend(0..sandbox.names.len());
                        // What appeared meanwhile was not asked about.
                        if !sandbox.asks.is_empty() {
                            sandbox.tell(&Notice::Missed);
                        }
                    }
                }
            }
        }
        for (id, names) in affected {
            self.look(id, names.into_iter().collect());
        }
        // A directory that came cannot be watched: the kernel's limit is reached.
        if let Some(errno) = self.dirs.trouble() {
            for sandbox in self.sandboxes.values_mut() {
                sandbox.tell(&Notice::Failed(format!("inotify: {errno}")));
            }
        }
    }

    /// Looks at these names of a sandbox, and covers those again that are not.
    fn look(&mut self, id: u64, names: Vec<usize>) {
        let Some(sandbox) = self.sandboxes.get_mut(&id).filter(|_| !names.is_empty()) else { return };
        let Some(mounts) = &sandbox.mounts else { return };
        let found = self.restorer.look(mounts, sandbox.placeholders.as_ref(), sandbox.ids, &names, |index| {
            (sandbox.inside[index].as_c_str(), sandbox.names[index].cover)
        });
        let now = Instant::now();
        for (index, found) in names.into_iter().zip(found) {
            let notice = match found {
                Found::Covered => None,
                Found::Missing if sandbox.names[index].placeholder.is_some() => {
                    self.gone.entry((id, index)).or_insert(now + SETTLES);
                    continue;
                }
                Found::Missing => None,
                // The way to a name below goes with this one, which is told of itself.
                Found::Restored if sandbox.names[index].cover == watch::Cover::Pinned => None,
                Found::Restored => Some(Notice::Restored(index as u32)),
                Found::Link => Some(Notice::Open(index as u32, "it is a symlink now".to_owned())),
                Found::Failed(errno) => Some(Notice::Open(index as u32, errno.to_string())),
            };
            self.gone.remove(&(id, index));
            if let Some(notice) = notice.filter(|_| sandbox.told.insert(index)) {
                sandbox.tell(&notice);
            }
        }
    }

    /// Makes placeholders for names that stayed away.
    fn settle(&mut self) {
        let now = Instant::now();
        let due: Vec<(u64, usize)> = self.gone.iter().filter(|(_, at)| **at <= now).map(|(name, _)| *name).collect();
        for (id, index) in due {
            self.gone.remove(&(id, index));
            let Some(sandbox) = self.sandboxes.get_mut(&id) else { continue };
            // Its owner may be gone, and its janitor be at work: nothing is made behind that.
            let mut owner = [PollFd::from_borrowed_fd(sandbox.owner.as_fd(), PollFlags::RDHUP)];
            if sys::poll_for(&mut owner, Some(Duration::ZERO)) != Ok(0) {
                continue;
            }
            match restore::make(&sandbox.names[index]) {
                Ok(true) => sandbox.made.push(index),
                Ok(false) => {}
                Err(errno) => {
                    if sandbox.told.insert(index) {
                        sandbox.tell(&Notice::Open(index as u32, format!("it is gone, and cannot be kept: {errno}")));
                    }
                    continue;
                }
            }
            self.look(id, vec![index]);
        }
    }
}

fn path(bytes: Vec<u8>) -> PathBuf {
    std::ffi::OsString::from_vec(bytes).into()
}

/// The whole file.
fn read(file: &OwnedFd) -> Option<Vec<u8>> {
    let length = u64::try_from(rustix::fs::fstat(file).ok()?.st_size).ok().filter(|length| *length <= MOST_BYTES)?;
    let mut bytes = vec![0; length as usize];
    let mut read = 0;
    while read < bytes.len() {
        match rustix::io::pread(file, &mut bytes[read..], read as u64).ok()? {
            0 => return None,
            n => read += n,
        }
    }
    Some(bytes)
}
