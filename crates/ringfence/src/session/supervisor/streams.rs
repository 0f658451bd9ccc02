//! Streams between clients and the guest: who they belong to, and what either side may still send.

use ringfence_guest::frame::{Channel, Kind, WINDOW};
use ringfence_guest::message::Request;

use super::super::protocol::SupervisorReply;
use super::Supervisor;
use super::client::ClientStream;
use super::executions::{Execution, Place};

/// Nobody grants more than this ahead.
const MOST_AHEAD: u32 = 16 * WINDOW;

/// An open stream of the guest.
#[derive(Debug)]
pub struct Stream {
    pub to: To,
    /// The guest said that it stands.
    pub started: bool,
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
        Stream { to, started: false, granted: [WINDOW; 2], takes, takes_started }
    }
}

/// Adds to a grant; `None` when that is more than anybody needs.
pub fn add(grant: u32, more: u32) -> Option<u32> {
    grant.checked_add(more).filter(|sum| *sum <= MOST_AHEAD)
}

impl Supervisor {
    /// What an execution wrote: to whoever waits for it, and into what is kept.
    pub(super) fn output(&mut self, id: u64, channel: Channel, bytes: &[u8]) {
        let Some(execution) = self.executions.all.get_mut(&id) else { return };
        let index = Execution::log_of(channel);
        execution.log[index].push(bytes);
        let stream = execution.stream;
        match execution.owner {
            Some(owner) if execution.announced => self.clients.put(owner, Kind::Data(channel), bytes),
            Some(_) => execution.held.push((channel, bytes.to_vec())),
            None => {
                execution.owed[index] += bytes.len() as u32;
                // A context waits for whoever called it: none of a result may be lost.
                let called = execution.context.is_some() && !execution.attached.is_empty();
                if execution.owed[index] >= WINDOW / 4 && !called {
                    let owed = std::mem::take(&mut execution.owed[index]);
                    self.guest.grant(stream, channel, owed);
                }
            }
        }
        self.feed_all(id);
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
        let Some(client) = self.clients.all.get_mut(&place.0) else { return };
        if client.is_full() {
            // The log keeps it until then.
            client.starved = true;
            return;
        }
        let Some(ClientStream::Attached(follower)) = client.streams.get_mut(&place.1) else { return };
        if !execution.announced {
            return;
        }
        let mut complete = true;
        for (index, channel) in [Channel::Out, Channel::Err].into_iter().enumerate() {
            let log = &execution.log[index];
            while follower.credit[index] > 0 {
                let (skipped, bytes) = log.at(follower.position[index]);
                if skipped > 0 {
                    let answer = SupervisorReply::OutputSkipped { stderr: channel == Channel::Err, bytes: skipped };
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
        self.clients.dirty.push(place.0);
        if settled {
            self.settle(id);
        }
        if let Some(finished) = finished {
            self.detach(place, id);
            self.clients.answer_last(place, &SupervisorReply::ExecutionEnded(finished));
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
                self.guest.grant(stream, channel, bytes);
            }
        }
    }

    /// Passes on what waits for an execution's standard input, as far as the guest takes it.
    pub(super) fn pump_input(&mut self, id: u64) {
        let Some(execution) = self.executions.all.get_mut(&id).filter(|e| e.runs()) else { return };
        let (input, stream) = (&mut execution.input, execution.stream);
        while input.credit > 0
            && let Some((place, bytes)) = input.queue.front_mut()
        {
            let n = bytes.len().min(input.credit as usize);
            self.guest.wire.put(stream, Kind::Data(Channel::In), &bytes[..n]);
            input.credit -= n as u32;
            let (client, at) = *place;
            if n == bytes.len() {
                input.queue.pop_front();
            } else {
                bytes.drain(..n);
            }
            if let Some(client) = self.clients.all.get_mut(&client)
                && let Some(window) = client.streams.get_mut(&at).and_then(ClientStream::window)
            {
                *window += n as u32;
                client.wire.put(at, Kind::Credit(Channel::In), &(n as u32).to_le_bytes());
            }
            self.clients.dirty.push(client);
        }
        if input.ending && !input.ended && input.queue.is_empty() {
            input.ended = true;
            self.guest.wire.put(stream, Kind::Eof(Channel::In), &[]);
        }
    }
}
