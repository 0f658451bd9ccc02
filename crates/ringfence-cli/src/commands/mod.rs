//! One module for each subcommand.

pub mod check;
pub mod code;
pub mod config;
pub mod context;
pub mod doctor;
pub mod explain;
pub mod generate;
pub mod history;
#[cfg(feature = "docker")]
pub mod image;
pub mod install;
pub mod mcp;
pub mod requirements;
pub mod run;
pub mod session;
pub mod skill;
pub mod trust;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use ringfence::policy::suggest::Suggestion;

use crate::args::{Cli, switches};
use crate::failure::{Failure, Kind};
use crate::output;

/// Says what is wrong with the command line, or prints the help that was asked for.
pub fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return match output::data(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => ExitCode::from(failure.kind.exit_code()),
        };
    }
    let hint = hint(error, std::env::args_os().skip(1));
    // A flag that is not ours is hardly ever meant for the command.
    let lines = text.lines().filter(|line| !line.starts_with("  tip: to pass '-"));
    // What we know better, clap need not guess.
    let guess = |line: &str| match error.kind() {
        ErrorKind::UnknownArgument => line.starts_with("  tip: a similar argument") || line.starts_with("Usage:"),
        _ => line.starts_with("  tip: a similar value"),
    };
    let lines = lines.filter(|line| hint.is_none() || !guess(line));
    let mut said: String = lines.map(|line| line.replacen("  tip: ", "hint: ", 1) + "\n").collect();
    if let Some(hint) = &hint {
        let at = said.find("\n\n").map_or(said.len(), |at| at + 1);
        said.insert_str(at, &format!("hint: {hint}\n"));
    }
    while said.contains("\n\n\n") {
        said = said.replace("\n\n\n", "\n\n");
    }
    output::say(said.trim_end());
    if asked_for_json() {
        let failure = in_words(&text, hint);
        if std::env::args_os().nth(1).is_some_and(|name| name == "run") {
            // Said on stderr already.
            let _ = output::json(&run::Summary::failed(&failure));
        } else {
            failed_in_json(&failure);
        }
    }
    ExitCode::from(Kind::Usage.exit_code())
}

/// The same without layout: what is wrong, which may take a list, and what helps.
fn in_words(text: &str, hint: Option<String>) -> Failure {
    let words = |lines: &str| lines.split_whitespace().collect::<Vec<_>>().join(" ");
    let wrong = text.split("\n\n").next().unwrap_or_default();
    let tips =
        text.lines().filter_map(|line| line.strip_prefix("  tip: ")).filter(|tip| !tip.starts_with("to pass '-"));
    let failure = Failure::new(Kind::Usage, words(wrong.trim_start_matches("error: ")));
    tips.map(str::to_owned).chain(hint).fold(failure, Failure::hint)
}

/// Whether one JSON object was asked for, also on a command line that cannot be understood.
pub fn asked_for_json() -> bool {
    std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// A failure for programs. For people it is on stderr.
pub fn failed_in_json(failure: &Failure) {
    // Said on stderr already.
    let _ = output::json(&serde_json::json!({ "status": "failed", "error": failure.describe() }));
}

/// What was probably meant.
fn hint(error: &clap::Error, args: impl Iterator<Item = OsString>) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let line: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
            let asked = context(ContextKind::InvalidSubcommand)?;
            // `ringfence session lsit` is no command of the user's.
            let run = line.first().filter(|first| *first == asked);
            let run = run.map(|_| format!("to run it in a sandbox: ringfence run -- {}", line.join(" ")))?;
            if error.get(ContextKind::SuggestedSubcommand).is_some() {
                return Some(run);
            }
            let cli = Cli::command();
            match Suggestion::among(asked, cli.get_subcommands().map(clap::Command::get_name)) {
                // Short names are all near to each other.
                Suggestion::Nearest(name) if name.chars().next() == asked.chars().next() => {
                    Some(format!("did you mean `ringfence {name}`? {run}"))
                }
                _ => Some(run),
            }
        }
        ErrorKind::UnknownArgument => {
            let flag = context(ContextKind::InvalidArg)?.strip_prefix("--")?;
            let switches = switches();
            if let Some(switch) = flag.strip_prefix("no-").filter(|switch| switches.iter().any(|known| known == switch))
            {
                return Some(format!("write `--{switch}=false`"));
            }
            // Two letters say too little.
            let switch = switches.iter().find(|switch| flag.len() > 2 && switch.starts_with(flag))?;
            Some(format!("did you mean `--{switch}`?"))
        }
        ErrorKind::InvalidValue if context(ContextKind::InvalidArg)?.starts_with("--engine") => {
            let value = context(ContextKind::InvalidValue)?;
            // The program by whose name people know the engine.
            let engine = if value == "bwrap" { "bubblewrap" } else { value };
            match Suggestion::among(
                engine,
                ringfence::engines::all().into_iter().map(|engine| engine.name()).chain(["auto"]),
            ) {
                Suggestion::Nearest(name) => Some(format!("did you mean `{name}`?")),
                Suggestion::OneOf(_) => None,
            }
        }
        _ => None,
    }
}
