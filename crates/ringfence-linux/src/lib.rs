//! Linux, one safe function per system call. The only crate with `unsafe`; it decides no policy and allocates nothing
//! between a fork and the program that follows.

pub mod builder;
pub mod detach;
pub mod landlock;
pub mod launch;
pub mod limits;
pub mod memory;
pub mod notify;
pub mod seccomp;
pub mod setup;
pub mod starter;
pub mod sys;
pub mod userns;
