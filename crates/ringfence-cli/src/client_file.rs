//! A client's file, read and replaced in one step. Links in the user's own directories are followed as long as they stay in
//! their place, and none in a project. What was looked up is what is opened: a directory that is swapped for a link in
//! between is an error.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, fchmod, fchown, mkdirat, openat2, renameat, unlinkat};
use rustix::io::Errno;

use crate::clients::Target;

/// A client's file is never larger than this. Claude Code keeps its histories in the same file.
const LARGEST: u64 = 64 << 20;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientFileError {
    #[error("cannot look up `{}`: {source}", path.display())]
    LookUp { path: PathBuf, source: io::Error },
    #[error("`{}` leads out of `{}`", path.display(), base.display())]
    LeadsOut { path: PathBuf, base: PathBuf },
    #[error("there is a symlink on the way to `{}`, which a sandbox may have made", .0.display())]
    Link(PathBuf),
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` is a directory", .0.display())]
    Directory(PathBuf),
    #[error("`{}` is not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error("`{}` is larger than 64 MiB", .0.display())]
    TooLarge(PathBuf),
    #[error("`{}` is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    #[error("cannot make the directory `{}`: {source}", path.display())]
    MakeDirectory { path: PathBuf, source: io::Error },
    #[error("cannot write `{}`: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("`{}` was changed meanwhile", .0.display())]
    Changed(PathBuf),
}

/// A file by its real name below a real directory.
#[derive(Debug)]
pub struct ClientFile {
    base: PathBuf,
    /// Below it, without links.
    below: PathBuf,
    text: Option<String>,
}

impl ClientFile {
    /// Looks it up and reads it; a file that is not there yet is empty.
    pub fn open(target: &Target) -> Result<ClientFile, ClientFileError> {
        let look_up = |path: &Path, source| ClientFileError::LookUp { path: path.to_path_buf(), source };
        let base = target.base.canonicalize().map_err(|source| look_up(&target.base, source))?;
        let asked = base.join(target.file);
        let real = match target.follows {
            true => real(&asked).map_err(|source| look_up(&asked, source))?,
            false => asked.clone(),
        };
        let Ok(below) = real.strip_prefix(&base) else {
            return Err(ClientFileError::LeadsOut { path: asked, base });
        };
        let mut file = ClientFile { below: below.to_path_buf(), base, text: None };
        file.text = file.read()?;
        Ok(file)
    }

    pub fn path(&self) -> PathBuf {
        self.base.join(&self.below)
    }

    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    fn read(&self) -> Result<Option<String>, ClientFileError> {
        let path = self.path();
        let failed = |source: io::Error| ClientFileError::Read { path: path.clone(), source };
        let base = File::open(&self.base).map_err(failed)?;
        let file = match open_below(&base, &self.below, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(ClientFileError::Link(path)),
            opened => File::from(opened.map_err(|errno| failed(errno.into()))?),
        };
        let data = file.metadata().map_err(failed)?;
        if data.is_dir() {
            return Err(ClientFileError::Directory(path));
        }
        if !data.is_file() {
            return Err(ClientFileError::NotAFile(path));
        }
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > LARGEST {
            return Err(ClientFileError::TooLarge(path));
        }
        String::from_utf8(bytes).map(Some).map_err(|_| ClientFileError::NotText(path))
    }

    /// Gives the file this text in one step: readers see the old one or the new one. A new file gets this mode.
    pub fn replace(&self, text: &str, mode: u32) -> Result<(), ClientFileError> {
        let path = self.path();
        let failed = |source: io::Error| ClientFileError::Write { path: path.clone(), source };
        if self.read()? != self.text {
            return Err(ClientFileError::Changed(path));
        }
        let base = File::open(&self.base).map_err(failed)?;
        let directory = self.directory(&base)?;
        let (Some(name), pid) = (self.below.file_name(), std::process::id()) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        let temporary = format!(".{}.ringfence-{pid}", name.display());
        let old = open_below(&base, &self.below, OFlags::PATH).ok().map(File::from);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let written = rustix::fs::openat(&directory, &temporary, flags, Mode::from_raw_mode(mode))
            .map_err(io::Error::from)
            .and_then(|file| {
                let mut file = File::from(file);
                keep(&file, old.as_ref())?;
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                renameat(&directory, &temporary, &directory, name).map_err(io::Error::from)
            });
        if written.is_err() {
            // What is half written must not stay; that it is not there is as good.
            let _ = unlinkat(&directory, &temporary, AtFlags::empty());
        }
        written.map_err(failed)
    }

    /// The directory of the file, made when it is missing.
    fn directory(&self, base: &File) -> Result<File, ClientFileError> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY;
        let failed = |errno: Errno| ClientFileError::Write { path: self.path(), source: errno.into() };
        let mut directory = File::from(open_below(base, Path::new("."), flags).map_err(failed)?);
        let mut made = self.base.clone();
        for part in self.below.parent().into_iter().flat_map(Path::components) {
            made.push(part);
            match mkdirat(&directory, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(ClientFileError::MakeDirectory { path: made, source: errno.into() }),
            }
            directory = File::from(open_below(&directory, Path::new(part.as_os_str()), flags).map_err(failed)?);
        }
        Ok(directory)
    }
}

/// Opens what is below a directory, through no link.
fn open_below(directory: &File, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// The new file belongs to whom the old one did, and may be read by whom it could.
fn keep(new: &File, old: Option<&File>) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let Some(old) = old else { return Ok(()) };
    let (old, mine) = (old.metadata()?, new.metadata()?);
    if (old.uid(), old.gid()) != (mine.uid(), mine.gid()) {
        fchown(new, Some(rustix::fs::Uid::from_raw(old.uid())), Some(rustix::fs::Gid::from_raw(old.gid())))?;
    }
    fchmod(new, Mode::from_raw_mode(old.mode() & 0o7777))?;
    Ok(())
}

/// The path without links, also when its end is not there yet.
fn real(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    // A link to something that is not there: what it would make is not what was asked for.
    if path.symlink_metadata().is_ok() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the link leads nowhere"));
    }
    match (path.parent(), path.components().next_back()) {
        (Some(parent), Some(Component::Normal(name))) => Ok(real(parent)?.join(name)),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}
