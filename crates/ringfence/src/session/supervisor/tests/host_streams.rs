//! Streams that a guest opens towards the host.

use ringfence_guest::frame::Greeting;
use ringfence_guest::message::{FIRST_HOST_STREAM as FIRST, GREETING, PIPES};

use super::*;

/// What a guest with this greeting sends at once, and how its session ended; `then` is what it does next.
fn plays<T: Send + 'static>(greeting: Greeting, frames: &[u8], then: fn(&mut Guest) -> T) -> (T, End) {
    let frames = frames.to_vec();
    let (go, listens) = std::sync::mpsc::channel();
    let (stage, guest) = with_greeting(greeting, tempfile::tempdir().unwrap(), None, move |mut guest| {
        listens.recv().unwrap();
        let _ = guest.socket.write_all(&frames);
        let said = then(&mut guest);
        drop(guest);
        said
    });
    while !stage.place.socket(&stage.id).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    go.send(()).unwrap();
    let said = guest.join().unwrap();
    (said, stage.end())
}

/// Opens of these streams, for something that no release knows so far.
fn opens(streams: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    streams.into_iter().for_each(|stream| frame::put(&mut bytes, stream, Kind::Open, b"\0what follows"));
    bytes
}

/// The next grant, or the next answer.
fn next_grant(guest: &mut Guest) -> Option<u32> {
    let (stream, kind, payload) = guest.next_of_all()?;
    match postcard::from_bytes(&payload) {
        Ok(Input::HostStreams { more }) if (stream, kind) == (0, Kind::Input) => Some(more),
        other => panic!("{stream} {kind:?} {other:?}"),
    }
}

fn next_answer(guest: &mut Guest) -> u32 {
    let (stream, kind, payload) = guest.next_of_all().unwrap();
    assert_eq!((kind, postcard::from_bytes(&payload)), (Kind::Reply, Ok(Reply::Unsupported)));
    stream
}

#[test]
fn a_guest_opens_streams_as_far_as_it_was_granted() {
    let all = FIRST..FIRST + 16;
    let (answered, end) = plays(GREETING, &opens(all.clone()), |guest| {
        assert_eq!(next_grant(guest), Some(16));
        let answered: Vec<u32> = (0..16).map(|_| next_answer(guest)).collect();
        // All of it comes back, also for the numbers that were used.
        for _ in 0..100 {
            let mut granted = 0;
            while granted < 16 {
                granted += next_grant(guest).unwrap();
            }
            let _ = guest.socket.write_all(&opens((FIRST..).step_by(3).take(16)));
            (0..16).for_each(|_| assert!(next_answer(guest) >= FIRST));
        }
        answered
    });
    assert_eq!(answered, all.collect::<Vec<_>>());
    // The guest left by itself.
    assert_eq!(end, End::Died);
}

#[test]
fn more_than_was_granted_ends_the_session() {
    let silent =
        |greeting: Greeting, frames: &[u8]| plays(greeting, frames, |guest| while guest.next_of_all().is_some() {}).1;
    let with = |stream: u32, kind: Kind, payload: &[u8]| {
        let mut bytes = opens([FIRST]);
        frame::put(&mut bytes, stream, kind, payload);
        bytes
    };
    for (what, frames) in [
        ("one too many", opens(FIRST..FIRST + 17)),
        ("one that is open", opens([FIRST, FIRST])),
        ("a number of the host's", opens([FIRST - 1])),
        ("stream 0", opens([0])),
        ("a target that is no number", with(FIRST + 1, Kind::Open, &[0xff; 9])),
        ("no target", with(FIRST + 1, Kind::Open, b"")),
        ("data before the answer", with(FIRST, Kind::Data(Channel::Out), b"x")),
        ("an answer to itself", with(FIRST, Kind::Reply, b"\x06")),
    ] {
        assert_eq!(silent(GREETING, &frames), End::Unruly, "{what}");
    }
    let older = Greeting { features: PIPES, ..GREETING };
    assert_eq!(silent(older, &opens([FIRST])), End::Unruly);
}

#[test]
fn a_guest_that_cannot_is_granted_nothing() {
    let older = Greeting { features: PIPES, ..GREETING };
    let (frames, end) = plays(older, b"", |guest| {
        let _ = guest.socket.set_read_timeout(Some(Duration::from_millis(100)));
        guest.next_of_all()
    });
    assert_eq!((frames, end), (None, End::Died));
}
