//! What process 1 does to build its box: an ordered list of steps, made before the fork and carried out after it without
//! allocating. It decides nothing: every step comes from the native engine's compiled plan.
//!
//! The new root is attached on top of the old one first. Until [`pivot`] the process's own root is still the old one, so
//! that absolute paths are sources on the host, and everything relative to the new root's descriptor is a target inside.
//! No path is ever followed through a symlink, on either side: a neighbour that swaps a directory for a link between
//! planning and mounting gets an error, not a mount. When all is done, process 1 looks at the [`View`] from inside: each mount
//! must still be the one that its path leads to, since the host can rename and remove what something was mounted on.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::launch::{Failure, Stage, at};
use crate::sys::{self, MountAttr};

/// One step. Sources are absolute on the host, targets are relative to the new root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The first step: this tree becomes the root, read-only with all below it.
    RootBind {
        source: CString,
    },
    /// The first step: the root is empty private space.
    RootTmpfs(Tmpfs),
    /// A host file or tree with all below it.
    Bind {
        source: CString,
        target: CString,
        writable: bool,
        is: Is,
        ids: Ids,
    },
    /// For a builder, first: space to put mapped trees into, on this directory of the host as process 1 sees it.
    Staging {
        at: CString,
        tmpfs: Tmpfs,
    },
    /// For a builder: a host tree with all below it, ids mapped, put where it can be taken from.
    Stage {
        source: CString,
        at: CString,
        directory: bool,
        ids: Ids,
    },
    /// One device node of the host, at a name that is made for it.
    Device {
        source: CString,
        target: CString,
    },
    Tmpfs {
        target: CString,
        tmpfs: Tmpfs,
    },
    /// Space that several places share; attached at a target that a later step covers, where nothing sees it.
    Room {
        room: Room,
        target: CString,
        tmpfs: Tmpfs,
    },
    /// A directory of a shared space.
    Part {
        room: Room,
        name: CString,
        target: CString,
        mode: u32,
        owner: Option<(u32, u32)>,
    },
    /// Makes what stand-ins are cloned from, in the fixed space.
    StandIns,
    /// `if_there`: nothing is done where the target is not there any more.
    StandIn {
        target: CString,
        which: StandIn,
        if_there: bool,
    },
    Proc {
        target: CString,
    },
    Devpts {
        target: CString,
    },
    Mkdir {
        target: CString,
        mode: u32,
        owner: Option<(u32, u32)>,
    },
    Touch {
        target: CString,
    },
    Symlink {
        target: CString,
        to: CString,
    },
    Write {
        target: CString,
        text: Vec<u8>,
        mode: u32,
    },
    /// Makes the mount at this target read-only, not what is mounted below it.
    Seal {
        target: CString,
    },
}

/// What a source must be when it is mounted. It may have been swapped since it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    File,
    Directory,
    Link,
}

impl Is {
    fn check(self, mode: u16) -> Result<(), Errno> {
        let fits = match FileType::from_raw_mode(mode.into()) {
            FileType::Directory => self == Is::Directory,
            FileType::Symlink => self == Is::Link,
            _ => self == Is::File,
        };
        if fits { Ok(()) } else { Err(Errno::STALE) }
    }
}

/// Private space; the strings are what the kernel takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tmpfs {
    pub mode: CString,
    pub size: CString,
    pub inodes: CString,
    /// Owner as the kernel of the mounting process sees it; the mounting user when `None`.
    pub owner: Option<(CString, CString)>,
}

impl Tmpfs {
    pub fn new(mode: u32, size: u64, inodes: u64, owner: Option<(u32, u32)>) -> Self {
        let text = |value: String| CString::new(value).unwrap_or_default();
        Self {
            mode: text(format!("{mode:o}")),
            size: text(size.to_string()),
            inodes: text(inodes.to_string()),
            owner: owner.map(|(uid, gid)| (text(uid.to_string()), text(gid.to_string()))),
        }
    }
}

/// What is shared: making and ending a file system costs as much as three binds, and one limit over all bounds their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// What the box writes to.
    Writable,
    /// What is read-only once the box is built.
    Fixed,
}

