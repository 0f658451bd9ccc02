//! Takes one name away that a list has, and nothing else: no symlink is followed, since the project may have been changed by
//! what ran in it, and what is not what was made stays.
//!
//! The command may have taken the permissions of the directory away (`chmod 555 .`). Then they are given for the moment of
//! the removal, and put back. Nothing here allocates: the janitor shares its owner's memory.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ringfence_linux::sys;
use ringfence_policy::plan::STUB_FILE_MODE;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::DecInt;

use super::placeholders::{DIRECTORY, GROUP, Identity, NOTHING, parse, path_of};

const WALK: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What became of an entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removed {
    /// Nothing is there that the entry means.
    Done,
    /// It could not be removed: the next start tries again.
    NotYet,
}

/// Removes what an entry of a list means, if it is still what was made. `others`: the entries that are still on the list.
pub(super) fn remove(entry: &mut [u8], others: [&[u8]; 2]) -> Removed {
    let mut opened = Opened::default();
    let Some((kind, identity, path)) = parse(entry).filter(|(kind, ..)| *kind != NOTHING) else { return Removed::Done };
    let Some(slash) = path.iter().rposition(|b| *b == b'/') else { return Removed::Done };
    path[slash] = 0;
    let (above, name) = path.split_at_mut(slash + 1);
    let mut done = Err(Errno::NOENT);
    if let Ok(name) = c_str(name) {
        done = open(above, &mut opened).and_then(|parent| match unlink(kind, identity, &parent, name) {
            // Nobody changes permissions of a cgroup.
            Err(Errno::ACCESS) if kind != GROUP && opened.add(parent) => {
                let parent = opened.last().ok_or(Errno::ACCESS)?;
                unlink(kind, identity, &parent.0, name)
            }
            done => done,
        });
    }
    path[slash] = b'/';
    opened.put_back();
    match done {
        // Not there, or on the way there is a file or a symlink by now.
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Removed::Done,
        // The user put something in it, unless that is a placeholder that could not be removed.
        Err(Errno::NOTEMPTY | Errno::EXIST)
            if kind == DIRECTORY && !others.iter().any(|list| lists_below(list, path)) =>
        {
            Removed::Done
        }
        Err(_) => Removed::NotYet,
    }
}

/// Whether entries of a list have a name below this path, which ends with a NUL.
fn lists_below(list: &[u8], path: &[u8]) -> bool {
    let dir = path.strip_suffix(b"\0").unwrap_or(path);
    list.split(|b| *b == 0)
        .any(|entry| path_of(entry).strip_prefix(dir).is_some_and(|rest| rest.first() == Some(&b'/')))
}

fn unlink(kind: u8, identity: Identity, parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    if kind == GROUP {
        return rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
    }
    let data = rustix::fs::statx(parent, name, AtFlags::SYMLINK_NOFOLLOW, Identity::ASKED)?;
    let what = FileType::from_raw_mode(data.stx_mode.into());
    if !identity.is(&data) {
        return Ok(());
    }
    if kind == DIRECTORY {
        // Refused by the kernel unless it is an empty directory.
        return if what == FileType::Directory {
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
        } else {
            Ok(())
        };
    }
    // Empty: the process that made it was killed before it wrote.
    let as_made = [0, u64::from(kind.wrapping_sub(b'0'))].contains(&data.stx_size)
        && u32::from(data.stx_mode) & 0o7777 == STUB_FILE_MODE
        && data.stx_nlink == 1;
    if what == FileType::RegularFile && as_made {
        return rustix::fs::unlinkat(parent, name, AtFlags::empty());
    }
    Ok(())
}

/// Removes a cgroup as soon as the last process in it is gone; process 1 dies with its owner, and the rest with it.
pub(super) fn remove_group(path: &CStr) {
    // A minute: on a busy host the last process takes its time.
    for tried in 0..12_000 {
        match rustix::fs::rmdir(path) {
            Err(Errno::BUSY) if tried == 0 => thaw_group(path),
            Err(Errno::BUSY) => sys::pause_for(Duration::from_millis(5)),
            _ => return,
        }
    }
}

/// What is frozen does not end, not even when it is killed.
pub(super) fn thaw_group(path: &CStr) {
    let Ok(dir) = rustix::fs::openat(CWD, path, WALK, Mode::empty()) else { return };
    for (file, word) in [(c"freezer.state", &b"THAWED"[..]), (c"cgroup.freeze", b"0")] {
        if let Ok(file) = rustix::fs::openat(&dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            // Then it is waited for in vain.
            let _ = rustix::io::write(&file, word);
        }
    }
}

/// Opens a directory, symlinks not followed. The path ends with a NUL, and is as it was afterwards.
fn open(path: &mut [u8], opened: &mut Opened) -> Result<OwnedFd, Errno> {
    let whole = if path.len() == 1 { c"/" } else { c_str(path)? };
    match rustix::fs::openat2(CWD, whole, WALK, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Err(Errno::ACCESS) => {}
        result => return result,
    }
    // Some directory on the way cannot be entered: name by name.
    let mut dir = rustix::fs::openat(CWD, c"/", WALK, Mode::empty())?;
    let mut from = 1;
    while from < path.len() {
        let end = from + path[from..].iter().position(|b| matches!(b, b'/' | 0)).ok_or(Errno::INVAL)?;
        let separator = std::mem::replace(&mut path[end], 0);
        let next = c_str(&path[from..=end]).and_then(|name| step(dir, name, opened));
        path[end] = separator;
        dir = next?;
        from = end + 1;
    }
    Ok(dir)
}

fn c_str(path: &[u8]) -> Result<&CStr, Errno> {
    CStr::from_bytes_with_nul(path).map_err(|_| Errno::INVAL)
}

/// One name down.
fn step(dir: OwnedFd, name: &CStr, opened: &mut Opened) -> Result<OwnedFd, Errno> {
    let down = |dir: &OwnedFd| rustix::fs::openat(dir, name, WALK | OFlags::NOFOLLOW, Mode::empty());
    match down(&dir) {
        Err(Errno::ACCESS) if opened.add(dir) => opened.last().map_or(Err(Errno::ACCESS), |(dir, _)| down(dir)),
        result => result,
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
        let look = |path: &Path| rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, Identity::ASKED);
        let Identity { inode, made } = look(path).map_or(Identity::default(), |data| Identity::of(&data));
        let path = path.as_os_str().as_bytes();
        let head = format!("{}{inode:016x}{made:016x}", char::from(kind));
        remove(&mut [head.as_bytes(), path, b"\0"].concat(), [b"", b""]);
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
