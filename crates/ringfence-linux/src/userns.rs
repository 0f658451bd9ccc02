//! A user namespace prepared for a box that root starts: made by a short-lived child, kept by its descriptor.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys::{self, Beside};

/// One range of ids: `inside outside count`, as in `/proc/PID/uid_map`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// A user namespace with these mappings. Needs CAP_SETUID and CAP_SETGID in the current one.
pub fn create(uids: &[Range], gids: &[Range]) -> Result<OwnedFd, Errno> {
    // It need not live: a process that has ended has its user namespace until it is reaped.
    let holder = Beside::start_forking(libc::CLONE_FILES | libc::CLONE_NEWUSER, || 0)?;
    let made = fill(holder.pid(), uids, gids);
    holder.join()?;
    made
}

fn fill(pid: i32, uids: &[Range], gids: &[Range]) -> Result<OwnedFd, Errno> {
    write(&format!("/proc/{pid}/uid_map"), uids)?;
    write(&format!("/proc/{pid}/gid_map"), gids)?;
    rustix::fs::open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn write(path: &str, ranges: &[Range]) -> Result<(), Errno> {
    let text: String = ranges.iter().map(|r| format!("{} {} {}\n", r.inside, r.outside, r.count)).collect();
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes()).map(drop)
}

/// Whether this process may make a user namespace at all: makes one, in a child that ends at once.
pub fn try_one() -> Result<(), Errno> {
    match sys::fork(libc::CLONE_NEWUSER as u64)? {
        sys::Fork::Child => sys::exit_now(0),
        sys::Fork::Parent(pid) => sys::wait(pid.as_raw_nonzero().get(), true, false).map(drop),
    }
}
