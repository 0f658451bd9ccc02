//! What two policies both allow, as one policy; the same of the settings around them.
//!
//! Every type is taken apart without `..`: a new field does not compile until its rule is written here.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::env::name_matches;
use crate::limits::Limits;
use crate::look::Lookup;
use crate::plan::{ETC, HOME, PROGRAMS};
use crate::policy::{Caches, CommandRule, EnvPolicy, Narrowed, Policy, Root, User};
use crate::records::Records;
use crate::rules::{Access, FileRule, LayerKind, Missing, Pattern, decide};
use crate::service::ServiceSettings;
use crate::tree::PRIVATE;

/// Policies of which no sandbox can be both.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum NarrowError {
    /// The roots differ, and one sandbox has one root.
    #[error("a sandbox cannot be made of {one} and of {other} at once")]
    Root { one: Root, other: Root },
    /// The users differ, and a command has one user.
    #[error("a command cannot run as {one} and as {other} at once")]
    User { one: User, other: User },
}

impl Policy {
    /// This policy, less what the other one does not allow.
    ///
    /// What both allow stays, but for what no one policy can say: caches of different groups, variables that only one
    /// policy sets or passes by a wildcard, programs with two different rules, an allow list and a bridge.
    ///
    /// Profile, workspace and tracing are this policy's: they allow nothing. Whether the workspace can be read and
    /// written, the file rules say, and those are about paths of the host in both policies. What the host itself keeps
    /// from the user that a sandbox runs as is no part of a policy.
    ///
    /// Globs are looked up, because file rules hold for what is there when a sandbox is planned. `lookup` should be the
    /// one that the plan is then made with ([`plan_with`](crate::plan::plan_with)).
    pub fn narrowed_by(&self, other: &Policy, lookup: &Lookup) -> Result<Policy, NarrowError> {
        let Policy {
            profile,
            workspace,
            workdir_at,
            narrowed,
            root,
            rules: _,
            shown,
            network,
            devices,
            caches,
            keep_home,
            tmp_exec,
            docker,
            nesting,
            env,
            user,
            limits,
            commands,
            allow_syscalls,
            refuse_syscalls,
            optional,
            strict,
            trace_denials,
            weakened,
        } = self;
        Ok(Policy {
            profile: profile.clone(),
            workspace: workspace.clone(),
            workdir_at: workdir_at.clone(),
            narrowed: narrowed_parts(narrowed, &other.narrowed),
            root: root.narrowed_by(&other.root)?,
            rules: rules(self, other, lookup),
            shown: common(shown, &other.shown),
            network: network.narrowed_by(&other.network),
            devices: common(devices, &other.devices),
            caches: caches.narrowed_by(&other.caches),
            keep_home: *keep_home && other.keep_home,
            tmp_exec: *tmp_exec && other.tmp_exec,
            docker: *docker && other.docker,
            nesting: *nesting && other.nesting,
            env: env.narrowed_by(&other.env),
            user: user.narrowed_by(other.user)?,
            limits: limits.narrowed_by(&other.limits),
            commands: narrowed_commands(commands, &other.commands),
            allow_syscalls: common(allow_syscalls, &other.allow_syscalls),
            refuse_syscalls: refuse_syscalls | &other.refuse_syscalls,
            optional: optional & &other.optional,
            strict: *strict || other.strict,
            trace_denials: *trace_denials,
            weakened: either(weakened.clone(), other.weakened.iter().cloned()),
        })
    }
}

/// Of a directory that both narrow, what both give.
fn narrowed_parts(one: &[Narrowed], other: &[Narrowed]) -> Vec<Narrowed> {
    let within = |parts: &[PathBuf], of: &[PathBuf]| -> Vec<PathBuf> {
        parts.iter().filter(|part| of.iter().any(|dir| part.starts_with(dir))).cloned().collect()
    };
    let mut both: Vec<Narrowed> = Vec::new();
    for next in one.iter().chain(other) {
        let known = both.iter_mut().find(|known| known.whole == next.whole);
        match known {
            Some(known) => {
                let parts = either(within(&known.parts, &next.parts), within(&next.parts, &known.parts));
                known.parts = outermost(&parts);
            }
            None => both.push(Narrowed { whole: next.whole.clone(), parts: outermost(&next.parts) }),
        }
    }
    both
}

/// Without what lies in another one, each once.
fn outermost(parts: &[PathBuf]) -> Vec<PathBuf> {
    let lies_in_another = |part: &PathBuf| parts.iter().any(|dir| dir != part && part.starts_with(dir));
    either(Vec::new(), parts.iter().filter(|part| !lies_in_another(part)).cloned())
}

/// What is in both lists.
fn common<T: Clone + PartialEq>(one: &[T], other: &[T]) -> Vec<T> {
    one.iter().filter(|item| other.contains(item)).cloned().collect()
}

/// What is in one list or the other.
fn either<T: Clone + PartialEq>(one: Vec<T>, other: impl IntoIterator<Item = T>) -> Vec<T> {
    other.into_iter().fold(one, |mut all, item| {
        if !all.contains(&item) {
            all.push(item);
        }
        all
    })
}

