//! The guest's program, which the library carries.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// The program, static: it needs nothing of the root file system that it runs in.
pub static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ringfence-guest"));

/// The program as an open file that nobody can change, to be executed from.
pub fn open() -> Result<OwnedFd, Errno> {
    ringfence_linux::starter::sealed_program(c"guest", PROGRAM)
}
