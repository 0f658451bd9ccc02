//! What the policy refused, told by path and rule, when the policy asks for it (`trace_denials`).
//!
//! The filter reports every open, and this compares it with the rules. It is for diagnosis: each call goes on as if nobody
//! had looked, and what is read of a program belongs to the program. A program can thus make false entries here, and it
//! can hide some (a path changed after it was read); it cannot gain anything by either.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use ringfence_linux::notify::{self, Call};
pub use ringfence_policy::outcome::{Act, Denial, Grant};
use ringfence_policy::policy::{Network, Policy};
use ringfence_policy::presets::{self, PROGRAMS_PRESET};
use ringfence_policy::rules::{Access, Kind, normalise};
use ringfence_policy::tree::{Node, PRIVATE, State, Tree};
use rustix::io::Errno;

/// Distinct denials that are kept; a program cannot make the list grow past this.
const MOST: usize = 100;

/// Listens to the calls of one box.
#[derive(Debug)]
pub struct Tracer {
    listener: OwnedFd,
    tree: Tree,
    network: Network,
    workdir: PathBuf,
    workdir_at: Option<PathBuf>,
    home: PathBuf,
    found: Vec<Denial>,
}

impl Tracer {
    /// Of a sandbox whose filter reports calls to this listener.
    pub fn new(listener: OwnedFd, tree: Tree, policy: &Policy, home: &Path) -> Self {
        Self {
            listener,
            tree,
            network: policy.network.clone(),
            workdir: policy.workdir().to_path_buf(),
            workdir_at: policy.workdir_at.clone(),
            home: home.to_path_buf(),
            found: Vec::new(),
        }
    }

    /// Readable when a call waits to go on.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Looks at the next call and lets it go on.
    pub fn look(&mut self) -> Result<(), Errno> {
        let Some(call) = notify::next(self.listener.as_fd())? else { return Ok(()) };
        let denial = match call {
            Call::Path { act, path } => self.judge(tried(act), &path),
            Call::Connect(address) => self.judge_address(address),
        };
        if self.found.len() < MOST
            && let Some(denial) = denial
            && !self.found.contains(&denial)
        {
            self.found.push(denial);
        }
        Ok(())
    }

    /// What was refused, in the order in which it was first tried.
    pub(crate) fn into_denials(self) -> Vec<Denial> {
        self.found
    }

    fn judge(&self, act: Act, path: &Path) -> Option<Denial> {
        let inside = normalise(path);
        let path = self.outside(&inside);
        let real = std::fs::canonicalize(&path).or_else(|_| {
            let parent = path.parent().unwrap_or(Path::new("/"));
            std::fs::canonicalize(parent).map(|p| p.join(path.file_name().unwrap_or_default()))
        });
        let real = real.unwrap_or(path);
        let node = self.tree.decide(&real);
        // A box for code works in private space, where the working directory would be if a rule showed it.
        let private = PRIVATE.iter().any(|p| real.starts_with(p) || inside.starts_with(p)) && node.is_none();
        let (rule, access) = match (node.map(|(_, n)| (n.access, &n.origin)), act) {
            _ if private => return None,
            (Some((Access::Exclude, origin)), _) => (format!("exclude of {origin}"), Access::Ro),
            (Some((Access::Ro, origin)), Act::Write) => (format!("ro of {origin}"), Access::Rw),
            (None, Act::Write) => ("everything outside the writable places is read-only".to_owned(), Access::Rw),
            _ => return None,
        };
        // What the caller could not do outside either was not refused by the policy.
        let right = match act {
            Act::Write => rustix::fs::Access::WRITE_OK,
            Act::Execute => rustix::fs::Access::EXEC_OK,
            Act::Read | Act::Connect => rustix::fs::Access::READ_OK,
        };
        let there = if real.exists() { real.as_path() } else { real.parent()? };
        if (!real.exists() && act != Act::Write) || rustix::fs::access(there, right).is_err() {
            return None;
        }
        let object = printable(&real);
        let preset = node.and_then(|(_, n)| n.origin.preset());
        let by_rule = |path: &Path, missing| Grant::Path { access, path: path.to_path_buf(), missing };
        let grant = match (preset, node) {
            _ if access == Access::Rw && presets::installs(&self.home, &real) => {
                Grant::AddedPreset { with: PROGRAMS_PRESET.to_owned() }
            }
            (Some(preset), Some((at, node))) if self.needs_preset(at, node) => {
                Grant::Preset { without: preset.to_owned() }
            }
            _ if real.exists() => by_rule(&real, false),
            // All of home, or of the disk, for the sake of one name: rather the name.
            (_, Some((at, _))) if at == there => by_rule(&real, true),
            (_, None) if there == Path::new("/") => by_rule(&real, true),
            _ => by_rule(there, false),
        };
        Some(Denial { object, act, rule, grant })
    }

    /// Whether no file rule can allow it: what is not there cannot be named, and a stand-in is there only while the box runs; and
    /// a file that is named cannot be replaced, as git replaces its configuration.
    fn needs_preset(&self, at: &Path, node: &Node) -> bool {
        let in_writable = self.tree.above(at).is_some_and(|(_, above)| above.access == Access::Rw);
        let is_empty = |dir: &Path| std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
        let stand_in = matches!(node.state, State::Absent(_)) || node.kind == Kind::File || is_empty(at);
        node.access == Access::Ro && in_writable && node.exact && stand_in
    }

