//! The keeper: a process beside the box that clears up what a box leaves on the host, also when Ringfence is killed.
//!
//! Two things outlive a killed process: names that were made so that something can be mounted on them (a protected path
//! that is not there can only be kept from appearing by a mount, and a mount needs a name), and control groups. The keeper
//! waits until its owner is gone and then removes both.
//!
//! Removing a name drops whatever is mounted on it, in every box. So each box lists the names it needs in a file of its
//! own, locked while it lives, and a name goes when no living box lists it. All changes happen under one lock. Boxes of
//! other users have lists that cannot be read here: they are seen by the locks that they have on the names (`hold`). What a
//! crash left is cleared by the next start. Only empty directories and files of exactly our mode and length are removed,
//! and never through a symlink.

mod hold;
mod removal;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hold::{Held, Holds, hold, is_needed, is_needed_above};
use removal::{Patience, remove};
use ringfence_linux::beside::Beside;
use ringfence_linux::pages::Pages;
use ringfence_linux::sys;
use ringfence_policy::plan::Stub;
use ringfence_policy::rules::Kind;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RawDir};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, send, socketpair};

/// A list cannot be longer than this; a box that would need more is refused.
const LIST_LIMIT: usize = 64 * 1024;
/// Nor can those of all living boxes together: one more is refused.
const LIVING_LIMIT: usize = 4 << 20;

/// Why the keeper could not prepare a box.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error("cannot make `{}` to keep it protected: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot keep the list of stand-ins at `{}`: {source}", path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("`{}` is not a directory of this user alone", .0.display())]
    NotOurs(PathBuf),
    #[error("cannot start the keeper: {0}")]
    Start(rustix::io::Errno),
    #[error("no memory to read the lists of stand-ins: {0}")]
    Memory(rustix::io::Errno),
}

