//! Where sessions are on the host: a directory each, a lock that its supervisor holds, and names.
//!
//! `<dir>/lock` is held while anything here is made or removed. `<dir>/<id>/lock` is held as long as the supervisor lives,
//! so that whoever can take it knows that it is gone. `<dir>/names/<name>` is a link to an id. Nothing here trusts what a
//! file says about life; only the lock does.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::SessionError;
use super::document::{self, Document};
use super::info::{End, Info, State};
use crate::report::Report;

/// What a session leaves for those who come later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateFile {
    pub info: Info,
    pub report: Report,
    /// When it ended.
    pub ended: Option<SystemTime>,
}

impl Document for StateFile {
    const FORMAT: &'static str = "ringfence.session-state";
}

/// How many executions there were, and why it ended: for when the rest cannot be written any more.
#[derive(Debug, Serialize, Deserialize)]
struct LastWords {
    executions: u64,
    end: Option<End>,
}

impl Document for LastWords {
    const FORMAT: &'static str = "ringfence.session-last";
}

/// Where they are written, always with the same length: so there is room for them on a full disk.
#[derive(Debug)]
pub struct Last {
    file: Option<fs::File>,
}

/// No last words are longer.
const LAST: usize = 128;

impl Last {
    pub fn write(&self, executions: u64, end: Option<End>) {
        if let (Some(file), Ok(mut words)) = (&self.file, document::write(&LastWords { executions, end })) {
            words.resize(LAST, b' ');
            // What is not written here is found in the state, or not known.
            let _ = file.write_all_at(&words, 0);
        }
    }
}

/// A state file is never longer.
const LARGEST: u64 = 1 << 20;
/// Sessions that ended are shown for so long.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The directory of all sessions.
#[derive(Debug, Clone)]
pub struct Place {
    dir: PathBuf,
}

/// A session that is being made: its directory, and its lock, which the supervisor inherits.
#[derive(Debug)]
pub struct Fresh {
    pub id: String,
    pub lock: OwnedFd,
}

impl Place {
    pub fn new(dir: &Path) -> Place {
        Place { dir: dir.to_path_buf() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn session(&self, id: &str) -> PathBuf {
        self.dir.join(id)
    }

    pub fn socket(&self, id: &str) -> PathBuf {
        self.session(id).join("socket")
    }

    pub fn lock_of(&self, id: &str) -> PathBuf {
        self.session(id).join("lock")
    }

    fn names(&self) -> PathBuf {
        self.dir.join("names")
    }

    fn error(path: &Path) -> impl FnOnce(io::Error) -> SessionError {
        move |source| SessionError::Directory { path: path.to_path_buf(), source }
    }

    /// Holds the lock of all sessions.
    fn lock(&self) -> Result<OwnedFd, SessionError> {
        for parent in self.dir.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            if !parent.exists() {
                fs::DirBuilder::new().mode(0o700).create(parent).or_else(made).map_err(Self::error(parent))?;
            }
        }
        own_directory(&self.dir)?;
        own_directory(&self.names())?;
        let path = self.dir.join("lock");
        let file = open_lock(&path).map_err(Self::error(&path))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|e| Self::error(&path)(e.into()))?;
        Ok(file)
    }

    /// Makes the directory of all sessions.
    pub fn prepare(&self) -> Result<(), SessionError> {
        self.lock().map(drop)
    }

