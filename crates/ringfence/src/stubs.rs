//! Names that must exist on the host while a box lives, so that something can be mounted on them.
//!
//! A protected path that is not there can only be kept from appearing by a mount, and a mount needs a name. The name is
//! made before the box starts and taken away when the last box that needs it has ended: by a keeper, a process of its own,
//! so that it also happens when Ringfence is killed. A list outlives even the keeper, and the next run clears what it
//! finds there. Only empty files and directories of exactly our modes are ever removed.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ringfence_linux::sys::{self, Fork};
use ringfence_policy::plan::Stub;
use ringfence_policy::rules::Kind;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};

const FILE_MODE: u32 = 0o444;
const DIR_MODE: u32 = 0o755;
/// The list of one project cannot grow past this; a box that would need more is refused.
const LIST_LIMIT: usize = 256 * 1024;

/// Why stand-ins could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum StubError {
    #[error("cannot make `{}` to keep it protected: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot keep the list of stand-ins at `{}`: {source}", path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("`{}` is not a directory of this user alone", .0.display())]
    NotOurs(PathBuf),
    #[error("cannot start the keeper of stand-ins: {0}")]
    Keeper(rustix::io::Errno),
}

/// Stand-ins that are there until this is dropped or its process dies.
#[derive(Debug)]
pub struct Stubs {
    keeper: i32,
    pipe: Option<OwnedFd>,
}

impl Stubs {
    /// Makes what is missing. `None` when there is nothing to make.
    pub fn make(stubs: &[Stub], project: &Path, registry: &Path) -> Result<Option<Stubs>, StubError> {
        if stubs.is_empty() {
            return Ok(None);
        }
        let list_error = |path: &Path| {
            let path = path.to_path_buf();
            move |source| StubError::List { path, source }
        };
        own_directory(registry)?;
        let name = fold(project.as_os_str().as_bytes());
        let list_path = registry.join(format!("{name:016x}.stubs"));
        let alive_path = registry.join(format!("{name:016x}.alive"));
        let open = |path: &Path| {
            fs::OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
                .open(path)
        };
        let mut list = open(&list_path).map_err(list_error(&list_path))?;
        let alive = open(&alive_path).map_err(list_error(&alive_path))?;
        rustix::fs::flock(&list, FlockOperation::LockExclusive).map_err(|e| list_error(&list_path)(e.into()))?;
        // Nobody alive: what is still listed was left by a crash.
        if rustix::fs::flock(&alive, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let mut buffer = vec![0; LIST_LIMIT];
            clear(&list, &mut buffer);
        }
        rustix::fs::flock(&alive, FlockOperation::LockShared).map_err(|e| list_error(&alive_path)(e.into()))?;
        let mut entries = Vec::new();
        for stub in stubs {
            entries.push(if stub.kind == Kind::Dir { b'd' } else { b'f' });
            entries.extend_from_slice(stub.path.as_os_str().as_bytes());
            entries.push(0);
        }
        let length = list.metadata().map_err(list_error(&list_path))?.len();
        if length as usize + entries.len() > LIST_LIMIT {
            return Err(list_error(&list_path)(io::Error::from(io::ErrorKind::FileTooLarge)));
        }
        // Listed before they are made, so that a crash in between leaves nothing unlisted.
        io::Write::write_all(&mut list, &entries).map_err(list_error(&list_path))?;
        // The keeper starts before the first name is made, for the same reason.
        let kept = Self::start_keeper(&list, &alive)?;
        for stub in stubs {
            make_one(stub).map_err(|source| StubError::Make { path: stub.path.clone(), source })?;
        }
        rustix::fs::flock(&list, FlockOperation::Unlock).map_err(|e| list_error(&list_path)(e.into()))?;
        Ok(Some(kept))
    }

