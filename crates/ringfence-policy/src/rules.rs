//! File rules and which of them decides for a path.
//!
//! The nearest rule wins: one that names the path itself beats one that names a directory above it. Among those that name
//! the same path exact beats glob, then the longer pattern beats the shorter, then the later layer wins, and inside one
//! layer `exclude` > `ro` > `rw`.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::glob::Glob;

/// What a rule grants. Ordered: at equal specificity the greater wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    Rw,
    Ro,
    Exclude,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Rw => "rw",
            Access::Ro => "ro",
            Access::Exclude => "exclude",
        })
    }
}

/// One file rule of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRule {
    pub access: Access,
    pub pattern: Pattern,
    /// What holds when an exact path is not there.
    pub missing: Missing,
    pub origin: Origin,
}

/// Which paths a rule names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// One absolute, lexically normalised path (and all below it).
    Exact(PathBuf),
    /// Every existing path that matches (and all below it).
    Glob(Glob),
}

/// What holds when an exact path is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Nothing to do (presets that list what may be there).
    Ignore,
    /// Inside a writable place it must not appear: a read-only stand-in of this kind takes the name.
    Protect(Kind),
    /// An error: the user named it.
    Fail,
}

/// File or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    File,
    Dir,
}

/// Which layer a value comes from, and the place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub layer: LayerKind,
    /// `preset @base`, `/home/u/.config/ringfence/config.toml:12`, `--ro`.
    pub place: String,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

/// The layers, in the order in which they are stacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerKind {
    Profile,
    Global,
    Project,
    Flags,
}
