//! Walls that the kernel holds whatever is mounted: the system-call filter, its listener, and Landlock.

pub mod landlock;
#[cfg(feature = "box")]
pub mod notify;
#[cfg(feature = "box")]
pub mod seccomp;
