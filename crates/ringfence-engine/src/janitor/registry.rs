//! The lists of what must be removed, and the locks on them.
//!
//! A list is a file in a directory of this user alone. There is one for each project (by device and inode of the working
//! directory), one for each home with the placeholders outside of projects, which sandboxes of all projects share, and one for
//! the cgroups of each sandbox. Whoever needs what is on a list holds a shared lock on it. The process that gets an exclusive lock removes what is
//! on the list, and then the list.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_linux::pages::Pages;
use ringfence_linux::sys;
use ringfence_policy::facts::Account;
use ringfence_policy::plan::Stub;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::{Errno, ReadWriteFlags};

use super::placeholders::{self, Making};
use super::removal::{Removed, remove};
use super::{JanitorError, c_path};

/// A list that would be longer takes no more names.
const LIST_LIMIT: usize = 4 << 20;
/// So many lists a sandbox may need; it has names of its own on two of them.
const MOST_LISTS: usize = 14;
/// Sticky: nothing that tidies temporary directories up takes the file away while a sandbox lives for months.
const LIST_MODE: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::SVTX);
const CGROUPS: &[u8] = b"cgroups-";

/// What keeps placeholders where they are while a sandbox is planned: what is found then is there when it is mounted.
#[derive(Debug)]
pub struct Hold(Lists);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Holds the placeholders in a project and outside of it. What a crash left there is removed first.
pub fn hold(registry: &Path, project: &Path, home: &Path) -> Result<Hold, JanitorError> {
    let mut lists = Lists::new(open_registry(registry)?, registry, project, home)?;
    lists.add(Owner::Project, true)?;
    lists.add(Owner::Home, true)?;
    Ok(Hold(lists))
}

/// Removes what sandboxes left that were killed together with their janitors. Called before anything of the host is looked at.
pub fn sweep(registry: &Path) {
    let Ok(dir) = open_directory(registry) else { return };
    // A list that cannot be read now is read by the next start.
    let _ = for_each(&dir, |name| release_left(&dir, name));
}

fn release_left(dir: &OwnedFd, name: &CStr) {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::openat(dir, name, flags, Mode::empty()) {
        release(dir, name, &file);
    }
}

/// Which list a name is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Project,
    /// The home of the sandboxes that need names outside of their projects.
    Home,
    /// The cgroups of one sandbox.
    Groups,
    /// A sandbox of another project, or with another home, made names that this one needs too.
    Other,
}

#[derive(Debug)]
struct List {
    owner: Owner,
    name: CString,
    file: OwnedFd,
}

/// The lists that a sandbox needs, locked.
#[derive(Debug)]
pub(super) struct Lists {
    dir: Option<OwnedFd>,
    registry: PathBuf,
    project: PathBuf,
    home: PathBuf,
    lists: Vec<List>,
}

impl Lists {
    fn new(dir: OwnedFd, registry: &Path, project: &Path, home: &Path) -> Result<Lists, JanitorError> {
        Ok(Lists { dir: Some(dir), ..Lists::none(registry, project, home) })
    }

    fn none(registry: &Path, project: &Path, home: &Path) -> Lists {
        let [registry, project, home] = [registry, project, home].map(Path::to_path_buf);
        Lists { dir: None, registry, project, home, lists: Vec::new() }
    }

    /// For a sandbox with these names and cgroups.
    pub fn of_sandbox(
        registry: &Path,
        (project, home): (&Path, &Path),
        stubs: &[Stub],
        groups: &[PathBuf],
    ) -> Result<Lists, JanitorError> {
        if stubs.is_empty() && groups.is_empty() {
            return Ok(Lists::none(registry, project, home));
        }
        let mut lists = Lists::new(open_registry(registry)?, registry, project, home)?;
        if !stubs.is_empty() {
            lists.add(Owner::Project, true)?;
            lists.add(Owner::Home, true)?;
            lists.add_others(stubs)?;
        }
        if !groups.is_empty() {
            lists.add(Owner::Groups, true)?;
            let mut entries = vec![0];
            groups.iter().for_each(|group| placeholders::group(&mut entries, group));
            lists.append(Owner::Groups, &entries)?;
        }
        Ok(lists)
    }

    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    fn error(&self, name: &CStr, source: impl Into<io::Error>) -> JanitorError {
        JanitorError::List { path: self.registry.join(OsStr::from_bytes(name.to_bytes())), source: source.into() }
    }

