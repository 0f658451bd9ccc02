//! Sessions whose home outlives them: how each was made is kept, so that the next use makes it again.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_policy::plan::{Mount, Plan, Volume};
use serde::{Deserialize, Serialize};

use super::SessionError;
use super::supervisor::Start;

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

    /// Names were checked when the session got its own.
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn keep(&self, name: &str, home: &Home) -> Result<(), SessionError> {
        let path = self.path(name);
        let failed = |source: io::Error| SessionError::Directory { path: path.clone(), source };
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.0).map_err(failed)?;
        let bytes = postcard::to_allocvec(home).map_err(|error| failed(io::Error::other(error)))?;
        // The new one takes the name when it is complete.
        let partial = self.0.join(format!(".{name}.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial).map_err(failed)?;
        io::Write::write_all(&mut file, &bytes).and_then(|()| fs::rename(&partial, &path)).map_err(failed)
    }

    /// `None` also where another version wrote it: the session is made anew then, and its home is still there.
    pub fn find(&self, name: &str) -> Option<Home> {
        let bytes = fs::read(self.path(name)).ok()?;
        postcard::from_bytes::<Home>(&bytes).ok().filter(|home| home.version == env!("CARGO_PKG_VERSION"))
    }

    /// That it is gone already is what is wanted.
    pub fn forget(&self, name: &str) -> Result<(), SessionError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(SessionError::Directory { path, source }),
            _ => Ok(()),
        }
    }
}
