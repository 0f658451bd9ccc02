//! File rules applied to this host: which path each rule names, what holds there, and so what the box sees.
//!
//! Rules are resolved to real paths first (symlinks, globs, other mounts of the same file), and the nearest named path
//! decides. This is the one place where that is worked out: `plan` mounts it and `explain` reads it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::facts::Facts;
use crate::guarantee::Guarantee;
use crate::policy::{Policy, Root};
use crate::rules::{Access, FileRule, Kind, LayerKind, Missing, Origin, Pattern, Present, normalise};

/// Why the rules cannot be applied to this host.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("cannot look up `{}` (rule {access} of {origin}): {source}", path.display())]
    Lookup { path: PathBuf, access: Access, origin: Origin, source: io::Error },
    #[error("`{}` (rule {access} of {origin}) does not exist", path.display())]
    Missing { path: PathBuf, access: Access, origin: Origin },
    #[error("`{}` is to be hidden ({origin}), but has {links} names (hard links)", path.display())]
    HardLinked { path: PathBuf, origin: Origin, links: u64 },
    #[error("`{}` (rule {access} of {origin}) lies in a place that every sandbox has of its own", path.display())]
    Synthetic { path: PathBuf, access: Access, origin: Origin },
    #[error("the working directory `{}` lies inside the excluded `{}` ({origin})", workdir.display(), excluded.display())]
    WorkdirExcluded { workdir: PathBuf, excluded: PathBuf, origin: Origin },
    #[error("the working directory `{}` holds the home directory: all of it would be writable", .0.display())]
    WorkdirTooWide(PathBuf),
}

/// What holds at one real path of the host, and below it until a deeper node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub access: Access,
    pub kind: Kind,
    pub origin: Origin,
    pub state: State,
    /// The rule names the path itself; false for what a glob found and for aliases.
    pub exact: bool,
}

/// How the path stands on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Present,
    /// Not there, and must not appear; the stand-in holds this text.
    Absent(&'static str),
    /// A symlink in a writable place, which must not be replaced. What it leads to has a node of its own.
    Link,
}

/// All decisions, by real path.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
}

/// Places that every box has of its own, whatever the rules say about what lies above them.
pub const PRIVATE: [&str; 5] = ["/tmp", "/var/tmp", "/run", "/dev", "/proc"];

impl Tree {
    /// Resolves the rules of a policy on this host.
    pub fn new(policy: &Policy, facts: &Facts) -> Result<Tree, TreeError> {
        let mut candidates: BTreeMap<PathBuf, Vec<(usize, Node)>> = BTreeMap::new();
        let names = Present::read([facts.home.as_path(), policy.workdir.as_path()]);
        for (index, rule) in policy.rules.iter().enumerate() {
            // Presets name hundreds of paths of which a host has a dozen.
            if let (Pattern::Exact(path), Missing::Ignore) = (&rule.pattern, rule.missing)
                && !names.may_exist(path)
            {
                continue;
            }
            for (path, node) in resolve(rule)? {
                candidates.entry(path).or_default().push((index, node));
            }
        }
        let mut tree = Tree::default();
        for (path, found) in candidates {
            let best = found.into_iter().max_by_key(|(index, _)| rank(&policy.rules[*index], *index));
            if let Some((_, node)) = best {
                tree.nodes.insert(path, node);
            }
        }
        tree.add_sockets(facts);
        tree.add_aliases(facts);
        tree.drop_idle(policy.root);
        tree.check(policy, facts)?;
        Ok(tree)
    }

