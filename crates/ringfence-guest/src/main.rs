//! The guest: process 1 of a live sandbox. Its one socket to the host is descriptor 0.
#![forbid(unsafe_code)]

mod guest;

use std::process::ExitCode;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: ringfence_linux::memory::Allocator = ringfence_linux::memory::Allocator::new();

fn main() -> ExitCode {
    match guest::run() {
        // The host is gone or has had enough.
        Ok(()) => ExitCode::SUCCESS,
        // Nobody would read a message: whoever started this sees the socket close.
        Err(_) => ExitCode::FAILURE,
    }
}
