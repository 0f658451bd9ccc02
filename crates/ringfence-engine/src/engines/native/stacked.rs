//! A run inside a box that may not make namespaces: Landlock and the filter are stacked on what the outer box enforces.
//!
//! Mounts cannot be made here, so that every step of the plan must either hold already, by the outer box, or be something
//! that Landlock and the filter can express. What is neither is refused. It can only tighten.

use std::cell::OnceCell;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ringfence_linux::landlock;
use ringfence_linux::launch::{Identity, Spec};
use ringfence_linux::seccomp::{self, Sockets};
use ringfence_linux::sys::{self, Fork};
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{COMMANDS_FILE, MARKER_DIR, Mount, Plan};
use ringfence_policy::policy::Network;
use ringfence_policy::tree::PRIVATE;
use ringfence_policy::{Cure, Guarantee};
use rustix::io::Errno;

use super::super::limits::{Limit, limit};
use super::super::{EngineError, no_gateway};
use super::NAME;
use crate::facts::read_only;
use crate::report::{Report, Verdict, answer, enforced, missing, recorded, weakened};

fn cures() -> Vec<Cure> {
    vec![Cure::SetOutside { key: "nesting".into(), value: "true".into() }, Cure::host("ask for less")]
}

/// Whether the outer box's filter refuses user namespaces: what bwrap does to forbid them is not seen in a sysctl.
pub(super) fn filtered() -> bool {
    // The kernel takes no clone with both flags, and so none is ever made: it says EINVAL, or the filter speaks first.
    match sys::fork((libc::CLONE_NEWUSER | libc::CLONE_FS) as u64) {
        Err(errno) => errno != Errno::INVAL,
        Ok(Fork::Parent(_)) => false,
        Ok(Fork::Child) => std::process::abort(),
    }
}

/// A stand-in of the outer box: empty of rights, and nobody can give it any.
fn hidden(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.permissions().mode() & 0o666 == 0) && read_only(path)
}

/// The first step of the plan that neither holds already nor can be expressed here.
fn unexpressible(plan: &Plan, facts: &Facts) -> Option<(Guarantee, String)> {
    let commands = std::fs::read_to_string(COMMANDS_FILE).unwrap_or_default();
    let guarded = |target: &Path| commands.lines().any(|line| line.split('\t').next() == target.to_str());
    let private = |target: &Path| PRIVATE.iter().any(|p| target.starts_with(p)) || target == Path::new("/var/run");
    if (plan.uid, plan.gid) != (facts.uid, facts.gid) {
        return Some((Guarantee::ProcUnprivileged, format!("cannot become {}:{}", plan.uid, plan.gid)));
    }
    plan.mounts.iter().find_map(|mount| match mount {
        Mount::Bind { target, .. } if target == Path::new("/") || target.starts_with(MARKER_DIR) => None,
        Mount::Bind { source, target, .. } if source != target => (!guarded(target)).then(|| {
            (Guarantee::FsRootReadOnly, format!("cannot mount `{}` at `{}`", source.display(), target.display()))
        }),
        Mount::Bind { target, writable: false, .. } => (!read_only(target))
            .then(|| (Guarantee::FsProtectedPaths, format!("`{}` is writable here", target.display()))),
        Mount::Link { target, .. } => (!read_only(target))
            .then(|| (Guarantee::FsProtectedPaths, format!("`{}` is writable here", target.display()))),
        Mount::Bind { writable: true, .. } => None,
        Mount::Hide { target, .. } => {
            (!hidden(target)).then(|| (Guarantee::FsSecretsHidden, format!("`{}` can be read here", target.display())))
        }
        Mount::Empty { target, .. } => (!read_only(target) || !target.exists())
            .then(|| (Guarantee::FsProtectedPaths, format!("`{}` could be made here", target.display()))),
        Mount::Tmpfs { target, .. } => (!private(target))
            .then(|| (Guarantee::FsRootReadOnly, format!("cannot mount private space at `{}`", target.display()))),
        Mount::Proc { .. }
        | Mount::Dev { .. }
        | Mount::Dir { .. }
        | Mount::File { .. }
        | Mount::Symlink { .. }
        | Mount::Text { .. }
        | Mount::Seal { .. }
        // `promise` has refused it.
        | Mount::Volume { .. } => None,
    })
}