    /// Every node, parents before children.
    pub fn nodes(&self) -> impl Iterator<Item = (&Path, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_path(), node))
    }

    /// The nearest node that names the path or a directory above it.
    pub fn decide(&self, path: &Path) -> Option<(&Path, &Node)> {
        path.ancestors().find_map(|p| self.nodes.get_key_value(p)).map(|(path, node)| (path.as_path(), node))
    }

    /// The nearest node above the path.
    pub fn above(&self, path: &Path) -> Option<(&Path, &Node)> {
        path.parent().and_then(|parent| self.decide(parent))
    }

    /// Whether some node below the path shows something.
    pub fn exposes_below(&self, path: &Path) -> bool {
        self.nodes
            .range::<Path, _>((std::ops::Bound::Excluded(path), std::ops::Bound::Unbounded))
            .take_while(|(below, _)| below.starts_with(path))
            .any(|(_, node)| node.access != Access::Exclude)
    }

    /// Sockets that host processes listen on are hidden unless a rule names them.
    fn add_sockets(&mut self, facts: &Facts) {
        for socket in &facts.sockets {
            let Ok(path) = fs::canonicalize(socket) else { continue };
            let is_socket = fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_socket());
            if is_socket && !self.nodes.contains_key(&path) {
                let origin = Origin { layer: LayerKind::Profile, place: "host sockets are closed".to_owned() };
                self.nodes.insert(
                    path,
                    Node { access: Access::Exclude, kind: Kind::File, origin, state: State::Present, exact: false },
                );
            }
        }
    }

    /// What is hidden or protected under one name is so under every other mount of its file system.
    fn add_aliases(&mut self, facts: &Facts) {
        let strict: Vec<(PathBuf, Node)> = self
            .nodes()
            .filter(|(_, n)| n.access == Access::Exclude && n.state == State::Present)
            .map(|(path, node)| (path.to_path_buf(), node.clone()))
            .collect();
        for (path, node) in strict {
            for alias in facts.aliases(&path) {
                if !self.nodes.contains_key(&alias) && fs::symlink_metadata(&alias).is_ok() {
                    self.nodes.insert(alias, Node { exact: false, ..node.clone() });
                }
            }
        }
    }

    /// Takes away what changes nothing: absent or linked names where nothing can be planted, hiding what is not seen.
    fn drop_idle(&mut self, root: Root) {
        let idle: Vec<PathBuf> = self
            .nodes()
            .filter(|(path, node)| {
                let above = self.above(path);
                let private = PRIVATE.iter().any(|p| path.starts_with(p)) && above.is_none();
                match (&node.state, above.map(|(_, n)| n.access)) {
                    (State::Absent(_) | State::Link, Some(Access::Rw)) => false,
                    (State::Absent(_) | State::Link, _) => true,
                    (State::Present, None) => node.access == Access::Exclude && (private || root == Root::Programs),
                    (State::Present, Some(above)) => node.access == Access::Exclude && above == Access::Exclude,
                }
            })
            .map(|(path, _)| path.to_path_buf())
            .collect();
        for path in idle {
            self.nodes.remove(&path);
        }
    }

    fn check(&self, policy: &Policy, facts: &Facts) -> Result<(), TreeError> {
        for (path, node) in self.nodes() {
            if path.starts_with("/proc") || path.starts_with("/dev") {
                return Err(TreeError::Synthetic {
                    path: path.to_path_buf(),
                    access: node.access,
                    origin: node.origin.clone(),
                });
            }
            if node.access == Access::Exclude
                && node.kind == Kind::File
                && node.state == State::Present
                && !policy.optional.contains(&Guarantee::FsSecretsHidden)
                && let Ok(data) = fs::symlink_metadata(path)
                && data.is_file()
                && data.nlink() > 1
            {
                let origin = node.origin.clone();
                return Err(TreeError::HardLinked { path: path.to_path_buf(), origin, links: data.nlink() });
            }
        }
        let workdir = &policy.workdir;
        let own = self.nodes.get(workdir).filter(|n| n.access == Access::Exclude).map(|n| (workdir.as_path(), n));
        if let Some((excluded, node)) = own.or_else(|| self.above(workdir))
            && node.access == Access::Exclude
        {
            return Err(TreeError::WorkdirExcluded {
                workdir: workdir.clone(),
                excluded: excluded.to_path_buf(),
                origin: node.origin.clone(),
            });
        }
        let writable = self.decide(workdir).is_some_and(|(_, n)| n.access == Access::Rw);
        if writable && (workdir == Path::new("/") || (facts.home.starts_with(workdir) && facts.home != *workdir)) {
            return Err(TreeError::WorkdirTooWide(workdir.clone()));
        }
        Ok(())
    }
}

