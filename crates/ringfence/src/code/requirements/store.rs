//! Where installed packages are kept: a directory for each set, by a hash of all that decides what is in it.
//!
//! A set is there wholly or not at all: it is built beside its place and renamed. What is in it comes from strangers. It is
//! counted and removed without following anything, and never read here.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_policy::facts::Facts;
use ringfence_policy::policy::{Policy, Root, Shown};
use ringfence_policy::profiles::EngineChoice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::build::{Build, Installer};
use super::{Bounds, Requirements, RequirementsError};
use crate::code::language::Wire;
use crate::code::{CodeError, Language};

/// Changes when the same requirements are to be installed anew.
const FORM: &str = "1";
const BUILDING: &str = "building-";
const LOCK: &str = ".lock";
/// The packages themselves, and what is known about them.
pub(super) const FILES: &str = "files";
pub(super) const ABOUT: &str = "about.json";
/// How often a build of somebody else's is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// All sets of packages that were installed for one user.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    bounds: Bounds,
}

/// Packages that are there.
#[derive(Debug, Clone)]
pub struct Installed {
    pub id: String,
    /// On the host: canonical, and full of files of strangers.
    pub(in crate::code) source: PathBuf,
    /// The id of the image whose interpreter they are for; this host's when `None`.
    pub(in crate::code) image: Option<String>,
    /// A set that is in use is not removed.
    _lock: Arc<Lock>,
}

impl PartialEq for Installed {
    fn eq(&self, other: &Installed) -> bool {
        self.source == other.source
    }
}

/// Packages that are there, or what makes them be.
#[derive(Debug)]
pub enum Found {
    Installed(Installed),
    Missing(Box<Build>),
}

/// A set that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub id: String,
    pub language: String,
    /// Milliseconds since 1970.
    pub installed: i64,
    pub bytes: u64,
    pub files: u64,
    pub index: Option<String>,
    /// The first lines of what was asked for.
    pub requirements: String,
    /// The id of the image that it is for.
    #[serde(default)]
    pub image: Option<String>,
}

/// Holds a name in the store as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Installed {
    /// Makes sandboxes of a policy show them to code in this language.
    pub fn show(&self, language: &Language, policy: &mut Policy) -> Result<(), CodeError> {
        match (&mut policy.root, &self.image) {
            (Root::Programs, None) => {}
            // What it is called may change meanwhile.
            (Root::Image(name), Some(id)) => name.clone_from(id),
            _ => return Err(CodeError::OtherPrograms),
        }
        policy.shown.push(Shown { source: self.source.clone(), target: language.packages_at().into() });
        Ok(())
    }

    /// The same, also for interpreters that are not ours. Python looks there before it looks at what it has of its own.
    pub fn show_all(&self, language: &Language, policy: &mut Policy) -> Result<(), CodeError> {
        self.show(language, policy)?;
        if language.wire == Wire::Marshal {
            let places = policy.env.set.entry("PYTHONPATH".to_owned()).or_default();
            let mut all = OsString::from(language.packages_at());
            if !places.is_empty() {
                all.push(":");
                all.push(&*places);
            }
            *places = all;
        }
        Ok(())
    }
}

/// Keeps a set from being removed, for a process that was told where its files are.
pub(crate) fn hold(source: &Path) -> Result<Lock, RequirementsError> {
    let gone = || failed("use", source)(io::ErrorKind::NotFound.into());
    let place = source.parent().ok_or_else(gone)?;
    let (dir, id) = (place.parent().ok_or_else(gone)?, place.file_name().and_then(|id| id.to_str()).ok_or_else(gone)?);
    // Whoever has it for themselves installs or removes it.
    let lock = Store::new(dir.to_path_buf()).lock(id, FlockOperation::NonBlockingLockShared)?.ok_or_else(gone)?;
    if place.join(ABOUT).exists() { Ok(lock) } else { Err(gone()) }
}

impl Store {
    /// The store in a directory, which is made when something is put into it.
    pub fn new(dir: PathBuf) -> Store {
        Store { dir, bounds: Bounds::default() }
    }

    /// With other bounds for what is installed.
    pub fn bounded(self, bounds: Bounds) -> Store {
        Store { bounds, ..self }
    }

    /// Whether a directory has more in it than a set may.
    pub(super) fn check(&self, dir: &Path) -> Result<(u64, u64), RequirementsError> {
        let (bytes, files) = weigh(dir, self.bounds.files);
        let fits = bytes <= self.bounds.bytes && files <= self.bounds.files;
        if fits { Ok((bytes, files)) } else { Err(RequirementsError::TooMuch(self.bounds)) }
    }

