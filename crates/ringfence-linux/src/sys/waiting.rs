//! Waiting for a time: for descriptors, for a while, for a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// A duration as system calls take it.
pub const fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos() as i64 }
}

/// Waits until a descriptor is ready, for at most this long; `None`: for as long as it takes. How many are. None is when a
/// signal came first.
pub fn poll_for(descriptors: &mut [PollFd<'_>], at_most: Option<Duration>) -> Result<usize, Errno> {
    match poll(descriptors, at_most.map(timespec).as_ref()) {
        Err(Errno::INTR) => Ok(0),
        result => result,
    }
}

/// The same until a time, whatever signals come.
pub fn poll_until(descriptors: &mut [PollFd<'_>], deadline: Instant) -> Result<usize, Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll_for(descriptors, Some(left)) {
            Ok(0) if !left.is_zero() => {}
            result => return result,
        }
    }
}

/// Sleeps, or is woken early by a signal. Allocates nothing and takes no lock.
pub fn pause_for(duration: Duration) {
    // Whoever is woken early looks again sooner.
    let _ = rustix::thread::nanosleep(&timespec(duration));
}

/// Locks a mutex whose contents are whole whenever nobody holds it: a panic elsewhere does not spoil them.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
