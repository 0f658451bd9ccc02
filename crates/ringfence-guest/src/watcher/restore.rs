//! Looks at names from inside a sandbox's mounts, and covers those again that are not covered.
//!
//! A child does it, since a process that has entered a user namespace cannot leave it. It shares this process's memory and makes
//! system calls alone.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ringfence_guest::watch::{Cover, Name, Placeholder};
use ringfence_linux::sys::{self, MountAttr, Stack, Wait};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, move_mount, open_tree,
};

/// How a name stands.
#[derive(Clone, Copy)]
pub enum Found {
    Covered,
    /// It was not, and is now.
    Restored,
    Missing,
    /// The link is covered, and what it leads to may not be.
    Link,
    Failed(Errno),
}

pub struct Restorer(Stack);

const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);
const AT: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const ONTO: MoveMountFlags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH.union(MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH);
const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);
/// Something that is replaced more often while it is covered is left to the next event.
const TRIES: usize = 8;

impl Restorer {
    pub fn new() -> Restorer {
        Restorer(Stack::new())
    }

    /// One answer for each name.
    pub fn look<'a>(
        &self,
        mounts: &OwnedFd,
        placeholders: Option<&OwnedFd>,
        ids: (u32, u32),
        names: &[usize],
        name: impl Fn(usize) -> (&'a CStr, Cover),
    ) -> Vec<Found> {
        let mut found = vec![Found::Failed(Errno::SRCH); names.len()];
        let child = sys::vfork(&self.0, || {
            let entered = sys::enter_mounts(mounts.as_fd());
            let sandbox = Inside { placeholders: placeholders.map(AsFd::as_fd), ids };
            for (index, found) in names.iter().zip(&mut found) {
                let (path, cover) = name(*index);
                *found = match entered {
                    Ok(()) => sandbox.look(path, cover).unwrap_or_else(Found::Failed),
                    Err(errno) => Found::Failed(errno),
                };
            }
            0
        });
        match child {
            Ok(child) => {
                let _ = sys::wait(child.as_raw_nonzero().get(), Wait::UntilEnd);
            }
            Err(errno) => found.fill(Found::Failed(errno)),
        }
        found
    }
}

/// What the child has.
struct Inside<'a> {
    placeholders: Option<BorrowedFd<'a>>,
    ids: (u32, u32),
}

impl Inside<'_> {
    fn look(&self, path: &CStr, cover: Cover) -> Result<Found, Errno> {
        let mut done = Found::Covered;
        for _ in 0..TRIES {
            // The working directory is the root of the sandbox: entering its mounts has led there.
            let at = match rustix::fs::openat2(CWD, path, AT, Mode::empty(), NO_LINKS) {
                Ok(at) => at,
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Found::Missing),
                Err(errno) => return Err(errno),
            };
            let data = rustix::fs::statx(&at, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
            let kind = FileType::from_raw_mode(data.stx_mode.into());
            if data.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && is_cover(&at, data.stx_mode, cover)? {
                return Ok(done);
            }
            let tree = match cover {
                Cover::Hidden => self.placeholder(kind == FileType::Directory)?,
                Cover::Protected => own_mount(&at, sys::ATTR_RDONLY)?,
                // It holds nothing that a rule names.
                Cover::Pinned if kind != FileType::Directory => return Ok(done),
                Cover::Pinned => own_mount(&at, 0)?,
            };
            match move_mount(&tree, c"", &at, c"", ONTO) {
                // It is gone again.
                Ok(()) | Err(Errno::NOENT | Errno::STALE) => {}
                Err(errno) => return Err(errno),
            }
            done = if kind == FileType::Symlink && cover == Cover::Hidden { Found::Link } else { Found::Restored };
        }
        Err(Errno::BUSY)
    }

    /// Something empty that cannot be read.
    fn placeholder(&self, dir: bool) -> Result<OwnedFd, Errno> {
        let name = if dir { c"hidden-dir" } else { c"hidden-file" };
        let tree = match self.placeholders.map(|space| open_tree(space, name, CLONE)) {
            Some(Ok(tree)) => tree,
            _ => self.new_placeholder(name, dir)?,
        };
        let set = sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC;
        sys::mount_setattr(tree.as_fd(), &MountAttr { set, ..MountAttr::default() }, false)?;
        Ok(tree)
    }

    fn new_placeholder(&self, name: &CStr, dir: bool) -> Result<OwnedFd, Errno> {
        sys::set_file_ids(self.ids.0, self.ids.1);
        let fs = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        if dir {
            fsconfig_set_string(&fs, c"mode", c"0")?;
        }
        fsconfig_create(&fs)?;
        let space = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        if dir {
            return Ok(space);
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&space, name, flags, Mode::empty())?;
        open_tree(&space, name, CLONE)
    }
}

