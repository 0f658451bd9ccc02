//! What a project's file would allow that the layers below it do not.

use std::ffi::OsStr;
use std::fmt;

use super::{LayerError, Stack};
use crate::env;
use crate::layer::{At, CommandSetting, FileEntry, RecordSettings, Settings};
use crate::look::Lookup;
use crate::policy::{CommandRule, Root};
use crate::presets::{Preset, Selection, only_protects};
use crate::rules::{Access, FileRule, LayerKind, Pattern, decide};
use crate::tree;

/// One setting of the project's file that allows what the layers below do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loosening {
    /// The file and line.
    pub place: String,
    /// What it allows.
    pub what: String,
}

impl fmt::Display for Loosening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl Stack<'_> {
    /// What these settings allow that is not allowed so far.
    pub(super) fn loosenings(
        &mut self,
        lookup: &Lookup,
        settings: &Settings,
        out: &mut Vec<Loosening>,
    ) -> Result<(), LayerError> {
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
            // Takes away.
            refuse_syscalls: _,
            skill_verdict,
            warm,
        } = settings;
        let mut refuse = |place: &str, what: String| out.push(Loosening { place: place.to_owned(), what });

        if let Some(At { value, place }) = engine
            && *value != self.engine
        {
            refuse(place, format!("changes the engine from `{}` to `{value}`", self.engine));
        }
        if let Some(At { value, place }) = network
            && !value.is_within(&self.network)
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
        if let Some(At { value, place }) = skill_verdict
            && *value > self.service.skill_verdict
        {
            refuse(place, format!("lets skills run that are `{value}`"));
        }
        if let Some(At { value, place }) = warm
            && *value > self.service.warm
        {
            refuse(place, format!("holds {value} interpreters ready"));
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
            && *value != self.service.records.output
        {
            refuse(place, format!("changes `records.output` to `{value}`"));
        }
        for At { value, place } in allow_syscalls {
            if !self.allow_syscalls.contains(value) {
                refuse(place, format!("allows system call `{value}`"));
            }
        }
        for (key, place) in limits.larger(&self.limits, &self.service) {
            refuse(place, format!("raises `{key}`"));
        }
        self.file_loosenings(lookup, presets, files, out)
    }

    fn file_loosenings(
        &mut self,
        lookup: &Lookup,
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
                let shows = |rule: &&FileRule| {
                    !matches!(&rule.pattern, Pattern::Exact(path) if only_protects(&rule.origin, path, &self.workdir))
                };
                rules.iter().filter(shows).find_map(|rule| self.exposes(lookup, &before, rule))
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
            let what = self.exposes(lookup, &before, &rule).or_else(|| idle(lookup, &before, &rule));
            if let Some(what) = what {
                out.push(Loosening { place: entry.place.clone(), what });
            }
        }
        Ok(())
    }

    /// What a rule shows or opens that the rules so far do not. A path counts by its name and by what is behind its links.
    fn exposes(&self, lookup: &Lookup, before: &[FileRule], rule: &FileRule) -> Option<String> {
        let paths = match (&rule.pattern, rule.access) {
            (_, Access::Exclude) => return None,
            (Pattern::Exact(path), _) => vec![path.clone()],
            // Where all that it matches is writable already it says nothing, and what it will match is not known.
            (Pattern::Glob(glob), Access::Rw) => return Some(format!("makes `{}` writable", glob.as_str())),
            (Pattern::Glob(glob), Access::Ro) => lookup.matches(glob).paths.clone(),
        };
        for path in paths {
            for name in [tree::real(lookup, &path), path] {
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
}

/// A project's `ro` takes away inside writable places only. Elsewhere it says at best what holds already, and at worst it
/// shows what nobody hid by a rule: private places, sockets, another name of a secret, what is root's alone.
fn idle(lookup: &Lookup, before: &[FileRule], rule: &FileRule) -> Option<String> {
    let paths = match (&rule.pattern, rule.access) {
        (_, Access::Exclude | Access::Rw) => return None,
        (Pattern::Exact(path), Access::Ro) => vec![path.clone()],
        (Pattern::Glob(glob), Access::Ro) => lookup.matches(glob).paths.clone(),
    };
    let writable = |name: &std::path::Path| decide(before, name).is_some_and(|rule| rule.access == Access::Rw);
    let outside = paths.into_iter().find(|path| !writable(path) || !writable(&tree::real(lookup, path)))?;
    Some(format!("names `{}`, which is not in a writable place", outside.display()))
}