    fn judge_address(&self, address: SocketAddr) -> Option<Denial> {
        // Loopback is the box's own, and port 0 is how a library asks for a route without connecting.
        if self.network == Network::Open || address.ip().is_loopback() || address.port() == 0 {
            return None;
        }
        Some(Denial {
            object: address.to_string(),
            act: Act::Connect,
            rule: "the network is off".to_owned(),
            grant: Grant::Network { network: Network::Open },
        })
    }

    /// A path inside as a path of the host.
    fn outside(&self, path: &Path) -> PathBuf {
        match self.workdir_at.as_ref().and_then(|at| path.strip_prefix(at).ok()) {
            Some(below) => self.workdir.join(below),
            None => path.to_path_buf(),
        }
    }
}

fn tried(act: notify::Act) -> Act {
    match act {
        notify::Act::Read => Act::Read,
        notify::Act::Write => Act::Write,
        notify::Act::Execute => Act::Execute,
    }
}

/// A path that a program chose, for a terminal: control characters cannot move its cursor or forge a line.
fn printable(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        if c.is_control() { text.extend(c.escape_unicode()) } else { text.push(c) }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_policy::facts::Facts;
    use ringfence_policy::{Inputs, Layer, resolve};

    /// A tracer for a project in a home with a key in it; its listener is never read.
    fn tracer(flags: impl FnOnce(&mut Layer)) -> (tempfile::TempDir, PathBuf, Tracer) {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap().join("home");
        let project = home.join("p");
        let files = [(".ssh/id", "key"), ("p/file", ""), ("open", ""), ("p/.git/config", ""), ("p/.git/hooks/x", "")];
        for (name, text) in
            files.into_iter().chain([("p/.git/HEAD", ""), ("p/.git/objects/x", ""), ("p/.git/refs/x", "")])
        {
            std::fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
            std::fs::write(home.join(name), text).unwrap();
        }
        std::fs::create_dir_all(home.join(".local/bin")).unwrap();
        std::fs::create_dir(home.join(".config")).unwrap();
        let mut layer = Layer::flags();
        flags(&mut layer);
        let policy = resolve(Inputs::new(project, home.clone(), layer)).unwrap().policy;
        let tree = Tree::new(&policy, &Facts { home: home.clone(), uid: 1, ..Facts::default() }).unwrap();
        let listener = std::fs::File::open("/dev/null").unwrap().into();
        let tracer = Tracer::new(listener, tree, &policy, &home);
        (dir, home, tracer)
    }

    #[test]
    fn what_was_refused_names_the_rule_and_the_grant() {
        let (_dir, home, tracer) = tracer(|_| {});
        let judge = |act, name: &str| tracer.judge(act, &home.join(name)).map(|d| (d.act, d.rule, d.grant));
        let path = |access, name: &str| Grant::Path { access, path: home.join(name), missing: false };
        let without = |name: &str| Grant::Preset { without: name.to_owned() };
        let key = judge(Act::Read, ".ssh/id").unwrap();
        assert_eq!(key, (Act::Read, "exclude of preset @secrets".to_owned(), path(Access::Ro, ".ssh/id")));
        let open = judge(Act::Write, "open").unwrap();
        assert_eq!(open, (Act::Write, "ro of preset @base".to_owned(), path(Access::Rw, "open")));
        // What is not there yet cannot be named, and all of home is too much.
        let new = Grant::Path { access: Access::Rw, path: home.join("new"), missing: true };
        assert_eq!(judge(Act::Write, "new").unwrap().2, new);
        assert_eq!(judge(Act::Write, ".config/new").unwrap().2, path(Access::Rw, ".config"));
        let programs = Grant::AddedPreset { with: "@programs".to_owned() };
        assert_eq!(judge(Act::Write, ".local/bin/tool").unwrap().2, programs);
        for name in ["p/.mcp.json", "p/.vscode"] {
            assert_eq!(judge(Act::Write, name).unwrap().2, without("@dotfiles"), "{name}");
        }
        // As a stand-in is while the box runs. And git replaces its configuration, which a mount refuses.
        std::fs::create_dir(home.join("p/.vscode")).unwrap();
        assert_eq!(judge(Act::Write, "p/.vscode/x").unwrap().2, without("@dotfiles"));
        assert_eq!(judge(Act::Write, "p/.git/config").unwrap().2, without("@git"));
        assert_eq!(judge(Act::Write, "p/.git/hooks/x").unwrap().2, path(Access::Rw, "p/.git/hooks/x"));
        for (act, name) in [(Act::Read, "open"), (Act::Write, "p/file"), (Act::Read, "none"), (Act::Read, "p/../open")]
        {
            assert_eq!(judge(act, name), None, "{name}");
        }
    }

    #[test]
    fn connections_are_refused_without_a_network_only() {
        let addresses = ["192.0.2.1:443", "127.0.0.1:80", "192.0.2.1:0", "[::1]:80", "[2001:db8::1]:443"];
        let refused = |tracer: &Tracer| -> Vec<bool> {
            addresses.iter().map(|a| tracer.judge_address(a.parse().unwrap()).is_some()).collect()
        };
        let (_dir, _, open) = tracer(|flags| flags.network(true));
        assert_eq!(refused(&open), [false; 5]);
        let (_dir, _, closed) = tracer(|flags| flags.network(false));
        assert_eq!(refused(&closed), [true, false, false, false, true]);
    }

    #[test]
    fn a_path_cannot_write_to_the_terminal() {
        assert_eq!(printable(Path::new("/a\x1b[2J\nb")), "/a\\u{1b}[2J\\u{a}b");
    }
}
