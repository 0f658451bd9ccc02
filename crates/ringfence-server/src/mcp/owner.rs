//! What the owner allows: the directories, and the policy for each. Handed in by whoever starts the server.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence::code::{Code, CodeResult};
use ringfence::policy::facts::Facts;
use ringfence::policy::policy::Policy;
use ringfence::session::Sessions;
use ringfence::{EngineChoice, Report};

/// What the owner allows in one directory.
#[derive(Debug, Clone)]
pub struct Allowed {
    pub policy: Policy,
    pub facts: Facts,
    pub choice: EngineChoice,
    /// How each guarantee is enforced.
    pub report: Report,
    /// Where executions are recorded.
    pub records: Option<PathBuf>,
}

/// Why the owner's policy cannot be used here, for people.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Builds the policy for a working directory and further roots, all of them within [`Owner::roots`].
pub type Decide = dyn Fn(&Path, &[PathBuf]) -> Result<Allowed, Refusal> + Send + Sync;

/// Runs code in a box of its own under the policy for these directories, and records it. It has so much time, and is
/// cancelled when the descriptor becomes readable.
pub type Run =
    dyn Fn(&Code, &Path, &[PathBuf], Option<Duration>, BorrowedFd<'_>) -> Result<CodeResult, Refusal> + Send + Sync;

/// Who started the server, and on which terms.
pub struct Owner {
    pub sessions: Sessions,
    /// Canonical directories that the client may work in; the first is used when it does not choose. Not empty.
    pub roots: Vec<PathBuf>,
    /// The name of a session that is kept when the client goes.
    pub keep: Option<String>,
    pub decide: Box<Decide>,
    pub run: Box<Run>,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { sessions, roots, keep, decide: _, run: _ } = self;
        f.debug_struct("Owner").field("sessions", sessions).field("roots", roots).field("keep", keep).finish()
    }
}
