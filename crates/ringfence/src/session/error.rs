//! What can go wrong with a session.

use std::io;
use std::path::PathBuf;

use ringfence_guest::FrameError;
use ringfence_guest::frame::NoCommonVersion;
use ringfence_guest::message::Step;
use ringfence_policy::Failure;
use ringfence_policy::plan::PlanError;
use rustix::io::Errno;

use super::document::DocumentError;
use super::info::End;
use super::protocol::Refusal;
use crate::engines::EngineError;
use crate::facts::FactsError;

/// An execution that was to be, and could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// Unique in its session.
    pub execution: String,
    /// The id of its record, where records are kept.
    pub record: Option<String>,
}

impl SessionError {
    /// What went wrong with the sandbox itself, whole.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            SessionError::Engine(error) => Some(error.failure()),
            SessionError::Start(failure) => Some(failure.clone()),
            _ => None,
        }
    }

    /// What was tried, where a command could not be started.
    pub fn tried(&self) -> Option<&Tried> {
        match self {
            SessionError::Execute { tried, .. } | SessionError::Exec { tried, .. } => tried.as_ref(),
            _ => None,
        }
    }
}

/// Why a session did not do what it was asked to. A command that exits with a code other than 0 is no error.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("no session `{0}`")]
    NotFound(String),
    #[error("there is a session `{0}` already")]
    NameTaken(String),
    #[error("session `{0}` was made with another policy than the one that is asked for")]
    OtherPolicy(String),
    #[error("a session with a home of its own needs a name")]
    NamelessHome,
    #[error("`{0}` cannot be the name of a session: use letters, digits, `.`, `_` and `-`, 64 at most")]
    BadName(String),
    #[error("session {id} has ended: {end}")]
    Ended { id: String, end: End },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Facts(#[from] FactsError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("cannot use `{}`: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("`{}` is not a directory of this user alone", .0.display())]
    NotOurs(PathBuf),
    #[error("cannot start the supervisor `{}`: {source}", program.display())]
    Supervisor { program: PathBuf, source: io::Error },
    #[error("cannot make the sandbox: {0}")]
    Start(Failure),
    #[error("the session was made with packages that were removed since (set `{0}`)")]
    NoSet(String),
    #[error("cannot connect to session {id}: {source}")]
    Connect { id: String, source: io::Error },
    #[error("cannot end the supervisor of session {id}, process {pid}: {source}")]
    Kill { id: String, pid: u32, source: io::Error },
    #[error("session {id} was made by another version of Ringfence: {source}; end it and make a new one")]
    Version { id: String, source: NoCommonVersion },
    #[error(
        "session {id} runs under another release of Ringfence, which cannot do this: end it and make a new one for it"
    )]
    UnknownRequest { id: String },
    #[error("cannot use `{}`: {source}", path.display())]
    Stored { path: PathBuf, source: DocumentError },
    #[error("cannot read what session {id} says: {source}")]
    Document { id: String, source: DocumentError },
    #[error("lost the connection to session {id}")]
    Lost { id: String },
    #[error("lost the connection to session {id}: whether the command ran is not known")]
    CommandLost { id: String },
    #[error("malformed message: {0}")]
    Malformed(#[from] FrameError),
    #[error("{}", not_executed(program, *.errno))]
    Execute { program: String, errno: Errno, tried: Option<Tried> },
    #[error("cannot start `{program}`: cannot {}: {errno}", verb(*.step))]
    Exec { program: String, step: Step, errno: Errno, tried: Option<Tried> },
    #[error("cannot make a pipe: {0}")]
    Pipe(Errno),
    #[error("cannot copy `{}`: {errno}", path.display())]
    Copy { path: PathBuf, errno: Errno },
    #[error("a time limit of {asked} is above the ceiling of {ceiling}")]
    TimeoutAboveCeiling { asked: String, ceiling: String },
    #[error("no execution `{0}` in this session")]
    NoExecution(String),
    #[error("cannot {} `{}`: {errno}", verb(*.step), path.display())]
    File { step: Step, path: PathBuf, errno: Errno },
    #[error("cannot connect to port {port} inside: {errno}")]
    Port { port: u16, errno: Errno },
    #[error("session {id} has too much to do at once")]
    TooMany { id: String },
    #[error("a request that makes no sense: an empty command, a NUL byte, or a variable without a name")]
    BadRequest,
    #[error("it cannot be recorded, and the policy is strict: {reason}")]
    NotRecorded { reason: String },
    #[error("session {id} cannot do this: its engine cannot, or this user has no cgroup of the kind that it needs")]
    Unsupported { id: String },
    #[error("a limit can be tightened, and raised up to what session {id} was made with")]
    AboveLimit { id: String },
    #[error("session {id} is frozen")]
    Frozen { id: String },
    #[error("cannot change session {id}: {reason}")]
    NotChanged { id: String, reason: String },
    #[error("the runtime is shutting down")]
    ShuttingDown,
    #[error("`{}` is longer than {limit} bytes", path.display())]
    TooLong { path: PathBuf, limit: u64 },
    #[error("cannot wait for a turn at `{}`: {source}", path.display())]
    Turn { path: std::path::PathBuf, source: std::io::Error },
}

/// An answer to another question.
pub(super) fn unexpected() -> SessionError {
    SessionError::Malformed(FrameError::Malformed { what: "answer" })
}

impl Refusal {
    /// The error that a refusal is where nothing more is known.
    pub(super) fn into_error(self, id: &str) -> SessionError {
        let id = id.to_owned();
        match self {
            Refusal::NoExecution => SessionError::NoExecution(String::new()),
            Refusal::NotRecorded(reason) => SessionError::NotRecorded { reason },
            Refusal::TooMany => SessionError::TooMany { id },
            Refusal::UnknownRequest => SessionError::UnknownRequest { id },
            Refusal::SessionEnded(end) => SessionError::Ended { id, end },
            Refusal::Unsupported => SessionError::Unsupported { id },
            Refusal::AboveLimit => SessionError::AboveLimit { id },
            Refusal::Frozen => SessionError::Frozen { id },
            Refusal::NotChanged(reason) => SessionError::NotChanged { id, reason },
            Refusal::BadRequest | Refusal::TimeoutAboveCeiling { .. } | Refusal::Failed { .. } => {
                SessionError::BadRequest
            }
        }
    }
}

/// A name that is looked for in `PATH` is not found in the same words as where a plan looks for it.
fn not_executed(program: &str, errno: Errno) -> String {
    match errno {
        Errno::NOENT if !program.contains('/') => PlanError::ProgramNotFound(program.into()).to_string(),
        errno => format!("cannot execute `{program}`: {errno}"),
    }
}

fn verb(step: Step) -> &'static str {
    match step {
        Step::Refuse => "use",
        Step::Open => "open",
        Step::Read => "read",
        Step::Write => "write",
        Step::Rename => "rename",
        Step::Remove => "remove",
        Step::MakeDirectory => "make",
        Step::Watch => "watch",
        Step::Connect => "connect to",
        Step::Fork => "fork",
        Step::Terminal => "open a terminal",
        Step::WorkingDirectory => "enter the working directory",
        Step::Execute => "execute",
    }
}
