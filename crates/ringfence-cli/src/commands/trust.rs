//! `ringfence trust`: allows what a project's file would loosen, as it is now.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ringfence::host::{Entry, Links, PROJECT_FILE, TrustStore, read};

use crate::args::Trust;
use crate::failure::{Failure, HELD, Kind};
use crate::output;

pub fn trust(args: &Trust) -> Result<ExitCode, Failure> {
    let host = crate::host::here()?;
    let mut store = TrustStore::read(host.directories()?)?;
    if args.list && args.json {
        let entry = |entry: &Entry| serde_json::json!({ "path": entry.path.to_string_lossy(), "hash": entry.hash });
        output::json(&serde_json::json!({ "trusted": store.entries().iter().map(entry).collect::<Vec<_>>() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        if store.entries().is_empty() {
            output::say("ringfence: no file is trusted");
        }
        let lines = store
            .entries()
            .iter()
            .map(|entry| format!("{} {}\n", entry.hash, output::one_line(&entry.path.to_string_lossy())));
        output::data(&lines.collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = project_file(args.file.as_deref())?;
    if args.remove {
        let said = if store.remove(&path)? { "is not trusted any more" } else { "was not trusted" };
        output::say(&format!("ringfence: `{}` {said}", path.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let Some(text) = read(&path, Links::Refuse)? else {
        let failure = Failure::new(Kind::Config, format!("cannot trust `{}`: it does not exist", path.display()));
        return Err(if path.is_dir() { failure.hint(HELD) } else { failure });
    };
    let loosened = host.loosened(&path, &text)?;
    if loosened.is_empty() {
        output::say(&format!("ringfence: `{}` loosens nothing, and needs no trust", path.display()));
        return Ok(ExitCode::SUCCESS);
    }
    output::say(&format!("`{}` would loosen the sandbox:", path.display()));
    for loosening in &loosened {
        output::say(&format!("  {loosening}"));
    }
    if !args.yes && !ask()? {
        output::say("ringfence: not trusted");
        return Ok(ExitCode::FAILURE);
    }
    store.add(&path, &text)?;
    output::say("ringfence: trusted, until the file is changed");
    Ok(ExitCode::SUCCESS)
}

/// The file that is meant, by its real directory; a link in its own place is not followed.
fn project_file(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    let asked = asked.unwrap_or(Path::new(PROJECT_FILE));
    // A sandbox that runs in the project holds the name with a directory.
    let is_project = asked.is_dir() && asked.file_name() != Some(PROJECT_FILE.as_ref());
    let path = if is_project { asked.join(PROJECT_FILE) } else { asked.to_path_buf() };
    if path.file_name() != Some(PROJECT_FILE.as_ref()) {
        let message = format!("`{}` is not a project's `{PROJECT_FILE}`", path.display());
        return Err(Failure::new(Kind::Usage, message).hint("a file named with --config is trusted as it is"));
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let real = dir
        .canonicalize()
        .map_err(|error| Failure::new(Kind::Config, format!("cannot look up `{}`: {error}", dir.display())))?;
    Ok(real.join(PROJECT_FILE))
}

fn ask() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        let message = "cannot ask whether to trust it: stdin is not a terminal";
        return Err(Failure::new(Kind::Usage, message).hint("read the file, then use --yes"));
    }
    output::prompt("Trust it as it is now? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::output(&error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
