//! Descriptors beside frames: bytes that wait to be written to a local socket, and pipes that travel with them.
//!
//! A request may bring pipes, through which its contents go without passing anybody in between. They arrive as one set, no
//! later than the last byte of the frame that they belong to, and in the order of the frames.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_guest::frame::{self, FrameError, Kind, MOST_PIPES};
use ringfence_linux::sys;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::PipeFlags;
use serde::Serialize;

/// What waits to be written.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// Up to here they were written.
    sent: usize,
    /// Descriptors that go with the byte at a position.
    sets: VecDeque<(usize, Vec<OwnedFd>)>,
}

/// Room that is kept for what is written next.
const KEPT: usize = 256 * 1024;

impl Outbox {
    /// Bytes that wait.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub fn put(&mut self, stream: u32, kind: Kind, payload: &[u8]) {
        frame::put(&mut self.bytes, stream, kind, payload);
    }

    /// A message, and the descriptors that go with it, if any.
    pub fn message<T: Serialize>(
        &mut self,
        stream: u32,
        kind: Kind,
        message: &T,
        fds: Vec<OwnedFd>,
    ) -> Result<(), FrameError> {
        let at = self.bytes.len();
        frame::put_message(&mut self.bytes, stream, kind, message)?;
        if !fds.is_empty() {
            self.sets.push_back((at, fds));
        }
        Ok(())
    }

    /// Writes what the socket takes without waiting. `AGAIN`: something is left.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while self.sent < self.bytes.len() {
            // Descriptors go with the first byte of what is written at once.
            let due = self.sets.front().is_some_and(|(at, _)| *at == self.sent);
            let end = self.sets.get(usize::from(due)).map_or(self.bytes.len(), |(at, _)| *at);
            let part = &self.bytes[self.sent..end];
            let written = match self.sets.front().filter(|_| due) {
                None => rustix::net::send(socket, part, flags),
                Some((_, fds)) => {
                    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                    sys::send_with(socket, part, &fds, flags)
                }
            };
            match written {
                Ok(n) => {
                    self.sent += n;
                    if due {
                        self.sets.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.forget(4 * KEPT);
                    return Err(errno);
                }
            }
        }
        self.forget(0);
        self.bytes.shrink_to(KEPT);
        Ok(())
    }

    /// Drops what was written, when it is more than this.
    fn forget(&mut self, most: usize) {
        if self.sent > most {
            self.bytes.drain(..self.sent);
            for (at, _) in &mut self.sets {
                *at -= self.sent;
            }
            self.sent = 0;
        }
    }

    /// Nobody is there to write to.
    pub fn clear(&mut self) {
        *self = Outbox::default();
    }
}

/// Reads what is there, and the descriptors that came with it: `None` where there were none.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(usize, Option<Vec<OwnedFd>>), Errno> {
    let mut fds = Vec::new();
    let received = sys::receive_with(socket, buffer, MOST_PIPES, RecvFlags::DONTWAIT, |fd| fds.push(fd))?;
    // There were more than there was room for: a set that its request will not find complete.
    let set = if received.cut { Some(Vec::new()) } else { Some(fds).filter(|fds| !fds.is_empty()) };
    Ok((received.bytes, set))
}

/// Whether this is a pipe, open for reading or writing. A handle (`O_PATH`) only names one of the host's.
pub fn is_pipe(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|data| FileType::from_raw_mode(data.st_mode) == FileType::Fifo)
        && rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| !flags.contains(OFlags::PATH))
}

/// A pipe for somebody in a box to write to, or to read from: our end does not wait, theirs does. Whoever has it may open
/// it again by its name in `/proc`, as `echo > /dev/stderr` does, also under another id.
pub fn pipe(ours_reads: bool) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fchmod(&read, Mode::from_raw_mode(0o666))?;
    let (ours, theirs) = if ours_reads { (read, write) } else { (write, read) };
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}
