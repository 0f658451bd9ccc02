//! Fixtures that the tests of several crates share. No released program contains them.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod disk;
#[cfg(feature = "engine")]
pub mod engine;
mod golden;
mod policy;
mod postgres;
mod user;

use std::path::{Path, PathBuf};

pub use disk::Disk;
pub use golden::Golden;
pub use policy::policy;
pub use postgres::Postgres;
pub use user::{TOOLCHAIN, as_an_ordinary_user, everything_required, is_root, skip, sysroot, user};

/// Directories that every sandbox covers with private space of its own.
const PRIVATE: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];

/// Creates a directory that can be a project: a sandbox does not cover it with private space.
///
/// `built` is `env!("CARGO_TARGET_TMPDIR")` of the test. It is used first. It does not serve when the clone lies below
/// `/tmp`, or when another user built the tests.
///
/// # Panics
/// When no directory can be created anywhere.
pub fn project_dir(built: &str) -> tempfile::TempDir {
    let home = std::env::home_dir();
    let candidates = [Some(PathBuf::from(built)), Some(PathBuf::from("/var/lib")), home];
    let created = candidates.into_iter().flatten().find_map(|parent| {
        let parent = parent.canonicalize().ok().filter(|real| !is_private(real))?;
        tempfile::tempdir_in(parent).ok()
    });
    created.unwrap_or_else(|| panic!("neither `{built}`, `/var/lib` nor the home directory can hold a project"))
}

fn is_private(path: &Path) -> bool {
    PRIVATE.iter().any(|private| path.starts_with(private))
}
