//! A policy in words: what may be read, written, reached and spent. For a model, and for people who ask it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence::policy::limits::{Limits, format_duration, format_size};
use ringfence::policy::policy::{CommandRule, Narrowed, Network, Policy, Root};
use ringfence::policy::rules::{Access, FileRule, Pattern};
use schemars::JsonSchema;
use serde::Serialize;

use super::client_roots;
use super::live::MOST_BOXES;

/// What may be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Words {
    /// What may be read.
    pub read: Vec<String>,
    /// What may be written.
    pub write: Vec<String>,
    /// What is hidden, or cannot be changed, within that.
    pub except: Vec<String>,
    /// What can be reached.
    pub network: String,
    /// What may be spent.
    pub limits: Vec<String>,
    /// Programs that are blocked, or watched over.
    pub programs: Vec<String>,
}

/// Puts a policy into words; `at` is where the working directory is inside.
pub fn of(policy: &Policy, at: &Path, also: &[PathBuf]) -> Words {
    let read = match &policy.root {
        Root::Host => "the whole machine, except for what is hidden".to_owned(),
        Root::Programs => {
            "the programs of the machine (/usr, /bin, /lib, a small /etc), and nothing else of it".to_owned()
        }
        Root::Image(name) => format!("the files of the image {name}, and nothing of the machine"),
    };
    // The working directory is said already; what lies in it has another name inside.
    let named = |access: Access| {
        let rules = policy.rules.iter().filter(move |rule| rule.access == access).filter_map(own);
        let given = |path: &&Path| {
            let whole = |narrowed: &Narrowed| policy.root == Root::Host && narrowed.whole != **path;
            policy.narrowed.iter().all(|narrowed| whole(narrowed) || !narrowed.leaves_out(path))
        };
        let rules = rules.filter(given);
        rules.filter(|path| *path != policy.workdir() && !also.iter().any(|root| root == path)).map(|path| {
            let inside = client_roots::inside(path, policy.workdir(), at);
            inside.as_deref().unwrap_or(path).display().to_string()
        })
    };
    let read = [read].into_iter().chain(named(Access::Ro)).collect();
    let write = [format!("{} (the working directory)", at.display())]
        .into_iter()
        .chain(also.iter().map(|path| path.display().to_string()))
        .chain(named(Access::Rw))
        .chain(policy.devices.iter().map(|device| format!("the device {}", device.path.display())))
        .chain([format!("/tmp, {} of its own", format_size(policy.limits.private_space().0))]);
    let mut write: Vec<String> = write.collect();
    write.dedup();
    let network = match policy.network {
        Network::Open => "open: everything that the machine reaches".to_owned(),
        Network::Bridge => {
            "a private network: what the outside offers, not the machine and not other sandboxes".to_owned()
        }
        Network::Allowlist(_) => "only what an allow list names".to_owned(),
        Network::None => "none: nothing outside can be reached, not even the machine's own loopback".to_owned(),
    };
    Words {
        read,
        write,
        except: except(&policy.rules),
        network,
        limits: limits(&policy.limits),
        programs: programs(policy),
    }
}

/// A path that the owner named, as opposed to a preset's or a built-in one.
fn own(rule: &FileRule) -> Option<&Path> {
    let named = !rule.origin.is_ours();
    match &rule.pattern {
        Pattern::Exact(path) if named => Some(path),
        _ => None,
    }
}

/// What is hidden and what is protected, by who says so.
fn except(rules: &[FileRule]) -> Vec<String> {
    let mut groups: BTreeMap<(Access, &str), usize> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.access != Access::Rw) {
        *groups.entry((rule.access, rule.origin.place.as_ref())).or_default() += 1;
    }
    let line = |((access, place), count): ((Access, &str), usize)| {
        let what = if access == Access::Exclude { "hidden" } else { "read-only" };
        format!("{what}: {count} {} of {place}", if count == 1 { "path" } else { "paths" })
    };
    groups.into_iter().map(line).collect()
}

fn limits(limits: &Limits) -> Vec<String> {
    let time =
        limits.timeout.map(|time| format!("{} for a command that asks for no other time", format_duration(time)));
    let ceiling = limits.timeout_ceiling.map(|time| format!("{} for a command at most", format_duration(time)));
    [
        limits.memory.map(|size| format!("{} of memory", format_size(size))),
        limits.cpus.map(|cpus| format!("{cpus} processors")),
        limits.pids.map(|count| format!("{count} processes at once")),
        limits.files.map(|count| format!("{count} open files in each process")),
        time,
        ceiling,
        limits.cpu_time.map(|time| format!("{} of processor time", format_duration(time))),
        Some(format!("{} of each output are kept", format_size(limits.output))),
        Some(format!("{MOST_BOXES} boxes of run_code and of skills at once, each with its own share of this")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn programs(policy: &Policy) -> Vec<String> {
    let line = |(name, rule): (&String, &CommandRule)| match rule {
        CommandRule::Block => format!("{name} is blocked"),
        CommandRule::Guard(_) => format!("{name} refuses what loses work"),
        CommandRule::Wrapper(_) => format!("{name} goes through the owner's wrapper"),
    };
    policy.commands.iter().map(line).collect()
}

impl Words {
    pub fn text(&self) -> String {
        let lists = [
            ("may be read", &self.read),
            ("may be written", &self.write),
            ("except", &self.except),
            ("may be spent", &self.limits),
            ("programs", &self.programs),
        ];
        let mut text = format!("network: {}\n", self.network);
        for (name, lines) in lists.into_iter().filter(|(_, lines)| !lines.is_empty()) {
            text.push_str(&format!("{name}:\n"));
            lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        }
        text
    }
}
