//! Frames: how any number of streams share one descriptor.
//!
//! A frame is a header (length of the payload, stream, kind) and a payload. Streams are opened by the host; both sides
//! send data on them only as far as the other one has granted credit, so that a slow reader stops a fast writer and never
//! a neighbour. Decoding bounds everything before it keeps anything.
//!
//! A message that opens a stream can bring pipes with it, where the descriptor is a local socket. Then contents go through
//! them instead of through frames, and their size is the bound.
//!
//! # How messages change
//!
//! Both ends of a connection may be of different releases. Each begins with a [`Greeting`] on stream 0.
//! - Variants of a message are only appended. The number of a variant is never used again. A number that the reader does
//!   not know is [`FrameError::Unknown`]: an unknown request is answered `Unsupported`, an unknown input is ignored, and
//!   an unknown reply ends its stream alone.
//! - Fields are appended at the end of a message only: to a variant, or to the struct that is the last thing in it. A
//!   reader ignores bytes that follow what it knows, and reads zero for what is missing: `None`, `false`, 0, empty.
//! - What stands inside a list, or before something else, never changes. Neither do the values of an enum inside a
//!   message, the kinds of frames and what a request's pipes are, unless a feature bit of the reader allows it.
//! - What cannot be expressed in this way raises the version. The first three numbers of a greeting never change.
//!
//! Golden files hold the bytes of every message.

use postcard::de_flavors::Flavor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most bytes of data in one frame.
pub const MAX_DATA: usize = 64 * 1024;

/// Most bytes of a message from the guest.
pub const MAX_REPLY: usize = 64 * 1024;

/// Most bytes of a message to the guest: the arguments and the environment of a command fit, as the kernel bounds them.
pub const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// What a sender may send on one channel of a stream before the first grant.
pub const WINDOW: u32 = 256 * 1024;

/// Most pipes that come with one message.
pub const MOST_PIPES: usize = 2;

/// Length of a header.
pub const HEADER: usize = 9;

/// What a frame is. The channel of data is what a command calls its descriptor; file contents and connections use 0
/// towards the guest and 1 from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Opens a stream: a [`Request`](crate::message::Request).
    Open,
    /// More for a stream that is open: an [`Input`](crate::message::Input).
    Input,
    /// From the guest: a [`Reply`](crate::message::Reply).
    Reply,
    /// Bytes of a channel.
    Data(Channel),
    /// No more bytes follow on a channel.
    Eof(Channel),
    /// So many more bytes may be sent on a channel: a little-endian `u32`.
    Credit(Channel),
    /// The host is not interested any more: the guest ends what the stream is for and forgets it.
    Close,
}

/// A direction of bytes on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    /// To the guest.
    In,
    /// From the guest.
    Out,
    /// From the guest: what a command writes to descriptor 2.
    Err,
}

impl Channel {
    pub const ALL: [Channel; 3] = [Channel::In, Channel::Out, Channel::Err];
}

impl Kind {
    const fn encode(self) -> u8 {
        match self {
            Kind::Open => 1,
            Kind::Input => 2,
            Kind::Reply => 3,
            Kind::Close => 4,
            Kind::Data(channel) => 0x10 + channel as u8,
            Kind::Eof(channel) => 0x20 + channel as u8,
            Kind::Credit(channel) => 0x30 + channel as u8,
        }
    }

    fn decode(byte: u8) -> Option<Kind> {
        let channel = || Channel::ALL.get(usize::from(byte & 0xf)).copied();
        Some(match byte {
            1 => Kind::Open,
            2 => Kind::Input,
            3 => Kind::Reply,
            4 => Kind::Close,
            0x10..0x20 => Kind::Data(channel()?),
            0x20..0x30 => Kind::Eof(channel()?),
            0x30..0x40 => Kind::Credit(channel()?),
            _ => return None,
        })
    }
}

/// One frame, borrowed from the buffer it was read into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub stream: u32,
    pub kind: Kind,
    pub payload: &'a [u8],
}

