//! `ringfence session exec`: one command, with its output as it comes, or as one JSON object.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use ringfence::Outcome;
use ringfence::records::Caller;
use ringfence::session::{Controls, Event, Exec, Execution, SessionError, Tried};
use ringfence_linux::sys;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

use super::super::run::{self, Summary};
use crate::args::SessionExec;
use crate::failure::{Failure, Kind};
use crate::output;

pub fn exec(args: &SessionExec) -> Result<ExitCode, Failure> {
    let mut missed = Missed::default();
    let result = execute(args, &mut missed);
    if let (Err(failure), true) = (&result, args.json) {
        let session = crate::host::here()?.sessions()?.id(&args.session).ok();
        let summary = Summary::failed_in(session, missed.tried, failure);
        output::json(&if missed.lost { summary.lost() } else { summary })?;
    }
    result
}

/// What is known of a command that did not begin as far as we heard.
#[derive(Default)]
struct Missed {
    /// It could not be started.
    tried: Option<Tried>,
    /// It may have run.
    lost: bool,
}

impl Missed {
    fn by(error: &SessionError) -> Missed {
        Missed { tried: error.tried().cloned(), lost: matches!(error, SessionError::CommandLost { .. }) }
    }
}

fn execute(args: &SessionExec, missed: &mut Missed) -> Result<ExitCode, Failure> {
    let mut exec = Exec::new(args.command.clone()).stdin(args.stdin).background(args.background);
    exec = exec.caller(Caller::of_this_process());
    for (name, value) in super::variables(&args.env) {
        exec = exec.env(name, value);
    }
    if let Some(cwd) = &args.cwd {
        exec = exec.cwd(cwd);
    }
    if let Some(timeout) = args.timeout {
        exec = exec.timeout(timeout);
    }
    // Taken over before the command runs, so that none is lost.
    let signals = take_signals()?;
    let since = run::file_clock();
    super::within_at_last(async |sessions| {
        let mut signals = signals.watch()?;
        // It may run before we know: then it gets the signal. A second ends us, and so does one that nothing comes of.
        let (mut begin, mut asked) = (std::pin::pin!(sessions.exec(&args.session, exec)), None);
        let execution = loop {
            tokio::select! {
                execution = &mut begin => break execution.inspect_err(|error| *missed = Missed::by(error))?,
                signal = signals.next() => match asked.replace(signal) {
                    None => {}
                    Some(_) => return Ok(ended_by(signal)),
                },
                signal = wait_with(asked) => return Ok(ended_by(signal)),
            }
        };
        if let Some(signal) = asked {
            // It may have ended this moment.
            let _ = execution.controls().signal(signal).await;
        }
        if let Some(trouble) = execution.trouble() {
            output::say(&format!("warning: commands of this session are not recorded: {trouble}"));
        }
        if args.background {
            if args.json {
                let (session, id, record) = (execution.session(), execution.id(), execution.record());
                let started =
                    serde_json::json!({ "record": record, "status": "running", "session": session, "execution": id });
                output::json(&started)?;
            } else {
                output::data(&format!("{}\n", execution.id()))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        tokio::spawn(pass_signals(signals, execution.controls()));
        if args.stdin {
            tokio::spawn(pass_stdin(execution.controls()));
        }
        let (session, id) = (execution.session().to_owned(), execution.id().to_owned());
        let record = execution.record().map(str::to_owned);
        let outcome = if args.json {
            let output = execution.output().await?;
            let outcome = output.outcome.clone();
            output::json(&Summary::of_session(output, &session, &id, record))?;
            outcome
        } else {
            follow(execution).await?
        };
        if let Some(note) = super::note(&outcome, args.timeout) {
            output::say(&note);
        }
        super::say_changed(&sessions, &session, Some(since)).await;
        Ok(ExitCode::from(run::exit_code(&outcome)))
    })
}

/// Gives a command that may be running the time to say so.
async fn wait_with(asked: Option<i32>) -> i32 {
    match asked {
        Some(signal) => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            signal
        }
        None => std::future::pending().await,
    }
}

/// As a program ends that a signal ended.
pub fn ended_by(signal: i32) -> ExitCode {
    ExitCode::from(128u8.saturating_add(signal as u8))
}

/// Passes bytes on.
pub fn write(stderr: bool, bytes: &[u8]) -> Result<(), Failure> {
    let result = if stderr {
        std::io::stderr().lock().write_all(bytes)
    } else {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush())
    };
    match result {
        // As a program ends that writes to a pipe which nobody reads: without a word.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(128 + libc::SIGPIPE),
        result => result.map_err(|error| Failure::output(&error)),
    }
}

/// Writes what comes until it has ended. That nobody reads it any more ends it.
pub async fn follow(mut execution: Execution) -> Result<Outcome, Failure> {
    loop {
        match execution.next().await? {
            Some(Event::Stdout(bytes)) => write(false, &bytes)?,
            Some(Event::Stderr(bytes)) => write(true, &bytes)?,
            Some(Event::Ended(outcome)) => return Ok(outcome),
            None => return Err(Failure::new(Kind::Session, "the execution ended without a word")),
        }
    }
}

/// Our standard input, read by a thread of its own: it may be anything, and reading it may wait forever.
pub async fn pass_stdin(controls: Controls) {
    let (sender, mut receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match std::io::stdin().lock().read(&mut buffer) {
                Ok(n) if n > 0 => {
                    if sender.blocking_send(buffer[..n].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    });
    while let Some(bytes) = receiver.recv().await {
        if controls.write(&bytes).await.is_err() {
            return;
        }
    }
    // The session may have ended this moment.
    let _ = controls.close_stdin().await;
}

/// Signals that are passed on to a command.
pub fn take_signals() -> Result<Signals, Failure> {
    Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2])
}

/// Signals that we receive on behalf of the command.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks them from now on; those that were ignored from the start stay so.
    pub fn take(wanted: &[i32]) -> Result<Signals, Failure> {
        let wanted: Vec<i32> = wanted.iter().copied().filter(|signal| !sys::is_ignored(*signal)).collect();
        let failed = |errno| Failure::new(Kind::Session, format!("cannot wait for signals: {errno}"));
        sys::signal_fd(&wanted).map(Signals).map_err(failed)
    }

    /// To wait for them, within a runtime.
    pub fn watch(self) -> Result<Watched, Failure> {
        let failed = |error| Failure::new(Kind::Session, format!("cannot wait for signals: {error}"));
        // It is read as a pipe is.
        Receiver::from_owned_fd_unchecked(self.0).map(Watched).map_err(failed)
    }
}

/// Signals as they come.
pub struct Watched(Receiver);

impl Watched {
    /// The next one; none is lost when this is not waited for to its end.
    pub async fn next(&mut self) -> i32 {
        let mut about = [0; size_of::<libc::signalfd_siginfo>()];
        loop {
            match self.0.try_read(&mut about) {
                // The number comes first.
                Ok(4..) => return i32::from_ne_bytes([about[0], about[1], about[2], about[3]]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && self.0.readable().await.is_ok() => {}
                // The runtime ends, and we with it.
                _ => std::future::pending().await,
            }
        }
    }
}

/// Hands signals to the command. The second request to end is carried out, whatever the command thinks of it.
pub async fn pass_signals(mut signals: Watched, controls: Controls) {
    let mut asked = false;
    loop {
        let signal = signals.next().await;
        let ends = matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP);
        // It may have ended this moment.
        let _ = if ends && asked { controls.stop().await } else { controls.signal(signal).await };
        asked |= ends;
    }
}
