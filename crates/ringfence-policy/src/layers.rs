//! Layers to policy: built-in profile → global file → the project's file → flags.
//!
//! The project's file comes with the project being worked on, so it may only tighten. Every setting is compared with what
//! the layers below it say before it is applied; one that loosens is refused until the user trusts the file. The
//! comparison takes [`Settings`] apart without `..`, so that a new key does not compile until it is decided here.

mod loosening;
#[cfg(test)]
mod tests;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};

pub use loosening::Loosening;
use sha2::{Digest, Sha256};
pub use values::Value;
use values::optional_text;

use crate::env;
use crate::git;
use crate::layer::{At, CommandSetting, Definition, FileEntry, Layer, LimitSettings, RecordSettings, Settings};
use crate::limits::{Limits, format_duration};
use crate::look::Lookup;
use crate::policy::{Caches, CommandRule, EnvPolicy, Network, Policy, Root, STANDARD_IMAGE, User, Verdict, WARM};
use crate::presets::{self, Places, Preset, Selection, Warning};
use crate::profiles::{self, EngineChoice, Profile};
use crate::records::Records;
use crate::rules::{self, Access, FileRule, Kind, LayerKind, Missing, Origin, PathError, Pattern, decide};
use crate::suggest::Suggestion;

/// What a policy is made of.
#[derive(Debug, Clone)]
pub struct Inputs {
    pub global: Option<Layer>,
    /// The project's `.ringfence.toml`, or the file of `--config` in its place.
    pub project: Option<Layer>,
    /// The user trusts this very content (or named the file on the command line).
    pub project_trusted: bool,
    pub flags: Layer,
    /// The effective working directory: absolute and canonical.
    pub workdir: PathBuf,
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
        }
    }
}

/// A policy, and where everything in it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    pub policy: Policy,
    pub engine: EngineChoice,
    /// Where each value that is not the profile's own comes from, by key.
    origins: BTreeMap<String, Origin>,
    presets: Vec<Preset>,
    builtin: &'static Profile,
    /// What the project's file loosens, which holds because the user trusts it.
    pub loosened: Vec<Loosening>,
    pub warnings: Vec<Warning>,
}

/// Layers that make no policy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LayerError {
    #[error("{place}: unknown profile `{name}`{suggestion}")]
    UnknownProfile { place: String, name: String, suggestion: Suggestion },
    #[error("{place}: profile `{name}` extends itself")]
    ProfileCycle { place: String, name: String },
    #[error("{place}: profile `{name}` is already defined at {first}")]
    ProfileTwice { place: String, name: String, first: String },
    #[error("{place}: {source}")]
    Path { place: String, source: PathError },
    #[error("`{file}` is not trusted and would loosen the sandbox: {}", list(.loosenings))]
    Untrusted { file: String, loosenings: Vec<Loosening> },
    #[error("working directory `{}` lies in `{rule}`, which is excluded ({origin})", .workdir.display())]
    WorkdirExcluded { workdir: PathBuf, rule: String, origin: Origin },
    #[error(
        "{place}: a time limit of {timeout} is above the longest that may be asked for, {ceiling} ({ceiling_place})"
    )]
    TimeoutAboveCeiling { place: String, timeout: String, ceiling: String, ceiling_place: String },
}

fn list(loosenings: &[Loosening]) -> String {
    loosenings.iter().map(|l| l.to_string()).collect::<Vec<_>>().join("; ")
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
    } = inputs;
    let mut loosened = Vec::new();

    let definitions = definitions(global.as_ref(), project.as_ref())?;
    let chosen = choose_profile(global.as_ref(), project.as_ref(), &flags, &definitions, &mut loosened);
    let chain = profile_chain(&chosen.value, &definitions)?;

    let mut stack = Stack::new(chain.builtin, chosen.value.value.clone(), workdir, home, own_dirs);
    stack.other_homes = other_homes;
    stack.git = git;
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

/// Whether a preset also speaks of a home that is not the caller's. It hides and protects there, and grants nothing, save
/// where that home is the working directory, which is writable anyway.
fn counts_in(preset: Preset, home: &Path, workdir: &Path) -> bool {
    match preset {
        Preset::Secrets | Preset::Git => true,
        Preset::Agents | Preset::Dotfiles => home == workdir,
        _ => false,
    }
}

