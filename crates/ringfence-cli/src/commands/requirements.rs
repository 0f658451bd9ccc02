//! `--requirements`: packages are installed once and kept; `ringfence requirements` lists and removes them.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;

use ringfence::Engine;
use ringfence::code::Language;
use ringfence::code::requirements::{Built, Found, Installed, Kept, Requirements, Store};

use crate::args::{self, Required};
use crate::commands::code::{language, read_source, seen, signals};
use crate::commands::context::cancelled_by;
use crate::commands::history;
use crate::commands::session::{fetch_image, within};
use crate::failure::{Failure, Kind};
use crate::files::Places;
use crate::output::{self, one_line};
use crate::record::Entry;
use crate::situation::Situation;

pub fn requirements(command: &args::Requirements) -> Result<ExitCode, Failure> {
    let store = Store::new(Places::here()?.requirements());
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
    Ok(Store::new(Places::here()?.requirements()).clear()?)
}

/// What a command line asks for.
pub fn read(language: &Language, required: &Required) -> Result<Option<Requirements>, Failure> {
    let read = |path: &std::path::PathBuf| Ok(Requirements::new(language, read_source(path)?, required.index.clone())?);
    required.requirements.as_ref().map(read).transpose()
}

/// Installs what a command line asks for, and has all sandboxes of its policy show it. The file says which language it is for.
pub fn install_for_all(required: &Required, situation: &mut Situation) -> Result<Option<Installed>, Failure> {
    let Some(path) = &required.requirements else { return Ok(None) };
    let lock = path.extension().is_some_and(|extension| extension == "json");
    let language = language(if lock { "javascript" } else { "python" })?;
    let Some(wanted) = read(language, required)? else { return Ok(None) };
    let installed = install(language, &wanted, situation, signals()?.as_fd())?;
    installed.show_all(language, &mut situation.resolved.policy)?;
    Ok(Some(installed))
}

/// Packages that are there already, or are installed now, which is recorded as every execution is.
pub fn install(
    language: &'static Language,
    wanted: &Requirements,
    situation: &Situation,
    cancel: BorrowedFd<'_>,
) -> Result<Installed, Failure> {
    let (policy, engine) = (&situation.resolved.policy, situation.resolved.engine);
    let store = Store::new(Places::new(&situation.facts).requirements());
    fetch_image(situation)?;
    let build = match store.find(language, wanted, policy, &situation.facts, engine, Some(cancel))? {
        Found::Installed(installed) => return Ok(installed),
        Found::Missing(build) => build,
    };
    output::say("ringfence: installing the requirements, in a sandbox of their own");
    let command: Vec<OsString> = build.command().to_vec();
    let mut report = build.report.clone();
    let entry = Entry::begin(situation, &command, None, build.engine, &build.plan, &mut report)?;
    let built = match build.engine {
        Engine::Docker => within(async |sessions| {
            let cancelled = cancelled_by(cancel)?;
            Ok(build.run_in(&sessions, &situation.facts, cancelled).await?)
        }),
        _ => build.run(&situation.facts, Some(cancel)).map_err(Failure::from),
    };
    match built {
        Ok(Built { installed, outcome, captures }) => {
            entry.end(&outcome, seen(&captures, policy.records.output), &mut report);
            Ok(installed?)
        }
        Err(failure) => Err(entry.failed(failure)),
    }
}
