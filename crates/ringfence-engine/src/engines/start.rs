//! The way from a plan to a box on this host: plan → [`Spec`] → launch → [`Running`].

use std::os::fd::OwnedFd;

use ringfence_linux::launch::{self, Identity, Processors, Spec, Start};
use ringfence_linux::limits::Group;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::Limits;
use ringfence_policy::plan::Plan;

use super::limits::{GUEST_PROCESSES, MOST_REAPERS, PROCESSES, group, is_of_commands, most, rlimits, stand_ins};
use super::running::stdio_parts;
use super::{EngineError, Running, StdioSpec, program, reopened};
use crate::janitor::Janitor;

/// What an engine of this host makes of a plan: everything that process 1 needs, and where a program that builds the box
/// speaks.
pub(super) type Compiled = (Spec, Option<OwnedFd>);

/// Starts the box of a plan.
pub(super) fn start(
    plan: &Plan,
    facts: &Facts,
    stdio: StdioSpec,
    compile: impl FnOnce(&Plan, &Facts) -> Result<Compiled, EngineError>,
) -> Result<Running, EngineError> {
    // Before anything is made: what must not be handed in is refused.
    let (terminal, mut stdio) = stdio_parts(stdio)?;
    let guest = plan.runs.is_guest();
    let limits = match guest {
        // The guest's own processes do not count against the caller; process 1 is allowed for already.
        true => Limits { pids: plan.limits.pids.map(|n| n + GUEST_PROCESSES), ..plan.limits.clone() },
        false => plan.limits.clone(),
    };
    // Looked for before there is a janitor: this process must be alone in its group to be moved out of it.
    let group = group(&limits);
    // There before anything is made that it must remove.
    let janitor = Janitor::start(plan, group.as_ref().map_or(&[], Group::paths), facts)?;
    if let Some(group) = &group {
        group.make(&limits)?;
        if guest {
            group.kill_one_by_one()?;
        }
    }
    let (mut spec, messages) = compile(plan, facts)?;
    let held = limit(&mut spec, plan, &limits, group.is_some());
    // A run inside a sandbox is behind the mounts that its files were opened on.
    let positions = match spec.identity {
        Identity::Kept => Vec::new(),
        _ => reopened::read_only(&mut stdio).map_err(EngineError::Stdio)?,
    };
    let groups = group.as_ref().map(Group::doors).transpose()?.unwrap_or_default();
    let born_in = group.as_ref().and_then(Group::cradle);
    let launched = launch::launch(&spec, Start { groups, born_in, terminal, stdio }).map_err(EngineError::Fork)?;
    if let Some(janitor) = &janitor {
        janitor.wait_for(launched.pid());
    }
    let program = program(plan).program.clone();
    Ok(Running { launched, spec, program, messages, group, held, janitor, positions })
}

/// Adds the limits, by what there is for them; how many processes a guest holds its commands to, where no group does.
fn limit(spec: &mut Spec, plan: &Plan, limits: &Limits, grouped: bool) -> Option<u64> {
    let mut held = None;
    if !grouped {
        let mut stand_ins = stand_ins(limits, &spec.identity);
        for (_, value) in stand_ins.iter_mut().filter(|limit| plan.runs.is_guest() && limit.0 == PROCESSES) {
            held = Some(*value);
            *value += MOST_REAPERS;
        }
        spec.rlimits.extend(stand_ins);
        spec.lingers = limits.pids.is_some();
        let processors =
            |cpus: f64| Processors { count: (cpus.ceil() as usize).max(1), offset: std::process::id() as usize };
        spec.processors = limits.cpus.map(processors);
    }
    spec.rlimits.extend(rlimits(plan).into_iter().filter(|limit| !plan.runs.is_guest() || !is_of_commands(limit)));
    spec.rlimits.iter_mut().for_each(|(resource, value)| *value = (*value).min(most(*resource)));
    held
}
