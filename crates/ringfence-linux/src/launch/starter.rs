//! What the [starter](crate::sys::starter) gets, and other files in memory that are handed over.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

pub use crate::sys::starter::{COMMAND, DEVIATION, GUEST, LAST, PATH};
use crate::sys::view::Place;

/// Limits as the starter reads them (`RLIMIT_*`, value).
pub(crate) fn limits(limits: &[(u32, u64)]) -> Result<OwnedFd, Errno> {
    sealed_file(c"limits", &crate::sys::starter::written(limits))
}

/// What the starter must see.
pub(crate) fn view(places: &[Place]) -> Result<OwnedFd, Errno> {
    sealed_file(c"view", &crate::sys::view::written(places))
}

/// A file in memory that nobody can change any more.
pub fn sealed_file(name: &std::ffi::CStr, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    sealed(name, bytes, MemfdFlags::NOEXEC_SEAL)
}

/// A program in memory that nobody can change any more.
pub fn sealed_program(name: &std::ffi::CStr, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    sealed(name, bytes, MemfdFlags::EXEC)
}

fn sealed(name: &std::ffi::CStr, bytes: &[u8], exec: MemfdFlags) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match rustix::fs::memfd_create(name, flags | exec) {
        // Before Linux 6.3 there was nothing to choose.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}
