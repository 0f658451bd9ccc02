//! `ringfence session cp`: files and directories, in and out. What comes out was chosen by the box, and so may be what lies
//! on the host where it can write: names lead nowhere but below what the user named, and no symlink is followed.
//! What cannot be copied is named, the rest is copied, and the program says at the end that something is missing.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use ringfence::policy::guarded::{self, Guarded, Held};
use ringfence::session::{Entry, EntryKind, Files, Placeholder, Session, SessionError, WriteOptions};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::exec::{Signals, ended_by};
use crate::failure::{Failure, Kind};
use crate::output;

/// The cure where a name is held.
const INCLUDE: &str = "look at what it is; `--include-protected` copies it";
/// Directories are followed so deep.
const DEPTH: u16 = 256;
/// Without waiting for whoever else has it: a box may have taken a lease.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
const BELOW: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// How much comes out of a session. The box decides how large its files are, and a hole costs it nothing.
struct Room {
    left: u64,
    /// Which of the two is the bound.
    by_disk: bool,
}

impl Room {
    /// Of what is free where it lands, a tenth is left to the others.
    fn new(asked: Option<u64>, at: &OwnedFd) -> Result<Room, Failure> {
        let disk = rustix::fs::fstatvfs(at).map_err(|e| failed("look at", Path::new("."), e))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize) / 10 * 9;
        let asked = asked.unwrap_or(u64::MAX);
        Ok(Room { left: asked.min(free), by_disk: free < asked })
    }

    fn too_much(&self, from: &Path) -> Failure {
        let failure = Failure::new(Kind::Session, format!("`{}` is more than may be copied", shown(from)));
        match self.by_disk {
            true => failure.hint("it would fill the disk: a tenth of what is free stays free"),
            false => failure.hint("`--max-size` allows more, such as `--max-size 20g`; `never` is without a bound"),
        }
    }
}

/// Why one entry was not copied: its own trouble, or one that ends everything.
enum Trouble {
    Own(String),
    Of(Failure),
}

impl From<SessionError> for Trouble {
    fn from(error: SessionError) -> Trouble {
        match error {
            SessionError::File { errno, .. } | SessionError::Copy { errno, .. } => Trouble::Own(errno.to_string()),
            other => Trouble::Of(other.into()),
        }
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Trouble {
        Trouble::Own(errno.to_string())
    }
}

impl Trouble {
    /// As the failure of all there was to do.
    fn with(self, what: &str, path: &Path) -> Failure {
        match self {
            Trouble::Own(why) => failed(what, path, why),
            Trouble::Of(failure) => failure,
        }
    }
}

/// What was not copied: named at once, and counted. The others are copied all the same.
#[derive(Default)]
struct LeftOut {
    count: usize,
    links: bool,
    /// Names that are not made on the host by themselves.
    held: bool,
    /// What the session's policy hides.
    hidden: bool,
}

impl LeftOut {
    fn add(&mut self, path: &Path, why: impl std::fmt::Display) {
        output::say(&format!("warning: not copied: `{}`: {why}", shown(path)));
        self.count += 1;
    }

    fn add_link(&mut self, path: &Path) {
        self.add(path, "it is a symlink");
        self.links = true;
    }

    fn add_held(&mut self, path: &Path, held: Held) {
        self.add(path, held);
        self.held = true;
    }

    fn add_hidden(&mut self, path: &Path) {
        self.add(path, "the session's policy hides it");
        self.hidden = true;
    }

    /// Counts an entry's own trouble, and hands on what ends everything.
    fn note(&mut self, path: &Path, result: Result<(), Trouble>) -> Result<(), Failure> {
        match result {
            Ok(()) => Ok(()),
            Err(Trouble::Own(why)) => {
                self.add(path, why);
                Ok(())
            }
            Err(Trouble::Of(failure)) => Err(failure),
        }
    }

