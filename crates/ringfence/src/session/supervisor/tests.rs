//! Guests that lie, flood, stall or die, and clients that do: played by the test at the other end of the channel.
#![allow(clippy::disallowed_methods, reason = "tests ask how they were started")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringfence_guest::frame::{self, Channel, Decoder, Kind, MAX_REQUEST, WINDOW};
use ringfence_guest::message::{self, Change, Changed, Entry, EntryKind, Exited, Input, Reply, Request};
use ringfence_policy::{Inputs, Layer, resolve};
use rustix::net::RecvFlags;

use super::super::ExecutionState;
use super::super::error::unexpected;
use super::super::pipes::Outbox;
use super::super::place::Place;
use super::super::protocol::{ClientHello, ClientRequest, ExecRequest, GREETING};
use super::super::{Event, Exec, Output, Session, SessionError, Sessions};
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

    /// The next frame but grants of streams; `None` at the end.
    fn next(&mut self) -> Option<(u32, Kind, Vec<u8>)> {
        std::iter::from_fn(|| self.next_of_all()).find(|(stream, kind, _)| (*stream, *kind) != (0, Kind::Input))
    }

    fn next_of_all(&mut self) -> Option<(u32, Kind, Vec<u8>)> {
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

/// What a client says first.
fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::put_message(&mut bytes, 0, Kind::Input, &ClientHello { greeting: GREETING }).unwrap();
    bytes
}

/// A supervisor in a thread, a session that is connected to it, and its guest: `play` is what that does.
fn with_guest<T: Send + 'static>(
    play: impl FnOnce(Guest) -> T + Send + 'static,
) -> (Stage, std::thread::JoinHandle<T>) {
    with_records(false, play)
}

/// The same, with records in the directory of the stage.
fn with_records<T: Send + 'static>(
    recorded: bool,
    play: impl FnOnce(Guest) -> T + Send + 'static,
) -> (Stage, std::thread::JoinHandle<T>) {
    let dir = tempfile::tempdir().unwrap();
    let policy = ringfence_policy::records::Records { output: true, ..Default::default() };
    let records = record::Wanted { dir: dir.path().join("records"), policy, strict: false };
    with_records_in(dir, recorded.then_some(records), play)
}

/// The same, with these records.
fn with_records_in<T: Send + 'static>(
    dir: tempfile::TempDir,
    records: Option<record::Wanted>,
    play: impl FnOnce(Guest) -> T + Send + 'static,
) -> (Stage, std::thread::JoinHandle<T>) {
    with_greeting(message::GREETING, dir, records, play)
}

/// The same, with a guest that greets like this.
fn with_greeting<T: Send + 'static>(
    greeting: frame::Greeting,
    dir: tempfile::TempDir,
    records: Option<record::Wanted>,
    play: impl FnOnce(Guest) -> T + Send + 'static,
) -> (Stage, std::thread::JoinHandle<T>) {
    with_sandbox(None, greeting, dir, records, play)
}

/// The same, in this sandbox.
fn with_sandbox<T: Send + 'static>(
    sandbox: Option<Box<dyn GuestSandbox>>,
    greeting: frame::Greeting,
    dir: tempfile::TempDir,
    records: Option<record::Wanted>,
    play: impl FnOnce(Guest) -> T + Send + 'static,
) -> (Stage, std::thread::JoinHandle<T>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut guest = Guest { socket: theirs, decoder: Decoder::new(MAX_REQUEST) };
    let mut bytes = Vec::new();
    frame::put_message(&mut bytes, 0, Kind::Reply, &greeting).unwrap();
    guest.socket.write_all(&bytes).unwrap();

    let place = Place::new(&dir.path().join("sessions"));
    let fresh = place.make(None).unwrap();
    let start = SessionStart { id: fresh.id.clone(), records, ..start(dir.path(), &place) };
    let (id, lock) = (fresh.id, fresh.lock);
    let (tell, task) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _lock = lock;
        // Whoever does not ask does not listen.
        let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
        Supervisor::own(start, sandbox, ours.into()).unwrap().run().unwrap();
    });
    let sessions = Sessions::new(place.dir(), "/nonexistent");
    let stage = Stage { _dir: dir, sessions, id, place, thread, task };
    (stage, std::thread::spawn(move || play(guest)))
}

