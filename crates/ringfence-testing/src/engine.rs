//! The test engine: a guest that is an ordinary child process behind a Unix socket.
//!
//! It isolates nothing and promises nothing. It shows what an engine needs at least, and that sessions work on an engine
//! without a process of this host that they may count or kill.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ringfence::engines::{
    Abilities, About, Engine, EngineError, EngineRef, GuestSandbox, await_first_word, first_words, registry,
};
use ringfence::policy::facts::Facts;
use ringfence::policy::plan::Plan;
use ringfence::report::{Report, answer, missing};
use ringfence_linux::limits::Usage;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};

/// What a policy calls it.
pub const NAME: &str = "process";

/// Adds the engine to those of this program. Both the client and the supervisor of a session need it.
pub fn add() {
    registry::add(ENGINE);
}

const ENGINE: EngineRef = &Process;

#[derive(Debug)]
struct Process;

impl Engine for Process {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "An ordinary child process, for tests"
    }

    /// None of them.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn promise(&self, plan: &Plan, _: &Facts) -> Result<Report, EngineError> {
        answer(NAME, plan, |_| missing("it isolates nothing", []))
    }

    fn describe(&self, plan: &Plan, _: &Facts) -> Result<String, EngineError> {
        Ok(format!("run a guest in `{}`, beside all other processes\n", plan.workdir.display()))
    }

    fn start_guest(
        &self,
        plan: &mut Plan,
        _: &Facts,
        about: About<'_>,
    ) -> Result<(Box<dyn GuestSandbox>, OwnedFd), EngineError> {
        let lost = |error: std::io::Error| EngineError::Lost(error.to_string());
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(EngineError::Guest)?;
        let program = about.state.join(format!("guest-{}", about.session));
        std::fs::write(&program, ringfence::guest::PROGRAM).map_err(lost)?;
        rustix::fs::chmod(&program, rustix::fs::Mode::RWXU).map_err(EngineError::Guest)?;
        let mut command = Command::new(&program);
        command.arg0("guest").env_clear().envs(plan.env.iter().cloned());
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let sandbox = Box::new(Running { child: command.spawn().map_err(lost)?, program });
        // A few bytes into an empty socket: never partly. A guest that is gone does not speak.
        let _ = rustix::net::send(&ours, &first_words(plan, None, None)?, SendFlags::NOSIGNAL);
        await_first_word(&ours)?;
        Ok((sandbox, ours))
    }
}

/// A guest that runs.
#[derive(Debug)]
struct Running {
    child: Child,
    program: PathBuf,
}

impl GuestSandbox for Running {
    /// By nobody; and without a process of this host nobody watches it.
    fn is_limited(&self) -> bool {
        false
    }

    fn finish(mut self: Box<Self>) -> Result<Usage, EngineError> {
        self.end();
        Ok(Usage::default())
    }
}

impl Running {
    /// Ends the guest and all that descends from it. It is their subreaper: none gets away from it. It is stopped first, so
    /// that it starts no others.
    fn end(&mut self) {
        let send = |pid: u32, signal| {
            // It may have ended this moment.
            let _ = Pid::from_raw(pid.cast_signed()).map(|pid| rustix::process::kill_process(pid, signal));
        };
        send(self.child.id(), Signal::STOP);
        loop {
            let left = descendants(self.child.id());
            if left.is_empty() {
                break;
            }
            left.into_iter().for_each(|pid| send(pid, Signal::KILL));
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // The guest may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.program);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// What descends from a process and has not ended.
fn descendants(root: u32) -> BTreeSet<u32> {
    let (mut found, mut open) = (BTreeSet::new(), vec![root]);
    while let Some(pid) = open.pop() {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children = children.split_ascii_whitespace().filter_map(|child| child.parse().ok());
        open.extend(children.filter(|child| is_alive(*child) && found.insert(*child)));
    }
    found
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
