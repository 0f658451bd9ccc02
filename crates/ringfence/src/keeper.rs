//! The keeper: a process beside the box that clears up what a box leaves on the host, also when Ringfence is killed.
//!
//! Two things outlive a killed process: names that were made so that something can be mounted on them (a protected path
//! that is not there can only be kept from appearing by a mount, and a mount needs a name), and control groups. The keeper
//! waits until its owner is gone and then removes both. Names are listed on disk as well, so that even without a keeper the
//! next run clears them; they go when the last box that needs them has ended, and only empty files and directories of
//! exactly our modes are ever removed.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_linux::sys::{self, Beside};
use ringfence_policy::plan::Stub;
use ringfence_policy::rules::Kind;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};

const FILE_MODE: u32 = 0o444;
const DIR_MODE: u32 = 0o755;
/// The list of one project cannot grow past this; a box that would need more is refused.
const LIST_LIMIT: usize = 64 * 1024;

/// Why the keeper could not prepare a box.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error("cannot make `{}` to keep it protected: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot keep the list of stand-ins at `{}`: {source}", path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("`{}` is not a directory of this user alone", .0.display())]
    NotOurs(PathBuf),
    #[error("cannot start the keeper: {0}")]
    Start(rustix::io::Errno),
}

/// Clears up when it is dropped, or when its process dies.
pub struct Keeper {
    process: Option<Beside<Box<dyn FnMut() -> i32>>>,
    /// Its end tells the keeper to begin.
    lifeline: Option<OwnedFd>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// Makes the names, and starts a keeper for them and for these control groups; `None` when there is nothing to keep.
    pub fn start(
        stubs: &[Stub],
        groups: Vec<CString>,
        project: &Path,
        registry: &Path,
    ) -> Result<Option<Keeper>, KeeperError> {
        if stubs.is_empty() {
            return if groups.is_empty() { Ok(None) } else { Self::beside(None, groups).map(Some) };
        }
        own_directory(registry)?;
        let mut list = List::open(project, registry)?;
        list.clear_after_crash();
        list.add(stubs)?;
        let list = Arc::new(list);
        // Before the first name is made, so that none is without a keeper.
        let keeper = Self::beside(Some(list.clone()), groups)?;
        let made = stubs
            .iter()
            .try_for_each(|stub| make(stub).map_err(|source| KeeperError::Make { path: stub.path.clone(), source }));
        // Also when one could not be made: the keeper, which then ends, takes the lock to clear up.
        list.unlock();
        made.map(|()| Some(keeper))
    }

    /// Starts the process. It shares this one's memory, which costs a tenth of a fork, and lives on when this one is killed.
    fn beside(list: Option<Arc<List>>, groups: Vec<CString>) -> Result<Keeper, KeeperError> {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(KeeperError::Start)?;
        // Memory is made here; afterwards there are only system calls.
        let mut buffer = vec![0; if list.is_some() { LIST_LIMIT } else { 0 }];
        let keep_and_clear: Box<dyn FnMut() -> i32> = Box::new(move || {
            // Signals to the terminal's process group are not for the keeper.
            let _ = rustix::process::setsid();
            let reopened = list.as_ref().and_then(|list| list.reopen());
            let mut keep = [read.as_raw_fd(), -1, -1];
            if let (Some(list), Some(own)) = (&list, &reopened) {
                keep = [read.as_raw_fd(), own.as_raw_fd(), list.alive.as_raw_fd()];
            }
            sys::close_all_but(&keep);
            let _ = rustix::io::read(&read, &mut [0u8; 1]);
            if let (Some(list), Some(own)) = (&list, &reopened) {
                let _ = rustix::fs::flock(own, FlockOperation::LockExclusive);
                if list.nobody_else_alive() {
                    clear(own, &mut buffer);
                    list.unlink();
                }
            }
            groups.iter().for_each(|group| remove_group(group));
            0
        });
        let process = Some(Beside::start(keep_and_clear).map_err(KeeperError::Start)?);
        Ok(Keeper { process, lifeline: Some(write) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.lifeline = None;
        // What it keeps is gone when the keeper is: whoever looks afterwards finds none.
        if let Some(process) = self.process.take() {
            let _ = process.join();
        }
    }
}

/// The names made for one project, shared by all boxes in it. Every change happens under the list's lock.
struct List {
    file: fs::File,
    /// Locked (shared) by every living box.
    alive: fs::File,
    file_path: CString,
    alive_path: CString,
    reopen_path: CString,
    path: PathBuf,
}

impl List {
    /// Opens and locks the list.
    fn open(project: &Path, registry: &Path) -> Result<List, KeeperError> {
        let name = fold(project.as_os_str().as_bytes());
        let path = registry.join(format!("{name:016x}.stubs"));
        let alive_path = registry.join(format!("{name:016x}.alive"));
        let error = |source: io::Error| KeeperError::List { path: path.clone(), source };
        let c = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|e| error(e.into()));
        loop {
            let file = open(&path).map_err(error)?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|e| error(e.into()))?;
            // The last box of before may have removed it between our opening and locking it.
            if file.metadata().map_err(error)?.nlink() == 0 {
                continue;
            }
            let alive = open(&alive_path).map_err(error)?;
            let reopen_path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
            return Ok(List { file, alive, file_path: c(&path)?, alive_path: c(&alive_path)?, reopen_path, path });
        }
    }