impl Root {
    fn narrowed_by(&self, other: &Root) -> Result<Root, NarrowError> {
        match (self, other) {
            (one, other) if one == other => Ok(one.clone()),
            // The programs are a part of the host's root.
            (Root::Host, Root::Programs) | (Root::Programs, Root::Host) => Ok(Root::Programs),
            (one, other) => Err(NarrowError::Root { one: one.clone(), other: other.clone() }),
        }
    }
}

impl User {
    fn narrowed_by(self, other: User) -> Result<User, NarrowError> {
        match (self, other) {
            (one, other) if one == other => Ok(one),
            // Less of the caller is known inside.
            (ids @ User::Ids { .. }, User::Caller) | (User::Caller, ids @ User::Ids { .. }) => Ok(ids),
            (one, other) => Err(NarrowError::User { one, other }),
        }
    }
}

impl Caches {
    fn narrowed_by(&self, other: &Caches) -> Caches {
        let Caches { names, group, required, read_only } = self;
        let names = if *group == other.group { common(names, &other.names) } else { Vec::new() };
        Caches {
            names,
            group: group.clone(),
            required: *required || other.required,
            read_only: *read_only || other.read_only,
        }
    }
}

impl Limits {
    fn narrowed_by(&self, other: &Limits) -> Limits {
        let Limits { memory, cpus, pids, files, timeout, timeout_ceiling, cpu_time, tmp_size, tmp_inodes, output } =
            self;
        let timeout_ceiling = least(*timeout_ceiling, other.timeout_ceiling);
        Limits {
            memory: least(*memory, other.memory),
            cpus: least(*cpus, other.cpus),
            pids: least(*pids, other.pids),
            files: least(*files, other.files),
            timeout: least(least(*timeout, other.timeout), timeout_ceiling),
            timeout_ceiling,
            cpu_time: least(*cpu_time, other.cpu_time),
            tmp_size: (*tmp_size).min(other.tmp_size),
            tmp_inodes: (*tmp_inodes).min(other.tmp_inodes),
            output: (*output).min(other.output),
        }
    }
}

impl ServiceSettings {
    /// These settings, and what the other ones tighten.
    pub fn narrowed_by(&self, other: &ServiceSettings) -> ServiceSettings {
        let ServiceSettings { records, skill_verdict, warm, idle, life } = self;
        ServiceSettings {
            records: records.narrowed_by(&other.records),
            skill_verdict: (*skill_verdict).min(other.skill_verdict),
            warm: (*warm).min(other.warm),
            idle: least(*idle, other.idle),
            life: least(*life, other.life),
        }
    }
}

impl Records {
    fn narrowed_by(&self, other: &Records) -> Records {
        let Records { output, secrets, keep, max_size, database } = self;
        Records {
            output: *output && other.output,
            secrets: either(secrets.clone(), other.secrets.iter().cloned()),
            // Only the user's own file says these, and it is the same for both.
            keep: *keep,
            max_size: *max_size,
            database: database.clone(),
        }
    }
}

/// The smaller limit; none is larger than every other.
fn least<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) if other < one => Some(other),
        (None, other) => other,
        (one, _) => one,
    }
}

impl EnvPolicy {
    fn narrowed_by(&self, other: &EnvPolicy) -> EnvPolicy {
        let EnvPolicy { inherit, pass, drop, set } = self;
        let same = |(name, value): &(&String, _)| other.set.get(*name) == Some(*value);
        let set: BTreeMap<_, _> = set.iter().filter(same).map(|(name, value)| (name.clone(), value.clone())).collect();
        // What only one policy sets may hide the caller's value, which must not come through instead.
        let hidden: Vec<String> =
            self.set.keys().chain(other.set.keys()).filter(|name| !set.contains_key(*name)).cloned().collect();
        let hides = |pattern: &String| hidden.iter().any(|name| name_matches(pattern, OsStr::new(name)));
        let passed = |by: &EnvPolicy, pattern: &String| by.pass.iter().any(|wider| covers(wider, pattern));
        let pass = pass.iter().filter(|pattern| passed(other, pattern)).cloned().collect();
        let pass = either(pass, other.pass.iter().filter(|pattern| passed(self, pattern)).cloned());
        EnvPolicy {
            inherit: *inherit && other.inherit,
            pass: pass.into_iter().filter(|pattern| !hides(pattern)).collect(),
            drop: either(either(drop.clone(), other.drop.iter().cloned()), hidden),
            set,
        }
    }
}

/// Whether a pattern of names passes all that another one does. A wildcard does not reach what a full name does.
fn covers(wider: &str, pattern: &str) -> bool {
    let narrower = || pattern.strip_suffix('*').zip(wider.strip_suffix('*'));
    wider == pattern || narrower().is_some_and(|(pattern, wider)| pattern.starts_with(wider))
}