    fn end(self) -> Result<ExitCode, Failure> {
        let failure = |what: &str| Failure::new(Kind::Session, format!("{what} not copied; all the rest was"));
        let failure = match self.count {
            0 => return Ok(ExitCode::SUCCESS),
            1 => failure("one entry was"),
            n => failure(&format!("{n} entries were")),
        };
        let hints = [
            (self.links, "`ringfence session exec` with `tar` on both sides carries symlinks too"),
            (self.held, INCLUDE),
            (self.hidden, "what is hidden is copied when it is named itself"),
        ];
        Err(hints.into_iter().filter(|(applies, _)| *applies).fold(failure, |failure, (_, hint)| failure.hint(hint)))
    }
}

pub fn copy(from: &OsStr, to: &OsStr, most: Option<u64>, protected: bool) -> Result<ExitCode, Failure> {
    if from.is_empty() || to.is_empty() {
        return Err(Failure::new(Kind::Usage, "an empty path names nothing"));
    }
    if from == "-" || to == "-" {
        return Err(Failure::new(Kind::Usage, "`-` is not stdin or stdout here; a file of this name is `./-`")
            .hint("`ringfence session exec ID -- cat PATH` prints a file")
            .hint("`ringfence session exec ID --stdin -- sh -c 'cat > PATH'` writes one"));
    }
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP])?;
    match (super::split(from), super::split(to)) {
        (None, Some((session, to))) => super::within(async |sessions| {
            let session = super::open(&sessions, &session).await?;
            let files = session.files();
            let mark = RefCell::new(None);
            let done = unless_ended(signals, copy_in(&session, Path::new(from), &to, &mark)).await;
            if let Some(mark) = mark.take() {
                // Its place may be gone with the session.
                let _ = files.remove(mark, false).await;
            }
            done
        }),
        (Some((session, from)), None) => super::within(async |sessions| {
            let session = super::open(&sessions, &session).await?;
            unless_ended(signals, copy_out(&session, &from, Path::new(to), most, protected)).await
        }),
        _ => Err(Failure::new(Kind::Usage, "one of the two is in a session: write it as SESSION:PATH")
            .hint("a path of the host with a colon in it is written with `./` before it")),
    }
}

/// Copies until somebody wants us to end. What is half done is dropped then, and clears up by that.
async fn unless_ended(
    signals: Signals,
    copied: impl Future<Output = Result<ExitCode, Failure>>,
) -> Result<ExitCode, Failure> {
    let mut signals = signals.watch()?;
    tokio::select! {
        done = copied => done,
        signal = signals.next() => Ok(ended_by(signal)),
    }
}

fn failed(what: &str, path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Session, format!("cannot {what} `{}`: {error}", shown(path)))
}

/// As cp(1) does: it would never end, or copy what it copied.
fn into_itself(path: &Path) -> Failure {
    failed("copy", path, "a directory is not copied into itself, and the session sees it where it would land")
}

/// A name as one line of bearable length: whoever made it chose it.
fn shown(path: &Path) -> String {
    output::shortened(&output::one_line(&path.to_string_lossy()))
}

/// Opens what somebody named. A box may have put links where it can write, and they lead wherever it likes: none is followed.
fn open_named(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    rustix::fs::openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Why something could not be opened; with the cure, where it is a link.
fn refused(what: &str, path: &Path, errno: Errno) -> Failure {
    if errno != Errno::LOOP {
        return failed(what, path, errno);
    }
    let failure = failed(what, path, "there is a symlink on the way, which a sandbox may have made");
    match path.canonicalize() {
        Ok(real) => failure.hint(format!("if you mean it, name what it leads to: `{}`", shown(&real))),
        Err(_) => failure,
    }
}

/// What the session's policy keeps. A supervisor of an older release cannot say.
async fn guarded(session: &Session) -> Result<Guarded, Failure> {
    match session.guarded().await {
        Ok(guarded) => Ok(guarded),
        Err(SessionError::UnknownRequest { .. }) => {
            output::say(
                "warning: the session was made by an older release: what its policy hides and protects is not known",
            );
            Ok(Guarded::names(&crate::host::here()?.facts()?.home))
        }
        Err(error) => Err(error.into()),
    }
}

/// The real path of what is open.
fn real(fd: &OwnedFd, path: &Path) -> Result<PathBuf, Failure> {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|error| failed("look at", path, error))
}

