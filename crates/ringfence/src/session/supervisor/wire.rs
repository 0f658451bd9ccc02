//! One socket of the supervisor: frames in, frames out, never waiting.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_guest::frame::{self, Decoder, FrameError, Kind};
use rustix::io::Errno;
use serde::Serialize;

/// Bytes that are read at once.
const CHUNK: usize = 256 * 1024;

#[derive(Debug)]
pub struct Wire {
    socket: OwnedFd,
    /// Taken out while its frames are handled.
    pub decoder: Decoder,
    out: Vec<u8>,
    /// Up to here `out` was written.
    sent: usize,
    /// Whether the poller waits for room.
    pub waits_for_room: bool,
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
        Ok(Wire { socket, decoder: Decoder::new(most), out: Vec::new(), sent: 0, waits_for_room: false })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Bytes that wait to be written.
    pub fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Reads what is there, once, for the decoder.
    pub fn read(&mut self, buffer: &mut Vec<u8>) -> Result<Read, Errno> {
        buffer.resize(CHUNK, 0);
        match rustix::io::read(&self.socket, &mut buffer[..]) {
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

    pub fn put(&mut self, stream: u32, kind: Kind, payload: &[u8]) {
        frame::put(&mut self.out, stream, kind, payload);
    }

    /// Nothing is sent of a message that is too long.
    pub fn message<T: Serialize>(&mut self, stream: u32, kind: Kind, message: &T) -> Result<(), FrameError> {
        frame::put_message(&mut self.out, stream, kind, message)
    }

    /// Writes what the socket takes. An error: nobody is there any more.
    pub fn flush(&mut self) -> Result<(), Errno> {
        while self.sent < self.out.len() {
            match rustix::net::send(&self.socket, &self.out[self.sent..], rustix::net::SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.out.shrink_to(CHUNK);
            self.sent = 0;
        } else if self.sent > 4 * CHUNK {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}