/// Which of two rules that name the same path decides: the greater.
fn rank(rule: &FileRule, index: usize) -> (bool, usize, LayerKind, Access, usize) {
    let (exact, length) = match &rule.pattern {
        Pattern::Exact(path) => (true, path.as_os_str().len()),
        Pattern::Glob(glob) => (false, glob.as_str().len()),
    };
    (exact, if exact { 0 } else { length }, rule.origin.layer, rule.access, index)
}

/// The real paths that one rule names.
fn resolve(rule: &FileRule) -> Result<Vec<(PathBuf, Node)>, TreeError> {
    let node = |kind, state, exact| Node { access: rule.access, kind, origin: rule.origin.clone(), state, exact };
    match &rule.pattern {
        Pattern::Glob(glob) => {
            let mut found = Vec::new();
            for path in glob.expand() {
                found.extend(present(rule, &path, false)?);
            }
            Ok(found)
        }
        Pattern::Exact(path) => {
            let found = present(rule, path, true)?;
            if !found.is_empty() {
                return Ok(found);
            }
            match rule.missing {
                Missing::Ignore => Ok(Vec::new()),
                Missing::Protect(kind) => Ok(vec![(real_parent(path), node(kind, State::Absent(""), true))]),
                Missing::ProtectText(text) => {
                    Ok(vec![(real_parent(path), node(Kind::File, State::Absent(text), true))])
                }
                Missing::Fail => {
                    Err(TreeError::Missing { path: path.clone(), access: rule.access, origin: rule.origin.clone() })
                }
            }
        }
    }
}

/// The nodes of a path that is there: itself, and where it is a symlink, what it leads to.
fn present(rule: &FileRule, path: &Path, exact: bool) -> Result<Vec<(PathBuf, Node)>, TreeError> {
    let node = |kind, state| Node { access: rule.access, kind, origin: rule.origin.clone(), state, exact };
    let data = match fs::symlink_metadata(path) {
        Ok(data) => data,
        // A name below a file, or below what the caller may not enter, is not there for the box either.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && rule.missing != Missing::Fail => {
            return Ok(Vec::new());
        }
        Err(source) => {
            return Err(TreeError::Lookup {
                path: path.to_path_buf(),
                access: rule.access,
                origin: rule.origin.clone(),
                source,
            });
        }
    };
    let own = real_parent(path);
    if !data.is_symlink() {
        let kind = if data.is_dir() { Kind::Dir } else { Kind::File };
        return Ok(vec![(own, node(kind, State::Present))]);
    }
    let link = (own.clone(), node(Kind::File, State::Link));
    match fs::canonicalize(path) {
        Ok(target) => {
            let kind = if target.is_dir() { Kind::Dir } else { Kind::File };
            Ok(vec![(target, node(kind, State::Present)), link])
        }
        // A link to nothing: what it names must not appear either, or it would appear under both names.
        Err(_) => {
            let named = fs::read_link(path).map(|to| normalise(&own.parent().unwrap_or(Path::new("/")).join(to)));
            let absent = named.ok().map(|to| (real_parent(&to), node(Kind::Dir, State::Absent(""))));
            Ok(absent.into_iter().chain([link]).collect())
        }
    }
}

/// The path with every directory above its last name resolved as far as it exists.
fn real_parent(path: &Path) -> PathBuf {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return path.to_path_buf() };
    match fs::canonicalize(parent) {
        Ok(real) => real.join(name),
        Err(_) => real_parent(parent).join(name),
    }
}
