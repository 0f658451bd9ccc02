//! Many idle boxes at once: what each of them keeps for itself, and whether the next one still starts as fast.

use std::collections::HashMap;
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use ringfence::Running;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::library::Ready;
use crate::line::Line;
use crate::measure::{Failure, Skip, median};
use crate::pass::{Scene, say};
use crate::peers::{Peers, TRUE};

/// Longer than it is looked at, and not for ever, should we be killed.
const SLEEP: [&str; 2] = ["/bin/sleep", "300"];
/// How long idle boxes may take to be idle.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many of the others: their cost for each does not change with their number.
const OTHERS: usize = 200;
/// Descriptors that this process keeps for one box, at most.
const DESCRIPTORS: u64 = 12;

/// Memory in KiB for each sandbox, by where it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Idle {
    pub name: String,
    pub count: usize,
    /// Proportional share of its processes.
    pub processes_kib: f64,
    /// What its owner, this process, grew by.
    pub owner_kib: f64,
    /// Slab, stacks, page tables, per-processor and other memory of the kernel.
    pub kernel_kib: f64,
    /// Pages of its tmpfs mounts.
    pub tmpfs_kib: f64,
    pub sum_kib: f64,
    /// How much less was available on the whole machine, which others use as well.
    pub available_kib: f64,
    /// Starting one, without waiting for it: medians of the first and last tenth.
    pub first_starts_ms: f64,
    pub last_starts_ms: f64,
    /// Through the library: a whole run of /bin/true beside none and beside all of them, in milliseconds.
    pub run_beside_none_ms: Option<f64>,
    pub run_beside_all_ms: Option<f64>,
}

/// Something idle that goes when it is dropped.
enum Sleeper {
    Box(Box<Running>),
    Bare(Child),
}

impl Sleeper {
    fn pid(&self) -> i32 {
        match self {
            Sleeper::Box(running) => running.pid(),
            Sleeper::Bare(child) => child.id() as i32,
        }
    }

