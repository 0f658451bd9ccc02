//! What the fuzz target looks for, with bytes from a seeded generator: strangers' bytes never panic, and never cost more
//! memory than a frame may have.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use ringfence_guest::frame::{
    self, Channel, Decoder, Frame, FrameError, Greeting, HEADER, Kind, MAX_DATA, MAX_REPLY, MAX_REQUEST,
};
use ringfence_guest::message::{
    Change, Changed, Entry, EntryKind, Exec, Exited, GREETING, HostHello, Input, Reply, Request, Settings, Size, Step,
    Write, WriteMode,
};

/// Numbers that look like chance, and are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.next() as u8).collect()
    }

    fn list(&mut self) -> Vec<Vec<u8>> {
        (0..self.below(5)).map(|_| self.bytes(40)).collect()
    }

    fn request(&mut self) -> Request {
        let path = self.bytes(50);
        let flag = self.below(2) == 0;
        match self.below(11) {
            0 => Request::Exec(Exec {
                argv: self.list(),
                env: self.list(),
                cwd: path,
                terminal: flag.then_some(Size { rows: 1, columns: u16::MAX }),
                stdin: flag,
                piped: !flag,
            }),
            1 => Request::Read { path, offset: self.next(), length: flag.then_some(self.next()), piped: flag },
            2 => {
                let mode = self.next() as u32;
                Request::Write(Write { path, mode, parents: flag, how: WriteMode::Append, piped: !flag })
            }
            3 => Request::List { path, depth: self.next() as u16 },
            4 => Request::Stat { path },
            5 => Request::MakeDirectory { path, mode: 0o755, parents: flag },
            6 => Request::Move { from: path, to: self.bytes(50), replace: flag },
            7 => Request::Remove { path, recursive: flag },
            8 => Request::Watch { path, recursive: flag },
            9 => Request::Connect { port: self.next() as u16 },
            _ => Request::Ping,
        }
    }

    fn reply(&mut self) -> Reply {
        match self.below(6) {
            0 => Reply::Started { pid: self.next() as u32 },
            1 => Reply::Exited(Exited {
                status: self.next() as i32,
                user_micros: self.next(),
                system_micros: 0,
                peak_memory: self.next(),
            }),
            2 => Reply::Entries(vec![Entry {
                path: self.bytes(99),
                kind: EntryKind::Symlink,
                size: self.next(),
                mode: 0,
                modified: self.next() as i64,
                target: Some(self.bytes(9)),
            }]),
            3 => Reply::Changed(Changed { path: self.bytes(9), change: Change::Overflow }),
            4 => Reply::Done { bytes: self.next() },
            _ => Reply::Failed { step: Step::Watch, errno: self.next() as i32 },
        }
    }
}

#[test]
fn what_is_said_is_understood_however_it_is_cut() {
    let mut noise = Noise(0x5eed);
    for _ in 0..300 {
        let requests: Vec<Request> = (0..1 + noise.below(5)).map(|_| noise.request()).collect();
        let mut bytes = Vec::new();
        for (id, request) in (1..).zip(&requests) {
            frame::put_message(&mut bytes, id, Kind::Open, request).unwrap();
            frame::put(&mut bytes, id, Kind::Data(Channel::In), &noise.bytes(300));
        }
        let mut decoder = Decoder::new(MAX_REQUEST);
        let mut seen = Vec::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (part, more) = rest.split_at(rest.len().min(1 + noise.below(64) as usize));
            decoder.feed(part);
            rest = more;
            while let Some(frame) = decoder.next_frame().unwrap() {
                if frame.kind == Kind::Open {
                    seen.push(frame.message::<Request>().unwrap());
                }
            }
        }
        assert_eq!(seen, requests);
        let reply = noise.reply();
        let mut bytes = Vec::new();
        frame::put_message(&mut bytes, 1, Kind::Reply, &reply).unwrap();
        let mut decoder = Decoder::new(MAX_REPLY);
        decoder.feed(&bytes);
        assert_eq!(decoder.next_frame().unwrap().unwrap().message::<Reply>().unwrap(), reply);
    }
}

