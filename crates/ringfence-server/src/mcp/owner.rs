//! What the owner allows: the directories, the policy for each, and the skills. Handed in by whoever starts the server.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence::code::{Code, CodeResult};
use ringfence::policy::facts::Facts;
use ringfence::policy::plan::Stub;
use ringfence::policy::policy::Policy;
use ringfence::session::{Info, Sessions};
use ringfence::skills::Skill;
use ringfence::{EngineChoice, Report};

/// What the owner allows in one directory.
#[derive(Debug, Clone)]
pub struct Allowed {
    pub policy: Policy,
    pub facts: Facts,
    pub choice: EngineChoice,
    /// How each guarantee is enforced.
    pub report: Report,
    /// Names that stand in for what is protected and missing.
    pub stubs: Vec<Stub>,
    /// Where executions are recorded.
    pub records: Option<PathBuf>,
}

/// Why something is not done, for people and models, and who can do something about it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub message: String,
    pub cure: Cure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// Something is wrong on the owner's side.
    TellOwner,
    /// The policy says no.
    AskOwner,
    /// The arguments were wrong.
    Arguments,
}

/// What a box can do to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// It can change something that stays.
    pub writes: bool,
    pub network: bool,
}

/// Writes the end of a record: a result, or why there is none.
pub type Noted = Box<dyn FnOnce(Result<&CodeResult, &str>) + Send>;

/// What the owner's flags and files mean. They are asked each time, and may have changed meanwhile.
pub trait Terms: Send + Sync {
    /// The policy for a working directory and further roots, all of them within [`Owner::roots`].
    fn allowed(&self, workdir: &Path, also: &[PathBuf]) -> Result<Allowed, Refusal>;

    /// Runs code in a box of its own under the policy for these directories, and records it. It has so much time, and is
    /// cancelled when the descriptor becomes readable.
    fn run_code(
        &self,
        code: &Code,
        workdir: &Path,
        also: &[PathBuf],
        timeout: Option<Duration>,
        cancel: BorrowedFd<'_>,
    ) -> Result<CodeResult, Refusal>;

    /// Begins the record of code that runs in a session.
    fn note(&self, session: &Info, command: &[OsString]) -> Result<Noted, Refusal>;

    /// The latest version of each skill, also of those that are disabled.
    fn skills(&self) -> Result<Vec<Skill>, Refusal>;

    /// Another value when skills may have changed; costs next to nothing. `None` when that cannot be told.
    fn skills_mark(&self) -> Option<u64>;

    /// What skills can do to the world in these directories.
    fn skills_reach(&self, workdir: &Path, also: &[PathBuf]) -> Result<Reach, Refusal>;

    /// Runs a skill in a box of its own, which has no more than the policy for these directories allows, and records it.
    /// What it requires is installed first where it is not there yet, in another box, which has the network and nothing else.
    fn run_skill(
        &self,
        skill: &Skill,
        inputs: serde_json::Value,
        workdir: &Path,
        also: &[PathBuf],
        cancel: BorrowedFd<'_>,
    ) -> Result<CodeResult, Refusal>;
}

/// Who started the server, and on which terms.
pub struct Owner {
    pub sessions: Sessions,
    /// Canonical directories that the client may work in; the first is used when it does not choose. Not empty.
    pub roots: Vec<PathBuf>,
    /// The name of a session that is kept when the client goes.
    pub keep: Option<String>,
    pub terms: Box<dyn Terms>,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { sessions, roots, keep, terms: _ } = self;
        f.debug_struct("Owner").field("sessions", sessions).field("roots", roots).field("keep", keep).finish()
    }
}
