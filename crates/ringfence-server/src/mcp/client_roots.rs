//! The directories that a client says it works in. They choose among what the owner allows, and never add to it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Where the session works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    pub workdir: PathBuf,
    /// Further directories.
    pub also: Vec<PathBuf>,
    /// What the client named and the owner does not allow.
    pub left_out: Vec<String>,
}

/// The client's directories that lie within the owner's; the owner's own when there are none.
pub fn choose(owners: &[PathBuf], client: &[String]) -> Places {
    let mut chosen: Vec<PathBuf> = Vec::new();
    let mut left_out = Vec::new();
    for uri in client {
        // Links are resolved before they are compared.
        let real = path_of(uri).and_then(|path| path.canonicalize().ok()).filter(|path| path.is_dir());
        match real.filter(|path| owners.iter().any(|owner| path.starts_with(owner))) {
            Some(path) if !chosen.contains(&path) => chosen.push(path),
            Some(_) => {}
            None => left_out.push(uri.clone()),
        }
    }
    if chosen.is_empty() {
        chosen = owners.to_vec();
    }
    let mut chosen = chosen.into_iter();
    let workdir = chosen.next().unwrap_or_else(|| PathBuf::from("/"));
    // What lies in the working directory is there already.
    let also = chosen.filter(|path| !path.starts_with(&workdir)).collect();
    Places { workdir, also, left_out }
}

/// The path of a `file://` address of this machine.
fn path_of(uri: &str) -> Option<PathBuf> {
    let rest = uri.strip_prefix("file://")?;
    let path = rest.strip_prefix("localhost").filter(|rest| rest.starts_with('/')).unwrap_or(rest);
    let mut bytes = Vec::with_capacity(path.len());
    let mut left = path.bytes();
    while let Some(byte) = left.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(left.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    let path = PathBuf::from(OsString::from_vec(bytes));
    (path.is_absolute() && !path.as_os_str().is_empty()).then_some(path)
}

/// Whether a path as the host has it lies in the working directory, and where that is inside.
pub fn inside(path: &Path, workdir: &Path, at: &Path) -> Option<PathBuf> {
    let below = path.strip_prefix(workdir).ok().filter(|_| workdir != at)?;
    Some(if below.as_os_str().is_empty() { at.to_path_buf() } else { at.join(below) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_paths() {
        let table = [
            ("file:///a/b%20c", Some("/a/b c")),
            ("file://localhost/a", Some("/a")),
            ("file://elsewhere/a", None),
            ("file:///a%2", None),
            ("file:///a%zz", None),
            ("https://a/b", None),
            ("/a", None),
            ("file://", None),
        ];
        for (uri, path) in table {
            assert_eq!(path_of(uri), path.map(PathBuf::from), "{uri}");
        }
    }

    #[test]
    fn a_client_chooses_and_never_adds() {
        let usr = PathBuf::from("/usr");
        let both = [usr.clone(), PathBuf::from("/etc")];
        let chosen = |owners: &[PathBuf], client: &[&str]| {
            let client: Vec<String> = client.iter().map(|uri| (*uri).to_owned()).collect();
            let places = choose(owners, &client);
            (places.workdir.display().to_string(), places.also.len(), places.left_out.len())
        };
        assert_eq!(chosen(&[usr.clone()], &[]), ("/usr".into(), 0, 0));
        assert_eq!(chosen(&both, &[]), ("/usr".into(), 1, 0));
        assert_eq!(chosen(&[usr.clone()], &["file:///usr/share"]), ("/usr/share".into(), 0, 0));
        assert_eq!(chosen(&[usr.clone()], &["file:///"]), ("/usr".into(), 0, 1));
        assert_eq!(chosen(&[usr.clone()], &["file:///usr/../etc", "file:///usr/bin"]), ("/usr/bin".into(), 0, 1));
        assert_eq!(chosen(&[usr.clone()], &["file:///usr/no-such"]), ("/usr".into(), 0, 1));
        assert_eq!(chosen(&both, &["file:///etc", "file:///usr/share"]), ("/etc".into(), 1, 0));
    }
}