    /// Locks a list; one that is not there is made.
    fn add(&mut self, owner: Owner, make: bool) -> Result<(), JanitorError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let of_directory = |kind: &str, dir: &Path| {
            rustix::fs::stat(dir).ok().map(|data| format!("{kind}-{:x}-{:x}", data.st_dev, data.st_ino))
        };
        let name = match owner {
            // A sandbox may have none on this host.
            Owner::Project => match of_directory("project", &self.project) {
                Some(name) => name,
                None => return Ok(()),
            },
            Owner::Home | Owner::Other => of_directory("home", &self.home).unwrap_or_else(|| "home".to_owned()),
            Owner::Groups => format!("cgroups-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)),
        };
        let name = c_path(Path::new(&name))?;
        self.lock(owner, name, make)
    }

    fn lock(&mut self, owner: Owner, name: CString, make: bool) -> Result<(), JanitorError> {
        let Some(dir) = &self.dir else { return Ok(()) };
        if let Some(file) = lock_shared(dir, &name, make).map_err(|e| self.error(&name, e))? {
            self.lists.push(List { owner, name, file });
        }
        Ok(())
    }

    /// Locks the lists of other projects and homes that have a name of this sandbox, or a directory that one stands in: where
    /// one working directory lies in another.
    fn add_others(&mut self, stubs: &[Stub]) -> Result<(), JanitorError> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let (mut others, mut names) = (Vec::new(), None);
        let own: Vec<&CString> = self.lists.iter().map(|list| &list.name).collect();
        for_each(dir, |name| {
            // Of a sandbox that was killed with its janitor.
            if name.to_bytes().starts_with(CGROUPS) {
                release_left(dir, name);
            }
            let shared = [&b"project-"[..], b"home"].iter().any(|kind| name.to_bytes().starts_with(kind));
            if shared && !own.iter().any(|own| own.as_c_str() == name) {
                let names = names.get_or_insert_with(|| {
                    stubs.iter().flat_map(|s| s.path.ancestors()).map(|p| p.as_os_str().as_bytes()).collect()
                });
                if has_any(dir, name, names) {
                    others.push(name.to_owned());
                }
            }
        })
        .map_err(|e| self.error(c"", e))?;
        if others.len() + self.lists.len() >= MOST_LISTS {
            let many = "too many sandboxes work in directories of this one";
            return Err(self.error(c"", io::Error::new(io::ErrorKind::ResourceBusy, many)));
        }
        others.into_iter().try_for_each(|name| self.lock(Owner::Other, name, false))
    }

    /// Appends entries to a list; where they begin.
    fn append(&self, owner: Owner, entries: &[u8]) -> Result<Option<(&List, u64)>, JanitorError> {
        let Some(list) = self.lists.iter().find(|list| list.owner == owner) else { return Ok(None) };
        let place = append(&list.file, entries).map_err(|e| self.error(&list.name, e))?;
        Ok(Some((list, place)))
    }

    /// Makes the names that are missing. Those of each list are listed at once, then made, and then it is listed which files
    /// they are: what is found later under a name is removed if it is what was made.
    pub fn make(&self, stubs: &[Stub]) -> Result<(), JanitorError> {
        let has_project = self.lists.iter().any(|list| list.owner == Owner::Project);
        let in_project = |path: &Path| has_project && path.starts_with(&self.project);
        let missing = placeholders::missing(stubs, &self.registry);
        for owner in [Owner::Project, Owner::Home] {
            let mut making = Making::new(missing.iter().filter(|s| in_project(&s.path) == (owner == Owner::Project)));
            if making.is_empty() {
                continue;
            }
            let Some((list, place)) = self.append(owner, &making.entries)? else { continue };
            let made = making.make();
            let listed = rustix::io::pwrite(&list.file, &making.entries, place);
            made?;
            listed.map_err(|e| self.error(&list.name, e))?;
        }
        Ok(())
    }

    /// In the janitor: closes every descriptor but these. Allocates nothing.
    pub fn close_all_but(&self, other: i32) {
        let mut keep = [-1; MOST_LISTS + 2];
        let own = self.lists.iter().map(|list| list.file.as_raw_fd());
        let all = own.chain(self.dir.as_ref().map(AsRawFd::as_raw_fd)).chain([other]);
        keep.iter_mut().zip(all).for_each(|(place, fd)| *place = fd);
        sys::close_all_but(&keep);
    }

    /// Gives every list up but that of cgroups. Allocates nothing.
    pub fn release(&self) {
        self.release_where(|owner| owner != Owner::Groups);
    }

    /// Gives up the list of cgroups.
    pub fn release_groups(&self) {
        self.release_where(|owner| owner == Owner::Groups);
    }

    fn release_where(&self, which: impl Fn(Owner) -> bool) {
        let Some(dir) = &self.dir else { return };
        self.lists.iter().filter(|list| which(list.owner)).for_each(|list| release(dir, &list.name, &list.file));
    }
}

