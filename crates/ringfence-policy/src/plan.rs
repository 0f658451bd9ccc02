//! The plan: policy + facts of this host = ordered steps, printable before anything runs.
//!
//! `plan()` is pure but for looking paths up. It decides everything that an engine enforces: which mounts, in which order,
//! with which stand-ins. An engine compiles the plan into its own form and never adds or drops a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::caches;
use crate::env;
use crate::facts::Facts;
use crate::guarantee::Guarantee;
use crate::limits::Limits;
use crate::look::{End, Lookup, Walk};
use crate::policy::{CommandRule, Guard, Network, Policy, Root, User};
use crate::rules::{Access, Kind};
use crate::tree::{Node, State, Tree, TreeError, above};
use crate::wire;

/// What an engine enforces, ready to be compiled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What the box sees, in the order in which it is mounted.
    pub mounts: Vec<Mount>,
    /// Names that must exist on the host while the box lives, so that something can be mounted on them.
    pub stubs: Vec<Stub>,
    /// The image that the root is made of; else the mounts make it.
    pub image: Option<String>,
    pub network: Network,
    /// A cache that cannot be had stops the box.
    pub caches_required: bool,
    /// Programs can be executed from private temporary space.
    pub tmp_exec: bool,
    /// The Docker socket is bound in.
    pub docker: bool,
    pub nesting: bool,
    /// Ids of the command inside.
    pub uid: u32,
    pub gid: u32,
    /// Where the command starts, inside.
    #[serde(with = "wire::path")]
    pub workdir: PathBuf,
    /// The whole environment of the command.
    pub env: Vec<(OsString, OsString)>,
    /// Program (a path inside) and arguments.
    pub command: Command,
    /// The command is the guest, as process 1: it is not in the box's file system, has no environment, and `env` is that of
    /// the commands which it will be asked for.
    pub guest: bool,
    pub limits: Limits,
    pub allow_syscalls: Vec<String>,
    pub trace_denials: bool,
    pub strict: bool,
    pub promises: Vec<Promise>,
}

/// What is executed inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Absolute path of the program inside the box.
    #[serde(with = "wire::path")]
    pub program: PathBuf,
    /// `argv`, the first as the user wrote it.
    pub args: Vec<OsString>,
}

/// One promise of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    pub guarantee: Guarantee,
    /// The policy lets the box start without it.
    pub optional: bool,
}

/// One step that shapes what the box sees. Every path is absolute and free of symlinks; targets are paths inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mount {
    /// A host file or tree with all that is mounted below it; never set-user-id, never a device.
    Bind {
        #[serde(with = "wire::path")]
        source: PathBuf,
        #[serde(with = "wire::path")]
        target: PathBuf,
        writable: bool,
        kind: Kind,
    },
    /// Private writable space.
    Tmpfs {
        #[serde(with = "wire::path")]
        target: PathBuf,
        mode: u32,
        size: u64,
        inodes: u64,
    },
    /// Space that outlives the box, or that boxes share. Only engines of containers have it.
    Volume {
        volume: Volume,
        #[serde(with = "wire::path")]
        target: PathBuf,
        writable: bool,
    },
    /// A fresh procfs of the box's own PID namespace.
    Proc {
        #[serde(with = "wire::path")]
        target: PathBuf,
    },
    /// Minimal devices: null, zero, full, random, urandom, tty, own pts, shm of the given size; the rest read-only.
    Dev {
        #[serde(with = "wire::path")]
        target: PathBuf,
        shm_size: u64,
        shm_inodes: u64,
    },
    /// A directory in private space (parents included).
    Dir {
        #[serde(with = "wire::path")]
        target: PathBuf,
        mode: u32,
    },
    /// An empty file in private space, to mount on.
    File {
        #[serde(with = "wire::path")]
        target: PathBuf,
    },
    /// A symbolic link in private space.
    Symlink {
        #[serde(with = "wire::path")]
        target: PathBuf,
        #[serde(with = "wire::path")]
        to: PathBuf,
    },
    /// An empty, unreadable stand-in. `passable`: a rule exposes something below, so that it can be walked through.
    /// `fleeting`: a socket of the host's, which may be gone by now; then there is nothing to hide.
    Hide {
        #[serde(with = "wire::path")]
        target: PathBuf,
        kind: Kind,
        passable: bool,
        fleeting: bool,
    },
    /// An empty, readable, read-only stand-in for a protected path that is not there.
    Empty {
        #[serde(with = "wire::path")]
        target: PathBuf,
        kind: Kind,
    },
    /// A text file in private space or on a mount point, read-only (`/dev/ringfence/box.json`, a blocked program's note).
    Text {
        #[serde(with = "wire::path")]
        target: PathBuf,
        text: String,
        mode: u32,
    },
    /// Makes private space read-only once all its mount points are made (not what is mounted below).
    Seal {
        #[serde(with = "wire::path")]
        target: PathBuf,
    },
}

