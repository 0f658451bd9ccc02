//! What may not leave a sandbox by itself, and not enter one: names that something executes or reads later, repositories,
//! and what the sandbox's own policy protects or hides. One rule for every copy, out of a session or of a piece of code.
//!
//! A path that the user names is the user's choice. The rule is about what comes along with it: what lies below the path
//! that was named.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::look::is_in;
use crate::plan::{Mount, Plan};
use crate::presets;
use crate::rules::{Access, FileRule, candidates, decide};
use crate::wire;

/// What the policy of one sandbox keeps from it on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarded {
    /// The rules of the policy: they know names that are not there yet.
    pub rules: Vec<FileRule>,
    /// What the plan hides and protects, by its real path: it knows what links lead to.
    pub paths: Vec<GuardedPath>,
    /// The home directory of the user.
    #[serde(with = "wire::path")]
    pub home: PathBuf,
}

/// One path of the host that a plan hides or protects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedPath {
    /// Its real path.
    #[serde(with = "wire::path")]
    pub path: PathBuf,
    /// It is hidden, and not only protected.
    pub hidden: bool,
}

/// Why a name does not come out of a sandbox by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Held {
    /// Git would take it for a repository, or for a part of one.
    #[error("git would use it as a repository, or as a part of one")]
    Repository,
    /// A preset protects the name.
    #[error("its name is protected ({0})")]
    Name(&'static str),
    /// The sandbox's own policy hides or protects what has this path.
    #[error("the sandbox's policy protects what has this name")]
    Policy,
}

/// What a repository consists of. Without `HEAD` git sees none; the rest is what it executes or follows there.
const LAYOUT: &[&str] = &[
    "HEAD",
    "objects",
    "refs",
    "commondir",
    "gitdir",
    "config",
    "config.worktree",
    "hooks",
    "info",
    "packed-refs",
    "modules",
    "worktrees",
    "index",
    "logs",
];

impl Guarded {
    /// What is kept whatever the policy.
    pub fn names(home: &Path) -> Guarded {
        Guarded { home: home.to_path_buf(), ..Guarded::default() }
    }

    /// What this policy and this plan keep.
    pub fn of(rules: &[FileRule], plan: &Plan, home: &Path) -> Guarded {
        let mut binds: Vec<(&Path, &Path, bool)> = Vec::new();
        let mut paths = Vec::new();
        for mount in &plan.mounts {
            let around = |target: &Path| {
                let found = binds.iter().filter(|(at, ..)| is_in(target, at));
                let (at, source, writable) = found.max_by_key(|(at, ..)| at.as_os_str().len())?;
                let below = target.strip_prefix(at).ok()?;
                // Joined with nothing, a path would end in a slash.
                let path = if below.as_os_str().is_empty() { source.to_path_buf() } else { source.join(below) };
                Some((path, *writable))
            };
            match mount {
                Mount::Bind { source, target, writable, .. } => {
                    let inside = around(target).is_some_and(|(_, writable)| writable);
                    if inside && !writable {
                        paths.push(GuardedPath { path: source.clone(), hidden: false });
                    }
                    binds.push((target, source, *writable));
                }
                Mount::Hide { target, .. } => {
                    paths.extend(around(target).map(|(path, _)| GuardedPath { path, hidden: true }));
                }
                Mount::Empty { target, .. } | Mount::Text { target, .. } => {
                    paths.extend(around(target).map(|(path, _)| GuardedPath { path, hidden: false }));
                }
                _ => {}
            }
        }
        Guarded { rules: rules.to_vec(), paths, home: home.to_path_buf() }
    }

    /// Whether the policy hides this path of the host, by something that lies below the path that was `named`.
    pub fn hides(&self, named: &Path, path: &Path) -> bool {
        let hidden = |one: &GuardedPath| one.hidden && is_in(path, &one.path) && !is_in(named, &one.path);
        self.paths.iter().any(hidden)
            || decide(&self.rules, path)
                .is_some_and(|rule| rule.access == Access::Exclude && is_below_named(rule, named, path))
    }

    /// Why a sandbox may not put something at this path of the host, below the path that was `named` for it. `replaces`:
    /// something is there already.
    pub fn holds(&self, named: &Path, path: &Path, replaces: bool) -> Option<Held> {
        let chosen = path.strip_prefix(named).unwrap_or(path);
        let names = chosen.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let last = chosen.file_name();
        for name in names {
            if is_called(name, ".git") {
                return Some(Held::Repository);
            }
            let replaced = replaces && last == Some(name);
            if let Some(preset) = presets::held_name(|held| is_called(name, held), replaced) {
                return Some(Held::Name(preset));
            }
        }
        if let Some(preset) = presets::held_at_home(|held| {
            let held = self.home.join(held);
            is_in(path, &held) && !is_in(named, &held)
        }) {
            return Some(Held::Name(preset));
        }
        let kept = |one: &GuardedPath| is_in(path, &one.path) && !is_in(named, &one.path);
        let rules = candidates(&self.rules, path);
        let by_rule = rules.first().filter(|rule| is_below_named(rule, named, path)).is_some_and(|rule| {
            let in_writable = || rules.iter().any(|other| other.access == Access::Rw);
            rule.access == Access::Exclude || rule.access == Access::Ro && in_writable()
        });
        (by_rule || self.paths.iter().any(kept)).then_some(Held::Policy)
    }
}

/// Whether what the rule names lies below the path that was named.
fn is_below_named(rule: &FileRule, named: &Path, path: &Path) -> bool {
    rule.nearest(path).is_some_and(|near| near > named.as_os_str().len())
}

