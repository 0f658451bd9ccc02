//! File rules and which of them decides for a path.
//!
//! The nearest rule wins: one that names the path itself beats one that names a directory above it. Among those that name
//! the same path exact beats glob, then the longer pattern beats the shorter, then the later layer wins, and inside one
//! layer `exclude` > `ro` > `rw`.

use std::borrow::Cow;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::glob::{Glob, GlobError, is_glob};
use crate::look::is_in;
use crate::tree::BUILT_IN;
use crate::wire;

/// What a rule grants. Ordered: at equal specificity the greater wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// It can be read and written.
    Rw,
    /// It can be read.
    Ro,
    /// It can neither be read nor seen.
    Exclude,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Rw => "rw",
            Access::Ro => "ro",
            Access::Exclude => "exclude",
        })
    }
}

/// One file rule of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRule {
    /// What it allows.
    pub access: Access,
    /// Which paths it names.
    pub pattern: Pattern,
    /// What holds when an exact path is not there.
    pub missing: Missing,
    /// Where it was set.
    pub origin: Origin,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Exact(path) => path.display().fmt(f),
            Pattern::Glob(glob) => f.write_str(glob.as_str()),
        }
    }
}

/// Which paths a rule names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// One absolute, lexically normalised path (and all below it).
    Exact(#[serde(with = "wire::absolute")] PathBuf),
    /// Every existing path that matches (and all below it).
    Glob(Glob),
}

/// What holds when an exact path is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missing {
    /// Nothing to do (presets that list what may be there).
    Ignore,
    /// Inside a writable place it must not appear: a read-only stand-in of this kind takes the name.
    Protect(Kind),
    /// As [`Missing::Protect`] of a file, but the placeholder is not empty.
    ProtectText(PlaceholderText),
    /// A directory is made for the box to use, and taken away again when it stayed empty.
    Make,
    /// An error: the user named it.
    Fail,
}

/// What the placeholder of a file holds, where an empty one would stop the program that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlaceholderText {
    /// The directory that the file is in, as git writes it: git refuses to run over an empty `commondir`.
    SameDirectory,
    /// Settings in JSON that set nothing.
    EmptyObject,
}

impl PlaceholderText {
    /// The text itself.
    pub fn text(self) -> &'static str {
        match self {
            PlaceholderText::SameDirectory => ".\n",
            PlaceholderText::EmptyObject => "{}\n",
        }
    }
}

/// File or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Anything that is not a directory.
    File,
    /// A directory.
    Dir,
}

/// Which layer a value comes from, and the place in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The layer.
    pub layer: LayerKind,
    /// `preset @base`, `/home/u/.config/ringfence/config.toml:12`, `--ro`.
    pub place: Cow<'static, str>,
}

impl Origin {
    /// Whether no user wrote the rule: a preset found it on this host, or it holds always.
    pub fn is_ours(&self) -> bool {
        self.preset().is_some() || self.place == BUILT_IN
    }

    /// The preset that the rule comes from: `@git`. No configuration file and no flag has such a place.
    pub fn preset(&self) -> Option<&str> {
        self.place.strip_prefix("preset ").filter(|name| name.starts_with('@'))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

/// The layers, in the order in which they are stacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerKind {
    /// The profile, built in or the user's own.
    Profile,
    /// The user's configuration file.
    Global,
    /// The project's file.
    Project,
    /// The command line, or the program that asks.
    Flags,
}

impl FileRule {
    /// The length in bytes of the longest of `path` and its ancestors that the rule names; `path` is normalised.
    pub fn nearest(&self, path: &Path) -> Option<usize> {
        match &self.pattern {
            Pattern::Exact(named) => is_in(path, named).then(|| named.as_os_str().len()),
            Pattern::Glob(glob) => glob.nearest(path),
        }
    }
}

/// How a rule ranks for a path: the nearest path it names, exact, length, layer, access, place in the list.
type Rank = (usize, bool, usize, LayerKind, Access, usize);

fn ranked<'a>(rules: &'a [FileRule], path: &Path) -> impl Iterator<Item = (Rank, &'a FileRule)> {
    rules.iter().enumerate().filter_map(move |(index, rule)| {
        let near = rule.nearest(path)?;
        let (exact, length) = match &rule.pattern {
            Pattern::Exact(named) => (true, named.as_os_str().len()),
            Pattern::Glob(glob) => (false, glob.as_str().len()),
        };
        Some(((near, exact, length, rule.origin.layer, rule.access, index), rule))
    })
}

