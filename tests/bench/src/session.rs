//! Sessions: what a command in a live one costs, what making one costs, how fast bytes go in and out, and many at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::session::{Create, Event, Exec, Session, Sessions, WriteOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::line::Line;
use crate::measure::{self, Contender, Extent, Failure, Skip, Times, median};
use crate::pass::{BARE, Scene, say};
use crate::peers::TRUE;
use crate::recording::{self, Recording};

pub const LIBRARY: &str = "session exec, library";
pub const UNRECORDED: &str = "the same, not recorded";
pub const CLI: &str = "ringfence session exec";
pub const RUN: &str = "ringfence run --profile shell";
pub const CREATE: &str = "ringfence session create";

/// Everything about sessions.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figures {
    /// A command in a live session, beside a bare one.
    pub exec: Vec<Times>,
    /// A session made and ended, beside a run.
    pub create: Vec<Times>,
    pub bytes: Vec<Times>,
    /// Bytes of each of them.
    pub size: u64,
    pub load: Option<Load>,
    pub recording: Option<Recording>,
}

/// Many sessions, some of which execute at any time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    pub sessions: usize,
    pub executing: usize,
    pub seconds: u64,
    pub executions: u64,
    pub failures: u64,
    /// Medians of the first and of the last tenth.
    pub first_ms: f64,
    pub last_ms: f64,
    /// Of all supervisors, when a tenth of the time is over, and at the end: each keeps what its last executions wrote.
    pub first_kib: u64,
    pub last_kib: u64,
}

/// Sessions of their own, which end with it.
struct Stage {
    runtime: Runtime,
    sessions: Sessions,
    project: PathBuf,
    place: PathBuf,
}

fn text(error: impl std::fmt::Display) -> Failure {
    error.to_string()
}

impl Stage {
    fn new(scene: &Scene) -> Result<Stage, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(text)?;
        // Where the program looks as well.
        let place = scene.place.join("runtime");
        fs::create_dir_all(&place).map_err(text)?;
        let sessions = Sessions::new(place.join("ringfence/sessions"), &scene.ringfence);
        Ok(Stage { runtime, sessions, project: scene.project.canonicalize().map_err(text)?, place })
    }

    fn create(&self) -> Result<Create, Failure> {
        let facts = ringfence::facts::gather().map_err(text)?;
        let mut flags = Layer::flags();
        flags.profile("shell");
        // A share of one processor would be measured, not the session.
        flags.cpus("2").map_err(text)?;
        flags.tmp_size("3g").and_then(|()| flags.memory("4g")).map_err(text)?;
        let policy =
            layers::resolve(Inputs::new(self.project.clone(), facts.home.clone(), flags)).map_err(text)?.policy;
        // As the program does.
        Ok(Create::new(policy, facts).records(self.place.join("records")))
    }

    fn session(&self, name: &str) -> Result<Session, Failure> {
        let create = self.create()?.name(name);
        self.runtime.block_on(self.sessions.create(create)).map_err(text)
    }

    fn line(&self, scene: &Scene, args: &[&str]) -> Line {
        Line::new(&scene.ringfence, args.iter().copied()).with("XDG_RUNTIME_DIR", &self.place)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.runtime.block_on(async {
            for info in self.sessions.list().await.unwrap_or_default() {
                // What is left is said by the next list.
                let _ = self.sessions.remove(&info.id).await;
            }
        });
    }
}

pub fn measure(scene: &Scene, quick: bool, load: Option<(usize, usize, u64)>) -> (Figures, Vec<Skip>) {
    let mut figures = Figures::default();
    let mut skips = Vec::new();
    let stage = match Stage::new(scene) {
        Ok(stage) => stage,
        Err(reason) => return (figures, vec![Skip { name: "sessions".to_owned(), reason }]),
    };
    type Part = fn(&Stage, &Scene, bool, &mut Figures) -> Result<Vec<Skip>, Failure>;
    let parts: [(&str, Part); 4] = [
        ("commands in a session", exec),
        ("sessions made", create),
        ("bytes in and out of a session", bytes),
        ("records", record),
    ];
    for (name, part) in parts {
        say(name);
        match part(&stage, scene, quick, &mut figures) {
            Ok(more) => skips.extend(more),
            Err(reason) => skips.push(Skip { name: name.to_owned(), reason }),
        }
    }
    if let Some((sessions, executing, seconds)) = load {
        say(&format!("{sessions} sessions, {executing} executing, for {seconds} s"));
        match crowd(&stage, sessions, executing, seconds) {
            Ok(load) => figures.load = Some(load),
            Err(reason) => skips.push(Skip { name: "sessions under load".to_owned(), reason }),
        }
    }
    (figures, skips)
}

