//! File rules applied to this host: which path each rule names, what holds there, and so what the box sees.
//!
//! Rules are resolved to real paths first (symlinks, globs, other mounts of the same file), and the nearest named path
//! decides. This is the one place where that is worked out: `plan` mounts it and `explain` reads it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::facts::Facts;
use crate::guarantee::Guarantee;
use crate::look::{self, End, Lookup, is_in};
use crate::policy::{Narrowed, Policy, Root};
use crate::presets::only_protects;
use crate::rules::{Access, FileRule, Kind, LayerKind, Missing, Origin, Pattern};

/// Why the rules cannot be applied to this host.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum TreeError {
    /// The path of a rule could not be looked up.
    #[error("cannot look up `{}` (rule {access} of {origin}): {source}", path.display())]
    Lookup { path: PathBuf, access: Access, origin: Origin, source: io::Error },
    /// The path of a rule does not exist.
    #[error("`{}` (rule {access} of {origin}) does not exist", path.display())]
    Missing { path: PathBuf, access: Access, origin: Origin },
    /// A file to be hidden has other names, where it could still be read.
    #[error("`{}` is to be hidden ({origin}), but has {links} names (hard links)", path.display())]
    HardLinked { path: PathBuf, origin: Origin, links: u64 },
    /// The path of a rule lies in space that is private to each sandbox.
    #[error("`{}` (rule {access} of {origin}) lies in a place that every sandbox has of its own", path.display())]
    Synthetic { path: PathBuf, access: Access, origin: Origin },
    /// A rule makes the target of a symlink writable, and the sandbox could replace the symlink.
    #[error("`{}` (rule rw of {origin}) is a symlink in a writable place, and leads to `{}`", path.display(), real.display())]
    LinkInWritable { path: PathBuf, real: PathBuf, origin: Origin },
    /// A rule hides the working directory.
    #[error("the working directory `{}` lies inside the excluded `{}` ({origin})", workdir.display(), excluded.display())]
    WorkdirExcluded { workdir: PathBuf, excluded: PathBuf, origin: Origin },
    /// No rule shows the working directory.
    #[error("the working directory `{}` would not be there: no rule shows it", .0.display())]
    WorkdirNotShown(PathBuf),
    /// The working directory lies in space that is private to each sandbox.
    #[error("the working directory `{}` is a place that every sandbox has of its own", .0.display())]
    WorkdirPrivate(PathBuf),
    /// A symlink took the place of a directory.
    #[error("`{}` is a link by now, to `{}`", dir.display(), real.display())]
    Moved { dir: PathBuf, real: PathBuf },
    /// The working directory holds too much to be writable.
    #[error("the working directory `{}` is part of the system, or holds a home directory: all of it would be writable", .0.display())]
    WorkdirTooWide(PathBuf),
}

/// What holds at one real path of the host, and below it until a deeper node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What may be done there.
    pub access: Access,
    /// Whether it is a file or a directory.
    pub kind: Kind,
    /// The rule that decides.
    pub origin: Origin,
    /// What is there on the host.
    pub state: State,
    /// The rule names the path itself; false for what a glob found and for aliases.
    pub exact: bool,
    /// Kind and text of the placeholder that the name gets if it is gone by the time the plan is made.
    pub placeholder: (Kind, &'static str),
}

impl Node {
    /// Hidden, by no rule that names the path.
    pub(crate) fn hidden(kind: Kind, origin: Origin, state: State) -> Node {
        Node { access: Access::Exclude, kind, origin, state, exact: false, placeholder: (kind, "") }
    }
}

/// How the path stands on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is there.
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
    /// Directories that a rule holds for because nobody could look into them.
    closed: Vec<(PathBuf, Access)>,
    /// Links in hidden directories, and what they lead to that is too much to hide.
    linked: Vec<(PathBuf, PathBuf)>,
    /// Overlays with something hidden in them that may be seen in directories which are not known.
    overlays: BTreeSet<PathBuf>,
    /// Sockets are there that are not hidden.
    open_sockets: bool,
}

/// Places that every box has of its own, whatever the rules say about what lies above them.
pub const PRIVATE: [&str; 5] = ["/tmp", "/var/tmp", "/run", "/dev", "/proc"];

