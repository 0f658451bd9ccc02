//! Code: what a snippet of Python costs, cold and from a pool, against bare Python and `docker run`; how many in a second;
//! what is left.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence::Sandbox;
use ringfence::code::{self, Code, Language, Pools};
use ringfence::policy::Policy;
use ringfence::policy::facts::Facts;
use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::sandbox::SandboxError;
use serde::Serialize;

use crate::line::{Line, which};
use crate::measure::{self, Contender, Extent, Failure, Skip, Times};
use crate::pass::{Scene, say};

/// Interpreters that are held ready: while some are used, the next are made.
const WARM: u64 = 8;

/// What boxes have, and not what a shim of the user's chooses first.
const PYTHON: &str = "/usr/bin/python3";

/// In milliseconds; bare Python is the first.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    pub rows: Vec<Times>,
    /// Executions in a second, through the pool, one after the other for each interpreter.
    pub rate: Option<f64>,
    pub executions: u64,
    /// What all processors of the machine did meanwhile, in milliseconds for each.
    pub busy_ms: Option<f64>,
    /// What there is before them and after.
    pub left: Option<(Left, Left)>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Left {
    pub descriptors: u64,
    pub processes: u64,
    pub groups: u64,
    pub mounts: u64,
    pub memory_kib: u64,
    /// Of the whole machine, which its other users change too.
    pub kernel_kib: u64,
    pub kernel_groups: u64,
}

impl Left {
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("descriptors", self.descriptors),
            ("processes", self.processes),
            ("control groups", self.groups),
            ("mounts", self.mounts),
            ("memory of the process, KiB", self.memory_kib),
            ("memory of the kernel, KiB (whole machine)", self.kernel_kib),
            ("control groups in the kernel (whole machine)", self.kernel_groups),
        ]
    }
}

pub fn measure(scene: &Scene, quick: bool, executions: u64) -> (Figures, Vec<Skip>) {
    say("code: a snippet of Python, bare, cold and from a pool");
    let mut figures = Figures::default();
    let mut skips = Vec::new();
    match fill(&mut figures, scene, quick, executions) {
        Ok(more) => skips.extend(more),
        Err(reason) => skips.push(Skip { name: "code".to_owned(), reason }),
    }
    (figures, skips)
}

/// `docker run` of an image that is made here, of this host's Python: nothing is pulled.
fn peer(scene: &Scene) -> Result<Line, Failure> {
    let docker = which("docker").ok_or("not installed")?;
    Line::new(&docker, ["version"]).trial().map_err(|e| format!("no daemon: {e}"))?;
    let place = scene.place.join("python");
    std::fs::create_dir_all(&place).map_err(text)?;
    let image = format!("ringfence-bench-python:{}", std::process::id());
    // The script removes it.
    std::fs::write(place.join("docker-image"), &image).map_err(text)?;
    let script = r#"set -eu
        python=$(readlink -f /usr/bin/python3)
        library=$("$python" -I -S -c 'import sys; print(sys.path[1])')
        files=$(ldd "$python" | grep -o '/[^ ]*')
        tar -c -h --exclude=dist-packages --exclude=test --exclude=__pycache__ "$python" /usr/bin/python3 "$library" $files 2>/dev/null |
            "$0" import - "$1" >/dev/null"#;
    let import = Line::new("/bin/sh", ["-c", script, &docker.to_string_lossy(), &image]);
    import.run().map_err(|e| format!("cannot make an image: {e}"))?;
    let run =
        ["run", "--rm", "--network", "none", "--pull", "never", &image, "/usr/bin/python3", "-I", "-S", "-c", "pass"];
    Ok(Line::new(&docker, run))
}

