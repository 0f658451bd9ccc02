//! Finds the user's watcher, or starts it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use ringfence_guest::watch;
use ringfence_linux::launch::Handles;
use ringfence_linux::sys::{self, PointerList};
use ringfence_linux::{detach, starter};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::Names;
use crate::janitor::{JanitorError, own_directory};

/// So often the lock is tried, a few milliseconds apart.
const TRIES: u32 = 100;

/// Why a sandbox is not watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error(transparent)]
    Directory(#[from] JanitorError),
    #[error("cannot lock `{}`: {source}", path.display())]
    Lock { path: std::path::PathBuf, source: Errno },
    #[error("cannot start the watcher: {0}")]
    Start(Errno),
    #[error("cannot talk to the watcher: {0}")]
    Talk(Errno),
}

/// Hands a sandbox to the watcher. What it says comes over the socket.
pub fn register(registry: &Path, names: &Names, handles: &Handles) -> Result<OwnedFd, WatchError> {
    let list = starter::sealed_file(c"watch", &watch::encode(&names.list)).map_err(WatchError::Talk)?;
    let mut sent = vec![handles.mounts.as_fd(), list.as_fd()];
    sent.extend(handles.placeholders.as_ref().map(AsFd::as_fd));
    let mut last = Errno::CONNREFUSED;
    // One that ends in this moment is started again.
    for _ in 0..3 {
        let socket = connect(registry)?;
        match sys::send_with(&socket, &[0], &sent, SendFlags::empty()) {
            Ok(_) => return Ok(socket),
            Err(errno) => last = errno,
        }
    }
    Err(WatchError::Talk(last))
}

fn connect(registry: &Path) -> Result<OwnedFd, WatchError> {
    let dir = registry.join(watch::DIR);
    let address = SocketAddrUnix::new(dir.join(watch::SOCKET)).map_err(WatchError::Talk)?;
    if let Ok(socket) = dial(&address) {
        return Ok(socket);
    }
    own_directory(registry)?;
    own_directory(&dir)?;
    let _lock = lock(&dir.join(watch::LOCK))?;
    match dial(&address) {
        Ok(socket) => return Ok(socket),
        Err(Errno::NOENT | Errno::CONNREFUSED) => {}
        Err(errno) => return Err(WatchError::Talk(errno)),
    }
    start(&dir, &address).map_err(WatchError::Start)?;
    dial(&address).map_err(WatchError::Talk)
}

fn socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn dial(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

/// Held as long as it is open. The watcher removes the file when it ends: then it is made anew.
fn lock(path: &Path) -> Result<OwnedFd, WatchError> {
    let failed = |source| WatchError::Lock { path: path.to_path_buf(), source };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        let locked = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).and_then(|lock| {
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            Ok((rustix::fs::fstat(&lock)?.st_nlink > 0).then_some(lock))
        });
        match locked {
            Ok(Some(lock)) => return Ok(lock),
            Ok(None) => {}
            // Another sandbox starts it.
            Err(Errno::WOULDBLOCK) => sys::pause_for(Duration::from_millis(2)),
            // The directory went with the last watcher.
            Err(Errno::NOENT) => {
                if let Some(dir) = path.parent() {
                    dir.parent().map_or(Ok(()), own_directory)?;
                    own_directory(dir)?;
                }
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::TIMEDOUT))
}

/// Starts a watcher that listens there already, so that nobody waits for it.
fn start(dir: &Path, address: &SocketAddrUnix) -> Result<(), Errno> {
    match rustix::fs::unlink(dir.join(watch::SOCKET)) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let listener = socket()?;
    rustix::net::bind(&listener, address)?;
    rustix::net::listen(&listener, 128)?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Above the numbers that the program begins with.
    let program = rustix::io::fcntl_dupfd_cloexec(crate::guest::open_starter()?, 64)?;
    let path = CString::new(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&program)))
        .map_err(|error: std::ffi::NulError| errno(&error.into()))?;
    let words = [watch::NAME.as_bytes(), dir.as_os_str().as_bytes()].map(CString::new).into_iter();
    let words = words.collect::<Result<Vec<_>, _>>().map_err(|error| errno(&error.into()))?;
    let descriptors = [listener.as_fd(), null.as_fd(), null.as_fd()];
    detach::start(&path, &PointerList::new(words), &PointerList::new(Vec::new()), &descriptors)
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}
