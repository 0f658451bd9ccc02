//! Commands of a sandbox, from async code: what comes, and how each ends.
//!
//! A command has a thread that starts its box, watches its limits from outside and waits for it. Where the engine runs no
//! command without a guest, or a terminal is wanted, it runs in a session of its own, of which nothing is left either.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use ringfence_guest::message::Size;
use ringfence_policy::limits::format_duration;
use ringfence_policy::plan::Changes;
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::recorded::Entry;
use super::{Planned, Sandbox, SandboxError, Started};
use crate::capture::Capture;
use crate::engines::{EngineError, EngineRef, Running, StdioSpec};
use crate::records::{self, Caller, Seen};
use crate::report::Report;
use crate::session::{self, Event, Exec, Output, Session, SessionError, Sessions};
use crate::supervise::{Companion, GRACE, Outcome, Wanted};

/// Whether this engine runs a command without a guest.
pub fn runs_one_shot(engine: EngineRef) -> bool {
    engine.abilities().commands
}

impl Sandbox {
    /// Starts a program, looked up in the box's `PATH`, with its arguments. That it cannot be executed is told by what comes
    /// first.
    pub async fn exec(&self, exec: impl Into<Exec>) -> Result<Execution, SandboxError> {
        let exec = exec.into();
        let sandbox = Sandbox { variables: exec.env.clone(), ..self.clone() };
        let planned = sandbox.plan_exec(&exec).map_err(|error| sandbox.fail(&exec.argv, None, error))?;
        match runs_one_shot(planned.engine) && exec.terminal.is_none() {
            true => sandbox.exec_alone(exec, planned).await,
            false => sandbox.exec_in_guest(exec).await,
        }
    }

    /// In a box of its own.
    async fn exec_alone(&self, exec: Exec, planned: Planned) -> Result<Execution, SandboxError> {
        let keeps = planned.plan.limits.output;
        let (stdin, theirs) = if exec.stdin { input()? } else { (None, nothing()?) };
        let ((stdout, out), (stderr, err)) = (output()?, output()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (controls, orders) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|e| SandboxError::Pipe(e.into()))?;
        let (begun, begins) = oneshot::channel();
        let (over, ends) = oneshot::channel();
        let (sandbox, stdio) = (self.clone(), StdioSpec::Files([theirs, out, err]));
        // The thread that starts a box must live as long as it: the kernel ends a box with the thread that made it.
        let watch = move || match sandbox.begin(planned).and_then(|begun| begun.start(stdio)).map(Started::apart) {
            Err(error) => drop(begun.send(Err(error))),
            Ok((watched, entry, report)) => {
                // Nobody is there any more: the orders end at once, and the box with them.
                let _ = begun.send(Ok((report, entry)));
                let _ = over.send(watched.until_its_end(&mut Told { orders, give_up_at: None }));
            }
        };
        std::thread::Builder::new().name("sandbox".to_owned()).spawn(watch).map_err(SandboxError::Thread)?;
        let (report, entry) = begins.await.map_err(|_| SandboxError::Unwatched)??;
        let streams = [stdout, stderr].map(|pipe| Stream { pipe: Some(pipe), capture: self.capture(), total: 0 });
        let alone = Alone { stdin, streams, controls, ends: Some(ends), ending: None, entry: Some(entry), keeps };
        Ok(Execution { report, place: Place::Alone(Box::new(alone)) })
    }

    /// The plan of one command, with its variables, its directory and its time.
    fn plan_exec(&self, exec: &Exec) -> Result<Planned, SandboxError> {
        let mut planned = self.plan_changed(&exec.argv, Changes { env: &exec.env, cwd: exec.cwd.as_deref() })?;
        let Some(timeout) = exec.timeout else { return Ok(planned) };
        if let Some(ceiling) = planned.plan.limits.timeout_ceiling.filter(|ceiling| timeout > *ceiling) {
            let (asked, ceiling) = (format_duration(timeout), format_duration(ceiling));
            return Err(SessionError::TimeoutAboveCeiling { asked, ceiling }.into());
        }
        Arc::make_mut(&mut planned.resolved).policy.limits.timeout = Some(timeout);
        Ok(planned)
    }

    /// In a session of its own.
    async fn exec_in_guest(&self, exec: Exec) -> Result<Execution, SandboxError> {
        let sessions = self.host.sessions().map_err(|error| self.fail(&exec.argv, None, error.into()))?;
        let session = self.guest_session(&sessions, &exec.argv).await?;
        let report = session.report().await?;
        let execution = session.exec(self.in_guest(exec)).await?;
        Ok(Execution { report, place: Place::Guest(Box::new(InGuest { execution, session, sessions, over: false })) })
    }

    /// A session for one command, which ends with what is returned and which writes the record of the command. That it
    /// cannot be made is recorded as the command's failure.
    pub async fn guest_session(&self, sessions: &Sessions, command: &[OsString]) -> Result<Session, SandboxError> {
        let made = async {
            let sandbox = self.clone();
            let fetched = tokio::task::spawn_blocking(move || sandbox.fetch_image());
            fetched.await.map_err(|_| SandboxError::Unwatched)??;
            Ok(sessions.create_owned(self.create()?).await?)
        };
        made.await.map_err(|error| self.fail(command, None, error))
    }

