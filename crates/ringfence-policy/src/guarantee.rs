//! The promises that plans make and reports answer for, by their stable ids.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! guarantees {
    ($($variant:ident $id:literal $promise:literal),* $(,)?) => {
        /// One promise with a stable id.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Guarantee { $(#[doc = $promise] $variant),* }

        impl Guarantee {
            /// Every guarantee, in the order of the design page.
            pub const ALL: &'static [Guarantee] = &[$(Guarantee::$variant),*];

            /// The stable id, as in reports and in `optional = […]`.
            pub fn id(self) -> &'static str {
                match self { $(Guarantee::$variant => $id),* }
            }
        }
    };
}

guarantees! {
    FsRootReadOnly "fs.root-read-only" "nothing outside the writable places can be created, changed, renamed, linked or removed",
    FsWritesConfined "fs.writes-confined" "what is written stays in the writable places, also through links, handles and /proc",
    FsSecretsHidden "fs.secrets-hidden" "excluded contents cannot be read by any name, link, handle or alias",
    FsProtectedPaths "fs.protected-paths" "protected paths inside a writable place cannot be changed, replaced, planted or moved away",
    FsTempPrivate "fs.temp-private" "/tmp, /var/tmp, /dev/shm and /run are the sandbox's own",
    FsDiskBounded "fs.disk-bounded" "private writable space has a size and an inode limit",
    NetIsolated "net.isolated" "no packet and no socket leaves, loopback is the sandbox's own",
    NetByName "net.by-name" "only named destinations are reached, whatever the program does",
    NetHostSocketsClosed "net.host-sockets-closed" "container daemons, D-Bus, SSH and GPG agents, display servers and other host sockets are out of reach",
    ProcIsolated "proc.isolated" "no host process, other sandbox, IPC object, key or terminal is seen, signalled, traced or read",
    ProcUnprivileged "proc.unprivileged" "not root on the host, no capability in any set, no new privileges, set-user-id has no effect",
    ProcCleanStart "proc.clean-start" "no inherited descriptor, only the environment that the policy lets through",
    KernelFiltered "kernel.filtered" "system calls outside the list are refused, on every ABI",
    KernelSecondWall "kernel.second-wall" "Landlock confirms files, sockets and signals independently of the mounts",
    LimitMemory "limit.memory" "the whole tree stays under its memory limit, the host stays healthy",
    LimitCpu "limit.cpu" "the whole tree stays under its CPU limit, the host stays healthy",
    LimitProcesses "limit.processes" "the whole tree stays under its process limit, the host stays healthy",
    LimitFiles "limit.files" "each process stays under its limit of open files",
    LimitTime "limit.time" "the tree ends in time",
    LimitOutput "limit.output" "a flood of output costs constant memory",
    LifeNoSurvivors "life.no-survivors" "when a sandbox ends, nothing of it is left: process, mount, cgroup, namespace, container, file",
    LifeDiesWithOwner "life.dies-with-owner" "whatever is killed, the sandbox ends or is found again",
    RecordComplete "record.complete" "every execution has a record; secrets are not in it",
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl FromStr for Guarantee {
    type Err = UnknownGuarantee;

    fn from_str(id: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|g| g.id() == id).ok_or_else(|| UnknownGuarantee(id.to_owned()))
    }
}

impl Serialize for Guarantee {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

impl<'de> Deserialize<'de> for Guarantee {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// There is no guarantee with this id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown guarantee `{0}`")]
pub struct UnknownGuarantee(pub String);
