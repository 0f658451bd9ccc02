//! This host as the command line means it, and what the library has to tell people.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Mutex;

use ringfence::engines::Progress;
use ringfence::host::{Notice, Unwritable};
use ringfence::{Host, Sandbox};

use crate::args::PolicyFlags;
use crate::failure::{Failure, Kind};
use crate::output;

/// This host, with this program as the supervisor of sessions.
pub fn here() -> Result<Host, Failure> {
    let bar = Mutex::new(Bar::default());
    Ok(Host::here()?.program("/proc/self/exe").notices(move |notice| tell(notice, &bar)))
}

/// The sandbox that flags mean here and now, to be looked at.
pub fn look(flags: &PolicyFlags) -> Result<Sandbox, Failure> {
    Ok(here()?.resolve(&flags.request()?)?)
}

/// The same for what starts something. That there is no policy for a command is recorded.
pub fn sandbox(flags: &PolicyFlags, command: &[std::ffi::OsString]) -> Result<Sandbox, Failure> {
    let host = here()?;
    let made = flags.request().map_err(Failure::from).and_then(|request| {
        host.prepare()?;
        Ok(host.resolve(&request)?)
    });
    made.map_err(|failure| {
        let record = host.refused(command, flags.cwd.as_deref(), &failure.message);
        failure.recorded(record)
    })
}

/// What the user should know before anything starts.
pub fn warn(sandbox: &Sandbox, verbose: bool) {
    for warning in &sandbox.resolved().warnings {
        output::say(&format!("warning: {}", output::one_line(&warning.to_string())));
    }
    if verbose {
        for loosening in &sandbox.resolved().loosened {
            output::say(&format!("ringfence: trusted: {}", output::one_line(&loosening.to_string())));
        }
    }
}

fn tell(notice: Notice<'_>, bar: &Mutex<Bar>) {
    let warn = |text: String| output::say(&Failure::new(Kind::Output, format!("warning: {text}")).message);
    match notice {
        Notice::NotRecorded(error) => warn(format!("this run is not recorded: {error}")),
        Notice::EndNotRecorded(error) => warn(format!("the end of this run is not recorded: {error}")),
        Notice::Installing => output::say("ringfence: installing the requirements, in a sandbox of their own"),
        Notice::Pull(progress) => pull(progress, bar),
        Notice::BrokenLines(1) => warn("one line of the journal could not be understood".to_owned()),
        Notice::BrokenLines(lines) => warn(format!("{lines} lines of the journal could not be understood")),
        Notice::RecordsUnwritable { trouble, why } => {
            output::say(&format!("warning: the records are shown as they are, and cannot be written: {trouble}"));
            let shown = |path: &std::path::Path| output::one_line(&path.to_string_lossy());
            match why {
                Some(Unwritable::Forbidden(place)) => output::say(&format!(
                    "hint: `{}` cannot be written to by you; runs are not recorded until it can",
                    shown(&place)
                )),
                Some(Unwritable::Full(place)) => output::say(&format!(
                    "hint: the disk is full at `{}`; runs are not recorded until there is room",
                    shown(&place)
                )),
                None => {}
            }
        }
        Notice::LatestNotShown(error) => warn(format!("the latest runs are not shown: {error}")),
        Notice::Changed(lines) => lines.iter().for_each(|line| warn(output::one_line(line))),
        Notice::Weakened(loss) => output::say(&weakened(&loss.reason)),
        Notice::StartedAgain(name) => output::say(&format!(
            "ringfence: {} had ended and is started again, under the policy that it was made with",
            output::one_line(name)
        )),
        Notice::NoSkills(why) => warn(format!("there are no skills: {why}")),
        _ => {}
    }
}

/// A bar for a person, who waits for an image.
fn pull(progress: Option<Progress>, bar: &Mutex<Bar>) {
    let Ok(mut bar) = bar.lock() else { return };
    match progress {
        Some(progress) if std::io::stderr().is_terminal() => {
            if let Some(line) = bar.next(progress) {
                output::prompt(&format!("\r\x1b[K{}", output::printable(&line)));
            }
        }
        Some(_) => {}
        None => {
            if !std::mem::take(&mut *bar).shown.is_empty() {
                output::prompt("\r\x1b[K");
            }
        }
    }
}

/// How far a pull has come, over all layers.
#[derive(Default)]
struct Bar {
    /// Bytes so far and of how many, by layer.
    layers: BTreeMap<String, (u64, u64)>,
    shown: String,
}

impl Bar {
    /// What is to be shown now, when that is something else.
    fn next(&mut self, progress: Progress) -> Option<String> {
        const CELLS: u64 = 24;
        if let (Some(layer), Some((done, all))) = (progress.layer, progress.bytes) {
            let of = self.layers.entry(layer).or_default();
            // After it was fetched it is unpacked, which counts from the beginning.
            *of = (of.0.max(done), all);
        }
        let sum = self.layers.values().fold((0u64, 0u64), |sum, of| (sum.0 + of.0.min(of.1), sum.1 + of.1));
        let part = |of: u64| (sum.0 * of).checked_div(sum.1).unwrap_or(0);
        let (full, free) = (part(CELLS), CELLS - part(CELLS));
        let bar = format!("[{}{}] {:>3} %", "#".repeat(full as usize), "-".repeat(free as usize), part(100));
        let line = format!("{bar} {}", progress.status);
        (line != self.shown).then(|| {
            self.shown.clone_from(&line);
            line
        })
    }
}

/// A guarantee was lost while a command ran.
pub fn weakened(reason: &str) -> String {
    format!("ringfence: warning: {}", output::one_line(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_over_all_layers() {
        let mut bar = Bar::default();
        let mut say = |layer: &str, status: &str, bytes| {
            bar.next(Progress { layer: Some(layer.to_owned()), status: status.to_owned(), bytes })
        };
        assert_eq!(say("a", "Waiting", None).unwrap(), "[------------------------]   0 % Waiting");
        assert_eq!(say("a", "Downloading", Some((50, 100))).unwrap(), "[############------------]  50 % Downloading");
        assert_eq!(say("b", "Downloading", Some((0, 100))).unwrap(), "[######------------------]  25 % Downloading");
        assert_eq!(say("b", "Downloading", Some((0, 100))), None);
        say("a", "Downloading", Some((100, 100)));
        assert_eq!(say("a", "Extracting", Some((1, 100))).unwrap(), "[############------------]  50 % Extracting");
    }
}