/// Clears up when it is dropped, or when its process dies.
pub struct Keeper {
    /// The names that this box relies on, locked.
    held: Vec<Held>,
    process: Option<Beside<Box<dyn FnMut() -> i32 + Send + Sync>>>,
    /// Its end tells the keeper to begin.
    lifeline: Option<OwnedFd>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// Makes the names, and starts a keeper for them and for these control groups; `None` when there is nothing to keep.
    pub fn start(stubs: &[Stub], groups: &[PathBuf], registry: &Path) -> Result<Option<Keeper>, KeeperError> {
        let groups = groups.iter().map(|path| c_path(path)).collect::<Result<Vec<_>, _>>()?;
        if stubs.is_empty() {
            return if groups.is_empty() { Ok(None) } else { Self::beside(None, groups).map(Some) };
        }
        let (path, mut memory) = (c_path(registry)?, Memory::new().map_err(KeeperError::Memory)?);
        let mut registry = Registry::open(&path, &mut memory)?;
        registry.sweep(None, true);
        if registry.memory.full {
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(path.as_bytes()));
            return Err(KeeperError::List { path, source: io::ErrorKind::StorageFull.into() });
        }
        let (needed, mut entries) = needed(stubs, registry.memory.names.bytes());
        groups.iter().for_each(|group| {
            entries.push(GROUP);
            entries.extend_from_slice(group.to_bytes_with_nul());
        });
        // Listed before they are made, and kept before the first is made: a crash in between leaves nothing unknown.
        let list = Arc::new(List::write(registry, &entries)?);
        let mut keeper = Self::beside(Some(list.clone()), groups).inspect_err(|_| list.unlock())?;
        let make = |stub: Cow<'_, Stub>| {
            hold(&stub, &path).map_err(|source| KeeperError::Make { path: stub.path.clone(), source })
        };
        let made = needed.into_iter().map(make).collect::<Result<Vec<_>, _>>().map(|held| {
            keeper.held = held.into_iter().flatten().collect();
            keeper.give();
        });
        // Before a keeper is dropped, which needs the lock to clear up.
        list.unlock();
        made.map(|()| Some(keeper))
    }

    /// Starts the process. It shares this one's memory, which costs a tenth of a fork, and lives on when this one is killed.
    fn beside(list: Option<Arc<List>>, groups: Vec<CString>) -> Result<Keeper, KeeperError> {
        let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(KeeperError::Start)?;
        // What is shared is made here; afterwards there are only system calls.
        let keep_and_clear: Box<dyn FnMut() -> i32 + Send + Sync> = Box::new(move || {
            // Signals to the terminal's process group are not for the keeper.
            let _ = rustix::process::setsid();
            let own = list.as_ref().map_or(-1, |list| list.file.as_raw_fd());
            sys::close_all_but(&[theirs.as_raw_fd(), own]);
            let mut holds = Holds::new();
            let killed = !is_released(&theirs, &mut holds);
            // Without memory, the next start clears up.
            if let (Some(list), Ok(mut memory)) = (&list, Memory::new()) {
                list.leave(&mut memory, &holds, if killed { LAST_TRIES } else { 1 });
            }
            groups.iter().for_each(|group| remove_group(group));
            0
        });
        let process = Some(Beside::start(keep_and_clear).map_err(KeeperError::Start)?);
        Ok(Keeper { held: Vec::new(), process, lifeline: Some(ours) })
    }

    /// Lets it hold what its owner holds. What it does not get is free for a moment before it is removed.
    fn give(&self) {
        let Some(lifeline) = &self.lifeline else { return };
        for held in self.held.chunks(Holds::AT_ONCE) {
            let fds: Vec<BorrowedFd<'_>> = held.iter().map(|held| held.as_fd()).collect();
            // Without them it does with what its owner holds.
            let _ = sys::send_with(lifeline, &[HOLD], &fds, SendFlags::DONTWAIT);
        }
    }

    fn tell(&mut self) {
        self.held.clear();
        if let Some(lifeline) = self.lifeline.take() {
            // Somebody waits for it, so that it does not wait for others. When it is gone, nobody does.
            let _ = send(&lifeline, &[RELEASED], SendFlags::NOSIGNAL);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.tell();
        // What it keeps is gone when the keeper is: whoever looks afterwards finds none.
        if let Some(process) = self.process.take() {
            let _ = process.join();
        }
    }
}

/// What an owner says to its keeper: clear up, and end; hold these.
const RELEASED: u8 = 1;
const HOLD: u8 = 2;

/// Waits for the owner's last word. False when it is gone without.
fn is_released(owner: &OwnedFd, holds: &mut Holds) -> bool {
    loop {
        let mut word = [0];
        // Whatever comes with a descriptor asks for it to be held: nothing else is sent with one.
        match sys::receive_with(owner, &mut word, Holds::AT_ONCE, RecvFlags::empty(), |held| holds.add(held)) {
            Ok(received) if received.bytes == 1 => {}
            Err(rustix::io::Errno::INTR) => continue,
            _ => return false,
        }
        if word == [RELEASED] {
            return true;
        }
    }
}

/// The stubs to make, and what to list: those, and names that another living box made and this one relies on too.
fn needed<'a>(stubs: &'a [Stub], living: &[u8]) -> (Vec<Cow<'a, Stub>>, Vec<u8>) {
    let mut make: Vec<Cow<'a, Stub>> = Vec::new();
    let mut directories: BTreeMap<&Path, bool> = BTreeMap::new();
    for stub in stubs {
        // The user's own stays the user's. One that went since planning was another box's.
        if !lists(living, stub.path.as_os_str().as_bytes()) && !is_needed(&stub.path) {
            continue;
        }
        // And so was a directory above it that went, or that one holds.
        let mut made = |dir: &'a Path| *directories.entry(dir).or_insert_with(|| is_needed_above(dir, stubs));
        let mut above: Vec<&Path> = stub.path.ancestors().skip(1).take_while(|dir| made(dir)).collect();
        above.retain(|dir| !make.iter().any(|other| other.path == *dir));
        let directory =
            |dir: &Path| Stub { path: dir.to_path_buf(), kind: Kind::Dir, text: String::new(), present: false };
        make.extend(above.into_iter().rev().map(|dir| Cow::Owned(directory(dir))));
        make.push(Cow::Borrowed(stub));
    }
    let mut entries = Vec::new();
    for stub in &make {
        // A directory, or a file of this length.
        entries.push(if stub.kind == Kind::Dir { b'd' } else { b'0' + stub.text.len().min(9) as u8 });
        entries.extend_from_slice(stub.path.as_os_str().as_bytes());
        entries.push(0);
    }
    (make, entries)
}

