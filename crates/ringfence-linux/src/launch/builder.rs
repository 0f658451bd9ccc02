//! A box that another program builds: process 1 stays outside as an ordinary process of the host, starts the builder,
//! looks after it, and takes everything with it when the command ends.
//!
//! The builder gets nothing of the caller's: no environment, no terminal, `/dev/null` as input and output, a pipe for its
//! complaints. In the finished box it executes the [starter](sys::starter), which has the command's descriptors and says over a pipe
//! that the box stands. What was not said so did not happen: a builder that ends before that has failed, whatever its
//! status.
//!
//! The builder is started with signals blocked, since it shares a process group with the command and would otherwise die
//! of the Ctrl-C that is meant for it. The starter unblocks them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::net::RecvFlags;

use crate::launch::{Failure, Spec, Stage, Start, at, stands};
use crate::setup::{self, Idmaps, Step};
use crate::sys::view::Place;
use crate::{starter, sys};

/// The number of the first of the builder's own descriptors.
pub const FIRST_FILE: i32 = starter::LAST + 1;

/// What the builder gets beside program, arguments and environment of the [`Spec`].
#[derive(Debug)]
pub struct Builder {
    /// Started by root: mounts of this mapping first, then no longer root.
    pub from_root: Option<FromRoot>,
    /// Where its messages go.
    pub messages: OwnedFd,
    /// The program of the [starter].
    pub starter: OwnedFd,
    /// What the starter must see before it becomes the command.
    pub view: Vec<Place>,
    /// Descriptors that its arguments name, from [`FIRST_FILE`] on.
    pub files: Vec<OwnedFd>,
}

/// How process 1 stops being root before it starts the builder.
#[derive(Debug)]
pub struct FromRoot {
    /// The mappings that the mounts of the steps take.
    pub idmaps: Idmaps,
    /// Ids on the host.
    pub uid: u32,
    pub gid: u32,
}

/// Everything that is made before the fork.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// What the starter says.
    pub started: OwnedFd,
    /// The builder's number, which is that of its process group: where it is read, and where the builder writes it.
    pub number: (OwnedFd, OwnedFd),
    /// Descriptors from 0 on; the slave of the box's own terminal where `None`. All numbers are above the last target, so
    /// that placing one cannot overwrite another.
    placed: Vec<Option<OwnedFd>>,
}

impl Prepared {
    pub fn new(builder: &Builder, spec: &Spec, start: &Start, handles: &OwnedFd) -> Result<Prepared, Errno> {
        let end = FIRST_FILE + builder.files.len() as i32;
        let above = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, end);
        let (started, report) = stands()?;
        let number = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)?;
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut placed = Vec::with_capacity(end as usize);
        for fd in [&null, &null, &builder.messages, &report] {
            placed.push(Some(above(fd)?));
        }
        for fd in &start.stdio {
            placed.push(fd.as_ref().map(above).transpose()?);
        }
        placed.push(Some(above(&builder.starter)?));
        placed.push(Some(above(&starter::limits(&spec.rlimits)?)?));
        placed.push(Some(above(handles)?));
        placed.push(Some(above(&starter::view(&builder.view)?)?));
        for fd in &builder.files {
            placed.push(Some(above(fd)?));
        }
        Ok(Prepared { started, number, placed })
    }

    /// The first number that is not handed over.
    fn end(&self) -> i32 {
        self.placed.len() as i32
    }

    /// A copy that placing the others does not overwrite.
    pub fn keep(&self, fd: &OwnedFd) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(fd, self.end())
    }

    /// Puts every descriptor at its number and leaves no other open for the program that follows.
    pub fn place(&self, slave: Option<&OwnedFd>) -> Result<(), Errno> {
        for (target, fd) in (0..).zip(&self.placed) {
            let fd = fd.as_ref().or(slave).ok_or(Errno::BADF)?;
            sys::dup_onto(fd.as_fd(), target)?;
        }
        sys::close_range(self.end() as u32, u32::MAX, true)
    }

    /// What the starter said so far, without waiting.
    pub fn said(&self) -> Said {
        let mut words = [0u8; 8];
        // Left there for the owner, which looks at it too.
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let length = rustix::net::recv(&self.started, &mut words[..], look).map_or(0, |(length, _)| length);
        let word = |i: usize| i32::from_ne_bytes([words[i], words[i + 1], words[i + 2], words[i + 3]]);
        let errno = |i: usize| Errno::from_raw_os_error(word(i).clamp(1, 4095));
        match length {
            0..4 => Said::Nothing,
            8.. if word(0) as u32 >= starter::DEVIATION => {
                Said::Deviation((word(0) as u32 - starter::DEVIATION) as usize, errno(4))
            }
            _ if word(0) != 0 => Said::NotReady(errno(0)),
            4..8 => Said::Started,
            _ => Said::NotExecuted(errno(4)),
        }
    }
}

