//! The bytes of every message between clients and supervisors, and of the documents that they exchange and store. They may
//! change only as [`ringfence_guest::frame`] says: lines are added to the golden file, and never changed.
//! The test writes the file anew when `RINGFENCE_BLESS=1` asks for it.
#![allow(clippy::disallowed_methods, reason = "tests ask how they were started")]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use ringfence_guest::frame::{self, Decoder, Kind, MAX_REQUEST, Message};
use ringfence_guest::message::{Change, Changed, Entry, EntryKind, Size, Step, WriteMode};

use super::super::document::{self, Document};
use super::super::info::{End, ExecutionInfo, ExecutionState, Info, LimitChange, Placeholder, State, Usage};
use super::super::place::StateFile;
use super::super::protocol::{
    ClientHello, ClientInput, ClientRequest, ExecRequest, ExecutionEnd, GREETING, Refusal, SupervisorHello,
    SupervisorReply,
};
use super::super::supervisor::StartReply;
use crate::records::Caller;
use crate::report::{Answer, Report};
use crate::supervise::Reason;

/// A variant that is not named here does not compile.
pub fn request(message: &ClientRequest) -> &'static str {
    match message {
        ClientRequest::Exec(_) => "exec",
        ClientRequest::Attach { .. } => "attach",
        ClientRequest::Environment { .. } => "environment",
        ClientRequest::Info => "info",
        ClientRequest::Report => "report",
        ClientRequest::Executions => "executions",
        ClientRequest::Placeholders => "placeholders",
        ClientRequest::Extend { .. } => "extend",
        ClientRequest::TieToConnection => "tie-to-connection",
        ClientRequest::KeepInUse => "keep-in-use",
        ClientRequest::Stop => "stop",
        ClientRequest::ReadFile { .. } => "read-file",
        ClientRequest::WriteFile { .. } => "write-file",
        ClientRequest::ListDirectory { .. } => "list-directory",
        ClientRequest::Stat { .. } => "stat",
        ClientRequest::MakeDirectory { .. } => "make-directory",
        ClientRequest::Move { .. } => "move",
        ClientRequest::Remove { .. } => "remove",
        ClientRequest::Watch { .. } => "watch",
        ClientRequest::ConnectPort { .. } => "connect-port",
        ClientRequest::Usage => "usage",
        ClientRequest::Freeze => "freeze",
        ClientRequest::Thaw => "thaw",
        ClientRequest::ChangeLimits(_) => "change-limits",
    }
}

fn input(message: &ClientInput) -> &'static str {
    match message {
        ClientInput::Signal { .. } => "signal",
        ClientInput::Resize(_) => "resize",
        ClientInput::ContextTime { .. } => "context-time",
        ClientInput::Stop => "stop",
        ClientInput::OutputSkipped { .. } => "output-skipped",
        ClientInput::OutputComplete => "output-complete",
    }
}

fn reply(message: &SupervisorReply) -> &'static str {
    match message {
        SupervisorReply::ExecutionStarted { .. } => "execution-started",
        SupervisorReply::ExecutionFailed { .. } => "execution-failed",
        SupervisorReply::ExecutionEnded(_) => "execution-ended",
        SupervisorReply::OutputSkipped { .. } => "output-skipped",
        SupervisorReply::Ready => "ready",
        SupervisorReply::Entries(_) => "entries",
        SupervisorReply::Changed(_) => "changed",
        SupervisorReply::Done { .. } => "done",
        SupervisorReply::Usage(_) => "usage",
        SupervisorReply::Document(_) => "document",
        SupervisorReply::Refused(refusal) => match refusal {
            Refusal::NoExecution => "refused.no-execution",
            Refusal::TimeoutAboveCeiling { .. } => "refused.timeout-above-ceiling",
            Refusal::Failed { .. } => "refused.failed",
            Refusal::TooMany => "refused.too-many",
            Refusal::BadRequest => "refused.bad-request",
            Refusal::NotRecorded(_) => "refused.not-recorded",
            Refusal::SessionEnded(_) => "refused.session-ended",
            Refusal::Unsupported => "refused.unsupported",
            Refusal::AboveLimit => "refused.above-limit",
            Refusal::Frozen => "refused.frozen",
            Refusal::NotChanged(_) => "refused.not-changed",
            Refusal::UnknownRequest => "refused.unknown-request",
        },
    }
}