/// How often a keeper whose owner was killed clears up, 20 ms apart: what was in the box takes its time to go and holds names
/// until then, and a `bwrap` that is not dead yet makes the names anew that it finds missing.
const LAST_TRIES: u32 = 100;
/// So often in any case.
const SETTLING: u32 = 10;

/// In a list: a control group, for when the keeper is killed too.
const GROUP: u8 = b'g';
/// Among the names of the living: the list of one of them.
const BOX: u8 = b'b';

/// Whether a list has this path.
fn lists(list: &[u8], path: &[u8]) -> bool {
    list.split(|b| *b == 0).any(|entry| entry.get(1..) == Some(path))
}

/// Whether a list has something below this path.
fn lists_below(list: &[u8], path: &[u8]) -> bool {
    list.split(|b| *b == 0).any(|entry| {
        entry.get(1..).and_then(|other| other.strip_prefix(path)).is_some_and(|rest| rest.first() == Some(&b'/'))
    })
}

/// What a sweep does with a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Remembers the names of a living box.
    Living,
    /// Removes those of one that is gone.
    Remove,
    /// The same once more, and the list.
    Forget,
}

/// Removes what boxes left that were killed together with their keepers. Called before anything of the host is looked at,
/// so that no plan takes a stand-in for the user's own.
pub fn sweep(registry: &Path) {
    if registry.is_dir()
        && let Ok(mut memory) = Memory::new()
        && let Ok(path) = c_path(registry)
        && let Ok(mut registry) = Registry::open(&path, &mut memory)
    {
        registry.sweep(None, true);
        registry.close();
    }
}

fn c_path(path: &Path) -> Result<CString, KeeperError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|e| KeeperError::List { path: path.to_path_buf(), source: e.into() })
}

/// Buffers for sweeping, by system calls alone: the keeper, which shares its owner's memory, must neither allocate nor free.
struct Memory {
    /// The names that living boxes need. Boxes in one project have the same list, which stands here once.
    names: Bytes,
    /// Where the lists among them begin and end; those that do not fit are not found again.
    blocks: [(usize, usize); 16],
    /// The lists and the control groups of living boxes.
    boxes: Bytes,
    list: Pages,
    /// What lives did not fit, so that nothing can be said to be unused.
    full: bool,
}

impl Memory {
    fn new() -> Result<Memory, rustix::io::Errno> {
        // Untouched pages cost nothing.
        let [names, boxes] = [Bytes::new(LIVING_LIMIT)?, Bytes::new(LIVING_LIMIT)?];
        Ok(Memory { names, blocks: [(0, 0); 16], boxes, list: Pages::new(LIST_LIMIT)?, full: false })
    }

    fn clear(&mut self) {
        (self.names.length, self.boxes.length, self.blocks, self.full) = (0, 0, [(0, 0); 16], false);
    }

