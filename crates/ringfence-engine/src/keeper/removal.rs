//! Takes one name away that a keeper made, and nothing else: no symlink is followed, since the project may have been changed
//! by what ran in it, and what is not exactly what was made stays.
//!
//! The command may have taken the permissions of the directory away (`chmod 555 .`). Then they are given for the moment of
//! the removal, and put back. Nothing here allocates: the keeper shares its owner's memory.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ringfence_linux::sys;
use ringfence_policy::plan::STUB_FILE_MODE;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::DecInt;

use super::hold::Holds;
use super::{GROUP, hold};

const WALK: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// How long a sweep waits for locks: processes of a box that is gone may take a moment to let go of them.
pub(super) struct Patience(u32);

impl Default for Patience {
    fn default() -> Patience {
        Patience(20)
    }
}

impl Patience {
    /// Waits a millisecond, unless that was done often enough.
    fn wait(&mut self) -> bool {
        let left = self.0 > 0;
        self.0 -= u32::from(left);
        if left {
            sys::pause_for(Duration::from_millis(1));
        }
        left
    }
}

/// Removes a name that is still exactly what we made. The path ends with a NUL. Whether it stays because some box holds it.
pub(super) fn remove(kind: u8, path: &mut [u8], holds: Option<&Holds>, patience: &mut Patience) -> bool {
    let mut opened = Opened::default();
    let Some(slash) = path.iter().rposition(|b| *b == b'/') else { return false };
    path[slash] = 0;
    let (parent, name) = path.split_at_mut(slash + 1);
    let Ok(name) = CStr::from_bytes_with_nul(name) else { return false };
    let mut done = Ok(());
    if let Some(parent) = open(parent, &mut opened) {
        done = unlink(kind, &parent, name, holds, patience);
        // A control group is nobody's to change.
        if done == Err(Errno::ACCESS)
            && kind != GROUP
            && opened.add(parent)
            && let Some((parent, _)) = opened.last()
        {
            // There is nobody to tell: the next start tries again.
            done = unlink(kind, parent, name, holds, patience);
        }
    }
    opened.put_back();
    done == Err(Errno::WOULDBLOCK)
}

/// `WOULDBLOCK` when some box holds it.
fn unlink(
    kind: u8,
    parent: &OwnedFd,
    name: &CStr,
    holds: Option<&Holds>,
    patience: &mut Patience,
) -> Result<(), Errno> {
    let _locked = if kind == GROUP { None } else { lock(parent, name, holds, patience)? };
    if kind == b'd' || kind == GROUP {
        // Refused by the kernel unless it is an empty directory.
        return rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
    }
    let data = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let regular = data.st_mode & libc::S_IFMT == libc::S_IFREG;
    let length = i64::from(kind.wrapping_sub(b'0'));
    // Empty: whoever made it was killed before it wrote.
    if regular && [0, length].contains(&data.st_size) && data.st_mode & 0o7777 == STUB_FILE_MODE && data.st_nlink == 1 {
        return rustix::fs::unlinkat(parent, name, AtFlags::empty());
    }
    Ok(())
}

/// Keeps other boxes from relying on a name while it is removed; `None` where it cannot be locked.
fn lock(
    parent: &OwnedFd,
    name: &CStr,
    holds: Option<&Holds>,
    patience: &mut Patience,
) -> Result<Option<OwnedFd>, Errno> {
    let file = match rustix::fs::openat(parent, name, hold::OPEN, Mode::empty()) {
        // Its permissions were changed outside, or the directory's: then removing it tells.
        Err(Errno::ACCESS) => return Ok(None),
        file => file?,
    };
    // The lock that is held already becomes exclusive, so that nobody gets in between.
    let held = holds.and_then(|holds| holds.on(&file)).unwrap_or(&file);
    loop {
        match rustix::fs::flock(held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) if patience.wait() => {}
            Err(Errno::WOULDBLOCK) => return Err(Errno::WOULDBLOCK),
            // A file system without locks.
            Err(_) => return Ok(None),
        }
    }
}

/// Opens a directory, symlinks not followed. The path ends with a NUL, and is as it was afterwards.
fn open(path: &mut [u8], opened: &mut Opened) -> Option<OwnedFd> {
    let whole = if path.len() == 1 { c"/" } else { CStr::from_bytes_with_nul(path).ok()? };
    match rustix::fs::openat2(CWD, whole, WALK, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Err(Errno::ACCESS) => {}
        result => return result.ok(),
    }
    // Some directory on the way cannot be entered: name by name.
    let mut dir = rustix::fs::openat(CWD, c"/", WALK, Mode::empty()).ok()?;
    let mut from = 1;
    while from < path.len() {
        let end = from + path[from..].iter().position(|b| matches!(b, b'/' | 0))?;
        let separator = std::mem::replace(&mut path[end], 0);
        let next = CStr::from_bytes_with_nul(&path[from..=end]).ok().and_then(|name| step(dir, name, opened));
        path[end] = separator;
        dir = next?;
        from = end + 1;
    }
    Some(dir)
}

