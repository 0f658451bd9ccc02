//! A box, made the way every caller makes one: layers, policy, plan, engine, supervision.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence::policy::facts::Facts;
use ringfence::policy::plan::{Plan, PlanError, plan};
use ringfence::policy::{Inputs, resolve};
use ringfence::{Choice, Companion, Engine, EngineError, Outcome, Report, Running, StdioSpec, engines, select, supervise};
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::Scene;

/// What a command in a box did.
#[derive(Debug)]
pub struct Ran {
    pub outcome: Outcome,
    pub report: Report,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// What the probe said, a line for each act.
    pub fn lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }
}

/// Why there was no box.
#[derive(Debug)]
pub enum Refusal {
    Policy(String),
    Plan(PlanError),
    Engine(EngineError),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Policy(e) => f.write_str(e),
            Refusal::Plan(e) => write!(f, "{e}"),
            Refusal::Engine(e) => write!(f, "{e}"),
        }
    }
}

/// A box on one engine.
#[derive(Debug)]
pub struct Sandbox<'a> {
    pub engine: Engine,
    pub scene: &'a Scene,
}

impl Sandbox<'_> {
    /// The facts of this host, with the scene's user and environment in the caller's place.
    pub fn facts(&self) -> Facts {
        let mut facts = ringfence::facts::gather().expect("the facts of this host");
        facts.home = self.scene.home.clone();
        facts.env = self.scene.env.iter().map(|(n, v)| (n.into(), v.into())).collect();
        facts
    }

    pub fn plan(&self, facts: &Facts, command: &[String]) -> Result<Plan, Refusal> {
        let Scene { project, home, policy, .. } = self.scene;
        let resolved = resolve(Inputs::new(project.clone(), home.clone(), policy.clone()));
        let resolved = resolved.map_err(|e| Refusal::Policy(e.to_string()))?;
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        plan(&resolved.policy, facts, &command).map_err(Refusal::Plan)
    }

    /// Starts a command with these standard descriptors.
    pub fn start(&self, command: &[String], stdio: StdioSpec) -> Result<(Running, Plan, Report), Refusal> {
        let facts = self.facts();
        let plan = self.plan(&facts, command)?;
        let (engine, report) = select(Choice::Only(self.engine), &plan, &facts).map_err(Refusal::Engine)?;
        let running = engines::start(engine, &plan, &facts, stdio).map_err(Refusal::Engine)?;
        Ok((running, plan, report))
    }

    /// Runs a command to its end and keeps what it printed.
    pub fn run(&self, command: &[String]) -> Result<Ran, Refusal> {
        let mut capture = Capture::default();
        let (output, stdout) = pipe();
        let (errors, stderr) = pipe();
        capture.from = [Some(output), Some(errors)];
        let stdio = StdioSpec::Files([null(), stdout, stderr]);
        let (running, plan, report) = self.start(command, stdio)?;
        let outcome = supervise(running, &plan.limits, &mut capture).map_err(Refusal::Engine)?;
        let [stdout, stderr] = capture.text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Ran { outcome, report, stdout, stderr })
    }

    /// Runs acts of the probe.
    pub fn probe(&self, acts: &str) -> Result<Ran, Refusal> {
        let mut command = vec![self.scene.probe.display().to_string()];
        command.extend(self.scene.act(acts));
        self.run(&command)
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe")
}

pub fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").expect("the null device").into()
}

/// How much output a test keeps; the rest is read and dropped.
const KEPT: usize = 1 << 20;

/// Reads standard output and error until the box is gone.
#[derive(Default)]
pub struct Capture {
    from: [Option<OwnedFd>; 2],
    text: [Vec<u8>; 2],
}

impl Capture {
    fn read(&mut self, slot: usize) -> Result<bool, Errno> {
        let Some(fd) = &self.from[slot] else { return Ok(false) };
        let mut bytes = [0u8; 1 << 16];
        match rustix::io::read(fd, &mut bytes)? {
            0 => {
                self.from[slot] = None;
                Ok(false)
            }
            n => {
                let room = KEPT - self.text[slot].len();
                self.text[slot].extend_from_slice(&bytes[..n.min(room)]);
                Ok(true)
            }
        }
    }
}

impl Companion for Capture {
    fn wants(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.from.iter().flatten().map(|fd| (fd.as_fd(), PollFlags::IN)).collect()
    }

    fn ready(&mut self, index: usize, _: PollFlags, _: &Running) -> Result<(), Errno> {
        // An index that a close of this round has moved comes again in the next one.
        let slot = (0..2).filter(|slot| self.from[*slot].is_some()).nth(index);
        slot.map_or(Ok(()), |slot| self.read(slot).map(drop))
    }

    fn terminal(&mut self, _: OwnedFd) {}

    fn stopped(&mut self, _: i32, _: &Running) -> Result<(), Errno> {
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Errno> {
        for slot in 0..2 {
            while self.read(slot)? {}
        }
        Ok(())
    }
}

/// Waits for nothing but the box.
#[derive(Debug)]
pub struct Nobody;

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