/// What is there, as a mount of its own.
fn own_mount(at: &OwnedFd, set: u64) -> Result<OwnedFd, Errno> {
    let recursive = OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(at, c"", CLONE | recursive)?;
    let set = set | sys::ATTR_NOSUID | sys::ATTR_NODEV;
    sys::mount_setattr(tree.as_fd(), &MountAttr { set, ..MountAttr::default() }, true)?;
    Ok(tree)
}

/// Whether what is mounted there covers it.
fn is_cover(at: &OwnedFd, mode: u16, cover: Cover) -> Result<bool, Errno> {
    const TMPFS: u64 = 0x0102_1994;
    const READ_ONLY: u64 = 1;
    let data = rustix::fs::fstatfs(at)?;
    let read_only = data.f_flags as u64 & READ_ONLY != 0;
    Ok(match cover {
        // One that something below is exposed in can be walked through.
        Cover::Hidden => data.f_type as u64 == TMPFS && matches!(mode & 0o777, 0 | 0o111),
        Cover::Protected => read_only,
        Cover::Pinned => true,
    })
}

/// The directory that a name is in, reached without a symlink, and the name itself.
fn parent(name: &Name) -> Result<(OwnedFd, &OsStr), Errno> {
    let path = Path::new(OsStr::from_bytes(&name.outside));
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((rustix::fs::openat2(CWD, dir, flags, Mode::empty(), NO_LINKS)?, name))
}

/// Permissions of a file that takes a name.
const FILE_MODE: u16 = 0o444;

/// Makes the placeholder of a name on the host. False when something is there by now.
pub fn make(name: &Name) -> Result<bool, Errno> {
    let Some(placeholder) = &name.placeholder else { return Ok(false) };
    let (dir, last) = match parent(name) {
        // Its directory is gone, too: that has a placeholder of its own, or can be made by the sandbox.
        Err(Errno::NOENT) => return Ok(false),
        found => found?,
    };
    let made = match placeholder {
        Placeholder::Directory => rustix::fs::mkdirat(&dir, last, Mode::from_raw_mode(0o755)),
        Placeholder::File(text) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&dir, last, flags, Mode::from_raw_mode(FILE_MODE.into()))
                .and_then(|file| rustix::io::write(&file, text).map(drop))
        }
    };
    match made {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Takes away what [`make`] made, if it is still that.
pub fn unmake(name: &Name) {
    let (Ok((dir, last)), Some(placeholder)) = (parent(name), &name.placeholder) else { return };
    match placeholder {
        // The kernel refuses one that is not empty.
        Placeholder::Directory => {
            let _ = rustix::fs::unlinkat(&dir, last, AtFlags::REMOVEDIR);
        }
        Placeholder::File(text) => {
            let data = rustix::fs::statx(&dir, last, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
            let ours = data.is_ok_and(|data| {
                FileType::from_raw_mode(data.stx_mode.into()) == FileType::RegularFile
                    && data.stx_mode & 0o7777 == FILE_MODE
                    && data.stx_size == text.len() as u64
            });
            if ours {
                let _ = rustix::fs::unlinkat(&dir, last, AtFlags::empty());
            }
        }
    }
}