    /// Remembers the list of a living box.
    fn add(&mut self, name: &CStr, length: usize) {
        let Memory { names, blocks, boxes, list, full } = self;
        let list = &list[..length];
        // Groups come last.
        let groups = list.split_inclusive(|b| *b == 0).take_while(|e| e[0] != GROUP).map(<[u8]>::len).sum();
        let (own, groups) = list.split_at(groups);
        let known = |(start, end): &(usize, usize)| names.bytes()[*start..*end] == *own;
        if !blocks.iter().any(known) {
            let start = names.length;
            *full |= !names.add(own);
            if let Some(block) = blocks.iter_mut().find(|block| **block == (0, 0)) {
                *block = (start, names.length);
            }
        }
        *full |= !(boxes.add(groups) && boxes.add(&[BOX]) && boxes.add(name.to_bytes_with_nul()));
    }
}

/// Bytes that end where their memory does.
struct Bytes {
    pages: Pages,
    length: usize,
}

impl Bytes {
    fn new(limit: usize) -> Result<Bytes, rustix::io::Errno> {
        Ok(Bytes { pages: Pages::new(limit)?, length: 0 })
    }

    fn bytes(&self) -> &[u8] {
        &self.pages[..self.length]
    }

    /// False when they do not fit.
    fn add(&mut self, bytes: &[u8]) -> bool {
        let place = self.pages.get_mut(self.length..self.length + bytes.len());
        let fits = place.map(|place| place.copy_from_slice(bytes)).is_some();
        self.length += if fits { bytes.len() } else { 0 };
        fits
    }
}

/// The directory of all lists of this user, locked.
struct Registry<'a> {
    path: &'a CStr,
    dir: OwnedFd,
    lock: OwnedFd,
    memory: &'a mut Memory,
    /// Of a keeper: what it holds.
    holds: Option<&'a Holds>,
    /// Something stays because somebody holds it.
    busy: bool,
}

const LOCK: &CStr = c"lock";
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

