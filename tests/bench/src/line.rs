//! A command line that is run again and again.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
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
    env: Vec<(&'static str, PathBuf)>,
    /// What it says on stderr, kept in memory for the day that it fails.
    said: Option<Arc<File>>,
}

impl Line {
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Line {
        Line {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            dir: None,
            env: Vec::new(),
            said: ear(),
        }
    }

    /// Sets a variable of its environment.
    pub fn with(mut self, name: &'static str, value: &Path) -> Line {
        self.env.push((name, value.to_path_buf()));
        self
    }

    pub fn at(mut self, dir: &Path) -> Line {
        self.dir = Some(dir.to_path_buf());
        self
    }

    /// The standard library starts it by `posix_spawn`, which is a vfork and an exec: what "bare" means here.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let said = self.said.as_ref().and_then(|said| said.try_clone().ok());
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(said.map_or_else(Stdio::null, Stdio::from));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it to its end.
    pub fn run(&self) -> Result<(), Failure> {
        let status = self.command().status().map_err(|e| format!("cannot start {}: {e}", self.program.display()))?;
        if status.success() { Ok(()) } else { Err(self.complaint(status)) }
    }

    /// Runs it once, with patience that ends.
    pub fn trial(&self) -> Result<(), Failure> {
        let start = Instant::now();
        let wrong = |e: std::io::Error| format!("cannot start {}: {e}", self.program.display());
        let mut child = self.command().spawn().map_err(wrong)?;
        loop {
            match child.try_wait().map_err(wrong)? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.complaint(status)),
                None if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    // Gone already is what is wanted.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("still running after {} s", PATIENCE.as_secs()));
                }
            }
        }
    }

    /// How it ended, and what it said last: an error rather than the hint after it.
    fn complaint(&self, status: ExitStatus) -> Failure {
        let mut bytes = [0; 4096];
        let length = self.said.as_ref().and_then(|said| {
            let from = said.metadata().ok()?.len().saturating_sub(bytes.len() as u64);
            said.read_at(&mut bytes, from).ok()
        });
        let said = String::from_utf8_lossy(&bytes[..length.unwrap_or_default()]);
        let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines().rfind(|line| line.starts_with("error")).or_else(|| lines().next_back());
        format!("{}: {}", describe(status), line.unwrap_or("nothing on stderr").chars().take(160).collect::<String>())
    }

    pub fn text(&self) -> String {
        let words = std::iter::once(self.program.as_os_str()).chain(self.args.iter().map(OsString::as_os_str));
        words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }
}

/// A file in memory. Without one nothing is kept.
fn ear() -> Option<Arc<File>> {
    let file = rustix::fs::memfd_create("stderr", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    Some(Arc::new(File::from(file)))
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
