//! What the finished view must look like, place by place. An engine looks at it from inside before the command starts.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Mount, Plan};
use crate::guarantee::Guarantee;
use crate::rules::Kind;

/// One path inside, at which a mount of the plan must be the one that is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected<'a> {
    /// The path, absolute and without symlinks.
    pub target: &'a Path,
    /// What must be seen there.
    pub seen: Seen<'a>,
}

/// What is seen at a path.
#[allow(missing_docs, reason = "fields are those of the mounts")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<'a> {
    /// This file or directory of the host, and no other.
    Host { source: &'a Path, writable: bool, kind: Kind },
    /// This symlink of the host.
    Link { source: &'a Path },
    /// Nothing can be read or listed. `passable`: it can be walked through. `fleeting`: it may be missing instead.
    Hidden { kind: Kind, passable: bool, fleeting: bool },
    /// Empty and read-only.
    Empty { kind: Kind },
    /// Private space.
    Space { writable: bool },
    /// Space that an engine keeps under a name.
    Volume { writable: bool },
}

impl Expected<'_> {
    /// The promise that is broken where something else is seen.
    pub fn guarantee(&self) -> Guarantee {
        match self.seen {
            Seen::Hidden { .. } => Guarantee::FsSecretsHidden,
            Seen::Host { writable: false, .. } | Seen::Link { .. } | Seen::Empty { .. } => Guarantee::FsProtectedPaths,
            Seen::Space { .. } => Guarantee::FsTempPrivate,
            Seen::Host { writable: true, .. } | Seen::Volume { .. } => Guarantee::FsWritesConfined,
        }
    }
}

impl Plan {
    /// What must be seen at each hidden, protected and writable path, in the order of the mounts. Each path stands here once:
    /// of several mounts at one path, the last one counts.
    pub fn expected(&self) -> Vec<Expected<'_>> {
        let sealed: BTreeSet<&Path> = self
            .mounts
            .iter()
            .filter_map(|mount| match mount {
                Mount::Seal { target } => Some(target.as_path()),
                _ => None,
            })
            .collect();
        let mut known = BTreeSet::new();
        let mut expected: Vec<Expected<'_>> = Vec::with_capacity(self.mounts.len());
        for mount in self.mounts.iter().rev() {
            let target = mount.target();
            let seen = match mount {
                Mount::Bind { source, writable, kind, .. } => Seen::Host { source, writable: *writable, kind: *kind },
                Mount::Link { source, .. } => Seen::Link { source },
                Mount::Hide { kind, passable, fleeting, .. } => {
                    Seen::Hidden { kind: *kind, passable: *passable, fleeting: *fleeting }
                }
                Mount::Empty { kind, .. } => Seen::Empty { kind: *kind },
                Mount::Tmpfs { .. } => Seen::Space { writable: !sealed.contains(target) },
                Mount::Volume { writable, .. } => Seen::Volume { writable: *writable },
                Mount::Proc { .. }
                | Mount::Dev { .. }
                | Mount::Dir { .. }
                | Mount::File { .. }
                | Mount::Symlink { .. }
                | Mount::Text { .. }
                | Mount::Seal { .. } => continue,
            };
            if known.insert(target) {
                expected.push(Expected { target, seen });
            }
        }
        expected.reverse();
        expected
    }
}
