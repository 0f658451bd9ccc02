//! The guest: process 1 of a live sandbox. Its one socket to the host is descriptor 0; where nobody could hand it one, the
//! socket whose path is its only argument, to which it connects before anything else is there. Under the name that a builder
//! executes, it is the starter instead; under another it is the watcher.
#![forbid(unsafe_code)]

mod guest;
mod watcher;

use std::process::ExitCode;

use ringfence_linux::sys::starter;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: ringfence_linux::Allocator = ringfence_linux::Allocator;

fn main() -> ExitCode {
    if std::env::args_os().next().is_some_and(|name| name == starter::PATH) {
        return starter::run().into();
    }
    if std::env::args_os().next().is_some_and(|name| name == ringfence_guest::watch::NAME) {
        return watcher::run();
    }
    let connected = std::env::args_os().nth(1).map_or(Ok(()), |path| guest::connect(&path));
    match connected.and_then(|()| guest::run()) {
        // The host is gone or has had enough.
        Ok(()) => ExitCode::SUCCESS,
        // Nobody would read a message: whoever started this sees the socket close.
        Err(_) => ExitCode::FAILURE,
    }
}