#[derive(Default)]
struct Golden {
    lines: Vec<String>,
}

impl Golden {
    fn messages<T: Message + PartialEq + Debug>(&mut self, kind: Kind, name: fn(&T) -> &'static str, all: &[T]) {
        let mut seen = BTreeSet::new();
        for message in all {
            let mut bytes = Vec::new();
            frame::put_message(&mut bytes, 1, kind, message).unwrap();
            seen.insert(bytes[frame::HEADER]);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            self.lines.push(format!("{kind:?}.{} {hex}", name(message)));
            let mut decoder = Decoder::new(MAX_REQUEST);
            decoder.feed(&bytes);
            assert_eq!(&decoder.next_frame().unwrap().unwrap().message::<T>().unwrap(), message);
        }
        // None is left out, and the number that comes next is the one that the type calls unknown.
        if let Some(known) = T::VARIANTS {
            assert_eq!(
                seen.len(),
                known as usize,
                "{} has a variant without a golden line",
                std::any::type_name::<T>()
            );
            let next = [&[known as u8][..], &[0; 64]].concat();
            postcard::from_bytes::<T>(&next).expect_err("VARIANTS is too small");
        }
    }

    fn document<T: Document>(&mut self, body: &T) {
        let text = String::from_utf8(document::write(body).unwrap()).unwrap();
        document::read::<T>(text.as_bytes()).unwrap();
        self.lines.push(format!("document {text}"));
    }
}