/// `mark` is what must be removed in the session, whatever becomes of this.
async fn copy_in(
    session: &Session,
    from: &Path,
    to: &Path,
    mark: &RefCell<Option<PathBuf>>,
) -> Result<ExitCode, Failure> {
    let files = &session.files();
    let top = open_named(from, READ).map_err(|errno| refused("read", from, errno))?;
    let is_dir = to.as_os_str().is_empty()
        || to.as_os_str().as_bytes().ends_with(b"/")
        || files.stat(to).await.is_ok_and(|entry| entry.kind == EntryKind::Directory);
    // `.` has a name as well.
    let name = match from.file_name() {
        Some(name) => Some(name.to_owned()),
        None => from.canonicalize().ok().and_then(|real| real.file_name().map(OsStr::to_owned)),
    };
    let to = name.filter(|_| is_dir).map_or_else(|| to.to_path_buf(), |name| to.join(name));
    let data = rustix::fs::fstat(&top).map_err(|e| failed("read", from, e))?;
    match FileType::from_raw_mode(data.st_mode) {
        FileType::Directory => {
            let guarded = guarded(session).await?;
            copy_directory_in(files, &guarded, &top, from, &to, mark).await
        }
        FileType::RegularFile => {
            let what = format!("copy `{}` to", shown(from));
            send(files, top, &to).await.map_err(|trouble| trouble.with(&what, &to))?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(failed("copy", from, "neither a file nor a directory")),
    }
}

async fn copy_directory_in(
    files: &Files,
    guarded: &Guarded,
    top: &OwnedFd,
    from: &Path,
    to: &Path,
    placed: &RefCell<Option<PathBuf>>,
) -> Result<ExitCode, Failure> {
    let made = files.stat(to).await.is_err();
    if made {
        files.make_directory(to, false).await.map_err(|error| Trouble::from(error).with("make", to))?;
    }
    // A new name where it lands says whether that is below what is copied, whatever mounts and links lead there. Where no
    // file can be made, it says nothing; what is listed before anything is copied has an end all the same.
    let mark = new_name();
    placed.replace(Some(to.join(&mark)));
    let marked = files.write(to.join(&mark), b"", WriteOptions::default()).await.is_ok();
    let is_there = marked && Walk::new(top).is_ok_and(|walk| walk.has(&mark));
    if marked {
        // Its place may be gone with the session, which the next act says.
        let _ = files.remove(to.join(&mark), false).await;
    }
    placed.take();
    if is_there {
        if made {
            let _ = files.remove(to, false).await;
        }
        return Err(into_itself(from));
    }
    let named = real(top, from)?;
    let mut left = LeftOut::default();
    let mut walk = Walk::new(top).map_err(|errno| failed("read", from, errno))?;
    while let Some((below, kind)) = walk.next() {
        let (shown, to) = (from.join(&below), to.join(&below));
        if guarded.hides(&named, &named.join(&below)) {
            // An empty directory tells nothing, and may only stand in for the name.
            if kind != Ok(FileType::Directory) || !is_empty(top, &below) {
                left.add_hidden(&shown);
            }
            walk.leave(kind);
            continue;
        }
        match kind {
            Err(errno) => left.add(&shown, errno),
            Ok(FileType::Directory) => {
                let result = make_inside(files, &to).await;
                if result.is_err() {
                    // What is below it has no place.
                    walk.leave(kind);
                }
                left.note(&shown, result)?;
            }
            Ok(FileType::RegularFile) => {
                let opened = rustix::fs::openat2(top, &below, READ | OFlags::CLOEXEC, Mode::empty(), BELOW);
                let result = match opened {
                    Ok(file) => send(files, file, &to).await,
                    Err(errno) => Err(errno.into()),
                };
                left.note(&shown, result)?;
            }
            Ok(FileType::Symlink) => left.add_link(&shown),
            Ok(_) => left.add(&shown, "neither a file nor a directory"),
        }
    }
    left.end()
}

/// Whether a directory is empty.
fn is_empty(top: &OwnedFd, below: &Path) -> bool {
    let flags = READ | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat2(top, below, flags, Mode::empty(), BELOW).and_then(Dir::new);
    dir.is_ok_and(|mut dir| {
        dir.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")))
    })
}

/// Goes through a directory of the host, each directory before what is in it, and keeps no more than the way to where it is.
struct Walk {
    open: Vec<(Dir, PathBuf)>,
}

impl Walk {
    fn new(top: &OwnedFd) -> Result<Walk, Errno> {
        let flags = READ | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat2(top, ".", flags, Mode::empty(), BELOW).and_then(Dir::new)?;
        Ok(Walk { open: vec![(dir, PathBuf::new())] })
    }

    /// The next entry; the error in the place of one that cannot be read.
    fn next(&mut self) -> Option<(PathBuf, Result<FileType, Errno>)> {
        loop {
            let is_deep = self.open.len() > usize::from(DEPTH);
            let (dir, above) = self.open.last_mut()?;
            let entry = match dir.read() {
                Some(Ok(entry)) => entry,
                Some(Err(errno)) => {
                    let above = std::mem::take(above);
                    self.open.pop();
                    return Some((above, Err(errno)));
                }
                None => {
                    self.open.pop();
                    continue;
                }
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let path = above.join(name);
            let kind = match entry.file_type() {
                // Not every file system tells.
                FileType::Unknown => dir
                    .fd()
                    .and_then(|fd| rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW))
                    .map_or(FileType::Unknown, |data| FileType::from_raw_mode(data.st_mode)),
                kind => kind,
            };
            if kind != FileType::Directory {
                return Some((path, Ok(kind)));
            }
            let flags = READ | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = match is_deep {
                true => Err(Errno::NAMETOOLONG),
                false => dir.fd().and_then(|fd| rustix::fs::openat2(fd, name, flags, Mode::empty(), BELOW)),
            };
            return Some(match opened.and_then(Dir::new) {
                Ok(dir) => {
                    self.open.push((dir, path.clone()));
                    (path, Ok(kind))
                }
                Err(errno) => (path, Err(errno)),
            });
        }
    }

    /// Does not go into what came last.
    fn leave(&mut self, last: Result<FileType, Errno>) {
        if last == Ok(FileType::Directory) {
            self.open.pop();
        }
    }

    /// Whether there is an entry of this name, at any depth.
    fn has(mut self, wanted: &str) -> bool {
        std::iter::from_fn(|| self.next()).any(|(path, _)| path.file_name() == Some(OsStr::new(wanted)))
    }
}

/// Makes a directory in the session, unless there is one, or a link to one.
async fn make_inside(files: &Files, to: &Path) -> Result<(), Trouble> {
    match files.stat(to).await {
        Ok(entry) if matches!(entry.kind, EntryKind::Directory | EntryKind::Symlink) => Ok(()),
        Ok(_) => Err(Errno::NOTDIR.into()),
        Err(_) => Ok(files.make_directory(to, false).await?),
    }
}

/// Sends one file, which has its name when it is complete.
async fn send(files: &Files, file: OwnedFd, to: &Path) -> Result<(), Trouble> {
    let data = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(data.st_mode) != FileType::RegularFile {
        return Err(Trouble::Own("it is no file any more".to_owned()));
    }
    let options = WriteOptions { mode: data.st_mode & 0o777, ..WriteOptions::default() };
    let mut writer = files.writer(to, options).await?;
    writer.copy_from(&file).await?;
    writer.finish().await?;
    Ok(())
}

/// What stands in for protected names below a directory, by its path from there.
async fn placeholders(session: &Session, below: &Path) -> Result<HashMap<PathBuf, Placeholder>, Failure> {
    let top = session.info().await?.workdir_inside.join(below);
    let all = session.placeholders().await?.into_iter();
    Ok(all.filter_map(|one| Some((one.path.strip_prefix(&top).ok()?.to_path_buf(), one))).collect())
}

async fn copy_out(
    session: &Session,
    from: &Path,
    to: &Path,
    most: Option<u64>,
    protected: bool,
) -> Result<ExitCode, Failure> {
    let files = &session.files();
    // The session's working directory has no name there.
    let from = &from.components().filter(|part| *part != Component::CurDir).collect::<PathBuf>();
    let top = files.stat(from).await.map_err(|error| Trouble::from(error).with("read", from))?;
    let placeholders = placeholders(session, from).await?;
    if let Some(one) = placeholders.get(Path::new(""))
        && one.is(&top, files.list(from, 1).await.is_ok_and(|inside| inside.is_empty()))
    {
        return Err(failed("copy", from, "it only stands in for a name that is protected, and nothing is there"));
    }
    let Landing { parent, name, is_named } = landing(from, to)?;
    let mut room = Room::new(most, &parent)?;
    match (top.kind, name) {
        (EntryKind::File, Some(name)) => {
            let fetched = fetch(files, from, &parent, Path::new(&name), &top, &mut room).await;
            fetched.map_err(|trouble| trouble.with("copy", from))?;
            Ok(ExitCode::SUCCESS)
        }
        (EntryKind::File, None) => Err(failed("write", to, "it has no name")),
        (EntryKind::Directory, name) => {
            let name = name.as_ref().map(Path::new);
            let at = real(&parent, to)?;
            let top = name.map_or_else(|| at.clone(), |name| at.join(name));
            let held = Outlet {
                guarded: guarded(session).await?,
                named: if is_named { top.clone() } else { at },
                top,
                protected,
            };
            if let Some(name) = name
                && let Some(why) = held.holds_top(&parent, name)
            {
                return Err(failed("copy", from, format!("as `{}`: {why}", shown(name))).hint(INCLUDE));
            }
            let made = match name {
                Some(name) => make_below(&parent, name).map_err(|errno| failed("make", to, errno))?,
                None => false,
            };
            let below = name.unwrap_or(Path::new(""));
            let below = open_below(&parent, below).map_err(|errno| refused("write to", to, errno))?;
            let listed = list_inside(files, from, &below).await;
            if let (Err(_), true, Some(name)) = (&listed, made, name) {
                let _ = rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR);
            }
            copy_directory_out(files, from, &below, listed?, &placeholders, &held, &mut room).await
        }
        (EntryKind::Symlink, _) => Err(failed("copy", from, "it is a symlink, and none is followed")),
        (EntryKind::Other, _) => Err(failed("copy", from, "neither a file nor a directory")),
    }
}

