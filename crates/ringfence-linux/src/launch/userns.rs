//! A user namespace prepared for a box that root starts: made by a short-lived child, kept by its descriptor.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions};

use crate::beside::Beside;
use crate::sys;

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
    let holder = Beside::start_with(libc::CLONE_FILES | libc::CLONE_NEWUSER, || 0)?;
    let made = fill(holder.pid(), uids, gids);
    holder.join()?;
    made
}

fn fill(pid: i32, uids: &[Range], gids: &[Range]) -> Result<OwnedFd, Errno> {
    let open =
        |name: &str, flags| rustix::fs::open(format!("/proc/{pid}/{name}"), flags | OFlags::CLOEXEC, Mode::empty());
    let (uid_map, gid_map) = (open("uid_map", OFlags::WRONLY)?, open("gid_map", OFlags::WRONLY)?);
    let namespace = open("ns/user", OFlags::RDONLY)?;
    // Somebody else may have reaped it, and the number may be another's: it is not written to before that is ruled out.
    let there = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    rustix::process::waitid(WaitId::Pid(rustix::process::Pid::from_raw(pid).ok_or(Errno::SRCH)?), there)?;
    write(&uid_map, uids)?;
    write(&gid_map, gids)?;
    Ok(namespace)
}

fn write(map: &OwnedFd, ranges: &[Range]) -> Result<(), Errno> {
    let text: String = ranges.iter().map(|r| format!("{} {} {}\n", r.inside, r.outside, r.count)).collect();
    rustix::io::write(map, text.as_bytes()).map(drop)
}

/// Whether this process may make a user namespace at all: makes one, in a child that ends at once.
pub fn try_one() -> Result<(), Errno> {
    match sys::fork(libc::CLONE_NEWUSER as u64)? {
        sys::Fork::Child => sys::exit_now(0),
        sys::Fork::Parent(pid) => sys::wait(pid.as_raw_nonzero().get(), sys::Wait::UntilEnd).map(drop),
    }
}
