//! The guest's one thread: waits for the host, for commands and for files, and gives each its turn.
//!
//! It never waits for anything else, never runs anything of its own accord, and trusts nothing it shares a namespace with.
//! What the host sends is bounded; what is no frame, or more than was granted, ends the guest and everything with it.

mod connect;
mod exec;
mod files;
mod link;
mod pipes;
mod reapers;
mod streams;
mod tree;
mod walk;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ringfence_guest::frame::{Channel, Decoder, Frame, FrameError, Kind, MAX_REQUEST, MOST_PIPES, NoCommonVersion};
use ringfence_guest::message::{GREETING, HostHello, Input, Reply, Request, Settings, Step};
use ringfence_linux::landlock::{self, Abi, Writable};
use ringfence_linux::sys;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::Pid;

use exec::{Exec, Failure};
use link::Link;
use reapers::{Reapers, Report};
use tree::Processes;

/// Most streams at once.
const MOST_STREAMS: usize = 1024;

/// Read from the host at once.
const READ: usize = 64 * 1024;

/// How often something is looked at that does not tell by itself.
const LOOK: Timespec = sys::timespec(Duration::from_millis(10));
const NOW: Timespec = sys::timespec(Duration::ZERO);

/// Ends of children that are looked at before anything else has its turn.
const MOST_REAPED: usize = 256;

/// Keys of streams that the host has closed and that are still ending; its own are 32 bits.
const CLOSED: u64 = 1 << 32;

/// Why the guest ends.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("cannot {what}: {errno}")]
    System { what: &'static str, errno: Errno },
    #[error(transparent)]
    Errno(#[from] Errno),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("cannot talk to the host: {0}")]
    Version(#[from] NoCommonVersion),
    #[error("the host sent more than it was granted")]
    Credit,
    #[error("the host sent data after its end")]
    AfterEnd,
    #[error("the host used stream {0} twice")]
    Stream(u32),
    #[error("the host sent what only a guest does")]
    Direction,
}

/// Whether a stream goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Goes,
    Ended,
}

/// What of a stream is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Host,
    Children,
    Reaper,
    In,
    Out,
    Err,
}

impl Part {
    const ALL: [Part; 6] = [Part::Host, Part::Children, Part::Reaper, Part::In, Part::Out, Part::Err];
}

/// What an event is told by.
fn token(key: u64, part: Part) -> u64 {
    key << 8 | part as u64
}

/// What every stream uses.
#[derive(Debug)]
pub struct Context {
    link: Link,
    epoll: OwnedFd,
    reapers: Reapers,
    processes: Processes,
    null: OwnedFd,
    settings: Option<Settings>,
    /// Names for files that are not complete.
    files: u64,
    /// Commands that were ordered.
    orders: u64,
    /// It is process 1, which code beside it cannot kill.
    is_first: bool,
    /// A command of the guest's own runs, without a reaper.
    own: bool,
    /// For such a command.
    stack: sys::Stack,
    /// Commands that are children of the guest's: started without a reaper, or left alone by one that was killed.
    bare: BTreeSet<i32>,
    /// All commands that run: any of them may be left alone by its reaper this moment.
    commands: BTreeSet<i32>,
    /// Children of the guest's, and the order that found them there first. What a killed reaper leaves to the guest was
    /// not there when its command was ordered.
    seen: BTreeMap<i32, u64>,
}

impl Context {
    /// Whether it has no children but its reapers. What commands left behind would be others.
    fn is_childless(&self) -> bool {
        self.has_no_child_but(|pid| self.reapers.is_reaper(pid))
    }

    fn has_no_child_but(&self, others: impl Fn(i32) -> bool) -> bool {
        self.processes.own_children().is_some_and(|all| all.iter().all(|pid| others(*pid)))
    }

    /// Notes which children there are, before a command is ordered.
    fn note_children(&mut self, order: u64) {
        for child in self.processes.own_children().unwrap_or_default() {
            self.seen.entry(child).or_insert(order);
        }
    }

