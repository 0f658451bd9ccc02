//! Limits of boxes that are trees of processes of this host: what is answered for them, and what each process is held to.
//! Mirrors `ringfence_policy::limits`; the kernel's side is `ringfence_linux::limits`.

use std::cell::OnceCell;

use ringfence_linux::launch::Identity;
use ringfence_linux::limits::{Group, Home, LimitError};
use ringfence_policy::Guarantee;
use ringfence_policy::limits::{Limits, format_duration, format_size};
use ringfence_policy::plan::Plan;

use crate::report::{Report, State, Verdict, enforced, weakened};

/// Reapers that wait for a command, and the like.
pub const GUEST_PROCESSES: u64 = 4;

/// More commands at once than a guest takes.
pub(super) const MOST_REAPERS: u64 = 1024;

#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
pub(super) const PROCESSES: u32 = libc::RLIMIT_NPROC as u32;

/// Whether there is a limit on the tree as a whole.
fn needs_group(limits: &Limits) -> bool {
    limits.memory.is_some() || limits.cpus.is_some() || limits.pids.is_some()
}

/// The group of a sandbox with these limits, which is still to be made; `None` where it needs none, or there are none.
pub(super) fn group(limits: &Limits) -> Option<Group> {
    if needs_group(limits) { Group::named(Home::take(), super::nonce()) } else { None }
}

/// Refuses fallbacks where the report says that a cgroup enforces a limit. The report may come from another process, or from
/// an earlier look.
pub(super) fn refuse_fallbacks(report: &Report, take: impl FnOnce() -> Home) -> Result<(), LimitError> {
    let by_group = [Guarantee::LimitMemory, Guarantee::LimitCpu, Guarantee::LimitProcesses];
    if !report.guarantees.iter().any(|answer| answer.state == State::Enforced && by_group.contains(&answer.id)) {
        return Ok(());
    }
    match take() {
        Home::None(reason) => Err(LimitError::NotTaken(reason)),
        Home::V1 { .. } | Home::V2(_) => Ok(()),
    }
}

/// A limit that is promised.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    Memory,
    Cpu,
    Processes,
    Files,
    Time,
    Output,
}

/// What is answered for a limit, by every engine whose box is a tree of processes of this host. Where groups can be made
/// (`home`) is looked for once for all of them.
pub(super) fn limit(limit: Limit, plan: &Plan, home: &OnceCell<Home>) -> Verdict {
    let stands_in = match limit {
        Limit::Files => return enforced("RLIMIT_NOFILE of each process"),
        Limit::Time => return enforced("TERM, then KILL of process 1 from outside"),
        Limit::Output => return enforced("streamed; captured output keeps a bounded head and tail"),
        Limit::Cpu if plan.limits.cpus.is_none() => {
            return weakened(
                "RLIMIT_CPU of each process and a watch over the tree, which misses what ends between two looks",
            );
        }
        Limit::Memory => "RLIMIT_DATA of each process and a watch over the tree",
        Limit::Processes => "process count of the sandbox's own user namespace",
        Limit::Cpu => "affinity to as many processors as asked for, rounded up, which a program can undo",
    };
    match home.get_or_init(Home::look) {
        Home::V2(_) => enforced("control group v2"),
        Home::V1 { .. } => enforced("control group v1"),
        Home::None(reason) => weakened(format!("{stands_in} ({reason})")),
    }
}

/// The limits of a plan in words.
pub(super) fn limit_steps(plan: &Plan) -> Vec<String> {
    let limits = &plan.limits;
    let mut lines = Vec::new();
    lines.extend(limits.memory.map(|n| format!("limit memory to {}", format_size(n))));
    lines.extend(limits.cpus.map(|n| format!("limit processors to {n}")));
    lines.extend(limits.pids.map(|n| format!("limit processes to {n}")));
    lines.extend(limits.files.map(|n| format!("limit open files to {n}")));
    lines.extend(limits.cpu_time.map(|t| format!("limit processor time to {}", format_duration(t))));
    lines.extend(limits.timeout.map(|t| format!("end everything after {}", format_duration(t))));
    lines
}

/// Timers and queued signals: they are counted for the user, outside too.
const PENDING_SIGNALS: u64 = 4096;

/// Limits of each process, which every box has; none is above this process's own.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
pub(super) fn rlimits(plan: &Plan) -> Vec<(u32, u64)> {
    // 0 would not stop a core dump that is piped to a program; 1 does.
    let mut limits = vec![(libc::RLIMIT_CORE as _, 1), (libc::RLIMIT_SIGPENDING as _, PENDING_SIGNALS)];
    limits.extend(plan.limits.files.map(|n| (libc::RLIMIT_NOFILE as _, n)));
    limits.extend(plan.limits.cpu_time.map(|t| (libc::RLIMIT_CPU as _, t.as_secs().max(1).saturating_add(1))));
    limits.into_iter().map(|(resource, value)| (resource, value.min(most(resource)))).collect()
}

/// What this process is held to itself, which is less than some limit that is asked for: then nobody can have more anyway.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
pub(super) fn most(resource: u32) -> u64 {
    use rustix::process::Resource;
    let known = [
        (PROCESSES, Resource::Nproc),
        (libc::RLIMIT_NOFILE as u32, Resource::Nofile),
        (libc::RLIMIT_SIGPENDING as u32, Resource::Sigpending),
        (libc::RLIMIT_CORE as u32, Resource::Core),
        (libc::RLIMIT_CPU as u32, Resource::Cpu),
        (libc::RLIMIT_DATA as u32, Resource::Data),
    ];
    let Some((_, resource)) = known.into_iter().find(|(number, _)| *number == resource) else { return u64::MAX };
    rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX)
}

/// What stands in for a control group: the process count of the box's own user namespace, and a bound on each process,
/// while the tree as a whole is watched from outside.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
pub(super) fn stand_ins(limits: &Limits, identity: &Identity) -> Vec<(u32, u64)> {
    // Without a user namespace of its own the outer box's processes would count as well.
    let counted = !matches!(identity, Identity::Kept);
    let processes = limits.pids.filter(|_| counted).map(|n| (PROCESSES, (n + 1).min(most(PROCESSES))));
    processes.into_iter().chain(limits.memory.map(|n| (libc::RLIMIT_DATA as _, n))).collect()
}

/// Whether this limit is for commands and not for a guest, which lives long and needs descriptors for each stream.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
pub(super) fn is_of_commands((resource, _): &(u32, u64)) -> bool {
    [libc::RLIMIT_NOFILE as u32, libc::RLIMIT_CPU as u32].contains(resource)
}
