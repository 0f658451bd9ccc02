//! Why a path can be read or written, or not. Reads what [`tree`](crate::tree) decided, and decides nothing itself.

use std::fs;
use std::path::{Path, PathBuf};

use crate::facts::Facts;
use crate::look::Lookup;
use crate::plan::{self, ETC, HOME, PROGRAMS};
use crate::policy::{Network, Policy, Root};
use crate::rules::{Access, FileRule, Kind, candidates};
use crate::tree::{Node, PRIVATE, State, Tree, TreeError, real};

/// What the box can do with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Not there, or an empty, unreadable stand-in.
    Hidden,
    /// It can be read.
    Read,
    /// It can be read and written.
    Write,
    /// The box has something of its own there, not the host's.
    Private,
    /// Not there, and cannot be made.
    Blocked,
}

/// What decides for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation<'a> {
    /// The path with symbolic links resolved.
    pub path: PathBuf,
    /// Where it stands inside.
    pub inside: PathBuf,
    /// What the sandbox can do there.
    pub reach: Reach,
    /// Why.
    pub decides: Decides,
    /// Rules that also name the path or a directory above it, in the order in which they would decide.
    pub others: Vec<&'a FileRule>,
}

/// What has the last word on a path.
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decides {
    /// The rule that names this path, or a directory above it.
    Rule { at: PathBuf, node: Node },
    /// Container sockets are masked last, whatever the rules say.
    DockerRule,
    /// What the root of the box is made of.
    Root,
}

/// Explains an absolute path on the host.
pub fn explain<'a>(policy: &'a Policy, facts: &Facts, path: &Path) -> Result<Explanation<'a>, TreeError> {
    let tree = Tree::new(policy, facts)?;
    // A path inside is as good: what stands there is the working directory's.
    let of_workdir = policy.workdir_at.as_ref().and_then(|at| path.strip_prefix(at).ok());
    let shown = |below: &Path| tree.decide(&policy.workdir().join(below)).is_some();
    let outside = of_workdir.filter(|below| shown(below)).map(|below| policy.workdir().join(below));
    let path = real(&Lookup::default(), outside.as_deref().unwrap_or(path));
    let inside = match (&policy.workdir_at, path.strip_prefix(policy.workdir())) {
        (Some(at), Ok(below)) if below.as_os_str().is_empty() => at.clone(),
        (Some(at), Ok(below)) => at.join(below),
        _ => path.clone(),
    };
    let mut others = candidates(&policy.rules, &path);
    let (reach, decides) = would_hide(&others, &tree, &path).unwrap_or_else(|| decide(policy, facts, &tree, &path));
    if let Decides::Rule { node, .. } = &decides
        && let Some(own) = others.iter().position(|rule| rule.origin == node.origin && rule.access == node.access)
    {
        others.remove(own);
    }
    Ok(Explanation { path, inside, reach, decides, others })
}

/// A rule that hides what is not there at the moment: the tree leaves it out, but it holds as soon as a box starts.
fn would_hide(rules: &[&FileRule], tree: &Tree, path: &Path) -> Option<(Reach, Decides)> {
    let rule = rules.first().filter(|rule| rule.access == Access::Exclude)?;
    let near = rule.nearest(path)?;
    let at = path.ancestors().find(|above| above.as_os_str().len() == near)?;
    let deeper = tree.decide(path).is_some_and(|(decided, _)| decided.starts_with(at));
    if deeper || fs::symlink_metadata(at).is_ok() {
        return None;
    }
    let state = State::Absent("");
    let node = Node::hidden(Kind::File, rule.origin.clone(), state);
    Some((Reach::Hidden, Decides::Rule { at: at.to_path_buf(), node }))
}

fn decide(policy: &Policy, facts: &Facts, tree: &Tree, path: &Path) -> (Reach, Decides) {
    if plan::container_sockets(facts).iter().any(|socket| socket == path) {
        return (if policy.docker { Reach::Write } else { Reach::Hidden }, Decides::DockerRule);
    }
    let own: &[&str] = if policy.root == Root::Host { &[] } else { &[HOME] };
    let private = PRIVATE.iter().chain(own).map(Path::new).find(|place| path.starts_with(place));
    let found = tree.decide(path).filter(|(at, _)| private.is_none_or(|place| at.starts_with(place)));
    if let Some((at, node)) = found {
        let reach = match (node.access, &node.state) {
            (Access::Rw, _) => Reach::Write,
            (Access::Exclude, _) => Reach::Hidden,
            (Access::Ro, State::Absent(_)) => Reach::Blocked,
            (Access::Ro, _) => Reach::Read,
        };
        return (reach, Decides::Rule { at: at.to_path_buf(), node: node.clone() });
    }
    let resolver = policy.network != Network::None && path == real(&Lookup::default(), Path::new("/etc/resolv.conf"));
    let shown = || resolver || PROGRAMS.iter().chain(&ETC).any(|place| path.starts_with(place));
    let reach = match &policy.root {
        _ if private.is_some() => Reach::Private,
        Root::Host => Reach::Read,
        Root::Programs if plan::OWN_TEXTS.iter().any(|own| path == Path::new(own)) => Reach::Private,
        Root::Programs if shown() => Reach::Read,
        Root::Programs | Root::Image(_) => Reach::Hidden,
    };
    (reach, Decides::Root)
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
        for dir in ["p/data", ".ssh"] {
            fs::create_dir_all(home.join(dir)).unwrap();
        }
        std::os::unix::fs::symlink("data", workdir.join("link")).unwrap();
        let mut flags = Layer::flags();
        flags.ro("data");
        let facts = Facts { home: home.clone(), ..Facts::default() };
        let policy = resolve(Inputs::new(workdir.clone(), home.clone(), flags)).unwrap().policy;
        let ask = |path: &Path| {
            let found = explain(&policy, &facts, path).unwrap();
            let origin = match found.decides {
                Decides::Rule { node, .. } => Some(node.origin.place),
                Decides::DockerRule | Decides::Root => None,
            };
            (found.reach, origin)
        };
        assert_eq!(ask(&workdir.join("x")), (Reach::Write, Some("preset @base".into())));
        assert_eq!(ask(&workdir.join("data/x")), (Reach::Read, Some("--ro".into())));
        assert_eq!(ask(&workdir.join("link/x")), (Reach::Read, Some("--ro".into())));
        assert_eq!(ask(&home.join(".ssh/id")), (Reach::Hidden, Some("preset @secrets".into())));
        assert_eq!(ask(&home.join(".gnupg/x")), (Reach::Hidden, Some("preset @secrets".into())));
        assert_eq!(ask(&workdir.join(".mcp.json")), (Reach::Blocked, Some("preset @dotfiles".into())));
        assert_eq!(ask(Path::new("/etc/passwd")), (Reach::Read, None));
        assert_eq!(ask(Path::new("/proc/1")), (Reach::Private, None));
        let others = explain(&policy, &facts, &workdir.join("data")).unwrap().others;
        assert_eq!(others.iter().map(|r| r.origin.place.as_ref()).collect::<Vec<_>>(), ["preset @base"; 2]);
    }
}
