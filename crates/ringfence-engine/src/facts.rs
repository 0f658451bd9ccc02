//! Gathers the facts of this host that a plan depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
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
    let registry = crate::janitor::registry();
    let uid = rustix::process::getuid().as_raw();
    let accounts = accounts(uid);
    let read = |path: &'static str| read(path).map_err(|source| FactsError::Read { path, source });
    let env: BTreeMap<_, _> = std::env::vars_os().collect();
    let home = env.get(std::ffi::OsStr::new("HOME")).filter(|h| !h.is_empty()).map(PathBuf::from);
    let home = home.ok_or(FactsError::NoHome)?;
    let home = Lookup::default().canonical(&home).map_err(|source| FactsError::Home { path: home, source })?;
    let bound = read("/proc/net/unix")?;
    let Sockets { placed, unplaced, more } = place(BoundSocket::parse(&bound));
    Ok(Facts {
        uid,
        stranger: uid == 0 && crate::engines::has_roots_rights(),
        gid: rustix::process::getgid().as_raw(),
        home,
        env,
        mounts: MountPoint::parse(&read("/proc/self/mountinfo")?),
        registries: registries(&registry, uid, &accounts),
        registry,
        accounts,
        sockets: placed.into_iter().collect(),
        unplaced_sockets: unplaced,
        more_sockets: more || bound.len() as u64 >= MOST_READ,
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

/// Host sockets, as far as they are looked at: other users, and sandboxes that share the host's network, can bind any number.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sockets {
    /// Where they are. Of a crowded directory, the directory.
    placed: BTreeSet<PathBuf>,
    /// Relative names of those of which that is not known.
    unplaced: Vec<PathBuf>,
    /// There are more.
    more: bool,
}

/// So much of `/proc/net/unix` is read: some 200,000 sockets.
const MOST_READ: u64 = 16 << 20;
/// With more sockets than this that the caller can use, a directory is crowded.
const CROWDED: usize = 64;
/// So many directories may have sockets in them, and so many names are looked at in a crowded one.
const MOST_DIRECTORIES: usize = 1024;
const MOST_NAMES: usize = 8192;
/// So often it is asked about processes and their descriptors where a relative name leads.
const MOST_QUESTIONS: usize = 16384;
/// So many relative names are asked about.
const MOST_RELATIVE: usize = 64;

/// Finds out where sockets are.
fn place(bound: Vec<BoundSocket>) -> Sockets {
    let (absolute, mut relative): (Vec<_>, Vec<_>) = bound.into_iter().partition(|socket| socket.path.is_absolute());
    let mut found = Sockets::default();
    let mut directories: BTreeMap<PathBuf, BTreeSet<OsString>> = BTreeMap::new();
    for BoundSocket { path, .. } in absolute {
        match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) => {
                directories.entry(dir.to_path_buf()).or_default().insert(name.to_owned());
            }
            // It ends in `..`.
            _ => _ = found.placed.insert(path),
        }
    }
    found.more |= directories.len() > MOST_DIRECTORIES || found.placed.len() > MOST_DIRECTORIES;
    while found.placed.len() > MOST_DIRECTORIES {
        found.placed.pop_last();
    }
    for (dir, names) in directories.into_iter().take(MOST_DIRECTORIES) {
        match if names.len() <= CROWDED { Some(names) } else { usable(&dir, &names) } {
            Some(names) => found.placed.extend(names.iter().map(|name| dir.join(name))),
            None => _ = found.placed.insert(dir),
        }
    }
    found.more |= relative.len() > MOST_RELATIVE;
    relative.truncate(MOST_RELATIVE);
    let mut relative: BTreeMap<u64, PathBuf> = relative.into_iter().map(|s| (s.inode, s.path)).collect();
    place_relative(&mut relative, &mut found.placed);
    found.unplaced = relative.into_values().collect();
    found
}

/// Which of these sockets are in a directory and can be used by the caller; `None` when it is crowded with them.
fn usable(dir: &Path, names: &BTreeSet<OsString>) -> Option<BTreeSet<OsString>> {
    let (mut usable, mut looked_at) = (BTreeSet::new(), 0);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        looked_at += 1;
        let name = entry.file_name();
        // Without the right to write, nobody can connect.
        if names.contains(&name) && rustix::fs::access(entry.path(), rustix::fs::Access::WRITE_OK).is_ok() {
            usable.insert(name);
        }
        if usable.len() > CROWDED || looked_at > MOST_NAMES {
            return None;
        }
    }
    Some(usable)
}

