//! Sandboxes for one command each: a box is made for it, and nothing of it is left when the command has ended.
//!
//! A [`Host`] makes them. What a command needs is decided by [`Sandbox::plan`] and carried out by [`Planned`]; whoever has
//! no standard streams of its own to hand over uses [`Sandbox::exec`]:
//!
//! ```no_run
//! use ringfence::{Event, Host};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let sandbox = Host::here()?.sandbox("agent").build()?;
//!
//! // All at once …
//! let output = sandbox.exec(["git", "status"]).await?.output().await?;
//! println!("{}", String::from_utf8_lossy(&output.stdout));
//!
//! // … or as it comes.
//! let mut make = sandbox.exec(["make", "test"]).await?;
//! while let Some(event) = make.next().await? {
//!     match event {
//!         Event::Stdout(bytes) | Event::Stderr(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
//!         Event::Ended(outcome) => println!("{:?}", outcome.ended),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod code;
mod execution;
mod recorded;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::{Arc, Mutex};

use ringfence_linux::sys::locked;
use ringfence_policy::Policy;
use ringfence_policy::facts::Facts;
use ringfence_policy::layers::{self, Inputs, LayerError, Resolved};
use ringfence_policy::look::Lookup;
use ringfence_policy::narrow::NarrowError;
use ringfence_policy::plan::{self, Changes, Plan, PlanError};
use ringfence_policy::policy::Root;
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::tree::Tree;
use rustix::io::Errno;

use crate::code::requirements::RequirementsError;
use crate::code::{CodeError, ContextError};
use crate::engines::{self, EngineError, EngineRef};
use crate::host::{Directories, Host, HostError, Notice, Request};
use crate::janitor;
use crate::records::{Recorder, StoreError};
use crate::report::Report;
use crate::session::{Create, SessionError};
use crate::skills::SkillError;

pub use code::{Note, raise_descriptors};
pub use execution::{Execution, runs_one_shot};
pub use recorded::plain;
pub use recorded::{Begun, Finished, Started};