    /// Makes the directory of a new session, and takes its name.
    pub fn make(&self, name: Option<&str>) -> Result<Fresh, SessionError> {
        let _locked = self.lock()?;
        if let Some(name) = name {
            if !is_name(name) {
                return Err(SessionError::BadName(name.to_owned()));
            }
            if let Some(id) = self.named(name) {
                if self.lives(&id) {
                    return Err(SessionError::NameTaken(name.to_owned()));
                }
                // One that another release wrote is found by its id only, from now on.
                let _ = self.settle(&id);
            }
        }
        let (id, dir) = loop {
            let id = fresh_id();
            let dir = self.session(&id);
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => break made.map(|()| (id, dir.clone())).map_err(Self::error(&dir))?,
            }
        };
        let path = dir.join("lock");
        let lock = open_lock(&path).map_err(Self::error(&path))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|e| Self::error(&path)(e.into()))?;
        if let Some(name) = name {
            let link = self.names().join(name);
            // A link that leads nowhere any more was settled above, or is somebody's who died half-way.
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(&id, &link).map_err(Self::error(&link))?;
        }
        Ok(Fresh { id, lock })
    }

    /// Takes back what [`Place::make`] made.
    pub fn unmake(&self, id: &str) {
        if let Ok(_locked) = self.lock() {
            self.forget(id);
        }
    }

    /// The id of a session by its id or name, live or not.
    pub fn resolve(&self, id_or_name: &str) -> Result<String, SessionError> {
        if is_id(id_or_name) && self.session(id_or_name).is_dir() {
            return Ok(id_or_name.to_owned());
        }
        let named = if is_name(id_or_name) { self.named(id_or_name) } else { None };
        // Names are given up with the session; one that ended is found by what it left.
        named
            .or_else(|| {
                let mut ended: Vec<StateFile> = self.ids().iter().filter_map(|id| self.kept(id)).collect();
                ended.retain(|kept| kept.info.name.as_deref() == Some(id_or_name));
                ended.into_iter().max_by_key(|kept| kept.info.created).map(|kept| kept.info.id)
            })
            .ok_or_else(|| SessionError::NotFound(id_or_name.to_owned()))
    }

    fn named(&self, name: &str) -> Option<String> {
        let id = fs::read_link(self.names().join(name)).ok()?.to_str()?.to_owned();
        (is_id(&id) && self.session(&id).is_dir()).then_some(id)
    }

    /// Every session that has a directory.
    pub fn ids(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let mut ids: Vec<String> =
            entries.flatten().filter_map(|e| e.file_name().into_string().ok()).filter(|id| is_id(id)).collect();
        ids.sort();
        ids
    }

    /// Whether its supervisor lives, or is about to. Where that cannot be looked up (no descriptor is left), it does: a live
    /// session must not be taken for a lost one.
    pub fn lives(&self, id: &str) -> bool {
        let lock =
            fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(self.lock_of(id));
        match lock {
            Ok(lock) => rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Which file the lock of a session is. `None`: there is none; an error when that cannot be looked up.
    pub fn lock_file(&self, id: &str) -> io::Result<Option<(u64, u64)>> {
        use io::ErrorKind::{NotADirectory, NotFound};
        match fs::symlink_metadata(self.lock_of(id)) {
            Ok(file) => Ok(Some((file.dev(), file.ino()))),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is written about a session.
    pub fn kept(&self, id: &str) -> Option<StateFile> {
        document::read(&self.state(id).ok()?).ok()
    }

    fn state(&self, id: &str) -> io::Result<Vec<u8>> {
        let path = self.session(id).join("state");
        let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, LARGEST), &mut bytes)?;
        Ok(bytes)
    }

    /// The process that may be its supervisor, by what is written in any version of the file: where a later one puts it
    /// elsewhere, there is none. A wrong number does no harm: a process is only ended when it holds the lock of this session.
    pub fn supervisor(&self, id: &str) -> Option<u32> {
        let state: serde_json::Value = serde_json::from_slice(&self.state(id).ok()?).ok()?;
        u32::try_from(state.get("body")?.get("info")?.get("pid")?.as_u64()?).ok()
    }

    /// What is known of a session without its supervisor. `None`: it does not stand yet, or has left nothing.
    pub fn known(&self, id: &str) -> Option<Info> {
        if let Some(kept) = self.kept(id) {
            return Some(kept.info);
        }
        let written = fs::symlink_metadata(self.session(id).join("state")).ok()?;
        let names = fs::read_dir(self.names()).ok()?.flatten();
        let mut names = names.filter_map(|link| link.file_name().into_string().ok());
        Some(Info {
            name: names.find(|name| self.named(name).as_deref() == Some(id)),
            created: written.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            pid: self.supervisor(id).unwrap_or(0),
            ..Info::unknown(id)
        })
    }

    /// Writes it, all or nothing.
    pub fn keep(&self, kept: &StateFile) -> io::Result<()> {
        let dir = self.session(&kept.info.id);
        let temporary = dir.join("state.new");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&document::write(kept)?)?;
        fs::rename(&temporary, dir.join("state"))
    }

    /// What can be written also when there is no room left, since it has its room from the beginning.
    pub fn last(&self, id: &str) -> Last {
        let path = self.session(id).join("last");
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let last = Last { file: options.open(path).ok() };
        last.write(0, None);
        last
    }

    fn read_last(&self, id: &str) -> Option<LastWords> {
        let path = self.session(id).join("last");
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        let mut bytes = [0; LAST];
        file.read_exact_at(&mut bytes, 0).ok()?;
        document::read(&bytes).ok()
    }

    /// Gives up what only a live session needs: its socket and its name.
    pub fn release(&self, id: &str, name: Option<&str>) {
        if let Ok(_locked) = self.lock() {
            self.release_locked(id, name);
        }
    }

    fn release_locked(&self, id: &str, name: Option<&str>) {
        // What is not there is what is wanted.
        let _ = fs::remove_file(self.socket(id));
        if let Some(name) = name.filter(|name| self.named(name).as_deref() == Some(id)) {
            let _ = fs::remove_file(self.names().join(name));
        }
    }

    /// A session whose supervisor is gone: says so in its state, and releases the rest. `None` when it left nothing. A state
    /// that cannot be read, since another release wrote it, say, is an error and stays as it is.
    fn settle(&self, id: &str) -> Result<Option<StateFile>, SessionError> {
        let path = || self.session(id).join("state");
        let bytes = match self.state(id) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.forget(id);
                return Ok(None);
            }
            Err(source) => return Err(SessionError::Directory { path: path(), source }),
        };
        let mut kept: StateFile =
            document::read(&bytes).map_err(|source| SessionError::Stored { path: path(), source })?;
        if kept.info.state == State::Live {
            let last = self.read_last(id);
            kept.info.state = State::Ended(last.as_ref().and_then(|last| last.end).unwrap_or(End::Lost));
            kept.info.executions = last.map_or(kept.info.executions, |last| last.executions);
            kept.info.running = 0;
            kept.ended = Some(SystemTime::now());
            // What cannot be written now is found again at the next look.
            let _ = self.keep(&kept);
        }
        self.release_locked(id, kept.info.name.as_deref());
        Ok(Some(kept))
    }

    /// One that is not alive, settled.
    pub fn ended(&self, id: &str) -> Result<Option<StateFile>, SessionError> {
        let _locked = self.lock()?;
        if self.lives(id) { Ok(None) } else { self.settle(id) }
    }

    fn forget(&self, id: &str) {
        if let Ok(entries) = fs::read_dir(self.names()) {
            for link in entries.flatten().map(|e| e.path()) {
                if fs::read_link(&link).is_ok_and(|to| to == Path::new(id)) {
                    let _ = fs::remove_file(link);
                }
            }
        }
        // Tried again at the next look.
        let _ = fs::remove_dir_all(self.session(id));
    }

    /// Forgets a session that is not alive. False when it is.
    pub fn remove(&self, id: &str) -> Result<bool, SessionError> {
        let _locked = self.lock()?;
        if self.lives(id) {
            return Ok(false);
        }
        self.forget(id);
        Ok(true)
    }

    /// Settles every session that is not alive, and forgets those that ended `all` or long ago. What is left, ended.
    pub fn clear(&self, all: bool) -> Result<Vec<StateFile>, SessionError> {
        if !self.dir.is_dir() {
            return Ok(Vec::new());
        }
        let _locked = self.lock()?;
        let mut ended = Vec::new();
        for id in self.ids() {
            if self.lives(&id) {
                continue;
            }
            let kept = match self.settle(&id) {
                Ok(Some(kept)) => kept,
                Ok(None) => continue,
                Err(_) => {
                    if all {
                        self.forget(&id);
                    }
                    continue;
                }
            };
            let old = kept.ended.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > REMEMBERED);
            if all || old {
                self.forget(&id);
            }
            if all || !old {
                ended.push(kept);
            }
        }
        if let (true, Ok(entries)) = (all, fs::read_dir(self.names())) {
            for link in entries.flatten().map(|e| e.path()) {
                if !fs::read_link(&link).is_ok_and(|to| self.dir.join(to).is_dir()) {
                    let _ = fs::remove_file(link);
                }
            }
        }
        Ok(ended)
    }
}