/// What the starter said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Nothing,
    /// The box stands, but the starter could not take its place.
    NotReady(Errno),
    /// This place of the view is not as it must be.
    Deviation(usize, Errno),
    Started,
    NotExecuted(Errno),
}

/// Makes process 1 what it is while the builder runs. It stays as privileged as its caller, or is nobody when that is root;
/// new privileges are not forbidden here, since the builder's own profile (AppArmor) may come with its execution.
pub(crate) fn prepare(builder: &Builder, steps: &[Step]) -> Result<(), Failure> {
    if let Some(FromRoot { idmaps, uid, gid }) = &builder.from_root {
        rustix::mount::mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(at(Stage::Become))?;
        for (index, step) in steps.iter().enumerate() {
            setup::stage(step, idmaps).map_err(at(Stage::Step(index)))?;
        }
        sys::become_user(*uid, *gid).map_err(at(Stage::Become))?;
    }
    // What the builder leaves behind comes to process 1 and is waited for.
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1)).map_err(at(Stage::Fork))?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(at(Stage::NoNewPrivileges))
}

/// The builder ends when process 1 does. It keeps this through its execution, and does the same for what it starts, but late:
/// so it says first which group it is (see [`abandoned`]).
pub(crate) fn die_with(process_one: rustix::process::Pid, prepared: &Prepared) -> Result<(), Errno> {
    let number = rustix::process::getpid().as_raw_nonzero().get().to_ne_bytes();
    rustix::io::write(&prepared.number.1, &number)?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Gone before that was set: nobody would look after the builder.
    if rustix::process::getppid() == Some(process_one) { Ok(()) } else { Err(Errno::SRCH) }
}

/// Kills what a builder that has ended left behind. Before it is reaped: until then no other group can have its number.
pub(crate) fn sweep(builder: i32) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let Some(pid) = rustix::process::Pid::from_raw(builder) else { return };
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if let Ok(Some(_)) = waitid(WaitId::Pid(pid), ended) {
        let _ = sys::kill(-builder, libc::SIGKILL);
    }
}

/// Ends the builder, if it has not been reaped, and waits until nothing of what it started is there.
pub(crate) fn end(builder: Option<i32>) {
    if let Some(group) = builder {
        let _ = sys::kill(-group, libc::SIGKILL);
    }
    while let Ok(Some(_)) = sys::wait(-1, sys::Wait::UntilEnd) {}
}

/// For an owner whose process 1 was killed: kills the group of the builder, which has written its number there.
///
/// `bwrap` dies with process 1. What it has started does not as long as it waits for its user ids to be mapped, and would then
/// wait for ever. The number stays this group's as long as anything of it is left; when nothing is, it is given to somebody else
/// only when the kernel, which goes round, has given out all others since process 1 was reaped a moment ago.
pub(crate) fn abandoned(number: &OwnedFd) {
    let mut bytes = [0u8; 4];
    if rustix::io::read(number, &mut bytes) == Ok(bytes.len()) {
        let _ = sys::kill(-i32::from_ne_bytes(bytes), libc::SIGKILL);
    }
}
