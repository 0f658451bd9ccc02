//! What waits beside the box while code runs: its output, the socket to its runner, and whoever may cancel it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use super::frames::{Decoder, Received};
use super::result::result;
use super::{Code, CodeError, Ran};
use crate::capture::Capture;
use crate::engines::{EngineRef, Running};
use crate::supervise::{Companion, Ended, Outcome, Wanted};

/// As large as the kernel lets anybody make a pipe.
const MAX_PIPE: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Channel {
    cancel: Option<OwnedFd>,
    cancelled: Option<Instant>,
    streams: [Option<OwnedFd>; 2],
    captures: [Capture; 2],
    socket: Option<OwnedFd>,
    request: Vec<u8>,
    written: usize,
    /// Whether there is no request after this one.
    last: bool,
    hurry: Option<Hurry>,
    told: bool,
    decoder: Decoder,
    buffer: Vec<u8>,
}

/// Keys of descriptors; those of the streams are their places.
const SOCKET: usize = 2;
const CANCEL: usize = 3;

/// Somebody who waits for the result, and not for the end of the box.
#[derive(Debug)]
pub(crate) struct Hurry {
    pub code: Code,
    pub engine: EngineRef,
    pub started: Instant,
    pub tell: SyncSender<Answer>,
}

/// What became of code; `None`: it has not begun.
pub(crate) type Answer = Option<Result<Ran, CodeError>>;

/// What is left when the box is gone.
#[derive(Debug)]
pub(crate) struct Parts {
    pub stdout: Capture,
    pub stderr: Capture,
    pub received: Received,
}

impl Channel {
    /// A channel, and the standard descriptors for the box.
    pub fn open(request: Vec<u8>, limit: u64, cancel: Option<BorrowedFd<'_>>) -> Result<(Self, [OwnedFd; 3]), Errno> {
        let cancel = cancel.map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 3)).transpose()?;
        let (out, out_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (err, err_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // A name of the kernel's choice: code could give it another one, which others of the host's network may need.
        rustix::net::bind(&theirs, &SocketAddrUnix::new_unnamed())?;
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
            last: true,
            hurry: None,
            told: false,
            decoder: Decoder::default(),
            buffer: vec![0; 1 << 14],
        };
        Ok((channel, [theirs, out_end, err_end]))
    }

    pub fn into_parts(self) -> Parts {
        let [stdout, stderr] = self.captures;
        Parts { stdout, stderr, received: self.decoder.into_received() }
    }

    /// More requests come after the first.
    pub fn keep_open(&mut self) {
        self.last = false;
    }

    /// The last request, for an interpreter that waits for it.
    pub fn begin(&mut self, request: Vec<u8>, cancel: Option<OwnedFd>, hurry: Option<Hurry>) {
        (self.request, self.written, self.last) = (request, 0, true);
        (self.cancel, self.hurry) = (cancel, hurry);
    }

    pub fn is_warm(&self) -> bool {
        self.decoder.received().warm
    }

    pub fn has_started(&self) -> bool {
        self.decoder.received().started
    }

    pub fn has_told(&self) -> bool {
        self.told
    }

    /// Whether the runner has closed its end.
    pub fn is_closed(&self) -> bool {
        self.socket.is_none()
    }

    /// Ends the box, whatever it does.
    pub fn give_up(&mut self) {
        self.cancelled.get_or_insert_with(Instant::now);
    }

    /// Tells whoever is in a hurry as soon as the result is there. What was written before it is in the pipes by then.
    fn tell(&mut self, running: &Running) -> Result<(), Errno> {
        if !self.decoder.has_result() || self.cancelled.is_some() {
            return Ok(());
        }
        let Some(hurry) = self.hurry.take() else { return Ok(()) };
        // No more than a pipe holds: code may go on writing faster than it is read.
        for stream in 0..2 {
            let mut reads = MAX_PIPE.div_ceil(self.buffer.len());
            while reads > 0 && self.read(stream)? {
                reads -= 1;
            }
        }
        let usage = running.usage();
        let outcome = Outcome {
            ended: Ended::Exited(0),
            reason: None,
            duration: hurry.started.elapsed(),
            cpu: usage.cpu.unwrap_or_default(),
            peak_memory: usage.peak_memory.unwrap_or_default(),
            denied: Vec::new(),
        };
        let [stdout, stderr] = self.captures.clone();
        let captures = [stdout.clone(), stderr.clone()];
        let received = std::mem::take(&mut self.decoder).into_received();
        let made = result(&hurry.code, hurry.engine, &outcome, Parts { stdout, stderr, received });
        // Whoever asked may be gone.
        let _ = hurry.tell.send(Some(made.map(|result| Ran { result, outcome, captures })));
        self.told = true;
        self.give_up();
        Ok(())
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
            if !self.last {
                return Ok(());
            }
            match rustix::net::shutdown(socket, Shutdown::Write) {
                Ok(()) | Err(Errno::NOTCONN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once; whether there may be more.
    fn read(&mut self, key: usize) -> Result<bool, Errno> {
        let place = self.streams.get_mut(key).unwrap_or(&mut self.socket);
        let Some(fd) = place else { return Ok(false) };
        match rustix::io::read(&*fd, &mut self.buffer[..]) {
            Ok(0) | Err(Errno::CONNRESET) => *place = None,
            Ok(count) => {
                match self.captures.get_mut(key) {
                    Some(capture) => capture.push(&self.buffer[..count]),
                    None => self.decoder.push(&self.buffer[..count]),
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

impl Companion for Channel {
    fn wants(&self) -> Vec<Wanted<'_>> {
        let streams = self.streams.iter().enumerate();
        let mut wanted: Vec<Wanted<'_>> =
            streams.filter_map(|(key, stream)| Some((key, stream.as_ref()?.as_fd(), PollFlags::IN))).collect();
        if let (Some(cancel), None) = (&self.cancel, self.cancelled) {
            wanted.push((CANCEL, cancel.as_fd(), PollFlags::IN));
        }
        if let Some(socket) = &self.socket {
            let more = if self.request.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            wanted.push((SOCKET, socket.as_fd(), PollFlags::IN | more));
        }
        wanted
    }

    fn ready(&mut self, key: usize, flags: PollFlags, running: &Running) -> Result<(), Errno> {
        match key {
            CANCEL => self.cancelled = Some(Instant::now()),
            SOCKET => {
                if flags.contains(PollFlags::OUT) && !self.request.is_empty() {
                    self.write()?;
                }
                if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    self.read(key)?;
                    self.tell(running)?;
                }
            }
            stream => {
                self.read(stream)?;
            }
        }
        Ok(())
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.cancelled
    }

    /// Nobody writes any more; what is in the pipes is bounded.
    fn drain(&mut self) -> Result<(), Errno> {
        for key in [0, 1, SOCKET] {
            while self.read(key)? {}
        }
        Ok(())
    }
}
