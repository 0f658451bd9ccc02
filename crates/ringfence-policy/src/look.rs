//! Looks paths up on this host, each name once: a plan asks for hundreds of paths that share a few directories.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, RawDir};

use crate::glob::{Glob, Matches};

/// What is known of the names that were asked for. It is as of the first question about each: whoever judges a rule and then
/// applies it with the same `Lookup` applies what was judged, whatever is swapped in the meantime.
#[derive(Debug, Default)]
pub struct Lookup {
    /// Directories that were read whole.
    listed: Vec<Listing>,
    /// Every other name that was asked for, by its path without symlinks.
    asked: RefCell<BTreeMap<OsString, Found>>,
    /// Where symlinks lead, by their path.
    links: RefCell<BTreeMap<PathBuf, PathBuf>>,
    /// The last directory that a path without links led through. Most paths lead through the same few.
    through: RefCell<PathBuf>,
    /// What patterns matched, by their text.
    matched: RefCell<BTreeMap<String, Arc<Matches>>>,
    guard: Option<Box<dyn Guard>>,
}

/// What keeps names where they are while they are looked up and used.
pub trait Guard: std::fmt::Debug + Send {}

impl<T: std::fmt::Debug + Send> Guard for T {}

#[derive(Debug)]
struct Listing {
    dir: PathBuf,
    /// Sorted by name.
    names: Vec<(OsString, Found)>,
}

/// What a name stands for; links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Missing,
    /// Nobody knows: the directory that the name is in cannot be entered.
    Closed,
    Dir,
    File,
    Link,
}

impl From<fs::FileType> for Found {
    fn from(kind: fs::FileType) -> Found {
        if kind.is_symlink() {
            Found::Link
        } else if kind.is_dir() {
            Found::Dir
        } else {
            Found::File
        }
    }
}

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
pub struct Walk {
    /// The path without symlinks; what is missing at its end is as it was written.
    pub real: PathBuf,
    /// What is there.
    pub end: End,
    /// The real path of every symlink on the way.
    pub links: Vec<PathBuf>,
    /// The directory on the way that cannot be entered. What lies in it counts as missing, although it may be there.
    pub closed: Option<PathBuf>,
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A directory.
    Dir,
    /// Anything else.
    File,
    /// Nothing.
    Missing,
}

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

impl Lookup {
    /// A directory with more names than this is asked path by path.
    const MOST: usize = 512;

    /// For a policy: most of its rules are about home and the working directory.
    pub fn of_places(home: &Path, workdir: &Path) -> Lookup {
        let mut lookup = Lookup::listing([home, workdir]);
        // Where most of the names are that are below them.
        for name in [".config", ".local", ".local/share", ".cargo", ".claude"] {
            let dir = home.join(name);
            if lookup.straight(&dir).is_ok_and(|end| end == Some(End::Dir)) {
                lookup.listed.extend(Listing::read(&dir));
            }
        }
        lookup
    }

    /// With something that is dropped with it, or by [`Lookup::let_go`].
    pub fn guarded(mut self, guard: Option<impl Guard + 'static>) -> Lookup {
        self.guard = guard.map(|guard| Box::new(guard) as Box<dyn Guard>);
        self
    }

    /// What was looked up is used no more, but for messages.
    pub fn let_go(&mut self) {
        self.guard = None;
    }

