//! Makes placeholders, and writes on the list which files they are.
//!
//! An entry is: what it is (`d`: a directory; a digit: a file of this length; `g`: a cgroup; `-`: nothing that was made here),
//! sixteen hexadecimal digits of the inode, as many of the time when it was made, the path, and a NUL. An entry is written
//! before the name is made, with no inode and the time of then. So what a crash leaves in between is known, too.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ringfence_policy::plan::{STUB_FILE_MODE, Stub};
use ringfence_policy::rules::Kind;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::JanitorError;

const DIR_MODE: u32 = 0o755;
pub(super) const DIRECTORY: u8 = b'd';
pub(super) const GROUP: u8 = b'g';
pub(super) const NOTHING: u8 = b'-';
/// What comes before the path.
const HEAD: usize = 1 + 16 + 16;
/// An entry that was never completed is of a process that was killed while it made the name, which takes no longer.
const MAKING: u64 = 10_000_000_000;
/// A file system's clock goes in steps of at most so long.
const CLOCK_STEP: u64 = 20_000_000;

/// Which file a name stands for: a file that was made later under the same name is another one, even if it got the same inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub inode: u64,
    /// In nanoseconds. 0: the file system does not say.
    pub made: u64,
}

impl Identity {
    pub const ASKED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

    pub fn of(data: &Statx) -> Identity {
        let known = data.stx_mask & StatxFlags::BTIME.bits() != 0;
        let made = (data.stx_btime.tv_sec as u64).wrapping_mul(1_000_000_000) + u64::from(data.stx_btime.tv_nsec);
        Identity { inode: data.stx_ino, made: if known { made } else { 0 } }
    }

    /// Whether what is there now is what this entry of a list means.
    pub fn is(self, there: &Statx) -> bool {
        let found = Identity::of(there);
        if self.inode != 0 {
            return self == found;
        }
        let own = there.stx_uid == rustix::process::geteuid().as_raw();
        own && (self.made.saturating_sub(CLOCK_STEP)..self.made.saturating_add(MAKING)).contains(&found.made)
    }
}

/// An entry of a list: what it is, which file, and the path with its NUL.
pub(super) fn parse(entry: &mut [u8]) -> Option<(u8, Identity, &mut [u8])> {
    let (head, path) = entry.split_at_mut_checked(HEAD)?;
    let number = |digits: &[u8]| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let identity = Identity { inode: number(&head[1..17])?, made: number(&head[17..])? };
    (path.first() == Some(&b'/') && path.last() == Some(&0)).then_some((head[0], identity, path))
}

/// The path of an entry without its NUL; empty where it is none.
pub(super) fn path_of(entry: &[u8]) -> &[u8] {
    entry.get(HEAD..).unwrap_or_default()
}

/// Adds an entry for a cgroup.
pub(super) fn group(entries: &mut Vec<u8>, path: &Path) {
    push(entries, GROUP, Identity::default(), path);
}

fn push(entries: &mut Vec<u8>, kind: u8, identity: Identity, path: &Path) {
    // Writing to memory does not fail.
    let _ = write!(entries, "{}{:016x}{:016x}", char::from(kind), identity.inode, identity.made);
    entries.extend_from_slice(path.as_os_str().as_bytes());
    entries.push(0);
}

/// The names of a sandbox that are missing, parents first, with the directories above them that are missing too: another
/// sandbox's placeholders were there when it was planned.
pub(super) fn missing<'a>(stubs: &'a [Stub], registry: &Path) -> Vec<Cow<'a, Stub>> {
    let is_missing = |path: &Path| rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT);
    let mut all: Vec<Cow<'a, Stub>> = Vec::new();
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    for stub in stubs.iter().filter(|stub| stub.path != registry && is_missing(&stub.path)) {
        let above = stub.path.ancestors().skip(1).take_while(|dir| !seen.contains(dir) && is_missing(dir));
        let mut above: Vec<&Path> = above.collect();
        above.reverse();
        for dir in above {
            let given = stubs.iter().find(|other| other.path == dir);
            all.push(given.map_or_else(|| Cow::Owned(directory(dir)), Cow::Borrowed));
            seen.insert(dir);
        }
        if seen.insert(&stub.path) {
            all.push(Cow::Borrowed(stub));
        }
    }
    all
}

