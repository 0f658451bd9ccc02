//! `--requirements`: packages are installed once and kept; `ringfence requirements` lists and removes them.

use std::os::fd::AsFd;
use std::process::ExitCode;

use ringfence::Sandbox;
use ringfence::code::Language;
use ringfence::code::requirements::{Installed, Kept, Requirements, Store};

use crate::args::{self, Required};
use crate::commands::code::{language, read_source, signals};
use crate::commands::history;
use crate::failure::{Failure, Kind};
use crate::output::{self, one_line};

pub fn requirements(command: &args::Requirements) -> Result<ExitCode, Failure> {
    let store = Store::new(crate::host::here()?.directories()?.requirements());
    match command {
        args::Requirements::List { json } => {
            let kept = store.list()?;
            if *json {
                output::json(&serde_json::json!({ "requirements": kept }))?;
            } else {
                output::data(&rows(&kept))?;
            }
        }
        args::Requirements::Rm { ids, all } => {
            let ids = if *all { store.list()?.into_iter().map(|kept| kept.id).collect() } else { ids.clone() };
            for id in &ids {
                if !store.remove(id)? && !all {
                    let message = format!("nothing is installed as `{id}`, or code uses it now");
                    return Err(Failure::new(Kind::Usage, message).hint("`ringfence requirements list` shows all"));
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(kept: &[Kept]) -> String {
    let head = ["ID", "LANGUAGE", "IMAGE", "INSTALLED", "SIZE", "REQUIREMENTS"].map(str::to_owned);
    let row = |kept: &Kept| {
        let (time, size) = (history::time(kept.installed), format!("{} KiB", kept.bytes >> 10));
        // As `docker image ls` shows it.
        let image = kept.image.as_deref().map(|id| id.trim_start_matches("sha256:").chars().take(12).collect());
        let image = image.unwrap_or_else(|| "-".to_owned());
        [kept.id.clone(), kept.language.clone(), image, time, size, one_line(&kept.requirements)]
    };
    let rows: Vec<_> = std::iter::once(head).chain(kept.iter().map(row)).collect();
    output::table(&rows)
}

/// Clears what was left of installations that were killed. How many those were.
pub fn clear() -> Result<usize, Failure> {
    Ok(Store::new(crate::host::here()?.directories()?.requirements()).clear()?)
}

/// What a command line asks for.
pub fn read(language: &Language, required: &Required) -> Result<Option<Requirements>, Failure> {
    let read = |path: &std::path::PathBuf| {
        // A pipe in a project would keep the program waiting. One of the shell's own has a name in `/dev/fd`.
        let own = path.as_os_str() == "-" || path.starts_with("/dev") || path.starts_with("/proc/self/fd");
        if !own && std::fs::metadata(path).is_ok_and(|data| !data.is_file()) {
            return Err(Failure::new(Kind::Usage, format!("`{}` is not a regular file", path.display())));
        }
        Ok(Requirements::new(language, read_source(path)?, required.index.clone())?)
    };
    required.requirements.as_ref().map(read).transpose()
}

/// Installs what a command line asks for, and has all sandboxes of its policy show it. The file says which language it is for.
pub fn install_for_all(required: &Required, sandbox: &mut Sandbox) -> Result<Option<Installed>, Failure> {
    let Some(path) = &required.requirements else { return Ok(None) };
    let lock = path.extension().is_some_and(|extension| extension == "json");
    let language = language(if lock { "javascript" } else { "python" })?;
    let Some(wanted) = read(language, required)? else { return Ok(None) };
    let installed = sandbox.install(language, &wanted, signals()?.as_fd())?;
    sandbox.change(|resolved, _| installed.show_all(language, &mut resolved.policy))??;
    Ok(Some(installed))
}
