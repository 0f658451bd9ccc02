//! `ringfence explain`: what the box could do with a path or a host, and which rule decides.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ringfence::Sandbox;
use ringfence::policy::explain::{Decides, Explanation, Reach, explain as explain_path};
use ringfence::policy::policy::Network;
use ringfence::policy::presets::{PROGRAMS_PRESET, installs};
use ringfence::policy::rules::{FileRule, parse_path};
use ringfence::policy::tree::State;
use serde::Serialize;

use super::config::layer_name;
use crate::args::Explain;
use crate::failure::{Failure, Kind};
use crate::host;
use crate::output::{self, one_line};

/// An answer, for people and for programs.
#[derive(Debug, Serialize)]
struct Answer {
    what: String,
    /// Where a path stands inside, when elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    inside: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reach: Option<bool>,
    /// The answer in words.
    answer: &'static str,
    decided_by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<&'static str>,
    others: Vec<String>,
    /// What else could have been meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

pub fn explain(args: &Explain) -> Result<ExitCode, Failure> {
    let sandbox = host::look(&args.policy)?;
    let what = args.what.as_deref().unwrap_or(OsStr::new("."));
    let answer = match path(what, &sandbox)? {
        Some(path) => from_path(&explain_path(sandbox.policy(), sandbox.facts(), &path)?, &sandbox.facts().home),
        None => from_host(what, &sandbox),
    };
    if args.json {
        output::json(&answer)?;
    } else {
        output::data(&render(&answer))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The argument as a path of the host; `None` when it is the name of a host.
fn path(what: &OsStr, sandbox: &Sandbox) -> Result<Option<PathBuf>, Failure> {
    let workdir = sandbox.policy().workdir();
    let looks_like_path = what.as_bytes().contains(&b'/') && !what.as_bytes().windows(3).any(|w| w == b"://");
    let is_path = looks_like_path
        || what.as_bytes().starts_with(b"~")
        || what.as_bytes().starts_with(b".")
        || workdir.join(what).symlink_metadata().is_ok()
        // A name without a dot or a colon is a file that is not there yet, not a host.
        || (what != "localhost" && !what.as_bytes().iter().any(|b| matches!(b, b'.' | b':')));
    if !is_path {
        return Ok(None);
    }
    let Some(text) = what.to_str() else { return Ok(Some(workdir.join(what))) };
    parse_path(text, workdir, &sandbox.facts().home)
        .map(Some)
        .map_err(|error| Failure::new(Kind::Usage, error.to_string()))
}

fn from_path(found: &Explanation<'_>, home: &Path) -> Answer {
    let (read, write, answer) = match found.reach {
        Reach::Hidden => (false, false, "hidden: neither read nor written"),
        Reach::Read => (true, false, "can be read, not written"),
        Reach::Write => (true, true, "can be read and written"),
        Reach::Private => (false, false, "the sandbox has its own; what the host has there is not seen"),
        Reach::Blocked => (false, false, "is not there, and cannot be made"),
    };
    let (decided_by, layer) = match &found.decides {
        Decides::Rule { at, node } => {
            let absent = if matches!(node.state, State::Absent(_)) { ", which does not exist" } else { "" };
            (
                format!("{} `{}`{absent} ({})", node.access, at.display(), node.origin),
                Some(layer_name(node.origin.layer)),
            )
        }
        Decides::DockerRule => ("the rule for container sockets (--docker)".to_owned(), None),
        Decides::Root => ("what the root of the sandbox is made of".to_owned(), None),
    };
    let rule = |rule: &&FileRule| format!("{} `{}` ({})", rule.access, rule.pattern, rule.origin);
    Answer {
        what: found.path.display().to_string(),
        inside: (found.inside != found.path).then(|| found.inside.display().to_string()),
        read: Some(read),
        write: Some(write),
        reach: None,
        answer,
        decided_by,
        layer,
        others: found.others.iter().map(rule).collect(),
        note: (!write && installs(home, &found.path))
            .then(|| format!("`--preset {PROGRAMS_PRESET}` makes it writable")),
    }
}

fn from_host(host: &OsStr, sandbox: &Sandbox) -> Answer {
    let local = matches!(host.as_bytes(), b"localhost" | b"127.0.0.1" | b"::1" | b"[::1]");
    let (reach, answer) = match sandbox.policy().network {
        Network::Bridge if local => (false, "is the sandbox's own loopback, not the host's"),
        Network::Bridge => (true, "can be reached, unless it is a service of this host or of another sandbox"),
        Network::Open => (true, "can be reached: the network is the host's"),
        Network::Allowlist(_) => (false, "cannot be reached: no engine enforces an allow list yet"),
        Network::None if local => (false, "is the sandbox's own loopback, not the host's"),
        Network::None => (false, "cannot be reached: there is no network"),
    };
    let origin = sandbox.resolved().values().into_iter().find(|value| value.key == "network");
    let what = Path::new(host).display().to_string();
    // `README.md` is a name in Moldova too.
    let file = !local && what.chars().all(|c| c != ':') && what.parse::<std::net::IpAddr>().is_err();
    Answer {
        note: file.then(|| format!("taken for a host: there is no such file; for a path write ./{what}")),
        what,
        inside: None,
        read: None,
        write: None,
        reach: Some(reach),
        answer,
        decided_by: origin.as_ref().map_or_else(String::new, |v| format!("network = {} ({})", v.text, v.origin)),
        layer: origin.map(|value| layer_name(value.origin.layer)),
        others: Vec::new(),
    }
}

fn render(answer: &Answer) -> String {
    // A name may be chosen in a sandbox.
    let (what, decided_by) = (one_line(&answer.what), one_line(&answer.decided_by));
    let mut text = format!("{what}\n  {}\n  decided by: {decided_by}\n", answer.answer);
    if let Some(inside) = &answer.inside {
        text.push_str(&format!("  inside: {}\n", one_line(inside)));
    }
    for other in &answer.others {
        text.push_str(&format!("  also named by: {}\n", one_line(other)));
    }
    if let Some(note) = &answer.note {
        text.push_str(&format!("  note: {}\n", one_line(note)));
    }
    text
}