fn directory(path: &Path) -> Stub {
    Stub { path: path.to_path_buf(), kind: Kind::Dir, text: String::new(), present: false }
}

/// Names that are about to be made, and their entries.
pub(super) struct Making<'a> {
    stubs: Vec<&'a Stub>,
    /// First as they are to be, then as they were made. Their length does not change.
    pub entries: Vec<u8>,
}

impl<'a> Making<'a> {
    pub fn new(stubs: impl Iterator<Item = &'a Cow<'a, Stub>>) -> Making<'a> {
        let mut making = Making { stubs: stubs.map(AsRef::as_ref).collect(), entries: Vec::new() };
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64);
        making.write(|stub| (kind_of(stub), Identity { inode: 0, made: now }));
        making
    }

    pub fn is_empty(&self) -> bool {
        self.stubs.is_empty()
    }

    fn write(&mut self, mut entry: impl FnMut(&Stub) -> (u8, Identity)) {
        // What comes before may be the rest of an entry for which there was no room.
        self.entries.clear();
        self.entries.push(0);
        for stub in &self.stubs {
            let (kind, identity) = entry(stub);
            push(&mut self.entries, kind, identity, &stub.path);
        }
    }

    /// Makes them, until one cannot be made.
    pub fn make(&mut self) -> Result<(), JanitorError> {
        let mut result = Ok(());
        let mut parent = None;
        self.write(|stub| {
            if result.is_err() {
                return (NOTHING, Identity::default());
            }
            match make(stub, &mut parent) {
                Ok(Some(identity)) => (kind_of(stub), identity),
                // Another sandbox made it, or the user: it is mounted over all the same.
                Ok(None) => (NOTHING, Identity::default()),
                Err(source) => {
                    result = Err(JanitorError::Make { path: stub.path.clone(), source });
                    (NOTHING, Identity::default())
                }
            }
        });
        result
    }
}

/// A directory, or a file of this length.
fn kind_of(stub: &Stub) -> u8 {
    if stub.kind == Kind::Dir { DIRECTORY } else { b'0' + stub.text.len().min(9) as u8 }
}

/// Makes a name; `None` when there is one already. No symlink is followed on the way: a sandbox may have put one there since
/// the plan was made. `parent`: the last directory that was opened, and its path.
fn make(stub: &Stub, parent: &mut Option<(PathBuf, OwnedFd)>) -> io::Result<Option<Identity>> {
    let (Some(above), Some(name)) = (stub.path.parent(), stub.path.file_name()) else { return Ok(None) };
    if parent.as_ref().is_none_or(|(path, _)| path != above) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat2(CWD, above, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        *parent = Some((above.to_path_buf(), dir));
    }
    let Some((_, dir)) = &*parent else { return Ok(None) };
    let look = || rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, Identity::ASKED);
    match stub.kind {
        Kind::Dir => {
            match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(DIR_MODE)) {
                Err(Errno::EXIST) => return Ok(None),
                made => made?,
            }
            let data = look()?;
            if u32::from(data.stx_mode) & 0o7777 != DIR_MODE {
                open_to_all(dir, name)?;
            }
            Ok(Some(Identity::of(&data)))
        }
        Kind::File => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(STUB_FILE_MODE)) {
                Err(Errno::EXIST) => return Ok(None),
                file => file?,
            };
            rustix::fs::fchmod(&file, Mode::from_raw_mode(STUB_FILE_MODE))?;
            let mut file = fs::File::from(file);
            file.write_all(stub.text.as_bytes())?;
            Ok(Some(Identity::of(&rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, Identity::ASKED)?)))
        }
    }
}

/// Whatever the umask is: a sandbox that root starts is another user. Only an empty directory of this user's: whoever owns the
/// one above may have put another one in its place.
fn open_to_all(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let own = rustix::fs::fstat(&dir)?.st_uid == rustix::process::geteuid().as_raw();
    if own && is_empty(&dir)? {
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(DIR_MODE))?;
    }
    Ok(())
}

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