fn record(_: &Stage, scene: &Scene, quick: bool, figures: &mut Figures) -> Result<Vec<Skip>, Failure> {
    let executions = if quick { 2_000 } else { 10_000 };
    figures.recording = Some(recording::measure(&scene.place.join("records"), executions)?);
    Ok(Vec::new())
}

fn exec(stage: &Stage, scene: &Scene, quick: bool, figures: &mut Figures) -> Result<Vec<Skip>, Failure> {
    let session = Mutex::new(stage.session("exec")?);
    let mut create = stage.create()?.name("unrecorded");
    create.records = None;
    let unrecorded = Mutex::new(stage.runtime.block_on(stage.sessions.create(create)).map_err(text)?);
    let within = |session: &Mutex<Session>| {
        let session = session.lock().map_err(text)?;
        let output = stage
            .runtime
            .block_on(async { session.exec(Exec::new([TRUE])).await.map_err(text)?.output().await.map_err(text) })?;
        if output.exit_code() == Some(0) { Ok(()) } else { Err(format!("{:?}", output.outcome)) }
    };
    let line = stage.line(scene, &["session", "exec", "exec", "--", TRUE]);
    line.trial()?;
    let bare = Line::new(TRUE, [""; 0]);
    let contenders = [
        Contender::new(BARE, || bare.run()),
        Contender::new(LIBRARY, || within(&session)),
        Contender::new(UNRECORDED, || within(&unrecorded)),
        Contender::new(CLI, || line.run()),
    ];
    let extent = match quick {
        true => Extent { rounds: 200, budget: Duration::from_secs(6) },
        false => Extent { rounds: 2000, budget: Duration::from_secs(30) },
    };
    let (times, skips) = measure::interleave(&contenders, extent);
    figures.exec = times;
    Ok(skips)
}

fn create(stage: &Stage, scene: &Scene, quick: bool, figures: &mut Figures) -> Result<Vec<Skip>, Failure> {
    let made = Mutex::new(Vec::<String>::new());
    let next = AtomicUsize::new(0);
    let run = Line::new(&scene.ringfence, ["run", "--profile", "shell", "--", TRUE]);
    run.trial()?;
    let contenders = [
        Contender::new(RUN, || run.run()),
        Contender::new(CREATE, || {
            let name = format!("made-{}", next.fetch_add(1, Ordering::Relaxed));
            made.lock().map_err(text)?.push(name.clone());
            stage.line(scene, &["session", "create", &name]).run()
        })
        .prepared(|| {
            // The one before is ended where nobody takes the time.
            for name in made.lock().map_err(text)?.drain(..) {
                stage.line(scene, &["session", "rm", &name]).run()?;
            }
            Ok(())
        }),
    ];
    let extent = match quick {
        true => Extent { rounds: 30, budget: Duration::from_secs(5) },
        false => Extent { rounds: 200, budget: Duration::from_secs(20) },
    };
    let (times, skips) = measure::interleave(&contenders, extent);
    figures.create = times;
    Ok(skips)
}

fn bytes(stage: &Stage, scene: &Scene, quick: bool, figures: &mut Figures) -> Result<Vec<Skip>, Failure> {
    figures.size = if quick { 256 << 20 } else { 1 << 30 };
    let session = Mutex::new(stage.session("bytes")?);
    let (from, to) = (scene.project.join("from"), scene.project.join("to"));
    fs::write(&from, vec![b'x'; figures.size as usize]).map_err(text)?;
    let size = figures.size.to_string();
    let copy = Line::new("cp", [from.as_os_str(), to.as_os_str()]);
    let pipe = Line::new("sh", ["-c".to_owned(), format!("head -c {size} /dev/zero | cat")]);
    let result = {
        let within = |act: &dyn Fn(&Session) -> Result<(), Failure>| act(&*session.lock().map_err(text)?);
        let contenders = [
            Contender::new("cp", || copy.run()),
            Contender::new("file in", || {
                within(&|session| stage.runtime.block_on(copy_in(session, &from, Path::new("in"))))
            }),
            Contender::new("file out", || {
                within(&|session| stage.runtime.block_on(copy_out(session, Path::new("from"), &to)))
            }),
            Contender::new("pipe", || pipe.run()),
            Contender::new("output of a command", || {
                within(&|session| stage.runtime.block_on(read_output(session, &size)))
            }),
        ];
        measure::interleave(&contenders, Extent { rounds: if quick { 3 } else { 7 }, budget: Duration::from_secs(90) })
    };
    for file in [&from, &to, &scene.project.join("in")] {
        let _ = fs::remove_file(file);
    }
    figures.bytes = result.0;
    Ok(result.1)
}