    /// Reads these directories whole, since many names in them will be asked for.
    pub fn listing<'a>(dirs: impl IntoIterator<Item = &'a Path>) -> Lookup {
        Lookup { listed: dirs.into_iter().filter_map(Listing::read).collect(), ..Lookup::default() }
    }

    /// `false` only when the normalised path was not there when the directories were read: asks the kernel for nothing.
    pub(crate) fn may_exist(&self, path: &Path) -> bool {
        self.listed.iter().all(|listing| {
            let below = path.as_os_str().as_bytes().strip_prefix(listing.dir.as_os_str().as_bytes());
            match below.and_then(|below| below.strip_prefix(b"/")) {
                Some(below) if !below.is_empty() => {
                    let name = below.split(|b| *b == b'/').next().unwrap_or(below);
                    listing.find(OsStr::from_bytes(name)) != Found::Missing
                }
                _ => true,
            }
        })
    }

    /// The path without symlinks; `None` when it leads to nothing.
    pub fn real(&self, path: &Path) -> Option<PathBuf> {
        if !path.is_absolute() {
            return fs::canonicalize(path).ok();
        }
        self.walk(path).ok().filter(|walk| walk.end != End::Missing).map(|walk| walk.real)
    }

    /// As [`fs::canonicalize`], which says what is in the way where there is something.
    pub fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        self.real(path).map_or_else(|| fs::canonicalize(path), Ok)
    }

    /// Whether an absolute path leads to something.
    pub fn exists(&self, path: &Path) -> bool {
        self.walk(path).is_ok_and(|walk| walk.end != End::Missing)
    }

    /// Follows an absolute path name by name.
    pub fn walk(&self, path: &Path) -> io::Result<Walk> {
        match self.straight(path)? {
            Some(end) => Ok(Walk { real: path.to_path_buf(), end, links: Vec::new(), closed: None }),
            None => self.winding(path),
        }
    }

    /// Where a path leads that is normalised and has no symlink or closed directory in it; `None` for any other.
    fn straight(&self, path: &Path) -> io::Result<Option<End>> {
        let bytes = path.as_os_str().as_bytes();
        let mut through = self.through.borrow_mut();
        if bytes == b"/" || !bytes.is_empty() && bytes == through.as_os_str().as_bytes() {
            return Ok(Some(End::Dir));
        }
        let known = if is_in(path, &through) { through.as_os_str().len() } else { 0 };
        let Some(names) = bytes[known..].strip_prefix(b"/") else { return Ok(None) };
        if names.split(|b| *b == b'/').any(|name| matches!(name, b"" | b"." | b"..")) {
            return Ok(None);
        }
        let parent = bytes.len() - names.rsplit(|b| *b == b'/').next().map_or(0, <[u8]>::len) - 1;
        let ends = (known + 1..bytes.len()).filter(|i| bytes[*i] == b'/').chain([bytes.len()]);
        for end in ends {
            match self.find(&bytes[..end])? {
                Found::Dir if end == parent => *through = PathBuf::from(OsStr::from_bytes(&bytes[..end])),
                Found::Dir => {}
                Found::Link | Found::Closed => return Ok(None),
                Found::File if end == bytes.len() => return Ok(Some(End::File)),
                Found::File | Found::Missing => return Ok(Some(End::Missing)),
            }
        }
        Ok(Some(End::Dir))
    }

    fn winding(&self, path: &Path) -> io::Result<Walk> {
        let mut walk = Walk { real: PathBuf::from("/"), end: End::Dir, links: Vec::new(), closed: None };
        let mut rest: Vec<OsString> = names(path);
        while let Some(name) = rest.pop() {
            if name == ".." {
                // Behind a file there is nothing.
                walk.end = if walk.end == End::Dir { End::Dir } else { End::Missing };
                walk.real.pop();
                continue;
            }
            walk.real.push(&name);
            if walk.end != End::Dir {
                walk.end = End::Missing;
                continue;
            }
            match self.find(walk.real.as_os_str().as_bytes())? {
                Found::Missing => walk.end = End::Missing,
                Found::Closed => {
                    walk.end = End::Missing;
                    walk.closed = walk.real.parent().map(Path::to_path_buf);
                }
                Found::Dir => {}
                Found::File => walk.end = End::File,
                Found::Link => {
                    if walk.links.len() == MOST_LINKS {
                        return Err(io::Error::from_raw_os_error(40)); // ELOOP
                    }
                    let to = self.read_link(&walk.real)?;
                    walk.links.push(walk.real.clone());
                    walk.real.pop();
                    if to.is_absolute() {
                        walk.real = PathBuf::from("/");
                    }
                    rest.extend(names(&to));
                }
            }
        }
        let directory = [b"/".as_slice(), b"/."].iter().any(|end| path.as_os_str().as_bytes().ends_with(end));
        if directory && walk.end == End::File {
            walk.end = End::Missing;
        }
        Ok(walk)
    }

    fn read_link(&self, link: &Path) -> io::Result<PathBuf> {
        if let Some(to) = self.links.borrow().get(link) {
            return Ok(to.clone());
        }
        let to = fs::read_link(link)?;
        self.links.borrow_mut().insert(link.to_path_buf(), to.clone());
        Ok(to)
    }

    /// Every path that a pattern names.
    pub fn matches(&self, glob: &Glob) -> Arc<Matches> {
        self.matched.borrow_mut().entry(glob.as_str().to_owned()).or_insert_with(|| Arc::new(glob.expand())).clone()
    }

    /// What stands at a path whose directories are no links.
    fn find(&self, path: &[u8]) -> io::Result<Found> {
        let name_at = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        let (dir, name) = (&path[..name_at.saturating_sub(1)], OsStr::from_bytes(&path[name_at..]));
        if let Some(listing) = self.listed.iter().find(|listing| listing.dir.as_os_str().as_bytes() == dir) {
            return Ok(listing.find(name));
        }
        let path = OsStr::from_bytes(path);
        if let Some(found) = self.asked.borrow().get(path) {
            return Ok(*found);
        }
        let found = match fs::symlink_metadata(path) {
            Ok(data) => data.file_type().into(),
            Err(e) if is_missing(&e) => Found::Missing,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Found::Closed,
            Err(e) => return Err(e),
        };
        self.asked.borrow_mut().insert(path.to_owned(), found);
        Ok(found)
    }
}

