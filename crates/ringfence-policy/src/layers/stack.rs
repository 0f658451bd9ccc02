//! A policy in the making: one layer after the other is put on top, and in the end it is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{LayerError, Loosening, Resolved};
use crate::env;
use crate::git;
use crate::guarantee::Guarantee;
use crate::layer::{At, CommandSetting, FileEntry, RecordSettings, Settings, optional_text};
use crate::limits::{Limits, format_duration};
use crate::look::Lookup;
use crate::policy::{Caches, CommandRule, EnvPolicy, Network, Policy, Root, STANDARD_IMAGE, User, Workspace};
use crate::presets::{self, Places, Preset, Selection, Warning, gives_way};
use crate::profiles::{self, EngineChoice, KnownEngine, Profile};
use crate::rules::{self, Access, FileRule, Kind, LayerKind, Missing, Origin, Pattern, decide};
use crate::service::ServiceSettings;
use crate::suggest::Suggestion;
use crate::syscalls::SyscallGroup;
use crate::tree::BUILT_IN;

/// Whether a preset also speaks of a home that is not the caller's. It hides and protects there, and grants nothing, save
/// where that home is the working directory, which is writable anyway.
fn counts_in(preset: Preset, home: &Path, workdir: &Path) -> bool {
    match preset {
        Preset::Secrets | Preset::Git | Preset::AgentsHeld => true,
        Preset::Agents => home == workdir,
        Preset::Dotfiles => workdir.starts_with(home),
        _ => false,
    }
}

/// A policy in the making.
pub(super) struct Stack<'a> {
    lookup: &'a Lookup,
    pub(super) workdir: PathBuf,
    pub(super) home: PathBuf,
    pub(super) other_homes: Vec<PathBuf>,
    pub(super) own_dirs: Vec<PathBuf>,
    pub(super) git: git::Outer,
    /// Ringfence's own, which no box may see.
    pub(super) hidden_dirs: Vec<PathBuf>,
    pub(super) profile: &'static Profile,
    pub(super) name: String,
    pub(super) engine: EngineChoice,
    /// The engines that can be named, where that is known.
    pub(super) engines: Vec<KnownEngine>,
    pub(super) network: Network,
    pub(super) image: Option<String>,
    pub(super) user: User,
    pub(super) caches: Caches,
    pub(super) docker: bool,
    pub(super) nesting: bool,
    pub(super) strict: bool,
    pub(super) trace_denials: bool,
    pub(super) service: ServiceSettings,
    pub(super) env: EnvPolicy,
    pub(super) limits: Limits,
    pub(super) commands: BTreeMap<String, CommandRule>,
    pub(super) allow_syscalls: Vec<String>,
    pub(super) refuse_syscalls: BTreeSet<SyscallGroup>,
    pub(super) optional: BTreeSet<crate::Guarantee>,
    /// Presets in force, with the layer that asked for each last.
    pub(super) presets: Vec<(Preset, LayerKind)>,
    /// Rules of presets that were looked up already.
    pub(super) looked_up: BTreeMap<Preset, (Vec<FileRule>, Vec<Warning>)>,
    /// Rules of the layers themselves.
    pub(super) rules: Vec<FileRule>,
    pub(super) origins: BTreeMap<String, Origin>,
}

