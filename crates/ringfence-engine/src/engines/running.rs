//! A box that was started, as its owner sees it, and the descriptors that it starts with.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_linux::launch::{Event, Handles, Identity, Launched, Spec, Stage, Terminal};
use ringfence_linux::limits::{Group, Refusals, Usage};
use ringfence_linux::setup::{StandIn, Step};
use ringfence_linux::sys::Waited;
use ringfence_policy::Guarantee;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::limits::GUEST_PROCESSES;
use super::reopened::Position;
use super::view::{changed, guarantee_of};
use super::{Control, EngineError};
use crate::janitor::Janitor;

/// So long a builder may take until it is left to itself.
const BUILDING: Duration = Duration::from_secs(10);

/// The standard descriptors of the command.
#[derive(Debug)]
#[allow(missing_docs, reason = "rows and columns of the terminal, and where stderr goes")]
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
    pub(super) spec: Spec,
    pub(super) program: PathBuf,
    /// What a program that builds the box has to say; not the command's.
    pub(super) messages: Option<OwnedFd>,
    pub(super) group: Option<Group>,
    /// How many its guest holds its commands to, itself included, where no group does.
    pub(super) held: Option<u64>,
    /// Files of the caller's that were opened again.
    pub(super) positions: Vec<Position>,
    /// Held until every process of the box is gone.
    pub(super) janitor: Option<Janitor>,
}

impl Running {
    /// Readable when [`Running::next_event`] will not wait.
    pub fn events(&self) -> std::os::fd::BorrowedFd<'_> {
        self.launched.events()
    }

    /// Waits until a builder has made the box; false when it has not, and the next event will say so.
    pub(super) fn is_built(&self) -> bool {
        self.launched.is_built(BUILDING)
    }

    /// Waits for the next event; a failed set-up or execution is an error.
    pub fn next_event(&self) -> Result<Event, EngineError> {
        match self.launched.next_event().map_err(|e| EngineError::Lost(e.to_string()))? {
            Event::Failed { stage: Stage::Builder, errno } => {
                let reason = self.messages.as_ref().and_then(read_message).unwrap_or_else(|| errno.to_string());
                Err(EngineError::Builder { reason })
            }
            Event::Failed { stage: Stage::View(index), errno } => Err(self.changed(index, errno)),
            Event::Failed { stage, errno } => {
                let step = match stage {
                    Stage::Step(index) => self.spec.steps.get(index).cloned().map(Box::new),
                    _ => None,
                };
                Err(EngineError::Setup { stage, step, errno })
            }
            Event::NotExecuted(errno) => Err(EngineError::Execute { program: self.program.clone(), errno }),
            event => Ok(event),
        }
    }

    /// Waits until the box is built and its view was verified; what went wrong is an error, and the box is gone then.
    pub fn verified(self) -> Result<Running, EngineError> {
        if self.is_built() {
            return Ok(self);
        }
        let error = loop {
            match self.next_event() {
                // What a builder's box has beforehand.
                Ok(Event::Terminal(_) | Event::Listener(_) | Event::Stopped(_)) => {}
                Ok(_) => break EngineError::Lost("it ended before the sandbox was built".to_owned()),
                Err(error) => break error,
            }
        };
        self.finish()?;
        Err(error)
    }

    /// The place of the view that is not as it was planned.
    fn changed(&self, index: usize, errno: Errno) -> EngineError {
        let place = match &self.spec.identity {
            Identity::Outside(builder) => {
                builder.view.get(index).map(|place| (guarantee_of(place), place.path().into()))
            }
            _ => self.spec.steps.get(index).map(step_guarantee),
        };
        let Some((guarantee, path)) = place else { return EngineError::Lost("of an unknown place".to_owned()) };
        changed(guarantee, path, errno)
    }

    /// Forwards a signal to the command's process group; KILL ends the whole box at once.
    pub fn signal(&self, signal: i32) -> Result<(), Errno> {
        self.launched.signal(signal)
    }

    /// Asks the command to end. It may have ended this moment, and a stopped one would not see the TERM.
    pub fn terminate(&self) {
        let _ = self.signal(libc::SIGTERM);
        let _ = self.signal(libc::SIGCONT);
    }

    /// What is needed to enter its mounts, once. `None`: it is not built yet, or has no mounts of its own.
    pub fn handles(&self) -> Option<Handles> {
        self.launched.handles()
    }

    /// The id of process 1 as the host sees it.
    pub fn pid(&self) -> i32 {
        self.launched.pid()
    }

    /// Whether the kernel limits the tree as a whole.
    pub(crate) fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// Makes room for a process of the guest's own for each command. Where there is no group, the guest does it.
    pub(super) fn make_room(&self, processes: u64, commands: u64) -> Result<(), EngineError> {
        if let Some(group) = &self.group {
            group.set_processes(processes + commands.max(GUEST_PROCESSES))?;
        }
        Ok(())
    }

    /// What the box used so far, as its control group counts; nothing where there is none.
    pub fn usage(&self) -> Usage {
        self.group.as_ref().map(Group::usage).unwrap_or_default()
    }

    /// What changes it while it lives; `None` where there is no control group.
    pub(super) fn control(&self) -> Option<Arc<dyn Control>> {
        self.group.as_ref().map(|group| Arc::new(group.control()) as Arc<dyn Control>)
    }

    /// What its control group refuses, for whoever asks often.
    pub(super) fn refusals(&self) -> Option<Refusals> {
        self.group.as_ref().and_then(Group::refusals)
    }

    /// How many processes its guest holds its commands to, where no group does.
    pub(super) fn held(&self) -> Option<u64> {
        self.held
    }

    /// Ends whatever is left and waits until no process of the box is there, and nothing of it on the host.
    pub fn finish(self) -> Result<(Option<Waited>, Usage), EngineError> {
        // Already gone is what is wanted.
        let _ = self.launched.signal(libc::SIGKILL);
        let waited = self.launched.reap().map_err(EngineError::Wait)?;
        self.positions.iter().for_each(Position::hand_back);
        let usage = self.group.as_ref().map(Group::usage).unwrap_or_default();
        // The janitor tries again, and for longer: it is not what the command's outcome hangs on.
        let _ = self.group.map(Group::remove);
        drop(self.janitor);
        Ok((waited, usage))
    }
}