    /// Packages for code under a policy, or the build that installs them, which holds its place until it is dropped. Waits
    /// for a build of the same by somebody else, until `cancel` becomes readable.
    pub fn find(
        &self,
        language: &'static Language,
        requirements: &Requirements,
        policy: &Policy,
        facts: &Facts,
        choice: EngineChoice,
        cancel: Option<BorrowedFd<'_>>,
    ) -> Result<Found, RequirementsError> {
        let installer = Installer::find(language, requirements, policy, facts)?;
        let id = id(&installer, requirements);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.dir).map_err(failed("make", &self.dir))?;
        let dir = self.dir.canonicalize().map_err(failed("find", &self.dir))?;
        let store = Store { dir, bounds: self.bounds };
        loop {
            let there = store.dir.join(&id).join(ABOUT).exists();
            let how =
                if there { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
            if let Some(lock) = store.lock(&id, how)? {
                // Removed or built between the look and the lock.
                if store.dir.join(&id).join(ABOUT).exists() != there {
                    continue;
                }
                if there {
                    let source = store.dir.join(&id).join(FILES);
                    let image = installer.target.image().map(str::to_owned);
                    return Ok(Found::Installed(Installed { id, source, image, _lock: lock.into() }));
                }
                let build = Build::new(installer, requirements, store, id, lock, policy, facts, choice)?;
                return Ok(Found::Missing(Box::new(build)));
            }
            wait(cancel)?;
        }
    }

    /// What is kept, the latest first.
    pub fn list(&self) -> Result<Vec<Kept>, RequirementsError> {
        let mut kept = Vec::new();
        for id in self.names()? {
            let path = self.dir.join(&id).join(ABOUT);
            let text = fs::read(&path).ok();
            kept.extend(text.and_then(|text| serde_json::from_slice::<Kept>(&text).ok()).filter(|kept| kept.id == id));
        }
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.installed));
        Ok(kept)
    }

    /// Removes a set; false when there is none of that name or somebody uses it.
    pub fn remove(&self, id: &str) -> Result<bool, RequirementsError> {
        if !is_id(id) || !self.dir.join(id).exists() {
            return Ok(false);
        }
        let Some(_lock) = self.lock(id, FlockOperation::NonBlockingLockExclusive)? else { return Ok(false) };
        // First of all it is no set any more.
        let gone = self.beside(id);
        remove_tree(&gone)?;
        fs::rename(self.dir.join(id), &gone).map_err(failed("rename", &self.dir.join(id)))?;
        remove_tree(&gone)?;
        Ok(true)
    }

    /// Removes what builds left that were killed. How many those were.
    pub fn clear(&self) -> Result<usize, RequirementsError> {
        let mut cleared = 0;
        for name in self.names()? {
            let Some(id) = name.strip_prefix(BUILDING) else { continue };
            let Some(_lock) = self.lock(id, FlockOperation::NonBlockingLockExclusive)? else { continue };
            remove_tree(&self.dir.join(&name))?;
            cleared += 1;
        }
        Ok(cleared)
    }

    fn names(&self) -> Result<Vec<String>, RequirementsError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("read", &self.dir)(error)),
        };
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }

    /// Where a set is built.
    pub(super) fn beside(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{BUILDING}{id}"))
    }

    /// The lock of a name, when nobody else has one that excludes it.
    fn lock(&self, id: &str, how: FlockOperation) -> Result<Option<Lock>, RequirementsError> {
        // Never removed: whoever holds a lock on a file that has gone holds nothing.
        let path = self.dir.join(format!("{id}{LOCK}"));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed("open", &path))?;
        match rustix::fs::flock(&file, how) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed("lock", &path)(errno.into())),
        }
    }

    /// Puts a finished build into its place. What the box left is a directory, or it is refused.
    pub(super) fn keep(
        &self,
        kept: &Kept,
        beside: &Path,
        made: &Path,
        lock: Lock,
    ) -> Result<Installed, RequirementsError> {
        let files = beside.join(FILES);
        let is_dir = fs::symlink_metadata(made).map(|data| data.is_dir());
        if !is_dir.map_err(failed("find", made))? {
            return Err(failed("use", made)(io::ErrorKind::NotADirectory.into()));
        }
        fs::rename(made, &files).map_err(failed("rename", made))?;
        if let Some(work) = made.parent() {
            remove_tree(work)?;
        }
        let about = beside.join(ABOUT);
        let text = serde_json::to_vec(kept).map_err(|error| failed("write", &about)(error.into()))?;
        fs::write(&about, text).map_err(failed("write", &about))?;
        let place = self.dir.join(&kept.id);
        fs::rename(beside, &place).map_err(failed("rename", beside))?;
        rustix::fs::flock(&lock.0, FlockOperation::LockShared).map_err(|errno| failed("lock", &place)(errno.into()))?;
        let (id, image) = (kept.id.clone(), kept.image.clone());
        Ok(Installed { id, source: place.join(FILES), image, _lock: lock.into() })
    }
}