    /// Whether a child of the guest's cannot be of this command: a reaper, another command, or what that orphaned. Each
    /// command begins a session, and a session can be left but not entered. What left one is anybody's.
    fn is_others(&self, child: i32, command: i32) -> bool {
        let session = || Pid::from_raw(child).and_then(|pid| rustix::process::getsid(Some(pid)).ok());
        let others = || self.commands.iter().filter(|other| **other != command);
        self.reapers.is_reaper(child)
            || others().any(|other| *other == child)
            || others().next().is_some()
                && session().is_some_and(|session| others().any(|other| *other == session.as_raw_nonzero().get()))
    }
}

/// What a stream is for.
#[derive(Debug)]
enum Stream {
    Exec(Box<Exec>),
    Task(Box<dyn Task>),
}

/// A stream that has nothing to do with a process. What it does not expect, it ignores.
trait Task: fmt::Debug {
    /// One of its descriptors is ready.
    fn ready(&mut self, _key: u64, _part: Part, _cx: &mut Context) -> Result<Flow, Fault> {
        Ok(Flow::Goes)
    }

    /// The host lets it send more.
    fn grant(&mut self, _key: u64, _channel: Channel, _bytes: u32, _cx: &mut Context) -> Result<Flow, Fault> {
        Ok(Flow::Goes)
    }

    /// Bytes from the host; `None`: no more follow.
    fn data(&mut self, _key: u64, _bytes: Option<&[u8]>, _cx: &mut Context) -> Result<Flow, Fault> {
        Ok(Flow::Goes)
    }

    /// Whether it wants to go on without waiting for anything.
    fn is_busy(&self) -> bool {
        false
    }

    /// Goes on for a little.
    fn turn(&mut self, _key: u64, _cx: &mut Context) -> Result<Flow, Fault> {
        Ok(Flow::Goes)
    }

    /// The host is not interested any more; it is dropped next.
    fn close(&mut self, _cx: &mut Context) {}
}

/// Calls the host at a socket, and puts the connection where [`run`] takes it.
pub fn connect(path: &std::ffi::OsStr) -> Result<(), Fault> {
    let at = |errno| Fault::System { what: "call the host", errno };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(at)?;
    let address = SocketAddrUnix::new(path).map_err(at)?;
    rustix::net::connect(&socket, &address).map_err(at)?;
    sys::dup_onto(std::os::fd::AsFd::as_fd(&socket), 0).map_err(at)
}

/// Runs until the host is gone.
pub fn run() -> Result<(), Fault> {
    let at = |what| move |errno| Fault::System { what, errno };
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).map_err(at("hide"))?;
    // Else it is called by what it was executed from.
    rustix::thread::set_name(c"guest").map_err(at("take a name"))?;
    sys::close_range(3, u32::MAX, false).map_err(at("close descriptors"))?;
    // None of them means anything here but that a child ended, and that is asked for.
    let _blocked = sys::SignalsBlocked::new().map_err(at("block signals"))?;
    let children = sys::signal_fd(&[libc::SIGCHLD]).map_err(at("wait for children"))?;
    let is_first = rustix::process::getpid().as_raw_nonzero().get() == 1;
    if !is_first {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(at("reap"))?;
    }
    raise_open_files();
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(at("take the socket"))?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(at("take the socket"))?;
    let null = open_null().map_err(at("open nothing"))?;
    for standard in 0..3 {
        sys::dup_onto(null.as_fd(), standard).map_err(at("let go of the socket"))?;
    }
    rustix::process::chdir(c"/").map_err(at("leave the working directory"))?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(at("wait"))?;
    let data = |part| EventData::new_u64(token(0, part));
    epoll::add(&epoll, &socket, data(Part::Host), EventFlags::IN).map_err(at("wait"))?;
    epoll::add(&epoll, &children, data(Part::Children), EventFlags::IN).map_err(at("wait"))?;
    let processes = Processes::open().map_err(at("open /proc"))?;
    let mut link = Link::new(socket);
    link.message(0, &GREETING);
    let cx = Context {
        link,
        epoll,
        reapers: Reapers::default(),
        processes,
        null,
        settings: None,
        files: 0,
        orders: 0,
        is_first,
        own: false,
        stack: sys::Stack::new(),
        bare: BTreeSet::new(),
        commands: BTreeSet::new(),
        seen: BTreeMap::new(),
    };
    let mut guest = Guest {
        cx,
        children,
        decoder: Decoder::new(MAX_REQUEST),
        buffer: vec![0; READ],
        pipes: VecDeque::new(),
        streams: BTreeMap::new(),
        next_closed: CLOSED,
        waits_to_write: false,
        pending: false,
        reaps: false,
        busy: BTreeSet::new(),
    };
    loop {
        match guest.turn() {
            Ok(Flow::Goes) => {}
            ended => {
                guest.end();
                return ended.map(drop);
            }
        }
    }
}