/// What a session in this directory is made from.
pub fn start(dir: &std::path::Path, place: &Place) -> SessionStart {
    let facts = crate::facts::gather().unwrap();
    let mut layer = Layer::flags();
    layer.profile("shell");
    let project = dir.join("project");
    std::fs::create_dir(&project).unwrap();
    let policy = resolve(Inputs::new(project.canonicalize().unwrap(), facts.home.clone(), layer)).unwrap().policy;
    SessionStart {
        dir: place.dir().to_path_buf(),
        id: String::new(),
        name: None,
        profile: "shell".to_owned(),
        policy: String::new(),
        workdir: policy.workdir().to_path_buf(),
        engine: "native".to_owned(),
        plan: ringfence_policy::plan::plan_guest(&policy, &facts).unwrap(),
        facts,
        report: Report { engine: "native".into(), guarantees: Vec::new(), devices: Vec::new() },
        idle: None,
        life: None,
        records: None,
        requirements: Vec::new(),
        rules: policy.rules.clone(),
        keys: dir.join("homes"),
    }
}

mod helpers;
mod host_streams;
mod quiet;
mod stalled;
mod usage;
mod versions;

/// A session whose guest is a real one.
pub fn real_session() -> RealSession {
    real_session_of(|_| {})
}

/// The same, made like this.
fn real_session_of(make: impl FnOnce(&mut SessionStart)) -> RealSession {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    let fresh = place.make(None).unwrap();
    let mut start = SessionStart { id: fresh.id.clone(), ..start(dir.path(), &place) };
    make(&mut start);
    let supervisor = Supervisor::make(start).unwrap();
    let guest = supervisor.tree.running.as_ref().and_then(|running| running.process_id());
    let (tell, task) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _lock = fresh.lock;
        // A test that does not ask does not listen.
        let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
        supervisor.run().unwrap();
    });
    RealSession { _dir: dir, place, id: fresh.id, thread, guest, task }
}

pub struct RealSession {
    _dir: tempfile::TempDir,
    place: Place,
    id: String,
    thread: std::thread::JoinHandle<()>,
    /// The process of its guest, and the number of the supervisor's thread.
    guest: Option<i32>,
    task: std::sync::mpsc::Receiver<i32>,
}

impl RealSession {
    pub fn socket(&self) -> PathBuf {
        self.place.socket(&self.id)
    }

    pub fn place(&self) -> Place {
        self.place.clone()
    }

    /// It was stopped.
    pub fn ended(self) {
        self.thread.join().unwrap();
        assert_eq!(self.place.kept(&self.id).unwrap().info.state, State::Ended(End::Stopped));
    }
}

/// What is written about a session in this directory.
pub fn kept(dir: &std::path::Path) -> StateFile {
    let start = start(dir, &Place::new(&dir.join("sessions")));
    let info = Info {
        profile: start.profile,
        engine: "native".to_owned(),
        workdir: start.workdir,
        workdir_inside: start.plan.workdir,
        created: SystemTime::now(),
        output: 1,
        ..Info::unknown("")
    };
    StateFile { info, report: start.report, ended: None }
}

