//! Why a path can be read or written, or not.

use std::path::Path;

use crate::policy::{Policy, Root};
use crate::rules::{Access, FileRule, candidates};

/// What the box can do with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Not there, or an empty, unreadable stand-in.
    Hidden,
    Read,
    Write,
    /// The box has something of its own there, not the host's.
    Private,
}

/// What decides for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation<'a> {
    pub reach: Reach,
    /// The rule that decides; `None` where what the root is made of decides.
    pub rule: Option<&'a FileRule>,
    /// Rules that also name the path or a directory above it, in the order in which they would decide.
    pub others: Vec<&'a FileRule>,
}

/// Places of which every box has its own.
const PRIVATE: &[&str] = &["/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/proc"];

/// What an empty root has of the host's.
const PROGRAMS: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"];

/// Explains an absolute, normalised path on the host, symbolic links resolved.
pub fn explain<'a>(policy: &'a Policy, path: &Path) -> Explanation<'a> {
    let mut all = candidates(&policy.rules, path).into_iter();
    let private = PRIVATE.iter().find(|place| path.starts_with(place)).map(|place| place.len());
    let decides = all.next();
    let near = decides.and_then(|rule| rule.nearest(path)).unwrap_or(0);
    let others = all.collect();
    if private.is_some_and(|length| length > near) {
        return Explanation { reach: Reach::Private, rule: None, others: decides.into_iter().chain(others).collect() };
    }
    let reach = match (decides.map(|rule| rule.access), policy.root) {
        (Some(Access::Rw), _) => Reach::Write,
        (Some(Access::Ro), _) | (None, Root::Host) => Reach::Read,
        (Some(Access::Exclude), _) => Reach::Hidden,
        (None, Root::Programs) if PROGRAMS.iter().any(|place| path.starts_with(place)) => Reach::Read,
        (None, Root::Programs) => Reach::Hidden,
    };
    Explanation { reach, rule: decides, others }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layer;
    use crate::layers::{Inputs, resolve};

    #[test]
    fn which_rule_decides() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let workdir = home.join("p");
        std::fs::create_dir(&workdir).unwrap();
        let mut flags = Layer::flags();
        flags.ro("data");
        let policy = resolve(Inputs::new(workdir.clone(), home.clone(), flags)).unwrap().policy;
        let ask = |path: &Path| {
            let found = explain(&policy, path);
            (found.reach, found.rule.map(|rule| rule.origin.place.clone()))
        };
        assert_eq!(ask(&workdir.join("x")), (Reach::Write, Some("preset @base".into())));
        assert_eq!(ask(&workdir.join("data/x")), (Reach::Read, Some("--ro".into())));
        assert_eq!(ask(&home.join(".ssh/id")), (Reach::Hidden, Some("preset @secrets".into())));
        assert_eq!(ask(Path::new("/etc/passwd")), (Reach::Read, None));
        assert_eq!(ask(Path::new("/proc/1")), (Reach::Private, None));
        let others = explain(&policy, &workdir.join("data")).others;
        assert_eq!(others.iter().map(|r| r.origin.place.as_str()).collect::<Vec<_>>(), ["preset @base"; 2]);
    }
}