/// What a directory of the session holds, unless it is to land in itself.
async fn list_inside(files: &Files, from: &Path, below: &OwnedFd) -> Result<Vec<Entry>, Failure> {
    // See the way in.
    let mark = Temporary::new(below, Mode::RUSR | Mode::WUSR).ok().map(|(mark, _)| mark);
    let listed = files.list(from, DEPTH).await;
    let listed = listed.map_err(|error| Trouble::from(error).with("read", from))?;
    let is_mark = |entry: &Entry| mark.as_ref().is_some_and(|mark| entry.path.ends_with(mark.name.as_bytes()));
    if listed.iter().any(is_mark) { Err(into_itself(from)) } else { Ok(listed) }
}

/// What is not made on the host by itself, and where this copy lands.
struct Outlet {
    guarded: Guarded,
    /// The path of the host that the user named, and where the directory lands: there, or below it.
    named: PathBuf,
    top: PathBuf,
    /// The user wants all of it.
    protected: bool,
}

impl Outlet {
    /// Why the directory itself does not come out.
    fn holds_top(&self, parent: &OwnedFd, name: &Path) -> Option<Held> {
        if self.protected || self.named == self.top {
            return None;
        }
        let chosen = BTreeSet::from([name.as_os_str()]);
        match guarded::layout(&chosen, |part| is_there(parent, Path::new(part))).is_empty() {
            true => self.guarded.holds(&self.named, &self.top, is_there(parent, name)),
            false => Some(Held::Repository),
        }
    }

