//! Bytes of a stranger: the first one says how the others are cut, the rest is what is read from a socket. Nothing panics,
//! nothing is kept beyond its bound, and what is accepted can be said again and means the same.
//!
//! `cargo +nightly fuzz run frames` in `crates/ringfence-guest`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringfence_guest::frame::{self, Decoder, Greeting, Kind, Message, MAX_DATA, MAX_REPLY, MAX_REQUEST};
use ringfence_guest::message::{HostHello, Input, Reply, Request};

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    for most in [MAX_REPLY, MAX_REQUEST] {
        let mut decoder = Decoder::new(most);
        for part in bytes.chunks(usize::from(*cut) + 1) {
            decoder.feed(part);
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) => look_at(frame, most),
                    Ok(None) => break,
                    // Whoever sent this is not listened to any more.
                    Err(_) => return,
                }
            }
        }
    }
});

fn look_at(frame: frame::Frame<'_>, most: usize) {
    assert!(frame.payload.len() <= most.max(MAX_DATA));
    let mut again = Vec::new();
    match frame.kind {
        Kind::Open => same(&frame.message::<Request>(), &mut again, frame),
        Kind::Input => {
            same(&frame.message::<HostHello>(), &mut again, frame);
            same(&frame.message::<Input>(), &mut again, frame);
        }
        Kind::Reply => {
            same(&frame.message::<Greeting>(), &mut again, frame);
            same(&frame.message::<Reply>(), &mut again, frame);
        }
        Kind::Credit(_) => drop(frame.credit()),
        Kind::Data(_) | Kind::Eof(_) | Kind::Close => {}
    }
}

/// What was understood is said again, and understood the same.
fn same<T>(message: &Result<T, frame::FrameError>, again: &mut Vec<u8>, frame: frame::Frame<'_>)
where
    T: Message + PartialEq + std::fmt::Debug,
{
    let Ok(message) = message else { return };
    again.clear();
    if frame::put_message(again, frame.stream, frame.kind, message).is_err() {
        return;
    }
    let mut decoder = Decoder::new(MAX_REQUEST);
    decoder.feed(again);
    let back = decoder.next_frame().ok().flatten().expect("one frame");
    assert_eq!(back.message::<T>().as_ref(), Ok(message));
}
