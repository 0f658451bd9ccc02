//! Files and ports of sessions, through the library and `session cp` and `forward`.
#![allow(clippy::unwrap_used, reason = "clippy does not take a file of async tests for one of tests")]

#[path = "support/sessions.rs"]
mod sessions;

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use ringfence::session::{Change, EntryKind, Exec, SessionError, WriteMode, WriteOptions};
use sessions::{Home, sh, text, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn files_in_both_directions() {
    let home = Home::new();
    let session = home.session().await;
    let files = session.files();
    files.write("note", b"hello\n", WriteOptions::default()).await.unwrap();
    assert_eq!(std::fs::read(home.place.project.join("note")).unwrap(), b"hello\n");
    assert_eq!(files.read("/workspace/note", 100).await.unwrap(), b"hello\n");
    assert!(matches!(files.read("note", 5).await, Err(SessionError::TooLong { .. })));
    let append = WriteOptions { how: WriteMode::Append, ..WriteOptions::default() };
    files.write("note", b"more\n", append).await.unwrap();
    assert_eq!(files.read("note", 100).await.unwrap(), b"hello\nmore\n");
    let new = WriteOptions { how: WriteMode::Create, ..WriteOptions::default() };
    assert!(matches!(files.write("note", b"x", new).await, Err(SessionError::File { .. })));

    files.make_directory("a/b", true).await.unwrap();
    files.rename("note", "a/b/note", false).await.unwrap();
    let entry = files.stat("a/b/note").await.unwrap();
    assert_eq!((entry.kind, entry.size), (EntryKind::File, 11));
    let mut below: Vec<String> =
        files.list("a", 3).await.unwrap().into_iter().map(|e| String::from_utf8(e.path).unwrap()).collect();
    below.sort();
    assert_eq!(below, ["b", "b/note"]);
    files.remove("a", true).await.unwrap();
    assert!(files.stat("a").await.is_err());

    // A writer that is dropped leaves what was there before.
    files.write("kept", b"old", WriteOptions::default()).await.unwrap();
    let mut writer = files.writer("kept", WriteOptions::default()).await.unwrap();
    writer.write(b"new").await.unwrap();
    drop(writer);
    assert_eq!(files.read("kept", 100).await.unwrap(), b"old");

    // What links lead to is the box's, never the host's.
    sh(&session, "ln -s /etc/hostname outside; ln -s / root").await;
    let secret = home.place.home.join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let through = format!("root{}", secret.display());
    assert!(files.read(&through, 100).await.is_err());
    assert!(files.write("/etc/planted", b"x", WriteOptions::default()).await.is_err());
}

#[tokio::test]
async fn changes_are_told() {
    let home = Home::new();
    let session = home.session().await;
    let mut changes = session.files().watch("/workspace", true).await.unwrap();
    sh(&session, "echo x > seen").await;
    let change = tokio::time::timeout(Duration::from_secs(10), changes.next()).await.unwrap().unwrap();
    assert_eq!((change.path.as_slice(), change.change), (&b"seen"[..], Change::Created));
}

#[tokio::test]
async fn a_port_inside() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return println!("SKIP: python3 is not installed");
    }
    let home = Home::new();
    let session = home.session().await;
    assert!(matches!(session.connect(8123).await, Err(SessionError::Port { port: 8123, .. })));
    let server = "import socket;s=socket.create_server(('127.0.0.1',8123));print('up',flush=True)\nwhile 1:\n c,_=s.accept()\n d=b''\n while 1:\n  m=c.recv(65536)\n  if not m: break\n  d+=m\n c.sendall(d[::-1]); c.close()";
    let mut execution = session.exec(Exec::new(["python3", "-c", server]).background(true)).await.unwrap();
    execution.next().await.unwrap();
    let mut port = session.connect(8123).await.unwrap();
    let sent: Vec<u8> = (0..2_000_000u32).map(|n| (n % 251) as u8).collect();
    port.write_all(&sent).await.unwrap();
    port.shutdown().await.unwrap();
    let mut back = Vec::new();
    port.read_to_end(&mut back).await.unwrap();
    back.reverse();
    assert!(back == sent);

    // The same through a local port.
    let dir = home.place.home.join("run");
    let mut command = home.place.command(["session", "forward", session.id(), "0:8123"]);
    command.env("XDG_RUNTIME_DIR", linked(&home, &dir)).stdout(Stdio::piped());
    let mut forward = command.spawn().unwrap();
    let mut address = String::new();
    let mut stdout = std::io::BufReader::new(forward.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut address).unwrap();
    let mut socket = std::net::TcpStream::connect(address.trim()).unwrap();
    socket.write_all(b"abc").unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert_eq!(text, "cba");
    // It ends with the session.
    session.stop().await.unwrap();
    until("forward ends", || forward.try_wait().unwrap().is_some()).await;
}

/// A runtime directory whose sessions are the library's.
fn linked(home: &Home, dir: &std::path::Path) -> std::path::PathBuf {
    let runtime = home.place.home.join("runtime");
    std::fs::create_dir_all(&runtime).unwrap();
    let _ = std::os::unix::fs::symlink(dir, runtime.join("ringfence"));
    runtime
}

#[tokio::test]
async fn large_files_are_copied_both_ways() {
    let home = Home::new();
    let create = home.create_with(|layer| layer.cpus("2").unwrap());
    let session = home.sessions.create(create).await.unwrap();
    let runtime = linked(&home, &home.place.home.join("run"));
    let outside = home.place.home.join("outside");
    std::fs::create_dir_all(outside.join("tree/below")).unwrap();
    let bytes: Vec<u8> = (0..60_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(outside.join("large"), &bytes).unwrap();
    std::fs::write(outside.join("tree/below/run"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(outside.join("tree/below/run"), PermissionsExt::from_mode(0o755)).unwrap();
    let cp = async |from: String, to: String| {
        let mut command = home.place.command(["session", "cp", &from, &to]);
        let output = command.env("XDG_RUNTIME_DIR", &runtime).current_dir(&outside).output().unwrap();
        let whole = !String::from_utf8_lossy(&output.stderr).contains("symlink");
        let code = if whole { 0 } else { 125 };
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        whole
    };
    let id = session.id();
    assert!(cp("large".into(), format!("{id}:/tmp/large")).await);
    assert!(cp("tree".into(), format!("{id}:/tmp/")).await);
    let output = sh(&session, "wc -c < /tmp/large; /tmp/tree/below/run").await;
    assert_eq!(text(&output.stdout), "60000000\nran\n");
    assert!(cp(format!("{id}:/tmp/large"), "back".into()).await);
    assert!(std::fs::read(outside.join("back")).unwrap() == bytes);
    // A directory comes out below one that is there; links are left out, which is said, and nothing lands elsewhere.
    sh(&session, "cd /tmp/tree && ln -s /etc/passwd link && ln -s .. up").await;
    assert!(!cp(format!("{id}:/tmp/tree"), ".".into()).await);
    assert!(!cp(format!("{id}:/tmp/tree"), "copy".into()).await);
    assert_eq!(std::fs::read_to_string(outside.join("copy/below/run")).unwrap(), "#!/bin/sh\necho ran\n");
    assert!(!outside.join("copy/link").exists());
}
