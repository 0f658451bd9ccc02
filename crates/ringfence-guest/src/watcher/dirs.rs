//! The directories that are watched, each once for all sandboxes.

use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// What happened.
pub enum Change {
    /// Something came to this name, or went from it.
    Name(PathBuf),
    /// More than the kernel could tell.
    Anything,
}

#[derive(Default)]
pub struct Dirs {
    inotify: Option<OwnedFd>,
    dirs: BTreeMap<PathBuf, Dir>,
    /// One directory may have several paths.
    paths: HashMap<i32, Vec<PathBuf>>,
    trouble: Option<Errno>,
}

#[derive(Default)]
struct Dir {
    /// `None` where there is no such directory.
    watch: Option<i32>,
    users: u32,
}

fn mask() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::ONLYDIR
        | WatchFlags::DONT_FOLLOW
}

impl Dirs {
    pub fn new() -> Dirs {
        Dirs::default()
    }

    /// The kernel limits how many instances a user has. A failure is tried again for the next sandbox.
    pub fn open(&mut self) -> Result<(), Errno> {
        if self.inotify.is_none() {
            self.inotify = Some(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?);
        }
        Ok(())
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Why a directory could not be watched since this was last asked.
    pub fn trouble(&mut self) -> Option<Errno> {
        self.trouble.take()
    }

    pub fn add(&mut self, path: &Path) {
        let dir = self.dirs.entry(path.to_path_buf()).or_default();
        dir.users += 1;
        if dir.watch.is_none() {
            self.watch(path);
        }
    }

    fn watch(&mut self, path: &Path) {
        let (Some(inotify), Some(dir)) = (&self.inotify, self.dirs.get_mut(path)) else { return };
        match inotify::add_watch(inotify, path, mask()) {
            Ok(watch) => {
                dir.watch = Some(watch);
                let paths = self.paths.entry(watch).or_default();
                if !paths.iter().any(|other| other == path) {
                    paths.push(path.to_path_buf());
                }
            }
            // Its parent tells when it appears. What this user cannot look into is somebody else's to change.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
            Err(errno) => self.trouble = Some(errno),
        }
    }

    pub fn remove(&mut self, path: &Path) {
        let Some(dir) = self.dirs.get_mut(path) else { return };
        dir.users -= 1;
        if dir.users == 0 {
            self.unwatch(path);
            self.dirs.remove(path);
        }
    }

    fn unwatch(&mut self, path: &Path) {
        let Some(watch) = self.dirs.get_mut(path).and_then(|dir| dir.watch.take()) else { return };
        let Some(paths) = self.paths.get_mut(&watch) else { return };
        paths.retain(|other| other != path);
        if paths.is_empty() {
            self.paths.remove(&watch);
            if let Some(inotify) = &self.inotify {
                // It is gone already when its directory is.
                let _ = inotify::remove_watch(inotify, watch);
            }
        }
    }

    /// All that has happened. Directories that came or went are watched anew.
    pub fn read(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let Some(inotify) = &self.inotify else { return changes };
        let mut buffer = [MaybeUninit::uninit(); 32 * 1024];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut seen: BTreeMap<PathBuf, ()> = BTreeMap::new();
        let mut lost = false;
        // What is not read now is read next.
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                lost = true;
            }
            let (Some(name), Some(paths)) = (event.file_name(), self.paths.get(&event.wd())) else { continue };
            for path in paths {
                seen.insert(path.join(std::ffi::OsStr::from_bytes(name.to_bytes())), ());
            }
            if reader.is_buffer_empty() && seen.len() > 1000 {
                break;
            }
        }
        for path in seen.into_keys() {
            self.renew(&path);
            changes.push(Change::Name(path));
        }
        if lost {
            self.renew(Path::new("/"));
            changes.push(Change::Anything);
        }
        changes
    }

    /// Another directory may be at this path, and at those below it.
    fn renew(&mut self, path: &Path) {
        let range = self.dirs.range(path.to_path_buf()..);
        let below: Vec<PathBuf> = range.map(|(dir, _)| dir).take_while(|dir| dir.starts_with(path)).cloned().collect();
        for dir in below {
            self.unwatch(&dir);
            self.watch(&dir);
        }
    }
}
