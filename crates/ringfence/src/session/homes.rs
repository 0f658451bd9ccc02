//! Sessions whose home outlives them: how each was made is kept, so that the next use makes it again.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_policy::canonical;
use ringfence_policy::env::name_matches;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{Mount, Plan, Volume};
use ringfence_policy::policy::EnvPolicy;
use serde::{Deserialize, Serialize};

use super::SessionError;
use super::document::{self, Document, DocumentError, Packed};
use super::supervisor::SessionStart;
use crate::engines::{self, EngineError, EngineRef, names};

/// A file is never longer.
const LARGEST: u64 = 4 << 20;

/// Where they are kept.
#[derive(Debug, Clone)]
pub(super) struct Homes(PathBuf);

/// How a session with a home is made, and how that home is reached. This is the first line of its file, which later releases
/// read as well: what they cannot start, they can remove. The packed start follows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HomeFile {
    /// Hash of all that its box is made from.
    pub hash: String,
    engine: String,
    /// Variables that say where the home is.
    env: BTreeMap<String, String>,
    /// Only where this build wrote it.
    #[serde(skip)]
    start: Option<SessionStart>,
}

/// Whether a variable says where the home is. The rest of the environment may hold secrets, and is not written down.
fn is_kept(engine: &str, name: &OsStr) -> bool {
    engines::find(engine).is_some_and(|engine| engine.variables().iter().any(|kept| name == *kept))
}

/// Whether the home of a box outlives it.
pub(super) fn has_home(plan: &Plan) -> bool {
    plan.mounts.iter().any(|mount| matches!(mount, Mount::Volume { volume: Volume::Home, .. }))
}

/// Hash of all that a box with a home is made from: its container, and the variables that the policy names. What else is in
/// the environment (the caller's terminal, say) is no reason to make it again.
pub(super) fn hash(engine: EngineRef, plan: &Plan, env: &EnvPolicy, facts: &Facts) -> Result<String, SessionError> {
    let named = |name: &OsStr| {
        env.pass.iter().any(|pattern| name_matches(pattern, name)) || env.set.keys().any(|set| name == OsStr::new(set))
    };
    let named: Vec<_> = plan.env.iter().filter(|(name, _)| named(name)).collect();
    let container = engine.made_from(plan, facts)?;
    canonical::hash(&(container, named)).map_err(|error| EngineError::from(error).into())
}

impl Document for HomeFile {
    const FORMAT: &'static str = "ringfence.session-home";
}

impl HomeFile {
    pub fn new(hash: String, start: &SessionStart) -> HomeFile {
        let mut start = start.clone();
        start.facts.env.retain(|name, _| is_kept(&start.engine, name));
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        let env = start.facts.env.iter().map(|(name, value)| (text(name), text(value))).collect();
        HomeFile { hash, engine: start.engine.clone(), env, start: Some(start) }
    }

    fn write(&self) -> Result<Vec<u8>, io::Error> {
        let mut bytes = document::write(self)?;
        bytes.push(b'\n');
        if let Some(start) = &self.start {
            bytes.extend(document::pack(start)?);
        }
        Ok(bytes)
    }

    fn read(bytes: &[u8]) -> Result<HomeFile, DocumentError> {
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let (line, rest) = bytes.split_at(end);
        let home: HomeFile = document::read(line)?;
        Ok(HomeFile { start: rest.get(1..).and_then(|start| document::unpack(start).ok()), ..home })
    }

    /// The engine that keeps it.
    pub fn engine(&self) -> Result<EngineRef, EngineError> {
        engines::registry::get(&self.engine)
    }

    /// Facts of this moment, and the daemon that has its home.
    pub fn facts(&self, mut facts: Facts) -> Facts {
        facts.env.retain(|name, _| !is_kept(&self.engine, name));
        facts.env.extend(self.env.iter().map(|(name, value)| (name.into(), value.into())));
        facts
    }

    /// Facts of when it was made, as far as they were kept.
    pub fn facts_then(self, dir: &Path) -> Result<Facts, SessionError> {
        let source = DocumentError::Build { format: SessionStart::FORMAT };
        let missing = SessionError::Stored { path: dir.to_path_buf(), source };
        self.start.map(|start| start.facts).ok_or(missing)
    }

    /// What its session is made from now. `None`: only the build that wrote it knows.
    pub fn start_now(self, facts: Facts) -> Option<SessionStart> {
        let facts = self.facts(facts);
        self.start.map(|start| SessionStart { facts, ..start })
    }
}

impl Homes {
    pub fn new(dir: &Path) -> Homes {
        Homes(dir.to_path_buf())
    }

    /// No sandbox sees it, and it outlives a restart of the machine: the key of containers and homes lies in it, too, by a
    /// name that no home has.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// `None` for what cannot be the name of a home, and so leads nowhere else.
    fn path(&self, name: &str) -> Option<PathBuf> {
        names::part(name).ok().map(|name| self.0.join(name))
    }