    /// Why this path below it does not.
    fn holds(&self, below: &OwnedFd, path: &Path) -> Option<Held> {
        let held = || self.guarded.holds(&self.named, &self.top.join(path), is_there(below, path));
        if self.protected { None } else { held() }
    }

    /// The names below it that would make a repository of a directory, or change one.
    fn parts(&self, below: &OwnedFd, paths: &[PathBuf]) -> HashSet<PathBuf> {
        let mut chosen: HashMap<&Path, BTreeSet<&OsStr>> = HashMap::new();
        for path in paths.iter().filter(|_| !self.protected) {
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
                && guarded::is_layout(name)
            {
                chosen.entry(parent).or_default().insert(name);
            }
        }
        let parts = chosen.iter().flat_map(|(parent, names)| {
            let held = guarded::layout(names, |part| is_there(below, &parent.join(part)));
            held.into_iter().map(|name| parent.join(name))
        });
        parts.collect()
    }
}

fn is_there(dir: &OwnedFd, path: &Path) -> bool {
    rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

async fn copy_directory_out(
    files: &Files,
    from: &Path,
    below: &OwnedFd,
    listed: Vec<Entry>,
    placeholders: &HashMap<PathBuf, Placeholder>,
    held: &Outlet,
    room: &mut Room,
) -> Result<ExitCode, Failure> {
    let mut left = LeftOut::default();
    let path_of = |entry: &Entry| PathBuf::from(OsStr::from_bytes(&entry.path));
    let filled: HashSet<PathBuf> =
        listed.iter().filter_map(|entry| path_of(entry).parent().map(Path::to_path_buf)).collect();
    let parts = held.parts(below, &listed.iter().map(path_of).collect::<Vec<_>>());
    // Directories that stay behind, with all that is in them.
    let mut behind: HashSet<PathBuf> = HashSet::new();
    for entry in &listed {
        let path = path_of(entry);
        if path.as_os_str().is_empty() || !path.components().all(|c| matches!(c, Component::Normal(_))) {
            return Err(failed("write", &path, "the session names what is not below the directory"));
        }
        // There while the session is, and nobody's.
        if placeholders.get(&path).is_some_and(|one| one.is(entry, !filled.contains(&path))) {
            continue;
        }
        if !behind.is_empty() && path.ancestors().skip(1).any(|above| behind.contains(above)) {
            continue;
        }
        let inside = from.join(&path);
        let why = if parts.contains(&path) { Some(Held::Repository) } else { held.holds(below, &path) };
        if let Some(why) = why {
            left.add_held(&inside, why);
            behind.insert(path);
            continue;
        }
        let result = match entry.kind {
            EntryKind::Symlink => {
                left.add_link(&inside);
                continue;
            }
            EntryKind::Other => Err(Trouble::Own("neither a file nor a directory".to_owned())),
            // It may be empty, or closed to whoever lists.
            EntryKind::Directory if !filled.contains(&path) => match files.list(&inside, 1).await {
                Ok(_) => take(files, &inside, below, &path, entry, room).await,
                Err(error) => Err(error.into()),
            },
            EntryKind::Directory | EntryKind::File => take(files, &inside, below, &path, entry, room).await,
        };
        left.note(&inside, result)?;
    }
    left.end()
}

/// Where something lands: below an existing directory, where it keeps its name; else under the name that was given. Without a
/// name, in the directory itself.
struct Landing {
    parent: OwnedFd,
    name: Option<OsString>,
    /// The user gave it the name that it has on the host.
    is_named: bool,
}

fn landing(from: &Path, to: &Path) -> Result<Landing, Failure> {
    match open_named(to, DIRECTORY) {
        Ok(parent) => Ok(Landing { parent, name: from.file_name().map(OsStr::to_owned), is_named: false }),
        // It may be the user's own: then it is not what is to be replaced.
        Err(Errno::LOOP) if to.is_dir() => Err(refused("write to", to, Errno::LOOP)),
        // What stands there, a link included, is replaced and not used.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if to.file_name().is_some() => {
            let parent = to.parent().unwrap_or(Path::new(""));
            let opened = open_named(parent, DIRECTORY).map_err(|errno| refused("write to", parent, errno))?;
            Ok(Landing { parent: opened, name: to.file_name().map(OsStr::to_owned), is_named: true })
        }
        Err(errno) => Err(refused("write to", to, errno)),
    }
}

