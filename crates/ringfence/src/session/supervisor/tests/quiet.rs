//! A session in which nothing happens costs nothing.

use std::path::Path;

use super::*;

/// How often a thread gave up the CPU by itself so far.
fn sleeps(task: &Path) -> u64 {
    let status = std::fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// How often it may wake up: for one look, and for one at the lock file where events of it are short.
fn most_looks() -> u64 {
    use rustix::fs::inotify::{self, CreateFlags};
    let instances: Result<Vec<_>, _> = (0..64).map(|_| inotify::init(CreateFlags::CLOEXEC)).collect();
    if instances.is_ok() { 1 } else { 2 }
}

/// Whether it sleeps through this time, but for those.
async fn sleeps_on(tasks: &[PathBuf], time: Duration) {
    let asleep: Vec<u64> = tasks.iter().map(|task| sleeps(task)).collect();
    tokio::time::sleep(time).await;
    let woken: Vec<u64> = tasks.iter().zip(asleep).map(|(task, before)| sleeps(task) - before).collect();
    let most = most_looks();
    assert!(woken.iter().all(|times| *times <= most), "{woken:?}");
}

fn own_task(number: i32) -> PathBuf {
    PathBuf::from(format!("/proc/self/task/{number}"))
}

#[tokio::test]
async fn it_sleeps_when_nothing_happens() {
    let (stage, guest) = with_guest(|mut guest| {
        let first = guest.take_exec();
        guest.exit(first);
        let silent = guest.take_exec();
        // Nothing is asked of it meanwhile.
        std::thread::sleep(Duration::from_secs(7));
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        assert_eq!(rustix::net::recv(&guest.socket, &mut [0u8], look), Err(Errno::AGAIN));
        guest.exit(silent);
        swallow(guest);
    });
    let session = stage.session().await;
    let own = own_task(stage.task.recv().unwrap());
    // It works, and that is seen.
    let before = sleeps(&own);
    let output = in_time(session.exec(Exec::new(["true"]))).await.unwrap().output().await.unwrap();
    assert_eq!(output.exit_code(), Some(0));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(sleeps(&own) > before);
    sleeps_on(std::slice::from_ref(&own), Duration::from_secs(7)).await;
    // A command that says nothing for as long as it likes.
    let silent = session.exec(Exec::new(["server"]).timeout(Duration::from_secs(600))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    sleeps_on(&[own], Duration::from_secs(6)).await;
    assert_eq!(silent.output().await.unwrap().exit_code(), Some(0));
    session.stop().await.unwrap();
    assert_eq!(stage.end(), End::Stopped);
    guest.join().unwrap();
}

#[tokio::test]
async fn a_real_session_sleeps_beside_a_command_that_sleeps() {
    // What no cgroup limits must be looked at.
    let real = real_session_of(|start| (start.plan.limits.memory, start.plan.limits.cpu_time) = (None, None));
    let sessions = Sessions::new(real.place.dir(), "/nonexistent");
    let session = sessions.open(&real.id).await.unwrap();
    let guest = PathBuf::from(format!("/proc/{}", real.guest.unwrap()));
    let tasks = [own_task(real.task.recv().unwrap()), guest];
    tokio::time::sleep(Duration::from_secs(6)).await;
    sleeps_on(&tasks, Duration::from_secs(7)).await;
    let output = in_time(session.exec(Exec::new(["sh", "-c", "sleep 1000 & echo left"]))).await.unwrap().output().await;
    assert_eq!(output.unwrap().stdout, b"left\n");
    let background = Exec::new(["sleep", "1000"]).background(true).timeout(Duration::from_secs(600));
    let server = session.exec(background).await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    sleeps_on(&tasks, Duration::from_secs(7)).await;
    drop(server);
    session.stop().await.unwrap();
    real.ended();
}

#[tokio::test]
async fn one_that_stirred_and_is_moved_away_ends_at_once() {
    let (stage, guest) = with_guest(swallow);
    let session = stage.session().await;
    for mode in [0o400, 0o600] {
        let lock = stage.place.lock_of(&stage.id);
        std::fs::set_permissions(&lock, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        session.info().await.unwrap();
    }
    std::fs::rename(stage.place.dir(), stage.place.dir().with_file_name("elsewhere")).unwrap();
    let start = Instant::now();
    in_time(session.closed()).await;
    // Without events it is looked for each 30 seconds.
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    guest.join().unwrap();
}
