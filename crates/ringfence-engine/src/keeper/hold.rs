//! Holding a stand-in while a box needs it: a shared lock on the name itself.
//!
//! The list of a box can be read by its user alone. A lock can be seen by whoever may read the name, so that boxes of root and
//! of the project's owner do not take stand-ins from each other. A file system without such locks is as if nobody held any.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ringfence_linux::sys;
use ringfence_policy::plan::{STUB_FILE_MODE, Stub};
use ringfence_policy::rules::Kind;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

const DIR_MODE: u32 = 0o755;
/// To lock, not to read; what stands there may be a pipe.
pub(super) const OPEN: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// So often it is tried while somebody removes the name, a millisecond apart.
const TRIES: usize = 1000;

/// So long somebody may be removing a name; whoever has locked it for longer is no box.
const REMOVING: usize = 20;

/// Whether a name is there for the sake of a box: some living box holds it, of whichever user, or it is gone by now.
pub(super) fn is_needed(path: &Path) -> bool {
    let file = match open(path) {
        Ok(file) => file,
        Err(error) => return error == Errno::NOENT,
    };
    let held = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
    // Boxes share; a lock for one alone is a stranger's, on something of the user's.
    let shares = || {
        (0..REMOVING).any(|_| {
            let shared = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
            if shared == Err(Errno::WOULDBLOCK) {
                std::thread::sleep(Duration::from_millis(1));
            }
            shared != Err(Errno::WOULDBLOCK)
        })
    };
    let needed = held() && shares() && held() || !is_at(path, &file);
    // Said, and not left to the end of the descriptor: process 1 may just have been forked with a copy of it.
    let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
    needed
}

/// The same of a directory above a stand-in: one that has anything else in it is the user's, whoever has locked it.
pub(super) fn is_needed_above(dir: &Path, stubs: &[Stub]) -> bool {
    let only_stubs = || {
        let ours = |path: &Path| stubs.iter().any(|stub| stub.path.starts_with(path));
        std::fs::read_dir(dir).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|e| ours(&e.path()))))
    };
    is_needed(dir) && (!dir.exists() || only_stubs())
}

/// A name that this process holds; given up with the last box that needs it.
pub(super) type Held = Arc<OwnedFd>;

/// What this process holds, by the registry where it is listed: a thousand boxes in one project do with one descriptor for each
/// name.
static HELD: Mutex<BTreeMap<(CString, PathBuf), Weak<OwnedFd>>> = Mutex::new(BTreeMap::new());

/// What a keeper has been given to hold, beside its owner, until it removes it: whoever looks finds a name held, then locked,
/// then gone, and at no time free.
pub(super) struct Holds {
    held: [Option<(FileId, OwnedFd)>; Holds::MOST],
    count: usize,
}

/// Device and inode.
type FileId = (u64, u64);

fn file_id(file: &OwnedFd) -> Result<FileId, Errno> {
    rustix::fs::fstat(file).map(|data| (data.st_dev, data.st_ino))
}

impl Holds {
    /// What is more is held by the owner alone.
    const MOST: usize = 512;
    /// So many in one message.
    pub const AT_ONCE: usize = 64;

    pub fn new() -> Holds {
        Holds { held: [const { None }; Holds::MOST], count: 0 }
    }

    pub fn add(&mut self, held: OwnedFd) {
        // Looked up now, while nobody waits.
        if let (Some(place), Ok(id)) = (self.held.get_mut(self.count), file_id(&held)) {
            *place = Some((id, held));
            self.count += 1;
        }
    }

    /// The lock that is held on what this is.
    pub fn on(&self, opened: &OwnedFd) -> Option<&OwnedFd> {
        let wanted = file_id(opened).ok()?;
        self.held[..self.count].iter().flatten().find(|(id, _)| *id == wanted).map(|(_, held)| held)
    }
}

/// Makes a name where it is not there, and holds it. `None` where something stands that is no stand-in: it is mounted over all
/// the same.
pub(super) fn hold(stub: &Stub, registry: &CStr) -> io::Result<Option<Held>> {
    let mut all = sys::locked(&HELD);
    let key = (registry.to_owned(), stub.path.clone());
    if let Some(held) = all.get(&key).and_then(Weak::upgrade).filter(|held| is_at(&stub.path, held)) {
        return Ok(Some(held));
    }
    let held = hold_anew(stub)?.map(Arc::new);
    all.retain(|_, held| held.strong_count() > 0);
    if let Some(held) = &held {
        all.insert(key, Arc::downgrade(held));
    }
    Ok(held)
}

/// No symlink is followed on the way: a box may have put one there since the plan was made.
fn hold_anew(stub: &Stub) -> io::Result<Option<OwnedFd>> {
    let mut there = false;
    for _ in 0..TRIES {
        let made = make(stub)?;
        there = !made;
        let held = match open(&stub.path) {
            Ok(held) => held,
            Err(Errno::NOENT) => continue,
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(error.into()),
            Err(_) => return Ok(None),
        };
        if made && stub.kind == Kind::Dir {
            open_to_all(&held)?;
        }
        match rustix::fs::flock(&held, FlockOperation::NonBlockingLockShared) {
            // Somebody is removing it.
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return Ok(None),
            Ok(()) if is_at(&stub.path, &held) => return Ok(Some(held)),
            Ok(()) => {}
        }
    }
    // Somebody else's, and locked by them: it is mounted over all the same.
    if there { Ok(None) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// Whatever the umask is: another user's box must be able to see that it is held. Only an empty directory of this user's:
/// whoever owns the one above may have put another one in its place.
fn open_to_all(dir: &OwnedFd) -> io::Result<()> {
    let (data, mode) = (rustix::fs::fstat(dir)?, Mode::from_raw_mode(DIR_MODE));
    let own = data.st_uid == rustix::process::geteuid().as_raw() && Mode::from_raw_mode(data.st_mode) != mode;
    if own && is_empty(dir).unwrap_or(false) {
        rustix::fs::fchmod(dir, mode)?;
    }
    Ok(())
}

/// Whether it made the name; false where one is there.
fn make(stub: &Stub) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (stub.path.parent(), stub.path.file_name()) else { return Ok(false) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::openat2(CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let made = match stub.kind {
        Kind::Dir => rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(DIR_MODE)).map_err(io::Error::from),
        Kind::File => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(STUB_FILE_MODE))
                .map_err(io::Error::from)
                .and_then(|file| {
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(STUB_FILE_MODE))?;
                    io::Write::write_all(&mut std::fs::File::from(file), stub.text.as_bytes())
                })
        }
    };
    match made {
        // Made by a neighbour's box in the meantime, or there since planning: it is mounted over all the same.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true),
    }
}

/// Whether there is nothing in a directory that nobody has read from yet.
fn is_empty(dir: &OwnedFd) -> Result<bool, Errno> {
    let mut space = [MaybeUninit::uninit(); 512];
    let mut entries = RawDir::new(dir, &mut space);
    while let Some(entry) = entries.next() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(CWD, path, OPEN, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Whether a path still names what was opened.
fn is_at(path: &Path, opened: &OwnedFd) -> bool {
    let there = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(|data| (data.st_dev, data.st_ino));
    there.is_ok() && there == file_id(opened)
}
