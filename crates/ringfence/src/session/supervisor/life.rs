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

/// Watches over the file that is its lock, by which others know that the session lives. The loop itself never looks for it: the
/// disk may stall.
#[derive(Debug)]
pub struct LockWatch {
    /// `None`: there is none to look for.
    file: Option<LockFile>,
    events: Option<OwnedFd>,
    /// When to look for it; `None` while there are events, or while a look is under way.
    next: Option<Instant>,
}

/// The file as it was found first.
#[derive(Debug, Clone)]
pub struct LockFile {
    id: String,
    file: (u64, u64),
}

/// What a look for it brought.
#[derive(Debug)]
pub struct Looked {
    /// The session cannot be found any more: clients take it for gone, and could not end it.
    pub lost: bool,
    events: Option<OwnedFd>,
}

impl LockFile {
    /// Watches it from now on, and looks for it then, so that nothing is missed in between.
    pub fn look(&self, place: &Place) -> Looked {
        let events = events(place, &self.id).ok();
        // What cannot be looked up may be there.
        Looked { lost: place.lock_file(&self.id).is_ok_and(|found| found != Some(self.file)), events }
    }
}

impl LockWatch {
    pub fn new(place: &Place, id: &str) -> LockWatch {
        let file = place.lock_file(id).ok().flatten().map(|file| LockFile { id: id.to_owned(), file });
        let mut watch = LockWatch { events: None, next: None, file };
        if let Some(looked) = watch.file.as_ref().map(|file| file.look(place)) {
            watch.looked(looked);
        }
        watch
    }

    /// Readable when something happened to it, or to a directory on its way.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    /// Something happened. What is watched may not be all of its way any more: it is looked for, and watched anew.
    pub fn stirred(&mut self) {
        self.events = None;
        self.next = Some(Instant::now());
    }

    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// It is to be looked for now.
    pub fn is_due(&mut self, now: Instant) -> Option<LockFile> {
        self.next.take_if(|next| now >= *next)?;
        self.file.clone()
    }

    /// It was looked for.
    pub fn looked(&mut self, looked: Looked) {
        self.events = looked.events;
        self.next = self.events.is_none().then(|| Instant::now() + LOOK);
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
