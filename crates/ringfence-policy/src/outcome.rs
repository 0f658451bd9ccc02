//! How a command ended, what it used, and what it was refused.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::policy::Network;
use crate::rules::Access;
use crate::wire;

/// How a command ended, and what it used.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How the command itself ended.
    pub ended: Ended,
    /// Why Ringfence or a limit ended it; `None` when it ended by itself.
    pub reason: Option<Reason>,
    /// From start to end.
    pub duration: Duration,
    /// CPU time of the whole tree.
    pub cpu: Duration,
    /// Bytes of memory at most.
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
    /// By itself, with this exit code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

/// The limit that ended a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The time limit.
    Time,
    /// The limit on CPU time.
    CpuTime,
    /// The memory limit.
    Memory,
    /// The limit on processes.
    Processes,
    /// The user or the caller ended it.
    Cancelled,
    /// Its sandbox ended under it.
    Lost,
}

/// Something that the policy refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// A path of the host or an address, with control characters escaped.
    pub object: String,
    /// What was tried with it.
    pub act: Act,
    /// The rule that refused it, and its layer.
    pub rule: String,
    /// What would allow it.
    pub grant: Grant,
}

/// What a command tried to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Open a file or a directory for reading.
    Read,
    /// Open a file for writing, or change a name.
    Write,
    /// Execute a file.
    Execute,
    /// Connect to an address.
    Connect,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Act::Read => "read",
            Act::Write => "write",
            Act::Execute => "execute",
            Act::Connect => "connect",
        })
    }
}

/// The least change of a policy that allows what was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Grant {
    /// A file rule.
    Path {
        /// What the rule allows.
        access: Access,
        /// The path of the rule, on the host.
        #[serde(with = "wire::absolute")]
        path: PathBuf,
        /// Nothing is at the path yet. It must be made before a rule can name it.
        missing: bool,
    },
    /// To leave out a preset.
    Preset {
        /// The preset, for example `@git`.
        without: String,
    },
    /// More of the network.
    Network {
        /// What must be reachable.
        network: Network,
    },
    /// To add a preset.
    AddedPreset {
        /// The preset, for example `@programs`.
        with: String,
    },
}
