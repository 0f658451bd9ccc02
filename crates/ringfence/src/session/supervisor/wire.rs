//! One socket of the supervisor: frames in, frames out, never waiting.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_guest::frame::{Decoder, FrameError, Kind};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::super::pipes::{self, Outbox};

/// Bytes that are read at once.
const CHUNK: usize = 256 * 1024;
/// Sets of descriptors that may wait for the frame that they belong to: each comes with its first bytes.
const MOST_SETS: usize = 4;

#[derive(Debug)]
pub struct Wire {
    socket: OwnedFd,
    /// Taken out while its frames are handled.
    pub decoder: Decoder,
    out: Outbox,
    /// Descriptors that came, a set for each frame that brings some.
    sets: VecDeque<Vec<OwnedFd>>,
    /// What the poller waits for.
    polled: EventFlags,
}

/// What a read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    Bytes(usize),
    Nothing,
    End,
}

impl Wire {
    pub fn new(socket: OwnedFd, most: usize) -> Result<Wire, Errno> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let (decoder, out) = (Decoder::new(most), Outbox::default());
        Ok(Wire { socket, decoder, out, sets: VecDeque::new(), polled: EventFlags::empty() })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Has the poller wait for these events under this number.
    pub fn register(&mut self, epoll: &OwnedFd, token: u64, reads: EventFlags) -> Result<(), Errno> {
        self.polled = reads;
        epoll::add(epoll, &self.socket, EventData::new_u64(token), reads)
    }

    /// From now on for these, and for room exactly while something waits to be written.
    pub fn wait_for(&mut self, epoll: &OwnedFd, token: u64, reads: EventFlags) {
        let wanted = if self.pending() > 0 { reads | EventFlags::OUT } else { reads };
        if wanted != self.polled {
            self.polled = wanted;
            // It is registered for as long as it is open.
            let _ = epoll::modify(epoll, &self.socket, EventData::new_u64(token), wanted);
        }
    }

    /// Bytes that wait to be written.
    pub fn pending(&self) -> usize {
        self.out.pending()
    }

    /// Reads what is there, once, for the decoder. Descriptors are not taken: the kernel closes what comes.
    pub fn read(&mut self, buffer: &mut Vec<u8>) -> Result<Read, Errno> {
        buffer.resize(CHUNK, 0);
        let read = rustix::io::read(&self.socket, &mut buffer[..]);
        self.took(read, buffer)
    }

    /// The same with the descriptors that come.
    pub fn read_with_descriptors(&mut self, buffer: &mut Vec<u8>) -> Result<Read, Errno> {
        buffer.resize(CHUNK, 0);
        let read = pipes::receive(self.socket.as_fd(), buffer).map(|(n, set)| {
            self.sets.extend(set);
            n
        });
        if self.sets.len() > MOST_SETS {
            return Err(Errno::TOOMANYREFS);
        }
        self.took(read, buffer)
    }

    fn took(&mut self, read: Result<usize, Errno>, buffer: &[u8]) -> Result<Read, Errno> {
        match read {
            Ok(0) => Ok(Read::End),
            Ok(n) => {
                self.decoder.feed(&buffer[..n]);
                Ok(Read::Bytes(n))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Read::Nothing),
            Err(Errno::CONNRESET) => Ok(Read::End),
            Err(errno) => Err(errno),
        }
    }

    /// The pipes that came with a frame, when they are as many as they should be.
    pub fn take_pipes(&mut self, wanted: usize) -> Option<Vec<OwnedFd>> {
        if wanted == 0 {
            return Some(Vec::new());
        }
        self.sets.pop_front().filter(|set| set.len() == wanted && set.iter().all(pipes::is_pipe))
    }

    /// Whether pipes came that no frame has taken.
    pub fn has_pipes(&self) -> bool {
        !self.sets.is_empty()
    }

    pub fn put(&mut self, stream: u32, kind: Kind, payload: &[u8]) {
        self.out.put(stream, kind, payload);
    }

    /// Nothing is sent of a message that is too long.
    pub fn message<T: Serialize>(&mut self, stream: u32, kind: Kind, message: &T) -> Result<(), FrameError> {
        self.message_with(stream, kind, message, Vec::new())
    }

    /// A message, and pipes that go with it.
    pub fn message_with<T: Serialize>(
        &mut self,
        stream: u32,
        kind: Kind,
        message: &T,
        pipes: Vec<OwnedFd>,
    ) -> Result<(), FrameError> {
        self.out.message(stream, kind, message, pipes)
    }

    /// Writes what the socket takes. An error: nobody is there any more.
    pub fn flush(&mut self) -> Result<(), Errno> {
        match self.out.flush(self.socket.as_fd()) {
            Ok(()) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
