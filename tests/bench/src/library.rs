//! Ringfence as a library, in this process: the plan is made once, and then carried out again and again.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::Path;

use ringfence::policy::facts::Facts;
use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::policy::plan::{self, Plan};
use ringfence::policy::policy::Policy;
use ringfence::{Companion, Ended, EngineRef, Report, Running, StdioSpec, Wanted, engines, select, supervise};
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::measure::Failure;

/// A command that is ready to be started in a box.
#[derive(Debug)]
pub struct Ready {
    facts: Facts,
    policy: Policy,
    plan: Plan,
    report: Report,
    engine: EngineRef,
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
        let (engine, report) = select(&ringfence::engines::native::ENGINE.into(), &plan, &facts).map_err(text)?;
        Ok(Ready { facts, policy, plan, report, engine })
    }

    /// Starts a box, and does not wait for it.
    pub fn start(&self) -> Result<Running, Failure> {
        engines::start(self.engine, &self.plan, &self.report, &self.facts, nothing()?).map_err(text)
    }

    /// Starts a box and stays with it until nothing of it is left.
    pub fn run(&self) -> Result<(), Failure> {
        let outcome = supervise(self.start()?, &self.policy, &self.facts, &mut Nobody).map_err(text)?;
        if outcome.ended == Ended::Exited(0) { Ok(()) } else { Err(format!("{:?}", outcome.ended)) }
    }
}

fn nothing() -> Result<StdioSpec, Failure> {
    let null = || OpenOptions::new().read(true).write(true).open("/dev/null").map(OwnedFd::from).map_err(text);
    Ok(StdioSpec::Files([null()?, null()?, null()?]))
}

pub const LIBRARY: &str = "ringfence, library";

fn text(error: impl std::fmt::Display) -> Failure {
    error.to_string()
}

/// Nobody waits beside the box.
struct Nobody;

impl Companion for Nobody {
    fn wants(&self) -> Vec<Wanted<'_>> {
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
