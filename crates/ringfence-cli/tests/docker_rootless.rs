//! A real rootless daemon, of an ordinary user, and that user's boxes on it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../ringfence-engine/tests/docker/dockerd.rs"]
mod dockerd;
mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dockerd::{IMAGE, docker_at as docker, short};
use support::{Done, program};

/// The daemon, its directory, and whose it is.
struct Rootless {
    dir: tempfile::TempDir,
    child: Child,
    ids: (u32, u32),
}

/// A command of that user.
fn of(ids: (u32, u32), dir: &Path, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={}", ids.0), &format!("--regid={}", ids.1), "--clear-groups", program]);
    command.env_clear().env("HOME", dir).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("XDG_RUNTIME_DIR", dir);
    command.current_dir(dir).stdin(Stdio::null());
    command
}

impl Rootless {
    fn start() -> Option<Rootless> {
        let has = |name: &str| Path::new("/usr/bin").join(name).exists();
        if !support::is_root() {
            return None;
        }
        let (true, true, Some((uid, gid, _))) = (has("rootlesskit"), has("newuidmap"), support::user()) else {
            support::skip("a rootless daemon", "rootlesskit, newuidmap or the user `ringfence-test` is not here");
            return None;
        };
        let dir = short();
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid)).unwrap();
        let tape = dir.path().join("image.tar").display().to_string();
        if !docker(None, &["save", "-o", &tape, IMAGE]).0 {
            support::skip("a rootless daemon", "no daemon has the image of the tests");
            return None;
        }
        let path = |name: &str| dir.path().join(name).display().to_string();
        let log = std::fs::File::create(path("log")).unwrap();
        // Its own network would need a tunnel of the kernel's; no box here has one.
        let child = of((uid, gid), dir.path(), "rootlesskit")
            .args(["--net=host", "--copy-up=/etc", "--copy-up=/run", "--state-dir", &path("kit")])
            .args(["sh", "-c", "rm -rf /run/docker /run/containerd /run/xtables.lock; exec dockerd \"$@\"", "sh"])
            .args(["--rootless", "-H", &format!("unix://{}", path("s")), "--data-root", &path("data")])
            .args(["--exec-root", &path("exec"), "--pidfile", &path("pid")])
            .args(["--bridge=none", "--iptables=false", "--storage-driver=vfs"])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let rootless = Rootless { dir, child, ids: (uid, gid) };
        let until = Instant::now() + Duration::from_secs(60);
        while !docker(Some(&rootless.host()), &["info"]).0 {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(rootless.dir.path().join("log")).unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
        let (loaded, text) = docker(Some(&rootless.host()), &["load", "-i", &tape]);
        assert!(loaded, "{text}");
        Some(rootless)
    }

    fn host(&self) -> String {
        format!("unix://{}", self.dir.path().join("s").display())
    }

    fn ringfence(&self, copy: &Path, project: &Path, args: &[&str]) -> Done {
        let mut command = of(self.ids, self.dir.path(), copy.to_str().unwrap());
        Done::new(command.args(args).env("DOCKER_HOST", self.host()).current_dir(project).output().unwrap())
    }
}

impl Drop for Rootless {
    fn drop(&mut self) {
        // rootlesskit passes it on, and ends with the daemon.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

#[test]
fn boxes_on_a_rootless_daemon() {
    let Some(rootless) = Rootless::start() else { return };
    let project = rootless.dir.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::os::unix::fs::chown(&project, Some(rootless.ids.0), Some(rootless.ids.1)).unwrap();
    let copy = rootless.dir.path().join("program");
    std::fs::copy(program(), &copy).unwrap();
    let shell = ["run", "--engine", "docker", "--profile", "shell", "--image", IMAGE];
    let limits: Vec<&str> =
        ["limit.memory", "limit.cpu", "limit.processes"].iter().flat_map(|id| ["--optional", id]).collect();
    let run = |flags: &[&str], script: &str| {
        let args = [&shell, flags, &["--", "/bin/sh", "-c", script]].concat();
        rootless.ringfence(&copy, &project, &args)
    };
    // Without control groups of version 2 it cannot limit the tree: refused, unless the policy does without.
    let limited = docker(Some(&rootless.host()), &["info", "-f", "{{.MemoryLimit}}"]).1 == "true";
    let done = run(&[], "true");
    assert!(limited || (done.code == 125 && done.err.contains("limit.memory")), "{done:?}");
    // Its root is the caller: the working directory must be opened to the box's user.
    let done = run(&limits, "true");
    assert!(done.code == 125 && done.err.contains("cannot be written"), "{done:?}");
    assert!(done.err.contains("\nhint: a container never runs as root: chown or setfacl"), "{done:?}");
    std::fs::set_permissions(&project, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let script = "id -u; echo inside >made; cat made; touch /bin/x 2>/dev/null || echo closed; \
        grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; ls /sys/class/net";
    let done = run(&[&limits[..], &["--report"]].concat(), script);
    let walls = "CapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
    assert_eq!((done.code, done.out.as_str()), (0, &*format!("1000\ninside\nclosed\n{walls}lo\n")), "{}", done.err);
    assert!(done.err.contains("rootless daemon: its root is an ordinary user of the host"), "{}", done.err);
    // Outside, the box was neither root nor the caller.
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(project.join("made")).unwrap());
    assert!(owner != 0 && owner != 1000 && owner != rootless.ids.0, "{owner}");
    // The host stays open to its networks: refused.
    let done = run(&[&limits[..], &["--network=true"]].concat(), "true");
    assert!(done.code == 125 && done.err.contains("a rootless daemon leaves"), "{done:?}");
    assert_eq!(docker(Some(&rootless.host()), &["ps", "-aq"]).1, "");
}
