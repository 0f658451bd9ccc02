//! A box that was started, as its owner sees it, and the descriptors that it starts with.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringfence_linux::launch::{Event, Launched, Spec, Stage, Terminal};
use ringfence_linux::limits::{Group, Refusals, Usage};
use ringfence_linux::sys::Waited;
use rustix::io::Errno;

use super::limits::GUEST_PROCESSES;
use super::{EngineError, forked};
use crate::keeper::Keeper;

/// So long a builder may take until it is left to itself.
const BUILDING: Duration = Duration::from_secs(10);

/// The standard descriptors of the command.
#[derive(Debug)]
pub enum StdioSpec {
    /// These descriptors.
    Files([OwnedFd; 3]),
    /// A terminal of the box's own; the master comes as [`Event::Terminal`]. `stderr` in its place where it is not one.
    Terminal { rows: u16, columns: u16, stderr: Option<OwnedFd> },
}

impl StdioSpec {
    pub(super) fn try_clone(&self) -> Result<StdioSpec, Errno> {
        let copy = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
        Ok(match self {
            StdioSpec::Files([stdin, stdout, stderr]) => StdioSpec::Files([copy(stdin)?, copy(stdout)?, copy(stderr)?]),
            StdioSpec::Terminal { rows, columns, stderr } => {
                StdioSpec::Terminal { rows: *rows, columns: *columns, stderr: stderr.as_ref().map(copy).transpose()? }
            }
        })
    }
}

/// A box that was started. Dropping it without [`Running::finish`] ends it too.
#[derive(Debug)]
pub struct Running {
    pub(super) launched: Launched,
    /// For the message when one of them failed.
    pub(super) spec: Option<Arc<Spec>>,
    pub(super) program: PathBuf,
    /// What a program that builds the box has to say; not the command's.
    pub(super) messages: Option<OwnedFd>,
    pub(super) group: Option<Group>,
    /// Where it makes its sockets, and whether it did, where that is told.
    pub(super) network: Option<forked::Network>,
    /// Where the group goes in the end, for the next box.
    pub(super) spare: Option<forked::Spare>,
    /// How many processes the policy allows.
    pub(super) pids: Option<u64>,
    /// How many its guest holds its commands to, itself included, where no group does.
    pub(super) held: Option<u64>,
    /// Held until every process of the box is gone.
    pub(super) keeper: Option<Arc<Keeper>>,
}

impl Running {
    /// Readable when [`Running::next_event`] will not wait.
    pub fn events(&self) -> std::os::fd::BorrowedFd<'_> {
        self.launched.events()
    }

    /// Waits until a builder has made the box; false when it has not, and the next event will say so.
    pub(super) fn is_built(&self) -> bool {
        self.messages.as_ref().is_none_or(|messages| self.launched.is_built(messages, BUILDING))
    }

    /// Waits for the next event; a failed set-up or execution is an error.
    pub fn next_event(&self) -> Result<Event, EngineError> {
        match self.launched.next_event().map_err(|e| EngineError::Lost(e.to_string()))? {
            Event::Failed { stage: Stage::Builder, errno } => {
                let reason = self.messages.as_ref().and_then(read_message).unwrap_or_else(|| errno.to_string());
                Err(EngineError::Builder { reason })
            }
            Event::Failed { stage, errno } => {
                let what = match stage {
                    Stage::Step(index) => {
                        let step = self.spec.as_ref().and_then(|spec| spec.steps.get(index));
                        step.map_or_else(|| stage.to_string(), ToString::to_string)
                    }
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

    /// Readable when a socket waits to be made, for [`Running::hear`].
    pub(crate) fn listener(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.network.as_ref().map(forked::Network::listener)
    }

    pub(crate) fn hear(&self) -> Result<(), Errno> {
        self.network.as_ref().map_or(Ok(()), forked::Network::hear)
    }

    /// The id of process 1 as the host sees it.
    pub fn pid(&self) -> i32 {
        self.launched.pid()
    }

    /// Whether the kernel limits the tree as a whole.
    pub fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// Makes room for a process of the guest's own for each command. Where there is no group, the guest does it.
    pub(super) fn make_room(&self, commands: u64) -> Result<(), EngineError> {
        if let (Some(group), Some(pids)) = (&self.group, self.pids) {
            group.set_processes(pids + commands.max(GUEST_PROCESSES))?;
        }
        Ok(())
    }

    /// What the box used so far, as its control group counts; nothing where there is none.
    pub fn usage(&self) -> Usage {
        self.group.as_ref().map(Group::usage).unwrap_or_default()
    }

    /// What its control group refuses, for whoever asks often.
    pub(super) fn refusals(&self) -> Option<Refusals> {
        self.group.as_ref().and_then(Group::refusals)
    }

    /// How many processes its guest holds its commands to, where no group does.
    pub(super) fn held(&self) -> Option<u64> {
        self.held
    }

    /// Ends whatever is left and waits until no process of the box is there. Its mounts are gone then as well, or, where the
    /// plan stays for other boxes, a moment later.
    pub fn finish(self) -> Result<(Option<Waited>, Usage), EngineError> {
        // Already gone is what is wanted.
        let _ = self.launched.signal(libc::SIGKILL);
        let (waited, mounts) = self.launched.reap().map_err(EngineError::Wait)?;
        let usage = self.group.as_ref().map(Group::usage).unwrap_or_default();
        if let Some(network) = self.network {
            network.give_back();
        }
        match (self.group, self.spare) {
            (Some(group), Some(spare)) => spare.put(group),
            // The keeper tries again, and for longer: it is not what the command's outcome hangs on.
            (Some(group), None) => drop(group.remove()),
            (None, _) => {}
        }
        match (self.keeper.map(Arc::try_unwrap), mounts) {
            // Both take their time, and do it at once.
            (Some(Ok(mut keeper)), Some(mounts)) => keeper.release_while(|| drop(mounts)),
            // It stays, and nobody waits for it.
            (Some(Err(keeper)), Some(mounts)) => keeper.take_down(mounts),
            _ => {}
        }
        Ok((waited, usage))
    }
}

/// The first lines that were written to a pipe, without waiting.
fn read_message(pipe: &OwnedFd) -> Option<String> {
    let mut buffer = [0; 4096];
    let length = rustix::io::read(pipe, &mut buffer).ok()?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    let text = text.trim().trim_start_matches("bwrap: ").replace(char::is_control, " ");
    (!text.is_empty()).then_some(text)
}

/// The parts of a `Spec` that do not depend on the engine.
pub(super) fn stdio_parts(stdio: StdioSpec) -> (Terminal, [Option<OwnedFd>; 3]) {
    match stdio {
        StdioSpec::Files([stdin, stdout, stderr]) => (Terminal::None, [Some(stdin), Some(stdout), Some(stderr)]),
        StdioSpec::Terminal { rows, columns, stderr } => (Terminal::Own { rows, columns }, [None, None, stderr]),
    }
}
