//! `ringfence session cp`: files and directories, in and out. What comes out was chosen by the box: its names lead nowhere
//! but below the destination.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use ringfence::session::{Entry, EntryKind, Files, WriteOptions};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::failure::{Failure, Kind};
use crate::output;

/// Directories are followed so deep.
const DEPTH: u16 = 256;

pub fn copy(from: &OsStr, to: &OsStr) -> Result<ExitCode, Failure> {
    match (super::split(from), super::split(to)) {
        (None, Some((session, to))) => super::within(async |sessions| {
            let files = super::open(&sessions, &session).await?.files();
            copy_in(&files, Path::new(from), &to).await
        }),
        (Some((session, from)), None) => super::within(async |sessions| {
            let files = super::open(&sessions, &session).await?.files();
            copy_out(&files, &from, Path::new(to)).await
        }),
        _ => Err(Failure::new(Kind::Usage, "one of the two is in a session: write it as SESSION:PATH")
            .hint("a path of the host with a colon in it is written with `./` before it")),
    }
}

fn failed(what: &str, path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Session, format!("cannot {what} `{}`: {error}", path.display()))
}

/// Where something lands: below an existing directory it keeps its name.
fn landing(from: &Path, to: &Path, to_is_dir: bool) -> PathBuf {
    match from.file_name() {
        Some(name) if to_is_dir => to.join(name),
        _ => to.to_path_buf(),
    }
}

async fn copy_in(files: &Files, from: &Path, to: &Path) -> Result<ExitCode, Failure> {
    let is_dir = to.as_os_str().is_empty()
        || to.as_os_str().as_bytes().ends_with(b"/")
        || files.stat(to).await.is_ok_and(|entry| entry.kind == EntryKind::Directory);
    let real = from.canonicalize().map_err(|e| failed("read", from, e))?;
    let to = landing(&real, to, is_dir);
    let mut pending = vec![(real, to)];
    while let Some((from, to)) = pending.pop() {
        let data = from.symlink_metadata().map_err(|e| failed("read", &from, e))?;
        if data.is_dir() {
            if files.stat(&to).await.is_err() {
                files.make_directory(&to, false).await?;
            }
            for entry in from.read_dir().map_err(|e| failed("read", &from, e))? {
                let entry = entry.map_err(|e| failed("read", &from, e))?;
                pending.push((entry.path(), to.join(entry.file_name())));
            }
        } else if data.is_file() {
            let options = WriteOptions { mode: data.permissions().mode() & 0o777, ..WriteOptions::default() };
            let file = File::open(&from).map_err(|e| failed("read", &from, e))?;
            let mut writer = files.writer(&to, options).await?;
            writer.copy_from(&file).await?;
            writer.finish().await?;
        } else {
            output::say(&format!("warning: left out `{}`: neither a file nor a directory", from.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn copy_out(files: &Files, from: &Path, to: &Path) -> Result<ExitCode, Failure> {
    let top = files.stat(from).await?;
    let to = landing(from, to, to.is_dir());
    match top.kind {
        EntryKind::File => {
            let (parent, name) =
                (to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")), to.file_name());
            let name = Path::new(name.ok_or_else(|| failed("write", &to, "it has no name"))?);
            fetch(files, from, &open_dir(parent)?, name, top.mode).await?;
        }
        EntryKind::Directory => {
            make_dir(&to)?;
            let below = open_dir(&to)?;
            for entry in files.list(from, DEPTH).await? {
                take(files, from, &below, &entry).await?;
            }
        }
        EntryKind::Symlink | EntryKind::Other => return Err(failed("copy", from, "neither a file nor a directory")),
    }
    Ok(ExitCode::SUCCESS)
}

/// One entry of a listed directory.
async fn take(files: &Files, from: &Path, below: &OwnedFd, entry: &Entry) -> Result<(), Failure> {
    let path = Path::new(OsStr::from_bytes(&entry.path));
    if path.as_os_str().is_empty() || !path.components().all(|c| matches!(c, Component::Normal(_))) {
        return Err(failed("write", path, "the session names what is not below the directory"));
    }
    match entry.kind {
        EntryKind::Directory => {
            let parent = open_below(below, path.parent().unwrap_or(Path::new("")))?;
            let name = path.file_name().unwrap_or_default();
            match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
                Err(error) => Err(failed("make", path, error)),
            }
        }
        EntryKind::File => {
            let parent = open_below(below, path.parent().unwrap_or(Path::new("")))?;
            fetch(files, &from.join(path), &parent, Path::new(path.file_name().unwrap_or_default()), entry.mode).await
        }
        EntryKind::Symlink | EntryKind::Other => {
            output::say(&format!("warning: left out `{}`: neither a file nor a directory", path.display()));
            Ok(())
        }
    }
}

/// Fetches a file to a new one of this name, which takes the place of what was there when it is complete.
async fn fetch(files: &Files, from: &Path, parent: &OwnedFd, name: &Path, mode: u32) -> Result<(), Failure> {
    let temporary = format!(".ringfence-{}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Never set-user-id, whatever the box says.
    let mode = Mode::from_raw_mode(mode & 0o777);
    let file = rustix::fs::openat(parent, &temporary, flags, mode).map_err(|e| failed("write", name, e))?;
    let result = async {
        files.reader(from, 0).await?.copy_to(&file).await?;
        rustix::fs::renameat(parent, &temporary, parent, name).map_err(|e| failed("write", name, e))
    }
    .await;
    if result.is_err() {
        let _ = rustix::fs::unlinkat(parent, &temporary, rustix::fs::AtFlags::empty());
    }
    result
}

fn make_dir(path: &Path) -> Result<(), Failure> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(failed("make", path, error)),
        _ => Ok(()),
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd, Failure> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed("write to", path, e))
}

fn open_below(dir: &OwnedFd, path: &Path) -> Result<OwnedFd, Failure> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
        .map_err(|e| failed("write to", path, e))
}
