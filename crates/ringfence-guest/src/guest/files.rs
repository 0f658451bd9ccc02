//! Files: contents in and out, one entry, directories, moves.
//!
//! The guest has the rights of the code beside it and no more, so that a path cannot lead it where that code could not go,
//! with one exception: its own entries in `/proc`, which a planted link could name. Nothing on procfs or sysfs is opened,
//! listed or written. A pipe or a device is never read or written either, so that nobody can make the guest wait.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use ringfence_guest::frame::{Channel, Kind, MAX_DATA, WINDOW};
use ringfence_guest::message::{self, Entry, EntryKind, Reply, Step, WriteMode};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::exec::Failure;
use super::link::Taken;
use super::streams::GRANT;
use super::{Context, Fault, Flow, Task};

/// Pieces of a file that are moved before others get their turn.
const PIECES: usize = 4;

const PROC: i64 = 0x9fa0;
const SYSFS: i64 = 0x6265_6572;

/// Refuses what is on procfs or sysfs.
pub fn refuse_kernel(fd: impl AsFd) -> Result<(), Errno> {
    match rustix::fs::fstatfs(fd)?.f_type as i64 {
        PROC | SYSFS => Err(Errno::ACCESS),
        _ => Ok(()),
    }
}

/// Opens a regular file.
pub fn open_regular(path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    // Without waiting: for a pipe's other end, or for whoever holds a lease.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, mode)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Errno::ISDIR),
        _ => return Err(Errno::OPNOTSUPP),
    }
    refuse_kernel(&file)?;
    Ok(file)
}

pub fn text(bytes: &[u8]) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno::INVAL)
}