/// Space that an engine keeps under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Volume {
    /// The home directory of the session of this box.
    Home,
    /// A package cache, shared by the boxes of one group.
    Cache { name: String, group: Option<String> },
}

/// A name made on the host before the box starts and taken away when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stub {
    #[serde(with = "wire::path")]
    pub path: PathBuf,
    pub kind: Kind,
    /// What the file holds; empty for most, and for directories.
    pub text: String,
    /// It is there already, and looks like one that another box needs: then it must stay until this box ends, too.
    pub present: bool,
}

/// Permissions of a file that stands in for a protected path.
pub const STUB_FILE_MODE: u32 = 0o444;

impl Stub {
    fn missing(path: &Path, kind: Kind, text: &str) -> Stub {
        Stub { path: path.to_path_buf(), kind, text: text.to_owned(), present: false }
    }

    /// What is there and could have been made for another box: an empty directory, or a tiny read-only file.
    fn look_at(path: &Path, node: &Node) -> Option<Stub> {
        let text = match node.kind {
            _ if !node.exact => return None,
            Kind::Dir => fs::read_dir(path).ok()?.next().is_none().then(String::new),
            Kind::File => {
                let data = fs::symlink_metadata(path).ok()?;
                let tiny = data.is_file() && data.len() < 10 && data.permissions().mode() & 0o7777 == STUB_FILE_MODE;
                tiny.then(|| fs::read_to_string(path).ok())?
            }
        }?;
        Some(Stub { path: path.to_path_buf(), kind: node.kind, text, present: true })
    }
}

/// Why there is no plan: nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error("cannot find the program `{}`", .0.display())]
    ProgramNotFound(PathBuf),
    #[error("cannot execute `{}`: not an executable file", .0.display())]
    ProgramNotExecutable(PathBuf),
    #[error("no command")]
    NoCommand,
    #[error("cannot use the wrapper `{}` of `{program}`: {source}", path.display())]
    Wrapper { program: String, path: PathBuf, source: std::io::Error },
    #[error("the Docker socket `{}` does not exist", .0.display())]
    DockerSocketMissing(PathBuf),
    #[error("`{}` is not a socket, and Docker was asked for", .0.display())]
    DockerSocketWrong(PathBuf),
}

/// Inodes of the small private places that hold mount points only.
const FEW_INODES: u64 = 4096;
/// Size of private places that hold nothing but mount points and notes.
const SMALL: u64 = 1 << 20;

/// Where a box keeps what tells it that it is one: in `/dev`, which is every box's own and which no rule can touch. Engines
/// make the directory with the rest of [`Mount::Dev`].
pub const MARKER_DIR: &str = "/dev/ringfence";
/// Which programs have something in front of them, one a line: place, real program (a path, or a name that is found in
/// `PATH` behind [`GUARDS_DIR`]), rule; separated by tabs.
pub const COMMANDS_FILE: &str = "/dev/ringfence/commands";

/// Where guards stand in a box that is made of an image: first in its `PATH`.
pub const GUARDS_DIR: &str = "/dev/ringfence/bin";

/// Turns a policy into ordered steps for this host.
pub fn plan(policy: &Policy, facts: &Facts, command: &[OsString]) -> Result<Plan, PlanError> {
    plan_for(policy, facts, Some(command))
}

/// The same for a box that stays, with a guest in it.
pub fn plan_guest(policy: &Policy, facts: &Facts) -> Result<Plan, PlanError> {
    plan_for(policy, facts, None)
}

