//! Signals that Ringfence receives on behalf of the command.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence::Running;
use ringfence_linux::sys;
use rustix::io::Errno;

/// After the first INT or TERM, before the box is ended by force.
const PATIENCE: Duration = Duration::from_secs(10);

/// Signals that go to the command.
const FORWARDED: [i32; 6] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Blocked from its making on, so that none is lost while the box starts.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    give_up_at: Option<Instant>,
    /// When the time of the command is up.
    deadline: Option<Instant>,
    /// This process is to stop, as the command has.
    pauses: bool,
}

impl Signals {
    /// Takes the signals over; `timeout` is the command's.
    pub fn take(timeout: Option<Duration>) -> Result<Signals, Errno> {
        // What is ignored from the start (nohup, a background job of a script) stays ignored.
        let mut wanted: Vec<i32> = FORWARDED.into_iter().filter(|signal| !sys::is_ignored(*signal)).collect();
        wanted.extend([libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH, libc::SIGTTOU]);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Ok(Signals { fd: sys::signal_fd(&wanted)?, give_up_at: None, deadline, pauses: false })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn next(&self) -> Option<i32> {
        sys::read_signal(self.fd())
    }

    pub fn give_up_at(&self) -> Option<Instant> {
        self.give_up_at
    }

    /// Ends the box by force as soon as possible.
    pub fn give_up(&mut self) {
        self.give_up_at = Some(Instant::now());
    }

    /// Ends the box by force unless it ends soon.
    pub fn lose_patience(&mut self) {
        self.give_up_at.get_or_insert(Instant::now() + PATIENCE);
    }

    /// Hands a signal to the command. The second request to end, or patience running out, ends it by force.
    pub fn forward(&mut self, signal: i32, running: &Running) {
        if matches!(signal, libc::SIGINT | libc::SIGTERM) {
            let patience = if self.give_up_at.is_some() { Duration::ZERO } else { PATIENCE };
            self.give_up_at = Some(Instant::now() + patience);
        }
        // The command may have ended this moment.
        let _ = running.signal(signal);
    }

    /// Stops this process when whoever waits for the command is ready for it.
    pub fn pause_soon(&mut self) {
        self.pauses = true;
    }

    pub fn is_to_pause(&self) -> bool {
        self.pauses
    }

    /// Stops this process until somebody continues it; the command's time goes on, and so must we when it is up.
    pub fn pause(&mut self) -> Result<(), Errno> {
        self.pauses = false;
        sys::pause(self.deadline.map(|at| at.saturating_duration_since(Instant::now())))
    }
}
