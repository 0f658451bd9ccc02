//! The end of a box: nothing is left, whatever ended it.

use std::process::{Command, Stdio};
use std::time::Duration;

use containment::host::{self, State};
use containment::{Launcher, Place, Scene, sandbox};
use ringfence::policy::Guarantee::{LifeDiesWithOwner, LifeNoSurvivors};
use ringfence::{Ended, StdioSpec, supervise};

use crate::case::{Stage, Story, ensure, same, story};

const SOON: Duration = Duration::from_secs(15);

pub const STORIES: &[Story] = &[
    story(LifeNoSurvivors, "after a normal end", normal_end).alone(),
    story(LifeNoSurvivors, "after a time limit", time_limit).alone(),
    story(LifeNoSurvivors, "after a memory limit", memory_limit).alone(),
    story(LifeNoSurvivors, "after a start that failed", failed_start).alone(),
    story(LifeNoSurvivors, "after many runs", many_runs).alone(),
    story(LifeDiesWithOwner, "kill -9 of the launcher, at every stage", killed_launcher).alone(),
    story(LifeDiesWithOwner, "kill -9 of the launcher and of what it keeps", killed_keeper).alone(),
    story(LifeNoSurvivors, "after a time limit, whatever was attacked inside", attacked_in_time).alone(),
    story(LifeDiesWithOwner, "kill -9 of the launcher, whatever was attacked inside", attacked_owner).alone(),
    story(LifeDiesWithOwner, "dropped without an end", dropped).alone(),
    story(LifeDiesWithOwner, "kill -9 of process 1", killed_process_one).alone(),
];

fn nothing_left(before: &State) -> Result<(), String> {
    let left = host::left_since(before, SOON);
    ensure(left.is_empty(), || format!("left: {left}"))
}

fn limited(scene: &mut Scene) -> Result<(), String> {
    let policy = &mut scene.policy;
    let set = policy.memory("256m").and(policy.pids("64")).and(policy.cpus("1"));
    set.map_err(|e| e.to_string())
}

fn normal_end(stage: &Stage) -> Result<(), String> {
    let before = State::now();
    let mut scene = stage.scene(Place::Home);
    limited(&mut scene)?;
    stage.answers(
        &scene,
        "daemon {tag} + sleepers 5 {tag} + create /tmp/x + create /dev/shm/x + shm-own + mqueue-own",
    )?;
    drop(scene);
    nothing_left(&before)
}

fn time_limit(stage: &Stage) -> Result<(), String> {
    let before = State::now();
    let mut scene = stage.scene(Place::Home);
    limited(&mut scene)?;
    scene.policy.timeout("1s").map_err(|e| e.to_string())?;
    stage.inside(&scene, "daemon {tag} + ignore-term {tag}")?;
    drop(scene);
    nothing_left(&before)
}

fn memory_limit(stage: &Stage) -> Result<(), String> {
    let before = State::now();
    let mut scene = stage.scene(Place::Home);
    limited(&mut scene)?;
    scene.policy.memory("64m").map_err(|e| e.to_string())?;
    stage.inside(&scene, "daemon {tag} + memory-tree 4 40000000")?;
    drop(scene);
    nothing_left(&before)
}

fn failed_start(stage: &Stage) -> Result<(), String> {
    let before = State::now();
    let mut scene = stage.scene(Place::Home);
    limited(&mut scene)?;
    let files = scene.snapshot();
    for command in ["/does/not/exist", "/etc/passwd"] {
        let refused = stage.sandbox(&scene).run(&[command.into()]);
        ensure(refused.is_err(), || format!("{command} was executed: {refused:?}"))?;
    }
    let changes = scene.changed_since(&files, None);
    ensure(changes.is_empty(), || changes.clone())?;
    drop(scene);
    nothing_left(&before)
}

/// `RINGFENCE_RUNS` boxes, one after the other.
fn many_runs(stage: &Stage) -> Result<(), String> {
    let runs: u32 = std::env::var("RINGFENCE_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let mut scene = stage.scene(Place::Home);
    limited(&mut scene)?;
    let files = scene.snapshot();
    stage.answers(&scene, "ids")?;
    let before = State::now();
    for run in 0..runs {
        let ran = stage.inside(&scene, "ids").map_err(|e| format!("run {run}: {e}"))?;
        ensure(ran.stdout.starts_with("ok"), || format!("run {run}: {ran:?}"))?;
    }
    nothing_left(&before)?;
    let changes = scene.changed_since(&files, None);
    ensure(changes.is_empty(), || format!("after {runs} runs: {changes}"))
}

fn launch(stage: &Stage, scene: &Scene, acts: &str) -> Launcher {
    launch_with(stage, scene, &["limits"], acts, Stdio::null())
}

fn launch_with(stage: &Stage, scene: &Scene, words: &[&str], acts: &str, stdout: Stdio) -> Launcher {
    let child = Command::new(&stage.launcher)
        .args([stage.engine.name(), &scene.home.display().to_string(), &scene.project.display().to_string()])
        .args(words)
        .arg("--")
        .arg(&scene.probe)
        .args(scene.act(acts))
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::null())
        .spawn();
    let launcher = Launcher(child.expect("the launcher"));
    host::launched(launcher.id());
    launcher
}

