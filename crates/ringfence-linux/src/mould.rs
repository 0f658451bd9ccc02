//! The mounts that all boxes of a kind have in common, built once: a mount namespace that no process is in, and that each
//! box begins with a copy of.
//!
//! What a box has of its own (terminals, private space, a procfs that knows its processes) is made in the copy. A copy is a
//! box only as long as every mount still is where it was put: whoever removes or renames what one is on takes it along, in
//! the mould as well. So each copy is looked at before it is used, and where anything is missing, the box is built like the
//! first one.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use rustix::thread::LinkNameSpaceType;

use crate::launch::{self, Identity, Spec};
use crate::seed::Maps;
use crate::setup::{self, Basis, Room, StandIn, Step};
use crate::sys::{self, Fork};

/// How long one waits for whoever looks at the host's files: they may lie on a server that is gone.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What boxes are copied from.
#[derive(Debug)]
pub struct Mould {
    spec: Arc<Spec>,
    /// Which steps each box carries out by itself.
    own: Vec<bool>,
    /// Whose mounts they are, where root has not made them. Boxes have user namespaces of their own in it.
    userns: Option<OwnedFd>,
    mounts: OwnedFd,
    /// For each step that binds something: which file that was.
    files: Vec<Option<File>>,
    host: HostMounts,
    stale: AtomicBool,
    used: AtomicBool,
}

/// A file system, and a number in it. What is bound is not freed, and so its number is nobody else's.
type File = (u64, u64);

/// The mounts of this process's namespace: whether they have changed since.
#[derive(Debug)]
pub(crate) struct HostMounts {
    table: OwnedFd,
    changed: Mutex<bool>,
}

impl HostMounts {
    pub fn now() -> Result<HostMounts, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let table = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty())?;
        Ok(HostMounts { table, changed: Mutex::default() })
    }

    pub fn are_the_same(&self) -> bool {
        // Locked: the kernel tells it once.
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let told = retry_on_intr(|| poll(&mut [PollFd::new(&self.table, PollFlags::PRI)], Some(&now)));
        *changed |= told != Ok(0);
        !*changed
    }
}

impl Mould {
    /// Builds what boxes of this kind have in common. `None` when they cannot be copies.
    pub fn make(spec: Arc<Spec>) -> Result<Option<Mould>, Errno> {
        let maps = match &spec.identity {
            // The same ids as outside; a box maps its own.
            Identity::Mapped(_) => {
                let map = |id: u32| CString::new(format!("{id} {id} 1")).unwrap_or_default();
                let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                Some(Maps { uids: map(uid), gids: map(gid) })
            }
            Identity::Entered { .. } => None,
            Identity::Outside(_) | Identity::Kept => return Ok(None),
        };
        let Some(own) = setup::own(&spec.steps) else { return Ok(None) };
        // Before it is built: what changes meanwhile is found to have changed.
        let host = HostMounts::now()?;
        let file = |step: &Step| source(step).map(|source| stat(source).map(|stat| which_file(&stat))).transpose();
        let files = spec.steps.iter().map(file).collect::<Result<_, _>>()?;
        let (userns, mounts) = build(&spec, &own, maps.as_ref())?;
        let (stale, used) = Default::default();
        Ok(Some(Mould { spec, own, userns, mounts, files, host, stale, used }))
    }

