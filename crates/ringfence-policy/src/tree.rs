//! File rules applied to this host: which path each rule names, what holds there, and so what the box sees.
//!
//! Rules are resolved to real paths first (symlinks, globs, other mounts of the same file), and the nearest named path
//! decides. This is the one place where that is worked out: `plan` mounts it and `explain` reads it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::facts::Facts;
use crate::guarantee::Guarantee;
use crate::look::{End, Lookup};
use crate::policy::{Policy, Root};
use crate::rules::{Access, FileRule, Kind, LayerKind, Missing, Origin, Pattern};

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
    #[error("`{}` (rule rw of {origin}) is a symlink in a writable place, and leads to `{}`", path.display(), real.display())]
    LinkInWritable { path: PathBuf, real: PathBuf, origin: Origin },
    #[error("the working directory `{}` lies inside the excluded `{}` ({origin})", workdir.display(), excluded.display())]
    WorkdirExcluded { workdir: PathBuf, excluded: PathBuf, origin: Origin },
    #[error("the working directory `{}` would not be there: no rule shows it", .0.display())]
    WorkdirNotShown(PathBuf),
    #[error("the working directory `{}` is part of the system, or holds the home directory: all of it would be writable", .0.display())]
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
    /// Not there, and must not appear; the stand-in holds this text. Where it is writable: not there, and to be made.
    Absent(&'static str),
    /// A symlink in a writable place, which must not be replaced. What it leads to has a node of its own.
    Link,
}

/// All decisions, by real path.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    /// Compared byte by byte: a path still comes before what lies below it.
    nodes: BTreeMap<OsString, Node>,
}

/// Places that every box has of its own, whatever the rules say about what lies above them.
pub const PRIVATE: [&str; 5] = ["/tmp", "/var/tmp", "/run", "/dev", "/proc"];

/// Directories that are nobody's project, with all below them.
const SYSTEM: [&str; 13] = [
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/lib",
    "/usr/sbin",
    "/usr/share",
];
/// Directories that are nobody's project, but may hold one.
const SYSTEM_TOPS: [&str; 7] = ["/", "/home", "/opt", "/srv", "/usr", "/usr/local", "/var"];

impl Tree {
    /// Resolves the rules of a policy on this host.
    pub fn new(policy: &Policy, facts: &Facts) -> Result<Tree, TreeError> {
        Self::with(&Self::lookup(policy, facts), policy, facts)
    }

    /// What is worth to be read at once.
    pub fn lookup(policy: &Policy, facts: &Facts) -> Lookup {
        Lookup::listing([facts.home.as_path(), policy.workdir.as_path()])
    }

    /// As [`Tree::new`], with what was looked up already.
    pub fn with(lookup: &Lookup, policy: &Policy, facts: &Facts) -> Result<Tree, TreeError> {
        let mut candidates: BTreeMap<OsString, Vec<(usize, Node)>> = BTreeMap::new();
        let mut followed: Vec<(usize, Followed)> = Vec::new();
        for (index, rule) in policy.rules.iter().enumerate() {
            // Presets name hundreds of paths of which a host has a dozen.
            if let (Pattern::Exact(path), Missing::Ignore) = (&rule.pattern, rule.missing)
                && !lookup.may_exist(path)
            {
                continue;
            }
            let named = resolve(lookup, rule)?;
            for (path, node) in named.nodes {
                candidates.entry(path.into()).or_default().push((index, node));
            }
            followed.extend(named.followed.into_iter().map(|found| (index, found)));
        }
        if !followed.is_empty() {
            // What a link leads to is judged by what holds there without it.
            let without = Tree::best(policy, candidates.clone());
            for (index, found) in followed {
                if without.may_follow(&policy.rules[index], &found, facts)? {
                    candidates.entry(found.real.into()).or_default().push((index, found.node));
                }
            }
        }
        let mut tree = Tree::best(policy, candidates);
        tree.add_sockets(lookup, facts);
        tree.add_aliases(facts);
        if facts.stranger && policy.root == Root::Host {
            tree.close_barred();
        }
        tree.drop_idle(&policy.root);
        tree.settle_unwritable();
        tree.check(policy, facts)?;
        Ok(tree)
    }

