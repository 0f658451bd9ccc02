//! What is read of this process and its user. Nothing else in the library looks there.
#![allow(clippy::disallowed_methods, reason = "this is the one place")]

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::HostError;
use super::files::Directories;
use crate::facts::FactsError;

/// Ringfence's directories. Without the other facts, which take their time.
pub fn directories() -> Result<Directories, HostError> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).ok_or(FactsError::NoHome)?;
    let real = Path::new(&home).canonicalize();
    let home = real.map_err(|source| FactsError::Home { path: home.into(), source })?;
    Ok(Directories::by(&home, |variable| std::env::var_os(variable)))
}

/// Where this process works.
pub fn workdir() -> Option<PathBuf> {
    std::env::current_dir().ok().filter(|here| here.is_absolute())
}

/// A program of `PATH`.
pub fn program(name: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = |dir: PathBuf| dir.join(name).canonicalize().ok().filter(|program| program.is_file());
    std::env::split_paths(&path).filter(|dir| dir.is_absolute()).find_map(found)
}

/// The environment of this process.
pub fn variables() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// The users of this machine.
pub fn passwd() -> Vec<u8> {
    std::fs::read("/etc/passwd").unwrap_or_default()
}