/// The second wall, for the guest and for all that it starts.
fn confine(places: &[Vec<u8>]) -> Result<(), Fault> {
    let abi = Abi::of_this_kernel();
    let writable = |place: &Vec<u8>| {
        let path = CString::new(place.as_slice()).ok()?;
        // A place that the guest does not reach, no command reaches. Without a rule it cannot be written.
        let kind = FileType::from_raw_mode(rustix::fs::stat(&path).ok()?.st_mode);
        Some(Writable { path, directory: kind == FileType::Directory })
    };
    let places = places.iter().filter_map(writable).collect();
    // Landlock asks for it. Where a sandbox is, it is set already.
    rustix::thread::set_no_new_privs(true).map_err(|errno| Fault::System { what: "confine writes", errno })?;
    let rules = landlock::Rules::new(abi, Some(places), false).filter(|_| abi.confines_writes());
    let applied = rules.ok_or(Errno::OPNOTSUPP).and_then(|rules| rules.apply());
    applied.map_err(|errno| Fault::System { what: "confine writes", errno })
}

/// As many as it may have: a few for each stream.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // What it has then does.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// What a command without input reads: `/dev/null`, or where there is none, a pipe that nobody writes to.
fn open_null() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    match rustix::fs::open(c"/dev/null", flags, Mode::empty()) {
        Err(_) => rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map(|(read, _)| read),
        opened => opened,
    }
}

struct Guest {
    cx: Context,
    children: OwnedFd,
    decoder: Decoder,
    /// What is read from the host, before it is decoded.
    buffer: Vec<u8>,
    /// Pipes that came, a set for each request that brings some.
    pipes: VecDeque<Vec<OwnedFd>>,
    streams: BTreeMap<u64, Stream>,
    next_closed: u64,
    waits_to_write: bool,
    /// Some stream must be looked at soon.
    pending: bool,
    /// More children may have ended than were looked at.
    reaps: bool,
    /// Streams that want to go on at once.
    busy: BTreeSet<u64>,
}

