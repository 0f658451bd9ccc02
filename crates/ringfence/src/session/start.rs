//! Starts the supervisor of a new session, and hears whether it stands.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ringfence_linux::detach;
use ringfence_linux::sys::PointerList;
use ringfence_policy::failure::{Failure, Step};
use rustix::fs::{MemfdFlags, Mode, OFlags};

use super::SessionError;
use super::document;
use super::supervisor::{SessionStart, StartReply};

/// Under which number the supervisor has its lock.
pub const LOCK: i32 = 3;
/// What a supervisor says is never longer.
const LONGEST: u64 = 64 * 1024;

/// Starts `program` for this session and waits until it stands. Blocks for as long as a box takes to make.
pub fn start(program: &Path, start: &SessionStart, lock: OwnedFd) -> Result<(), SessionError> {
    let failed = |source: std::io::Error| SessionError::Supervisor { program: program.to_path_buf(), source };
    let request = document::pack(start).map_err(failed)?;
    let mut memory =
        File::from(rustix::fs::memfd_create(c"session", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?);
    memory.write_all(&request).and_then(|()| memory.rewind()).map_err(failed)?;
    let (answer, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let null = rustix::fs::open(c"/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed(e.into()))?;
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|e| failed(e.into()));
    let path = c_string(program.as_os_str().as_bytes())?;
    let argv = PointerList::new(vec![
        c_string(b"ringfence")?,
        c_string(b"session")?,
        c_string(b"supervise")?,
        c_string(start.id.as_bytes())?,
    ]);
    // The last one is number `LOCK`.
    let descriptors = [memory.as_fd(), theirs.as_fd(), null.as_fd(), lock.as_fd()];
    detach::start(&path, &argv, &PointerList::new(Vec::new()), &descriptors).map_err(|e| failed(e.into()))?;
    drop((theirs, lock));
    let mut told = Vec::new();
    File::from(answer).take(LONGEST).read_to_end(&mut told).map_err(failed)?;
    if told.is_empty() {
        return Err(not_started("the supervisor ended without a word".to_owned()));
    }
    match document::read(&told) {
        Ok(StartReply::Ready) => Ok(()),
        Ok(StartReply::Failed(failure)) => Err(SessionError::Start(failure)),
        Ok(StartReply::NoSet(id)) => Err(SessionError::NoSet(id)),
        Err(error) => Err(not_started(format!("`{}` is another release: {error}", program.display()))),
    }
}

fn not_started(message: String) -> SessionError {
    SessionError::Start(Failure { engine: None, step: Step::Start, guarantee: None, message, cures: vec![] })
}
