//! What a session was made with, as one hash: two policies have the same one when files, flags and trust say the same.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use ringfence_policy::Policy;
use ringfence_policy::canonical::{self, CanonicalError};
use ringfence_policy::facts::Facts;
use ringfence_policy::policy::{EnvPolicy, Root, Shown, Workspace};
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::service::ServiceSettings;

/// The variable that names packages for Python, before what the user set.
const PYTHONPATH: &str = "PYTHONPATH";

/// The hash of a policy, of the home that it was made for, and of the engine that was asked for.
///
/// The rules that a preset finds are left out. They depend on links, branches and worktrees, which change while a
/// session works. Which presets hold is compared. Packages are left out too: [`Info`](super::Info) names them.
pub(super) fn of(
    policy: &Policy,
    service: &ServiceSettings,
    facts: &Facts,
    choice: &EngineChoice,
) -> Result<String, CanonicalError> {
    let mut policy = policy.clone();
    let presets = policy.rules.iter().filter(|rule| rule.origin.preset().is_some());
    let presets: BTreeSet<_> = presets.map(|rule| (rule.origin.layer, rule.origin.place.clone())).collect();
    // A sandbox that sees nothing of the working directory is the same one wherever it was made.
    let Workspace::HostDirectory(workdir) = &policy.workspace;
    if policy.root != Root::Host && policy.rules.iter().all(|rule| rule.nearest(workdir).is_none()) {
        policy.workspace = Workspace::HostDirectory("/".into());
    }
    policy.narrowed.retain(|narrowed| !narrowed.parts.contains(&narrowed.whole));
    policy.rules.retain(|rule| !rule.origin.is_ours());
    // What the rules of presets come to in this directory as it is now.
    policy.weakened.clear();
    // Not the line that it stands in, which moves with every comment above it.
    policy.rules.iter_mut().for_each(|rule| rule.origin.place = "".into());
    leave_packages_out(&mut policy.env, &std::mem::take(&mut policy.shown));
    // No session uses the other two.
    let ServiceSettings { records, skill_verdict: _, warm: _, idle, life } = service;
    let home = facts.home.as_os_str().as_bytes();
    // Another directory may have the name of the one that a session works on.
    let directory = std::fs::metadata(policy.workdir()).ok().map(|data| format!("{}:{}", data.dev(), data.ino()));
    canonical::hash(&(choice.name(), home, &policy, directory, presets, records, idle, life))
}

