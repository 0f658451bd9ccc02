//! Supervisors, guests and clients are killed at random points under load. Every lost command is reported as lost, what is
//! not lost is right and recorded, no orphan is left, and other sessions never notice.
#![allow(clippy::unwrap_used, reason = "clippy does not take a file of async tests for one of tests")]

#[path = "support/sessions.rs"]
mod sessions;

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfence::Reason;
use ringfence::records::{Filter, Journal, Place, Record, Status, Store};
use ringfence::session::{Create, Exec, Execution, SessionError};
use sessions::{Home, guest_of, kill, processes, running, supervisors};
use support::Done;

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
    clients_done: AtomicU32,
    clients_lost: AtomicU32,
    clients_refused: AtomicU32,
}

struct Stage {
    home: Home,
    dice: Dice,
    count: Count,
    over: AtomicBool,
    /// Digits in the command line of everything that runs inside, and of nothing else.
    mark: String,
    /// The records that were promised, and whether their commands were lost.
    promised: Mutex<BTreeMap<String, bool>>,
}

impl Stage {
    fn records(&self) -> PathBuf {
        self.home.place.home.join("records")
    }

    /// A session that is spared for long collects the sleeps that commands plant in it. The default limit of 256 processes
    /// would then refuse a later command.
    fn create(&self) -> Create {
        self.home.create_with(|layer| layer.pids("4096").unwrap()).records(self.records())
    }
}

