//! Flags, files and facts of this host become a resolved policy.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use ringfence::engines::{self, Seed};
use ringfence::policy::facts::Facts;
use ringfence::policy::layers::{self, Inputs, Resolved};
use ringfence::policy::look::Lookup;
use ringfence::policy::plan::PlanError;
use ringfence::policy::profiles::{self, EngineChoice};
use ringfence::policy::rules::LayerKind;
use ringfence::policy::{config, git};

use crate::args::PolicyFlags;
use crate::failure::{Failure, Kind};
use crate::files::{self, Links, PROJECT_FILE, Places};
use crate::output;
use crate::trust::TrustStore;

/// Everything that a command line means here and now.
#[derive(Debug)]
pub struct Situation {
    pub facts: Facts,
    pub resolved: Resolved,
    /// Where records are kept.
    pub records: PathBuf,
    /// What was looked up to judge the project's file, and what the plan is made with.
    pub lookup: Lookup,
    /// What was begun before the policy was known, for whoever makes the box.
    pub seed: RefCell<Option<Seed>>,
}

impl Situation {
    /// For a box that is made at once.
    pub fn of_a_box(flags: &PolicyFlags) -> Result<Situation, Failure> {
        let native = matches!(flags.engine, None | Some(EngineChoice::Auto | EngineChoice::Native));
        let profile = flags.profile.as_deref().unwrap_or(profiles::DEFAULT);
        let seed = if native { engines::guess(profile, flags.network) } else { None };
        Ok(Situation { seed: RefCell::new(seed), ..Situation::gather(flags)? })
    }

    pub fn gather(flags: &PolicyFlags) -> Result<Situation, Failure> {
        let layer = flags.layer()?;
        let mut facts = ringfence::facts::gather()?;
        let places = Places::new(&facts);
        facts.spare = Some(places.state.join("spare"));
        let workdir = workdir(flags.cwd.as_deref())?;
        let mut inputs = Inputs::new(workdir, facts.home.clone(), layer);
        inputs.other_homes = facts.other_homes(&inputs.workdir);
        read_files(&mut inputs, flags.config.as_deref(), &places)?;
        let records = places.records();
        inputs.records_dir = Some(records.clone());
        inputs.own_dirs = places.own_dirs(&inputs.other_homes);
        inputs.sessions_dirs = places.closed_dirs(facts.uid, &inputs.other_homes);
        inputs.git = git::Outer::new(&facts.home, &facts.env);
        inputs.other_homes.iter().for_each(|home| inputs.git.add_home(home));
        let lookup = Lookup::of_places(&facts.home, &inputs.workdir);
        let resolved = layers::resolve_with(&lookup, inputs)?;
        Ok(Situation { facts, resolved, lookup, records, seed: RefCell::default() })
    }

    /// Names the file and the line of what is wrong, where a setting is.
    pub fn explain_plan_error(&self, error: PlanError) -> Failure {
        let PlanError::Wrapper { program, .. } = &error else { return error.into() };
        let key = format!("commands.{program}");
        let value = self.resolved.values().into_iter().find(|value| value.key == key);
        let place = value.map_or_else(String::new, |value| format!("{}: ", value.origin));
        Failure::new(Kind::Config, format!("{place}{error}")).hint("name an executable file, or leave the line away")
    }

    /// What the user should know before anything starts.
    pub fn warn(&self, verbose: bool) {
        for warning in &self.resolved.warnings {
            output::say(&format!("warning: {warning}"));
        }
        if verbose {
            for loosening in &self.resolved.loosened {
                output::say(&format!("ringfence: trusted: {loosening}"));
            }
        }
    }
}

/// The effective working directory, links resolved.
pub fn workdir(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = asked.unwrap_or(Path::new("."));
    let fail = |error: std::io::Error| {
        let failure = Failure::new(Kind::Policy, format!("cannot work in `{}`: {error}", path.display()));
        failure.hint("name a directory that exists with -C DIR")
    };
    // Where the kernel says we are, there are no links on the way.
    let here = std::env::current_dir().ok().filter(|here| asked.is_none() && here.is_absolute());
    let real = here.map_or_else(|| path.canonicalize(), Ok).map_err(fail)?;
    if real.is_dir() { Ok(real) } else { Err(fail(std::io::ErrorKind::NotADirectory.into())) }
}

fn read_files(inputs: &mut Inputs, named: Option<&Path>, places: &Places) -> Result<(), Failure> {
    let global = places.global_file();
    if let Some(text) = files::read(&global, Links::Follow)? {
        inputs.global = Some(config::parse(&text, &global.display().to_string(), LayerKind::Global)?);
    }
    if let Some(path) = named {
        let Some(text) = files::read(path, Links::Follow)? else {
            return Err(Failure::new(Kind::Config, format!("cannot read `{}`: it does not exist", path.display())));
        };
        inputs.project = Some(config::parse(&text, &path.display().to_string(), LayerKind::Project)?);
        // The user named it.
        inputs.project_trusted = true;
        return Ok(());
    }
    let path = inputs.workdir.join(PROJECT_FILE);
    if let Some(text) = files::read(&path, Links::Refuse)? {
        inputs.project = Some(config::parse(&text, &path.display().to_string(), LayerKind::Project)?);
        inputs.project_trusted = TrustStore::read(places)?.trusts(&path, &text);
    }
    Ok(())
}
