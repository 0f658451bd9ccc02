//! Files and ports of a session, as its guest sees them: a path cannot lead out of the box.

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use ringfence_guest::message::{Changed, Entry, WriteHow};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::SessionError;

/// Files of a session. Relative paths are below its working directory.
#[derive(Debug, Clone)]
pub struct Files {}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    pub mode: u32,
    /// Make the directories above it.
    pub parents: bool,
    pub how: WriteHow,
}

impl Default for WriteOptions {
    /// A new file of mode 644 takes the name when it is complete.
    fn default() -> WriteOptions {
        WriteOptions { mode: 0o644, parents: false, how: WriteHow::Replace }
    }
}

impl Files {
    /// All of a file, `limit` bytes at most; a longer one is an error.
    pub async fn read(&self, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>, SessionError> {
        let _ = limit;
        Err(SessionError::NotFound(path.as_ref().display().to_string()))
    }

    /// The contents of a file as they come, from `offset` on.
    pub async fn reader(&self, path: impl AsRef<Path>, offset: u64) -> Result<FileReader, SessionError> {
        let _ = offset;
        Err(SessionError::NotFound(path.as_ref().display().to_string()))
    }

    /// Writes a whole file.
    pub async fn write(
        &self,
        path: impl AsRef<Path>,
        contents: &[u8],
        options: WriteOptions,
    ) -> Result<(), SessionError> {
        let _ = (path.as_ref(), contents, options);
        Ok(())
    }

    /// Writes a file as its contents come; nothing takes its name before [`FileWriter::finish`].
    pub async fn writer(&self, path: impl AsRef<Path>, options: WriteOptions) -> Result<FileWriter, SessionError> {
        let _ = options;
        Err(SessionError::NotFound(path.as_ref().display().to_string()))
    }

    /// What a directory holds, down to this depth (1: itself only).
    pub async fn list(&self, path: impl AsRef<Path>, depth: u16) -> Result<Vec<Entry>, SessionError> {
        let _ = (path.as_ref(), depth);
        Ok(Vec::new())
    }

    /// One entry; links are not followed.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<Entry, SessionError> {
        Err(SessionError::NotFound(path.as_ref().display().to_string()))
    }

    pub async fn make_directory(&self, path: impl AsRef<Path>, parents: bool) -> Result<(), SessionError> {
        let _ = (path.as_ref(), parents);
        Ok(())
    }

    pub async fn rename(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        replace: bool,
    ) -> Result<(), SessionError> {
        let _ = (from.as_ref(), to.as_ref(), replace);
        Ok(())
    }

    pub async fn remove(&self, path: impl AsRef<Path>, recursive: bool) -> Result<(), SessionError> {
        let _ = (path.as_ref(), recursive);
        Ok(())
    }

    /// Changes below a path until the answer is dropped.
    pub async fn watch(&self, path: impl AsRef<Path>, recursive: bool) -> Result<Changes, SessionError> {
        let _ = recursive;
        Err(SessionError::NotFound(path.as_ref().display().to_string()))
    }
}

/// Contents of a file as they come.
#[derive(Debug)]
pub struct FileReader {}

impl FileReader {
    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, SessionError> {
        Ok(None)
    }
}

/// Contents of a file on their way.
#[derive(Debug)]
pub struct FileWriter {}

impl FileWriter {
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let _ = bytes;
        Ok(())
    }

    /// The file is complete. Dropped without, what was there before stays.
    pub async fn finish(self) -> Result<u64, SessionError> {
        Ok(0)
    }
}

/// Changes of files, as they happen.
#[derive(Debug)]
pub struct Changes {}

impl Changes {
    /// The next change; an error when the session has ended.
    pub async fn next(&mut self) -> Result<Changed, SessionError> {
        Err(SessionError::NotFound(String::new()))
    }
}

/// A connection to a port inside.
#[derive(Debug)]
pub struct Port {}

impl AsyncRead for Port {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Port {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
