//! A policy to begin with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ringfence_policy::Guarantee;
use ringfence_policy::limits::Limits;
use ringfence_policy::policy::{Caches, EnvPolicy, Network, Policy, Root, User, Workspace};
use ringfence_policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};

/// The host's root, this directory writable, no network, the caller's environment, no limit on the tree.
pub fn policy(workdir: &Path) -> Policy {
    let rule = FileRule {
        access: Access::Rw,
        pattern: Pattern::Exact(workdir.to_path_buf()),
        missing: Missing::Fail,
        origin: Origin { layer: LayerKind::Profile, place: "test".into() },
    };
    Policy {
        profile: "test".to_owned(),
        workspace: Workspace::HostDirectory(workdir.to_path_buf()),
        workdir_at: None,
        narrowed: Vec::new(),
        root: Root::Host,
        rules: vec![rule],
        network: Network::None,
        devices: Vec::new(),
        caches: Caches::default(),
        keep_home: false,
        tmp_exec: true,
        docker: false,
        nesting: false,
        env: EnvPolicy { inherit: true, ..EnvPolicy::default() },
        user: User::Caller,
        limits: Limits {
            memory: None,
            cpus: None,
            pids: None,
            files: None,
            timeout: None,
            timeout_ceiling: None,
            cpu_time: None,
            tmp_size: 1 << 20,
            tmp_inodes: 1024,
            output: 1 << 20,
        },
        commands: BTreeMap::new(),
        allow_syscalls: Vec::new(),
        refuse_syscalls: BTreeSet::new(),
        optional: BTreeSet::from([Guarantee::KernelSecondWall]),
        strict: false,
        trace_denials: false,
        weakened: Vec::new(),
        shown: Vec::new(),
    }
}
