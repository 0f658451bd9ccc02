//! Commands that people run, inside and outside in turns: a build, `git status` on a large tree, a test suite.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::line::{Line, answer, which};
use crate::measure::{self, Contender, Extent, Failure, Skip, Times};
use crate::pass::{Scene, say};

const MODULES: usize = 30;
const DIRECTORIES: usize = 200;
const FILES_EACH: usize = 100;
const TEST_FILES: usize = 15;
const TESTS_EACH: usize = 20;

/// One command, outside and inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Work {
    pub name: String,
    pub outside: Times,
    pub inside: Times,
    /// Where it was asked for: inside, with `--trace-denials`.
    pub traced: Option<Times>,
}

impl Work {
    /// How much longer inside, in percent of outside; `start_ms` of it are the start of the box and not counted.
    pub fn percent(&self, start_ms: f64) -> f64 {
        (self.inside.median_ms - start_ms) / self.outside.median_ms * 100.0 - 100.0
    }

    /// How much longer with a trace, in percent of without.
    pub fn trace_percent(&self) -> Option<f64> {
        Some(self.traced.as_ref()?.median_ms / self.inside.median_ms * 100.0 - 100.0)
    }
}

/// A command in a directory of its own.
struct Task {
    name: String,
    dir: PathBuf,
    command: Vec<String>,
    /// Removed before each run.
    fresh: Option<PathBuf>,
    traced: bool,
    extent: Extent,
}

pub fn measure(scene: &Scene, quick: bool) -> (Vec<Work>, Vec<Skip>) {
    let (mut works, mut skips) = (Vec::new(), Vec::new());
    type Prepare = fn(&Path, bool) -> Result<Task, Failure>;
    let tasks: [(&str, Prepare); 3] =
        [("cargo build", cargo_build), ("git status", git_status), ("python tests", python_tests)];
    for (name, prepare) in tasks {
        say(&format!("{name}, inside and outside"));
        match prepare(&scene.place, quick).and_then(|task| race(&task, scene)) {
            Ok(work) => works.push(work),
            Err(reason) => skips.push(Skip { name: name.to_owned(), reason }),
        }
    }
    (works, skips)
}

fn race(task: &Task, scene: &Scene) -> Result<Work, Failure> {
    let command: Vec<&str> = task.command.iter().map(String::as_str).collect();
    let mut lines = vec![
        ("outside", Line::new(command[0], command[1..].iter().copied())),
        ("inside", scene.ringfence(&[], &command)),
    ];
    if task.traced {
        lines.push(("inside, --trace-denials", scene.ringfence(&["--trace-denials"], &command)));
    }
    let prepare = || match &task.fresh {
        Some(dir) => match fs::remove_dir_all(dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("cannot remove `{}`: {e}", dir.display())),
            _ => Ok(()),
        },
        None => Ok(()),
    };
    let mut contenders = Vec::new();
    for (name, line) in lines {
        let line = line.at(&task.dir);
        prepare()?;
        line.trial().map_err(|reason| format!("{name}: {reason}"))?;
        contenders.push(Contender::new(name, move || line.run()).prepared(prepare));
    }
    let (times, skips) = measure::interleave(&contenders, task.extent);
    if let Some(skip) = skips.into_iter().next() {
        return Err(format!("{}: {}", skip.name, skip.reason));
    }
    let mut times = times.into_iter();
    match (times.next(), times.next()) {
        (Some(outside), Some(inside)) => Ok(Work { name: task.name.clone(), outside, inside, traced: times.next() }),
        _ => Err("nothing was measured".to_owned()),
    }
}

fn extent(quick: bool, seconds: u64) -> Extent {
    match quick {
        true => Extent { rounds: 3, budget: Duration::from_secs(seconds / 3) },
        false => Extent { rounds: 15, budget: Duration::from_secs(seconds) },
    }
}

/// Writes a file, and the directories above it.
fn put(path: &Path, text: &str) -> Result<(), Failure> {
    let wrong = |e: io::Error| format!("cannot write `{}`: {e}", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(wrong)?;
    }
    fs::write(path, text).map_err(wrong)
}

/// A crate of many modules and no dependencies, built from nothing each time.
fn cargo_build(place: &Path, quick: bool) -> Result<Task, Failure> {
    which("cargo").ok_or("cargo is not installed")?;
    let dir = place.join("build");
    put(
        &dir.join("Cargo.toml"),
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    )?;
    let mut main = String::new();
    for i in 0..MODULES {
        put(&dir.join(format!("src/m{i}.rs")), &module(i))?;
        let _ = writeln!(main, "mod m{i};");
    }
    let calls: Vec<String> = (0..MODULES).map(|i| format!("m{i}::answer(n)")).collect();
    let _ = write!(
        main,
        "fn main() {{\n    let n = std::env::args().count() as u64;\n    println!(\"{{}}\", {});\n}}\n",
        calls.join(" ^ ")
    );
    put(&dir.join("src/main.rs"), &main)?;
    Ok(Task {
        name: format!("cargo build, {MODULES} modules"),
        fresh: Some(dir.join("target")),
        dir,
        command: ["cargo", "build", "--quiet", "--offline"].map(str::to_owned).to_vec(),
        traced: true,
        extent: extent(quick, 75),
    })
}