/// Empty stand-ins for what must not be seen or must not appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandIn {
    HiddenFile,
    HiddenDir,
    EmptyFile,
    EmptyDir,
}

impl StandIn {
    const ALL: [StandIn; 4] = [StandIn::HiddenFile, StandIn::HiddenDir, StandIn::EmptyFile, StandIn::EmptyDir];

    fn name(self) -> &'static CStr {
        match self {
            StandIn::HiddenFile => c"hidden-file",
            StandIn::HiddenDir => c"hidden-dir",
            StandIn::EmptyFile => c"empty-file",
            StandIn::EmptyDir => c"empty-dir",
        }
    }

    fn mode(self) -> Mode {
        Mode::from_raw_mode(match self {
            StandIn::HiddenFile | StandIn::HiddenDir => 0o000,
            StandIn::EmptyFile => 0o444,
            StandIn::EmptyDir => 0o555,
        })
    }

    fn is_dir(self) -> bool {
        matches!(self, StandIn::HiddenDir | StandIn::EmptyDir)
    }

    fn make(self, space: &OwnedFd) -> Result<(), Errno> {
        if self.is_dir() {
            return rustix::fs::mkdirat(space, self.name(), self.mode());
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(space, self.name(), flags, self.mode()).map(drop)
    }
}

/// Carries out all steps around this process, makes the new root the only one, and looks at what came out. The space that
/// placeholders are in.
pub(crate) fn carry_out(steps: &[Step], idmaps: Option<&Idmaps>, view: &mut View) -> Result<Option<OwnedFd>, Failure> {
    let Some((first, others)) = steps.split_first() else { return Ok(None) };
    let mut building = Building::begin(first).map_err(at(Stage::Step(0)))?;
    for (index, step) in (1..).zip(others) {
        building.attached = Attached::Nothing;
        building.step(step, idmaps).map_err(at(Stage::Step(index)))?;
        view.0[index].attached = building.attached;
    }
    let placeholders = building.fixed.take();
    building.pivot().map_err(at(Stage::Pivot))?;
    for (index, (step, place)) in steps.iter().zip(&view.0).enumerate().filter(|(_, (_, place))| place.counts) {
        place.verify(step.target()).map_err(at(Stage::View(index)))?;
    }
    Ok(placeholders)
}

/// What the finished view must show of each step. Made before the fork, for process 1 allocates nothing.
#[derive(Debug)]
pub(crate) struct View(Vec<Place>);

#[derive(Debug, Clone)]
struct Place {
    attached: Attached,
    /// No later step mounts at the same path.
    counts: bool,
}

/// What a step attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attached {
    Nothing,
    /// The mount with this id.
    Mount(u64),
    /// Nothing, because its target was missing.
    Missing,
}

impl View {
    pub fn of(steps: &[Step]) -> View {
        let mut targets = HashSet::with_capacity(steps.len());
        let mut places = vec![Place { attached: Attached::Nothing, counts: false }; steps.len()];
        for (step, place) in steps.iter().zip(&mut places).rev().filter(|(step, _)| step.attaches()) {
            place.counts = targets.insert(step.target());
        }
        View(places)
    }
}

impl Place {
    /// Whether the path leads to the mount that was attached there, or to nothing where nothing was. Only the topmost mount at a
    /// path is found, and a symlink on the way is an error, so that what is mounted below it is reached through it.
    fn verify(&self, target: &CStr) -> Result<(), Errno> {
        let found = open_in(CWD, target).and_then(|place| mount_at(&place));
        match (self.attached, found) {
            (Attached::Nothing, _) | (Attached::Missing, Err(Errno::NOENT)) => Ok(()),
            (Attached::Mount(id), Ok((found, true))) if id == found => Ok(()),
            (_, Ok(_)) => Err(Errno::STALE),
            (_, Err(errno)) => Err(errno),
        }
    }
}

/// Linux 6.8 gives an id that no other mount ever had. Older ones ignore this bit.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

fn look_at(file: &OwnedFd) -> Result<Statx, Errno> {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::MNT_ID | UNIQUE)
}