/// A policy in the making.
struct Stack {
    workdir: PathBuf,
    home: PathBuf,
    other_homes: Vec<PathBuf>,
    own_dirs: Vec<PathBuf>,
    git: git::Outer,
    /// Ringfence's own, which no box may see.
    hidden_dirs: Vec<PathBuf>,
    profile: &'static Profile,
    name: String,
    engine: EngineChoice,
    network: Network,
    image: Option<String>,
    user: User,
    caches: Caches,
    docker: bool,
    nesting: bool,
    strict: bool,
    trace_denials: bool,
    skill_verdict: Verdict,
    warm: u64,
    warm_fork: bool,
    env: EnvPolicy,
    limits: Limits,
    records: Records,
    commands: BTreeMap<String, CommandRule>,
    allow_syscalls: Vec<String>,
    optional: BTreeSet<crate::Guarantee>,
    /// Presets in force, with the layer that asked for each last.
    presets: Vec<(Preset, LayerKind)>,
    /// Rules of presets that were looked up already.
    looked_up: BTreeMap<Preset, (Vec<FileRule>, Vec<Warning>)>,
    /// Rules of the layers themselves.
    rules: Vec<FileRule>,
    origins: BTreeMap<String, Origin>,
}

impl Stack {
    fn new(profile: &'static Profile, name: String, workdir: PathBuf, home: PathBuf, own_dirs: Vec<PathBuf>) -> Stack {
        let mut stack = Stack {
            workdir,
            home,
            other_homes: Vec::new(),
            own_dirs,
            git: git::Outer::default(),
            hidden_dirs: Vec::new(),
            profile,
            name,
            engine: profile.engine,
            network: profile.network,
            image: None,
            user: profile.user,
            caches: Caches { read_only: profile.caches_read_only, ..Caches::default() },
            docker: false,
            nesting: false,
            strict: false,
            trace_denials: false,
            skill_verdict: Verdict::default(),
            warm: WARM,
            warm_fork: true,
            env: EnvPolicy { inherit: profile.inherit_env, ..EnvPolicy::default() },
            limits: profile.limits.clone(),
            records: Records::default(),
            commands: profile.commands.iter().map(|(name, rule)| ((*name).to_owned(), rule.clone())).collect(),
            allow_syscalls: Vec::new(),
            optional: BTreeSet::from(profiles::OPTIONAL),
            presets: Vec::new(),
            looked_up: BTreeMap::new(),
            rules: Vec::new(),
            origins: BTreeMap::new(),
        };
        for name in profile.presets {
            let selection = Selection::parse(name).expect("built-in profiles name known presets");
            stack.select(&At::new(selection, stack.profile_place()), LayerKind::Profile);
        }
        if profile.workdir_writable {
            let origin = stack.profile_origin();
            let pattern = Pattern::Exact(stack.workdir.clone());
            stack.rules.push(FileRule { access: Access::Rw, pattern, missing: Missing::Fail, origin });
        }
        stack
    }

    /// What the root is made of: an image where one is named, and on the engine that has nothing else.
    fn root(&self) -> Root {
        match (&self.image, self.engine) {
            (Some(name), _) => Root::Image(name.clone()),
            (None, EngineChoice::Docker | EngineChoice::Kubernetes) => Root::Image(STANDARD_IMAGE.to_owned()),
            (None, _) => self.profile.root.clone(),
        }
    }

    fn profile_place(&self) -> String {
        format!("profile {}", self.profile.name)
    }

    fn profile_origin(&self) -> Origin {
        Origin { layer: LayerKind::Profile, place: self.profile_place().into() }
    }

    fn origin(&mut self, key: impl Into<String>, layer: LayerKind, place: &str) {
        self.origins.insert(key.into(), Origin { layer, place: place.to_owned().into() });
    }

    fn select(&mut self, selection: &At<Selection>, layer: LayerKind) {
        for preset in selection.value.presets {
            let active = self.presets.iter().position(|(p, _)| p == preset);
            match (selection.value.remove, active) {
                (true, Some(index)) => {
                    self.presets.remove(index);
                    self.origins.remove(&format!("presets.{}", preset.name()));
                }
                (true, None) => {}
                // What a project's file asks for again stays where it is: a preset that grants must not be lifted
                // above what the user's own file took away.
                (false, Some(_)) if layer == LayerKind::Project => {}
                (false, active) => {
                    if let Some(index) = active {
                        self.presets.remove(index);
                    }
                    self.presets.push((*preset, layer));
                    self.origin(format!("presets.{}", preset.name()), layer, &selection.place);
                }
            }
        }
    }