struct Stage {
    _dir: tempfile::TempDir,
    sessions: Sessions,
    id: String,
    place: Place,
    thread: std::thread::JoinHandle<()>,
    /// The number of that thread.
    task: std::sync::mpsc::Receiver<i32>,
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
            State::Live | State::Unknown => panic!("it lives"),
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
    let output = session.exec(Exec::new(["true"])).await.unwrap().output().await.unwrap();
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
            // Its client reads and grants all the while.
            for _ in 0..100 * WINDOW / 65536 {
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
    let outcome = session.exec(exec).await.unwrap().output().await.unwrap().outcome;
    assert_eq!(outcome.reason, Some(Reason::Time));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(stage.end(), End::Unruly);
    assert_eq!(guest.join().unwrap(), [libc::SIGTERM, libc::SIGKILL]);
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
        frame::put_message(&mut bytes, stream, Kind::Open, &ClientRequest::Info).unwrap();
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
        client.write_all(&[hello(), attack].concat()).unwrap();
        // Shown out: everything up to the end is read, and it ends.
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).expect("the end of the connection");
    }
    // One that does not greet.
    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.write_all(&open(1)).unwrap();
    client.read_to_end(&mut Vec::new()).expect("the end of the connection");
    // Pipes that are promised and do not come, are too few, or are none.
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let pipe = || rustix::pipe::pipe().unwrap().1;
    // A directory would lead the command to the host, and so would a handle of anything.
    let directory = || OwnedFd::from(std::fs::File::open("/").unwrap());
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let handle = || rustix::fs::open(&fifo, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let unfit = [vec![pipe(), directory()], vec![directory(), pipe()], vec![pipe(), handle()]];
    for fds in [vec![], vec![pipe()], vec![null(), null()], vec![pipe(), null()]].into_iter().chain(unfit) {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let ask = ExecRequest {
            argv: vec![b"true".to_vec()],
            env: Vec::new(),
            cwd: None,
            terminal: None,
            stdin: false,
            timeout_ms: None,
            background: false,
            context: None,
            piped: true,
            caller: None,
        };
        let mut out = Outbox::default();
        out.message(0, Kind::Input, &ClientHello { greeting: GREETING }, Vec::new()).unwrap();
        out.message(0, Kind::Input, &ClientHello { greeting: GREETING }, Vec::new()).unwrap();
        out.message(1, Kind::Open, &ClientRequest::Exec(ask), fds).unwrap();
        out.flush(client.as_fd()).unwrap();
        client.read_to_end(&mut Vec::new()).expect("the end of the connection");
    }
    // One that stalls in the middle of a frame is nobody's trouble.
    let mut stalled = UnixStream::connect(&socket).unwrap();
    stalled.write_all(&[hello(), open(1)].concat()[..20]).unwrap();
    let session = stage.session().await;
    let mut execution = session.exec(Exec::new(["true"])).await.unwrap();
    assert_eq!(execution.next().await.unwrap(), Some(Event::Stdout(bytes::Bytes::from_static(b"hello"))));
    assert!(matches!(execution.next().await.unwrap(), Some(Event::Ended(_))));
    session.stop().await.unwrap();
    assert!(matches!(session.exec(Exec::new(["true"])).await, Err(SessionError::Lost { .. })));
    assert_eq!(stage.end(), End::Stopped);
    guest.join().unwrap();
}

#[tokio::test]
async fn what_is_too_long_with_the_sessions_own_is_refused_alone() {
    let (stage, guest) = with_guest(|mut guest| {
        let stream = guest.take_exec();
        guest.exit(stream);
        while guest.next().is_some() {}
    });
    let session = stage.session().await;
    // Just what fits; the working directory and the environment come on top.
    let name = "x".repeat(MAX_REQUEST - 32);
    let refused = in_time(session.exec(Exec::new(["true", &name]))).await.unwrap_err();
    assert!(matches!(refused, SessionError::Execute { errno: Errno::TOOBIG, .. }), "{refused}");
    let refused = in_time(session.files().stat("x".repeat(MAX_REQUEST - 8))).await.unwrap_err();
    assert!(matches!(refused, SessionError::File { errno: Errno::TOOBIG, .. }));
    assert_eq!(in_time(session.exec(Exec::new(["true"]))).await.unwrap().output().await.unwrap().exit_code(), Some(0));
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    guest.join().unwrap();
}

/// What a mistake would make wait forever.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("an answer in time")
}

#[test]
fn an_execution_is_not_forgotten_before_its_end_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = crate::records::Recorder::new(dir.path(), crate::records::Redactor::default(), None);
    let finished =
        super::super::protocol::ExecutionEnd { status: 0, reason: None, duration_us: 1, cpu_us: 1, peak_memory: 1 };
    let mut executions = Executions::default();
    for id in 0..200 {
        let mut execution = executions::Execution::new(id, 0, &[b"true".to_vec()], false, 0);
        execution.finished = Some(finished);
        execution.recorder = (id == 0).then(|| recorder.clone());
        executions.all.insert(id, execution);
    }
    executions.trim();
    assert_eq!(executions.all.len(), 65);
    executions.all.get_mut(&0).unwrap().recorder = None;
    executions.trim();
    assert_eq!((executions.all.len(), executions.all.contains_key(&0)), (64, false));
}

#[tokio::test]
async fn data_for_a_connection_that_does_not_stand_yet_is_the_clients_fault_alone() {
    let (stage, guest) = with_guest(|mut guest| {
        let mut data = 0;
        while let Some((stream, kind, _)) = guest.next() {
            match kind {
                // The second one stands.
                Kind::Open if stream == 2 => guest.reply(stream, &Reply::Started { pid: 0 }),
                Kind::Data(Channel::In) => data += 1,
                _ => {}
            }
        }
        data
    });
    // Which is there by now.
    let session = stage.session().await;
    let connect = ClientRequest::ConnectPort { port: 80 };
    let mut bytes = hello();
    frame::put_message(&mut bytes, 1, Kind::Open, &connect).unwrap();
    frame::put(&mut bytes, 1, Kind::Data(Channel::In), b"x");
    let mut client = UnixStream::connect(stage.place.socket(&stage.id)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.write_all(&bytes).unwrap();
    client.read_to_end(&mut Vec::new()).expect("the end of the connection");

    let mut port = in_time(session.connect(80)).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut port, b"hello").await.unwrap();
    // Answered behind it.
    session.info().await.unwrap();
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    assert_eq!(guest.join().unwrap(), 1);
}

