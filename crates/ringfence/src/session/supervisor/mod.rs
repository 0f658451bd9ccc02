//! The supervisor: the process that owns the box of one session, from its making to its end.
//!
//! One thread, one poller, nothing that waits. It carries frames between any number of clients and the guest, and holds
//! what must not depend on either: time limits, idleness, life, bounds. Every byte of the guest and of clients is checked;
//! a guest that breaks the protocol ends its own session, a client that does is dropped. When this process dies, process 1
//! of the box sees its socket close and takes everything with it.

mod client;
mod clients;
mod executions;
mod guest;
pub(super) mod record;
mod relay;
mod wire;

pub use executions::{REMEMBERED, REMEMBERED_BYTES};

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use ringfence_guest::frame::{Kind, MAX_REPLY};
use ringfence_guest::message::{Request, Step};
use ringfence_linux::limits::{self, Refusals};
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::Plan;
use ringfence_policy::policy::Shown;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::info::{End, Info, Required, State};
use super::place::{Kept, Last, Place};
use crate::engines::{self, About, Engine, EngineError, Inhabited, docker};
use crate::records::Ticket;
use crate::report::Report;
use crate::sets::{self, SetError};
use crate::supervise::Reason;
use client::{Client, ClientStream};
pub(super) use clients::address;
use executions::{Due, Executions};
use relay::{Stream, To};
use wire::Wire;

/// What a session is made from, as its creator planned it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    #[serde(with = "ringfence_policy::wire::path")]
    pub dir: PathBuf,
    pub id: String,
    pub name: Option<String>,
    pub profile: String,
    #[serde(with = "ringfence_policy::wire::path")]
    pub workdir: PathBuf,
    pub engine: Engine,
    pub plan: Plan,
    pub facts: Facts,
    pub report: Report,
    pub idle: Option<Duration>,
    pub life: Option<Duration>,
    pub records: Option<record::Wanted>,
    /// Sets of packages, which are kept as long as it lives.
    pub requirements: Vec<Shown>,
}