    /// Whether no box is made from it any more.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    /// Whether a box was made from it.
    pub fn was_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    pub(crate) fn give_up(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Whether it is for this kind of box, and the host still has the same mounts, and the same files where they are bound
    /// from.
    pub(crate) fn is_for(&self, spec: &Spec) -> bool {
        let same = |(step, file): (&Step, &Option<File>)| match source(step) {
            // Onto its own path: were it another file now, it would not be the one that is mounted there.
            Some(source) if !self.is_in_place(step) => stat(source).ok().map(|stat| which_file(&stat)) == *file,
            _ => true,
        };
        let files = || self.spec.steps.iter().zip(&self.files).all(same);
        std::ptr::eq(&*self.spec, spec) && self.holds(self.host.are_the_same() && files())
    }

    /// Whether it binds something onto its own path, in a root that is the host's.
    fn is_in_place(&self, step: &Step) -> bool {
        let host = matches!(self.spec.steps.first(), Some(Step::RootBind { source }) if source.as_c_str() == c"/");
        host && matches!(step, Step::Bind { source, target, .. } if source.as_bytes().get(1..) == Some(target.as_bytes()))
    }

    /// Takes this process to where it can be copied.
    pub(crate) fn enter(&self) -> Result<(), Errno> {
        if let Some(userns) = &self.userns {
            sys::set_namespace(userns.as_fd(), LinkNameSpaceType::User)?;
        }
        sys::set_namespace(self.mounts.as_fd(), LinkNameSpaceType::Mount)
    }

    /// Makes what a box has of its own, in the copy that this process is in.
    pub(crate) fn complete(&self) -> Result<(), Errno> {
        let completed =
            setup::carry_out(&self.spec.steps, self.spec.idmaps(), Basis::Copy, |index, _| Ok(self.own[index]));
        completed.map_err(|(_, errno)| errno)
    }

    /// Whether every mount is where it was put, in the copy that this process is in; those of its own as well, which may have
    /// been there for long. They go where the file goes that they are on, so that one may be in the place of another.
    pub(crate) fn is_whole(&self) -> bool {
        let (mut fixed, mut writable) = (None, None);
        let in_room =
            |room: &mut Option<u64>, mount: &Statx| *room.get_or_insert(which_file(mount).0) == which_file(mount).0;
        let mut stands = |step: &Step, file: &Option<File>, own: bool| match step {
            Step::StandIn { target, which, if_there } => {
                let room = if own { &mut writable } else { &mut fixed };
                match mount_on(target) {
                    Ok(mount) => mount.is_some_and(|mount| is(&mount, *which) && in_room(room, &mount)),
                    Err(errno) => errno == Errno::NOENT && *if_there,
                }
            }
            Step::Part { room, target, .. } => {
                let room = if *room == Room::Fixed { &mut fixed } else { &mut writable };
                mount_on(target).is_ok_and(|mount| mount.is_some_and(|mount| in_room(room, &mount)))
            }
            Step::Bind { target, .. } => mount_on(target).is_ok_and(|mount| mount.as_ref().map(which_file) == *file),
            Step::Tmpfs { target, .. } | Step::Devpts { target } => mount_on(target).is_ok_and(|mount| mount.is_some()),
            _ => true,
        };
        let steps = self.spec.steps.iter().zip(&self.files).zip(&self.own);
        let whole = steps.into_iter().all(|((step, file), own)| stands(step, file, *own));
        let whole = self.holds(whole);
        self.used.fetch_or(whole, Ordering::AcqRel);
        whole
    }

    /// Once it does not, it never does again.
    fn holds(&self, holds: bool) -> bool {
        !self.stale.fetch_or(!holds, Ordering::AcqRel) && holds
    }
}

/// What is bound.
fn source(step: &Step) -> Option<&CString> {
    match step {
        Step::RootBind { source } | Step::Bind { source, .. } => Some(source),
        _ => None,
    }
}

fn stat(path: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::INO)
}

fn which_file(stat: &Statx) -> File {
    (u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor), stat.stx_ino)
}

/// What is mounted there. The path is relative to the root, which the working directory is. Linux 5.8 tells.
fn mount_on(path: &CStr) -> Result<Option<Statx>, Errno> {
    stat(path).map(|stat| Some(stat).filter(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)))
}

fn is(mount: &Statx, which: StandIn) -> bool {
    let mode = mount.stx_mode.into();
    let kind = if which.is_dir() { FileType::Directory } else { FileType::RegularFile };
    FileType::from_raw_mode(mode) == kind && Mode::from_raw_mode(mode) == which.mode()
}

/// Has a process build it, which ends then.
fn build(spec: &Spec, own: &[bool], maps: Option<&Maps>) -> Result<(Option<OwnedFd>, OwnedFd), Errno> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // Its procfs is of an empty PID namespace.
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWPID | maps.map_or(0, |_| libc::CLONE_NEWUSER);
    let builder = {
        let _blocked = sys::SignalsBlocked::new()?;
        match sys::fork(namespaces as u64)? {
            Fork::Child => sys::exit_now(i32::from(build_here(spec, own, maps, &theirs).is_err())),
            Fork::Parent(pid) => pid.as_raw_nonzero().get(),
        }
    };
    drop(theirs);
    let built = receive(&ours, maps.is_some());
    let _ = sys::kill(builder, libc::SIGKILL);
    sys::wait(builder, true, false)?;
    built
}