/// The id of the mount that an open file is on, and whether the file is the root of it.
fn mount_at(file: &OwnedFd) -> Result<(u64, bool), Errno> {
    let data = look_at(file)?;
    let known = StatxFlags::from_bits_retain(data.stx_mask).intersects(StatxFlags::MNT_ID | UNIQUE);
    let is_root = data.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    if known { Ok((data.stx_mnt_id, is_root)) } else { Err(Errno::NOSYS) }
}

impl Step {
    /// Where it makes something, relative to the new root.
    pub fn target(&self) -> &CStr {
        match self {
            Step::Bind { target, .. }
            | Step::Device { target, .. }
            | Step::Tmpfs { target, .. }
            | Step::Room { target, .. }
            | Step::Part { target, .. }
            | Step::StandIn { target, .. }
            | Step::Proc { target }
            | Step::Devpts { target }
            | Step::Mkdir { target, .. }
            | Step::Touch { target }
            | Step::Symlink { target, .. }
            | Step::Write { target, .. }
            | Step::Seal { target } => target,
            Step::Staging { at, .. } | Step::Stage { at, .. } => at,
            Step::RootBind { .. } | Step::RootTmpfs(_) | Step::StandIns => c"",
        }
    }

    /// Whether it mounts something at its target.
    fn attaches(&self) -> bool {
        match self {
            Step::Bind { .. }
            | Step::Device { .. }
            | Step::Tmpfs { .. }
            | Step::Room { .. }
            | Step::Part { .. }
            | Step::StandIn { .. }
            | Step::Proc { .. }
            | Step::Devpts { .. } => true,
            Step::RootBind { .. }
            | Step::RootTmpfs(_)
            | Step::Staging { .. }
            | Step::Stage { .. }
            | Step::StandIns
            | Step::Mkdir { .. }
            | Step::Touch { .. }
            | Step::Symlink { .. }
            | Step::Write { .. }
            | Step::Seal { .. } => false,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inside = |c: &CString| format!("`/{}`", c.to_string_lossy());
        let outside = |c: &CString| format!("`{}`", c.to_string_lossy());
        match self {
            Step::RootBind { source } => write!(f, "bind {} read-only as the root", outside(source)),
            Step::RootTmpfs(_) => write!(f, "mount an empty root"),
            Step::Bind { source, target, writable, ids, .. } => {
                write!(f, "bind {} ", outside(source))?;
                if source.as_bytes().get(1..) != Some(target.as_bytes()) {
                    write!(f, "at {} ", inside(target))?;
                }
                write!(f, "{}", if *writable { "writable" } else { "read-only" })?;
                if *ids == Ids::AsTheyAre { Ok(()) } else { write!(f, ", ids mapped") }
            }
            Step::Staging { at, .. } => write!(f, "prepare {} for mapped files", outside(at)),
            Step::Stage { source, .. } => write!(f, "map the ids of {}", outside(source)),
            Step::Device { target, .. } => write!(f, "bind device {}", inside(target)),
            Step::Tmpfs { target, tmpfs } => write!(
                f,
                "mount private space at {}, mode {}, {} bytes, {} inodes",
                inside(target),
                tmpfs.mode.to_string_lossy(),
                tmpfs.size.to_string_lossy(),
                tmpfs.inodes.to_string_lossy()
            ),
            Step::Room { room, tmpfs, .. } => write!(
                f,
                "prepare {} space, {} bytes, {} inodes",
                match room {
                    Room::Writable => "private",
                    Room::Fixed => "fixed",
                },
                tmpfs.size.to_string_lossy(),
                tmpfs.inodes.to_string_lossy()
            ),
            Step::Part { room: Room::Writable, target, mode, .. } => {
                write!(f, "mount a part of the private space at {}, mode {mode:o}", inside(target))
            }
            Step::Part { room: Room::Fixed, target, mode, .. } => {
                write!(f, "mount a part of the fixed space at {}, mode {mode:o}", inside(target))
            }
            Step::StandIns => write!(f, "prepare empty stand-ins"),
            Step::StandIn { target, which, .. } => match which {
                StandIn::HiddenFile | StandIn::HiddenDir => write!(f, "hide {}", inside(target)),
                StandIn::EmptyFile | StandIn::EmptyDir => write!(f, "keep {} empty", inside(target)),
            },
            Step::Proc { target } => write!(f, "mount a procfs of its own at {}", inside(target)),
            Step::Devpts { target } => write!(f, "mount terminals of its own at {}", inside(target)),
            Step::Mkdir { target, .. } => write!(f, "make directory {}", inside(target)),
            Step::Touch { target } => write!(f, "make file {}", inside(target)),
            Step::Symlink { target, to } => write!(f, "link {} to {}", inside(target), outside(to)),
            Step::Write { target, .. } => write!(f, "write {}", inside(target)),
            Step::Seal { target } => write!(f, "make {} read-only", inside(target)),
        }
    }
}

const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);
const CALM: u64 = sys::ATTR_NOSUID | sys::ATTR_NODEV;
const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);
const MOVE: MoveMountFlags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH.union(MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH);

