//! `ringfence install`: makes the MCP server known to an agent, by one entry in the agent's own file.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use similar::TextDiff;

use crate::args::Install;
use crate::client_file::ClientFile;
use crate::clients::Scope;
use crate::entry;
use crate::failure::{Failure, Kind};
use crate::output;

pub fn install(args: &Install) -> Result<ExitCode, Failure> {
    let host = crate::host::here()?;
    let (facts, project) = (host.facts()?, host.workdir(None)?);
    let target = args.client.target(args.scope, &facts, &project);
    let file = ClientFile::open(&target)?;
    let path = file.path();
    let edited = match args.remove {
        true => entry::take(target.form, file.text()),
        false => {
            let program = std::env::current_exe()
                .map_err(|error| Failure::new(Kind::Config, format!("cannot tell where this program lies: {error}")))?;
            entry::put(target.form, file.text(), &args.client.entry(args.scope, &program))
        }
    };
    let new = edited.map_err(|error| {
        let message = format!("cannot edit `{}`: {error}", path.display());
        Failure::new(Kind::Config, message).hint("repair the file first; it was not touched")
    })?;
    if new == file.text() {
        let said = if args.remove { "is not in" } else { "is already in" };
        output::say(&format!("ringfence: the entry {said} `{}`", path.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let name = path.display().to_string();
    let diff = TextDiff::from_lines(file.text(), new.as_str()).unified_diff().header(&name, &name).to_string();
    if args.dry_run {
        output::data(&diff)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::say(diff.trim_end());
    if !args.yes && !ask()? {
        output::say("ringfence: nothing was written");
        return Ok(ExitCode::FAILURE);
    }
    let mode = if args.scope == Scope::User { 0o600 } else { 0o644 };
    file.replace(&new, mode)?;
    let client = args.client.name();
    output::say(&match args.remove {
        true => format!("ringfence: written; {client} forgets it with its next start"),
        false => format!("ringfence: written; {client} finds it with its next start"),
    });
    Ok(ExitCode::SUCCESS)
}

fn ask() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        let message = "cannot ask whether to write it: stdin is not a terminal";
        return Err(Failure::new(Kind::Usage, message).hint("look at the change, then use --yes"));
    }
    output::prompt("Write it? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::output(&error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
