//! A hermetic place to run the program in: own home, own project, cleared environment.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Where the program is, when it is not where it was built.
const PROGRAM: &str = "RINGFENCE_TEST_PROGRAM";
/// Who runs the tests that are not run as root.
const USER: &str = "ringfence-test";
/// Where that user finds the Rust toolchain, which may lie in root's home.
pub const TOOLCHAIN: &str = "/mnt";

/// The program under test.
pub fn program() -> &'static str {
    static PLACE: OnceLock<String> = OnceLock::new();
    PLACE.get_or_init(|| std::env::var(PROGRAM).unwrap_or_else(|_| env!("CARGO_BIN_EXE_ringfence").to_owned()))
}

/// What is missing is a failure here (`./test`, CI), and not a printed SKIP.
pub fn everything_required() -> bool {
    std::env::var_os("RINGFENCE_REQUIRE_ALL").is_some_and(|value| value == "1")
}

/// Says why something is left out.
#[track_caller]
pub fn skip(what: &str, reason: &str) {
    assert!(!everything_required(), "{what}: {reason}");
    eprintln!("SKIP {what}: {reason}");
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
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

/// Ids and home of the ordinary user.
pub fn user() -> Option<(u32, u32, String)> {
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap();
    let account = accounts.lines().map(|l| l.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == USER)?;
    Some((account[2].parse().unwrap(), account[3].parse().unwrap(), account[5].to_owned()))
}

/// Runs every other test of this file once more, as an ordinary user; to be called by a test named
/// `as_an_ordinary_user`.
pub fn as_an_ordinary_user() {
    if !is_root() {
        return;
    }
    let Some((uid, gid, home)) = user() else {
        return skip("everything as an ordinary user", "there is no user `ringfence-test` (`./test` makes it)");
    };
    let own = tempfile::Builder::new().prefix("ringfence-suite-").tempdir().unwrap();
    std::fs::set_permissions(own.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // Where the user cannot reach the build directory (a checkout in root's home), it still reaches a copy.
    let (tests, copy) = (own.path().join("tests"), own.path().join("ringfence"));
    std::fs::copy(std::env::current_exe().unwrap(), &tests).unwrap();
    std::fs::copy(program(), &copy).unwrap();
    // The mount is seen by these tests alone.
    let become_user = format!(
        "[ -z \"$SYSROOT\" ] || mount --bind \"$SYSROOT\" {TOOLCHAIN}
         exec setpriv --reuid={uid} --regid={gid} --init-groups \"$@\""
    );
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--", "sh", "-c", &become_user, "sh"])
        .arg(&tests)
        .args(["--skip", "as_an_ordinary_user", "--test-threads", "2"])
        .env("SYSROOT", sysroot().unwrap_or_default())
        .env(PROGRAM, &copy)
        .env("HOME", home)
        .env("USER", USER)
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = text(&output.stdout).contains("passed") && !text(&output.stdout).contains(" 0 passed");
    assert!(output.status.success() && ran, "as {USER}:\n{}{}", text(&output.stdout), text(&output.stderr));
}

/// Where the compiler is that builds these tests.
pub fn sysroot() -> Option<PathBuf> {
    let own = Path::new(TOOLCHAIN);
    if own.join("bin/cargo").exists() {
        return Some(own.to_path_buf());
    }
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.join("bin/cargo").exists().then_some(path)
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
