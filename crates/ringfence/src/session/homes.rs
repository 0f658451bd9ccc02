//! Sessions whose home outlives them: how each was made is kept, so that the next use makes it again.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_policy::plan::{Mount, Plan, Volume};
use serde::{Deserialize, Serialize};

use super::SessionError;
use super::supervisor::Start;
use crate::engines::docker::names;

/// Where they are kept.
#[derive(Debug, Clone)]
pub(super) struct Homes(PathBuf);

/// How a session with a home is made.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Home {
    /// Of the program that wrote it: another one may plan otherwise.
    version: String,
    /// Hash of all that its box is made from.
    pub hash: String,
    pub start: Start,
}

/// Whether the home of a box outlives it.
pub(super) fn has_home(plan: &Plan) -> bool {
    plan.mounts.iter().any(|mount| matches!(mount, Mount::Volume { volume: Volume::Home, .. }))
}

impl Home {
    pub fn new(hash: String, start: Start) -> Home {
        Home { version: env!("CARGO_PKG_VERSION").to_owned(), hash, start }
    }
}

impl Homes {
    pub fn new(dir: &Path) -> Homes {
        Homes(dir.to_path_buf())
    }

    /// `None` for what cannot be the name of a home, and so leads nowhere else.
    fn path(&self, name: &str) -> Option<PathBuf> {
        names::part(name).ok().map(|name| self.0.join(name))
    }

    /// Where it is kept how the home of a session that was removed is reached. No name begins with a dot.
    fn removed(&self, name: &str) -> Option<PathBuf> {
        names::part(name).ok().map(|name| self.0.join(format!(".{name}")))
    }

    pub fn keep(&self, name: &str, home: &Home) -> Result<(), SessionError> {
        let path = self.path(name).ok_or_else(|| SessionError::NotFound(name.to_owned()))?;
        let failed = |source: io::Error| SessionError::Directory { path: path.clone(), source };
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.0).map_err(failed)?;
        let bytes = postcard::to_allocvec(home).map_err(|error| failed(io::Error::other(error)))?;
        // The new one takes the name when it is complete.
        let partial = self.0.join(format!("..{name}.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial).map_err(failed)?;
        io::Write::write_all(&mut file, &bytes).and_then(|()| fs::rename(&partial, &path)).map_err(failed)
    }

    /// How the session of this name is made again. `None` also where another version wrote it: the session is made anew
    /// then, and its home is still there.
    pub fn find(&self, name: &str) -> Option<Home> {
        let bytes = fs::read(self.path(name)?).ok()?;
        postcard::from_bytes::<Home>(&bytes).ok().filter(|home| home.version == env!("CARGO_PKG_VERSION"))
    }

    /// The same of one that may have been removed meanwhile.
    pub fn find_any(&self, name: &str) -> Option<Home> {
        self.find(name).or_else(|| postcard::from_bytes(&fs::read(self.removed(name)?).ok()?).ok())
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
