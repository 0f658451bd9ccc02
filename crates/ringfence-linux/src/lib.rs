//! Linux, one safe function per system call. The only crate with `unsafe`; it decides no policy and allocates nothing
//! between a fork and the program that follows.
//!
//! By level: `sys` (calls), `walls` (the filter, Landlock), `cgroup` (limits of a tree), `launch` (process 1 and what it
//! does). Only `sys` is in the guest.

#[cfg(feature = "box")]
mod cgroup;
#[cfg(feature = "box")]
pub mod launch;
pub mod sys;
#[cfg(feature = "box")]
mod walls;

#[cfg(feature = "box")]
pub use cgroup::{limits, scope};
#[cfg(feature = "box")]
pub use launch::{beside, builder, detach, pages, setup, starter, userns};
#[cfg(feature = "box")]
pub use walls::{landlock, notify, seccomp};

/// The allocator of programs that are linked with musl, whose own takes several times as long: a run asks for memory some
/// thousand times.
pub use dlmalloc::GlobalDlmalloc as Allocator;
