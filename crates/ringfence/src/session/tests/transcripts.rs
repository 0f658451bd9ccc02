//! A conversation of a client and a supervisor of the first release of their protocol, kept as bytes in `transcript.txt`.
//! The recorded client is played to the current supervisor, with a real guest, and the recorded supervisor to the current
//! client. Where the file is missing it is recorded when `RINGFENCE_BLESS=1` asks for it; then it is no longer one of the
//! first release.
//!
//! A line is a frame: `C` from the client, `S` from the supervisor.
#![allow(clippy::disallowed_methods, reason = "tests ask how they were started")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use ringfence_guest::frame::{self, Channel, Decoder, Greeting, Kind, MAX_REQUEST};

use super::super::info::{ExecutionInfo, Info};
use super::super::link::Link;
use super::super::place::Place;
use super::super::protocol::{
    ClientHello, ClientInput, ClientRequest, GREETING, Refusal, SupervisorHello, SupervisorReply,
};
use super::super::supervisor::tests::real_session;
use super::super::{Exec, Session, SessionError, WriteOptions, document};
use crate::report::Report;

#[derive(Debug, Clone, PartialEq)]
struct Line {
    from_client: bool,
    stream: u32,
    kind: Kind,
    payload: Vec<u8>,
}

impl Line {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, self.stream, self.kind, &self.payload);
        bytes
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/session/tests/transcript.txt")
}

/// The recorded lines, in their order.
fn recorded() -> Vec<Line> {
    let text = std::fs::read_to_string(file()).unwrap();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let line = |line: &str| {
        let (who, hex) = line.split_once(' ').unwrap();
        let bytes: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
        frames(who == "C", &mut Decoder::new(MAX_REQUEST), &bytes).remove(0)
    };
    text.lines().map(line).collect()
}

fn frames(from_client: bool, decoder: &mut Decoder, bytes: &[u8]) -> Vec<Line> {
    decoder.feed(bytes);
    let mut lines = Vec::new();
    while let Some(frame) = decoder.next_frame().unwrap() {
        let (stream, kind, payload) = (frame.stream, frame.kind, frame.payload.to_vec());
        lines.push(Line { from_client, stream, kind, payload });
    }
    lines
}

/// A client's side of the conversation. No pipe is used, since none can be kept in a file.
async fn converse(path: &Path, place: Place) {
    let greeting = Greeting { features: 0, ..GREETING };
    let link = Link::connect_as(greeting, "s-0", path, None, Instant::now()).await.unwrap();
    // Asked before anything is assumed.
    let session = Session { link, place };
    assert_eq!(session.info().await.unwrap().profile, "shell");
    assert_eq!(session.report().await.unwrap().engine, "native");
    let script = "printf hello; printf oops >&2; exit 3";
    let output = session.exec(Exec::new(["sh", "-c", script])).await.unwrap().output().await.unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..], output.exit_code()), (&b"hello"[..], &b"oops"[..], Some(3)));
    let mut cat = session.exec(Exec::new(["cat"]).stdin(true)).await.unwrap();
    cat.write(b"as it came").await.unwrap();
    cat.close_stdin().await.unwrap();
    assert_eq!(cat.output().await.unwrap().stdout, b"as it came");
    let missing = session.exec(Exec::new(["/no/such/program"])).await.unwrap_err();
    assert!(matches!(missing, SessionError::Execute { .. }), "{missing}");
    assert_eq!(session.executions().await.unwrap().len(), 2);
    let files = session.files();
    files.write("notes/a", b"contents", WriteOptions { parents: true, ..Default::default() }).await.unwrap();
    assert_eq!(files.list("notes", 1).await.unwrap()[0].path, b"a");
    assert_eq!(files.read("notes/a", 100).await.unwrap(), b"contents");
    files.rename("notes/a", "notes/b", false).await.unwrap();
    assert!(matches!(files.stat("notes/a").await, Err(SessionError::File { .. })));
    files.remove("notes", true).await.unwrap();
    let unknown = session.link.ask_unknown().await.unwrap();
    assert_eq!(unknown, SupervisorReply::Refused(Refusal::UnknownRequest));
    let error = Refusal::UnknownRequest.into_error("s-0").to_string();
    assert!(error.contains("end it and make a new one"), "{error}");
    session.stop().await.unwrap();
}

