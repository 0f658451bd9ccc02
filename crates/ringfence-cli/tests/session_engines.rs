//! Sessions are the same on every engine whose box is a tree of processes: commands, time, memory, files, ports, terminals,
//! and nothing left. (Those of Docker are in the library's tests of that engine.)
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::time::Duration;

use ringfence::session::{Create, Event, Exec, Session, SessionError, Size, WriteOptions};
use ringfence::{EngineRef, Reason};
use sessions::{Home, kill, seconds, sh, sleeping, supervisors, text, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Another one for each engine.
fn number(engine: EngineRef) -> u32 {
    u32::from(engine.name() == "bubblewrap")
}

fn engines() -> Vec<EngineRef> {
    let here = support::engines();
    [ringfence::engines::native::ENGINE, ringfence::engines::bubblewrap::ENGINE]
        .into_iter()
        .filter(|engine| here.contains(&engine.name()))
        .collect()
}

async fn session(home: &Home, engine: EngineRef, create: Create) -> Session {
    let session = home.sessions.create(create.choice(engine.into())).await.unwrap();
    assert_eq!(session.info().await.unwrap().engine, engine.name());
    session
}

/// Process 1 of the box, which may be the child of what built it: the nearest one that is a guest.
fn guest_below(supervisor: i32) -> i32 {
    let mut open = std::collections::VecDeque::from([supervisor]);
    while let Some(pid) = open.pop_front() {
        if std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "guest\n") {
            return pid;
        }
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        open.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    panic!("no guest");
}

#[tokio::test]
async fn commands() {
    for engine in engines() {
        let home = Home::new();
        let session = session(&home, engine, home.create()).await;
        // Both outputs, also opened once more by their names.
        let output =
            sh(&session, "echo out; echo more > /dev/stdout; echo err > /dev/stderr; id -u; pwd; exit 3").await;
        assert_eq!(text(&output.stdout), "out\nmore\n1000\n/workspace\n", "{engine:?}");
        assert_eq!((text(&output.stderr), output.exit_code()), ("err\n", Some(3)), "{engine:?}");
        let mut execution = session.exec(Exec::new(["cat"]).stdin(true)).await.unwrap();
        execution.write(b"to and fro").await.unwrap();
        execution.close_stdin().await.unwrap();
        assert_eq!(execution.output().await.unwrap().stdout, b"to and fro");
        let missing = session.exec(Exec::new(["no-such-program"])).await.unwrap_err();
        assert!(matches!(missing, SessionError::Execute { .. }), "{missing}");
        // What a command leaves in the background does not hold its answer up, and ends with the session.
        let nap = seconds(40 + number(engine));
        assert_eq!(text(&sh(&session, &format!("(setsid sleep {nap} &); echo done")).await.stdout), "done\n");
        until("it runs", || sleeping(&nap).len() == 1).await;
        session.stop().await.unwrap();
        until("it is gone", || sleeping(&nap).is_empty()).await;
        assert_eq!(supervisors(home.dir()), Vec::<i32>::new());
    }
}

#[tokio::test]
async fn time_and_memory() {
    for engine in engines() {
        let home = Home::new();
        let session = session(&home, engine, home.create_with(|layer| layer.memory("64m").unwrap())).await;
        let nap = seconds(50 + number(engine));
        let script = format!("echo before; (setsid sleep {nap} &) ; trap '' TERM; sleep {nap}; sleep {nap}");
        let exec = Exec::new(["sh", "-c", &script]).timeout(Duration::from_millis(500));
        let output = session.exec(exec).await.unwrap().output().await.unwrap();
        assert_eq!((text(&output.stdout), output.outcome.reason), ("before\n", Some(Reason::Time)), "{engine:?}");
        assert!(sleeping(&nap).is_empty(), "{engine:?}: all of it");
        let hungry = session.exec(Exec::new(["python3", "-c", "x = bytearray(200 << 20)"])).await.unwrap();
        assert_ne!(hungry.output().await.unwrap().exit_code(), Some(0), "{engine:?}");
        assert_eq!(text(&sh(&session, "echo usable").await.stdout), "usable\n");
        session.stop().await.unwrap();
    }
}

#[tokio::test]
async fn files_ports_and_terminals() {
    for engine in engines() {
        let home = Home::new();
        let session = session(&home, engine, home.create()).await;
        let files = session.files();
        let contents: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        files.write("large", &contents, WriteOptions::default()).await.unwrap();
        assert_eq!(std::fs::read(home.place.project.join("large")).unwrap(), contents);
        assert!(files.read("large", 10 << 20).await.unwrap() == contents);
        // Between files, without anybody reading them.
        let copy = home.place.home.join("copy");
        let taken =
            files.reader("large", 0).await.unwrap().copy_to(std::fs::File::create(&copy).unwrap()).await.unwrap();
        assert_eq!((taken, std::fs::read(&copy).unwrap() == contents), (3_000_000, true));
        let mut writer = files.writer("/tmp/back", WriteOptions::default()).await.unwrap();
        assert_eq!(writer.copy_from(std::fs::File::open(&copy).unwrap()).await.unwrap(), 3_000_000);
        assert_eq!(writer.finish().await.unwrap(), 3_000_000);
        assert_eq!(sh(&session, "cmp /tmp/back large").await.exit_code(), Some(0));
        assert!(matches!(files.read("missing", 1).await, Err(SessionError::File { .. })));

        let serve = "import socket; s = socket.create_server(('127.0.0.1', 7777)); print('up', flush=True); \
                     c, _ = s.accept(); c.sendall(c.recv(9).upper())";
        let mut server = session.exec(Exec::new(["python3", "-c", serve])).await.unwrap();
        assert_eq!(server.next().await.unwrap(), Some(Event::Stdout("up\n".into())));
        let mut port = session.connect(7777).await.unwrap();
        port.write_all(b"to a port").await.unwrap();
        let mut answer = String::new();
        port.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "TO A PORT");

        let exec = Exec::new(["sh", "-c", "tty; stty size"]).terminal(Size { rows: 7, columns: 77 });
        let shown = session.exec(exec).await.unwrap().output().await.unwrap().stdout;
        assert!(text(&shown).contains("/dev/pts/") && text(&shown).contains("7 77"), "{}", text(&shown));
        session.stop().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_killed_ends_the_session_and_is_told() {
    for engine in engines() {
        for supervisor in [true, false] {
            let home = Home::new();
            let session = session(&home, engine, home.create()).await;
            let nap = seconds(60 + 2 * number(engine) + u32::from(supervisor));
            let execution = session.exec(Exec::new(["sleep", &nap])).await.unwrap();
            let owner = supervisors(home.dir())[0];
            kill(if supervisor { owner } else { guest_below(owner) }, libc::SIGKILL);
            assert_eq!(execution.output().await.unwrap().outcome.reason, Some(Reason::Lost), "{engine:?}");
            until("it is gone", || sleeping(&nap).is_empty()).await;
            let ended = home.sessions.open(session.id()).await.unwrap_err();
            assert!(matches!(ended, SessionError::Ended { .. }), "{ended}");
        }
    }
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