#[test]
fn the_bytes_of_every_message_are_as_they_were() {
    let mut golden = Golden::default();
    let path = || b"/a b".to_vec();
    let size = Size { rows: 24, columns: 300 };
    golden.messages(Kind::Input, |_| "client-hello", &[ClientHello { greeting: GREETING }]);
    golden.messages(Kind::Reply, |_| "supervisor-hello", &[SupervisorHello { greeting: GREETING, output: 1 << 20 }]);
    let exec = ExecRequest {
        argv: vec![b"sh".to_vec(), b"-c".to_vec()],
        env: vec![b"A=b".to_vec()],
        cwd: Some(path()),
        terminal: Some(size),
        stdin: true,
        timeout_ms: Some(300),
        background: false,
        context: Some("python/x".to_owned()),
        piped: true,
        caller: Some(Caller { uid: 1000, pid: 7, program: Some("bash".to_owned()) }),
    };
    let write = |mode| ClientRequest::WriteFile { path: path(), permissions: 0o644, parents: true, mode, piped: false };
    let requests = [
        ClientRequest::Exec(exec),
        ClientRequest::Attach { execution: 300 },
        ClientRequest::Environment { variables: vec![b"T=hunter2".to_vec()] },
        ClientRequest::Info,
        ClientRequest::Report,
        ClientRequest::Executions,
        ClientRequest::Placeholders,
        ClientRequest::Extend { life_ms: Some(1), idle_ms: None },
        ClientRequest::TieToConnection,
        ClientRequest::KeepInUse,
        ClientRequest::Stop,
        ClientRequest::ReadFile { path: path(), offset: 300, length: Some(5), piped: true },
        write(WriteMode::Replace),
        write(WriteMode::Create),
        write(WriteMode::Append),
        ClientRequest::ListDirectory { path: path(), depth: 2 },
        ClientRequest::Stat { path: path() },
        ClientRequest::MakeDirectory { path: path(), permissions: 0o755, parents: true },
        ClientRequest::Move { from: path(), to: b"/c".to_vec(), replace: true },
        ClientRequest::Remove { path: path(), recursive: true },
        ClientRequest::Watch { path: path(), recursive: true },
        ClientRequest::ConnectPort { port: 8080 },
        ClientRequest::Usage,
        ClientRequest::Freeze,
        ClientRequest::Thaw,
        ClientRequest::ChangeLimits(LimitChange { memory: Some(1), cpus: Some(0.5), processes: None }),
    ];
    golden.messages(Kind::Open, request, &requests);
    let inputs = [
        ClientInput::Signal { signal: 15, tree: true },
        ClientInput::Resize(size),
        ClientInput::ContextTime { ms: Some(300) },
        ClientInput::Stop,
        ClientInput::OutputSkipped { stderr: true, bytes: 300 },
        ClientInput::OutputComplete,
    ];
    golden.messages(Kind::Input, input, &inputs);
    let entry = Entry {
        path: path(),
        kind: EntryKind::Symlink,
        size: 300,
        mode: 0o644,
        modified: -1,
        target: Some(b"x".to_vec()),
    };
    let mut replies = vec![
        SupervisorReply::ExecutionStarted {
            execution: 1,
            record: Some("01ABC".to_owned()),
            record_error: Some("no space".to_owned()),
        },
        SupervisorReply::ExecutionFailed { execution: 3, record: None, step: Step::Fork, errno: 11 },
        SupervisorReply::OutputSkipped { stderr: false, bytes: 5 },
        SupervisorReply::Ready,
        SupervisorReply::Entries(vec![entry]),
        SupervisorReply::Changed(Changed { path: path(), change: Change::Written }),
        SupervisorReply::Done { bytes: 300 },
        SupervisorReply::Document(b"{}".to_vec()),
        SupervisorReply::Refused(Refusal::NoExecution),
        SupervisorReply::Refused(Refusal::TimeoutAboveCeiling { ceiling_ms: 300 }),
        SupervisorReply::Refused(Refusal::Failed { step: Step::Open, errno: 2 }),
        SupervisorReply::Refused(Refusal::TooMany),
        SupervisorReply::Refused(Refusal::BadRequest),
        SupervisorReply::Refused(Refusal::NotRecorded("no space".to_owned())),
        SupervisorReply::Refused(Refusal::Unsupported),
        SupervisorReply::Refused(Refusal::AboveLimit),
        SupervisorReply::Refused(Refusal::Frozen),
        SupervisorReply::Refused(Refusal::NotChanged("busy".to_owned())),
        SupervisorReply::Refused(Refusal::UnknownRequest),
        SupervisorReply::Usage(Usage::default()),
    ];
    use End::{Died, Expired, Idle, Lost, Memory, Removed, Stopped, Unruly};
    let ends = [Stopped, Idle, Expired, Died, Memory, Unruly, Lost, Removed];
    replies.extend(ends.map(|end| SupervisorReply::Refused(Refusal::SessionEnded(end))));
    let reasons = [Reason::Time, Reason::CpuTime, Reason::Memory, Reason::Processes, Reason::Cancelled, Reason::Lost];
    for reason in std::iter::once(None).chain(reasons.map(Some)) {
        let end = ExecutionEnd { status: 256, reason, duration_us: 300, cpu_us: 2, peak_memory: 1 << 20 };
        replies.push(SupervisorReply::ExecutionEnded(end));
    }
    golden.messages(Kind::Reply, reply, &replies);

    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
    let info = Info {
        name: Some("notes".to_owned()),
        profile: "shell".to_owned(),
        policy: "abc".to_owned(),
        engine: "native".to_owned(),
        workdir: "/home/x".into(),
        workdir_inside: "/workspace".into(),
        created: at,
        pid: 7,
        idle: Some(Duration::from_millis(2500)),
        timeout: Some(Duration::from_secs(120)),
        output: 1 << 20,
        executions: 3,
        running: 1,
        ..Info::unknown("s-0123456789ab")
    };
    let state = ringfence_policy::report::State::Enforced;
    let ids = ringfence_policy::Guarantee::ALL.iter().take(2);
    let answers = ids.map(|id| Answer { id: *id, state, by: "mounts".to_owned() });
    let report = Report { engine: "native".into(), guarantees: answers.collect(), devices: Vec::new() };
    golden.document(&info);
    golden.document(&report);
    let execution = ExecutionInfo {
        id: "1".to_owned(),
        command: vec!["make".to_owned()],
        background: true,
        terminal: false,
        context: None,
        started: at,
        state: ExecutionState::Exited { code: 0, reason: Some(Reason::Time) },
        stdout: 5,
        stderr: 0,
    };
    golden.document(&vec![execution]);
    golden.document(&vec![Placeholder { path: "/workspace/.vscode".into(), length: 2 }]);
    let ended = Info { state: State::Ended(Idle), ..info };
    golden.document(&StateFile { info: ended, report, ended: Some(at) });
    golden.document(&StartReply::Ready);

    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/session/tests/golden.txt");
    let text = golden.lines.join("\n") + "\n";
    if std::env::var_os("RINGFENCE_BLESS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(golden, text, "golden.txt differs, or is missing; RINGFENCE_BLESS=1 writes it anew");
}
