//! The bytes of every message between clients and supervisors, and of the documents that they exchange and store. They may
//! change only as [`ringfence_guest::frame`] says: lines are added to the golden file, and never changed.

use std::iter::successors;
use std::time::{Duration, SystemTime};

use ringfence_guest::frame::Kind;
use ringfence_guest::message::{Change, Changed, Entry, EntryKind, Size, Step, WriteMode};
use ringfence_policy::Guarantee;
use ringfence_policy::failure::{self, Cure, Failure};
use ringfence_testing::Golden;

use super::super::document::{self, Document};
use super::super::homes::{HomeFile, Homes};
use super::super::info::{End, ExecutionInfo, ExecutionState, Info, LimitChange, Placeholder, State, Usage};
use super::super::place::{Place, StateFile};
use super::super::protocol::{
    ClientHello, ClientInput, ClientRequest, ExecRequest, ExecutionEnd, GREETING, Refusal, SupervisorHello,
    SupervisorReply,
};
use ringfence_policy::guarded::{Guarded, GuardedPath};
use ringfence_policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};

use super::super::supervisor::StartReply;
use super::super::supervisor::tests::start;
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
        ClientRequest::Guarded => "guarded",
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

/// Every reason of an end: one that is not named here does not compile. The same for what follows.
fn end_after(end: End) -> Option<End> {
    Some(match end {
        End::Stopped => End::Idle,
        End::Idle => End::Expired,
        End::Expired => End::Died,
        End::Died => End::Memory,
        End::Memory => End::Unruly,
        End::Unruly => End::Lost,
        End::Lost => End::Removed,
        End::Removed => End::Helper,
        // Nothing writes what is unknown.
        End::Helper | End::Unknown => return None,
    })
}

fn reason_after(reason: Reason) -> Option<Reason> {
    Some(match reason {
        Reason::Time => Reason::CpuTime,
        Reason::CpuTime => Reason::Memory,
        Reason::Memory => Reason::Processes,
        Reason::Processes => Reason::Cancelled,
        Reason::Cancelled => Reason::Lost,
        Reason::Lost => return None,
    })
}

fn refusal_after(refusal: &Refusal) -> Option<Refusal> {
    Some(match refusal {
        Refusal::NoExecution => Refusal::TimeoutAboveCeiling { ceiling_ms: 300 },
        Refusal::TimeoutAboveCeiling { .. } => Refusal::Failed { step: Step::Open, errno: 2 },
        Refusal::Failed { .. } => Refusal::TooMany,
        Refusal::TooMany => Refusal::BadRequest,
        Refusal::BadRequest => Refusal::NotRecorded("no space".to_owned()),
        Refusal::NotRecorded(_) => Refusal::SessionEnded(End::Stopped),
        Refusal::SessionEnded(_) => Refusal::Unsupported,
        Refusal::Unsupported => Refusal::AboveLimit,
        Refusal::AboveLimit => Refusal::Frozen,
        Refusal::Frozen => Refusal::NotChanged("busy".to_owned()),
        Refusal::NotChanged(_) => Refusal::UnknownRequest,
        Refusal::UnknownRequest => return None,
    })
}

fn step_after(step: Step) -> Option<Step> {
    Some(match step {
        Step::Refuse => Step::Fork,
        Step::Fork => Step::Terminal,
        Step::Terminal => Step::WorkingDirectory,
        Step::WorkingDirectory => Step::Execute,
        Step::Execute => Step::Open,
        Step::Open => Step::Read,
        Step::Read => Step::Write,
        Step::Write => Step::Rename,
        Step::Rename => Step::Remove,
        Step::Remove => Step::MakeDirectory,
        Step::MakeDirectory => Step::Watch,
        Step::Watch => Step::Connect,
        Step::Connect => return None,
    })
}

fn cure_after(cure: &Cure) -> Option<Cure> {
    Some(match cure {
        Cure::Set { value: Some(_), .. } => Cure::another("engine"),
        Cure::Set { value: None, .. } => Cure::SetOutside { key: "nesting".into(), value: "true".into() },
        Cure::SetOutside { .. } => Cure::BuildImage,
        Cure::BuildImage => Cure::PrepareHost,
        Cure::PrepareHost => Cure::host("start the daemon"),
        Cure::Host(_) => return None,
    })
}

fn failure_step_after(step: failure::Step) -> Option<failure::Step> {
    use failure::Step::{Choose, Execute, Guest, Prepare, Promise, Remove, Run, Start};
    Some(match step {
        Choose => Promise,
        Promise => Prepare,
        Prepare => Start,
        Start => Execute,
        Execute => Guest,
        Guest => Run,
        Run => Remove,
        Remove => return None,
    })
}

fn document<T: Document>(golden: &mut Golden, body: &T) {
    let text = String::from_utf8(document::write(body).unwrap()).unwrap();
    golden.document(text, |text| document::read::<T>(text.as_bytes()).is_ok());
}

