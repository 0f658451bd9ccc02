//! The bytes of every message of the guest's protocol. They may change only as the module `frame` says: lines are added to
//! the golden file, and never changed. The test writes the file anew when `RINGFENCE_BLESS=1` asks for it.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use ringfence_guest::frame::{self, Channel, Decoder, Kind, MAX_REQUEST, Message};
use ringfence_guest::message::{
    Change, Changed, Entry, EntryKind, Exec, Exited, GREETING, HostHello, Input, Reply, Request, Settings, Size, Step,
    Write, WriteMode,
};

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

/// Every message once, and every value of the enums inside them.
#[derive(Default)]
struct Golden {
    lines: Vec<String>,
}

impl Golden {
    fn line(&mut self, name: &str, bytes: &[u8]) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.lines.push(format!("{name} {hex}"));
    }

    fn messages<T: Message + PartialEq + std::fmt::Debug>(
        &mut self,
        kind: Kind,
        name: fn(&T) -> &'static str,
        all: &[T],
    ) {
        let mut seen = std::collections::BTreeSet::new();
        for message in all {
            let mut bytes = Vec::new();
            frame::put_message(&mut bytes, 1, kind, message).unwrap();
            seen.insert(bytes[frame::HEADER]);
            self.line(&format!("{kind:?}.{}", name(message)), &bytes);
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
}

#[test]
fn the_bytes_of_every_message_are_as_they_were() {
    let mut golden = Golden::default();
    let path = || b"/a b".to_vec();
    let settings = Settings { limits: vec![(7, 77)], processes: Some(300) };
    golden.messages(Kind::Reply, |_| "greeting", &[GREETING]);
    golden.messages(Kind::Input, |_| "host-hello", &[HostHello { greeting: GREETING, settings }]);
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
    golden.messages(Kind::Input, input, &[Input::Signal { signal: 15, tree: true }, Input::Resize(size)]);
    let entry = |kind| Entry { path: path(), kind, size: 300, mode: 0o644, modified: -1, target: Some(b"x".to_vec()) };
    let kinds = [EntryKind::File, EntryKind::Directory, EntryKind::Symlink, EntryKind::Other];
    let changes = [Change::Created, Change::Written, Change::Removed, Change::Attributes, Change::Overflow];
    let steps = [
        Step::Refuse,
        Step::Fork,
        Step::Terminal,
        Step::WorkingDirectory,
        Step::Execute,
        Step::Open,
        Step::Read,
        Step::Write,
        Step::Rename,
        Step::Remove,
        Step::MakeDirectory,
        Step::Watch,
        Step::Connect,
    ];
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
            golden.line(&format!("{kind:?}"), &bytes);
        }
    }
    let mut bytes = Vec::new();
    frame::put(&mut bytes, 7, Kind::Close, b"");
    golden.line("Close", &bytes);

    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden.txt");
    let text = golden.lines.join("\n") + "\n";
    if std::env::var_os("RINGFENCE_BLESS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(golden, text, "golden.txt differs, or is missing; RINGFENCE_BLESS=1 writes it anew");
}
