//! Where installed packages are kept: a directory for each set, by a hash of all that decides what is in it.
//!
//! A set is there wholly or not at all: it is built beside its place and renamed. What is in it comes from strangers. It is
//! counted and removed without following anything, and never read here.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_linux::sys;
use ringfence_policy::facts::Facts;
use ringfence_policy::policy::{Policy, Root, Shown};
use ringfence_policy::profiles::EngineChoice;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::build::{Build, Installer};
use super::{Bounds, Requirements, RequirementsError, tree};
use crate::code::language::Wire;
use crate::code::{CodeError, Language};
use crate::sets::{self, ABOUT, FILES, Lock};

/// Changes when the same requirements are to be installed anew.
const FORM: &str = "1";
const BUILDING: &str = "building-";
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
    /// The hash that names the set.
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
    /// They are installed.
    Installed(Installed),
    /// They are not, and this installs them.
    Missing(Box<Build>),
}

/// A set that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The hash that names the set.
    pub id: String,
    /// The name of the language.
    pub language: String,
    /// Milliseconds since 1970.
    pub installed: i64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
    /// The package index they came from; `None` is the default one.
    pub index: Option<String>,
    /// The first lines of what was asked for.
    pub requirements: String,
    /// The id of the image that it is for.
    #[serde(default)]
    pub image: Option<String>,
}

impl Installed {
    /// Makes sandboxes of a policy show them to code in this language.
    pub fn show(&self, language: &Language, policy: &mut Policy) -> Result<(), CodeError> {
        match (&mut policy.root, &self.image) {
            (Root::Programs, None) => {}
            // What it is called may change meanwhile.
            (Root::Image(name), Some(id)) => name.clone_from(id),
            _ => return Err(CodeError::OtherPrograms),
        }
        policy.shown.push(Shown { source: self.source.clone(), target: language.requirements_at().into() });
        Ok(())
    }

    /// The same, also for interpreters that are not ours. Python looks there before it looks at what it has of its own.
    pub fn show_all(&self, language: &Language, policy: &mut Policy) -> Result<(), CodeError> {
        self.show(language, policy)?;
        if language.wire == Wire::Marshal {
            let places = policy.env.set.entry("PYTHONPATH".to_owned()).or_default();
            let mut all = OsString::from(language.requirements_at());
            if !places.is_empty() {
                all.push(":");
                all.push(&*places);
            }
            *places = all;
        }
        Ok(())
    }
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
        let (bytes, files) = tree::weigh(dir, self.bounds.files);
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
        let installer = Installer::find(language, requirements, policy, facts, &choice)?;
        let id = id(&installer, requirements);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.dir).map_err(failed("make", &self.dir))?;
        let dir = self.dir.canonicalize().map_err(failed("find", &self.dir))?;
        let store = Store { dir, bounds: self.bounds };
        loop {
            let there = sets::is_there(&store.dir, &id);
            let how =
                if there { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
            if let Some(lock) = Lock::take(&store.dir, &id, how)? {
                // Removed or built between the look and the lock.
                if sets::is_there(&store.dir, &id) != there {
                    continue;
                }
                if there {
                    let source = store.dir.join(&id).join(FILES);
                    let image = installer.target.image().map(str::to_owned);
                    return Ok(Found::Installed(Installed { id, source, image, _lock: lock.into() }));
                }
                let build = Build::new(installer, requirements, &store, &id, lock, policy, facts, &choice);
                return build.map(|build| Found::Missing(Box::new(build))).inspect_err(|_| store.tidy(&id));
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
        let how = FlockOperation::NonBlockingLockExclusive;
        let Some(lock) = Lock::take(&self.dir, id, how)? else { return Ok(false) };
        // First of all it is no set any more.
        let gone = self.beside(id);
        remove(&gone)?;
        fs::rename(self.dir.join(id), &gone).map_err(failed("rename", &self.dir.join(id)))?;
        remove(&gone)?;
        drop(lock);
        self.tidy(id);
        Ok(true)
    }

    /// Removes what builds left that were killed. How many those were.
    pub fn clear(&self) -> Result<usize, RequirementsError> {
        let (mut cleared, names) = (0, self.names()?);
        for id in names.iter().filter_map(|name| name.strip_prefix(BUILDING)) {
            let how = FlockOperation::NonBlockingLockExclusive;
            let Some(_lock) = Lock::take(&self.dir, id, how)? else { continue };
            remove(&self.beside(id))?;
            cleared += 1;
        }
        names.iter().filter_map(|name| name.strip_suffix(sets::LOCK)).for_each(|id| self.tidy(id));
        Ok(cleared)
    }

    /// Removes the lock of what is not there any more, unless somebody has it. One that stays is in nobody's way.
    pub(super) fn tidy(&self, id: &str) {
        let _ = Lock::tidy(&self.dir, id, &self.beside(id));
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
            remove(work)?;
        }
        let about = beside.join(ABOUT);
        let text = serde_json::to_vec(kept).map_err(|error| failed("write", &about)(error.into()))?;
        fs::write(&about, text).map_err(failed("write", &about))?;
        let place = self.dir.join(&kept.id);
        fs::rename(beside, &place).map_err(failed("rename", beside))?;
        let lock = lock.share(&self.dir, &kept.id)?;
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
    match sys::poll_for(&mut fds, Some(LOOK)) {
        Ok(0) => Ok(()),
        _ => Err(RequirementsError::Cancelled),
    }
}

pub(super) fn remove(dir: &Path) -> Result<(), RequirementsError> {
    tree::remove(dir).map_err(failed("remove", dir))
}

pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64)
}

pub(super) fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RequirementsError {
    let path = path.to_path_buf();
    move |source| RequirementsError::Store { step, path, source }
}