/// Builds it around this process, and hands its namespaces over.
fn build_here(spec: &Spec, own: &[bool], maps: Option<&Maps>, owner: &OwnedFd) -> Result<(), Errno> {
    // An owner that is gone before that is told as soon as anything is sent.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    launch::let_go(spec, [None; 3], owner, None);
    let this = launch::this_process()?;
    if let Some(maps) = maps {
        launch::map_ids(&this, maps)?;
    }
    let mounts = launch::namespace(&this, c"ns/mnt")?;
    let userns = maps.map(|_| launch::namespace(&this, c"ns/user")).transpose()?;
    setup::carry_out(&spec.steps, spec.idmaps(), Basis::Nothing, |index, _| Ok(!own[index]))
        .map_err(|(_, errno)| errno)?;
    match &userns {
        Some(userns) => launch::send_with(owner, &[0], &[mounts.as_fd(), userns.as_fd()]),
        None => launch::send_with(owner, &[0], &[mounts.as_fd()]),
    }
}

fn receive(from: &OwnedFd, userns: bool) -> Result<(Option<OwnedFd>, OwnedFd), Errno> {
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    retry_on_intr(|| poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&limit)))
        .and_then(|ready| if ready == 0 { Err(Errno::TIMEDOUT) } else { Ok(()) })?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::{Tmpfs, own};

    fn named(name: &str) -> CString {
        CString::new(name).unwrap()
    }

    fn tmpfs() -> Tmpfs {
        Tmpfs::new(0o755, 1 << 20, 100, None)
    }

    fn part(room: Room, target: &str) -> Step {
        Step::Part { room, name: named("0"), target: named(target), mode: 0o755, owner: None }
    }

    #[test]
    fn what_each_copy_makes_by_itself() {
        let bind = |target: &str| Step::Bind {
            source: named("/usr"),
            target: named(target),
            writable: false,
            ids: setup::Ids::AsTheyAre,
        };
        let private = |target: &str| Step::Tmpfs { target: named(target), tmpfs: tmpfs() };
        let touch = |target: &str| Step::Touch { target: named(target) };
        let seal = |target: &str| Step::Seal { target: named(target) };
        let room = || Step::Room { room: Room::Writable, target: named("tmp"), tmpfs: tmpfs() };
        let procfs = || Step::Proc { target: named("proc") };
        let hide = |target: &str| Step::StandIn { target: named(target), which: StandIn::HiddenFile, if_there: false };
        for (steps, expected) in [
            (vec![private("tmp"), touch("tmpx"), bind("tmpx"), touch("tmp/x")], Some(vec![true, false, false, true])),
            (vec![procfs(), bind("usr")], Some(vec![false, false])),
            // Something of the host in a place that is made anew, or over one.
            (vec![private("tmp"), bind("tmp/x")], None),
            (vec![private("var/tmp"), bind("var")], None),
            (vec![private("tmp"), bind("tmp")], None),
            (vec![bind("var"), private("var/tmp")], Some(vec![false, true])),
            (vec![private("dev/shm"), seal("dev")], Some(vec![true, false])),
            (vec![private("tmp"), seal("tmp")], None),
            // A stand-in needs space of the box's own.
            (vec![room(), part(Room::Writable, "run"), hide("run/x")], Some(vec![true, true, true])),
            (vec![private("run"), hide("run/x")], None),
            // Process 1 would cover it.
            (vec![procfs(), touch("proc/x")], None),
            // Space that two boxes would write to.
            (vec![Step::RootTmpfs(tmpfs())], None),
            (vec![Step::RootTmpfs(tmpfs()), seal("")], Some(vec![false, false])),
            (vec![part(Room::Fixed, "dev")], None),
            (vec![part(Room::Fixed, "dev"), seal("dev")], Some(vec![false, false])),
            // A part of which space.
            (vec![part(Room::Writable, "tmp")], None),
            (vec![room(), part(Room::Writable, "tmp")], Some(vec![true, true])),
            (vec![room(), room(), part(Room::Writable, "tmp")], None),
        ] {
            assert_eq!(own(&steps), expected, "{steps:?}");
        }
    }
}