#[tokio::test]
async fn recording() {
    if file().exists() {
        return;
    }
    let wanted = std::env::var_os("RINGFENCE_BLESS").is_some();
    assert!(
        wanted,
        "transcript.txt is missing; RINGFENCE_BLESS=1 records another one, which is not of the first release"
    );
    let real = real_session();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (supervisor, log) = (real.socket(), Arc::clone(&lines));
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let supervisor = UnixStream::connect(supervisor).unwrap();
        let carry = |from_client: bool, mut from: UnixStream, mut to: UnixStream| {
            let log = Arc::clone(&log);
            std::thread::spawn(move || {
                let (mut decoder, mut buffer) = (Decoder::new(MAX_REQUEST), vec![0; 1 << 16]);
                while let Ok(n @ 1..) = from.read(&mut buffer) {
                    log.lock().unwrap().extend(frames(from_client, &mut decoder, &buffer[..n]));
                    if to.write_all(&buffer[..n]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
            })
        };
        carry(true, client.try_clone().unwrap(), supervisor.try_clone().unwrap());
        carry(false, supervisor, client);
    });
    converse(&path, real.place()).await;
    real.ended();
    let hex = |line: &Line| {
        let bytes: String = line.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {bytes}\n", if line.from_client { "C" } else { "S" })
    };
    let text: String = lines.lock().unwrap().iter().map(hex).collect();
    std::fs::write(file(), text).unwrap();
}

/// What a supervisor said on its streams, without what differs from run to run.
fn said(lines: &[Line]) -> BTreeMap<u32, (Vec<String>, [Vec<u8>; 2])> {
    let mut streams = BTreeMap::<u32, (Vec<String>, [Vec<u8>; 2])>::new();
    for line in lines.iter().filter(|line| !line.from_client) {
        let (replies, data) = streams.entry(line.stream).or_default();
        match line.kind {
            Kind::Reply if line.stream == 0 => {
                let frame = frame::Frame { stream: 0, kind: line.kind, payload: &line.payload };
                let hello: SupervisorHello = frame.message().unwrap();
                replies.push(format!("output {}", hello.output));
            }
            Kind::Reply => {
                let frame = frame::Frame { stream: line.stream, kind: line.kind, payload: &line.payload };
                replies.push(format!("{:?}", masked(frame.message().unwrap())));
            }
            Kind::Data(channel) => data[usize::from(channel == Channel::Err)].extend(&line.payload),
            _ => {}
        }
    }
    streams
}

fn masked(reply: SupervisorReply) -> SupervisorReply {
    match reply {
        SupervisorReply::ExecutionEnded(end) => SupervisorReply::ExecutionEnded(super::super::protocol::ExecutionEnd {
            duration_us: 0,
            cpu_us: 0,
            peak_memory: 0,
            ..end
        }),
        SupervisorReply::Entries(mut entries) => {
            entries.iter_mut().for_each(|entry| entry.modified = 0);
            SupervisorReply::Entries(entries)
        }
        SupervisorReply::Document(bytes) => {
            let text = if let Ok(info) = document::read::<Info>(&bytes) {
                format!("{} {} {:?}", info.profile, info.workdir_inside.display(), info.state)
            } else if let Ok(report) = document::read::<Report>(&bytes) {
                // How each is kept hangs on the host; newer releases promise more.
                format!("report of {}", report.engine)
            } else {
                let all = document::read::<Vec<ExecutionInfo>>(&bytes).unwrap();
                let one = |execution: ExecutionInfo| ExecutionInfo { started: SystemTime::UNIX_EPOCH, ..execution };
                format!("{:?}", all.into_iter().map(one).collect::<Vec<_>>())
            };
            SupervisorReply::Document(text.into_bytes())
        }
        other => other,
    }
}

