//! Sandboxes for one command: a box is made for it, and nothing of it is left when the command has ended.
//!
//! For boxes of this host's own processes; a container is a session (see [`Sessions::once`](crate::session::Sessions::once)).
//! Each execution has a thread that starts its box, watches its limits from outside and waits for it.
//!
//! ```no_run
//! use ringfence::policy::{Inputs, Layer, resolve};
//! use ringfence::{Event, Sandbox};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let facts = ringfence::facts::gather()?;
//! let mut layer = Layer::flags();
//! layer.profile("agent");
//! let policy = resolve(Inputs::new(std::env::current_dir()?, facts.home.clone(), layer))?.policy;
//! let sandbox = Sandbox::new(policy, facts);
//!
//! // All at once …
//! let output = sandbox.exec(["git", "status"]).await?.output().await?;
//! println!("{}", String::from_utf8_lossy(&output.stdout));
//!
//! // … or as it comes.
//! let mut make = sandbox.exec(["make", "test"]).await?;
//! while let Some(event) = make.next().await? {
//!     match event {
//!         Event::Stdout(bytes) | Event::Stderr(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
//!         Event::Ended(outcome) => println!("{:?}", outcome.ended),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use ringfence_policy::Policy;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{self, PlanError};
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::tree::Tree;
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::capture::Capture;
use crate::engines::{self, EngineError, Running, StdioSpec};
use crate::records::{self, Begin, JournalError, Recorder, Seen, Ticket};
use crate::report::Report;
use crate::session::{Event, Output};
use crate::supervise::{Companion, GRACE, Outcome, supervise};

/// Why a command did not run, or is not known to have ended.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("cannot make a pipe: {0}")]
    Pipe(io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot read what the command writes: {0}")]
    Read(io::Error),
    #[error("cannot record the execution: {0}")]
    NotRecorded(JournalError),
    #[error("whoever watched the sandbox is gone")]
    Unwatched,
}

/// A policy on this host, under which commands run, each in a box of its own.
#[derive(Debug, Clone)]
pub struct Sandbox {
    policy: Arc<Policy>,
    facts: Arc<Facts>,
    choice: EngineChoice,
    recorder: Option<Recorder>,
    stdin: bool,
}

impl Sandbox {
    pub fn new(policy: Policy, facts: Facts) -> Sandbox {
        let (policy, facts) = (Arc::new(policy), Arc::new(facts));
        Sandbox { policy, facts, choice: EngineChoice::Auto, recorder: None, stdin: false }
    }

    pub fn choice(mut self, choice: EngineChoice) -> Sandbox {
        self.choice = choice;
        self
    }

    /// Records every execution. No box may see where: whoever makes the policy names the directory in
    /// [`Inputs::records_dir`](ringfence_policy::Inputs::records_dir).
    pub fn recorder(mut self, recorder: Recorder) -> Sandbox {
        self.recorder = Some(recorder);
        self
    }

    /// Whether input will be written to commands; without, their standard input is empty.
    pub fn stdin(mut self, stdin: bool) -> Sandbox {
        self.stdin = stdin;
        self
    }

    /// Starts a program, looked up in the box's `PATH`, with its arguments. That it cannot be executed is told by what comes
    /// first.
    pub async fn exec<S: Into<OsString>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Execution, SandboxError> {
        let command: Vec<OsString> = argv.into_iter().map(Into::into).collect();
        let (stdin, theirs) = if self.stdin { input()? } else { (None, nothing()?) };
        let ((stdout, out), (stderr, err)) = (output()?, output()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (controls, orders) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|e| SandboxError::Pipe(e.into()))?;
        let (begun, begins) = oneshot::channel();
        let (over, ends) = oneshot::channel();
        let (sandbox, stdio) = (self.clone(), StdioSpec::Files([theirs, out, err]));
        // The thread that starts a box must live as long as it: the kernel ends a box with the thread that made it.
        let watch = move || match sandbox.start(&command, stdio) {
            Err(error) => drop(begun.send(Err(error))),
            Ok((running, report, ticket)) => {
                // Nobody is there any more: the orders end at once, and the box with them.
                let _ = begun.send(Ok((report, ticket)));
                let mut told = Told { orders, give_up_at: None };
                let _ = over.send(supervise(running, &sandbox.policy, &sandbox.facts, &mut told));
            }
        };
        std::thread::Builder::new().name("sandbox".to_owned()).spawn(watch).map_err(SandboxError::Thread)?;
        let (report, ticket) = begins.await.map_err(|_| SandboxError::Unwatched)??;
        let keeps = self.policy.limits.output;
        let streams = [stdout, stderr].map(|pipe| Stream { pipe: Some(pipe), capture: self.capture(), total: 0 });
        Ok(Execution { stdin, streams, controls, ends: Some(ends), ending: None, report, ticket, keeps })
    }