/// One file or directory of a listed one.
async fn take(
    files: &Files,
    inside: &Path,
    below: &OwnedFd,
    path: &Path,
    entry: &Entry,
    room: &mut Room,
) -> Result<(), Trouble> {
    let parent = open_below(below, path.parent().unwrap_or(Path::new("")))?;
    let name = Path::new(path.file_name().unwrap_or_default());
    match entry.kind {
        EntryKind::Directory => Ok(make_below(&parent, name).map(drop)?),
        _ => fetch(files, inside, &parent, name, entry, room).await,
    }
}

/// Fetches a file to a new one of this name, which takes the place of what was there when it is complete.
async fn fetch(
    files: &Files,
    from: &Path,
    parent: &OwnedFd,
    name: &Path,
    entry: &Entry,
    room: &mut Room,
) -> Result<(), Trouble> {
    // Whoever names `/dev/null` does not want another one.
    if let Ok(there) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        && !matches!(
            FileType::from_raw_mode(there.st_mode),
            FileType::RegularFile | FileType::Symlink | FileType::Directory
        )
    {
        return Err(Trouble::Own("what is there is neither a file nor a link, and is not replaced".to_owned()));
    }
    // It may still grow; but what is too large now need not be begun.
    if entry.size > room.left {
        return Err(Trouble::Of(room.too_much(from)));
    }
    // Never set-user-id, whatever the box says.
    let mode = Mode::from_raw_mode(entry.mode & 0o777);
    let file = Incomplete::new(parent, mode)?;
    match files.reader(from, 0).await?.copy_within(file.fd(), room.left).await {
        Ok(bytes) => room.left -= bytes,
        Err(SessionError::TooLong { .. }) => return Err(Trouble::Of(room.too_much(from))),
        Err(error) => return Err(error.into()),
    }
    Ok(file.take_name(name)?)
}

