//! Contents of files through a pipe of the host's: in and out without passing this process's memory, nor anybody's between.

use std::os::fd::OwnedFd;

use ringfence_guest::message::{self, Reply, Step};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

use super::exec::Failure;
use super::files::{self, Target, open_regular};
use super::{Context, Fault, Flow, Part, Task, token};

/// Moved before others get their turn.
const PIECE: usize = 1 << 20;

/// Where a file system has no splicing.
const BUFFER: usize = 64 * 1024;

fn moved(result: Result<usize, Errno>) -> Result<Option<usize>, Errno> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn non_blocking(pipe: &OwnedFd) -> Result<(), Failure> {
    rustix::io::ioctl_fionbio(pipe, true).map_err(|errno| (Step::Refuse, errno))
}

/// Contents on their way to the host.
#[derive(Debug)]
pub struct Read {
    stream: u32,
    file: OwnedFd,
    pipe: OwnedFd,
    offset: u64,
    left: u64,
    moved: u64,
    /// The pipe is full: it is waited for.
    full: bool,
}

impl Read {
    pub fn open(stream: u32, path: &[u8], offset: u64, length: Option<u64>, pipe: OwnedFd) -> Result<Read, Failure> {
        let file = open_regular(path, OFlags::RDONLY, Mode::empty()).map_err(|errno| (Step::Open, errno))?;
        // An offset has a sign in the kernel.
        if offset > i64::MAX as u64 {
            return Err((Step::Read, Errno::INVAL));
        }
        non_blocking(&pipe)?;
        Ok(Read { stream, file, pipe, offset, left: length.unwrap_or(u64::MAX), moved: 0, full: false })
    }

    /// `None`: the pipe is full; 0: the end.
    fn piece(&mut self) -> Result<Option<usize>, Errno> {
        let most = self.left.min(PIECE as u64) as usize;
        if most == 0 {
            return Ok(Some(0));
        }
        let mut offset = self.offset;
        match splice(&self.file, Some(&mut offset), &self.pipe, None, most, SpliceFlags::NONBLOCK) {
            Err(Errno::INVAL) => {
                let mut buffer = vec![0; most.min(BUFFER)];
                let n = rustix::io::pread(&self.file, &mut buffer[..], self.offset)?;
                if n == 0 { Ok(Some(0)) } else { moved(rustix::io::write(&self.pipe, &buffer[..n])) }
            }
            result => moved(result),
        }
    }
}

impl Task for Read {
    fn is_busy(&self) -> bool {
        !self.full
    }

    fn turn(&mut self, key: u64, cx: &mut Context) -> Result<Flow, Fault> {
        match self.piece() {
            Ok(None) => {
                self.full = true;
                epoll::add(&cx.epoll, &self.pipe, EventData::new_u64(token(key, Part::Out)), EventFlags::OUT)?;
                Ok(Flow::Goes)
            }
            Ok(Some(0)) => {
                cx.link.message(self.stream, &Reply::Done { bytes: self.moved });
                Ok(Flow::Ended)
            }
            Ok(Some(n)) => {
                self.left -= n as u64;
                self.moved += n as u64;
                self.offset = self.offset.saturating_add(n as u64);
                Ok(Flow::Goes)
            }
            Err(errno) => {
                cx.link.failed(self.stream, Step::Read, errno);
                Ok(Flow::Ended)
            }
        }
    }

    fn ready(&mut self, _: u64, _: Part, cx: &mut Context) -> Result<Flow, Fault> {
        if std::mem::take(&mut self.full) {
            epoll::delete(&cx.epoll, &self.pipe)?;
        }
        Ok(Flow::Goes)
    }

    fn close(&mut self, cx: &mut Context) {
        if self.full {
            // Closing it would do the same, unless somebody else has it open.
            let _ = epoll::delete(&cx.epoll, &self.pipe);
        }
    }
}

/// Contents on their way from the host.
#[derive(Debug)]
pub struct Write {
    stream: u32,
    target: Target,
    /// `None` when its end was seen.
    pipe: Option<OwnedFd>,
    /// The host has said that they are complete.
    complete: bool,
    moved: u64,
}

impl Write {
    pub fn open(
        key: u64,
        stream: u32,
        request: &message::Write,
        pipe: OwnedFd,
        cx: &mut Context,
    ) -> Result<Write, Failure> {
        let target = files::target(request, cx)?;
        non_blocking(&pipe)?;
        epoll::add(&cx.epoll, &pipe, EventData::new_u64(token(key, Part::In)), EventFlags::IN)
            .map_err(|errno| (Step::Refuse, errno))?;
        Ok(Write { stream, target, pipe: Some(pipe), complete: false, moved: 0 })
    }

    /// `None`: nothing is there yet; 0: the end.
    fn piece(&self, pipe: &OwnedFd) -> Result<Option<usize>, Errno> {
        match splice(pipe, None, &self.target.file, None, PIECE, SpliceFlags::NONBLOCK) {
            // A file that is appended to, for one.
            Err(Errno::INVAL) => {
                let mut buffer = vec![0; BUFFER];
                let taken = moved(rustix::io::read(pipe, &mut buffer[..]))?;
                self.target.write(&buffer[..taken.unwrap_or(0)])?;
                Ok(taken)
            }
            result => moved(result),
        }
    }

    fn forget_pipe(&mut self, cx: &Context) {
        if let Some(pipe) = self.pipe.take() {
            let _ = epoll::delete(&cx.epoll, &pipe);
        }
    }

    /// It is done when both the pipe and the host say so.
    fn finish(&mut self, cx: &mut Context) -> Flow {
        if self.pipe.is_some() || !self.complete {
            return Flow::Goes;
        }
        match self.target.complete(self.moved) {
            Ok(()) => cx.link.message(self.stream, &Reply::Done { bytes: self.moved }),
            Err((step, errno)) => cx.link.failed(self.stream, step, errno),
        }
        Flow::Ended
    }
}

impl Task for Write {
    fn ready(&mut self, _: u64, _: Part, cx: &mut Context) -> Result<Flow, Fault> {
        let Some(pipe) = &self.pipe else { return Ok(Flow::Goes) };
        match self.piece(pipe) {
            Ok(None) => Ok(Flow::Goes),
            Ok(Some(0)) => {
                self.forget_pipe(cx);
                Ok(self.finish(cx))
            }
            Ok(Some(n)) => {
                self.moved += n as u64;
                Ok(Flow::Goes)
            }
            Err(errno) => {
                self.forget_pipe(cx);
                cx.link.failed(self.stream, Step::Write, errno);
                Ok(Flow::Ended)
            }
        }
    }

    fn data(&mut self, _: u64, bytes: Option<&[u8]>, cx: &mut Context) -> Result<Flow, Fault> {
        if bytes.is_some() {
            return Err(Fault::Credit);
        }
        self.complete = true;
        Ok(self.finish(cx))
    }

    fn close(&mut self, cx: &mut Context) {
        self.forget_pipe(cx);
    }
}
