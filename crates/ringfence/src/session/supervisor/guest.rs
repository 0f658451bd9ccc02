//! The guest's side: every frame is hostile until it is checked.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ringfence_guest::frame::{self, Agreed, Channel, Decoder, Frame, FrameError, Greeting, Kind};
use ringfence_guest::message::{self, FIRST_HOST_STREAM, HostRequest, Input, Reply, Request, Step};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::super::info::End;
use super::super::protocol::{ExecutionEnd, Refusal, SupervisorReply};
use super::executions::{Execution, Recording};
use super::record::not_started;
use super::streams::{Stream, To, add};
use super::wire::{Read, Wire};
use super::{SuperviseError, Supervisor};
use crate::engines::Abilities;
use crate::supervise::Reason;

/// The guest broke the protocol.
struct Unruly;

/// Without a byte taken for so long while bytes wait, the guest has stalled.
const STALLED: Duration = Duration::from_secs(30);
/// One that owes a word, and has been silent for so long, is asked whether it is there.
const PING: Duration = Duration::from_secs(5);
/// So much may wait for the guest before clients are not read any more.
const HIGH: usize = 8 << 20;
/// The guest may have so many streams open towards the host.
const MOST_HOST_STREAMS: usize = 16;

/// The connection to the guest: its streams, and whether it still answers.
#[derive(Debug)]
pub struct GuestLink {
    pub wire: Wire,
    agreed: Agreed,
    /// Open streams.
    pub streams: HashMap<u32, Stream>,
    next_stream: u32,
    /// Bytes that may still come on streams that were closed.
    stale: u64,
    /// Since when it has taken nothing of what waits, and how much that was.
    waits_since: Option<(Instant, usize)>,
    /// When it was last heard.
    heard: Instant,
    /// When it was told something after that.
    told: Option<Instant>,
    /// The stream on which it was asked whether it is there, and since when.
    ping: Option<(u32, Instant)>,
    /// Streams that the guest opened and whose answers it has yet to take.
    host_streams: Vec<u32>,
}

impl GuestLink {
    pub fn new(wire: Wire, agreed: Agreed) -> GuestLink {
        let heard = Instant::now();
        let mut link = GuestLink {
            wire,
            agreed,
            streams: HashMap::new(),
            next_stream: 1,
            stale: 0,
            waits_since: None,
            heard,
            told: None,
            ping: None,
            host_streams: Vec::new(),
        };
        if agreed.features & message::HOST_STREAMS != 0 {
            link.grant_host_streams(MOST_HOST_STREAMS);
        }
        link
    }

    fn grant_host_streams(&mut self, more: usize) {
        // A few bytes are never too long.
        let _ = self.wire.message(0, Kind::Input, &Input::HostStreams { more: more as u32 });
    }

    /// The guest opens a stream towards the host.
    fn host_stream(&mut self, frame: &Frame<'_>) -> Result<(), Unruly> {
        let granted = self.agreed.features & message::HOST_STREAMS != 0 && self.host_streams.len() < MOST_HOST_STREAMS;
        if frame.kind != Kind::Open || !granted || self.host_streams.contains(&frame.stream) {
            return Err(Unruly);
        }
        match frame.message::<HostRequest>() {
            Ok(target) => match target {},
            Err(FrameError::Unknown { .. }) => {}
            Err(_) => return Err(Unruly),
        }
        self.host_streams.push(frame.stream);
        self.wire.message(frame.stream, Kind::Reply, &Reply::Unsupported).map_err(|_| Unruly)
    }

    /// Opens a stream. A request that a client just could send may be too long with the session's own added.
    pub fn open(&mut self, to: To, request: &Request, pipes: Vec<OwnedFd>) -> Result<u32, Refusal> {
        let stream = self.fresh_stream();
        if self.wire.message_with(stream, Kind::Open, request, pipes).is_err() {
            let step = if matches!(request, Request::Exec(_)) { Step::Execute } else { Step::Refuse };
            return Err(Refusal::Failed { step, errno: libc::E2BIG });
        }
        self.streams.insert(stream, Stream::new(to, request));
        Ok(stream)
    }

    /// Whether pipes that come with a request reach it.
    pub fn takes_pipes(&self) -> bool {
        self.agreed.features & message::PIPES != 0
    }

    fn fresh_stream(&mut self) -> u32 {
        let stream = self.next_stream;
        // Two thousand million of them: a session does not live that long.
        self.next_stream = ((stream + 1) % FIRST_HOST_STREAM).max(1);
        stream
    }

