//! The supervisor: the process that owns the box of one session, from its making to its end.
//!
//! One loop, one poller, nothing that waits: what may take long is done by threads beside the loop (`beside`). It carries frames between any number of clients and the guest, and holds
//! what must not depend on either: time limits, idleness, life, bounds. Every byte of the guest and of clients is checked;
//! a guest that breaks the protocol ends its own session, a client that does is dropped. When this process dies, process 1
//! of the box sees its socket close and takes everything with it.

mod beside;
mod change;
mod changer;
mod children;
mod client;
mod clients;
mod executions;
mod guest;
mod life;
pub(super) mod record;
mod signals;
mod streams;
mod tree;
mod wire;
mod worker;

pub use executions::{REMEMBERED, REMEMBERED_BYTES};

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use ringfence_guest::frame::MAX_REPLY;
use ringfence_policy::Guarded;
use ringfence_policy::facts::Facts;
use ringfence_policy::failure::{self, Failure};
use ringfence_policy::limits::Limits;
use ringfence_policy::plan::Plan;
use ringfence_policy::policy::Shown;
use ringfence_policy::rules::FileRule;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::document::{self, Document, DocumentError, Packed};
use super::info::{End, Info, Required, State};
use super::place::{Place, StateFile};
use super::protocol::SupervisorReply;
use crate::engines::{self, Abilities, About, EngineError, GuestSandbox};
use crate::report::Report;
use crate::sets::{self, SetError};
use beside::Bell;
use changer::Changer;
use children::Children;
use client::{Client, ClientStream, Clients};
pub(super) use clients::address;
use executions::{Execution, Executions};
use guest::GuestLink;
use life::{Life, LockWatch, Looked};
use streams::To;
use tree::{Seen, Tree};
use wire::Wire;
use worker::{Job, Worker};

/// What a session is made from, as its creator planned it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionStart {
    #[serde(with = "ringfence_policy::wire::path")]
    pub dir: PathBuf,
    pub id: String,
    pub name: Option<String>,
    pub profile: String,
    /// The hash of the policy that it was planned from.
    pub policy: String,
    #[serde(with = "ringfence_policy::wire::path")]
    pub workdir: PathBuf,
    /// Its name.
    pub engine: String,
    pub plan: Plan,
    pub facts: Facts,
    pub report: Report,
    pub idle: Option<Duration>,
    pub life: Option<Duration>,
    pub records: Option<record::Wanted>,
    /// Sets of packages, which are kept as long as it lives.
    pub requirements: Vec<Shown>,
    /// The rules of its policy.
    pub rules: Vec<FileRule>,
    /// Where the key lies that objects at a container engine are marked with.
    #[serde(with = "ringfence_policy::wire::path")]
    pub keys: PathBuf,
}

/// What the creator hears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartReply {
    Ready,
    Failed(Failure),
    /// A set of packages is not there any more.
    NoSet(String),
}

impl Packed for SessionStart {
    const FORMAT: &'static str = "ringfence.session-start";
}

