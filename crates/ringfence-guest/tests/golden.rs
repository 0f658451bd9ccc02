//! The bytes of every message of the guest's protocol. They may change only as the module `frame` says: lines are added to
//! the golden file, and never changed.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use ringfence_guest::frame::{self, Channel, Greeting, Kind};
use ringfence_guest::message::{
    Change, Changed, Entry, EntryKind, Exec, Exited, GREETING, HostHello, Input, PIPES, Reply, Request, Settings, Size,
    Step, Write, WriteMode,
};
use ringfence_testing::Golden;

/// A variant that is not named here does not compile.
fn request(message: &Request) -> &'static str {
    match message {
        Request::Exec(_) => "exec",
        Request::Read { .. } => "read",
        Request::Write(_) => "write",
        Request::List { .. } => "list",
        Request::Stat { .. } => "stat",
        Request::MakeDirectory { .. } => "make-directory",
        Request::Move { .. } => "move",
        Request::Remove { .. } => "remove",
        Request::Watch { .. } => "watch",
        Request::Connect { .. } => "connect",
        Request::Ping => "ping",
    }
}

fn input(message: &Input) -> &'static str {
    match message {
        Input::Signal { .. } => "signal",
        Input::Resize(_) => "resize",
        Input::HostStreams { .. } => "host-streams",
    }
}

fn reply(message: &Reply) -> &'static str {
    match message {
        Reply::Started { .. } => "started",
        Reply::Exited(_) => "exited",
        Reply::Entries(_) => "entries",
        Reply::Changed(_) => "changed",
        Reply::Done { .. } => "done",
        Reply::Failed { .. } => "failed",
        Reply::Unsupported => "unsupported",
    }
}

/// Every step: one that is not named here does not compile.
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

#[test]
fn the_bytes_of_every_message_are_as_they_were() {
    let mut golden = Golden::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt"));
    let path = || b"/a b".to_vec();
    let settings = Settings { limits: vec![(7, 77)], processes: Some(300), confined: None };
    let first = Greeting { features: PIPES, ..GREETING };
    golden.messages(Kind::Reply, |_| "greeting", &[first, GREETING]);
    let hello = |greeting| HostHello { greeting, settings: settings.clone() };
    let confined =
        HostHello { greeting: GREETING, settings: Settings { confined: Some(vec![path()]), ..settings.clone() } };
    golden.messages(Kind::Input, |_| "host-hello", &[hello(first), hello(GREETING), confined]);
    let size = Size { rows: 24, columns: 300 };
    let exec = Exec {
        argv: vec![b"sh".to_vec(), b"-c".to_vec()],
        env: vec![b"A=b".to_vec()],
        cwd: path(),
        terminal: Some(size),
        stdin: true,
        piped: false,
    };
    let write = |how| Request::Write(Write { path: path(), mode: 0o644, parents: true, how, piped: false });
    let requests = [
        Request::Exec(exec),
        Request::Read { path: path(), offset: 300, length: Some(5), piped: true },
        write(WriteMode::Replace),
        write(WriteMode::Create),
        write(WriteMode::Append),
        Request::List { path: path(), depth: 2 },
        Request::Stat { path: path() },
        Request::MakeDirectory { path: path(), mode: 0o755, parents: true },
        Request::Move { from: path(), to: b"/c".to_vec(), replace: true },
        Request::Remove { path: path(), recursive: true },
        Request::Watch { path: path(), recursive: true },
        Request::Connect { port: 8080 },
        Request::Ping,
    ];
    golden.messages(Kind::Open, request, &requests);
    let inputs = [Input::Signal { signal: 15, tree: true }, Input::Resize(size), Input::HostStreams { more: 300 }];
    golden.messages(Kind::Input, input, &inputs);
    let entry = |kind| Entry { path: path(), kind, size: 300, mode: 0o644, modified: -1, target: Some(b"x".to_vec()) };
    let kinds = [EntryKind::File, EntryKind::Directory, EntryKind::Symlink, EntryKind::Other];
    let changes = [Change::Created, Change::Written, Change::Removed, Change::Attributes, Change::Overflow];
    let steps = std::iter::successors(Some(Step::Refuse), |step| step_after(*step));
    let mut replies = vec![
        Reply::Started { pid: 300 },
        Reply::Exited(Exited { status: 256, user_micros: 1, system_micros: 300, peak_memory: 1 << 20 }),
        Reply::Entries(kinds.map(entry).to_vec()),
        Reply::Done { bytes: 300 },
        Reply::Unsupported,
    ];
    replies.extend(changes.map(|change| Reply::Changed(Changed { path: path(), change })));
    replies.extend(steps.map(|step| Reply::Failed { step, errno: 13 }));
    golden.messages(Kind::Reply, reply, &replies);
    for channel in Channel::ALL {
        for kind in [Kind::Data(channel), Kind::Eof(channel), Kind::Credit(channel)] {
            let mut bytes = Vec::new();
            frame::put(&mut bytes, 7, kind, b"");
            golden.bytes(&format!("{kind:?}"), &bytes);
        }
    }
    let mut bytes = Vec::new();
    frame::put(&mut bytes, 7, Kind::Close, b"");
    golden.bytes("Close", &bytes);
    golden.settle();
}