    /// Forgets a stream that its client does not want any more.
    pub fn close(&mut self, stream: u32) {
        if let Some(closed) = self.streams.remove(&stream) {
            self.stale += closed.granted.iter().map(|n| u64::from(*n)).sum::<u64>() + (1 << 20);
            self.wire.put(stream, Kind::Close, &[]);
        }
    }

    /// Lets the guest send more of an execution's output.
    pub fn grant(&mut self, stream: u32, channel: Channel, bytes: u32) {
        if let Some(open) = self.streams.get_mut(&stream)
            && let Some(sum) = add(open.granted[Execution::log_of(channel)], bytes)
        {
            open.granted[Execution::log_of(channel)] = sum;
            self.wire.put(stream, Kind::Credit(channel), &bytes.to_le_bytes());
        }
    }

    /// Writes what it takes. An error: it is gone.
    pub fn flush(&mut self) -> Result<(), Errno> {
        if self.wire.pending() == 0 {
            return Ok(());
        }
        let waited = self.wire.pending();
        let mut flushed = self.wire.flush();
        // A grant of streams is not answered.
        if self.wire.pending() < waited && !self.streams.is_empty() {
            self.told.get_or_insert_with(Instant::now);
        }
        if self.wire.pending() == 0 && !self.host_streams.is_empty() {
            // The guest took the answers. Granted again only now, so that answers which wait for it stay few.
            let ended = self.host_streams.drain(..).len();
            self.waits_since = None;
            self.grant_host_streams(ended);
            flushed = flushed.and_then(|()| self.wire.flush());
        }
        self.waits_since = match (self.wire.pending(), self.waits_since) {
            (0, _) => None,
            (left, Some((since, then))) if left >= then => Some((since, left)),
            (left, _) => Some((Instant::now(), left)),
        };
        flushed
    }

    /// How many commands run in it, or are about to.
    pub fn commands(&self) -> u64 {
        self.streams.values().filter(|open| matches!(open.to, To::Execution(_))).count() as u64
    }

    /// Whether so much waits for it that clients must wait, too.
    pub fn is_full(&self) -> bool {
        self.wire.pending() > HIGH
    }

    /// When it is asked whether it is there: it has something to say, an answer or that it took what it was told. A command that
    /// runs, a watch and a connection may be silent for as long as they like.
    fn next_ping(&self) -> Option<Instant> {
        let waits = self.streams.values().any(|open| !open.started).then_some(self.heard);
        self.told.or(waits).map(|since| since + PING)
    }

    /// When it must be looked at.
    pub fn next(&self) -> Option<Instant> {
        let stalled = self.waits_since.map(|(since, _)| since + STALLED);
        let ping = match self.ping {
            Some((_, since)) => Some(since.max(self.heard) + STALLED),
            None => self.next_ping(),
        };
        stalled.into_iter().chain(ping).min()
    }

    /// It has said something.
    fn spoke(&mut self) {
        (self.heard, self.told) = (Instant::now(), None);
    }

    /// It could not be heard until now.
    pub fn woke(&mut self, now: Instant) {
        self.heard = now;
        self.told = self.told.map(|_| now);
        if let Some((since, _)) = &mut self.waits_since {
            *since = now;
        }
    }

    /// Asks one that owes a word whether it is there. True: it has stalled.
    pub fn look(&mut self, now: Instant) -> bool {
        match self.ping {
            // Whatever it says, it is there: an answer may stand behind much else.
            Some((_, since)) if now >= since.max(self.heard) + STALLED => return true,
            None if self.next_ping().is_some_and(|at| now >= at) => {
                let stream = self.fresh_stream();
                // One byte.
                let _ = self.wire.message(stream, Kind::Open, &Request::Ping);
                self.ping = Some((stream, now));
            }
            _ => {}
        }
        self.waits_since.is_some_and(|(since, _)| now >= since + STALLED)
    }
}

/// The guest has spoken: what both sides can do, and what is between them. Returns the buffer that it was read with, too.
pub fn hello(guest: &mut Wire, can: Abilities) -> Result<(Agreed, Vec<u8>), SuperviseError> {
    let mut buffer = Vec::new();
    let spoken = guest.read(&mut buffer);
    match guest.decoder.next_frame() {
        Ok(Some(frame)) if (frame.stream, frame.kind) == (0, Kind::Reply) => match frame.message::<Greeting>() {
            Ok(theirs) => match message::GREETING.meet(theirs) {
                Ok(Agreed { version, features }) => {
                    let lacks = if can.descriptors { 0 } else { message::PIPES };
                    Ok((Agreed { version, features: features & !lacks }, buffer))
                }
                Err(other) => Err(SuperviseError::Hello(format!("{other}: use the guest of this release"))),
            },
            Err(error) => Err(SuperviseError::Hello(error.to_string())),
        },
        _ if spoken == Ok(Read::End) => Err(SuperviseError::Hello("it ended".to_owned())),
        _ => Err(SuperviseError::Hello("it speaks something else".to_owned())),
    }
}