    /// For each path the rule that decides.
    fn best(policy: &Policy, candidates: BTreeMap<OsString, Vec<(usize, Node)>>) -> Tree {
        let decide = |found: Vec<(usize, Node)>| {
            found.into_iter().max_by_key(|(index, _)| rank(&policy.rules[*index], *index)).map(|(_, node)| node)
        };
        Tree { nodes: candidates.into_iter().filter_map(|(path, found)| Some((path, decide(found)?))).collect() }
    }

    /// Whether a rule also speaks for what a symlink on its path leads to. A link may have been planted by an earlier box,
    /// or come with the project, to have something shown or written that it points at.
    fn may_follow(&self, rule: &FileRule, found: &Followed, facts: &Facts) -> Result<bool, TreeError> {
        let there = self.decide(&found.real).map(|(_, node)| node.access);
        let planted =
            || found.links.iter().any(|link| self.above(link).is_some_and(|(_, node)| node.access == Access::Rw));
        let named = matches!(rule.pattern, Pattern::Exact(_))
            && matches!(rule.origin.layer, LayerKind::Flags | LayerKind::Global);
        match rule.access {
            Access::Exclude => Ok(true),
            // Protects what could be written. It shows nothing, unless the user named it, by a link that no box can set.
            Access::Ro => Ok(there == Some(Access::Rw) || (named && !planted())),
            Access::Rw if there == Some(Access::Rw) => Ok(false),
            Access::Rw if planted() && named => Err(TreeError::LinkInWritable {
                path: found.links.first().cloned().unwrap_or_default(),
                real: found.real.clone(),
                origin: rule.origin.clone(),
            }),
            Access::Rw if planted() => Ok(false),
            Access::Rw if named => Ok(true),
            // A cache on another disk; never something else of the user's home, nor anything for root.
            Access::Rw => Ok(facts.uid != 0
                && !found.real.starts_with(&facts.home)
                && fs::metadata(&found.real).is_ok_and(|data| data.uid() == facts.uid)),
        }
    }

    /// Every node, parents before children.
    pub fn nodes(&self) -> impl Iterator<Item = (&Path, &Node)> {
        self.nodes.iter().map(|(path, node)| (Path::new(path), node))
    }

    /// The nearest node that names the path or a directory above it.
    pub fn decide(&self, path: &Path) -> Option<(&Path, &Node)> {
        let mut bytes = path.as_os_str().as_bytes();
        loop {
            if let Some((path, node)) = self.nodes.get_key_value(OsStr::from_bytes(bytes)) {
                return Some((Path::new(path), node));
            }
            bytes = above(bytes)?;
        }
    }

    /// The nearest node above the path.
    pub fn above(&self, path: &Path) -> Option<(&Path, &Node)> {
        above(path.as_os_str().as_bytes()).and_then(|parent| self.decide(Path::new(OsStr::from_bytes(parent))))
    }

    /// Whether some node below the path shows something.
    pub fn exposes_below(&self, path: &Path) -> bool {
        let mut first = path.as_os_str().to_owned();
        if path != Path::new("/") {
            first.push("/");
        }
        self.nodes
            .range::<OsStr, _>((std::ops::Bound::Excluded(first.as_os_str()), std::ops::Bound::Unbounded))
            .take_while(|(below, _)| below.as_bytes().starts_with(first.as_bytes()))
            .any(|(_, node)| node.access != Access::Exclude)
    }