/// Some file systems do not tell capital letters from small ones.
fn is_called(name: &OsStr, held: &str) -> bool {
    name.as_bytes().eq_ignore_ascii_case(held.as_bytes())
}

/// Whether a repository may have such a name at its top.
pub fn is_layout(name: &OsStr) -> bool {
    LAYOUT.iter().any(|part| is_called(name, part))
}

/// Which names of a directory must stay away, so that git takes it for no repository and for no other one than before.
/// `chosen`: the names that would come; `there`: whether the directory has one already.
pub fn layout<'a>(chosen: &BTreeSet<&'a OsStr>, there: impl Fn(&str) -> bool) -> BTreeSet<&'a OsStr> {
    let parts: BTreeSet<&OsStr> = chosen.iter().copied().filter(|name| is_layout(name)).collect();
    let has = |part: &str| parts.iter().any(|name| is_called(name, part)) || there(part);
    let is_repository = || has("HEAD") && (has("objects") && has("refs") || has("commondir"));
    if parts.is_empty() || !is_repository() { BTreeSet::new() } else { parts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{LayerKind, Missing, Origin, Pattern};

    fn guarded(rules: &[(Access, &str)]) -> Guarded {
        let rule = |(access, text): &(Access, &str)| FileRule {
            access: *access,
            pattern: Pattern::parse(text, Path::new("/h/p"), Path::new("/h")).unwrap(),
            missing: Missing::Ignore,
            origin: Origin { layer: LayerKind::Flags, place: "--x".into() },
        };
        Guarded { rules: rules.iter().map(rule).collect(), ..Guarded::names(Path::new("/h")) }
    }

    #[test]
    fn what_does_not_come_out() {
        let guarded = Guarded {
            paths: vec![GuardedPath { path: "/h/p/real".into(), hidden: true }],
            ..guarded(&[
                (Access::Ro, "/h"),
                (Access::Rw, "/h/p"),
                (Access::Ro, "/h/p/kept"),
                (Access::Exclude, "**/*.pem"),
            ])
        };
        let table = [
            ("/h/x", "/h/x/src/main.rs", false, None),
            ("/h/x", "/h/x/a/.git/config", false, Some(Held::Repository)),
            ("/h/x", "/h/x/a/.GIT", false, Some(Held::Repository)),
            ("/h/x", "/h/x/.vscode/tasks.json", false, Some(Held::Name("@dotfiles"))),
            ("/h/x", "/h/x/deep/.Envrc", false, Some(Held::Name("@dotfiles"))),
            ("/h/x", "/h/x/eslint.config.js", false, None),
            ("/h/x", "/h/x/eslint.config.js", true, Some(Held::Name("@lint/ts"))),
            // What the user named is the user's.
            ("/h/x/.vscode", "/h/x/.vscode/tasks.json", false, None),
            ("/h", "/h/.local/bin/x", false, Some(Held::Name("@dotfiles"))),
            ("/h/.local/bin", "/h/.local/bin/x", false, None),
            ("/h", "/h/.ssh/config", false, Some(Held::Name("@secrets"))),
            ("/h/x", "/h/x/.local/bin/y", false, None),
            // The sandbox's own policy.
            ("/h", "/h/p/kept", true, Some(Held::Policy)),
            ("/h/p/kept", "/h/p/kept", true, None),
            ("/h", "/h/p/a/b.pem", false, Some(Held::Policy)),
            ("/h", "/h/p/real/x", false, Some(Held::Policy)),
            ("/h", "/h/other", true, None),
        ];
        for (named, path, replaces, held) in table {
            let found = guarded.holds(Path::new(named), Path::new(path), replaces);
            assert_eq!(found, held, "{path} below {named}");
        }
    }

    #[test]
    fn what_does_not_go_in() {
        let guarded = Guarded {
            paths: vec![GuardedPath { path: "/h/p/real".into(), hidden: true }],
            ..guarded(&[(Access::Rw, "/h/p"), (Access::Exclude, "/h/p/secret"), (Access::Exclude, "**/.env")])
        };
        let table = [
            ("/h/p", "/h/p/a", false),
            ("/h/p", "/h/p/secret/x", true),
            ("/h/p", "/h/p/a/.env", true),
            ("/h/p", "/h/p/real/x", true),
            ("/h/p/secret", "/h/p/secret/x", false),
            ("/h/p/a/.env", "/h/p/a/.env", false),
            ("/h/p/real", "/h/p/real/x", false),
        ];
        for (named, path, hidden) in table {
            assert_eq!(guarded.hides(Path::new(named), Path::new(path)), hidden, "{path} of {named}");
        }
    }

    #[test]
    fn what_makes_a_repository() {
        let table: &[(&[&str], &[&str], &[&str])] = &[
            (&["HEAD", "objects", "refs", "config", "README"], &[], &["HEAD", "config", "objects", "refs"]),
            (&["head", "commondir"], &[], &["commondir", "head"]),
            (&["objects", "refs", "config"], &["HEAD"], &["config", "objects", "refs"]),
            (&["config", "src"], &["HEAD", "objects", "refs"], &["config"]),
            (&["objects", "refs", "config"], &[], &[]),
            (&["config", "HEAD"], &["config"], &[]),
            (&["src"], &["HEAD", "objects", "refs"], &[]),
        ];
        for (chosen, there, held) in table {
            let chosen: BTreeSet<&OsStr> = chosen.iter().map(OsStr::new).collect();
            let held: BTreeSet<&OsStr> = held.iter().map(OsStr::new).collect();
            assert_eq!(layout(&chosen, |name| there.contains(&name)), held, "{chosen:?} {there:?}");
        }
    }
}