impl<'a> Stack<'a> {
    pub(super) fn new(
        lookup: &'a Lookup,
        profile: &'static Profile,
        name: String,
        workdir: PathBuf,
        home: PathBuf,
        own_dirs: Vec<PathBuf>,
    ) -> Stack<'a> {
        let mut stack = Stack {
            lookup,
            workdir,
            home,
            other_homes: Vec::new(),
            own_dirs,
            git: git::Outer::default(),
            hidden_dirs: Vec::new(),
            profile,
            name,
            engine: profile.engine.clone(),
            engines: Vec::new(),
            network: profile.network.clone(),
            image: None,
            user: profile.user,
            caches: Caches { read_only: profile.caches_read_only, ..Caches::default() },
            docker: false,
            nesting: false,
            strict: false,
            trace_denials: false,
            service: ServiceSettings::default(),
            env: EnvPolicy { inherit: profile.inherit_env, ..EnvPolicy::default() },
            limits: profile.limits.clone(),
            commands: profile.commands.iter().map(|(name, rule)| ((*name).to_owned(), rule.clone())).collect(),
            allow_syscalls: Vec::new(),
            refuse_syscalls: profile.refuse_syscalls.iter().copied().collect(),
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
            let pattern = Pattern::exact(stack.workdir.clone());
            stack.rules.push(FileRule { access: Access::Rw, pattern, missing: Missing::Fail, origin });
        }
        stack
    }

    /// What the root is made of: an image where one is named, for a home that stays, and on an engine that has nothing else.
    pub(super) fn root(&self) -> Root {
        let named = self.engines.iter().find(|engine| engine.name == self.engine.name());
        match &self.image {
            Some(name) => Root::Image(name.clone()),
            None if self.profile.keep_home || named.is_some_and(|engine| engine.images) => {
                Root::Image(STANDARD_IMAGE.to_owned())
            }
            None => self.profile.root.clone(),
        }
    }

    fn check_engine(&self, At { value, place }: &At<EngineChoice>) -> Result<(), LayerError> {
        let known = |name: &str| self.engines.is_empty() || self.engines.iter().any(|engine| engine.name == name);
        match value {
            EngineChoice::Named(name) if !known(name) => {
                let names = self.engines.iter().map(|engine| &*engine.name).chain([EngineChoice::AUTO]);
                let (place, suggestion) = (place.clone(), Suggestion::among(name, names));
                Err(LayerError::UnknownEngine { place, name: name.to_string(), suggestion })
            }
            _ => Ok(()),
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

    pub(super) fn select(&mut self, selection: &At<Selection>, layer: LayerKind) {
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

    pub(super) fn look_up(&mut self, preset: Preset) -> &(Vec<FileRule>, Vec<Warning>) {
        let places = Places { workdir: &self.workdir, home: &self.home, git: &self.git, lookup: self.lookup };
        let others = self.other_homes.iter().filter(|home| counts_in(preset, home, &self.workdir));
        self.looked_up.entry(preset).or_insert_with(|| {
            let mut found = presets::rules(preset, places, LayerKind::Profile);
            for home in others {
                found.0.extend(presets::rules(preset, Places { home, ..places }, LayerKind::Profile).0);
            }
            found
        })
    }

    /// The presets that have something to say. Where nothing is shown, nothing is looked up.
    fn presets_in_force(&self) -> Vec<(Preset, LayerKind)> {
        let active = |wanted: Preset| self.presets.iter().any(|(preset, _)| *preset == wanted);
        let shows = self.root() == Root::Host
            || self.presets.iter().any(|(preset, _)| preset.grants())
            || self.rules.iter().any(|rule| rule.access != Access::Exclude);
        let in_force = |preset: Preset| shows && !(preset == Preset::AgentsHeld && active(Preset::Agents));
        self.presets.iter().copied().filter(|(preset, _)| in_force(*preset)).collect()
    }

    /// All rules in force, in layer order.
    pub(super) fn all_rules(&mut self) -> Vec<FileRule> {
        let mut all = Vec::with_capacity(512);
        let presets = self.presets_in_force();
        let installs = presets.iter().any(|(preset, _)| *preset == Preset::Programs);
        let home = self.home.clone();
        for (preset, layer) in presets {
            let rules = self.look_up(preset).0.iter().filter(|rule| !installs || !gives_way(rule, &home));
            all.extend(rules.map(|rule| {
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
        for (preset, layer) in self.presets_in_force() {
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
        let mut all = self.without_repositories(without_holes(all));
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
                pattern: Pattern::exact(path),
                missing,
                origin: Origin { layer: LayerKind::Profile, place: BUILT_IN.into() },
            })
            .collect();
        all.extend(protected);
        all.sort_by_key(|rule| rule.origin.layer);
        all
    }

    /// A repository outside of the working directory is as open as the working directory itself.
    fn without_repositories(&self, mut all: Vec<FileRule>) -> Vec<FileRule> {
        let access = match decide(&all, &self.workdir) {
            Some(rule) => Some(rule.access),
            None => (self.root() == Root::Host).then_some(Access::Ro),
        };
        if access == Some(Access::Rw) {
            return all;
        }
        let is_outside = |rule: &FileRule| {
            let apart = |path: &Path| !path.starts_with(&self.workdir);
            matches!(rule.origin.preset(), Some("@git" | "@git-strict"))
                && matches!(&rule.pattern, Pattern::Exact(path) if apart(path))
        };
        all.retain(|rule| access == Some(Access::Ro) || !is_outside(rule));
        all.iter_mut().filter(|rule| is_outside(rule)).for_each(|rule| rule.access = Access::Ro);
        all
    }

    pub(super) fn file_rule(&self, entry: &At<FileEntry>, layer: LayerKind) -> Result<FileRule, LayerError> {
        let FileEntry { access, path, missing } = &entry.value;
        let pattern = Pattern::parse(path, &self.workdir, &self.home)
            .map_err(|source| LayerError::Path { place: entry.place.clone(), source })?;
        let origin = Origin { layer, place: entry.place.clone().into() };
        Ok(FileRule { access: *access, pattern, missing: *missing, origin })
    }

    /// Puts one layer on top.
    pub(super) fn apply(&mut self, settings: &Settings, layer: LayerKind) -> Result<(), LayerError> {
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
            refuse_syscalls,
            skill_verdict,
            warm,
        } = settings;
        macro_rules! take {
            ($key:literal, $from:expr => $to:expr) => {
                if let Some(At { value, place }) = $from {
                    $to = value.clone();
                    self.origin($key, layer, place);
                }
            };
        }
        engine.as_ref().map_or(Ok(()), |engine| self.check_engine(engine))?;
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
        take!("skill_verdict", skill_verdict => self.service.skill_verdict);
        take!("warm", warm => self.service.warm);
        for (key, place) in limits.apply(&mut self.limits, &mut self.service) {
            self.origin(key, layer, place);
        }

        self.service.records.apply(records);
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
        for At { value, place } in refuse_syscalls {
            self.refuse_syscalls.insert(*value);
            self.origin(format!("kernel.refuse_syscalls.{value}"), layer, place);
        }
        Ok(())
    }

    pub(super) fn finish(mut self, loosened: Vec<Loosening>) -> Result<Resolved, LayerError> {
        self.check_timeout()?;
        let rules = self.take_rules();
        self.check_workdir(&rules)?;
        let opened = decide(&rules, &self.workdir).is_some_and(|rule| rule.access == Access::Rw);
        let warnings: Vec<Warning> = self
            .presets
            .iter()
            .filter_map(|(preset, _)| self.looked_up.get(preset))
            .flat_map(|found| found.1.clone())
            .filter(|warning| !opened || !matches!(warning, Warning::Autostart(_)))
            .collect();
        let weakening = warnings.iter().filter(|warning| match warning {
            Warning::Git(suspicion) => suspicion.weakens(),
            Warning::Autostart(_) => false,
        });
        let weakened = weakening.map(|warning| (Guarantee::FsProtectedPaths, warning.to_string())).collect();
        let root = self.root();
        let policy = Policy {
            profile: self.name,
            workspace: Workspace::HostDirectory(self.workdir),
            workdir_at: self.profile.workdir_at.map(PathBuf::from),
            narrowed: Vec::new(),
            root,
            rules,
            shown: Vec::new(),
            network: self.network,
            devices: Vec::new(),
            caches: self.caches,
            keep_home: self.profile.keep_home,
            tmp_exec: self.profile.tmp_exec,
            docker: self.docker,
            nesting: self.nesting,
            env: self.env,
            user: self.user,
            limits: self.limits,
            commands: self.commands,
            allow_syscalls: self.allow_syscalls,
            refuse_syscalls: self.refuse_syscalls,
            optional: self.optional,
            strict: self.strict,
            trace_denials: self.trace_denials,
            weakened,
        };
        Ok(Resolved {
            policy,
            service: self.service,
            engine: self.engine,
            loosened,
            warnings,
            origins: self.origins,
            presets: self.presets.into_iter().map(|(preset, _)| preset).filter(|p| *p != Preset::AgentsHeld).collect(),
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
    rule.origin.layer == LayerKind::Profile || rule.origin.preset().is_some()
}