    /// Sockets that host processes listen on are hidden unless a rule names them.
    fn add_sockets(&mut self, lookup: &Lookup, facts: &Facts) {
        for socket in &facts.sockets {
            let Some(path) = lookup.real(socket) else { continue };
            let is_socket = fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_socket());
            if is_socket && !self.nodes.contains_key(path.as_os_str()) {
                let origin = Origin { layer: LayerKind::Profile, place: "host sockets are closed".into() };
                self.nodes.insert(
                    path.into(),
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
                if let (false, Ok(data)) = (self.nodes.contains_key(alias.as_os_str()), fs::symlink_metadata(&alias)) {
                    let kind = if data.is_dir() { Kind::Dir } else { Kind::File };
                    self.nodes.insert(alias.into(), Node { exact: false, kind, ..node.clone() });
                }
            }
        }
    }

    /// Directories that a stranger to the host's files cannot enter are hidden as a whole, and passable where a rule shows
    /// something in them: what root names in such a directory can then be reached.
    fn close_barred(&mut self) {
        let shows = |node: &Node| node.access != Access::Exclude && node.exact && node.state == State::Present;
        let mut passable: BTreeMap<PathBuf, bool> = BTreeMap::new();
        let mut barred = Vec::new();
        for (path, _) in self.nodes() {
            let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
            above.reverse();
            // From where a rule shows a directory, ids are mapped, and it is no stranger there.
            let strange = above.into_iter().take_while(|dir| !self.nodes.get(dir.as_os_str()).is_some_and(shows));
            for dir in strange.filter(|dir| !PRIVATE.iter().any(|place| dir.starts_with(place))) {
                let open = *passable.entry(dir.to_path_buf()).or_insert_with(|| {
                    fs::symlink_metadata(dir).map_or(true, |data| !data.is_dir() || data.mode() & 0o001 != 0)
                });
                if !open {
                    barred.push(dir.to_path_buf());
                    break;
                }
            }
        }
        for dir in barred {
            let origin = Origin { layer: LayerKind::Profile, place: "nobody else may enter it".into() };
            let node = Node { access: Access::Exclude, kind: Kind::Dir, origin, state: State::Present, exact: false };
            self.nodes.insert(dir.into(), node);
        }
    }

    /// Takes away what changes nothing: absent or linked names where nothing can be planted, hiding what is not seen.
    fn drop_idle(&mut self, root: &Root) {
        let idle: Vec<PathBuf> = self
            .nodes()
            .filter(|(path, node)| {
                let above = self.above(path);
                let private = PRIVATE.iter().any(|p| path.starts_with(p)) && above.is_none();
                match (&node.state, above.map(|(_, n)| n.access)) {
                    (State::Absent(_), _) if node.access == Access::Rw => false,
                    (State::Absent(_) | State::Link, Some(Access::Rw)) => false,
                    (State::Absent(_) | State::Link, _) => true,
                    (State::Present, None) => node.access == Access::Exclude && (private || *root != Root::Host),
                    (State::Present, Some(above)) => node.access == Access::Exclude && above == Access::Exclude,
                }
            })
            .map(|(path, _)| path.to_path_buf())
            .collect();
        for path in idle {
            self.nodes.remove(path.as_os_str());
        }
    }

