//! Outputs of a command that come through pipes of its client's: at the speed of a pipe, and bounded as one.
//!
//! The supervisor does not see them. For its log and for records it is told how much came, and of each output the
//! beginning and the end.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use ringfence_guest::frame::{Channel, Kind, MAX_DATA};
use ringfence_linux::sys::locked;
use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;

use super::link::Sender;
use super::pipes;
use super::protocol::{COPIED, ClientInput};

/// Read at once.
const PIECE: usize = MAX_DATA;
/// Grown to this when a command fills what a pipe has by itself. Not at once: a user's pipes have one limit together.
const LARGE: usize = 1 << 20;
/// Memory that pieces are cut from.
const BUFFER: usize = 4 * PIECE;

/// Stdout and stderr.
#[derive(Debug)]
pub struct Outputs {
    streams: [Output; 2],
    buffer: BytesMut,
}

#[derive(Debug)]
struct Output {
    pipe: Pipe,
    /// What was in it when the command ended, and was not read yet. What others write later is not waited for.
    left: Option<usize>,
    grown: bool,
    /// Bytes that were told as they came.
    told: usize,
    /// The last ones after them, and how many there were before those.
    last: VecDeque<Bytes>,
    last_bytes: usize,
    skipped: u64,
}

/// Our end of a pipe. Registered with the reactor when it must be waited for: most commands end before.
#[derive(Debug)]
enum Pipe {
    Idle(OwnedFd),
    Waited(Receiver),
    Ended,
}

