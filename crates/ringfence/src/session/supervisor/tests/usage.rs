//! What a session says that it uses.

use super::*;

#[tokio::test]
async fn what_a_command_wrote_is_counted_once_it_has_ended() {
    let real = real_session();
    let sessions = Sessions::new(real.place.dir(), "/nonexistent");
    let session = sessions.open(&real.id).await.unwrap();
    let before = session.usage().await.unwrap();
    // Only its own loopback is in its network.
    assert!(before.received.is_none_or(|bytes| bytes == 0) && before.received == before.sent, "{before:?}");
    let dd = ["dd", "if=/dev/zero", "of=file", "bs=1M", "count=8", "conv=fsync"];
    assert_eq!(session.exec(Exec::new(dd)).await.unwrap().output().await.unwrap().exit_code(), Some(0));
    let after = in_time(session.usage()).await.unwrap();
    assert!(after.processes.is_some() && after.memory.is_some(), "{after:?}");
    match before.written.zip(after.written) {
        Some((before, after)) => assert!(after >= before + (8 << 20), "{before} {after}"),
        None => println!("SKIP: nothing counts what it writes here"),
    }
    session.stop().await.unwrap();
    real.ended();
}
