//! A disk that does not answer holds up nobody but what must be written to it.

use std::path::Path;

use super::*;
use ringfence_records::{Filter, Journal, Record, Status, Store};
use ringfence_testing::Disk;

/// A guest whose commands end when they are told to, or at once when they are called `true`.
fn obey(mut guest: Guest) {
    while let Some((stream, kind, payload)) = guest.next() {
        match (kind, postcard::from_bytes(&payload)) {
            (Kind::Open, Ok(Request::Exec(exec))) => {
                guest.reply(stream, &Reply::Started { pid: 7 });
                guest.send(stream, Kind::Data(Channel::Out), b"hello");
                if exec.argv[0] == b"true" {
                    guest.exit(stream);
                }
            }
            (Kind::Open, Ok(Request::Ping)) => guest.reply(stream, &Reply::Done { bytes: 0 }),
            (Kind::Input, _) => guest.exit(stream),
            _ => {}
        }
    }
}

fn session_on(disk: &Disk, dir: tempfile::TempDir, strict: bool) -> (Stage, std::thread::JoinHandle<()>) {
    let policy = ringfence_policy::records::Records { output: true, ..Default::default() };
    let wanted = record::Wanted { dir: disk.at.join("records"), policy, strict };
    with_records_in(dir, Some(wanted), obey)
}

/// All records, the oldest first.
fn records(disk: &Disk, database: &Path) -> Vec<Record> {
    let mut store = Store::open(&ringfence_records::Place::File(database.to_owned())).unwrap();
    store.refresh(&Journal::new(&disk.at.join("records"))).unwrap();
    let mut all = store.list(&Filter::default()).unwrap();
    all.sort_by(|a, b| a.id.cmp(&b.id));
    all
}

#[tokio::test]
async fn time_limits_hold_while_the_disk_stalls() {
    let (dir, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(disk) = Disk::new(outer.path()) else { return };
    let (stage, guest) = session_on(&disk, dir, false);
    let session = stage.session().await;
    let first = session.exec(Exec::new(["true"])).await.unwrap();
    assert!(first.record().is_some() && first.trouble().is_none());
    assert_eq!(first.output().await.unwrap().stdout, b"hello");
    disk.freeze();

    let started = Instant::now();
    let slow = session.exec(Exec::new(["slow"]).timeout(Duration::from_millis(500))).await.unwrap();
    assert!(slow.trouble().is_some_and(|trouble| trouble.contains("in time")), "{:?}", slow.trouble());
    let output = in_time(slow.output()).await.unwrap();
    // Nothing of it is lost that came while it was waited for the disk.
    assert_eq!((output.outcome.reason, &output.stdout[..]), (Some(Reason::Time), &b"hello"[..]));
    assert!(output.outcome.duration < Duration::from_secs(5), "{:?}", output.outcome.duration);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // Others ask meanwhile.
    let asked = Instant::now();
    let other = stage.session().await;
    assert_eq!(other.info().await.unwrap().executions, 2);
    assert_eq!(stage.sessions.list().await.unwrap()[0].unreachable, None);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_eq!(in_time(other.exec(Exec::new(["true"]))).await.unwrap().output().await.unwrap().exit_code(), Some(0));

    // What was queued is written when the disk is there again, each with its end.
    disk.thaw();
    session.stop().await.unwrap();
    assert_eq!(stage.thread.join().map_err(drop), Ok(()));
    guest.join().unwrap();
    let all = records(&disk, &outer.path().join("records.db"));
    assert_eq!(all.iter().map(|one| one.status).collect::<Vec<_>>(), [Status::Exited; 3]);
    assert_eq!(all[1].command, ["slow"]);
    assert_eq!(all[1].reason.as_deref(), Some("time"));
}

#[tokio::test]
async fn a_session_ends_while_the_disk_stalls() {
    let (dir, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(disk) = Disk::new(outer.path()) else { return };
    let (stage, guest) = session_on(&disk, dir, false);
    let session = stage.session().await;
    disk.freeze();
    // As many as may wait, and more: those have no record.
    let mut asked = Vec::new();
    for _ in 0..worker::MOST_WAITING + 8 {
        let session = session.clone();
        asked.push(tokio::spawn(async move {
            let execution = session.exec(Exec::new(["true"])).await.unwrap();
            let recorded = execution.record().is_some();
            assert_eq!(in_time(execution.output()).await.unwrap().exit_code(), Some(0));
            recorded
        }));
    }
    let mut recorded = 0;
    for one in asked {
        recorded += usize::from(in_time(one).await.unwrap());
    }
    assert!((1..=worker::MOST_WAITING).contains(&recorded), "{recorded}");
    let stopped = Instant::now();
    session.stop().await.unwrap();
    assert_eq!(stage.thread.join().map_err(drop), Ok(()));
    assert!(stopped.elapsed() < Duration::from_secs(12), "{:?}", stopped.elapsed());
    guest.join().unwrap();
}

#[tokio::test]
async fn what_must_be_recorded_first_waits_for_the_disk_alone() {
    let (dir, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(disk) = Disk::new(outer.path()) else { return };
    let (stage, guest) = session_on(&disk, dir, true);
    let session = stage.session().await;
    disk.freeze();
    let waits = tokio::spawn({
        let session = session.clone();
        async move {
            session.exec(Exec::new(["true"]).timeout(Duration::from_millis(300))).await.unwrap().output().await.unwrap()
        }
    });
    // Its clock does not run yet.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!waits.is_finished());
    assert_eq!(session.info().await.unwrap().executions, 1);
    disk.thaw();
    let output = in_time(waits).await.unwrap();
    assert_eq!((output.exit_code(), &output.stdout[..]), (Some(0), &b"hello"[..]));
    // One that is given up before it was recorded never ran, and that is recorded.
    disk.freeze();
    let given_up = tokio::spawn({
        let session = stage.session().await;
        async move { drop(session.exec(Exec::new(["given-up"])).await) }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    given_up.abort();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(session.executions().await.unwrap().len(), 1);
    disk.thaw();
    session.stop().await.unwrap();
    assert_eq!(stage.thread.join().map_err(drop), Ok(()));
    guest.join().unwrap();
    let all = records(&disk, &outer.path().join("records.db"));
    let statuses: Vec<_> = all.iter().map(|one| (one.command[0].as_str(), one.status)).collect();
    assert_eq!(statuses, [("true", Status::Exited), ("given-up", Status::Failed)]);
}

#[test]
fn nothing_is_written_after_the_last_words() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    for ends in [true, false] {
        let fresh = place.make(None).unwrap();
        let project = tempfile::tempdir_in(dir.path()).unwrap();
        let start = SessionStart { id: fresh.id.clone(), ..start(project.path(), &place) };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut greeting = Vec::new();
        frame::put_message(&mut greeting, 0, Kind::Reply, &message::GREETING).unwrap();
        theirs.write_all(&greeting).unwrap();
        let mut supervisor = Supervisor::own(start, None, ours.into()).unwrap();
        // A newer state comes while one is being written.
        for executions in [1, 2] {
            supervisor.executions.count = executions;
            supervisor.worker.keep(supervisor.kept());
        }
        if ends {
            supervisor.sandbox_ended(End::Stopped, Ok(false));
        }
        let until = Instant::now() + Duration::from_secs(10);
        while !supervisor.worker.is_idle() {
            assert!(Instant::now() < until);
            supervisor.worker_ready();
        }
        let kept = place.kept(&fresh.id).unwrap();
        assert_eq!((kept.ended.is_some(), kept.info.executions), (ends, 2));
    }
}
