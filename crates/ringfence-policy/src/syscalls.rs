//! Groups of system calls that a policy can refuse. The filter lets them through by default, because development needs them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::suggest::Suggestion;

/// One group, as `kernel.refuse_syscalls` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyscallGroup {
    /// Tracing other processes, and taking their memory and descriptors.
    Debugging,
    /// Filters that a program puts on itself.
    NestedFilters,
    /// Another personality, such as a 32-bit machine name or no address randomisation.
    Personality,
    /// Pages of a process in a pipe without a copy.
    Vmsplice,
}

impl SyscallGroup {
    /// Every group.
    pub const ALL: [SyscallGroup; 4] =
        [SyscallGroup::Debugging, SyscallGroup::NestedFilters, SyscallGroup::Personality, SyscallGroup::Vmsplice];

    /// How people write it.
    pub const fn name(self) -> &'static str {
        match self {
            SyscallGroup::Debugging => "debugging",
            SyscallGroup::NestedFilters => "nested-filters",
            SyscallGroup::Personality => "personality",
            SyscallGroup::Vmsplice => "vmsplice",
        }
    }

    /// The group of this name, or the nearest name.
    pub fn parse(name: &str) -> Result<SyscallGroup, Suggestion> {
        let known = Self::ALL.into_iter().find(|group| group.name() == name);
        known.ok_or_else(|| Suggestion::among(name, Self::ALL.map(Self::name)))
    }
}

impl fmt::Display for SyscallGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