/// What packages put before the user's own.
fn leave_packages_out(env: &mut EnvPolicy, packages: &[Shown]) {
    for Shown { target, .. } in packages {
        let all = env.set.get(PYTHONPATH).map(|all| all.as_bytes());
        let rest = all.and_then(|all| all.strip_prefix(target.as_os_str().as_bytes()));
        let Some(rest) = rest.map(|rest| OsStr::from_bytes(rest.strip_prefix(b":").unwrap_or(rest)).to_owned()) else {
            continue;
        };
        env.set.remove(PYTHONPATH);
        if !rest.is_empty() {
            env.set.insert(PYTHONPATH.to_owned(), rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ringfence_policy::rules::LayerKind;
    use ringfence_policy::{Inputs, Layer, config, resolve};

    use super::*;

    /// The hash in a project for these flags, and for these texts of the user's and of the project's file.
    fn hash(dir: &Path, flags: impl FnOnce(&mut Layer), global: &str, project: &str) -> String {
        let mut layer = Layer::flags();
        layer.profile("shell");
        flags(&mut layer);
        let facts = Facts { home: dir.to_path_buf(), ..Facts::default() };
        let inputs = Inputs {
            global: Some(config::parse(global, "/c/config.toml", LayerKind::Global).unwrap()),
            project: Some(config::parse(project, "/p/.ringfence.toml", LayerKind::Project).unwrap()),
            project_trusted: true,
            ..Inputs::new(dir.join("p"), dir.to_path_buf(), layer)
        };
        let resolved = resolve(inputs).unwrap();
        of(&resolved.policy, &resolved.service, &facts, &EngineChoice::Auto).unwrap()
    }

    #[test]
    fn what_files_flags_and_trust_say_counts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("p")).unwrap();
        let plain = || hash(&dir, |_| {}, "", "");
        assert_eq!(plain(), plain());
        let others = [
            hash(&dir, |f| f.exclude("secret"), "", ""),
            hash(&dir, |f| f.exclude("other"), "", ""),
            hash(&dir, |f| f.ro("secret"), "", ""),
            hash(&dir, |f| f.rw("secret"), "", ""),
            hash(&dir, |f| f.exclude("secret*"), "", ""),
            hash(&dir, |_| {}, "[files]\nexclude = [\"secret\"]", ""),
            hash(&dir, |_| {}, "", "[files]\nexclude = [\"secret\"]"),
            hash(&dir, |_| {}, "presets = [\"@env-files\"]", ""),
            hash(&dir, |_| {}, "presets = [\"!@dotfiles\"]", ""),
            hash(&dir, |_| {}, "network = \"open\"", ""),
            hash(&dir, |_| {}, "[limits]\nmemory = \"64m\"", ""),
            hash(&dir, |_| {}, "[limits]\nidle = \"2h\"", ""),
            hash(&dir, |_| {}, "[env]\nset = { A = \"1\" }", ""),
            hash(&dir, |_| {}, "[env]\nset = { A = \"2\" }", ""),
            hash(&dir, |_| {}, "[records]\nsecrets = [\"A\"]", ""),
            hash(&dir, |_| {}, "[commands]\nrm = false", ""),
            hash(&dir, |_| {}, "strict = true", ""),
        ];
        let distinct: BTreeSet<String> = others.iter().cloned().chain([plain()]).collect();
        assert_eq!(distinct.len(), others.len() + 1);
        // Where it is written does not matter, as long as the same file says it.
        let moved = hash(&dir, |_| {}, "# A comment.\n\n[files]\nexclude = [\"secret\"]", "");
        assert_eq!(moved, hash(&dir, |_| {}, "[files]\nexclude = [\"secret\"]", ""));
    }

    #[test]
    fn what_changes_by_itself_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let git = dir.join("p/.git");
        for name in ["objects", "refs", "hooks"] {
            std::fs::create_dir_all(git.join(name)).unwrap();
        }
        std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        let before = hash(&dir, |_| {}, "", "");
        // A worktree, a submodule and a directory of hooks, each of which has rules of its own.
        std::fs::create_dir_all(git.join("worktrees/w")).unwrap();
        std::fs::create_dir_all(git.join("modules/m/hooks")).unwrap();
        std::fs::write(git.join("config"), "[core]\n\thooksPath = hooks\n").unwrap();
        std::os::unix::fs::symlink(dir.join("p/profile"), dir.join(".profile")).unwrap();
        std::fs::write(dir.join("p/profile"), "").unwrap();
        assert_eq!(hash(&dir, |_| {}, "", ""), before);
    }

    #[test]
    fn another_directory_of_the_same_name_counts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let project = dir.join("p");
        std::fs::create_dir(&project).unwrap();
        let of_it = || hash(&dir, |_| {}, "", "");
        let before = of_it();
        std::fs::write(project.join("file"), "").unwrap();
        assert_eq!(of_it(), before);
        std::fs::rename(&project, dir.join("old")).unwrap();
        std::fs::create_dir(&project).unwrap();
        assert_ne!(of_it(), before);
    }

    #[test]
    fn packages_do_not_count_and_what_the_user_set_does() {
        let of_packages = |value: Option<&str>, packages: bool| {
            let mut env = EnvPolicy::default();
            env.set.extend(value.map(|value| (PYTHONPATH.to_owned(), value.into())));
            let shown = Shown { source: "/store/set".into(), target: "/site-packages".into() };
            leave_packages_out(&mut env, if packages { std::slice::from_ref(&shown) } else { &[] });
            env
        };
        assert_eq!(of_packages(Some("/site-packages"), true), of_packages(None, false));
        assert_eq!(of_packages(Some("/site-packages:/mine"), true), of_packages(Some("/mine"), false));
        assert_ne!(of_packages(Some("/mine"), false), of_packages(None, false));
        assert_ne!(of_packages(Some("/site-packages"), false), of_packages(None, false));
    }
}
