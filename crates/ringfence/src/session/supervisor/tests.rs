//! Guests that lie, flood, stall or die, and clients that do: played by the test at the other end of the channel.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringfence_guest::frame::{self, Channel, Decoder, Kind, MAX_REQUEST, WINDOW};
use ringfence_guest::message::{Exited, Hello, Input, Reply, Request};
use ringfence_policy::{Inputs, Layer, resolve};

use super::super::pipes::Outbox;
use super::super::place::Place;
use super::super::protocol::{Ask, ExecAsk};
use super::super::{Event, Exec, Session, SessionError, Sessions};
use super::*;
use crate::supervise::Reason;

/// The other end of a supervisor's channel.
struct Guest {
    socket: UnixStream,
    decoder: Decoder,
}

impl Guest {
    fn send(&mut self, stream: u32, kind: Kind, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, stream, kind, payload);
        // The supervisor may have had enough.
        let _ = self.socket.write_all(&bytes);
    }

    fn reply(&mut self, stream: u32, reply: &Reply) {
        let mut bytes = Vec::new();
        frame::put_message(&mut bytes, stream, Kind::Reply, reply).unwrap();
        let _ = self.socket.write_all(&bytes);
    }

    /// The next frame; `None` at the end.
    fn next(&mut self) -> Option<(u32, Kind, Vec<u8>)> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some((frame.stream, frame.kind, frame.payload.to_vec()));
            }
            match self.socket.read(&mut buffer).unwrap_or(0) {
                0 => return None,
                n => self.decoder.feed(&buffer[..n]),
            }
        }
    }

    /// Waits for a command, and says that it runs.
    fn take_exec(&mut self) -> u32 {
        let (stream, kind, payload) = self.next().unwrap();
        assert_eq!(kind, Kind::Open);
        assert!(matches!(postcard::from_bytes(&payload), Ok(Request::Exec(_))));
        self.reply(stream, &Reply::Started { pid: 7 });
        stream
    }

    fn exit(&mut self, stream: u32) {
        let exited = Exited { status: 0, user_micros: 1, system_micros: 1, peak_memory: 1 };
        self.reply(stream, &Reply::Exited(exited));
    }
}

/// A supervisor in a thread, a session that is connected to it, and its guest: `play` is what that does.
fn with_guest<T: Send + 'static>(
    play: impl FnOnce(Guest) -> T + Send + 'static,
) -> (Stage, std::thread::JoinHandle<T>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut guest = Guest { socket: theirs, decoder: Decoder::new(MAX_REQUEST) };
    let mut bytes = Vec::new();
    frame::put_message(&mut bytes, 0, Kind::Reply, &Hello { version: frame::VERSION }).unwrap();
    guest.socket.write_all(&bytes).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    let fresh = place.make(None).unwrap();
    let facts = crate::facts::gather().unwrap();
    let mut layer = Layer::flags();
    layer.profile("shell");
    let project = dir.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let policy = resolve(Inputs::new(project.canonicalize().unwrap(), facts.home.clone(), layer)).unwrap().policy;
    let start = Start {
        dir: place.dir().to_path_buf(),
        id: fresh.id.clone(),
        name: None,
        profile: "shell".to_owned(),
        workdir: policy.workdir.clone(),
        engine: Engine::Native,
        plan: ringfence_policy::plan::plan_guest(&policy, &facts).unwrap(),
        facts,
        report: Report { engine: "native".into(), guarantees: Vec::new() },
        idle: None,
        life: None,
        records: None,
    };
    let (id, lock) = (fresh.id, fresh.lock);
    let thread = std::thread::spawn(move || {
        let _lock = lock;
        Supervisor::own(start, None, ours.into()).unwrap().run().unwrap();
    });
    let sessions = Sessions::new(place.dir(), "/nonexistent");
    let stage = Stage { _dir: dir, sessions, id, place, thread };
    (stage, std::thread::spawn(move || play(guest)))
}

struct Stage {
    _dir: tempfile::TempDir,
    sessions: Sessions,
    id: String,
    place: Place,
    thread: std::thread::JoinHandle<()>,
}

impl Stage {
    async fn session(&self) -> Session {
        self.sessions.open(&self.id).await.unwrap()
    }

    /// Why it ended.
    fn end(self) -> End {
        self.thread.join().unwrap();
        match self.place.kept(&self.id).unwrap().info.state {
            State::Ended(end) => end,
            State::Live => panic!("it lives"),
        }
    }
}

/// Runs a command on a guest that misbehaves after it has started; how the session ended.
async fn ends_by(misbehave: impl FnOnce(&mut Guest, u32) + Send + 'static) -> End {
    let (stage, guest) = with_guest(move |mut guest| {
        let stream = guest.take_exec();
        misbehave(&mut guest, stream);
        while guest.next().is_some() {}
    });
    let session = stage.session().await;
    // Whoever waits is told, and none of it is taken for an answer.
    let output = session.exec(Exec::new(["true"])).await.unwrap().output().await;
    assert_eq!(output.outcome.reason, Some(Reason::Lost));
    let end = stage.end();
    guest.join().unwrap();
    end
}

