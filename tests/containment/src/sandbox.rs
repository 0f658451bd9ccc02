//! A box, made the way every caller makes one: layers, policy, plan, engine, supervision.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use ringfence::policy::facts::Facts;
use ringfence::policy::plan::{PlanError, plan_with};
use ringfence::policy::tree::Tree;
use ringfence::policy::{Inputs, Policy, resolve};
use ringfence::session::{Create, Exec, Output, SessionError, Sessions};
use ringfence::{
    Capture, Companion, EngineError, EngineRef, Outcome, Report, Running, StdioSpec, Wanted, engines, select, supervise,
};
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
    /// Bytes of standard output that were not kept.
    pub dropped: u64,
}

/// A box that runs.
#[derive(Debug)]
pub struct Started {
    pub running: Running,
    pub policy: Policy,
    pub facts: Facts,
    pub report: Report,
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

/// How a command gets into a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// A box for it alone.
    Once,
    /// A session, in which it is executed.
    Session,
}

/// A box on one engine.
#[derive(Debug)]
pub struct Sandbox<'a> {
    pub engine: EngineRef,
    pub how: How,
    pub scene: &'a Scene,
    /// What supervises sessions.
    pub launcher: &'a Path,
}

impl Sandbox<'_> {
    /// The facts of this host, with the scene's user and environment in the caller's place.
    pub fn facts(&self) -> Facts {
        let mut facts = ringfence::facts::gather().expect("the facts of this host");
        facts.home = self.scene.home.clone();
        facts.accounts.extend(self.scene.accounts.iter().cloned());
        facts.env = self.scene.env.iter().map(|(n, v)| (n.into(), v.into())).collect();
        facts
    }

    pub fn policy(&self) -> Result<Policy, Refusal> {
        let Scene { project, home, policy, .. } = self.scene;
        let mut policy = policy.clone();
        if self.engine == ringfence::engines::docker::ENGINE {
            self.scene.for_image(&mut policy);
        }
        let mut inputs = Inputs::new(project.clone(), home.clone(), policy);
        inputs.other_homes = self.facts().other_homes(project);
        inputs.records_dir = Some(home.join(".local/state/ringfence/records"));
        if self.how == How::Session {
            inputs.sessions_dirs = vec![self.scene.sessions()];
        }
        let resolved = resolve(inputs);
        Ok(resolved.map_err(|e| Refusal::Policy(e.to_string()))?.policy)
    }

    /// Starts a command with these standard descriptors.
    pub fn start(&self, command: &[String], stdio: StdioSpec) -> Result<Started, Refusal> {
        let facts = self.facts();
        let policy = self.policy()?;
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let lookup = Tree::lookup(&policy, &facts);
        let plan = plan_with(&lookup, &policy, &facts, &command).map_err(Refusal::Plan)?;
        let (engine, report) = select(&self.engine.into(), &plan, &facts).map_err(Refusal::Engine)?;
        let running = engines::start(engine, &plan, &report, &facts, stdio).map_err(Refusal::Engine)?;
        Ok(Started { running, policy, facts, report })
    }

    /// Runs a command to its end and keeps what it printed.
    pub fn run(&self, command: &[String]) -> Result<Ran, Refusal> {
        if self.how == How::Session {
            return self.run_in_session(command);
        }
        let (output, stdout) = pipe();
        let (errors, stderr) = pipe();
        let Started { running, policy, facts, report } =
            self.start(command, StdioSpec::Files([null(), stdout, stderr]))?;
        let limit = policy.limits.output;
        let mut reader =
            Reader { from: [Some(output), Some(errors)], text: [Capture::new(limit), Capture::new(limit)] };
        let outcome = supervise(running, &policy, &facts, &mut reader).map_err(Refusal::Engine)?;
        let dropped = reader.text[0].dropped();
        let text = |capture: Capture| String::from_utf8_lossy(&capture.into_bytes(|_| String::new())).into_owned();
        let [stdout, stderr] = reader.text.map(text);
        Ok(Ran { outcome, report, stdout, stderr, dropped })
    }

    /// The sessions of this scene's user.
    pub fn sessions(&self) -> Sessions {
        let host = ringfence::Host::here().expect("this host");
        Sessions::new(self.scene.sessions(), self.launcher).on(host)
    }

    /// What a session of this policy is made from.
    pub fn session(&self) -> Result<Create, Refusal> {
        // There before the plan is made, which hides it.
        self.sessions().prepare().map_err(|e| Refusal::Policy(e.to_string()))?;
        Ok(Create::new(self.policy()?, self.facts()).choice(self.engine.into()))
    }

    /// The same in a session that is made for it.
    fn run_in_session(&self, command: &[String]) -> Result<Ran, Refusal> {
        let create = self.session()?;
        block_on(async {
            let session = self.sessions().create(create).await?;
            let report = session.report().await?;
            let Output { stdout, stderr, stdout_dropped: dropped, outcome, .. } =
                session.exec(Exec::new(command.to_vec())).await?.output().await?;
            session.stop().await?;
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            Ok(Ran { outcome, report, stdout: text(stdout), stderr: text(stderr), dropped })
        })
        .map_err(|error| match error {
            SessionError::Plan(error) => Refusal::Plan(error),
            SessionError::Engine(error) => Refusal::Engine(error),
            other => Refusal::Policy(other.to_string()),
        })
    }

    /// Runs acts of the probe.
    pub fn probe(&self, acts: &str) -> Result<Ran, Refusal> {
        let mut command = vec![self.scene.probe.display().to_string()];
        command.extend(self.scene.act(acts));
        self.run(&command)
    }
}

/// Runs a future to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe")
}

pub fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").expect("the null device").into()
}

/// Reads standard output and error until the box is gone.
struct Reader {
    from: [Option<OwnedFd>; 2],
    text: [Capture; 2],
}

impl Reader {
    fn read(&mut self, slot: usize) -> Result<bool, Errno> {
        let Some(fd) = &self.from[slot] else { return Ok(false) };
        let mut bytes = [0u8; 1 << 16];
        match rustix::io::read(fd, &mut bytes)? {
            0 => {
                self.from[slot] = None;
                Ok(false)
            }
            n => {
                self.text[slot].push(&bytes[..n]);
                Ok(true)
            }
        }
    }
}

impl Companion for Reader {
    fn wants(&self) -> Vec<Wanted<'_>> {
        let streams = self.from.iter().enumerate();
        streams.filter_map(|(slot, fd)| Some((slot, fd.as_ref()?.as_fd(), PollFlags::IN))).collect()
    }

    fn ready(&mut self, slot: usize, _: PollFlags, _: &Running) -> Result<(), Errno> {
        self.read(slot).map(drop)
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
