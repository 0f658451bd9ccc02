use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;

use ringfence_policy::Policy;
use ringfence_policy::plan::{PlanError, plan};
use ringfence_policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};

use super::*;
use crate::report::State;

/// A home with a project in it, and nothing of the real host.
struct Host {
    dir: tempfile::TempDir,
    facts: Facts,
    policy: Policy,
}

impl Host {
    fn new() -> Self {
        // Not in /tmp, which every box has of its own, and where a clone may lie.
        let home = std::env::var("HOME").unwrap_or_default();
        let bases = ["/var/lib", home.as_str(), env!("CARGO_MANIFEST_DIR")];
        let dir = bases.iter().find_map(|base| tempfile::tempdir_in(base).ok()).unwrap();
        let home = fs::canonicalize(dir.path()).unwrap();
        let workdir = home.join("project");
        fs::create_dir(&workdir).unwrap();
        let facts = Facts {
            uid: 1000,
            gid: 1000,
            home,
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
            ..Facts::default()
        };
        let mut policy = ringfence_testing::policy(&workdir);
        (policy.profile, policy.network) = ("agent".to_owned(), Network::Open);
        policy.rules.clear();
        let limits = &mut policy.limits;
        (limits.tmp_size, limits.tmp_inodes, limits.output) = (4096, 64, 4096);
        let mut host = Self { dir, facts, policy };
        host.rule(Access::Rw, &workdir, Missing::Fail);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.facts.home.join(name)
    }

    fn rule(&mut self, access: Access, path: &Path, missing: Missing) {
        let origin = Origin { layer: LayerKind::Flags, place: "test".into() };
        self.policy.rules.push(FileRule { access, pattern: Pattern::Exact(path.to_path_buf()), missing, origin });
    }

    fn docker_host(&mut self, socket: &Path) {
        self.facts.env.insert("DOCKER_HOST".into(), format!("unix://{}", socket.display()).into());
    }

    fn plan(&self) -> Result<Plan, PlanError> {
        plan(&self.policy, &self.facts, &["true".into()])
    }

    /// The compiled arguments, a step a line, without the environment; the home is `~`.
    fn compiled(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for arg in compile(&self.plan().unwrap(), Some(vec![1, 2]), &Staged::default()).unwrap() {
            match arg {
                Arg::Variable { .. } => {}
                Arg::Word(word) => match lines.last_mut() {
                    Some(line) if !word.as_bytes().starts_with(b"--") || qualifies(line) => {
                        *line += &format!(" {}", word.display());
                    }
                    _ => lines.push(word.display().to_string()),
                },
                Arg::Data { target, mode, bytes } => {
                    lines.push(format!("--perms {mode:04o} --ro-bind-data <{}> {}", bytes.len(), target.display()));
                }
                Arg::Filter(bytes) => lines.push(format!("--seccomp <{}>", bytes.len())),
            }
        }
        let home = self.dir.path().canonicalize().unwrap().display().to_string();
        lines.into_iter().map(|line| line.replace(&home, "~")).collect()
    }
}

fn position(lines: &[String], line: &str) -> usize {
    lines.iter().position(|l| l == line).unwrap_or_else(|| panic!("no `{line}` in {lines:#?}"))
}

/// Whether the real host's own container sockets are hidden depends on that host.
fn without_host_sockets(lines: Vec<String>) -> Vec<String> {
    let of_host = |l: &String| l.contains("--ro-bind-data <0> /run/") || l.contains("--dir /run/");
    lines.into_iter().filter(|l| !of_host(l)).collect()
}

#[test]
fn network_open() {
    let lines = without_host_sockets(Host::new().compiled());
    let (head, mounts) = lines.split_at(position(&lines, "--ro-bind / /"));
    assert_eq!(
        head,
        [
            "--unshare-all",
            "--unshare-user",
            "--unshare-cgroup",
            "--share-net",
            "--disable-userns",
            "--die-with-parent",
            "--cap-drop ALL",
            "--hostname ringfence",
            "--uid 1000",
            "--gid 1000",
            "--clearenv",
        ]
    );
    let after_private = &mounts[position(mounts, "--perms 1777 --size 4096 --tmpfs /tmp")..];
    assert_eq!(
        mounts[..6],
        [
            "--ro-bind / /",
            "--proc /proc",
            "--dev /dev",
            "--perms 1777 --size 4096 --tmpfs /dev/shm",
            "--perms 0755 --dir /dev/ringfence",
            "--remount-ro /dev",
        ]
    );
    assert_eq!(
        after_private[after_private.len() - 6..],
        [
            "--perms 0444 --ro-bind-data <20> /dev/ringfence/box.json",
            "--bind ~/project ~/project",
            "--perms 0444 --ro-bind-data <0> /dev/ringfence/commands",
            "--remount-ro /dev/ringfence",
            "--chdir ~/project",
            "--seccomp <2>",
        ]
    );
}

