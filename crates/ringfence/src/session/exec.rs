//! Commands in a session: what is asked for, what comes, and how it ended.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringfence_guest::frame::{Channel, FrameError, Kind};
use ringfence_guest::message::{Size, Step};
use ringfence_policy::limits::format_duration;
use rustix::io::Errno;

use super::SessionError;
use super::error::{Tried, unexpected};
use super::link::{Incoming, Link, Sender, Stream};
use super::outputs::Outputs;
use super::protocol::{ClientInput, ClientRequest, ExecRequest, ExecutionEnd, PIPES, Refusal, SupervisorReply};
use crate::capture::Capture;
use crate::records::Caller;
use crate::supervise::{Ended, Outcome};

/// A command to run in a session.
#[derive(Debug, Clone)]
pub struct Exec {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) stdin: bool,
    pub(crate) terminal: Option<Size>,
    pub(super) background: bool,
    pub(super) context: Option<String>,
    pub(crate) caller: Option<Caller>,
}

impl Exec {
    /// A program, looked up in the session's `PATH`, and its arguments.
    pub fn new<S: Into<OsString>>(argv: impl IntoIterator<Item = S>) -> Exec {
        Exec {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            timeout: None,
            stdin: false,
            terminal: None,
            background: false,
            context: None,
            caller: None,
        }
    }

    /// Sets a variable on top of the session's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Exec {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Where it starts; a relative path is below the session's working directory.
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Exec {
        self.cwd = Some(cwd.into());
        self
    }

    /// Its own time limit, up to the session's ceiling.
    pub fn timeout(mut self, timeout: Duration) -> Exec {
        self.timeout = Some(timeout);
        self
    }

    /// Whether input will be written to it; without, its standard input is empty.
    pub fn stdin(mut self, stdin: bool) -> Exec {
        self.stdin = stdin;
        self
    }

    /// Gives it a terminal of its own, with input.
    pub fn terminal(mut self, size: Size) -> Exec {
        self.terminal = Some(size);
        self.stdin = true;
        self
    }

    /// It goes on when this client is gone, and its output is kept, head and tail, for whoever attaches. In sessions only:
    /// a sandbox for one command ends with its [`Execution`](crate::Execution), and this changes nothing there.
    pub fn background(mut self, background: bool) -> Exec {
        self.background = background;
        self
    }

    /// For whom it is asked, in its record; without, for this process.
    pub fn caller(mut self, caller: Caller) -> Exec {
        self.caller = Some(caller);
        self
    }

    /// It is an interpreter that waits for code: listed under this name, and its time is what [`Controls::allow`] says.
    pub(crate) fn context(mut self, context: String) -> Exec {
        self.context = Some(context);
        self
    }
}

impl<S: Into<OsString>, const N: usize> From<[S; N]> for Exec {
    fn from(argv: [S; N]) -> Exec {
        Exec::new(argv)
    }
}

impl<S: Into<OsString>> From<Vec<S>> for Exec {
    fn from(argv: Vec<S>) -> Exec {
        Exec::new(argv)
    }
}

impl<S: Into<OsString> + Clone> From<&[S]> for Exec {
    fn from(argv: &[S]) -> Exec {
        Exec::new(argv.iter().cloned())
    }
}

/// What comes from an execution.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Bytes of stdout.
    Stdout(Bytes),
    /// Bytes of stderr.
    Stderr(Bytes),
    /// The last one. A session that ended under it is the reason `Lost`.
    Ended(Outcome),
}

/// An execution, in the foreground or attached to. Dropping one that runs in the foreground ends it.
#[derive(Debug)]
pub struct Execution {
    id: String,
    record: Option<String>,
    trouble: Option<String>,
    stream: Stream,
    /// Bytes that were missing in what came: followers that lag lose some.
    skipped: [u64; 2],
    started: Instant,
    /// What it writes, where that does not come through the supervisor.
    outputs: Option<Outputs>,
    /// How it ended, while there is more to read.
    ending: Option<Outcome>,
    ended: bool,
}