/// One name down.
fn step(dir: OwnedFd, name: &CStr, opened: &mut Opened) -> Option<OwnedFd> {
    let down = |dir: &OwnedFd| rustix::fs::openat(dir, name, WALK | OFlags::NOFOLLOW, Mode::empty());
    match down(&dir) {
        Err(Errno::ACCESS) if opened.add(dir) => opened.last().and_then(|(dir, _)| down(dir).ok()),
        result => result.ok(),
    }
}

/// Directories whose permissions were given, with those that they had.
#[derive(Default)]
struct Opened {
    dirs: [Option<(OwnedFd, Mode)>; 8],
    count: usize,
}

impl Opened {
    /// Lets the owner, who is this user, work in the directory; whether that could be done.
    fn add(&mut self, dir: OwnedFd) -> bool {
        let (Ok(data), Some(place)) = (rustix::fs::fstat(&dir), self.dirs.get_mut(self.count)) else { return false };
        let mode = Mode::from_raw_mode(data.st_mode & 0o7777);
        let done = change_mode(&dir, mode | Mode::RWXU).is_ok();
        if done {
            *place = Some((dir, mode));
            self.count += 1;
        }
        done
    }

    fn last(&self) -> Option<&(OwnedFd, Mode)> {
        self.dirs.get(self.count.checked_sub(1)?)?.as_ref()
    }

    /// Deepest first: the way there must still be open. It is by descriptor, so that no name matters.
    fn put_back(self) {
        for (dir, mode) in self.dirs.iter().rev().flatten() {
            // What cannot be put back was changed by its owner in the meantime.
            let _ = change_mode(dir, *mode);
        }
    }
}

/// `fchmod` for a descriptor that only names a place.
fn change_mode(dir: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    let descriptors = rustix::fs::openat(CWD, c"/proc/self/fd", WALK, Mode::empty())?;
    rustix::fs::chmodat(&descriptors, DecInt::from_fd(dir).as_c_str(), mode, AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn remove_at(kind: u8, path: &Path) {
        let mut bytes = path.as_os_str().as_bytes().to_vec();
        bytes.push(0);
        remove(kind, &mut bytes, None, &mut Patience::default());
    }

    #[test]
    fn only_what_was_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            fs::write(base.join(name), text).unwrap();
            fs::set_permissions(base.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        file("made", ".\n", 0o444);
        file("unwritten", "", 0o444);
        file("empty", "", 0o644);
        file("longer", "..\n", 0o444);
        file("writable", ".\n", 0o644);
        fs::create_dir_all(base.join("full/x")).unwrap();
        fs::create_dir_all(base.join("real/empty")).unwrap();
        symlink("real", base.join("link")).unwrap();
        for (kind, name, stays) in [
            (b'2', "made", false),
            (b'2', "unwritten", false),
            (b'2', "empty", true),
            (b'2', "longer", true),
            (b'2', "writable", true),
            (b'd', "full", true),
            (b'd', "link/empty", true),
            (b'd', "link", true),
            (b'd', "real/empty", false),
            (b'd', "none/x", false),
        ] {
            remove_at(kind, &base.join(name));
            assert_eq!(fs::symlink_metadata(base.join(name)).is_ok(), stays, "{name}");
        }
    }

    #[test]
    fn permissions_that_were_taken_away_are_as_they_were() {
        // Root needs none.
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
        for taken in [0o555, 0o000, 0o111] {
            let dir = tempfile::tempdir().unwrap();
            let base = dir.path().canonicalize().unwrap();
            fs::create_dir_all(base.join("a/b/stub")).unwrap();
            let set = |mode: u32| {
                for name in ["a/b", "a"] {
                    fs::set_permissions(base.join(name), fs::Permissions::from_mode(mode)).unwrap();
                }
            };
            set(taken);
            remove_at(b'd', &base.join("a/b/stub"));
            assert_eq!(mode(&base.join("a")), taken);
            fs::set_permissions(base.join("a"), fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(mode(&base.join("a/b")), taken);
            fs::set_permissions(base.join("a/b"), fs::Permissions::from_mode(0o755)).unwrap();
            assert!(!base.join("a/b/stub").exists(), "{taken:o}");
        }
    }
}
