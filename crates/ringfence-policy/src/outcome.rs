//! How a command ended, what it used, and what it was refused.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a command ended, and what it used.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub ended: Ended,
    /// Why Ringfence or a limit ended it; `None` when it ended by itself.
    pub reason: Option<Reason>,
    pub duration: Duration,
    pub cpu: Duration,
    pub peak_memory: u64,
    /// What the policy refused, where that was traced.
    pub denied: Vec<Denial>,
}

impl Outcome {
    /// Of a command whose sandbox ended under it.
    pub fn lost(duration: Duration) -> Outcome {
        // Killed.
        let (ended, reason) = (Ended::Signaled(9), Some(Reason::Lost));
        Outcome { ended, reason, duration, cpu: Duration::ZERO, peak_memory: 0, denied: Vec::new() }
    }
}

/// How the command itself ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    Signaled(i32),
}

/// The limit that ended a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    Time,
    CpuTime,
    Memory,
    Processes,
    /// The user or the caller ended it.
    Cancelled,
    /// Its sandbox ended under it.
    Lost,
}

/// Something that the policy refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Denial {
    /// A path of the host, or an address.
    pub object: String,
    /// `read`, `write`, `execute` or `connect`.
    pub act: &'static str,
    /// The rule that refused it, and its layer.
    pub rule: String,
    /// The flag that would allow it.
    pub allow: String,
}
