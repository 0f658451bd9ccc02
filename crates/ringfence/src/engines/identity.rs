//! Whom a box runs as on the host. Root's box is nobody there: it has a range of ids of its own.

use ringfence_linux::userns;
use ringfence_policy::facts::Facts;

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
