//! The `ringfence` program: arguments, output, exit codes.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod client_file;
mod clients;
mod commands;
mod companions;
mod entry;
mod failure;
mod guard;
mod host;
mod output;
mod report;

use std::process::ExitCode;

use args::{Cli, Command, Config};
use failure::Failure;
use ringfence::facts::inside_sandbox;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: ringfence_linux::Allocator = ringfence_linux::Allocator;

fn main() -> ExitCode {
    ringfence_linux::sys::keep_ended_children();
    if let Some(code) = guard::stand() {
        return code;
    }
    if let Some(code) = commands::session::supervise().or_else(commands::skill::scanner_inside) {
        return code;
    }
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR") {
        ringfence_linux::scope::allow(runtime.into());
    }
    let command = match Cli::read() {
        Ok(cli) => cli.command,
        Err(error) => return commands::usage(&error),
    };
    let says_itself = command.says_its_failure();
    dispatch(command).unwrap_or_else(|failure| {
        let failure = failure.inside(inside_sandbox());
        output::say(&failure.render());
        if !says_itself && commands::asked_for_json() {
            commands::failed_in_json(&failure);
        }
        ExitCode::from(failure.kind.exit_code())
    })
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(run) => commands::run::run(&run),
        Command::Code(code) => commands::code::run(*code),
        Command::Skill(skill) => commands::skill::skill(skill),
        Command::Requirements(command) => commands::requirements::requirements(&command),
        Command::Context(context) => commands::context::context(&context),
        Command::Session(session) => commands::session::session(&session),
        Command::Gc { json } => commands::session::gc(json),
        #[cfg(feature = "docker")]
        Command::Image(command) => commands::image::image(&command),
        Command::Check(check) => commands::check::check(&check),
        Command::Doctor(doctor) => commands::doctor::doctor(&doctor),
        Command::Config(Config::Show(show)) => commands::config::show(&show),
        Command::History(history) => commands::history::history(&history),
        Command::Explain(explain) => commands::explain::explain(&explain),
        Command::Trust(trust) => commands::trust::trust(&trust),
        Command::Install(install) => commands::install::install(&install),
        Command::Mcp(mcp) => commands::mcp::mcp(&mcp),
        Command::Completions { shell } => commands::generate::completions(shell),
        Command::Man => commands::generate::man(),
    }
}