    /// A command as a session of its own runs it: its time is said by name, since a session's own limit leaves terminals out.
    pub fn in_guest(&self, exec: Exec) -> Exec {
        let exec = if exec.caller.is_none() { exec.caller(Caller::of_this_process()) } else { exec };
        match (exec.timeout, self.policy().limits.timeout) {
            (None, Some(limit)) => exec.timeout(limit),
            _ => exec,
        }
    }

    /// What the record gets of a stream.
    fn capture(&self) -> Option<Capture> {
        self.resolved.service.records.output.then(records::capture)
    }
}

/// Both ends of a pipe: ours for waiting, the command's to block, as every program expects.
fn input() -> Result<(Option<pipe::Sender>, OwnedFd), SandboxError> {
    let (theirs, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| SandboxError::Pipe(e.into()))?;
    Ok((Some(pipe::Sender::from_owned_fd(ours).map_err(SandboxError::Pipe)?), theirs))
}

fn output() -> Result<(pipe::Receiver, OwnedFd), SandboxError> {
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| SandboxError::Pipe(e.into()))?;
    Ok((pipe::Receiver::from_owned_fd(ours).map_err(SandboxError::Pipe)?, theirs))
}

fn nothing() -> Result<OwnedFd, SandboxError> {
    let null = rustix::fs::open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    null.map_err(|e| SandboxError::Pipe(e.into()))
}

/// Does what the holder of the execution says; ends the box when there is none any more.
struct Told {
    orders: OwnedFd,
    give_up_at: Option<Instant>,
}

impl Companion for Told {
    fn wants(&self) -> Vec<Wanted<'_>> {
        // Once it is to end there is nothing more to hear.
        if self.give_up_at.is_some() { Vec::new() } else { vec![(0, self.orders.as_fd(), PollFlags::IN)] }
    }

    fn ready(&mut self, _: usize, _: PollFlags, running: &Running) -> Result<(), Errno> {
        let mut signal = [0; 4];
        match rustix::io::read(&self.orders, &mut signal) {
            Ok(4) => match i32::from_ne_bytes(signal) {
                STOP => {
                    self.give_up_at = Some(Instant::now() + GRACE);
                    running.terminate();
                    Ok(())
                }
                // It may have ended this moment.
                signal if SIGNALS.contains(&signal) => running.signal(signal).or(Ok(())),
                _ => Ok(()),
            },
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            _ => {
                self.give_up_at = Some(Instant::now());
                Ok(())
            }
        }
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.give_up_at
    }
}

/// TERM, and KILL after a grace. No signal has this number.
const STOP: i32 = -1;

/// The numbers that signals have.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// A command that runs. Dropping it ends it with everything that descends from it.
#[derive(Debug)]
pub struct Execution {
    report: Report,
    place: Place,
}

/// Where it runs.
#[derive(Debug)]
enum Place {
    Alone(Box<Alone>),
    Guest(Box<InGuest>),
}

/// In a session that ends with it.
#[derive(Debug)]
struct InGuest {
    execution: session::Execution,
    session: Session,
    sessions: Sessions,
    over: bool,
}

/// In a box of its own.
#[derive(Debug)]
struct Alone {
    stdin: Option<pipe::Sender>,
    streams: [Stream; 2],
    controls: OwnedFd,
    /// Until it has ended.
    ends: Option<oneshot::Receiver<Result<Outcome, EngineError>>>,
    /// How it ended, while there is more to read.
    ending: Option<Outcome>,
    entry: Option<Entry>,
    /// Bytes of each output that are kept.
    keeps: u64,
}

#[derive(Debug)]
struct Stream {
    pipe: Option<pipe::Receiver>,
    /// For the record.
    capture: Option<Capture>,
    total: u64,
}

/// Read at once.
const CHUNK: usize = 64 << 10;

