//! Clients: any process of the same user. One that breaks the rules is dropped, alone.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_guest::frame::{self, Channel, Decoder, Frame, FrameError, Greeting, Kind, MAX_REQUEST, WINDOW};
use ringfence_guest::message::{Exec, Input as GuestInput, Request, Write};
use rustix::event::epoll::{self, EventFlags};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::super::document::{self, Document};
use super::super::info::{End, Info, Placeholder};
use super::super::protocol::{
    ClientHello, ClientInput, ClientRequest, ExecRequest, GREETING, PIPES, Refusal, SupervisorHello, SupervisorReply,
};
use super::Supervisor;
use super::client::{Client, ClientStream, Follower, quietest};
use super::executions::{Clock, Execution, Recording};
use super::record::not_started;
use super::streams::{To, add};
use super::wire::{Read, Wire};
use super::worker::Job;
use crate::capture::Capture;
use crate::records::Caller;
use crate::supervise::Reason;

/// Clients at once.
const MOST_CLIENTS: usize = 256;
/// So many more may wait for a place, or end the session. The oldest gives way to a new one.
const MOST_LATE: usize = 16;
/// Streams of the guest at once; it takes a few more.
const MOST_STREAMS: usize = 1000;
/// Whoever calls a context ends it in time; this is for those who died.
const CONTEXT_SLACK: Duration = Duration::from_secs(10);

/// The client broke the protocol.
struct Unruly;

/// The answer to a question about the session.
fn document<T: Document>(body: &T) -> SupervisorReply {
    match document::write(body) {
        // What a policy names may be more than fits.
        Ok(bytes) if bytes.len() > MAX_REQUEST - 64 => SupervisorReply::Refused(Refusal::TooMany),
        Ok(bytes) => SupervisorReply::Document(bytes),
        // Plain data, which can always be written down.
        Err(_) => SupervisorReply::Refused(Refusal::UnknownRequest),
    }
}

/// Listens at a path that may be longer than an address can be.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let (_dir, address) = address(path)?;
    rustix::net::bind(&socket, &address)?;
    rustix::fs::chmodat(CWD, path, Mode::RUSR | Mode::WUSR, rustix::fs::AtFlags::empty())?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// The address of a path; by way of its open directory where it is too long. That must stay open until it was used.
