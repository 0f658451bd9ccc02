//! The plan: policy + facts of this host = ordered steps, printable before anything runs.
//!
//! `plan()` is pure but for looking paths up. It decides everything that an engine enforces: which mounts, in which order,
//! with which stand-ins. An engine compiles the plan into its own form and never adds or drops a rule.

mod expected;
mod sockets;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use expected::{Expected, Seen};
use sockets::DockerSockets;
use view::View;

use crate::caches;
use crate::env;
use crate::facts::Facts;
use crate::guarantee::Guarantee;
use crate::limits::Limits;
use crate::look::{self, Lookup};
use crate::policy::{Device, Network, Policy, Root};
use crate::rules::Kind;
use crate::syscalls::SyscallGroup;
use crate::tree::{Tree, TreeError};
use crate::wire;

/// What an engine enforces, ready to be compiled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What the box sees, in the order in which it is mounted.
    pub mounts: Vec<Mount>,
    /// The working directory, as the host has it.
    #[serde(with = "wire::path")]
    pub project: PathBuf,
    /// Names that must exist on the host while the box lives, so that something can be mounted on them.
    pub stubs: Vec<Stub>,
    /// The image that the root is made of; else the mounts make it.
    pub image: Option<String>,
    /// What can be reached over the network.
    pub network: Network,
    /// Devices of the host that are let in.
    pub devices: Vec<Device>,
    /// A cache that cannot be had stops the box.
    pub caches_required: bool,
    /// Programs can be executed from private temporary space.
    pub tmp_exec: bool,
    /// The Docker socket is bound in.
    pub docker: bool,
    /// The sandbox may make user namespaces.
    pub nesting: bool,
    /// Ids of the command inside.
    pub uid: u32,
    /// Group id of the command inside.
    pub gid: u32,
    /// Somebody else owns the working directory, and root works in it: what the box makes there is the owner's.
    pub owner: Option<Owner>,
    /// Where the command starts, inside.
    #[serde(with = "wire::path")]
    pub workdir: PathBuf,
    /// The whole environment of the command.
    pub env: Vec<(OsString, OsString)>,
    /// What is started.
    pub runs: Runs,
    /// A socket of the host's is among the descriptors that the command starts with, though it has another network: the filter
    /// lets nobody ask it about that. Not where the host's network is shared (stacked) nor where a guest makes the channel (images).
    pub handed_socket: bool,
    /// What it may spend.
    pub limits: Limits,
    /// System calls that are let through although the filter's list refuses them.
    pub allow_syscalls: Vec<String>,
    /// System calls that are refused although the filter's list lets them through.
    pub refuse_syscalls: BTreeSet<SyscallGroup>,
    /// Denied opens are watched for.
    pub trace_denials: bool,
    /// A stand-in for a limit is refused.
    pub strict: bool,
    /// What the plan promises.
    pub promises: Vec<Promise>,
    /// What the policy or this host takes from a promise, whichever engine keeps it.
    pub weakened: Vec<(Guarantee, String)>,
    /// What the user should know of it.
    pub warnings: Vec<String>,
}

impl Plan {
    /// The files of the host that the sandbox shows, hides or protects by name.
    pub fn host_paths(&self) -> Vec<PathBuf> {
        let mut binds: Vec<(&Path, &Path)> = Vec::new();
        let mut paths = Vec::new();
        for mount in &self.mounts {
            match mount {
                Mount::Bind { source, target, .. } | Mount::Link { source, target } => {
                    paths.push(source.clone());
                    binds.push((target, source));
                }
                Mount::Hide { target, .. } | Mount::Empty { target, .. } | Mount::Text { target, .. } => {
                    let around = binds.iter().filter(|(at, _)| target.starts_with(at));
                    let nearest = around.max_by_key(|(at, _)| at.as_os_str().len());
                    let below = nearest.and_then(|(at, source)| Some(source.join(target.strip_prefix(at).ok()?)));
                    paths.extend(below);
                }
                _ => {}
            }
        }
        paths
    }

    /// Whether something is hidden that may be gone by now.
    pub fn is_fleeting(&self) -> bool {
        self.mounts.iter().any(|mount| matches!(mount, Mount::Hide { fleeting: true, .. }))
    }

