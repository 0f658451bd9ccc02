//! When a session ends by itself: when it is idle for too long, when its life is over, and when nobody can find it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::super::place::Place;

#[derive(Debug)]
pub struct Life {
    /// When it was last used, for idleness.
    pub used: Instant,
    pub expires: Option<Instant>,
    pub lock: LockWatch,
}

impl Life {
    pub fn new(life: Option<Duration>, lock: LockWatch) -> Life {
        let used = Instant::now();
        Life { used, expires: life.and_then(|life| used.checked_add(life)), lock }
    }
}

/// How often the lock file is looked for where no event can be had.
const LOOK: Duration = Duration::from_secs(30);
/// A user has few instances of inotify, and needs them elsewhere: none is kept where not so many more can be had.
const RESERVE: usize = 32;

/// Watches over the file that is its lock, by which others know that the session lives.
#[derive(Debug)]
pub struct LockWatch {
    /// `None`: there is none to look for.
    file: Option<(u64, u64)>,
    events: Option<OwnedFd>,
    /// When to look for it; `None` while there are events.
    next: Option<Instant>,
}

impl LockWatch {
    pub fn new(place: &Place, id: &str) -> LockWatch {
        let file = place.lock_file(id).ok().flatten();
        let events = file.and_then(|_| events(place, id).ok());
        let next = (file.is_some() && events.is_none()).then(|| Instant::now() + LOOK);
        LockWatch { file, events, next }
    }

    /// Readable when something happened to it, or to a directory on its way.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    /// Something happened. What is watched may not be all of its way any more: from now on it is looked for.
    pub fn stirred(&mut self) {
        self.events = None;
        self.next = Some(Instant::now());
    }

    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether nobody can find the session any more: who looks takes it for gone, and nobody could end it.
    pub fn is_lost(&mut self, place: &Place, id: &str, now: Instant) -> bool {
        if self.next.is_none_or(|next| now < next) {
            return false;
        }
        self.next = Some(now + LOOK);
        // What cannot be looked up may be there.
        place.lock_file(id).is_ok_and(|found| found != self.file)
    }
}

/// Events of the lock file, and of the directories that lead to it: a removed file loses its link, and what is moved away takes
/// all below it along.
fn events(place: &Place, id: &str) -> io::Result<OwnedFd> {
    let instances = || inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
    let reserve: Vec<OwnedFd> = (0..RESERVE).map(|_| instances()).collect::<Result<_, Errno>>()?;
    let events = instances()?;
    drop(reserve);
    let lock = place.lock_of(id);
    inotify::add_watch(&events, &lock, WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF)?;
    for dir in lock.ancestors().skip(1) {
        match inotify::add_watch(&events, dir, WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR) {
            // One that this user cannot read is not theirs to move.
            Ok(_) | Err(Errno::ACCESS) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(events)
}