/// The rule that decides for a path, or `None` when no rule names it or a directory above it. One pass over the rules.
pub fn decide<'a>(rules: &'a [FileRule], path: &Path) -> Option<&'a FileRule> {
    ranked(rules, path).max_by_key(|(rank, _)| *rank).map(|(_, rule)| rule)
}

/// Every rule that has a say on a path, the one that decides first.
pub fn candidates<'a>(rules: &'a [FileRule], path: &Path) -> Vec<&'a FileRule> {
    let mut all: Vec<_> = ranked(rules, path).collect();
    all.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    all.into_iter().map(|(_, rule)| rule).collect()
}

/// A path of a rule that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path is empty.
    #[error("path is empty")]
    Empty,
    /// The path has a NUL byte.
    #[error("path `{0}` contains a NUL byte")]
    Nul(String),
    /// The path begins with `~` and a name.
    #[error("path `{0}` names another user's home, which is not supported")]
    OtherHome(String),
    /// The pattern cannot be understood.
    #[error(transparent)]
    Glob(#[from] GlobError),
}

impl Pattern {
    /// One absolute path, whatever its text has of `.`, `..` and slashes: a rule that keeps those never matches.
    pub fn exact(path: PathBuf) -> Pattern {
        let normal = |path: &Path| {
            let mut names = path.as_os_str().as_bytes().split(|byte| *byte == b'/').skip(1);
            path.is_absolute() && names.all(|name| !matches!(name, b"" | b"." | b".."))
        };
        // Most are: a policy has hundreds.
        if normal(&path) { Pattern::Exact(path) } else { Pattern::Exact(normalise(&path)) }
    }

    /// Reads a path as users write it: absolute, below home (`~`), or relative to the working directory.
    pub fn parse(text: &str, workdir: &Path, home: &Path) -> Result<Pattern, PathError> {
        let (base, rest) = split_base(text, workdir, home)?;
        if !is_glob(rest) {
            return Ok(Pattern::Exact(normalise(&base.join(rest.trim_start_matches('/')))));
        }
        let glob = Glob::parse_under(base, rest)?;
        Ok(match glob.literal() {
            Some(path) => Pattern::Exact(path.to_path_buf()),
            None => Pattern::Glob(glob),
        })
    }
}

/// Reads one path without wildcards as users write it.
pub fn parse_path(text: &str, workdir: &Path, home: &Path) -> Result<PathBuf, PathError> {
    let (base, rest) = split_base(text, workdir, home)?;
    Ok(normalise(&base.join(rest.trim_start_matches('/'))))
}

/// The literal directory that a path starts from, and the rest of it.
fn split_base<'a>(text: &'a str, workdir: &'a Path, home: &'a Path) -> Result<(&'a Path, &'a str), PathError> {
    if text.is_empty() {
        return Err(PathError::Empty);
    }
    if text.contains('\0') {
        return Err(PathError::Nul(text.replace('\0', "\\0")));
    }
    if text.starts_with('/') {
        return Ok((Path::new("/"), text));
    }
    match text.strip_prefix('~') {
        None => Ok((workdir, text)),
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Ok((home, rest)),
        Some(_) => Err(PathError::OtherHome(text.to_owned())),
    }
}

