//! The policy: the only input that starts a box. Built by [`layers`](crate::layers), read by [`plan`](crate::plan).

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::guarantee::Guarantee;
use crate::limits::Limits;
use crate::look::is_in;
use crate::rules::FileRule;
use crate::syscalls::SyscallGroup;
use crate::wire;

/// What one sandbox may read, write, reach and spend.
///
/// It can be written as JSON and read back. Nothing may be left out or added when it is read, and paths that are not
/// UTF-8 survive ([`wire`](crate::wire)). The values of `env.set` are in it, which may be secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Name of the profile it was built from.
    pub profile: String,
    /// What the sandbox works on.
    pub workspace: Workspace,
    /// Where the workspace stands inside; at its path on the host when `None`.
    #[serde(with = "wire::maybe_absolute")]
    pub workdir_at: Option<PathBuf>,
    /// Directories that the rules are made for, and what the box sees of each.
    pub narrowed: Vec<Narrowed>,
    /// What the root of the box is made of.
    pub root: Root,
    /// File rules of all layers, presets expanded, in layer order.
    pub rules: Vec<FileRule>,
    /// Directories of the host that stand at places of their own inside, read-only. Not where the root is the host's.
    pub shown: Vec<Shown>,
    /// What it can reach over the network.
    pub network: Network,
    /// Devices of the host that the sandbox may use, besides the few that every sandbox has. No engine lets one in yet.
    pub devices: Vec<Device>,
    /// Package caches that boxes share, by name (see [`caches`](crate::caches)).
    pub caches: Caches,
    /// The home directory outlives the box.
    pub keep_home: bool,
    /// Programs can be executed from private temporary space, where the engine can tell.
    pub tmp_exec: bool,
    /// Whether the Docker socket is bound in; masked otherwise.
    pub docker: bool,
    /// Whether the box may make user namespaces of its own.
    pub nesting: bool,
    /// The environment of commands.
    pub env: EnvPolicy,
    /// Whom commands run as.
    pub user: User,
    /// What it may spend.
    pub limits: Limits,
    /// Guards in front of programs, by program name.
    pub commands: BTreeMap<String, CommandRule>,
    /// System calls let through although the filter's list refuses them, by name.
    pub allow_syscalls: Vec<String>,
    /// System calls refused although the filter's list lets them through, by group. Not those of `allow_syscalls`.
    pub refuse_syscalls: BTreeSet<SyscallGroup>,
    /// Guarantees that may be missing; the report then says so.
    pub optional: BTreeSet<Guarantee>,
    /// Refuse stand-ins for a limit (a watchdog instead of a cgroup).
    pub strict: bool,
    /// Watch for denied opens and report them by path.
    pub trace_denials: bool,
    /// What the rules cannot promise in this directory, and why.
    pub weakened: Vec<(Guarantee, String)>,
}

/// A directory of the host, and where it stands inside. Nothing of the user's: what Ringfence itself put there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    /// Absolute and canonical.
    #[serde(with = "wire::absolute")]
    pub source: PathBuf,
    /// Where it stands inside.
    #[serde(with = "wire::absolute")]
    pub target: PathBuf,
}

/// A directory that rules are made for, and the parts of it that a box is given.
///
/// The rules hold as they do in a box that has the whole directory. Outside of the parts, it is read-only where the root
/// is the host's, but for places that a rule makes writable by name. With another root it is not shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Narrowed {
    /// Absolute and canonical. A link in its place is an error, also for the parts.
    #[serde(with = "wire::absolute")]
    pub whole: PathBuf,
    /// Directories in it, none in another; the directory itself where all of it is given.
    #[serde(with = "wire::absolutes")]
    pub parts: Vec<PathBuf>,
}

impl Narrowed {
    /// Whether a path lies in the directory, and in no part that is given.
    pub fn leaves_out(&self, path: &Path) -> bool {
        is_in(path, &self.whole) && !self.parts.iter().any(|part| is_in(path, part))
    }
}

/// What a sandbox works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workspace {
    /// The working directory is this one of the host: absolute and canonical. The file rules say what the sandbox may do
    /// there.
    HostDirectory(#[serde(with = "wire::absolute")] PathBuf),
}

/// A device of the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its path, on the host and inside.
    #[serde(with = "wire::absolute")]
    pub path: PathBuf,
}

impl Policy {
    /// The working directory on the host. A kind of workspace that has none makes this an `Option`: each caller then
    /// decides what that means for it.
    pub fn workdir(&self) -> &Path {
        let Workspace::HostDirectory(path) = &self.workspace;
        path
    }

    /// The working directory inside.
    pub fn workdir_inside(&self) -> &Path {
        self.workdir_at.as_deref().unwrap_or(self.workdir())
    }

    /// The command's user and group, inside.
    pub fn ids(&self, facts: &Facts) -> (u32, u32) {
        match self.user {
            User::Caller => (facts.uid, facts.gid),
            User::Ids { uid, gid } => (uid, gid),
        }
    }
}

/// What the root of the box is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Root {
    /// The host's root, read-only.
    Host,
    /// An empty root with the host's programs read-only (`/usr`, `/bin`, `/lib*`, a minimal `/etc`).
    Programs,
    /// The files of this container image, read-only: `name`, `name:tag`, or `name@sha256:…`, which is that very one.
    Image(String),
}

impl std::fmt::Display for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Root::Host => f.write_str("the host's root"),
            Root::Programs => f.write_str("the host's programs"),
            Root::Image(name) => write!(f, "image `{name}`"),
        }
    }
}

/// The image of boxes that name none: what `ringfence image build` makes.
pub const STANDARD_IMAGE: &str = "ringfence/standard";