/// Those of them that are nobody's project, but may hold one.
const NOBODYS: [&str; 2] = ["/run", "/var/run"];

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

/// Where the rules come from that hold always, whatever the layers say.
pub(crate) const BUILT_IN: &str = "built-in";

/// Why a directory is hidden that no rule names.
const BARRED: &str = "nobody else may enter it";

impl Tree {
    /// Resolves the rules of a policy on this host.
    pub fn new(policy: &Policy, facts: &Facts) -> Result<Tree, TreeError> {
        Self::with(&Self::lookup(policy, facts), policy, facts)
    }

    /// What is worth to be read at once.
    pub fn lookup(policy: &Policy, facts: &Facts) -> Lookup {
        match policy.root {
            Root::Host => Lookup::of_places(&facts.home, policy.workdir()),
            // Nothing of the user's is there unless a rule says so, and few do.
            Root::Programs | Root::Image(_) => Lookup::default(),
        }
    }

    /// As [`Tree::new`], with what was looked up already.
    pub fn with(lookup: &Lookup, policy: &Policy, facts: &Facts) -> Result<Tree, TreeError> {
        let mut candidates: BTreeMap<OsString, Vec<(usize, Node)>> = BTreeMap::new();
        let mut followed: Vec<(usize, Followed)> = Vec::new();
        let mut closed: BTreeSet<(PathBuf, usize)> = BTreeSet::new();
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
            closed.extend(named.closed.into_iter().map(|dir| (dir, index)));
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
        closed.into_iter().for_each(|(dir, index)| tree.close(dir, &policy.rules[index], facts));
        tree.add_sockets(lookup, policy, facts);
        tree.add_registries(facts);
        tree.add_aliases(facts);
        tree.drop_idle(policy);
        tree.settle_unwritable(lookup);
        tree.look_into_hidden(lookup, policy, facts)?;
        tree.check(policy, facts)?;
        if !policy.narrowed.is_empty() {
            // Afterwards: a name of a hidden file may lie in what is given, while the file does not.
            policy.narrowed.iter().for_each(|narrowed| tree.narrow(narrowed, &policy.root));
            tree.drop_idle(policy);
        }
        if facts.stranger && policy.root == Root::Host {
            tree.close_barred(policy.workdir(), facts);
            tree.drop_idle(policy);
        }
        Ok(tree)
    }

