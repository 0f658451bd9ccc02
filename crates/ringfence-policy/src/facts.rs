//! What a plan must know of this host, gathered by the library and plain data here.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::look::{Lookup, is_in};
use crate::wire;

/// Facts of this host and of the caller.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Facts {
    /// The caller's user id.
    pub uid: u32,
    /// The caller's group id.
    pub gid: u32,
    /// Root starts the box with ids of its own: to the host's files it is a stranger, save where ids are mapped.
    pub stranger: bool,
    /// The caller's home directory.
    #[serde(with = "wire::path")]
    pub home: PathBuf,
    /// The caller's environment.
    #[serde(with = "wire::variables")]
    pub env: BTreeMap<OsString, OsString>,
    /// The mounts of the caller's mount namespace.
    pub mounts: Vec<MountPoint>,
    /// Paths that host sockets are bound to (`/proc/net/unix`), and directories that are crowded with them.
    #[serde(with = "wire::paths")]
    pub sockets: Vec<PathBuf>,
    /// Names of host sockets that were bound by a relative name, and of which nobody knows where they are.
    #[serde(with = "wire::paths")]
    pub unplaced_sockets: Vec<PathBuf>,
    /// There are more host sockets than are looked at.
    #[serde(default)]
    pub more_sockets: bool,
    /// Every place where Ringfence may list its living boxes, which none of them may see.
    #[serde(with = "wire::paths")]
    pub registries: Vec<PathBuf>,
    /// The one of now. It is made before a box is built that needs names, and goes with the last.
    #[serde(with = "wire::path")]
    pub registry: PathBuf,
    /// Whose home is where: the caller's account; all of them where the caller is root.
    pub accounts: Vec<Account>,
    /// The ringfence program itself, for guards inside the box. Empty where there is none: the built-in guards are left
    /// out then, and a policy with other rules for commands is refused.
    #[serde(with = "wire::path")]
    pub program: PathBuf,
    /// Where compiled runners of code are kept, which no box can change; `None`: they are not. For this process alone.
    #[serde(skip)]
    pub runners: Option<PathBuf>,
}

/// A user of this host, as `/etc/passwd` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The user id.
    pub uid: u32,
    /// Absolute and canonical.
    #[serde(with = "wire::path")]
    pub home: PathBuf,
}

impl Account {
    /// The accounts of the text of `/etc/passwd` with a wanted id, whose home is there and is not the root directory.
    pub fn parse(passwd: &[u8], wanted: impl Fn(u32) -> bool) -> impl Iterator<Item = Account> {
        // Many are in the same few places.
        let lookup = Lookup::default();
        passwd.split(|b| *b == b'\n').filter_map(move |line| {
            let mut fields = line.split(|b| *b == b':');
            let uid = std::str::from_utf8(fields.nth(2)?).ok()?.parse().ok().filter(|uid| wanted(*uid))?;
            let home = lookup.real(Path::new(OsStr::from_bytes(fields.nth(2)?)))?;
            (home != Path::new("/")).then_some(Account { uid, home })
        })
    }
}

/// So many other names of a file are looked for.
const MOST_ALIASES: usize = 256;

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPoint {
    /// `major:minor` of the file system.
    pub device: String,
    /// The directory of the file system that is mounted.
    #[serde(with = "wire::path")]
    pub root: PathBuf,
    /// Where it is mounted.
    #[serde(with = "wire::path")]
    pub at: PathBuf,
    /// The mount is read-only.
    pub read_only: bool,
    /// The type of its file system, for example `ext4`.
    pub fs_type: String,
    /// The directories that an overlay shows, as they were given when it was mounted.
    #[serde(with = "wire::paths")]
    pub layers: Vec<PathBuf>,
}

impl MountPoint {
    /// Reads the mounts from the text of `/proc/self/mountinfo`; lines that are not understood are left out.
    pub fn parse(mountinfo: &[u8]) -> Vec<MountPoint> {
        mountinfo.split(|b| *b == b'\n').filter_map(Self::parse_line).collect()
    }