impl<'a> Registry<'a> {
    /// Makes the directory when it is not there, and locks it.
    fn open(path: &'a CStr, memory: &'a mut Memory) -> Result<Registry<'a>, KeeperError> {
        let name = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
        loop {
            own_directory(name)?;
            match Self::lock(path) {
                // The last box of before took it away in this moment.
                Ok(None) | Err(rustix::io::Errno::NOENT) => {}
                Ok(Some((dir, lock))) => {
                    return Ok(Registry { path, dir, lock, memory, holds: None, busy: false });
                }
                Err(e) => return Err(KeeperError::List { path: name.to_path_buf(), source: e.into() }),
            }
        }
    }

    /// Opens and locks it. `None` when it was taken away meanwhile. Allocates nothing.
    fn lock(path: &CStr) -> Result<Option<(OwnedFd, OwnedFd)>, rustix::io::Errno> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&dir, LOCK, flags, PRIVATE)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok((rustix::fs::fstat(&lock)?.st_nlink > 0).then_some((dir, lock)))
    }

    /// Removes the names of boxes that are gone, and of `own`, unless a living box needs them; and their lists, when this is
    /// the `last` time. Allocates nothing.
    fn sweep(&mut self, own: Option<&CStr>, last: bool) {
        self.memory.clear();
        let mut patience = Patience::default();
        // What lives must be known before anything is removed; and a directory of one box may have another's names in it.
        let Some(gone) = self.for_each(|registry, name| registry.look_at(name, own, Round::Living, &mut patience))
        else {
            return;
        };
        match own {
            // The usual end: the lists of a thousand others are not opened for it, and in its own a directory comes before
            // what is in it, so that once is enough.
            Some(name) if gone <= 1 => {
                self.look_at(name, own, if last { Round::Forget } else { Round::Remove }, &mut patience);
            }
            Some(name) if !last => {
                self.look_at(name, own, Round::Remove, &mut patience);
            }
            None if gone == 0 => {}
            _ => {
                for round in [Round::Remove, Round::Forget] {
                    let _ = self.for_each(|registry, name| registry.look_at(name, own, round, &mut patience));
                }
            }
        }
    }

    /// Calls this with each list, and counts for how many of them it is true.
    fn for_each(&mut self, mut act: impl FnMut(&mut Self, &CStr) -> bool) -> Option<usize> {
        let mut space = [MaybeUninit::uninit(); 2048];
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, c".", flags, Mode::empty()).ok()?;
        let (mut entries, mut count) = (RawDir::new(dir, &mut space), 0);
        while let Some(Ok(entry)) = entries.next() {
            if entry.file_name().to_bytes().starts_with(b"box-") {
                count += usize::from(act(self, entry.file_name()));
            }
        }
        Some(count)
    }

    /// Whether this box is gone.
    fn look_at(&mut self, name: &CStr, own: Option<&CStr>, round: Round, patience: &mut Patience) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&self.dir, name, flags, Mode::empty()) else { return false };
        // Asked once: the names of a box that ends between two rounds are in use for all of them, and to forget its list then
        // would leave them for good.
        let gone = own == Some(name)
            || !(round != Round::Living && lists(self.memory.boxes.bytes(), name.to_bytes()))
                && rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
        if gone == (round == Round::Living) {
            return gone;
        }
        let length = read_all(&file, &mut self.memory.list);
        if round == Round::Living {
            self.memory.add(name, length);
            return false;
        }
        let Memory { names, boxes, list, full, .. } = &mut *self.memory;
        if *full {
            return true;
        }
        let mut in_use = false;
        for entry in list[..length].split_inclusive_mut(|b| *b == 0).rev() {
            let Some((kind, path)) = entry.split_first_mut() else { continue };
            let name = path.strip_suffix(b"\0").unwrap_or(path);
            let living = if *kind == GROUP { boxes.bytes() } else { names.bytes() };
            if !lists(living, name) {
                in_use |= lists_below(living, name);
                let held = remove(*kind, path, self.holds, patience);
                (in_use, self.busy) = (in_use | held, self.busy | held);
            }
        }
        // What a living box needs, or has names in, is removed when that one has ended.
        if round == Round::Forget && !in_use {
            let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
        }
        true
    }

    /// Takes the directory itself away when no box lives.
    fn close(self) {
        if self.memory.boxes.length == 0 && !self.memory.full {
            let _ = rustix::fs::unlinkat(&self.dir, LOCK, AtFlags::empty());
            let _ = rustix::fs::rmdir(self.path);
        }
    }
}

/// What one box needs.
#[derive(Debug)]
struct List {
    /// Locked while the box lives.
    file: fs::File,
    name: CString,
    registry_path: CString,
    registry_lock: OwnedFd,
}

impl List {
    /// Writes the list of a new box.
    fn write(registry: Registry<'_>, entries: &[u8]) -> Result<List, KeeperError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("box-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(std::ffi::OsStr::from_bytes(registry.path.to_bytes())).join(&name);
        let error = |source: io::Error| KeeperError::List { path: path.clone(), source };
        if entries.len() > LIST_LIMIT {
            let many = "too many missing names are protected: take rules away, or a preset such as `!@git-strict`";
            return Err(error(io::Error::new(io::ErrorKind::FileTooLarge, many)));
        }
        let c_name = CString::new(name.as_str()).map_err(|e| error(e.into()))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&registry.dir, &c_name, flags, PRIVATE).map_err(|e| error(e.into()))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|e| error(e.into()))?;
        let mut file = fs::File::from(file);
        io::Write::write_all(&mut file, entries).map_err(error)?;
        Ok(List { file, name: c_name, registry_path: registry.path.to_owned(), registry_lock: registry.lock })
    }

    /// Lets other boxes start and end.
    fn unlock(&self) {
        let _ = rustix::fs::flock(&self.registry_lock, FlockOperation::Unlock);
    }

    /// The box has ended. Allocates nothing; there is nobody to report a failure to, and the next start tries again.
    fn leave(&self, memory: &mut Memory, holds: &Holds, tries: u32) {
        let mut busy = true;
        for n in 1..=tries {
            let last = n == tries || n > SETTLING && !busy;
            let Ok(Some((dir, lock))) = Registry::lock(&self.registry_path) else { return };
            let mut registry = Registry {
                path: &self.registry_path,
                dir,
                lock,
                memory: &mut *memory,
                holds: Some(holds),
                busy: false,
            };
            registry.sweep(Some(&self.name), last);
            busy = registry.busy;
            if last {
                return registry.close();
            }
            drop(registry);
            // Others start and end meanwhile.
            sys::pause_for(Duration::from_millis(20));
        }
    }
}

