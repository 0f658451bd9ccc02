//! Layers to policy: built-in profile → global file → the project's file → flags.
//!
//! The project's file comes with the project being worked on, so it may only tighten. Every setting is compared with what
//! the layers below it say before it is applied; one that loosens is refused until the user trusts the file. The
//! comparison takes [`Settings`] apart without `..`, so that a new key does not compile until it is decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::env;
use crate::layer::{At, CommandSetting, Definition, FileEntry, Layer, LimitSettings, RecordSettings, Settings};
use crate::limits::{Limits, format_duration, format_size};
use crate::policy::{Caches, CommandRule, EnvPolicy, Guard, Network, Policy, Root, STANDARD_IMAGE, User};
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
    /// The home of the caller's account, where `HOME` says otherwise: its secrets stay hidden.
    pub account_home: Option<PathBuf>,
    /// Ringfence's own configuration and state on this host, which no box may change.
    pub own_dirs: Vec<PathBuf>,
    /// Where records are kept, which no box may see.
    pub records_dir: Option<PathBuf>,
}

impl Inputs {
    /// No files, only flags.
    pub fn new(workdir: PathBuf, home: PathBuf, flags: Layer) -> Inputs {
        Inputs {
            global: None,
            project: None,
            project_trusted: false,
            flags,
            workdir,
            home,
            account_home: None,
            own_dirs: Vec::new(),
            records_dir: None,
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

impl Resolved {
    /// Every value with its origin, in the order of the configuration file, for `config show`.
    pub fn values(&self) -> Vec<Value> {
        let policy = &self.policy;
        let mut out = Vec::new();
        let mut add = |key: String, text: String| {
            let origin = self.origins.get(&key).cloned().unwrap_or_else(|| Origin {
                layer: LayerKind::Profile,
                place: format!("profile {}", self.builtin.name).into(),
            });
            out.push(Value { key, text, origin });
        };
        let Limits { memory, cpus, pids, files, timeout, timeout_ceiling, cpu_time, tmp_size, tmp_inodes, output } =
            &policy.limits;
        let count = |n: Option<u64>| optional_text(n, |n| n.to_string());
        let time = |t: &Option<Duration>| optional_text(*t, format_duration);
        add("profile".into(), policy.profile.clone());
        add("engine".into(), self.engine.to_string());
        add("workdir".into(), policy.workdir.display().to_string());
        if let Some(at) = &policy.workdir_at {
            add("workdir_at".into(), at.display().to_string());
        }
        match &policy.root {
            Root::Host => add("root".into(), "host".into()),
            Root::Programs => add("root".into(), "programs".into()),
            Root::Image(name) => add("image".into(), name.clone()),
        }
        add(
            "user".into(),
            match policy.user {
                User::Caller => "caller".into(),
                User::Ids { uid, gid } => format!("{uid}:{gid}"),
            },
        );
        add("network".into(), policy.network.name().into());
        for name in &policy.caches.names {
            add(format!("caches.{name}"), if policy.caches.read_only { "read-only" } else { "shared" }.into());
        }
        if let Some(group) = &policy.caches.group {
            add("cache_group".into(), group.clone());
        }
        if policy.caches.required {
            add("caches_required".into(), "true".into());
        }
        add("docker".into(), policy.docker.to_string());
        add("nesting".into(), policy.nesting.to_string());
        add("strict".into(), policy.strict.to_string());
        add("trace_denials".into(), policy.trace_denials.to_string());
        for guarantee in &policy.optional {
            add(format!("optional.{guarantee}"), "true".into());
        }
        for preset in &self.presets {
            add(format!("presets.{}", preset.name()), "true".into());
        }
        add("env.inherit".into(), policy.env.inherit.to_string());
        for name in &policy.env.drop {
            add(format!("env.drop.{name}"), "true".into());
        }
        for name in &policy.env.pass {
            add(format!("env.pass.{name}"), "true".into());
        }
        for name in policy.env.set.keys() {
            // Values may be secrets; they are the user's to look up in the file.
            add(format!("env.set.{name}"), "set".into());
        }
        add("limits.memory".into(), optional_text(*memory, format_size));
        add("limits.cpus".into(), optional_text(*cpus, |n| n.to_string()));
        add("limits.pids".into(), count(*pids));
        add("limits.files".into(), count(*files));
        add("limits.timeout".into(), time(timeout));
        add("limits.timeout_ceiling".into(), time(timeout_ceiling));
        add("limits.cpu_time".into(), time(cpu_time));
        add("limits.tmp_size".into(), format_size(*tmp_size));
        add("limits.tmp_inodes".into(), tmp_inodes.to_string());
        add("limits.output".into(), format_size(*output));
        let Records { output, secrets, keep, max_size, database } = &policy.records;
        add("records.output".into(), output.to_string());
        add("records.keep".into(), time(keep));
        add("records.max_size".into(), optional_text(*max_size, format_size));
        if database.is_some() {
            // A password may be part of it.
            add("records.database".into(), "set".into());
        }
        for name in secrets {
            add(format!("records.secrets.{name}"), "true".into());
        }
        for (name, rule) in &policy.commands {
            let text = match rule {
                CommandRule::Block => "false".into(),
                CommandRule::Guard(Guard::Git) => "@git".into(),
                CommandRule::Wrapper(path) => path.display().to_string(),
            };
            add(format!("commands.{name}"), text);
        }
        for name in &policy.allow_syscalls {
            add(format!("kernel.allow_syscalls.{name}"), "true".into());
        }
        for rule in &policy.rules {
            let (key, text) = (format!("files.{}", rule.access), rule.pattern.to_string());
            out.push(Value { key, text, origin: rule.origin.clone() });
        }
        out
    }
}

/// One resolved value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    pub key: String,
    pub text: String,
    pub origin: Origin,
}

/// One setting of the project's file that allows what the layers below do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loosening {
    pub place: String,
    pub what: String,
}

impl fmt::Display for Loosening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
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
    let Inputs { global, project, project_trusted, flags, workdir, home, account_home, own_dirs, records_dir } = inputs;
    let mut loosened = Vec::new();