/// A relative name is looked for where a process that has the socket works now, which is where it was bound unless the process
/// went elsewhere. Most hosts have none, and then no process is looked at.
fn place_relative(relative: &mut BTreeMap<u64, PathBuf>, placed: &mut BTreeSet<PathBuf>) {
    let mut questions = MOST_QUESTIONS;
    let mut ask = || {
        questions = questions.saturating_sub(1);
        questions > 0
    };
    let processes = (!relative.is_empty()).then(|| std::fs::read_dir("/proc").ok()).flatten();
    for process in processes.into_iter().flatten().flatten().map(|entry| entry.path()) {
        if relative.is_empty() || !ask() {
            return;
        }
        // Only those of this user can be looked at; to root, all.
        let Ok(dir) = std::fs::read_link(process.join("cwd")) else { continue };
        let is_socket = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
        let there = relative.iter().take_while(|_| ask()).map(|(inode, name)| (*inode, normalise(&dir.join(name))));
        let mut there: BTreeMap<u64, PathBuf> = there.filter(|(_, path)| is_socket(path)).collect();
        if there.is_empty() {
            continue;
        }
        // Whether it is that socket, or another one of the same name.
        for descriptor in std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten().take_while(|_| ask()) {
            let link = std::fs::read_link(descriptor.path()).ok();
            if let Some((inode, path)) = link.as_deref().and_then(socket_inode).and_then(|i| there.remove_entry(&i)) {
                relative.remove(&inode);
                placed.insert(path);
            }
        }
    }
}

fn socket_inode(link: &Path) -> Option<u64> {
    let number = link.as_os_str().as_bytes().strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Reads a file of procfs, whose size is not known, in large pieces.
fn read(path: &str) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(16 << 10);
    std::fs::File::open(path)?.take(MOST_READ).read_to_end(&mut bytes)?;
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

/// Every place where [`registry`](crate::janitor::registry) may be, so that no sandbox sees one of them.
fn registries(now: &Path, uid: u32, accounts: &[Account]) -> Vec<PathBuf> {
    let mut places = crate::janitor::places(uid, accounts);
    places.push(now.to_path_buf());
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
        let Sockets { placed, unplaced, .. } = look();
        assert!(placed.contains(&base.join("with space")) && placed.contains(&base.join("relative")));
        assert!(!unplaced.contains(&PathBuf::from("relative")));
        // Moved away, nobody knows where.
        std::fs::rename(base.join("relative"), base.join("elsewhere")).unwrap();
        let Sockets { placed, unplaced, .. } = look();
        assert!(!placed.contains(&base.join("relative")) && unplaced.contains(&PathBuf::from("relative")));
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    /// Sockets can be bound by anybody, in any number. What the caller cannot use is left out, and a crowded directory is one
    /// place.
    #[test]
    fn crowds_of_sockets_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let crowd = |dir: &Path, count: u64| {
            std::fs::create_dir(dir).unwrap();
            let bound = |inode| BoundSocket { inode, path: dir.join(inode.to_string()) };
            (0..count).map(bound).collect::<Vec<_>>()
        };
        // Names of a sandbox's own place, which are not there.
        let none = crowd(&base.join("none"), 150_000);
        let used = crowd(&base.join("used"), 1000);
        let used_sockets: Vec<_> = used.iter().take(100).map(|s| UnixListener::bind(&s.path).unwrap()).collect();
        let few = crowd(&base.join("few"), 1000);
        let few_sockets: Vec<_> = few.iter().take(3).map(|s| UnixListener::bind(&s.path).unwrap()).collect();
        let begun = std::time::Instant::now();
        let found = place([none, used, few].concat());
        let mut expected: BTreeSet<PathBuf> = (0..3).map(|n| base.join("few").join(n.to_string())).collect();
        expected.insert(base.join("used"));
        assert_eq!(found, Sockets { placed: expected, ..Sockets::default() });
        // An upper bound for a busy machine: each name of its own took some 25 microseconds.
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
        drop((used_sockets, few_sockets));

        let everywhere = (0..5000).map(|n| BoundSocket { inode: n, path: base.join(format!("{n}/socket")) }).collect();
        let found = place(everywhere);
        assert!(found.more && found.placed.len() == MOST_DIRECTORIES);
    }

    /// A relative name that leads nowhere is looked for in working directories, and not among all descriptors.
    #[test]
    fn an_unlinked_relative_socket_costs_little() {
        let many: Vec<_> = (0..800).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let gone = (0..1000).map(|inode| BoundSocket { inode, path: PathBuf::from(format!("gone-{inode}")) }).collect();
        let begun = std::time::Instant::now();
        let found = place(gone);
        assert!(found.more && found.unplaced.len() == MOST_RELATIVE && found.placed.is_empty());
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
        drop(many);
    }
}
