//! What can go wrong with a session.

use std::io;
use std::path::PathBuf;

use ringfence_guest::FrameError;
use ringfence_guest::message::Step;
use ringfence_policy::plan::PlanError;
use rustix::io::Errno;

use super::info::End;
use crate::engines::EngineError;

/// Why a session did not do what it was asked to. A command that exits with a code other than 0 is no error.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("no session `{0}`")]
    NotFound(String),
    #[error("there is a session `{0}` already")]
    NameTaken(String),
    #[error("`{0}` cannot be the name of a session: use letters, digits, `.`, `_` and `-`, 64 at most")]
    BadName(String),
    #[error("session {id} has ended: {end}")]
    Ended { id: String, end: End },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("cannot use `{}`: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("`{}` is not a directory of this user alone", .0.display())]
    NotOurs(PathBuf),
    #[error("cannot start the supervisor `{}`: {source}", program.display())]
    Supervisor { program: PathBuf, source: io::Error },
    #[error("cannot make the sandbox: {0}")]
    Start(String),
    #[error("cannot connect to session {id}: {source}")]
    Connect { id: String, source: io::Error },
    #[error("session {id} was made by another version of Ringfence: end it and make a new one")]
    Version { id: String },
    #[error("lost the connection to session {id}")]
    Lost { id: String },
    #[error("malformed message: {0}")]
    Malformed(#[from] FrameError),
    #[error("cannot execute `{program}`: {errno}")]
    Execute { program: String, errno: Errno },
    #[error("cannot start `{program}`: {step}: {errno}")]
    Exec { program: String, step: &'static str, errno: Errno },
    #[error("a time limit of {asked} is above the ceiling of {ceiling}")]
    TimeoutAboveCeiling { asked: String, ceiling: String },
    #[error("no execution `{0}` in this session")]
    NoExecution(String),
    #[error("cannot {} `{}`: {errno}", verb(*.step), path.display())]
    File { step: Step, path: PathBuf, errno: Errno },
    #[error("cannot connect to port {port} inside: {errno}")]
    Port { port: u16, errno: Errno },
    #[error("refused: {0}")]
    Refused(String),
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
        Step::Fork | Step::Terminal | Step::WorkingDirectory | Step::Execute => "execute",
    }
}