#[test]
fn network_off() {
    let mut host = Host::new();
    host.policy.network = Network::None;
    let lines = host.compiled();
    assert_eq!(lines[0], "--unshare-all");
    assert!(!lines.iter().any(|l| l == "--share-net"), "{lines:#?}");
}

#[test]
fn nesting_leaves_user_namespaces() {
    let mut host = Host::new();
    host.policy.nesting = true;
    assert!(!host.compiled().iter().any(|l| l == "--disable-userns"));
}

#[test]
fn docker_off_masks_the_socket_last() {
    let mut host = Host::new();
    let socket = host.path("project/docker.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    host.docker_host(&socket);
    // A rule that would expose it again.
    host.rule(Access::Rw, &socket, Missing::Fail);
    let lines = host.compiled();
    let mask = position(&lines, "--perms 0000 --ro-bind-data <0> ~/project/docker.sock");
    assert!(mask > position(&lines, "--bind ~/project/docker.sock ~/project/docker.sock"));
    assert!(lines[mask..].iter().all(|l| !l.starts_with("--bind") && !l.starts_with("--ro-bind /")), "{lines:#?}");
}

#[test]
fn docker_on_binds_the_real_socket() {
    let mut host = Host::new();
    host.policy.docker = true;
    let (socket, link) = (host.path("real.sock"), host.path("link.sock"));
    let _listener = UnixListener::bind(&socket).unwrap();
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    for asked in [socket, link] {
        host.docker_host(&asked);
        let lines = host.compiled();
        let bind = position(&lines, "--bind ~/real.sock /run/docker.sock");
        assert!(bind > position(&lines, "--bind ~/project ~/project"));
        assert!(!lines.iter().any(|l| l.contains("link.sock")), "{lines:#?}");
    }
}

#[test]
fn docker_on_and_missing_is_an_error() {
    let mut host = Host::new();
    host.policy.docker = true;
    let socket = host.path("missing.sock");
    host.docker_host(&socket);
    assert!(matches!(host.plan(), Err(PlanError::DockerSocketMissing(path)) if path == socket));
    fs::write(&socket, "").unwrap();
    assert!(matches!(host.plan(), Err(PlanError::DockerSocketWrong(path)) if path == socket));
}

#[test]
fn stand_ins() {
    let mut host = Host::new();
    for dir in ["hidden", "passable", "passable/shown", "project/.git"] {
        fs::create_dir(host.path(dir)).unwrap();
    }
    fs::write(host.path("secret"), "x").unwrap();
    for name in ["hidden", "secret", "passable"] {
        host.rule(Access::Exclude, &host.path(name), Missing::Fail);
    }
    host.rule(Access::Ro, &host.path("passable/shown"), Missing::Fail);
    host.rule(Access::Ro, &host.path("project/.git/hooks"), Missing::Protect(Kind::Dir));
    host.rule(Access::Ro, &host.path("project/.mcp.json"), Missing::Protect(Kind::File));
    let lines = host.compiled();
    for line in [
        "--perms 0000 --tmpfs ~/hidden",
        "--remount-ro ~/hidden",
        "--perms 0000 --ro-bind-data <0> ~/secret",
        "--perms 0555 --tmpfs ~/project/.git/hooks",
        "--remount-ro ~/project/.git/hooks",
        "--perms 0444 --ro-bind-data <0> ~/project/.mcp.json",
    ] {
        position(&lines, line);
    }
    let order = [
        "--perms 0111 --size 1048576 --tmpfs ~/passable",
        "--perms 0755 --dir ~/passable/shown",
        "--ro-bind ~/passable/shown ~/passable/shown",
        "--remount-ro ~/passable",
    ];
    assert!(order.map(|line| position(&lines, line)).is_sorted());
    assert!(
        position(&lines, "--bind ~/project/.git ~/project/.git")
            < position(&lines, "--perms 0555 --tmpfs ~/project/.git/hooks")
    );
}

#[test]
fn symlinked_mount_point_is_refused() {
    let mut host = Host::new();
    let link = host.path("project/.mcp.json");
    std::os::unix::fs::symlink("elsewhere", &link).unwrap();
    host.rule(Access::Ro, &link, Missing::Protect(Kind::File));
    let refused = compile(&host.plan().unwrap(), None, &Staged::default()).unwrap_err();
    assert!(matches!(refused, EngineError::Unmet { guarantee: Guarantee::FsProtectedPaths, .. }), "{refused}");
}

#[test]
fn too_many_files_are_refused() {
    let host = Host::new();
    let mut plan = host.plan().unwrap();
    let hide = |n: usize| Mount::Hide {
        target: host.path(&n.to_string()),
        kind: Kind::File,
        passable: false,
        fleeting: false,
    };
    plan.mounts.extend((0..=MAX_FILES).map(hide));
    let refused = compile(&plan, None, &Staged::default()).unwrap_err();
    assert!(matches!(refused, EngineError::Unmet { guarantee: Guarantee::FsSecretsHidden, .. }), "{refused}");
}

#[test]
fn outermost_sources_are_mapped() {
    let mut host = Host::new();
    fs::create_dir(host.path("project/.git")).unwrap();
    host.rule(Access::Ro, &host.path("project/.git"), Missing::Fail);
    let staged = Staged::new(&host.plan().unwrap());
    assert!(staged.0.contains(&(host.path("project"), Kind::Dir)));
    assert!(!staged.0.iter().any(|(p, _)| p.ends_with(".git") || p == Path::new("/")));
    let place = staged.place(&host.path("project"));
    assert!(place.starts_with(STAGING), "{place:?}");
    assert_eq!(staged.place(&host.path("project/.git")), place.join(".git"));
    assert_eq!(staged.place(Path::new("/")), Path::new("/"));
}

#[test]
fn description_names_the_callers_values() {
    let mut host = Host::new();
    host.facts.env.insert("TOKEN".into(), "hunter2".into());
    let mut plan = host.plan().unwrap();
    plan.env.push(("OWN".into(), "it's".into()));
    let text = ENGINE.describe(&plan, &host.facts).unwrap();
    assert!(text.contains("--setenv TOKEN \"$TOKEN\""), "{text}");
    assert!(text.contains("--setenv OWN 'it'\\''s'"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn description_can_be_pasted() {
    let mut host = Host::new();
    host.rule(Access::Ro, &host.path("project/.mcp.json"), Missing::Protect(Kind::File));
    let mut plan = host.plan().unwrap();
    let Runs::Command(command) = &mut plan.runs else { panic!("{plan:?}") };
    command.args = ["sh", "-c", "echo \"it's $TOKEN\"; ls -A; grep -c '^Seccomp:.2' /proc/self/status; exit 5"]
        .map(OsString::from)
        .to_vec();
    plan.env.push(("TOKEN".into(), "a b".into()));
    host.facts.env.insert("TOKEN".into(), "a b".into());
    let text = ENGINE.describe(&plan, &host.facts).unwrap();
    let output = std::process::Command::new("sh").arg("-c").arg(&text).env("TOKEN", "a b").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((out.as_ref(), err.as_ref()), ("it's a b\n.mcp.json\n1\n", ""));
    assert_eq!(output.status.code(), Some(5));
    assert!(!host.path("project/.mcp.json").exists());
    // What is there by then is not the command's to take away.
    fs::write(host.path("project/.mcp.json"), "").unwrap();
    std::process::Command::new("sh").arg("-c").arg(&text).output().unwrap();
    assert!(host.path("project/.mcp.json").exists());
}

#[test]
fn versions() {
    assert_eq!(version("bubblewrap 0.8.0"), Some((0, 8)));
    assert_eq!(version("bubblewrap 0.11.0"), Some((0, 11)));
    assert_eq!(version("bwrap"), None);
    assert!(version("bubblewrap 0.4.1") < Some(OLDEST));
}

#[test]
fn second_wall_is_missing() {
    let mut host = Host::new();
    let report = ENGINE.promise(&host.plan().unwrap(), &host.facts).unwrap();
    let state = |id| report.guarantees.iter().find(|a| a.id == id).map(|a| a.state);
    assert_eq!(state(Guarantee::KernelSecondWall), Some(State::Missing));
    assert_eq!(state(Guarantee::FsDiskBounded), Some(State::Weakened));
    host.policy.optional.clear();
    let refused = ENGINE.promise(&host.plan().unwrap(), &host.facts).unwrap_err();
    assert!(matches!(refused, EngineError::Unmet { guarantee: Guarantee::KernelSecondWall, .. }), "{refused}");
}