/// What stands in front of a program takes something away. Two things cannot stand there: the program is blocked.
fn narrowed_commands(
    one: &BTreeMap<String, CommandRule>,
    other: &BTreeMap<String, CommandRule>,
) -> BTreeMap<String, CommandRule> {
    let mut both = one.clone();
    for (name, rule) in other {
        both.entry(name.clone())
            .and_modify(|own| {
                if own != rule {
                    *own = CommandRule::Block;
                }
            })
            .or_insert_with(|| rule.clone());
    }
    both
}

/// Rules by which a path is what both policies make of it. For each path that a rule of either names, both are asked.
/// What they agree on there holds until the next such path.
///
/// The rules have no more say than those of a project's file. What one policy names and the other one only covers opens
/// no socket, follows no link and shows no other name of a secret.
fn rules(one: &Policy, other: &Policy, lookup: &Lookup) -> Vec<FileRule> {
    if one.rules == other.rules {
        return one.rules.clone();
    }
    let mut paths = BTreeSet::new();
    let mut merged = Vec::new();
    // Directories that nobody can look into, and that may hold something protected.
    let mut protected = BTreeSet::new();
    for rule in one.rules.iter().chain(&other.rules) {
        match &rule.pattern {
            Pattern::Exact(path) => {
                paths.insert(path.clone());
            }
            Pattern::Glob(glob) => {
                let found = lookup.matches(glob);
                paths.extend(found.paths.iter().cloned());
                match rule.access {
                    // Also for what will be there when the sandbox is planned.
                    Access::Exclude => merged.push(rule.clone()),
                    Access::Ro => {
                        paths.extend(found.closed.iter().cloned());
                        protected.extend(found.closed.iter().cloned());
                    }
                    Access::Rw => {}
                }
            }
        }
    }
    merged.extend(paths.into_iter().filter_map(|path| agreed([one, other].map(|policy| view(policy, &path)), path)));
    for rule in &mut merged {
        rule.origin.layer = LayerKind::Project;
        if let Pattern::Exact(path) = &rule.pattern
            && rule.access == Access::Rw
            && protected.contains(path)
        {
            rule.access = Access::Ro;
        }
    }
    merged
}

/// What one policy makes of a path.
#[derive(Debug, Clone, Copy)]
struct View<'a> {
    access: Access,
    /// `None`: the root shows it.
    rule: Option<&'a FileRule>,
}

/// `None`: neither a rule nor the root shows or hides it, and nothing above it.
fn view<'a>(policy: &'a Policy, path: &Path) -> Option<View<'a>> {
    let own: &[&str] = if policy.root == Root::Host { &[] } else { &[HOME] };
    let private = PRIVATE.iter().chain(own).find(|place| path.starts_with(place));
    // A rule above a private place says nothing about what is in it.
    let reaches = |rule: &&FileRule| private.is_none_or(|place| rule.nearest(path) >= Some(place.len()));
    if let Some(rule) = decide(&policy.rules, path).filter(reaches) {
        return Some(View { access: rule.access, rule: Some(rule) });
    }
    let shown = match policy.root {
        _ if private.is_some() => false,
        Root::Host => true,
        Root::Programs => PROGRAMS.iter().chain(&ETC).any(|place| path.starts_with(place)),
        Root::Image(_) => false,
    };
    shown.then_some(View { access: Access::Ro, rule: None })
}

fn is_private(path: &Path) -> bool {
    PRIVATE.iter().any(|place| path.starts_with(place))
}

/// The rule for a path that one of the policies names.
fn agreed(views: [Option<View<'_>>; 2], path: PathBuf) -> Option<FileRule> {
    let nothing = View { access: Access::Exclude, rule: None };
    let (one, other) = match views {
        [Some(one), Some(other)] => (one, other),
        // What only one policy shows needs no rule: nothing above it is shown by both. What one hides may still have
        // something below it that the other one's root shows; in private places there is nothing.
        [Some(view), None] | [None, Some(view)] if view.access == Access::Exclude && !is_private(&path) => {
            (view, nothing)
        }
        _ => return None,
    };
    let (tighter, wider) = if other.access > one.access { (other, one) } else { (one, other) };
    let access = tighter.access;
    let origin = tighter.rule.or(wider.rule)?.origin.clone();
    let names = |rule: &&FileRule| matches!(&rule.pattern, Pattern::Exact(named) if *named == path);
    let own = [tighter, wider].map(|view| view.rule.filter(names));
    let has = |wanted: fn(&FileRule) -> bool| own.iter().flatten().find(|rule| wanted(rule)).map(|rule| rule.missing);
    let protects = |rule: &FileRule| {
        rule.access != Access::Rw && matches!(rule.missing, Missing::Protect(_) | Missing::ProtectText(_))
    };
    let both_make = own.iter().all(|rule| rule.is_some_and(|rule| rule.missing == Missing::Make));
    let made = (access == Access::Rw && both_make).then_some(Missing::Make);
    let missing = has(protects).or_else(|| has(|rule| rule.missing == Missing::Fail)).or(made);
    let missing = missing.unwrap_or(Missing::Ignore);
    Some(FileRule { access, pattern: Pattern::Exact(path), missing, origin })
}
