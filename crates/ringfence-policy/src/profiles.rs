//! The built-in profiles: the bottom layer of every policy.

use std::borrow::Cow;
use std::time::Duration;

use crate::Guarantee;
use crate::limits::{GIB, Limits, MIB};
use crate::policy::{CommandRule, Guard, Network, Root, User};
use crate::syscalls::SyscallGroup;

/// Which engine is asked for: a name that the engines' registry resolves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// The first that can honour the policy.
    #[default]
    Auto,
    /// This engine.
    Named(Cow<'static, str>),
}

impl EngineChoice {
    /// The word that leaves the choice to Ringfence.
    pub const AUTO: &'static str = "auto";

    /// The word for it in configuration files and flags.
    pub fn name(&self) -> &str {
        match self {
            EngineChoice::Auto => EngineChoice::AUTO,
            EngineChoice::Named(name) => name,
        }
    }

    /// The choice that people write by this name.
    pub fn from_name(name: impl Into<Cow<'static, str>>) -> EngineChoice {
        let name = name.into();
        if name == EngineChoice::AUTO { EngineChoice::Auto } else { EngineChoice::Named(name) }
    }
}

impl std::fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a policy must know of an engine that can be named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownEngine {
    /// What users call it.
    pub name: Cow<'static, str>,
    /// Its sandboxes have the root of an image, and no other.
    pub images: bool,
}

/// A built-in profile, complete: every value that the layers above may change.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a field is the default of the setting of its name (docs/configuration.md)")]
pub struct Profile {
    pub name: &'static str,
    pub engine: EngineChoice,
    pub root: Root,
    pub user: User,
    /// Where the working directory (or, where no rule shows it, the command) stands inside.
    pub workdir_at: Option<&'static str>,
    /// Whether the working directory is writable by the profile itself; in `agent` that is `@base`.
    pub workdir_writable: bool,
    pub presets: &'static [&'static str],
    pub network: Network,
    /// The home directory outlives the box.
    pub keep_home: bool,
    /// Shared caches cannot be changed.
    pub caches_read_only: bool,
    /// Programs can be executed from private temporary space.
    pub tmp_exec: bool,
    /// Start from the caller's environment.
    pub inherit_env: bool,
    pub limits: Limits,
    pub commands: &'static [(&'static str, CommandRule)],
    /// System calls that are refused although the filter's list lets them through.
    pub refuse_syscalls: &'static [SyscallGroup],
    /// Built-in profiles that a project's file may step down to: they allow nothing that this one does not.
    pub tighter: &'static [&'static str],
}

/// The profile that is used when none is named.
pub const DEFAULT: &str = "agent";

/// Names of the built-in profiles.
pub const NAMES: &[&str] = &["agent", "shell", "skill", "home"];

/// What no built-in profile insists on: the second wall is missing on older kernels and behind bubblewrap. The report says
/// so where it is.
pub const OPTIONAL: [Guarantee; 1] = [Guarantee::KernelSecondWall];

/// When a session ends that nobody uses, in every built-in profile.
pub const IDLE: Duration = Duration::from_secs(30 * 60);

/// When a session ends at the latest, in every built-in profile.
pub const LIFE: Duration = Duration::from_secs(24 * 3600);

/// Guards in front of programs, by default.
const GUARDS: &[(&str, CommandRule)] = &[("git", CommandRule::Guard(Guard::Git))];

/// Ids of the command inside where it is not the caller.
const SANDBOX_USER: User = User::Ids { uid: 1000, gid: 1000 };

/// What a rule shows or opens keeps its secrets hidden, and what runs on the host later stays as it is. These presets
/// grant nothing.
const PROTECTED: &[&str] = &["@secrets", "@git", "@dotfiles", "@lint/all"];

/// For wrapping a coding agent or a development command on a real project.
const AGENT: Profile = Profile {
    name: "agent",
    engine: EngineChoice::Auto,
    root: Root::Host,
    user: User::Caller,
    workdir_at: None,
    workdir_writable: false,
    presets: &["@all"],
    network: Network::Open,
    keep_home: false,
    caches_read_only: false,
    tmp_exec: true,
    inherit_env: true,
    limits: Limits { pids: Some(4096), ..Limits::UNLIMITED },
    commands: GUARDS,
    refuse_syscalls: &[],
    tighter: &["shell", "skill"],
};

