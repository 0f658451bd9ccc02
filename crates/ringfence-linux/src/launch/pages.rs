//! Memory of this process that no fork copies: what many janitors beside an owner have must not make the next box slower, nor
//! process 1 of it larger. Taken and given back by system calls alone, so that a janitor may do so too.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Zeroed; pages that were never touched cost nothing.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    length: usize,
}

impl Pages {
    pub fn new(length: usize) -> Result<Pages, Errno> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that is there.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, access, flags) }?;
        let pages = Pages { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, length };
        // SAFETY: the range is the mapping just made; in a child of a fork nothing refers to it.
        unsafe { rustix::mm::madvise(pages.start.as_ptr().cast(), length, Advice::LinuxDontFork) }?;
        Ok(pages)
    }

    /// One past the last byte: where a stack begins.
    pub(crate) fn end(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.length)
    }
}

// SAFETY: it is plain memory that belongs to its owner alone.
unsafe impl Send for Pages {}
// SAFETY: shared, it can only be read.
unsafe impl Sync for Pages {}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped readable and zeroed, for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped writable, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own. That it cannot be undone costs memory, and nothing else.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_does_not_copy_it() {
        let mut pages = Pages::new(1 << 16).unwrap();
        pages[100] = 7;
        assert_eq!((pages[100], pages[101], pages.len()), (7, 0, 1 << 16));
        let (_read, write) = rustix::pipe::pipe().unwrap();
        // The kernel says what is mapped: it does not read from elsewhere.
        let written = || rustix::io::write(&write, &pages[..1]);
        assert_eq!(written(), Ok(1));
        match crate::sys::fork(0).unwrap() {
            crate::sys::Fork::Child => crate::sys::exit_now(i32::from(written() != Err(Errno::FAULT))),
            crate::sys::Fork::Parent(pid) => {
                let waited = crate::sys::wait(pid.as_raw_nonzero().get(), crate::sys::Wait::UntilEnd).unwrap().unwrap();
                assert_eq!(waited.status, 0);
            }
        }
    }
}
