//! Directories, walked a little at a time: what they hold, and their removal. Links are never followed on the way.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use ringfence_guest::message::{Entry, EntryKind, Reply, Step};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::exec::Failure;
use super::files::{entry, parent, refuse_kernel, text};
use super::{Context, Fault, Flow, Task};

/// Entries that are looked at before others get their turn.
const ENTRIES: usize = 64;
/// A message with entries is sent when they take so much.
const BATCH: usize = 16 * 1024;
/// Directories that are open at once.
const DEPTH: usize = 128;
/// As long as a path can be for a program that uses it.
const LONGEST: usize = 4096;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// A directory that is being read.
#[derive(Debug)]
struct Level {
    fd: OwnedFd,
    entries: Dir,
    /// Relative to where the walk began.
    path: Vec<u8>,
}

impl Level {
    fn open(directory: impl AsFd, name: &CStr, flags: OFlags, path: Vec<u8>) -> Result<Level, Errno> {
        let fd = rustix::fs::openat(directory, name, DIRECTORY | flags, Mode::empty())?;
        refuse_kernel(&fd)?;
        let entries = Dir::read_from(&fd)?;
        Ok(Level { fd, entries, path })
    }

    /// The next name that is neither the directory itself nor the one above it.
    fn next(&mut self) -> Option<Result<CString, Errno>> {
        loop {
            match self.entries.read()? {
                Ok(entry) if [c".", c".."].contains(&entry.file_name()) => {}
                Ok(entry) => return Some(Ok(entry.file_name().to_owned())),
                Err(errno) => return Some(Err(errno)),
            }
        }
    }

    fn child(&self, name: &CStr) -> Vec<u8> {
        let slash: &[u8] = if self.path.is_empty() { b"" } else { b"/" };
        [&self.path, slash, name.to_bytes()].concat()
    }
}

/// What a directory holds.
#[derive(Debug)]
pub struct List {
    stream: u32,
    depth: usize,
    levels: Vec<Level>,
    batch: Vec<Entry>,
    size: usize,
}

impl List {
    pub fn open(stream: u32, path: &[u8], depth: u16) -> Result<List, Failure> {
        let at = |errno| (Step::Open, errno);
        let path = text(path).map_err(at)?;
        let level = Level::open(rustix::fs::CWD, &path, OFlags::empty(), Vec::new()).map_err(at)?;
        let depth = usize::from(depth.max(1));
        Ok(List { stream, depth, levels: vec![level], batch: Vec::new(), size: 0 })
    }

    fn flush(&mut self, cx: &mut Context) {
        if !self.batch.is_empty() {
            cx.link.message(self.stream, &Reply::Entries(std::mem::take(&mut self.batch)));
            self.size = 0;
        }
    }

    /// Takes the next entry in; false when there is none.
    fn next(&mut self) -> Result<bool, Errno> {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        let Some(next) = level.next() else {
            self.levels.pop();
            return Ok(true);
        };
        let name = next?;
        let path = level.child(&name);
        if path.len() > LONGEST {
            return Err(Errno::NAMETOOLONG);
        }
        let entry = match entry(&level.fd, &name, path) {
            // It went meanwhile.
            Err(Errno::NOENT) => return Ok(true),
            other => other?,
        };
        if entry.kind == EntryKind::Directory && depth < self.depth {
            match Level::open(&level.fd, &name, OFlags::NOFOLLOW, entry.path.clone()) {
                Ok(_) if depth >= DEPTH => return Err(Errno::LOOP),
                Ok(below) => self.levels.push(below),
                // It is listed, and what it holds is not to be seen, or it is gone.
                Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(e) => return Err(e),
            }
        }
        self.size += entry.path.len() + entry.target.as_ref().map_or(0, Vec::len) + 48;
        self.batch.push(entry);
        Ok(true)
    }
}

impl Task for List {
    fn is_busy(&self) -> bool {
        true
    }

    fn turn(&mut self, _: u64, cx: &mut Context) -> Result<Flow, Fault> {
        for _ in 0..ENTRIES {
            if cx.link.is_full() {
                break;
            }
            match self.next() {
                Ok(true) => {}
                Ok(false) => {
                    self.flush(cx);
                    cx.link.message(self.stream, &Reply::Done { bytes: 0 });
                    return Ok(Flow::Ended);
                }
                Err(errno) => {
                    self.flush(cx);
                    cx.link.failed(self.stream, Step::Read, errno);
                    return Ok(Flow::Ended);
                }
            }
            if self.size >= BATCH {
                self.flush(cx);
            }
        }
        Ok(Flow::Goes)
    }
}

/// A directory that is being removed with all it holds.
#[derive(Debug)]
pub struct Remove {
    stream: u32,
    directory: OwnedFd,
    name: CString,
    levels: Vec<(CString, Level)>,
}

/// Removes one entry. The walk through a directory that is not empty, when that is asked for.
pub fn remove(stream: u32, path: &[u8], recursive: bool) -> Result<Option<Remove>, Failure> {
    let at = |errno| (Step::Remove, errno);
    let (directory, name) = parent(path).map_err(at)?;
    match unlink(&directory, &name) {
        Err(Errno::NOTEMPTY) if recursive => Ok(Some(Remove { stream, directory, name, levels: Vec::new() })),
        other => other.map(|()| None).map_err(at),
    }
}

/// Removes a file or an empty directory.
fn unlink(directory: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR),
        other => other,
    }
}

impl Remove {
    /// Removes the next entry; false when all is gone.
    fn next(&mut self, cx: &mut Context) -> Result<bool, Errno> {
        let depth = self.levels.len();
        let Some((_, level)) = self.levels.last_mut() else {
            match rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(false),
                // Also when something was made in it meanwhile.
                Err(Errno::NOTEMPTY) => {}
                Err(e) => return Err(e),
            }
            let level = Level::open(&self.directory, &self.name, OFlags::NOFOLLOW, Vec::new())?;
            self.levels.push((self.name.clone(), level));
            return Ok(true);
        };
        let Some(next) = level.next() else {
            let name = self.levels.pop().map(|(name, _)| name).unwrap_or_default();
            if let Some((_, above)) = self.levels.last() {
                match rustix::fs::unlinkat(&above.fd, &name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                    Err(e) => return Err(e),
                }
            }
            return Ok(true);
        };
        let name = next?;
        let level = &self.levels[depth - 1].1;
        match unlink(&level.fd, &name) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::NOTEMPTY) => {}
            Err(e) => return Err(e),
        }
        if depth >= DEPTH {
            // Deeper than directories are kept open: it comes to the top, and is found there.
            cx.files += 1;
            let to = text(format!(".ringfence-{:x}", cx.files).as_bytes())?;
            return rustix::fs::renameat_with(&level.fd, &name, &self.levels[0].1.fd, to, RenameFlags::NOREPLACE)
                .map(|()| true);
        }
        let below = Level::open(&level.fd, &name, OFlags::NOFOLLOW, Vec::new())?;
        self.levels.push((name, below));
        Ok(true)
    }
}

impl Task for Remove {
    fn is_busy(&self) -> bool {
        true
    }

    fn turn(&mut self, _: u64, cx: &mut Context) -> Result<Flow, Fault> {
        for _ in 0..ENTRIES {
            match self.next(cx) {
                Ok(true) => {}
                Ok(false) => {
                    cx.link.message(self.stream, &Reply::Done { bytes: 0 });
                    return Ok(Flow::Ended);
                }
                Err(errno) => {
                    cx.link.failed(self.stream, Step::Remove, errno);
                    return Ok(Flow::Ended);
                }
            }
        }
        Ok(Flow::Goes)
    }
}
