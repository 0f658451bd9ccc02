//! Terminals of a sandbox's own.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// A terminal from this `ptmx`: its master and its slave.
pub fn open_terminal(ptmx: &CStr, rows: u16, columns: u16) -> Result<(OwnedFd, OwnedFd), Errno> {
    let master = rustix::fs::open(ptmx, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    resize_terminal(&slave, rows, columns)?;
    Ok((master, slave))
}

/// Either side will do.
pub fn resize_terminal(terminal: impl AsFd, rows: u16, columns: u16) -> Result<(), Errno> {
    rustix::termios::tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
}