    fn start(&self, command: &[OsString], stdio: StdioSpec) -> Result<(Running, Report, Option<Ticket>), SandboxError> {
        let (policy, facts) = (&*self.policy, &*self.facts);
        let lookup = Tree::lookup(policy, facts);
        let seed = engines::begin(None, self.choice, &lookup, policy, facts);
        let plan = plan::plan_with(&lookup, policy, facts, command)?;
        let (engine, mut report) = engines::select(self.choice, &plan, facts)?;
        let mut ticket = self.recorder.as_ref().map(|recorder| {
            recorder.begin(&Begin {
                profile: Some(&policy.profile),
                engine: Some(engine.name()),
                sandbox: None,
                command,
                workdir: Some(&policy.workdir),
                report: Some(&report),
                caller: None,
                skill: None,
            })
        });
        if let Some(ticket) = &ticket {
            report.recorded(ticket.trouble());
        }
        if let (true, Some(ticket)) = (policy.strict, &mut ticket)
            && let Some(trouble) = ticket.take_trouble()
        {
            return Err(SandboxError::NotRecorded(trouble));
        }
        match engines::start_from(seed, engine, &plan, facts, stdio) {
            Ok(running) => Ok((running, report, ticket)),
            Err(error) => Err(failed(ticket, error)),
        }
    }

    /// What the record gets of a stream.
    fn capture(&self) -> Option<Capture> {
        (self.recorder.is_some() && self.policy.records.output).then(records::capture)
    }
}

/// Records that Ringfence itself failed.
fn failed(ticket: Option<Ticket>, error: EngineError) -> SandboxError {
    if let Some(ticket) = ticket {
        // Why it failed is worth more than that this is not recorded.
        let _ = ticket.end(&records::End::failed(&error.to_string()));
    }
    error.into()
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
    fn wants(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        // Once it is to end there is nothing more to hear.
        if self.give_up_at.is_some() { Vec::new() } else { vec![(self.orders.as_fd(), PollFlags::IN)] }
    }

    fn ready(&mut self, _: usize, _: PollFlags, running: &Running) -> Result<(), Errno> {
        let mut signal = [0; 4];
        match rustix::io::read(&self.orders, &mut signal) {
            Ok(4) => match i32::from_ne_bytes(signal) {
                STOP => {
                    self.give_up_at = Some(Instant::now() + GRACE);
                    // A stopped tree would not see the TERM.
                    running.signal(libc::SIGTERM).and_then(|()| running.signal(libc::SIGCONT)).or(Ok(()))
                }
                // It may have ended this moment.
                signal => running.signal(signal).or(Ok(())),
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

/// TERM, and KILL after a grace: no signal has this number.
const STOP: i32 = 0;

/// A command that runs. Dropping it ends it with everything that descends from it.
#[derive(Debug)]
pub struct Execution {
    stdin: Option<pipe::Sender>,
    streams: [Stream; 2],
    controls: OwnedFd,
    /// Until it has ended.
    ends: Option<oneshot::Receiver<Result<Outcome, EngineError>>>,
    /// How it ended, while there is more to read.
    ending: Option<Outcome>,
    report: Report,
    ticket: Option<Ticket>,
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
        self.ticket.as_ref().filter(|ticket| ticket.trouble().is_none()).map(Ticket::id)
    }

    /// What comes next; `None` after its end. A reader that waits stops the command from writing, and nothing else: its time
    /// runs on.
    pub async fn next(&mut self) -> Result<Option<Event>, SandboxError> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Event>, SandboxError>> {
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
            match ended.map_err(|_| SandboxError::Unwatched)? {
                Ok(outcome) => self.ending = Some(outcome),
                Err(error) => return Poll::Ready(Err(failed(self.ticket.take(), error))),
            }
        }
        // Nothing of the box is left: what it wrote is in the pipes, and they end.
        if open {
            return Poll::Pending;
        }
        let Some(outcome) = self.ending.take() else { return Poll::Ready(Ok(None)) };
        if let Some(ticket) = self.ticket.take() {
            let seen = self.streams.each_ref().map(Stream::seen);
            self.report.recorded(ticket.end(&records::End::of(&outcome, seen)).err().as_ref());
        }
        Poll::Ready(Ok(Some(Event::Ended(outcome))))
    }

    /// Waits for its end and keeps a bounded head and tail of what it writes.
    pub async fn output(mut self) -> Result<Output, SandboxError> {
        let mut captures = [Capture::new(self.keeps), Capture::new(self.keeps)];
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
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        match stdin.write_all(bytes).await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }

    /// Ends its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Sends a signal to its process group; KILL ends the box.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match rustix::net::send(&self.controls, &signal.to_ne_bytes(), SendFlags::NOSIGNAL) {
            // It has ended.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends everything in its box: TERM, and KILL after a grace.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(STOP)
    }
}
