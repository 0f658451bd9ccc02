//! Files and ports of a session, as its guest sees them: a path cannot lead out of the box.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let session = ringfence::Host::here()?.session("shell").create().await?;
//! let files = session.files();
//! files.write("notes/today", b"hello", ringfence::session::WriteOptions { parents: true, ..Default::default() }).await?;
//! assert_eq!(files.read("notes/today", 1 << 20).await?, b"hello");
//! # Ok(())
//! # }
//! ```

use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use ringfence_guest::frame::{Channel, Kind};
use ringfence_guest::message::{Changed, Entry, WriteMode};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{AcquireError, OwnedSemaphorePermit};

use super::SessionError;
use super::contents::{FileReader, FileWriter};
use super::error::unexpected;
use super::link::{Incoming, Link, Stream};
use super::pipes;
use super::protocol::{ClientRequest, PIPES, Refusal, SupervisorReply};

/// Files of a session. Relative paths are below its working directory.
#[derive(Debug, Clone)]
pub struct Files {
    pub(super) link: Link,
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// Permissions of a new file, for example `0o644`.
    pub mode: u32,
    /// Make the directories above it.
    pub parents: bool,
    /// What happens to a file that exists.
    pub how: WriteMode,
}

impl Default for WriteOptions {
    /// A new file of mode 644 takes the name when it is complete.
    fn default() -> WriteOptions {
        WriteOptions { mode: 0o644, parents: false, how: WriteMode::Replace }
    }
}

/// Most entries of one list, and bytes of their names.
const MOST_ENTRIES: usize = 1_000_000;
const MOST_NAMES: usize = 64 << 20;

/// A stream that a request about a path opened.
#[derive(Debug)]
pub(super) struct Asked {
    pub stream: Stream,
    pub path: PathBuf,
}

impl Asked {
    /// What comes next; a failure is an error.
    pub async fn next(&mut self) -> Result<Incoming, SessionError> {
        let incoming = self.stream.next().await;
        self.checked(incoming)
    }

    pub fn checked(&self, incoming: Option<Incoming>) -> Result<Incoming, SessionError> {
        match incoming {
            None => Err(self.stream.sender.link.lost()),
            Some(Incoming::Reply(SupervisorReply::Refused(Refusal::Failed { step, errno }))) => {
                Err(SessionError::File {
                    step,
                    path: self.path.clone(),
                    errno: Errno::from_raw_os_error(errno.clamp(1, 4095)),
                })
            }
            Some(Incoming::Reply(SupervisorReply::Refused(refusal))) => {
                Err(refusal.into_error(self.stream.sender.link.id()))
            }
            Some(incoming) => Ok(incoming),
        }
    }

    /// Waits for the end; the entries that came before it.
    pub async fn done(&mut self) -> Result<(Vec<Entry>, u64), SessionError> {
        let (mut entries, mut names) = (Vec::new(), 0);
        loop {
            match self.next().await? {
                Incoming::Reply(SupervisorReply::Done { bytes }) => return Ok((entries, bytes)),
                Incoming::Reply(SupervisorReply::Entries(more)) if entries.len() < MOST_ENTRIES => {
                    let name = |entry: &Entry| entry.path.len() + entry.target.as_ref().map_or(0, Vec::len);
                    names += more.iter().map(name).sum::<usize>();
                    if names > MOST_NAMES {
                        let (path, limit) = (self.path.clone(), MOST_NAMES as u64);
                        return Err(SessionError::TooLong { path, limit });
                    }
                    entries.extend(more);
                }
                Incoming::Reply(_) => return Err(unexpected()),
                Incoming::Data(..) | Incoming::Eof => {}
            }
        }
    }
}

fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

impl Files {
    fn ask(&self, path: &Path, request: ClientRequest) -> Result<Asked, SessionError> {
        self.ask_with(path, request, Vec::new())
    }

    fn ask_with(&self, path: &Path, request: ClientRequest, pipes: Vec<OwnedFd>) -> Result<Asked, SessionError> {
        Ok(Asked { stream: self.link.open(&request, pipes)?, path: path.to_path_buf() })
    }

