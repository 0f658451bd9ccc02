//! Bytes of a stranger in the place of what clients and supervisors say, from a seeded generator: nothing panics,
//! nothing is set aside for a length that is only claimed, and what is accepted can be said again and means the same.

use ringfence_guest::frame::{self, Decoder, Frame, Kind, MAX_REQUEST, Message};
use ringfence_guest::message::{Size, Step};

use super::super::info::{End, LimitChange};
use super::super::protocol::{ClientInput, ClientRequest, ExecRequest, ExecutionEnd, Refusal, SupervisorReply};
use crate::supervise::Reason;

/// Numbers that look like chance, and are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A command, whatever else belongs to one: what is not named here is nothing.
fn exec() -> ClientRequest {
    let (nothing, _) = postcard::take_from_bytes::<ExecRequest>(&[0; 256]).unwrap();
    let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
    ClientRequest::Exec(ExecRequest {
        argv: words(&["sh", "-c", "echo"]),
        env: words(&["A=b"]),
        cwd: Some(b"sub".to_vec()),
        terminal: Some(Size { rows: 24, columns: 80 }),
        timeout_ms: Some(u64::MAX),
        piped: true,
        ..nothing
    })
}

fn requests() -> Vec<ClientRequest> {
    vec![
        exec(),
        ClientRequest::Attach { execution: 7 },
        ClientRequest::ReadFile { path: b"/etc/passwd".to_vec(), offset: 1, length: Some(2), piped: true },
        ClientRequest::Info,
        ClientRequest::Report,
        ClientRequest::Executions,
        ClientRequest::Extend { life_ms: Some(1), idle_ms: None },
        ClientRequest::TieToConnection,
        ClientRequest::Stop,
        ClientRequest::Placeholders,
        ClientRequest::Usage,
        ClientRequest::Freeze,
        ClientRequest::ChangeLimits(LimitChange { memory: Some(1), cpus: Some(0.5), processes: None, timeout: None }),
    ]
}

fn inputs() -> Vec<ClientInput> {
    vec![
        ClientInput::Signal { signal: 9, tree: true },
        ClientInput::Resize(Size { rows: 1, columns: u16::MAX }),
        ClientInput::ContextTime { ms: Some(300) },
        ClientInput::Stop,
        ClientInput::OutputSkipped { stderr: true, bytes: u64::MAX },
        ClientInput::OutputComplete,
    ]
}

fn replies() -> Vec<SupervisorReply> {
    let finished =
        ExecutionEnd { status: 9, reason: Some(Reason::Lost), duration_us: u64::MAX, cpu_us: 1, peak_memory: 1 << 30 };
    vec![
        SupervisorReply::Done { bytes: 8 },
        SupervisorReply::ExecutionStarted {
            execution: 1,
            record: Some("01ABC".to_owned()),
            record_error: Some("no space".to_owned()),
        },
        SupervisorReply::OutputSkipped { stderr: false, bytes: 5 },
        SupervisorReply::ExecutionEnded(finished),
        SupervisorReply::Document(b"{\"format\":\"ringfence.report\"}".to_vec()),
        SupervisorReply::Ready,
        SupervisorReply::Refused(Refusal::NotRecorded("no space".to_owned())),
        SupervisorReply::Refused(Refusal::SessionEnded(End::Died)),
        SupervisorReply::ExecutionFailed { execution: 3, record: None, step: Step::Fork, errno: 11 },
    ]
}

/// What comes of bytes that are these messages, damaged; how many were understood all the same.
fn survives<T>(messages: &[T], kind: Kind, seed: u64) -> usize
where
    T: Message + PartialEq + std::fmt::Debug,
{
    let said = |message: &T| {
        let mut bytes = Vec::new();
        frame::put_message(&mut bytes, 1, kind, message).unwrap();
        bytes
    };
    for message in messages {
        let mut decoder = Decoder::new(MAX_REQUEST);
        decoder.feed(&said(message));
        assert_eq!(&decoder.next_frame().unwrap().unwrap().message::<T>().unwrap(), message);
    }
    let (mut noise, mut understood) = (Noise(seed), 0);
    for round in 0..20_000 {
        let mut bytes = said(&messages[noise.below(messages.len())]);
        match round % 4 {
            // Cut off, and its header says so.
            0 if bytes.len() > frame::HEADER => {
                bytes.truncate(frame::HEADER + noise.below(bytes.len() - frame::HEADER));
                let length = (bytes.len() - frame::HEADER) as u32;
                bytes[..4].copy_from_slice(&length.to_le_bytes());
            }
            // Nothing good but the header.
            1 => bytes[frame::HEADER..].fill_with(|| noise.next() as u8),
            // Damaged in a few places.
            _ => {
                for _ in 0..1 + noise.below(4) {
                    let at = noise.below(bytes.len());
                    bytes[at] = noise.next() as u8;
                }
            }
        }
        let mut decoder = Decoder::new(MAX_REQUEST);
        decoder.feed(&bytes);
        while let Ok(Some(frame)) = decoder.next_frame() {
            let Ok(message) = frame.message::<T>() else { continue };
            understood += 1;
            let again = postcard::to_allocvec(&message).unwrap();
            assert_eq!(postcard::from_bytes::<T>(&again).as_ref(), Ok(&message));
        }
    }
    understood
}

#[test]
fn strangers_bytes_are_understood_or_refused() {
    for understood in [
        survives(&requests(), Kind::Open, 0xa5c),
        survives(&inputs(), Kind::Input, 0x5a4),
        survives(&replies(), Kind::Reply, 0xa25),
    ] {
        // Some of it gets that far, and some does not.
        assert!((1000..20_000).contains(&understood), "{understood}");
    }
}

#[test]
fn a_claimed_length_costs_nothing() {
    // Four thousand million arguments, entries or letters, in six bytes.
    for variant in 0..20 {
        let payload = &[variant, 0xff, 0xff, 0xff, 0xff, 0x0f];
        let frame = Frame { stream: 1, kind: Kind::Open, payload };
        let (request, reply) = (frame.message::<ClientRequest>(), frame.message::<SupervisorReply>());
        assert!(!matches!(request, Ok(ClientRequest::Exec(_) | ClientRequest::Stat { .. })), "{request:?}");
        assert!(!matches!(reply, Ok(SupervisorReply::Document(_) | SupervisorReply::Entries(_))), "{reply:?}");
    }
}