/// Why bytes are not frames. Whoever sent them cannot be talked to any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("unknown kind of frame {0:#x}")]
    Kind(u8),
    #[error("frame of {length} bytes where at most {most} are allowed")]
    TooLong { length: usize, most: usize },
    #[error("malformed {what}")]
    Malformed { what: &'static str },
    #[error("{what} of number {number}, which this release of Ringfence does not know")]
    Unknown { what: &'static str, number: u32 },
}

/// What a frame holds as its payload.
pub trait Message: Serialize + DeserializeOwned {
    /// How many variants this release knows; `None` for a struct.
    const VARIANTS: Option<u32>;
}

/// What each side of a connection says first: the versions of the protocol that it speaks, and what it can do beyond them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub oldest: u16,
    pub newest: u16,
    /// A bit each.
    pub features: u64,
}

/// The two sides have no version in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it speaks versions {} to {}, and this release of Ringfence {} to {}", theirs.oldest, theirs.newest, ours.oldest, ours.newest)]
pub struct NoCommonVersion {
    pub ours: Greeting,
    pub theirs: Greeting,
}

impl Greeting {
    /// What both sides can do, in the newest version that both speak.
    pub fn meet(self, theirs: Greeting) -> Result<Agreed, NoCommonVersion> {
        let version = self.newest.min(theirs.newest);
        if version < self.oldest.max(theirs.oldest) {
            return Err(NoCommonVersion { ours: self, theirs });
        }
        Ok(Agreed { version, features: self.features & theirs.features })
    }
}

/// What holds for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    pub version: u16,
    pub features: u64,
}

/// So many fields may have been appended to a message since it was written.
const MOST_MISSING: usize = 64;

/// The bytes of a message, and zeros where newer fields would be. A length of what is missing is zero as well, so that
/// nothing grows out of it.
struct Payload<'a> {
    bytes: &'a [u8],
    missing: usize,
}

impl<'de> Flavor<'de> for Payload<'de> {
    type Remainder = ();
    type Source = ();

    fn pop(&mut self) -> postcard::Result<u8> {
        if let Some((first, rest)) = self.bytes.split_first() {
            self.bytes = rest;
            return Ok(*first);
        }
        self.missing = self.missing.checked_sub(1).ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        Ok(0)
    }

    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'de [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl Frame<'_> {
    /// The message that the payload holds.
    pub fn message<T: Message>(&self) -> Result<T, FrameError> {
        let what = std::any::type_name::<T>();
        let malformed = FrameError::Malformed { what };
        if self.payload.is_empty() {
            return Err(malformed);
        }
        if let Some(known) = T::VARIANTS {
            match postcard::take_from_bytes::<u32>(self.payload) {
                Ok((number, _)) if number >= known => return Err(FrameError::Unknown { what, number }),
                Ok(_) => {}
                Err(_) => return Err(malformed),
            }
        }
        let payload = Payload { bytes: self.payload, missing: MOST_MISSING };
        T::deserialize(&mut postcard::Deserializer::from_flavor(payload)).map_err(|_| malformed)
    }

    /// The grant of a credit frame.
    pub fn credit(&self) -> Result<u32, FrameError> {
        let bytes = self.payload.try_into().map_err(|_| FrameError::Malformed { what: "credit" })?;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// Appends a frame of raw bytes.
pub fn put(out: &mut Vec<u8>, stream: u32, kind: Kind, payload: &[u8]) {
    debug_assert!(payload.len() <= MAX_REQUEST);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&stream.to_le_bytes());
    out.push(kind.encode());
    out.extend_from_slice(payload);
}

/// Begins a frame whose payload is appended next; [`finish`] with what this returns completes it.
pub fn begin(out: &mut Vec<u8>, stream: u32, kind: Kind) -> usize {
    let start = out.len();
    put(out, stream, kind, &[]);
    start
}

/// Completes the frame that was begun at `start`; one without a payload is taken back.
pub fn finish(out: &mut Vec<u8>, start: usize) {
    let length = out.len().saturating_sub(start + HEADER);
    match out.get_mut(start..start + 4) {
        Some(slot) if length > 0 => slot.copy_from_slice(&(length as u32).to_le_bytes()),
        _ => out.truncate(start),
    }
}

/// Appends a frame that holds a message.
pub fn put_message<T: Serialize>(out: &mut Vec<u8>, stream: u32, kind: Kind, message: &T) -> Result<(), FrameError> {
    let malformed = |_| FrameError::Malformed { what: std::any::type_name::<T>() };
    let payload = postcard::to_allocvec(message).map_err(malformed)?;
    if payload.len() > MAX_REQUEST {
        return Err(FrameError::TooLong { length: payload.len(), most: MAX_REQUEST });
    }
    put(out, stream, kind, &payload);
    Ok(())
}

/// Takes frames out of bytes as they arrive.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Up to here the buffer was handed out.
    taken: usize,
    /// Most bytes of a message.
    most: usize,
}