    fn look_up(&mut self, preset: Preset) -> &(Vec<FileRule>, Vec<Warning>) {
        let places = Places { workdir: &self.workdir, home: &self.home, git: &self.git };
        let others = self.other_homes.iter().filter(|home| counts_in(preset, home, &self.workdir));
        self.looked_up.entry(preset).or_insert_with(|| {
            let mut found = presets::rules(preset, places, LayerKind::Profile);
            for home in others {
                found.0.extend(presets::rules(preset, Places { home, ..places }, LayerKind::Profile).0);
            }
            found
        })
    }

    /// All rules in force, in layer order.
    fn all_rules(&mut self) -> Vec<FileRule> {
        let mut all = Vec::with_capacity(512);
        for (preset, layer) in self.presets.clone() {
            all.extend(self.look_up(preset).0.iter().map(|rule| {
                let mut rule = rule.clone();
                rule.origin.layer = layer;
                rule
            }));
        }
        all.extend(self.rules.iter().cloned());
        self.complete(all)
    }

    /// As [`Stack::all_rules`], but the rules of presets are moved out: nothing is looked up after it.
    fn take_rules(&mut self) -> Vec<FileRule> {
        let mut all = Vec::with_capacity(512);
        for (preset, layer) in self.presets.clone() {
            self.look_up(preset);
            let rules = self.looked_up.get_mut(&preset).map(|(rules, _)| std::mem::take(rules)).unwrap_or_default();
            all.extend(rules.into_iter().map(|mut rule| {
                rule.origin.layer = layer;
                rule
            }));
        }
        all.append(&mut self.rules);
        self.complete(all)
    }

    /// Takes holes out and adds what is protected always.
    fn complete(&self, all: Vec<FileRule>) -> Vec<FileRule> {
        let mut all = without_holes(all);
        // A `ro` on something that the box does not see would show it: only where it is seen anyway.
        let seen = |path: &Path| match decide(&all, path) {
            Some(rule) => rule.access != Access::Exclude || !hides_now(rule, path),
            None => self.root() == Root::Host,
        };
        let own = std::iter::once(self.workdir.join(".ringfence.toml")).chain(self.own_dirs.iter().cloned());
        let own = own.map(|path| (Access::Ro, Missing::Protect(Kind::Dir), path));
        let hidden = self.hidden_dirs.iter().map(|path| (Access::Exclude, Missing::Protect(Kind::Dir), path.clone()));
        let protected: Vec<FileRule> = own
            .chain(hidden)
            .filter(|(_, _, path)| seen(path))
            .map(|(access, missing, path)| FileRule {
                access,
                pattern: Pattern::Exact(path),
                missing,
                origin: Origin { layer: LayerKind::Profile, place: "built-in".into() },
            })
            .collect();
        all.extend(protected);
        all.sort_by_key(|rule| rule.origin.layer);
        all
    }

    fn file_rule(&self, entry: &At<FileEntry>, layer: LayerKind) -> Result<FileRule, LayerError> {
        let FileEntry { access, path, missing } = &entry.value;
        let pattern = Pattern::parse(path, &self.workdir, &self.home)
            .map_err(|source| LayerError::Path { place: entry.place.clone(), source })?;
        let origin = Origin { layer, place: entry.place.clone().into() };
        Ok(FileRule { access: *access, pattern, missing: *missing, origin })
    }