/// So often a place is tried to be made read-only, a millisecond apart.
const SEALING: usize = 2000;

/// Whose files of a bound tree are the box user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// No mapping: as the user namespace sees them.
    AsTheyAre,
    /// The caller's.
    Callers,
    /// Those of the owner of the working directory, when that is somebody else.
    Owners,
}

/// The user namespaces whose mappings id-mapped mounts take.
#[derive(Debug)]
pub struct Idmaps {
    pub callers: OwnedFd,
    pub owners: Option<OwnedFd>,
}

impl Idmaps {
    fn of(&self, ids: Ids) -> Option<&OwnedFd> {
        match ids {
            Ids::AsTheyAre => None,
            Ids::Callers => Some(&self.callers),
            Ids::Owners => Some(self.owners.as_ref().unwrap_or(&self.callers)),
        }
    }
}

/// A root under construction.
#[derive(Debug)]
struct Building {
    root: OwnedFd,
    writable: Option<OwnedFd>,
    fixed: Option<OwnedFd>,
    /// To be restored: modes are meant as they are.
    umask: Mode,
    /// By the step that is being carried out.
    attached: Attached,
}

impl Building {
    /// Cuts the mounts off from the host's and carries the first step out.
    fn begin(first: &Step) -> Result<Self, Errno> {
        // Nothing that the host mounts or unmounts later may reach the box, and nothing of the box the host.
        rustix::mount::mount_change(
            c"/",
            rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
        )?;
        let root = match first {
            Step::RootBind { source } => {
                let tree = clone_tree(source)?;
                let attr = MountAttr { set: CALM | sys::ATTR_RDONLY, ..MountAttr::default() };
                sys::mount_setattr(tree.as_fd(), &attr, true)?;
                tree
            }
            Step::RootTmpfs(tmpfs) => new_tmpfs(tmpfs)?,
            _ => return Err(Errno::INVAL),
        };
        // On top of the old root: `/` still names the old one for this process, as its own root is not walked over.
        move_mount(&root, c"", CWD, c"/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        let umask = rustix::process::umask(Mode::empty());
        Ok(Self { root, writable: None, fixed: None, umask, attached: Attached::Nothing })
    }

    /// Carries one of the later steps out.
    fn step(&mut self, step: &Step, idmaps: Option<&Idmaps>) -> Result<(), Errno> {
        match step {
            Step::RootBind { .. } | Step::RootTmpfs(_) | Step::Staging { .. } | Step::Stage { .. } => Err(Errno::INVAL),
            Step::Bind { source, target, writable, is, ids } => {
                let tree = clone_tree(source)?;
                is.check(look_at(&tree)?.stx_mode)?;
                let mut attr = MountAttr { set: CALM, ..MountAttr::default() };
                if !writable {
                    attr.set |= sys::ATTR_RDONLY;
                }
                if let Some(userns) = idmaps.and_then(|maps| maps.of(*ids)) {
                    attr.set |= sys::ATTR_IDMAP;
                    attr.userns_fd = userns.as_raw_fd() as u64;
                }
                sys::mount_setattr(tree.as_fd(), &attr, true)?;
                self.attach(&tree, target)
            }
            Step::Device { source, target } => {
                let at = self.create(target, 0o444)?;
                let tree = clone_tree(source)?;
                // Read-only is the node, which is the host's: its times would tell other boxes something. What is behind it is not.
                let set = sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NOEXEC;
                sys::mount_setattr(tree.as_fd(), &MountAttr { set, ..MountAttr::default() }, false)?;
                self.attach_to(&tree, &at)
            }
            Step::Tmpfs { target, tmpfs } => self.attach(&new_tmpfs(tmpfs)?, target),
            Step::Room { room, target, tmpfs } => {
                let space = new_tmpfs(tmpfs)?;
                self.attach(&space, target)?;
                match room {
                    Room::Writable => self.writable = Some(space),
                    Room::Fixed => self.fixed = Some(space),
                }
                Ok(())
            }
            Step::Part { room, name, target, mode, owner } => {
                let space = self.room(*room)?;
                make_dir(space, name, *mode, *owner)?;
                let tree = open_tree(space, name, CLONE)?;
                self.attach(&tree, target)
            }
            Step::StandIns => {
                let space = self.room(Room::Fixed)?;
                StandIn::ALL.into_iter().try_for_each(|which| which.make(space))
            }
            Step::StandIn { target, which, if_there } => {
                let tree = open_tree(self.room(Room::Fixed)?, which.name(), CLONE)?;
                let attr = MountAttr { set: CALM | sys::ATTR_RDONLY | sys::ATTR_NOEXEC, ..MountAttr::default() };
                sys::mount_setattr(tree.as_fd(), &attr, false)?;
                match self.attach(&tree, target) {
                    Err(Errno::NOENT) if *if_there => {
                        self.attached = Attached::Missing;
                        Ok(())
                    }
                    result => result,
                }
            }
            Step::Proc { target } => {
                let fs = fsopen(c"proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
                fsconfig_create(&fs)?;
                let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
                    | MountAttrFlags::MOUNT_ATTR_NODEV
                    | MountAttrFlags::MOUNT_ATTR_NOEXEC;
                self.attach(&fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)?, target)
            }
            Step::Devpts { target } => {
                let fs = fsopen(c"devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
                fsconfig_set_flag(&fs, c"newinstance")?;
                fsconfig_set_string(&fs, c"ptmxmode", c"0666")?;
                fsconfig_set_string(&fs, c"mode", c"0620")?;
                // The number of all terminals is the machine's.
                fsconfig_set_string(&fs, c"max", c"64")?;
                fsconfig_create(&fs)?;
                let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
                self.attach(&fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)?, target)
            }
            Step::Mkdir { target, mode, owner } => match make_dir(&self.root, target, *mode, *owner) {
                Err(Errno::EXIST) => Ok(()),
                result => result,
            },
            Step::Touch { target } => self.create(target, 0o444).map(drop),
            Step::Symlink { target, to } => match rustix::fs::symlinkat(to, &self.root, target) {
                Err(Errno::EXIST) => Ok(()),
                result => result,
            },
            Step::Write { target, text, mode } => {
                let file = self.create(target, *mode)?;
                let mut rest = text.as_slice();
                while !rest.is_empty() {
                    let written = rustix::io::write(&file, rest)?;
                    rest = &rest[written..];
                }
                Ok(())
            }
            Step::Seal { target } => {
                let at = self.open(target)?;
                let attr = MountAttr { set: sys::ATTR_RDONLY, ..MountAttr::default() };
                // A process that the owner made while a file in there was open for writing has a copy of that, for a moment.
                for _ in 0..SEALING {
                    match sys::mount_setattr(at.as_fd(), &attr, false) {
                        Err(Errno::BUSY) => sys::pause_for(Duration::from_millis(1)),
                        result => return result,
                    }
                }
                Err(Errno::BUSY)
            }
        }
    }

    /// Makes the new root the only one: the old one and all below it are gone from this namespace.
    fn pivot(self) -> Result<(), Errno> {
        rustix::process::fchdir(&self.root)?;
        rustix::process::pivot_root(c".", c".")?;
        // The old root now lies on top of the new one; the working directory is still in it.
        rustix::mount::unmount(c".", rustix::mount::UnmountFlags::DETACH)?;
        rustix::process::umask(self.umask);
        rustix::process::chdir(c"/")
    }

    fn room(&self, room: Room) -> Result<&OwnedFd, Errno> {
        let space = match room {
            Room::Writable => self.writable.as_ref(),
            Room::Fixed => self.fixed.as_ref(),
        };
        space.ok_or(Errno::INVAL)
    }

    fn create(&self, target: &CString, mode: u32) -> Result<OwnedFd, Errno> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat2(&self.root, target, flags, Mode::from_raw_mode(mode), NO_LINKS)
    }

