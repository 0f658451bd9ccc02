//! What the containment cases stand on: a scene (files on the host, and a policy) and a box made from it by the public
//! API, on an engine of choice.

pub mod host;
pub mod sandbox;
pub mod scene;

pub use sandbox::{Ran, Refusal, Sandbox};
pub use scene::{Launcher, Place, Scene, Snapshot};

use std::path::{Path, PathBuf};

/// The user that cases run as besides root.
pub const USER: &str = "ringfence-test";

/// Whether a variable is set to `1`.
pub fn asked(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|v| v == "1")
}

/// `./test` and CI set this: what is missing is then a failure, not a skip.
pub fn everything_required() -> bool {
    asked("RINGFENCE_REQUIRE_ALL")
}

/// The suite runs as process 1's child in a machine of its own, with nothing but static programs.
pub fn bare_kernel() -> bool {
    asked("RINGFENCE_KERNEL_TEST")
}

/// Where scenes are: outside of `/tmp`, and every directory above open to everybody.
pub fn base() -> PathBuf {
    match std::env::var_os("RINGFENCE_TEST_BASE") {
        Some(base) => PathBuf::from(base),
        None if host::is_root() => PathBuf::from("/var/lib"),
        None => std::env::var_os("HOME").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from),
    }
}

/// Finds a program on the host.
pub fn program(name: &str) -> Option<PathBuf> {
    let dirs = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    dirs.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}