impl Exec {
    fn ask(&self, piped: bool) -> ClientRequest {
        let env = self.env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
        ClientRequest::Exec(ExecRequest {
            argv: self.argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
            env: env.collect(),
            cwd: self.cwd.as_ref().map(|cwd| cwd.as_os_str().as_bytes().to_vec()),
            terminal: self.terminal,
            stdin: self.stdin,
            timeout_ms: self.timeout.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX)),
            background: self.background,
            context: self.context.clone(),
            piped,
            caller: self.caller.clone(),
        })
    }

    /// Starts it, and waits until it runs.
    pub(super) async fn start(&self, link: &Link) -> Result<Execution, SessionError> {
        self.send(link)?.begun(self).await
    }

    /// Asks for it.
    pub(super) fn send(&self, link: &Link) -> Result<Asked, SessionError> {
        // Only where somebody waits for what it writes. Without descriptors left, that comes in frames.
        let made =
            (!self.background && self.terminal.is_none() && !link.lacks(PIPES)).then(Outputs::new).and_then(Result::ok);
        let (outputs, pipes) = made.map_or_else(Default::default, |(outputs, pipes)| (Some(outputs), pipes));
        let ask = self.ask(outputs.is_some());
        let stream = link.open(&ask, pipes).map_err(|error| match error {
            SessionError::Malformed(FrameError::TooLong { .. }) => {
                let program = self.argv.first().map_or_else(String::new, |p| p.to_string_lossy().into_owned());
                not_started(program, Step::Execute, libc::E2BIG, None)
            }
            error => error,
        })?;
        if outputs.is_some() {
            Outputs::prepare_next();
        }
        Ok(Asked { stream, outputs })
    }
}

/// A command that was asked for.
#[derive(Debug)]
pub(super) struct Asked {
    stream: Stream,
    outputs: Option<Outputs>,
}

impl Asked {
    /// Waits until it runs.
    pub async fn begun(self, exec: &Exec) -> Result<Execution, SessionError> {
        let mut execution = Execution::begin(self.stream, Some(exec)).await?;
        execution.outputs = self.outputs;
        Ok(execution)
    }
}

impl Execution {
    /// Waits until the supervisor says that it runs.
    pub(super) async fn begin(mut stream: Stream, exec: Option<&Exec>) -> Result<Execution, SessionError> {
        let started = Instant::now();
        let program =
            || exec.and_then(|e| e.argv.first()).map_or_else(String::new, |p| p.to_string_lossy().into_owned());
        match stream.next().await {
            Some(Incoming::Reply(SupervisorReply::ExecutionStarted {
                execution: id,
                record,
                record_error: trouble,
            })) => {
                let id = id.to_string();
                let (outputs, ending, skipped) = (None, None, [0; 2]);
                Ok(Execution { id, record, trouble, stream, skipped, started, outputs, ending, ended: false })
            }
            Some(Incoming::Reply(SupervisorReply::ExecutionFailed { execution: id, record, step, errno })) => {
                Err(not_started(program(), step, errno, Some(Tried { execution: id.to_string(), record })))
            }
            Some(Incoming::Reply(SupervisorReply::Refused(refusal))) => Err(refused(refusal, exec, program(), &stream)),
            Some(_) => Err(unexpected()),
            None => Err(match stream.sender.link.lost() {
                // It was asked for: nobody can say what became of it.
                SessionError::Lost { id } if exec.is_some() => SessionError::CommandLost { id },
                lost => lost,
            }),
        }
    }

    /// Unique in its session.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The id of the session that it is in.
    pub fn session(&self) -> &str {
        self.stream.sender.link.id()
    }

