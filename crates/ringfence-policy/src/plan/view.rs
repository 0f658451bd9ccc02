//! What the box sees, mount after mount, in the order in which they are made.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::sockets::DockerSockets;
use super::{
    COMMANDS_FILE, ETC, FEW_INODES, GUARDS_DIR, HOME, Look, MARKER_DIR, Mount, OWN_TEXTS, PROGRAMS, PlanError, SMALL,
    Stub, Volume,
};
use crate::facts::Facts;
use crate::look::{End, Lookup, Walk, is_in};
use crate::policy::{CommandRule, Guard, Network, Policy, Root, Shown, User};
use crate::rules::{Access, Kind};
use crate::tree::{Node, State, Tree, above, in_private};
use crate::{caches, env};

/// The mounts under construction, with what is known of the space they make.
pub(super) struct View<'a> {
    policy: &'a Policy,
    facts: &'a Facts,
    lookup: &'a Lookup,
    pub mounts: Vec<Mount>,
    pub stubs: Vec<Stub>,
    /// Protected names that look like placeholders of another user, which its sandboxes take away.
    pub strange: Vec<PathBuf>,
    /// What is mounted where, and whether mount points can be made in it.
    spaces: BTreeMap<OsString, Space>,
    made: BTreeSet<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// The host's files: mount points are there already.
    Host,
    /// Private space: mount points are made.
    Private,
    /// Private space that is made read-only at the end.
    Sealed,
}

impl<'a> View<'a> {
    pub fn new(policy: &'a Policy, facts: &'a Facts, lookup: &'a Lookup) -> Self {
        Self {
            policy,
            facts,
            lookup,
            mounts: Vec::new(),
            stubs: Vec::new(),
            strange: Vec::new(),
            spaces: BTreeMap::new(),
            made: BTreeSet::new(),
        }
    }

    /// Where a path of the host stands inside.
    fn inside(&self, path: &Path) -> PathBuf {
        match (&self.policy.workdir_at, path.strip_prefix(self.policy.workdir())) {
            (Some(at), Ok(below)) if below.as_os_str().is_empty() => at.clone(),
            (Some(at), Ok(below)) => at.join(below),
            _ => path.to_path_buf(),
        }
    }

    fn space_of(&self, target: &Path) -> Space {
        let mut path = target.as_os_str().as_bytes();
        loop {
            match (self.spaces.get(OsStr::from_bytes(path)), above(path)) {
                (Some(space), _) => return *space,
                (None, Some(parent)) => path = parent,
                (None, None) => return Space::Host,
            }
        }
    }

    /// Makes the directories above a target, where they are private space.
    fn parents(&mut self, target: &Path) {
        let mut missing: Vec<PathBuf> = target
            .ancestors()
            .skip(1)
            .take_while(|p| !self.spaces.contains_key(p.as_os_str()) && !self.made.contains(p.as_os_str()))
            .map(Path::to_path_buf)
            .collect();
        missing.reverse();
        for dir in missing {
            if self.space_of(&dir) != Space::Host {
                self.made.insert(dir.clone().into());
                self.mounts.push(Mount::Dir { target: dir, mode: 0o755 });
            }
        }
    }

    /// Makes a name to mount on, where the target lies in private space.
    fn mount_point(&mut self, target: &Path, kind: Kind) {
        if self.spaces.contains_key(target.as_os_str()) || self.space_of(target) == Space::Host {
            return;
        }
        self.parents(target);
        if self.made.insert(target.into()) {
            self.mounts.push(match kind {
                Kind::Dir => Mount::Dir { target: target.to_path_buf(), mode: 0o755 },
                Kind::File => Mount::File { target: target.to_path_buf() },
            });
        }
    }

