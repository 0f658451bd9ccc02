//! Sets of installed packages, as far as those must know who only use one: how it is called, and how it is held so that
//! nobody removes it. What is in a set and how it comes there is `code::requirements`' alone. Nothing here reads a set.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The packages themselves, and what is known about them: a set without that is none.
pub(crate) const FILES: &str = "files";
pub(crate) const ABOUT: &str = "about.json";
/// Beside the set: `ID.lock`.
pub(crate) const LOCK: &str = ".lock";

/// Why a set cannot be held.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum SetError {
    /// The set was removed.
    #[error("the set of packages `{0}` is not there any more")]
    Gone(String),
    /// The lock of the set could not be taken.
    #[error("cannot lock `{}`: {source}", path.display())]
    Lock { path: PathBuf, source: io::Error },
}

/// Holds a set as long as it lives: shared by those who use it, alone by who installs or removes it.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// The lock of a set, when nobody has one that excludes it.
    pub fn take(dir: &Path, id: &str, how: FlockOperation) -> Result<Option<Lock>, SetError> {
        let path = dir.join(format!("{id}{LOCK}"));
        let failed = |source| SetError::Lock { path: path.clone(), source };
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let file = options.open(&path).map_err(failed)?;
            match rustix::fs::flock(&file, how) {
                // Whoever holds a file that was removed meanwhile holds nothing.
                Ok(()) if is_at(&file, &path).map_err(failed)? => return Ok(Some(Lock(file))),
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(failed(errno.into())),
            }
        }
    }

    /// From now on others may use the set too. In between somebody may have removed it.
    pub fn share(self, dir: &Path, id: &str) -> Result<Lock, SetError> {
        let path = dir.join(format!("{id}{LOCK}"));
        let failed = |source| SetError::Lock { path: path.clone(), source };
        rustix::fs::flock(&self.0, FlockOperation::LockShared).map_err(|errno| failed(errno.into()))?;
        let there = is_at(&self.0, &path).map_err(failed)? && is_there(dir, id);
        if there { Ok(self) } else { Err(SetError::Gone(id.to_owned())) }
    }

    /// Removes the file of a lock that nobody else has, where there is nothing that it would be the lock of.
    pub fn tidy(dir: &Path, id: &str, building: &Path) -> Result<(), SetError> {
        let path = dir.join(format!("{id}{LOCK}"));
        if !path.exists() {
            return Ok(());
        }
        let Some(_lock) = Lock::take(dir, id, FlockOperation::NonBlockingLockExclusive)? else { return Ok(()) };
        if dir.join(id).exists() || building.exists() {
            return Ok(());
        }
        fs::remove_file(&path).map_err(|source| SetError::Lock { path, source })
    }
}

/// Whether this is the file of that name.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether there is a whole set of this name.
pub(crate) fn is_there(dir: &Path, id: &str) -> bool {
    dir.join(id).join(ABOUT).exists()
}

/// The directory of a set's store and its id, by where its files are.
fn place_of(files: &Path) -> Option<(&Path, &str)> {
    let place = files.parent()?;
    Some((place.parent()?, place.file_name()?.to_str()?))
}

/// The id of the set whose files are here.
pub(crate) fn id_of(files: &Path) -> String {
    place_of(files).map_or_else(String::new, |(_, id)| id.to_owned())
}

/// Keeps a set from being removed, for a process that was told where its files are.
pub(crate) fn hold(files: &Path) -> Result<Lock, SetError> {
    let gone = || SetError::Gone(id_of(files));
    let (dir, id) = place_of(files).ok_or_else(gone)?;
    if !is_there(dir, id) {
        return Err(gone());
    }
    // Whoever has it alone installs or removes it.
    let lock = Lock::take(dir, id, FlockOperation::NonBlockingLockShared)?.ok_or_else(gone)?;
    if is_there(dir, id) { Ok(lock) } else { Err(gone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_removed_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, alone) = (dir.path(), FlockOperation::NonBlockingLockExclusive);
        let building = dir.join("building-a");
        let lock = Lock::take(dir, "a", alone).unwrap().unwrap();
        assert!(Lock::take(dir, "a", alone).unwrap().is_none());
        // It is somebody's.
        Lock::tidy(dir, "a", &building).unwrap();
        assert!(dir.join("a.lock").exists());
        drop(lock);
        // There is something that it is the lock of.
        for left in [&building, &dir.join("a")] {
            fs::create_dir(left).unwrap();
            Lock::tidy(dir, "a", &building).unwrap();
            assert!(dir.join("a.lock").exists());
            fs::remove_dir(left).unwrap();
        }
        Lock::tidy(dir, "a", &building).unwrap();
        assert!(!dir.join("a.lock").exists());
    }

    /// However locks come and go, two never have one at a time.
    #[test]
    fn one_at_a_time() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let how = FlockOperation::NonBlockingLockExclusive;
                        if let Some(lock) = Lock::take(dir.path(), "a", how).unwrap() {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(lock);
                        }
                        Lock::tidy(dir.path(), "a", &dir.path().join("building-a")).unwrap();
                    }
                });
            }
        });
    }
}