async fn copy_in(session: &Session, from: &Path, to: &Path) -> Result<(), Failure> {
    let file = fs::File::open(from).map_err(text)?;
    let mut writer = session.files().writer(to, WriteOptions::default()).await.map_err(text)?;
    writer.copy_from(&file).await.map_err(text)?;
    writer.finish().await.map(drop).map_err(text)
}

async fn copy_out(session: &Session, from: &Path, to: &Path) -> Result<(), Failure> {
    let file = fs::File::create(to).map_err(text)?;
    session.files().reader(from, 0).await.map_err(text)?.copy_to(&file).await.map(drop).map_err(text)
}

async fn read_output(session: &Session, size: &str) -> Result<(), Failure> {
    let mut execution = session.exec(Exec::new(["head", "-c", size, "/dev/zero"])).await.map_err(text)?;
    let mut bytes = 0;
    while let Some(event) = execution.next().await.map_err(text)? {
        if let Event::Stdout(more) = event {
            bytes += more.len();
        }
    }
    if bytes.to_string() == size { Ok(()) } else { Err(format!("{bytes} bytes of {size}")) }
}

/// A connection for each session, and pipes for what executes.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // What there is then does, or a failure says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// So many live sessions; at any time so many of them execute something.
fn crowd(stage: &Stage, sessions: usize, executing: usize, seconds: u64) -> Result<Load, Failure> {
    raise_open_files();
    let create = stage.create()?;
    stage.runtime.block_on(async {
        let mut all = Vec::new();
        for number in 0..sessions {
            let create = create.clone().name(format!("load-{number}")).idle(None);
            all.push(stage.sessions.create(create).await.map_err(|e| format!("session {number}: {e}"))?);
        }
        let (executions, failures, next) = (AtomicU64::new(0), AtomicU64::new(0), AtomicUsize::new(0));
        let times = Mutex::new(Vec::<(f64, f64)>::new());
        let begun = Instant::now();
        let end = Duration::from_secs(seconds);
        let worker = || async {
            while begun.elapsed() < end {
                let session = &all[next.fetch_add(7, Ordering::Relaxed) % all.len()];
                let at = Instant::now();
                let script = "i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); done";
                let ran = match session.exec(Exec::new(["sh", "-c", script])).await {
                    Ok(execution) => execution.output().await,
                    Err(error) => Err(error),
                };
                let Ok(done) = ran else {
                    failures.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                executions.fetch_add(1, Ordering::Relaxed);
                if done.exit_code() != Some(0) || !done.stdout.ends_with(b"line 49\n") {
                    failures.fetch_add(1, Ordering::Relaxed);
                }
                if let Ok(mut times) = times.lock() {
                    times.push((begun.elapsed().as_secs_f64(), at.elapsed().as_secs_f64() * 1e3));
                }
            }
        };
        let mut workers: Vec<_> = (0..executing).map(|_| Some(Box::pin(worker()))).collect();
        let mut warm = std::pin::pin!(async {
            tokio::time::sleep(end / 10).await;
            memory(&all).await
        });
        let mut first_kib = None;
        std::future::poll_fn(|context| {
            if first_kib.is_none()
                && let std::task::Poll::Ready(kib) = warm.as_mut().poll(context)
            {
                first_kib = Some(kib);
            }
            for slot in &mut workers {
                if slot.as_mut().is_some_and(|worker| worker.as_mut().poll(context).is_ready()) {
                    *slot = None;
                }
            }
            if workers.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        drop(workers);
        let last_kib = memory(&all).await;
        let times = times.lock().map_err(text)?;
        let tenth = |from: f64| {
            let within = |(at, _): &&(f64, f64)| (from..from + seconds as f64 / 10.0).contains(at);
            median(&times.iter().filter(within).map(|(_, ms)| *ms).collect::<Vec<_>>())
        };
        Ok(Load {
            sessions,
            executing,
            seconds,
            executions: executions.load(Ordering::Relaxed),
            failures: failures.load(Ordering::Relaxed),
            first_ms: tenth(0.0),
            last_ms: tenth(seconds as f64 * 0.9),
            first_kib: first_kib.unwrap_or(0),
            last_kib,
        })
    })
}

/// Proportional memory of all supervisors.
async fn memory(sessions: &[Session]) -> u64 {
    let mut total = 0;
    for session in sessions {
        let Ok(info) = session.info().await else { continue };
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", info.pid)).unwrap_or_default();
        let line = rollup.lines().find(|line| line.starts_with("Pss:"));
        total += line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0);
    }
    total
}