/// A file on its way. It has no name until it is complete, so that nothing is left of it however this process ends; where the
/// file system has no such files, it has one of its own.
enum Incomplete<'a> {
    Nameless(&'a OwnedFd, OwnedFd),
    Named(Temporary<'a>, OwnedFd),
}

impl Incomplete<'_> {
    fn new(parent: &OwnedFd, mode: Mode) -> Result<Incomplete<'_>, Errno> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(parent, ".", flags, mode) {
            Ok(file) => Ok(Incomplete::Nameless(parent, file)),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                Temporary::new(parent, mode).map(|(temporary, file)| Incomplete::Named(temporary, file))
            }
            Err(errno) => Err(errno),
        }
    }

    fn fd(&self) -> &OwnedFd {
        match self {
            Incomplete::Nameless(_, file) | Incomplete::Named(_, file) => file,
        }
    }

    /// It is complete, and takes the place of what has this name.
    fn take_name(self, name: &Path) -> Result<(), Errno> {
        let temporary = match self {
            Incomplete::Named(temporary, _) => temporary,
            Incomplete::Nameless(parent, file) => match link(&file, parent, name) {
                // Only a name can take the place of another one.
                Err(Errno::EXIST) => {
                    let temporary = Temporary { parent, name: new_name() };
                    link(&file, parent, Path::new(&temporary.name))?;
                    temporary
                }
                linked => return linked,
            },
        };
        // Its own name is nobody's afterwards.
        rustix::fs::renameat(temporary.parent, &temporary.name, temporary.parent, name)
    }
}

/// Gives a file without a name this one, which nothing has.
fn link(file: &OwnedFd, parent: &OwnedFd, name: &Path) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, path, parent, name, AtFlags::SYMLINK_FOLLOW)
}

/// A new file under a name of its own, which goes with this. A box may be able to write there, too: nothing that is there
/// already is used.
struct Temporary<'a> {
    parent: &'a OwnedFd,
    name: String,
}

impl Temporary<'_> {
    fn new(parent: &OwnedFd, mode: Mode) -> Result<(Temporary<'_>, OwnedFd), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let mut tries = 0;
        loop {
            let name = new_name();
            match rustix::fs::openat(parent, &name, flags | OFlags::CLOEXEC, mode) {
                Err(Errno::EXIST) if tries < 100 => tries += 1,
                opened => return opened.map(|file| (Temporary { parent, name }, file)),
            }
        }
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // It has another name by now, or is not wanted.
        let _ = rustix::fs::unlinkat(self.parent, &self.name, AtFlags::empty());
    }
}

fn new_name() -> String {
    let mut random = [0u8; 8];
    // Without randomness the name is taken at worst, and another one is tried.
    let _ = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
    format!(".ringfence-{:016x}", u64::from_le_bytes(random))
}

/// Whether it had to be made.
fn make_below(dir: &OwnedFd, name: &Path) -> Result<bool, Errno> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn open_below(dir: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    rustix::fs::openat2(dir, path, DIRECTORY | OFlags::CLOEXEC, Mode::empty(), BELOW)
}