/// Whether a client says in one line what it says in the other: a field that was added since may be there, without a value.
fn says_the_same(one: &Line, other: &Line) -> bool {
    fn alike<T: frame::Message + PartialEq>(one: &Line, other: &Line) -> bool {
        let said = |line: &Line| {
            frame::Frame { stream: line.stream, kind: line.kind, payload: &line.payload }.message::<T>().ok()
        };
        // What is not known is compared as it came.
        said(one).zip(said(other)).map_or(one.payload == other.payload, |(one, other)| one == other)
    }
    (one.from_client, one.stream, one.kind) == (other.from_client, other.stream, other.kind)
        && match one.kind {
            Kind::Open => alike::<ClientRequest>(one, other),
            Kind::Input if one.stream == 0 => alike::<ClientHello>(one, other),
            Kind::Input => alike::<ClientInput>(one, other),
            _ => one.payload == other.payload,
        }
}

#[test]
fn an_added_field_without_a_value_changes_nothing() {
    let recorded = recorded();
    let asked = |line: &&Line| {
        let frame = frame::Frame { stream: line.stream, kind: line.kind, payload: &line.payload };
        line.kind == Kind::Open && frame.message::<ClientRequest>().is_ok()
    };
    let opens: Vec<&Line> = recorded.iter().filter(asked).collect();
    for line in &opens {
        let grown = Line { payload: [&line.payload[..], &[0, 0]].concat(), ..(*line).clone() };
        assert!(says_the_same(&grown, line), "{line:?}");
    }
    assert!(!says_the_same(&Line { stream: opens[0].stream, ..opens[1].clone() }, opens[0]));
}

#[test]
fn a_client_of_the_first_release_gets_the_same_answers() {
    let real = real_session();
    let lines = recorded();
    let mut socket = UnixStream::connect(real.socket()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (mut decoder, mut buffer, mut heard) = (Decoder::new(MAX_REQUEST), vec![0; 1 << 16], Vec::<Line>::new());
    let replies = |lines: &[Line]| lines.iter().filter(|l| !l.from_client && l.kind == Kind::Reply).count();
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.from_client) {
        // What the client had heard when it said this.
        while replies(&heard) < replies(&lines[..index]) {
            let n = socket.read(&mut buffer).expect("an answer in time");
            assert!(n > 0, "the connection ended before {line:?}; heard {:?}", said(&heard));
            heard.extend(frames(false, &mut decoder, &buffer[..n]));
        }
        socket.write_all(&line.bytes()).unwrap();
    }
    while let n @ 1.. = socket.read(&mut buffer).expect("the end in time") {
        heard.extend(frames(false, &mut decoder, &buffer[..n]));
    }
    assert_eq!(said(&heard), said(&lines));
    real.ended();
}

#[tokio::test]
async fn a_supervisor_of_the_first_release_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let lines = recorded();
    let supervisor = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (mut decoder, mut buffer) = (Decoder::new(MAX_REQUEST), vec![0; 1 << 16]);
        let mut heard = std::collections::VecDeque::new();
        // How far it is with what it has read is a client's own.
        let counts = |line: &Line| !matches!(line.kind, Kind::Credit(_));
        for line in lines.iter().filter(|line| counts(line)) {
            if !line.from_client {
                socket.write_all(&line.bytes()).unwrap();
                continue;
            }
            while heard.is_empty() {
                let n = socket.read(&mut buffer).expect("the next request");
                assert!(n > 0, "the client left before {line:?}");
                heard.extend(frames(true, &mut decoder, &buffer[..n]).into_iter().filter(counts));
            }
            let next: Line = heard.pop_front().unwrap();
            let environment = |line: &Line| {
                let frame = frame::Frame { stream: line.stream, kind: line.kind, payload: &line.payload };
                line.kind == Kind::Open && matches!(frame.message(), Ok(ClientRequest::Environment { .. }))
            };
            assert!(
                says_the_same(&next, line) || environment(&next) && environment(line),
                "{next:?} where it was {line:?}"
            );
        }
    });
    converse(&path, Place::new(&dir.path().join("sessions"))).await;
    supervisor.join().unwrap();
}