    /// A pipe for contents, where it can reach the guest: our end, and what goes with the request.
    fn pipe(&self, ours_reads: bool) -> Result<(Option<OwnedFd>, Vec<OwnedFd>), SessionError> {
        if !self.link.has(PIPES) {
            return Ok((None, Vec::new()));
        }
        let (ours, theirs) = pipes::pipe(ours_reads).map_err(SessionError::Pipe)?;
        Ok((Some(ours), vec![theirs]))
    }

    /// All of a file, `limit` bytes at most; a longer one is an error.
    pub async fn read(&self, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>, SessionError> {
        let path = path.as_ref();
        let mut contents = Vec::new();
        let mut reader = self.reader(path, 0).await?;
        while let Some(bytes) = reader.next().await? {
            if contents.len() as u64 + bytes.len() as u64 > limit {
                return Err(SessionError::TooLong { path: path.to_path_buf(), limit });
            }
            contents.extend_from_slice(&bytes);
        }
        Ok(contents)
    }

    /// The contents of a file as they come, from `offset` on.
    pub async fn reader(&self, path: impl AsRef<Path>, offset: u64) -> Result<FileReader, SessionError> {
        let path = path.as_ref();
        let (ours, theirs) = self.pipe(true)?;
        let request = ClientRequest::ReadFile { path: bytes_of(path), offset, length: None, piped: ours.is_some() };
        FileReader::new(self.ask_with(path, request, theirs)?, ours)
    }

    /// Writes a whole file.
    pub async fn write(
        &self,
        path: impl AsRef<Path>,
        contents: &[u8],
        options: WriteOptions,
    ) -> Result<(), SessionError> {
        let mut writer = self.writer(path, options).await?;
        writer.write(contents).await?;
        writer.finish().await.map(drop)
    }

    /// Writes a file as its contents come; nothing takes its name before [`FileWriter::finish`].
    pub async fn writer(&self, path: impl AsRef<Path>, options: WriteOptions) -> Result<FileWriter, SessionError> {
        let path = path.as_ref();
        let WriteOptions { mode, parents, how } = options;
        let (ours, theirs) = self.pipe(false)?;
        let request = ClientRequest::WriteFile {
            path: bytes_of(path),
            permissions: mode,
            parents,
            mode: how,
            piped: ours.is_some(),
        };
        FileWriter::new(self.ask_with(path, request, theirs)?, ours)
    }

    /// What a directory holds, down to this depth (1: itself only).
    pub async fn list(&self, path: impl AsRef<Path>, depth: u16) -> Result<Vec<Entry>, SessionError> {
        let path = path.as_ref();
        Ok(self.ask(path, ClientRequest::ListDirectory { path: bytes_of(path), depth })?.done().await?.0)
    }

    /// One entry; links are not followed.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<Entry, SessionError> {
        let path = path.as_ref();
        let (entries, _) = self.ask(path, ClientRequest::Stat { path: bytes_of(path) })?.done().await?;
        entries.into_iter().next().ok_or_else(unexpected)
    }

    /// Makes a directory; `parents`: also those above it, and one that is there is no error.
    pub async fn make_directory(&self, path: impl AsRef<Path>, parents: bool) -> Result<(), SessionError> {
        let path = path.as_ref();
        let request = ClientRequest::MakeDirectory { path: bytes_of(path), permissions: 0o755, parents };
        self.ask(path, request)?.done().await.map(drop)
    }

    /// Renames an entry; what has the new name already is only replaced when asked.
    pub async fn rename(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        replace: bool,
    ) -> Result<(), SessionError> {
        let from = from.as_ref();
        let request = ClientRequest::Move { from: bytes_of(from), to: bytes_of(to.as_ref()), replace };
        self.ask(from, request)?.done().await.map(drop)
    }