    /// The plan without what was to be hidden and is gone: there is nothing to hide any more. `None` where all is there.
    pub fn without_gone(&self) -> Option<Plan> {
        let gone: Vec<PathBuf> = self
            .mounts
            .iter()
            .filter_map(|mount| match mount {
                Mount::Hide { target, fleeting: true, .. } if !self.is_there(target) => Some(target.clone()),
                _ => None,
            })
            .collect();
        let mut rest = self.clone();
        rest.mounts.retain(|mount| match mount {
            Mount::Hide { target, fleeting: true, .. } | Mount::Seal { target } => !gone.contains(target),
            _ => true,
        });
        (!gone.is_empty()).then_some(rest)
    }

    /// The same with a fresh look at this host: only what is seen of it can differ.
    pub fn anew(&self, lookup: &Lookup, policy: &Policy, facts: &Facts) -> Result<Plan, PlanError> {
        let Plan { mounts, stubs, weakened, warnings, .. } = plan_guest_with(lookup, policy, facts)?;
        Ok(Plan { mounts, stubs, weakened, warnings, ..self.clone() })
    }

    /// Whether the host has what the box sees at a path.
    fn is_there(&self, target: &Path) -> bool {
        let shown = self.mounts.iter().filter_map(|mount| match mount {
            Mount::Bind { source, target: at, .. } => Some((source, target.strip_prefix(at).ok()?)),
            _ => None,
        });
        let (source, below) = match shown.min_by_key(|(_, below)| below.as_os_str().len()) {
            Some(found) => found,
            None => return true,
        };
        // Joined with nothing, a path would end in a slash and follow a link.
        let path = if below.as_os_str().is_empty() { source.clone() } else { source.join(below) };
        fs::symlink_metadata(path).is_ok()
    }
}

/// Who owns a tree of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The directory.
    #[serde(with = "wire::path")]
    pub at: PathBuf,
    /// Its owner's user id.
    pub uid: u32,
    /// Its owner's group id.
    pub gid: u32,
}

impl Owner {
    /// The owner of the working directory, where a box that is nobody on the host is to act for them.
    fn other_than_caller(workdir: &Path, facts: &Facts) -> Option<Owner> {
        let data = fs::metadata(workdir).ok().filter(|_| facts.stranger)?;
        let owner = Owner { at: workdir.to_path_buf(), uid: data.uid(), gid: data.gid() };
        (owner.uid != facts.uid).then_some(owner)
    }
}

/// What a sandbox is started for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Runs {
    /// One command; the sandbox ends with it.
    Command(Command),
    /// The guest, as process 1. It is not in the sandbox's file system and has no environment of its own; the plan's is
    /// that of the commands that it will be asked for.
    Guest,
}

impl Runs {
    /// Whether it is the guest.
    pub fn is_guest(&self) -> bool {
        matches!(self, Runs::Guest)
    }

    /// The command, where it is one.
    pub fn command(&self) -> Option<&Command> {
        match self {
            Runs::Command(command) => Some(command),
            Runs::Guest => None,
        }
    }
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
    /// What is promised.
    pub guarantee: Guarantee,
    /// The policy lets the box start without it.
    pub optional: bool,
}

/// One step that shapes what the box sees. Every path is absolute and free of symlinks; targets are paths inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "paths, modes and sizes: the sentence of a variant says what is mounted")]
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
    /// A symlink of the host, read-only: it can be followed, and neither replaced nor moved away.
    Link {
        #[serde(with = "wire::path")]
        source: PathBuf,
        #[serde(with = "wire::path")]
        target: PathBuf,
    },
}

impl Mount {
    /// Where it is mounted, inside.
    pub fn target(&self) -> &Path {
        match self {
            Mount::Bind { target, .. }
            | Mount::Tmpfs { target, .. }
            | Mount::Volume { target, .. }
            | Mount::Proc { target }
            | Mount::Dev { target, .. }
            | Mount::Dir { target, .. }
            | Mount::File { target }
            | Mount::Symlink { target, .. }
            | Mount::Hide { target, .. }
            | Mount::Empty { target, .. }
            | Mount::Text { target, .. }
            | Mount::Seal { target }
            | Mount::Link { target, .. } => target,
        }
    }
}

