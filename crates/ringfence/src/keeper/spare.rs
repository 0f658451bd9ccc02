//! Empty directories that are kept from one box to the next, in a private place that no box can change: one that is moved
//! there and back costs a fraction of one that is made and removed, above all where freed blocks are discarded at once. Where
//! it is another file system than the project's, or none is left, directories are made and removed.
//!
//! Each is used again in the one place where it stood before: a box that was allowed to write there may still have it open,
//! and must find itself nowhere else. What is moved away is looked at before, and once more where nobody else finds it, and
//! is moved back unless it is empty: then it is the user's. Nothing here allocates: the keeper uses it too.

use std::ffi::CStr;
use std::io::{Cursor, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, RenameFlags, StatxFlags};
use rustix::io::Errno;

use super::hold::{DIR_MODE, OPEN};

/// So many are kept; one more, and all go.
const MOST: u32 = 256;

/// The private place.
#[derive(Debug)]
pub(super) struct Spare {
    dir: OwnedFd,
    /// How many are there.
    count: u32,
    /// Nothing can be moved between it and where the names are.
    apart: bool,
}

impl Spare {
    /// `None` where there is no such directory of this user's alone, or its file system does not say how many are in it.
    pub fn open(path: &CStr) -> Option<Spare> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let wanted = StatxFlags::UID | StatxFlags::MODE | StatxFlags::NLINK;
        let data = rustix::fs::statx(&dir, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
        let ours = data.stx_uid == rustix::process::geteuid().as_raw() && data.stx_mode & 0o077 == 0;
        let count = data.stx_nlink.checked_sub(2)?;
        ours.then_some(Spare { dir, count, apart: false })
    }

    /// Opens it, and makes it where what is above is there.
    pub fn make(path: &CStr) -> Option<Spare> {
        let make = || rustix::fs::mkdir(path, Mode::RWXU).ok().and_then(|()| Spare::open(path));
        Spare::open(path).or_else(make)
    }

    /// Puts the one that stood there before in the place of a name that is missing. `None` when there is none to be had.
    pub fn take(&mut self, parent: &OwnedFd, target: &CStr) -> Option<Result<OwnedFd, Errno>> {
        let kept = self.kept(parent, target)?;
        let dir = rustix::fs::openat(&self.dir, kept.name()?, OPEN | OFlags::DIRECTORY, Mode::empty()).ok()?;
        // Whoever filled it while it was away did so where it was allowed to: then it is the user's again.
        if rustix::fs::fstat(&dir).ok()?.st_mode & 0o7777 != DIR_MODE {
            return None;
        }
        match rustix::fs::renameat_with(&self.dir, kept.name()?, parent, target, RenameFlags::NOREPLACE) {
            Ok(()) => Some(Ok(dir)),
            Err(Errno::EXIST) => Some(Err(Errno::EXIST)),
            Err(_) => None,
        }
    }

    /// Moves a directory away. An error when it must be removed in another way.
    pub fn put(&mut self, parent: &OwnedFd, target: &CStr, opened: &OwnedFd) -> Result<(), Errno> {
        if rustix::fs::fstat(opened)?.st_mode != libc::S_IFDIR | DIR_MODE || !is_empty(opened)? {
            return Err(Errno::NOTEMPTY);
        }
        let kept = self.kept(parent, target).ok_or(Errno::NOENT)?;
        let name = kept.name().ok_or(Errno::NAMETOOLONG)?;
        if self.count >= MOST {
            self.clear();
        }
        rustix::fs::renameat_with(parent, target, &self.dir, name, RenameFlags::NOREPLACE).inspect_err(|errno| {
            self.apart = *errno == Errno::XDEV;
        })?;
        self.count += 1;
        let moved = rustix::fs::openat(&self.dir, name, OPEN | OFlags::DIRECTORY, Mode::empty());
        if !moved.and_then(|dir| is_empty(&dir)).unwrap_or(false) {
            // The user's: back to where it was. Should there be another already, it stays here, untouched.
            rustix::fs::renameat_with(&self.dir, name, parent, target, RenameFlags::NOREPLACE)?;
            return Err(Errno::NOTEMPTY);
        }
        Ok(())
    }

    /// What the directory of this place is called here: by where it stands, also when its inode is used again for another.
    fn kept(&self, parent: &OwnedFd, target: &CStr) -> Option<Kept> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let data = rustix::fs::statx(parent, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
        if self.apart || !StatxFlags::from_bits_retain(data.stx_mask).contains(wanted) {
            return None;
        }
        let mut kept = Kept([0; 256]);
        let mut text = Cursor::new(&mut kept.0[..255]);
        let born = data.stx_btime;
        write!(text, "{:x}-{:x}.{:x}-", data.stx_ino, born.tv_sec, born.tv_nsec).ok()?;
        text.write_all(target.to_bytes()).ok()?;
        Some(kept)
    }