/// What the creator hears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    Ready,
    Failed(String),
    /// A set of packages is not there any more.
    NoSet(String),
    /// By the container engine.
    Docker {
        kind: docker::Kind,
        message: String,
        cure: Option<String>,
    },
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error("cannot read what to supervise: {0}")]
    Request(std::io::Error),
    #[error("what to supervise is malformed")]
    Malformed,
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Set(#[from] SetError),
    #[error("the guest did not say hello: {0}")]
    Hello(&'static str),
    #[error("cannot listen at `{}`: {source}", path.display())]
    Listen { path: PathBuf, source: std::io::Error },
    #[error("cannot write the state of the session: {0}")]
    State(std::io::Error),
    #[error("cannot wait: {0}")]
    Poll(Errno),
}

/// Makes the session that `request` describes, tells its creator on `answer`, and stays until it has ended. For the
/// `ringfence` program, which `create` starts for this alone.
pub fn supervise(mut request: impl std::io::Read, answer: OwnedFd) -> Result<(), SuperviseError> {
    raise_open_files();
    let mut bytes = Vec::new();
    request.read_to_end(&mut bytes).map_err(SuperviseError::Request)?;
    drop(request);
    let start: Result<Start, _> = postcard::from_bytes(&bytes).map_err(|_| SuperviseError::Malformed);
    drop(bytes);
    let made = start.and_then(Supervisor::make);
    let told = match &made {
        Ok(_) => Told::Ready,
        Err(SuperviseError::Engine(EngineError::Docker(error))) => {
            Told::Docker { kind: error.kind(), message: error.to_string(), cure: error.cure() }
        }
        Err(SuperviseError::Set(SetError::Gone(id))) => Told::NoSet(id.clone()),
        Err(error) => Told::Failed(error.to_string()),
    };
    // A creator that is gone has nobody to tell; the session it asked for is there.
    if let Ok(text) = postcard::to_allocvec(&told) {
        let _ = std::io::Write::write_all(&mut std::fs::File::from(answer), &text);
    }
    made?.run()
}

/// As many as it may have: pipes of clients pass through it, and what is on its way to anybody counts for the user, whoever
/// sent it, and is held against this.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // What it has then does.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

const LISTENER: u64 = 0;
const GUEST: u64 = 1;
/// Clients have numbers from here on.
const CLIENTS: u64 = 16;

/// Without a byte taken for so long while bytes wait, the guest has stalled.
const STALLED: Duration = Duration::from_secs(30);
/// Asked so often whether it is there, while anything is open.
const PING: Duration = Duration::from_secs(5);
/// So much may wait for the guest before clients are not read any more.
const HIGH: usize = 8 << 20;
/// How often a tree without a control group is counted, while something runs; and while nothing does, but for what a
/// command may have left in the background.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_IDLE: Duration = Duration::from_millis(250);
/// A process that was left behind and killed the guest's may pass for it: so it is looked at all the same.
const LOOK_DESERTED: Duration = Duration::from_secs(5);
/// So many looks in a row may find too much memory, with a process killed at each, before the box is.
const MOST_OVER: u32 = 20;
/// How often it is looked whether anybody can still find the session.
const LOOK_FOR_LOCK: Duration = Duration::from_secs(5);
/// Clients get so long to take the last words.
const FAREWELL: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    place: Place,
    info: Info,
    report: Report,
    plan: Plan,
    epoll: OwnedFd,
    listener: OwnedFd,
    /// `None` when the box has ended.
    running: Option<Inhabited>,
    /// Held as long as it lives.
    _sets: Vec<sets::Lock>,
    guest: Wire,
    /// Open streams of the guest.
    streams: HashMap<u32, Stream>,
    next_stream: u32,
    /// Bytes that may still come on streams that were closed.
    stale: u64,
    clients: HashMap<u64, Client>,
    next_client: u64,
    /// Clients with something to write.
    dirty: Vec<u64>,
    executions: Executions,
    /// Clients' streams that asked for the end.
    stopping: Vec<executions::Place>,
    /// The client that it ends with.
    owner: Option<u64>,
    buffer: Vec<u8>,
    used: Instant,
    expires: Option<Instant>,
    /// Since when the guest has taken nothing of what waits.
    waits_since: Option<(Instant, usize)>,
    /// When the guest was last heard; and the stream on which it was asked whether it is there, and since when.
    heard: Instant,
    ping: Option<(u32, Instant)>,
    /// Commands that there is room for the guest's own processes of.
    room: u64,
    /// Clients are not read, since the guest does not take what they sent.
    paused: bool,
    refusals: Option<Refusals>,
    /// Kills for memory and refused forks so far; looked up when an execution has ended.
    kills: u64,
    refused: u64,
    look_at_counts: bool,
    /// Of them, those by this process, where no control group does it; and looks in a row that found too much.
    killed: u64,
    over: u32,
    /// When the tree was last counted; and that there was nobody in it but the guest's own process for the next command.
    looked: Instant,
    deserted: bool,
    /// Which file its lock was, by which others know that it lives; and when it was last looked for.
    lock: Option<(u64, u64)>,
    looked_for_lock: Instant,
    records: Option<record::Records>,
    /// Records of commands that have ended, or did not start, to be written when nobody waits.
    ended: Vec<u64>,
    unstarted: Vec<(Ticket, Step, i32)>,
    end: Option<End>,
    last: Last,
}

impl Supervisor {
    /// Makes the box, and listens.
    fn make(mut start: Start) -> Result<Supervisor, SuperviseError> {
        let sets = start.requirements.iter().map(|shown| sets::hold(&shown.source)).collect::<Result<_, _>>()?;
        let about =
            About { session: &start.id, name: start.name.as_deref(), profile: &start.profile, state: &start.dir };
        let (running, channel) = engines::inhabit(start.engine, &mut start.plan, &start.facts, about)?;
        Ok(Supervisor { _sets: sets, ..Supervisor::own(start, Some(running), channel)? })
    }

