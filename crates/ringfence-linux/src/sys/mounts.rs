//! Entering the mounts of another process, for a process that belongs to this user.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::thread::LinkNameSpaceType;

use super::{check, set_namespace};

/// `NS_GET_USERNS`
const OWNER: libc::c_ulong = 0xb701;

/// Enters a mount namespace, with the rights that the owner of its user namespace has there. This process must have one thread.
pub fn enter_mounts(mounts: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: this ioctl takes no argument, and the descriptor is open.
    let owner = check(unsafe { libc::ioctl(mounts.as_raw_fd(), OWNER as _) }.into())?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    let owner = unsafe { OwnedFd::from_raw_fd(owner as i32) };
    match set_namespace(std::os::fd::AsFd::as_fd(&owner), LinkNameSpaceType::User) {
        // It is the one that this process is in.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno),
    }
    set_namespace(mounts, LinkNameSpaceType::Mount)
}

/// Whose the files are that this thread makes. An id that its user namespace does not have changes nothing.
pub fn set_file_ids(uid: u32, gid: u32) {
    // SAFETY: these calls take two numbers, and touch no memory.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
}
