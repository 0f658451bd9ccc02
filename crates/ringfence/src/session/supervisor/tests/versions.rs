//! A peer of another release: what both sides know goes on working, and the rest is an error of its own.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};

use ringfence_guest::frame::Greeting;

use super::super::super::link::Link;
use super::super::super::{LimitChange, SessionError, protocol};
use super::*;

/// Listens in the place of a session's supervisor, greets like this, and takes what comes.
fn listen_as(stage: &Stage, greeting: Greeting) {
    let path = stage.place.socket(&stage.id);
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut bytes) = (client.unwrap(), Vec::new());
            let hello = protocol::SupervisorHello { greeting, output: 1 };
            frame::put_message(&mut bytes, 0, Kind::Reply, &hello).unwrap();
            client.write_all(&bytes).unwrap();
            // Until it goes.
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        }
    });
}

#[tokio::test]
async fn a_supervisor_without_a_common_version() {
    let (over, wait) = std::sync::mpsc::channel::<()>();
    let (stage, guest) = with_guest(move |guest| {
        // Until the test is over.
        let _ = wait.recv();
        drop(guest);
    });
    drop(stage.session().await);
    listen_as(&stage, Greeting { oldest: 5, newest: 6, features: 0 });
    let said = match stage.sessions.open(&stage.id).await {
        Ok(session) => session.info().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(said, Err(SessionError::Version { .. })), "{said:?}");
    let text = said.unwrap_err().to_string();
    for part in ["versions 5 to 6", "1 to 1", "end it and make a new one"] {
        assert!(text.contains(part), "{text}");
    }
    drop(over);
    guest.join().unwrap();
    assert_eq!(stage.end(), End::Died);
}

/// A supervisor that keeps time limits as they are would say that all is done: it is not asked.
#[tokio::test]
async fn a_supervisor_that_cannot_change_time_limits() {
    let (over, wait) = std::sync::mpsc::channel::<()>();
    let (stage, guest) = with_guest(move |guest| {
        // Until the test is over.
        let _ = wait.recv();
        drop(guest);
    });
    drop(stage.session().await);
    listen_as(&stage, Greeting { oldest: 1, newest: 1, features: protocol::PIPES });
    let path = stage.place.socket(&stage.id);
    let link = Link::connect_as(protocol::GREETING, &stage.id, &path, None, Instant::now()).await.unwrap();
    let session = Session { link, place: stage.place.clone() };
    let time = LimitChange { timeout: Some(Duration::from_secs(1)), ..LimitChange::default() };
    let changed = in_time(session.change_limits(time)).await;
    assert!(matches!(changed, Err(SessionError::UnknownRequest { .. })), "{changed:?}");
    drop((session, over));
    guest.join().unwrap();
    assert_eq!(stage.end(), End::Died);
}

/// A newer client, which speaks more versions and can do more, and a client that shares no version.
#[tokio::test]
async fn a_client_of_another_release() {
    let (stage, guest) = with_guest(|mut guest| {
        let stream = guest.take_exec();
        guest.send(stream, Kind::Data(Channel::Out), b"hello");
        guest.exit(stream);
        while guest.next().is_some() {}
    });
    let session = stage.session().await;
    let newer = Greeting { oldest: 1, newest: 9, features: u64::MAX };
    let path = stage.place.socket(&stage.id);
    let link = Link::connect_as(newer, &stage.id, &path, None, Instant::now()).await.unwrap();
    // What this session lacks, and what it does not.
    let unknown = in_time(link.ask_unknown()).await.unwrap();
    assert_eq!(unknown, protocol::SupervisorReply::Refused(protocol::Refusal::UnknownRequest));
    let output = Exec::new(["true"]).start(&link).await.unwrap().output().await.unwrap();
    assert_eq!((output.exit_code(), &output.stdout[..]), (Some(0), &b"hello"[..]));
    let stranger = Greeting { oldest: 2, newest: 9, features: 0 };
    let link = Link::connect_as(stranger, &stage.id, &path, None, Instant::now()).await.unwrap();
    let error = in_time(link.ask(&ClientRequest::Info)).await.unwrap_err().to_string();
    assert!(error.contains("versions 1 to 1") && error.contains("2 to 9"), "{error}");
    // Nothing of that was held against the session.
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    guest.join().unwrap();
}