/// Space that an engine keeps under a name.
#[allow(missing_docs, reason = "the name of the cache, and the group that shares it")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Volume {
    /// The home directory of the session of this box.
    Home,
    /// A package cache, shared by the boxes of one group.
    Cache { name: String, group: Option<String> },
}

/// A name made on the host before the command starts and taken away when it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stub {
    /// The name: an absolute path of the host.
    #[serde(with = "wire::path")]
    pub path: PathBuf,
    /// Whether it is a file or a directory.
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

    /// The placeholder of another sandbox, which this one needs too.
    fn shared(path: &Path, kind: Kind, text: String) -> Stub {
        Stub { path: path.to_path_buf(), kind, text, present: true }
    }
}

/// What stands at a path that was there when the rules were applied.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// Nothing any more. It may have been the placeholder of a sandbox that has ended.
    Gone,
    /// An empty directory, or a tiny read-only file with this text. It may have been made for another sandbox.
    Placeholder(String),
    /// The user's own.
    Own,
}

impl Look {
    /// What is gone is told apart from the user's own at each step: the name can go between any two of them.
    fn at(path: &Path, kind: Kind) -> Look {
        let text = fs::symlink_metadata(path).and_then(|data| match kind {
            Kind::Dir => look::is_empty(path).map(|empty| empty.then(String::new)),
            Kind::File => {
                let tiny = data.is_file() && data.len() < 10 && data.permissions().mode() & 0o7777 == STUB_FILE_MODE;
                tiny.then(|| fs::read_to_string(path)).transpose()
            }
        });
        match text {
            Ok(Some(text)) => Look::Placeholder(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Look::Gone,
            Ok(None) | Err(_) => Look::Own,
        }
    }
}

/// Why there is no plan: nothing was started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum PlanError {
    /// The rules cannot be applied to this host.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// No such program was found.
    #[error("cannot find the program `{}`", .0.display())]
    ProgramNotFound(PathBuf),
    /// The file is not executable.
    #[error("cannot execute `{}`: not an executable file", .0.display())]
    ProgramNotExecutable(PathBuf),
    /// The command is empty.
    #[error("no command")]
    NoCommand,
    /// A built-in guard needs the `ringfence` program.
    #[error("`commands.{0}` needs the `ringfence` program, which is not in `PATH`")]
    NoGuard(String),
    /// The program in front of another cannot be used.
    #[error("cannot use the wrapper `{}` of `{program}`: {source}", path.display())]
    Wrapper { program: String, path: PathBuf, source: std::io::Error },
    /// The Docker socket does not exist.
    #[error("the Docker socket `{}` does not exist", .0.display())]
    DockerSocketMissing(PathBuf),
    /// The path of the Docker socket is not a socket.
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
    plan_with(&Tree::lookup(policy, facts), policy, facts, command)
}

/// As [`plan`], with the lookup that the layers were judged with: what a project's file names is then what was judged.
pub fn plan_with(lookup: &Lookup, policy: &Policy, facts: &Facts, command: &[OsString]) -> Result<Plan, PlanError> {
    plan_changed(lookup, policy, facts, command, Changes::default())
}

/// What one command has of its own, beside its program and arguments.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes<'a> {
    /// Variables on top of the environment of the box. If a name is there twice, the last one counts.
    pub env: &'a [(OsString, OsString)],
    /// Where the command starts. A relative path is below the working directory.
    pub cwd: Option<&'a Path>,
}

/// As [`plan_with`], for a command with variables and a directory of its own. Its program is looked up with them.
pub fn plan_changed(
    lookup: &Lookup,
    policy: &Policy,
    facts: &Facts,
    command: &[OsString],
    changes: Changes<'_>,
) -> Result<Plan, PlanError> {
    plan_for(lookup, policy, facts, Asked::Command(command, changes))
}

