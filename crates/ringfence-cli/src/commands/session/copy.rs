//! `ringfence session cp`: files and directories, in and out. What comes out was chosen by the box, and so may be what lies
//! on the host where it can write: names lead nowhere but below what the user named, and no symlink is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use ringfence::session::{Entry, EntryKind, Files, SessionError, WriteOptions};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::failure::{Failure, Kind};
use crate::output;

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

pub fn copy(from: &OsStr, to: &OsStr, most: Option<u64>) -> Result<ExitCode, Failure> {
    match (super::split(from), super::split(to)) {
        (None, Some((session, to))) => super::within(async |sessions| {
            let files = super::open(&sessions, &session).await?.files();
            copy_in(&files, Path::new(from), &to).await
        }),
        (Some((session, from)), None) => super::within(async |sessions| {
            let files = super::open(&sessions, &session).await?.files();
            copy_out(&files, &from, Path::new(to), most).await
        }),
        _ => Err(Failure::new(Kind::Usage, "one of the two is in a session: write it as SESSION:PATH")
            .hint("a path of the host with a colon in it is written with `./` before it")),
    }
}

fn failed(what: &str, path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Session, format!("cannot {what} `{}`: {error}", shown(path)))
}

/// A name as one line: whoever made it chose it.
fn shown(path: &Path) -> String {
    output::one_line(&path.to_string_lossy())
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

async fn copy_in(files: &Files, from: &Path, to: &Path) -> Result<ExitCode, Failure> {
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
    let mut pending = vec![(PathBuf::new(), to)];
    while let Some((below, to)) = pending.pop() {
        let named = if below.as_os_str().is_empty() { from.to_path_buf() } else { from.join(&below) };
        let left_out =
            || output::say(&format!("warning: left out `{}`: neither a file nor a directory", shown(&named)));
        let opened = match below.as_os_str().is_empty() {
            true => top.try_clone().map_err(|e| failed("read", &named, e))?,
            false => match rustix::fs::openat2(&top, &below, READ | OFlags::CLOEXEC, Mode::empty(), BELOW) {
                Ok(opened) => opened,
                // A link; a socket.
                Err(Errno::LOOP | Errno::NXIO) => {
                    left_out();
                    continue;
                }
                Err(errno) => return Err(failed("read", &named, errno)),
            },
        };
        let data = rustix::fs::fstat(&opened).map_err(|e| failed("read", &named, e))?;
        match FileType::from_raw_mode(data.st_mode) {
            FileType::Directory => {
                if files.stat(&to).await.is_err() {
                    files.make_directory(&to, false).await?;
                }
                for entry in Dir::new(opened).map_err(|e| failed("read", &named, e))? {
                    let entry = entry.map_err(|e| failed("read", &named, e))?;
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    if name != "." && name != ".." {
                        pending.push((below.join(name), to.join(name)));
                    }
                }
            }
            FileType::RegularFile => {
                let options = WriteOptions { mode: data.st_mode & 0o777, ..WriteOptions::default() };
                let mut writer = files.writer(&to, options).await?;
                writer.copy_from(&File::from(opened)).await?;
                writer.finish().await?;
            }
            _ => left_out(),
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn copy_out(files: &Files, from: &Path, to: &Path, most: Option<u64>) -> Result<ExitCode, Failure> {
    let top = files.stat(from).await?;
    let (parent, name) = landing(from, to)?;
    let mut room = Room::new(most, &parent)?;
    match (top.kind, name) {
        (EntryKind::File, Some(name)) => fetch(files, from, &parent, Path::new(&name), top.mode, &mut room).await?,
        (EntryKind::File, None) => return Err(failed("write", to, "it has no name")),
        (EntryKind::Directory, name) => {
            let below = match &name {
                Some(name) => {
                    make_below(&parent, Path::new(name))?;
                    open_below(&parent, Path::new(name))?
                }
                None => parent,
            };
            for entry in files.list(from, DEPTH).await? {
                take(files, from, &below, &entry, &mut room).await?;
            }
        }
        (EntryKind::Symlink | EntryKind::Other, _) => {
            return Err(failed("copy", from, "neither a file nor a directory"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where something lands: below an existing directory, where it keeps its name; else under the name that was given. Without a
/// name, in the directory itself.
fn landing(from: &Path, to: &Path) -> Result<(OwnedFd, Option<OsString>), Failure> {
    match open_named(to, DIRECTORY) {
        Ok(dir) => Ok((dir, from.file_name().map(OsStr::to_owned))),
        // It may be the user's own: then it is not what is to be replaced.
        Err(Errno::LOOP) if to.is_dir() => Err(refused("write to", to, Errno::LOOP)),
        // What stands there, a link included, is replaced and not used.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if to.file_name().is_some() => {
            let parent = to.parent().unwrap_or(Path::new(""));
            let opened = open_named(parent, DIRECTORY).map_err(|errno| refused("write to", parent, errno))?;
            Ok((opened, to.file_name().map(OsStr::to_owned)))
        }
        Err(errno) => Err(refused("write to", to, errno)),
    }
}

/// One entry of a listed directory.
async fn take(files: &Files, from: &Path, below: &OwnedFd, entry: &Entry, room: &mut Room) -> Result<(), Failure> {
    let path = Path::new(OsStr::from_bytes(&entry.path));
    if path.as_os_str().is_empty() || !path.components().all(|c| matches!(c, Component::Normal(_))) {
        return Err(failed("write", path, "the session names what is not below the directory"));
    }
    match entry.kind {
        EntryKind::Directory => {
            let parent = open_below(below, path.parent().unwrap_or(Path::new("")))?;
            make_below(&parent, Path::new(path.file_name().unwrap_or_default()))
        }
        EntryKind::File => {
            let parent = open_below(below, path.parent().unwrap_or(Path::new("")))?;
            let name = Path::new(path.file_name().unwrap_or_default());
            fetch(files, &from.join(path), &parent, name, entry.mode, room).await
        }
        EntryKind::Symlink | EntryKind::Other => {
            output::say(&format!("warning: left out `{}`: neither a file nor a directory", shown(path)));
            Ok(())
        }
    }
}

/// Fetches a file to a new one of this name, which takes the place of what was there when it is complete.
async fn fetch(
    files: &Files,
    from: &Path,
    parent: &OwnedFd,
    name: &Path,
    mode: u32,
    room: &mut Room,
) -> Result<(), Failure> {
    // Never set-user-id, whatever the box says.
    let mode = Mode::from_raw_mode(mode & 0o777);
    let (temporary, file) = new_file(parent, mode).map_err(|e| failed("write", name, e))?;
    let result = async {
        match files.reader(from, 0).await?.copy_within(&file, room.left).await {
            Ok(bytes) => room.left -= bytes,
            Err(SessionError::TooLong { .. }) => return Err(room.too_much(from)),
            Err(error) => return Err(error.into()),
        }
        rustix::fs::renameat(parent, &temporary, parent, name).map_err(|e| failed("write", name, e))
    }
    .await;
    if result.is_err() {
        let _ = rustix::fs::unlinkat(parent, &temporary, rustix::fs::AtFlags::empty());
    }
    result
}

/// A new file under a name of its own. A box may be able to write there, too: nothing that is there already is used.
fn new_file(parent: &OwnedFd, mode: Mode) -> Result<(String, OwnedFd), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut tries = 0;
    loop {
        let mut random = [0u8; 8];
        // Without randomness the name is taken at worst, and another one is tried.
        let _ = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
        let name = format!(".ringfence-{:016x}", u64::from_le_bytes(random));
        match rustix::fs::openat(parent, &name, flags, mode) {
            Err(Errno::EXIST) if tries < 100 => tries += 1,
            opened => return opened.map(|file| (name, file)),
        }
    }
}

fn make_below(dir: &OwnedFd, name: &Path) -> Result<(), Failure> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(failed("make", name, errno)),
    }
}

fn open_below(dir: &OwnedFd, path: &Path) -> Result<OwnedFd, Failure> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, path, flags, Mode::empty(), BELOW).map_err(|e| failed("write to", path, e))
}
