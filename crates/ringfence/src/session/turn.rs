//! Turns: one caller at a time has something of a session, such as a context.

use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::{STARTING, Session, SessionError};

/// One's turn, until it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct Turn {
    file: std::fs::File,
    path: PathBuf,
}

impl Session {
    /// Waits for one's turn with something of this session; it ends with what is returned.
    pub(crate) async fn turn(&self, what: &str) -> Result<Turn, SessionError> {
        let path = self.place.session(self.id()).join(format!("{what}.turn"));
        let failed = |source| SessionError::Turn { path: path.clone(), source };
        let mut options = std::fs::OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(failed)?;
        loop {
            match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Turn { file, path }),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => tokio::time::sleep(STARTING).await,
                Err(errno) => return Err(failed(errno.into())),
            }
        }
    }
}

impl Turn {
    /// Notes that something is going on, which whoever has the next turn finds when this one is killed; or that it has ended.
    pub fn busy(&self, busy: bool) -> Result<(), SessionError> {
        let noted = self.file.set_len(u64::from(busy));
        noted.map_err(|source| SessionError::Turn { path: self.path.clone(), source })
    }

    /// Whether the one before was killed in the middle.
    pub fn was_left(&self) -> Result<bool, SessionError> {
        let noted = self.file.metadata().map(|about| about.len() > 0);
        noted.map_err(|source| SessionError::Turn { path: self.path.clone(), source })
    }
}
