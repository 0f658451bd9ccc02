//! What the owner allows: the directories, and the policy for each. Handed in by whoever starts the server.

use std::fmt;
use std::path::{Path, PathBuf};

use ringfence::policy::facts::Facts;
use ringfence::policy::policy::Policy;
use ringfence::session::Sessions;
use ringfence::{Choice, Report};

/// What the owner allows in one directory.
#[derive(Debug, Clone)]
pub struct Allowed {
    pub policy: Policy,
    pub facts: Facts,
    pub choice: Choice,
    /// How each guarantee is enforced.
    pub report: Report,
}

/// Why the owner's policy cannot be used here, for people.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Builds the policy for a working directory and further roots, all of them within [`Owner::roots`].
pub type Decide = dyn Fn(&Path, &[PathBuf]) -> Result<Allowed, Refusal> + Send + Sync;

/// Who started the server, and on which terms.
pub struct Owner {
    pub sessions: Sessions,
    /// Canonical directories that the client may work in; the first is used when it does not choose. Not empty.
    pub roots: Vec<PathBuf>,
    /// The name of a session that is kept when the client goes.
    pub keep: Option<String>,
    pub decide: Box<Decide>,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { sessions, roots, keep, decide: _ } = self;
        f.debug_struct("Owner").field("sessions", sessions).field("roots", roots).field("keep", keep).finish()
    }
}