    /// Takes a box over, whose guest is at the other end of the channel and has spoken.
    fn own(start: Start, running: Option<Inhabited>, channel: OwnedFd) -> Result<Supervisor, SuperviseError> {
        let place = Place::new(&start.dir);
        let mut guest = Wire::new(channel, MAX_REPLY).map_err(SuperviseError::Poll)?;
        let buffer = guest::hello(&mut guest)?;
        let path = place.socket(&start.id);
        let listener = clients::listen(&path).map_err(|source| SuperviseError::Listen { path, source })?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(SuperviseError::Poll)?;
        for (fd, token) in [(listener.as_fd(), LISTENER), (guest.fd(), GUEST)] {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN).map_err(SuperviseError::Poll)?;
        }
        let records = start.records.map(|wanted| record::Records::new(wanted, &start.facts, &start.plan));
        let limits = &start.plan.limits;
        let info = Info {
            id: start.id,
            name: start.name,
            profile: start.profile,
            engine: start.engine.name().to_owned(),
            workdir: start.workdir,
            workdir_inside: start.plan.workdir.clone(),
            created: SystemTime::now(),
            state: State::Live,
            pid: std::process::id(),
            idle: start.idle,
            idle_at: None,
            expires: None,
            timeout: limits.timeout,
            timeout_ceiling: limits.timeout_ceiling,
            output: limits.output,
            executions: 0,
            running: 0,
            caches: running.as_ref().map_or_else(Vec::new, |running| running.caches().to_vec()),
            requirements: start.requirements.iter().map(Required::of).collect(),
            left: None,
            unreachable: None,
        };
        let last = place.last(&info.id);
        let lock = place.lock_file(&info.id).ok().flatten();
        let now = Instant::now();
        let refusals = running.as_ref().and_then(Inhabited::refusals);
        let supervisor = Supervisor {
            place,
            info,
            report: start.report,
            plan: start.plan,
            epoll,
            listener,
            running,
            _sets: Vec::new(),
            refusals,
            guest,
            streams: HashMap::new(),
            next_stream: 1,
            stale: 0,
            clients: HashMap::new(),
            next_client: CLIENTS,
            dirty: Vec::new(),
            executions: Executions::default(),
            stopping: Vec::new(),
            owner: None,
            buffer,
            used: now,
            expires: start.life.and_then(|life| now.checked_add(life)),
            waits_since: None,
            heard: now,
            ping: None,
            room: engines::GUEST_PROCESSES,
            paused: false,
            kills: 0,
            refused: 0,
            look_at_counts: false,
            killed: 0,
            over: 0,
            looked: now,
            deserted: false,
            lock,
            looked_for_lock: now,
            records,
            ended: Vec::new(),
            unstarted: Vec::new(),
            end: None,
            last,
        };
        supervisor.place.keep(&supervisor.kept()).map_err(SuperviseError::State)?;
        Ok(supervisor)
    }

    /// Until it has ended, and nothing is left of it.
    fn run(mut self) -> Result<(), SuperviseError> {
        let mut events = Vec::with_capacity(64);
        let end = loop {
            if let Some(end) = self.end {
                break end;
            }
            self.flush();
            self.after_flush();
            events.clear();
            let timeout =
                self.next().map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() });
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    self.finish(End::Died);
                    return Err(SuperviseError::Poll(errno));
                }
            }
            for event in events.drain(..) {
                let (data, flags) = (event.data, event.flags);
                match data.u64() {
                    LISTENER => self.accept(),
                    GUEST => self.guest_ready(flags),
                    client => self.client_ready(client, flags),
                }
            }
            self.look(Instant::now());
        };
        self.finish(end);
        Ok(())
    }

    /// How long until something must be looked at.
    fn next(&self) -> Option<Duration> {
        let now = Instant::now();
        let idle = self.info.idle.filter(|_| self.is_idle()).and_then(|idle| self.used.checked_add(idle));
        let stalled = self.waits_since.map(|(since, _)| since + STALLED);
        let ping = match self.ping {
            Some((_, since)) => Some(since.max(self.heard) + STALLED),
            None => (!self.streams.is_empty()).then(|| self.heard + PING),
        };
        let look = (self.watches() || self.counts_time()).then(|| self.looked + self.pace());
        let clocks = self.executions.running().filter_map(executions::Execution::next).min();
        let lock = self.lock.map(|_| self.looked_for_lock + LOOK_FOR_LOCK);
        let next = [idle, self.expires, stalled, ping, look, clocks, lock].into_iter().flatten().min()?;
        // Rounded up: the poller counts whole milliseconds on older kernels.
        Some(next.saturating_duration_since(now) + Duration::from_millis(1))
    }

    /// Whether nothing is done: a context that waits for code does nothing.
    fn is_idle(&self) -> bool {
        let waits = |stream: &Stream| match stream.to {
            To::Execution(id) => self.executions.all.get(&id).is_some_and(executions::Execution::waits),
            To::Client(_) => false,
        };
        let holds = |client: &Client| client.streams.values().any(|open| matches!(open, ClientStream::Holding));
        self.streams.values().all(waits) && !self.clients.values().any(holds)
    }

    /// Whether the tree is counted from here, since no control group does.
    fn watches(&self) -> bool {
        self.plan.limits.memory.is_some() && self.running.as_ref().is_some_and(|running| !running.has_group())
    }

    /// Whether the processor time of commands is counted: each process has its own limit, the tree has none.
    fn counts_time(&self) -> bool {
        self.plan.limits.cpu_time.is_some() && self.executions.running().next().is_some()
    }

    /// Processor time of the box so far. Without a control group, what ended unseen is missing.
    pub(super) fn time_used(&self) -> Duration {
        let Some(running) = &self.running else { return Duration::ZERO };
        running.usage().cpu.unwrap_or_else(|| limits::census(running.pid()).cpu)
    }

    /// How long it is from one count of the tree to the next.
    fn pace(&self) -> Duration {
        match self.executions.running().next() {
            Some(_) => LOOK,
            None if self.deserted => LOOK_DESERTED,
            None => LOOK_IDLE,
        }
    }

    /// Looks at every clock.
    fn look(&mut self, now: Instant) {
        let mut due: Vec<(u64, Due)> = Vec::new();
        for execution in self.executions.all.values_mut() {
            due.extend(execution.due(now).map(|what| (execution.id, what)));
        }
        for (id, what) in due {
            match what {
                Due::Term => self.ask_to_end(id),
                Due::Kill => self.signal(id, libc::SIGKILL, true),
                Due::EndBox => self.end = Some(End::Unruly),
            }
        }
        if self.expires.is_some_and(|at| now >= at) {
            self.end.get_or_insert(End::Expired);
        }
        if self.is_idle() && self.info.idle.is_some_and(|idle| now.saturating_duration_since(self.used) >= idle) {
            self.end.get_or_insert(End::Idle);
        }
        if self.waits_since.is_some_and(|(since, _)| now >= since + STALLED) {
            self.end.get_or_insert(End::Unruly);
        }
        self.look_at_guest(now);
        self.look_for_lock(now);
        // Not at each wake-up: how long too much may last would hang on how busy the session is.
        if now < self.looked + self.pace() {
            return;
        }
        self.look_at_time(now);
        if let (true, Some(limit), Some(running)) = (self.watches(), self.plan.limits.memory, &self.running) {
            let census = limits::census(running.pid());
            self.deserted = census.processes <= 1;
            let over = limits::has_more_than(limit, census.memory, running.pid());
            self.over = if over { self.over + 1 } else { 0 };
            if over && limits::kill_largest(running.pid()) {
                self.killed += 1;
            }
            // What grows faster than it is killed.
            if self.over > MOST_OVER {
                self.end.get_or_insert(End::Memory);
            }
            // A tree that takes long to count must not keep the session from its work.
            self.looked = now + now.elapsed() * 3;
        }
    }

    /// Asks the guest whether it is there, while anybody waits for it. One that says nothing has stalled.
    fn look_at_guest(&mut self, now: Instant) {
        match self.ping {
            // Whatever it says, it is there: an answer may stand behind much else.
            Some((_, since)) if now >= since.max(self.heard) + STALLED => {
                self.end.get_or_insert(End::Unruly);
            }
            None if !self.streams.is_empty() && now >= self.heard + PING => {
                let stream = self.fresh_stream();
                // One byte.
                let _ = self.guest.message(stream, Kind::Open, &Request::Ping);
                self.ping = Some((stream, now));
            }
            _ => {}
        }
    }

    /// Ends a session that nobody can find: whoever looks takes it for gone, and nobody could end it.
    fn look_for_lock(&mut self, now: Instant) {
        if self.lock.is_none() || now < self.looked_for_lock + LOOK_FOR_LOCK {
            return;
        }
        self.looked_for_lock = now;
        // What cannot be looked up may be there.
        if self.place.lock_file(&self.info.id).is_ok_and(|found| found != self.lock) {
            self.end.get_or_insert(End::Removed);
        }
    }

    /// Ends commands that used up their processor time. What runs at the same time is counted together.
    fn look_at_time(&mut self, now: Instant) {
        let Some(limit) = self.plan.limits.cpu_time.filter(|_| self.counts_time()) else { return };
        self.looked = now;
        let used = self.time_used();
        let spent = |e: &&mut executions::Execution| used.saturating_sub(e.time_before) >= limit;
        let all = self.executions.all.values_mut().filter(spent);
        let ended: Vec<u64> = all.filter_map(|e| e.end_at_once(Reason::CpuTime, now).then_some(e.id)).collect();
        for id in ended {
            self.signal(id, libc::SIGKILL, true);
        }
    }

    /// Kills for memory and refused forks so far.
    fn counts_now(&self) -> (u64, u64) {
        let (kills, refused) = self.refusals.as_ref().map(Refusals::now).unwrap_or_default();
        (self.killed + kills, refused)
    }

    /// What nobody waits for.
    fn after_flush(&mut self) {
        if std::mem::take(&mut self.look_at_counts) {
            (self.kills, self.refused) = self.counts_now();
        }
        self.make_room();
        self.record_ends();
    }

    fn flush_guest(&mut self) {
        if self.guest.pending() == 0 {
            return;
        }
        if self.guest.flush().is_err() {
            self.end.get_or_insert(End::Died);
        }
        let left = self.guest.pending();
        self.waits_since = match (left, self.waits_since) {
            (0, _) => None,
            (left, Some((since, then))) if left >= then => Some((since, left)),
            (left, _) => Some((Instant::now(), left)),
        };
        Self::want_room(&self.epoll, GUEST, &mut self.guest, EventFlags::IN);
    }

    /// Writes to everybody who has something to read.
    fn flush(&mut self) {
        self.flush_guest();
        let pause = self.guest.pending() > HIGH;
        if pause != self.paused {
            self.paused = pause;
            for (token, client) in &mut self.clients {
                // Told once more, whatever it waits for now.
                client.wire.waits_for_room = !client.wire.waits_for_room;
                Self::want_room(&self.epoll, *token, &mut client.wire, reads(pause));
            }
        }
        for token in std::mem::take(&mut self.dirty) {
            let Some(client) = self.clients.get_mut(&token) else { continue };
            let mut flushed = client.wire.flush();
            if client.wire.pending() == 0 && !client.missed.is_empty() {
                client.tell_missed();
                flushed = flushed.and_then(|()| client.wire.flush());
            }
            if flushed.is_err() || client.is_stuck() {
                self.drop_client(token);
                continue;
            }
            Self::want_room(&self.epoll, token, &mut client.wire, reads(self.paused));
        }
    }

    /// Waits for room in a socket exactly while something waits to be written.
    fn want_room(epoll: &OwnedFd, token: u64, wire: &mut Wire, reads: EventFlags) {
        let wanted = wire.pending() > 0;
        if wanted != wire.waits_for_room {
            wire.waits_for_room = wanted;
            let flags = if wanted { reads | EventFlags::OUT } else { reads };
            // It is registered for as long as it is open.
            let _ = epoll::modify(epoll, wire.fd(), EventData::new_u64(token), flags);
        }
    }

    fn kept(&self) -> Kept {
        Kept { info: self.snapshot(), report: self.report.clone(), ended: None }
    }

    /// What is to be known now.
    fn snapshot(&self) -> Info {
        let now = Instant::now();
        let at = |instant: Instant| SystemTime::now() + instant.saturating_duration_since(now);
        let running = self.executions.running().count() as u32;
        let idle = self.info.idle.filter(|_| self.is_idle());
        let idle_at = idle.and_then(|idle| self.used.checked_add(idle).map(at));
        Info { idle_at, expires: self.expires.map(at), executions: self.executions.count, running, ..self.info.clone() }
    }

    /// Ends the box with everything in it, says so, and gives up its place.
    fn finish(&mut self, mut end: End) {
        match self.running.take().map(Inhabited::finish) {
            Some(Ok((_, usage))) if end == End::Died && self.killed + usage.killed_for_memory > self.kills => {
                end = End::Memory;
            }
            // Whoever removes the session tries again.
            Some(Err(error)) => self.info.left = Some(error.to_string()),
            _ => {}
        }
        self.info.state = State::Ended(end);
        let mut kept = self.kept();
        kept.info.running = 0;
        kept.ended = Some(SystemTime::now());
        if end != End::Removed {
            self.last.write(self.executions.count, Some(end));
            // Whoever looks afterwards finds a supervisor that is gone, and these last words.
            let _ = self.place.keep(&kept);
            self.place.release(&self.info.id, self.info.name.as_deref());
        }
        self.say_farewell(end);
        // Also of those whose clients had more to tell.
        self.ended = self.executions.all.keys().copied().collect();
        self.record_ends();
    }

    /// Last words to all clients, as far as they take them in time.
    fn say_farewell(&mut self, end: End) {
        self.end_streams(end);
        let until = Instant::now() + FAREWELL;
        loop {
            self.clients.retain(|_, client| client.wire.flush().is_ok() && client.wire.pending() > 0);
            let left = until.saturating_duration_since(Instant::now());
            if self.clients.is_empty() || left.is_zero() {
                return;
            }
            let fds: Vec<BorrowedFd<'_>> = self.clients.values().map(|client| client.wire.fd()).collect();
            let mut polled: Vec<_> = fds
                .iter()
                .map(|fd| rustix::event::PollFd::from_borrowed_fd(*fd, rustix::event::PollFlags::OUT))
                .collect();
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let _ = rustix::event::poll(&mut polled, Some(&time));
        }
    }
}

/// What is waited for beside room.
fn reads(paused: bool) -> EventFlags {
    if paused { EventFlags::empty() } else { EventFlags::IN }
}

#[cfg(test)]
pub(super) mod tests;