fn fill(figures: &mut Figures, scene: &Scene, quick: bool, executions: u64) -> Result<Vec<Skip>, Failure> {
    let snippet = scene.project.join("snippet.py");
    std::fs::write(&snippet, "1 + 1\n").map_err(text)?;
    let bare = || finish(Command::new(PYTHON).args(["-I", "-S", "-c", "pass"]));
    let cold = || {
        let mut command = Command::new(&scene.ringfence);
        finish(command.args(["code", "python"]).arg(&snippet).current_dir(&scene.project))
    };
    let (facts, policy) = situation(&scene.project, &scene.ringfence)?;
    let language = Language::named("python").ok_or("Python is not known")?;
    let code = Code::new(language, "1 + 1");
    let native = ringfence::EngineChoice::from(ringfence::engines::native::ENGINE);
    let library = || right(code::run(&code, &policy, &facts, native.clone(), None).map_err(text)?.value);
    let mut contenders = vec![
        Contender::new("python3 -I -S -c pass", bare),
        Contender::new("ringfence code, cold", cold),
        Contender::new("library, cold", library),
    ];
    let (rounds, budget) = if quick { (30, 6) } else { (200, 30) };
    let mut skips = Vec::new();
    match peer(scene) {
        Ok(docker) => contenders.push(Contender::new("docker run python", move || docker.run())),
        Err(reason) => skips.push(Skip { name: "docker run python".to_owned(), reason }),
    }
    let (times, more) = measure::interleave(&contenders, Extent { rounds, budget: Duration::from_secs(budget) });
    figures.rows = times;
    skips.extend(more);
    let before = left()?;
    let mut sandbox = Sandbox::new(policy.clone(), facts.clone()).choice(native.clone());
    sandbox.change(|resolved, _| resolved.service.warm = WARM).map_err(text)?;
    let (pools, (never, _writer)) = (Pools::default(), std::io::pipe().map_err(text)?);
    let warm = || {
        let ran = sandbox.run_code(&code, &[], None, Some(&pools), || Ok::<_, SandboxError>(&never));
        right(ran.map_err(text)?.value)
    };
    // The first call runs cold and starts the pool.
    warm()?;
    std::thread::sleep(Duration::from_secs(2));
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        warm()?;
        times.push(begun.elapsed());
        // Latency is that of one that is ready; the rate says the rest.
        std::thread::sleep(Duration::from_millis(100));
    }
    figures.rows.push(Times::of("library, from a pool", &times));

    let each = executions.div_ceil(WARM);
    figures.executions = each * WARM;
    let (begun, busy_before) = (Instant::now(), busy()?);
    let ran: Result<Vec<()>, Failure> = std::thread::scope(|scope| {
        let run = || (0..each).try_for_each(|_| warm());
        let threads: Vec<_> = (0..WARM).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?).collect()
    });
    ran?;
    figures.rate = Some(figures.executions as f64 / begun.elapsed().as_secs_f64());
    figures.busy_ms = Some((busy()? - busy_before) / figures.executions as f64);
    drop(pools);
    // Network namespaces and control groups are cleared by the kernel when it has time.
    std::thread::sleep(Duration::from_secs(2));
    figures.left = Some((before, left()?));
    Ok(skips)
}

/// What all processors have done since the start of the machine, in milliseconds.
fn busy() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/stat").map_err(text)?;
    let first = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = first.filter_map(|word| word.parse().ok()).collect();
    // All but idle and waiting; in hundredths of a second.
    let [user, nice, system, _, _, irq, softirq, ..] = ticks[..] else { return Err("no /proc/stat".to_owned()) };
    Ok((user + nice + system + irq + softirq) * 10.0)
}

fn situation(project: &Path, ringfence: &Path) -> Result<(Facts, Policy), Failure> {
    let mut facts = ringfence::facts::gather().map_err(text)?;
    ringfence.clone_into(&mut facts.program);
    let mut flags = Layer::flags();
    flags.profile("skill");
    let inputs = Inputs::new(project.canonicalize().map_err(text)?, facts.home.clone(), flags);
    let policy = layers::resolve(inputs).map_err(text)?.policy;
    Ok((facts, policy))
}

/// What could be left: of this process, of the machine where it cannot be told apart.
fn left() -> Result<Left, Failure> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(text);
    let keyed = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let mut processes = 0;
    for task in std::fs::read_dir("/proc/self/task").map_err(text)?.flatten() {
        // A thread may end meanwhile.
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        processes += children.split_whitespace().count() as u64;
    }
    let places = ["", "memory", "pids", "cpu", "unified"].map(|name| Path::new("/sys/fs/cgroup").join(name));
    let entries = places.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
    let own = format!("ringfence-{}-", std::process::id());
    let memory = read("/proc/meminfo")?;
    let controllers = read("/proc/cgroups")?;
    let third = |line: &str| line.split_whitespace().nth(2).and_then(|count| count.parse::<u64>().ok());
    Ok(Left {
        descriptors: std::fs::read_dir("/proc/self/fd").map_err(text)?.count() as u64,
        processes,
        groups: entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).count() as u64,
        mounts: read("/proc/self/mountinfo")?.lines().count() as u64,
        memory_kib: keyed(&read("/proc/self/status")?, "VmRSS:"),
        kernel_kib: ["SUnreclaim:", "KernelStack:", "Percpu:"].iter().map(|key| keyed(&memory, key)).sum(),
        kernel_groups: controllers.lines().filter_map(third).sum(),
    })
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
