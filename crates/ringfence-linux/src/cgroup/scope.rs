//! A control group from systemd, for a process whose login has none that it may use.
//!
//! A login by SSH or on a console lives in a scope of root's. The user's own manager makes a delegated one beside it and has
//! this process moved there, as `systemd-run --user --scope -p Delegate=yes` would. It is asked once, over its own socket, in
//! as much of D-Bus as that takes.
//!
//! What this never does: move a program that has not said [`allow`]; talk to anybody but a manager that this user runs; wait
//! longer than two seconds; take systemd's word for it. The kernel tells which group this process is in.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::limits;

mod bus;

use bus::{HEAD, News};

/// For all of it together; a failed job is told at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// No message is longer, of those that a manager sends unasked too.
const LONGEST: usize = 128 * 1024;

/// Why there is no scope; words that go on after "and".
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScopeError {
    #[error("no systemd manager of this user was found")]
    NoManager,
    #[error("`{}` is not of this user alone", .0.display())]
    Foreign(PathBuf),
    #[error("systemd's manager of this user lacks the controllers for processors, memory and processes")]
    NoControllers,
    #[error("systemd's manager of this user cannot be asked: {0}")]
    Talk(io::Error),
    #[error("systemd's manager of this user does not answer in time")]
    Slow,
    #[error("systemd's manager of this user says what cannot be read")]
    Garbled,
    #[error("systemd's manager of this user refused a scope: {0}")]
    Refused(String),
    #[error("systemd's manager of this user made a scope that this process is not in")]
    Elsewhere,
}

impl From<io::Error> for ScopeError {
    fn from(error: io::Error) -> ScopeError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ScopeError::Slow,
            _ => ScopeError::Talk(error),
        }
    }
}

static RUNTIME: OnceLock<PathBuf> = OnceLock::new();
static ENTERED: OnceLock<Result<(), ScopeError>> = OnceLock::new();

/// This process may be moved into a scope of its own, when it needs a control group and has none. Said by programs of ours
/// alone, with `XDG_RUNTIME_DIR`: a library has no business to move somebody else's. Costs nothing until then.
pub fn allow(runtime: PathBuf) {
    // Said twice, the first one counts.
    let _ = RUNTIME.set(runtime);
}

/// Why this process was not moved, once that was tried.
pub(crate) fn failed() -> Option<&'static ScopeError> {
    ENTERED.get()?.as_ref().err()
}

/// Moves this process, once. `None` where nobody allowed it.
pub(crate) fn enter() -> Option<&'static Result<(), ScopeError>> {
    let runtime = RUNTIME.get()?;
    Some(ENTERED.get_or_init(|| ask(runtime)))
}

/// Whether this process would be moved, as far as that can be told without asking. `None` where nobody allowed it.
pub(crate) fn could_enter() -> Option<Result<(), ScopeError>> {
    Some(manager(RUNTIME.get()?).map(drop))
}

/// The socket of this user's manager, when that can give what is needed.
fn manager(runtime: &Path) -> Result<PathBuf, ScopeError> {
    let socket = runtime.join("systemd/private");
    let Ok(found) = fs::symlink_metadata(&socket) else { return Err(ScopeError::NoManager) };
    let user = rustix::process::getuid();
    let ours = |data: &fs::Metadata| data.uid() == user.as_raw();
    let closed = fs::metadata(runtime).is_ok_and(|dir| ours(&dir) && dir.mode() & 0o077 == 0);
    if !(closed && ours(&found) && found.file_type().is_socket()) {
        return Err(ScopeError::Foreign(socket));
    }
    // Older ones are delegated less: then there is no gain in being moved.
    if !can_pass_on(user.as_raw()) {
        return Err(ScopeError::NoControllers);
    }
    Ok(socket)
}

fn ask(runtime: &Path) -> Result<(), ScopeError> {
    let socket = manager(runtime)?;
    let user = rustix::process::getuid();
    let stream = connect(&socket)?;
    if rustix::net::sockopt::socket_peercred(&stream).map_err(io::Error::from)?.uid != user {
        return Err(ScopeError::Foreign(socket));
    }
    let nonce = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let unit = format!("ringfence-{}-{nonce:x}.scope", std::process::id());
    Talk { stream, until: Instant::now() + PATIENCE }.start(&user.as_raw().to_string(), &unit)?;
    if limits::own_groups().trim_end().ends_with(&format!("/{unit}")) { Ok(()) } else { Err(ScopeError::Elsewhere) }
}

/// Whether the group that systemd gives a user's manager has the controllers to pass on.
fn can_pass_on(user: u32) -> bool {
    let group = format!("user.slice/user-{user}.slice/user@{user}.service/cgroup.controllers");
    limits::has_controllers(&Path::new(limits::V2_ROOT).join(group))
}

/// At once or not at all: a full queue is not waited for.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

struct Talk {
    stream: UnixStream,
    until: Instant,
}

impl Talk {
    /// Has the unit started with this process in it, and waits until that is done.
    fn start(&mut self, user: &str, unit: &str) -> Result<(), ScopeError> {
        let user: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes())?;
        if !self.line()?.starts_with(b"OK") {
            return Err(ScopeError::Refused("it does not know this user".to_owned()));
        }
        self.stream.write_all(&[b"BEGIN\r\n", bus::call(unit).as_slice()].concat())?;
        loop {
            let message = self.message()?;
            match bus::news(&message, unit).ok_or(ScopeError::Garbled)? {
                News::Other => {}
                News::Done => return Ok(()),
                News::Failed(why) => return Err(ScopeError::Refused(why)),
            }
        }
    }

    fn read(&mut self, mut buffer: &mut [u8]) -> Result<(), ScopeError> {
        while !buffer.is_empty() {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ScopeError::Slow);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(read) => buffer = &mut buffer[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn line(&mut self) -> Result<Vec<u8>, ScopeError> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.read(&mut byte)?;
            line.extend(byte);
            if line.len() > 256 {
                return Err(ScopeError::Garbled);
            }
        }
        Ok(line)
    }

    fn message(&mut self) -> Result<Vec<u8>, ScopeError> {
        let mut message = vec![0; HEAD];
        self.read(&mut message)?;
        let length = bus::body(&message).and_then(|(start, length)| start.checked_add(length));
        message.resize(length.filter(|length| *length <= LONGEST).ok_or(ScopeError::Garbled)?, 0);
        self.read(&mut message[HEAD..])?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests;