/// A little of everything that a compiler spends time on: derives, generics, formatting, closures.
fn module(i: usize) -> String {
    format!(
        "use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Thing {{
    pub name: String,
    pub size: u64,
    pub parts: Vec<u32>,
}}

impl fmt::Display for Thing {{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {{
        write!(f, \"{{}}:{{}}:{{:?}}\", self.name, self.size, self.parts)
    }}
}}

pub fn things(n: u64) -> impl Iterator<Item = Thing> {{
    (0..n).map(|k| Thing {{ name: format!(\"{i}-{{k}}\"), size: k * {i}, parts: vec![k as u32; 3] }})
}}

pub fn answer(n: u64) -> u64 {{
    let mut all: Vec<Thing> = things(n).filter(|thing| thing.size % 3 != 1).collect();
    all.sort_by_key(|thing| thing.size);
    all.iter().map(|thing| thing.to_string().len() as u64 ^ thing.size).sum()
}}
"
    )
}

/// Many small files, all of them committed. Several times in one box, so that the start of the box is a small part.
fn git_status(place: &Path, quick: bool) -> Result<Task, Failure> {
    which("git").ok_or("git is not installed")?;
    let dir = place.join("tree");
    for d in 0..DIRECTORIES {
        let below = dir.join(format!("area{}/part{}", d / 20, d % 20));
        fs::create_dir_all(&below).map_err(|e| e.to_string())?;
        for f in 0..FILES_EACH {
            put(&below.join(format!("file{f}.txt")), &format!("{d} {f}\n"))?;
        }
    }
    let git = |args: &[&str]| Line::new("git", args.iter().copied()).at(&dir).trial();
    git(&["init", "--quiet", "."])?;
    git(&["-c", "gc.auto=0", "add", "."])?;
    git(&["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0", "commit", "-qm", "all"])?;
    // Files younger than the index are looked into again each time.
    std::thread::sleep(Duration::from_millis(1100));
    git(&["update-index", "--really-refresh", "-q"])?;
    let times = 10;
    let script = format!("for i in $(seq {times}); do git status --porcelain || exit; done");
    Ok(Task {
        name: format!("git status, {} files, {times} times", DIRECTORIES * FILES_EACH),
        dir,
        command: ["/bin/sh", "-c", &script].map(str::to_owned).to_vec(),
        fresh: None,
        traced: false,
        extent: extent(quick, 30),
    })
}

/// A suite that computes, parses, and writes files beside itself.
fn python_tests(place: &Path, quick: bool) -> Result<Task, Failure> {
    let asked = which("python3").ok_or("python3 is not installed")?;
    // What is found may be a shell script that looks for the real one.
    let python =
        answer(&Line::new(asked, ["-c", "import sys; print(sys.executable)"])).ok_or("python3 does not run")?;
    let dir = place.join("suite");
    for file in 0..TEST_FILES {
        let mut text = String::from(
            "import hashlib, json, os, pathlib, re, tempfile, unittest\n\n\nclass Suite(unittest.TestCase):\n",
        );
        for test in 0..TESTS_EACH {
            let _ = write!(
                text,
                "    def test_{test}(self):
        data = {{str(k): [k, k * {test}, {{'name': 'n%d' % k}}] for k in range(300)}}
        text = json.dumps(data, sort_keys=True)
        self.assertEqual(json.loads(text), data)
        self.assertEqual(len(re.findall(r'n\\d+', text)), 300)
        with tempfile.TemporaryDirectory(dir='.') as place:
            for k in range(8):
                path = pathlib.Path(place, 'file%d' % k)
                path.write_text(text)
                self.assertEqual(hashlib.sha256(path.read_bytes()).hexdigest(), hashlib.sha256(text.encode()).hexdigest())
            self.assertEqual(len(os.listdir(place)), 8)

"
            );
        }
        put(&dir.join(format!("test_{file}.py")), &text)?;
    }
    Ok(Task {
        name: format!("python unittest, {} tests", TEST_FILES * TESTS_EACH),
        dir,
        command: [&python, "-B", "-m", "unittest", "-q"].map(str::to_owned).to_vec(),
        fresh: None,
        traced: false,
        extent: extent(quick, 30),
    })
}