    let definitions = definitions(global.as_ref(), project.as_ref())?;
    let chosen = choose_profile(global.as_ref(), project.as_ref(), &flags, &definitions, &mut loosened);
    let chain = profile_chain(&chosen.value, &definitions)?;

    let mut stack = Stack::new(chain.builtin, chosen.value.value.clone(), workdir, home, own_dirs);
    stack.account_home = account_home;
    stack.records_dir = records_dir;
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
        stack.loosenings(&project.settings, &mut loosened)?;
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

/// A policy in the making.
struct Stack {
    workdir: PathBuf,
    home: PathBuf,
    account_home: Option<PathBuf>,
    own_dirs: Vec<PathBuf>,
    records_dir: Option<PathBuf>,
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
            account_home: None,
            own_dirs,
            records_dir: None,
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
        let places = Places { workdir: &self.workdir, home: &self.home };
        let account = self.account_home.as_deref().filter(|_| preset == Preset::Secrets);
        self.looked_up.entry(preset).or_insert_with(|| {
            let mut found = presets::rules(preset, places, LayerKind::Profile);
            if let Some(home) = account {
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
            Some(rule) => rule.access != Access::Exclude,
            None => self.root() == Root::Host,
        };
        let own = std::iter::once(self.workdir.join(".ringfence.toml")).chain(self.own_dirs.iter().cloned());
        let own = own.map(|path| (Access::Ro, Missing::Protect(Kind::Dir), path));
        let records = self.records_dir.iter().map(|path| (Access::Exclude, Missing::Ignore, path.clone()));
        let protected: Vec<FileRule> = own
            .chain(records)
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

    /// What these settings allow that is not allowed so far.
    fn loosenings(&mut self, settings: &Settings, out: &mut Vec<Loosening>) -> Result<(), LayerError> {
        let Settings {
            engine,
            network,
            image,
            user,
            caches,
            cache_group,
            // Stops a box, or lets it run with less.
            caches_required: _,
            docker,
            nesting,
            strict,
            // Only watches; it opens nothing.
            trace_denials: _,
            optional,
            presets,
            files,
            env_pass,
            // Takes away.
            env_drop: _,
            env_set,
            limits,
            records,
            commands,
            allow_syscalls,
        } = settings;
        let mut refuse = |place: &str, what: String| out.push(Loosening { place: place.to_owned(), what });

        if let Some(At { value, place }) = engine
            && *value != self.engine
        {
            refuse(place, format!("changes the engine from `{}` to `{value}`", self.engine));
        }
        if let Some(At { value, place }) = network
            && *value > self.network
        {
            refuse(place, "opens the network".into());
        }
        // It may be fetched from anywhere, and is what everything inside runs.
        if let Some(At { value, place }) = image
            && self.image.as_ref() != Some(value)
        {
            refuse(place, format!("chooses the image `{value}`"));
        }
        if let Some(At { value, place }) = user
            && *value != self.user
        {
            refuse(place, "changes the user".into());
        }
        for At { value, place } in caches {
            if !self.caches.names.contains(value) {
                refuse(place, format!("shares the cache `{value}`"));
            }
        }
        if let Some(At { value, place }) = cache_group
            && self.caches.group.as_ref() != Some(value)
        {
            refuse(place, format!("shares the caches of group `{value}`"));
        }
        if let Some(At { value: true, place }) = docker
            && !self.docker
        {
            refuse(place, "opens the Docker socket".into());
        }
        if let Some(At { value: true, place }) = nesting
            && !self.nesting
        {
            refuse(place, "allows user namespaces inside".into());
        }
        if let Some(At { value: false, place }) = strict
            && self.strict
        {
            refuse(place, "turns `strict` off".into());
        }
        for At { value, place } in optional {
            if !self.optional.contains(value) {
                refuse(place, format!("makes guarantee `{value}` optional"));
            }
        }
        for At { value, place } in env_pass {
            let unchanged = self.env.pass.contains(value)
                || self.env.inherit
                    && !value.ends_with('*')
                    && !env::is_dropped(OsStr::new(value))
                    && !self.env.drop.iter().any(|pattern| env::name_matches(pattern, OsStr::new(value)));
            if !unchanged || self.env.set.contains_key(value) {
                refuse(place, format!("passes `{value}` from the environment"));
            }
        }
        // A value can redirect what the command trusts (a proxy, the address to which an agent sends its key).
        for At { value: (name, _), place } in env_set {
            refuse(place, format!("sets `{name}` in the environment"));
        }
        for At { value: (name, setting), place } in commands {
            let loosens = match (setting, self.commands.get(name)) {
                (CommandSetting::Block, _) | (CommandSetting::Remove | CommandSetting::Guard(_), None) => None,
                (CommandSetting::Guard(new), Some(CommandRule::Guard(old))) if new == old => None,
                (CommandSetting::Wrapper(_), _) => Some("puts a wrapper of its own in front of"),
                (CommandSetting::Remove, Some(_)) => Some("removes the rule for"),
                (CommandSetting::Guard(_), Some(_)) => Some("replaces the rule for"),
            };
            if let Some(verb) = loosens {
                refuse(place, format!("{verb} command `{name}`"));
            }
        }
        // What is recorded is the user's to decide. To call more variables secret takes away; the rest of the table
        // cannot stand in a project's file.
        let RecordSettings { output, secrets: _, keep: _, max_size: _, database: _ } = records;
        if let Some(At { value, place }) = output
            && *value != self.records.output
        {
            refuse(place, format!("changes `records.output` to `{value}`"));
        }
        for At { value, place } in allow_syscalls {
            if !self.allow_syscalls.contains(value) {
                refuse(place, format!("allows system call `{value}`"));
            }
        }
        out.extend(larger_limits(limits, &self.limits));
        self.file_loosenings(presets, files, out)
    }

    fn file_loosenings(
        &mut self,
        presets: &[At<Selection>],
        files: &[At<FileEntry>],
        out: &mut Vec<Loosening>,
    ) -> Result<(), LayerError> {
        let before = self.all_rules();
        for At { value, place } in presets {
            let active = |preset: &Preset| self.presets.iter().any(|(p, _)| p == preset);
            if value.remove {
                if value.presets.iter().any(active) {
                    out.push(Loosening { place: place.clone(), what: format!("takes preset `{}` away", value.name) });
                }
                continue;
            }
            let added: Vec<Preset> = value.presets.iter().copied().filter(|preset| !active(preset)).collect();
            let exposes = added.into_iter().find_map(|preset| {
                let rules = self.look_up(preset).0.clone();
                rules.iter().find_map(|rule| self.exposes(&before, rule))
            });
            if let Some(what) = exposes {
                out.push(Loosening {
                    place: place.clone(),
                    what: format!("adds preset `{}`, which {what}", value.name),
                });
            }
        }
        for entry in files {
            let rule = self.file_rule(entry, LayerKind::Project)?;
            if let Some(what) = self.exposes(&before, &rule) {
                out.push(Loosening { place: entry.place.clone(), what });
            }
        }
        Ok(())
    }

    /// What a rule shows or opens that the rules so far do not. A path counts by its name and by what is behind its links.
    fn exposes(&self, before: &[FileRule], rule: &FileRule) -> Option<String> {
        let paths = match (&rule.pattern, rule.access) {
            (_, Access::Exclude) => return None,
            (Pattern::Exact(path), _) => vec![path.clone()],
            // Where all that it matches is writable already it says nothing, and what it will match is not known.
            (Pattern::Glob(glob), Access::Rw) => return Some(format!("makes `{}` writable", glob.as_str())),
            (Pattern::Glob(glob), Access::Ro) => glob.expand(),
        };
        for path in paths {
            for name in [real(&path), path] {
                let access = decide(before, &name).map(|rule| rule.access);
                let hidden = match access {
                    Some(Access::Exclude) => true,
                    None => self.root() != Root::Host,
                    Some(Access::Ro | Access::Rw) => false,
                };
                if hidden {
                    return Some(format!("shows `{}`", name.display()));
                }
                if rule.access == Access::Rw && access != Some(Access::Rw) {
                    return Some(format!("makes `{}` writable", name.display()));
                }
            }
        }
        None
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
        let hidden = decides.is_some_and(|by| by.access == Access::Exclude && by.origin.layer > rule.origin.layer);
        is_preset(rule) && rule.access != Access::Exclude && hidden
    };
    all.into_iter().filter(|rule| !is_hole(rule)).collect()
}

fn is_preset(rule: &FileRule) -> bool {
    rule.origin.layer == LayerKind::Profile || rule.origin.place.starts_with("preset ")
}

fn optional_text<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "none".to_owned(), text)
}

/// Limits that are larger than what holds so far.
fn larger_limits(settings: &LimitSettings, now: &Limits) -> Vec<Loosening> {
    let LimitSettings { memory, cpus, pids, files, timeout, timeout_ceiling, cpu_time, tmp_size, tmp_inodes, output } =
        settings;
    let mut out = Vec::new();
    macro_rules! optional {
        ($field:ident) => {
            if let (Some(At { value, place }), Some(limit)) = ($field, &now.$field)
                && value.as_ref().is_none_or(|value| value > limit)
            {
                out.push(Loosening { place: place.clone(), what: format!("raises `limits.{}`", stringify!($field)) });
            }
        };
    }
    macro_rules! always {
        ($field:ident) => {
            if let Some(At { value, place }) = $field
                && *value > now.$field
            {
                out.push(Loosening { place: place.clone(), what: format!("raises `limits.{}`", stringify!($field)) });
            }
        };
    }
    optional!(memory);
    optional!(cpus);
    optional!(pids);
    optional!(files);
    optional!(timeout);
    optional!(timeout_ceiling);
    optional!(cpu_time);
    always!(tmp_size);
    always!(tmp_inodes);
    always!(output);
    out
}

/// The path with the links of its existing part resolved.
fn real(path: &Path) -> PathBuf {
    for dir in path.ancestors() {
        if let Ok(found) = dir.canonicalize() {
            return match path.strip_prefix(dir) {
                Ok(rest) if !rest.as_os_str().is_empty() => found.join(rest),
                _ => found,
            };
        }
    }
    path.to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    struct Host {
        _dir: tempfile::TempDir,
        home: PathBuf,
        workdir: PathBuf,
    }

    impl Host {
        fn new() -> Host {
            let dir = tempfile::tempdir().unwrap();
            let home = dir.path().canonicalize().unwrap();
            let workdir = home.join("p");
            for name in ["p/src", "p/.git/hooks", ".ssh", ".cache", "data"] {
                std::fs::create_dir_all(home.join(name)).unwrap();
            }
            Host { _dir: dir, home, workdir }
        }

        fn inputs(&self, global: &str, project: &str) -> Inputs {
            Inputs {
                global: Some(config::parse(global, "g.toml", LayerKind::Global).unwrap()),
                project: Some(config::parse(project, "p.toml", LayerKind::Project).unwrap()),
                ..Inputs::new(self.workdir.clone(), self.home.clone(), Layer::flags())
            }
        }

        fn refused(&self, global: &str, project: &str) -> Vec<String> {
            match resolve(self.inputs(global, project)) {
                Ok(_) => Vec::new(),
                Err(LayerError::Untrusted { loosenings, .. }) => {
                    let trusted = Inputs { project_trusted: true, ..self.inputs(global, project) };
                    assert_eq!(resolve(trusted).unwrap().loosened, loosenings, "trust lets it through");
                    let relative = |what: &str| what.replace(self.home.to_str().unwrap(), "~");
                    loosenings.iter().map(|l| relative(&l.what)).collect()
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn later_layers_win() {
        let host = Host::new();
        let mut inputs = host.inputs(
            "network = false\n[limits]\nmemory = \"1g\"\npids = 100\n[env]\npass = [\"SSH_AUTH_SOCK\"]\nset = { A = \"1\" }",
            "[limits]\npids = 50\n[env]\ndrop = [\"SSH_*\", \"A\"]",
        );
        inputs.flags.network(true);
        inputs.flags.pids("70").unwrap();
        let resolved = resolve(inputs).unwrap();
        assert_eq!(resolved.policy.network, Network::Open);
        assert_eq!(resolved.policy.limits.memory, Some(1 << 30));
        assert_eq!(resolved.policy.limits.pids, Some(70));
        assert!(resolved.policy.env.pass.is_empty() && resolved.policy.env.set.is_empty());
        let place = |key: &str| {
            let value = resolved.values().into_iter().find(|v| v.key == key).unwrap();
            format!("{} {}", value.text, value.origin)
        };
        assert_eq!(place("network"), "open --network");
        assert_eq!(place("limits.memory"), "1GiB g.toml:3");
        assert_eq!(place("limits.pids"), "70 --pids");
        assert_eq!(place("limits.cpus"), "none profile agent");
        assert_eq!(place("profile"), "agent built-in");
        assert_eq!(place("commands.git"), "@git profile agent");
        assert_eq!(place("presets.@git"), "true profile agent");
    }

    #[test]
    fn a_project_may_tighten() {
        let host = Host::new();
        for project in [
            "network = false",
            "docker = false",
            "strict = true",
            "trace_denials = true",
            "profile = \"agent\"",
            "profile = \"shell\"",
            "profile = \"skill\"",
            "engine = \"auto\"",
            "presets = [\"@env-files\", \"@git-strict\", \"@all\"]",
            "[files]\nexclude = [\"secrets/\", \"**/*.pem\"]\nro = [\"docs\", \"*.lock\", \"/etc\"]\nrw = [\"src\"]",
            "[env]\ndrop = [\"AWS_*\"]\npass = [\"EDITOR\"]",
            "[limits]\nmemory = \"1g\"\npids = 10\ntimeout = \"1m\"\ntmp_size = \"1m\"",
            "[commands]\ngit = \"@git\"\ncurl = false\nwget = true\nhub = \"@git\"",
            "[records]\noutput = false\nsecrets = [\"DEPLOY_*\"]",
        ] {
            assert_eq!(host.refused("", project), Vec::<String>::new(), "{project}");
        }
    }

    #[test]
    fn a_project_may_not_loosen() {
        let host = Host::new();
        std::os::unix::fs::symlink(host.home.join(".ssh"), host.workdir.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc", host.workdir.join("etc")).unwrap();
        let table = [
            ("network = false", "network = true", "opens the network"),
            ("", "docker = true", "opens the Docker socket"),
            ("", "nesting = true", "allows user namespaces inside"),
            ("strict = true", "strict = false", "turns `strict` off"),
            ("", "engine = \"bubblewrap\"", "changes the engine from `auto` to `bubblewrap`"),
            ("", "optional = [\"limit.memory\"]", "makes guarantee `limit.memory` optional"),
            ("", "presets = [\"!@dotfiles\"]", "takes preset `@dotfiles` away"),
            ("", "presets = [\"!@lint/all\"]", "takes preset `@lint/all` away"),
            (
                "presets = [\"!@caches\"]",
                "presets = [\"@caches\"]",
                "adds preset `@caches`, which makes `~/.cache` writable",
            ),
            ("[files]\nexclude = [\".vscode\"]\n[limits]\n", "[files]\nro = [\".vscode\"]", "shows `~/p/.vscode`"),
            ("", "[files]\nrw = [\"~\"]", "makes `~` writable"),
            ("", "[files]\nrw = [\"~/data\"]", "makes `~/data` writable"),
            ("", "[files]\nrw = [\"/\"]", "makes `/` writable"),
            ("", "[files]\nrw = [\".git/hooks\"]", "makes `~/p/.git/hooks` writable"),
            ("", "[files]\nrw = [\".ringfence.toml\"]", "makes `~/p/.ringfence.toml` writable"),
            ("", "[files]\nrw = [\"src/*\"]", "makes `~/p/src/*` writable"),
            ("", "[files]\nrw = [\"etc\"]", "makes `/etc` writable"),
            ("", "[files]\nro = [\"~/.ssh/config\"]", "shows `~/.ssh/config`"),
            ("", "[files]\nro = [\"link/config\"]", "shows `~/.ssh/config`"),
            ("", "[files]\nro = [\"~/.s*\"]", "shows `~/.ssh`"),
            ("profile = \"shell\"", "[files]\nro = [\"~/data\"]", "shows `~/data`"),
            ("", "[env]\npass = [\"SSH_AUTH_SOCK\"]", "passes `SSH_AUTH_SOCK` from the environment"),
            ("", "[env]\npass = [\"NODE_OPTIONS\"]", "passes `NODE_OPTIONS` from the environment"),
            ("[env]\ndrop = [\"AWS_*\"]", "[env]\npass = [\"AWS_KEY\"]", "passes `AWS_KEY` from the environment"),
            ("", "[env]\npass = [\"*\"]", "passes `*` from the environment"),
            ("profile = \"shell\"", "[env]\npass = [\"EDITOR\"]", "passes `EDITOR` from the environment"),
            ("", "[env.set]\nANTHROPIC_BASE_URL = \"x\"", "sets `ANTHROPIC_BASE_URL` in the environment"),
            ("", "[limits]\npids = \"none\"", "raises `limits.pids`"),
            ("[limits]\nmemory = \"1m\"", "[limits]\nmemory = \"2m\"", "raises `limits.memory`"),
            ("[limits]\ncpus = 1", "[limits]\ncpus = 1.5", "raises `limits.cpus`"),
            ("[limits]\nfiles = 1", "[limits]\nfiles = 2", "raises `limits.files`"),
            ("[limits]\ntimeout = 1", "[limits]\ntimeout = 2", "raises `limits.timeout`"),
            ("[limits]\ncpu_time = 1", "[limits]\ncpu_time = 2", "raises `limits.cpu_time`"),
            ("[limits]\ntimeout_ceiling = 1", "[limits]\ntimeout_ceiling = 2", "raises `limits.timeout_ceiling`"),
            ("", "[limits]\ntmp_size = \"1t\"", "raises `limits.tmp_size`"),
            ("", "[limits]\ntmp_inodes = 99999999", "raises `limits.tmp_inodes`"),
            ("", "[limits]\noutput = \"1g\"", "raises `limits.output`"),
            ("", "[records]\noutput = true", "changes `records.output` to `true`"),
            ("[records]\noutput = true", "[records]\noutput = false", "changes `records.output` to `false`"),
            ("", "[commands]\ngit = true", "removes the rule for command `git`"),
            ("[commands]\nrm = false", "[commands]\nrm = \"@git\"", "replaces the rule for command `rm`"),
            ("", "[commands]\nls = \"./x\"", "puts a wrapper of its own in front of command `ls`"),
            ("", "[kernel]\nallow_syscalls = [\"bpf\"]", "allows system call `bpf`"),
            ("profile = \"shell\"", "profile = \"agent\"", "chooses profile `agent` instead of `shell`"),
            ("presets = [\"!@base\"]", "profile = \"shell\"", "chooses profile `shell` instead of `agent`"),
            ("", "profile = \"home\"", "chooses profile `home` instead of `agent`"),
            ("[profiles.x]\nnetwork = false", "profile = \"x\"", "chooses profile `x` instead of `agent`"),
            ("", "[profiles.x]\nnetwork = false", "defines profile `x`"),
        ];
        for (global, project, what) in table {
            assert_eq!(host.refused(global, project), [what], "{global} | {project}");
        }
    }

    #[test]
    fn the_error_lists_every_line() {
        let host = Host::new();
        let error = resolve(host.inputs("", "docker = true\nnesting = true")).unwrap_err().to_string();
        assert_eq!(
            error,
            "`p.toml` is not trusted and would loosen the sandbox: \
             p.toml:1: opens the Docker socket; p.toml:2: allows user namespaces inside"
        );
    }

    #[test]
    fn a_preset_asked_for_again_by_a_project_stays_below() {
        let host = Host::new();
        let inputs = host.inputs("[files]\nro = [\"~/.cache\"]", "presets = [\"@caches\", \"@all\"]");
        let policy = resolve(inputs).unwrap().policy;
        assert_eq!(decide(&policy.rules, &host.home.join(".cache/x")).unwrap().access, Access::Ro);
    }

    #[test]
    fn profiles_of_the_user() {
        let host = Host::new();
        let text = "profile = \"b\"\n[profiles.a]\nextends = \"shell\"\nnetwork = true\n[profiles.a.limits]\npids = 9\n\
                    [profiles.b]\nextends = \"a\"\n[profiles.b.limits]\npids = 8";
        let resolved = resolve(host.inputs(text, "")).unwrap();
        assert_eq!(resolved.policy.profile, "b");
        assert_eq!(resolved.policy.root, Root::Programs);
        assert_eq!(resolved.policy.network, Network::Open);
        assert_eq!(resolved.policy.limits.pids, Some(8));

        let failed = |text: &str| resolve(host.inputs(text, "")).unwrap_err().to_string();
        let cycle = "profile = \"a\"\n[profiles.a]\nextends = \"b\"\n[profiles.b]\nextends = \"a\"";
        assert_eq!(failed(cycle), "g.toml:5: profile `a` extends itself");
        assert_eq!(failed("profile = \"agnt\""), "g.toml:1: unknown profile `agnt` (did you mean `agent`?)");
        let unknown = "profile = \"a\"\n[profiles.a]\nextends = \"shel\"";
        assert_eq!(failed(unknown), "g.toml:3: unknown profile `shel` (did you mean `shell`?)");
    }

    #[test]
    fn presets_come_and_go() {
        let host = Host::new();
        let mut inputs = host.inputs("presets = [\"!@all\", \"@base\"]", "");
        inputs.flags.preset("!@secrets").unwrap();
        let policy = resolve(inputs).unwrap().policy;
        let access = |name: &str| decide(&policy.rules, &host.home.join(name)).map(|rule| rule.access);
        assert_eq!(access("p/x"), Some(Access::Rw));
        assert_eq!(access(".ssh"), Some(Access::Ro));
        assert_eq!(access("p/.vscode"), Some(Access::Rw));
        assert_eq!(access("p/.ringfence.toml"), Some(Access::Ro), "always");
    }

    #[test]
    fn presets_poke_no_holes_into_what_is_excluded() {
        let host = Host::new();
        std::fs::create_dir_all(host.home.join(".claude")).unwrap();
        let mut inputs =
            host.inputs("[files]\nexclude = [\"~/.claude\", \"~/.config\"]\nro = [\"~/.config/mine\"]", "");
        inputs.own_dirs = vec![host.home.join(".config/ringfence")];
        inputs.flags.exclude(".git");
        let policy = resolve(inputs).unwrap().policy;
        for name in [".claude/settings.json", ".config/opencode", ".config/ringfence", "p/.git/hooks", "p/.git/config"]
        {
            assert_eq!(decide(&policy.rules, &host.home.join(name)).unwrap().access, Access::Exclude, "{name}");
        }
        assert_eq!(decide(&policy.rules, &host.home.join(".config/mine")).unwrap().access, Access::Ro);
    }

    #[test]
    fn skill_sees_nothing_of_the_user() {
        let host = Host::new();
        let mut inputs = host.inputs("", "");
        inputs.own_dirs = vec![host.home.join(".config/ringfence")];
        inputs.flags.profile("skill");
        let policy = resolve(inputs).unwrap().policy;
        assert!(policy.rules.is_empty(), "{:?}", policy.rules);
        assert_eq!(policy.workdir_at.as_deref(), Some(Path::new("/tmp")));
    }

    #[test]
    fn shell_shows_the_working_directory_alone() {
        let host = Host::new();
        let mut inputs = host.inputs("", "");
        inputs.flags.profile("shell");
        let policy = resolve(inputs).unwrap().policy;
        for rule in policy.rules.iter().filter(|rule| rule.access != Access::Exclude) {
            assert!(matches!(&rule.pattern, Pattern::Exact(p) if p.starts_with(&host.workdir)), "{rule:?}");
        }
    }

    #[test]
    fn own_directories_stay_as_they_are() {
        let host = Host::new();
        let mut inputs = host.inputs("[files]\nrw = [\"~/.config\"]", "");
        inputs.own_dirs = vec![host.home.join(".config/ringfence")];
        let policy = resolve(inputs).unwrap().policy;
        assert_eq!(decide(&policy.rules, &host.home.join(".config/ringfence/x")).unwrap().access, Access::Ro);
    }

    #[test]
    fn working_directory_in_an_excluded_place() {
        let host = Host::new();
        let inputs = Inputs::new(host.home.join(".ssh"), host.home.clone(), Layer::flags());
        assert!(matches!(resolve(inputs.clone()), Err(LayerError::WorkdirExcluded { .. })));
        let inner = Inputs { workdir: host.home.join(".ssh/deep"), ..inputs.clone() };
        assert!(matches!(resolve(inner), Err(LayerError::WorkdirExcluded { .. })));
        let mut flags = Layer::flags();
        flags.rw("~/.ssh");
        assert!(resolve(Inputs { flags, ..inputs }).is_ok());
    }

    #[test]
    fn time_limits_and_their_ceiling() {
        let host = Host::new();
        let with = |timeout: &str, global: &str| {
            let mut inputs = host.inputs(global, "");
            inputs.flags.profile("shell");
            if !timeout.is_empty() {
                inputs.flags.timeout(timeout).unwrap();
            }
            resolve(inputs).map(|r| r.policy.limits.timeout)
        };
        assert_eq!(with("", ""), Ok(Some(Duration::from_secs(120))));
        assert_eq!(with("600s", ""), Ok(Some(Duration::from_secs(600))));
        assert_eq!(with("", "[limits]\ntimeout_ceiling = 60"), Ok(Some(Duration::from_secs(60))));
        let error = with("601s", "").unwrap_err().to_string();
        assert_eq!(
            error,
            "--timeout: a time limit of 10m1s is above the longest that may be asked for, 10m (profile shell)"
        );
        assert!(with("none", "").is_err());
    }

    #[test]
    fn bad_paths_name_their_place() {
        let host = Host::new();
        let error = resolve(host.inputs("\n[files]\nro = [\"~bob/x\"]", "")).unwrap_err().to_string();
        assert_eq!(error, "g.toml:3: path `~bob/x` names another user's home, which is not supported");
        let error = resolve(host.inputs("", "[files]\nexclude = [\"a[\"]")).unwrap_err().to_string();
        assert_eq!(error, "p.toml:2: pattern `a[` has a `[` without its `]`");
    }

    #[test]
    fn trust_is_by_content() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(content_hash(b""), empty);
        assert_ne!(content_hash(b"a"), content_hash(b"b"));
    }
}
