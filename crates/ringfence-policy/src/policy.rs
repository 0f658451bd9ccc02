//! The policy: the only input that starts a box. Built by [`layers`](crate::layers), read by [`plan`](crate::plan).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::guarantee::Guarantee;
use crate::limits::Limits;
use crate::records::Records;
use crate::rules::FileRule;

/// What one sandbox may read, write, reach and spend.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Name of the profile it was built from.
    pub profile: String,
    /// The effective working directory on the host: absolute and canonical.
    pub workdir: PathBuf,
    /// Where the working directory stands inside; the same path when `None`.
    pub workdir_at: Option<PathBuf>,
    /// What the root of the box is made of.
    pub root: Root,
    /// File rules of all layers, presets expanded, in layer order.
    pub rules: Vec<FileRule>,
    /// Directories of the host that stand at places of their own inside, read-only. Not where the root is the host's.
    pub shown: Vec<Shown>,
    pub network: Network,
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
    pub env: EnvPolicy,
    pub user: User,
    pub limits: Limits,
    pub records: Records,
    /// Guards in front of programs, by program name.
    pub commands: BTreeMap<String, CommandRule>,
    /// System calls let through although the filter's list refuses them, by name.
    pub allow_syscalls: Vec<String>,
    /// Guarantees that may be missing; the report then says so.
    pub optional: BTreeSet<Guarantee>,
    /// Refuse stand-ins for a limit (a watchdog instead of a cgroup).
    pub strict: bool,
    /// Watch for denied opens and report them by path.
    pub trace_denials: bool,
    /// The worst verdict of the scan with which a skill may run.
    pub skill_verdict: Verdict,
    /// Interpreters that a pool holds ready; 0: none, and every one starts when it is needed.
    pub warm: u64,
    /// A pool forks them from one that never ran anybody's code; else each is started.
    pub warm_fork: bool,
    /// A session ends when nothing was asked of it for so long; `None`: never. Not among the limits of a plan: a box is no
    /// other one for it.
    pub idle: Option<Duration>,
    /// A session ends after so long, whatever happens; `None`: never.
    pub life: Option<Duration>,
}

/// Interpreters that are held ready where nothing else is said.
pub const WARM: u64 = 4;
/// Nobody needs more.
pub const MOST_WARM: u64 = 256;

/// What a scan says of a piece of code, the best first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Clean,
    /// A person should look at it.
    #[default]
    Review,
    Dangerous,
}

impl Verdict {
    pub const ALL: [Verdict; 3] = [Verdict::Clean, Verdict::Review, Verdict::Dangerous];

    pub fn name(self) -> &'static str {
        match self {
            Verdict::Clean => "clean",
            Verdict::Review => "review",
            Verdict::Dangerous => "dangerous",
        }
    }

    pub fn from_name(name: &str) -> Option<Verdict> {
        Self::ALL.into_iter().find(|verdict| verdict.name() == name)
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A directory of the host, and where it stands inside. Nothing of the user's: what Ringfence itself put there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Absolute and canonical.
    #[serde(with = "crate::wire::path")]
    pub source: PathBuf,
    #[serde(with = "crate::wire::path")]
    pub target: PathBuf,
}

impl Policy {
    /// The command's user and group, inside.
    pub fn ids(&self, facts: &Facts) -> (u32, u32) {
        match self.user {
            User::Caller => (facts.uid, facts.gid),
            User::Ids { uid, gid } => (uid, gid),
        }
    }
}

/// What the root of the box is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// The host's root, read-only.
    Host,
    /// An empty root with the host's programs read-only (`/usr`, `/bin`, `/lib*`, a minimal `/etc`).
    Programs,
    /// The files of this container image, read-only: `name`, `name:tag`, or `name@sha256:…`, which is that very one.
    Image(String),
}

/// The image of boxes that name none: what `ringfence image build` makes.
pub const STANDARD_IMAGE: &str = "ringfence/standard";

/// What the box can reach over the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Network {
    /// A network namespace with nothing but its own loopback.
    None,
    /// A private network that leads outside, where no other box and no service of the host can be reached.
    Bridge,
    /// The host's network; on an engine whose boxes never have that one, [`Network::Bridge`].
    Open,
}

impl Network {
    /// The tightest first.
    pub const ALL: [Network; 3] = [Network::None, Network::Bridge, Network::Open];

    pub fn name(self) -> &'static str {
        match self {
            Network::None => "none",
            Network::Bridge => "bridge",
            Network::Open => "open",
        }
    }

    pub fn from_name(name: &str) -> Option<Network> {
        Self::ALL.into_iter().find(|network| network.name() == name)
    }
}

/// Whom the command runs as inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The caller's own ids.
    Caller,
    /// These ids inside; files on the host keep belonging to the caller.
    Ids { uid: u32, gid: u32 },
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
pub struct Caches {
    pub names: Vec<String>,
    /// Who may poison whom: only boxes of one group share a cache. `None` is the group of all that name none.
    pub group: Option<String>,
    /// A cache that cannot be had stops the box; else the box runs without it, and says so.
    pub required: bool,
    /// What is in them can be used, and not changed.
    pub read_only: bool,
}

/// Which environment the command starts with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvPolicy {
    /// Start from the caller's environment (profile `agent`) instead of the small clean one.
    pub inherit: bool,
    /// Names passed from the caller, also when `drop` matches them; `*` at the end is a wildcard.
    pub pass: Vec<String>,
    /// Names never passed; `*` at the end is a wildcard.
    pub drop: Vec<String>,
    /// Values set last.
    pub set: BTreeMap<String, OsString>,
}

/// What stands in front of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandRule {
    /// `false`: the program is blocked.
    Block,
    /// `"@git"`: a built-in guard.
    Guard(Guard),
    /// A path: the user's own wrapper, which finds the real program in `$RINGFENCE_REAL`.
    Wrapper(PathBuf),
}

/// The built-in guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    Git,
}
