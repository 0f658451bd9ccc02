//! Engines: what enforces a plan. Each compiles it by a pure function and carries the result out, or refuses.
//!
//! No engine decides policy and none knows another; which one is taken is decided here.

pub mod bubblewrap;
pub mod native;

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_linux::launch::{self, Launched, Spec, Stage, Terminal};
use ringfence_linux::sys::{PointerList, Waited};
use ringfence_policy::Guarantee;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::Plan;
use rustix::io::Errno;

use crate::report::Report;
use crate::stubs::{self, StubError, Stubs};

pub use ringfence_linux::launch::Event;

/// The engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Native,
    Bubblewrap,
}

/// What the caller asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// The first engine that can honour the policy.
    #[default]
    Auto,
    Only(Engine),
}

impl Engine {
    pub const ALL: [Engine; 2] = [Engine::Native, Engine::Bubblewrap];

    pub fn name(self) -> &'static str {
        match self {
            Engine::Native => "native",
            Engine::Bubblewrap => "bubblewrap",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a box did not start. Nothing of the command ran.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("engine {engine} cannot promise {guarantee}: {reason}")]
    Unmet { engine: Engine, guarantee: Guarantee, reason: String, cure: String },
    #[error("no engine can honour this policy: {}", list(.0))]
    NoEngine(Vec<EngineError>),
    #[error("`{}` has a NUL byte in it", .0.display())]
    Nul(OsString),
    #[error(transparent)]
    Stubs(#[from] StubError),
    #[error("cannot prepare user ids: {0}")]
    UserNamespace(Errno),
    #[error("cannot start process 1: {0}")]
    Fork(Errno),
    #[error("cannot hand arguments to `{}`: {source}", program.display())]
    Arguments { program: PathBuf, source: Errno },
    #[error("cannot {what}: {errno}")]
    Setup { stage: Stage, what: String, errno: Errno },
    #[error("cannot execute `{}`: {errno}", program.display())]
    Execute { program: PathBuf, errno: Errno },
    #[error("process 1 of the sandbox is gone: {0}")]
    Lost(String),
    #[error("cannot prepare standard descriptors: {0}")]
    Stdio(Errno),
}

fn list(errors: &[EngineError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The standard descriptors of the command.
#[derive(Debug)]
pub enum StdioSpec {
    /// These descriptors.
    Files([OwnedFd; 3]),
    /// A terminal of the box's own; the master comes as [`Event::Terminal`].
    Terminal { rows: u16, columns: u16 },
}

/// Takes the engine that will enforce the plan: the one asked for, or the first that can honour it.
pub fn select(choice: Choice, plan: &Plan, facts: &Facts) -> Result<(Engine, Report), EngineError> {
    match choice {
        Choice::Only(engine) => promise(engine, plan, facts).map(|report| (engine, report)),
        Choice::Auto => {
            let mut refusals = Vec::new();
            for engine in Engine::ALL {
                match promise(engine, plan, facts) {
                    Ok(report) => return Ok((engine, report)),
                    Err(refusal) => refusals.push(refusal),
                }
            }
            Err(EngineError::NoEngine(refusals))
        }
    }
}

/// What the engine answers for each promise of the plan; an error when one that is not optional cannot be kept.
fn promise(engine: Engine, plan: &Plan, facts: &Facts) -> Result<Report, EngineError> {
    match engine {
        Engine::Native => native::promise(plan, facts),
        Engine::Bubblewrap => bubblewrap::promise(plan, facts),
    }
}

/// The compiled form of a plan, for people: nothing is started.
pub fn describe(engine: Engine, plan: &Plan, facts: &Facts) -> Result<String, EngineError> {
    match engine {
        Engine::Native => native::describe(plan, facts),
        Engine::Bubblewrap => bubblewrap::describe(plan, facts),
    }
}

/// Starts a box.
pub fn start(engine: Engine, plan: &Plan, facts: &Facts, stdio: StdioSpec) -> Result<Running, EngineError> {
    let runtime_dir = facts.env.get(OsStr::new("XDG_RUNTIME_DIR")).map(Path::new);
    let stubs = Stubs::make(&plan.stubs, &plan.workdir, &stubs::registry(runtime_dir))?;
    let spec = match engine {
        Engine::Native => native::spec(plan, facts, stdio)?,
        Engine::Bubblewrap => bubblewrap::spec(plan, facts, stdio)?,
    };
    let launched = launch::launch(&spec).map_err(EngineError::Fork)?;
    Ok(Running {
        launched,
        steps: spec.steps.iter().map(ToString::to_string).collect(),
        program: plan.command.program.clone(),
        _stubs: stubs,
    })
}

/// A box that was started. Dropping it without [`Running::finish`] ends it: process 1 sees its owner go.
#[derive(Debug)]
pub struct Running {
    launched: Launched,
    steps: Vec<String>,
    program: PathBuf,
    /// Held until everything in the box is gone.
    _stubs: Option<Stubs>,
}

impl Running {
    /// Readable when [`Running::next_event`] will not wait.
    pub fn events(&self) -> std::os::fd::BorrowedFd<'_> {
        self.launched.events()
    }

    /// Waits for the next event; a failed set-up or execution is an error.
    pub fn next_event(&self) -> Result<Event, EngineError> {
        match self.launched.next_event().map_err(|e| EngineError::Lost(e.to_string()))? {
            Event::Failed { stage, errno } => {
                let what = match stage {
                    Stage::Step(index) => self.steps.get(index).cloned().unwrap_or_else(|| stage.to_string()),
                    stage => stage.to_string(),
                };
                Err(EngineError::Setup { stage, what, errno })
            }
            Event::NotExecuted(errno) => Err(EngineError::Execute { program: self.program.clone(), errno }),
            event => Ok(event),
        }
    }

    /// Forwards a signal to the command's process group; KILL ends the whole box at once.
    pub fn signal(&self, signal: i32) -> Result<(), Errno> {
        self.launched.signal(signal)
    }

    /// The id of process 1 as the host sees it.
    pub fn pid(&self) -> i32 {
        self.launched.pid.as_raw_nonzero().get()
    }

    /// Ends whatever is left and waits until nothing of the box is there.
    pub fn finish(self) -> Result<Option<Waited>, Errno> {
        // Already gone is what is wanted.
        let _ = self.launched.signal(libc::SIGKILL);
        self.launched.reap()
    }
}

/// The parts of a [`Spec`] that do not depend on the engine.
fn stdio_parts(stdio: StdioSpec) -> (Terminal, [Option<OwnedFd>; 3]) {
    match stdio {
        StdioSpec::Files([stdin, stdout, stderr]) => (Terminal::None, [Some(stdin), Some(stdout), Some(stderr)]),
        StdioSpec::Terminal { rows, columns } => (Terminal::Own { rows, columns }, [None, None, None]),
    }
}

fn c_string(text: &OsStr) -> Result<CString, EngineError> {
    CString::new(text.as_bytes()).map_err(|_| EngineError::Nul(text.to_owned()))
}

fn c_path(path: &Path) -> Result<CString, EngineError> {
    c_string(path.as_os_str())
}

fn pointers<'a>(strings: impl IntoIterator<Item = &'a OsStr>) -> Result<PointerList, EngineError> {
    Ok(PointerList::new(strings.into_iter().map(c_string).collect::<Result<_, _>>()?))
}

/// `NAME=value` strings for `execve`.
fn env_pointers(env: &[(OsString, OsString)]) -> Result<PointerList, EngineError> {
    let joined: Vec<OsString> = env
        .iter()
        .map(|(name, value)| {
            let mut entry = name.clone();
            entry.push("=");
            entry.push(value);
            entry
        })
        .collect();
    pointers(joined.iter().map(OsString::as_os_str))
}