impl Supervisor {
    pub(super) fn guest_ready(&mut self, flags: EventFlags) {
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        match self.guest.wire.read(&mut self.buffer) {
            Ok(Read::Bytes(_)) => {
                self.guest.spoke();
                let mut decoder = std::mem::replace(&mut self.guest.wire.decoder, Decoder::new(0));
                if self.guest_frames(&mut decoder).is_err() {
                    self.end.get_or_insert(End::Unruly);
                }
                self.guest.wire.decoder = decoder;
            }
            Ok(Read::Nothing) => {}
            Ok(Read::End) | Err(_) => {
                self.end.get_or_insert(End::Died);
            }
        }
    }

    fn guest_frames(&mut self, decoder: &mut Decoder) -> Result<(), Unruly> {
        while let Some(frame) = decoder.next_frame().map_err(|_| Unruly)? {
            self.guest_frame(&frame)?;
        }
        Ok(())
    }

    fn guest_frame(&mut self, frame: &Frame<'_>) -> Result<(), Unruly> {
        if frame.stream >= FIRST_HOST_STREAM {
            return self.guest.host_stream(frame);
        }
        let Some(stream) = self.guest.streams.get_mut(&frame.stream) else {
            if self.guest.ping.is_some_and(|(ping, _)| ping == frame.stream) {
                let answer = (frame.kind == Kind::Reply).then(|| frame.message::<Reply>().ok()).flatten();
                self.guest.ping = None;
                return if matches!(answer, Some(Reply::Done { .. })) { Ok(()) } else { Err(Unruly) };
            }
            // On its way when the stream was closed; more than it was granted then it cannot be.
            let known = frame.stream != 0 && frame.stream < self.guest.next_stream;
            let cost = (frame.payload.len() + frame::HEADER) as u64;
            self.guest.stale = self.guest.stale.checked_sub(cost).filter(|_| known).ok_or(Unruly)?;
            return Ok(());
        };
        let to = stream.to;
        match frame.kind {
            Kind::Data(channel @ (Channel::Out | Channel::Err)) => {
                let granted = &mut stream.granted[Execution::log_of(channel)];
                *granted = granted.checked_sub(frame.payload.len() as u32).ok_or(Unruly)?;
                match to {
                    To::Execution(id) => self.output(id, channel, frame.payload),
                    To::Client(place) => self.clients.put(place, frame.kind, frame.payload),
                }
            }
            Kind::Eof(Channel::Out | Channel::Err) => {
                if let To::Client(place) = to {
                    self.clients.put(place, frame.kind, &[]);
                }
            }
            Kind::Credit(Channel::In) => {
                let more = frame.credit().map_err(|_| Unruly)?;
                match to {
                    To::Execution(id) => {
                        let execution = self.executions.all.get_mut(&id).ok_or(Unruly)?;
                        execution.input.credit = add(execution.input.credit, more).ok_or(Unruly)?;
                        self.pump_input(id);
                    }
                    To::Client(place) => {
                        if let Some(takes) = &mut stream.takes {
                            *takes = add(*takes, more).ok_or(Unruly)?;
                        }
                        self.clients.put(place, frame.kind, frame.payload);
                    }
                }
            }
            Kind::Reply => {
                let reply = match frame.message::<Reply>() {
                    // A newer guest may say what is not known here. That ends this stream alone.
                    Err(FrameError::Unknown { .. }) => {
                        self.guest.close(frame.stream);
                        Reply::Unsupported
                    }
                    Ok(started @ Reply::Started { .. }) => {
                        stream.started = true;
                        stream.takes = stream.takes_started.take().or(stream.takes);
                        started
                    }
                    reply => reply.map_err(|_| Unruly)?,
                };
                match to {
                    To::Execution(id) => self.execution_reply(id, reply)?,
                    To::Client(place) => self.reply(frame.stream, place, reply)?,
                }
            }
            _ => return Err(Unruly),
        }
        Ok(())
    }