    fn end(self) {
        match self {
            // It is gone or it goes with us.
            Sleeper::Box(running) => drop(running.finish()),
            Sleeper::Bare(mut child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

pub fn measure(scene: &Scene, peers: &Peers, wanted: usize) -> (Vec<Idle>, Vec<Skip>) {
    let (mut idles, mut skips) = (Vec::new(), Vec::new());
    let count = wanted.min(affordable());
    if count < wanted {
        let reason = format!("only {count} of {wanted}: the limit of open files (ulimit -n) allows no more");
        skips.push(Skip { name: "idle".to_owned(), reason });
    }
    let prepared = |command: &[&str]| Ready::new(&scene.project, &scene.ringfence, command);
    let mut add = |name: &str, result: Result<(Idle, Option<Failure>), Failure>| {
        let reason = match result {
            Ok((idle, reason)) => {
                idles.push(idle);
                reason
            }
            Err(reason) => Some(reason),
        };
        skips.extend(reason.map(|reason| Skip { name: format!("idle {name}"), reason }));
    };
    let bare = Line::new(SLEEP[0], [SLEEP[1]]);
    let spawn = |line: &Line| line.command().spawn().map(Sleeper::Bare).map_err(|e| e.to_string());
    say(&format!("{} idle processes", OTHERS.min(count)));
    add("bare", crowd("bare sleep", OTHERS.min(count), || spawn(&bare), None));
    // Otherwise what is in the box outlives it.
    if let Some(bwrap) = peers.bwrap(&["--die-with-parent", SLEEP[0], SLEEP[1]]) {
        say(&format!("{} idle bwrap", OTHERS.min(count)));
        add("bwrap", crowd("bwrap", OTHERS.min(count), || spawn(&bwrap), None));
    }
    say(&format!("{count} idle sandboxes"));
    let ours = prepared(&SLEEP).and_then(|sleep| {
        let probe = prepared(&[TRUE])?;
        crowd("ringfence", count, || sleep.start().map(|running| Sleeper::Box(Box::new(running))), Some(&probe))
    });
    add("ringfence", ours);
    (idles, skips)
}

/// Raises the limit of open files as far as it goes, and tells how many boxes that is good for.
fn affordable() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // What there is then holds.
    let _ = setrlimit(Resource::Nofile, raised);
    let now = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    (now.saturating_sub(64) / DESCRIPTORS) as usize
}

/// Starts as many, looks, and ends them. With what it could not do: when one cannot be started, those before it count.
fn crowd(
    name: &str,
    count: usize,
    start: impl Fn() -> Result<Sleeper, Failure>,
    probe: Option<&Ready>,
) -> Result<(Idle, Option<Failure>), Failure> {
    // What is read and allocated once for all of them is nobody's own.
    let first = start()?;
    let ready = settle(std::slice::from_ref(&first));
    first.end();
    ready?;
    let run_beside_none_ms = probe.map(typical_run).transpose()?;
    // What runs before left is taken down by then.
    std::thread::sleep(Duration::from_millis(500));
    let before = Memory::now();
    let mut sleepers = Vec::with_capacity(count);
    let mut starts = Vec::with_capacity(count);
    let mut refused = None;
    for _ in 0..count {
        let begun = Instant::now();
        match start() {
            Ok(sleeper) => sleepers.push(sleeper),
            Err(reason) => {
                refused = Some(format!("number {}: {reason}", sleepers.len() + 1));
                break;
            }
        }
        starts.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let count = sleepers.len().max(1);
    let measured = settle(&sleepers).and_then(|trees| {
        let after = Memory::now();
        let shares: Vec<Option<f64>> = trees.iter().flatten().map(|pid| proportional(*pid)).collect();
        let processes: f64 = shares.iter().flatten().sum();
        let unread = shares.iter().filter(|share| share.is_none()).count();
        let blind = (unread > 0).then(|| {
            format!(
                "{unread} of {} processes do not let this user look: the sum is too low, root sees all",
                shares.len()
            )
        });
        // Where no more can be started, neither can this.
        let run_beside_all_ms = probe.filter(|_| refused.is_none()).map(typical_run).transpose()?;
        let each = |total: f64| total / count as f64;
        let tenth = (count / 10).max(1);
        let mut idle = Idle {
            name: name.to_owned(),
            count,
            processes_kib: each(processes),
            owner_kib: each(after.own - before.own),
            kernel_kib: each(after.kernel - before.kernel),
            tmpfs_kib: each(after.tmpfs - before.tmpfs),
            available_kib: each(before.available - after.available),
            first_starts_ms: median(&starts[..tenth.min(starts.len())]),
            last_starts_ms: median(&starts[starts.len().saturating_sub(tenth)..]),
            run_beside_none_ms,
            run_beside_all_ms,
            ..Idle::default()
        };
        idle.sum_kib = idle.processes_kib + idle.owner_kib + idle.kernel_kib + idle.tmpfs_kib;
        Ok((idle, refused.or(blind)))
    });
    sleepers.into_iter().for_each(Sleeper::end);
    // The kernel takes namespaces down in its own time; the next one starts from a quiet machine.
    std::thread::sleep(Duration::from_millis(500));
    measured
}

/// The median of whole runs.
fn typical_run(probe: &Ready) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for _ in 0..50 {
        let begun = Instant::now();
        probe.run()?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&times))
}

/// Waits until the sleeping program runs in each of them, and returns the processes of each.
fn settle(sleepers: &[Sleeper]) -> Result<Vec<Vec<i32>>, Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        let children = children();
        let trees: Vec<Vec<i32>> = sleepers.iter().map(|s| tree(s.pid(), &children)).collect();
        let asleep = |tree: &&Vec<i32>| tree.iter().any(|pid| is_sleep(*pid));
        let idle = trees.iter().filter(asleep).count();
        if idle == sleepers.len() {
            // The set-up's last pages go back.
            std::thread::sleep(Duration::from_millis(300));
            return Ok(trees);
        }
        if Instant::now() >= end {
            return Err(format!("only {idle} of {} run after {} s", sleepers.len(), PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_sleep(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| text.starts_with(SLEEP[0].as_bytes()))
}

/// Every process by its parent.
fn children() -> HashMap<i32, Vec<i32>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return children };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for pid in pids {
        // Gone in the meantime is no news.
        if let Some(parent) = fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|stat| parent(&stat)) {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

/// The parent in the text of `/proc/PID/stat`: the second field after the name, which may hold anything.
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn tree(root: i32, children: &HashMap<i32, Vec<i32>>) -> Vec<i32> {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(pid) = tree.get(next) {
        tree.extend(children.get(pid).into_iter().flatten());
        next += 1;
    }
    tree
}

/// The proportional share of a process, in KiB.
fn proportional(pid: i32) -> Option<f64> {
    field(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:")
}

/// `Name:   123 kB`
fn field(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// What the machine says of its memory, in KiB.
#[derive(Debug, Clone, Copy)]
struct Memory {
    kernel: f64,
    tmpfs: f64,
    available: f64,
    own: f64,
}

impl Memory {
    fn now() -> Memory {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let get = |name: &str| field(&text, name).unwrap_or_default();
        // Stacks are part of what vmalloc gave out, where they are mapped; filters are as well.
        let mapped = get("VmallocUsed:").max(get("KernelStack:"));
        Memory {
            kernel: get("Slab:") + mapped + get("PageTables:") + get("SecPageTables:") + get("Percpu:"),
            tmpfs: get("Shmem:"),
            available: get("MemAvailable:"),
            own: proportional(std::process::id() as i32).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(parent("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(field("Rss:   5 kB\nPss:                 153 kB\n", "Pss:"), Some(153.0));
        let children = HashMap::from([(1, vec![2, 3]), (3, vec![4]), (9, vec![5])]);
        assert_eq!(tree(1, &children), [1, 2, 3, 4]);
    }
}