    /// Removes an entry; a directory that is not empty only when `recursive`.
    pub async fn remove(&self, path: impl AsRef<Path>, recursive: bool) -> Result<(), SessionError> {
        let path = path.as_ref();
        self.ask(path, ClientRequest::Remove { path: bytes_of(path), recursive })?.done().await.map(drop)
    }

    /// Changes below a path until the answer is dropped.
    pub async fn watch(&self, path: impl AsRef<Path>, recursive: bool) -> Result<Changes, SessionError> {
        let path = path.as_ref();
        let mut asked = self.ask(path, ClientRequest::Watch { path: bytes_of(path), recursive })?;
        match asked.next().await? {
            Incoming::Reply(SupervisorReply::Ready) => Ok(Changes { asked }),
            _ => Err(unexpected()),
        }
    }
}

/// Changes of files, as they happen.
#[derive(Debug)]
pub struct Changes {
    asked: Asked,
}

impl Changes {
    /// The next change; an error when the session has ended.
    pub async fn next(&mut self) -> Result<Changed, SessionError> {
        loop {
            match self.asked.next().await? {
                Incoming::Reply(SupervisorReply::Changed(changed)) => return Ok(changed),
                Incoming::Reply(_) => return Err(unexpected()),
                Incoming::Data(..) | Incoming::Eof => {}
            }
        }
    }
}

type Window = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// A connection to a port inside.
pub struct Port {
    stream: Stream,
    /// Bytes that came and were not read yet.
    rest: Bytes,
    ended: bool,
    shut: bool,
    /// Waits until more can be sent.
    window: Option<Window>,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Port {
    pub(super) async fn open(link: &Link, port: u16) -> Result<Port, SessionError> {
        let mut stream = link.open(&ClientRequest::ConnectPort { port }, Vec::new())?;
        match stream.next().await {
            Some(Incoming::Reply(SupervisorReply::Ready)) => {
                Ok(Port { stream, rest: Bytes::new(), ended: false, shut: false, window: None })
            }
            Some(Incoming::Reply(SupervisorReply::Refused(Refusal::Failed { errno, .. }))) => {
                Err(SessionError::Port { port, errno: Errno::from_raw_os_error(errno.clamp(1, 4095)) })
            }
            Some(Incoming::Reply(SupervisorReply::Refused(refusal))) => Err(refusal.into_error(link.id())),
            Some(_) => Err(unexpected()),
            None => Err(link.lost()),
        }
    }
}

impl AsyncRead for Port {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        while self.rest.is_empty() && !self.ended {
            match ready!(self.stream.poll_next(cx)) {
                Some(Incoming::Data(_, bytes)) => self.rest = bytes,
                Some(Incoming::Eof | Incoming::Reply(SupervisorReply::Done { .. })) => self.ended = true,
                Some(Incoming::Reply(SupervisorReply::Refused(Refusal::Failed { errno, .. }))) => {
                    self.ended = true;
                    return Poll::Ready(Err(std::io::Error::from_raw_os_error(errno.clamp(1, 4095))));
                }
                Some(Incoming::Reply(_)) | None => {
                    self.ended = true;
                    return Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into()));
                }
            }
        }
        let n = self.rest.len().min(to.remaining());
        to.put_slice(&self.rest.split_to(n));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Port {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        loop {
            if let Some(window) = &mut self.window {
                let permit = ready!(window.as_mut().poll(cx));
                self.window = None;
                if permit.is_err() {
                    return Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()));
                }
                // It goes back with the drop: there is room for one byte at least.
            }
            if self.shut || self.stream.sender.window().is_closed() {
                return Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()));
            }
            match self.stream.sender.write_some(bytes) {
                0 if !bytes.is_empty() => {
                    self.window = Some(Box::pin(Arc::clone(self.stream.sender.window()).acquire_owned()));
                }
                n => return Poll::Ready(Ok(n)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if !std::mem::replace(&mut self.shut, true) {
            self.stream.sender.put(Kind::Eof(Channel::In), &[]);
        }
        Poll::Ready(Ok(()))
    }
}
