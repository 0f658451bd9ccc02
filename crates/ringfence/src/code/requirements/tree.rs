//! Trees that strangers made, counted and removed. Whoever made one may still be at it: the container of a caller that was
//! killed lives for a moment. So every step goes by descriptors below the top, and no link is ever followed, whatever a name
//! was when it was looked at.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a tree. Where it stands is ours alone.
fn open(top: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, top, OPEN, Mode::empty())
}

/// Opens a directory of a tree.
fn below(top: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    rustix::fs::openat2(top, path, OPEN, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// What went, or became something else, since it was seen.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Names in a directory, but for itself and the one above.
fn names(dir: &OwnedFd) -> Result<impl Iterator<Item = Result<PathBuf, Errno>>, Errno> {
    let entries = Dir::read_from(dir)?.map(|entry| {
        let entry = entry?;
        Ok(PathBuf::from(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes())))
    });
    Ok(entries.filter(|name| !matches!(name, Ok(name) if name.as_os_str() == "." || name.as_os_str() == "..")))
}

/// Bytes and files below a directory; counting ends above the most files. What cannot be looked into, such as a path that is
/// too long, is too much.
pub(super) fn weigh(top: &Path, most: u64) -> (u64, u64) {
    let (mut bytes, mut files) = (0, 0);
    match count(top, most, &mut bytes, &mut files) {
        Ok(()) => (bytes, files),
        Err(errno) if is_gone(errno) => (bytes, files),
        Err(_) => (u64::MAX, files),
    }
}

fn count(top: &Path, most: u64, bytes: &mut u64, files: &mut u64) -> Result<(), Errno> {
    walk(&open(top)?, |_, _, _, data| {
        *bytes += u64::try_from(data.st_blocks).unwrap_or(0) * 512;
        *files += 1;
        Ok(if *files > most { ControlFlow::Break(()) } else { ControlFlow::Continue(true) })
    })
}

/// Visits everything below a directory: its own directory, the path of that, its name and its data. The answer says whether
/// what is below it is visited too.
fn walk(
    top: &OwnedFd,
    mut visit: impl FnMut(&OwnedFd, &Path, &Path, &Stat) -> Result<ControlFlow<(), bool>, Errno>,
) -> Result<(), Errno> {
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let dir = match below(top, &path) {
            Err(errno) if is_gone(errno) => continue,
            dir => dir?,
        };
        for name in names(&dir)? {
            let name = name?;
            let data = match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(errno) if is_gone(errno) => continue,
                data => data?,
            };
            let ControlFlow::Continue(into) = visit(&dir, &path, &name, &data)? else { return Ok(()) };
            if into && is_dir(&data) {
                left.push(path.join(name));
            }
        }
    }
    Ok(())
}

fn is_dir(data: &Stat) -> bool {
    FileType::from_raw_mode(data.st_mode) == FileType::Directory
}

/// Removes a tree, however deep it goes.
pub(super) fn remove(top: &Path) -> io::Result<()> {
    let mut number = 0;
    loop {
        // By descriptors, one for each depth.
        match fs::remove_dir_all(top) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Deeper than there are descriptors: its depths are brought up, and it is tried again.
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise(top, &mut number)? => {}
            Err(error) => return Err(error),
        }
    }
}

/// Brings what lies deep in a tree to its top; false where nothing does.
fn raise(top: &Path, number: &mut u64) -> io::Result<bool> {
    // Of the longest names, so many make a path that can still be opened.
    const DEEP: usize = 12;
    let (before, top) = (*number, open(top)?);
    walk(&top, |dir, path, name, data| {
        if !is_dir(data) || path.components().count() < DEEP {
            return Ok(ControlFlow::Continue(true));
        }
        *number += 1;
        rustix::fs::renameat(dir, name, &top, format!("deep-{number}"))?;
        Ok(ControlFlow::Continue(false))
    })?;
    Ok(*number > before)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{RenameFlags, renameat_with};

    use super::*;

    #[test]
    fn trees_of_strangers_go_wholly() {
        let place = tempfile::tempdir().unwrap();
        let (kept, tree) = (place.path().join("kept"), place.path().join("tree"));
        fs::create_dir_all(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        fs::create_dir_all(tree.join("a")).unwrap();
        std::os::unix::fs::symlink(&kept, tree.join("a/link")).unwrap();
        // Deeper than descriptors reach.
        let mut depths = tree.join("d");
        for _ in 0..1_800 {
            depths.push("d");
        }
        fs::create_dir_all(&depths).unwrap();
        assert_eq!(weigh(&tree, 200_000).1, 1_803);
        assert_eq!(weigh(&tree, 100).1, 101);
        remove(&tree).unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
        // Nothing is no trouble.
        remove(&tree).unwrap();
        assert_eq!(weigh(&tree, 1), (0, 0));
    }

    /// Inside, a path is shorter than here: what lies too deep to be looked into is not nothing.
    #[test]
    fn what_cannot_be_looked_into_is_too_much() {
        let place = tempfile::tempdir().unwrap();
        let name = "d".repeat(250);
        let mut dir = open(place.path()).unwrap();
        for _ in 0..20 {
            rustix::fs::mkdirat(&dir, &name, Mode::RWXU).unwrap();
            dir = rustix::fs::openat(&dir, &name, OPEN, Mode::empty()).unwrap();
        }
        assert_eq!(weigh(place.path(), 200_000).0, u64::MAX);
        remove(place.path()).unwrap();
    }

    /// Somebody swaps a directory for a link to another one, again and again: nothing there is counted, moved or removed.
    #[test]
    fn whoever_made_it_may_still_be_at_it() {
        let place = tempfile::tempdir().unwrap();
        let (theirs, tree) = (place.path().join("theirs"), place.path().join("tree"));
        let mut depths = theirs.clone();
        (0..20).for_each(|_| depths.push("d"));
        fs::create_dir_all(&depths).unwrap();
        (0..50).for_each(|n| fs::write(theirs.join(format!("{n}")), "").unwrap());
        let (a, b) = (tree.join("a"), tree.join("b"));
        fs::create_dir_all(a.join("d")).unwrap();
        std::os::unix::fs::symlink(&theirs, &b).unwrap();
        let (over, mut most) = (AtomicBool::new(false), 0);
        // Nothing panics in there: whoever swaps would go on for ever.
        std::thread::scope(|scope| {
            let swaps = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // One of them goes in the end.
                    let _ = renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE);
                }
            });
            for _ in 0..3_000 {
                most = most.max(weigh(&tree, 1_000).1);
                // What is a directory no longer is an error.
                let _ = raise(&tree, &mut 0);
            }
            let _ = remove(&tree);
            over.store(true, Ordering::Relaxed);
            let _ = swaps.join();
        });
        assert!(most <= 4, "{most}");
        if tree.exists() {
            remove(&tree).unwrap();
        }
        assert!(depths.exists() && theirs.join("49").exists() && !tree.exists());
    }
}
