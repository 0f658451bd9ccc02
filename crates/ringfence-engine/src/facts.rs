//! Gathers the facts of this host that a plan depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use ringfence_policy::facts::{Account, BoundSocket, Facts, MountPoint};
use ringfence_policy::look::Lookup;
use ringfence_policy::plan::MARKER_DIR;
use ringfence_policy::rules::normalise;

/// Why a fact could not be gathered.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum FactsError {
    /// A file of the kernel's could not be read.
    #[error("cannot read `{path}`: {source}")]
    Read { path: &'static str, source: std::io::Error },
    /// There is no home directory.
    #[error("cannot tell the home directory: HOME is not set")]
    NoHome,
    /// The home directory cannot be used.
    #[error("the home directory `{}` cannot be used: {source}", path.display())]
    Home { path: PathBuf, source: std::io::Error },
}

/// Facts of this host and of the calling process. Changes nothing. The library
/// asks for them in `Host` alone.
pub fn gather() -> Result<Facts, FactsError> {
    let registry = crate::keeper::registry();
    let uid = rustix::process::getuid().as_raw();
    let accounts = accounts(uid);
    let read = |path: &'static str| read(path).map_err(|source| FactsError::Read { path, source });
    let env: BTreeMap<_, _> = std::env::vars_os().collect();
    let home = env.get(std::ffi::OsStr::new("HOME")).filter(|h| !h.is_empty()).map(PathBuf::from);
    let home = home.ok_or(FactsError::NoHome)?;
    let home = Lookup::default().canonical(&home).map_err(|source| FactsError::Home { path: home, source })?;
    let (sockets, unplaced_sockets) = place(BoundSocket::parse(&read("/proc/net/unix")?));
    Ok(Facts {
        uid,
        stranger: uid == 0 && crate::engines::has_roots_rights(),
        gid: rustix::process::getgid().as_raw(),
        home,
        env,
        mounts: MountPoint::parse(&read("/proc/self/mountinfo")?),
        registries: registries(registry.clone(), uid, &accounts),
        registry,
        accounts,
        sockets,
        unplaced_sockets,
        program: std::env::current_exe().map_err(|source| FactsError::Read { path: "/proc/self/exe", source })?,
        runners: None,
    })
}

/// Whether this process lives in a sandbox: the marker is there, where only a sandbox can have it.
pub fn inside_sandbox() -> bool {
    let marker = Path::new(MARKER_DIR).join("box.json");
    marker.is_file() && read_only(&marker)
}

pub(crate) fn read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|s| s.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Where sockets are, and the names of those of which that is not known. A relative name is looked for where a process that
/// has the socket works now, which is where it was bound unless the process went elsewhere.
fn place(bound: Vec<BoundSocket>) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (absolute, relative): (Vec<_>, Vec<_>) = bound.into_iter().partition(|socket| socket.path.is_absolute());
    let mut placed: BTreeSet<PathBuf> = absolute.into_iter().map(|socket| socket.path).collect();
    // Most hosts have none, and then no process is looked at.
    let mut relative: BTreeMap<u64, PathBuf> = relative.into_iter().map(|s| (s.inode, s.path)).collect();
    let processes = (!relative.is_empty()).then(|| std::fs::read_dir("/proc").ok()).flatten();
    for process in processes.into_iter().flatten().flatten().map(|entry| entry.path()) {
        if relative.is_empty() {
            break;
        }
        // Only those of this user can be looked at; to root, all.
        for descriptor in std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            let link = std::fs::read_link(descriptor.path()).ok();
            let inode = link.as_deref().and_then(socket_inode);
            if let Some(inode) = inode.filter(|inode| relative.contains_key(inode))
                && let Ok(dir) = std::fs::read_link(process.join("cwd"))
            {
                let path = normalise(&dir.join(&relative[&inode]));
                if std::fs::symlink_metadata(&path).is_ok_and(|data| data.file_type().is_socket()) {
                    relative.remove(&inode);
                    placed.insert(path);
                }
            }
        }
    }
    (placed.into_iter().collect(), relative.into_values().collect())
}

fn socket_inode(link: &Path) -> Option<u64> {
    let number = link.as_os_str().as_bytes().strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(number).ok()?.parse().ok()
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
pub(crate) fn account_home(uid: u32) -> Option<PathBuf> {
    let passwd = read("/etc/passwd").ok()?;
    Account::parse(&passwd, |other| uid == other).next().map(|account| account.home)
}

/// Every place where [`registry`](crate::keeper::registry) may have been when a box that still lives was started.
fn registries(now: PathBuf, uid: u32, accounts: &[Account]) -> Vec<PathBuf> {
    let of_account = accounts.iter().filter(|account| account.uid == uid).map(|a| a.home.join(".ringfence-boxes"));
    let mut places = vec![now, PathBuf::from("/run/ringfence-keeper")];
    places.extend(["/dev/shm", "/tmp"].map(|dir| PathBuf::from(format!("{dir}/ringfence-{uid}"))));
    // Where nobody has logged in there is no such directory, and none is made to hide something in it.
    let runtime = Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|dir| dir.is_dir());
    places.extend(runtime.map(|dir| dir.join("ringfence")));
    places.extend(of_account);
    places.sort();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_are_found_by_the_name_they_were_bound_with() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let _absolute = UnixListener::bind(base.join("with space")).unwrap();
        // Bound by a relative name, in the working directory of another process.
        let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind('relative')\ns.listen()\nprint(flush=True)\nsys.stdin.read()";
        let mut other = std::process::Command::new("python3")
            .args(["-c", script])
            .current_dir(&base)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        other.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let look = || place(BoundSocket::parse(&read("/proc/net/unix").unwrap()));
        let (placed, unplaced) = look();
        assert!(placed.contains(&base.join("with space")) && placed.contains(&base.join("relative")));
        assert!(!unplaced.contains(&PathBuf::from("relative")));
        // Moved away, nobody knows where.
        std::fs::rename(base.join("relative"), base.join("elsewhere")).unwrap();
        let (placed, unplaced) = look();
        assert!(!placed.contains(&base.join("relative")) && unplaced.contains(&PathBuf::from("relative")));
        drop(other.stdin.take());
        other.wait().unwrap();
    }
}