    /// Those of projects that are gone, and all the others.
    fn clear(&mut self) {
        let Ok(dir) = rustix::fs::openat(&self.dir, c".", OPEN | OFlags::DIRECTORY, Mode::empty()) else { return };
        let mut space = [MaybeUninit::uninit(); 2048];
        let mut entries = RawDir::new(dir, &mut space);
        while let Some(Ok(entry)) = entries.next() {
            // What is not empty is the user's, and stays.
            let _ = rustix::fs::unlinkat(&self.dir, entry.file_name(), AtFlags::REMOVEDIR);
        }
        self.count = 0;
    }
}

/// The name of one that is kept.
struct Kept([u8; 256]);

impl Kept {
    fn name(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.0).ok()
    }
}

/// Whether there is nothing in a directory that nobody has read from yet.
pub(super) fn is_empty(dir: &OwnedFd) -> Result<bool, Errno> {
    let mut space = [MaybeUninit::uninit(); 512];
    let mut entries = RawDir::new(dir, &mut space);
    while let Some(entry) = entries.next() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    use std::path::Path;

    fn spare(at: &Path) -> (Spare, OwnedFd) {
        let path = at.join("spare");
        if !path.exists() {
            fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        }
        let spare = Spare::open(&CString::new(path.as_os_str().as_bytes()).unwrap()).unwrap();
        (spare, rustix::fs::open(at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap())
    }

    fn make(path: &Path) {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(DIR_MODE)).unwrap();
    }

    fn put(spare: &mut Spare, parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let opened = rustix::fs::openat(parent, name, OPEN, Mode::empty()).unwrap();
        spare.put(parent, name, &opened)
    }

    #[test]
    fn moved_away_and_back_to_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, parent) = spare(dir.path());
        assert!(first.take(&parent, c"x").is_none());
        make(&dir.path().join("x"));
        put(&mut first, &parent, c"x").unwrap();
        assert!(!dir.path().join("x").exists());
        // Nowhere else: not under another name, nor under its own in another directory.
        let (mut second, parent) = spare(dir.path());
        assert!(second.take(&parent, c"y").is_none());
        make(&dir.path().join("other"));
        let other = rustix::fs::open(dir.path().join("other"), OFlags::PATH, Mode::empty()).unwrap();
        assert!(second.take(&other, c"x").is_none());
        second.take(&parent, c"x").unwrap().unwrap();
        assert!(dir.path().join("x").is_dir());
    }

    #[test]
    fn what_is_the_users_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, parent) = spare(dir.path());
        make(&dir.path().join("x"));
        fs::write(dir.path().join("x/work"), "work").unwrap();
        assert_eq!(put(&mut first, &parent, c"x"), Err(Errno::NOTEMPTY));
        assert_eq!(fs::read_to_string(dir.path().join("x/work")).unwrap(), "work");
        // Filled, or replaced, after it was looked at.
        let empty = dir.path().join("empty");
        make(&empty);
        let opened = fs::File::open(&empty).unwrap().into();
        assert_eq!(first.put(&parent, c"x", &opened), Err(Errno::NOTEMPTY));
        assert!(dir.path().join("x/work").exists());
        fs::write(dir.path().join("file"), "work").unwrap();
        let opened = fs::File::open(&empty).unwrap().into();
        assert_eq!(first.put(&parent, c"file", &opened), Err(Errno::NOTEMPTY));
        assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "work");
        // Given other rights while it was away: not used again.
        make(&dir.path().join("z"));
        put(&mut first, &parent, c"z").unwrap();
        let kept = first.kept(&parent, c"z").unwrap();
        let kept = dir.path().join("spare").join(kept.name().unwrap().to_str().unwrap());
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(first.take(&parent, c"z").is_none());
        // Written to while it was away: back where that belongs, and nothing of it is lost.
        fs::set_permissions(&kept, fs::Permissions::from_mode(DIR_MODE)).unwrap();
        fs::write(kept.join("late"), "work").unwrap();
        first.take(&parent, c"z").unwrap().unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("z/late")).unwrap(), "work");
        assert_eq!(put(&mut first, &parent, c"z"), Err(Errno::NOTEMPTY));
        // Nor is a name taken that is there.
        put(&mut first, &parent, c"empty").unwrap();
        make(&empty);
        assert!(matches!(first.take(&parent, c"empty"), Some(Err(Errno::EXIST))));
    }

    #[test]
    fn only_so_many_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (mut spare, parent) = spare(dir.path());
        for index in 0..=MOST {
            let name = CString::new(format!("n{index}")).unwrap();
            make(&dir.path().join(name.to_str().unwrap()));
            put(&mut spare, &parent, &name).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path().join("spare")).unwrap().count(), 1);
        let long = CString::new("n".repeat(250)).unwrap();
        make(&dir.path().join(long.to_str().unwrap()));
        assert_eq!(put(&mut spare, &parent, &long), Err(Errno::NOENT));
    }

    #[test]
    fn a_place_that_others_can_enter_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("open");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Spare::open(&CString::new(path.as_os_str().as_bytes()).unwrap()).is_none());
    }
}