/// For the shell tool of an assistant.
const SHELL: Profile = Profile {
    name: "shell",
    engine: EngineChoice::Auto,
    root: Root::Programs,
    user: SANDBOX_USER,
    workdir_at: Some("/workspace"),
    workdir_writable: true,
    presets: PROTECTED,
    network: Network::None,
    keep_home: false,
    caches_read_only: false,
    tmp_exec: true,
    inherit_env: false,
    limits: Limits {
        memory: Some(GIB),
        cpus: Some(1.0),
        pids: Some(256),
        files: Some(1024),
        timeout: Some(Duration::from_secs(120)),
        timeout_ceiling: Some(Duration::from_secs(600)),
        cpu_time: None,
        tmp_size: 512 * MIB,
        tmp_inodes: 65_536,
        output: MIB,
    },
    commands: GUARDS,
    refuse_syscalls: &[],
    tighter: &["skill"],
};

/// For one untrusted snippet: nothing of the user's is there, and the command starts in its private `/tmp`.
const SKILL: Profile = Profile {
    name: "skill",
    engine: EngineChoice::Auto,
    root: Root::Programs,
    user: SANDBOX_USER,
    workdir_at: Some("/tmp"),
    workdir_writable: false,
    presets: PROTECTED,
    network: Network::None,
    keep_home: false,
    caches_read_only: true,
    tmp_exec: false,
    inherit_env: false,
    limits: Limits {
        memory: Some(256 * MIB),
        cpus: Some(0.5),
        pids: Some(64),
        files: Some(256),
        timeout: Some(Duration::from_secs(30)),
        timeout_ceiling: Some(Duration::from_secs(30)),
        cpu_time: None,
        tmp_size: 10 * MIB,
        tmp_inodes: 4096,
        output: MIB,
    },
    commands: &[],
    refuse_syscalls: &SyscallGroup::ALL,
    tighter: &[],
};

/// For an agent's long-lived home. Image, home that stays and bridge network are the Docker engine's; no other one has them.
const HOME: Profile = Profile {
    name: "home",
    engine: EngineChoice::Auto,
    root: Root::Programs,
    user: SANDBOX_USER,
    workdir_at: Some("/home/sandbox"),
    workdir_writable: false,
    presets: PROTECTED,
    network: Network::Bridge,
    keep_home: true,
    caches_read_only: false,
    tmp_exec: true,
    inherit_env: false,
    limits: Limits {
        memory: Some(4 * GIB),
        cpus: Some(2.0),
        pids: Some(300),
        files: Some(4096),
        timeout: Some(Duration::from_secs(600)),
        timeout_ceiling: Some(Duration::from_secs(600)),
        cpu_time: None,
        tmp_size: GIB,
        tmp_inodes: 262_144,
        output: MIB,
    },
    commands: &[],
    refuse_syscalls: &[],
    tighter: &[],
};

/// The built-in profile of this name.
pub fn builtin(name: &str) -> Option<&'static Profile> {
    ALL.iter().find(|profile| profile.name == name)
}

static ALL: [Profile; 4] = [AGENT, SHELL, SKILL, HOME];

/// The built-in profile of this name, or the one that is used when none is named.
pub(crate) fn builtin_or_default(name: &str) -> &'static Profile {
    builtin(name).unwrap_or(&ALL[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{format_duration, format_size};

    #[test]
    fn as_the_design_page_says() {
        let row = |name: &&str| {
            let p = builtin(name).unwrap();
            let size = p.limits.memory.map_or("unlimited".into(), format_size);
            let cpus = p.limits.cpus.map_or("unlimited".into(), |c| c.to_string());
            let time = |t: Option<Duration>| t.map_or("none".into(), format_duration);
            format!(
                "{name}: {size} / {cpus} / {} · {} up to {} · {:?} · {:?}",
                p.limits.pids.unwrap(),
                time(p.limits.timeout),
                time(p.limits.timeout_ceiling),
                p.network,
                p.user
            )
        };
        insta::assert_snapshot!(NAMES.iter().map(row).collect::<Vec<_>>().join("\n"), @r"
        agent: unlimited / unlimited / 4096 · none up to none · Open · Caller
        shell: 1GiB / 1 / 256 · 2m up to 10m · None · Ids { uid: 1000, gid: 1000 }
        skill: 256MiB / 0.5 / 64 · 30s up to 30s · None · Ids { uid: 1000, gid: 1000 }
        home: 4GiB / 2 / 300 · 10m up to 10m · Bridge · Ids { uid: 1000, gid: 1000 }
        ");
        assert_eq!(builtin("skill").unwrap().limits.tmp_size, 10 * MIB);
    }
}