/// A guest that can do less, and says what this release does not know.
#[tokio::test]
async fn a_guest_of_another_release() {
    let older = Greeting { oldest: 0, newest: 1, features: 0 };
    let (stage, guest) = with_greeting(older, tempfile::tempdir().unwrap(), None, |mut guest| {
        // Contents come in frames: it takes no pipes.
        let (read, _, payload) = guest.next().unwrap();
        assert!(matches!(postcard::from_bytes(&payload), Ok(Request::Read { piped: false, .. })));
        guest.send(read, Kind::Data(Channel::Out), b"contents");
        guest.reply(read, &Reply::Done { bytes: 8 });
        let (write, _, payload) = guest.next().unwrap();
        assert!(matches!(postcard::from_bytes(&payload), Ok(Request::Write(message::Write { piped: false, .. }))));
        let mut written = Vec::new();
        loop {
            match guest.next().unwrap() {
                (_, Kind::Data(Channel::In), bytes) => written.extend(bytes),
                (_, Kind::Eof(Channel::In), _) => break,
                other => panic!("{other:?}"),
            }
        }
        guest.reply(write, &Reply::Done { bytes: written.len() as u64 });
        let (stat, ..) = guest.next().unwrap();
        guest.reply(stat, &Reply::Unsupported);
        let (list, ..) = guest.next().unwrap();
        guest.send(list, Kind::Reply, &[100, 1, 2, 3]);
        assert_eq!(guest.next().unwrap().1, Kind::Close);
        let (exec, ..) = guest.next().unwrap();
        guest.send(exec, Kind::Reply, &[100, 1, 2, 3]);
        assert_eq!(guest.next().unwrap().1, Kind::Close);
        let exec = guest.take_exec();
        guest.send(exec, Kind::Reply, &[100, 1, 2, 3]);
        assert_eq!(guest.next().unwrap().1, Kind::Close);
        while guest.next().is_some() {}
        written
    });
    let session = stage.session().await;
    let files = session.files();
    assert_eq!(in_time(files.read("x", 100)).await.unwrap(), b"contents");
    in_time(files.write("x", b"new contents", Default::default())).await.unwrap();
    for error in [in_time(files.stat("x")).await.map(drop), in_time(files.list("x", 1)).await.map(drop)] {
        let error = error.unwrap_err();
        assert!(matches!(error, SessionError::UnknownRequest { .. }), "{error}");
        assert!(error.to_string().contains("end it and make a new one"), "{error}");
    }
    let error = in_time(session.exec(Exec::new(["true"]))).await.unwrap_err();
    assert!(matches!(error, SessionError::Exec { errno: Errno::NOSYS, .. }), "{error}");
    let lost = in_time(session.exec(Exec::new(["true"]))).await.unwrap().output().await.unwrap();
    assert_eq!(lost.outcome.reason, Some(Reason::Lost));
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    assert_eq!(guest.join().unwrap(), b"new contents");
}

#[test]
fn a_guest_without_a_common_version() {
    let greet = |bytes: &[u8]| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("sessions"));
        let fresh = place.make(None).unwrap();
        let start = SessionStart { id: fresh.id.clone(), ..start(dir.path(), &place) };
        match Supervisor::own(start, None, ours.into()) {
            Ok(_) => "owned".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    let hello = |oldest: u16, newest: u16| {
        let mut bytes = Vec::new();
        let greeting = Greeting { oldest, newest, features: u64::MAX };
        frame::put_message(&mut bytes, 0, Kind::Reply, &greeting).unwrap();
        bytes
    };
    assert_eq!(greet(&hello(1, 1)), "owned");
    assert_eq!(greet(&hello(0, 9)), "owned");
    for (oldest, newest) in [(0, 0), (2, 3), (u16::MAX, u16::MAX), (9, 0)] {
        let said = greet(&hello(oldest, newest));
        let theirs = format!("speaks versions {oldest} to {newest}, and this release of Ringfence 1 to 1");
        assert!(said.contains(&theirs) && said.contains("use the guest of this release"), "{said}");
    }
    assert!(greet(&[0xff; 64]).contains("it speaks something else"));
    assert!(greet(&[]).contains("it ended"));
}

#[test]
fn an_engine_without_descriptors_passes_no_pipes() {
    let passes = |descriptors| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut bytes = Vec::new();
        frame::put_message(&mut bytes, 0, Kind::Reply, &message::GREETING).unwrap();
        theirs.write_all(&bytes).unwrap();
        let can = Abilities { descriptors, ..Abilities::default() };
        let (agreed, _) = guest::hello(&mut Wire::new(ours.into(), MAX_REPLY).unwrap(), can).unwrap();
        agreed.features & message::PIPES != 0
    };
    assert!(passes(true) && !passes(false));
}