    /// Puts one layer on top.
    fn apply(&mut self, settings: &Settings, layer: LayerKind) -> Result<(), LayerError> {
        let Settings {
            engine,
            network,
            image,
            user,
            caches,
            cache_group,
            caches_required,
            docker,
            nesting,
            strict,
            trace_denials,
            optional,
            presets,
            files,
            env_pass,
            env_drop,
            env_set,
            limits,
            records,
            commands,
            allow_syscalls,
            skill_verdict,
            warm,
            warm_fork,
        } = settings;
        macro_rules! take {
            ($key:literal, $from:expr => $to:expr) => {
                if let Some(At { value, place }) = $from {
                    $to = value.clone();
                    self.origin($key, layer, place);
                }
            };
        }
        take!("engine", engine => self.engine);
        take!("network", network => self.network);
        if let Some(At { value, place }) = image {
            self.image = Some(value.clone());
            self.origin("image", layer, place);
        }
        take!("user", user => self.user);
        if let Some(At { value, place }) = cache_group {
            self.caches.group = Some(value.clone());
            self.origin("cache_group", layer, place);
        }
        take!("caches_required", caches_required => self.caches.required);
        for At { value, place } in caches {
            if !self.caches.names.contains(value) {
                self.caches.names.push(value.clone());
            }
            self.origin(format!("caches.{value}"), layer, place);
        }
        take!("docker", docker => self.docker);
        take!("nesting", nesting => self.nesting);
        take!("strict", strict => self.strict);
        take!("trace_denials", trace_denials => self.trace_denials);
        take!("skill_verdict", skill_verdict => self.skill_verdict);
        take!("warm", warm => self.warm);
        take!("warm_fork", warm_fork => self.warm_fork);
        let LimitSettings {
            memory,
            cpus,
            pids,
            files: open_files,
            timeout,
            timeout_ceiling,
            cpu_time,
            tmp_size,
            tmp_inodes,
            output,
        } = limits;
        take!("limits.memory", memory => self.limits.memory);
        take!("limits.cpus", cpus => self.limits.cpus);
        take!("limits.pids", pids => self.limits.pids);
        take!("limits.files", open_files => self.limits.files);
        take!("limits.timeout", timeout => self.limits.timeout);
        take!("limits.timeout_ceiling", timeout_ceiling => self.limits.timeout_ceiling);
        take!("limits.cpu_time", cpu_time => self.limits.cpu_time);
        take!("limits.tmp_size", tmp_size => self.limits.tmp_size);
        take!("limits.tmp_inodes", tmp_inodes => self.limits.tmp_inodes);
        take!("limits.output", output => self.limits.output);

        self.records.apply(records);
        let RecordSettings { output, secrets, keep, max_size, database } = records;
        let places = [
            ("records.output", output.as_ref().map(|at| &at.place)),
            ("records.keep", keep.as_ref().map(|at| &at.place)),
            ("records.max_size", max_size.as_ref().map(|at| &at.place)),
            ("records.database", database.as_ref().map(|at| &at.place)),
        ];
        for (key, place) in places {
            if let Some(place) = place {
                self.origin(key, layer, place);
            }
        }
        for At { value, place } in secrets {
            self.origin(format!("records.secrets.{value}"), layer, place);
        }

        for At { value, place } in optional {
            self.optional.insert(*value);
            self.origin(format!("optional.{value}"), layer, place);
        }
        for selection in presets {
            self.select(selection, layer);
        }
        for entry in files {
            let rule = self.file_rule(entry, layer)?;
            self.rules.push(rule);
        }
        // A later layer's `drop` also takes back what an earlier one passed or set.
        for At { value, place } in env_drop {
            self.env.pass.retain(|name| !env::name_matches(value, OsStr::new(name)));
            self.env.set.retain(|name, _| !env::name_matches(value, OsStr::new(name)));
            self.env.drop.push(value.clone());
            self.origin(format!("env.drop.{value}"), layer, place);
        }
        for At { value, place } in env_pass {
            self.env.set.remove(value);
            self.env.pass.push(value.clone());
            self.origin(format!("env.pass.{value}"), layer, place);
        }
        for At { value: (name, value), place } in env_set {
            self.env.set.insert(name.clone(), value.clone());
            self.origin(format!("env.set.{name}"), layer, place);
        }
        for At { value: (name, setting), place } in commands {
            let rule = match setting {
                CommandSetting::Remove => None,
                CommandSetting::Block => Some(CommandRule::Block),
                CommandSetting::Guard(guard) => Some(CommandRule::Guard(*guard)),
                CommandSetting::Wrapper(path) => {
                    let path = rules::parse_path(path, &self.workdir, &self.home)
                        .map_err(|source| LayerError::Path { place: place.clone(), source })?;
                    Some(CommandRule::Wrapper(path))
                }
            };
            match rule {
                Some(rule) => {
                    self.commands.insert(name.clone(), rule);
                }
                None => {
                    self.commands.remove(name);
                }
            }
            self.origin(format!("commands.{name}"), layer, place);
        }
        for At { value, place } in allow_syscalls {
            if !self.allow_syscalls.contains(value) {
                self.allow_syscalls.push(value.clone());
            }
            self.origin(format!("kernel.allow_syscalls.{value}"), layer, place);
        }
        Ok(())
    }