/// `None`: the guest.
fn plan_for(policy: &Policy, facts: &Facts, command: Option<&[OsString]>) -> Result<Plan, PlanError> {
    let lookup = Tree::lookup(policy, facts);
    let tree = Tree::with(&lookup, policy, facts)?;
    let workdir = policy.workdir_at.clone().unwrap_or_else(|| policy.workdir.clone());
    let home = if policy.root == Root::Host { facts.home.as_path() } else { Path::new(HOME) };
    let inside = env::Inside { profile: &policy.profile, home, workdir: &workdir };
    let mut environment = env::environment(&policy.env, &facts.env, &inside);
    if matches!(policy.root, Root::Image(_)) {
        for_image(policy, &mut environment);
    }
    let docker = DockerSockets::find(&lookup, facts);
    if policy.docker {
        docker.check()?;
    }
    let (uid, gid) = match policy.user {
        User::Caller => (facts.uid, facts.gid),
        User::Ids { uid, gid } => (uid, gid),
    };
    let mut view = View::new(policy, facts, &lookup);
    view.root();
    view.private();
    view.volumes();
    view.resolver();
    view.files(&tree);
    view.commands(&environment)?;
    view.docker(&docker);
    view.seal();
    let guest = command.is_none();
    let command = match command {
        Some(command) => resolve_command(command, &environment, policy, &workdir)?,
        None => Command { program: PathBuf::from("guest"), args: vec!["guest".into()] },
    };
    Ok(Plan {
        mounts: view.mounts,
        stubs: view.stubs,
        image: match &policy.root {
            Root::Image(name) => Some(name.clone()),
            Root::Host | Root::Programs => None,
        },
        network: policy.network,
        caches_required: policy.caches.required,
        tmp_exec: policy.tmp_exec,
        docker: policy.docker,
        nesting: policy.nesting,
        uid,
        gid,
        workdir,
        env: environment,
        command,
        guest,
        limits: policy.limits.clone(),
        allow_syscalls: policy.allow_syscalls.clone(),
        trace_denials: policy.trace_denials,
        strict: policy.strict,
        promises: promises(policy),
    })
}

/// An image has a search path and settings of its own; caches are found by variables.
fn for_image(policy: &Policy, environment: &mut Vec<(OsString, OsString)>) {
    let named = |name: &str| policy.env.set.contains_key(name) || policy.env.pass.iter().any(|passed| passed == name);
    // Of the host, and not in the image.
    for name in ["PATH", "XDG_RUNTIME_DIR"].into_iter().filter(|name| !named(name)) {
        environment.retain(|(other, _)| other != name);
    }
    for cache in policy.caches.names.iter().filter_map(|name| caches::find(name)) {
        for variable in cache.variables.iter().filter(|variable| !named(variable)) {
            environment.retain(|(name, _)| name != variable);
            environment.push((variable.into(), cache.target().into()));
        }
    }
    environment.sort();
}

/// What the plan of a policy promises.
fn promises(policy: &Policy) -> Vec<Promise> {
    let limits = &policy.limits;
    let asked = |guarantee: Guarantee| match guarantee {
        Guarantee::NetIsolated => policy.network == Network::None,
        Guarantee::NetByName | Guarantee::RecordComplete => false,
        Guarantee::NetHostSocketsClosed => true,
        Guarantee::LimitMemory => limits.memory.is_some(),
        Guarantee::LimitCpu => limits.cpus.is_some() || limits.cpu_time.is_some(),
        Guarantee::LimitProcesses => limits.pids.is_some(),
        Guarantee::LimitFiles => limits.files.is_some(),
        Guarantee::LimitTime => limits.timeout.is_some(),
        _ => true,
    };
    Guarantee::ALL
        .iter()
        .copied()
        .filter(|g| asked(*g))
        .map(|guarantee| Promise { guarantee, optional: policy.optional.contains(&guarantee) })
        .collect()
}

