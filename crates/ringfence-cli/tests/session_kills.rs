//! Supervisors, guests and clients are killed at random points under load. Every lost command is reported as lost, what is
//! not lost is right, no orphan is left, and other sessions never notice.
#![allow(clippy::unwrap_used, reason = "clippy does not take a file of async tests for one of tests")]

#[path = "support/sessions.rs"]
mod sessions;

mod support;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfence::Reason;
use ringfence::session::{Exec, Execution, SessionError};
use sessions::{Home, guest_of, kill, processes, running, supervisors};

/// At least so many, and within so long.
const KILLS: u32 = 510;
const TIME: Duration = Duration::from_secs(240);
/// Sessions that are killed.
const VICTIMS: u64 = 4;
/// Nothing takes longer than this, or it hangs.
const HANGS: Duration = Duration::from_secs(60);

/// A sequence that looks random, and is the same for the same seed.
#[derive(Debug)]
struct Dice(AtomicU64);

impl Dice {
    fn roll(&self, sides: u64) -> u64 {
        let next = |x: u64| {
            let x = x ^ (x << 13);
            let x = x ^ (x >> 7);
            x ^ (x << 17)
        };
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |x| Some(next(x))).unwrap();
        (next(before) >> 11) % sides
    }
}

/// What is counted.
#[derive(Debug, Default)]
struct Count {
    done: AtomicU32,
    lost: AtomicU32,
    refused: AtomicU32,
    untouched: AtomicU32,
}

struct Stage {
    home: Home,
    dice: Dice,
    count: Count,
    over: AtomicBool,
    /// In the command line of everything that runs inside.
    mark: String,
}

