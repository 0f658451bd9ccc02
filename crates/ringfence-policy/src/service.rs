//! Settings of a service: how sandboxes are recorded, kept ready and ended, and which code a service runs. They are no
//! part of a policy: they do not change what a sandbox may read, write, reach and spend.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::profiles::{IDLE, LIFE};
use crate::records::Records;
use crate::wire;

/// What a service does besides enforcing policies. The default is that of every built-in profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSettings {
    /// What is recorded, and for how long.
    pub records: Records,
    /// The worst verdict of the scan with which a skill may run.
    pub skill_verdict: Verdict,
    /// Interpreters that a pool holds ready; 0: none, and every one starts when it is needed.
    pub warm: u64,
    /// A session ends when nothing was asked of it for so long; `None`: never.
    #[serde(with = "wire::time")]
    pub idle: Option<Duration>,
    /// A session ends after so long, whatever happens; `None`: never.
    #[serde(with = "wire::time")]
    pub life: Option<Duration>,
}

impl Default for ServiceSettings {
    fn default() -> ServiceSettings {
        ServiceSettings {
            records: Records::default(),
            skill_verdict: Verdict::default(),
            warm: WARM,
            idle: Some(IDLE),
            life: Some(LIFE),
        }
    }
}

/// Interpreters that are held ready where nothing else is said.
const WARM: u64 = 2;
/// Nobody needs more.
pub(crate) const MOST_WARM: u64 = 256;

/// What a scan says of a piece of code, the best first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The scan found nothing.
    Clean,
    /// A person should look at it.
    #[default]
    Review,
    /// The code must not run.
    Dangerous,
}

impl Verdict {
    /// All verdicts, the best first.
    pub const ALL: [Verdict; 3] = [Verdict::Clean, Verdict::Review, Verdict::Dangerous];

    /// The word for it in configuration files and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Clean => "clean",
            Verdict::Review => "review",
            Verdict::Dangerous => "dangerous",
        }
    }

    /// The verdict of such a word.
    pub fn from_name(name: &str) -> Option<Verdict> {
        Self::ALL.into_iter().find(|verdict| verdict.name() == name)
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
