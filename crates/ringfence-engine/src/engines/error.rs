//! Why an engine did not do what it was asked to.

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;

use ringfence_linux::launch::Stage;
use ringfence_linux::limits::LimitError;
use ringfence_linux::setup::Step as SetupStep;
use ringfence_policy::canonical::CanonicalError;
use ringfence_policy::failure::{Failure, Step};
use ringfence_policy::{Cure, Guarantee};
use rustix::io::Errno;

use super::{StandardStream, Unfit, live};
use crate::janitor::JanitorError;

/// Why a sandbox did not start. Nothing of the command ran.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum EngineError {
    /// The engine cannot do this at all.
    #[error("engine {engine} has no {what}")]
    Cannot { engine: &'static str, what: &'static str, cures: Vec<Cure> },
    /// The engine cannot keep a promise of the plan.
    #[error("engine {engine} cannot promise {guarantee}: {reason}")]
    Unmet { engine: &'static str, guarantee: Guarantee, reason: String, cures: Vec<Cure> },
    /// The engine lets in no such device.
    #[error("engine {engine} cannot let in the device `{}`", device.display())]
    Device { engine: &'static str, device: PathBuf },
    /// The engine is not written yet.
    #[error("engine {0} is not there yet")]
    NotThere(String),
    /// No engine of this program has this name.
    #[error("there is no engine `{0}` in this program")]
    Unknown(String),
    /// No engine can honour the policy; what each said.
    #[error("no engine can honour this policy: {}", list(.0))]
    NoEngine(Vec<EngineError>),
    /// An argument or a variable has a NUL byte.
    #[error("`{}` has a NUL byte in it", .0.display())]
    Nul(OsString),
    /// An engine's own error, with what others need to know of it.
    #[error("{source}")]
    Own { failure: Box<Failure>, source: Box<dyn Error + Send + Sync> },
    /// Placeholders could not be made.
    #[error(transparent)]
    Janitor(#[from] JanitorError),
    /// A limit could not be set.
    #[error(transparent)]
    Limits(#[from] LimitError),
    /// The kernel refused to wait for process 1.
    #[error("cannot wait for process 1: {0}")]
    Wait(Errno),
    /// The user namespace could not be made.
    #[error("cannot prepare user ids: {0}")]
    UserNamespace(Errno),
    /// Process 1 could not be started.
    #[error("cannot start process 1: {0}")]
    Fork(Errno),
    /// Arguments could not be handed to a program.
    #[error("cannot hand arguments to `{}`: {source}", program.display())]
    Arguments { program: PathBuf, source: Errno },
    /// `step`: the one of the plan that failed, where one did.
    #[error("cannot {}: {errno}", step.as_ref().map_or_else(|| stage.to_string(), ToString::to_string))]
    Setup { stage: Stage, step: Option<Box<SetupStep>>, errno: Errno },
    /// The finished view was looked at from inside. Something was renamed, replaced or removed since the plan was made.
    #[error("`{}` changed on this host while the sandbox was made, and {guarantee} would not hold: {reason}", path.display())]
    View { guarantee: Guarantee, path: PathBuf, reason: String },
    /// `bwrap` could not build the sandbox.
    #[error("bubblewrap cannot build the sandbox: {reason}")]
    Builder { reason: String },
    /// The program could not be executed.
    #[error("cannot execute `{}`: {errno}", program.display())]
    Execute { program: PathBuf, errno: Errno },
    /// Process 1 ended before it said how the command ended.
    #[error("process 1 of the sandbox is gone: {0}")]
    Lost(String),
    /// The system-call filter could not be made.
    #[error(transparent)]
    Filter(#[from] ringfence_linux::seccomp::Error),
    /// The standard descriptors could not be prepared.
    #[error("cannot prepare standard descriptors: {0}")]
    Stdio(Errno),
    /// A standard descriptor would lead out of the sandbox.
    #[error("cannot give {stream} to the sandbox: {unfit}")]
    Unfit { stream: StandardStream, unfit: Unfit },
    /// The guest's program could not be prepared.
    #[error("cannot prepare the guest: {0}")]
    Guest(Errno),
    /// The plan could not be hashed.
    #[error(transparent)]
    Hash(#[from] CanonicalError),
    /// The guest did not say anything in time.
    #[error("the guest did not answer in {} s", live::GUEST_ANSWERS.as_secs())]
    Silent,
}

fn list(errors: &[EngineError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl EngineError {
    /// The engine lacks this, and another may have it.
    pub(crate) fn unable(engine: &'static str, what: &'static str) -> EngineError {
        EngineError::Cannot { engine, what, cures: vec![Cure::another("engine")] }
    }

    /// An engine's own error.
    pub fn own(
        engine: &'static str,
        step: Step,
        cures: Vec<Cure>,
        source: impl Error + Send + Sync + 'static,
    ) -> EngineError {
        let (engine, message) = (Some(engine.to_owned()), source.to_string());
        let failure = Box::new(Failure { engine, step, guarantee: None, message, cures });
        EngineError::Own { failure, source: Box::new(source) }
    }

    /// Whether names of this host may have changed between planning and mounting: another plan can do.
    pub fn is_outdated(&self) -> bool {
        const GONE: [Errno; 4] = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::STALE];
        match self {
            EngineError::View { .. } | EngineError::Builder { .. } => true,
            EngineError::Setup { stage: Stage::Step(_), errno, .. } => GONE.contains(errno),
            _ => false,
        }
    }

    /// What crosses boundaries: nothing that others act on is lost.
    pub fn failure(&self) -> Failure {
        let of = |engine: Option<&str>, step, guarantee, cures: &[Cure]| Failure {
            engine: engine.map(str::to_owned),
            step,
            guarantee,
            message: self.to_string(),
            cures: cures.to_vec(),
        };
        match self {
            EngineError::Own { failure, .. } => (**failure).clone(),
            EngineError::Cannot { engine, cures, .. } => of(Some(engine), Step::Promise, None, cures),
            EngineError::Unmet { engine, guarantee, cures, .. } => {
                of(Some(engine), Step::Promise, Some(*guarantee), cures)
            }
            EngineError::Device { engine, .. } => of(Some(engine), Step::Promise, None, &[]),
            EngineError::NotThere(_) | EngineError::Unknown(_) => {
                of(None, Step::Choose, None, &[Cure::another("engine")])
            }
            EngineError::NoEngine(refusals) => {
                let mut cures: Vec<Cure> = Vec::new();
                for cure in refusals.iter().flat_map(|refusal| refusal.failure().cures) {
                    if !cures.contains(&cure) {
                        cures.push(cure);
                    }
                }
                of(None, Step::Choose, None, &cures)
            }
            EngineError::Setup { errno: Errno::NOSPC, .. } => {
                of(None, Step::Start, None, &[Cure::another("tmp_inodes"), Cure::another("tmp_size")])
            }
            EngineError::View { guarantee, path, .. } => {
                let cure = format!("let nothing rename, replace or remove `{}`, and run it again", path.display());
                of(None, Step::Start, Some(*guarantee), &[Cure::host(cure)])
            }
            EngineError::Execute { .. } => of(None, Step::Execute, None, &[]),
            EngineError::Guest(_) | EngineError::Silent => of(None, Step::Guest, None, &[]),
            EngineError::Lost(_) | EngineError::Wait(_) => of(None, Step::Run, None, &[]),
            EngineError::Setup { .. } | EngineError::Builder { .. } | EngineError::Fork(_) => {
                of(None, Step::Start, None, &[])
            }
            EngineError::Nul(_)
            | EngineError::Janitor(_)
            | EngineError::Limits(_)
            | EngineError::UserNamespace(_)
            | EngineError::Arguments { .. }
            | EngineError::Filter(_)
            | EngineError::Stdio(_)
            | EngineError::Unfit { .. }
            | EngineError::Hash(_) => of(None, Step::Prepare, None, &[]),
        }
    }
}
