//! What a session needs beside its sandbox, and a sandbox that takes its time to end.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use ringfence_linux::limits::Usage;

use super::*;
use crate::engines::Helper;

/// A sandbox that its guest's connection stands for.
#[derive(Debug, Default)]
struct Stub {
    helpers: Vec<Helper>,
    /// Says that it is being ended, and ends when the other one is dropped.
    holds: Option<(Sender<()>, Receiver<()>)>,
}

impl GuestSandbox for Stub {
    fn is_limited(&self) -> bool {
        true
    }

    fn helpers(&self) -> Vec<Helper> {
        self.helpers.clone()
    }

    fn finish(self: Box<Self>) -> Result<Usage, EngineError> {
        let _ = self.holds.map(|(ends, holds)| ends.send(()).map(|()| holds.recv()));
        Ok(Usage::default())
    }
}

fn staged(sandbox: Stub) -> (Stage, std::thread::JoinHandle<()>) {
    let dir = tempfile::tempdir().unwrap();
    with_sandbox(Some(Box::new(sandbox)), message::GREETING, dir, None, swallow)
}

/// Says who it is, and stays.
fn helper(file: &Path, restarts: bool) -> Helper {
    let script = format!("echo $$ > {}; exec sleep 1000", file.display());
    Helper { path: "/bin/sh".into(), args: vec!["-c".into(), script.into()], env: Vec::new(), restarts }
}

/// The process that has said so, once it is another one than before.
async fn next(file: &Path, before: Option<i32>) -> i32 {
    in_time(async {
        loop {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            match text.strip_suffix('\n').and_then(|text| text.parse().ok()) {
                Some(pid) if Some(pid) != before => return pid,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_helper_is_started_again_and_ends_with_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let (stage, guest) = staged(Stub { helpers: vec![helper(&file, true)], holds: None });
    let session = stage.session().await;
    let first = next(&file, None).await;
    kill(first);
    let second = next(&file, Some(first)).await;
    session.info().await.unwrap();
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    guest.join().unwrap();
    let stat = || std::fs::read_to_string(format!("/proc/{second}/stat"));
    in_time(async {
        while stat().is_ok_and(|text| !text.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_ends_with_a_helper_that_it_cannot_do_without() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let (stage, guest) = staged(Stub { helpers: vec![helper(&file, false)], holds: None });
    let session = stage.session().await;
    kill(next(&file, None).await);
    in_time(session.closed()).await;
    assert_eq!(stage.end(), End::Helper);
    guest.join().unwrap();
    // Nor does it begin without.
    let missing = Helper { path: "/nonexistent".into(), ..helper(&file, false) };
    let (stage, guest) = staged(Stub { helpers: vec![missing], holds: None });
    assert_eq!(tokio::task::spawn_blocking(|| stage.end()).await.unwrap(), End::Helper);
    guest.join().unwrap();
}

#[tokio::test]
async fn one_that_takes_long_to_end_says_so_and_begins_nothing() {
    let ((end, holds), (ends, asked_to_end)) = (channel(), channel());
    let (stage, guest) = staged(Stub { helpers: Vec::new(), holds: Some((ends, holds)) });
    let (session, other) = (stage.session().await, stage.session().await);
    let stopping = tokio::spawn(async move { session.stop().await });
    let asked_to_end = move || asked_to_end.recv_timeout(Duration::from_secs(10));
    tokio::task::spawn_blocking(asked_to_end).await.unwrap().unwrap();
    let asked = Instant::now();
    assert_eq!(other.info().await.unwrap().state, State::Live);
    let refused = in_time(other.exec(Exec::new(["true"]))).await.unwrap_err();
    assert!(matches!(refused, SessionError::Ended { .. }), "{refused}");
    let refused = in_time(other.files().stat("x")).await.unwrap_err();
    assert!(matches!(refused, SessionError::Ended { .. }), "{refused}");
    assert!(other.extend(None, Some(Duration::from_secs(9))).await.is_err());
    // One that comes only now as well.
    stage.session().await.report().await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert!(!stopping.is_finished());
    drop(end);
    in_time(stopping).await.unwrap().unwrap();
    assert_eq!(stage.end(), End::Stopped);
    guest.join().unwrap();
}
