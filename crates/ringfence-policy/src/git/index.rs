//! The index of a repository, as far as Ringfence needs it: which paths are links to other repositories (gitlinks). A box may
//! have written it, so that every byte is hostile: what cannot be understood ends the list, and is said to.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::look::is_missing;

/// Larger ones are not read: half a million files have less.
const LARGEST: u64 = 64 << 20;
/// The mode of a gitlink.
const GITLINK: u32 = 0o160_000;
/// Bounds the memory for an index that was made to be large.
const MOST: usize = 4096;

/// Paths in an index that are repositories of their own.
#[derive(Debug, Default)]
pub(super) struct Gitlinks {
    pub paths: Vec<PathBuf>,
    /// Whether these are all.
    pub whole: bool,
}

/// Gitlinks in the index of a repository, and in the one that it is split from.
pub(super) fn gitlinks(git_dir: &Path, id_length: usize) -> Gitlinks {
    let bytes = match read(&git_dir.join("index")) {
        Ok(bytes) => bytes,
        Err(error) => return Gitlinks { paths: Vec::new(), whole: is_missing(&error) },
    };
    let Parsed { mut links, base } = parse(&bytes, id_length);
    if let Some(id) = base {
        let name: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        // Without it git reads nothing. It is not split itself.
        let shared = read(&git_dir.join(format!("sharedindex.{name}"))).map(|bytes| parse(&bytes, id_length).links);
        let shared = shared.unwrap_or_default();
        // One without a name takes the place of an entry of the other.
        links.whole &= shared.whole && links.paths.iter().all(|path| !path.as_os_str().is_empty());
        links.paths.extend(shared.paths);
    }
    links.paths.sort();
    links.paths.dedup();
    links
}

/// Neither follows a link nor waits for a pipe.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?);
    let data = file.metadata()?;
    if !data.is_file() || data.len() > LARGEST {
        return Err(io::Error::other("too large, or not a file"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(data.len()).unwrap_or(0) + 64);
    file.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[derive(Default)]
struct Parsed {
    links: Gitlinks,
    /// The index that this one is split from.
    base: Option<Vec<u8>>,
}

fn parse(bytes: &[u8], id_length: usize) -> Parsed {
    let mut parsed = Parsed::default();
    let mut reader = Reader { rest: bytes };
    parsed.links.whole = reader.index(id_length, &mut parsed).is_some() && parsed.links.paths.len() <= MOST;
    parsed.links.paths.truncate(MOST);
    parsed
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    /// Reads all; `None` when it ends before that.
    fn index(&mut self, id_length: usize, parsed: &mut Parsed) -> Option<()> {
        let (b"DIRC", version @ 2..=4, count) = (self.take(4)?, self.number()?, self.number()?) else { return None };
        let mut name: Vec<u8> = Vec::new();
        for _ in 0..count {
            if self.entry(version, id_length, &mut name)? == GITLINK && parsed.links.paths.len() <= MOST {
                parsed.links.paths.push(PathBuf::from(OsString::from_vec(name.clone())));
            }
        }
        // Extensions, and in the end a checksum.
        while self.rest.len() > id_length {
            let (kind, length) = (self.take(4)?, self.number()?);
            let data = self.take(usize::try_from(length).ok()?)?;
            if kind == b"link" {
                let id = data.get(..id_length)?;
                parsed.base = id.iter().any(|byte| *byte != 0).then(|| id.to_vec());
            }
        }
        (self.rest.len() == id_length).then_some(())
    }

    /// Reads one entry: its mode, and its name into `name`, which holds the one before.
    fn entry(&mut self, version: u32, id_length: usize, name: &mut Vec<u8>) -> Option<u32> {
        let before = self.rest.len();
        self.take(24)?;
        let mode = self.number()?;
        self.take(12 + id_length)?;
        let extended = self.take(2)?[0] & 0x40 != 0;
        if extended && version > 2 {
            self.take(2)?;
        }
        if version == 4 {
            let kept = name.len().checked_sub(self.offset()?)?;
            name.truncate(kept);
        } else {
            name.clear();
        }
        let length = self.rest.iter().position(|byte| *byte == 0)?;
        name.extend_from_slice(self.take(length)?);
        self.take(1)?;
        if version < 4 {
            // Padded to a multiple of eight.
            let taken = before - self.rest.len();
            self.take(taken.next_multiple_of(8) - taken)?;
        }
        Some(mode)
    }

    /// How many bytes of the name before are dropped: seven bits a byte, each but the last with one more added.
    fn offset(&mut self) -> Option<usize> {
        let mut value: usize = 0;
        for index in 0..8 {
            let byte = self.take(1)?[0];
            value = (value + usize::from(index > 0)) << 7 | usize::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// An index that git itself wrote, with files, gitlinks and long common beginnings.
    fn written(version: &str) -> Option<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| {
            let mut command = Command::new("git");
            command.args(args).current_dir(dir.path()).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", dir.path());
            command.output().is_ok_and(|output| output.status.success())
        };
        if !git(&["init", "-q"]) {
            return None;
        }
        let id = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
        for name in ["a/long/way/file", "a/long/way/link", "b", "sub", "z/deep"] {
            let mode = if name == "sub" || name.ends_with("link") || name == "z/deep" { "160000" } else { "100644" };
            assert!(git(&["update-index", "--add", "--cacheinfo", &format!("{mode},{id},{name}")]));
        }
        assert!(git(&["update-index", "--index-version", version]));
        fs::read(dir.path().join(".git/index")).ok()
    }

    #[test]
    fn gitlinks_of_every_version() {
        for version in ["2", "3", "4"] {
            let Some(bytes) = written(version) else { return };
            let expected = ["a/long/way/link", "sub", "z/deep"].map(PathBuf::from);
            let found = parse(&bytes, 20).links;
            assert!(found.whole);
            assert_eq!(found.paths, expected, "version {version}");
        }
    }

    #[test]
    fn hostile_bytes_end_the_list() {
        for version in ["2", "4"] {
            let Some(bytes) = written(version) else { return };
            for end in 0..bytes.len() {
                assert!(!parse(&bytes[..end], 20).links.whole);
            }
            for at in 0..bytes.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    assert!(parse(&changed, 20).links.paths.len() <= MOST);
                    parse(&changed, 32);
                }
            }
        }
        for bytes in [&b""[..], b"DIRC\0\0\0\x09"] {
            let found = parse(bytes, 20).links;
            assert!(found.paths.is_empty() && !found.whole);
        }
    }
}