#[test]
fn of_a_home_no_secret_is_kept_and_none_is_kept_of_what_does_not_stand() {
    use super::super::homes::{HomeFile, Homes};
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    let mut start = start(dir.path(), &place);
    start.facts.env.insert("API_TOKEN".into(), "hunter2hunter2".into());
    start.facts.env.insert("DOCKER_HOST".into(), "unix:///elsewhere".into());
    start.engine = "docker".to_owned();
    let homes = Homes::new(&dir.path().join("homes"));
    homes.keep("mine", &HomeFile::new("first".to_owned(), &start)).unwrap();
    let bytes = std::fs::read(dir.path().join("homes/mine")).unwrap();
    assert!(!bytes.windows(7).any(|window| window == b"hunter2"));
    let again = homes.find("mine").unwrap().start_now(crate::facts::gather().unwrap()).unwrap();
    assert_eq!(again.facts.env.get(std::ffi::OsStr::new("DOCKER_HOST")), Some(&"unix:///elsewhere".into()));
    // Facts of today.
    assert_eq!(again.facts.env.get(std::ffi::OsStr::new("PATH")), std::env::var_os("PATH").as_ref());

    let start_in = |homes: &Homes, name: &str| {
        let home = HomeFile::new("second".to_owned(), &start);
        super::super::start_in(&place, "/nonexistent".as_ref(), homes, Some(name), start.clone(), Some(&home))
    };
    // What was kept before is kept again.
    assert!(start_in(&homes, "mine").is_err());
    assert_eq!(homes.find("mine").unwrap().hash, "first");
    assert!(start_in(&homes, "other").is_err() && homes.find("other").is_none());
    // What cannot be kept is not started.
    std::fs::write(dir.path().join("file"), "").unwrap();
    let nowhere = Homes::new(&dir.path().join("file"));
    assert!(matches!(start_in(&nowhere, "mine"), Err(SessionError::Directory { .. })));
    assert!(place.ids().is_empty());
}

#[tokio::test]
async fn only_open_starts_a_session_with_a_home_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    let homes = dir.path().join("homes");
    let home = super::super::homes::HomeFile::new(String::new(), &start(dir.path(), &place));
    super::super::homes::Homes::new(&homes).keep("mine", &home).unwrap();
    let host = crate::Host::here().unwrap();
    let sessions = Sessions::new(place.dir(), "/nonexistent").homes(&homes).on(host);
    assert!(matches!(sessions.open_live("mine").await, Err(SessionError::NotFound(_))));
    assert!(!matches!(sessions.open("mine").await, Ok(_) | Err(SessionError::NotFound(_))));
}

#[tokio::test]
async fn a_session_that_is_being_made_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    let making = place.make(Some("slow")).unwrap();
    let sessions = Sessions::new(place.dir(), "/nonexistent");
    let start = Instant::now();
    assert!(sessions.list().await.unwrap().is_empty());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // Given up after the time that making one may take.
    let removed = tokio::time::timeout(Duration::from_secs(40), sessions.remove("slow")).await.expect("an end");
    assert!(matches!(removed, Err(SessionError::Connect { .. })));
    drop(making.lock);
    sessions.remove("slow").await.unwrap();
    assert!(place.ids().is_empty());
}

#[test]
fn every_path_of_a_start_may_be_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let mut start = start(dir.path(), &Place::new(&dir.path().join("sessions")));
    let odd = || PathBuf::from(std::ffi::OsStr::from_bytes(b"/odd/\xff"));
    (start.dir, start.workdir, start.plan.workdir, start.keys) = (odd(), odd(), odd(), odd());
    start.facts.registries = vec![odd()];
    start.plan.owner = Some(ringfence_policy::plan::Owner { at: odd(), uid: 1, gid: 1 });
    let again: SessionStart = document::unpack(&document::pack(&start).unwrap()).unwrap();
    assert_eq!(format!("{again:?}"), format!("{start:?}"));
}

