//! What stands in front of a program: inside a box this program is mounted over it, and decides by where it lies.
//!
//! A courtesy to the agent and not a wall: the real program stays reachable.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use ringfence::policy::guards::{self, AskGit, GitFacts};
use ringfence::policy::plan::{COMMANDS_FILE, GUARDS_DIR};

use crate::output;

/// The exit code of what is refused: cannot be executed.
const REFUSED: u8 = 126;

/// Stands in front of a program, when this was started in its place; `None` when this is Ringfence itself.
pub fn stand() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let name = args.next()?;
    if name.as_bytes().rsplit(|b| *b == b'/').next() == Some(b"ringfence") {
        return None;
    }
    let table = std::fs::read(COMMANDS_FILE).ok()?;
    let place = std::fs::read_link("/proc/self/exe").ok()?;
    let rule = Rule::find(&table, &place)?.located(std::env::var_os("PATH"));
    let args: Vec<OsString> = args.collect();
    let refusal = match rule.what {
        b"block" => Some(guards::blocked(&Path::new(&name).file_name().unwrap_or(&name).to_string_lossy())),
        b"@git" => guards::git(&args, &facts(&rule.real)).message(),
        _ => None,
    };
    if let Some(message) = refusal {
        output::say(&message);
        return Some(ExitCode::from(REFUSED));
    }
    Some(rule.execute(&name, &args))
}

/// One line of the table.
struct Rule<'a> {
    real: PathBuf,
    what: &'a [u8],
}

impl<'a> Rule<'a> {
    fn find(table: &'a [u8], place: &Path) -> Option<Rule<'a>> {
        table.split(|b| *b == b'\n').find_map(|line| {
            let mut fields = line.split(|b| *b == b'\t');
            let (target, real, what) = (fields.next()?, fields.next()?, fields.next()?);
            (target == place.as_os_str().as_bytes())
                .then(|| Rule { real: PathBuf::from(OsStr::from_bytes(real)), what })
        })
    }

    /// A name without a slash is the first of `PATH` that is not a guard; left as it is when there is none.
    fn located(mut self, path: Option<OsString>) -> Rule<'a> {
        if !self.real.as_os_str().as_bytes().contains(&b'/') {
            let dirs = path.iter().flat_map(std::env::split_paths).filter(|dir| dir != Path::new(GUARDS_DIR));
            let found = dirs.map(|dir| dir.join(&self.real)).find(|program| program.is_file());
            // With a slash, so that it is not looked up again, which would lead back here.
            self.real = found.unwrap_or_else(|| Path::new("/nonexistent").join(&self.real));
        }
        self
    }

    /// Becomes the real program, or the wrapper that finds it in `$RINGFENCE_REAL`.
    fn execute(&self, name: &OsStr, args: &[OsString]) -> ExitCode {
        let mut command = if self.what.starts_with(b"/") {
            let mut command = Command::new(OsStr::from_bytes(self.what));
            command.env("RINGFENCE_REAL", &self.real);
            command
        } else {
            Command::new(&self.real)
        };
        let error = command.arg0(name).args(args).exec();
        output::say(&format!("ringfence: cannot execute `{}`: {error}", command.get_program().display()));
        ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { REFUSED })
    }
}

/// Facts by asking the real git, in this directory and environment.
fn facts(real: &Path) -> impl GitFacts + '_ {
    let run = move |args: &[OsString]| {
        let output =
            Command::new(real).arg0("git").args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    AskGit { run, temp: ["/tmp", "/var/tmp"].map(PathBuf::from).to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_found_by_place() {
        let table = b"/usr/bin/git\t/run/ringfence/real/1/git\t@git\n/usr/bin/nc\t/run/ringfence/real/2/nc\tblock\n";
        let find = |place| Rule::find(table, Path::new(place)).map(|rule| (rule.real, rule.what.to_vec()));
        assert_eq!(find("/usr/bin/nc"), Some((PathBuf::from("/run/ringfence/real/2/nc"), b"block".to_vec())));
        assert_eq!(find("/usr/bin/gi"), None);
        assert_eq!(find(""), None);
    }
}
