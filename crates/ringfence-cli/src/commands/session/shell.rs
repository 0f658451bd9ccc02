//! `ringfence session shell`: our terminal, carried to one of the session's own.

use std::process::ExitCode;

use ringfence::Outcome;
use ringfence::records::Caller;
use ringfence::session::{Controls, Event, Exec, Execution, SessionError, Size};
use ringfence_linux::sys;
use rustix::io::Errno;

use super::super::run;
use super::exec::{Signals, Watched, ended_by, pass_stdin, write};
use crate::args::SessionShell;
use crate::companions::terminal::{self, RawMode};
use crate::failure::{Failure, Kind};
use crate::output;

pub fn shell(args: &SessionShell) -> Result<ExitCode, Failure> {
    if !terminal::at_both_ends() {
        return Err(Failure::new(Kind::Usage, "a shell needs a terminal")
            .hint("`ringfence session exec SESSION -- COMMAND` needs none"));
    }
    let signals = take_signals()?;
    let since = run::file_clock();
    super::within(async |sessions| {
        let mut signals = signals.watch()?;
        let shells: [&[std::ffi::OsString]; 2] =
            if args.command.is_empty() { [&["bash".into()], &["sh".into()]] } else { [&args.command, &args.command] };
        let exec = |argv: &[std::ffi::OsString]| {
            let mut exec = Exec::new(argv.to_vec()).terminal(size()).caller(Caller::of_this_process());
            if let Some(term) = std::env::var_os("TERM") {
                exec = exec.env("TERM", term);
            }
            args.cwd.iter().fold(exec, |exec, cwd| exec.cwd(cwd))
        };
        let mut begin = std::pin::pin!(async {
            let session = sessions.open(&args.session).await?;
            match session.exec(exec(shells[0])).await {
                Err(SessionError::Execute { errno: Errno::NOENT, .. }) => session.exec(exec(shells[1])).await,
                result => result,
            }
        });
        let execution = loop {
            tokio::select! {
                execution = &mut begin => break execution?,
                signal = signals.next() => match signal {
                    // What may run by now ends with us.
                    libc::SIGTERM | libc::SIGHUP | libc::SIGINT | libc::SIGQUIT => return Ok(ended_by(signal)),
                    libc::SIGTSTP => sys::pause(None).map_err(failed)?,
                    _ => {}
                },
            }
        };
        // It may have changed since it was asked for.
        execution.resize(size()).await?;
        let session = execution.session().to_owned();
        let outcome = carry(execution, signals).await?;
        if let Some(note) = super::note(&outcome, None) {
            output::say(&note);
        }
        super::say_changed(&sessions, &session, Some(since)).await;
        Ok(ExitCode::from(run::exit_code(&outcome)))
    })
}

/// Signals that mean something for a terminal that is carried.
pub fn take_signals() -> Result<Signals, Failure> {
    let ends = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
    Signals::take(&[&[libc::SIGWINCH, libc::SIGTSTP, libc::SIGCONT][..], &ends].concat())
}

/// Carries our terminal to that of an execution, until it has ended.
pub async fn carry(mut execution: Execution, mut signals: Watched) -> Result<Outcome, Failure> {
    let mut raw = RawMode::default();
    raw.enter();
    // The session's terminal knows what keys mean.
    tokio::spawn(pass_stdin(execution.controls()));
    let outcome = loop {
        tokio::select! {
            event = execution.next() => match event? {
                Some(Event::Stdout(bytes) | Event::Stderr(bytes)) => write(false, &bytes)?,
                Some(Event::Ended(outcome)) => break outcome,
                None => return Err(Failure::new(Kind::Session, "the command ended without a word")),
            },
            signal = signals.next() => on_signal(signal, &mut raw, &execution.controls()).await?,
        }
    };
    raw.leave();
    Ok(outcome)
}

async fn on_signal(signal: i32, raw: &mut RawMode, controls: &Controls) -> Result<(), Failure> {
    match signal {
        libc::SIGTSTP => {
            raw.leave();
            sys::pause(None).map_err(failed)?;
            raw.enter();
            controls.resize(size()).await?;
        }
        libc::SIGCONT => raw.enter(),
        libc::SIGWINCH => controls.resize(size()).await?,
        // Our terminal is gone, or somebody wants us to go.
        _ => controls.stop().await?,
    }
    Ok(())
}

pub fn size() -> Size {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    size.map_or(Size { rows: 24, columns: 80 }, |size| Size { rows: size.ws_row, columns: size.ws_col })
}

fn failed(errno: Errno) -> Failure {
    Failure::new(Kind::Session, format!("cannot use the terminal: {errno}"))
}