    /// Nobody alive: what is still listed was left by a crash. Then counts this box among the living.
    fn clear_after_crash(&mut self) {
        if self.nobody_else_alive() {
            clear(self.file.as_fd(), &mut vec![0; LIST_LIMIT]);
        }
        let _ = rustix::fs::flock(&self.alive, FlockOperation::LockShared);
    }

    fn nobody_else_alive(&self) -> bool {
        rustix::fs::flock(&self.alive, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Lists names before they are made, so that a crash in between leaves nothing unlisted.
    fn add(&mut self, stubs: &[Stub]) -> Result<(), KeeperError> {
        let error = |source: io::Error| KeeperError::List { path: self.path.clone(), source };
        let mut entries = Vec::new();
        for stub in stubs {
            // A directory, or a file of this length.
            entries.push(if stub.kind == Kind::Dir { b'd' } else { b'0' + stub.text.len().min(9) as u8 });
            entries.extend_from_slice(stub.path.as_os_str().as_bytes());
            entries.push(0);
        }
        let length = self.file.metadata().map_err(error)?.len();
        if length + entries.len() as u64 > LIST_LIMIT as u64 {
            return Err(error(io::ErrorKind::FileTooLarge.into()));
        }
        io::Write::write_all(&mut self.file, &entries).map_err(error)
    }

    /// A lock belongs to the open file, which a fork shares: the keeper needs one of its own.
    fn reopen(&self) -> Option<OwnedFd> {
        rustix::fs::open(&self.reopen_path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    fn unlock(&self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }

    fn unlink(&self) {
        let _ = rustix::fs::unlink(&self.alive_path);
        let _ = rustix::fs::unlink(&self.file_path);
    }
}

fn open(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
}

fn make(stub: &Stub) -> io::Result<()> {
    let made = match stub.kind {
        Kind::Dir => fs::DirBuilder::new().mode(DIR_MODE).create(&stub.path),
        Kind::File => fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&stub.path)
            .and_then(|mut file| io::Write::write_all(&mut file, stub.text.as_bytes())),
    };
    match made {
        // Made by a neighbour's box in the meantime, or there since planning: it is mounted over all the same.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Removes every listed name that is still exactly what we made, deepest first, and empties the list. Allocates nothing.
fn clear(list: impl AsFd, buffer: &mut [u8]) {
    let mut length = 0;
    while length < buffer.len() {
        match rustix::io::pread(&list, &mut buffer[length..], length as u64) {
            Ok(0) | Err(_) => break,
            Ok(n) => length += n,
        }
    }
    for entry in buffer[..length].split_inclusive(|b| *b == 0).rev() {
        let Some((kind, path)) = entry.split_first() else { continue };
        let Ok(path) = CStr::from_bytes_with_nul(path) else { continue };
        let Ok(data) = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let regular = data.st_mode & libc::S_IFMT == libc::S_IFREG;
        if *kind == b'd' {
            // Refused by the kernel unless it is an empty directory.
            let _ = rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR);
        } else if regular
            && data.st_size == i64::from(kind.wrapping_sub(b'0'))
            && data.st_mode & 0o7777 == FILE_MODE
            && data.st_nlink == 1
        {
            let _ = rustix::fs::unlinkat(CWD, path, AtFlags::empty());
        }
    }
    let _ = rustix::fs::ftruncate(list, 0);
}

/// Removes a control group as soon as the last process in it is gone; process 1 dies with its owner, and the rest with it.
fn remove_group(path: &CStr) {
    let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    for _ in 0..1000 {
        match rustix::fs::rmdir(path) {
            Err(rustix::io::Errno::BUSY) => {
                let _ = rustix::thread::nanosleep(&pause);
            }
            _ => return,
        }
    }
}

/// A directory that belongs to this user and that nobody else can enter.
fn own_directory(path: &Path) -> Result<(), KeeperError> {
    let error = |source| KeeperError::List { path: path.to_path_buf(), source };
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(error(e)),
        _ => {}
    }
    let data = fs::symlink_metadata(path).map_err(error)?;
    let ours =
        data.is_dir() && data.uid() == rustix::process::getuid().as_raw() && data.permissions().mode() & 0o077 == 0;
    if ours { Ok(()) } else { Err(KeeperError::NotOurs(path.to_path_buf())) }
}

/// Where this user's lists are: not visible in any box, gone at the next boot.
pub fn registry(runtime_dir: Option<&Path>) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    match runtime_dir.filter(|d| fs::symlink_metadata(d).is_ok_and(|m| m.is_dir() && m.uid() == uid)) {
        Some(dir) => dir.join("ringfence"),
        None if uid == 0 && Path::new("/run").is_dir() => PathBuf::from("/run/ringfence-keeper"),
        None => PathBuf::from(format!("/tmp/ringfence-{uid}")),
    }
}

/// FNV-1a: names a project's list; a collision merely lets two projects share one.
fn fold(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}