#[tokio::test]
async fn a_guest_that_breaks_the_protocol_ends_its_session() {
    type Misbehave = fn(&mut Guest, u32);
    let table: &[(&str, Misbehave)] = &[
        ("bytes that are no frames", |guest, _| drop(guest.socket.write_all(&[0xff; 64]))),
        ("more data than was granted", |guest, stream| {
            for _ in 0..=WINDOW / 65536 {
                guest.send(stream, Kind::Data(Channel::Out), &[0; 65536]);
            }
        }),
        ("data in the wrong direction", |guest, stream| guest.send(stream, Kind::Data(Channel::In), b"x")),
        ("a stream that was never opened", |guest, stream| guest.send(stream + 1, Kind::Data(Channel::Out), b"x")),
        ("stream 0", |guest, _| guest.send(0, Kind::Eof(Channel::Out), b"")),
        ("a request", |guest, stream| guest.send(stream + 1, Kind::Open, b"\0")),
        ("an answer that is none", |guest, stream| guest.send(stream, Kind::Reply, &[0xff; 9])),
        ("started twice", |guest, stream| guest.reply(stream, &Reply::Started { pid: 8 })),
        ("the answer to another question", |guest, stream| guest.reply(stream, &Reply::Done { bytes: 1 })),
        ("credit without end", |guest, stream| {
            guest.send(stream, Kind::Credit(Channel::In), &u32::MAX.to_le_bytes());
        }),
    ];
    for (what, misbehave) in table {
        assert_eq!(ends_by(*misbehave).await, End::Unruly, "{what}");
    }
    assert_eq!(ends_by(|guest, _| drop(guest.socket.shutdown(std::net::Shutdown::Both))).await, End::Died);
}

#[tokio::test]
async fn a_guest_that_does_not_obey_is_ended_from_outside() {
    let (stage, guest) = with_guest(|mut guest| {
        guest.take_exec();
        let mut asked = Vec::new();
        while let Some((_, kind, payload)) = guest.next() {
            if let (Kind::Input, Ok(Input::Signal { signal, tree: true })) = (kind, postcard::from_bytes(&payload)) {
                asked.push(signal);
            }
        }
        asked
    });
    let session = stage.session().await;
    let start = Instant::now();
    let exec = Exec::new(["stubborn"]).timeout(Duration::from_millis(200));
    let outcome = session.exec(exec).await.unwrap().output().await.outcome;
    assert_eq!(outcome.reason, Some(Reason::Time));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(stage.end(), End::Unruly);
    assert_eq!(guest.join().unwrap(), [libc::SIGTERM, libc::SIGCONT, libc::SIGKILL]);
}

#[tokio::test]
async fn a_client_that_breaks_the_protocol_loses_its_connection_alone() {
    let (stage, guest) = with_guest(|mut guest| {
        let first = guest.take_exec();
        guest.send(first, Kind::Data(Channel::Out), b"hello");
        guest.exit(first);
        while guest.next().is_some() {}
    });
    drop(stage.session().await);
    let socket = stage.place.socket(&stage.id);
    let open = |stream: u32| {
        let mut bytes = Vec::new();
        frame::put_message(&mut bytes, stream, Kind::Open, &Ask::Info).unwrap();
        bytes
    };
    let data = |stream: u32| {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, stream, Kind::Data(Channel::In), b"x");
        bytes
    };
    let attacks: [Vec<u8>; 6] = [
        vec![0xff; 100],
        data(1),
        [open(2), open(1)].concat(),
        [open(1), open(1)].concat(),
        {
            let mut bytes = Vec::new();
            frame::put(&mut bytes, 1, Kind::Open, &[0xff; 20]);
            bytes
        },
        (MAX_REQUEST as u32 + 1).to_le_bytes().into_iter().chain([0, 0, 0, 0, 1]).collect(),
    ];
    for attack in attacks {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.write_all(&attack).unwrap();
        // Shown out: everything up to the end is read, and it ends.
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).expect("the end of the connection");
    }
    // Pipes that are promised and do not come, are too few, or are none.
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let pipe = || rustix::pipe::pipe().unwrap().1;
    for fds in [vec![], vec![pipe()], vec![null(), null()], vec![pipe(), null()]] {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let ask = ExecAsk {
            argv: vec![b"true".to_vec()],
            env: Vec::new(),
            cwd: None,
            terminal: None,
            stdin: false,
            timeout_ms: None,
            background: false,
            context: None,
            piped: true,
        };
        let mut out = Outbox::default();
        out.message(1, Kind::Open, &Ask::Exec(ask), fds).unwrap();
        out.flush(client.as_fd()).unwrap();
        client.read_to_end(&mut Vec::new()).expect("the end of the connection");
    }
    // One that stalls in the middle of a frame is nobody's trouble.
    let mut stalled = UnixStream::connect(&socket).unwrap();
    stalled.write_all(&open(1)[..7]).unwrap();
    let session = stage.session().await;
    let mut execution = session.exec(Exec::new(["true"])).await.unwrap();
    assert_eq!(execution.next().await, Some(Event::Stdout(bytes::Bytes::from_static(b"hello"))));
    assert!(matches!(execution.next().await, Some(Event::Ended(_))));
    session.stop().await.unwrap();
    assert!(matches!(session.exec(Exec::new(["true"])).await, Err(SessionError::Lost { .. })));
    assert_eq!(stage.end(), End::Stopped);
    guest.join().unwrap();
}
