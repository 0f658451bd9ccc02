//! Files that a command gets for reading are opened again on a read-only mount: the sandbox could open the caller's own
//! descriptor for writing by its name in `/proc`, whatever its mounts say.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use ringfence_linux::reopen;
use rustix::fs::{Access, FileType, OFlags, SeekFrom};
use rustix::io::Errno;

/// A file of the caller's and the one that the command reads: each has a position of its own.
#[derive(Debug)]
pub(super) struct Position {
    callers: OwnedFd,
    commands: OwnedFd,
}

impl Position {
    /// What the command has read, the caller has: as if they shared the open file.
    pub fn hand_back(&self) {
        // Each was read with its position before; there is nobody to tell.
        if let Ok(at) = rustix::fs::tell(&self.commands) {
            let _ = rustix::fs::seek(&self.callers, SeekFrom::Start(at));
        }
    }
}

/// Opens again what could be opened for writing from inside. What cannot be goes through a pipe.
pub(super) fn read_only(stdio: &mut [Option<OwnedFd>; 3]) -> Result<Vec<Position>, Errno> {
    let mut positions = Vec::new();
    for slot in stdio {
        let Some(file) = slot.take() else { continue };
        *slot = Some(if !could_be_written(&file)? {
            file
        } else if let Ok(again) = reopen::read_only(file.as_fd()) {
            let commands = rustix::io::fcntl_dupfd_cloexec(&again, 3)?;
            positions.push(Position { callers: file, commands });
            again
        } else {
            through_pipe(file)?
        });
    }
    Ok(positions)
}

/// Whether it is a file with a name, open for reading only, that the user of the sandbox may write or change. Root's sandbox
/// has ids that own nothing.
fn could_be_written(file: &OwnedFd) -> Result<bool, Errno> {
    let data = rustix::fs::fstat(file)?;
    let for_reading = rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE == OFlags::RDONLY;
    if FileType::from_raw_mode(data.st_mode) != FileType::RegularFile || !for_reading || data.st_nlink == 0 {
        return Ok(false);
    }
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok(data.st_mode & 0o002 != 0);
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(data.st_uid == user.as_raw() || rustix::fs::access(path, Access::WRITE_OK).is_ok())
}

/// Its contents, as they are read. A file that cannot be opened again has no name here, as in another mount namespace.
fn through_pipe(file: OwnedFd) -> Result<OwnedFd, Errno> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let copy = move || {
        // It ends with the file, or when nobody reads it any more.
        let _ = std::io::copy(&mut File::from(file), &mut File::from(write));
    };
    let copier = std::thread::Builder::new().name("stdin".to_owned()).spawn(copy);
    copier.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    Ok(read)
}
