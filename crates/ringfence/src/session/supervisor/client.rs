//! One client of a session, and what it has open.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ringfence_guest::frame::{Kind, WINDOW};
use ringfence_guest::message::{Change, Changed};

use super::super::protocol::SupervisorReply;
use super::executions::Place;
use super::wire::Wire;
use crate::records::Caller;

/// Clients have numbers from here on; smaller ones are the supervisor's own.
pub const FIRST: u64 = 1 << 32;
/// One that has nothing open and asked for nothing for so long gives way when there are too many.
const QUIET: Duration = Duration::from_secs(60);
/// Changes of files are kept for a client while no more than this waits.
const MOST_CHANGES: usize = 256 << 10;
/// What may wait from a client for a guest that is frozen, beside the windows of its streams, once that has much already.
const MOST_HELD: usize = 1 << 20;
/// What may wait for a client beside the data that it granted.
const MOST_WAITING: usize = 16 << 20;
/// A client that has so much to read is not heard, and what it follows is not sent, until it has read.
const MOST_UNREAD: usize = 1 << 20;
/// Streams of one client at once.
const MOST_STREAMS: usize = 2048;

/// All clients, by number.
#[derive(Debug)]
pub struct Clients {
    pub all: HashMap<u64, Client>,
    pub next: u64,
    /// Clients with something to write.
    pub dirty: Vec<u64>,
    /// Streams of clients that asked for the end.
    pub stopping: Vec<Place>,
    /// The client that the session ends with.
    pub owner: Option<u64>,
    /// Clients are not read, since the guest does not take what they sent.
    pub paused: bool,
}

impl Default for Clients {
    fn default() -> Clients {
        let (all, dirty, stopping) = (HashMap::new(), Vec::new(), Vec::new());
        Clients { all, next: FIRST, dirty, stopping, owner: None, paused: false }
    }
}

impl Clients {
    /// Sends a frame, as far as its client is there.
    pub fn put(&mut self, (token, stream): Place, kind: Kind, payload: &[u8]) {
        if let Some(client) = self.all.get_mut(&token) {
            client.wire.put(stream, kind, payload);
            self.dirty.push(token);
        }
    }

    pub fn answer(&mut self, (token, stream): Place, answer: &SupervisorReply) {
        if let Some(client) = self.all.get_mut(&token) {
            // Far below the bound: a reply of the guest's, or what this process keeps, which is bounded itself.
            let _ = client.wire.message(stream, Kind::Reply, answer);
            self.dirty.push(token);
        }
    }

    /// The last answer on a stream.
    pub fn answer_last(&mut self, place: Place, answer: &SupervisorReply) {
        self.answer(place, answer);
        if let Some(client) = self.all.get_mut(&place.0) {
            client.streams.remove(&place.1);
        }
    }
}

#[derive(Debug)]
pub struct Client {
    pub wire: Wire,
    /// It has said which versions it speaks.
    pub greeted: bool,
    pub streams: HashMap<u32, ClientStream>,
    /// Streams have rising numbers: what comes for a smaller one that is not open is late.
    pub highest: u32,
    /// When it last said something.
    pub heard: Instant,
    /// For the records.
    pub caller: Caller,
    /// Its environment: what of it is secret is kept out of the records.
    pub variables: Vec<Vec<u8>>,
    /// Streams that missed changes of files, which it has yet to be told.
    pub missed: BTreeSet<u32>,
    /// It has just asked for what is not known.
    pub puzzles: bool,
    /// Bytes from it that wait for a guest that is frozen and has much already.
    pub held: usize,
    /// Some of what it sent was not handled, since it has to read first.
    pub deferred: bool,
    /// Something that it follows was not sent, since it has to read first.
    pub starved: bool,
    /// It came when all places were taken: until it has one it hears nothing, and may do nothing but end the session.
    pub late: bool,
}

#[derive(Debug)]
pub enum ClientStream {
    /// A stream of the guest's.
    Guest(u32),
    /// An execution in the foreground; what may be sent as its input.
    Execution {
        id: u64,
        window: u32,
    },
    Attached(Follower),
    /// Waits for one answer.
    Waiting,
    /// Keeps the session in use.
    Holding,
}

/// Somebody who follows an execution.
#[derive(Debug)]
pub struct Follower {
    pub id: u64,
    /// Up to where stdout and stderr were sent.
    pub position: [u64; 2],
    pub credit: [u32; 2],
    pub window: u32,
}