    fn open(&self, target: &CString) -> Result<OwnedFd, Errno> {
        open_in(self.root.as_fd(), target)
    }

    fn attach(&mut self, tree: &OwnedFd, target: &CString) -> Result<(), Errno> {
        let at = self.open(target)?;
        self.attach_to(tree, &at)
    }

    fn attach_to(&mut self, tree: &OwnedFd, at: &OwnedFd) -> Result<(), Errno> {
        move_mount(tree, c"", at, c"", MOVE)?;
        self.attached = Attached::Mount(mount_at(tree)?.0);
        Ok(())
    }
}

/// Opens a path below a directory, through no symlink.
fn open_in(dir: BorrowedFd<'_>, target: &CStr) -> Result<OwnedFd, Errno> {
    let target = if target.is_empty() { c"." } else { target };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, target, flags, Mode::empty(), NO_LINKS | ResolveFlags::BENEATH)
}

/// Carries out a step for a box that another program builds.
pub(crate) fn stage(step: &Step, idmaps: &Idmaps) -> Result<(), Errno> {
    let open = |path: &CString| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat2(CWD, path, flags, Mode::empty(), NO_LINKS)
    };
    match step {
        Step::Staging { at, tmpfs } => {
            let space = new_tmpfs(tmpfs)?;
            move_mount(&space, c"", open(at)?, c"", MOVE)
        }
        Step::Stage { source, at, directory, ids } => {
            let tree = clone_tree(source)?;
            let userns_fd = idmaps.of(*ids).ok_or(Errno::INVAL)?.as_raw_fd() as u64;
            let attr = MountAttr { set: CALM | sys::ATTR_IDMAP, userns_fd, ..MountAttr::default() };
            sys::mount_setattr(tree.as_fd(), &attr, true)?;
            if *directory {
                rustix::fs::mkdir(at, Mode::from_raw_mode(0o700))?;
            } else {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::open(at, flags, Mode::from_raw_mode(0o600))?;
            }
            move_mount(&tree, c"", open(at)?, c"", MOVE)
        }
        _ => Err(Errno::INVAL),
    }
}

fn make_dir(at: &OwnedFd, name: &CString, mode: u32, owner: Option<(u32, u32)>) -> Result<(), Errno> {
    rustix::fs::mkdirat(at, name, Mode::from_raw_mode(mode))?;
    if let Some((uid, gid)) = owner {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        rustix::fs::chownat(at, name, Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// A private copy of a host tree with all that is mounted below it.
fn clone_tree(source: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let at = rustix::fs::openat2(CWD, source, flags, Mode::empty(), NO_LINKS)?;
    open_tree(
        &at,
        c"",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH,
    )
}

fn new_tmpfs(tmpfs: &Tmpfs) -> Result<OwnedFd, Errno> {
    let fs = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, c"mode", &tmpfs.mode)?;
    fsconfig_set_string(&fs, c"size", &tmpfs.size)?;
    fsconfig_set_string(&fs, c"nr_inodes", &tmpfs.inodes)?;
    if let Some((uid, gid)) = &tmpfs.owner {
        fsconfig_set_string(&fs, c"uid", uid)?;
        fsconfig_set_string(&fs, c"gid", gid)?;
    }
    fsconfig_create(&fs)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}