impl Pipe {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Pipe::Idle(fd) => Some(fd.as_fd()),
            Pipe::Waited(pipe) => Some(pipe.as_fd()),
            Pipe::Ended => None,
        }
    }

    /// Reads what is there.
    fn read(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match self.fd() {
            Some(fd) => rustix::io::read(fd, room),
            None => Ok(0),
        }
    }

    /// The same, waiting until there is something.
    fn poll_read(&mut self, context: &mut Context<'_>, room: &mut [u8]) -> Poll<std::io::Result<usize>> {
        if let Pipe::Idle(_) = self
            && let Pipe::Idle(fd) = std::mem::replace(self, Pipe::Ended)
        {
            *self = Pipe::Waited(Receiver::from_owned_fd_unchecked(fd)?);
        }
        let Pipe::Waited(pipe) = self else { return Poll::Ready(Ok(0)) };
        loop {
            ready!(pipe.poll_read_ready(context))?;
            match pipe.try_read(room) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

/// Two pipes, our ends first.
type Pair = [(OwnedFd, OwnedFd); 2];

fn pair() -> Result<Pair, Errno> {
    Ok([pipes::pipe(true)?, pipes::pipe(true)?])
}

/// Pipes of the next command, made while a process waits for one, and which process that was: one that it forks has them too.
/// Not more: they are descriptors.
static SPARE: Mutex<Option<(u32, Pair)>> = Mutex::new(None);

impl Outputs {
    /// And the ends for the command.
    pub fn new() -> Result<(Outputs, Vec<OwnedFd>), Errno> {
        let spare = locked(&SPARE).take();
        let own = spare.filter(|(process, _)| *process == std::process::id());
        let [(out, out_theirs), (err, err_theirs)] = own.map_or_else(pair, |(_, pair)| Ok(pair))?;
        let streams = [out, err].map(|fd| Output {
            pipe: Pipe::Idle(fd),
            left: None,
            grown: false,
            told: 0,
            last: VecDeque::new(),
            last_bytes: 0,
            skipped: 0,
        });
        Ok((Outputs { streams, buffer: BytesMut::new() }, vec![out_theirs, err_theirs]))
    }

    /// There is time: makes the pipes of the next command.
    pub fn prepare_next() {
        let mut spare = locked(&SPARE);
        if spare.is_none() {
            // Whoever needs them says why there are none.
            *spare = pair().ok().map(|pair| (std::process::id(), pair));
        }
    }

    /// Nothing more is to be waited for.
    pub fn command_ended(&mut self) {
        for stream in &mut self.streams {
            let there = stream.pipe.fd().and_then(|fd| rustix::io::ioctl_fionread(fd).ok());
            stream.left = Some(usize::try_from(there.unwrap_or(0)).unwrap_or(usize::MAX));
        }
    }

    /// The next bytes, and whether they are of stderr; `None` when nothing follows.
    pub fn poll_next(&mut self, context: &mut Context<'_>, sender: &Sender) -> Poll<Option<(bool, Bytes)>> {
        let mut waits = false;
        for index in [0, 1] {
            match self.poll_one(index, context) {
                Poll::Ready(None) => {}
                Poll::Pending => waits = true,
                Poll::Ready(Some(bytes)) => {
                    self.streams[index].tell(index, &bytes, sender);
                    return Poll::Ready(Some((index == 1, bytes)));
                }
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(None) }
    }

    fn poll_one(&mut self, index: usize, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let stream = &mut self.streams[index];
        let most = stream.left.unwrap_or(PIECE).min(PIECE);
        if most == 0 || matches!(stream.pipe, Pipe::Ended) {
            stream.pipe = Pipe::Ended;
            return Poll::Ready(None);
        }
        if self.buffer.capacity() < most {
            self.buffer.reserve(BUFFER);
        }
        self.buffer.resize(most, 0);
        let read = match stream.left {
            // It is there: it is not waited for.
            Some(_) => stream.pipe.read(&mut self.buffer[..]).unwrap_or(0),
            None => match stream.pipe.poll_read(context, &mut self.buffer[..]) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(result) => result.unwrap_or(0),
            },
        };
        self.buffer.truncate(read);
        if read == 0 {
            stream.pipe = Pipe::Ended;
            return Poll::Ready(None);
        }
        if let Some(left) = &mut stream.left {
            *left -= read;
        }
        if read == PIECE
            && !std::mem::replace(&mut stream.grown, true)
            && let Some(fd) = stream.pipe.fd()
        {
            // There may be no more to be had.
            let _ = rustix::pipe::fcntl_setpipe_size(fd, LARGE);
        }
        Poll::Ready(Some(self.buffer.split().freeze()))
    }

    /// Tells the end of each output, when the command has ended.
    pub fn tell_the_rest(self, sender: &Sender) {
        sender.with(|out, number| {
            for (index, stream) in self.streams.into_iter().enumerate() {
                // A few words that fit into any message.
                let mut say = |say: &ClientInput| drop(out.message(number, Kind::Input, say, Vec::new()));
                if stream.skipped > 0 {
                    say(&ClientInput::OutputSkipped { stderr: index == 1, bytes: stream.skipped });
                }
                for bytes in stream.last {
                    for part in bytes.chunks(MAX_DATA) {
                        out.put(number, Kind::Data(CHANNELS[index]), part);
                    }
                }
            }
            drop(out.message(number, Kind::Input, &ClientInput::OutputComplete, Vec::new()));
            out.put(number, Kind::Close, &[]);
        });
    }
}

const CHANNELS: [Channel; 2] = [Channel::Out, Channel::Err];

impl Output {
    /// Tells the beginning of an output as it comes, and keeps the end of it.
    fn tell(&mut self, index: usize, bytes: &Bytes, sender: &Sender) {
        let now = bytes.len().min(COPIED - self.told);
        if now > 0 {
            sender.put(Kind::Data(CHANNELS[index]), &bytes[..now]);
            self.told += now;
        }
        let rest = bytes.slice(now.max(bytes.len().saturating_sub(COPIED))..);
        self.skipped += (bytes.len() - now - rest.len()) as u64;
        if rest.is_empty() {
            return;
        }
        self.last_bytes += rest.len();
        // A copy: else it would keep the whole buffer that it was read into from being used again.
        self.last.push_back(Bytes::copy_from_slice(&rest));
        while let Some(first) = self.last.front_mut()
            && self.last_bytes > COPIED
        {
            let over = first.len().min(self.last_bytes - COPIED);
            drop(first.split_to(over));
            self.skipped += over as u64;
            self.last_bytes -= over;
            if first.is_empty() {
                self.last.pop_front();
            }
        }
    }
}
