//! Contents of files on their way in and out: through a pipe between the guest and this process, which nobody else reads,
//! and in frames where no pipe can be passed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use ringfence_guest::frame::{Channel, Kind, MAX_DATA};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::SessionError;
use super::error::unexpected;
use super::files::Asked;
use super::link::Incoming;
use super::protocol::SupervisorReply;

/// Moved at once by the kernel.
const PIECE: usize = 1 << 20;
/// Grown to this when it was full once. Not before: a user's pipes have one limit together.
const LARGE: usize = 1 << 20;
/// Memory that pieces are cut from.
const BUFFER: usize = 4 * MAX_DATA;

fn failed(error: &std::io::Error) -> SessionError {
    SessionError::Pipe(Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// What a failed act on a pipe means.
fn errno(error: &std::io::Error) -> Errno {
    match error.kind() {
        std::io::ErrorKind::WouldBlock => Errno::AGAIN,
        _ => Errno::from_io_error(error).unwrap_or(Errno::IO),
    }
}

/// Makes a pipe larger, where there is more to be had.
fn grow(grown: &mut bool, pipe: impl AsFd) {
    if !std::mem::replace(grown, true) {
        // It does as it is.
        let _ = rustix::pipe::fcntl_setpipe_size(pipe, LARGE);
    }
}

/// Contents of a file as they come.
#[derive(Debug)]
pub struct FileReader {
    asked: Asked,
    /// They come in frames.
    framed: bool,
    /// `None` when everything was read.
    pipe: Option<Receiver>,
    /// The guest has written all of it.
    done: bool,
    grown: bool,
    buffer: BytesMut,
}

impl FileReader {
    /// Without a pipe they come in frames.
    pub(super) fn new(asked: Asked, pipe: Option<OwnedFd>) -> Result<FileReader, SessionError> {
        let pipe = pipe.map(Receiver::from_owned_fd_unchecked).transpose().map_err(|error| failed(&error))?;
        let framed = pipe.is_none();
        Ok(FileReader { asked, framed, pipe, done: false, grown: false, buffer: BytesMut::new() })
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, SessionError> {
        while self.framed && !self.done {
            match self.asked.next().await? {
                Incoming::Data(_, bytes) if !bytes.is_empty() => return Ok(Some(bytes)),
                Incoming::Reply(SupervisorReply::Done { .. }) => self.done = true,
                Incoming::Reply(_) => return Err(unexpected()),
                Incoming::Data(..) | Incoming::Eof => {}
            }
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        if buffer.capacity() < MAX_DATA {
            buffer.reserve(BUFFER);
        }
        buffer.resize(MAX_DATA, 0);
        let n = self.take(|pipe| rustix::io::read(pipe, &mut buffer[..])).await?;
        buffer.truncate(n);
        let bytes = buffer.split().freeze();
        self.buffer = buffer;
        Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// Writes all of it to a file, at its position there. How many bytes that were.
    pub async fn copy_to(&mut self, file: impl AsFd) -> Result<u64, SessionError> {
        self.copy_within(file, u64::MAX).await
    }

    /// The same with `limit` bytes at most; more of them is an error, whatever the box said of the length. A little more
    /// may have been written by then.
    pub async fn copy_within(&mut self, file: impl AsFd, limit: u64) -> Result<u64, SessionError> {
        let file = file.as_fd();
        let mut total = 0;
        loop {
            let copied = match self.framed {
                false => self.take(|pipe| to_file(pipe, file)).await?,
                true => {
                    let bytes = self.next().await?.unwrap_or_default();
                    let failed = |errno| SessionError::Copy { path: self.asked.path.clone(), errno };
                    write_all(file, &bytes).map_err(failed)?;
                    bytes.len()
                }
            };
            if copied == 0 {
                return Ok(total);
            }
            total += copied as u64;
            if total > limit {
                return Err(SessionError::TooLong { path: self.asked.path.clone(), limit });
            }
        }
    }

    /// Takes something out of the pipe, as soon as there is something: how much that was, 0 at the end.
    async fn take(
        &mut self,
        mut act: impl FnMut(BorrowedFd<'_>) -> Result<usize, Errno>,
    ) -> Result<usize, SessionError> {
        std::future::poll_fn(|context| self.poll_take(context, &mut act)).await
    }

    fn poll_take(
        &mut self,
        context: &mut Context<'_>,
        act: &mut impl FnMut(BorrowedFd<'_>) -> Result<usize, Errno>,
    ) -> Poll<Result<usize, SessionError>> {
        loop {
            if !self.done
                && let Poll::Ready(incoming) = self.asked.stream.poll_next(context)
            {
                let incoming = self.asked.checked(incoming)?;
                self.done = matches!(incoming, Incoming::Reply(SupervisorReply::Done { .. }));
                continue;
            }
            let Some(pipe) = &self.pipe else {
                return if self.done { Poll::Ready(Ok(0)) } else { Poll::Pending };
            };
            let taken = match self.done {
                // All of it is there.
                true => act(pipe.as_fd()),
                false => {
                    ready!(pipe.poll_read_ready(context)).map_err(|error| failed(&error))?;
                    pipe.try_io(|| Ok(act(pipe.as_fd())?)).map_err(|error| errno(&error))
                }
            };
            match taken {
                Ok(n) if n > 0 => {
                    if n >= MAX_DATA {
                        grow(&mut self.grown, pipe);
                    }
                    return Poll::Ready(Ok(n));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !self.done => {}
                Ok(_) | Err(Errno::AGAIN) => self.pipe = None,
                Err(errno) => {
                    return Poll::Ready(Err(SessionError::Copy { path: self.asked.path.clone(), errno }));
                }
            }
        }
    }
}

/// Moves what is in a pipe to a file; without splicing where its file system has none.
fn to_file(pipe: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<usize, Errno> {
    match splice(pipe, None, file, None, PIECE, SpliceFlags::NONBLOCK) {
        Err(Errno::INVAL) => {
            let mut buffer = vec![0; MAX_DATA];
            let n = rustix::io::read(pipe, &mut buffer[..])?;
            write_all(file, &buffer[..n]).map(|()| n)
        }
        result => result,
    }
}

fn write_all(file: BorrowedFd<'_>, mut rest: &[u8]) -> Result<(), Errno> {
    while !rest.is_empty() {
        match rustix::io::write(file, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            // A pipe's own AGAIN means something else.
            Err(Errno::AGAIN) => return Err(Errno::IO),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Contents of a file on their way.
#[derive(Debug)]
pub struct FileWriter {
    asked: Asked,
    /// Without it they go in frames.
    pipe: Option<Sender>,
    grown: bool,
}

impl FileWriter {
    pub(super) fn new(asked: Asked, pipe: Option<OwnedFd>) -> Result<FileWriter, SessionError> {
        let pipe = pipe.map(Sender::from_owned_fd_unchecked).transpose().map_err(|error| failed(&error))?;
        Ok(FileWriter { asked, pipe, grown: false })
    }

    /// Writes more; waits while the box does not take it.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        if self.pipe.is_none() {
            return if self.asked.stream.sender.write(bytes).await { Ok(()) } else { Err(self.why().await) };
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = self.give(|pipe| rustix::io::write(pipe, rest)).await?;
            rest = &rest[written..];
        }
        Ok(())
    }

    /// Writes all of a file, from its position on. How many bytes that were.
    pub async fn copy_from(&mut self, file: impl AsFd) -> Result<u64, SessionError> {
        let file = file.as_fd();
        let mut total = 0;
        loop {
            match self.give(|pipe| splice(file, None, pipe, None, PIECE, SpliceFlags::NONBLOCK)).await {
                Ok(0) => return Ok(total),
                Ok(n) => total += n as u64,
                // Its file system has no splicing, or there is no pipe.
                Err(SessionError::Copy { errno: Errno::INVAL, path }) => {
                    let mut buffer = vec![0; MAX_DATA];
                    match rustix::io::read(file, &mut buffer[..]) {
                        Ok(0) => return Ok(total),
                        Ok(n) => {
                            self.write(&buffer[..n]).await?;
                            total += n as u64;
                        }
                        Err(Errno::INTR) => {}
                        Err(errno) => return Err(SessionError::Copy { path, errno }),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts something into the pipe, as soon as there is room.
    async fn give(
        &mut self,
        mut act: impl FnMut(BorrowedFd<'_>) -> Result<usize, Errno>,
    ) -> Result<usize, SessionError> {
        let copy = |errno| SessionError::Copy { path: self.asked.path.clone(), errno };
        let Some(pipe) = &self.pipe else { return Err(copy(Errno::INVAL)) };
        loop {
            pipe.writable().await.map_err(|error| failed(&error))?;
            match pipe.try_io(|| Ok(act(pipe.as_fd())?)).map_err(|error| errno(&error)) {
                Ok(n) => return Ok(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => grow(&mut self.grown, pipe),
                Err(Errno::PIPE) => break,
                Err(errno) => return Err(copy(errno)),
            }
        }
        Err(self.why().await)
    }

    /// It ended before its contents did: what came says why.
    async fn why(&mut self) -> SessionError {
        self.asked.done().await.err().unwrap_or_else(unexpected)
    }

    /// The file is complete; how many bytes it took. Dropped without, what was there before stays.
    pub async fn finish(self) -> Result<u64, SessionError> {
        let FileWriter { mut asked, pipe, .. } = self;
        // The guest sees the end of the pipe, and then that this was not because we are gone.
        drop(pipe);
        asked.stream.sender.put(Kind::Eof(Channel::In), &[]);
        Ok(asked.done().await?.1)
    }
}