/// What the sandbox can reach over the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// A network namespace with nothing but its own loopback.
    None,
    /// A private network that leads outside, where no other sandbox and no service of the host can be reached.
    Bridge,
    /// The host's network; on an engine whose sandboxes never have that one, [`Network::Bridge`].
    Open,
    /// Only what the rules name, whatever the program does. No engine enforces this yet: each refuses such a plan.
    Allowlist(NetworkRules),
}

/// What is reached with an allow list. Patterns are names, addresses and ranges, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkRules {
    /// Patterns of the destinations that can be reached; nothing when there is none.
    pub allow: BTreeSet<String>,
    /// The lists of other policies that this one was narrowed by. Each must allow a destination, too.
    pub also: BTreeSet<BTreeSet<String>>,
    /// Patterns of destinations that cannot be reached, whatever the lists say.
    pub deny: BTreeSet<String>,
    /// Ports of the host's loopback that are at the same ports inside.
    pub local: BTreeSet<u16>,
    /// Ports inside that can be reached from outside.
    pub publish: BTreeSet<u16>,
}

impl Network {
    /// What configuration and flags can name, the tightest first.
    pub const NAMES: [&'static str; 3] = ["none", "bridge", "open"];

    /// The word for it in configuration files and flags.
    pub fn name(&self) -> &'static str {
        match self {
            Network::None => "none",
            Network::Bridge => "bridge",
            Network::Open => "open",
            Network::Allowlist(_) => "allowlist",
        }
    }

    /// The value of such a word.
    pub fn from_name(name: &str) -> Option<Network> {
        match name {
            "none" => Some(Network::None),
            "bridge" => Some(Network::Bridge),
            "open" => Some(Network::Open),
            _ => None,
        }
    }

    /// What both allow.
    pub fn narrowed_by(&self, other: &Network) -> Network {
        use Network::{Allowlist, Bridge, None, Open};
        match (self, other) {
            (None, _) | (_, None) => None,
            (Allowlist(rules), Allowlist(other)) => Allowlist(rules.narrowed_by(other)),
            (Allowlist(rules), Open) | (Open, Allowlist(rules)) => Allowlist(rules.clone()),
            // A list may name a service of the host, which a bridge does not reach. No value says both.
            (Allowlist(_), Bridge) | (Bridge, Allowlist(_)) => None,
            (Bridge, Bridge | Open) | (Open, Bridge) => Bridge,
            (Open, Open) => Open,
        }
    }

    /// Whether it allows nothing that the other one does not.
    pub(crate) fn is_within(&self, other: &Network) -> bool {
        self.narrowed_by(other) == *self
    }
}

impl NetworkRules {
    /// What both allow. What one list has in common with another cannot be said by patterns, so that both are kept.
    fn narrowed_by(&self, other: &NetworkRules) -> NetworkRules {
        let NetworkRules { allow, also, deny, local, publish } = other;
        let others = also.iter().chain([allow]).filter(|list| **list != self.allow);
        NetworkRules {
            allow: self.allow.clone(),
            also: self.also.iter().chain(others).cloned().collect(),
            deny: &self.deny | deny,
            local: &self.local & local,
            publish: &self.publish & publish,
        }
    }
}

/// Whom the command runs as inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the ids inside")]
#[serde(into = "String", try_from = "String")]
pub enum User {
    /// The caller's own ids.
    Caller,
    /// These ids inside; files on the host keep belonging to the caller.
    Ids { uid: u32, gid: u32 },
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            User::Caller => f.write_str("caller"),
            User::Ids { uid, gid } => write!(f, "{uid}:{gid}"),
        }
    }
}

impl From<User> for String {
    fn from(user: User) -> String {
        user.to_string()
    }
}

impl TryFrom<String> for User {
    type Error = String;

    fn try_from(text: String) -> Result<User, String> {
        User::parse(&text).ok_or_else(|| format!("`{text}` is not a user (`caller` or UID:GID, not root's)"))
    }
}

impl User {
    /// Reads `caller` or `UID:GID`. Root is nobody's id in a box.
    pub fn parse(text: &str) -> Option<User> {
        if text == "caller" {
            return Some(User::Caller);
        }
        let (uid, gid) = text.split_once(':')?;
        let id = |text: &str| text.parse::<u32>().ok().filter(|id| (1..u32::MAX).contains(id));
        Some(User::Ids { uid: id(uid)?, gid: id(gid)? })
    }
}

/// Which shared package caches a box sees, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caches {
    /// The names of the caches.
    pub names: Vec<String>,
    /// Who may poison whom: only boxes of one group share a cache. `None` is the group of all that name none.
    #[serde(deserialize_with = "wire::given")]
    pub group: Option<String>,
    /// A cache that cannot be had stops the box; else the box runs without it, and says so.
    pub required: bool,
    /// What is in them can be used, and not changed.
    pub read_only: bool,
}

/// Which environment the command starts with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvPolicy {
    /// Start from the caller's environment (profile `agent`) instead of the small clean one.
    pub inherit: bool,
    /// Names passed from the caller, also when `drop` matches them; `*` at the end is a wildcard.
    pub pass: Vec<String>,
    /// Names never passed; `*` at the end is a wildcard.
    pub drop: Vec<String>,
    /// Values set last.
    #[serde(with = "wire::values")]
    pub set: BTreeMap<String, OsString>,
}

/// What stands in front of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommandRule {
    /// `false`: the program is blocked.
    Block,
    /// `"@git"`: a built-in guard.
    Guard(Guard),
    /// A path: the user's own wrapper, which finds the real program in `$RINGFENCE_REAL`.
    Wrapper(#[serde(with = "wire::absolute")] PathBuf),
}

/// The built-in guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// Stops git from throwing work away.
    Git,
}