/// A command whose output says whether it is whole.
fn command(stage: &Stage, number: u64) -> (Exec, Vec<u8>) {
    let lines = 1 + stage.dice.roll(2000);
    let mark = &stage.mark;
    let nap = match stage.dice.roll(4) {
        0 => String::new(),
        1 => format!("sleep 0.02{mark};"),
        2 => format!("sleep 0.1{mark};"),
        _ => format!("(setsid sleep 300.{mark} &);"),
    };
    let script = format!("i=0; while [ $i -lt {lines} ]; do echo {number}-$i; i=$((i+1)); done; {nap} echo {mark}");
    let mut expected: Vec<u8> = (0..lines).flat_map(|i| format!("{number}-{i}\n").into_bytes()).collect();
    expected.extend(format!("{mark}\n").into_bytes());
    (Exec::new(["sh", "-c", &script]), expected)
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANGS, future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// Whether it came through. If not, it must be said to be lost.
async fn check(stage: &Stage, execution: Execution, expected: &[u8]) -> bool {
    let record = execution.record().expect("the id of a record").to_owned();
    let output = in_time("an execution", execution.output()).await.unwrap();
    let lost = match output.outcome.reason {
        None => {
            assert!(output.stdout == expected, "output is not what was written");
            assert_eq!(output.exit_code(), Some(0));
            false
        }
        Some(Reason::Lost) => {
            assert!(expected.starts_with(&output.stdout), "what came before it was lost is wrong");
            true
        }
        Some(other) => panic!("ended by {other:?}"),
    };
    stage.promised.lock().unwrap().insert(record, lost);
    !lost
}

/// Uses one session that is killed all the time.
async fn victim(stage: Arc<Stage>, name: String) {
    let mut number = 0;
    while !stage.over.load(Ordering::Relaxed) {
        number += 1;
        let opened = in_time("opening", stage.home.sessions.open_or_create(&name, stage.create())).await;
        let (exec, expected) = command(&stage, number);
        let began = match opened {
            Ok(session) => in_time("starting", session.exec(exec)).await,
            Err(error) => Err(error),
        };
        match began {
            Ok(execution) => {
                let count =
                    if check(&stage, execution, &expected).await { &stage.count.done } else { &stage.count.lost };
                count.fetch_add(1, Ordering::Relaxed);
            }
            // Killed while it was made, opened or asked: said in so many words.
            Err(
                SessionError::Lost { .. }
                | SessionError::CommandLost { .. }
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
    let session = stage.home.sessions.create(stage.create().name("bystander")).await.unwrap();
    let mut number = 0;
    while !stage.over.load(Ordering::Relaxed) {
        number += 1;
        let (exec, expected) = command(&stage, number);
        let execution = in_time("starting", session.exec(exec)).await.unwrap();
        assert!(check(&stage, execution, &expected).await, "the bystander lost a command");
        stage.count.untouched.fetch_add(1, Ordering::Relaxed);
    }
    session.stop().await.unwrap();
}

/// A client of its own process, to be killed; or it finds its session killed, and says so.
fn client(stage: &Stage) -> Child {
    let name = format!("victim-{}", stage.dice.roll(VICTIMS));
    let runtime = stage.home.place.home.join("runtime");
    let script = format!("sleep 0.3{0}; echo {0}", stage.mark);
    let mut command = stage.home.place.command(["session", "exec", &name, "--json", "--", "sh", "-c", &script]);
    command.env("XDG_RUNTIME_DIR", runtime).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A client that was not killed: its command ran to its end, or it says that it did not.
fn check_client(stage: &Stage, client: Child) {
    let done = Done::new(client.wait_with_output().unwrap());
    let json = done.json();
    let (status, out) = (json["status"].as_str().unwrap(), json["stdout"].as_str().unwrap());
    let whole = format!("{}\n", stage.mark);
    let counted = match (done.code, status) {
        (0, "exited") => {
            assert_eq!(out, whole, "output is not what was written");
            &stage.count.clients_done
        }
        (125, "lost") => {
            let said = ["lost: the session ended under it", "whether the command ran is not known"];
            assert!(whole.starts_with(out) && said.iter().any(|said| done.err.contains(said)), "{done:?}");
            &stage.count.clients_lost
        }
        // Killed before it had begun: there is none, it has just ended, or it does not answer.
        (125, "failed") => {
            assert!(json["error"]["kind"] == "session" && done.err.starts_with("error"), "{done:?}");
            &stage.count.clients_refused
        }
        _ => panic!("{done:?}"),
    };
    counted.fetch_add(1, Ordering::Relaxed);
    if let Some(record) = json["record"].as_str() {
        stage.promised.lock().unwrap().insert(record.to_owned(), status == "lost");
    }
}

/// A process, and when it began: its number may be somebody else's later.
type Process = (i32, String);

fn began(pid: i32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have anything in it; what follows it counts from the state on.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    (state != "Z").then_some((pid, fields.nth(18)?.to_owned()))
}

/// A supervisor and all that descends from it: guest, reapers, commands.
fn family(pid: i32, found: &mut BTreeSet<Process>) {
    let Some(process) = began(pid) else { return };
    found.insert(process);
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            family(child, found);
        }
    }
}

/// Control groups of these supervisors.
fn groups(dir: &Path, depth: u32, owners: &BTreeSet<i32>, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("ringfence-").and_then(|rest| rest.split('-').next()?.parse().ok());
        if owner.is_some_and(|owner| owners.contains(&owner)) {
            found.push(entry.path());
        } else if depth > 0 {
            groups(&entry.path(), depth - 1, owners, found);
        }
    }
}

fn groups_of(owners: &BTreeSet<i32>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    groups(Path::new("/sys/fs/cgroup"), 6, owners, &mut found);
    found
}

/// Supervisors by what they wrote down, and only if they are what they say.
fn owners(stage: &Stage) -> Vec<i32> {
    let pid_of = |id: &String| -> Option<i32> {
        let state = std::fs::read_to_string(stage.home.dir().join(id).join("state")).ok()?;
        let pid = serde_json::from_str::<serde_json::Value>(&state).ok()?["body"]["info"]["pid"].as_i64()? as i32;
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
    let mark = format!("{seed}");
    let stage = Arc::new(Stage {
        home,
        dice: Dice(AtomicU64::new(seed)),
        count: Count::default(),
        over: AtomicBool::new(false),
        mark,
        promised: Mutex::default(),
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
    let mut clients: Vec<Child> = Vec::new();
    // What there was to be found, had it been left: supervisors, their families and groups, and what commands planted.
    let (mut all_owners, mut families) = (BTreeSet::new(), BTreeSet::new());
    let (mut planted, mut grouped) = (0, 0);
    while kills < KILLS && start.elapsed() < TIME && tasks.iter().all(|task| !task.is_finished()) {
        tokio::time::sleep(Duration::from_millis(2 + stage.dice.roll(25))).await;
        let kind = stage.dice.roll(3) as usize;
        let (ended, live): (Vec<Child>, Vec<Child>) =
            clients.into_iter().partition(|client| began(client.id() as i32).is_none());
        clients = live;
        for client in ended {
            check_client(&stage, client);
        }
        if clients.len() < 4 {
            clients.push(client(&stage));
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
                // It may have ended this moment.
                if client.wait().unwrap().code().is_none() {
                    kills += 1;
                    by_kind[2] += 1;
                }
                None
            }
            _ => None,
        };
        all_owners.extend(&owners);
        if let Some(pid) = target {
            let owner = owners.iter().find(|owner| **owner == pid || guest_of(**owner) == Some(pid));
            family(*owner.unwrap_or(&pid), &mut families);
            if kills % 50 == 0 {
                planted = planted.max(running(&format!("sleep\0300.{}", stage.mark)).len());
                grouped = grouped.max(groups_of(&all_owners).len());
            }
            kill(pid, libc::SIGKILL);
            kills += 1;
            by_kind[kind] += 1;
        }
    }
    stage.over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    for client in clients {
        check_client(&stage, client);
    }
    for owner in owners(&stage) {
        all_owners.insert(owner);
        family(owner, &mut families);
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
    let [ran, told, not_begun] = [&stage.count.clients_done, &stage.count.clients_lost, &stage.count.clients_refused]
        .map(|count| count.load(Ordering::Relaxed));
    println!("of clients that were not killed: {ran} done, {told} lost, {not_begun} refused");
    println!(
        "seen: {} processes of {} supervisors, {planted} planted, {grouped} groups",
        families.len(),
        all_owners.len()
    );
    assert!(ran > 0 && told > 0, "{ran} {told}");
    assert!(families.len() > 2 * all_owners.len() && planted > 0);
    assert!(grouped > 0 || !support::is_root(), "root's boxes have control groups");

    for name in (0..VICTIMS).map(|number| format!("victim-{number}")) {
        match stage.home.sessions.remove(&name).await {
            Ok(()) | Err(SessionError::NotFound(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Nothing is left: no process of a box, no supervisor, guest or reaper, no directory, no control group.
    let ended = Instant::now();
    loop {
        let marked = running(&stage.mark);
        let related: Vec<&Process> =
            families.iter().filter(|process| began(process.0).as_ref() == Some(process)).collect();
        let (supervisors, groups) = (supervisors(stage.home.dir()), groups_of(&all_owners));
        if marked.is_empty() && related.is_empty() && supervisors.is_empty() && groups.is_empty() {
            break;
        }
        assert!(
            ended.elapsed() < Duration::from_secs(20),
            "orphans: {marked:?} {related:?} {supervisors:?} {groups:?} of {:?}",
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
    check_records(&stage);
}

/// Every command that was begun has a record, which says what its client was told.
fn check_records(stage: &Stage) {
    let dir = stage.records();
    let mut store = Store::open(&Place::File(dir.join("records.db"))).unwrap();
    store.refresh(&Journal::new(&dir)).unwrap();
    let records: BTreeMap<String, Record> =
        store.list(&Filter::default()).unwrap().into_iter().map(|record| (record.id.clone(), record)).collect();
    let promised = stage.promised.lock().unwrap();
    let (mut interrupted, mut unsaid) = (0, 0);
    for (id, lost) in promised.iter() {
        let record = records.get(id).unwrap_or_else(|| panic!("there is no record {id}"));
        match (record.status, record.reason.as_deref()) {
            (Status::Exited, None) if !lost => assert_eq!(record.exit_code, Some(0), "{id}"),
            // An end is told first and recorded then: the supervisor may be killed between the two.
            (Status::Interrupted, None) if !lost => unsaid += 1,
            // A supervisor that was killed says nothing; one whose guest was killed says that it was lost.
            (Status::Interrupted, None) => interrupted += 1,
            (_, Some("lost")) if *lost => {}
            other => panic!("{id}, lost: {lost}: {other:?}"),
        }
    }
    let running = records.values().filter(|record| record.status == Status::Running).count();
    println!(
        "{} records, {} promised: {interrupted} interrupted, {unsaid} more whose end was told",
        records.len(),
        promised.len()
    );
    assert!(interrupted > 5 && unsaid < interrupted && running == 0, "{running} running");
}