#[tokio::test]
async fn answers_that_nobody_reads_take_bounded_memory() {
    let (tell, told) = std::sync::mpsc::channel();
    let (stage, guest) = with_guest(move |mut guest| {
        let (watch, ..) = guest.next().unwrap();
        guest.reply(watch, &Reply::Started { pid: 0 });
        let changed = Changed { path: vec![b'x'; 60_000], change: Change::Written };
        let mut sent = 0;
        // Until the client has had enough; not so fast that the supervisor has.
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        while sent < 1000 && rustix::net::recv(&guest.socket, &mut [0u8], look).is_err() {
            guest.reply(watch, &Reply::Changed(changed.clone()));
            sent += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
        tell.send(()).unwrap();
        while guest.next().is_some() {}
        sent
    });
    let session = stage.session().await;
    let mut changes = in_time(session.files().watch("/", true)).await.unwrap();
    // The connection is read all the while.
    in_time(tokio::task::spawn_blocking(move || told.recv())).await.unwrap().unwrap();
    let mut seen = 0;
    let end = loop {
        match in_time(changes.next()).await {
            Ok(changed) => seen += usize::from(changed.change == Change::Written),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, SessionError::TooMany { .. }), "{end}");
    assert!((200..=(16 << 20) / 60_000 + 1).contains(&seen), "{seen}");
    // The session goes on.
    session.info().await.unwrap();
    session.stop().await.unwrap();
    assert!(guest.join().unwrap() < 1000);
}

#[tokio::test]
async fn a_list_without_end_is_refused() {
    let (stage, guest) = with_guest(|mut guest| {
        let (list, ..) = guest.next().unwrap();
        let entry =
            Entry { path: vec![b'x'; 60_000], kind: EntryKind::File, size: 0, mode: 0, modified: 0, target: None };
        for _ in 0..1300 {
            guest.reply(list, &Reply::Entries(vec![entry.clone()]));
            // Not so fast that the client is taken for one that does not read.
            std::thread::sleep(Duration::from_millis(1));
        }
        while guest.next().is_some() {}
    });
    let session = stage.session().await;
    let listed = tokio::time::timeout(Duration::from_secs(60), session.files().list("/", 9)).await.expect("an end");
    assert!(matches!(listed, Err(SessionError::TooLong { .. })), "{:?}", listed.map(|all| all.len()));
    session.stop().await.unwrap();
    drop(stage);
    guest.join().unwrap();
}

#[tokio::test]
async fn changes_that_a_client_does_not_take_are_not_kept_for_it() {
    const CHANGES: usize = 500;
    let (tell, told) = std::sync::mpsc::channel();
    let (stage, guest) = with_guest(move |mut guest| {
        let (watch, ..) = guest.next().unwrap();
        guest.reply(watch, &Reply::Started { pid: 0 });
        for _ in 0..CHANGES {
            guest.reply(watch, &Reply::Changed(Changed { path: vec![b'x'; 60_000], change: Change::Written }));
        }
        // Taken by the supervisor, all of it: this comes after.
        let (ping, ..) = guest.next().unwrap();
        guest.reply(ping, &Reply::Done { bytes: 0 });
        tell.send(()).unwrap();
        while guest.next().is_some() {}
    });
    let session = stage.session().await;
    let watch = ClientRequest::Watch { path: b"/".to_vec(), recursive: true };
    let mut bytes = hello();
    frame::put_message(&mut bytes, 1, Kind::Open, &watch).unwrap();
    let mut client = UnixStream::connect(stage.place.socket(&stage.id)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(&bytes).unwrap();
    // Somebody else is not held up.
    std::thread::sleep(Duration::from_millis(200));
    in_time(session.files().stat("x")).await.unwrap_err();
    in_time(tokio::task::spawn_blocking(move || told.recv())).await.unwrap().unwrap();
    // Now it reads: some changes, and that it missed others.
    let (mut decoder, mut buffer, mut seen) = (Decoder::new(MAX_REQUEST), vec![0; 1 << 16], 0);
    let missed = 'all: loop {
        let n = client.read(&mut buffer).expect("that some were missed");
        decoder.feed(&buffer[..n]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            if frame.stream == 0 {
                continue;
            }
            if let Ok(super::super::protocol::SupervisorReply::Changed(changed)) = frame.message() {
                match changed.change {
                    Change::Overflow => break 'all true,
                    _ => seen += 1,
                }
            }
        }
    };
    assert!(missed && seen < 50, "{seen}");
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    guest.join().unwrap();
}

/// Plays a guest that stalls in its own way while somebody asks something of it; how the session ended, and when.
async fn stalls<T>(
    play: impl FnOnce(Guest) + Send + 'static,
    ask: impl AsyncFnOnce(Session) -> Result<T, SessionError>,
) -> (End, Duration) {
    let (stage, guest) = with_guest(play);
    let session = stage.session().await;
    let start = Instant::now();
    let asked = tokio::time::timeout(Duration::from_secs(90), ask(session)).await.expect("an answer in time");
    assert!(asked.is_err());
    let took = start.elapsed();
    let end = tokio::task::spawn_blocking(|| stage.end()).await.unwrap();
    guest.join().unwrap();
    (end, took)
}

/// Waits for a command and takes all it is told, without a word.
fn swallow(mut guest: Guest) {
    while guest.next().is_some() {}
}

/// Runs a command that is lost, begun or not: nobody can say that it was not.
async fn run_and_lose(session: Session) -> Result<Output, SessionError> {
    let output = session.exec(Exec::new(["true"]).timeout(Duration::from_secs(600))).await?.output().await.unwrap();
    if output.outcome.reason == Some(Reason::Lost) { Err(unexpected()) } else { Ok(output) }
}

#[tokio::test]
async fn a_guest_that_stalls_ends_its_own_session() {
    // It reads, and never answers.
    let stat = stalls(swallow, async |session| session.files().stat("x").await);
    let port = stalls(swallow, async |session| session.connect(80).await);
    let exec = stalls(swallow, run_and_lose);
    let watch = stalls(swallow, async |session| session.files().watch("/", true).await);
    // It began, and says nothing any more, although something more is asked.
    let begun = stalls(
        |mut guest| {
            guest.take_exec();
            swallow(guest);
        },
        async |session| {
            let mut exec = session.exec(Exec::new(["cat"]).stdin(true).timeout(Duration::from_secs(600))).await?;
            exec.write(b"x").await?;
            let output = exec.output().await?;
            if output.outcome.reason == Some(Reason::Lost) { Err(unexpected()) } else { Ok(output) }
        },
    );
    // It does not even read.
    let deaf = stalls(
        |mut guest| {
            guest.take_exec();
            // Until it is gone.
            while rustix::net::send(&guest.socket, &[], rustix::net::SendFlags::NOSIGNAL).is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        },
        async |session| {
            let mut exec = session.exec(Exec::new(["cat"]).stdin(true)).await?;
            loop {
                // Dropped once it has ended, and then without waiting.
                exec.write(&[0; 65536]).await?;
                tokio::task::yield_now().await;
                if session.is_closed() {
                    return Err::<(), _>(unexpected());
                }
            }
        },
    );
    // One that takes its time, and is there.
    let slow = async {
        let (stage, guest) = with_guest(|mut guest| {
            let (stat, kind, _) = guest.next().unwrap();
            assert_eq!(kind, Kind::Open);
            let (mut pings, start) = (0, Instant::now());
            while start.elapsed() < Duration::from_secs(40) {
                let (ping, kind, payload) = guest.next().unwrap();
                assert!(kind == Kind::Open && matches!(postcard::from_bytes(&payload), Ok(Request::Ping)));
                guest.reply(ping, &Reply::Done { bytes: 0 });
                pings += 1;
            }
            guest.reply(stat, &Reply::Failed { step: message::Step::Open, errno: libc::ENOENT });
            swallow(guest);
            pings
        });
        let session = stage.session().await;
        session.files().stat("x").await.unwrap_err();
        session.stop().await.unwrap();
        drop(session);
        let end = tokio::task::spawn_blocking(|| stage.end()).await.unwrap();
        (end, guest.join().unwrap())
    };
    let (stat, port, exec, watch, begun, deaf, (end, pings)) = tokio::join!(stat, port, exec, watch, begun, deaf, slow);
    for (what, (end, took)) in
        [("stat", stat), ("port", port), ("exec", exec), ("watch", watch), ("begun", begun), ("deaf", deaf)]
    {
        assert_eq!(end, End::Unruly, "{what}");
        assert!((25..60).contains(&took.as_secs()), "{what} {took:?}");
    }
    assert_eq!(end, End::Stopped);
    assert!((6..=9).contains(&pings), "{pings}");
}

#[tokio::test]
async fn what_is_held_or_runs_is_in_use() {
    let (stage, guest) = with_guest(|mut guest| {
        let stream = guest.take_exec();
        std::thread::sleep(Duration::from_secs(2));
        guest.exit(stream);
        swallow(guest);
    });
    let session = stage.session().await;
    session.extend(None, Some(Duration::from_millis(1200))).await.unwrap();
    assert!(session.info().await.unwrap().idle_at.is_some());
    // A command that runs.
    let execution = session.exec(Exec::new(["true"])).await.unwrap();
    assert_eq!(session.info().await.unwrap().idle_at, None);
    assert_eq!(execution.output().await.unwrap().exit_code(), Some(0));
    // Somebody who holds it: nothing is asked for longer than it may be idle.
    let held = session.hold().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(session.info().await.unwrap().idle_at, None);
    drop(held);
    in_time(session.closed()).await;
    assert_eq!(stage.end(), End::Idle);
    guest.join().unwrap();
}

#[tokio::test]
async fn data_for_a_write_through_a_pipe_is_the_clients_fault_alone() {
    let (stage, guest) = with_guest(|mut guest| {
        let mut data = 0;
        while let Some((_, kind, _)) = guest.next() {
            data += usize::from(matches!(kind, Kind::Data(_)));
        }
        data
    });
    let session = stage.session().await;
    let write = ClientRequest::WriteFile {
        path: b"x".to_vec(),
        permissions: 0o644,
        parents: false,
        mode: super::super::WriteMode::Replace,
        piped: true,
    };
    let mut out = Outbox::default();
    out.message(0, Kind::Input, &ClientHello { greeting: GREETING }, Vec::new()).unwrap();
    out.message(1, Kind::Open, &write, vec![rustix::pipe::pipe().unwrap().0]).unwrap();
    out.put(1, Kind::Data(Channel::In), b"");
    out.put(1, Kind::Data(Channel::In), b"x");
    let mut client = UnixStream::connect(stage.place.socket(&stage.id)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    out.flush(client.as_fd()).unwrap();
    client.read_to_end(&mut Vec::new()).expect("the end of the connection");
    session.info().await.unwrap();
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    assert_eq!(guest.join().unwrap(), 0);
}

#[test]
fn whoever_can_thaw_it_is_heard() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut bytes = Vec::new();
    frame::put_message(&mut bytes, 0, Kind::Reply, &message::GREETING).unwrap();
    theirs.write_all(&bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    let fresh = place.make(None).unwrap();
    let start = SessionStart { id: fresh.id.clone(), ..start(dir.path(), &place) };
    let mut supervisor = Supervisor::own(start, None, ours.into()).unwrap();
    while !supervisor.guest.is_full() {
        supervisor.guest.wire.put(1, Kind::Data(Channel::In), &[0; 65536]);
    }
    supervisor.guest.wire.put(1, Kind::Data(Channel::In), &[0; 1 << 20]);
    for frozen in [false, true, false] {
        supervisor.tree.frozen = frozen.then(Instant::now);
        supervisor.flush();
        assert!(supervisor.guest.is_full());
        assert_eq!(supervisor.clients.paused, !frozen);
    }
}

#[tokio::test]
async fn pipes_of_a_request_that_is_not_known_are_nobody_elses() {
    let (stage, guest) = with_guest(swallow);
    let session = stage.session().await;
    let heard = |pipes: Vec<OwnedFd>, last: u32| {
        let mut out = Outbox::default();
        out.message(0, Kind::Input, &ClientHello { greeting: GREETING }, Vec::new()).unwrap();
        // The number of a request that no release has.
        out.message(1, Kind::Open, &2000u32, pipes).unwrap();
        let mut client = UnixStream::connect(stage.place.socket(&stage.id)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        out.flush(client.as_fd()).unwrap();
        let (mut decoder, mut buffer, mut streams) = (Decoder::new(MAX_REQUEST), vec![0; 1 << 16], Vec::new());
        while !streams.contains(&last) {
            let n = client.read(&mut buffer).expect("an answer, or the end");
            if n == 0 {
                return (streams, true);
            }
            decoder.feed(&buffer[..n]);
            while let Some(frame) = decoder.next_frame().unwrap() {
                streams.push(frame.stream);
            }
        }
        (streams, false)
    };
    // Both hear that it is not known; the one that brought pipes is dropped then.
    assert_eq!(heard(Vec::new(), 1), (vec![0, 1], false));
    assert_eq!(heard(vec![rustix::pipe::pipe().unwrap().0], 2), (vec![0, 1], true));
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    guest.join().unwrap();
}

#[tokio::test]
async fn a_record_knows_for_whom_it_was_and_not_what_is_secret_to_them() {
    let (stage, guest) = with_records(true, |mut guest| {
        let stream = guest.take_exec();
        guest.send(stream, Kind::Data(Channel::Out), b"it is hunter2hunter2, and the door is open");
        guest.exit(stream);
        // Not even tried: the next is the last.
        let lost = guest.take_exec();
        swallow(guest);
        lost
    });
    let session = stage.session().await;
    let secret = "hunter2hunter2";
    let ask = ExecRequest {
        argv: vec![b"echo".to_vec(), secret.into(), b"the door".to_vec()],
        env: Vec::new(),
        cwd: None,
        terminal: None,
        stdin: false,
        timeout_ms: None,
        background: true,
        context: None,
        piped: false,
        caller: Some(crate::records::Caller { uid: 4711, pid: 77, program: Some("agent\x1b".to_owned()) }),
    };
    let introduce = ClientRequest::Environment {
        variables: vec![format!("MY_API_KEY={secret}").into(), b"PLACE=the door".to_vec()],
    };
    let mut client = UnixStream::connect(stage.place.socket(&stage.id)).unwrap();
    let mut out = Outbox::default();
    out.message(0, Kind::Input, &ClientHello { greeting: GREETING }, Vec::new()).unwrap();
    out.message(1, Kind::Open, &introduce, Vec::new()).unwrap();
    out.message(2, Kind::Open, &ClientRequest::Exec(ask), Vec::new()).unwrap();
    out.flush(client.as_fd()).unwrap();
    while session.executions().await.unwrap().first().is_none_or(|one| one.state == ExecutionState::Running) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let _ = client.read(&mut [0; 64]).unwrap();
    // One that is refused has a record as well.
    let long = Exec::new(["refused"]).timeout(Duration::from_secs(999_999));
    assert!(matches!(session.exec(long).await, Err(SessionError::TimeoutAboveCeiling { .. })));
    let lost = session.exec(Exec::new(["lost"])).await.unwrap();
    session.stop().await.unwrap();
    assert_eq!(lost.output().await.unwrap().outcome.reason, Some(Reason::Lost));
    let Stage { _dir: dir, thread, .. } = stage;
    thread.join().unwrap();
    guest.join().unwrap();

    let journal = crate::records::Journal::new(&dir.path().join("records"));
    let text = std::fs::read_to_string(journal.dir().join("journal")).unwrap();
    assert!(!text.contains("hunter2") && text.contains("the door is open"), "{text}");
    let place = crate::records::Place::File(dir.path().join("records.db"));
    let mut store = crate::records::Store::open(&place).unwrap();
    store.refresh(&journal).unwrap();
    let list = |store: &mut crate::records::Store, status| {
        let filter = crate::records::Filter { status: Some(status), ..Default::default() };
        store.list(&filter).unwrap()
    };
    let exited = &list(&mut store, crate::records::Status::Exited)[0];
    assert_eq!(exited.command, ["echo", "[redacted]", "the door"]);
    let caller = exited.caller.as_ref().unwrap();
    assert_eq!((caller.uid, caller.pid), (rustix::process::getuid().as_raw(), 77));
    assert_eq!(caller.program.as_deref(), Some("agent\\u{1b}"));
    let failed = &list(&mut store, crate::records::Status::Failed)[0];
    assert_eq!(failed.command, ["refused"]);
    assert!(failed.error.as_ref().unwrap().contains("above the ceiling"), "{:?}", failed.error);
    // This process asked for itself.
    assert_eq!(failed.caller.as_ref().unwrap().pid, std::process::id() as i32);
    let lost = &list(&mut store, crate::records::Status::Lost)[0];
    assert_eq!((&lost.command[..], lost.status), (&["lost".to_owned()][..], crate::records::Status::Lost));
    assert_eq!((lost.signal, lost.reason.as_deref()), (None, Some("lost")));
    assert!(list(&mut store, crate::records::Status::Signaled).is_empty());
}

#[tokio::test]
async fn one_that_is_moved_away_ends_at_once() {
    let (stage, guest) = with_guest(swallow);
    let session = stage.session().await;
    // Something else happens to its lock first, and it stays.
    let lock = stage.place.lock_of(&stage.id);
    std::fs::set_permissions(&lock, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    session.info().await.unwrap();
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    // Of a second one no file is touched.
    let (other, its_guest) = with_guest(swallow);
    let session = other.session().await;
    std::fs::rename(other.place.dir(), other.place.dir().with_file_name("elsewhere")).unwrap();
    let start = Instant::now();
    in_time(session.closed()).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    its_guest.join().unwrap();
    guest.join().unwrap();
}