/// What is answered for each promise.
pub(super) fn promise(plan: &Plan, facts: &Facts) -> Result<Report, EngineError> {
    if let Some((guarantee, reason)) = unexpressible(plan, facts) {
        let reason = format!("{reason}, and a sandbox in a sandbox cannot mount");
        return Err(EngineError::Unmet { engine: NAME, guarantee, reason, cures: cures() });
    }
    let landlock::Abi(abi) = landlock::Abi::of_this_kernel();
    let home = OnceCell::new();
    answer(NAME, plan, |guarantee| match guarantee {
        Guarantee::FsRootReadOnly | Guarantee::FsWritesConfined | Guarantee::KernelSecondWall => match abi {
            0 | 1 => missing("this kernel's Landlock cannot confine writes", cures()),
            abi => weakened(format!(
                "Landlock ABI {abi} confines writes, not permissions and times; the outer sandbox holds"
            )),
        },
        Guarantee::NetIsolated => no_network(abi),
        Guarantee::NetByName => no_gateway(),
        Guarantee::ProcIsolated => weakened("the outer sandbox; what else runs in it is seen"),
        Guarantee::FsTempPrivate => weakened("the outer sandbox's own, shared with what else runs in it"),
        Guarantee::FsDiskBounded => weakened("the outer sandbox's limits, not this run's"),
        Guarantee::KernelFiltered => enforced("system-call filter, stacked on the outer sandbox's"),
        Guarantee::LifeNoSurvivors => {
            weakened("every descendant is killed at the end, and ends with the outer sandbox at last")
        }
        Guarantee::LimitProcesses => weakened("a watch over the tree; the outer sandbox's limit holds"),
        Guarantee::LimitMemory => limit(Limit::Memory, plan, &home),
        Guarantee::LimitCpu => limit(Limit::Cpu, plan, &home),
        Guarantee::LimitFiles => limit(Limit::Files, plan, &home),
        Guarantee::LimitTime => limit(Limit::Time, plan, &home),
        Guarantee::LimitOutput => limit(Limit::Output, plan, &home),
        Guarantee::RecordComplete => recorded(),
        Guarantee::FsSecretsHidden | Guarantee::FsProtectedPaths => {
            weakened("the outer sandbox; its view was looked at by name, before this run began")
        }
        Guarantee::NetHostSocketsClosed
        | Guarantee::ProcUnprivileged
        | Guarantee::ProcCleanStart
        | Guarantee::LifeDiesWithOwner => enforced("the outer sandbox"),
    })
}

fn no_network(abi: i32) -> Verdict {
    match abi {
        6.. => enforced("the filter refuses every socket but Unix ones, Landlock scopes abstract ones"),
        _ => missing("without Landlock ABI 6 abstract sockets stay open", cures()),
    }
}

/// Everything that process 1 of the stacked run needs.
pub(super) fn spec(plan: &Plan) -> Result<Spec, EngineError> {
    let no_network = plan.network != Network::Open;
    let allow: Vec<&str> = plan.allow_syscalls.iter().map(String::as_str).collect();
    let sockets = if no_network { Sockets::UnixOnly } else { Sockets::All };
    let refuse = plan.refuse_syscalls.iter().copied().collect();
    let options =
        seccomp::Options { nesting: plan.nesting, allow: &allow, refuse, sockets, notify: super::notify(plan) };
    let writable = super::writable_places(plan)?;
    let rules = landlock::Rules::new(landlock::Abi::of_this_kernel(), Some(writable), no_network);
    super::base_spec(plan, 0, Identity::Kept, Vec::new(), rules, Some(seccomp::program(&options)?))
}
