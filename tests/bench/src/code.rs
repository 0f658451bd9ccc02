//! Code: what a snippet of Python costs, cold and from a pool, against bare Python; how many in a second; what is left.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence::Engine;
use ringfence::code::{self, Code, Language, Pool, Warm};
use ringfence::policy::facts::Facts;
use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::policy::policy::Policy;
use serde::Serialize;

use crate::measure::{Failure, Skip, median};
use crate::pass::{Scene, say};

/// Interpreters that are held ready.
const WARM: u64 = 4;

/// In milliseconds; bare Python is the first.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    pub rows: Vec<Row>,
    /// Executions in a second, through the pool, one after the other for each interpreter.
    pub rate: Option<f64>,
    pub executions: u64,
    /// What there is more of after them than before.
    pub left: Option<Left>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub median_ms: f64,
    pub samples: usize,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Left {
    pub descriptors: i64,
    pub processes: i64,
}

pub fn measure(scene: &Scene, quick: bool) -> (Figures, Vec<Skip>) {
    say("code: a snippet of Python, bare, cold and from a pool");
    let mut figures = Figures::default();
    let skips = match fill(&mut figures, scene, quick) {
        Ok(()) => Vec::new(),
        Err(reason) => vec![Skip { name: "code".to_owned(), reason }],
    };
    (figures, skips)
}

fn fill(figures: &mut Figures, scene: &Scene, quick: bool) -> Result<(), Failure> {
    let rounds = if quick { 30 } else { 200 };
    let mut bare = Command::new("python3");
    bare.args(["-I", "-S", "-c", "pass"]);
    figures.add("python3 -I -S -c pass", rounds, || finish(&mut bare))?;
    let snippet = scene.project.join("snippet.py");
    std::fs::write(&snippet, "1 + 1\n").map_err(text)?;
    let mut cold = Command::new(&scene.ringfence);
    cold.args(["code", "python"]).arg(&snippet).current_dir(&scene.project);
    figures.add("ringfence code, cold", rounds, || finish(&mut cold))?;

    let (facts, policy) = situation(&scene.project, &scene.ringfence)?;
    let language = Language::named("python").ok_or("Python is not known")?;
    let code = Code::new(language, "1 + 1");
    let native = Engine::Native.into();
    figures
        .add("library, cold", rounds, || right(code::run(&code, &policy, &facts, native, None).map_err(text)?.value))?;
    let before = left()?;
    let warm = Warm { language, packages: false, preload: Vec::new() };
    let pool = Pool::new(warm, &policy, &facts, native).map_err(text)?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        // Latency is that of one that is ready; the rate says the rest.
        while pool.ready() < WARM as usize {
            std::thread::sleep(Duration::from_millis(2));
        }
        let begun = Instant::now();
        right(pool.run(&code, None).map_err(text)?.result.value)?;
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    figures.rows.push(Row { name: "library, from a pool", median_ms: median(&times), samples: rounds });

    figures.executions = if quick { 500 } else { 10_000 };
    let begun = Instant::now();
    let each = figures.executions / WARM;
    let ran: Result<Vec<()>, Failure> = std::thread::scope(|scope| {
        let run = || (0..each).try_for_each(|_| right(pool.run(&code, None).map_err(text)?.result.value));
        let threads: Vec<_> = (0..WARM).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?).collect()
    });
    ran?;
    figures.rate = Some(figures.executions as f64 / begun.elapsed().as_secs_f64());
    drop(pool);
    let after = left()?;
    figures.left = Some(Left {
        descriptors: after.descriptors - before.descriptors,
        processes: after.processes - before.processes,
    });
    Ok(())
}

impl Figures {
    fn add(
        &mut self,
        name: &'static str,
        rounds: usize,
        mut act: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let times: Result<Vec<f64>, Failure> = (0..rounds)
            .map(|_| {
                let begun = Instant::now();
                act().map(|()| begun.elapsed().as_secs_f64() * 1000.0)
            })
            .collect();
        self.rows.push(Row { name, median_ms: median(&times?), samples: rounds });
        Ok(())
    }
}

fn situation(project: &Path, ringfence: &Path) -> Result<(Facts, Policy), Failure> {
    let mut facts = ringfence::facts::gather().map_err(text)?;
    ringfence.clone_into(&mut facts.program);
    let mut flags = Layer::flags();
    flags.profile("skill");
    let inputs = Inputs::new(project.canonicalize().map_err(text)?, facts.home.clone(), flags);
    let mut policy = layers::resolve(inputs).map_err(text)?.policy;
    policy.warm = WARM;
    Ok((facts, policy))
}

/// Descriptors of this process, and processes that it started.
fn left() -> Result<Left, Failure> {
    let descriptors = std::fs::read_dir("/proc/self/fd").map_err(text)?.count() as i64;
    let mut processes = 0;
    for task in std::fs::read_dir("/proc/self/task").map_err(text)?.flatten() {
        // A thread may end meanwhile.
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        processes += children.split_whitespace().count() as i64;
    }
    Ok(Left { descriptors, processes })
}

fn finish(command: &mut Command) -> Result<(), Failure> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().map_err(text)?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

fn right(value: Option<serde_json::Value>) -> Result<(), Failure> {
    if value == Some(2.into()) { Ok(()) } else { Err(format!("a wrong result: {value:?}")) }
}

fn text(error: impl std::fmt::Display) -> Failure {
    error.to_string()
}