/// A hundred times, from the launcher's first instruction to well after the command has started.
fn killed_launcher(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let files = scene.snapshot();
    let before = State::now();
    for round in 0..100u64 {
        let launcher = launch(stage, &scene, "daemon {tag} + sleepers 3 {tag} + hold 1000 {tag}");
        // Close together at first, while the box is made; a few long after.
        let pause = if round < 90 { round * 150 } else { (round - 89) * 20_000 };
        std::thread::sleep(Duration::from_micros(pause));
        launcher.kill();
    }
    nothing_left(&before)?;
    let gone = host::eventually(SOON, || files.changes(&scene.snapshot(), None).is_empty());
    ensure(gone, || format!("files: {}", files.changes(&scene.snapshot(), None)))
}

/// Whatever else the launcher started beside the box is killed as well: the next run finds what was left.
fn killed_keeper(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let files = scene.snapshot();
    let before = State::now();
    let launcher = launch(stage, &scene, "hold 1000 {tag}");
    let tag = scene.words["tag"].clone();
    let running = || host::running_in_a_box(&tag);
    ensure(host::eventually(SOON, running), || "the box did not start".to_owned())?;
    let started: Vec<i32> = host::pids().into_iter().filter(|pid| parent(*pid) == Some(launcher.id())).collect();
    let id = launcher.id();
    for pid in started.into_iter().chain([id]) {
        // Gone already is as good.
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
    }
    launcher.kill();
    let ended = host::eventually(SOON, || host::processes_with(&tag).is_empty());
    ensure(ended, || format!("processes {:?} are left", host::processes_with(&tag)))?;
    // What died last may still be on its way out when the next run looks.
    let (mut changes, mut left) = (String::new(), String::new());
    for _ in 0..5 {
        stage.answers(&scene, "ids")?;
        changes = files.changes(&scene.snapshot(), None);
        left = host::left_since(&before, Duration::from_secs(2));
        if changes.is_empty() && left.is_empty() {
            return Ok(());
        }
    }
    Err(format!("after the next run: {changes} {left}"))
}

/// Starts a command that attacks every process that it sees; the launcher, once it has.
fn attacked(stage: &Stage, scene: &Scene, words: &[&str]) -> Result<Launcher, String> {
    same("outside", stage.outside(scene, "attack-child")?, ["ok"])?;
    let said = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    let out = said.as_file().try_clone().map_err(|e| e.to_string())?;
    let acts = "attack-child + attack {tag} + hold 1000 {tag}";
    let launcher = launch_with(stage, scene, words, acts, out.into());
    let mut text = String::new();
    host::eventually(SOON, || {
        text = std::fs::read_to_string(said.path()).unwrap_or_default();
        text.lines().count() == 2
    });
    same("processes that were taken over", text.as_str(), "ok\nok none\n")?;
    Ok(launcher)
}

fn attacked_in_time(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let before = State::now();
    let launcher = attacked(stage, &scene, &["timeout"])?;
    let tag = scene.words["tag"].clone();
    let ended = host::eventually(SOON, || host::processes_with(&tag).is_empty());
    ensure(ended, || format!("processes {:?} are left", host::processes_with(&tag)))?;
    drop(launcher);
    nothing_left(&before)
}

fn attacked_owner(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let before = State::now();
    attacked(stage, &scene, &[])?.kill();
    let tag = scene.words["tag"].clone();
    let ended = host::eventually(SOON, || host::processes_with(&tag).is_empty());
    ensure(ended, || format!("processes {:?} are left", host::processes_with(&tag)))?;
    nothing_left(&before)
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// A box with a command that waits.
fn hold(stage: &Stage, scene: &Scene) -> Result<sandbox::Started, String> {
    let mut command = vec![scene.probe.display().to_string()];
    command.extend(scene.act("hold 1000 {tag}"));
    let out = || std::fs::File::options().write(true).open("/dev/null").expect("the null device").into();
    let stdio = StdioSpec::Files([sandbox::null(), out(), out()]);
    let started = stage.sandbox(scene).start(&command, stdio).map_err(|e| e.to_string())?;
    let tag = scene.words["tag"].clone();
    let running = host::eventually(SOON, || !host::processes_with(&tag).is_empty());
    ensure(running, || "the box did not start".to_owned())?;
    Ok(started)
}

fn dropped(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    limited(&mut scene)?;
    let files = scene.snapshot();
    let before = State::now();
    drop(hold(stage, &scene)?);
    let tag = scene.words["tag"].clone();
    let ended = host::eventually(SOON, || host::processes_with(&tag).is_empty());
    ensure(ended, || format!("processes {:?} are left", host::processes_with(&tag)))?;
    let gone = host::eventually(SOON, || files.changes(&scene.snapshot(), None).is_empty());
    ensure(gone, || format!("files: {}", files.changes(&scene.snapshot(), None)))?;
    nothing_left(&before)
}

fn killed_process_one(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let before = State::now();
    let sandbox::Started { running, policy, facts, .. } = hold(stage, &scene)?;
    let killed = Command::new("kill").args(["-KILL", &running.pid().to_string()]).status();
    ensure(killed.is_ok_and(|s| s.success()), || "process 1 could not be killed".to_owned())?;
    let outcome = supervise(running, &policy, &facts, &mut sandbox::Nobody).map_err(|e| e.to_string())?;
    same("end", outcome.ended, Ended::Signaled(libc::SIGKILL))?;
    let tag = scene.words["tag"].clone();
    // Where process 1 stands outside the box, the box ends a moment later.
    let ended = host::eventually(SOON, || host::processes_with(&tag).is_empty());
    ensure(ended, || format!("processes {:?} are left", host::processes_with(&tag)))?;
    nothing_left(&before)
}