/// The mounts under construction, with what is known of the space they make.
struct View<'a> {
    policy: &'a Policy,
    facts: &'a Facts,
    lookup: &'a Lookup,
    mounts: Vec<Mount>,
    stubs: Vec<Stub>,
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
    fn new(policy: &'a Policy, facts: &'a Facts, lookup: &'a Lookup) -> Self {
        Self {
            policy,
            facts,
            lookup,
            mounts: Vec::new(),
            stubs: Vec::new(),
            spaces: BTreeMap::new(),
            made: BTreeSet::new(),
        }
    }

    /// Where a path of the host stands inside.
    fn inside(&self, path: &Path) -> PathBuf {
        match (&self.policy.workdir_at, path.strip_prefix(&self.policy.workdir)) {
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
        self.mounts.push(Mount::Bind { source: source.to_path_buf(), target: target.to_path_buf(), writable, kind });
    }

    fn tmpfs(&mut self, target: &Path, mode: u32, size: u64, inodes: u64, space: Space) {
        self.mount_point(target, Kind::Dir);
        self.spaces.insert(target.into(), space);
        self.mounts.push(Mount::Tmpfs { target: target.to_path_buf(), mode, size, inodes });
    }

    fn root(&mut self) {
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
                    if let Some(real) = self.lookup.real(path) {
                        let kind = if real.is_dir() { Kind::Dir } else { Kind::File };
                        self.bind(&real, path, false, kind);
                    }
                }
                let (uid, gid) = match self.policy.user {
                    User::Caller => (self.facts.uid, self.facts.gid),
                    User::Ids { uid, gid } => (uid, gid),
                };
                let passwd = format!(
                    "root:x:0:0:root:/root:/bin/sh\nsandbox:x:{uid}:{gid}:sandbox:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
                );
                self.text("/etc/passwd", passwd);
                self.text("/etc/group", format!("root:x:0:\nsandbox:x:{gid}:\nnogroup:x:65534:\n"));
                self.text("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n".to_owned());
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
    fn private(&mut self) {
        let limits = &self.policy.limits;
        let (size, inodes) = (limits.tmp_size, limits.tmp_inodes);
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
    fn volumes(&mut self) {
        let caches = &self.policy.caches;
        for cache in caches.names.iter().filter_map(|name| caches::find(name)) {
            let volume = Volume::Cache { name: cache.name.to_owned(), group: caches.group.clone() };
            let target = PathBuf::from(cache.target());
            self.mounts.push(Mount::Volume { volume, target, writable: !caches.read_only });
        }
    }

    /// `/etc/resolv.conf` is often a link into `/run`, which the box has of its own.
    fn resolver(&mut self) {
        // An engine of images writes one that fits the network it makes.
        if self.policy.network == Network::None || matches!(self.policy.root, Root::Image(_)) {
            return;
        }
        let conf = Path::new("/etc/resolv.conf");
        let Ok(Walk { real, end: End::File, links }) = self.lookup.walk(conf) else { return };
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

    fn files(&mut self, tree: &Tree) {
        let mut pins = BTreeSet::new();
        for (path, node) in tree.nodes() {
            // Nothing can be planted on a read-only mount (as in a sandbox in a sandbox), and no stand-in be made.
            if matches!(node.state, State::Absent(_)) && self.facts.read_only(path) {
                continue;
            }
            let above = tree.above(path);
            let in_writable = above.is_some_and(|(_, n)| n.access == Access::Rw);
            if let (true, Some((writable, _))) = (in_writable && node.access != Access::Rw, above) {
                self.pin(path, writable, &mut pins);
            }
            match &node.state {
                State::Present => {
                    self.stubs.extend(Stub::look_at(path, node));
                    self.present(path, node, above.map(|(_, n)| n.access), tree);
                }
                // Mounted on itself, the link can be followed, and neither replaced nor moved away.
                State::Link if node.access != Access::Rw => {
                    let target = self.inside(path);
                    self.bind(path, &target, false, Kind::File);
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
                self.bind(dir, &target, true, Kind::Dir);
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
                // Gone since it was looked up is as fleeting as a socket.
                let fleeting = fs::symlink_metadata(path).map_or(true, |m| m.file_type().is_socket());
                self.mounts.push(Mount::Hide { target, kind: node.kind, passable, fleeting });
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
    fn commands(&mut self, environment: &[(OsString, OsString)]) -> Result<(), PlanError> {
        let path = environment.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone());
        let mut dirs: Vec<PathBuf> = path.iter().flat_map(|p| std::env::split_paths(p)).collect();
        dirs.extend(PROGRAM_DIRS.iter().map(PathBuf::from));
        let mut table = String::new();
        let mut taken = BTreeSet::new();
        for (index, (name, rule)) in self.policy.commands.iter().enumerate() {
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
    fn docker(&mut self, docker: &DockerSockets) {
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

    fn seal(&mut self) {
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

/// Home directory of a box that sees nothing of the user's.
pub const HOME: &str = "/home/sandbox";

/// Directories of programs and libraries.
pub(crate) const PROGRAMS: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store"];

/// What of `/etc` programs need: the loader's cache, certificates, alternatives, time zone, name services. No accounts.
pub(crate) const ETC: [&str; 20] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/services",
    "/etc/mime.types",
    "/etc/terminfo",
    "/etc/fonts",
    "/etc/inputrc",
    "/etc/bash.bashrc",
    "/etc/profile",
    "/etc/java-17-openjdk",
];

/// The sockets of container daemons on this host, symlinks resolved.
pub(crate) fn container_sockets(facts: &Facts) -> Vec<PathBuf> {
    DockerSockets::find(&Lookup::default(), facts).found
}

/// The sockets of container daemons on this host, symlinks resolved.
struct DockerSockets {
    found: Vec<PathBuf>,
    /// The one that Docker clients of the caller use, resolved where it exists.
    chosen: PathBuf,
}

impl DockerSockets {
    fn find(lookup: &Lookup, facts: &Facts) -> Self {
        let variable = |name: &str| facts.env.get(OsStr::new(name)).filter(|v| !v.is_empty());
        let unix = |name: &str| {
            variable(name)
                .and_then(|v| v.as_bytes().strip_prefix(b"unix://"))
                .map(|p| PathBuf::from(OsStr::from_bytes(p)))
        };
        let mut candidates: Vec<PathBuf> = CONTAINER_SOCKETS.iter().map(PathBuf::from).collect();
        if let Some(runtime) = variable("XDG_RUNTIME_DIR") {
            candidates.extend(["docker.sock", "podman/podman.sock"].map(|name| Path::new(runtime).join(name)));
        }
        candidates.extend(HOME_SOCKETS.map(|name| facts.home.join(name)));
        candidates.extend(unix("CONTAINER_HOST"));
        let asked = unix("DOCKER_HOST").unwrap_or_else(|| PathBuf::from("/var/run/docker.sock"));
        candidates.push(asked.clone());
        let mut found: Vec<PathBuf> = candidates.iter().filter_map(|c| lookup.real(c)).collect();
        found.sort();
        found.dedup();
        Self { found, chosen: lookup.real(&asked).unwrap_or(asked) }
    }

    fn check(&self) -> Result<(), PlanError> {
        match fs::metadata(&self.chosen) {
            Ok(data) if data.file_type().is_socket() => Ok(()),
            Ok(_) => Err(PlanError::DockerSocketWrong(self.chosen.clone())),
            Err(_) => Err(PlanError::DockerSocketMissing(self.chosen.clone())),
        }
    }
}

const CONTAINER_SOCKETS: [&str; 8] = [
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
    "/run/k3s/containerd/containerd.sock",
];

/// Docker Desktop, Colima, Rancher Desktop, Lima.
const HOME_SOCKETS: [&str; 5] = [
    ".docker/run/docker.sock",
    ".docker/desktop/docker.sock",
    ".colima/default/docker.sock",
    ".rd/docker.sock",
    ".lima/docker/sock/docker.sock",
];

/// Finds the program as the box will see it.
fn resolve_command(
    command: &[OsString],
    environment: &[(OsString, OsString)],
    policy: &Policy,
    workdir: &Path,
) -> Result<Command, PlanError> {
    let name = command.first().filter(|n| !n.is_empty()).ok_or(PlanError::NoCommand)?;
    let args = command.to_vec();
    let outside = |path: &Path| match (&policy.workdir_at, path.strip_prefix(workdir)) {
        (Some(_), Ok(below)) => policy.workdir.join(below),
        _ => path.to_path_buf(),
    };
    if name.as_bytes().contains(&b'/') {
        // Looked up inside: whether it is there depends on what the box sees.
        return Ok(Command { program: workdir.join(name), args });
    }
    let path = environment.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone()).unwrap_or_default();
    if matches!(policy.root, Root::Image(_)) {
        // The image has its own programs and its own `PATH`.
        return Ok(Command { program: PathBuf::from(name), args });
    }
    let mut blocked = None;
    for dir in std::env::split_paths(&path) {
        let program = workdir.join(dir).join(name);
        if let Ok(data) = fs::metadata(outside(&program)) {
            if data.is_file() && data.permissions().mode() & 0o111 != 0 {
                return Ok(Command { program, args });
            }
            blocked = Some(program);
        }
    }
    Err(match blocked {
        Some(program) => PlanError::ProgramNotExecutable(program),
        None => PlanError::ProgramNotFound(PathBuf::from(name)),
    })
}
