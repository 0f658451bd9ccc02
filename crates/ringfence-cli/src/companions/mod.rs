//! What waits beside a box: signals, a terminal, a tee, which also captures.

pub mod signals;
pub mod tee;
pub mod terminal;
pub mod through;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A standard descriptor for the box. A terminal is opened anew for one direction: what can be typed must not be readable
/// through what the command writes to.
pub fn hand_over(fd: BorrowedFd<'_>, write: bool) -> Result<OwnedFd, Errno> {
    if rustix::termios::isatty(fd)
        && let Ok(own) = reopen(fd, write, OFlags::empty())
    {
        return Ok(own);
    }
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

/// The file behind a descriptor once more, with an open file of its own.
fn reopen(fd: BorrowedFd<'_>, write: bool, extra: OFlags) -> Result<OwnedFd, Errno> {
    let direction = if write { OFlags::WRONLY } else { OFlags::RDONLY };
    let flags = direction | OFlags::NOCTTY | OFlags::CLOEXEC | extra;
    rustix::fs::open(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), flags, Mode::empty())
}

/// Lets go of our own stdin, and of stdout where nothing more is written to it: a pipe ends when the command closes it.
pub fn let_go(stdout_too: bool) {
    // It stays open then: the pipe ends with us.
    let Ok(null) = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    let _ = rustix::stdio::dup2_stdin(&null);
    if stdout_too {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}