/// The same for a box that stays, with a guest in it.
pub fn plan_guest(policy: &Policy, facts: &Facts) -> Result<Plan, PlanError> {
    plan_guest_with(&Tree::lookup(policy, facts), policy, facts)
}

/// As [`plan_guest`], with the lookup that the layers were judged with.
pub fn plan_guest_with(lookup: &Lookup, policy: &Policy, facts: &Facts) -> Result<Plan, PlanError> {
    plan_for(lookup, policy, facts, Asked::Guest)
}

/// What a plan is asked for.
enum Asked<'a> {
    /// Program and arguments, as the user wrote them.
    Command(&'a [OsString], Changes<'a>),
    Guest,
}

fn plan_for(lookup: &Lookup, policy: &Policy, facts: &Facts, asked: Asked<'_>) -> Result<Plan, PlanError> {
    let tree = Tree::with(lookup, policy, facts)?;
    let mut workdir = policy.workdir_inside().to_path_buf();
    let home = if policy.root == Root::Host { facts.home.as_path() } else { Path::new(HOME) };
    let inside = env::Inside { profile: &policy.profile, home, workdir: &workdir };
    let mut environment = env::environment(&policy.env, &facts.env, &inside);
    if matches!(policy.root, Root::Image(_)) {
        for_image(policy, &mut environment);
    }
    let docker = DockerSockets::find(lookup, facts);
    if policy.docker {
        docker.check()?;
    }
    let (uid, gid) = policy.ids(facts);
    let mut view = View::new(policy, facts, lookup);
    view.root();
    view.private();
    view.volumes();
    view.resolver();
    view.shown();
    view.files(&tree);
    view.commands(&environment)?;
    view.docker(&docker);
    view.seal();
    let strange = view.strange.iter().take(1).map(|path| {
        let reason = format!("`{}` may be the placeholder of another user's sandbox, and go with it", path.display());
        (Guarantee::FsProtectedPaths, reason)
    });
    let weakened = weakened(&view.mounts, policy, facts).into_iter().chain(tree.weakened()).chain(strange).collect();
    let runs = match asked {
        Asked::Command(command, changes) => {
            for (name, value) in changes.env {
                environment.retain(|(known, _)| known != name);
                environment.push((name.clone(), value.clone()));
            }
            if let Some(cwd) = changes.cwd {
                workdir.push(cwd);
            }
            Runs::Command(resolve_command(command, &environment, policy, &workdir)?)
        }
        Asked::Guest => Runs::Guest,
    };
    Ok(Plan {
        mounts: view.mounts,
        project: policy.workdir().to_path_buf(),
        stubs: view.stubs,
        image: match &policy.root {
            Root::Image(name) => Some(name.clone()),
            Root::Host | Root::Programs => None,
        },
        network: policy.network.clone(),
        devices: policy.devices.clone(),
        caches_required: policy.caches.required,
        tmp_exec: policy.tmp_exec,
        docker: policy.docker,
        nesting: policy.nesting,
        uid,
        gid,
        owner: Owner::other_than_caller(policy.workdir(), facts),
        workdir,
        env: environment,
        runs,
        handed_socket: false,
        limits: policy.limits.clone(),
        allow_syscalls: policy.allow_syscalls.clone(),
        refuse_syscalls: policy.refuse_syscalls.clone(),
        trace_denials: policy.trace_denials,
        strict: policy.strict,
        promises: promises(policy),
        weakened,
        warnings: tree.warnings().collect(),
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
    // No `_`: whether a new guarantee is promised is decided here.
    let asked = |guarantee: Guarantee| match guarantee {
        Guarantee::FsRootReadOnly
        | Guarantee::FsWritesConfined
        | Guarantee::FsSecretsHidden
        | Guarantee::FsProtectedPaths
        | Guarantee::FsTempPrivate
        | Guarantee::FsDiskBounded
        | Guarantee::NetHostSocketsClosed
        | Guarantee::ProcIsolated
        | Guarantee::ProcUnprivileged
        | Guarantee::ProcCleanStart
        | Guarantee::KernelFiltered
        | Guarantee::KernelSecondWall
        | Guarantee::LimitOutput
        | Guarantee::LifeNoSurvivors
        | Guarantee::LifeDiesWithOwner => true,
        Guarantee::NetIsolated => policy.network == Network::None,
        Guarantee::NetByName => matches!(policy.network, Network::Allowlist(_)),
        Guarantee::LimitMemory => limits.memory.is_some(),
        Guarantee::LimitCpu => limits.cpus.is_some() || limits.cpu_time.is_some(),
        Guarantee::LimitProcesses => limits.pids.is_some(),
        Guarantee::LimitFiles => limits.files.is_some(),
        Guarantee::LimitTime => limits.timeout.is_some(),
        // Whoever keeps records answers for them.
        Guarantee::RecordComplete => false,
    };
    Guarantee::ALL
        .iter()
        .copied()
        .filter(|g| asked(*g))
        .map(|guarantee| Promise { guarantee, optional: policy.optional.contains(&guarantee) })
        .collect()
}

fn weakened(mounts: &[Mount], policy: &Policy, facts: &Facts) -> Vec<(Guarantee, String)> {
    let shown = |place: &Path| {
        mounts.iter().any(|m| matches!(m, Mount::Bind { source, target, .. } if target == place && source == place))
    };
    let temporary = ["/tmp", "/var/tmp", "/run"].into_iter().filter(|place| shown(Path::new(place)));
    let of_temporary = temporary.map(|place| (Guarantee::FsTempPrivate, format!("`{place}` is the host's, by a rule")));
    let sockets = facts.unplaced_sockets.iter().filter(|_| policy.root == Root::Host).take(1).map(|name| {
        let name: String = name.to_string_lossy().chars().filter(|c| !c.is_control()).collect();
        let reason = format!("a socket was bound by the relative name `{name}`, nobody knows where");
        (Guarantee::NetHostSocketsClosed, reason)
    });
    let more = facts.more_sockets && policy.root == Root::Host;
    let more =
        more.then(|| (Guarantee::NetHostSocketsClosed, "more host sockets are bound than are looked at".to_owned()));
    of_temporary.chain(sockets).chain(more).chain(policy.weakened.iter().cloned()).collect()
}

/// Home directory of a box that sees nothing of the user's.
pub const HOME: &str = "/home/sandbox";

/// Directories of programs and libraries.
pub(crate) const PROGRAMS: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store"];

/// Files of `/etc` that a box of the host's programs alone has of its own.
pub(crate) const OWN_TEXTS: [&str; 3] = ["/etc/passwd", "/etc/group", "/etc/hosts"];

/// What of `/etc` programs need: the loader's cache, certificates, alternatives, time zone, name services. No accounts.
pub(crate) const ETC: [&str; 21] = [
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
    // Where Debian puts what matplotlib does not start without.
    "/etc/matplotlibrc",
    "/etc/inputrc",
    "/etc/bash.bashrc",
    "/etc/profile",
    "/etc/java-17-openjdk",
];

/// The sockets of container daemons on this host, symlinks resolved.
pub(crate) fn container_sockets(facts: &Facts) -> Vec<PathBuf> {
    DockerSockets::find(&Lookup::default(), facts).found
}

/// Finds the program as the box will see it from the directory that the command starts in.
fn resolve_command(
    command: &[OsString],
    environment: &[(OsString, OsString)],
    policy: &Policy,
    cwd: &Path,
) -> Result<Command, PlanError> {
    let name = command.first().filter(|n| !n.is_empty()).ok_or(PlanError::NoCommand)?;
    let args = command.to_vec();
    let outside = |path: &Path| match (&policy.workdir_at, path.strip_prefix(policy.workdir_inside())) {
        (Some(_), Ok(below)) => policy.workdir().join(below),
        _ => path.to_path_buf(),
    };
    if name.as_bytes().contains(&b'/') {
        // Looked up inside: whether it is there depends on what the box sees.
        return Ok(Command { program: cwd.join(name), args });
    }
    if matches!(policy.root, Root::Image(_)) {
        // The image has its own programs and its own `PATH`.
        return Ok(Command { program: PathBuf::from(name), args });
    }
    let mut blocked = None;
    for dir in env::search_path(environment) {
        let program = cwd.join(dir).join(name);
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
