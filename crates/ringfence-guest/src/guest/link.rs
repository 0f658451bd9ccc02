//! What goes to the host: frames, collected and written together. It never waits for the host.

use std::os::fd::{AsFd, OwnedFd};

use ringfence_guest::frame::{self, Channel, HEADER, Kind, MAX_DATA};
use ringfence_guest::message::{Reply, Step};
use rustix::io::Errno;
use serde::Serialize;

/// Nothing more is read from commands and files while so much waits for the host to take it.
const HIGH: usize = 256 * 1024;

/// The socket, and what was not written to it yet.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    out: Vec<u8>,
    /// Up to here it was written.
    sent: usize,
}

/// What was read from a source of data.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    Bytes(usize),
    Nothing,
    End,
}

impl Link {
    pub fn new(socket: OwnedFd) -> Link {
        Link { socket, out: Vec::new(), sent: 0 }
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether the host has yet to take much of what it was sent.
    pub fn is_full(&self) -> bool {
        self.out.len() - self.sent >= HIGH
    }

    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    pub fn frame(&mut self, stream: u32, kind: Kind, payload: &[u8]) {
        frame::put(&mut self.out, stream, kind, payload);
    }

    pub fn message<T: Serialize>(&mut self, stream: u32, message: &T) {
        // Nothing that a guest says is too long or cannot be written down; without it the host would wait, and then end it.
        let _ = frame::put_message(&mut self.out, stream, Kind::Reply, message);
    }

    pub fn failed(&mut self, stream: u32, step: Step, errno: Errno) {
        self.message(stream, &Reply::Failed { step, errno: errno.raw_os_error() });
    }

    /// Moves up to `most` bytes from a descriptor into a data frame.
    pub fn data(&mut self, stream: u32, channel: Channel, from: impl AsFd, most: usize) -> Result<Taken, Errno> {
        let read = |room: &mut [u8]| rustix::io::read(from, room);
        self.data_by(stream, channel, most, read)
    }

    /// Moves up to `most` bytes into a data frame, by whatever reads them.
    pub fn data_by(
        &mut self,
        stream: u32,
        channel: Channel,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<Taken, Errno> {
        let start = frame::begin(&mut self.out, stream, Kind::Data(channel));
        let body = start + HEADER;
        self.out.resize(body + most.min(MAX_DATA), 0);
        let result = read(&mut self.out[body..]);
        self.out.truncate(body + *result.as_ref().unwrap_or(&0));
        frame::finish(&mut self.out, start);
        match result {
            Ok(0) => Ok(Taken::End),
            Ok(n) => Ok(Taken::Bytes(n)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Taken::Nothing),
            Err(e) => Err(e),
        }
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) -> Result<(), Errno> {
        while self.sent < self.out.len() {
            match rustix::io::write(&self.socket, &self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => return Err(e),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent > HIGH {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}