    /// What comes next; `None` after its end. A reader that waits stops only this command from writing. A session that ends
    /// meanwhile is an outcome and no error.
    pub async fn next(&mut self) -> Result<Option<Event>, SessionError> {
        Ok(std::future::poll_fn(|context| self.poll_next(context)).await)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        while !self.ended {
            if self.ending.is_none()
                && let Poll::Ready(incoming) = self.stream.poll_next(context)
            {
                match incoming {
                    Some(Incoming::Data(Channel::Err, bytes)) => return Poll::Ready(Some(Event::Stderr(bytes))),
                    Some(Incoming::Data(_, bytes)) => return Poll::Ready(Some(Event::Stdout(bytes))),
                    Some(Incoming::Reply(SupervisorReply::OutputSkipped { stderr, bytes })) => {
                        let skipped = &mut self.skipped[usize::from(stderr)];
                        *skipped = skipped.saturating_add(bytes);
                    }
                    Some(Incoming::Reply(SupervisorReply::ExecutionEnded(finished))) => {
                        self.ending = Some(outcome(&finished))
                    }
                    Some(Incoming::Reply(SupervisorReply::ExecutionStarted { .. }) | Incoming::Eof) => {}
                    // Its supervisor is gone, and the box with it.
                    Some(Incoming::Reply(_)) | None => self.ending = Some(Outcome::lost(self.started.elapsed())),
                }
                if let (Some(_), Some(outputs)) = (&self.ending, &mut self.outputs) {
                    outputs.command_ended();
                }
                continue;
            }
            if let Some(outputs) = &mut self.outputs
                && let Some((stderr, bytes)) = ready_or(outputs.poll_next(context, &self.stream.sender))
            {
                return Poll::Ready(Some(if stderr { Event::Stderr(bytes) } else { Event::Stdout(bytes) }));
            }
            let Some(outcome) = self.ending.take() else { return Poll::Pending };
            self.ended = true;
            if let Some(outputs) = self.outputs.take() {
                outputs.tell_the_rest(&self.stream.sender);
            }
            return Poll::Ready(Some(Event::Ended(outcome)));
        }
        Poll::Ready(None)
    }

    /// The id of its record, where records are kept.
    pub fn record(&self) -> Option<&str> {
        self.record.as_deref()
    }

    /// Why it could not be recorded. Said once, and again when one was recorded meanwhile: of the others only
    /// [`Execution::record`] tells.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// What can be done to it, for another task than the one that reads.
    pub fn controls(&self) -> Controls {
        Controls { sender: self.stream.sender.clone() }
    }

    /// Writes to its standard input; waits while it does not read. What it ended without reading is dropped.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.controls().write(bytes).await
    }

    /// Ends its standard input.
    pub async fn close_stdin(&mut self) -> Result<(), SessionError> {
        self.controls().close_stdin().await
    }

    /// Sends a signal to its process group; TERM and KILL reach everything that descends from it.
    pub async fn signal(&self, signal: i32) -> Result<(), SessionError> {
        self.controls().signal(signal).await
    }

    /// Ends everything that descends from it: TERM, and KILL after a grace.
    pub async fn stop(&self) -> Result<(), SessionError> {
        self.controls().stop().await
    }

    /// Tells its terminal a new size.
    pub async fn resize(&self, size: Size) -> Result<(), SessionError> {
        self.controls().resize(size).await
    }

    /// Bytes of stdout and stderr that came and went before this reader took them: only for followers, who do not hold
    /// the command up.
    pub fn skipped(&self) -> [u64; 2] {
        self.skipped
    }

    /// Waits for its end and keeps a bounded head and tail of what it writes.
    pub async fn output(mut self) -> Result<Output, SessionError> {
        let keeps = self.stream.sender.link.keeps();
        let mut captures = [Capture::new(keeps), Capture::new(keeps)];
        let mut outcome = Outcome::lost(Duration::ZERO);
        while let Some(event) = self.next().await? {
            match event {
                Event::Stdout(bytes) => captures[0].push(&bytes),
                Event::Stderr(bytes) => captures[1].push(&bytes),
                Event::Ended(ended) => outcome = ended,
            }
        }
        Ok(Output::new(captures, self.skipped, outcome))
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        // It has ended, and nobody will tell what it wrote.
        if self.ending.is_some() && self.outputs.is_some() {
            self.stream.sender.put(Kind::Close, &[]);
        }
    }
}

fn ready_or<T>(poll: Poll<Option<T>>) -> Option<T> {
    match poll {
        Poll::Ready(value) => value,
        Poll::Pending => None,
    }
}

/// What can be done to an execution while somebody else reads from it. Does not keep it running.
#[derive(Debug, Clone)]
pub struct Controls {
    sender: Sender,
}