impl Listing {
    /// `None` when the directory cannot be read, or is too large for that to be worth while.
    fn read(dir: &Path) -> Option<Listing> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(dir, flags, Mode::empty()).ok()?;
        let mut space = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(file, &mut space);
        let mut names = Vec::with_capacity(64);
        while let Some(entry) = entries.next() {
            let entry = entry.ok()?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let found = match entry.file_type() {
                FileType::Directory => Found::Dir,
                FileType::Symlink => Found::Link,
                FileType::Unknown => fs::symlink_metadata(dir.join(name)).ok()?.file_type().into(),
                _ => Found::File,
            };
            if names.len() == Lookup::MOST {
                return None;
            }
            names.push((name.to_owned(), found));
        }
        names.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Some(Listing { dir: dir.to_path_buf(), names })
    }

    fn find(&self, name: &OsStr) -> Found {
        self.names
            .binary_search_by(|(known, _)| known.as_os_str().cmp(name))
            .map_or(Found::Missing, |index| self.names[index].1)
    }
}

/// The paths of what is in a directory, at most so many, and whether each is a directory or a symlink. What cannot be read is
/// empty.
pub(crate) fn entries(dir: &Path, most: usize) -> Vec<(PathBuf, FileType)> {
    let mut found = Vec::new();
    each(dir, |name, kind| {
        let more = found.len() < most;
        if more {
            found.push((dir.join(OsStr::from_bytes(name)), kind));
        }
        more
    });
    found
}

/// Calls with each name of a directory and its kind, until that says `false`. The C library would take and give back memory
/// of the kernel's for each directory.
pub(crate) fn each(dir: &Path, mut look: impl FnMut(&[u8], FileType) -> bool) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(dir, flags, Mode::empty()) else { return };
    let mut space = [MaybeUninit::uninit(); 2048];
    let mut names = RawDir::new(file, &mut space);
    while let Some(Ok(entry)) = names.next() {
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let data = fs::symlink_metadata(dir.join(OsStr::from_bytes(name)));
                data.map_or(FileType::Unknown, |data| FileType::from_raw_mode(data.mode()))
            }
            kind => kind,
        };
        if !look(name, kind) {
            return;
        }
    }
}

