//! Bytes of a stranger in the place of what clients and supervisors say, from a seeded generator: nothing panics,
//! nothing is set aside for a length that is only claimed, and what is accepted can be said again and means the same.

use ringfence_guest::frame::{self, Decoder, Kind, MAX_REQUEST};
use ringfence_guest::message::{Reply, Request, Size, Step};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::info::{End, StandIn};
use super::protocol::{Answer, Ask, ExecAsk, Finished, Refusal, Say};
use crate::report::{Answer as Promise, Report, State};
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
fn exec() -> Ask {
    let (nothing, _) = postcard::take_from_bytes::<ExecAsk>(&[0; 256]).unwrap();
    let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
    Ask::Exec(ExecAsk {
        argv: words(&["sh", "-c", "echo"]),
        env: words(&["A=b"]),
        cwd: Some(b"sub".to_vec()),
        terminal: Some(Size { rows: 24, columns: 80 }),
        timeout_ms: Some(u64::MAX),
        piped: true,
        ..nothing
    })
}

fn asks() -> Vec<Ask> {
    vec![
        exec(),
        Ask::Attach { id: 7 },
        Ask::Guest(Request::Read { path: b"/etc/passwd".to_vec(), offset: 1, length: Some(2), piped: true }),
        Ask::Info,
        Ask::Report,
        Ask::Executions,
        Ask::Extend { life_ms: Some(1), idle_ms: None },
        Ask::Own,
        Ask::Stop,
        Ask::StandIns,
    ]
}

fn says() -> Vec<Say> {
    vec![
        Say::Signal { signal: 9, tree: true },
        Say::Resize(Size { rows: 1, columns: u16::MAX }),
        Say::Allow { ms: Some(300) },
        Say::Stop,
        Say::Skipped { stderr: true, bytes: u64::MAX },
        Say::Told,
    ]
}

fn answers() -> Vec<Answer> {
    let promise = |id: &_| Promise { id: *id, state: State::Enforced, by: "by what".to_owned() };
    let guarantees = ringfence_policy::Guarantee::ALL.iter().map(promise).collect();
    let finished =
        Finished { status: 9, reason: Some(Reason::Lost), duration_us: u64::MAX, cpu_us: 1, peak_memory: 1 << 30 };
    vec![
        Answer::Guest(Reply::Done { bytes: 8 }),
        Answer::Begun { id: 1, record: Some("01ABC".to_owned()), trouble: Some("no space".to_owned()) },
        Answer::Skipped { stderr: false, bytes: 5 },
        Answer::Ended(finished),
        Answer::Report(Report { engine: "native".into(), guarantees }),
        Answer::Executions(Vec::new()),
        Answer::Done,
        Answer::Refused(Refusal::NotRecorded("no space".to_owned())),
        Answer::Refused(Refusal::Ended(End::Died)),
        Answer::NotBegun { id: 3, record: None, step: Step::Fork, errno: 11 },
        Answer::StandIns(vec![StandIn { path: "/workspace/.vscode".into(), length: 2 }]),
    ]
}

/// What comes of bytes that are these messages, damaged; how many were understood all the same.
fn survives<T>(messages: &[T], kind: Kind, seed: u64) -> usize
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
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
        survives(&asks(), Kind::Open, 0xa5c),
        survives(&says(), Kind::Input, 0x5a4),
        survives(&answers(), Kind::Reply, 0xa25),
    ] {
        // Some of it gets that far, and some does not.
        assert!((1000..20_000).contains(&understood), "{understood}");
    }
}

#[test]
fn a_claimed_length_costs_nothing() {
    // Four thousand million arguments, executions or letters, in six bytes.
    let claim = |variant: u8| [variant, 0xff, 0xff, 0xff, 0xff, 0x0f];
    for variant in 0..16 {
        let bytes = claim(variant);
        let (ask, answer) = (postcard::from_bytes::<Ask>(&bytes), postcard::from_bytes::<Answer>(&bytes));
        assert!(!matches!(ask, Ok(Ask::Exec(_))) && !matches!(answer, Ok(Answer::Executions(_) | Answer::Report(_))));
    }
}
