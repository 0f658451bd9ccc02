//! Who speaks another version of either protocol is told apart from who is gone, by an error of its own.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};

use super::super::super::{SessionError, protocol};
use super::*;

#[tokio::test]
async fn a_supervisor_of_another_version() {
    let (over, wait) = std::sync::mpsc::channel::<()>();
    let (stage, guest) = with_guest(move |guest| {
        // Until the test is over.
        let _ = wait.recv();
        drop(guest);
    });
    drop(stage.session().await);
    // Another one listens in its place.
    let path = stage.place.socket(&stage.id);
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut bytes) = (client.unwrap(), Vec::new());
            let hello = protocol::Hello { version: protocol::VERSION + 1, output: 1 };
            frame::put_message(&mut bytes, 0, Kind::Reply, &hello).unwrap();
            client.write_all(&bytes).unwrap();
            // Until it goes.
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        }
    });
    let said = match stage.sessions.open(&stage.id).await {
        Ok(session) => session.info().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(said, Err(SessionError::Version { .. })), "{said:?}");
    drop(over);
    guest.join().unwrap();
    assert_eq!(stage.end(), End::Died);
}

#[test]
fn a_guest_of_another_version() {
    let greet = |bytes: &[u8]| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("sessions"));
        let fresh = place.make(None).unwrap();
        let start = Start { id: fresh.id.clone(), ..start(dir.path(), &place) };
        match Supervisor::own(start, None, ours.into()) {
            Ok(_) => "owned".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    let hello = |version: u16| {
        let mut bytes = Vec::new();
        frame::put_message(&mut bytes, 0, Kind::Reply, &Hello { version }).unwrap();
        bytes
    };
    assert_eq!(greet(&hello(frame::VERSION)), "owned");
    for version in [frame::VERSION - 1, frame::VERSION + 1, u16::MAX] {
        let said = greet(&hello(version));
        assert!(said.contains("it speaks another version"), "{version}: {said}");
    }
    assert!(greet(&[0xff; 64]).contains("it speaks something else"));
    assert!(greet(&[]).contains("it ended"));
}