/// The path without `.`, `..` and doubled slashes, by its text alone.
pub fn normalise(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::Normal(name) => out.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> FileRule {
        let words: Vec<&str> = text.split(' ').collect();
        let [layer, access, pattern] = words[..] else { panic!("{text}") };
        FileRule {
            access: match access {
                "rw" => Access::Rw,
                "ro" => Access::Ro,
                _ => Access::Exclude,
            },
            pattern: Pattern::parse(pattern, Path::new("/w"), Path::new("/h")).unwrap(),
            missing: Missing::Ignore,
            origin: Origin {
                layer: match layer {
                    "P" => LayerKind::Profile,
                    "G" => LayerKind::Global,
                    "J" => LayerKind::Project,
                    _ => LayerKind::Flags,
                },
                place: text.to_owned().into(),
            },
        }
    }

    #[test]
    fn the_nearest_rule_decides() {
        let table: &[(&[&str], &str, Option<&str>)] = &[
            (&[], "/w", None),
            (&["P rw /w"], "/x", None),
            (&["P rw /w"], "/wx", None),
            (&["P rw /w"], "/w/a/b", Some("P rw /w")),
            (&["P ro /"], "/w/a", Some("P ro /")),
            // nearest
            (&["P rw /w", "F exclude /"], "/w/a", Some("P rw /w")),
            (&["P exclude /w/a", "F rw /w"], "/w/a/b", Some("P exclude /w/a")),
            (&["P exclude /w/*", "F rw /w"], "/w/a/b", Some("P exclude /w/*")),
            (&["P exclude /w/a", "P ro /w/a/b"], "/w/a/b/c", Some("P ro /w/a/b")),
            // exact beats glob, also of a later layer
            (&["P rw /w/a", "F exclude /w/*"], "/w/a/b", Some("P rw /w/a")),
            // longer pattern beats shorter
            (&["P ro /w/.env*", "F rw /w/*"], "/w/.env.x", Some("P ro /w/.env*")),
            // later layer
            (&["P exclude /w/a", "G rw /w/a"], "/w/a", Some("G rw /w/a")),
            (&["F rw /w/a", "P exclude /w/a"], "/w/a", Some("F rw /w/a")),
            // inside one layer
            (&["P exclude /w/a", "P ro /w/a", "P rw /w/a"], "/w/a", Some("P exclude /w/a")),
            (&["P ro /w/a", "P rw /w/a"], "/w/a", Some("P ro /w/a")),
            (&["G exclude /w/[ab]", "G ro /w/[a-b]"], "/w/a", Some("G ro /w/[a-b]")),
        ];
        for (rules, path, expected) in table {
            let rules: Vec<FileRule> = rules.iter().map(|r| rule(r)).collect();
            let decided = decide(&rules, Path::new(path)).map(|r| r.origin.place.as_ref());
            assert_eq!(decided, *expected, "{path} {rules:?}");
        }
    }

    /// Compared as text: two paths that differ by a slash at the end are the same to `Path`.
    #[test]
    fn exact_patterns_are_normal_however_they_are_made() {
        let table = [
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b"),
            ("/a//b", "/a/b"),
            ("/a/./b/.", "/a/b"),
            ("/a/x/../b/../b", "/a/b"),
            ("/", "/"),
            ("//", "/"),
            ("/..", "/"),
            ("/.a/..b/c.", "/.a/..b/c."),
        ];
        for (path, expected) in table {
            let Pattern::Exact(made) = Pattern::exact(PathBuf::from(path)) else { panic!("{path}") };
            assert_eq!(made.as_os_str(), expected, "{path}");
        }
    }

    #[test]
    fn full_tie_takes_the_later() {
        let rules = [rule("P ro /w/a"), rule("P ro /w/a")];
        assert!(std::ptr::eq(decide(&rules, Path::new("/w/a")).unwrap(), &rules[1]));
    }

    #[test]
    fn paths_as_users_write_them() {
        let parse = |text| Pattern::parse(text, Path::new("/w/[x]"), Path::new("/h"));
        let table = [
            ("~", "/h"),
            ("~/", "/h"),
            ("~/a/../b", "/h/b"),
            ("a", "/w/[x]/a"),
            (".", "/w/[x]"),
            ("./a//b/", "/w/[x]/a/b"),
            ("../y", "/w/y"),
            ("/../..", "/"),
            ("src/**", "/w/[x]/src"),
            ("~/.cache/**", "/h/.cache"),
        ];
        for (text, path) in table {
            assert_eq!(parse(text), Ok(Pattern::Exact(PathBuf::from(path))), "{text}");
        }
        assert!(matches!(parse("*.rs"), Ok(Pattern::Glob(g)) if g.matches(Path::new("/w/[x]/a.rs"))));
        assert_eq!(parse(""), Err(PathError::Empty));
        assert_eq!(parse("~bob/x"), Err(PathError::OtherHome("~bob/x".into())));
        assert!(matches!(parse("a\0"), Err(PathError::Nul(_))));
        assert!(matches!(parse("a[b"), Err(PathError::Glob(GlobError::UnclosedClass(_)))));
    }
}
