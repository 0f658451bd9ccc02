//! Layers to policy: built-in profile → global file → the project's file → flags.
//!
//! The project's file comes with the project being worked on, so it may only tighten. Every setting is compared with what
//! the layers below it say before it is applied; one that loosens is refused until the user trusts the file. The
//! comparison takes [`Settings`] apart without `..`, so that a new key does not compile until it is decided here.

mod loosening;
mod stack;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

pub use loosening::Loosening;
use sha2::{Digest, Sha256};
use stack::Stack;
pub use values::Value;

use crate::git;
use crate::layer::{At, Definition, Layer};
use crate::look::Lookup;
use crate::policy::Policy;
use crate::presets::{Preset, Warning};
use crate::profiles::{self, EngineChoice, KnownEngine, Profile};
use crate::rules::{LayerKind, Origin, PathError};
use crate::service::ServiceSettings;
use crate::suggest::Suggestion;

/// What a policy is made of.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The user's configuration file.
    pub global: Option<Layer>,
    /// The project's `.ringfence.toml`, or the file of `--config` in its place.
    pub project: Option<Layer>,
    /// The user trusts this very content (or named the file on the command line).
    pub project_trusted: bool,
    /// What the command line or the program says.
    pub flags: Layer,
    /// The effective working directory: absolute and canonical.
    pub workdir: PathBuf,
    /// The caller's home directory: absolute and canonical.
    pub home: PathBuf,
    /// Homes that count besides `home` ([`Facts::other_homes`](crate::facts::Facts::other_homes)).
    pub other_homes: Vec<PathBuf>,
    /// Ringfence's own configuration and state on this host, which no box may change.
    pub own_dirs: Vec<PathBuf>,
    /// Configuration of git besides the repository's.
    pub git: git::Outer,
    /// Where records are kept, which no box may see.
    pub records_dir: Option<PathBuf>,
    /// Every place where sockets of sessions may be, which no box may see either.
    pub sessions_dirs: Vec<PathBuf>,
    /// The engines that can be named. Without them, names are taken as they are, and checked when an engine is selected.
    pub engines: Vec<KnownEngine>,
}

impl Inputs {
    /// No files, only flags.
    pub fn new(workdir: PathBuf, home: PathBuf, flags: Layer) -> Inputs {
        let git = git::Outer::new(&home, &BTreeMap::new());
        Inputs {
            global: None,
            project: None,
            project_trusted: false,
            flags,
            workdir,
            home,
            other_homes: Vec::new(),
            own_dirs: Vec::new(),
            git,
            records_dir: None,
            sessions_dirs: Vec::new(),
            engines: Vec::new(),
        }
    }
}

/// A policy and the settings of a service, and where everything in them comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// What the sandbox may do.
    pub policy: Policy,
    /// What a service does with it.
    pub service: ServiceSettings,
    /// The engine that is asked for.
    pub engine: EngineChoice,
    /// Where each value that is not the profile's own comes from, by key.
    origins: BTreeMap<String, Origin>,
    presets: Vec<Preset>,
    builtin: &'static Profile,
    /// What the project's file loosens, which holds because the user trusts it.
    pub loosened: Vec<Loosening>,
    /// What the presets found and the user should know.
    pub warnings: Vec<Warning>,
}

impl Resolved {
    /// A policy that was made by hand, with the service of the built-in profiles. Nothing is known of where values come from.
    pub fn by_hand(policy: Policy) -> Resolved {
        Resolved {
            builtin: profiles::builtin_or_default(&policy.profile),
            policy,
            service: ServiceSettings::default(),
            engine: EngineChoice::Auto,
            origins: BTreeMap::new(),
            presets: Vec::new(),
            loosened: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// Layers that make no policy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum LayerError {
    /// No profile has this name.
    #[error("{place}: unknown profile `{name}`{suggestion}")]
    UnknownProfile { place: String, name: String, suggestion: Suggestion },
    /// No engine has this name.
    #[error("{place}: unknown engine `{name}`{suggestion}")]
    UnknownEngine { place: String, name: String, suggestion: Suggestion },
    /// A profile extends itself, perhaps through others.
    #[error("{place}: profile `{name}` extends itself")]
    ProfileCycle { place: String, name: String },
    /// Two profiles have this name.
    #[error("{place}: profile `{name}` is already defined at {first}")]
    ProfileTwice { place: String, name: String, first: String },
    /// The path of a rule cannot be understood.
    #[error("{place}: {source}")]
    Path { place: String, source: PathError },
    /// The project's file allows more than the layers below, and is not trusted.
    #[error("`{file}` would loosen the sandbox, and you do not trust it yet{}", list(.loosenings))]
    Untrusted { file: String, loosenings: Vec<Loosening> },
    /// A rule hides the working directory.
    #[error("working directory `{}` lies in `{rule}`, which is excluded ({origin})", .workdir.display())]
    WorkdirExcluded { workdir: PathBuf, rule: String, origin: Origin },
    /// The time limit is above the longest that may be asked for.
    #[error(
        "{place}: a time limit of {timeout} is above the longest that may be asked for, {ceiling} ({ceiling_place})"
    )]
    TimeoutAboveCeiling { place: String, timeout: String, ceiling: String, ceiling_place: String },
}

fn list(loosenings: &[Loosening]) -> String {
    loosenings.iter().map(|loosening| format!("\n  {loosening}")).collect()
}