pub fn address(path: &Path) -> io::Result<(Option<OwnedFd>, SocketAddrUnix)> {
    if path.as_os_str().as_bytes().len() < 108 {
        return Ok((None, SocketAddrUnix::new(path)?));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    Ok((Some(dir), SocketAddrUnix::new(&short)?))
}

/// The process at the other end, when it is this user's, and on the host: a box has a user namespace of its own.
fn whose(socket: &OwnedFd) -> Option<i32> {
    let peer = rustix::net::sockopt::socket_peercred(socket).ok()?;
    let namespace = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
    let theirs = namespace(&peer.pid.as_raw_nonzero().to_string());
    let ours = peer.uid == rustix::process::getuid() && theirs.is_some() && theirs == namespace("self");
    ours.then_some(peer.pid.as_raw_nonzero().get())
}

impl Supervisor {
    pub(super) fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = rustix::net::accept_with(&self.listener, flags) {
            let Some(pid) = whose(&socket) else { continue };
            let late = !self.has_room();
            if late {
                self.make_room_for_late();
            }
            let caller = Caller::of(pid);
            let token = self.clients.next;
            let Ok(mut wire) = Wire::new(socket, MAX_REQUEST) else { continue };
            if wire.register(&self.epoll, token, super::reads(self.clients.paused)).is_err() {
                continue;
            }
            self.clients.next += 1;
            self.clients.all.insert(token, Client { late, ..Client::new(wire, caller) });
            if !late {
                self.greet(token);
            }
        }
    }

    /// A client has its place.
    fn greet(&mut self, token: u64) {
        let hello = self.hello();
        if let Some(client) = self.clients.all.get_mut(&token) {
            client.late = false;
            // Two numbers.
            let _ = client.wire.message(0, Kind::Reply, &hello);
            self.clients.dirty.push(token);
        }
    }

    /// Those who wait for a place, oldest first.
    fn late(&self) -> BTreeSet<u64> {
        self.clients.all.iter().filter(|(_, client)| client.late).map(|(token, _)| *token).collect()
    }

    /// The longest waiting one gives way to a new one.
    fn make_room_for_late(&mut self) {
        let late = self.late();
        if let Some(oldest) = late.first().filter(|_| late.len() >= MOST_LATE) {
            self.drop_client(*oldest);
        }
    }

    fn hello(&self) -> SupervisorHello {
        let greeting = match self.guest.takes_pipes() {
            true => GREETING,
            false => Greeting { features: GREETING.features & !PIPES, ..GREETING },
        };
        SupervisorHello { greeting, output: self.info.output }
    }

    /// Whether one more client can be taken; the one that was quiet for longest gives way.
    fn has_room(&mut self) -> bool {
        let has = |clients: &HashMap<u64, Client>| clients.values().filter(|one| !one.late).count() < MOST_CLIENTS;
        if has(&self.clients.all) {
            return true;
        }
        if let Some(quiet) = quietest(&self.clients.all, self.clients.owner, Instant::now()) {
            self.drop_client(quiet);
        }
        // One that waited may have the place.
        has(&self.clients.all)
    }

    pub(super) fn client_ready(&mut self, token: u64, flags: EventFlags) {
        let Some(client) = self.clients.all.get_mut(&token) else { return };
        if flags.contains(EventFlags::OUT) {
            self.clients.dirty.push(token);
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        match client.wire.read_with_descriptors(&mut self.buffer) {
            Ok(Read::Nothing) => {}
            Ok(Read::End) | Err(_) => self.drop_client(token),
            Ok(Read::Bytes(_)) => {
                client.heard = Instant::now();
                self.handle(token);
            }
        }
    }

    /// Handles what was read from a client, as far as it reads what is answered.
    fn handle(&mut self, token: u64) {
        let Some(client) = self.clients.all.get_mut(&token) else { return };
        let mut decoder = std::mem::replace(&mut client.wire.decoder, Decoder::new(0));
        let handled = self.client_frames(token, &mut decoder);
        match self.clients.all.get_mut(&token) {
            // Pipes of a request that is not known would be taken for the next one's.
            Some(client) if client.puzzles && client.wire.has_pipes() => {
                // It may hear why.
                let _ = client.wire.flush();
                self.drop_client(token);
            }
            Some(client) if handled.is_ok() => {
                client.puzzles = false;
                client.wire.decoder = decoder;
            }
            _ => self.drop_client(token),
        }
    }

    /// Goes on with clients that had to read first, and have.
    pub(super) fn go_on(&mut self) {
        let ready = self.clients.all.iter().filter(|(_, client)| client.can_go_on()).map(|(token, _)| *token);
        for token in ready.collect::<Vec<_>>() {
            // What it is waited for changes.
            self.clients.dirty.push(token);
            let Some(client) = self.clients.all.get_mut(&token) else { continue };
            if std::mem::take(&mut client.starved) {
                let followed = client.streams.iter().filter_map(|(at, stream)| match stream {
                    ClientStream::Attached(follower) => Some((*at, follower.id)),
                    _ => None,
                });
                for (at, id) in followed.collect::<Vec<_>>() {
                    self.feed((token, at), id);
                }
            }
            if self.clients.all.get(&token).is_some_and(|client| client.deferred && !client.is_full()) {
                self.handle(token);
            }
        }
    }

    /// It is gone, or must go: what it ran in the foreground ends, what it asked of the guest is given up.
    pub(super) fn drop_client(&mut self, token: u64) {
        let Some(client) = self.clients.all.remove(&token) else { return };
        if self.clients.owner == Some(token) {
            self.end.get_or_insert(End::Stopped);
        }
        let _ = epoll::delete(&self.epoll, client.wire.fd());
        if let Some(waits) = self.late().first().filter(|_| !client.late) {
            self.greet(*waits);
        }
        for (at, stream) in client.streams {
            self.leave((token, at), stream);
        }
    }

    fn leave(&mut self, place: (u64, u32), stream: ClientStream) {
        match stream {
            ClientStream::Guest(stream) => self.guest.close(stream),
            ClientStream::Execution { id, .. } => self.disown(id),
            ClientStream::Attached(follower) => {
                self.detach(place, follower.id);
                self.executions.trim();
            }
            ClientStream::Waiting => self.clients.stopping.retain(|other| *other != place),
            ClientStream::Holding => self.life.used = Instant::now(),
        }
    }

    fn client_frames(&mut self, token: u64, decoder: &mut Decoder) -> Result<(), Unruly> {
        loop {
            let client = self.clients.all.get_mut(&token).ok_or(Unruly)?;
            client.deferred = client.is_full();
            if client.deferred {
                return Ok(());
            }
            match decoder.next_frame().map_err(|_| Unruly)? {
                Some(frame) => self.client_frame(token, &frame)?,
                None => return Ok(()),
            }
        }
    }

    fn client_frame(&mut self, token: u64, frame: &Frame<'_>) -> Result<(), Unruly> {
        let place = (token, frame.stream);
        let client = self.clients.all.get_mut(&token).ok_or(Unruly)?;
        if !client.greeted {
            if (frame.stream, frame.kind) != (0, Kind::Input) {
                return Err(Unruly);
            }
            // One that speaks no version of ours has been told which ones we do.
            GREETING.meet(frame.message::<ClientHello>().map_err(|_| Unruly)?.greeting).map_err(|_| Unruly)?;
            client.greeted = true;
            return Ok(());
        }
        if frame.kind == Kind::Open {
            if frame.stream <= client.highest {
                return Err(Unruly);
            }
            client.highest = frame.stream;
            let ask = match frame.message::<ClientRequest>() {
                Err(FrameError::Unknown { .. }) => {
                    client.puzzles = true;
                    self.clients.answer(place, &SupervisorReply::Refused(Refusal::UnknownRequest));
                    return Ok(());
                }
                ask => ask.map_err(|_| Unruly)?,
            };
            if client.late && ask != ClientRequest::Stop {
                // It has heard nothing, and asks again.
                return Err(Unruly);
            }
            let pipes = client.wire.take_pipes(ask.pipes()).ok_or(Unruly)?;
            if client.has_too_many() && !matches!(ask, ClientRequest::Environment { .. }) {
                self.clients.answer(place, &SupervisorReply::Refused(Refusal::TooMany));
                return Ok(());
            }
            // Looking at a session, again and again, does not keep it.
            if !ask.only_looks() {
                self.life.used = Instant::now();
            }
            match self.end {
                Some(end) if !ask.only_looks() => self.is_over(place, &ask, end),
                _ => self.ask(place, ask, pipes),
            }
            return Ok(());
        }
        // Clients are read all the same then: what waits is bounded by client.
        let held = self.tree.frozen.is_some() && self.guest.is_full() && frame.kind != Kind::Close;
        if held && !client.holds(frame::HEADER + frame.payload.len()) {
            return Err(Unruly);
        }
        let Some(stream) = client.streams.get_mut(&frame.stream) else {
            return if frame.stream <= client.highest { Ok(()) } else { Err(Unruly) };
        };
        if matches!(frame.kind, Kind::Data(_) | Kind::Input) {
            self.life.used = Instant::now();
        }
        match (frame.kind, &mut *stream) {
            (Kind::Close, _) => {
                if let Some(stream) = client.streams.remove(&frame.stream) {
                    self.leave(place, stream);
                }
            }
            (Kind::Data(Channel::In), ClientStream::Guest(stream)) => {
                let stream = *stream;
                let open = self.guest.streams.get_mut(&stream).ok_or(Unruly)?;
                let takes = open.takes.as_mut().ok_or(Unruly)?;
                *takes = takes.checked_sub(frame.payload.len() as u32).ok_or(Unruly)?;
                // Nothing, where nothing may come, is not the guest's to judge.
                if !frame.payload.is_empty() {
                    self.guest.wire.put(stream, frame.kind, frame.payload);
                }
            }
            (Kind::Eof(Channel::In), ClientStream::Guest(stream)) => {
                let stream = *stream;
                let open = self.guest.streams.get_mut(&stream).ok_or(Unruly)?;
                open.takes.take().ok_or(Unruly)?;
                self.guest.wire.put(stream, frame.kind, &[]);
            }
            (Kind::Credit(channel @ (Channel::Out | Channel::Err)), ClientStream::Guest(stream)) => {
                let more = frame.credit().map_err(|_| Unruly)?;
                let stream = *stream;
                self.allow(stream, channel, more)?;
            }
            (Kind::Credit(channel @ (Channel::Out | Channel::Err)), ClientStream::Execution { id, .. }) => {
                let more = frame.credit().map_err(|_| Unruly)?;
                let stream = self.executions.all.get(id).map(|e| e.stream).ok_or(Unruly)?;
                self.allow(stream, channel, more)?;
            }
            (Kind::Credit(channel @ (Channel::Out | Channel::Err)), ClientStream::Attached(follower)) => {
                let more = frame.credit().map_err(|_| Unruly)?;
                let credit = &mut follower.credit[Execution::log_of(channel)];
                *credit = add(*credit, more).ok_or(Unruly)?;
                let id = follower.id;
                self.feed(place, id);
            }
            (Kind::Data(channel @ (Channel::Out | Channel::Err)), ClientStream::Execution { id, .. }) => {
                let id = *id;
                self.read_by_client(id, channel, frame.payload)?;
            }
            (Kind::Data(Channel::In), stream) => {
                let id = stream.execution().ok_or(Unruly)?;
                let window = stream.window().ok_or(Unruly)?;
                *window = window.checked_sub(frame.payload.len() as u32).ok_or(Unruly)?;
                self.input(id, place, frame.payload);
            }
            (Kind::Eof(Channel::In), stream) => {
                let id = stream.execution().ok_or(Unruly)?;
                if let Some(execution) = self.executions.all.get_mut(&id) {
                    execution.input.ending = true;
                }
                self.pump_input(id);
            }
            (Kind::Input, stream) => {
                let id = stream.execution().ok_or(Unruly)?;
                let say = match frame.message::<ClientInput>() {
                    Err(FrameError::Unknown { .. }) => return Ok(()),
                    say => say.map_err(|_| Unruly)?,
                };
                self.say(id, say);
            }
            _ => return Err(Unruly),
        }
        Ok(())
    }

    /// A client takes more of a stream of the guest's.
    fn allow(&mut self, stream: u32, channel: Channel, more: u32) -> Result<(), Unruly> {
        // It may have ended this moment.
        let Some(open) = self.guest.streams.get_mut(&stream) else { return Ok(()) };
        let granted = &mut open.granted[Execution::log_of(channel)];
        *granted = add(*granted, more).ok_or(Unruly)?;
        self.guest.wire.put(stream, Kind::Credit(channel), &more.to_le_bytes());
        Ok(())
    }

    fn input(&mut self, id: u64, place: (u64, u32), bytes: &[u8]) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        let input = &mut execution.input;
        if input.wanted && !input.ending && execution.finished.is_none() {
            input.queue.push_back((place, bytes.to_vec()));
            self.pump_input(id);
        } else if let Some(client) = self.clients.all.get_mut(&place.0) {
            // Nobody reads it: taken and thrown away, as a closed pipe would.
            if let Some(window) = client.streams.get_mut(&place.1).and_then(ClientStream::window) {
                *window += bytes.len() as u32;
                client.wire.put(place.1, Kind::Credit(Channel::In), &(bytes.len() as u32).to_le_bytes());
                self.clients.dirty.push(place.0);
            }
        }
    }

    /// What a client has read from the pipes of its command, for the log.
    fn read_by_client(&mut self, id: u64, channel: Channel, bytes: &[u8]) -> Result<(), Unruly> {
        let execution = self.executions.all.get_mut(&id).filter(|e| e.told.is_some()).ok_or(Unruly)?;
        execution.log[Execution::log_of(channel)].push(bytes);
        self.feed_all(id);
        Ok(())
    }

    fn say(&mut self, id: u64, say: ClientInput) {
        match say {
            ClientInput::Signal { signal, tree } if (1..=64).contains(&signal) => self.signal(id, signal, tree),
            ClientInput::Signal { .. } => {}
            ClientInput::OutputSkipped { stderr, bytes } => {
                if let Some(execution) = self.executions.all.get_mut(&id).filter(|e| e.told.is_some()) {
                    execution.log[usize::from(stderr)].skip(bytes);
                }
            }
            ClientInput::OutputComplete => {
                if let Some(told) = self.executions.all.get_mut(&id).and_then(|e| e.told.as_mut()) {
                    *told = true;
                }
            }
            ClientInput::Resize(size) => {
                if let Some(execution) = self.executions.all.get(&id).filter(|e| e.terminal && e.runs()) {
                    // Two numbers.
                    let _ = self.guest.wire.message(execution.stream, Kind::Input, &GuestInput::Resize(size));
                }
            }
            ClientInput::ContextTime { ms } => {
                let ceiling = self.plan.limits.timeout_ceiling.map(|ceiling| ceiling.saturating_add(CONTEXT_SLACK));
                let Some(execution) = self.executions.all.get_mut(&id).filter(|e| e.context.is_some()) else { return };
                execution.works = ms.is_some();
                let ends = ms.filter(|ms| *ms < u64::MAX);
                let asked = ends.map(|ms| ceiling.unwrap_or(Duration::MAX).min(Duration::from_millis(ms)));
                if matches!(execution.clock, Clock::Runs(_)) {
                    let now = Instant::now();
                    execution.set_clock(Clock::Runs(asked.and_then(|time| now.checked_add(time))), now);
                }
            }
            ClientInput::Stop => self.ask_to_end(id, Reason::Cancelled),
        }
    }

    /// It ends: nothing is begun any more.
    fn is_over(&mut self, place: (u64, u32), ask: &ClientRequest, end: End) {
        let refusal = Refusal::SessionEnded(end);
        match ask {
            ClientRequest::Environment { .. } => return,
            ClientRequest::Exec(ask) => self.record_refused(ask, place.0, &refusal),
            _ => {}
        }
        self.clients.answer(place, &SupervisorReply::Refused(refusal));
    }

    fn ask(&mut self, place: (u64, u32), ask: ClientRequest, pipes: Vec<OwnedFd>) {
        let answer = match ask {
            ClientRequest::Exec(ask) => match self.refuses(&ask) {
                Some(refusal) => {
                    self.record_refused(&ask, place.0, &refusal);
                    SupervisorReply::Refused(refusal)
                }
                None => match self.exec(place, ask, pipes) {
                    Ok(()) => return,
                    Err(refusal) => SupervisorReply::Refused(refusal),
                },
            },
            ClientRequest::Attach { execution: id } => {
                let Some(execution) = self.executions.all.get_mut(&id) else {
                    return self.clients.answer(place, &SupervisorReply::Refused(Refusal::NoExecution));
                };
                execution.attached.push(place);
                let (begun, record) = (execution.announced, execution.record.clone());
                // What a context sent before was for others.
                let from = execution.context.as_ref().map(|_| execution.log.each_ref().map(Capture::total));
                self.follow(place, id, from.unwrap_or_default());
                if begun {
                    self.clients.answer(
                        place,
                        &SupervisorReply::ExecutionStarted { execution: id, record, record_error: None },
                    );
                }
                return self.feed(place, id);
            }
            ClientRequest::Info => document(&self.snapshot()),
            ClientRequest::Placeholders => document(&self.placeholders()),
            ClientRequest::Report => document(&self.report),
            ClientRequest::Guarded => document(&self.guarded),
            ClientRequest::Usage if self.tree.count_for(place, &self.plan.limits) => {
                return self.remember(place, ClientStream::Waiting);
            }
            ClientRequest::Usage => SupervisorReply::Usage(self.tree.usage()),
            ClientRequest::Freeze | ClientRequest::Thaw | ClientRequest::ChangeLimits(_) => {
                match self.change(place, &ask) {
                    Ok(()) => return,
                    Err(refusal) => SupervisorReply::Refused(refusal),
                }
            }
            ClientRequest::Executions => {
                document(&self.executions.all.values().map(Execution::info).collect::<Vec<_>>())
            }
            ClientRequest::Extend { life_ms, idle_ms } => {
                if let Some(life) = life_ms {
                    let ends = (life < u64::MAX).then(|| Instant::now().checked_add(Duration::from_millis(life)));
                    self.life.expires = ends.flatten();
                }
                if let Some(idle) = idle_ms {
                    self.info.idle = (idle < u64::MAX).then(|| Duration::from_millis(idle));
                }
                SupervisorReply::Done { bytes: 0 }
            }
            ClientRequest::TieToConnection => {
                self.clients.owner = Some(place.0);
                (self.info.idle, self.life.expires) = (None, None);
                SupervisorReply::Done { bytes: 0 }
            }
            ClientRequest::Stop => {
                if self.clients.all.get(&place.0).is_some_and(|client| client.late) {
                    self.greet(place.0);
                }
                self.clients.stopping.push(place);
                self.end.get_or_insert(End::Stopped);
                return self.remember(place, ClientStream::Waiting);
            }
            ClientRequest::KeepInUse => return self.remember(place, ClientStream::Holding),
            ClientRequest::Environment { variables } => return self.introduced(place.0, variables),
            request @ (ClientRequest::ReadFile { .. }
            | ClientRequest::WriteFile { .. }
            | ClientRequest::ListDirectory { .. }
            | ClientRequest::Stat { .. }
            | ClientRequest::MakeDirectory { .. }
            | ClientRequest::Move { .. }
            | ClientRequest::Remove { .. }
            | ClientRequest::Watch { .. }
            | ClientRequest::ConnectPort { .. }) => match self.ask_guest(place, request, pipes) {
                Ok(stream) => return self.remember(place, ClientStream::Guest(stream)),
                Err(refusal) => SupervisorReply::Refused(refusal),
            },
        };
        self.clients.answer(place, &answer);
    }

    /// By their paths inside.
    fn placeholders(&self) -> Vec<Placeholder> {
        let Info { workdir, workdir_inside, .. } = &self.info;
        // An empty directory looks like one; what commands work in is none.
        let stubs = self.plan.stubs.iter().filter(|stub| !workdir.starts_with(&stub.path));
        let inside = |path: &Path| match path.strip_prefix(workdir) {
            Ok(below) => workdir_inside.join(below),
            Err(_) => path.to_path_buf(),
        };
        stubs.map(|stub| Placeholder { path: inside(&stub.path), length: stub.text.len() as u64 }).collect()
    }

    pub(super) fn remember(&mut self, place: (u64, u32), stream: ClientStream) {
        if let Some(client) = self.clients.all.get_mut(&place.0) {
            client.streams.insert(place.1, stream);
        }
    }

    fn follow(&mut self, place: (u64, u32), id: u64, position: [u64; 2]) {
        let follower = Follower { id, position, credit: [WINDOW; 2], window: WINDOW };
        self.remember(place, ClientStream::Attached(follower));
    }

    /// Why a command is not even tried.
    fn refuses(&self, ask: &ExecRequest) -> Option<Refusal> {
        let asked = ask.timeout_ms.map(Duration::from_millis);
        if let (Some(asked), Some(ceiling)) = (asked, self.plan.limits.timeout_ceiling)
            && asked > ceiling
        {
            return Some(Refusal::TimeoutAboveCeiling { ceiling_ms: ceiling.as_millis() as u64 });
        }
        if self.guest.streams.len() >= MOST_STREAMS {
            return Some(Refusal::TooMany);
        }
        if self.tree.frozen.is_some() {
            return Some(Refusal::Frozen);
        }
        if ask.context.as_ref().is_some_and(|context| context.len() > 256) {
            return Some(Refusal::BadRequest);
        }
        let well_formed = |text: &Vec<u8>| !text.contains(&0);
        let names = |entry: &Vec<u8>| entry.iter().position(|b| *b == b'=').is_some_and(|at| at > 0);
        if ask.argv.first().is_none_or(Vec::is_empty)
            || !ask.argv.iter().chain(&ask.env).chain(&ask.cwd).all(well_formed)
            || !ask.env.iter().all(names)
        {
            return Some(Refusal::BadRequest);
        }
        None
    }

    fn exec(&mut self, place: (u64, u32), mut ask: ExecRequest, mut pipes: Vec<OwnedFd>) -> Result<(), Refusal> {
        let limits = &self.plan.limits;
        let asked = ask.timeout_ms.map(Duration::from_millis);
        // Somebody sits at a terminal: it ends with the session.
        let timeout = asked.or(limits.timeout.filter(|_| ask.terminal.is_none()));
        self.executions.count += 1;
        let id = self.executions.count;
        // What is to be recorded is not left to what a client says: it comes through here, and the pipes stay empty.
        if ask.background || ask.terminal.is_some() || self.records_output() || !self.guest.takes_pipes() {
            pipes.clear();
        }
        let request = Exec {
            env: self.environment(&ask.env),
            cwd: self.inside(ask.cwd.as_deref().unwrap_or_default()),
            terminal: ask.terminal,
            stdin: ask.stdin,
            piped: !pipes.is_empty(),
            argv: ask.argv.clone(),
        };
        let output = limits.output;
        let mut execution = Execution::new(id, 0, &ask.argv, ask.background, output);
        execution.clock = Clock::Runs(timeout.and_then(|timeout| execution.started.checked_add(timeout)));
        execution.terminal = request.terminal.is_some();
        execution.context = ask.context.take();
        execution.told = (!pipes.is_empty()).then_some(false);
        execution.input.wanted = request.stdin;
        (execution.kills_before, execution.refused_before) = (self.tree.kills, self.tree.refused);
        if limits.cpu_time.is_some() {
            execution.time_before = self.tree.time_now();
        }
        for other in self.executions.all.values_mut().filter(|other| other.finished.is_none()) {
            (other.alone, execution.alone) = (false, false);
        }
        let request = Request::Exec(request);
        let ticket = self.record(&mut execution, &ask, place.0)?;
        let (strict, recorded) = (self.records_strictly(), ticket.is_some());
        if recorded && strict {
            execution.recording = Recording::Before(Box::new((request, pipes)));
            self.worker.give(Job::Begin { execution: id, ticket, strict });
        } else {
            let opened = self.guest.open(To::Execution(id), &request, pipes);
            self.tree.make_room(&self.plan.limits, self.guest.commands());
            // Its record is written while the guest begins. Were this process killed in between, the command would end with it.
            self.flush_guest();
            // How many there were is written again with the next one.
            if recorded || !self.worker.is_full() {
                self.worker.give(Job::Begin { execution: id, ticket, strict });
            }
            match opened {
                Ok(stream) => execution.stream = stream,
                Err(refusal) => {
                    if let Refusal::Failed { step, errno } = refusal {
                        self.record_unstarted(&mut execution, &not_started(step, errno));
                    }
                    return Err(refusal);
                }
            }
            if recorded {
                execution.recording = Recording::During;
            }
        }
        if ask.background {
            execution.attached.push(place);
            self.follow(place, id, [0; 2]);
        } else {
            execution.owner = Some(place);
            self.remember(place, ClientStream::Execution { id, window: WINDOW });
        }
        self.executions.all.insert(id, execution);
        Ok(())
    }

    /// The session's environment with these entries on top.
    fn environment(&self, more: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let name = |entry: &[u8]| entry.split(|b| *b == b'=').next().map(<[u8]>::to_vec);
        let mut all: Vec<Vec<u8>> = Vec::with_capacity(self.plan.env.len() + more.len());
        for (key, value) in &self.plan.env {
            if more.iter().all(|entry| name(entry).as_deref() != Some(key.as_bytes())) {
                all.push([key.as_bytes(), b"=", value.as_bytes()].concat());
            }
        }
        for (index, entry) in more.iter().enumerate() {
            // Said twice, the last counts.
            if more[index + 1..].iter().all(|later| name(later) != name(entry)) {
                all.push(entry.clone());
            }
        }
        all
    }

    /// A path inside: a relative one is below the working directory.
    fn inside(&self, path: &[u8]) -> Vec<u8> {
        let workdir = self.plan.workdir.as_os_str().as_bytes();
        match path {
            [] => workdir.to_vec(),
            [b'/', ..] => path.to_vec(),
            _ => [workdir, b"/", path].concat(),
        }
    }

    /// What a client asks of files and ports, put to the guest. Its stream there.
    fn ask_guest(&mut self, place: (u64, u32), request: ClientRequest, pipes: Vec<OwnedFd>) -> Result<u32, Refusal> {
        if self.guest.streams.len() >= MOST_STREAMS {
            return Err(Refusal::TooMany);
        }
        if !pipes.is_empty() && !self.guest.takes_pipes() {
            return Err(Refusal::UnknownRequest);
        }
        if self.tree.frozen.is_some() {
            return Err(Refusal::Frozen);
        }
        let at = |path: Vec<u8>| self.inside(&path);
        let request = match request {
            ClientRequest::ReadFile { path, offset, length, piped } => {
                Request::Read { path: at(path), offset, length, piped }
            }
            ClientRequest::WriteFile { path, permissions, parents, mode, piped } => {
                Request::Write(Write { path: at(path), mode: permissions, parents, how: mode, piped })
            }
            ClientRequest::ListDirectory { path, depth } => Request::List { path: at(path), depth },
            ClientRequest::Stat { path } => Request::Stat { path: at(path) },
            ClientRequest::MakeDirectory { path, permissions, parents } => {
                Request::MakeDirectory { path: at(path), mode: permissions, parents }
            }
            ClientRequest::Move { from, to, replace } => Request::Move { from: at(from), to: at(to), replace },
            ClientRequest::Remove { path, recursive } => Request::Remove { path: at(path), recursive },
            ClientRequest::Watch { path, recursive } => Request::Watch { path: at(path), recursive },
            ClientRequest::ConnectPort { port } => Request::Connect { port },
            _ => return Err(Refusal::BadRequest),
        };
        self.guest.open(To::Client(place), &request, pipes)
    }
}