    fn bind(&mut self, source: &Path, target: &Path, writable: bool, kind: Kind) {
        self.mount_point(target, kind);
        self.spaces.insert(target.into(), Space::Host);
        // A private place in there (`--rw /var`) is mounted after it, or it would be covered.
        let below = |path: &Path| path != target && is_in(path, target);
        let private = |(at, space): (&OsString, &Space)| *space == Space::Private && below(Path::new(at));
        let covered: Vec<Mount> = match self.spaces.iter().any(private) {
            true => self.mounts.extract_if(.., |mount| below(mount.target())).collect(),
            false => Vec::new(),
        };
        let (source, target) = (source.to_path_buf(), target.to_path_buf());
        self.mounts.push(Mount::Bind { source, target, writable, kind });
        self.mounts.extend(covered);
    }

    fn tmpfs(&mut self, target: &Path, mode: u32, size: u64, inodes: u64, space: Space) {
        self.mount_point(target, Kind::Dir);
        self.spaces.insert(target.into(), space);
        self.mounts.push(Mount::Tmpfs { target: target.to_path_buf(), mode, size, inodes });
    }

    pub fn root(&mut self) {
        match &self.policy.root {
            // Its files are there before anything is mounted.
            Root::Image(_) => {
                self.spaces.insert("/".into(), Space::Private);
            }
            Root::Host => self.bind(Path::new("/"), Path::new("/"), false, Kind::Dir),
            Root::Programs => {
                self.tmpfs(Path::new("/"), 0o755, SMALL, FEW_INODES, Space::Sealed);
                for path in PROGRAMS.iter().map(Path::new) {
                    self.program_dir(path);
                }
                for path in ETC.iter().map(Path::new) {
                    match self.lookup.walk(path) {
                        Ok(Walk { real, end: End::Dir, .. }) => self.bind(&real, path, false, Kind::Dir),
                        Ok(Walk { real, end: End::File, .. }) => self.bind(&real, path, false, Kind::File),
                        Ok(Walk { end: End::Missing, .. }) | Err(_) => {}
                    }
                }
                let (uid, gid) = match self.policy.user {
                    User::Caller => (self.facts.uid, self.facts.gid),
                    User::Ids { uid, gid } => (uid, gid),
                };
                let passwd = format!(
                    "root:x:0:0:root:/root:/bin/sh\nsandbox:x:{uid}:{gid}:sandbox:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
                );
                let [accounts, groups, hosts] = OWN_TEXTS;
                self.text(accounts, passwd);
                self.text(groups, format!("root:x:0:\nsandbox:x:{gid}:\nnogroup:x:65534:\n"));
                self.text(hosts, "127.0.0.1 localhost\n::1 localhost\n".to_owned());
            }
        }
    }

    /// A directory of programs as the host has it: bound, or the same symlink.
    fn program_dir(&mut self, path: &Path) {
        let Ok(data) = fs::symlink_metadata(path) else { return };
        if data.is_symlink() {
            if let Ok(to) = fs::read_link(path) {
                self.made.insert(path.into());
                self.mounts.push(Mount::Symlink { target: path.to_path_buf(), to });
            }
        } else if data.is_dir() {
            self.bind(path, path, false, Kind::Dir);
        }
    }

    fn text(&mut self, target: &str, text: String) {
        self.parents(Path::new(target));
        self.made.insert(target.into());
        self.mounts.push(Mount::Text { target: PathBuf::from(target), text, mode: 0o444 });
    }

