//! The Docker daemon of this host, and one of a test's own that can be stopped.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Which `./test` builds.
pub const IMAGE: &str = "ringfence-test/busybox";

/// Runs the `docker` program: whether it did well, and what it said.
pub fn docker(host: Option<&str>, args: &[&str]) -> (bool, String) {
    let host = host.map(|host| ["-H", host]);
    let Ok(output) = Command::new("docker").args(host.iter().flatten()).args(args).output() else {
        return (false, "the docker program is not here".to_owned());
    };
    (output.status.success(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Containers whose files lie below this home.
pub fn containers(host: Option<&str>, home: &Path) -> Vec<String> {
    let all = docker(host, &["ps", "-aq", "--no-trunc", "--filter", "label=ringfence.purpose=sandbox"]).1;
    let below = home.display().to_string();
    let ours = |id: &String| docker(host, &["inspect", "-f", "{{json .Mounts}}", id]).1.contains(&below);
    lines(&all).into_iter().filter(ours).collect()
}

/// The home of this name.
pub fn volumes(host: Option<&str>, slug: &str) -> Vec<String> {
    lines(&docker(host, &["volume", "ls", "-q", "--filter", &format!("name=^ringfence-home-{slug}$")]).1)
}

/// A daemon of the test's own, with the image of the tests in it.
pub struct Private {
    dir: tempfile::TempDir,
    child: Option<Child>,
}

impl Private {
    pub fn start() -> Option<Private> {
        // The path of a socket is at most 108 bytes.
        let dir = tempfile::Builder::new().prefix("rf").tempdir_in("/var/tmp").ok()?;
        let mut private = Private { dir, child: None };
        private.run();
        let tape = private.path("image.tar");
        assert!(docker(None, &["save", "-o", &tape, IMAGE]).0);
        assert!(docker(Some(&private.host()), &["load", "-i", &tape]).0);
        Some(private)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn run(&mut self) {
        let log = std::fs::File::create(self.path("log")).unwrap();
        let child = Command::new("dockerd")
            .args(["-H", &self.host(), "--data-root", &self.path("data"), "--exec-root", &self.path("exec")])
            .args(["--pidfile", &self.path("pid"), "--bridge=none", "--iptables=false"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dockerd");
        self.child = Some(child);
        let until = Instant::now() + Duration::from_secs(60);
        while !docker(Some(&self.host()), &["info"]).0 {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(self.path("log")).unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends it as a restart of the service would.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        child.wait().unwrap();
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        self.stop();
        let clear = format!("umount -l {}/exec/netns/* 2>/dev/null", self.dir.path().display());
        let _ = Command::new("sh").args(["-c", &clear]).status();
    }
}