/// Whether this is a directory with nothing in it. An error when it is none, or is gone.
pub fn is_empty(dir: &Path) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::empty())?;
    let mut space = [MaybeUninit::uninit(); 512];
    let mut entries = RawDir::new(file, &mut space);
    while let Some(entry) = entries.next() {
        // A directory that was removed after it was opened cannot be read.
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// As [`Path::starts_with`] for normalised paths, in a tenth of its time: a start compares thousands.
pub(crate) fn is_in(path: &Path, dir: &Path) -> bool {
    let (path, dir) = (path.as_os_str().as_bytes(), dir.as_os_str().as_bytes());
    // The end first: that tells most of them apart.
    match path.get(dir.len()) {
        Some(next) => (*next == b'/' || dir == b"/") && path.starts_with(dir),
        None => path == dir,
    }
}

/// Whether an error says that there is nothing. With any other there may be something that the caller cannot see, but a
/// sandbox can: it changes the permissions of directories that are its own.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The names of a path, last first.
fn names(path: &Path) -> Vec<OsString> {
    let name = |c: Component<'_>| match c {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_listing_never_denies_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        let lookup = Lookup::listing([dir.path(), Path::new("/nonexistent")]);
        for (name, expected) in [("a", true), ("a/b", true), ("c", false), ("c/d", false), ("", true)] {
            assert_eq!(lookup.may_exist(&dir.path().join(name)), expected, "{name}");
        }
        assert!(lookup.may_exist(Path::new("/elsewhere")));
    }

    #[test]
    fn what_was_found_once_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for name in ["a", "b"] {
            fs::create_dir(base.join(name)).unwrap();
        }
        symlink("a", base.join("link")).unwrap();
        let glob = Glob::parse_under(&base, "*").unwrap();
        let lookup = Lookup::default();
        let look = |lookup: &Lookup| (lookup.real(&base.join("link")), lookup.matches(&glob).paths.len());
        assert_eq!(look(&lookup), (Some(base.join("a")), 3));
        fs::remove_file(base.join("link")).unwrap();
        symlink("b", base.join("link")).unwrap();
        fs::create_dir(base.join("c")).unwrap();
        assert_eq!(look(&lookup), (Some(base.join("a")), 3));
        assert_eq!(look(&Lookup::default()), (Some(base.join("b")), 4));
    }

    #[test]
    fn below_a_directory_is_what_paths_say() {
        let paths = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/ab/b", "/b"].map(Path::new);
        for path in paths {
            for dir in paths {
                assert_eq!(is_in(path, dir), path.starts_with(dir), "{} {}", path.display(), dir.display());
            }
        }
    }

    #[test]
    fn with_and_without_a_listing_paths_lead_to_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("d/e")).unwrap();
        fs::write(base.join("d/f"), "").unwrap();
        for (link, to) in [("l", "d"), ("m", "l/e"), ("up", ".."), ("gone", "nothing/x"), ("loop", "loop")] {
            symlink(to, base.join(link)).unwrap();
        }
        symlink(base.join("d/f"), base.join("abs")).unwrap();
        let table = [
            ("d", Some(("d", End::Dir, 0))),
            ("d/f", Some(("d/f", End::File, 0))),
            ("d/f/x", Some(("d/f/x", End::Missing, 0))),
            // Behind a file there is nothing, as realpath has it.
            ("d/f/", Some(("d/f", End::Missing, 0))),
            ("d/f/.", Some(("d/f", End::Missing, 0))),
            ("d/f/..", Some(("d", End::Missing, 0))),
            ("d/f/../e", Some(("d/e", End::Missing, 0))),
            ("d/g/h", Some(("d/g/h", End::Missing, 0))),
            ("d/../d/./f", Some(("d/f", End::File, 0))),
            ("l/f", Some(("d/f", End::File, 1))),
            // Through the directory of the path before, and that itself.
            ("d/e", Some(("d/e", End::Dir, 0))),
            ("d/e/x", Some(("d/e/x", End::Missing, 0))),
            ("d/e/../f", Some(("d/f", End::File, 0))),
            ("d/e/", Some(("d/e", End::Dir, 0))),
            ("d/ex", Some(("d/ex", End::Missing, 0))),
            ("d/e/.", Some(("d/e", End::Dir, 0))),
            ("d//e", Some(("d/e", End::Dir, 0))),
            ("m", Some(("d/e", End::Dir, 2))),
            ("m/../f", Some(("d/f", End::File, 2))),
            ("abs", Some(("d/f", End::File, 1))),
            ("gone", Some(("nothing/x", End::Missing, 1))),
            ("loop", None),
        ];
        let plain = Lookup::default();
        let listing = Lookup::listing([base.as_path()]);
        for (path, expected) in table {
            for lookup in [&plain, &listing, &plain] {
                let walk = lookup.walk(&base.join(path)).ok();
                let walk = walk.as_ref().map(|w| (w.real.as_path(), w.end, w.links.len()));
                let expected = expected.map(|(real, end, links)| (base.join(real), end, links));
                assert_eq!(walk, expected.as_ref().map(|(real, end, links)| (real.as_path(), *end, *links)), "{path}");
            }
        }
        assert_eq!(plain.real(&base.join("up")).as_deref(), base.parent());
        assert_eq!(plain.real(Path::new("/")), Some(PathBuf::from("/")));
        assert_eq!(plain.real(&base.join("gone")), None);
    }
}
