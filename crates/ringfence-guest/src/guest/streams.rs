//! The two ends of a channel: bytes from a descriptor as far as the host has granted credit, and bytes to a descriptor as
//! fast as it takes them. A full one is left alone until there is room, and stops nobody else.

use std::os::fd::{AsFd, OwnedFd};

use ringfence_guest::frame::{Channel, Kind, MAX_DATA, WINDOW};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::link::{Link, Taken};
use super::{Context, Fault, Part, token};

/// A grant of so much is worth a frame.
pub const GRANT: u32 = WINDOW / 4;

/// Bytes from a descriptor to the host.
#[derive(Debug)]
pub struct Source {
    fd: OwnedFd,
    stream: u32,
    channel: Channel,
    credit: u32,
    armed: bool,
}

impl Source {
    pub fn new(fd: OwnedFd, stream: u32, channel: Channel) -> Source {
        Source { fd, stream, channel, credit: WINDOW, armed: false }
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub fn grant(&mut self, bytes: u32) -> Result<(), Fault> {
        self.credit = self.credit.checked_add(bytes).ok_or(Fault::Credit)?;
        Ok(())
    }

    pub fn can_send(&self) -> bool {
        self.credit > 0
    }

    /// Moves what is there, `most` bytes of it and no more than one frame.
    pub fn pump(&mut self, link: &mut Link, most: usize) -> Result<Taken, Errno> {
        let most = most.min(self.credit as usize).min(MAX_DATA);
        if most == 0 {
            return Ok(Taken::Nothing);
        }
        let taken = link.data(self.stream, self.channel, &self.fd, most)?;
        if let Taken::Bytes(n) = taken {
            self.credit -= n as u32;
        }
        Ok(taken)
    }

    /// Waits for more, when more may be sent. A descriptor that hung up is always ready: without credit it is not waited
    /// for at all.
    pub fn arm(&mut self, key: u64, part: Part, epoll: &OwnedFd) -> Result<(), Errno> {
        let wanted = self.can_send();
        if wanted && !self.armed {
            epoll::add(epoll, &self.fd, EventData::new_u64(token(key, part)), EventFlags::IN)?;
        } else if !wanted && self.armed {
            epoll::delete(epoll, &self.fd)?;
        }
        self.armed = wanted;
        Ok(())
    }

    pub fn disarm(&mut self, epoll: &OwnedFd) {
        if self.armed {
            // Closing it would do the same, unless somebody else has it open.
            let _ = epoll::delete(epoll, &self.fd);
            self.armed = false;
        }
    }
}

/// What tells the reader of a sink that nothing follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Close,
    /// Of a connection, whose other direction goes on.
    Shutdown,
    /// Of a terminal: what somebody would type.
    EndOfFile,
}

/// Ctrl-D.
const END_OF_FILE: u8 = 4;

/// Bytes from the host to a descriptor.
#[derive(Debug)]
pub struct Sink {
    /// None when whoever read from it is gone: then bytes are taken and thrown away.
    fd: Option<OwnedFd>,
    stream: u32,
    queue: Vec<u8>,
    written: usize,
    /// What the host may still send.
    credit: u32,
    /// What it may be granted again.
    owed: u32,
    how: Ending,
    ending: bool,
    armed: bool,
}

impl Sink {
    pub fn new(fd: OwnedFd, stream: u32, how: Ending) -> Sink {
        let fd = Some(fd);
        Sink { fd, stream, queue: Vec::new(), written: 0, credit: WINDOW, owed: 0, how, ending: false, armed: false }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.credit = self.credit.checked_sub(bytes.len() as u32).ok_or(Fault::Credit)?;
        if self.ending {
            return Err(Fault::AfterEnd);
        }
        if self.written > 0 {
            self.queue.drain(..self.written);
            self.written = 0;
        }
        self.queue.extend_from_slice(bytes);
        Ok(())
    }

    /// Nothing follows what was pushed.
    pub fn end(&mut self) {
        if self.how == Ending::EndOfFile && !self.ending {
            self.queue.push(END_OF_FILE);
        }
        self.ending = true;
    }

    /// Whether everything was written, and nothing follows.
    pub fn is_done(&self) -> bool {
        self.fd.is_none() || self.ending && self.queue.is_empty()
    }

    /// Writes what the descriptor takes, and grants the host as much again. The descriptor is closed after the last byte.
    pub fn flush(&mut self, key: u64, cx: &mut Context) -> Result<(), Errno> {
        let mut stuck = false;
        while let Some(fd) = &self.fd
            && self.written < self.queue.len()
        {
            match rustix::io::write(fd, &self.queue[self.written..]) {
                Ok(n) => {
                    self.written += n;
                    self.owed += n as u32;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    stuck = true;
                    break;
                }
                // Nobody reads it any more.
                Err(_) => self.close(&cx.epoll),
            }
        }
        if self.fd.is_none() {
            self.owed += (self.queue.len() - self.written) as u32;
            self.written = self.queue.len();
        }
        if self.written == self.queue.len() {
            self.queue.clear();
            self.written = 0;
            if self.ending {
                self.close(&cx.epoll);
            }
        }
        if !self.ending && (self.owed >= GRANT || self.owed > 0 && self.queue.is_empty() && self.credit < GRANT) {
            cx.link.frame(self.stream, Kind::Credit(Channel::In), &self.owed.to_le_bytes());
            self.credit += self.owed;
            self.owed = 0;
        }
        self.arm(stuck, key, &cx.epoll)
    }

    fn arm(&mut self, wanted: bool, key: u64, epoll: &OwnedFd) -> Result<(), Errno> {
        if let Some(fd) = &self.fd {
            if wanted && !self.armed {
                epoll::add(epoll, fd, EventData::new_u64(token(key, Part::In)), EventFlags::OUT)?;
            } else if !wanted && self.armed {
                epoll::delete(epoll, fd)?;
            }
            self.armed = wanted;
        }
        Ok(())
    }

    pub fn close(&mut self, epoll: &OwnedFd) {
        if let (Some(fd), true) = (&self.fd, self.armed) {
            let _ = epoll::delete(epoll, fd);
        }
        if let (Some(fd), Ending::Shutdown) = (&self.fd, self.how) {
            // It fails when the other side is gone, and then there is nothing to tell.
            let _ = rustix::net::shutdown(fd.as_fd(), rustix::net::Shutdown::Write);
        }
        self.armed = false;
        self.fd = None;
    }
}