impl Decoder {
    /// `most`: [`MAX_REPLY`] for what a guest says, [`MAX_REQUEST`] for what a host says.
    pub fn new(most: usize) -> Decoder {
        Decoder { buffer: Vec::new(), taken: 0, most }
    }

    /// Adds bytes that were read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).extend_from_slice(bytes);
    }

    /// Where to append so many bytes, without copying them once more. What is there already must stay.
    pub fn room(&mut self, bytes: usize) -> &mut Vec<u8> {
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            // A large message came and went.
            self.buffer.shrink_to(bytes.max(2 * MAX_DATA));
        } else if self.taken > 0 {
            self.buffer.drain(..self.taken);
        }
        self.taken = 0;
        self.buffer.reserve(bytes);
        &mut self.buffer
    }

    /// The next whole frame. Bytes that are no frame are an error at once, however many are still to come.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let rest = &self.buffer[self.taken..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = word(0) as usize;
        let kind = Kind::decode(header[8]).ok_or(FrameError::Kind(header[8]))?;
        let most = match kind {
            Kind::Open | Kind::Input | Kind::Reply => self.most,
            Kind::Data(_) => MAX_DATA,
            Kind::Credit(_) => 4,
            Kind::Eof(_) | Kind::Close => 0,
        };
        if length > most {
            return Err(FrameError::TooLong { length, most });
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.taken + HEADER;
        self.taken = start + length;
        Ok(Some(Frame { stream: word(4), kind, payload: &self.buffer[start..start + length] }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 8] = [
        Kind::Open,
        Kind::Input,
        Kind::Reply,
        Kind::Close,
        Kind::Data(Channel::In),
        Kind::Data(Channel::Err),
        Kind::Eof(Channel::Out),
        Kind::Credit(Channel::Out),
    ];

    #[test]
    fn every_kind_comes_back() {
        for kind in KINDS {
            assert_eq!(Kind::decode(kind.encode()), Some(kind));
        }
    }

    #[test]
    fn frames_come_back_however_they_are_cut() {
        let mut bytes = Vec::new();
        put(&mut bytes, 7, Kind::Data(Channel::Out), b"hello");
        put(&mut bytes, 8, Kind::Credit(Channel::In), &9u32.to_le_bytes());
        put(&mut bytes, u32::MAX, Kind::Close, b"");
        for cut in 1..bytes.len() {
            let mut decoder = Decoder::new(MAX_REPLY);
            let mut seen = Vec::new();
            for part in bytes.chunks(cut) {
                decoder.feed(part);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push((frame.stream, frame.kind, frame.payload.to_vec()));
                }
            }
            assert_eq!(seen.len(), 3, "cut at {cut}");
            assert_eq!(seen[0], (7, Kind::Data(Channel::Out), b"hello".to_vec()));
            assert_eq!(seen[2], (u32::MAX, Kind::Close, Vec::new()));
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_by_its_header() {
        let mut header = ((MAX_DATA + 1) as u32).to_le_bytes().to_vec();
        header.extend_from_slice(&[0, 0, 0, 0, Kind::Data(Channel::Out).encode()]);
        let mut decoder = Decoder::new(MAX_REPLY);
        decoder.feed(&header);
        assert_eq!(decoder.next_frame(), Err(FrameError::TooLong { length: MAX_DATA + 1, most: MAX_DATA }));
    }

    #[test]
    fn garbage_is_refused() {
        let mut decoder = Decoder::new(MAX_REPLY);
        decoder.feed(&[0xff; 64]);
        assert_eq!(decoder.next_frame(), Err(FrameError::Kind(0xff)));
    }
}
