//! Threads beside the loop, for what may take long: a disk, a daemon, the kernel. Each does one thing after the other, and
//! wakes the loop when it has done one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use rustix::event::EventfdFlags;
use rustix::io::Errno;

/// Wakes the loop: all threads beside it share one.
#[derive(Debug, Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    pub fn new() -> Result<Bell, Errno> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new).map(Bell)
    }

    /// Readable when something was done.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// What was done until now is taken after this.
    pub fn silence(&self) {
        // It is only looked at whether it is readable.
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

/// A thread that takes jobs `J` and returns what came of them.
#[derive(Debug)]
pub struct Beside<J, D> {
    jobs: Sender<J>,
    done: Receiver<D>,
    waiting: usize,
}

impl<J: Send + 'static, D: Send + 'static> Beside<J, D> {
    /// The thread stays until this is dropped.
    pub fn start(name: &str, bell: &Bell, mut work: impl FnMut(J) -> D + Send + 'static) -> io::Result<Beside<J, D>> {
        let (jobs, asked) = channel();
        let (answer, done) = channel();
        let bell = bell.clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            for job in asked {
                // Where the loop has ended, no answer is needed.
                let _ = answer.send(work(job));
                let _ = rustix::io::write(&*bell.0, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Beside { jobs, done, waiting: 0 })
    }

    /// How many jobs are not done yet.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn give(&mut self, job: J) {
        // The thread goes on as long as this can be sent to.
        let _ = self.jobs.send(job);
        self.waiting += 1;
    }

    /// What was done since.
    pub fn take(&mut self) -> Vec<D> {
        let done: Vec<D> = self.done.try_iter().collect();
        self.waiting -= done.len();
        done
    }

    /// Waits until everything was done, but no longer than until then.
    pub fn drain(&mut self, until: Instant) {
        while self.waiting > 0 {
            match self.done.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(_) => self.waiting -= 1,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