    /// Where the caller cannot make a name, neither can the box, until it changes the directory's permissions, which it may
    /// when it owns it. So such a directory is read-only, and needs no stand-ins; nothing is made in it either.
    fn settle_unwritable(&mut self) {
        let mut writable: BTreeMap<PathBuf, bool> = BTreeMap::new();
        let absent: Vec<(PathBuf, Node)> = self
            .nodes()
            .filter(|(_, n)| matches!(n.state, State::Absent(_)))
            .map(|(path, node)| (path.to_path_buf(), node.clone()))
            .collect();
        for (path, node) in absent {
            let Some(dir) = path.ancestors().skip(1).find(|dir| dir.exists()) else { continue };
            let can = *writable
                .entry(dir.to_path_buf())
                .or_insert_with(|| rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok());
            if can {
                continue;
            }
            self.nodes.remove(path.as_os_str());
            if node.access == Access::Rw {
                continue;
            }
            match self.nodes.get_mut(dir.as_os_str()) {
                Some(own) => own.access = own.access.max(Access::Ro),
                None => {
                    let read_only = Node { access: Access::Ro, kind: Kind::Dir, state: State::Present, ..node };
                    self.nodes.insert(dir.as_os_str().to_owned(), read_only);
                }
            }
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
                && node.state == State::Present
                && !policy.optional.contains(&Guarantee::FsSecretsHidden)
                && let Some((path, links)) = hard_linked(path)
            {
                return Err(TreeError::HardLinked { path, origin: node.origin.clone(), links });
            }
        }
        let workdir = &policy.workdir;
        let own =
            self.nodes.get(workdir.as_os_str()).filter(|n| n.access == Access::Exclude).map(|n| (workdir.as_path(), n));
        if let Some((excluded, node)) = own.or_else(|| self.above(workdir))
            && node.access == Access::Exclude
        {
            return Err(TreeError::WorkdirExcluded {
                workdir: workdir.clone(),
                excluded: excluded.to_path_buf(),
                origin: node.origin.clone(),
            });
        }
        // What a box has of its own has nothing of the host's in it, save what a rule shows.
        let own = PRIVATE.iter().map(Path::new).find(|place| workdir.starts_with(place));
        let own = own.or((policy.root == Root::Programs).then_some(Path::new("/")));
        if own.is_some_and(|own| !self.decide(workdir).is_some_and(|(at, _)| at.starts_with(own))) {
            return Err(TreeError::WorkdirNotShown(workdir.clone()));
        }
        let writable = self.decide(workdir).is_some_and(|(_, n)| n.access == Access::Rw);
        let system =
            SYSTEM.iter().any(|dir| workdir.starts_with(dir)) || SYSTEM_TOPS.iter().any(|d| workdir == Path::new(d));
        if writable && (system || (facts.home.starts_with(workdir) && facts.home != *workdir)) {
            return Err(TreeError::WorkdirTooWide(workdir.clone()));
        }
        Ok(())
    }
}

/// The directory above a normalised path.
pub(crate) fn above(path: &[u8]) -> Option<&[u8]> {
    match path.iter().rposition(|b| *b == b'/')? {
        0 if path.len() == 1 => None,
        0 => Some(b"/"),
        at => Some(&path[..at]),
    }
}

/// How many names of a hidden directory are looked at for hard links: directories of keys are small, and a browser's profile
/// is not worth the time at every start.
const LOOKED_AT: usize = 64;

