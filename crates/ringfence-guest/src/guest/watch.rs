//! Watches: what changes in a directory, or in all below it, told as it happens.
//!
//! A watch is bounded. Where changes come faster than the host takes them, or there are more directories than can be
//! watched, the host is told that some were missed.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use ringfence_guest::message::{Change, Changed, Reply, Step};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::exec::Failure;
use super::files::{refuse_kernel, text};
use super::{Context, Fault, Flow, Part, Task, token};

/// Directories that one stream watches.
const MOST: usize = 16 * 1024;
/// Events, or directories, that are looked at before others get their turn.
const EVENTS: usize = 64;

#[derive(Debug)]
pub struct Watch {
    stream: u32,
    inotify: OwnedFd,
    recursive: bool,
    /// Where the watch stands. Held open, so that a name which comes to mean another place does not move it.
    root: OwnedFd,
    /// Watched, relative to the root, by the kernel's number for it.
    places: BTreeMap<i32, Vec<u8>>,
    /// Not watched yet, and whether what they hold is news.
    open: Vec<(Vec<u8>, bool)>,
    started: bool,
}

impl Watch {
    pub fn open(key: u64, stream: u32, path: &[u8], recursive: bool, cx: &mut Context) -> Result<Watch, Failure> {
        let at = |errno| (Step::Watch, errno);
        let path = text(path).map_err(at)?;
        let root = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(at)?;
        refuse_kernel(&root).map_err(at)?;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(at)?;
        let data = EventData::new_u64(token(key, Part::Out));
        epoll::add(&cx.epoll, &inotify, data, EventFlags::IN).map_err(at)?;
        let open = vec![(Vec::new(), false)];
        Ok(Watch { stream, inotify, recursive, root, places: BTreeMap::new(), open, started: false })
    }

    fn tell(&self, path: Vec<u8>, change: Change, cx: &mut Context) {
        cx.link.message(self.stream, &Reply::Changed(Changed { path, change }));
    }

    /// Watches a directory, and puts those that it holds on the list.
    fn add(&mut self, path: Vec<u8>, news: bool, cx: &mut Context) -> Result<(), Errno> {
        let is_root = path.is_empty();
        let fd = match is_root {
            true => rustix::io::fcntl_dupfd_cloexec(&self.root, 3)?,
            false => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(&self.root, path.as_slice(), flags, Mode::empty())?
            }
        };
        refuse_kernel(&fd)?;
        if self.places.len() >= MOST {
            return Err(Errno::NOSPC);
        }
        let mut wanted = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::EXCL_UNLINK;
        if is_root {
            wanted |= WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        }
        let number = inotify::add_watch(&self.inotify, itself(&fd)?, wanted)?;
        self.places.insert(number, path.clone());
        if !self.recursive {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match rustix::fs::open(itself(&fd)?, flags, Mode::empty()) {
            // A single file, or nothing to be seen.
            Err(Errno::NOTDIR | Errno::ACCESS) => return Ok(()),
            other => other?,
        };
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            if [c".", c".."].contains(&entry.file_name()) {
                continue;
            }
            if self.places.len() + self.open.len() >= MOST {
                return Err(Errno::NOSPC);
            }
            let below = join(&path, entry.file_name());
            if entry.file_type() == FileType::Directory {
                self.open.push((below.clone(), news));
            }
            if news {
                // Made before the directory was watched.
                self.tell(below, Change::Created, cx);
            }
        }
        Ok(())
    }

    fn event(&mut self, number: i32, flags: ReadFlags, name: Option<CString>, cx: &mut Context) {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.tell(Vec::new(), Change::Overflow, cx);
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.places.remove(&number);
            return;
        }
        let Some(place) = self.places.get(&number) else { return };
        let path = name.map_or_else(|| place.clone(), |name| join(place, &name));
        let change = if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            Change::Created
        } else if flags.contains(ReadFlags::MODIFY) {
            Change::Written
        } else if flags
            .intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF)
        {
            Change::Removed
        } else {
            Change::Attributes
        };
        if flags.contains(ReadFlags::ISDIR) && self.recursive {
            match change {
                Change::Created => self.open.push((path.clone(), true)),
                // Moved away: its number would tell of places that have other names now.
                Change::Removed => self.forget(&path),
                _ => {}
            }
        }
        self.tell(path, change, cx);
    }

    fn forget(&mut self, path: &[u8]) {
        let below = |place: &[u8]| place.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        let gone: Vec<i32> = self.places.iter().filter(|(_, place)| below(place)).map(|(number, _)| *number).collect();
        for number in gone {
            self.places.remove(&number);
            // The kernel may have forgotten it already.
            let _ = inotify::remove_watch(&self.inotify, number);
        }
        self.open.retain(|(place, _)| !below(place));
    }
}

/// A name for an open file that means it and nothing else.
fn itself(fd: &OwnedFd) -> Result<CString, Errno> {
    text(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_bytes())
}

fn join(place: &[u8], name: &CStr) -> Vec<u8> {
    let slash: &[u8] = if place.is_empty() { b"" } else { b"/" };
    [place, slash, name.to_bytes()].concat()
}

impl Task for Watch {
    fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    fn turn(&mut self, _: u64, cx: &mut Context) -> Result<Flow, Fault> {
        for _ in 0..EVENTS {
            if cx.link.is_full() {
                return Ok(Flow::Goes);
            }
            let Some((path, news)) = self.open.pop() else { break };
            let is_root = path.is_empty();
            match self.add(path, news, cx) {
                Ok(()) => {}
                Err(errno) if is_root => {
                    cx.link.failed(self.stream, Step::Watch, errno);
                    return Ok(Flow::Ended);
                }
                // It went, or is not to be seen.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP) => {}
                Err(_) => {
                    self.open.clear();
                    self.tell(Vec::new(), Change::Overflow, cx);
                }
            }
        }
        if self.open.is_empty() && !self.started {
            self.started = true;
            cx.link.message(self.stream, &Reply::Started { pid: 0 });
        }
        Ok(Flow::Goes)
    }

    fn ready(&mut self, _: u64, _: Part, cx: &mut Context) -> Result<Flow, Fault> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Vec::new();
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => events.push((event.wd(), event.events(), event.file_name().map(CStr::to_owned))),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(e) => return Err(e.into()),
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        for (number, flags, name) in events {
            self.event(number, flags, name, cx);
        }
        Ok(Flow::Goes)
    }

    fn close(&mut self, cx: &mut Context) {
        // Closing it would do the same.
        let _ = epoll::delete(&cx.epoll, &self.inotify);
    }
}
