//! Files that are opened again on a read-only mount.
//!
//! A descriptor leads to its file on the mount that it was opened on, whatever the view of its holder is: through its name in
//! `/proc`, the file can be opened again for writing, and its mode can be changed. On a read-only mount neither is possible.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::beside::Beside;
use crate::sys::{self, MountAttr};

/// The same file, open for reading at the same position, on a read-only mount of its own. An ordinary user needs a user
/// namespace for that, and a name that still leads to the file.
pub fn read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let again = match on_own_mount(file, file) {
        Err(Errno::PERM) => in_own_namespace(file)?,
        opened => opened?,
    };
    rustix::fs::seek(&again, rustix::fs::SeekFrom::Start(rustix::fs::tell(file)?))?;
    Ok(again)
}

/// The file at `place` on a read-only copy of the mount there, if it is this file. Makes system calls only.
fn on_own_mount(place: impl AsFd, file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let id = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|data| (data.st_dev, data.st_ino));
    if id(place.as_fd())? != id(file)? {
        return Err(Errno::STALE);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(place, c"", flags)?;
    let set = sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NODEV;
    sys::mount_setattr(tree.as_fd(), &MountAttr { set, ..MountAttr::default() }, false)?;
    let mut name = *b"/proc/self/fd/..........\0";
    let end = name.len() - 1;
    let start = b"/proc/self/fd/".len();
    let mut number = tree.as_raw_fd();
    let digits = name[start..end].iter_mut().rev();
    let mut used = 0;
    for digit in digits {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        used += 1;
        if number == 0 {
            break;
        }
    }
    name.copy_within(end - used.., start);
    let path = std::ffi::CStr::from_bytes_until_nul(&name).map_err(|_| Errno::INVAL)?;
    rustix::fs::open(path, OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
}

/// The same in a user namespace, which a short-lived process makes. Mounts of this namespace cannot be copied from there: it
/// looks the file up in its own copy of them.
fn in_own_namespace(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path: CString = rustix::fs::readlink(link, Vec::new())?;
    // The number of the opened file, or below zero that of the error. The other process shares memory and descriptors.
    let result = AtomicI32::new(-Errno::IO.raw_os_error());
    let flags = libc::CLONE_FILES | libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    let opener = Beside::start_with(flags, || {
        let place = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat2(CWD, &path, place, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .and_then(|place| on_own_mount(place, file));
        let number = opened.map_or_else(|errno| -errno.raw_os_error(), std::os::fd::IntoRawFd::into_raw_fd);
        result.store(number, Ordering::Release);
        0
    })?;
    opener.join()?;
    match result.load(Ordering::Acquire) {
        number if number < 0 => Err(Errno::from_raw_os_error(-number)),
        // SAFETY: the process that opened it has put it into this table, given it to nobody else, and ended.
        number => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn path_of(fd: &OwnedFd) -> String {
        format!("/proc/self/fd/{}", fd.as_raw_fd())
    }

    #[test]
    fn it_reads_from_the_same_position_and_cannot_be_opened_for_writing() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"one two").unwrap();
        let mut caller = std::fs::File::open(file.path()).unwrap();
        caller.seek(std::io::SeekFrom::Start(4)).unwrap();
        let given = OwnedFd::from(caller.try_clone().unwrap());
        std::fs::File::options().write(true).open(path_of(&given)).unwrap();

        let again = read_only(given.as_fd()).unwrap();
        let refused = std::fs::File::options().write(true).open(path_of(&again)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        let mode = std::fs::set_permissions(path_of(&again), std::fs::Permissions::from_mode(0o777)).unwrap_err();
        assert_eq!(mode.raw_os_error(), Some(libc::EROFS));
        let mut text = String::new();
        let mut again = std::fs::File::from(again);
        again.read_to_string(&mut text).unwrap();
        assert_eq!(text, "two");
        // What is appended later is read, too.
        file.write_all(b"!").unwrap();
        again.read_to_string(&mut text).unwrap();
        assert_eq!(text, "two!");
    }

    #[test]
    fn what_has_no_name_any_more_is_not_found_as_a_user() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let given = OwnedFd::from(std::fs::File::open(file.path()).unwrap());
        std::fs::rename(file.path(), file.path().with_extension("moved")).unwrap();
        std::fs::write(file.path(), "another").unwrap();
        // Its name is read when it is looked for: a file that moves is still found.
        read_only(given.as_fd()).unwrap();
        std::fs::remove_file(file.path().with_extension("moved")).unwrap();
        assert!(in_own_namespace(given.as_fd()).is_err());
    }
}
