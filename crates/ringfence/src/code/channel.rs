//! What waits beside the box while code runs: its output, the socket to its runner, and whoever may cancel it.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use super::frames::{Decoder, Received};
use crate::capture::Capture;
use crate::engines::Running;
use crate::supervise::Companion;

pub(super) struct Channel<'a> {
    cancel: Option<BorrowedFd<'a>>,
    cancelled: Option<Instant>,
    streams: [Option<OwnedFd>; 2],
    captures: [Capture; 2],
    socket: Option<OwnedFd>,
    request: Vec<u8>,
    written: usize,
    decoder: Decoder,
    buffer: Vec<u8>,
    asked: RefCell<Vec<Source>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Cancel,
    Stream(usize),
    Socket,
}

/// What is left when the box is gone.
#[derive(Debug)]
pub(super) struct Parts {
    pub stdout: Capture,
    pub stderr: Capture,
    pub received: Received,
}

impl<'a> Channel<'a> {
    /// A channel, and the standard descriptors for the box.
    pub fn open(request: Vec<u8>, limit: u64, cancel: Option<BorrowedFd<'a>>) -> Result<(Self, [OwnedFd; 3]), Errno> {
        let (out, out_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (err, err_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Our ends alone: the runner's must block, as every program expects.
        for end in [&out, &err, &ours] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let channel = Channel {
            cancel,
            cancelled: None,
            streams: [Some(out), Some(err)],
            captures: [Capture::new(limit), Capture::new(limit)],
            socket: Some(ours),
            request,
            written: 0,
            decoder: Decoder::default(),
            buffer: vec![0; 1 << 16],
            asked: RefCell::default(),
        };
        Ok((channel, [theirs, out_end, err_end]))
    }

    pub fn into_parts(self) -> Parts {
        let [stdout, stderr] = self.captures;
        Parts { stdout, stderr, received: self.decoder.into_received() }
    }

    /// Sends what the socket takes of the request; after its end there is none to come.
    fn write(&mut self) -> Result<(), Errno> {
        let Some(socket) = &self.socket else { return Ok(()) };
        match rustix::net::send(socket, &self.request[self.written..], rustix::net::SendFlags::NOSIGNAL) {
            Ok(count) => self.written += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The runner does not want the rest: how it ended says why.
            Err(Errno::PIPE | Errno::CONNRESET) => self.written = self.request.len(),
            Err(error) => return Err(error),
        }
        if self.written == self.request.len() {
            self.request = Vec::new();
            self.written = 0;
            match rustix::net::shutdown(socket, Shutdown::Write) {
                Ok(()) | Err(Errno::NOTCONN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once; whether there may be more.
    fn read(&mut self, source: Source) -> Result<bool, Errno> {
        let place = match source {
            Source::Stream(index) => &mut self.streams[index],
            _ => &mut self.socket,
        };
        let Some(fd) = place else { return Ok(false) };
        match rustix::io::read(&*fd, &mut self.buffer[..]) {
            Ok(0) | Err(Errno::CONNRESET) => *place = None,
            Ok(count) => {
                match source {
                    Source::Stream(index) => self.captures[index].push(&self.buffer[..count]),
                    _ => self.decoder.push(&self.buffer[..count]),
                }
                return Ok(true);
            }
            Err(Errno::INTR) => return Ok(true),
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
        Ok(false)
    }
}

impl Companion for Channel<'_> {
    fn wants(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut wanted = Vec::with_capacity(4);
        let mut asked = self.asked.borrow_mut();
        asked.clear();
        if let (Some(cancel), None) = (self.cancel, self.cancelled) {
            wanted.push((cancel, PollFlags::IN));
            asked.push(Source::Cancel);
        }
        for (index, stream) in self.streams.iter().enumerate() {
            if let Some(stream) = stream {
                wanted.push((stream.as_fd(), PollFlags::IN));
                asked.push(Source::Stream(index));
            }
        }
        if let Some(socket) = &self.socket {
            let more = if self.request.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            wanted.push((socket.as_fd(), PollFlags::IN | more));
            asked.push(Source::Socket);
        }
        wanted
    }

    fn ready(&mut self, index: usize, flags: PollFlags, _: &Running) -> Result<(), Errno> {
        let source = self.asked.borrow()[index];
        match source {
            Source::Cancel => self.cancelled = Some(Instant::now()),
            Source::Socket => {
                if flags.contains(PollFlags::OUT) && !self.request.is_empty() {
                    self.write()?;
                }
                if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    self.read(source)?;
                }
            }
            Source::Stream(_) => {
                self.read(source)?;
            }
        }
        Ok(())
    }

    fn terminal(&mut self, _: OwnedFd) {}

    fn stopped(&mut self, _: i32, _: &Running) -> Result<(), Errno> {
        Ok(())
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.cancelled
    }

    /// Nobody writes any more; what is in the pipes is bounded.
    fn drain(&mut self) -> Result<(), Errno> {
        for source in [Source::Stream(0), Source::Stream(1), Source::Socket] {
            while self.read(source)? {}
        }
        Ok(())
    }
}