/// The directory that holds the last name of a path, and that name.
pub fn parent(path: &[u8]) -> Result<(OwnedFd, CString), Errno> {
    let end = path.iter().rposition(|b| *b != b'/').ok_or(Errno::BUSY)? + 1;
    let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    let name = &path[start..end];
    if [b".".as_slice(), b".."].contains(&name) {
        return Err(Errno::INVAL);
    }
    let above: &[u8] = if start == 0 { b"." } else { &path[..start] };
    let directory = rustix::fs::open(above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    refuse_kernel(&directory)?;
    Ok((directory, text(name)?))
}

/// An entry as the host is told of it.
pub fn entry(directory: impl AsFd, name: &CString, path: Vec<u8>) -> Result<Entry, Errno> {
    let data: Stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = match FileType::from_raw_mode(data.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let target = match kind {
        // It may have gone, or become something else.
        EntryKind::Symlink => rustix::fs::readlinkat(&directory, name, Vec::new()).ok().map(CString::into_bytes),
        _ => None,
    };
    Ok(Entry {
        path,
        kind,
        size: data.st_size.max(0) as u64,
        mode: data.st_mode & 0o7777,
        modified: (data.st_mtime as i64).saturating_mul(1_000_000_000).saturating_add(data.st_mtime_nsec as i64),
        target,
    })
}

pub fn stat(path: Vec<u8>) -> Result<Entry, Failure> {
    let at = |errno| (Step::Open, errno);
    if path.iter().all(|b| *b == b'/') && !path.is_empty() {
        return entry(rustix::fs::CWD, &c"/".to_owned(), path).map_err(at);
    }
    let (directory, name) = parent(&path).map_err(at)?;
    entry(directory, &name, path).map_err(at)
}

pub fn make_directory(path: &[u8], mode: u32, parents: bool) -> Result<(), Failure> {
    let make = |path: &[u8]| rustix::fs::mkdir(path, Mode::from_raw_mode(mode & 0o1777));
    let is_directory = |path: &[u8]| {
        rustix::fs::stat(path).is_ok_and(|data| FileType::from_raw_mode(data.st_mode) == FileType::Directory)
    };
    let result = match make(path) {
        Err(Errno::NOENT) if parents => {
            make_parents(path).and_then(|refused| make(path).map_err(|errno| why(errno, refused)))
        }
        result => result,
    };
    match result {
        Err(Errno::EXIST) if parents && is_directory(path) => Ok(()),
        other => other.map_err(|errno| (Step::MakeDirectory, errno)),
    }
}

/// Makes every directory above the last name of a path that is not there. Why the last of them could not be made, if so.
fn make_parents(path: &[u8]) -> Result<Option<Errno>, Errno> {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let slashes = (1..end).filter(|at| path[*at] == b'/');
    let mut refused = None;
    for slash in slashes {
        match rustix::fs::mkdir(&path[..slash], Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => refused = None,
            // It may be there on a file system that nothing can be made on; whether it is, the next one tells.
            Err(errno @ (Errno::ROFS | Errno::ACCESS | Errno::PERM)) => refused = Some(errno),
            Err(errno) => return Err(why(errno, refused)),
        }
    }
    Ok(refused)
}

/// What is missing because it was refused was refused.
fn why(errno: Errno, refused: Option<Errno>) -> Errno {
    refused.filter(|_| errno == Errno::NOENT).unwrap_or(errno)
}

pub fn rename(from: &[u8], to: &[u8], replace: bool) -> Result<(), Failure> {
    let at = |errno| (Step::Rename, errno);
    let (from_directory, from) = parent(from).map_err(at)?;
    let (to_directory, to) = parent(to).map_err(at)?;
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    rustix::fs::renameat_with(from_directory, from, to_directory, to, flags).map_err(at)
}

/// Contents on their way to the host.
#[derive(Debug)]
pub struct Read {
    stream: u32,
    file: OwnedFd,
    offset: u64,
    left: u64,
    moved: u64,
    credit: u32,
}

impl Read {
    pub fn open(stream: u32, path: &[u8], offset: u64, length: Option<u64>) -> Result<Read, Failure> {
        let file = open_regular(path, OFlags::RDONLY, Mode::empty()).map_err(|errno| (Step::Open, errno))?;
        // An offset has a sign in the kernel.
        if offset > i64::MAX as u64 {
            return Err((Step::Read, Errno::INVAL));
        }
        Ok(Read { stream, file, offset, left: length.unwrap_or(u64::MAX), moved: 0, credit: WINDOW })
    }
}

impl Task for Read {
    fn is_busy(&self) -> bool {
        self.credit > 0
    }

    fn turn(&mut self, _: u64, cx: &mut Context) -> Result<Flow, Fault> {
        for _ in 0..PIECES {
            let most = self.left.min(u64::from(self.credit)).min(MAX_DATA as u64) as usize;
            if self.left > 0 && (most == 0 || cx.link.is_full()) {
                return Ok(Flow::Goes);
            }
            let read = |room: &mut [u8]| match room.is_empty() {
                true => Ok(0),
                false => rustix::io::pread(&self.file, room, self.offset),
            };
            match cx.link.data_by(self.stream, Channel::Out, most, read) {
                Ok(Taken::Bytes(n)) => {
                    self.credit -= n as u32;
                    self.left -= n as u64;
                    self.moved += n as u64;
                    self.offset = self.offset.saturating_add(n as u64);
                }
                Ok(Taken::Nothing) => return Ok(Flow::Goes),
                Ok(Taken::End) => {
                    cx.link.message(self.stream, &Reply::Done { bytes: self.moved });
                    return Ok(Flow::Ended);
                }
                Err(errno) => {
                    cx.link.failed(self.stream, Step::Read, errno);
                    return Ok(Flow::Ended);
                }
            }
        }
        Ok(Flow::Goes)
    }

    fn grant(&mut self, _: u64, channel: Channel, bytes: u32, _: &mut Context) -> Result<Flow, Fault> {
        if channel == Channel::Out {
            self.credit = self.credit.checked_add(bytes).ok_or(Fault::Credit)?;
        }
        Ok(Flow::Goes)
    }
}

/// Contents on their way from the host.
#[derive(Debug)]
pub struct Write {
    stream: u32,
    target: Target,
    credit: u32,
    owed: u32,
    moved: u64,
}

/// A file that contents are written to.
#[derive(Debug)]
pub struct Target {
    pub file: OwnedFd,
    /// What a complete file is moved from and to.
    place: Option<Place>,
}

/// ext4 writes a file that is renamed over another one to the disk first, so that a power cut leaves one of the two. Nothing
/// else happens in a box meanwhile, for seconds where it is large: then the two change places, which does not wait. Neither
/// may be whole after a power cut then, as with any large file that was just written.
const FLUSHED: u64 = 8 << 20;
/// What `statfs(2)` calls an overlay.
const OVERLAYFS: u64 = 0x794c_7630;

/// A file under a name of its own until it is complete.
#[derive(Debug)]
struct Place {
    directory: OwnedFd,
    temporary: CString,
    name: CString,
    flags: RenameFlags,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Not complete: nothing is left of it. Complete: it has another name, and this one is gone or the old file's.
        let _ = rustix::fs::unlinkat(&self.directory, &self.temporary, AtFlags::empty());
    }
}

/// Opens what is to be written, under a name of its own where it is to take another one's place.
pub fn target(request: &message::Write, cx: &mut Context) -> Result<Target, Failure> {
    let refused = match request.parents {
        true => make_parents(&request.path).map_err(|errno| (Step::MakeDirectory, errno))?,
        false => None,
    };
    let at = |errno| (Step::Open, why(errno, refused));
    let mode = Mode::from_raw_mode(request.mode & 0o1777);
    match request.how {
        WriteMode::Append => {
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
            Ok(Target { file: open_regular(&request.path, flags, mode).map_err(at)?, place: None })
        }
        WriteMode::Replace => begin(&request.path, mode, RenameFlags::empty(), cx).map_err(at),
        WriteMode::Create => begin(&request.path, mode, RenameFlags::NOREPLACE, cx).map_err(at),
    }
}

impl Target {
    pub fn write(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.file, bytes) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => bytes = &bytes[n..],
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Nothing follows these bytes: it takes its name.
    pub fn complete(&self, bytes: u64) -> Result<(), Failure> {
        let Some(place) = &self.place else { return Ok(()) };
        match place.flags.is_empty() && bytes > FLUSHED && place.exchange() {
            true => Ok(()),
            false => place.rename(place.flags).map_err(|errno| (Step::Rename, errno)),
        }
    }
}

impl Place {
    fn rename(&self, flags: RenameFlags) -> Result<(), Errno> {
        rustix::fs::renameat_with(&self.directory, &self.temporary, &self.directory, &self.name, flags)
    }

    /// Changes places with the file that is there, which goes then; false where there is none, or it cannot be done.
    fn exchange(&self) -> bool {
        let is_file = |name: &CString| {
            let there = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
            there.is_ok_and(|data| FileType::from_raw_mode(data.st_mode) == FileType::RegularFile)
        };
        // There, the old file would be copied first.
        let overlay = rustix::fs::fstatfs(&self.directory).is_ok_and(|data| data.f_type as u64 == OVERLAYFS);
        if overlay || !is_file(&self.name) || self.rename(RenameFlags::EXCHANGE).is_err() {
            return false;
        }
        // Somebody may have put a directory there meanwhile: then both go back.
        is_file(&self.temporary) || self.rename(RenameFlags::EXCHANGE).is_err()
    }
}

impl Write {
    pub fn open(stream: u32, request: &message::Write, cx: &mut Context) -> Result<Write, Failure> {
        Ok(Write { stream, target: target(request, cx)?, credit: WINDOW, owed: 0, moved: 0 })
    }
}

/// A new file beside the one that it will become.
fn begin(path: &[u8], mode: Mode, flags: RenameFlags, cx: &mut Context) -> Result<Target, Errno> {
    let (directory, name) = parent(path)?;
    if let Ok(data) = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
        match FileType::from_raw_mode(data.st_mode) {
            // Told before anything is sent.
            _ if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EXIST),
            FileType::Directory => return Err(Errno::ISDIR),
            _ => {}
        }
    }
    let open = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        cx.files += 1;
        let temporary = text(format!(".ringfence-{:x}", cx.files).as_bytes())?;
        match rustix::fs::openat(&directory, &temporary, open, Mode::from_raw_mode(0o600)) {
            Ok(file) => {
                let place = Place { directory, temporary, name, flags };
                // As asked for, whatever the umask.
                rustix::fs::fchmod(&file, mode)?;
                return Ok(Target { file, place: Some(place) });
            }
            // Left by a guest that ended half-way.
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
}

impl Task for Write {
    fn data(&mut self, _: u64, bytes: Option<&[u8]>, cx: &mut Context) -> Result<Flow, Fault> {
        let result = match bytes {
            Some(bytes) => {
                self.credit = self.credit.checked_sub(bytes.len() as u32).ok_or(Fault::Credit)?;
                self.owed += bytes.len() as u32;
                self.moved += bytes.len() as u64;
                self.target.write(bytes).map_err(|errno| (Step::Write, errno))
            }
            None => self.target.complete(self.moved),
        };
        if let Err((step, errno)) = result {
            cx.link.failed(self.stream, step, errno);
            return Ok(Flow::Ended);
        }
        if bytes.is_none() {
            cx.link.message(self.stream, &Reply::Done { bytes: self.moved });
            return Ok(Flow::Ended);
        }
        if self.owed >= GRANT {
            cx.link.frame(self.stream, Kind::Credit(Channel::In), &self.owed.to_le_bytes());
            self.credit += self.owed;
            self.owed = 0;
        }
        Ok(Flow::Goes)
    }
}
