//! Limits on a whole tree, each with the host healthy afterwards.

use std::time::{Duration, Instant};

use containment::{Place, Ran, Scene, host};
use ringfence::policy::Guarantee::{
    LifeNoSurvivors, LimitCpu, LimitFiles, LimitMemory, LimitOutput, LimitProcesses, LimitTime,
};
use ringfence::{Ended, Reason, State};

use crate::case::{Case, Needs, Outside, Stage, Story, act, ensure, same, story};

pub const CASES: &[Case] = &[
    act(LimitFiles, "descriptors", "open-many 20", "open-many 200", &["EMFILE"])
        .given(|s| s.policy.files("64").unwrap()),
    act(LimitProcesses, "processes", "fork-bomb 10", "fork-bomb 200", &["EAGAIN"])
        .given(|s| s.policy.pids("32").unwrap()),
    act(LimitProcesses, "threads", "threads 10", "threads 200", &["EAGAIN"]).given(|s| s.policy.pids("32").unwrap()),
    // A core dump that is piped to a program runs that program, as root, on the host.
    act(LimitFiles, "core dumps", "rlimit 0", "rlimit 4", &["ok 1"]).outside(Outside::Untried),
];

pub const STORIES: &[Story] = &[
    story(LimitMemory, "one process", memory_of_one),
    story(LimitMemory, "a tree", memory_of_a_tree),
    story(LimitMemory, "files in /tmp count or are bounded", memory_in_tmp),
    story(LimitMemory, "all private space together counts or is bounded", memory_in_all_private_space),
    story(LimitMemory, "names in private space count or are bounded", names_in_private_space)
        .only(ringfence::engines::native::ENGINE),
    story(LimitProcesses, "a bomb that grows by itself", deep_bomb),
    story(LimitProcesses, "two boxes do not share the limit", two_boxes),
    story(LimitCpu, "time of a tree", cpu_time),
    story(LimitCpu, "a share", cpu_share).needs(Needs::Groups),
    story(LimitTime, "a sleeper", |s| timed(s, "hold 1000 {tag}")),
    story(LimitTime, "a spinner", |s| timed(s, "spin 1000 {tag}")),
    story(LimitTime, "many sleepers", |s| timed(s, "sleepers 20 {tag} + hold 1000 {tag}")),
    story(LimitTime, "a daemon", |s| timed(s, "daemon {tag} + hold 1000 {tag}")),
    story(LimitTime, "a session of its own", |s| timed(s, "sessions {tag}")),
    story(LimitTime, "one that ignores TERM", |s| timed(s, "ignore-term {tag}")),
    story(LimitTime, "a stopped child", |s| timed(s, "stopped {tag}")),
    story(LimitTime, "one that closed its output", |s| timed(s, "close-output-and-hold 1000 {tag}")),
    story(LimitTime, "TERM comes first", term_comes_first),
    story(LimitTime, "one that ends in time", ends_in_time),
    story(LimitOutput, "a flood", flood),
    story(LifeNoSurvivors, "sleepers at a normal end", |s| survivors(s, "sleepers 20 {tag}")),
    story(LifeNoSurvivors, "a daemon at a normal end", |s| survivors(s, "daemon {tag}")),
    story(LifeNoSurvivors, "stopped children at a normal end", |s| survivors(s, "stopped-children 5 {tag}")),
    story(LimitMemory, "every limit in the report", reported),
];

fn run(stage: &Stage, scene: &Scene, acts: &str) -> Result<Ran, String> {
    let started = Instant::now();
    let ran = stage.inside(scene, acts)?;
    let limit = Duration::from_secs(if containment::bare_kernel() { 600 } else { 60 });
    ensure(started.elapsed() < limit, || format!("`{acts}` took {:?}", started.elapsed()))?;
    host::healthy()?;
    Ok(ran)
}

fn groups() -> bool {
    matches!(Needs::Groups.met(), crate::case::Met::Yes)
}

fn memory_of_one(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.memory("64m").map_err(|e| e.to_string())?;
    same("outside", stage.outside(&scene, "memory 300000000")?, ["ok"])?;
    same("little", run(stage, &scene, "memory 20000000")?.lines(), ["ok"])?;
    let ran = run(stage, &scene, "memory 300000000")?;
    if groups() {
        // What bwrap waits for, it reports as an exit code.
        let killed = ran.outcome.ended == KILLED || ran.outcome.ended == Ended::Exited(128 + libc::SIGKILL);
        ensure(killed, || format!("{:?}", ran.outcome))?;
        same("much", (ran.stdout.as_str(), ran.outcome.reason), ("", Some(Reason::Memory)))
    } else {
        // Refused by the resource limit of each process, or ended by the watch.
        ensure(ran.stdout == "ENOMEM\n" || ran.outcome.reason == Some(Reason::Memory), || format!("{ran:?}"))
    }
}