/// The hash by which the user's trust in a file is stored.
pub fn content_hash(bytes: &[u8]) -> String {
    let mut out = String::from("sha256:");
    for byte in Sha256::digest(bytes) {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Stacks the layers.
pub fn resolve(inputs: Inputs) -> Result<Resolved, LayerError> {
    resolve_with(&Lookup::default(), inputs)
}

/// As [`resolve`], with the lookup that the plan is then made with ([`plan_with`](crate::plan::plan_with)).
pub fn resolve_with(lookup: &Lookup, inputs: Inputs) -> Result<Resolved, LayerError> {
    let Inputs {
        global,
        project,
        project_trusted,
        flags,
        workdir,
        home,
        other_homes,
        own_dirs,
        git,
        records_dir,
        sessions_dirs,
        engines,
    } = inputs;
    let mut loosened = Vec::new();

    let definitions = definitions(global.as_ref(), project.as_ref())?;
    let chosen = choose_profile(global.as_ref(), project.as_ref(), &flags, &definitions, &mut loosened);
    let chain = profile_chain(&chosen.value, &definitions)?;

    let mut stack = Stack::new(lookup, chain.builtin, chosen.value.value.clone(), workdir, home, own_dirs);
    stack.other_homes = other_homes;
    stack.git = git;
    stack.engines = engines;
    stack.hidden_dirs = records_dir.into_iter().chain(sessions_dirs).collect();
    for (definition, kind) in chain.definitions.into_iter().rev() {
        stack.apply(&definition.settings, kind)?;
    }
    if let Some(global) = &global {
        stack.apply(&global.settings, LayerKind::Global)?;
    }
    if let Some(project) = &project {
        for definition in &project.profiles {
            let what = format!("defines profile `{}`", definition.name.value);
            loosened.push(Loosening { place: definition.name.place.clone(), what });
        }
        stack.loosenings(lookup, &project.settings, &mut loosened)?;
        if !project_trusted && !loosened.is_empty() {
            return Err(LayerError::Untrusted { file: project.name.clone(), loosenings: loosened });
        }
        stack.apply(&project.settings, LayerKind::Project)?;
    }
    stack.apply(&flags.settings, LayerKind::Flags)?;
    stack.origins.insert("profile".into(), chosen.origin());
    stack.finish(loosened)
}

/// Profiles that users define, each with the layer it stands in.
type Definitions<'a> = BTreeMap<&'a str, (&'a Definition, LayerKind)>;

fn definitions<'a>(global: Option<&'a Layer>, project: Option<&'a Layer>) -> Result<Definitions<'a>, LayerError> {
    let mut found: Definitions<'a> = BTreeMap::new();
    for layer in [global, project].into_iter().flatten() {
        for definition in &layer.profiles {
            let At { value: name, place } = &definition.name;
            if let Some((first, _)) = found.insert(name, (definition, layer.kind)) {
                let (place, first) = (place.clone(), first.name.place.clone());
                return Err(LayerError::ProfileTwice { place, name: name.clone(), first });
            }
        }
    }
    Ok(found)
}

struct Chosen {
    value: At<String>,
    layer: LayerKind,
}

impl Chosen {
    fn origin(&self) -> Origin {
        Origin { layer: self.layer, place: self.value.place.clone().into() }
    }
}

/// The latest layer that names a profile wins; the project's may only step down to a tighter one.
fn choose_profile(
    global: Option<&Layer>,
    project: Option<&Layer>,
    flags: &Layer,
    definitions: &Definitions<'_>,
    loosened: &mut Vec<Loosening>,
) -> Chosen {
    let of = |layer: &Layer| layer.profile.clone().map(|value| Chosen { value, layer: layer.kind });
    if let Some(chosen) = of(flags) {
        return chosen;
    }
    let below = global.and_then(of).unwrap_or_else(|| Chosen {
        value: At::new(profiles::DEFAULT.to_owned(), "built-in"),
        layer: LayerKind::Profile,
    });
    let Some(chosen) = project.and_then(of) else { return below };
    let (from, to) = (&below.value.value, &chosen.value.value);
    let tighter = profiles::builtin(from).is_some_and(|profile| profile.tighter.contains(&to.as_str()));
    // The tighter ones make the working directory writable by themselves.
    let is_base_removed = |layer: &Layer| {
        layer.settings.presets.iter().any(|at| at.value.remove && at.value.presets.contains(&Preset::Base))
    };
    let tighter = tighter && !global.is_some_and(is_base_removed);
    let known = profiles::builtin(to).is_some() || definitions.contains_key(to.as_str());
    if known && from != to && !tighter {
        let what = format!("chooses profile `{to}` instead of `{from}`");
        loosened.push(Loosening { place: chosen.value.place.clone(), what });
    }
    chosen
}

struct Chain<'a> {
    builtin: &'static Profile,
    /// The chosen one first.
    definitions: Vec<(&'a Definition, LayerKind)>,
}

fn profile_chain<'a>(chosen: &At<String>, definitions: &Definitions<'a>) -> Result<Chain<'a>, LayerError> {
    let mut chain: Vec<(&Definition, LayerKind)> = Vec::new();
    let mut wanted = chosen.clone();
    loop {
        if let Some(builtin) = profiles::builtin(&wanted.value) {
            return Ok(Chain { builtin, definitions: chain });
        }
        let At { value: name, place } = wanted;
        let Some((definition, kind)) = definitions.get(name.as_str()) else {
            let valid = profiles::NAMES.iter().copied().chain(definitions.keys().copied());
            let suggestion = Suggestion::among(&name, valid);
            return Err(LayerError::UnknownProfile { place, name, suggestion });
        };
        if chain.iter().any(|(seen, _)| seen.name.value == name) {
            return Err(LayerError::ProfileCycle { place, name });
        }
        wanted = definition.extends.clone();
        chain.push((definition, *kind));
    }
}