impl Stream {
    /// What comes next; `None` at its end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let Some(pipe) = &self.pipe else { return Poll::Ready(Ok(None)) };
        loop {
            std::task::ready!(pipe.poll_read_ready(context))?;
            let mut bytes = BytesMut::with_capacity(CHUNK);
            match pipe.try_read_buf(&mut bytes) {
                Ok(0) => {
                    self.pipe = None;
                    return Poll::Ready(Ok(None));
                }
                Ok(read) => {
                    self.total += read as u64;
                    if let Some(capture) = &mut self.capture {
                        capture.push(&bytes);
                    }
                    return Poll::Ready(Ok(Some(bytes.freeze())));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn seen(&self) -> Seen<'_> {
        self.capture.as_ref().map_or(Seen::Bytes(self.total), Seen::Output)
    }
}

impl Execution {
    /// How each guarantee is kept.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The id of its record, where records are kept.
    pub fn record(&self) -> Option<&str> {
        match &self.place {
            Place::Alone(alone) => alone.entry.as_ref().and_then(Entry::id),
            Place::Guest(guest) => guest.execution.record(),
        }
    }

    /// What comes next; `None` after its end. A reader that waits stops the command from writing, and nothing else: its time
    /// runs on.
    pub async fn next(&mut self) -> Result<Option<Event>, SandboxError> {
        let Execution { report, place } = self;
        match place {
            Place::Alone(alone) => std::future::poll_fn(|context| alone.poll_next(report, context)).await,
            Place::Guest(guest) => guest.next().await,
        }
    }

    /// Waits for its end and keeps a bounded head and tail of what it writes.
    pub async fn output(mut self) -> Result<Output, SandboxError> {
        let keeps = match &self.place {
            Place::Alone(alone) => alone.keeps,
            Place::Guest(guest) => guest.session.output_limit(),
        };
        let mut captures = [Capture::new(keeps), Capture::new(keeps)];
        loop {
            match self.next().await? {
                Some(Event::Stdout(bytes)) => captures[0].push(&bytes),
                Some(Event::Stderr(bytes)) => captures[1].push(&bytes),
                Some(Event::Ended(outcome)) => return Ok(Output::new(captures, [0; 2], outcome)),
                None => return Err(SandboxError::Unwatched),
            }
        }
    }

    /// Writes to its standard input; waits while it does not read. What it ended without reading is dropped.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), SandboxError> {
        match &mut self.place {
            Place::Guest(guest) => Ok(guest.execution.write(bytes).await?),
            Place::Alone(alone) => {
                let Some(stdin) = &mut alone.stdin else { return Ok(()) };
                match stdin.write_all(bytes).await {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    result => result.map_err(SandboxError::Pipe),
                }
            }
        }
    }

    /// Ends its standard input.
    pub async fn close_stdin(&mut self) -> Result<(), SandboxError> {
        match &mut self.place {
            Place::Guest(guest) => Ok(guest.execution.close_stdin().await?),
            Place::Alone(alone) => {
                alone.stdin = None;
                Ok(())
            }
        }
    }

    /// Sends a signal, 1 to 64, to its process group; KILL ends the box.
    pub async fn signal(&self, signal: i32) -> Result<(), SandboxError> {
        if !SIGNALS.contains(&signal) {
            return Err(SandboxError::NoSignal(signal));
        }
        match &self.place {
            Place::Guest(guest) => Ok(guest.execution.signal(signal).await?),
            Place::Alone(alone) => alone.tell(signal),
        }
    }

    /// Tells its terminal a new size. A command without a terminal has nothing to be told.
    pub async fn resize(&self, size: Size) -> Result<(), SandboxError> {
        match &self.place {
            Place::Guest(guest) => Ok(guest.execution.resize(size).await?),
            Place::Alone(_) => Ok(()),
        }
    }

    /// Ends everything in its box: TERM, and KILL after a grace.
    pub async fn stop(&self) -> Result<(), SandboxError> {
        match &self.place {
            Place::Guest(guest) => Ok(guest.execution.stop().await?),
            Place::Alone(alone) => alone.tell(STOP),
        }
    }
}

impl InGuest {
    async fn next(&mut self) -> Result<Option<Event>, SandboxError> {
        let event = self.execution.next().await?;
        if matches!(event, Some(Event::Ended(_)) | None) && !std::mem::replace(&mut self.over, true) {
            // Nothing of the box is left when its command has ended.
            self.sessions.remove(self.session.id()).await?;
        }
        Ok(event)
    }
}

impl Alone {
    fn tell(&self, signal: i32) -> Result<(), SandboxError> {
        match rustix::net::send(&self.controls, &signal.to_ne_bytes(), SendFlags::NOSIGNAL) {
            // It has ended.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(SandboxError::Pipe(error.into())),
        }
    }

    fn poll_next(
        &mut self,
        report: &mut Report,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Event>, SandboxError>> {
        let mut open = false;
        for (stream, event) in self.streams.iter_mut().zip([Event::Stdout as fn(Bytes) -> Event, Event::Stderr]) {
            match stream.poll_next(context) {
                Poll::Ready(Ok(Some(bytes))) => return Poll::Ready(Ok(Some(event(bytes)))),
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(SandboxError::Read(error))),
                Poll::Pending => open = true,
            }
        }
        if let Some(ends) = &mut self.ends {
            let ended = std::task::ready!(Pin::new(ends).poll(context));
            self.ends = None;
            match (ended.map_err(|_| SandboxError::Unwatched)?, self.entry.take()) {
                (Ok(outcome), entry) => (self.ending, self.entry) = (Some(outcome), entry),
                (Err(error), Some(entry)) => return Poll::Ready(Err(entry.failed(error.into()))),
                (Err(error), None) => return Poll::Ready(Err(error.into())),
            }
        }
        // Nothing of the box is left: what it wrote is in the pipes, and they end.
        if open {
            return Poll::Pending;
        }
        let Some(outcome) = self.ending.take() else { return Poll::Ready(Ok(None)) };
        if let Some(entry) = self.entry.take() {
            // The id of the record is told before its end.
            let _ = entry.end(&outcome, self.streams.each_ref().map(Stream::seen), report);
        }
        Poll::Ready(Ok(Some(Event::Ended(outcome))))
    }
}
