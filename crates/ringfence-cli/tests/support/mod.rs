//! A hermetic place to run the program in: own home, own project, cleared environment.
#![allow(dead_code, unused_imports, reason = "each test file uses some of it")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

pub use ringfence_testing::{TOOLCHAIN, everything_required, is_root, skip, sysroot, user};

/// Where the program is, when it is not where it was built.
const PROGRAM: &str = "RINGFENCE_TEST_PROGRAM";

/// The program under test.
pub fn program() -> &'static str {
    static PLACE: OnceLock<String> = OnceLock::new();
    PLACE.get_or_init(|| std::env::var(PROGRAM).unwrap_or_else(|_| env!("CARGO_BIN_EXE_ringfence").to_owned()))
}

/// The engines that are here, as `--engine` names them.
pub fn engines() -> Vec<&'static str> {
    let mut engines = vec!["native"];
    match Path::new("/usr/bin/bwrap").exists() {
        true => engines.push("bubblewrap"),
        false => skip("engine bubblewrap", "bwrap is not installed"),
    }
    engines
}

/// As [`ringfence_testing::as_an_ordinary_user`], with the program.
pub fn as_an_ordinary_user() {
    ringfence_testing::as_an_ordinary_user(&[(PROGRAM, Path::new(program()))]);
}

pub struct Place {
    _dir: tempfile::TempDir,
    pub home: PathBuf,
    pub project: PathBuf,
}

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap().join("home");
        let project = home.join("project");
        std::fs::create_dir_all(&project).unwrap();
        Place { _dir: dir, home, project }
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.home.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The program with these arguments, in the project.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(program());
        command.args(args).current_dir(&self.project).stdin(Stdio::null());
        self.environment(&mut command);
        command
    }

    pub fn environment(&self, command: &mut Command) {
        command.env_clear().env("HOME", &self.home).env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TERM", "dumb");
    }

    pub fn ringfence(&self, args: &[&str]) -> Done {
        Done::new(self.command(args).output().unwrap())
    }

    /// Runs a shell text in a box with these flags.
    pub fn run(&self, flags: &[&str], text: &str) -> Done {
        let mut args = vec!["run"];
        args.extend(flags);
        args.extend(["--", "sh", "-c", text]);
        self.ringfence(&args)
    }

    /// No litter: the project holds what the test put there.
    pub fn names(&self) -> Vec<String> {
        names(&self.project)
    }
}

pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
    pub raw: Vec<u8>,
}

impl Done {
    pub fn new(output: Output) -> Done {
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            raw: output.stdout,
        }
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    #[track_caller]
    pub fn expect(self, code: i32, out: &str) -> Done {
        assert_eq!((self.code, self.out.as_str()), (code, out), "{}", self.err);
        self
    }
}
