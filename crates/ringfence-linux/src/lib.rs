//! Linux, one safe function per system call. The only crate with `unsafe`; it decides no policy and allocates nothing
//! between a fork and the program that follows.

#[cfg(feature = "box")]
pub mod beside;
#[cfg(feature = "box")]
pub mod builder;
#[cfg(feature = "box")]
#[cfg(any(test, feature = "program"))]
mod copying;
#[cfg(feature = "box")]
pub mod detach;
#[cfg(feature = "box")]
pub mod forked;
#[cfg(feature = "box")]
pub mod landlock;
#[cfg(feature = "box")]
pub mod launch;
#[cfg(feature = "box")]
pub mod limits;
pub mod memory;
#[cfg(feature = "box")]
pub mod mould;
#[cfg(feature = "box")]
pub mod notify;
#[cfg(feature = "box")]
pub mod order;
#[cfg(feature = "box")]
pub mod pages;
#[cfg(feature = "box")]
pub mod scope;
#[cfg(feature = "box")]
pub mod seccomp;
#[cfg(feature = "box")]
pub mod seed;
#[cfg(feature = "box")]
pub mod setup;
#[cfg(feature = "box")]
pub mod starter;
pub mod sys;
#[cfg(feature = "box")]
pub mod userns;
