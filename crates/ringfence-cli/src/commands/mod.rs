//! One module for each subcommand.

pub mod run;

use std::process::ExitCode;

use crate::failure::Kind;
use crate::output;

/// Says what is wrong with the command line, or prints the help that was asked for.
pub fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string().replace("\n  tip: ", "\nhint: ");
    if error.use_stderr() {
        output::say(text.trim_end());
        return ExitCode::from(Kind::Usage.exit_code());
    }
    match output::data(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.kind.exit_code()),
    }
}
