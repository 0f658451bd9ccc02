//! Podman's service, which speaks Docker's API: the same boxes on it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_engine::policy::Guarantee;
use ringfence_engine::policy::profiles::EngineChoice;

use crate::dockerd::{IMAGE, short};
use crate::support::{Scene, docker, skip};

/// Podman with a storage of the test's own.
struct Podman {
    dir: tempfile::TempDir,
    service: Option<Child>,
}

impl Podman {
    fn start() -> Option<Podman> {
        if skip() || !rustix::process::geteuid().is_root() {
            return None;
        }
        if Command::new("podman").arg("--version").stdout(Stdio::null()).status().is_err() {
            assert!(std::env::var_os("RINGFENCE_REQUIRE_ALL").is_none(), "Podman is required, and is not installed");
            eprintln!("SKIP podman: it is not installed");
            return None;
        }
        let mut podman = Podman { dir: short(), service: None };
        let tape = podman.path("image.tar").display().to_string();
        assert!(docker(&["save", "-o", &tape, IMAGE]).0);
        assert!(podman.command(&["load", "-q", "-i", &tape]).status().unwrap().success());
        let address = format!("unix://{}", podman.path("s").display());
        podman.service = Some(podman.command(&["system", "service", "--time=0", &address]).spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(40);
        while std::os::unix::net::UnixStream::connect(podman.path("s")).is_err() {
            assert!(Instant::now() < until, "Podman's service does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(podman)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.arg("--root").arg(self.path("root")).arg("--runroot").arg(self.path("run"));
        // The runtime that Docker has: crun refuses hosts with both versions of control groups.
        command
            .args(["--runtime=runc", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none"])
            .args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if let Some(mut service) = self.service.take() {
            let _ = service.kill();
            let _ = service.wait();
        }
        let _ = self.command(&["rm", "-af"]).status();
        let clear = format!("umount -l {0}/root/vfs {0}/root/* {0}/run/* 2>/dev/null", self.dir.path().display());
        let _ = Command::new("sh").args(["-c", &clear]).status();
    }
}

#[test]
fn a_box_on_podman() {
    let Some(podman) = Podman::start() else { return };
    let mut scene = Scene::new("shell");
    let host = format!("unix://{}", podman.path("s").display());
    scene.facts.env.insert("DOCKER_HOST".into(), host.into());
    scene.layer.image(&format!("localhost/{IMAGE}")).unwrap();
    let (_, report) =
        ringfence_engine::select(&EngineChoice::from_name("docker"), &scene.plan(), &scene.facts).unwrap();
    assert!(report.guarantees.iter().any(|answer| answer.id == Guarantee::KernelFiltered));
    let mut live = scene.start().unwrap();
    let ran = live.sh("echo inside >made; cat made; id -u; grep -E '^(Seccomp|NoNewPrivs|CapBnd):' /proc/self/status; ls /sys/class/net");
    let walls = "CapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
    assert_eq!(ran.stdout, format!("inside\n1000\n{walls}lo\n"), "{ran:?}");
    // The filter is ours, and not Podman's: what it answers to a call that it does not list.
    assert_ne!(live.sh("unshare -U true").code(), 0);
    assert_ne!(live.sh("touch /bin/x").code(), 0);
    // The guest is process 1, and what ends it ends the container.
    let pid = live.pid();
    live.finish();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    let left = podman.command(&["ps", "-aq"]).stdout(Stdio::piped()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}