#[test]
fn the_bytes_of_every_message_are_as_they_were() {
    let mut golden = Golden::open(concat!(env!("CARGO_MANIFEST_DIR"), "/src/session/tests/golden.txt"));
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
        ClientRequest::ChangeLimits(LimitChange {
            memory: Some(1),
            cpus: Some(0.5),
            processes: None,
            timeout: Some(Duration::from_secs(2)),
        }),
        ClientRequest::Guarded,
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
        SupervisorReply::Usage(Usage::default()),
    ];
    replies.extend(successors(Some(Refusal::NoExecution), refusal_after).map(SupervisorReply::Refused));
    let ends = successors(Some(End::Stopped), |end| end_after(*end));
    replies.extend(ends.map(|end| SupervisorReply::Refused(Refusal::SessionEnded(end))));
    for step in successors(Some(Step::Refuse), |step| step_after(*step)) {
        replies.push(SupervisorReply::Refused(Refusal::Failed { step, errno: 2 }));
        replies.push(SupervisorReply::ExecutionFailed { execution: 3, record: None, step, errno: 11 });
    }
    let reasons = successors(Some(Reason::Time), |reason| reason_after(*reason));
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
    document(&mut golden, &info);
    document(&mut golden, &report);
    let reasons = successors(Some(Reason::Time), |reason| reason_after(*reason)).map(Some);
    let mut states = vec![ExecutionState::Running, ExecutionState::Unknown];
    for reason in std::iter::once(None).chain(reasons) {
        states.push(ExecutionState::Exited { code: 0, reason });
        states.push(ExecutionState::Signaled { signal: 9, reason });
    }
    for state in states {
        let execution = ExecutionInfo {
            id: "1".to_owned(),
            command: vec!["make".to_owned()],
            background: true,
            terminal: false,
            context: None,
            started: at,
            state,
            stdout: 5,
            stderr: 0,
        };
        document(&mut golden, &vec![execution]);
    }
    document(&mut golden, &vec![Placeholder { path: "/workspace/.vscode".into(), length: 2 }]);
    for end in successors(Some(End::Stopped), |end| end_after(*end)) {
        let ended = Info { state: State::Ended(end), ..info.clone() };
        document(&mut golden, &StateFile { info: ended, report: report.clone(), ended: Some(at) });
    }
    document(&mut golden, &StartReply::Ready);
    document(&mut golden, &StartReply::NoSet("abc".to_owned()));
    for step in successors(Some(failure::Step::Choose), |step| failure_step_after(*step)) {
        document(&mut golden, &StartReply::Failed(failed(step)));
    }
    stored(&mut golden);
    let rule = FileRule {
        access: Access::Exclude,
        pattern: Pattern::parse("**/.env", "/p".as_ref(), "/h".as_ref()).unwrap(),
        missing: Missing::Ignore,
        origin: Origin { layer: LayerKind::Flags, place: "--exclude".into() },
    };
    let paths = vec![GuardedPath { path: "/p/.env".into(), hidden: true }];
    document(&mut golden, &Guarded { rules: vec![rule], paths, home: "/h".into() });
    golden.settle();
}

/// A failure with everything that one can have.
pub fn failed(step: failure::Step) -> Failure {
    Failure {
        engine: Some("native".to_owned()),
        step,
        guarantee: Some(Guarantee::LimitMemory),
        message: "no cgroup for a memory limit".to_owned(),
        cures: successors(Some(Cure::optional(Guarantee::LimitMemory)), cure_after).collect(),
    }
}

/// What is written for builds of this release: the first lines.
fn stored(golden: &mut Golden) {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    let start = start(dir.path(), &place);
    let first = |bytes: &[u8]| String::from_utf8(bytes.split(|byte| *byte == b'\n').next().unwrap().to_vec()).unwrap();
    // Who wrote it, and what follows, differ.
    let packed = |bytes: &[u8]| {
        let mut line: serde_json::Value = serde_json::from_str(&first(bytes)).unwrap();
        for differs in ["release", "hash"] {
            assert!(line[differs].is_string());
            line[differs] = "…".into();
        }
        line.to_string()
    };
    golden.document(packed(&document::pack(&start).unwrap()), |_| false);
    let homes = Homes::new(&dir.path().join("homes"));
    homes.keep("mine", &HomeFile::new("sha256:1".to_owned(), &start)).unwrap();
    let home = std::fs::read(dir.path().join("homes/mine")).unwrap();
    golden.document(first(&home), |text| document::read::<HomeFile>(text.as_bytes()).is_ok());
    golden.document(packed(&home[first(&home).len() + 1..]), |_| false);
    let fresh = place.make(None).unwrap();
    place.last(&fresh.id).write(12, Some(End::Helper));
    let last = std::fs::read_to_string(place.session(&fresh.id).join("last")).unwrap();
    golden.document(last.trim_end().to_owned(), |_| false);
}
