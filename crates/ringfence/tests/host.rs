//! What a host reads: `Host::here` the user's files, trust and environment; a host that was built by hand only what it was
//! given.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;

use ringfence::Sandbox;
use ringfence::host::{Directories, Host, Request, TrustStore};
use ringfence::policy::facts::Facts;
use ringfence::policy::policy::Network;

const CHILD: &str = "RINGFENCE_TEST_PLANTED";
const PROJECT: &str = "network = \"open\"\n[files]\nexclude = [\"of-the-project\"]\n";

/// What of the planted things is in a sandbox: user's file, project's file, trust, environment, `/etc/passwd`.
fn planted(sandbox: &Sandbox) -> [bool; 5] {
    let rules = format!("{:?}", sandbox.policy().rules);
    let warnings = format!("{:?}", sandbox.resolved().warnings);
    [
        rules.contains("of-the-user"),
        rules.contains("of-the-project"),
        sandbox.policy().network == Network::Open,
        sandbox.facts().env.contains_key(std::ffi::OsStr::new(CHILD)),
        !warnings.contains("~root/hooks"),
    ]
}

#[allow(clippy::disallowed_methods, reason = "a test asks how it was started")]
#[test]
fn a_host_that_was_built_by_hand_reads_nothing() {
    let Some(dir) = std::env::var_os(CHILD) else {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_host_that_was_built_by_hand_reads_nothing"]);
        for name in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
            child.env_remove(name);
        }
        let output = child.env(CHILD, &base).env("HOME", base.join("home")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    };
    let base = Path::new(&dir);
    let (home, project) = (base.join("home"), base.join("home/project"));
    for below in [".git/objects", ".git/refs"] {
        fs::create_dir_all(project.join(below)).unwrap();
    }
    fs::write(project.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(project.join(".git/config"), "[core]\n\thooksPath = ~root/hooks\n").unwrap();
    fs::write(project.join(".ringfence.toml"), PROJECT).unwrap();
    let facts = Facts { home: home.clone(), ..Facts::default() };
    let directories = Directories::new(&facts);
    fs::create_dir_all(&directories.config).unwrap();
    fs::write(directories.global_file(), "[files]\nexclude = [\"of-the-user\"]\n").unwrap();
    TrustStore::read(&directories).unwrap().add(&project.join(".ringfence.toml"), PROJECT).unwrap();

    let mut asked = Request::new("shell");
    asked.workdir = Some(project.clone());
    assert_eq!(planted(&Host::here().unwrap().resolve(&asked).unwrap()), [true; 5]);

    // The same places, and a registry with what a sandbox left that was killed.
    let registry = base.join("registry");
    fs::DirBuilder::new().mode(0o700).create(&registry).unwrap();
    let left = project.join("left");
    // An entry of a directory that was being made at this time.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let entry = format!("d{:016x}{now:016x}", 0);
    fs::create_dir(&left).unwrap();
    fs::write(registry.join("home"), [entry.as_bytes(), left.as_os_str().as_bytes(), b"\0"].concat()).unwrap();
    let facts = Facts { registry, ..facts };
    let host = Host::builder(facts).directories(directories).workdir(&project).build();
    host.prepare().unwrap();
    assert!(!left.exists(), "its own registry is swept");
    assert_eq!(planted(&host.resolve(&asked).unwrap()), [false; 5]);
}
