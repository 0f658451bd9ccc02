//! The guest, process 1 of a live sandbox, and the protocol between it and the host; and the protocol of the watcher.
//!
//! The protocol is the only thing that both sides share. It knows no engine, no policy and no async runtime.
#![forbid(unsafe_code)]

pub mod frame;
pub mod message;
pub mod watch;

pub use frame::{Decoder, Frame, FrameError, Kind};