impl Guest {
    /// Waits for what happens next and answers it.
    fn turn(&mut self) -> Result<Flow, Fault> {
        self.cx.link.flush()?;
        if self.cx.link.is_full() {
            // Nothing else is done: whatever is, would be kept in memory.
            poll(&mut [PollFd::new(self.cx.link.socket(), PollFlags::OUT)], None)?;
            return Ok(Flow::Goes);
        }
        self.wait_to_write(!self.cx.link.is_empty())?;
        // Nothing is started before it is known how it is confined.
        let spare = self.cx.settings.is_some() && self.cx.reapers.wants_spare();
        let timeout = if spare || self.reaps || !self.busy.is_empty() {
            Some(&NOW)
        } else {
            Some(&LOOK).filter(|_| self.pending)
        };
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        let count = match epoll::wait(&self.cx.epoll, &mut events, timeout) {
            Err(Errno::INTR) => 0,
            result => result?,
        };
        if count == 0 && spare && self.busy.is_empty() {
            // Ahead of time, when there is nothing else to do.
            self.cx.reapers.make_spare(&self.cx.epoll);
        }
        for event in &events[..count] {
            let token = { event.data }.u64();
            let key = token >> 8;
            match Part::ALL.get(token as usize & 0xff) {
                Some(Part::Host) => {
                    let flags = event.flags;
                    if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
                        && self.read()? == Flow::Ended
                    {
                        return Ok(Flow::Ended);
                    }
                }
                Some(Part::Children) => self.reap()?,
                Some(Part::Reaper) => {
                    if { event.flags }.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR) {
                        self.cx.reapers.flush(key as i32, &self.cx.epoll)?;
                    }
                    self.reports(key as i32)?;
                }
                Some(part) => self.with(key, |stream, cx| match stream {
                    Stream::Exec(exec) => exec.ready(key, *part, cx),
                    Stream::Task(task) => task.ready(key, *part, cx),
                })?,
                None => {}
            }
        }
        if self.reaps {
            self.reap()?;
        }
        if self.pending {
            self.look()?;
        }
        for key in self.busy.iter().copied().collect::<Vec<_>>() {
            self.with(key, |stream, cx| match stream {
                Stream::Task(task) if !cx.link.is_full() => task.turn(key, cx),
                _ => Ok(Flow::Goes),
            })?;
        }
        Ok(Flow::Goes)
    }

    fn wait_to_write(&mut self, wanted: bool) -> Result<(), Errno> {
        if wanted != self.waits_to_write {
            let flags = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let data = EventData::new_u64(token(0, Part::Host));
            epoll::modify(&self.cx.epoll, self.cx.link.socket(), data, flags)?;
            self.waits_to_write = wanted;
        }
        Ok(())
    }

    /// Does something with a stream, and forgets it when that ended it.
    fn with(
        &mut self,
        key: u64,
        act: impl FnOnce(&mut Stream, &mut Context) -> Result<Flow, Fault>,
    ) -> Result<(), Fault> {
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(()) };
        let flow = act(stream, &mut self.cx)?;
        let mut busy = false;
        match stream {
            _ if flow == Flow::Ended => {
                // Told before it is cleared up.
                self.cx.link.flush()?;
                self.streams.remove(&key);
            }
            Stream::Exec(exec) => self.pending |= exec.is_pending(),
            Stream::Task(task) => busy = task.is_busy(),
        }
        self.is_busy(key, busy);
        Ok(())
    }

    fn is_busy(&mut self, key: u64, busy: bool) {
        if busy {
            self.busy.insert(key);
        } else {
            self.busy.remove(&key);
        }
    }

    /// Reads from the host.
    fn read(&mut self) -> Result<Flow, Fault> {
        let mut set = Vec::new();
        let socket = self.cx.link.socket();
        match sys::receive_with(socket, &mut self.buffer, MOST_PIPES, RecvFlags::empty(), |fd| set.push(fd)) {
            Ok(received) if received.bytes == 0 => return Ok(Flow::Ended),
            Ok(received) => {
                // One that could not be received as a whole has its place all the same: requests take them in order.
                if !set.is_empty() || received.cut {
                    self.pipes.push_back(set);
                }
                self.decoder.feed(&self.buffer[..received.bytes]);
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Flow::Goes),
            Err(e) => return Err(e.into()),
        }
        // Out of the way, since a frame lives in it while the guest acts on it.
        let mut decoder = std::mem::replace(&mut self.decoder, Decoder::new(MAX_REQUEST));
        while let Some(frame) = decoder.next_frame()? {
            self.frame(frame)?;
        }
        self.decoder = decoder;
        Ok(Flow::Goes)
    }

    fn frame(&mut self, frame: Frame<'_>) -> Result<(), Fault> {
        let (stream, key) = (frame.stream, u64::from(frame.stream));
        if self.cx.settings.is_none() {
            if (stream, frame.kind) != (0, Kind::Input) {
                return Err(Fault::Stream(stream));
            }
            let HostHello { greeting, settings } = frame.message()?;
            GREETING.meet(greeting)?;
            if let Some(places) = &settings.confined {
                confine(places)?;
            }
            self.cx.settings = Some(settings);
            return Ok(());
        }
        match frame.kind {
            Kind::Open => match frame.message() {
                Err(FrameError::Unknown { .. }) => {
                    self.cx.link.message(stream, &Reply::Unsupported);
                    Ok(())
                }
                request => self.open(stream, request?),
            },
            Kind::Input => {
                let input: Input = match frame.message() {
                    // The host sends it to guests that may not know it.
                    Err(FrameError::Unknown { .. }) => return Ok(()),
                    input => input?,
                };
                self.with(key, |stream, cx| match stream {
                    Stream::Exec(exec) => exec.input(key, input, cx),
                    Stream::Task(_) => Ok(Flow::Goes),
                })
            }
            Kind::Data(Channel::In) => self.data(key, Some(frame.payload)),
            Kind::Eof(Channel::In) => self.data(key, None),
            Kind::Credit(channel) => {
                let bytes = frame.credit()?;
                self.with(key, |stream, cx| match stream {
                    Stream::Exec(exec) => exec.grant(key, channel, bytes, cx),
                    Stream::Task(task) => task.grant(key, channel, bytes, cx),
                })
            }
            Kind::Close => self.close(key),
            Kind::Reply | Kind::Data(_) | Kind::Eof(_) => Err(Fault::Direction),
        }
    }

    fn data(&mut self, key: u64, bytes: Option<&[u8]>) -> Result<(), Fault> {
        self.with(key, |stream, cx| match stream {
            Stream::Exec(exec) => exec.data(key, bytes, cx).map(|()| Flow::Goes),
            Stream::Task(task) => task.data(key, bytes, cx),
        })
    }

    fn open(&mut self, id: u32, request: Request) -> Result<(), Fault> {
        let key = u64::from(id);
        if id == 0 || self.streams.contains_key(&key) {
            return Err(Fault::Stream(id));
        }
        if self.streams.len() >= MOST_STREAMS {
            self.cx.link.failed(id, Step::Refuse, Errno::AGAIN);
            return Ok(());
        }
        match self.begin(id, request) {
            Ok(Some(stream)) => {
                let busy = matches!(&stream, Stream::Task(task) if task.is_busy());
                self.streams.insert(key, stream);
                self.is_busy(key, busy);
            }
            Ok(None) => self.cx.link.message(id, &Reply::Done { bytes: 0 }),
            Err((step, errno)) => self.cx.link.failed(id, step, errno),
        }
        Ok(())
    }

    /// What a request becomes: a stream, or nothing when it is done already.
    fn begin(&mut self, id: u32, request: Request) -> Result<Option<Stream>, Failure> {
        let pipes = match request.pipes() {
            0 => Vec::new(),
            wanted => {
                let pipes = self.pipes.pop_front().unwrap_or_default();
                if pipes.len() != wanted {
                    return Err((Step::Refuse, Errno::MFILE));
                }
                pipes
            }
        };
        let (key, cx) = (u64::from(id), &mut self.cx);
        fn task<T: Task + 'static>(task: T) -> Stream {
            Stream::Task(Box::new(task))
        }
        Ok(match request {
            Request::Exec(exec) => {
                let alone = self.streams.is_empty();
                let exec = Exec::open(key, id, exec, pipes, alone, cx)?;
                self.pending |= exec.is_pending();
                Some(Stream::Exec(Box::new(exec)))
            }
            Request::Read { path, offset, length, .. } => match pipes.into_iter().next() {
                Some(pipe) => Some(task(pipes::Read::open(id, &path, offset, length, pipe)?)),
                None => Some(task(files::Read::open(id, &path, offset, length)?)),
            },
            Request::Write(write) => match pipes.into_iter().next() {
                Some(pipe) => Some(task(pipes::Write::open(key, id, &write, pipe, cx)?)),
                None => Some(task(files::Write::open(id, &write, cx)?)),
            },
            Request::List { path, depth } => Some(task(walk::List::open(id, &path, depth)?)),
            Request::Stat { path } => {
                let entry = files::stat(path)?;
                cx.link.message(id, &Reply::Entries(vec![entry]));
                None
            }
            Request::MakeDirectory { path, mode, parents } => {
                files::make_directory(&path, mode, parents)?;
                None
            }
            Request::Move { from, to, replace } => {
                files::rename(&from, &to, replace)?;
                None
            }
            Request::Remove { path, recursive } => walk::remove(id, &path, recursive)?.map(task),
            Request::Watch { path, recursive } => Some(task(watch::Watch::open(key, id, &path, recursive, cx)?)),
            Request::Connect { port } => Some(task(connect::Connect::open(key, id, port, cx)?)),
            Request::Ping => None,
        })
    }

    fn close(&mut self, key: u64) -> Result<(), Fault> {
        let Some(mut stream) = self.streams.remove(&key) else { return Ok(()) };
        self.busy.remove(&key);
        match &mut stream {
            Stream::Task(task) => task.close(&mut self.cx),
            Stream::Exec(exec) => {
                if exec.close(&mut self.cx) == Flow::Goes {
                    let hidden = self.next_closed;
                    self.next_closed += 1;
                    if let Some(reaper) = exec.reaper() {
                        self.cx.reapers.rename(reaper, hidden);
                    }
                    self.pending = true;
                    self.streams.insert(hidden, stream);
                }
            }
        }
        Ok(())
    }

    /// Passes on what a reaper says.
    fn reports(&mut self, reaper: i32) -> Result<(), Fault> {
        let (owner, reports) = self.cx.reapers.reports(reaper, &self.cx.epoll);
        let Some(key) = owner else {
            // One that is being ended may say so as well, and takes no more orders.
            if self.cx.reapers.is_left(reaper) && reports.iter().any(|report| matches!(report, Report::Empty)) {
                self.cx.reapers.release(reaper);
            }
            return Ok(());
        };
        for report in reports {
            self.with(key, |stream, cx| match stream {
                Stream::Exec(exec) => exec.report(key, report, cx),
                Stream::Task(_) => Ok(Flow::Goes),
            })?;
        }
        Ok(())
    }

    /// Takes note of children that ended, and of reapers that were stopped.
    fn reap(&mut self) -> Result<(), Fault> {
        while sys::read_signal(self.children.as_fd()).is_some() {}
        // Code in the box can make more of this than there is time for.
        for _ in 0..MOST_REAPED {
            let Some(child) = sys::wait(-1, sys::Wait::IfChanged)? else {
                self.reaps = false;
                return Ok(());
            };
            if libc::WIFSTOPPED(child.status) {
                self.stopped(child.pid);
                continue;
            }
            self.cx.seen.remove(&child.pid);
            if self.cx.reapers.is_reaper(child.pid) {
                // Its last words come first.
                self.reports(child.pid)?;
            }
            match self.cx.reapers.reaped(child.pid) {
                Some(Some((key, note))) => self.with(key, |stream, cx| match stream {
                    Stream::Exec(exec) => exec.lost(key, note, cx),
                    Stream::Task(_) => Ok(Flow::Goes),
                })?,
                Some(None) => {}
                // Something that a command left behind, or a command whose reaper was killed.
                None => {
                    self.cx.bare.remove(&child.pid);
                    let is_it = |stream: &Stream| matches!(stream, Stream::Exec(exec) if exec.is_command(child.pid));
                    let found = self.streams.iter().find(|(_, stream)| is_it(stream)).map(|(key, _)| *key);
                    if let Some(key) = found {
                        self.with(key, |stream, cx| match stream {
                            Stream::Exec(exec) => exec.gone(key, child, cx),
                            Stream::Task(_) => Ok(Flow::Goes),
                        })?;
                    }
                }
            }
        }
        self.reaps = true;
        Ok(())
    }

    /// Passes on that a child was stopped, if it is the reaper of a command.
    fn stopped(&mut self, pid: i32) {
        let Some(key) = self.cx.reapers.owner(pid) else { return };
        if let Some(Stream::Exec(exec)) = self.streams.get_mut(&key) {
            exec.reaper_stopped();
            self.pending = true;
        }
    }

    /// Looks at every stream that does not tell by itself.
    fn look(&mut self) -> Result<(), Fault> {
        self.pending = false;
        let is_pending = |stream: &Stream| matches!(stream, Stream::Exec(exec) if exec.is_pending());
        let keys: Vec<u64> = self.streams.iter().filter(|(_, s)| is_pending(s)).map(|(key, _)| *key).collect();
        for key in keys {
            self.with(key, |stream, cx| match stream {
                Stream::Exec(exec) => exec.look(key, cx),
                Stream::Task(_) => Ok(Flow::Goes),
            })?;
        }
        Ok(())
    }

    /// Nothing outlives the guest. As process 1 it takes everything along by itself.
    fn end(&mut self) {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        if own != 1 {
            self.cx.processes.signal(own, libc::SIGKILL, |_| false);
        }
    }
}