    fn finish(mut self, loosened: Vec<Loosening>) -> Result<Resolved, LayerError> {
        self.check_timeout()?;
        let rules = self.take_rules();
        self.check_workdir(&rules)?;
        let warnings = self.presets.iter().flat_map(|(preset, _)| self.looked_up[preset].1.clone()).collect();
        let root = self.root();
        // Only an engine of containers has images.
        let images = matches!(root, Root::Image(_)) && self.engine == EngineChoice::Auto;
        let engine = if images { EngineChoice::Docker } else { self.engine };
        let policy = Policy {
            profile: self.name,
            workdir: self.workdir,
            workdir_at: self.profile.workdir_at.map(PathBuf::from),
            root,
            rules,
            network: self.network,
            caches: self.caches,
            keep_home: self.profile.keep_home,
            tmp_exec: self.profile.tmp_exec,
            docker: self.docker,
            nesting: self.nesting,
            env: self.env,
            user: self.user,
            limits: self.limits,
            records: self.records,
            commands: self.commands,
            allow_syscalls: self.allow_syscalls,
            optional: self.optional,
            strict: self.strict,
            trace_denials: self.trace_denials,
            skill_verdict: self.skill_verdict,
            warm: self.warm,
            warm_fork: self.warm_fork,
        };
        Ok(Resolved {
            policy,
            engine,
            loosened,
            warnings,
            origins: self.origins,
            presets: self.presets.into_iter().map(|(preset, _)| preset).collect(),
            builtin: self.profile,
        })
    }

    /// A working directory in an excluded place is a mistake: the profile would open what is hidden.
    fn check_workdir(&self, rules: &[FileRule]) -> Result<(), LayerError> {
        let opens = |rule: &FileRule| {
            let named = matches!(&rule.pattern, Pattern::Exact(path) if *path == self.workdir);
            is_preset(rule) && rule.access == Access::Rw && named
        };
        match rules::candidates(rules, &self.workdir).into_iter().find(|rule| !opens(rule)) {
            Some(rule) if rule.access == Access::Exclude => Err(LayerError::WorkdirExcluded {
                workdir: self.workdir.clone(),
                rule: rule.pattern.to_string(),
                origin: rule.origin.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// A configured limit gives way to the ceiling; one that is asked for above it on the command line is an error.
    fn check_timeout(&mut self) -> Result<(), LayerError> {
        let Some(ceiling) = self.limits.timeout_ceiling else { return Ok(()) };
        if self.limits.timeout.is_some_and(|timeout| timeout <= ceiling) {
            return Ok(());
        }
        let ceiling_origin = self.origins.get("limits.timeout_ceiling").cloned().unwrap_or(self.profile_origin());
        match self.origins.get("limits.timeout") {
            Some(origin) if origin.layer == LayerKind::Flags => Err(LayerError::TimeoutAboveCeiling {
                place: origin.place.to_string(),
                timeout: optional_text(self.limits.timeout, format_duration),
                ceiling: format_duration(ceiling),
                ceiling_place: ceiling_origin.place.into_owned(),
            }),
            _ => {
                self.limits.timeout = Some(ceiling);
                self.origins.insert("limits.timeout".into(), ceiling_origin);
                Ok(())
            }
        }
    }
}

/// Rules of presets that lie below what a later layer excludes are left out: who hides a directory hides it with all
/// that a preset knows in it. Rules that the user writes keep their say.
fn without_holes(all: Vec<FileRule>) -> Vec<FileRule> {
    let of_layers: Vec<FileRule> =
        all.iter().filter(|rule| !is_preset(rule) && rule.origin.layer > LayerKind::Profile).cloned().collect();
    if !of_layers.iter().any(|rule| rule.access == Access::Exclude) {
        return all;
    }
    let is_hole = |rule: &FileRule| {
        let Pattern::Exact(path) = &rule.pattern else { return false };
        let decides = decide(&of_layers, path);
        let later = |by: &&FileRule| by.access == Access::Exclude && by.origin.layer > rule.origin.layer;
        let hidden = decides.filter(later).is_some_and(|by| hides_now(by, path));
        is_preset(rule) && rule.access != Access::Exclude && hidden
    };
    all.into_iter().filter(|rule| !is_hole(rule)).collect()
}

/// Whether an exclusion holds for a path already. A glob says nothing about a name that is not there: whoever made it
/// later would find it neither hidden nor protected.
fn hides_now(rule: &FileRule, path: &Path) -> bool {
    match &rule.pattern {
        Pattern::Exact(_) => true,
        Pattern::Glob(glob) => path.ancestors().any(|above| glob.matches(above) && above.symlink_metadata().is_ok()),
    }
}

fn is_preset(rule: &FileRule) -> bool {
    rule.origin.layer == LayerKind::Profile || rule.origin.place.starts_with("preset ")
}