/// A command whose output says whether it is whole.
fn command(stage: &Stage, number: u64) -> (Exec, Vec<u8>) {
    let lines = 1 + stage.dice.roll(2000);
    let nap = ["", "sleep 0.02;", "sleep 0.1;", "(setsid sleep 300 &);"][stage.dice.roll(4) as usize];
    let script =
        format!("i=0; while [ $i -lt {lines} ]; do echo {number}-$i; i=$((i+1)); done; {nap} echo {}", stage.mark);
    let mut expected: Vec<u8> = (0..lines).flat_map(|i| format!("{number}-{i}\n").into_bytes()).collect();
    expected.extend(format!("{}\n", stage.mark).into_bytes());
    (Exec::new(["sh", "-c", &script]), expected)
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANGS, future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// Whether it came through. If not, it must be said to be lost.
async fn check(execution: Execution, expected: &[u8]) -> bool {
    let output = in_time("an execution", execution.output()).await;
    match output.outcome.reason {
        None => {
            assert!(output.stdout == expected, "output is not what was written");
            assert_eq!(output.exit_code(), Some(0));
            true
        }
        Some(Reason::Lost) => {
            assert!(expected.starts_with(&output.stdout), "what came before it was lost is wrong");
            false
        }
        Some(other) => panic!("ended by {other:?}"),
    }
}

/// Uses one session that is killed all the time.
async fn victim(stage: Arc<Stage>, name: String) {
    let mut number = 0;
    while !stage.over.load(Ordering::Relaxed) {
        number += 1;
        let opened = in_time("opening", stage.home.sessions.open_or_create(&name, stage.home.create())).await;
        let (exec, expected) = command(&stage, number);
        let began = match opened {
            Ok(session) => in_time("starting", session.exec(exec)).await,
            Err(error) => Err(error),
        };
        match began {
            Ok(execution) => {
                let count = if check(execution, &expected).await { &stage.count.done } else { &stage.count.lost };
                count.fetch_add(1, Ordering::Relaxed);
            }
            // Killed while it was made, opened or asked: said in so many words.
            Err(
                SessionError::Lost { .. }
                | SessionError::Ended { .. }
                | SessionError::Start(_)
                | SessionError::NotFound(_)
                | SessionError::NameTaken(_)
                | SessionError::Connect { .. },
            ) => {
                stage.count.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Uses a session that nobody touches.
async fn bystander(stage: Arc<Stage>) {
    let session = stage.home.sessions.create(stage.home.create().name("bystander")).await.unwrap();
    let mut number = 0;
    while !stage.over.load(Ordering::Relaxed) {
        number += 1;
        let (exec, expected) = command(&stage, number);
        let execution = in_time("starting", session.exec(exec)).await.unwrap();
        assert!(check(execution, &expected).await, "the bystander lost a command");
        stage.count.untouched.fetch_add(1, Ordering::Relaxed);
    }
    session.stop().await.unwrap();
}

/// A client of its own process, to be killed; or it finds its session killed, and says so.
fn client(stage: &Stage) -> Option<std::process::Child> {
    let name = format!("victim-{}", stage.dice.roll(VICTIMS));
    let runtime = stage.home.place.home.join("runtime");
    let script = format!("sleep 0.3; echo {}", stage.mark);
    let mut command = stage.home.place.command(["session", "exec", &name, "--", "sh", "-c", &script]);
    command.env("XDG_RUNTIME_DIR", runtime).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

/// Supervisors by what they wrote down, and only if they are what they say.
fn owners(stage: &Stage) -> Vec<i32> {
    let pid_of = |id: &String| -> Option<i32> {
        let state = std::fs::read_to_string(stage.home.dir().join(id).join("state")).ok()?;
        let pid = serde_json::from_str::<serde_json::Value>(&state).ok()?["info"]["pid"].as_i64()? as i32;
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        line.contains(&format!("supervise\0{id}")).then_some(pid)
    };
    support::names(stage.home.dir()).iter().filter_map(pid_of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_kills() {
    let home = Home::new();
    let runtime = home.place.home.join("runtime");
    std::fs::create_dir_all(&runtime).unwrap();
    std::os::unix::fs::symlink(home.place.home.join("run"), runtime.join("ringfence")).unwrap();
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mark = format!("mark-{seed}");
    let stage = Arc::new(Stage {
        home,
        dice: Dice(AtomicU64::new(seed)),
        count: Count::default(),
        over: AtomicBool::new(false),
        mark,
    });
    let mut tasks = vec![tokio::spawn(bystander(Arc::clone(&stage)))];
    for number in 0..VICTIMS {
        // Two clients for each.
        for _ in 0..2 {
            tasks.push(tokio::spawn(victim(Arc::clone(&stage), format!("victim-{number}"))));
        }
    }
    let start = Instant::now();
    let (mut kills, mut by_kind) = (0, [0; 3]);
    let mut clients: Vec<std::process::Child> = Vec::new();
    while kills < KILLS && start.elapsed() < TIME && tasks.iter().all(|task| !task.is_finished()) {
        tokio::time::sleep(Duration::from_millis(2 + stage.dice.roll(25))).await;
        let kind = stage.dice.roll(3) as usize;
        if clients.len() < 4 {
            clients.extend(client(&stage));
        }
        let spared = stage.home.sessions.info("bystander").await.map_or(0, |info| info.pid as i32);
        let owners: Vec<i32> = owners(&stage).into_iter().filter(|pid| *pid != spared).collect();
        let owner = || owners.get(stage.dice.roll(owners.len().max(1) as u64) as usize).copied();
        let target = match kind {
            0 if spared > 0 => owner(),
            1 if spared > 0 => owner().and_then(guest_of),
            2 if !clients.is_empty() => {
                let mut client = clients.swap_remove(stage.dice.roll(clients.len() as u64) as usize);
                let _ = client.kill();
                client.wait().unwrap();
                kills += 1;
                by_kind[2] += 1;
                None
            }
            _ => None,
        };
        if let Some(pid) = target {
            kill(pid, libc::SIGKILL);
            kills += 1;
            by_kind[kind] += 1;
        }
    }
    stage.over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    for mut client in clients {
        client.wait().unwrap();
    }
    let [done, lost, refused, untouched] =
        [&stage.count.done, &stage.count.lost, &stage.count.refused, &stage.count.untouched]
            .map(|count| count.load(Ordering::Relaxed));
    println!(
        "{kills} kills in {:?} (supervisors, guests, clients: {by_kind:?}); {done} done, {lost} lost, {refused} refused, {untouched} untouched",
        start.elapsed()
    );
    assert!(kills >= KILLS, "only {kills} kills");
    assert!(by_kind.iter().all(|n| *n > 50), "{by_kind:?}");
    assert!(done > 50 && lost > 20 && untouched > 20);

    for name in (0..VICTIMS).map(|number| format!("victim-{number}")) {
        match stage.home.sessions.remove(&name).await {
            Ok(()) | Err(SessionError::NotFound(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Nothing is left: no process of a box, no supervisor, no directory, no control group.
    let ended = Instant::now();
    while !(running(&stage.mark).is_empty() && supervisors(stage.home.dir()).is_empty()) {
        assert!(
            ended.elapsed() < Duration::from_secs(20),
            "orphans: {:?} of {:?}",
            running(&stage.mark),
            processes().len()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stage.home.sessions.gc().await.unwrap();
    assert!(stage.home.sessions.list().await.unwrap().is_empty());
    let names: Vec<String> = support::names(stage.home.dir());
    assert_eq!(names, ["lock", "names"]);
    assert!(support::names(&stage.home.dir().join("names")).is_empty());
    assert!(stage.home.place.names().is_empty(), "litter in the project: {:?}", stage.home.place.names());
}
