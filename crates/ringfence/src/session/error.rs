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
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum SessionError {
    /// No session has this id or name.
    #[error("no session `{0}`")]
    NotFound(String),
    /// A live session has this name already.
    #[error("there is a session `{0}` already")]
    NameTaken(String),
    /// The session of this name was made with another policy.
    #[error("session `{0}` was made with another policy than the one that is asked for")]
    OtherPolicy(String),
    /// A home that is kept needs the name of its session.
    #[error("a session with a home of its own needs a name")]
    NamelessHome,
    /// This text cannot be the name of a session.
    #[error("`{0}` cannot be the name of a session: use letters, digits, `.`, `_` and `-`, 64 at most")]
    BadName(String),
    /// The session has ended.
    #[error("session {id} has ended: {end}")]
    Ended { id: String, end: End },
    /// The policy gives no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Something about this host could not be found out.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// No engine can start the sandbox.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A directory or a file of the sessions cannot be used.
    #[error("cannot use `{}`: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// Another user can reach the directory of the sessions.
    #[error("`{}` is not a directory of this user alone", .0.display())]
    NotOurs(PathBuf),
    /// The supervisor's program could not be started.
    #[error("cannot start the supervisor `{}`: {source}", program.display())]
    Supervisor { program: PathBuf, source: io::Error },
    /// The supervisor could not make the sandbox.
    #[error("cannot make the sandbox: {0}")]
    Start(Failure),
    /// The packages that the session was made with are removed.
    #[error("the session was made with packages that were removed since (set `{0}`)")]
    NoSet(String),
    /// The supervisor's socket refused the connection.
    #[error("cannot connect to session {id}: {source}")]
    Connect { id: String, source: io::Error },
    /// The process of the supervisor could not be killed.
    #[error("cannot end the supervisor of session {id}, process {pid}: {source}")]
    Kill { id: String, pid: u32, source: io::Error },
    /// Client and supervisor have no version of the protocol in common.
    #[error("session {id} was made by another version of Ringfence: {source}; end it and make a new one")]
    Version { id: String, source: NoCommonVersion },
    /// The supervisor is of a release that does not know the request.
    #[error(
        "session {id} runs under another release of Ringfence, which cannot do this: end it and make a new one for it"
    )]
    UnknownRequest { id: String },
    /// A file of the session cannot be understood.
    #[error("cannot use `{}`: {source}", path.display())]
    Stored { path: PathBuf, source: DocumentError },
    /// A document that the supervisor sent cannot be understood.
    #[error("cannot read what session {id} says: {source}")]
    Document { id: String, source: DocumentError },
    /// The connection broke.
    #[error("lost the connection to session {id}")]
    Lost { id: String },
    /// The connection broke before the supervisor answered that the command started.
    #[error("lost the connection to session {id}: whether the command ran is not known")]
    CommandLost { id: String },
    /// A message of the supervisor breaks the protocol.
    #[error("malformed message: {0}")]
    Malformed(#[from] FrameError),
    /// The program could not be executed.
    #[error("{}", not_executed(program, *.errno))]
    Execute { program: String, errno: Errno, tried: Option<Tried> },
    /// Something failed before the program was executed.
    #[error("cannot start `{program}`: cannot {}: {errno}", verb(*.step))]
    Exec { program: String, step: Step, errno: Errno, tried: Option<Tried> },
    /// A pipe could not be made.
    #[error("cannot make a pipe: {0}")]
    Pipe(Errno),
    /// A local file could not be read or written during a copy.
    #[error("cannot copy `{}`: {errno}", path.display())]
    Copy { path: PathBuf, errno: Errno },
    /// The policy does not let a command run that long.
    #[error("a time limit of {asked} is above the ceiling of {ceiling}")]
    TimeoutAboveCeiling { asked: String, ceiling: String },
    /// The session has no execution with this id.
    #[error("no execution `{0}` in this session")]
    NoExecution(String),
    /// Something failed with a path inside.
    #[error("cannot {} `{}`: {errno}", verb(*.step), path.display())]
    File { step: Step, path: PathBuf, errno: Errno },
    /// Nothing inside takes connections at this port.
    #[error("cannot connect to port {port} inside: {errno}")]
    Port { port: u16, errno: Errno },
    /// The session has as many executions or streams as it can have.
    #[error("session {id} has too much to do at once")]
    TooMany { id: String },
    /// The request cannot be carried out as it is.
    #[error("a request that makes no sense: an empty command, a NUL byte, or a variable without a name")]
    BadRequest,
    /// The execution cannot be recorded, which this policy demands.
    #[error("it cannot be recorded, and the policy is strict: {reason}")]
    NotRecorded { reason: String },
    /// The engine of the session cannot do what was asked.
    #[error("session {id} cannot do this: its engine cannot, or this user has no cgroup of the kind that it needs")]
    Unsupported { id: String },
    /// The change would raise a limit above the policy's.
    #[error("a limit can be tightened, and raised up to what session {id} was made with")]
    AboveLimit { id: String },
    /// The session is frozen and does nothing until it is thawed.
    #[error("session {id} is frozen")]
    Frozen { id: String },
    /// The supervisor could not carry out the change.
    #[error("cannot change session {id}: {reason}")]
    NotChanged { id: String, reason: String },
    /// The async runtime ends.
    #[error("the runtime is shutting down")]
    ShuttingDown,
    /// The file is longer than the caller takes.
    #[error("`{}` is longer than {limit} bytes", path.display())]
    TooLong { path: PathBuf, limit: u64 },
    /// A lock file could not be waited for.
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