impl Document for StartReply {
    const FORMAT: &'static str = "ringfence.session-start-reply";
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum SuperviseError {
    /// The request could not be read from stdin.
    #[error("cannot read what to supervise: {0}")]
    Request(std::io::Error),
    /// The request cannot be understood.
    #[error("cannot read what to supervise: {0}")]
    Malformed(#[from] DocumentError),
    /// No engine can start the sandbox.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A set of packages cannot be used.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The guest's first message did not come or was wrong.
    #[error("the guest did not say hello: {0}")]
    Hello(String),
    /// The socket for clients could not be made.
    #[error("cannot listen at `{}`: {source}", path.display())]
    Listen { path: PathBuf, source: std::io::Error },
    /// The state file could not be written.
    #[error("cannot write the state of the session: {0}")]
    State(std::io::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The kernel refused to wait.
    #[error("cannot wait: {0}")]
    Poll(Errno),
}

impl SuperviseError {
    /// What crosses the boundary to the creator.
    fn failure(&self, engine: Option<String>) -> Failure {
        let step = match self {
            SuperviseError::Engine(error) => return error.failure(),
            SuperviseError::Hello(_) => failure::Step::Guest,
            _ => failure::Step::Start,
        };
        Failure { engine, step, guarantee: None, message: self.to_string(), cures: Vec::new() }
    }
}

/// Makes the session that `request` describes, tells its creator on `answer`, and stays until it has ended. For the
/// `ringfence` program, which `create` starts for this alone.
pub fn supervise(mut request: impl std::io::Read, answer: OwnedFd) -> Result<(), SuperviseError> {
    raise_open_files();
    let mut bytes = Vec::new();
    request.read_to_end(&mut bytes).map_err(SuperviseError::Request)?;
    drop(request);
    let start = document::unpack::<SessionStart>(&bytes).map_err(SuperviseError::from);
    drop(bytes);
    let engine = start.as_ref().ok().map(|start| start.engine.clone());
    let made = start.and_then(Supervisor::make);
    let told = match &made {
        Ok(_) => StartReply::Ready,
        Err(SuperviseError::Set(SetError::Gone(id))) => StartReply::NoSet(id.clone()),
        Err(error) => StartReply::Failed(error.failure(engine)),
    };
    // A creator that is gone has nobody to tell; the session it asked for is there.
    if let Ok(text) = document::write(&told) {
        let _ = std::io::Write::write_all(&mut std::fs::File::from(answer), &text);
    }
    let ended = made?.run();
    // Not left to the end of this process: a thread that waits for a disk would hold it.
    let _ = ringfence_linux::sys::unlock(super::start::LOCK);
    ended
}

/// As many as it may have: pipes of clients pass through it, and what is on its way to anybody counts for the user, whoever
/// sent it, and is held against this.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // What it has then does.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// What the poller tells apart; clients have higher numbers.
const LISTENER: u64 = 0;
const GUEST: u64 = 1;
const LOCK: u64 = 2;
const BESIDE: u64 = 3;
const CHILDREN: u64 = 4;

/// So long the end of a sandbox is waited for. Then its guest loses its connection with this process, and ends; what is left at a
/// daemon is found again.
const ENDING: Duration = Duration::from_secs(20);
/// Clients get so long to take the last words.
const FAREWELL: Duration = Duration::from_secs(1);
/// The disk gets so long to take what is still to be written. What it does not take is lost: those executions are found without
/// an end, and the session with the state that was written before.
const LAST_WRITES: Duration = Duration::from_secs(5);

pub(super) struct Supervisor {
    place: Place,
    info: Info,
    report: Report,
    plan: Plan,
    /// What its clients do not copy by themselves.
    guarded: Guarded,
    /// The limits that it was made with; those of the plan may be tighter by now.
    ceiling: Limits,
    /// Held as long as it lives.
    _sets: Vec<sets::Lock>,
    epoll: OwnedFd,
    listener: OwnedFd,
    /// What its engine can do.
    can: Abilities,
    tree: Tree,
    guest: GuestLink,
    clients: Clients,
    executions: Executions,
    life: Life,
    records: Option<record::Records>,
    /// Commands that have ended, to be recorded when nobody waits.
    ended: Vec<u64>,
    /// Rings when a thread beside the loop has done something.
    bell: Bell,
    worker: Worker,
    changer: Changer,
    /// Processes that it needs beside the sandbox.
    children: Children,
    buffer: Vec<u8>,
    /// Why it is ending: whatever comes first; and how far that has come.
    end: Option<End>,
    ending: Option<Ending>,
}

/// What the end waits for, and until when.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Sandbox(Instant),
    /// The disk, which takes the last words.
    Words(Instant),
}

impl Supervisor {
    /// Makes the box, and listens.
    fn make(mut start: SessionStart) -> Result<Supervisor, SuperviseError> {
        let sets = start.requirements.iter().map(|shown| sets::hold(&shown.source)).collect::<Result<_, _>>()?;
        let about = About {
            session: &start.id,
            name: start.name.as_deref(),
            profile: &start.profile,
            state: &start.dir,
            keys: &start.keys,
        };
        let engine = engines::registry::get(&start.engine)?;
        let (running, channel) = engines::start_guest(engine, &mut start.plan, &start.report, &start.facts, about)?;
        Ok(Supervisor { _sets: sets, ..Supervisor::own(start, Some(running), channel)? })
    }

    /// Takes a box over, whose guest is at the other end of the channel and has spoken.
    fn own(
        start: SessionStart,
        running: Option<Box<dyn GuestSandbox>>,
        channel: OwnedFd,
    ) -> Result<Supervisor, SuperviseError> {
        let place = Place::new(&start.dir);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(SuperviseError::Poll)?;
        let mut wire = Wire::new(channel, MAX_REPLY).map_err(SuperviseError::Poll)?;
        let can = engines::registry::get(&start.engine)?.abilities();
        let (agreed, buffer) = guest::hello(&mut wire, can)?;
        wire.register(&epoll, GUEST, EventFlags::IN).map_err(SuperviseError::Poll)?;
        let path = place.socket(&start.id);
        let listener = clients::listen(&path).map_err(|source| SuperviseError::Listen { path, source })?;
        let lock = LockWatch::new(&place, &start.id);
        let bell = Bell::new().map_err(SuperviseError::Poll)?;
        let worker = Worker::start(place.clone(), place.last(&start.id), &bell).map_err(SuperviseError::Thread)?;
        for (fd, token) in [(Some(listener.as_fd()), LISTENER), (lock.fd(), LOCK), (Some(bell.fd()), BESIDE)] {
            let Some(fd) = fd else { continue };
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN).map_err(SuperviseError::Poll)?;
        }
        let info = described(&start, running.as_deref());
        let mut children = Children::new(&bell);
        for helper in running.iter().flat_map(|running| running.helpers()) {
            children.start(helper);
        }
        let supervisor = Supervisor {
            place,
            info,
            report: start.report,
            records: start.records.map(|wanted| record::Records::new(wanted, &start.facts, &start.plan)),
            ceiling: start.plan.limits.clone(),
            guarded: Guarded::of(&start.rules, &start.plan, &start.facts.home),
            plan: start.plan,
            _sets: Vec::new(),
            epoll,
            listener,
            can,
            tree: Tree::new(running, &bell),
            guest: GuestLink::new(wire, agreed),
            clients: Clients::default(),
            executions: Executions::default(),
            life: Life::new(start.life, lock),
            ended: Vec::new(),
            changer: Changer::new(&bell),
            bell,
            worker,
            children,
            buffer,
            end: None,
            ending: None,
        };
        supervisor.place.keep(&supervisor.kept()).map_err(SuperviseError::State)?;
        Ok(supervisor)
    }

    /// Until it has ended, and nothing is left of it.
    fn run(mut self) -> Result<(), SuperviseError> {
        let mut events = Vec::with_capacity(64);
        while !self.has_ended() {
            self.flush();
            self.after_flush();
            events.clear();
            let timeout =
                self.next().map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() });
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // The sandbox ends with this process, and is found as one that was lost.
                Err(errno) => return Err(SuperviseError::Poll(errno)),
            }
            for event in events.drain(..) {
                let (data, flags) = (event.data, event.flags);
                match data.u64() {
                    LISTENER => self.accept(),
                    GUEST => self.guest_ready(flags),
                    LOCK => self.life.lock.stirred(),
                    BESIDE => self.done_beside(),
                    child @ CHILDREN..client::FIRST => {
                        if self.children.ended(child - CHILDREN, Instant::now()) {
                            self.end.get_or_insert(End::Helper);
                        }
                    }
                    client => self.client_ready(client, flags),
                }
            }
            self.go_on();
            if self.end.is_none() {
                self.look(Instant::now());
            }
        }
        self.finish();
        Ok(())
    }

    /// Threads beside the loop have done something.
    fn done_beside(&mut self) {
        self.bell.silence();
        self.worker_ready();
        self.changes_made();
        let counted = self.tree.counted(&self.plan.limits);
        self.tree_seen(counted);
        if self.children.started(&self.epoll, CHILDREN, Instant::now()) {
            self.end.get_or_insert(End::Helper);
        }
    }

    fn tree_seen(&mut self, seen: Option<Seen>) {
        let Some((end, answers)) = seen else { return };
        self.end = self.end.or(end);
        self.end_spent(Instant::now());
        for place in answers {
            self.clients.answer_last(place, &SupervisorReply::Usage(self.tree.usage()));
        }
    }

    /// How long until something must be looked at; `None`: until something happens.
    fn next(&self) -> Option<Duration> {
        if self.clients.all.values().any(Client::can_go_on) {
            return Some(Duration::ZERO);
        }
        if let Some(Ending::Sandbox(until) | Ending::Words(until)) = self.ending {
            return Some(until.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        }
        let idle = self.info.idle.filter(|_| self.is_idle()).and_then(|idle| self.life.used.checked_add(idle));
        let thawed = self.tree.frozen.is_none();
        let guest = self.guest.next().filter(|_| thawed);
        let tree = self.tree.next(&self.plan.limits, self.executions.runs());
        let clocks = self.executions.all.values().filter_map(Execution::next).min().filter(|_| thawed);
        let next = [idle, self.life.expires, guest, tree, clocks, self.life.lock.next(), self.children.next()]
            .into_iter()
            .flatten()
            .min()?;
        // Rounded up: the poller counts whole milliseconds on older kernels.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Whether anybody waits for the guest: a context that waits for code does nothing.
    fn waits_for_guest(&self) -> bool {
        self.guest.streams.values().any(|stream| match stream.to {
            To::Execution(id) => self.executions.all.get(&id).is_none_or(|execution| !execution.waits()),
            To::Client(_) => true,
        })
    }

    /// Whether nothing is done.
    fn is_idle(&self) -> bool {
        let holds = |client: &Client| client.streams.values().any(|open| matches!(open, ClientStream::Holding));
        !self.waits_for_guest() && !self.clients.all.values().any(holds)
    }

    /// Looks at every clock. What was decided first stays the reason of the end.
    fn look(&mut self, now: Instant) {
        self.children.look(now);
        if let Some(lock) = self.life.lock.is_due(now) {
            self.worker.give(Job::LookForLock(lock));
        }
        self.end_overdue(now);
        let idle = self.info.idle.is_some_and(|idle| now.saturating_duration_since(self.life.used) >= idle);
        let ends = [
            (self.life.expires.is_some_and(|at| now >= at), End::Expired),
            (idle && self.is_idle(), End::Idle),
            (self.tree.frozen.is_none() && self.guest.look(now), End::Unruly),
        ];
        let mut due = ends.into_iter().filter_map(|(due, end)| due.then_some(end));
        self.end = self.end.or_else(|| due.next());
        let seen = self.tree.look(&self.plan.limits, self.executions.runs(), now);
        self.tree_seen(seen);
    }

    /// The lock file was looked for.
    fn looked_for_lock(&mut self, looked: Looked) {
        if looked.lost {
            self.end.get_or_insert(End::Removed);
        }
        self.life.lock.looked(looked);
        if let Some(fd) = self.life.lock.fd() {
            // Without it nothing is told of the file any more; the session goes on.
            let _ = epoll::add(&self.epoll, fd, EventData::new_u64(LOCK), EventFlags::IN);
        }
    }

    /// What nobody waits for.
    fn after_flush(&mut self) {
        self.tree.settle_counts();
        self.tree.make_room(&self.plan.limits, self.guest.commands());
        self.record_ends();
    }

    fn flush_guest(&mut self) {
        if self.guest.flush().is_err() {
            self.end.get_or_insert(End::Died);
        }
        self.guest.wire.wait_for(&self.epoll, GUEST, EventFlags::IN);
    }

    /// Writes to everybody who has something to read.
    fn flush(&mut self) {
        if self.ending.is_none() {
            self.flush_guest();
        }
        // A frozen session takes nothing, so that a client that thaws it is heard. Nor does one that ends.
        let pause = self.guest.is_full() && self.tree.frozen.is_none() && self.ending.is_none();
        if pause != self.clients.paused {
            self.clients.paused = pause;
            for (token, client) in &mut self.clients.all {
                client.wire.wait_for(&self.epoll, *token, reads(pause || client.deferred));
            }
        }
        for token in std::mem::take(&mut self.clients.dirty) {
            let Some(client) = self.clients.all.get_mut(&token) else { continue };
            let mut flushed = client.wire.flush();
            if client.wire.pending() == 0 && !client.missed.is_empty() {
                client.tell_missed();
                flushed = flushed.and_then(|()| client.wire.flush());
            }
            if flushed.is_err() || client.is_stuck() {
                self.drop_client(token);
                continue;
            }
            client.wire.wait_for(&self.epoll, token, reads(pause || client.deferred));
        }
    }

    fn kept(&self) -> StateFile {
        StateFile { info: self.snapshot(), report: self.report.clone(), ended: None }
    }

    /// What is to be known now.
    fn snapshot(&self) -> Info {
        let now = Instant::now();
        let at = |instant: Instant| SystemTime::now() + instant.saturating_duration_since(now);
        let running = self.executions.running().count() as u32;
        let idle = self.info.idle.filter(|_| self.is_idle());
        let idle_at = idle.and_then(|idle| self.life.used.checked_add(idle).map(at));
        let expires = self.life.expires.map(at);
        Info { idle_at, expires, executions: self.executions.count, running, ..self.info.clone() }
    }

    /// Whether it has ended, and its last words are written. The loop goes on until then: others may ask why it ends.
    fn has_ended(&mut self) -> bool {
        let Some(end) = self.end else { return false };
        let now = Instant::now();
        if self.ending.is_none() {
            // What is frozen does not end.
            self.changer.close();
            let _ = epoll::delete(&self.epoll, self.guest.wire.fd());
            self.tree.finish();
            self.ending = Some(Ending::Sandbox(now + ENDING));
        }
        if let Some(Ending::Sandbox(until)) = self.ending {
            let finished = match self.tree.finished() {
                None if now < until => return false,
                finished => finished.unwrap_or_else(|| Err("it did not end in time".to_owned())),
            };
            self.sandbox_ended(end, finished);
            self.ending = Some(Ending::Words(now + LAST_WRITES));
        }
        matches!(self.ending, Some(Ending::Words(until)) if now >= until || self.worker.is_idle())
    }

    /// Nothing of it is left, or something for this reason: says so, and gives up its place.
    fn sandbox_ended(&mut self, mut end: End, finished: Result<bool, String>) {
        match finished {
            Ok(for_memory) if for_memory && end == End::Died => end = End::Memory,
            Ok(_) => {}
            // Whoever removes the session tries again.
            Err(error) => self.info.left = Some(error),
        }
        self.end = Some(end);
        self.info.state = State::Ended(end);
        let mut kept = self.kept();
        kept.info.running = 0;
        kept.ended = Some(SystemTime::now());
        if end != End::Removed {
            self.worker.give(Job::Close(Box::new(kept), end));
        }
    }

    /// Tells its clients, and writes how its commands ended.
    fn finish(mut self) {
        if let Some(end) = self.end {
            self.say_farewell(end);
        }
        // Also of those whose clients had more to tell.
        self.ended = self.executions.all.keys().copied().collect();
        self.record_ends();
        let words = match self.ending {
            Some(Ending::Sandbox(at) | Ending::Words(at)) => at,
            None => Instant::now(),
        };
        self.worker.drain(words + FAREWELL);
    }

    /// Last words to all clients, as far as they take them in time.
    fn say_farewell(&mut self, end: End) {
        self.end_streams(end);
        let until = Instant::now() + FAREWELL;
        loop {
            self.clients.all.retain(|_, client| client.wire.flush().is_ok() && client.wire.pending() > 0);
            let left = until.saturating_duration_since(Instant::now());
            if self.clients.all.is_empty() || left.is_zero() {
                return;
            }
            let waiting = self.clients.all.values().map(|client| client.wire.fd());
            let mut polled: Vec<_> = waiting.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)).collect();
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let _ = rustix::event::poll(&mut polled, Some(&time));
        }
    }
}

/// A session that begins.
fn described(start: &SessionStart, running: Option<&dyn GuestSandbox>) -> Info {
    let limits = &start.plan.limits;
    Info {
        id: start.id.clone(),
        name: start.name.clone(),
        profile: start.profile.clone(),
        policy: start.policy.clone(),
        engine: start.engine.clone(),
        workdir: start.workdir.clone(),
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
        caches: running.map_or_else(Vec::new, |running| running.caches().to_vec()),
        requirements: start.requirements.iter().map(Required::of).collect(),
        left: None,
        unreachable: None,
        frozen: false,
        memory: limits.memory,
        cpus: limits.cpus,
        processes: limits.pids,
    }
}

/// What is waited for beside room.
fn reads(paused: bool) -> EventFlags {
    if paused { EventFlags::empty() } else { EventFlags::IN }
}

#[cfg(test)]
pub(super) mod tests;
