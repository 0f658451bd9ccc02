//! Gathers the facts of this host that a plan depends on.

use std::io::Read;
use std::path::PathBuf;

use ringfence_policy::facts::{Account, Facts, MountPoint, bound_sockets};

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
    let uid = rustix::process::getuid().as_raw();
    let accounts = accounts(uid);
    let read = |path: &'static str| read(path).map_err(|source| FactsError::Read { path, source });
    let env: std::collections::BTreeMap<_, _> = std::env::vars_os().collect();
    let home = env.get(std::ffi::OsStr::new("HOME")).filter(|h| !h.is_empty()).map(PathBuf::from);
    let home = home.ok_or(FactsError::NoHome)?;
    let home = std::fs::canonicalize(&home).map_err(|source| FactsError::Home { path: home, source })?;
    Ok(Facts {
        uid,
        stranger: uid == 0 && crate::engines::has_roots_rights(),
        gid: rustix::process::getgid().as_raw(),
        home,
        env,
        mounts: MountPoint::parse(&read("/proc/self/mountinfo")?),
        registries: registries(registry, uid, &accounts),
        accounts,
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

/// The accounts that matter to this user: its own, and to root all of them. Without the file there are none.
fn accounts(uid: u32) -> Vec<Account> {
    let passwd = read("/etc/passwd").unwrap_or_default();
    Account::parse(&passwd, |other| uid == 0 || uid == other).collect()
}

/// The home directory of an account, as `/etc/passwd` has it; `HOME` may say anything.
pub fn account_home(uid: u32) -> Option<PathBuf> {
    let passwd = read("/etc/passwd").ok()?;
    Account::parse(&passwd, |other| uid == other).next().map(|account| account.home)
}

/// Every place where [`registry`](crate::keeper::registry) may have been when a box that still lives was started.
fn registries(now: PathBuf, uid: u32, accounts: &[Account]) -> Vec<PathBuf> {
    let of_account = accounts.iter().filter(|account| account.uid == uid).map(|a| a.home.join(".ringfence-boxes"));
    let mut places = vec![now, PathBuf::from("/run/ringfence-keeper"), PathBuf::from(format!("/tmp/ringfence-{uid}"))];
    // Where nobody has logged in there is no such directory, and none is made to hide something in it.
    let runtime = Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|dir| dir.is_dir());
    places.extend(runtime.map(|dir| dir.join("ringfence")));
    places.extend(of_account);
    places.sort();
    places.dedup();
    places
}
