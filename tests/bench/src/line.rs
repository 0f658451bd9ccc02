//! A command line that is run again and again.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::measure::Failure;

/// A peer that hangs is left out after this.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Line {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Where it runs; without it: where we are.
    pub dir: Option<PathBuf>,
}

impl Line {
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Line {
        Line { program: program.into(), args: args.into_iter().map(Into::into).collect(), dir: None }
    }

    pub fn at(mut self, dir: &Path) -> Line {
        self.dir = Some(dir.to_path_buf());
        self
    }

    /// The standard library starts it by `posix_spawn`, which is a vfork and an exec: what "bare" means here.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    /// Runs it to its end.
    pub fn run(&self) -> Result<(), Failure> {
        let status = self.command().status().map_err(|e| format!("cannot start {}: {e}", self.program.display()))?;
        if status.success() { Ok(()) } else { Err(describe(status)) }
    }

    /// Runs it once with an ear for what it says, and with patience that ends.
    pub fn trial(&self) -> Result<(), Failure> {
        let start = Instant::now();
        let mut child = self
            .command()
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", self.program.display()))?;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) => {
                    // Gone already is what is wanted.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("still running after {} s", PATIENCE.as_secs()));
                }
                Err(e) => return Err(e.to_string()),
            }
        };
        if status.success() {
            return Ok(());
        }
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            // What was said before is enough.
            let _ = stderr.take(1 << 16).read_to_end(&mut said);
        }
        let said = String::from_utf8_lossy(&said);
        let first = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing on stderr");
        Err(format!("{}: {}", describe(status), first.chars().take(160).collect::<String>()))
    }

    pub fn text(&self) -> String {
        let words = std::iter::once(self.program.as_os_str()).chain(self.args.iter().map(OsString::as_os_str));
        words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("killed by signal {}", signal.unwrap_or_default()),
    }
}

/// Finds a program as the shell would.
pub fn which(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
}

/// What a program prints, without the line's end.
pub fn answer(line: &Line) -> Option<String> {
    let output = line.command().stdout(Stdio::piped()).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
