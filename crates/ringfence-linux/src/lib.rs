//! Linux, one safe function per system call. The only crate with `unsafe`; it decides no policy and allocates nothing
//! between a fork and the program that follows.
//!
//! By level: `sys` (calls), `walls` (the filter, Landlock), `cgroup` (limits of a tree), `launch` (process 1 and what it
//! does). Only `sys` and Landlock are in the guest.

mod allocator;
#[cfg(feature = "box")]
mod cgroup;
#[cfg(feature = "box")]
pub mod launch;
pub mod sys;
mod walls;

#[cfg(feature = "box")]
pub use cgroup::{limits, scope};
#[cfg(feature = "box")]
pub use launch::{beside, builder, detach, pages, reopen, setup, starter, userns};
pub use walls::landlock;
#[cfg(feature = "box")]
pub use walls::{notify, seccomp};

pub use allocator::Allocator;
