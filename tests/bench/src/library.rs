//! Ringfence as a library, in this process: the plan is made once, and then carried out again and again.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError, RwLock};

use ringfence::policy::facts::Facts;
use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::policy::plan;
use ringfence::policy::policy::Policy;
use ringfence::{Companion, Ended, Engine, Parked, Prepared, Running, StdioSpec, select, supervise};
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::measure::{Contender, Failure};

/// A command that is ready to be started in a box.
#[derive(Debug)]
pub struct Ready {
    facts: Facts,
    policy: Policy,
    prepared: Prepared,
    /// Built ahead, for the run that is timed next.
    parked: Mutex<Option<Parked>>,
}

impl Ready {
    /// The same policy as `ringfence run --network=false` in this directory.
    pub fn new(project: &Path, ringfence: &Path, command: &[&str]) -> Result<Ready, Failure> {
        let mut facts = ringfence::facts::gather().map_err(text)?;
        ringfence.clone_into(&mut facts.program);
        let mut flags = Layer::flags();
        flags.network(false);
        let inputs = Inputs::new(project.canonicalize().map_err(text)?, facts.home.clone(), flags);
        let policy = layers::resolve(inputs).map_err(text)?.policy;
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let plan = plan::plan(&policy, &facts, &command).map_err(text)?;
        let (engine, _) = select(Engine::Native.into(), &plan, &facts).map_err(text)?;
        let prepared = Prepared::new(engine, &plan, &facts).map_err(text)?;
        Ok(Ready { facts, policy, prepared, parked: Mutex::default() })
    }

    /// Starts a box, and does not wait for it.
    pub fn start(&self) -> Result<Running, Failure> {
        self.prepared.start(nothing()?).map_err(text)
    }

    /// Builds a box that waits for its command.
    pub fn park(&self) -> Result<Parked, Failure> {
        let mut parked = self.prepared.park().map_err(text)?;
        parked.wait().map_err(text)?;
        Ok(parked)
    }

    /// Starts a box and stays with it until nothing of it is left.
    pub fn run(&self) -> Result<(), Failure> {
        self.end(self.start()?)
    }

    /// Has a box built, which [`Ready::run_parked`] uses.
    fn park_ahead(&self) -> Result<(), Failure> {
        let parked = self.park()?;
        *self.parked.lock().unwrap_or_else(PoisonError::into_inner) = Some(parked);
        Ok(())
    }

    fn run_parked(&self) -> Result<(), Failure> {
        let parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let parked = parked.map_or_else(|| self.park(), Ok)?;
        self.end(parked.start(None, nothing()?).map_err(text)?)
    }

    fn end(&self, running: Running) -> Result<(), Failure> {
        let outcome = supervise(running, &self.policy, &self.facts, &mut Nobody).map_err(text)?;
        if outcome.ended == Ended::Exited(0) { Ok(()) } else { Err(format!("{:?}", outcome.ended)) }
    }
}

fn nothing() -> Result<StdioSpec, Failure> {
    let null = || OpenOptions::new().read(true).write(true).open("/dev/null").map(OwnedFd::from).map_err(text);
    Ok(StdioSpec::Files([null()?, null()?, null()?]))
}

pub const LIBRARY: &str = "ringfence, library";
pub const PARKED: &str = "ringfence, parked";

/// What is ready, only while it is timed: with its stand-ins in the project, the start of any other box is another one.
#[derive(Debug)]
pub struct Library<'a> {
    project: &'a Path,
    ringfence: &'a Path,
    command: &'a [&'a str],
    ready: RwLock<Option<Ready>>,
}

impl<'a> Library<'a> {
    pub fn new(project: &'a Path, ringfence: &'a Path, command: &'a [&'a str]) -> Library<'a> {
        Library { project, ringfence, command, ready: RwLock::default() }
    }

    /// Makes it ready. Started twice, it has begun with the next box, which is a copy.
    pub fn enter(&self) -> Result<(), Failure> {
        let mut ready = self.ready.write().unwrap_or_else(PoisonError::into_inner);
        if ready.is_none() {
            let made = Ready::new(self.project, self.ringfence, self.command)?;
            made.run()?;
            made.run()?;
            *ready = Some(made);
        }
        Ok(())
    }

    pub fn leave(&self) {
        *self.ready.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn with(&self, act: impl FnOnce(&Ready) -> Result<(), Failure>) -> Result<(), Failure> {
        let ready = self.ready.read().unwrap_or_else(PoisonError::into_inner);
        ready.as_ref().map_or_else(|| Err("it was not made ready".to_owned()), act)
    }

    /// Every way to start a box from a running process.
    pub fn contenders(&self) -> Vec<Contender<'_>> {
        vec![
            Contender::new(LIBRARY, || self.with(Ready::run)).prepared(|| self.enter()),
            Contender::new(PARKED, || self.with(Ready::run_parked)).prepared(|| {
                self.enter()?;
                self.with(Ready::park_ahead)
            }),
        ]
    }
}

fn text(error: impl std::fmt::Display) -> Failure {
    error.to_string()
}

/// Nobody waits beside the box.
struct Nobody;

impl Companion for Nobody {
    fn wants(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        Vec::new()
    }

    fn ready(&mut self, _: usize, _: PollFlags, _: &Running) -> Result<(), Errno> {
        Ok(())
    }

    fn terminal(&mut self, _: OwnedFd) {}

    fn stopped(&mut self, _: i32, _: &Running) -> Result<(), Errno> {
        Ok(())
    }
}