/// Opens a list and locks it; `None` when it is not there and not to be made. If nobody else needs what is on it, that is
/// removed first.
fn lock_shared(dir: &OwnedFd, name: &CStr, make: bool) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = if make { flags | OFlags::CREATE } else { flags };
    loop {
        let file = match rustix::fs::openat(dir, name, flags, LIST_MODE) {
            Err(Errno::NOENT) if !make => return Ok(None),
            file => file?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => drop(clear(&file)),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error),
        }
        while let Err(error) = rustix::fs::flock(&file, FlockOperation::LockShared) {
            if error != Errno::INTR {
                return Err(error);
            }
        }
        // Else the one before took it away in this moment.
        if rustix::fs::fstat(&file)?.st_nlink > 0 {
            return Ok(Some(file));
        }
    }
}

/// Gives a list up. When nobody else needs what is on it, that is removed, and then the list. Of two that do so at once one
/// gets it: an attempt that fails has let its own lock go. Allocates nothing. A failure is not reported, and the
/// next start tries again.
fn release(dir: &OwnedFd, name: &CStr, file: &OwnedFd) {
    if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && clear(file).is_ok_and(|left| left == 0)
    {
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
    }
    // Said, and not left to the end of the descriptor: process 1 of another sandbox may just have been forked with a copy.
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Removes what is on a list that is locked for this process alone, the last first. What cannot be removed stays on it: how
/// many bytes that is. Allocates nothing.
fn clear(file: &OwnedFd) -> Result<usize, Errno> {
    let length = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(LIST_LIMIT).min(LIST_LIMIT);
    if length == 0 {
        return Ok(0);
    }
    let mut list = Pages::new(length)?;
    let length = read_all(file, &mut list)?;
    // From here on are the entries that stay. Sandboxes that started at once may have listed a directory behind what is in it:
    // then it is removed in the next round.
    let mut kept = 0;
    loop {
        let (first, mut end) = (kept, length);
        kept = length;
        while end > first {
            let start = list[first..end - 1].iter().rposition(|b| *b == 0).map_or(first, |at| first + at + 1);
            let (before, after) = list.split_at_mut(kept);
            let (others, entry) = before[..end].split_at_mut(start);
            if remove(entry, [&others[first..], after]) == Removed::NotYet {
                let size = entry.len();
                list.copy_within(start..end, kept - size);
                kept -= size;
            }
            end = start;
        }
        if kept == first || kept == length {
            break;
        }
    }
    if kept > 0 {
        rustix::io::pwrite(file, &list[kept..length], 0)?;
        rustix::fs::ftruncate(file, (length - kept) as u64)?;
    }
    Ok(length - kept)
}

fn append(file: &OwnedFd, entries: &[u8]) -> io::Result<u64> {
    if rustix::fs::fstat(file)?.st_size as usize + entries.len() > LIST_LIMIT {
        let many = "too many missing names are protected: take rules away, or a preset such as `!@git-strict`";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, many));
    }
    // Where the kernel puts it: others append too.
    let written = rustix::io::pwritev2(file, &[io::IoSlice::new(entries)], u64::MAX, ReadWriteFlags::APPEND)?;
    let place = rustix::fs::tell(file)? - written as u64;
    if written < entries.len() {
        return Err(io::ErrorKind::StorageFull.into());
    }
    Ok(place)
}