/// The promise that is broken where a step is not seen, and where that is.
fn step_guarantee(step: &Step) -> (Guarantee, PathBuf) {
    let guarantee = match step {
        Step::StandIn { which: StandIn::HiddenFile | StandIn::HiddenDir, .. } => Guarantee::FsSecretsHidden,
        Step::StandIn { .. } | Step::Bind { writable: false, .. } => Guarantee::FsProtectedPaths,
        Step::Bind { .. } => Guarantee::FsWritesConfined,
        _ => Guarantee::FsTempPrivate,
    };
    (guarantee, Path::new("/").join(OsStr::from_bytes(step.target().to_bytes())))
}

/// The first lines that were written to a pipe, without waiting.
fn read_message(pipe: &OwnedFd) -> Option<String> {
    let mut buffer = [0; 4096];
    let length = rustix::io::read(pipe, &mut buffer).ok()?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    let text = text.trim().trim_start_matches("bwrap: ").replace(char::is_control, " ");
    (!text.is_empty()).then_some(text)
}

/// The parts of a `Start` that do not depend on the engine. Every descriptor that a caller hands in passes through here.
pub(super) fn stdio_parts(stdio: StdioSpec) -> Result<(Terminal, [Option<OwnedFd>; 3]), EngineError> {
    let (terminal, stdio) = match stdio {
        StdioSpec::Files([stdin, stdout, stderr]) => (Terminal::None, [Some(stdin), Some(stdout), Some(stderr)]),
        StdioSpec::Terminal { rows, columns, stderr } => (Terminal::Own { rows, columns }, [None, None, stderr]),
    };
    refuse_unfit(stdio.each_ref().map(Option::as_ref))?;
    Ok((terminal, stdio))
}

/// A standard descriptor of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandardStream {
    /// Descriptor 0.
    Stdin,
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl StandardStream {
    const ALL: [StandardStream; 3] = [StandardStream::Stdin, StandardStream::Stdout, StandardStream::Stderr];
}

impl fmt::Display for StandardStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StandardStream::Stdin => "standard input",
            StandardStream::Stdout => "standard output",
            StandardStream::Stderr => "standard error",
        })
    }
}

/// The kernel's file system of namespaces.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// Why a descriptor is not handed into a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// A directory, through which a process reaches everything in it.
    Directory,
    /// Opened with `O_PATH`. It cannot be read or written; it only names something of the host.
    PathHandle,
    /// An object of the kernel, such as an epoll or a fanotify instance.
    Other,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unfit::Directory => "it is a directory, through which the command could reach every file of this host",
            Unfit::PathHandle => "it is a path handle (O_PATH), which cannot be read or written",
            Unfit::Other => "it is not a file, a pipe, a socket or a device",
        })
    }
}

impl Unfit {
    /// `None` when a sandbox may have it. A directory leads to all of the host: `/proc/self/fd/0/..` is the directory above
    /// it on the mount that it was opened on, where nothing is hidden or read-only.
    fn find(fd: &OwnedFd) -> Result<Option<Unfit>, Errno> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
        Ok(match kind {
            FileType::Directory => Some(Unfit::Directory),
            _ if rustix::fs::fcntl_getfl(fd)?.contains(OFlags::PATH) => Some(Unfit::PathHandle),
            // They look like files, and are handles of namespaces.
            FileType::RegularFile if rustix::fs::fstatfs(fd)?.f_type as u64 == NSFS_MAGIC => Some(Unfit::Other),
            FileType::RegularFile
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice => None,
            FileType::Symlink | FileType::Unknown => Some(Unfit::Other),
        })
    }
}

/// An error for the first descriptor that no sandbox may have.
pub(super) fn refuse_unfit(stdio: [Option<&OwnedFd>; 3]) -> Result<(), EngineError> {
    for (stream, fd) in StandardStream::ALL.into_iter().zip(stdio) {
        if let Some(unfit) = fd.map_or(Ok(None), Unfit::find).map_err(EngineError::Stdio)? {
            return Err(EngineError::Unfit { stream, unfit });
        }
    }
    Ok(())
}