fn made(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

fn own_directory(path: &Path) -> Result<(), SessionError> {
    use crate::janitor::{JanitorError, own_directory};
    own_directory(path).map_err(|error| match error {
        JanitorError::NotOurs(path) => SessionError::NotOurs(path),
        JanitorError::List { path, source } | JanitorError::Make { path, source } => {
            SessionError::Directory { path, source }
        }
        JanitorError::Start(errno) => SessionError::Directory { path: path.to_path_buf(), source: errno.into() },
    })
}

fn open_lock(path: &Path) -> io::Result<OwnedFd> {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map(OwnedFd::from)
}

/// How ids begin, so that no name is taken for one.
const PREFIX: &str = "s-";
const RANDOM: usize = 12;
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

fn fresh_id() -> String {
    let mut bytes = [0u8; RANDOM];
    // Cannot fail for so few bytes once the system is up; ids that collide are tried again.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    let mut id = PREFIX.to_owned();
    id.extend(bytes.iter().map(|byte| char::from(DIGITS[usize::from(byte % 32)])));
    id
}

fn is_id(text: &str) -> bool {
    text.strip_prefix(PREFIX)
        .is_some_and(|rest| rest.len() == RANDOM && rest.bytes().all(|byte| DIGITS.contains(&byte)))
}

/// Letters, digits, `.`, `_` and `-`; no dot first; nothing that looks like an id.
pub fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && !is_id(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids() {
        for name in ["a", "notes", "my.project_1-x", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", ".x", "-x", "a/b", "a b", "ä", "a\n", &"x".repeat(65), "s-0123456789ab"] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_id(&fresh_id()));
        assert_ne!(fresh_id(), fresh_id());
    }

    #[test]
    fn a_name_is_one_sessions() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("below/sessions"));
        let one = place.make(Some("notes")).unwrap();
        assert!(place.lives(&one.id));
        assert!(matches!(place.make(Some("notes")), Err(SessionError::NameTaken(_))));
        assert_eq!(place.resolve("notes").unwrap(), one.id);
        // Its maker dies: the name is free, and nothing is left of it.
        drop(one.lock);
        let two = place.make(Some("notes")).unwrap();
        assert_eq!(place.resolve("notes").unwrap(), two.id);
        assert_eq!(place.ids(), std::slice::from_ref(&two.id));
        place.unmake(&two.id);
        assert!(place.ids().is_empty());
        assert!(matches!(place.resolve("notes"), Err(SessionError::NotFound(_))));
    }

    #[test]
    fn only_what_is_known_to_be_gone_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("sessions"));
        let one = place.make(None).unwrap();
        drop(one.lock);
        assert!(!place.lives(&one.id));
        // A lock that cannot be opened says nothing.
        let lock = place.session(&one.id).join("lock");
        fs::remove_file(&lock).unwrap();
        assert!(!place.lives(&one.id));
        std::os::unix::fs::symlink("lock", &lock).unwrap();
        assert!(place.lives(&one.id));
        assert!(place.clear(true).unwrap().is_empty());
        assert_eq!(place.ids(), [one.id]);
    }

    #[test]
    fn what_another_release_wrote_is_named_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("sessions"));
        let one = place.make(None).unwrap();
        drop(one.lock);
        let newer = r#"{"format":"ringfence.session-state","version":2,"body":{"info":{"pid":7}}}"#;
        fs::write(place.session(&one.id).join("state"), newer).unwrap();
        let error = place.ended(&one.id).unwrap_err().to_string();
        assert!(error.contains(&one.id) && error.contains("use the newer release"), "{error}");
        assert_eq!(place.supervisor(&one.id), Some(7));
        assert!(place.clear(false).unwrap().is_empty());
        assert_eq!(place.ids(), std::slice::from_ref(&one.id));
        assert!(place.remove(&one.id).unwrap() && place.ids().is_empty());
    }

    #[test]
    fn why_it_ended_is_known_without_room_for_its_state() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("sessions"));
        let one = place.make(None).unwrap();
        let mut kept = super::super::supervisor::tests::kept(dir.path());
        kept.info.id = one.id.clone();
        place.keep(&kept).unwrap();
        let last = place.last(&one.id);
        last.write(12, None);
        drop(one.lock);
        let ended = |place: &Place| place.ended(&one.id).unwrap().unwrap().info;
        assert_eq!((ended(&place).state, ended(&place).executions), (State::Ended(End::Lost), 12));
        place.keep(&kept).unwrap();
        last.write(13, Some(End::Stopped));
        assert_eq!((ended(&place).state, ended(&place).executions), (State::Ended(End::Stopped), 13));
    }

    #[test]
    fn two_hundred_at_once_make_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(dir.path());
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let made: Vec<Fresh> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..200).map(|_| scope.spawn(|| place.make(Some("one")).ok())).collect();
            threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(made.len(), 1);
    }
}