    /// What every box has of its own: `/proc`, `/dev`, `/tmp`, `/var/tmp`, `/run`.
    pub fn private(&mut self) {
        let limits = &self.policy.limits;
        let (size, inodes) = limits.private_space();
        for dir in ["/proc", "/dev"] {
            self.mount_point(Path::new(dir), Kind::Dir);
            self.spaces.insert(dir.into(), Space::Host);
        }
        self.mounts.push(Mount::Proc { target: PathBuf::from("/proc") });
        self.mounts.push(Mount::Dev { target: PathBuf::from("/dev"), shm_size: size, shm_inodes: inodes });
        for (dir, mode) in [("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755), ("/var/run", 0o755)] {
            let target = match (&self.policy.root, self.lookup.real(Path::new(dir))) {
                // In images it is a link to /run, or a directory that nobody can write to.
                (Root::Image(_), _) if dir == "/var/run" => continue,
                (Root::Programs | Root::Image(_), _) => PathBuf::from(dir),
                (Root::Host, Some(real)) => real,
                (Root::Host, None) => continue,
            };
            if self.policy.root == Root::Programs && dir == "/var/run" {
                self.parents(&target);
                self.mounts.push(Mount::Symlink { target, to: PathBuf::from("/run") });
            } else if !self.spaces.contains_key(target.as_os_str()) {
                self.tmpfs(&target, mode, size, inodes, Space::Private);
            }
        }
        if self.policy.keep_home {
            let (volume, target) = (Volume::Home, PathBuf::from(HOME));
            self.spaces.insert(HOME.into(), Space::Private);
            self.mounts.push(Mount::Volume { volume, target, writable: true });
        } else if self.policy.root != Root::Host {
            self.tmpfs(Path::new(HOME), 0o755, size, inodes, Space::Private);
        }
        if let Some(dir) = self.facts.env.get(OsStr::new("XDG_RUNTIME_DIR")).map(Path::new)
            && self.policy.env.inherit
            && !matches!(self.policy.root, Root::Image(_))
            && dir.starts_with("/run/")
        {
            self.parents(dir);
            self.made.insert(dir.into());
            self.mounts.push(Mount::Dir { target: dir.to_path_buf(), mode: 0o700 });
        }
        self.tmpfs(Path::new(MARKER_DIR), 0o755, SMALL, FEW_INODES, Space::Sealed);
        let marker = format!("{{\"profile\":{:?}}}\n", self.policy.profile);
        self.text(&format!("{MARKER_DIR}/box.json"), marker);
    }

    /// Package caches that boxes share.
    pub(super) fn volumes(&mut self) {
        let caches = &self.policy.caches;
        for cache in caches.names.iter().filter_map(|name| caches::find(name)) {
            let volume = Volume::Cache { name: cache.name.to_owned(), group: caches.group.clone() };
            let target = PathBuf::from(cache.target());
            self.mounts.push(Mount::Volume { volume, target, writable: !caches.read_only });
        }
    }

    /// What stands at a place of its own, where a place can be made for it.
    pub(super) fn shown(&mut self) {
        if self.policy.root != Root::Host {
            for Shown { source, target } in &self.policy.shown {
                self.bind(source, target, false, Kind::Dir);
            }
        }
    }

    /// `/etc/resolv.conf` is often a link into `/run`, which the box has of its own.
    pub fn resolver(&mut self) {
        // An engine of images writes one that fits the network it makes.
        if self.policy.network == Network::None || matches!(self.policy.root, Root::Image(_)) {
            return;
        }
        let conf = Path::new("/etc/resolv.conf");
        let Ok(Walk { real, end: End::File, links, .. }) = self.lookup.walk(conf) else { return };
        if self.policy.root == Root::Programs {
            return self.bind(&real, conf, false, Kind::File);
        }
        if self.space_of(&real) != Space::Host {
            self.bind(&real, &real, false, Kind::File);
        }
        // One link may lead to another, which is in `/run` too.
        for link in links {
            if let (true, Ok(to)) = (self.space_of(&link) != Space::Host, fs::read_link(&link)) {
                self.parents(&link);
                self.made.insert(link.clone().into());
                self.mounts.push(Mount::Symlink { target: link, to });
            }
        }
    }

    pub fn files(&mut self, tree: &Tree) {
        let mut pins = BTreeSet::new();
        for (path, node) in tree.nodes() {
            // Nothing can be planted on a read-only mount (as in a sandbox in a sandbox), and no stand-in be made.
            if matches!(node.state, State::Absent(_)) && self.facts.read_only(path) {
                continue;
            }
            let above = tree.above(path);
            let in_writable = above.is_some_and(|(_, n)| n.access == Access::Rw);
            // Private space is not the host's to be pinned: nothing that is renamed in it is.
            let pinned = in_writable && node.access != Access::Rw && !in_private(path, above.map(|(at, _)| at));
            if let (true, Some((writable, _))) = (pinned, above) {
                self.pin(path, writable, &mut pins);
            }
            match &node.state {
                State::Present => {
                    let look = if node.exact { Look::at(path, node.kind) } else { Look::Own };
                    // The registry is made by the janitor when it is missing.
                    let gone = look == Look::Gone && path != self.facts.registry;
                    match look {
                        _ if gone => self.gone(path, node, pinned),
                        Look::Gone => self.stubs.push(Stub::shared(path, node.kind, String::new())),
                        Look::Placeholder(text) => {
                            let owner = fs::symlink_metadata(path).map_or(self.facts.uid, |data| data.uid());
                            if owner != self.facts.uid && node.access != Access::Rw && pinned {
                                self.strange.push(path.to_path_buf());
                            }
                            self.stubs.push(Stub::shared(path, node.kind, text));
                        }
                        Look::Own => {}
                    }
                    if !gone {
                        self.present(path, node, above.map(|(_, n)| n.access), tree);
                    }
                }
                // Mounted on itself, the link can be followed, and neither replaced nor moved away.
                State::Link if node.access != Access::Rw => {
                    let (source, target) = (path.to_path_buf(), self.inside(path));
                    self.mount_point(&target, Kind::File);
                    self.spaces.insert(target.clone().into(), Space::Host);
                    self.mounts.push(Mount::Link { source, target });
                }
                State::Absent(text) if node.access != Access::Rw => self.absent(path, node, text),
                State::Absent(_) => self.make(path),
                State::Link => {}
            }
        }
    }

    /// Mounts every directory between a writable place and a path below it onto itself: Linux lets one rename the parent
    /// of a mount point, but not a mount point.
    fn pin(&mut self, path: &Path, writable: &Path, pins: &mut BTreeSet<PathBuf>) {
        let mut between: Vec<&Path> = path.ancestors().skip(1).take_while(|p| *p != writable).collect();
        between.reverse();
        for dir in between {
            if pins.insert(dir.to_path_buf()) {
                if !self.lookup.exists(dir) {
                    self.stubs.push(Stub::missing(dir, Kind::Dir, ""));
                }
                let target = self.inside(dir);
                // A rule may have a place in it already. Mounted afterwards, the directory would lie over that.
                let first = self.mounts.iter().position(|m| m.target() != target && m.target().starts_with(&target));
                self.bind(dir, &target, true, Kind::Dir);
                if let (Some(first), true) = (first, self.mounts.last().is_some_and(|m| m.target() == target)) {
                    self.mounts[first..].rotate_right(1);
                }
            }
        }
    }

    fn present(&mut self, path: &Path, node: &Node, above: Option<Access>, tree: &Tree) {
        let target = self.inside(path);
        match node.access {
            Access::Rw => self.bind(path, &target, true, node.kind),
            Access::Ro => {
                // Root's box is nobody on the host, so that what root alone may read must be bound with ids mapped.
                let for_root = self.facts.uid == 0 && node.exact;
                let seen = above == Some(Access::Ro) || (above.is_none() && self.space_of(&target) == Space::Host);
                if !seen || for_root {
                    self.bind(path, &target, false, node.kind);
                }
            }
            // In a sandbox in a sandbox: hidden by the outer one, for good.
            Access::Exclude if node.kind == Kind::File && self.facts.hides(path) => {}
            Access::Exclude => {
                let passable = node.kind == Kind::Dir && tree.exposes_below(path);
                self.mount_point(&target, node.kind);
                self.spaces.insert(target.clone().into(), if passable { Space::Sealed } else { Space::Host });
                // A name that no rule gives may go at any time, as sockets do. One that a rule gives is hidden, or there is
                // no sandbox.
                let may_be_gone = !node.exact || path == self.facts.registry;
                let fleeting = Tree::is_barred(node)
                    || fs::symlink_metadata(path).map_or(may_be_gone, |m| m.file_type().is_socket());
                self.mounts.push(Mount::Hide { target, kind: node.kind, passable, fleeting });
            }
        }
    }

    /// A path that was there when the rules were applied, and is gone: it is planned as one that is missing. `pinned`: it
    /// could be planted, and the directories above it are pinned.
    fn gone(&mut self, path: &Path, node: &Node, pinned: bool) {
        let (kind, text) = node.placeholder;
        match (node.access, node.kind) {
            // Nothing can be planted there, and no placeholder be made.
            _ if self.facts.read_only(path) => {}
            (Access::Ro, _) if !pinned => {}
            (Access::Ro | Access::Exclude, _) => self.absent(path, &Node { kind, ..node.clone() }, text),
            // Another sandbox had it made, and this one needs it too.
            (Access::Rw, Kind::Dir) => {
                self.stubs.push(Stub::missing(path, Kind::Dir, ""));
                let target = self.inside(path);
                self.bind(path, &target, true, Kind::Dir);
            }
            // A file that is to be written is never a placeholder. The engine says that it is missing.
            (Access::Rw, Kind::File) => {
                let target = self.inside(path);
                self.bind(path, &target, true, Kind::File);
            }
        }
    }

    /// A directory that is made on the host for the box to use.
    fn make(&mut self, path: &Path) {
        let mut missing: Vec<&Path> = path.ancestors().take_while(|p| !self.lookup.exists(p)).collect();
        missing.reverse();
        for dir in missing {
            if !self.stubs.iter().any(|stub| stub.path == dir) {
                self.stubs.push(Stub::missing(dir, Kind::Dir, ""));
            }
        }
        let target = self.inside(path);
        self.bind(path, &target, true, Kind::Dir);
    }

    fn absent(&mut self, path: &Path, node: &Node, text: &'static str) {
        let target = self.inside(path);
        self.stubs.push(Stub::missing(path, node.kind, text));
        match node.access {
            Access::Exclude => {
                self.mounts.push(Mount::Hide { target, kind: node.kind, passable: false, fleeting: false })
            }
            _ if text.is_empty() => self.mounts.push(Mount::Empty { target, kind: node.kind }),
            _ => self.bind(path, &target, false, Kind::File),
        }
    }

    /// Puts guards, wrappers and blocks in front of programs, at all places where they are found. The real program stays
    /// reachable beside the marker: this is a courtesy to the agent, not a wall.
    pub fn commands(&mut self, environment: &[(OsString, OsString)]) -> Result<(), PlanError> {
        let mut dirs = env::search_path(environment);
        dirs.extend(PROGRAM_DIRS.iter().map(PathBuf::from));
        let mut table = String::new();
        let mut taken = BTreeSet::new();
        for (index, (name, rule)) in self.policy.commands.iter().enumerate() {
            if self.facts.program.as_os_str().is_empty() {
                match rule {
                    // It only gives advice, and comes with the profile.
                    CommandRule::Guard(_) => continue,
                    CommandRule::Block | CommandRule::Wrapper(_) => return Err(PlanError::NoGuard(name.clone())),
                }
            }
            let rule = match rule {
                CommandRule::Block => "block".to_owned(),
                CommandRule::Guard(Guard::Git) => "@git".to_owned(),
                CommandRule::Wrapper(wrapper) => {
                    let fail = |source| PlanError::Wrapper { program: name.clone(), path: wrapper.clone(), source };
                    let source = fs::canonicalize(wrapper).map_err(fail)?;
                    let at = Path::new(MARKER_DIR).join(format!("wrapper/{index}/{name}"));
                    self.bind(&source, &at, false, Kind::File);
                    at.display().to_string()
                }
            };
            if matches!(self.policy.root, Root::Image(_)) {
                // Where the image has its programs is not known here: the guard comes first in `PATH` and looks behind it.
                let place = Path::new(GUARDS_DIR).join(name);
                let program = self.facts.program.clone();
                self.bind(&program, &place, false, Kind::File);
                table.push_str(&format!("{}\t{name}\t{rule}\n", place.display()));
                continue;
            }
            for place in dirs.iter().map(|dir| dir.join(name)) {
                let Some((source, target)) = program_place(self.lookup, &place, name) else { continue };
                if self.policy.root == Root::Programs && self.space_of(&target) != Space::Host
                    || !taken.insert(target.clone())
                {
                    continue;
                }
                let real = if source == target {
                    let real = Path::new(MARKER_DIR).join(format!("real/{}/{name}", taken.len()));
                    self.bind(&source, &real, false, Kind::File);
                    real
                } else {
                    source
                };
                let program = self.facts.program.clone();
                self.bind(&program, &target, false, Kind::File);
                table.push_str(&format!("{}\t{}\t{rule}\n", target.display(), real.display()));
            }
        }
        self.text(COMMANDS_FILE, table);
        Ok(())
    }

    /// The Docker socket comes last, so that no other rule exposes it again.
    pub fn docker(&mut self, docker: &DockerSockets) {
        let host_root = self.policy.root == Root::Host;
        // What `/var/run/docker.sock` is inside: `/var/run` is a link to `/run` on most hosts.
        let run = self.lookup.real(Path::new("/var/run")).filter(|_| host_root);
        let standard = run.unwrap_or_else(|| PathBuf::from("/run")).join("docker.sock");
        for socket in &docker.found {
            // An image of the host's programs alone shows no socket, unless a rule bound it.
            if self.policy.docker && *socket == standard {
                continue;
            }
            if host_root || self.spaces.contains_key(socket.as_os_str()) || self.space_of(socket) == Space::Host {
                self.mount_point(socket, Kind::File);
                self.spaces.insert(socket.clone().into(), Space::Host);
                // Hidden as a host socket already: once more, and last, is enough (and twice is more than bwrap can do).
                self.mounts.retain(|m| !matches!(m, Mount::Hide { target, .. } if target == socket));
                let target = socket.clone();
                self.mounts.push(Mount::Hide { target, kind: Kind::File, passable: false, fleeting: true });
            }
        }
        if self.policy.docker
            && let Some(real) = docker.found.iter().find(|s| **s == docker.chosen)
        {
            self.mounts.retain(|m| !matches!(m, Mount::Hide { target, .. } if *target == standard));
            self.bind(real, &standard, true, Kind::File);
        }
    }

    pub fn seal(&mut self) {
        let sealed: Vec<PathBuf> =
            self.spaces.iter().filter(|(_, s)| **s == Space::Sealed).map(|(p, _)| p.into()).collect();
        // Deepest first: a sealed parent takes no more mount points, which a child may still need none of.
        self.mounts.extend(sealed.into_iter().rev().map(|target| Mount::Seal { target }));
    }
}

/// Where programs are found besides `PATH`. Not git's own directory: what git calls itself (`gc` expires the reflog) is
/// not an agent's act.
const PROGRAM_DIRS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The real program at a place, and what to mount on: the file itself, or, where the file goes by another name (busybox, a
/// script that a link in `bin` leads to), the link. What a link leads to stays where it is and is the real program.
fn program_place(lookup: &Lookup, place: &Path, name: &str) -> Option<(PathBuf, PathBuf)> {
    let source = lookup.real(place).filter(|p| p.is_file())?;
    // `python3` is `python3.11`, but `npm` is not `npm-cli.js`.
    let version = |rest: &[u8]| rest.iter().all(|b| b.is_ascii_digit() || *b == b'.' || *b == b'-');
    let same = source.file_name().and_then(|n| n.as_bytes().strip_prefix(name.as_bytes())).is_some_and(version);
    let target = if same { source.clone() } else { lookup.real(place.parent()?)?.join(name) };
    Some((source, target))
}