impl ClientStream {
    /// What may still be sent as input of an execution.
    pub fn window(&mut self) -> Option<&mut u32> {
        match self {
            ClientStream::Execution { window, .. } => Some(window),
            ClientStream::Attached(follower) => Some(&mut follower.window),
            ClientStream::Guest(_) | ClientStream::Waiting | ClientStream::Holding => None,
        }
    }

    pub fn execution(&self) -> Option<u64> {
        match self {
            ClientStream::Execution { id, .. } => Some(*id),
            ClientStream::Attached(follower) => Some(follower.id),
            ClientStream::Guest(_) | ClientStream::Waiting | ClientStream::Holding => None,
        }
    }
}

impl Client {
    pub fn new(wire: Wire, caller: Caller) -> Client {
        Client {
            wire,
            greeted: false,
            streams: HashMap::new(),
            highest: 0,
            heard: Instant::now(),
            caller,
            variables: Vec::new(),
            missed: BTreeSet::new(),
            puzzles: false,
            held: 0,
            deferred: false,
            starved: false,
            late: false,
        }
    }

    /// Whether it has to read before anything else is done for it.
    pub fn is_full(&self) -> bool {
        self.wire.pending() >= MOST_UNREAD
    }

    /// Whether it had to read first, and has.
    pub fn can_go_on(&self) -> bool {
        (self.deferred || self.starved) && !self.is_full()
    }

    /// Whether it has as many streams open as it may.
    pub fn has_too_many(&self) -> bool {
        self.streams.len() >= MOST_STREAMS
    }

    /// Whether so much waits for it that changes of files are not kept for it: they come without end, and unasked.
    pub fn lags(&self) -> bool {
        self.wire.pending() > MOST_CHANGES
    }

    /// It has taken everything: tells it which watches missed something.
    pub fn tell_missed(&mut self) {
        for stream in std::mem::take(&mut self.missed) {
            if self.streams.contains_key(&stream) {
                let changed = Changed { path: Vec::new(), change: Change::Overflow };
                // Far below the bound.
                let _ = self.wire.message(stream, Kind::Reply, &SupervisorReply::Changed(changed));
            }
        }
    }

    /// It sent more for a guest that is frozen; whether it may.
    pub fn holds(&mut self, more: usize) -> bool {
        self.held += more;
        self.held <= MOST_HELD + self.streams.len() * 2 * WINDOW as usize
    }

    /// Whether more waits for it than it can have asked for.
    pub fn is_stuck(&self) -> bool {
        self.wire.pending() > MOST_WAITING + self.streams.len() * 2 * WINDOW as usize
    }
}

/// The client that nobody misses: not the owner, nothing open, and silent for long.
pub fn quietest(clients: &HashMap<u64, Client>, owner: Option<u64>, now: Instant) -> Option<u64> {
    let is_quiet = |(token, client): &(&u64, &Client)| {
        let silent = now.saturating_duration_since(client.heard) >= QUIET;
        silent && !client.late && client.streams.is_empty() && client.wire.pending() == 0 && owner != Some(**token)
    };
    clients.iter().filter(is_quiet).min_by_key(|(_, client)| client.heard).map(|(token, _)| *token)
}

#[cfg(test)]
mod tests {
    use ringfence_guest::frame::MAX_REQUEST;

    use super::*;

    #[test]
    fn what_waits_for_a_frozen_guest_is_bounded() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut client = Client::new(Wire::new(ours.into(), MAX_REQUEST).unwrap(), Caller::of(1));
        assert!(client.holds(MOST_HELD) && !client.holds(1));
        // What its streams may hold is beside that.
        client.streams.insert(1, ClientStream::Guest(1));
        assert!(client.holds(WINDOW as usize));
    }

    #[test]
    fn who_gives_way() {
        let now = Instant::now();
        let mut ends = Vec::new();
        let mut client = |age: u64, streams: Vec<ClientStream>| {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            ends.push(theirs);
            let mut client = Client::new(Wire::new(ours.into(), MAX_REQUEST).unwrap(), Caller::of(1));
            client.heard = now - Duration::from_secs(age);
            client.streams = (1..).zip(streams).collect();
            client
        };
        let mut clients = HashMap::from([
            (16, client(900, vec![ClientStream::Holding])),
            (17, client(800, Vec::new())),
            (18, client(61, Vec::new())),
            (19, client(700, Vec::new())),
            (20, client(59, Vec::new())),
        ]);
        // 17 is the owner, 16 holds something open, 20 has just asked.
        for next in [Some(19), Some(18), None] {
            assert_eq!(quietest(&clients, Some(17), now), next);
            next.map(|token| clients.remove(&token));
        }
    }
}