fn read_all(file: &OwnedFd, buffer: &mut [u8]) -> usize {
    let mut length = 0;
    while length < buffer.len() {
        match rustix::io::pread(file, &mut buffer[length..], length as u64) {
            Ok(0) | Err(_) => break,
            Ok(n) => length += n,
        }
    }
    length
}

/// Removes a control group as soon as the last process in it is gone; process 1 dies with its owner, and the rest with it.
fn remove_group(path: &CStr) {
    // A minute: on a busy host the last process takes its time.
    for tried in 0..12_000 {
        match rustix::fs::rmdir(path) {
            Err(rustix::io::Errno::BUSY) if tried == 0 => thaw_group(path),
            Err(rustix::io::Errno::BUSY) => sys::pause_for(Duration::from_millis(5)),
            _ => return,
        }
    }
}

/// What is frozen does not end, not even when it is killed.
fn thaw_group(path: &CStr) {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let Ok(dir) = openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else { return };
    for (file, word) in [(c"freezer.state", &b"THAWED"[..]), (c"cgroup.freeze", b"0")] {
        if let Ok(file) = openat(&dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            // Then it is waited for in vain.
            let _ = rustix::io::write(&file, word);
        }
    }
}

/// A directory that belongs to this user and that nobody else can enter.
pub fn own_directory(path: &Path) -> Result<(), KeeperError> {
    let error = |source| KeeperError::List { path: path.to_path_buf(), source };
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(error(e)),
        _ => {}
    }
    let data = match fs::symlink_metadata(path) {
        // The last box of before took it away in this moment.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return own_directory(path),
        data => data.map_err(error)?,
    };
    let ours =
        data.is_dir() && data.uid() == rustix::process::getuid().as_raw() && data.permissions().mode() & 0o077 == 0;
    if ours { Ok(()) } else { Err(KeeperError::NotOurs(path.to_path_buf())) }
}

/// Where this user's lists are: hidden from every box. Not asked of the environment: two boxes with different ones must still
/// find each other.
pub fn registry() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    let usable = |dir: &Path| {
        fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == uid)
            && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
    };
    let runtime = PathBuf::from(format!("/run/user/{uid}"));
    match uid {
        0 if usable(Path::new("/run")) => PathBuf::from("/run/ringfence-keeper"),
        _ if usable(&runtime) => runtime.join("ringfence"),
        // In memory where there is such a place.
        _ if is_for_all(Path::new("/dev/shm")) => shared(PathBuf::from(format!("/dev/shm/ringfence-{uid}")), uid),
        _ => shared(PathBuf::from(format!("/tmp/ringfence-{uid}")), uid),
    }
}

/// Whether anybody can make names there, and nobody take another's away.
fn is_for_all(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == 0 && m.permissions().mode() & 0o1777 == 0o1777)
}

/// There anybody can take the name first. Then it is in the home of the account, where nobody else can.
fn shared(place: PathBuf, uid: u32) -> PathBuf {
    let taken = fs::symlink_metadata(&place).is_ok_and(|m| m.uid() != uid || !m.is_dir());
    match taken.then(|| crate::facts::account_home(uid)).flatten() {
        Some(home) => home.join(".ringfence-boxes"),
        None => place,
    }
}

#[cfg(test)]
mod tests;