/// Of everything that decides what is installed.
fn id(installer: &Installer, requirements: &Requirements) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    add(FORM.as_bytes());
    installer.decides().iter().for_each(|part| add(part.as_bytes()));
    add(requirements.text.as_bytes());
    add(requirements.index.as_deref().unwrap_or_default().as_bytes());
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A little while, or the end of patience.
fn wait(cancel: Option<BorrowedFd<'_>>) -> Result<(), RequirementsError> {
    let Some(cancel) = cancel else {
        std::thread::sleep(LOOK);
        return Ok(());
    };
    let mut fds = [PollFd::from_borrowed_fd(cancel, PollFlags::IN)];
    let look = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    match poll(&mut fds, Some(&look)) {
        Ok(0) | Err(Errno::INTR) => Ok(()),
        _ => Err(RequirementsError::Cancelled),
    }
}

/// Bytes and files below a directory, nothing followed; counting ends above the most files. What cannot be looked into, such
/// as a path too long for the host, is too much.
fn weigh(dir: &Path, most: u64) -> (u64, u64) {
    let (mut bytes, mut files) = (0, 0);
    let mut open = vec![dir.to_path_buf()];
    while let Some(dir) = open.pop() {
        // What goes while it is counted does not count.
        let is_gone = |e: &io::Error| matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
        let entries = match fs::read_dir(dir) {
            Err(error) if is_gone(&error) => continue,
            Err(_) => return (u64::MAX, files),
            Ok(entries) => entries,
        };
        for entry in entries {
            let (entry, data) = match entry.and_then(|entry| entry.metadata().map(|data| (entry, data))) {
                Err(error) if is_gone(&error) => continue,
                Err(_) => return (u64::MAX, files),
                Ok(both) => both,
            };
            bytes += data.blocks() * 512;
            files += 1;
            if data.is_dir() {
                open.push(entry.path());
            }
            if files > most {
                return (bytes, files);
            }
        }
    }
    (bytes, files)
}

/// Removes a tree, also one that a stranger made: nothing is followed, however deep it goes.
pub(super) fn remove_tree(dir: &Path) -> Result<(), RequirementsError> {
    let mut number = 0_u64;
    loop {
        match fs::remove_dir_all(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Deeper than there are descriptors: its depths are brought up, and it is tried again.
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise(dir, &mut number) => {}
            Err(error) => return Err(failed("remove", dir)(error)),
        }
    }
}

/// Brings what lies deep in a tree to its top; false where nothing does.
fn raise(top: &Path, number: &mut u64) -> bool {
    // Of the longest names, so many make a path that can still be opened.
    const DEEP: usize = 12;
    let before = *number;
    let mut open = vec![(top.to_path_buf(), 0)];
    while let Some((dir, depth)) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if depth < DEEP {
                open.push((entry.path(), depth + 1));
                continue;
            }
            *number += 1;
            if fs::rename(entry.path(), top.join(format!("deep-{number}"))).is_err() {
                return false;
            }
        }
    }
    *number > before
}

pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64)
}

pub(super) fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RequirementsError {
    let path = path.to_path_buf();
    move |source| RequirementsError::Store { step, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::OwnedFd;

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
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
    }

    /// Inside, a path is shorter than here: what lies too deep to be looked into is not nothing.
    #[test]
    fn what_cannot_be_looked_into_is_too_much() {
        let place = tempfile::tempdir().unwrap();
        let name = "d".repeat(250);
        let mut dir = OwnedFd::from(File::open(place.path()).unwrap());
        for _ in 0..20 {
            rustix::fs::mkdirat(&dir, &name, Mode::RWXU).unwrap();
            dir = rustix::fs::openat(&dir, &name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        assert_eq!(weigh(place.path(), 200_000).0, u64::MAX);
        remove_tree(place.path()).unwrap();
    }
}