    fn start_keeper(list: &fs::File, alive: &fs::File) -> Result<Stubs, StubError> {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(StubError::Keeper)?;
        // A lock belongs to the open file, which a fork shares: the keeper opens its own, by a path that needs no memory.
        let reopen = |file: &fs::File| CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        let (list_path, alive_fd) = (reopen(list), alive);
        let mut buffer = vec![0; LIST_LIMIT];
        match sys::fork(0).map_err(StubError::Keeper)? {
            Fork::Parent(pid) => Ok(Stubs { keeper: pid.as_raw_nonzero().get(), pipe: Some(write) }),
            Fork::Child => {
                drop(write);
                // Signals to the terminal's process group are not for the keeper.
                let _ = rustix::process::setsid();
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                if let Ok(own_list) = rustix::fs::open(&list_path, flags, Mode::empty()) {
                    sys::close_all_but(&[read.as_raw_fd(), own_list.as_raw_fd(), alive_fd.as_raw_fd()]);
                    let _ = rustix::io::read(&read, &mut [0u8; 1]);
                    let _ = rustix::fs::flock(&own_list, FlockOperation::LockExclusive);
                    // `alive` is shared with a parent that is gone or waits for us, so this converts the one lock.
                    if rustix::fs::flock(alive_fd, FlockOperation::NonBlockingLockExclusive).is_ok() {
                        clear(&own_list, &mut buffer);
                    }
                }
                sys::exit_now(0)
            }
        }
    }
}

impl Drop for Stubs {
    fn drop(&mut self) {
        self.pipe = None;
        // The names are gone when the keeper is: whoever looks afterwards finds none.
        let _ = sys::wait(self.keeper, true, false);
    }
}

fn make_one(stub: &Stub) -> io::Result<()> {
    let made = match stub.kind {
        Kind::Dir => fs::DirBuilder::new().mode(DIR_MODE).create(&stub.path),
        Kind::File => fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&stub.path)
            .map(drop),
    };
    match made {
        // Made by a neighbour's box in the meantime, or there since planning: it is mounted over all the same.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Removes every listed name that is still exactly what we made, deepest first, and empties the list. Allocates nothing.
fn clear(list: impl std::os::fd::AsFd, buffer: &mut [u8]) {
    let mut length = 0;
    while length < buffer.len() {
        match rustix::io::pread(&list, &mut buffer[length..], length as u64) {
            Ok(0) | Err(_) => break,
            Ok(n) => length += n,
        }
    }
    for entry in buffer[..length].split_inclusive_mut(|b| *b == 0).rev() {
        let Some((kind, path)) = entry.split_first() else { continue };
        let Ok(path) = std::ffi::CStr::from_bytes_with_nul(path) else { continue };
        let Ok(data) = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let regular = data.st_mode & libc::S_IFMT == libc::S_IFREG;
        if *kind == b'd' {
            // Refused by the kernel unless empty.
            let _ = rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR);
        } else if regular && data.st_size == 0 && data.st_mode & 0o7777 == FILE_MODE && data.st_nlink == 1 {
            let _ = rustix::fs::unlinkat(CWD, path, AtFlags::empty());
        }
    }
    let _ = rustix::fs::ftruncate(list, 0);
}

/// A directory that belongs to this user and that nobody else can enter.
fn own_directory(path: &Path) -> Result<(), StubError> {
    let error = |source| StubError::List { path: path.to_path_buf(), source };
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(error(e)),
        _ => {}
    }
    let data = fs::symlink_metadata(path).map_err(error)?;
    let ours =
        data.is_dir() && data.uid() == rustix::process::getuid().as_raw() && data.permissions().mode() & 0o077 == 0;
    if ours { Ok(()) } else { Err(StubError::NotOurs(path.to_path_buf())) }
}

/// Where this user's lists are: not visible in any box, gone at the next boot.
pub fn registry(runtime_dir: Option<&Path>) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    match runtime_dir.filter(|d| fs::symlink_metadata(d).is_ok_and(|m| m.is_dir() && m.uid() == uid)) {
        Some(dir) => dir.join("ringfence"),
        None if uid == 0 && Path::new("/run").is_dir() => PathBuf::from("/run/ringfence"),
        None => PathBuf::from(format!("/tmp/ringfence-{uid}")),
    }
}

/// FNV-1a: names a project's list; a collision merely lets two projects share one.
fn fold(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}