/// A file at or below the path that has another name as well, and how many it has.
fn hard_linked(path: &Path) -> Option<(PathBuf, u64)> {
    let mut open = vec![path.to_path_buf()];
    let mut budget = LOOKED_AT;
    while let Some(path) = open.pop() {
        let Ok(data) = fs::symlink_metadata(&path) else { continue };
        if data.is_file() && data.nlink() > 1 {
            return Some((path, data.nlink()));
        }
        if data.is_dir() {
            let names = fs::read_dir(&path).into_iter().flatten().flatten().take(budget).map(|entry| entry.path());
            let before = open.len();
            open.extend(names);
            budget -= open.len() - before;
        }
    }
    None
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
#[derive(Default)]
struct Named {
    nodes: Vec<(PathBuf, Node)>,
    /// Those that a symlink leads to.
    followed: Vec<Followed>,
}

struct Followed {
    real: PathBuf,
    node: Node,
    links: Vec<PathBuf>,
}

fn resolve(lookup: &Lookup, rule: &FileRule) -> Result<Named, TreeError> {
    let mut named = Named::default();
    match &rule.pattern {
        Pattern::Glob(glob) => {
            for path in glob.expand() {
                present(lookup, rule, &path, false, &mut named)?;
            }
        }
        Pattern::Exact(path) => {
            if present(lookup, rule, path, true, &mut named)? {
                return Ok(named);
            }
            let node = |kind, text| Node {
                access: rule.access,
                kind,
                origin: rule.origin.clone(),
                state: State::Absent(text),
                exact: true,
            };
            match rule.missing {
                Missing::Ignore => {}
                Missing::Make => named.nodes.push((real(lookup, path), node(Kind::Dir, ""))),
                Missing::Protect(kind) => named.nodes.push((real(lookup, path), node(kind, ""))),
                Missing::ProtectText(text) => named.nodes.push((real(lookup, path), node(Kind::File, text))),
                Missing::Fail => {
                    let (path, access, origin) = (path.clone(), rule.access, rule.origin.clone());
                    return Err(TreeError::Missing { path, access, origin });
                }
            }
        }
    }
    Ok(named)
}

/// The path without symlinks, as far as it exists.
pub(crate) fn real(lookup: &Lookup, path: &Path) -> PathBuf {
    lookup.walk(path).map_or_else(|_| path.to_path_buf(), |walk| walk.real)
}

/// Adds the nodes of a path that is there: what it leads to, and every symlink on the way. Whether it is there.
fn present(lookup: &Lookup, rule: &FileRule, path: &Path, exact: bool, named: &mut Named) -> Result<bool, TreeError> {
    let node = |kind, state| Node { access: rule.access, kind, origin: rule.origin.clone(), state, exact };
    let walk = lookup.walk(path).map_err(|source| TreeError::Lookup {
        path: path.to_path_buf(),
        access: rule.access,
        origin: rule.origin.clone(),
        source,
    })?;
    let end = match walk.end {
        End::Dir => node(Kind::Dir, State::Present),
        End::File => node(Kind::File, State::Present),
        // A link to nothing: what it names must not appear either, or it would appear under both names.
        End::Missing if !walk.links.is_empty() && rule.access != Access::Rw => node(Kind::Dir, State::Absent("")),
        End::Missing => return Ok(false),
    };
    // Replacing a link that leads to it would replace a protected path as well.
    if rule.access != Access::Rw {
        named.nodes.extend(walk.links.iter().map(|link| (link.clone(), node(Kind::File, State::Link))));
    }
    if walk.links.is_empty() {
        named.nodes.push((walk.real, end));
    } else {
        named.followed.push(Followed { real: walk.real, node: end, links: walk.links });
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layer;
    use crate::layers::{Inputs, resolve};
    use std::os::unix::fs::symlink;

    /// A home with a project in it; entries ending in `/` are directories, `a -> b` are links.
    fn place(entries: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().canonicalize().unwrap().join("p");
        fs::create_dir(&project).unwrap();
        for entry in entries {
            match entry.split_once(" -> ") {
                Some((link, to)) => symlink(to, project.join(link)).unwrap(),
                None if entry.ends_with('/') => fs::create_dir_all(project.join(entry)).unwrap(),
                None => fs::write(project.join(entry), entry).unwrap(),
            }
        }
        (dir, project)
    }

    /// The decisions below the project that do not come from a preset, as `access state path`.
    fn decisions(project: &Path, flags: impl FnOnce(&mut Layer)) -> Result<Vec<String>, TreeError> {
        let mut layer = Layer::flags();
        flags(&mut layer);
        let home = project.parent().unwrap().to_path_buf();
        let policy = resolve(Inputs::new(project.to_path_buf(), home.clone(), layer)).unwrap().policy;
        let tree = Tree::new(&policy, &Facts { home, uid: 1, ..Facts::default() })?;
        let own = tree.nodes().filter(|(_, n)| n.origin.layer == LayerKind::Flags);
        let text = |(path, node): (&Path, &Node)| {
            let state = match node.state {
                State::Present => "present",
                State::Absent(_) => "absent",
                State::Link => "link",
            };
            format!("{} {state} {}", node.access, path.strip_prefix(project).unwrap_or(path).display())
        };
        Ok(own.map(text).collect())
    }

    #[test]
    fn symlinks_on_the_way_and_at_the_end_are_protected() {
        let (_dir, project) = place(&["real/sub/", "a -> real", "b -> a/sub"]);
        let found = decisions(&project, |f| f.ro("b")).unwrap();
        assert_eq!(found, ["ro link a", "ro link b", "ro present real/sub"]);
        let (_dir, project) = place(&["a -> nothing"]);
        assert_eq!(decisions(&project, |f| f.exclude("a")).unwrap(), ["exclude link a", "exclude absent nothing"]);
    }

    #[test]
    fn a_link_neither_shows_what_is_hidden_nor_opens_what_is_not_writable() {
        let (dir, project) = place(&["vault", ".vscode -> vault", ".idea -> ../key", "out -> ../key"]);
        let home = dir.path().canonicalize().unwrap();
        fs::write(home.join("key"), "").unwrap();
        let access = |flags: &dyn Fn(&mut Layer), path: &Path| {
            let mut layer = Layer::flags();
            flags(&mut layer);
            let policy = resolve(Inputs::new(project.clone(), home.clone(), layer)).unwrap().policy;
            let tree = Tree::new(&policy, &Facts { home: home.clone(), uid: 1, ..Facts::default() })?;
            Ok::<_, TreeError>(tree.decide(path).map(|(_, node)| node.access))
        };
        let hide = |f: &mut Layer| {
            f.exclude("vault");
            f.exclude("~/key");
        };
        assert_eq!(access(&hide, &project.join("vault")).unwrap(), Some(Access::Exclude));
        assert_eq!(access(&hide, &home.join("key")).unwrap(), Some(Access::Exclude));
        // What it leads to can be named itself.
        assert_eq!(access(&|f| f.rw("~/key"), &home.join("key")).unwrap(), Some(Access::Rw));
        assert_eq!(access(&|f| f.rw("ou*"), &home.join("key")).unwrap(), Some(Access::Ro));
        assert!(matches!(access(&|f| f.rw("out"), &home.join("key")), Err(TreeError::LinkInWritable { .. })));
    }

    #[test]
    fn what_a_stranger_cannot_enter_is_hidden_and_passable_where_something_is_shown() {
        use std::os::unix::fs::PermissionsExt;
        let base = std::env::current_dir().unwrap();
        let dir = tempfile::tempdir_in(&base).unwrap();
        let top = dir.path().canonicalize().unwrap();
        let (home, workdir, barred) = (top.join("home"), top.join("p"), top.join("barred"));
        for dir in [&home, &workdir, &barred, &barred.join("shown")] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::set_permissions(&top, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&barred, fs::Permissions::from_mode(0o700)).unwrap();
        let mut layer = Layer::flags();
        layer.ro(barred.join("shown").to_str().unwrap());
        let policy = resolve(Inputs::new(workdir, home.clone(), layer)).unwrap().policy;
        let access = |stranger, path: &Path| {
            let facts = Facts { home: home.clone(), uid: 0, stranger, ..Facts::default() };
            Tree::new(&policy, &facts).unwrap().decide(path).map(|(at, node)| (at.to_path_buf(), node.access))
        };
        let shown = barred.join("shown");
        assert_eq!(access(true, &barred.join("other")), Some((barred.clone(), Access::Exclude)));
        assert_eq!(access(true, &shown.join("x")), Some((shown.clone(), Access::Ro)));
        assert_eq!(access(false, &shown.join("x")), Some((shown, Access::Ro)));
        assert!(access(false, &barred.join("other")).is_none_or(|(at, _)| at != barred));
    }

    #[test]
    fn a_loop_of_links_is_an_error() {
        let (_dir, project) = place(&["a -> b", "b -> a"]);
        assert!(matches!(decisions(&project, |f| f.ro("a")), Err(TreeError::Lookup { .. })));
    }

    #[test]
    fn what_is_missing_outside_writable_places_needs_nothing() {
        let (dir, project) = place(&[]);
        let outside = dir.path().canonicalize().unwrap().join("q");
        fs::create_dir(&outside).unwrap();
        let path = outside.join("x").display().to_string();
        assert_eq!(decisions(&project, |f| f.exclude(&path)).unwrap(), [""; 0]);
        assert_eq!(decisions(&project, |f| f.exclude("x")).unwrap(), ["exclude absent x"]);
        assert!(matches!(decisions(&project, |f| f.rw("x")), Err(TreeError::Missing { .. })));
    }

    #[test]
    fn a_second_name_of_a_hidden_file_is_an_error() {
        let (_dir, project) = place(&["secret"]);
        assert_eq!(decisions(&project, |f| f.exclude("secret")).unwrap(), ["exclude present secret"]);
        fs::hard_link(project.join("secret"), project.join("other")).unwrap();
        assert!(matches!(decisions(&project, |f| f.exclude("secret")), Err(TreeError::HardLinked { links: 2, .. })));
    }

    #[test]
    fn other_mounts_of_a_hidden_file_are_hidden() {
        let (dir, project) = place(&["secret"]);
        let base = dir.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("alias/p")).unwrap();
        fs::write(base.join("alias/p/secret"), "").unwrap();
        let mount = |at: &Path, root: &str| crate::facts::MountPoint {
            device: "8:1".into(),
            root: root.into(),
            at: at.to_path_buf(),
            read_only: false,
            fs_type: "ext4".into(),
        };
        let facts = Facts {
            home: base.clone(),
            uid: 1,
            mounts: vec![mount(Path::new("/"), "/"), mount(&base.join("alias"), base.to_str().unwrap())],
            ..Facts::default()
        };
        let mut layer = Layer::flags();
        layer.exclude("secret");
        let policy = resolve(Inputs::new(project, base.clone(), layer)).unwrap().policy;
        let tree = Tree::new(&policy, &facts).unwrap();
        let (_, node) = tree.decide(&base.join("alias/p/secret")).unwrap();
        assert_eq!(node.access, Access::Exclude);
    }

    #[test]
    fn working_directories_that_are_refused() {
        let (dir, project) = place(&["in/"]);
        let home = dir.path().canonicalize().unwrap();
        let at = |workdir: &Path, flags: &dyn Fn(&mut Layer)| {
            let mut layer = Layer::flags();
            flags(&mut layer);
            let policy = resolve(Inputs::new(workdir.to_path_buf(), home.clone(), layer)).map(|r| r.policy);
            policy.map(|policy| Tree::new(&policy, &Facts { home: home.clone(), uid: 1, ..Facts::default() }))
        };
        // Refused by the layers or by the tree, but always refused.
        let inside = at(&project.join("in"), &|f| f.exclude(project.to_str().unwrap()));
        assert!(inside.is_err() || inside.unwrap().is_err());
        assert!(matches!(at(Path::new("/"), &|_| {}).unwrap(), Err(TreeError::WorkdirTooWide(_))));
        assert!(matches!(at(home.parent().unwrap(), &|_| {}).unwrap(), Err(TreeError::WorkdirTooWide(_))));
        assert!(at(&project, &|_| {}).unwrap().is_ok());
        // In `/tmp`, which every box has of its own.
        let base_taken_away = |f: &mut Layer| f.preset("!@base").unwrap();
        let shown = |f: &mut Layer| {
            base_taken_away(f);
            f.ro(".");
        };
        if project.starts_with("/tmp") {
            assert!(matches!(at(&project, &base_taken_away).unwrap(), Err(TreeError::WorkdirNotShown(_))));
        }
        assert!(at(&project, &shown).unwrap().is_ok());
    }
}
