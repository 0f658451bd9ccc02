//! The mounts that all boxes of a kind have in common, built once: a mount namespace that no process is in, and that each
//! box begins with a copy of.
//!
//! What a box has of its own (procfs, terminals, private space) is not in it; it is made in the copy. A copy is a box only as
//! long as every mount still is where it was put: whoever removes or renames what one is on takes it along, in the mould as
//! well. So each copy is looked at before it is used, and where anything is missing, the box is built like the first one.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

use crate::launch::{self, Identity, Spec};
use crate::setup::{self, Step};
use crate::sys::{self, Fork};

/// How long the host's files may take to be found; they may lie on a server that is gone.
const PATIENCE: Duration = Duration::from_secs(2);

/// What boxes are copied from.
#[derive(Debug)]
pub struct Mould {
    spec: Arc<Spec>,
    /// Whose mounts they are, where root has not made them. Boxes have user namespaces of their own in it.
    userns: Option<OwnedFd>,
    mounts: OwnedFd,
    /// What is bound, and which file that was.
    sources: Vec<(CString, (u64, u64))>,
    /// The host's own mounts: the kernel tells when they change.
    table: OwnedFd,
    stale: AtomicBool,
}

impl Mould {
    /// Builds what boxes of this kind have in common. `None` when they cannot be copies, or it cannot be built: then each of
    /// them is built by itself, and says what is wrong.
    pub fn cast(spec: Arc<Spec>) -> Option<Mould> {
        let apart = matches!(spec.identity, Identity::Mapped(_) | Identity::Entered { .. });
        if !apart || !setup::can_be_copied(&spec.steps) {
            return None;
        }
        let table = rustix::fs::open(c"/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut sources = Vec::new();
        for step in &spec.steps {
            if let Step::RootBind { source } | Step::Bind { source, .. } = step {
                sources.push((source.clone(), which_file(source).ok()?));
            }
        }
        // For what is in there, the ids are the host's; a box maps its own.
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let map = |id: u32| CString::new(format!("{id} {id} 1")).unwrap_or_default();
        let maps = matches!(spec.identity, Identity::Mapped(_)).then(|| (map(uid), map(gid)));
        let (userns, mounts) = build(&spec, maps).ok()?;
        Some(Mould { spec, userns, mounts, sources, table, stale: AtomicBool::new(false) })
    }

    /// Whether a copy has been found to lack something.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    /// Whether it is for this kind of box, and the host still has the same mounts, and at the same places what is bound. A
    /// file that is bound keeps its number.
    pub(crate) fn is_for(&self, spec: &Spec) -> bool {
        if !std::ptr::eq(&*self.spec, spec) {
            return false;
        }
        let mut table = [PollFd::new(&self.table, PollFlags::PRI)];
        let unchanged = poll(&mut table, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0);
        self.holds(unchanged && self.sources.iter().all(|(path, file)| which_file(path) == Ok(*file)))
    }

    /// Takes this process to where it can be copied.
    pub(crate) fn enter(&self) -> Result<(), Errno> {
        if let Some(userns) = &self.userns {
            sys::set_namespace(userns.as_fd(), libc::CLONE_NEWUSER)?;
        }
        sys::set_namespace(self.mounts.as_fd(), libc::CLONE_NEWNS)
    }

    /// Makes what a box has of its own, in the copy that this process is in.
    pub(crate) fn complete(&self) -> Result<(), Errno> {
        launch::complete(&self.spec).map_err(|(_, errno)| errno)
    }

    /// Whether every mount is where it was put, in the copy that this process is in.
    pub(crate) fn is_whole(&self) -> bool {
        self.holds(self.spec.steps.iter().all(|step| match step {
            Step::StandIn { target, if_there, .. } => match is_mounted_on(target) {
                Err(Errno::NOENT) => *if_there,
                mounted => mounted == Ok(true),
            },
            Step::Bind { target, .. } | Step::Part { target, .. } if !step.is_own() => {
                is_mounted_on(target) == Ok(true)
            }
            _ => true,
        }))
    }

    /// Once it does not, it never does again.
    fn holds(&self, holds: bool) -> bool {
        self.stale.fetch_or(!holds, Ordering::AcqRel);
        holds
    }
}

fn which_file(path: &CStr) -> Result<(u64, u64), Errno> {
    rustix::fs::lstat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

/// The path is relative to the root, which the working directory is. Linux 5.8 tells.
fn is_mounted_on(path: &CStr) -> Result<bool, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::empty())?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Has a process build it, which ends then.
fn build(spec: &Spec, maps: Option<(CString, CString)>) -> Result<(Option<OwnedFd>, OwnedFd), Errno> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // For its procfs, which those of the copies may be no more than, a PID namespace as well.
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWPID | maps.as_ref().map_or(0, |_| libc::CLONE_NEWUSER);
    let _blocked = sys::SignalsBlocked::new()?;
    let builder = match sys::fork(namespaces as u64)? {
        Fork::Child => sys::exit_now(i32::from(launch::build_mould(spec, maps.as_ref(), &theirs).is_err())),
        Fork::Parent(pid) => pid.as_raw_nonzero().get(),
    };
    drop(theirs);
    let built = receive(&ours, maps.is_some());
    let _ = sys::kill(builder, libc::SIGKILL);
    sys::wait(builder, true, false)?;
    built
}

fn receive(from: &OwnedFd, userns: bool) -> Result<(Option<OwnedFd>, OwnedFd), Errno> {
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    if poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&limit))? == 0 {
        return Err(Errno::TIMEDOUT);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    recvmsg(from, &mut [std::io::IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut fds = fds.next().ok_or(Errno::PIPE)?;
    let mounts = fds.next().ok_or(Errno::PROTO)?;
    Ok((userns.then(|| fds.next().ok_or(Errno::PROTO)).transpose()?, mounts))
}
