//! Output that is captured: two pipes, each with a bounded head and tail.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use ringfence::{Capture, Companion, Running};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::signals::Signals;
use super::through;

/// Reads what the box writes.
#[derive(Debug)]
pub struct Captured {
    signals: Signals,
    streams: [Stream; 2],
    /// Which stream each wanted descriptor belongs to, the first being the signals'.
    asked: RefCell<Vec<usize>>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Stream {
    pipe: Option<OwnedFd>,
    capture: Capture,
}

impl Captured {
    /// The reader, and the ends of its pipes for the box: stdout and stderr.
    pub fn new(signals: Signals, limit: u64) -> Result<(Captured, [OwnedFd; 2]), Errno> {
        let pipe = || {
            let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            // Our end alone: the command's must block, as every program expects.
            rustix::io::ioctl_fionbio(&read, true)?;
            Ok::<_, Errno>((Stream { pipe: Some(read), capture: Capture::new(limit) }, write))
        };
        let ((out, out_end), (err, err_end)) = (pipe()?, pipe()?);
        let captured = Captured { signals, streams: [out, err], asked: RefCell::default(), buffer: vec![0; 1 << 16] };
        Ok((captured, [out_end, err_end]))
    }

    /// What came: stdout and stderr.
    pub fn captures(&self) -> [&Capture; 2] {
        self.streams.each_ref().map(|stream| &stream.capture)
    }

    /// The same, when no more comes.
    pub fn into_captures(self) -> [Capture; 2] {
        self.streams.map(|stream| stream.capture)
    }
}

impl Stream {
    /// Reads what is there; whether there may be more at once.
    fn read(&mut self, buffer: &mut [u8]) -> Result<bool, Errno> {
        let Some(pipe) = &self.pipe else { return Ok(false) };
        match rustix::io::read(pipe, &mut *buffer) {
            Ok(0) => self.pipe = None,
            Ok(n) => {
                self.capture.push(&buffer[..n]);
                return Ok(true);
            }
            Err(Errno::INTR) => return Ok(true),
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
        Ok(false)
    }
}

impl Companion for Captured {
    fn wants(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut wanted = vec![(self.signals.fd(), PollFlags::IN)];
        let mut asked = self.asked.borrow_mut();
        asked.clear();
        for (index, stream) in self.streams.iter().enumerate() {
            if let Some(pipe) = &stream.pipe {
                wanted.push((pipe.as_fd(), PollFlags::IN));
                asked.push(index);
            }
        }
        wanted
    }

    fn ready(&mut self, index: usize, _: PollFlags, running: &Running) -> Result<(), Errno> {
        let Some(stream) = index.checked_sub(1) else { return through::handle(&mut self.signals, running) };
        let stream = self.asked.borrow()[stream];
        // One read a round, so that a flood does not keep us from looking at the time.
        self.streams[stream].read(&mut self.buffer).map(drop)
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.signals.give_up_at()
    }

    /// Nobody writes any more; what is in the pipes is bounded.
    fn drain(&mut self) -> Result<(), Errno> {
        for stream in &mut self.streams {
            while stream.read(&mut self.buffer)? {}
        }
        Ok(())
    }
}
