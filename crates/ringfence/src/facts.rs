//! Gathers the facts of this host that a plan depends on.

use std::io::Read;
use std::path::PathBuf;

use ringfence_policy::facts::{Facts, MountPoint, bound_sockets};

/// Why a fact could not be gathered.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    #[error("cannot read `{path}`: {source}")]
    Read { path: &'static str, source: std::io::Error },
    #[error("cannot tell the home directory: HOME is not set")]
    NoHome,
    #[error("the home directory `{}` cannot be used: {source}", path.display())]
    Home { path: PathBuf, source: std::io::Error },
}

/// Facts of this host and of the calling process.
pub fn gather() -> Result<Facts, FactsError> {
    let registry = crate::keeper::registry();
    crate::keeper::sweep(&registry);
    let read = |path: &'static str| read(path).map_err(|source| FactsError::Read { path, source });
    let env: std::collections::BTreeMap<_, _> = std::env::vars_os().collect();
    let home = env.get(std::ffi::OsStr::new("HOME")).filter(|h| !h.is_empty()).map(PathBuf::from);
    let home = home.ok_or(FactsError::NoHome)?;
    let home = std::fs::canonicalize(&home).map_err(|source| FactsError::Home { path: home, source })?;
    let uid = rustix::process::getuid().as_raw();
    Ok(Facts {
        uid,
        stranger: uid == 0 && crate::engines::has_roots_rights(),
        gid: rustix::process::getgid().as_raw(),
        home,
        env,
        mounts: MountPoint::parse(&read("/proc/self/mountinfo")?),
        registry,
        sockets: bound_sockets(&read("/proc/net/unix")?),
        program: std::env::current_exe().map_err(|source| FactsError::Read { path: "/proc/self/exe", source })?,
    })
}

/// Reads a file of procfs, whose size nobody knows, in large pieces.
fn read(path: &str) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(16 << 10);
    std::fs::File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The home directory of an account, as `/etc/passwd` has it; `HOME` may say anything.
pub fn account_home(uid: u32) -> Option<PathBuf> {
    let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
    let of_uid = |line: &&str| line.split(':').nth(2).and_then(|id| id.parse().ok()) == Some(uid);
    let home = accounts.lines().find(of_uid)?.split(':').nth(5)?;
    std::fs::canonicalize(home).ok().filter(|home| home != std::path::Path::new("/"))
}