    fn parse_line(line: &[u8]) -> Option<MountPoint> {
        let mut fields = line.split(|b| *b == b' ');
        let device = fields.nth(2)?;
        let root = fields.next()?;
        let at = fields.next()?;
        let options = fields.next()?;
        let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
        let fs_type = fields.next()?;
        let layers = if fs_type == b"overlay" { layers(fields.nth(1).unwrap_or_default()) } else { Vec::new() };
        Some(MountPoint {
            device: String::from_utf8_lossy(device).into_owned(),
            root: unescape(root),
            at: unescape(at),
            read_only: options.split(|b| *b == b',').any(|o| o == b"ro"),
            fs_type: String::from_utf8_lossy(fs_type).into_owned(),
            layers,
        })
    }

    /// Whether it is an overlay whose directories are not known: they were named from another directory, or not by a path.
    pub fn has_unknown_layers(&self) -> bool {
        self.fs_type == "overlay" && (self.layers.is_empty() || self.layers.iter().any(|layer| layer.is_relative()))
    }
}

/// The directories in the options of an overlay: `lowerdir=A:B` (with `\\:` for a colon), `lowerdir+=A`, `upperdir=A`.
fn layers(options: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for option in options.split(|byte| *byte == b',') {
        let Some(end) = option.iter().position(|byte| *byte == b'=') else { continue };
        let value = unescape(&option[end + 1..]).into_os_string().into_vec();
        match &option[..end] {
            b"lowerdir+" | b"datadir+" | b"upperdir" => found.push(value),
            b"lowerdir" => {
                let (mut layer, mut bytes) = (Vec::new(), value.into_iter().peekable());
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => layer.extend(bytes.next()),
                        b':' => found.push(std::mem::take(&mut layer)),
                        _ => layer.push(byte),
                    }
                }
                found.push(layer);
            }
            _ => {}
        }
    }
    // Two colons come before layers with data alone.
    found.retain(|layer| !layer.is_empty());
    found.into_iter().map(|layer| OsString::from_vec(layer).into()).collect()
}

/// A host socket that takes connections or datagrams by a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundSocket {
    /// As it is in `/proc/PID/fd`: `socket:[N]`.
    pub inode: u64,
    /// As it was given to `bind`; where it is relative, to the working directory of then.
    pub path: PathBuf,
}

impl BoundSocket {
    /// Reads them from the text of `/proc/net/unix`: not abstract ones, nor the ends of connections.
    pub fn parse(proc_net_unix: &[u8]) -> Vec<BoundSocket> {
        proc_net_unix.split(|b| *b == b'\n').skip(1).filter_map(Self::parse_line).collect()
    }

