//! Streams between clients and the guest: who they belong to, and what either side may still send.

use std::os::fd::OwnedFd;

use ringfence_guest::frame::{Channel, Kind, WINDOW};
use ringfence_guest::message::{Input as GuestInput, Request, Step};

use super::super::info::End;
use super::super::protocol::{Answer, Finished, Refusal};
use super::Supervisor;
use super::client::ClientStream;
use super::executions::{Execution, Place};
use crate::engines::GUEST_PROCESSES;
use crate::supervise::Reason;

/// Nobody grants more than this ahead.
const MOST_AHEAD: u32 = 16 * WINDOW;

/// An open stream of the guest.
#[derive(Debug)]
pub struct Stream {
    pub to: To,
    /// What the guest may still send, on `Out` and `Err`.
    pub granted: [u32; 2],
    /// What it takes on `In`, where a client's bytes are passed on as they come; `None` when it takes none, or no more.
    pub takes: Option<u32>,
    /// What it takes on `In` once it has started: a connection has nowhere to put what comes before.
    pub takes_started: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    Execution(u64),
    Client(Place),
}

impl Stream {
    pub fn new(to: To, request: &Request) -> Stream {
        let takes = match request {
            // Its contents come through the pipe; only their end is told here.
            Request::Write(write) => Some(if write.piped { 0 } else { WINDOW }),
            _ => None,
        };
        let takes_started = matches!(request, Request::Connect { .. }).then_some(WINDOW);
        Stream { to, granted: [WINDOW; 2], takes, takes_started }
    }
}

/// Adds to a grant; `None` when that is more than anybody needs.
pub fn add(grant: u32, more: u32) -> Option<u32> {
    grant.checked_add(more).filter(|sum| *sum <= MOST_AHEAD)
}

impl Supervisor {
    /// Opens a stream of the guest. A request that a client just could send may be too long with the session's own added.
    pub(super) fn open(&mut self, to: To, request: &Request, pipes: Vec<OwnedFd>) -> Result<u32, Refusal> {
        let stream = self.fresh_stream();
        if self.guest.message_with(stream, Kind::Open, request, pipes).is_err() {
            let step = if matches!(request, Request::Exec(_)) { Step::Execute } else { Step::Refuse };
            return Err(Refusal::Failed { step, errno: libc::E2BIG });
        }
        self.streams.insert(stream, Stream::new(to, request));
        Ok(stream)
    }

    pub(super) fn fresh_stream(&mut self) -> u32 {
        let stream = self.next_stream;
        // Four thousand million of them: a session does not live that long.
        self.next_stream = self.next_stream.wrapping_add(1).max(1);
        stream
    }

    /// The guest has a process of its own for each command, which must not count against the caller.
    pub(super) fn make_room(&mut self) {
        let commands = self.streams.values().filter(|open| matches!(open.to, To::Execution(_))).count() as u64;
        let commands = commands.max(GUEST_PROCESSES);
        if let (true, Some(running)) = (commands != self.room, &self.running) {
            self.room = commands;
            // Without it there is less room than there should be, and a command that finds none says so.
            let _ = running.make_room(commands);
        }
    }

    /// Forgets a stream that its client does not want any more.
    pub(super) fn close(&mut self, stream: u32) {
        if let Some(closed) = self.streams.remove(&stream) {
            self.stale += closed.granted.iter().map(|n| u64::from(*n)).sum::<u64>() + (1 << 20);
            self.guest.put(stream, Kind::Close, &[]);
        }
    }

    pub(super) fn answer(&mut self, (client, stream): Place, answer: &Answer) {
        if let Some(client) = self.clients.get_mut(&client) {
            // Far below the bound: a reply of the guest's, or what this process keeps, which is bounded itself.
            let _ = client.wire.message(stream, Kind::Reply, answer);
        }
        self.dirty.push(client);
    }

    /// The last answer on a client's stream.
    pub(super) fn answer_last(&mut self, place: Place, answer: &Answer) {
        self.answer(place, answer);
        if let Some(client) = self.clients.get_mut(&place.0) {
            client.streams.remove(&place.1);
        }
    }