impl Controls {
    /// As [`Execution::write`].
    pub async fn write(&self, bytes: &[u8]) -> Result<(), SessionError> {
        if !self.sender.write(bytes).await && self.sender.link.is_closed() {
            return Err(self.sender.link.lost());
        }
        Ok(())
    }

    /// As [`Execution::close_stdin`].
    pub async fn close_stdin(&self) -> Result<(), SessionError> {
        self.sender.put(Kind::Eof(Channel::In), &[]);
        Ok(())
    }

    /// As [`Execution::signal`].
    pub async fn signal(&self, signal: i32) -> Result<(), SessionError> {
        let tree = matches!(signal, libc::SIGTERM | libc::SIGKILL);
        self.sender.message(Kind::Input, &ClientInput::Signal { signal, tree })
    }

    /// As [`Execution::stop`].
    pub async fn stop(&self) -> Result<(), SessionError> {
        self.sender.message(Kind::Input, &ClientInput::Stop)
    }

    /// From now on a context works, and may for so long ([`Duration::MAX`]: without end); `None`: it waits, and has its
    /// session's time.
    pub(crate) async fn allow(&self, time: Option<Duration>) -> Result<(), SessionError> {
        let ms = time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self.sender.message(Kind::Input, &ClientInput::ContextTime { ms })
    }

    /// As [`Execution::resize`].
    pub async fn resize(&self, size: Size) -> Result<(), SessionError> {
        self.sender.message(Kind::Input, &ClientInput::Resize(size))
    }
}

fn not_started(program: String, step: Step, errno: i32, tried: Option<Tried>) -> SessionError {
    let errno = Errno::from_raw_os_error(errno.clamp(1, 4095));
    match step {
        Step::Execute => SessionError::Execute { program, errno, tried },
        step => SessionError::Exec { program, step, errno, tried },
    }
}

fn refused(refusal: Refusal, exec: Option<&Exec>, program: String, stream: &Stream) -> SessionError {
    match refusal {
        Refusal::Failed { step, errno } => not_started(program, step, errno, None),
        Refusal::TimeoutAboveCeiling { ceiling_ms } => SessionError::TimeoutAboveCeiling {
            asked: format_duration(exec.and_then(|e| e.timeout).unwrap_or_default()),
            ceiling: format_duration(Duration::from_millis(ceiling_ms)),
        },
        other => other.into_error(stream.sender.link.id()),
    }
}

/// An outcome as the supervisor tells it.
pub(super) fn outcome(finished: &ExecutionEnd) -> Outcome {
    let ended = if libc::WIFSIGNALED(finished.status) {
        Ended::Signaled(libc::WTERMSIG(finished.status))
    } else {
        Ended::Exited(libc::WEXITSTATUS(finished.status))
    };
    Outcome {
        ended,
        reason: finished.reason,
        duration: Duration::from_micros(finished.duration_us),
        cpu: Duration::from_micros(finished.cpu_us),
        peak_memory: finished.peak_memory,
        denied: Vec::new(),
    }
}

/// What an execution wrote, and how it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Head and tail; where bytes were dropped between them, a line says so.
    pub stdout: Vec<u8>,
    /// The same of stderr.
    pub stderr: Vec<u8>,
    /// Bytes of stdout that are not here.
    pub stdout_dropped: u64,
    /// Bytes of stderr that are not here.
    pub stderr_dropped: u64,
    /// How the command ended and what it used.
    pub outcome: Outcome,
}

impl Output {
    /// Of what was captured, and of what never came.
    pub(crate) fn new(captures: [Capture; 2], skipped: [u64; 2], outcome: Outcome) -> Output {
        let [out, err] = captures.each_ref().map(Capture::dropped);
        let (stdout_dropped, stderr_dropped) = (out.saturating_add(skipped[0]), err.saturating_add(skipped[1]));
        let [stdout, stderr] =
            captures.map(|capture| capture.into_bytes(|dropped| format!("\n[{dropped} bytes dropped]\n")));
        Output { stdout, stderr, stdout_dropped, stderr_dropped, outcome }
    }

    /// Its exit code; `None` when a signal ended it.
    pub fn exit_code(&self) -> Option<i32> {
        match self.outcome.ended {
            Ended::Exited(code) => Some(code),
            Ended::Signaled(_) => None,
        }
    }
}
