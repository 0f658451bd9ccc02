//! Limits: how much a sandbox may spend. Enforced by `ringfence_linux::limits`.

use std::time::Duration;

/// What one sandbox may spend; `None` is unlimited.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Memory of the whole tree in bytes, swap included.
    pub memory: Option<u64>,
    /// CPUs of the whole tree, as a fraction.
    pub cpus: Option<f64>,
    /// Processes and threads of the whole tree.
    pub pids: Option<u64>,
    /// Open files of each process.
    pub files: Option<u64>,
    /// Wall time of a command.
    pub timeout: Option<Duration>,
    /// The longest wall time that a caller may ask for.
    pub timeout_ceiling: Option<Duration>,
    /// CPU time of the whole tree.
    pub cpu_time: Option<Duration>,
    /// Size of `/tmp`; the other private places are bounded by it too.
    pub tmp_size: u64,
    /// Inodes of `/tmp`.
    pub tmp_inodes: u64,
    /// Bytes of output kept when output is captured.
    pub output: u64,
}
