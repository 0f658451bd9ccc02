//! Sessions whose home outlives them: how each was made is kept, so that the next use makes it again.

use std::ffi::OsStr;
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
use super::document::{self, DocumentError, Packed};
use super::supervisor::SessionStart;
use crate::engines::{self, EngineError, EngineRef, names};

/// A file is never longer.
const LARGEST: u64 = 4 << 20;

/// Where they are kept.
#[derive(Debug, Clone)]
pub(super) struct Homes(PathBuf);

/// How a session with a home is made.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HomeFile {
    /// Hash of all that its box is made from.
    pub hash: String,
    start: SessionStart,
}

/// Variables that say where the home is. The rest of the environment may hold secrets, and is not written down.
const KEPT: [&str; 2] = ["DOCKER_HOST", "CONTAINER_HOST"];

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

impl Packed for HomeFile {
    const FORMAT: &'static str = "ringfence.session-home";
}

impl HomeFile {
    pub fn new(hash: String, start: &SessionStart) -> HomeFile {
        let mut start = start.clone();
        start.facts.env.retain(|name, _| KEPT.iter().any(|kept| name == kept));
        HomeFile { hash, start }
    }

    /// The engine that keeps it.
    pub fn engine(&self) -> Result<EngineRef, EngineError> {
        engines::registry::get(&self.start.engine)
    }

    /// Facts as they were, as far as they were kept.
    pub fn facts(&self) -> &Facts {
        &self.start.facts
    }

    /// What its session is made from now: facts of today, and the daemon that has its home.
    pub fn start_now(self, mut facts: Facts) -> SessionStart {
        facts.env.retain(|name, _| KEPT.iter().all(|kept| name != kept));
        facts.env.extend(self.start.facts.env);
        SessionStart { facts, ..self.start }
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
        let path = self.path(name).ok_or_else(|| SessionError::NotFound(name.to_owned()))?;
        let failed = |source: io::Error| SessionError::Directory { path: path.clone(), source };
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.0).map_err(failed)?;
        let bytes = document::pack(home).map_err(failed)?;
        // The new one takes the name when it is complete.
        let partial = self.0.join(format!("..{name}.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial).map_err(failed)?;
        io::Write::write_all(&mut file, &bytes).and_then(|()| fs::rename(&partial, &path)).map_err(failed)
    }

    /// Keeps it; what was kept before.
    pub fn replace(&self, name: &str, home: &HomeFile) -> Result<Option<HomeFile>, SessionError> {
        let before = self.find(name);
        self.keep(name, home).map(|()| before)
    }

    /// Takes it back: what was kept before is kept again. How a removed one is reached stays as it is.
    pub fn put_back(&self, name: &str, before: Option<HomeFile>) -> Result<(), SessionError> {
        match (before, self.path(name)) {
            (Some(before), _) => self.keep(name, &before),
            (None, Some(path)) => fs::remove_file(&path).map_err(|source| SessionError::Directory { path, source }),
            (None, None) => Ok(()),
        }
    }

    /// How the session of this name is made again. `None` also where another version wrote it: the session is made anew
    /// then, and its home is still there.
    pub fn find(&self, name: &str) -> Option<HomeFile> {
        read(self.path(name)?).ok().flatten()
    }

    /// The same of one that may have been removed meanwhile. One that another release wrote is an error: where its home is,
    /// only that release knows.
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

/// What is kept in a file: not by way of a link, and never more of it than can be. What is damaged is as good as missing.
fn read(path: PathBuf) -> Result<Option<HomeFile>, SessionError> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = fs::OpenOptions::new().read(true).custom_flags(flags).open(&path) else { return Ok(None) };
    let mut bytes = Vec::new();
    if io::Read::read_to_end(&mut io::Read::take(file, LARGEST), &mut bytes).is_err() {
        return Ok(None);
    }
    match document::unpack(&bytes) {
        Ok(home) => Ok(Some(home)),
        Err(source @ DocumentError::Release { .. }) => Err(SessionError::Stored { path, source }),
        Err(_) => Ok(None),
    }
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
        // One of another release is not misread: its session is made anew, and what was removed is reached by that release.
        let other = "{\"format\":\"ringfence.session-home\",\"release\":\"9.9.9\"}\n";
        fs::write(dir.path().join("homes/other"), other).unwrap();
        assert!(homes.find("other").is_none());
        let refused = |path: &str| {
            let error = homes.find_any("other").map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains("release 9.9.9"), "{error}");
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
