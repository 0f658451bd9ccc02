//! Records: what is kept of each execution, and for how long. Pure data; `ringfence::records` writes and reads them.
//!
//! There is no switch that turns them off: every execution has a record.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::layer::{Layer, RecordSettings};
use crate::limits::MIB;
use crate::wire;

/// What is kept of each execution; `None` is without limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Records {
    /// Keep the head and the tail of what the command writes.
    pub output: bool,
    /// Variables of the environment whose values are secrets, beside those whose names say so; `*` at the end is a wildcard.
    pub secrets: Vec<String>,
    /// How long a record is kept.
    #[serde(with = "wire::time")]
    pub keep: Option<Duration>,
    /// How large all records together may become.
    #[serde(deserialize_with = "wire::given")]
    pub max_size: Option<u64>,
    /// The address of a PostgreSQL database in the place of the user's own file.
    #[serde(deserialize_with = "wire::given")]
    pub database: Option<String>,
}

impl Default for Records {
    fn default() -> Records {
        Records {
            output: false,
            secrets: Vec::new(),
            keep: Some(Duration::from_secs(90 * 86_400)),
            max_size: Some(256 * MIB),
            database: None,
        }
    }
}

impl Records {
    /// What the user's own file says, for whoever looks at records and has no policy.
    pub fn of(global: Option<&Layer>) -> Records {
        let mut records = Records::default();
        if let Some(layer) = global {
            records.apply(&layer.settings.records);
        }
        records
    }

    pub(crate) fn apply(&mut self, settings: &RecordSettings) {
        let RecordSettings { output, secrets, keep, max_size, database } = settings;
        if let Some(at) = output {
            self.output = at.value;
        }
        self.secrets.extend(secrets.iter().map(|at| at.value.clone()));
        if let Some(at) = keep {
            self.keep = at.value;
        }
        if let Some(at) = max_size {
            self.max_size = at.value;
        }
        if let Some(at) = database {
            self.database = Some(at.value.clone());
        }
    }
}
