//! Where Ringfence keeps its own files on this host, and how they are read.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_policy::facts::Facts;

/// The name of the project's file.
pub const PROJECT_FILE: &str = ".ringfence.toml";
/// A configuration file is never larger than this.
const LARGEST: u64 = 1 << 20;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum FileError {
    /// The file could not be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The path is a symbolic link.
    #[error("`{}` is a symbolic link, which is not followed", .0.display())]
    Link(PathBuf),
    /// The path is not a regular file.
    #[error("`{}` is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// The file is too large.
    #[error("`{}` is larger than 1 MiB", .0.display())]
    TooLarge(PathBuf),
    /// The file is not UTF-8.
    #[error("`{}` is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    /// The file does not exist.
    #[error("cannot read `{}`: it does not exist", .0.display())]
    Missing(PathBuf),
    /// The file could not be written.
    #[error("cannot write `{}`: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The path has a line break, which the list of trusted files cannot hold.
    #[error("cannot trust {0:?}: its path has a line break in it")]
    LineBreak(PathBuf),
}

/// Ringfence's own directories.
#[derive(Debug, Clone)]
pub struct Directories {
    /// The user's home, canonical.
    pub home: PathBuf,
    /// The configuration file lies here.
    pub config: PathBuf,
    /// Records, trust, homes and installed packages.
    pub state: PathBuf,
    /// Sockets and state of live sessions: gone at the next boot where the system has such a place.
    pub sessions: PathBuf,
}

impl Directories {
    /// Where they are for this home, in this environment.
    pub fn new(facts: &Facts) -> Directories {
        Directories::by(&facts.home, |variable| facts.env.get(OsStr::new(variable)).cloned())
    }

    pub(super) fn by(home: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Directories {
        let set = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = |name: &str, fallback: &str| set(name).unwrap_or_else(|| home.join(fallback)).join("ringfence");
        let state = base("XDG_STATE_HOME", ".local/state");
        let runtime = set("XDG_RUNTIME_DIR").filter(|dir| dir.is_dir()).map(|dir| dir.join("ringfence"));
        let sessions = runtime.unwrap_or_else(|| state.clone()).join("sessions");
        Directories { home: home.to_path_buf(), config: base("XDG_CONFIG_HOME", ".config"), state, sessions }
    }

    /// What no box may change: where Ringfence's files are in this environment, and where they are without its variables.
    pub(super) fn own_dirs(&self, other_homes: &[PathBuf]) -> Vec<PathBuf> {
        let homes = other_homes.iter().chain([&self.home]);
        let usual = homes.flat_map(|home| [home.join(".config/ringfence"), home.join(".local/state/ringfence")]);
        distinct([self.config.clone(), self.state.clone()].into_iter().chain(usual))
    }

    /// What no box may see: where sessions may be, whichever environment they were started in, what is kept of those with a
    /// home, and records.
    pub(super) fn closed_dirs(&self, uid: u32, other_homes: &[PathBuf]) -> Vec<PathBuf> {
        let homes = other_homes.iter().chain([&self.home]).map(|home| home.join(".local/state/ringfence"));
        let states = homes.chain([self.state.clone()]);
        let runtime = Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|dir| dir.is_dir());
        let runtime = runtime.map(|dir| dir.join("ringfence/sessions"));
        let usual = states.flat_map(|state| CLOSED.map(|name| state.join(name)));
        distinct(usual.chain(runtime).chain([self.sessions.clone()]))
    }

    /// The user's configuration file.
    pub fn global_file(&self) -> PathBuf {
        self.config.join("config.toml")
    }

    /// Where records are kept.
    pub fn records(&self) -> PathBuf {
        self.state.join("records")
    }

    /// Where packages are installed that code requires: in a place that no box may change.
    pub fn requirements(&self) -> PathBuf {
        self.state.join("requirements")
    }

    /// What the user trusts.
    pub(crate) fn trust_file(&self) -> PathBuf {
        self.state.join("trust")
    }
}

/// What of Ringfence's state no box may see.
const CLOSED: [&str; 3] = ["sessions", "homes", "records"];

impl Directories {
    /// Makes what no box may see, before a plan that hides it: what is not there is not hidden, and may come while a box
    /// lives. Where it cannot be made there is nothing to hide, and whoever needs it says why.
    pub(super) fn make_closed(&self) {
        for place in CLOSED.map(|name| self.state.join(name)) {
            if !place.is_dir() {
                let _ = DirBuilder::new().recursive(true).mode(0o700).create(place);
            }
        }
    }
}

fn distinct(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    paths.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether a symbolic link in the place of a file is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// A link is followed.
    Follow,
    /// A link is an error.
    Refuse,
}

/// Reads a text file; `None` when it is not there.
pub fn read(path: &Path, links: Links) -> Result<Option<String>, FileError> {
    let no_follow = if links == Links::Refuse { libc::O_NOFOLLOW } else { 0 };
    // Not blocking, so that a pipe in its place does not hold us up.
    let opened = OpenOptions::new().read(true).custom_flags(no_follow | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        // A link that leads nowhere is a file that somebody meant to be read.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) && !path.is_symlink() =>
        {
            return Ok(None);
        }
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) && links == Links::Refuse => {
            return Err(FileError::Link(path.to_path_buf()));
        }
        Err(source) => return Err(FileError::Read { path: path.to_path_buf(), source }),
    };
    let failed = |source| FileError::Read { path: path.to_path_buf(), source };
    let data = file.metadata().map_err(failed)?;
    // While a box runs in the project, a directory holds the name of a file that is not there.
    if data.is_dir() && links == Links::Refuse {
        return Ok(None);
    }
    if !data.is_file() {
        return Err(FileError::NotAFile(path.to_path_buf()));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(FileError::TooLarge(path.to_path_buf()));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| FileError::NotText(path.to_path_buf()))
}