    /// For each path the rule that decides.
    fn best(policy: &Policy, candidates: BTreeMap<OsString, Vec<(usize, Node)>>) -> Tree {
        let decide = |found: Vec<(usize, Node)>| {
            found.into_iter().max_by_key(|(index, _)| rank(&policy.rules[*index], *index)).map(|(_, node)| node)
        };
        let nodes = candidates.into_iter().filter_map(|(path, found)| Some((path, decide(found)?))).collect();
        Tree { nodes, ..Tree::default() }
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

    /// What was decided because a directory could not be looked into.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.closed.iter().map(|(dir, access)| {
            let done = if *access == Access::Exclude { "hidden" } else { "read-only" };
            format!("`{}` cannot be looked into: it is {done}, with all that is in it", dir.display())
        })
    }

    /// What is hidden by one name, and can be read by another; and sockets that are not hidden.
    pub fn weakened(&self) -> impl Iterator<Item = (Guarantee, String)> {
        let text = "there are too many host sockets to hide them all".to_owned();
        let sockets = self.open_sockets.then_some((Guarantee::NetHostSocketsClosed, text));
        let linked = self.linked.iter().map(|(link, target)| {
            let text = format!("`{}` leads to `{}`, which is not hidden", link.display(), target.display());
            (Guarantee::FsSecretsHidden, text)
        });
        let overlays = self.overlays.iter().map(|at| {
            let text =
                format!("`{}` is an overlay of directories that are not known, in which it can be read", at.display());
            (Guarantee::FsSecretsHidden, text)
        });
        linked.chain(overlays).chain(sockets)
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
    pub(crate) fn exposes_below(&self, path: &Path) -> bool {
        let mut first = path.as_os_str().to_owned();
        if path != Path::new("/") {
            first.push("/");
        }
        self.nodes
            .range::<OsStr, _>((std::ops::Bound::Excluded(first.as_os_str()), std::ops::Bound::Unbounded))
            .take_while(|(below, _)| below.as_bytes().starts_with(first.as_bytes()))
            .any(|(_, node)| node.access != Access::Exclude)
    }

    /// A directory that cannot be looked into may hold what a rule hides or protects, and the sandbox opens a directory of
    /// its own again. So the rule holds for the whole directory. What the sandbox neither writes nor owns, it cannot open.
    fn close(&mut self, dir: PathBuf, rule: &FileRule, facts: &Facts) {
        let is_own = || fs::symlink_metadata(&dir).is_ok_and(|data| data.uid() == facts.uid);
        let opens = match (rule.access, self.decide(&dir).map(|(_, node)| node.access)) {
            (Access::Rw, _) | (_, Some(Access::Exclude)) => false,
            (_, Some(Access::Rw)) => true,
            (access, Some(Access::Ro) | None) => access == Access::Exclude && is_own(),
        };
        if opens {
            let place = format!("{}, which may match in this directory that cannot be looked into", rule.origin.place);
            let origin = Origin { layer: rule.origin.layer, place: place.into() };
            self.closed.retain(|(known, _)| *known != dir);
            self.closed.push((dir.clone(), rule.access));
            let node = Node { access: rule.access, ..Node::hidden(Kind::Dir, origin, State::Present) };
            self.nodes.insert(dir.into(), node);
        }
    }

    /// Sockets that host processes listen on are hidden unless a rule names them, and directories that are crowded with them.
    fn add_sockets(&mut self, lookup: &Lookup, policy: &Policy, facts: &Facts) {
        let mut hidden = 0;
        for socket in &facts.sockets {
            let Some(path) = lookup.real(socket) else { continue };
            let Ok(data) = fs::symlink_metadata(&path) else { continue };
            // A project does not open one by naming it.
            let named = self.nodes.get(path.as_os_str()).is_some_and(|node| node.origin.layer != LayerKind::Project);
            let seen = !in_private(&path, self.decide(&path).map(|(at, _)| at));
            let is_socket = data.file_type().is_socket() && !named;
            if !seen || !is_socket && !data.is_dir() {
                continue;
            }
            let is_wide = || data.is_dir() && (named || is_wide(&path, policy, facts));
            if hidden == MOST_SOCKETS || is_wide() {
                self.open_sockets = true;
                continue;
            }
            hidden += 1;
            let kind = if data.is_dir() { Kind::Dir } else { Kind::File };
            let origin = Origin { layer: LayerKind::Profile, place: "host sockets are closed".into() };
            self.nodes.insert(path.into(), Node::hidden(kind, origin, State::Present));
        }
    }

    /// The lists of living boxes are no box's, whatever the rules open: neither are they there yet for the first one.
    fn add_registries(&mut self, facts: &Facts) {
        for path in &facts.registries {
            self.nodes.retain(|node, _| !is_in(Path::new(node), path));
            let origin = Origin { layer: LayerKind::Profile, place: "the list of living sandboxes is closed".into() };
            let there = *path == facts.registry || path.is_dir();
            let state = if there { State::Present } else { State::Absent("") };
            // By its own name: what is there may be another box's stand-in, and must not go with that.
            let node = Node { exact: true, ..Node::hidden(Kind::Dir, origin, state) };
            self.nodes.insert(path.into(), node);
        }
    }

    /// What is hidden or protected under one name is so under every other mount of its file system.
    fn add_aliases(&mut self, facts: &Facts) {
        let strict: Vec<(PathBuf, Node)> = self
            .nodes()
            .filter(|(_, n)| n.access == Access::Exclude && n.state == State::Present)
            .map(|(path, node)| (path.to_path_buf(), node.clone()))
            .collect();
        // A container's own root is one, whose directories it does not see.
        let unknown = facts.mounts.iter().filter(|m| m.has_unknown_layers() && m.at != Path::new("/"));
        let holds = |at: &PathBuf| strict.iter().any(|(path, _)| is_in(path, at));
        self.overlays = unknown.map(|mount| mount.at.clone()).filter(holds).collect();
        for (path, node) in strict {
            for alias in facts.aliases(&path) {
                // A project does not show it by naming its other name, nor does one of two policies for both.
                let shows = |node: &Node| node.origin.layer != LayerKind::Project || node.access == Access::Exclude;
                let named = self.nodes.get(alias.as_os_str()).is_some_and(shows);
                if let (false, Ok(data)) = (named, fs::symlink_metadata(&alias)) {
                    let kind = if data.is_dir() { Kind::Dir } else { Kind::File };
                    self.nodes.insert(alias.into(), Node { exact: false, kind, ..node.clone() });
                }
            }
        }
    }

    /// Whether it is hidden because a stranger cannot enter it anyway, and not because a rule says so.
    pub(crate) fn is_barred(node: &Node) -> bool {
        node.origin.place == BARRED
    }

    /// Directories that a stranger to the host's files cannot enter are hidden as a whole, and passable where a rule shows
    /// something in them: what root names in such a directory can then be reached.
    fn close_barred(&mut self, workdir: &Path, facts: &Facts) {
        let owner = fs::metadata(workdir).map_or(facts.uid, |data| data.uid());
        let own = [facts.uid, owner];
        let shows = |node: &Node| node.access != Access::Exclude && node.exact && node.state == State::Present;
        let mut passable: BTreeMap<(PathBuf, bool), bool> = BTreeMap::new();
        let mut barred = Vec::new();
        for (path, _) in self.nodes() {
            let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
            above.reverse();
            // From where a rule shows a directory, ids are mapped, and it is no stranger to what is root's or the owner's.
            let mut mapped = false;
            for dir in above {
                let shown = self.nodes.get(dir.as_os_str()).is_some_and(shows);
                mapped |= shown;
                if shown || !mapped && PRIVATE.iter().any(|place| is_in(dir, Path::new(place))) {
                    continue;
                }
                let open = *passable.entry((dir.to_path_buf(), mapped)).or_insert_with(|| {
                    let enters = |data: &fs::Metadata| match mapped {
                        true => data.mode() & 0o011 != 0 || own.contains(&data.uid()),
                        false => data.mode() & 0o001 != 0,
                    };
                    fs::symlink_metadata(dir).map_or(true, |data| !data.is_dir() || enters(&data))
                });
                if !open {
                    barred.push(dir.to_path_buf());
                    break;
                }
            }
        }
        // What is protected always needs to be where it can be written only: here it would show what nobody asked for.
        let idle: Vec<PathBuf> = self
            .nodes()
            .filter(|(path, node)| {
                let written = self.above(path).is_some_and(|(_, n)| n.access == Access::Rw);
                let protects = node.access == Access::Ro && node.origin.place == BUILT_IN && !written;
                protects && barred.iter().any(|dir| is_in(path, dir))
            })
            .map(|(path, _)| path.to_path_buf())
            .collect();
        idle.iter().for_each(|path| drop(self.nodes.remove(path.as_os_str())));
        for dir in barred {
            let origin = Origin { layer: LayerKind::Profile, place: BARRED.into() };
            self.nodes.insert(dir.into(), Node::hidden(Kind::Dir, origin, State::Present));
        }
    }

    /// Takes away what changes nothing: absent or linked names where nothing can be planted, hiding or protecting what is
    /// not seen.
    fn drop_idle(&mut self, policy: &Policy) {
        let host = policy.root == Root::Host;
        let idle: Vec<PathBuf> = self
            .nodes()
            .filter(|(path, node)| {
                let above = self.above(path);
                let private = in_private(path, above.map(|(at, _)| at));
                match (&node.state, above.map(|(_, n)| n.access)) {
                    (State::Absent(_), _) if node.access == Access::Rw => false,
                    (State::Absent(_) | State::Link, _) if private => true,
                    (State::Present, _) if private && node.access == Access::Exclude => true,
                    (State::Absent(_) | State::Link, Some(Access::Rw)) => false,
                    (State::Absent(_) | State::Link, _) => true,
                    (State::Present, None) => {
                        let protects = || only_protects(&node.origin, path, policy.workdir());
                        !host && (node.access == Access::Exclude || node.access == Access::Ro && protects())
                    }
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
    fn settle_unwritable(&mut self, lookup: &Lookup) {
        let mut writable: BTreeMap<PathBuf, bool> = BTreeMap::new();
        let absent: Vec<(PathBuf, Node)> = self
            .nodes()
            .filter(|(_, n)| matches!(n.state, State::Absent(_)))
            .map(|(path, node)| (path.to_path_buf(), node.clone()))
            .collect();
        for (path, node) in absent {
            let Some(dir) = path.ancestors().skip(1).find(|dir| lookup.exists(dir)) else { continue };
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
                    let (kind, placeholder) = (Kind::Dir, (Kind::Dir, ""));
                    let read_only = Node { access: Access::Ro, kind, state: State::Present, placeholder, ..node };
                    self.nodes.insert(dir.as_os_str().to_owned(), read_only);
                }
            }
        }
    }

    /// Leaves of a directory only the parts that are given. Each is as it was in the whole.
    fn narrow(&mut self, narrowed: &Narrowed, root: &Root) {
        let Narrowed { whole, parts } = narrowed;
        if parts.contains(whole) {
            return;
        }
        let as_it_was = |dir: &PathBuf| {
            let (_, node) = self.decide(dir)?;
            Some((dir.into(), Node { kind: Kind::Dir, state: State::Present, ..node.clone() }))
        };
        let given: Vec<(OsString, Node)> = parts.iter().filter_map(as_it_was).collect();
        let above = as_it_was(whole);
        let closed = match root {
            // The machine is seen anyway, and rules of other places keep their say.
            Root::Host => above.filter(|(_, node)| node.access == Access::Rw).map(|(at, node)| (at, Access::Ro, node)),
            Root::Programs | Root::Image(_) => {
                self.nodes.retain(|path, _| !narrowed.leaves_out(Path::new(path)));
                above.map(|(at, node)| (at, Access::Exclude, node))
            }
        };
        self.nodes.extend(closed.map(|(at, access, node)| (at, Node { access, ..node })));
        self.nodes.extend(given);
    }

    /// What lies in a hidden directory must not be reached by another name: what its links lead to is hidden too, and a second
    /// name of a file is an error.
    fn look_into_hidden(&mut self, lookup: &Lookup, policy: &Policy, facts: &Facts) -> Result<(), TreeError> {
        let hidden = |(_, node): &(&Path, &Node)| node.access == Access::Exclude && node.state == State::Present;
        let mut open: Vec<(PathBuf, Origin)> =
            self.nodes().filter(hidden).map(|(path, node)| (path.to_path_buf(), node.origin.clone())).collect();
        while let Some((hidden, origin)) = open.pop() {
            let ways = OtherWays::find(&hidden);
            if let Some((path, links)) = ways.hard_linked
                && !policy.optional.contains(&Guarantee::FsSecretsHidden)
            {
                return Err(TreeError::HardLinked { path, origin, links });
            }
            for link in ways.links {
                let Ok(walk) = lookup.walk(&link) else { continue };
                let place = format!("{}, by the link `{}`", origin.place, link.display());
                let origin = Origin { layer: origin.layer, place: place.into() };
                // Nobody can tell what is there, until the sandbox opens it.
                if let Some(closed) = walk.closed.filter(|closed| !is_in(closed, &hidden)) {
                    if self.decide(&closed).is_some_and(|(_, node)| node.access == Access::Rw) {
                        self.closed.push((closed.clone(), Access::Exclude));
                        self.nodes.insert(closed.into(), Node::hidden(Kind::Dir, origin, State::Present));
                    }
                    continue;
                }
                // A link to nothing hides nothing.
                let target = walk.real;
                if walk.end == look::End::Missing || is_in(&target, &hidden) {
                    continue;
                }
                // With another link on the way, the next sandbox would not know what this one leads to.
                for path in walk.links {
                    if self.above(&path).is_some_and(|(_, node)| node.access == Access::Rw) {
                        let node = Node::hidden(Kind::File, origin.clone(), State::Link);
                        self.nodes.entry(path.into()).or_insert(node);
                    }
                }
                if !self.is_seen(&target, policy) {
                    continue;
                }
                if is_wide(&target, policy, facts) {
                    self.linked.push((link, target));
                    continue;
                }
                let named = |node: &Node| node.exact && node.origin.layer != LayerKind::Project;
                if self.nodes.get(target.as_os_str()).is_some_and(named) {
                    continue;
                }
                for path in facts.aliases(&target).into_iter().chain([target]) {
                    let Ok(data) = fs::symlink_metadata(&path) else { continue };
                    let kind = if data.is_dir() { Kind::Dir } else { Kind::File };
                    self.nodes.insert(path.clone().into(), Node::hidden(kind, origin.clone(), State::Present));
                    open.push((path, origin.clone()));
                }
            }
        }
        Ok(())
    }

    /// Whether the sandbox sees what the host has at a path.
    fn is_seen(&self, path: &Path, policy: &Policy) -> bool {
        let decided = self.decide(path);
        match decided {
            Some((_, node)) if node.access == Access::Exclude => false,
            _ if in_private(path, decided.map(|(at, _)| at)) => false,
            decided => decided.is_some() || policy.root == Root::Host,
        }
    }

    /// Whether a sandbox may be given the working directory, and each further directory that it works on.
    fn check(&self, policy: &Policy, facts: &Facts) -> Result<(), TreeError> {
        for dir in policy.narrowed.iter().flat_map(|Narrowed { whole, parts }| parts.iter().chain([whole])) {
            let real = real(&Lookup::default(), dir);
            if real != *dir {
                return Err(TreeError::Moved { dir: dir.clone(), real });
            }
        }
        let wholes = policy.narrowed.iter().map(|narrowed| narrowed.whole.as_path());
        let further = wholes.filter(|dir| *dir != policy.workdir());
        let dirs: Vec<&Path> = [policy.workdir()].into_iter().chain(further).collect();
        // Only the working directory may stand elsewhere inside.
        let same_place = |dir: &Path| policy.workdir_at.is_none() || !policy.workdir().starts_with(dir);
        for dir in dirs.iter().filter(|dir| same_place(dir)) {
            let never_shown = ["/proc", "/dev"].iter().any(|place| dir.starts_with(place));
            if never_shown || NOBODYS.iter().any(|place| *dir == Path::new(place)) {
                return Err(TreeError::WorkdirPrivate(dir.to_path_buf()));
            }
        }
        // Hidden, nothing of it would be in the tree: there is nothing that could be hidden there.
        for rule in policy.rules.iter().filter(|rule| rule.origin.layer != LayerKind::Profile) {
            if let (Access::Exclude, Pattern::Exact(path)) = (rule.access, &rule.pattern)
                && (path.starts_with("/proc") || path.starts_with("/dev"))
            {
                let (path, origin) = (path.clone(), rule.origin.clone());
                return Err(TreeError::Synthetic { path, access: Access::Exclude, origin });
            }
        }
        for (path, node) in self.nodes() {
            if path.starts_with("/proc") || path.starts_with("/dev") {
                return Err(TreeError::Synthetic {
                    path: path.to_path_buf(),
                    access: node.access,
                    origin: node.origin.clone(),
                });
            }
        }
        dirs.into_iter().try_for_each(|dir| self.check_given(dir, same_place(dir), policy, facts))
    }

    /// Whether one of them is seen, and not too much to be written.
    fn check_given(&self, dir: &Path, same_place: bool, policy: &Policy, facts: &Facts) -> Result<(), TreeError> {
        let own = self.nodes.get(dir.as_os_str()).filter(|n| n.access == Access::Exclude).map(|n| (dir, n));
        if let Some((excluded, node)) = own.or_else(|| self.above(dir))
            && node.access == Access::Exclude
        {
            return Err(TreeError::WorkdirExcluded {
                workdir: dir.to_path_buf(),
                excluded: excluded.to_path_buf(),
                origin: node.origin.clone(),
            });
        }
        // What a box has of its own has nothing of the host's in it, save what a rule shows.
        let own = PRIVATE.iter().map(Path::new).find(|place| dir.starts_with(place));
        let own = own.or((policy.root != Root::Host).then_some(Path::new("/")));
        if same_place && own.is_some_and(|own| !self.decide(dir).is_some_and(|(at, _)| at.starts_with(own))) {
            return Err(TreeError::WorkdirNotShown(dir.to_path_buf()));
        }
        let writable = self.decide(dir).is_some_and(|(_, n)| n.access == Access::Rw);
        let system =
            SYSTEM.iter().any(|place| dir.starts_with(place)) || SYSTEM_TOPS.iter().any(|d| dir == Path::new(d));
        let homes = facts.accounts.iter().map(|account| &account.home).chain([&facts.home]);
        if writable && (system || homes.into_iter().any(|home| home.starts_with(dir) && home != dir)) {
            return Err(TreeError::WorkdirTooWide(dir.to_path_buf()));
        }
        Ok(())
    }
}

/// Whether hiding a path would take a part of the system from the sandbox, a home or what it works on.
fn is_wide(path: &Path, policy: &Policy, facts: &Facts) -> bool {
    let system = SYSTEM.iter().chain(&["/usr", "/nix"]).any(|dir| is_in(path, Path::new(dir)));
    system
        || SYSTEM_TOPS.iter().any(|dir| path == Path::new(dir))
        || [policy.workdir(), &facts.home].iter().any(|dir| is_in(dir, path))
}

/// Whether the path lies in a place that the box has of its own, of which nothing above it (`above`: the nearest path that a
/// rule names) shows the host's: what lies above the whole place does not.
pub(crate) fn in_private(path: &Path, above: Option<&Path>) -> bool {
    let place = PRIVATE.iter().map(Path::new).find(|place| is_in(path, place));
    place.is_some_and(|place| !above.is_some_and(|above| is_in(above, place)))
}

/// The directory above a normalised path.
pub(crate) fn above(path: &[u8]) -> Option<&[u8]> {
    match path.iter().rposition(|b| *b == b'/')? {
        0 if path.len() == 1 => None,
        0 => Some(b"/"),
        at => Some(&path[..at]),
    }
}

/// How many names of a hidden directory are looked at for other ways to the same files: directories of keys are small, and a
/// browser's profile is not worth the time at every start.
const LOOKED_AT: usize = 64;

/// So many sockets are hidden one by one: each is a mount.
const MOST_SOCKETS: usize = 128;

/// By what else the files at and below a hidden path can be reached.
#[derive(Default)]
struct OtherWays {
    /// A file that has another name as well, and how many it has.
    hard_linked: Option<(PathBuf, u64)>,
    /// Symlinks. What they lead to may be seen under its own name.
    links: Vec<PathBuf>,
}

impl OtherWays {
    fn find(path: &Path) -> OtherWays {
        let mut found = OtherWays::default();
        let mut open = vec![path.to_path_buf()];
        let mut budget = LOOKED_AT;
        while let Some(path) = open.pop() {
            let Ok(data) = fs::symlink_metadata(&path) else { continue };
            if data.is_dir() {
                let names = look::entries(&path, budget);
                budget -= names.len();
                open.extend(names.into_iter().map(|(path, _)| path));
            } else if data.is_symlink() {
                found.links.push(path);
            } else if data.is_file() && data.nlink() > 1 && found.hard_linked.is_none() {
                found.hard_linked = Some((path, data.nlink()));
            }
        }
        found
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
#[derive(Default)]
struct Named {
    nodes: Vec<(PathBuf, Node)>,
    /// Those that a symlink leads to.
    followed: Vec<Followed>,
    /// Directories in which more may be named, and which cannot be looked into.
    closed: Vec<PathBuf>,
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
            let found = lookup.matches(glob);
            named.closed.extend(found.closed.iter().map(|dir| real(lookup, dir)));
            for path in &found.paths {
                present(lookup, rule, path, false, &mut named)?;
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
                placeholder: (kind, text),
            };
            match rule.missing {
                Missing::Ignore => {}
                Missing::Make => named.nodes.push((real(lookup, path), node(Kind::Dir, ""))),
                Missing::Protect(kind) => named.nodes.push((real(lookup, path), node(kind, ""))),
                Missing::ProtectText(text) => {
                    named.nodes.push((real(lookup, path), node(Kind::File, text.text())));
                }
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
    let node = |kind, state| {
        let placeholder = match rule.missing {
            Missing::Protect(kind) => (kind, ""),
            Missing::ProtectText(text) => (Kind::File, text.text()),
            Missing::Ignore | Missing::Make | Missing::Fail => (kind, ""),
        };
        Node { access: rule.access, kind, origin: rule.origin.clone(), state, exact, placeholder }
    };
    let walk = lookup.walk(path).map_err(|source| TreeError::Lookup {
        path: path.to_path_buf(),
        access: rule.access,
        origin: rule.origin.clone(),
        source,
    })?;
    named.closed.extend(walk.closed);
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
