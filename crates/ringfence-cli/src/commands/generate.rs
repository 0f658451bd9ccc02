//! Completions and the manual page, from the same definitions as the help.

use std::process::ExitCode;

use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::failure::Failure;
use crate::output;

pub fn completions(shell: clap_complete::Shell) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ringfence", &mut text);
    output::bytes(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The page of the program, followed by those of its subcommands.
pub fn man() -> Result<ExitCode, Failure> {
    let mut command = Cli::command();
    command.build();
    let mut text = Vec::new();
    page(command, &mut text).map_err(|error| Failure::output(&error))?;
    output::bytes(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn page(command: Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    let below: Vec<Command> = command.get_subcommands().filter(|c| c.get_name() != "help").cloned().collect();
    clap_mangen::Man::new(command).render(text)?;
    below.into_iter().try_for_each(|command| page(command, text))
}
