//! What the command writes goes to our own stdout and stderr, and its head and tail into the record.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use ringfence::records::{self, Seen};
use ringfence::{Capture, Companion, Running};
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
    /// Which stream each wanted descriptor belongs to, the first being the signals'.
    asked: RefCell<Vec<usize>>,
}

#[derive(Debug)]
struct Stream {
    /// From the command; `None` when it has closed it, or when nobody wants more.
    from: Option<OwnedFd>,
    /// Ours; `None` when all has been written.
    to: Option<OwnedFd>,
    buffer: Buffer,
    capture: Capture,
}

impl Tee {
    /// A tee before our stdout and stderr, and the ends of its pipes for the box.
    pub fn new(signals: Signals) -> Result<(Tee, [OwnedFd; 2]), Errno> {
        let (out, out_end) = Stream::before(rustix::stdio::stdout())?;
        let (err, err_end) = Stream::before(rustix::stdio::stderr())?;
        Ok((Tee { signals, streams: [out, err], asked: RefCell::default() }, [out_end, err_end]))
    }

    /// What came: stdout and stderr.
    pub fn seen(&self) -> [Seen<'_>; 2] {
        self.streams.each_ref().map(|stream| Seen::Output(&stream.capture))
    }
}

impl Stream {
    fn before(fd: BorrowedFd<'_>) -> Result<(Stream, OwnedFd), Errno> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        let to = own(fd)?;
        let stream = Stream { from: Some(read), to: Some(to), buffer: Buffer::default(), capture: records::capture() };
        Ok((stream, write))
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
    fn wants(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut wanted = vec![(self.signals.fd(), PollFlags::IN)];
        let mut asked = self.asked.borrow_mut();
        asked.clear();
        for (index, stream) in self.streams.iter().enumerate() {
            let next = match (stream.buffer.is_empty(), &stream.from, &stream.to) {
                (true, Some(from), _) => Some((from, PollFlags::IN)),
                (false, _, Some(to)) => Some((to, PollFlags::OUT)),
                _ => None,
            };
            if let Some((fd, flags)) = next {
                wanted.push((fd.as_fd(), flags));
                asked.push(index);
            }
        }
        wanted
    }

    fn ready(&mut self, index: usize, _: PollFlags, running: &Running) -> Result<(), Errno> {
        let Some(place) = index.checked_sub(1) else { return through::handle(&mut self.signals, running) };
        let index = self.asked.borrow()[place];
        let stream = &mut self.streams[index];
        if stream.buffer.is_empty() {
            stream.read()?;
        } else {
            stream.write();
        }
        Ok(())
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
