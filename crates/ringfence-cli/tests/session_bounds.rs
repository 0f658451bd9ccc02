//! What a supervisor takes from clients that do not read, do not ask, or leave in the middle: bounded memory, and no other
//! client's place.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringfence::Reason;
use ringfence::session::{End, Exec, Session, Size, State};
use ringfence_guest::frame::{self, Kind, MAX_REQUEST};

use sessions::Home;

const MIB: u64 = 1 << 20;

/// `ClientHello`, and requests by their number, as they stand in the golden file.
const HELLO: [u8; 3] = [1, 1, 1];
const ATTACH: u8 = 1;
const REPORT: u8 = 4;

fn socket(home: &Home, session: &Session) -> PathBuf {
    home.dir().join(session.id()).join("socket")
}

fn supervisor(home: &Home) -> i32 {
    sessions::supervisors(home.dir())[0]
}

/// Memory of a process.
fn resident(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// The most that a process has while something is done.
async fn peak<T>(pid: i32, what: impl Future<Output = T>) -> (u64, T) {
    let mut most = 0;
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    let mut what = std::pin::pin!(what);
    loop {
        tokio::select! {
            done = &mut what => return (most, done),
            _ = looks.tick() => most = most.max(resident(pid)),
        }
    }
}

/// A client that has said hello and these requests, on one stream each.
fn client(home: &Home, session: &Session, requests: impl Iterator<Item = Vec<u8>>) -> UnixStream {
    let mut bytes = Vec::new();
    frame::put(&mut bytes, 0, Kind::Input, &HELLO);
    for (stream, request) in (1..).zip(requests) {
        frame::put(&mut bytes, stream, Kind::Open, &request);
    }
    let mut client = UnixStream::connect(socket(home, session)).unwrap();
    client.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    // Not read, the supervisor takes no more at some time.
    let _ = client.write_all(&bytes);
    client
}

#[tokio::test]
async fn ending_a_flood_that_nobody_reads_ends_nothing_else() {
    let home = Home::new();
    let session = home.session().await;
    let neighbour = session.exec(Exec::new(["sh", "-c", "sleep 6; echo there"])).await.unwrap();
    let unread = home.sessions.open(session.id()).await.unwrap();
    let flood = |script: &str| Exec::new(["sh", "-c", script]).timeout(Duration::from_millis(500));
    let terminal = flood("yes").terminal(Size { rows: 24, columns: 80 });
    let mut floods = Vec::new();
    for exec in [terminal, flood("yes"), flood("yes | sleep 100"), flood("trap '' TERM; while :; do yes; done")] {
        floods.push(unread.exec(exec).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(neighbour.output().await.unwrap().stdout, b"there\n");
    assert_eq!(session.info().await.unwrap().running, 0);
    // Their reader may come late.
    for flood in floods {
        assert_eq!(flood.output().await.unwrap().outcome.reason, Some(Reason::Time));
    }
    session.stop().await.unwrap();
}

#[tokio::test]
async fn idle_clients_keep_no_session_from_being_ended() {
    let home = Home::new();
    let session = home.session().await;
    let idle: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(socket(&home, &session)).unwrap()).collect();
    // One that asks for something else waits for a place.
    let (other, id) = (home.sessions.clone(), session.id().to_owned());
    let waits = tokio::spawn(async move { other.exec(&id, Exec::new(["echo", "there"])).await?.output().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waits.is_finished());
    drop(idle.into_iter().take(100).collect::<Vec<_>>());
    assert_eq!(waits.await.unwrap().unwrap().stdout, b"there\n");

    let idle: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(socket(&home, &session)).unwrap()).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let started = Instant::now();
    home.sessions.stop(session.id()).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    // In good order, not by force.
    assert_eq!(home.sessions.info(session.id()).await.unwrap().state, State::Ended(End::Stopped));
    drop(idle);
}

#[tokio::test]
async fn half_a_request_takes_no_memory_when_its_client_is_gone() {
    let home = Home::new();
    let session = home.session().await;
    let pid = supervisor(&home);
    let before = resident(pid);
    let half = vec![b'x'; MAX_REQUEST / 2];
    let clients: Vec<UnixStream> = (0..100)
        .map(|_| {
            let mut client = client(&home, &session, std::iter::empty());
            let mut head = Vec::new();
            head.extend_from_slice(&(MAX_REQUEST as u32).to_le_bytes());
            head.extend_from_slice(&1u32.to_le_bytes());
            head.push(1);
            client.write_all(&head).unwrap();
            client.write_all(&half).unwrap();
            client
        })
        .collect();
    sessions::until("the supervisor has them", || resident(pid) > before + 100 * MIB).await;
    drop(clients);
    sessions::until("the memory is given back", || resident(pid) < before + 32 * MIB).await;
    session.stop().await.unwrap();
}

#[tokio::test]
async fn answers_that_are_not_read_are_not_made() {
    let home = Home::new();
    let session = home.session().await;
    let pid = supervisor(&home);
    let before = resident(pid);
    let (most, mut asked) = peak(pid, async {
        let asked = client(&home, &session, (0..100_000).map(|_| vec![REPORT]));
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Others are served.
        session.info().await.unwrap();
        asked
    })
    .await;
    assert!(most < before + 48 * MIB, "{} MiB more", (most - before) / MIB);
    // One that reads then gets what it asked for.
    asked.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (mut buffer, mut got) = (vec![0; 1 << 20], 0);
    while got < 20 * MIB as usize {
        let read = asked.read(&mut buffer).unwrap();
        assert!(read > 0, "the connection has ended after {got} bytes");
        got += read;
    }
    drop(asked);
    session.stop().await.unwrap();
}

#[tokio::test]
async fn output_that_is_followed_many_times_is_kept_once() {
    let home = Home::new();
    let session = home.session().await;
    let pid = supervisor(&home);
    let exec = Exec::new(["sh", "-c", "sleep 3; head -c 1000000 /dev/zero; sleep 100"]).background(true);
    let _followed = session.exec(exec).await.unwrap();
    let before = resident(pid);
    let (most, _client) = peak(pid, async {
        // While there is nothing to send yet.
        let client = client(&home, &session, (0..5000).map(|_| vec![ATTACH, 1]));
        tokio::time::sleep(Duration::from_secs(6)).await;
        client
    })
    .await;
    assert!(most < before + 64 * MIB, "{} MiB more", (most - before) / MIB);
    session.info().await.unwrap();
    session.stop().await.unwrap();
}

#[tokio::test]
async fn logs_that_nobody_reads_are_forgotten() {
    let home = Home::new();
    let session = home.session().await;
    let pid = supervisor(&home);
    let before = resident(pid);
    let unread = home.sessions.open(session.id()).await.unwrap();
    let mut commands = Vec::new();
    for _ in 0..100 {
        let exec = Exec::new(["sh", "-c", "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"]).background(true);
        commands.push(unread.exec(exec).await.unwrap());
        while session.info().await.unwrap().running > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let grown = resident(pid).saturating_sub(before);
    assert!(grown < 96 * MIB, "{} MiB more", grown / MIB);
    // What is missing is counted, and the end is told.
    let last = commands.pop().unwrap().output().await.unwrap();
    let first = commands.swap_remove(0).output().await.unwrap();
    assert_eq!(first.outcome.reason, None);
    assert!(first.stdout_dropped > 2_500_000 && last.stdout.len() > 500_000, "{}", last.stdout.len());
    session.stop().await.unwrap();
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
