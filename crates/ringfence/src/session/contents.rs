//! Contents of files on their way in and out: through a pipe between the guest and this process, which nobody else reads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use ringfence_guest::frame::{Channel, Kind, MAX_DATA};
use ringfence_guest::message::Reply;
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::SessionError;
use super::error::unexpected;
use super::files::Asked;
use super::link::Incoming;
use super::protocol::Answer;

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
    /// `None` when everything was read.
    pipe: Option<Receiver>,
    /// The guest has written all of it.
    done: bool,
    grown: bool,
    buffer: BytesMut,
}

impl FileReader {
    pub(super) fn new(asked: Asked, pipe: OwnedFd) -> Result<FileReader, SessionError> {
        let pipe = Some(Receiver::from_owned_fd_unchecked(pipe).map_err(|error| failed(&error))?);
        Ok(FileReader { asked, pipe, done: false, grown: false, buffer: BytesMut::new() })
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, SessionError> {
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
            match self.take(|pipe| to_file(pipe, file)).await? {
                0 => return Ok(total),
                n => total += n as u64,
            }
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
                self.done = matches!(incoming, Incoming::Answer(Answer::Guest(Reply::Done { .. })));
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
            let mut rest = &buffer[..n];
            while !rest.is_empty() {
                match rustix::io::write(file, rest) {
                    Ok(written) => rest = &rest[written..],
                    Err(Errno::INTR) => {}
                    // The pipe's own AGAIN means something else.
                    Err(Errno::AGAIN) => return Err(Errno::IO),
                    Err(errno) => return Err(errno),
                }
            }
            Ok(n)
        }
        result => result,
    }
}

/// Contents of a file on their way.
#[derive(Debug)]
pub struct FileWriter {
    asked: Asked,
    pipe: Sender,
    grown: bool,
}

impl FileWriter {
    pub(super) fn new(asked: Asked, pipe: OwnedFd) -> Result<FileWriter, SessionError> {
        let pipe = Sender::from_owned_fd_unchecked(pipe).map_err(|error| failed(&error))?;
        Ok(FileWriter { asked, pipe, grown: false })
    }

    /// Writes more; waits while the box does not take it.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
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
                // Its file system has no splicing.
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
        loop {
            self.pipe.writable().await.map_err(|error| failed(&error))?;
            match self.pipe.try_io(|| Ok(act(self.pipe.as_fd())?)).map_err(|error| errno(&error)) {
                Ok(n) => return Ok(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => grow(&mut self.grown, &self.pipe),
                Err(Errno::PIPE) => break,
                Err(errno) => return Err(SessionError::Copy { path: self.asked.path.clone(), errno }),
            }
        }
        // It ended before its contents did: what came says why.
        self.asked.done().await?;
        Err(unexpected())
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