/// Whether a list has one of these names.
fn has_any(dir: &OwnedFd, name: &CStr, names: &BTreeSet<&[u8]>) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let read = || {
        let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        let mut list = vec![0; (rustix::fs::fstat(&file)?.st_size as usize).min(LIST_LIMIT)];
        let length = read_all(&file, &mut list)?;
        list.truncate(length);
        Ok::<_, Errno>(list)
    };
    // One that went in between has none.
    read().is_ok_and(|list| list.split(|b| *b == 0).any(|entry| names.contains(placeholders::path_of(entry))))
}

/// Calls this with the name of each list. Allocates nothing.
fn for_each(dir: &OwnedFd, mut act: impl FnMut(&CStr)) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); 2048];
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut entries = RawDir::new(rustix::fs::openat(dir, c".", flags, Mode::empty())?, &mut space);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            act(entry.file_name());
        }
    }
    Ok(())
}

fn read_all(file: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut length = 0;
    while length < buffer.len() {
        match rustix::io::pread(file, &mut buffer[length..], length as u64)? {
            0 => break,
            n => length += n,
        }
    }
    Ok(length)
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Makes the registry when it is not there. It stays: an empty directory.
fn open_registry(path: &Path) -> Result<OwnedFd, JanitorError> {
    own_directory(path)?;
    open_directory(path).map_err(|e| JanitorError::List { path: path.to_path_buf(), source: e.into() })
}

/// A directory that belongs to this user and that nobody else can enter.
pub fn own_directory(path: &Path) -> Result<(), JanitorError> {
    let error = |source| JanitorError::List { path: path.to_path_buf(), source };
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(error(e)),
        _ => {}
    }
    let data = fs::symlink_metadata(path).map_err(error)?;
    let ours =
        data.is_dir() && data.uid() == rustix::process::getuid().as_raw() && data.permissions().mode() & 0o077 == 0;
    if ours { Ok(()) } else { Err(JanitorError::NotOurs(path.to_path_buf())) }
}

/// Where this user's lists are: on a disk, so that a restart of the machine does not forget what must be removed, and private
/// or hidden in every sandbox. Not asked of the environment: two sandboxes with different ones must still find each other.
pub fn registry() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    if uid == 0 {
        let usable = |dir: &str| {
            fs::symlink_metadata(dir).is_ok_and(|data| data.is_dir() && data.uid() == 0)
                && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
        };
        return PathBuf::from(if usable("/var/lib") { OF_ROOT[0] } else { OF_ROOT[1] });
    }
    let dir = SHARED.into_iter().find(|dir| is_for_all(Path::new(dir))).unwrap_or("/tmp");
    in_shared(Path::new(dir), uid)
}

const OF_ROOT: [&str; 2] = ["/var/lib/ringfence-placeholders", "/run/ringfence-placeholders"];
/// The first of them that is there.
const SHARED: [&str; 3] = ["/var/tmp", "/dev/shm", "/tmp"];
const IN_HOME: &str = ".ringfence-placeholders";

/// Every place where [`registry`] may be.
pub fn places(uid: u32, accounts: &[Account]) -> Vec<PathBuf> {
    let of_root = OF_ROOT.map(PathBuf::from).into_iter().filter(|_| uid == 0);
    let shared = SHARED.map(|dir| name_in(Path::new(dir), uid));
    let homes = accounts.iter().filter(|account| account.uid == uid).map(|account| account.home.join(IN_HOME));
    of_root.chain(shared).chain(homes).collect()
}

/// Whether anybody can make names there, and nobody take another's away.
fn is_for_all(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == 0 && m.permissions().mode() & 0o1777 == 0o1777)
        && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
}

fn name_in(dir: &Path, uid: u32) -> PathBuf {
    dir.join(format!("ringfence-{uid}"))
}

/// There anybody can take the name first. Then it is in the home of the account, where nobody else can.
pub(super) fn in_shared(dir: &Path, uid: u32) -> PathBuf {
    let place = name_in(dir, uid);
    let taken = fs::symlink_metadata(&place).is_ok_and(|data| data.uid() != uid || !data.is_dir());
    match taken.then(|| crate::facts::account_home(uid)).flatten() {
        Some(home) => home.join(IN_HOME),
        None => place,
    }
}