    pub(super) fn signal(&mut self, id: u64, signal: i32, tree: bool) {
        if let Some(execution) = self.executions.all.get(&id).filter(|e| e.finished.is_none()) {
            // Two numbers.
            let _ = self.guest.message(execution.stream, Kind::Input, &GuestInput::Signal { signal, tree });
        }
    }

    /// TERM for everything that descends from it. A stopped tree would not see it without the CONT.
    pub(super) fn ask_to_end(&mut self, id: u64) {
        self.signal(id, libc::SIGTERM, true);
        self.signal(id, libc::SIGCONT, true);
    }

    /// Grants the guest more of an execution's output.
    pub(super) fn grant(&mut self, stream: u32, channel: Channel, bytes: u32) {
        if let Some(open) = self.streams.get_mut(&stream)
            && let Some(sum) = add(open.granted[Execution::log_of(channel)], bytes)
        {
            open.granted[Execution::log_of(channel)] = sum;
            self.guest.put(stream, Kind::Credit(channel), &bytes.to_le_bytes());
        }
    }

    /// What an execution wrote: to whoever waits for it, and into what is kept.
    pub(super) fn output(&mut self, id: u64, channel: Channel, bytes: &[u8]) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        let index = Execution::log_of(channel);
        execution.log[index].push(bytes);
        let stream = execution.stream;
        match execution.owner {
            Some((client, at)) => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.wire.put(at, Kind::Data(channel), bytes);
                }
                self.dirty.push(client);
            }
            None => {
                execution.owed[index] += bytes.len() as u32;
                // A context waits for whoever called it: none of a result may be lost.
                let called = execution.context.is_some() && !execution.attached.is_empty();
                if execution.owed[index] >= WINDOW / 4 && !called {
                    let owed = std::mem::take(&mut execution.owed[index]);
                    self.grant(stream, channel, owed);
                }
            }
        }
        self.feed_all(id);
    }

    /// The one who waited in the foreground is gone: the command is ended, and what it writes meanwhile is taken.
    pub(super) fn disown(&mut self, id: u64) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        execution.owner = None;
        if execution.finished.is_some() {
            // It had only to say what came of its pipes.
            self.feed_all(id);
            self.ended.push(id);
            return;
        }
        let stream = execution.stream;
        if execution.ask_to_end(Reason::Cancelled, std::time::Instant::now()) {
            self.ask_to_end(id);
        }
        for channel in [Channel::Out, Channel::Err] {
            let granted = self.streams.get(&stream).map_or(WINDOW, |open| open.granted[Execution::log_of(channel)]);
            if granted < WINDOW {
                self.grant(stream, channel, WINDOW - granted);
            }
        }
    }

    /// Sends followers what they have not seen, as far as they take it.
    pub(super) fn feed_all(&mut self, id: u64) {
        let Some(execution) = self.executions.all.get(&id) else { return };
        if execution.attached.is_empty() {
            return;
        }
        for place in execution.attached.clone() {
            self.feed(place, id);
        }
    }

    pub(super) fn feed(&mut self, place: Place, id: u64) {
        let Some(execution) = self.executions.all.get(&id) else { return };
        let Some(client) = self.clients.get_mut(&place.0) else { return };
        let Some(ClientStream::Attached(follower)) = client.streams.get_mut(&place.1) else { return };
        if !execution.begun {
            return;
        }
        let mut complete = true;
        for (index, channel) in [Channel::Out, Channel::Err].into_iter().enumerate() {
            let log = &execution.log[index];
            while follower.credit[index] > 0 {
                let (skipped, bytes) = log.at(follower.position[index]);
                if skipped > 0 {
                    let answer = Answer::Skipped { stderr: channel == Channel::Err, bytes: skipped };
                    // Two numbers.
                    let _ = client.wire.message(place.1, Kind::Reply, &answer);
                    follower.position[index] += skipped;
                }
                let bytes = &bytes[..bytes.len().min(follower.credit[index] as usize).min(32 * 1024)];
                if bytes.is_empty() {
                    break;
                }
                client.wire.put(place.1, Kind::Data(channel), bytes);
                follower.position[index] += bytes.len() as u64;
                follower.credit[index] -= bytes.len() as u32;
            }
            complete &= follower.position[index] == log.total();
        }
        // Its client may have more to tell.
        let finished = execution.finished.filter(|_| complete && execution.owner.is_none());
        let settled = complete && execution.context.is_some();
        self.dirty.push(place.0);
        if settled {
            self.settle(id);
        }
        if let Some(finished) = finished {
            self.detach(place, id);
            self.answer_last(place, &Answer::Ended(finished));
        }
    }

    /// Nobody follows from here any more.
    pub(super) fn detach(&mut self, place: Place, id: u64) {
        if let Some(execution) = self.executions.all.get_mut(&id) {
            execution.attached.retain(|other| *other != place);
            if execution.context.is_some() {
                self.settle(id);
            }
        }
    }

    /// Grants what a context wrote and its caller has taken.
    fn settle(&mut self, id: u64) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        let (stream, owed) = (execution.stream, std::mem::take(&mut execution.owed));
        for (channel, bytes) in [Channel::Out, Channel::Err].into_iter().zip(owed) {
            if bytes > 0 {
                self.grant(stream, channel, bytes);
            }
        }
    }

    /// Passes on what waits for an execution's standard input, as far as the guest takes it.
    pub(super) fn pump_input(&mut self, id: u64) {
        let Some(execution) = self.executions.all.get_mut(&id).filter(|e| e.finished.is_none()) else { return };
        let (input, stream) = (&mut execution.input, execution.stream);
        while input.credit > 0
            && let Some((place, bytes)) = input.queue.front_mut()
        {
            let n = bytes.len().min(input.credit as usize);
            self.guest.put(stream, Kind::Data(Channel::In), &bytes[..n]);
            input.credit -= n as u32;
            let (client, at) = *place;
            if n == bytes.len() {
                input.queue.pop_front();
            } else {
                bytes.drain(..n);
            }
            if let Some(client) = self.clients.get_mut(&client)
                && let Some(window) = client.streams.get_mut(&at).and_then(ClientStream::window)
            {
                *window += n as u32;
                client.wire.put(at, Kind::Credit(Channel::In), &(n as u32).to_le_bytes());
            }
            self.dirty.push(client);
        }
        if input.ending && !input.ended && input.queue.is_empty() {
            input.ended = true;
            self.guest.put(stream, Kind::Eof(Channel::In), &[]);
        }
    }

    /// It has ended.
    pub(super) fn finished(&mut self, id: u64, mut finished: Finished) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        finished.reason = execution.reason.or(finished.reason);
        execution.finished = Some(finished);
        // It may have left something.
        self.deserted = false;
        execution.input.queue.clear();
        self.streams.remove(&execution.stream);
        self.used = std::time::Instant::now();
        match execution.owner {
            // It tells what came of its pipes, and closes the stream then.
            Some(owner) if execution.told.is_some() => return self.answer(owner, &Answer::Ended(finished)),
            Some(owner) => {
                execution.owner = None;
                self.answer_last(owner, &Answer::Ended(finished));
            }
            None => {}
        }
        self.feed_all(id);
        self.ended.push(id);
    }

    /// The session has ended: so has everything in it.
    pub(super) fn end_streams(&mut self, end: End) {
        let running: Vec<u64> = self.executions.running().map(|e| e.id).collect();
        for id in running {
            let Some(execution) = self.executions.all.get_mut(&id) else { continue };
            let duration_us = execution.started.elapsed().as_micros() as u64;
            execution.reason.get_or_insert(Reason::Lost);
            if !std::mem::replace(&mut execution.begun, true) {
                // It may have run; its guest cannot be asked any more.
                let begun = Answer::Begun { id, record: execution.record.clone(), trouble: execution.trouble.take() };
                let waiting: Vec<Place> = execution.owner.iter().chain(&execution.attached).copied().collect();
                for place in waiting {
                    self.answer(place, &begun);
                }
            }
            self.finished(id, Finished { status: libc::SIGKILL, reason: None, duration_us, cpu_us: 0, peak_memory: 0 });
        }
        let others: Vec<Place> = self
            .streams
            .values()
            .filter_map(|stream| match stream.to {
                To::Client(place) => Some(place),
                To::Execution(_) => None,
            })
            .collect();
        for place in others {
            self.answer_last(place, &Answer::Refused(Refusal::Ended(end)));
        }
        for place in std::mem::take(&mut self.stopping) {
            self.answer_last(place, &Answer::Done);
        }
    }
}
