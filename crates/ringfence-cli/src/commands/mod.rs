//! One module for each subcommand.

pub mod check;
pub mod config;
pub mod doctor;
pub mod explain;
pub mod generate;
pub mod history;
pub mod run;
pub mod session;
pub mod trust;

use std::process::ExitCode;

use crate::failure::{Failure, Kind};
use crate::output;

/// Says what is wrong with the command line, or prints the help that was asked for.
pub fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string().replace("\n  tip: ", "\nhint: ");
    if error.use_stderr() {
        output::say(text.trim_end());
        if std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json") {
            let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            let failure = Failure::new(Kind::Usage, message);
            // Said on stderr already.
            let _ = output::json(&run::Summary::failed(failure.describe()));
        }
        return ExitCode::from(Kind::Usage.exit_code());
    }
    match output::data(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.kind.exit_code()),
    }
}
