//! Files: every request, and paths that were planted to mislead.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use ringfence_guest::frame::Kind;
use ringfence_guest::message::{Change, Entry, EntryKind, Reply, Request, Step, Write, WriteMode};

use crate::{Host, Place, everywhere};

everywhere! {
    contents_come_and_go
    a_file_appears_when_it_is_complete
    a_large_file_takes_another_ones_place
    directories_and_entries
    removal
    deep_trees
    links_do_not_lead_into_proc
    pipes_and_devices_are_refused
    changes_are_told
}

impl Host {
    fn bytes(&self, path: &str) -> Vec<u8> {
        match path.starts_with('/') {
            true => path.as_bytes().to_vec(),
            false => self.workdir.join(path).into_os_string().into_encoded_bytes(),
        }
    }

    /// The last reply to a request, and all entries before it.
    fn ask(&mut self, request: &Request) -> (Vec<Entry>, Result<u64, (Step, i32)>) {
        let stream = self.open(request);
        let mut entries = Vec::new();
        loop {
            match self.reply(stream) {
                Reply::Entries(more) => entries.extend(more),
                Reply::Done { bytes } => return (entries, Ok(bytes)),
                Reply::Failed { step, errno } => return (entries, Err((step, errno))),
                other => panic!("{other:?}"),
            }
        }
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, (Step, i32)> {
        self.read_part(path, 0, None)
    }

    fn read_part(&mut self, path: &str, offset: u64, length: Option<u64>) -> Result<Vec<u8>, (Step, i32)> {
        let stream = self.open(&Request::Read { path: self.bytes(path), offset, length, piped: false });
        match self.reply(stream) {
            Reply::Done { bytes } => {
                let out = std::mem::take(&mut self.stream(stream).out);
                assert_eq!(bytes, out.len() as u64);
                Ok(out)
            }
            Reply::Failed { step, errno } => Err((step, errno)),
            other => panic!("{other:?}"),
        }
    }

    fn write_as(&mut self, path: &str, how: WriteMode, parents: bool, bytes: &[u8]) -> Result<u64, (Step, i32)> {
        let stream =
            self.open(&Request::Write(Write { path: self.bytes(path), mode: 0o640, parents, how, piped: false }));
        // What is refused is told at once, and what is sent meanwhile is ignored.
        self.ping();
        if self.stream(stream).replies.is_empty() {
            self.send(stream, bytes);
            self.end_input(stream);
        }
        match self.reply(stream) {
            Reply::Done { bytes } => Ok(bytes),
            Reply::Failed { step, errno } => Err((step, errno)),
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<u64, (Step, i32)> {
        self.write_as(path, WriteMode::Replace, false, bytes)
    }

    fn remove(&mut self, path: &str, recursive: bool) -> Result<u64, (Step, i32)> {
        self.ask(&Request::Remove { path: self.bytes(path), recursive }).1
    }

    fn list(&mut self, path: &str, depth: u16) -> Vec<String> {
        let (entries, result) = self.ask(&Request::List { path: self.bytes(path), depth });
        assert_eq!(result, Ok(0));
        let mut names: Vec<String> = entries.into_iter().map(|e| String::from_utf8(e.path).unwrap()).collect();
        names.sort();
        names
    }
}

/// It writes nowhere else itself, and nothing that it starts does.
#[test]
fn a_guest_confines_itself() {
    for confined in [false, true] {
        let places = |workdir: &std::path::Path| {
            for dir in ["in", "out"] {
                std::fs::create_dir(workdir.join(dir)).unwrap();
            }
            std::fs::write(workdir.join("one"), "").unwrap();
            let places = ["in", "one", "gone", "/dev", "/proc"].map(|name| workdir.join(name));
            confined.then(|| places.map(|path| path.into_os_string().into_encoded_bytes()).to_vec())
        };
        let mut host = Host::confined(places);
        assert_eq!(host.write("in/a", b"x"), Ok(1));
        assert_eq!(host.sh("echo x > in/b && mv in/b in/c && echo x > one && echo x > /dev/null").code, 0);
        // What was not there when the guest began is nowhere that it may write.
        for path in ["out/a", "a", "gone"] {
            let refused = host.write(path, b"x").map_err(|(_, errno)| errno);
            assert_eq!(refused, if confined { Err(libc::EACCES) } else { Ok(1) }, "{path}");
        }
        for script in ["echo x > out/b", "rm one", "ln in/a out/c", "mkdir out/d"] {
            assert_eq!(host.sh(script).code == 0, !confined, "{script}");
        }
        assert_eq!(host.sh("ls out >/dev/null && kill -0 $$ && sleep 9 & kill $!").code, 0);
    }
}

fn contents_come_and_go(place: Place) {
    let mut host = Host::new(place);
    let contents: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    assert_eq!(host.write("file", &contents), Ok(3_000_000));
    assert_eq!(std::fs::read(host.workdir.join("file")).unwrap(), contents);
    assert_eq!(std::fs::metadata(host.workdir.join("file")).unwrap().mode() & 0o7777, 0o640);
    assert!(host.read("file").unwrap() == contents);
    assert!(host.read_part("file", 2_999_990, None).unwrap() == contents[2_999_990..]);
    assert!(host.read_part("file", 5, Some(100_000)).unwrap() == contents[5..100_005]);
    assert_eq!(host.read_part("file", 9_000_000, None), Ok(vec![]));
    assert_eq!(host.read_part("file", 0, Some(0)), Ok(vec![]));
    assert_eq!(host.write("file", b""), Ok(0));
    assert_eq!(host.read("file"), Ok(vec![]));
    assert_eq!(host.write_as("file", WriteMode::Append, false, b"one"), Ok(3));
    assert_eq!(host.write_as("file", WriteMode::Append, false, b"two"), Ok(3));
    assert_eq!(host.read("file"), Ok(b"onetwo".to_vec()));
    assert_eq!(host.write_as("file", WriteMode::Create, false, b"x"), Err((Step::Open, libc::EEXIST)));
    assert_eq!(host.write_as("new", WriteMode::Create, false, b"x"), Ok(1));
    assert_eq!(host.write_as("a/b/c/file", WriteMode::Create, true, b"deep"), Ok(4));
    assert_eq!(host.read("a/b/c/file"), Ok(b"deep".to_vec()));
    assert_eq!(host.write("no/such/place", b"x"), Err((Step::Open, libc::ENOENT)));
    assert_eq!(host.read("missing"), Err((Step::Open, libc::ENOENT)));
    assert_eq!(host.read("a"), Err((Step::Open, libc::EISDIR)));
    assert_eq!(host.write("a", b"x"), Err((Step::Open, libc::EISDIR)));
    assert_eq!(host.list("", 1), ["a", "file", "new"], "nothing is left behind");
}

fn a_file_appears_when_it_is_complete(place: Place) {
    let mut host = Host::new(place);
    host.write("file", b"old").unwrap();
    let (path, how) = (host.bytes("file"), WriteMode::Replace);
    let request = Write { path, mode: 0o600, parents: false, how, piped: false };
    let stream = host.open(&Request::Write(request.clone()));
    host.send(stream, b"half");
    host.ping();
    assert_eq!(host.read("file"), Ok(b"old".to_vec()));
    host.put(stream, Kind::Close, &[]);
    host.ping();
    assert_eq!(host.read("file"), Ok(b"old".to_vec()));
    assert_eq!(host.list("", 1), ["file"], "nothing is left of what was not completed");
    // Somebody else makes it first.
    let stream = host.open(&Request::Write(Write { path: host.bytes("new"), how: WriteMode::Create, ..request }));
    host.send(stream, b"ours");
    host.ping();
    std::fs::write(host.workdir.join("new"), "theirs").unwrap();
    host.end_input(stream);
    assert_eq!(host.reply(stream), Reply::Failed { step: Step::Rename, errno: libc::EEXIST });
    assert_eq!(host.read("new"), Ok(b"theirs".to_vec()));
    assert_eq!(host.list("", 1), ["file", "new"]);
}

fn a_large_file_takes_another_ones_place(place: Place) {
    let mut host = Host::new(place);
    let large = |byte: u8| vec![byte; 9 << 20];
    for byte in [1, 2] {
        assert_eq!(host.write("file", &large(byte)), Ok(9 << 20));
        assert!(std::fs::read(host.workdir.join("file")).unwrap() == large(byte));
        assert_eq!(std::fs::metadata(host.workdir.join("file")).unwrap().mode() & 0o7777, 0o640);
    }
    // A link is replaced, and what it leads to stays.
    host.write("other", b"other").unwrap();
    symlink("other", host.workdir.join("link")).unwrap();
    assert_eq!(host.write("link", &large(3)), Ok(9 << 20));
    assert!(std::fs::symlink_metadata(host.workdir.join("link")).unwrap().is_file());
    assert_eq!(host.read("other"), Ok(b"other".to_vec()));
    // A directory that somebody makes meanwhile stays where it is.
    let (path, how) = (host.bytes("made"), WriteMode::Replace);
    let stream = host.open(&Request::Write(Write { path, mode: 0o600, parents: false, how, piped: false }));
    host.send(stream, &large(4));
    host.ping();
    std::fs::create_dir(host.workdir.join("made")).unwrap();
    host.end_input(stream);
    assert_eq!(host.reply(stream), Reply::Failed { step: Step::Rename, errno: libc::EISDIR });
    assert_eq!(host.list("", 1), ["file", "link", "made", "other"], "nothing is left behind");
}

fn directories_and_entries(place: Place) {
    let mut host = Host::new(place);
    let make = |host: &mut Host, path: &str, parents: bool| {
        let path = host.bytes(path);
        host.ask(&Request::MakeDirectory { path, mode: 0o750, parents }).1
    };
    assert_eq!(make(&mut host, "d", false), Ok(0));
    assert_eq!(make(&mut host, "d", false), Err((Step::MakeDirectory, libc::EEXIST)));
    assert_eq!(make(&mut host, "d", true), Ok(0));
    assert_eq!(make(&mut host, "x/y/z", false), Err((Step::MakeDirectory, libc::ENOENT)));
    assert_eq!(make(&mut host, "x/y/z/", true), Ok(0));
    host.write("d/file", b"12345").unwrap();
    symlink("file", host.workdir.join("d/link")).unwrap();
    assert_eq!(host.list("", 1), ["d", "x"]);
    assert_eq!(host.list("", 2), ["d", "d/file", "d/link", "x", "x/y"]);
    assert_eq!(host.list("", 99), ["d", "d/file", "d/link", "x", "x/y", "x/y/z"]);
    let stat = |host: &mut Host, path: &str| {
        let path = host.bytes(path);
        let (mut entries, result) = host.ask(&Request::Stat { path });
        result.map(|_| entries.remove(0))
    };
    let file = stat(&mut host, "d/file").unwrap();
    assert_eq!((file.kind, file.size, file.mode, file.target), (EntryKind::File, 5, 0o640, None));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    assert!((now - file.modified).abs() < 100_000_000_000);
    let link = stat(&mut host, "d/link").unwrap();
    assert_eq!((link.kind, link.target), (EntryKind::Symlink, Some(b"file".to_vec())));
    assert_eq!(stat(&mut host, "/").unwrap().kind, EntryKind::Directory);
    assert_eq!(stat(&mut host, "/dev/null").unwrap().kind, EntryKind::Other);
    assert_eq!(stat(&mut host, "missing").unwrap_err(), (Step::Open, libc::ENOENT));
    let rename = |host: &mut Host, from: &str, to: &str, replace: bool| {
        let (from, to) = (host.bytes(from), host.bytes(to));
        host.ask(&Request::Move { from, to, replace }).1
    };
    host.write("other", b"other").unwrap();
    assert_eq!(rename(&mut host, "other", "d/file", false), Err((Step::Rename, libc::EEXIST)));
    assert_eq!(rename(&mut host, "other", "d/file", true), Ok(0));
    assert_eq!(rename(&mut host, "other", "d/file", true), Err((Step::Rename, libc::ENOENT)));
    assert_eq!(host.read("d/link"), Ok(b"other".to_vec()));
    // Many of them come in many messages.
    for i in 0..3000 {
        std::fs::write(host.workdir.join(format!("x/{i:0100}")), "").unwrap();
    }
    assert_eq!(host.list("x", 1).len(), 3001);
}

fn removal(place: Place) {
    let mut host = Host::new(place);
    host.write_as("d/e/file", WriteMode::Create, true, b"x").unwrap();
    host.write("kept", b"kept").unwrap();
    symlink("../kept", host.workdir.join("d/link")).unwrap();
    symlink(&host.workdir, host.workdir.join("d/up")).unwrap();
    assert_eq!(host.remove("d", false), Err((Step::Remove, libc::ENOTEMPTY)));
    assert_eq!(host.remove("d/e/file", false), Ok(0));
    assert_eq!(host.remove("d/e", false), Ok(0));
    assert_eq!(host.remove("d", true), Ok(0));
    assert_eq!(host.remove("d", true), Err((Step::Remove, libc::ENOENT)));
    assert_eq!(host.list("", 9), ["kept"], "links were removed, not followed");
    symlink("kept", host.workdir.join("link")).unwrap();
    assert_eq!(host.remove("link", true), Ok(0));
    assert_eq!(host.read("kept"), Ok(b"kept".to_vec()));
}

fn deep_trees(place: Place) {
    let mut host = Host::new(place);
    let ended = host.sh("mkdir d && cd d && for i in $(seq 1500); do mkdir d f && cd d || exit 1; done");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let (entries, result) = host.ask(&Request::List { path: host.bytes("d"), depth: u16::MAX });
    assert!(entries.len() > 100);
    assert_eq!(result, Err((Step::Read, libc::ELOOP)), "deeper than is listed, and it says so");
    assert_eq!(host.remove("d", true), Ok(0));
    assert_eq!(host.list("", 1), Vec::<String>::new());
}

fn links_do_not_lead_into_proc(place: Place) {
    let mut host = Host::new(place);
    for target in ["/proc/self/mem", "/proc/self/maps", "/proc/1/environ", "/proc/sys/kernel/hostname"] {
        let link = host.workdir.join("link");
        symlink(target, &link).unwrap();
        for path in ["link", target] {
            assert_eq!(host.read(path), Err((Step::Open, libc::EACCES)), "{path}");
            let (step, errno) = host.write_as(path, WriteMode::Append, false, b"x").unwrap_err();
            assert!(step == Step::Open && [libc::EACCES, libc::EROFS].contains(&errno), "{path}: {errno}");
        }
        assert_eq!(host.write(target, b"x"), Err((Step::Open, libc::EACCES)));
        // A link is replaced, not followed.
        assert_eq!(host.write("link", b"mine"), Ok(4));
        assert!(std::fs::symlink_metadata(&link).unwrap().is_file());
        std::fs::remove_file(&link).unwrap();
    }
    symlink("/proc/self", host.workdir.join("self")).unwrap();
    let path = host.bytes("self");
    let (_, listed) = host.ask(&Request::List { path, depth: 1 });
    assert_eq!(listed, Err((Step::Open, libc::EACCES)));
    assert_eq!(host.write("self/mem", b"x"), Err((Step::Open, libc::EACCES)));
    assert_eq!(host.remove("self/fd/0", false), Err((Step::Remove, libc::EACCES)));
    // The same links to somewhere else do lead there.
    host.write("real", b"real").unwrap();
    symlink("real", host.workdir.join("link")).unwrap();
    assert_eq!(host.read("link"), Ok(b"real".to_vec()));
    assert_eq!(host.write_as("link", WriteMode::Append, false, b"er"), Ok(2));
    assert_eq!(host.read("real"), Ok(b"realer".to_vec()));
}

fn pipes_and_devices_are_refused(place: Place) {
    let mut host = Host::new(place);
    assert_eq!(host.sh("mkfifo pipe").code, 0);
    assert_eq!(host.read("pipe"), Err((Step::Open, libc::EOPNOTSUPP)), "and the guest did not wait");
    assert_eq!(host.write_as("pipe", WriteMode::Append, false, b"x"), Err((Step::Open, libc::ENXIO)));
    assert_eq!(host.read("/dev/zero"), Err((Step::Open, libc::EOPNOTSUPP)));
    assert_eq!(host.write_as("/dev/null", WriteMode::Append, false, b"x"), Err((Step::Open, libc::EOPNOTSUPP)));
    // A pipe that somebody reads.
    let reader = host.start(&["cat", "pipe"]);
    let done = loop {
        match host.write_as("pipe", WriteMode::Append, false, b"x") {
            Err((Step::Open, libc::ENXIO)) => {}
            other => break other,
        }
    };
    assert_eq!(done, Err((Step::Open, libc::EOPNOTSUPP)));
    host.signal(reader, libc::SIGKILL, true);
    host.exited(reader).unwrap();
    host.ping();
}

fn changes_are_told(place: Place) {
    let mut host = Host::new(place);
    std::fs::create_dir(host.workdir.join("d")).unwrap();
    std::fs::set_permissions(host.workdir.join("d"), PermissionsExt::from_mode(0o777)).unwrap();
    let watch = |host: &mut Host, path: &str, recursive| {
        let path = host.bytes(path);
        host.open(&Request::Watch { path, recursive })
    };
    let flat = watch(&mut host, "", false);
    let whole = watch(&mut host, "", true);
    assert_eq!(host.reply(flat), Reply::Started { pid: 0 });
    assert_eq!(host.reply(whole), Reply::Started { pid: 0 });
    host.sh("echo 1 >file; echo 2 >d/below; mkdir d/new; echo 3 >d/new/deep; rm file; mv d/new moved");
    let mut until = |stream: u32, path: &str, change: Change| {
        let mut seen = Vec::new();
        loop {
            match host.reply(stream) {
                Reply::Changed(c) if c.path == path.as_bytes() && c.change == change => return seen,
                Reply::Changed(c) => seen.push((String::from_utf8(c.path).unwrap(), c.change)),
                other => panic!("{other:?}"),
            }
        }
    };
    let seen = until(flat, "moved", Change::Created);
    let file = |change| ("file".to_owned(), change);
    assert!(seen.contains(&file(Change::Created)) && seen.contains(&file(Change::Removed)), "{seen:?}");
    assert!(seen.iter().all(|(path, _)| !path.contains('/')), "{seen:?}");
    let mut seen = until(whole, "d/new", Change::Removed);
    seen.extend(until(whole, "moved/deep", Change::Created));
    for wanted in ["file", "d/below", "d/new", "moved"] {
        assert!(seen.contains(&(wanted.to_owned(), Change::Created)), "{wanted}: {seen:?}");
    }
    assert!(seen.contains(&("d/below".to_owned(), Change::Written)), "{seen:?}");
    host.put(flat, Kind::Close, &[]);
    host.put(whole, Kind::Close, &[]);
    host.sh("echo >quiet");
    host.ping();
    assert!(host.stream(flat).replies.is_empty());
    let path = host.bytes("missing");
    let stream = host.open(&Request::Watch { path, recursive: true });
    assert_eq!(host.reply(stream), Reply::Failed { step: Step::Watch, errno: libc::ENOENT });
    let stream = host.open(&Request::Watch { path: b"/proc/self".to_vec(), recursive: false });
    assert_eq!(host.reply(stream), Reply::Failed { step: Step::Watch, errno: libc::EACCES });
}
