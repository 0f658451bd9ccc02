//! What of the kernel this engine needs, for `doctor`.

use ringfence_linux::setup::{Ids, Step};
use ringfence_linux::sys::sysctl;
use ringfence_linux::userns;
use ringfence_policy::Cure;
use ringfence_policy::facts::Facts;

use super::super::{EngineError, Finding, Tried, namespaces_closed};
use crate::facts::inside_sandbox;

pub(super) fn findings(facts: &Facts, tried: Tried<'_>) -> Vec<Finding> {
    let apparmor = apparmor(&AppArmor::of_this_process(), facts);
    vec![user_namespaces(facts), apparmor, id_mapped_mounts(facts, tried), procfs(tried)]
}

/// Whether this is in a sandbox in which no other can be made. A run is stacked then.
fn stacked_only() -> bool {
    inside_sandbox() && sysctl("user.max_user_namespaces").as_deref() == Some("0")
}

fn user_namespaces(facts: &Facts) -> Finding {
    const FACT: &str = "user namespaces";
    if stacked_only() {
        let cure = Cure::SetOutside { key: "nesting".into(), value: "true".into() };
        return Finding::degraded(FACT, "closed by the sandbox around this", [cure]);
    }
    if let Some((reason, cures)) = namespaces_closed(facts.uid != 0) {
        return Finding::missing(FACT, reason, cures);
    }
    match userns::try_one() {
        Ok(()) => Finding::ok(FACT, "one was made"),
        Err(error) => Finding::missing(
            FACT,
            format!("cannot make one: {error}"),
            [Cure::host("in a container: allow them (Docker: --security-opt seccomp=unconfined, or --privileged)")],
        ),
    }
}

/// What AppArmor says about user namespaces of ordinary users (Ubuntu from 23.10 on).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AppArmor {
    /// `kernel.apparmor_restrict_unprivileged_userns`
    switch: Option<String>,
    /// The profile that this process runs under.
    profile: Option<String>,
}

impl AppArmor {
    pub(super) fn of_this_process() -> AppArmor {
        let read = |path| std::fs::read_to_string(path).ok().map(|text: String| text.trim().to_owned());
        let profile = || read("/proc/self/attr/apparmor/current").or_else(|| read("/proc/self/attr/current"));
        let switch = sysctl("kernel.apparmor_restrict_unprivileged_userns");
        // Where there is no switch it does not matter.
        AppArmor { profile: switch.as_ref().and_then(|_| profile()), switch }
    }

    /// Whether the switch is on at all.
    fn is_on(&self) -> bool {
        self.switch.as_deref().is_some_and(|value| value != "0" && !value.is_empty())
    }

    /// Whether it keeps this user from making one. A program with a profile of its own has been thought of.
    pub(super) fn restricts(&self, uid: u32) -> bool {
        let unconfined = |profile: &String| profile.is_empty() || profile.starts_with("unconfined");
        self.is_on() && uid != 0 && self.profile.as_ref().is_none_or(unconfined)
    }
}

fn apparmor(apparmor: &AppArmor, facts: &Facts) -> Finding {
    const FACT: &str = "AppArmor";
    if !apparmor.is_on() {
        return Finding::ok(FACT, "does not restrict user namespaces");
    }
    if facts.uid == 0 {
        return Finding::ok(FACT, "restricts user namespaces of ordinary users, not root's");
    }
    if !apparmor.restricts(facts.uid) {
        return Finding::ok(FACT, "restricts user namespaces, and this program has a profile");
    }
    let program = facts.program.display();
    let profile = format!(
        "put this into /etc/apparmor.d/ringfence, then: sudo apparmor_parser -r /etc/apparmor.d/ringfence\n\
         abi <abi/4.0>,\n\
         include <tunables/global>\n\
         profile ringfence \"{program}\" flags=(unconfined) {{\n  userns,\n  include if exists <local/ringfence>\n}}"
    );
    let detail = "restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns = 1)";
    Finding::missing(FACT, detail, [Cure::host(profile)])
}

/// Root's box has ids of its own, and sees root's files through id-mapped mounts: tried by the box that was run.
fn id_mapped_mounts(facts: &Facts, tried: Tried<'_>) -> Finding {
    const FACT: &str = "id-mapped mounts";
    if facts.uid != 0 {
        return Finding::ok(FACT, "not needed by an ordinary user");
    }
    if stacked_only() {
        return Finding::ok(FACT, "not needed in a sandbox");
    }
    let help = "work on a file system that has them (ext4, xfs, btrfs, tmpfs from Linux 6.3), or as an ordinary user";
    let mapped = |step: &Step| matches!(step, Step::Bind { ids, .. } if *ids != Ids::AsTheyAre);
    by_step(FACT, tried, mapped, help, "used by the sandbox that was run")
}

fn procfs(tried: Tried<'_>) -> Finding {
    const FACT: &str = "procfs";
    if stacked_only() {
        return Finding::ok(FACT, "that of the sandbox around this");
    }
    let help = "in a container: let all of /proc be seen (Docker: --security-opt systempaths=unconfined)";
    let proc = |step: &Step| matches!(step, Step::Proc { .. });
    by_step(FACT, tried, proc, help, "mounted by the sandbox that was run")
}

/// What the step shows that a box failed at.
fn by_step(
    fact: &'static str,
    tried: Tried<'_>,
    needs: impl Fn(&Step) -> bool,
    help: &'static str,
    worked: &str,
) -> Finding {
    match tried {
        Tried::Ran => Finding::ok(fact, worked),
        Tried::Failed(Some(error @ EngineError::Setup { step: Some(step), .. })) if needs(step) => {
            Finding::missing(fact, error.to_string(), [Cure::host(help)])
        }
        Tried::Not | Tried::Failed(_) => {
            Finding::degraded(fact, "not tried: no native sandbox could be made", [Cure::host("see engine native")])
        }
    }
}

#[cfg(test)]
mod tests;
