//! Walls that the kernel holds whatever is mounted: the system-call filter, its listener, and Landlock.

pub mod landlock;
pub mod notify;
pub mod seccomp;