const KILLED: Ended = Ended::Signaled(libc::SIGKILL);

fn memory_of_a_tree(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.memory("128m").map_err(|e| e.to_string())?;
    same("outside", stage.outside(&scene, "memory-tree 2 10000000")?, ["ok"])?;
    same("little", run(stage, &scene, "memory-tree 2 10000000")?.lines(), ["ok"])?;
    // Each is far below the limit.
    let ran = run(stage, &scene, "memory-tree 8 40000000")?;
    ensure(ran.stdout != "ok\n", || format!("{ran:?}"))?;
    // Where the kernel kills one of the tree, and the command takes it well, nothing else ends.
    let refused = ran.stdout == "ENOMEM\n" && ran.outcome.ended == Ended::Exited(0);
    ensure(refused || ran.outcome.reason == Some(Reason::Memory), || format!("{ran:?}"))
}

/// Private space is memory: it must not be a way round the limit.
fn memory_in_tmp(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.memory("64m").map_err(|e| e.to_string())?;
    scene.policy.tmp_size("32m").map_err(|e| e.to_string())?;
    let ran = run(stage, &scene, "fill /tmp/a 300000000 + fill /dev/shm/a 300000000")?;
    ensure(!ran.stdout.contains("ok"), || format!("{ran:?}"))
}

/// The size of private space is not set: the memory limit bounds it.
fn memory_in_all_private_space(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.memory("64m").map_err(|e| e.to_string())?;
    let script =
        "for d in /tmp /var/tmp /dev/shm /run; do dd if=/dev/zero of=$d/full bs=65536 count=1000; done 2>/dev/null
        cat /tmp/full /var/tmp/full /dev/shm/full /run/full | wc -c";
    let ran = stage.sandbox(&scene).run(&["sh".into(), "-c".into(), script.into()]).map_err(|e| e.to_string())?;
    host::healthy()?;
    let kept: Option<u64> = ran.stdout.trim().parse().ok();
    let ended = ran.outcome.ended != Ended::Exited(0);
    ensure(ended || kept.is_some_and(|kept| (8 << 20..=64 << 20).contains(&kept)), || format!("{ran:?}"))
}

fn names_in_private_space(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.memory("32m").map_err(|e| e.to_string())?;
    same("few", run(stage, &scene, "inodes /tmp 1000")?.lines(), ["ok"])?;
    let ran = run(stage, &scene, "inodes /tmp 40000")?;
    ensure(ran.outcome.reason == Some(Reason::Memory) || ran.stdout == "ENOSPC\n", || format!("{ran:?}"))
}

fn deep_bomb(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.pids("40").map_err(|e| e.to_string())?;
    scene.policy.timeout("3s").map_err(|e| e.to_string())?;
    let bomb = ["sh".to_owned(), "-c".to_owned(), "b() { b | b & }; b; sleep 1000".to_owned()];
    let started = Instant::now();
    let ran = stage.sandbox(&scene).run(&bomb).map_err(|e| e.to_string())?;
    ensure(started.elapsed() < Duration::from_secs(15), || format!("took {:?}", started.elapsed()))?;
    // Where nothing but a look now and then tells, a bomb that is over in no time has no reason.
    let told = ran.outcome.reason.is_some() || !groups() && ran.outcome.ended != Ended::Exited(0);
    ensure(told, || format!("{:?}", ran.outcome))?;
    host::healthy()
}

/// A box at its limit leaves the next one room.
fn two_boxes(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.pids("32").map_err(|e| e.to_string())?;
    std::thread::scope(|scope| {
        let both: Vec<_> = (0..2).map(|_| scope.spawn(|| stage.answers(&scene, "fork-bomb 20 + hold 1"))).collect();
        for one in both {
            let lines = one.join().map_err(|_| "a box panicked".to_owned())??;
            same("answers", lines, ["ok 20", "ok"])?;
        }
        Ok(())
    })
}

fn cpu_time(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.cpu_time("1s").map_err(|e| e.to_string())?;
    same("little", run(stage, &scene, "hold 2")?.lines(), ["ok"])?;
    let ran = run(stage, &scene, "spin 30")?;
    ensure(ran.outcome.ended != Ended::Exited(0), || format!("{:?}", ran.outcome))?;
    same("reason", ran.outcome.reason, Some(Reason::CpuTime))?;
    // Two that take half of it each.
    let script = format!("{0} spin 30 & {0} spin 30; wait", scene.probe.display());
    let ran = stage.sandbox(&scene).run(&["sh".into(), "-c".into(), script]).map_err(|e| e.to_string())?;
    same("reason of a tree", ran.outcome.reason, Some(Reason::CpuTime))
}

