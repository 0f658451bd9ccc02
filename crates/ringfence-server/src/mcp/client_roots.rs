//! The directories that a client says it works in. They choose among what the owner allows, and never add to it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use ringfence::policy::policy::Narrowed;

/// So many of the directories that a client names are looked at: each has rules of its own, which are looked up.
const MOST_ROOTS: usize = 32;

/// Where the session works. None of the directories lies in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    pub workdir: PathBuf,
    /// Further directories.
    pub also: Vec<PathBuf>,
    /// The owner's roots that these lie in, each with those that lie in it; that of the working directory comes first.
    /// The policy is that of the roots.
    pub roots: Vec<Narrowed>,
    /// Directories in these roots whose own rules hold as well, where they take something away: those that are given,
    /// and roots within roots.
    pub stricter: Vec<PathBuf>,
    /// What the client named and the owner does not allow.
    pub left_out: Vec<String>,
    /// How many more the client named. Nothing was looked up for them.
    pub not_looked_at: usize,
}

/// The client's directories that lie within the owner's; the owner's own when there are none.
pub fn choose(owners: &[PathBuf], client: &[String]) -> Places {
    let mut chosen: Vec<PathBuf> = Vec::new();
    let mut left_out = Vec::new();
    for uri in client.iter().take(MOST_ROOTS) {
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
    // What lies in another one is there already. Given twice, it would have two names, and rules hide but one.
    let lies_in_another = |path: &Path| chosen.iter().any(|other| path != other && path.starts_with(other));
    let chosen: Vec<PathBuf> = chosen.iter().filter(|path| !lies_in_another(path)).cloned().collect();
    let mut roots: Vec<Narrowed> = Vec::new();
    for part in &chosen {
        // The widest: a root in it does not free what is below from its rules.
        let whole = owners.iter().filter(|owner| part.starts_with(owner)).min_by_key(|owner| owner.as_os_str().len());
        // A directory outside of all roots was left out above. One that is here all the same gets no access.
        let Some(whole) = whole else { continue };
        match roots.iter_mut().find(|root| root.whole == *whole) {
            Some(root) => root.parts.push(part.clone()),
            None => roots.push(Narrowed { whole: whole.clone(), parts: vec![part.clone()] }),
        }
    }
    let concerns = |owner: &Path| chosen.iter().any(|part| owner.starts_with(part) || part.starts_with(owner));
    let mut stricter: Vec<PathBuf> = Vec::new();
    for dir in owners.iter().filter(|owner| concerns(owner)).chain(&chosen) {
        if !stricter.contains(dir) && roots.iter().all(|root| root.whole != *dir) {
            stricter.push(dir.clone());
        }
    }
    let mut chosen = chosen.into_iter();
    let workdir = chosen.next().unwrap_or_else(|| PathBuf::from("/"));
    let not_looked_at = client.len().saturating_sub(MOST_ROOTS);
    Places { workdir, also: chosen.collect(), roots, stricter, left_out, not_looked_at }
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
        let one = std::slice::from_ref(&usr);
        let both = [usr.clone(), PathBuf::from("/etc")];
        let chosen = |owners: &[PathBuf], client: &[&str]| {
            let client: Vec<String> = client.iter().map(|uri| (*uri).to_owned()).collect();
            let places = choose(owners, &client);
            (places.workdir.display().to_string(), places.also.len(), places.left_out.len())
        };
        assert_eq!(chosen(one, &[]), ("/usr".into(), 0, 0));
        assert_eq!(chosen(&both, &[]), ("/usr".into(), 1, 0));
        assert_eq!(chosen(one, &["file:///usr/share"]), ("/usr/share".into(), 0, 0));
        assert_eq!(chosen(one, &["file:///"]), ("/usr".into(), 0, 1));
        assert_eq!(chosen(one, &["file:///usr/../etc", "file:///usr/bin"]), ("/usr/bin".into(), 0, 1));
        assert_eq!(chosen(one, &["file:///usr/no-such"]), ("/usr".into(), 0, 1));
        assert_eq!(chosen(&both, &["file:///etc", "file:///usr/share"]), ("/etc".into(), 1, 0));
        // In whichever order.
        assert_eq!(chosen(one, &["file:///usr/share", "file:///usr"]), ("/usr".into(), 0, 0));
        assert_eq!(chosen(one, &["file:///usr", "file:///usr/share"]), ("/usr".into(), 0, 0));
        assert_eq!(chosen(&["/usr/share".into(), usr.clone()], &[]), ("/usr".into(), 0, 0));
    }

    #[test]
    fn the_policy_is_that_of_the_widest_root() {
        let owners: Vec<PathBuf> = ["/usr/share", "/usr", "/etc"].map(PathBuf::from).into();
        let chosen = |client: &[&str]| {
            let client: Vec<String> = client.iter().map(|uri| (*uri).to_owned()).collect();
            let Places { roots, stricter, .. } = choose(&owners, &client);
            let text = |path: &PathBuf| path.display().to_string();
            let of_root = |root: &Narrowed| {
                format!("{}: {}", root.whole.display(), root.parts.iter().map(text).collect::<Vec<_>>().join(" "))
            };
            let roots: Vec<String> = roots.iter().map(of_root).collect();
            (roots.join(", "), stricter.iter().map(text).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(chosen(&[]), ("/usr: /usr, /etc: /etc".into(), "/usr/share".into()));
        assert_eq!(chosen(&["file:///usr"]), ("/usr: /usr".into(), "/usr/share".into()));
        assert_eq!(chosen(&["file:///usr/bin"]), ("/usr: /usr/bin".into(), "/usr/bin".into()));
        assert_eq!(chosen(&["file:///usr/share"]), ("/usr: /usr/share".into(), "/usr/share".into()));
        let two = ["file:///usr/share/doc", "file:///usr/bin", "file:///etc"];
        assert_eq!(
            chosen(&two),
            ("/usr: /usr/share/doc /usr/bin, /etc: /etc".into(), "/usr/share /usr/share/doc /usr/bin".into())
        );
    }
}