    fn reply(&mut self, stream: u32, place: (u64, u32), reply: Reply) -> Result<(), Unruly> {
        let client = self.clients.all.get_mut(&place.0);
        if let (Reply::Changed(_), Some(client)) = (&reply, client.filter(|client| client.lags())) {
            client.missed.insert(place.1);
            return Ok(());
        }
        let last = reply.is_last();
        let answer = match reply {
            Reply::Started { .. } => SupervisorReply::Ready,
            Reply::Entries(entries) => SupervisorReply::Entries(entries),
            Reply::Changed(changed) => SupervisorReply::Changed(changed),
            Reply::Done { bytes } => SupervisorReply::Done { bytes },
            Reply::Failed { step, errno } => SupervisorReply::Refused(Refusal::Failed { step, errno }),
            Reply::Unsupported => SupervisorReply::Refused(Refusal::UnknownRequest),
            Reply::Exited(_) => return Err(Unruly),
        };
        if last {
            self.guest.streams.remove(&stream);
            self.clients.answer_last(place, &answer);
            self.life.used = Instant::now();
        } else {
            self.clients.answer(place, &answer);
        }
        Ok(())
    }

    fn execution_reply(&mut self, id: u64, reply: Reply) -> Result<(), Unruly> {
        let execution = self.executions.all.get_mut(&id).ok_or(Unruly)?;
        let reply = match reply {
            Reply::Unsupported if !execution.begun => Reply::Failed { step: Step::Refuse, errno: libc::ENOSYS },
            reply => reply,
        };
        match reply {
            Reply::Started { .. } if !execution.begun => {
                execution.begun = true;
                if matches!(execution.recording, Recording::Settled) {
                    self.announce(id);
                }
            }
            Reply::Exited(exited) if execution.begun => {
                let duration = execution.started.elapsed();
                // The kernel's count, off the way of a command that did well.
                let (kills_before, refused_before) = (execution.kills_before, execution.refused_before);
                let alone = execution.alone;
                let reason = may_be_killed(exited.status, alone).then(|| self.tree.counts_now()).and_then(|counts| {
                    let (kills, refused) = counts;
                    let too_many = (refused > refused_before && alone).then_some(Reason::Processes);
                    if kills > kills_before { Some(Reason::Memory) } else { too_many }
                });
                self.tree.look_at_counts = true;
                let cpu_us = exited.user_micros.saturating_add(exited.system_micros);
                self.finished(
                    id,
                    ExecutionEnd {
                        status: exited.status,
                        reason,
                        duration_us: micros(duration),
                        cpu_us,
                        peak_memory: exited.peak_memory,
                    },
                );
            }
            // How it ended, nobody can say.
            Reply::Unsupported => {
                let (duration_us, status) = (micros(execution.started.elapsed()), libc::SIGKILL);
                let reason = Some(Reason::Lost);
                self.finished(id, ExecutionEnd { status, reason, duration_us, cpu_us: 0, peak_memory: 0 });
            }
            Reply::Failed { step, errno } if !execution.begun => {
                let Some(mut gone) = self.executions.all.remove(&id) else { return Ok(()) };
                self.guest.streams.remove(&gone.stream);
                self.record_unstarted(&mut gone, &not_started(step, errno));
                let answer = SupervisorReply::ExecutionFailed { execution: id, record: gone.record, step, errno };
                for place in gone.owner.into_iter().chain(gone.attached) {
                    self.clients.answer_last(place, &answer);
                }
            }
            _ => return Err(Unruly),
        }
        Ok(())
    }
}

/// Whether a kill in the box since a command began can be why it ended like this. Others that ran meanwhile may have been
/// meant, unless its own end says that it was one (137: a shell's child was).
fn may_be_killed(status: i32, alone: bool) -> bool {
    let killed = if libc::WIFSIGNALED(status) {
        libc::WTERMSIG(status) == libc::SIGKILL
    } else {
        libc::WEXITSTATUS(status) == 128 + libc::SIGKILL
    };
    killed || (alone && status != 0)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::may_be_killed;

    #[test]
    fn a_kill_is_not_anybodys() {
        let exited = |code: i32| code << 8;
        for (status, alone, expected) in [
            (0, true, false),
            (0, false, false),
            (exited(1), true, true),
            (exited(1), false, false),
            (exited(137), false, true),
            (libc::SIGKILL, false, true),
            (libc::SIGTERM, false, false),
            (libc::SIGTERM, true, true),
        ] {
            assert_eq!(may_be_killed(status, alone), expected, "{status:#x} {alone}");
        }
    }
}