    /// Where it is kept how the home of a session that was removed is reached. No name begins with a dot.
    fn removed(&self, name: &str) -> Option<PathBuf> {
        names::part(name).ok().map(|name| self.0.join(format!(".{name}")))
    }

    pub fn keep(&self, name: &str, home: &HomeFile) -> Result<(), SessionError> {
        let failed = |source| SessionError::Directory { path: self.0.join(name), source };
        self.write(name, &home.write().map_err(failed)?)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), SessionError> {
        let path = self.path(name).ok_or_else(|| SessionError::NotFound(name.to_owned()))?;
        let failed = |source: io::Error| SessionError::Directory { path: path.clone(), source };
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.0).map_err(failed)?;
        // The new one takes the name when it is complete.
        let partial = self.0.join(format!("..{name}.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial).map_err(failed)?;
        io::Write::write_all(&mut file, bytes).and_then(|()| fs::rename(&partial, &path)).map_err(failed)
    }

    /// Keeps it; what was kept before, whichever release wrote it.
    pub fn replace(&self, name: &str, home: &HomeFile) -> Result<Option<Vec<u8>>, SessionError> {
        let before = self.path(name).and_then(|path| bytes_of(&path));
        self.keep(name, home).map(|()| before)
    }

    /// Takes it back: what was kept before is kept again. How a removed one is reached stays as it is.
    pub fn put_back(&self, name: &str, before: Option<Vec<u8>>) -> Result<(), SessionError> {
        match (before, self.path(name)) {
            (Some(before), _) => self.write(name, &before),
            (None, Some(path)) => fs::remove_file(&path).map_err(|source| SessionError::Directory { path, source }),
            (None, None) => Ok(()),
        }
    }

    /// How the session of this name is made again. `None` also where it cannot be read: the session is made anew then, and
    /// its home is still there.
    pub fn find(&self, name: &str) -> Option<HomeFile> {
        read(self.path(name)?).ok().flatten()
    }

    /// The same of one that may have been removed meanwhile. One that cannot be read is an error: where its home is, is not
    /// known here.
    pub fn find_any(&self, name: &str) -> Result<Option<HomeFile>, SessionError> {
        for path in [self.path(name), self.removed(name)].into_iter().flatten() {
            if let Some(found) = read(path)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The session is removed, its home is not: it is not started by itself any more. Whether there was one.
    pub fn retire(&self, name: &str) -> Result<bool, SessionError> {
        let (Some(path), Some(removed)) = (self.path(name), self.removed(name)) else { return Ok(false) };
        match fs::rename(&path, removed) {
            Ok(()) => Ok(true),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(SessionError::Directory { path, source }),
        }
    }

    /// The home is gone. That this is, too, already is what is wanted.
    pub fn forget(&self, name: &str) -> Result<(), SessionError> {
        for path in [self.path(name), self.removed(name)].into_iter().flatten() {
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(SessionError::Directory { path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The bytes of a file: not by way of a link, and never more of it than can be.
fn bytes_of(path: &Path) -> Option<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, LARGEST), &mut bytes).ok()?;
    Some(bytes)
}

fn read(path: PathBuf) -> Result<Option<HomeFile>, SessionError> {
    let Some(bytes) = bytes_of(&path) else { return Ok(None) };
    HomeFile::read(&bytes).map(Some).map_err(|source| SessionError::Stored { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_are_looked_up() {
        let dir = tempfile::tempdir().unwrap();
        let homes = Homes::new(&dir.path().join("homes"));
        fs::create_dir(dir.path().join("homes")).unwrap();
        fs::write(dir.path().join("outside"), "").unwrap();
        // Without an end, and without a beginning: neither is read.
        assert!(homes.find("/dev/zero").is_none());
        let pipe = rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("homes/pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        );
        pipe.unwrap();
        assert!(homes.find("pipe").is_none());
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("homes/link")).unwrap();
        assert!(homes.find("link").is_none());
        // One of another version is not misread: its session is made anew, and what was removed is reached by that release.
        let other = "{\"format\":\"ringfence.session-home\",\"version\":2,\"release\":7}\n";
        fs::write(dir.path().join("homes/other"), other).unwrap();
        assert!(homes.find("other").is_none());
        let refused = |path: &str| {
            let error = homes.find_any("other").map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains("of version 2"), "{error}");
        };
        refused("homes/other");
        assert!(homes.retire("other").unwrap());
        refused("homes/.other");
        homes.forget("../outside").unwrap();
        assert!(dir.path().join("outside").exists());
        homes.forget("pipe").unwrap();
        assert!(!dir.path().join("homes/pipe").exists());
    }
}