    fn parse_line(line: &[u8]) -> Option<BoundSocket> {
        // Address, references, protocol, flags, type, state, inode, path; only what follows the inode may have spaces.
        let mut rest = line;
        let mut field = || {
            rest = rest.trim_ascii_start();
            let end = rest.iter().position(|b| *b == b' ')?;
            let (field, tail) = rest.split_at(end);
            rest = tail;
            std::str::from_utf8(field).ok()
        };
        for _ in ["address", "references", "protocol", "flags", "type"] {
            field()?;
        }
        let (state, inode) = (field()?, field()?.parse().ok()?);
        let path = rest.strip_prefix(b" ")?;
        // An end of a connection has the name too, but nobody connects to it. What is bound may listen later.
        let connected = state == "03";
        let named = !path.is_empty() && path[0] != b'@' && !connected;
        named.then(|| BoundSocket { inode, path: PathBuf::from(OsStr::from_bytes(path)) })
    }
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| byte == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        if let Some(digits) = octal {
            out.push(digits.iter().fold(0u8, |value, d| value.wrapping_mul(8).wrapping_add(d - b'0')));
            rest = &tail[3..];
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

impl Facts {
    /// Homes besides `home` whose secrets, start-up files and configuration count for a box in this directory: that of the
    /// caller's account where `HOME` says otherwise, that of who owns the directory, and any that the directory lies in.
    pub fn other_homes(&self, workdir: &Path) -> Vec<PathBuf> {
        let owner = std::fs::metadata(workdir).map_or(self.uid, |data| data.uid());
        let counts = |a: &&Account| a.uid == self.uid || a.uid == owner || workdir.starts_with(&a.home);
        let mut homes: Vec<PathBuf> = self.accounts.iter().filter(counts).map(|a| a.home.clone()).collect();
        homes.retain(|home| *home != self.home);
        homes.sort();
        homes.dedup();
        homes
    }

    /// Whether the path lies on a mount that nobody here can write to.
    pub fn read_only(&self, path: &Path) -> bool {
        self.mount_of(path).is_some_and(|m| m.read_only)
    }

    /// The mount that the path lies on.
    fn mount_of(&self, path: &Path) -> Option<&MountPoint> {
        self.mounts.iter().filter(|m| is_in(path, &m.at)).max_by_key(|m| m.at.as_os_str().len())
    }

    /// Whether an empty, unreadable, read-only file is mounted at the path already.
    pub fn hides(&self, path: &Path) -> bool {
        self.mounts.iter().rfind(|m| m.at == path).is_some_and(|m| m.read_only)
            && std::fs::symlink_metadata(path).is_ok_and(|m| m.len() == 0 && m.permissions().mode() & 0o777 == 0)
    }

    /// Every other path under which the same file can be seen: through another mount of its file system, and through overlays
    /// and the directories that they show.
    pub fn aliases(&self, path: &Path) -> Vec<PathBuf> {
        let mut found = self.same_file(path);
        let overlays: Vec<&MountPoint> = self.mounts.iter().filter(|m| !m.layers.is_empty()).collect();
        let mut next = 0;
        // Overlays can lie in each other.
        while !overlays.is_empty() && next <= found.len() && found.len() < MOST_ALIASES {
            let known = if next == 0 { path.to_path_buf() } else { found[next - 1].clone() };
            next += 1;
            for overlay in &overlays {
                // Part of the overlay may be what is mounted.
                let root = overlay.root.strip_prefix("/").unwrap_or(&overlay.root);
                let layers = || overlay.layers.iter().map(|layer| join(layer, root));
                let shown = known.strip_prefix(&overlay.at).ok().filter(|_| self.mount_of(&known) == Some(overlay));
                let below = shown.into_iter().flat_map(|below| layers().map(move |layer| join(&layer, below)));
                let above = layers().filter_map(|layer| Some(join(&overlay.at, known.strip_prefix(layer).ok()?)));
                for alias in below.chain(above).collect::<Vec<_>>() {
                    for alias in self.same_file(&alias).into_iter().chain([alias]) {
                        if alias != path && !found.contains(&alias) {
                            found.push(alias);
                        }
                    }
                }
            }
        }
        found.retain(|alias| !alias.starts_with(path));
        found
    }

    /// Paths of the same file through other mounts of its file system.
    fn same_file(&self, path: &Path) -> Vec<PathBuf> {
        let Some(own) = self.mount_of(path) else { return Vec::new() };
        let Ok(below) = path.strip_prefix(&own.at) else { return Vec::new() };
        let in_fs = join(&own.root, below);
        let mut found: Vec<PathBuf> = self
            .mounts
            .iter()
            .filter(|m| m.device == own.device)
            .filter_map(|m| match in_fs.strip_prefix(&m.root) {
                Ok(below) => Some(join(&m.at, below)),
                // A mount of something below the path.
                Err(_) => m.root.starts_with(&in_fs).then(|| m.at.clone()),
            })
            .filter(|alias| !alias.starts_with(path))
            .collect();
        found.sort();
        found.dedup();
        found
    }
}

/// `join` that does not leave a trailing slash for an empty rest.
fn join(base: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { base.to_path_buf() } else { base.join(below) }
}