fn cpu_share(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.cpus("0.2").map_err(|e| e.to_string())?;
    let script = format!("{0} spin 3 & {0} spin 3; wait; cat /proc/self/schedstat; times", scene.probe.display());
    let ran = stage.sandbox(&scene).run(&["sh".into(), "-c".into(), script]).map_err(|e| e.to_string())?;
    // 3 s of two spinners are 6 s unlimited; a fifth of a processor is 0.6 s. On a busy or emulated machine both last longer.
    let most = ran.outcome.duration.mul_f64(0.4) + Duration::from_millis(300);
    ensure(ran.outcome.cpu < most, || format!("{:?} {}", ran.outcome, ran.stdout))?;
    ensure(ran.outcome.cpu > Duration::from_millis(100), || format!("nothing was measured: {:?}", ran.outcome))
}

fn timed(stage: &Stage, acts: &str) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.timeout("1s").map_err(|e| e.to_string())?;
    let tag = scene.words["tag"].clone();
    let started = Instant::now();
    let ran = run(stage, &scene, acts)?;
    same("reason", ran.outcome.reason, Some(Reason::Time))?;
    ensure(ran.outcome.ended != Ended::Exited(0), || format!("{:?}", ran.outcome))?;
    let took = started.elapsed();
    ensure(took >= Duration::from_secs(1) && took < Duration::from_secs(20), || format!("took {took:?}"))?;
    nobody_left(&tag)
}

/// Gone when the call returns, not some time later.
fn nobody_left(tag: &str) -> Result<(), String> {
    same("processes left", host::processes_with(tag), Vec::<i32>::new())
}

fn term_comes_first(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.timeout("1s").map_err(|e| e.to_string())?;
    let script = "trap 'echo told; exit 3' TERM; while :; do sleep 0.1; done";
    let ran = stage.sandbox(&scene).run(&["sh".into(), "-c".into(), script.into()]).map_err(|e| e.to_string())?;
    same("said", ran.stdout.as_str(), "told\n")?;
    same("end", (ran.outcome.ended, ran.outcome.reason), (Ended::Exited(3), Some(Reason::Time)))
}

fn ends_in_time(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.timeout("30s").map_err(|e| e.to_string())?;
    let ran = run(stage, &scene, "hold 1")?;
    same("end", (ran.outcome.ended, ran.outcome.reason), (Ended::Exited(0), None))
}

fn survivors(stage: &Stage, acts: &str) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let ran = run(stage, &scene, acts)?;
    same("answers", ran.lines(), ["ok"])?;
    nobody_left(&scene.words["tag"])
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn flood(stage: &Stage) -> Result<(), String> {
    // Emulation is slow, and no different.
    let size: u64 = if containment::bare_kernel() { 1 << 26 } else { 1 << 30 };
    let mut scene = stage.scene(Place::Home);
    scene.policy.output_limit("64k").map_err(|e| e.to_string())?;
    let before = resident();
    let ran = run(stage, &scene, &format!("flood {size}"))?;
    let grown = resident().saturating_sub(before);
    same("end", ran.outcome.ended, Ended::Exited(0))?;
    ensure(ran.stdout.len() <= 64 << 10, || format!("{} bytes were kept", ran.stdout.len()))?;
    ensure(ran.stdout.ends_with("x\nok\n"), || "the tail is not there".to_owned())?;
    same("bytes in all", ran.stdout.len() as u64 + ran.dropped, size + 4)?;
    // KiB; other cases run beside this one.
    ensure(grown < 64 << 10, || format!("{grown} KiB of memory were taken"))
}

fn reported(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    let set = [
        scene.policy.memory("64m"),
        scene.policy.cpus("1"),
        scene.policy.pids("64"),
        scene.policy.files("64"),
        scene.policy.timeout("60s"),
    ];
    set.into_iter().collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    let ran = run(stage, &scene, "ids")?;
    let expected = if groups() { State::Enforced } else { State::Weakened };
    for (id, expected) in [
        (LimitMemory, expected),
        (LimitCpu, expected),
        (LimitProcesses, expected),
        (LimitFiles, State::Enforced),
        (LimitTime, State::Enforced),
        (LimitOutput, State::Enforced),
    ] {
        let answer = ran.report.guarantees.iter().find(|a| a.id == id);
        same(id.id(), answer.map(|a| a.state), Some(expected))?;
    }
    // `strict` refuses what stands in for a control group.
    scene.policy.strict(true);
    match stage.sandbox(&scene).probe("ids") {
        Ok(_) if groups() => Ok(()),
        Err(_) if stage.engine != ringfence::engines::native::ENGINE => Ok(()),
        Err(refusal) if !groups() && refusal.to_string().contains("limit.") => Ok(()),
        other => Err(format!("strict: {other:?}")),
    }
}
