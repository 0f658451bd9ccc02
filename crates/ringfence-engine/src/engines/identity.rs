//! Whom a box runs as on the host. Root's box is nobody there: it has a range of ids of its own.

use std::os::fd::OwnedFd;
use std::path::Path;

use ringfence_linux::setup::{Idmaps, Ids};
use ringfence_linux::userns;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::Plan;

use super::EngineError;

/// How many ids a box has when root starts it.
const ID_COUNT: u32 = 0x1_0000;

/// The ids of a box as the host sees them, when root starts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostIds {
    pub base: u32,
}

impl HostIds {
    /// A range of its own for this process, far from accounts, containers and `subuid` ranges.
    pub fn for_this_process() -> Self {
        let slot = std::process::id() % 0x3000;
        Self { base: 0x4000_0000 + slot * ID_COUNT }
    }

    pub fn host(self, inside: u32) -> u32 {
        self.base + inside.min(ID_COUNT - 1)
    }

    pub fn range(self) -> userns::Range {
        userns::Range { inside: 0, outside: self.base, count: ID_COUNT }
    }

    /// The mapping of id-mapped mounts: files of the caller are the box user's, and the other way round.
    pub fn mount_ranges(self, caller: u32, inside: u32) -> Vec<userns::Range> {
        if caller == inside {
            return vec![self.range()];
        }
        vec![userns::Range { inside: caller, outside: self.host(inside), count: 1 }]
    }

    /// The mapping for a tree of somebody else's: the owner's files are the box user's, what would have been the box user's
    /// is the owner's, and all others are as they were.
    fn owners_ranges(self, owner: u32, inside: u32) -> Vec<userns::Range> {
        let range = |from: u32, to: u32| userns::Range { inside: from, outside: self.host(from), count: to - from };
        let (low, high) = (owner.min(inside), owner.max(inside));
        let swapped = |one: u32, other: u32| userns::Range { inside: one, outside: self.host(other), count: 1 };
        let ranges = if owner < ID_COUNT && owner != inside {
            vec![range(0, low), swapped(low, high), range(low + 1, high), swapped(high, low), range(high + 1, ID_COUNT)]
        } else if owner == inside {
            vec![self.range()]
        } else {
            // Too high for this range of ids: nothing takes its place.
            vec![range(0, inside), range(inside + 1, ID_COUNT), swapped(owner, inside)]
        };
        ranges.into_iter().filter(|range| range.count > 0).collect()
    }

    /// The mappings that the mounts of a plan take.
    pub fn idmaps(self, plan: &Plan, facts: &Facts) -> Result<Idmaps, EngineError> {
        let callers = make(self.mount_ranges(facts.uid, plan.uid), self.mount_ranges(facts.gid, plan.gid))?;
        let owners = plan
            .owner
            .as_ref()
            .map(|owner| make(self.owners_ranges(owner.uid, plan.uid), self.owners_ranges(owner.gid, plan.gid)));
        Ok(Idmaps { callers, owners: owners.transpose()? })
    }
}

fn make(uids: Vec<userns::Range>, gids: Vec<userns::Range>) -> Result<OwnedFd, EngineError> {
    userns::create(&uids, &gids).map_err(EngineError::UserNamespace)
}

/// Whose files of this tree are the box user's.
pub fn ids(plan: &Plan, source: &Path) -> Ids {
    match &plan.owner {
        Some(owner) if source.starts_with(&owner.at) => Ids::Owners,
        _ => Ids::Callers,
    }
}

/// Whether root's rights make the box: mounts with ids mapped, then ids of its own.
pub fn by_root(facts: &Facts) -> bool {
    facts.uid == 0 && has_roots_rights()
}

/// Whether this process can give a box ids of its own.
pub fn has_roots_rights() -> bool {
    use rustix::thread::CapabilitySet;
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_elses_files_are_the_box_users() {
        let ids = HostIds { base: 1 << 30 };
        for (owner, inside) in [(1000, 0), (0, 1000), (1000, 1000), (1, 0), (65_535, 1000), (100_000, 1000)] {
            let ranges = ids.owners_ranges(owner, inside);
            let map = |id: u32| {
                let range = ranges.iter().find(|r| (r.inside..r.inside + r.count).contains(&id));
                range.map(|r| r.outside + (id - r.inside))
            };
            assert_eq!(map(owner), Some(ids.host(inside)), "{owner} {inside}");
            assert_eq!(map(42), Some(ids.host(42)));
            // No id of the host stands for two of the tree's.
            let mut all: Vec<u32> = (0..ID_COUNT).chain([owner]).filter_map(map).collect();
            let count = all.len() - usize::from(owner < ID_COUNT);
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count, "{owner} {inside}");
        }
    }
}