/// Why a command did not run, or is not known to have ended.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum SandboxError {
    /// This host or its configuration cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Flags and files give no policy.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// Two policies have nothing in common.
    #[error(transparent)]
    Narrow(#[from] NarrowError),
    /// The policy gives no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A program stands in front of another, and cannot.
    #[error("{place}{source}")]
    Wrapper { place: String, source: PlanError },
    /// No engine can start the sandbox.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The code cannot be run.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// The context cannot be used.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The required packages cannot be had.
    #[error(transparent)]
    Requirements(#[from] RequirementsError),
    /// The skill cannot be run.
    #[error(transparent)]
    Skill(#[from] SkillError),
    /// The records could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A pipe could not be made.
    #[error("cannot make a pipe: {0}")]
    Pipe(std::io::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The kernel refused to wait.
    #[error("cannot wait for signals and sockets: {0}")]
    Wait(std::io::Error),
    /// The output of the command could not be read.
    #[error("cannot read what the command writes: {0}")]
    Read(std::io::Error),
    /// This number is not that of a signal.
    #[error("no signal has the number {0}")]
    NoSignal(i32),
    /// The thread that watched the sandbox ended too early.
    #[error("whoever watched the sandbox is gone")]
    Unwatched,
    /// It is recorded that the execution failed.
    #[error("{error}")]
    Recorded { error: Box<SandboxError>, record: String },
}

/// A policy on this host, under which commands run, each in a box of its own. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sandbox {
    host: Host,
    facts: Arc<Facts>,
    resolved: Arc<Resolved>,
    judged: Arc<Judged>,
    recorder: Option<Recorder>,
    /// Variables of the command that it is for. Their secrets are kept out of records.
    variables: Vec<(OsString, OsString)>,
}

/// What was looked up to judge a policy. What is applied is what was judged, whatever is swapped in the meantime.
#[derive(Debug)]
enum Judged {
    /// By hand: nothing was judged.
    Nothing,
    /// From layers, which are judged anew for each command after the first: an earlier one may have changed what they name.
    Layers { inputs: Box<Inputs>, first: Mutex<Option<Lookup>> },
    /// From layers, and changed since.
    Changed(SharedLookup),
}

/// A lookup that planning and starting have in common.
pub(crate) type SharedLookup = Arc<Mutex<Lookup>>;

/// What a command will run in. Nothing has started.
#[derive(Debug)]
pub struct Planned {
    /// What is done, step by step.
    pub plan: Plan,
    /// What enforces it.
    pub engine: EngineRef,
    /// How each guarantee is kept.
    pub report: Report,
    resolved: Arc<Resolved>,
    command: Vec<OsString>,
    /// What it was planned with, which holds until the command has started.
    lookup: SharedLookup,
}

impl Sandbox {
    /// A sandbox of a policy that was made by hand, with nothing but these facts.
    pub fn new(policy: Policy, facts: Facts) -> Sandbox {
        let host = Host::builder(facts.clone()).workdir(policy.workdir()).build();
        let (resolved, judged) = (Arc::new(Resolved::by_hand(policy)), Arc::new(Judged::Nothing));
        Sandbox { host, facts: Arc::new(facts), resolved, judged, recorder: None, variables: Vec::new() }
    }

    pub(crate) fn judged(host: Host, facts: Facts, resolved: Resolved, inputs: Inputs, lookup: Lookup) -> Sandbox {
        let judged = Judged::Layers { inputs: Box::new(inputs), first: Mutex::new(Some(lookup)) };
        let (facts, resolved, judged) = (Arc::new(facts), Arc::new(resolved), Arc::new(judged));
        Sandbox { host, facts, resolved, judged, recorder: None, variables: Vec::new() }
    }

    /// The policy with another engine.
    pub fn choice(mut self, choice: EngineChoice) -> Sandbox {
        Arc::make_mut(&mut self.resolved).engine = choice;
        self
    }

    /// Records every execution here. A sandbox that a host made records where the host does; the directory of another one
    /// must be hidden by its policy.
    pub fn recorder(mut self, recorder: Recorder) -> Sandbox {
        self.recorder = Some(recorder);
        self
    }

    /// Records also the head and the tail of what commands write.
    pub fn record_output(mut self, output: bool) -> Sandbox {
        Arc::make_mut(&mut self.resolved).service.records.output = output;
        self
    }

    /// The host that it is on.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// What it may read, write, reach and spend.
    pub fn policy(&self) -> &Policy {
        &self.resolved.policy
    }

    /// The facts that its commands are planned with.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The policy with the settings around it, and where each value comes from.
    pub fn resolved(&self) -> &Resolved {
        &self.resolved
    }

    /// Changes what was resolved, with the lookup that it was judged with. A sandbox that was changed is for one command.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut Resolved, &Lookup) -> T) -> Result<T, SandboxError> {
        let (lookup, resolved) = self.judge()?;
        self.resolved = resolved;
        let changed = change(Arc::make_mut(&mut self.resolved), &locked(&lookup));
        self.judged = Arc::new(Judged::Changed(lookup));
        Ok(changed)
    }

    /// What another request means beside this one, judged with the same lookup. For a sandbox that was changed.
    pub fn beside(&self, request: &Request) -> Result<Resolved, SandboxError> {
        let (lookup, _) = self.judge()?;
        let inputs = self.host.inputs(request, &self.facts)?;
        Ok(layers::resolve_with(&locked(&lookup), inputs)?)
    }

    /// What holds for the next command, and the lookup that says so.
    fn judge(&self) -> Result<(SharedLookup, Arc<Resolved>), LayerError> {
        let shared = |lookup| Arc::new(Mutex::new(lookup));
        match &*self.judged {
            Judged::Nothing => {
                let guard = self.hold(self.resolved.policy.workdir());
                let lookup = Tree::lookup(&self.resolved.policy, &self.facts).guarded(guard);
                Ok((shared(lookup), self.resolved.clone()))
            }
            Judged::Changed(lookup) => Ok((lookup.clone(), self.resolved.clone())),
            Judged::Layers { inputs, first } => {
                if let Some(lookup) = locked(first).take() {
                    return Ok((shared(lookup), self.resolved.clone()));
                }
                let guard = self.hold(&inputs.workdir);
                let lookup = Lookup::of_places(&self.facts.home, &inputs.workdir).guarded(guard);
                let mut again = layers::resolve_with(&lookup, (**inputs).clone())?;
                again.engine = self.resolved.engine.clone();
                again.service.clone_from(&self.resolved.service);
                Ok((shared(lookup), Arc::new(again)))
            }
        }
    }

    /// Keeps the placeholders of other sandboxes where they are. A registry that cannot be used is an error of the start.
    fn hold(&self, workdir: &Path) -> Option<janitor::Hold> {
        janitor::hold(&self.facts.registry, workdir, &self.facts.home).ok()
    }

    /// Decides everything for a command: what is mounted, what is promised, and which engine keeps it. Changes nothing.
    pub fn plan(&self, command: &[OsString]) -> Result<Planned, SandboxError> {
        self.plan_changed(command, Changes::default())
    }

    /// The same, for a command with variables and a directory of its own.
    fn plan_changed(&self, command: &[OsString], changes: Changes<'_>) -> Result<Planned, SandboxError> {
        let (lookup, resolved) = self.judge()?;
        let policy = &resolved.policy;
        let plan = plan::plan_changed(&locked(&lookup), policy, &self.facts, command, changes);
        let plan = plan.map_err(|error| self.explained(error))?;
        let (engine, report) = engines::select(&resolved.engine, &plan, &self.facts)?;
        Ok(Planned { plan, engine, report, resolved, command: command.to_vec(), lookup })
    }

    /// What an engine would do, for people.
    pub fn describe(&self, planned: &Planned) -> Result<String, SandboxError> {
        Ok(engines::describe(planned.engine, &planned.plan, &self.facts)?)
    }

    /// Names the file and the line of what is wrong, where a setting is.
    fn explained(&self, error: PlanError) -> SandboxError {
        let PlanError::Wrapper { program, .. } = &error else { return error.into() };
        let key = format!("commands.{program}");
        let value = self.resolved.values().into_iter().find(|value| value.key == key);
        let place = value.map_or_else(String::new, |value| format!("{}: ", value.origin));
        SandboxError::Wrapper { place, source: error }
    }

    /// What a session of this sandbox's policy is made from.
    pub fn create(&self) -> Result<Create, SandboxError> {
        let (lookup, resolved) = self.judge()?;
        let Resolved { policy, service, engine, .. } = &*resolved;
        let mut create =
            Create::new(policy.clone(), (*self.facts).clone()).choice(engine.clone()).service(service.clone());
        create.judged = Some(lookup);
        create.records = self.host.directories().ok().map(Directories::records);
        Ok(create)
    }

    /// Pulls the image of the policy when it is not here.
    pub fn fetch_image(&self) -> Result<(), SandboxError> {
        let Root::Image(name) = &self.resolved.policy.root else { return Ok(()) };
        let engine = engines::registry::with_images(&self.resolved.engine)?;
        let found = engine.find_image(&self.facts, name, &|progress| self.host.notice(Notice::Pull(Some(progress))));
        self.host.notice(Notice::Pull(None));
        found?;
        Ok(())
    }

    /// Who writes records of this sandbox; `None` where nothing is recorded.
    fn recorder_of_all(&self) -> Option<Recorder> {
        let (policy, records) = (&self.resolved.policy, &self.resolved.service.records);
        let variables = self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
        if let Some(recorder) = &self.recorder {
            return Some(recorder.without(variables, &records.secrets));
        }
        let directories = self.host.directories().ok()?;
        let mut redactor = recorded::redactor(&self.facts.env, records);
        // What the policy itself sets in the environment.
        redactor.add_all(
            policy.env.set.iter().map(|(name, value)| (OsStr::new(name), value.as_os_str())),
            &records.secrets,
        );
        redactor.add_all(variables, &records.secrets);
        Some(Recorder::new(&directories.records(), redactor, records.max_size))
    }
}

impl From<Errno> for SandboxError {
    fn from(errno: Errno) -> SandboxError {
        EngineError::Stdio(errno).into()
    }
}