#[test]
fn a_strangers_bytes_are_bounded() {
    let mut noise = Noise(0xbad);
    let mut accepted = 0;
    for round in 0..20_000 {
        // A good message, damaged in a few places; every other time nothing good at all.
        let mut bytes = Vec::new();
        if round % 2 == 0 {
            frame::put_message(&mut bytes, 1, Kind::Open, &noise.request()).unwrap();
            frame::put_message(&mut bytes, 1, Kind::Input, &Input::Signal { signal: 9, tree: true }).unwrap();
            let settings = Settings { limits: vec![(7, 77)], processes: None, confined: Some(vec![b"/tmp".to_vec()]) };
            let hello = HostHello { greeting: GREETING, settings };
            frame::put_message(&mut bytes, 0, Kind::Input, &hello).unwrap();
            for _ in 0..noise.below(4) {
                let at = noise.below(bytes.len() as u64) as usize;
                bytes[at] = noise.next() as u8;
            }
        } else {
            bytes = noise.bytes(200);
        }
        let mut decoder = Decoder::new(MAX_REQUEST);
        decoder.feed(&bytes);
        while let Ok(Some(frame)) = decoder.next_frame() {
            assert!(frame.payload.len() + HEADER <= bytes.len());
            // A length in a message is a claim: nothing is set aside for it that is not there.
            accepted += usize::from(frame.message::<Request>().is_ok());
            let _ = (
                frame.message::<Input>(),
                frame.message::<HostHello>(),
                frame.message::<Greeting>(),
                frame.message::<Reply>(),
                frame.credit(),
            );
        }
    }
    assert!(accepted > 1000);
}

#[test]
fn messages_grow_at_their_end() {
    let mut noise = Noise(0x900d);
    for _ in 0..2000 {
        let request = noise.request();
        let mut payload = postcard::to_allocvec(&request).unwrap();
        fn read(payload: &[u8]) -> Result<Request, FrameError> {
            Frame { stream: 1, kind: Kind::Open, payload }.message()
        }
        // Of a newer release: what follows is ignored.
        let length = payload.len();
        payload.extend(noise.bytes(50));
        assert_eq!(read(&payload).as_ref(), Ok(&request));
        // Of an older one, which did not have what is zero at the end.
        payload.truncate(length);
        while payload.len() > 1 && payload.last() == Some(&0) {
            payload.pop();
            assert_eq!(read(&payload).as_ref(), Ok(&request));
        }
        // What no release knows yet is told apart from what is damaged.
        let number = 11 + noise.below(1 << 20) as u32;
        let unknown = [postcard::to_allocvec(&number).unwrap(), noise.bytes(50)].concat();
        assert!(matches!(read(&unknown), Err(FrameError::Unknown { number: seen, .. }) if seen == number));
    }
    for damaged in [&b""[..], b"\xff\xff\xff\xff\xff\xff"] {
        let frame = Frame { stream: 1, kind: Kind::Open, payload: damaged };
        assert!(matches!(frame.message::<Request>(), Err(FrameError::Malformed { .. })));
    }
}

#[test]
fn greetings_meet_where_both_speak() {
    let greeting = |oldest, newest, features| Greeting { oldest, newest, features };
    let ours = greeting(2, 4, 0b0110);
    for (theirs, version) in [(greeting(1, 2, 0), 2), (greeting(4, 9, 0), 4), (greeting(3, 3, 0), 3), (ours, 4)] {
        assert_eq!(ours.meet(theirs).unwrap().version, version);
        assert_eq!(theirs.meet(ours).unwrap().version, version);
    }
    assert_eq!(ours.meet(greeting(4, 4, 0b1100)).unwrap().features, 0b0100);
    for theirs in [greeting(0, 1, 6), greeting(5, 9, 6), greeting(4, 2, 6), greeting(u16::MAX, 0, 6)] {
        let error = ours.meet(theirs).unwrap_err().to_string();
        assert!(error.contains(&format!("{} to {}", theirs.oldest, theirs.newest)) && error.contains("2 to 4"));
    }
}

#[test]
fn a_claimed_length_is_refused_before_it_costs_anything() {
    for (kind, most) in [(Kind::Open, MAX_REQUEST), (Kind::Data(Channel::In), MAX_DATA), (Kind::Close, 0)] {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, 1, kind, &[]);
        bytes[..4].copy_from_slice(&(most as u32 + 1).to_le_bytes());
        let mut decoder = Decoder::new(MAX_REQUEST);
        decoder.feed(&bytes);
        decoder.next_frame().unwrap_err();
    }
    // A list of four thousand million arguments in five bytes.
    let mut bytes = Vec::new();
    frame::put(&mut bytes, 1, Kind::Open, &[0, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    let mut decoder = Decoder::new(MAX_REQUEST);
    decoder.feed(&bytes);
    decoder.next_frame().unwrap().unwrap().message::<Request>().unwrap_err();
}
