//! What the command writes is captured, its head and its tail, and may go on to our own stdout and stderr.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use ringfence::{Capture, Companion, Running, Wanted};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::signals::Signals;
use super::terminal::Buffer;
use super::{reopen, through};

/// What a pipe that has room takes without making us wait.
const PIECE: usize = 4096;

/// Carries two streams.
#[derive(Debug)]
pub struct Tee {
    signals: Signals,
    streams: [Stream; 2],
}

/// The key of the signals; those of the streams are their places.
const SIGNALS: usize = 2;

#[derive(Debug)]
struct Stream {
    /// From the command; `None` when it has closed it, or when nobody wants more.
    from: Option<OwnedFd>,
    /// Ours; `None` when all has been written, or where nothing goes on.
    to: Option<OwnedFd>,
    buffer: Buffer,
    capture: Capture,
}

impl Tee {
    /// The ends of its pipes for the box come with it. `goes_on`: to our stdout and stderr.
    pub fn new(signals: Signals, capture: &Capture, goes_on: bool) -> Result<(Tee, [OwnedFd; 2]), Errno> {
        let to = |fd| if goes_on { own(fd).map(Some) } else { Ok(None) };
        let (out, out_end) = Stream::new(to(rustix::stdio::stdout())?, capture.clone())?;
        let (err, err_end) = Stream::new(to(rustix::stdio::stderr())?, capture.clone())?;
        Ok((Tee { signals, streams: [out, err] }, [out_end, err_end]))
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
    fn new(to: Option<OwnedFd>, capture: Capture) -> Result<(Stream, OwnedFd), Errno> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // Our end alone: the command's must block, as every program expects.
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok((Stream { from: Some(read), to, buffer: Buffer::default(), capture }, write))
    }

    /// Reads what is there; whether there may be more at once. Only when all that was read before is written.
    fn read(&mut self) -> Result<bool, Errno> {
        let Some(from) = &self.from else { return Ok(false) };
        match self.buffer.fill(from) {
            Ok(0) => {
                self.from = None;
                // Whoever reads from us sees the end when the command has closed it.
                self.to = None;
                Ok(false)
            }
            Ok(_) => {
                self.capture.push(self.buffer.bytes());
                if self.to.is_none() {
                    self.buffer.clear();
                }
                Ok(true)
            }
            Err(Errno::INTR) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes a piece.
    fn write(&mut self) {
        let Some(to) = &self.to else {
            self.buffer.clear();
            return;
        };
        let piece = self.buffer.bytes();
        match rustix::io::write(to, &piece[..piece.len().min(PIECE)]) {
            Ok(n) => self.buffer.advance(n),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Nobody reads any more: the command shall find that out as it would without us.
            Err(_) => {
                self.buffer.clear();
                self.from = None;
                self.to = None;
            }
        }
    }
}

/// Ours once more. Not to block is a property of the open file, which others share: a pipe or a terminal is opened anew,
/// and a file, whose position is shared too, never blocks.
fn own(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
    let opened = match kind {
        FileType::Fifo | FileType::CharacterDevice => reopen(fd, true, OFlags::NONBLOCK).ok(),
        _ => None,
    };
    opened.map_or_else(|| rustix::io::fcntl_dupfd_cloexec(fd, 3), Ok)
}

impl Companion for Tee {
    fn wants(&self) -> Vec<Wanted<'_>> {
        let mut wanted = vec![(SIGNALS, self.signals.fd(), PollFlags::IN)];
        for (key, stream) in self.streams.iter().enumerate() {
            let next = match (stream.buffer.is_empty(), &stream.from, &stream.to) {
                (true, Some(from), _) => Some((from, PollFlags::IN)),
                (false, _, Some(to)) => Some((to, PollFlags::OUT)),
                _ => None,
            };
            if let Some((fd, flags)) = next {
                wanted.push((key, fd.as_fd(), flags));
            }
        }
        wanted
    }

    fn ready(&mut self, key: usize, _: PollFlags, running: &Running) -> Result<(), Errno> {
        let Some(stream) = self.streams.get_mut(key) else {
            through::handle(&mut self.signals, running);
            return Ok(());
        };
        // One read a round, so that a flood does not keep us from looking at the time.
        if stream.buffer.is_empty() {
            stream.read()?;
        } else {
            stream.write();
        }
        Ok(())
    }

    fn is_to_pause(&self) -> bool {
        self.signals.is_to_pause()
    }

    fn pause(&mut self, _: &Running) -> Result<(), Errno> {
        self.signals.pause()
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.signals.give_up_at()
    }

    /// Nobody writes any more; what is in the pipes is bounded. Whoever reads from us may be slow.
    fn drain(&mut self) -> Result<(), Errno> {
        loop {
            let mut waits = false;
            for stream in &mut self.streams {
                while stream.buffer.is_empty() && stream.read()? {}
                waits |= !stream.buffer.is_empty();
            }
            if !waits {
                return Ok(());
            }
            let ready: Vec<bool> = {
                let blocked = self.streams.iter().filter(|stream| !stream.buffer.is_empty());
                let mut fds = vec![PollFd::from_borrowed_fd(self.signals.fd(), PollFlags::IN)];
                fds.extend(blocked.filter_map(|stream| stream.to.as_ref()).map(|to| PollFd::new(to, PollFlags::OUT)));
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
                fds.iter().map(|fd| !fd.revents().is_empty()).collect()
            };
            if ready[0]
                && matches!(self.signals.next(), Some(libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT))
            {
                return Ok(());
            }
            let blocked = self.streams.iter_mut().filter(|stream| !stream.buffer.is_empty());
            for (stream, ready) in blocked.zip(&ready[1..]) {
                if *ready {
                    stream.write();
                }
            }
        }
    }
}
