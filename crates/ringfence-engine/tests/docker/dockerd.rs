//! The Docker daemon of this host, one of a test's own that can be stopped, and somebody who stands between us and it.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The image of the tests, which `./test` builds: busybox, and nothing else.
pub const IMAGE: &str = "ringfence-test/busybox";

/// Runs the `docker` program: whether it did well, and what it said.
pub fn docker_at(host: Option<&str>, args: &[&str]) -> (bool, String) {
    let host = host.map(|host| ["-H", host]);
    let Ok(output) = Command::new("docker").args(host.iter().flatten()).args(args).output() else {
        return (false, "the docker program is not here".to_owned());
    };
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Containers whose files lie below this home.
pub fn containers(host: Option<&str>, home: &Path) -> Vec<String> {
    let (there, all) = docker_at(host, &["ps", "-aq", "--no-trunc", "--filter", "label=ringfence.purpose=sandbox"]);
    let below = home.display().to_string();
    let ours = |id: &String| docker_at(host, &["inspect", "-f", "{{json .Mounts}}", id]).1.contains(&below);
    lines(&all).into_iter().filter(|id| there && ours(id)).collect()
}

/// The home of this name.
pub fn volumes(host: Option<&str>, slug: &str) -> Vec<String> {
    let (there, all) = docker_at(host, &["volume", "ls", "-q", "--filter", &format!("name=^ringfence-home-{slug}$")]);
    lines(&all).into_iter().filter(|_| there).collect()
}

/// A directory for sockets, whose paths are at most 108 bytes long.
pub fn short() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("rf").tempdir_in("/var/tmp").unwrap()
}

/// A daemon of the test's own, with the image of the tests in it.
pub struct Private {
    dir: tempfile::TempDir,
    child: Option<Child>,
    args: Vec<&'static str>,
}

impl Private {
    pub fn start(args: &[&'static str]) -> Private {
        Self::on_disk(None, args)
    }

    /// `size`: of the disk that it works on.
    pub fn on_disk(size: Option<&'static str>, args: &[&'static str]) -> Private {
        let mut private = Private { dir: short(), child: None, args: args.to_vec() };
        let data = private.path("data");
        std::fs::create_dir_all(&data).unwrap();
        if let Some(size) = size {
            let options = format!("size={size}");
            let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(data).status();
            assert!(mounted.unwrap().success());
        }
        private.run();
        let tape = private.path("image.tar").display().to_string();
        assert!(docker_at(None, &["save", "-o", &tape, IMAGE]).0);
        let (loaded, text) = private.docker(&["load", "-i", &tape]);
        assert!(loaded, "{text}");
        private
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn host(&self) -> String {
        format!("unix://{}", self.path("s").display())
    }

    pub fn docker(&self, args: &[&str]) -> (bool, String) {
        docker_at(Some(&self.host()), args)
    }

    pub fn run(&mut self) {
        let path = |name: &str| self.path(name).display().to_string();
        let log = std::fs::File::create(self.path("log")).unwrap();
        // In a network of its own: without a bridge of its own it would remove that of the host's daemon.
        let child = Command::new("unshare")
            .args(["--net", "dockerd", "-H", &self.host(), "--data-root", &path("data"), "--exec-root", &path("exec")])
            .args(["--pidfile", &path("pid"), "--bridge=none", "--iptables=false"])
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dockerd");
        self.child = Some(child);
        let until = Instant::now() + Duration::from_secs(60);
        while !self.docker(&["info"]).0 {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(self.path("log")).unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends it at once. What it started ends with it, and may not be reaped yet when the next one looks.
    pub fn crash(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(self.path("exec/containerd/containerd.pid")).unwrap();
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
        // Its disk; what one that crashed or leaves its containers alone has mounted; and networks.
        let clear = format!(
            "cd {} && umount -lR data 2>/dev/null; umount -l exec/netns/* 2>/dev/null",
            self.dir.path().display()
        );
        let _ = Command::new("sh").args(["-c", &clear]).status();
    }
}

/// What is done with a request, by its first line.
pub enum Meddle {
    PassOn,
    /// It is never answered.
    Stall,
    /// It is answered with this, and not passed on.
    Answer(&'static [u8]),
}

/// Somebody between us and the daemon of this host.
pub struct Between {
    _dir: tempfile::TempDir,
    path: PathBuf,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Between {
    pub fn start(decide: fn(&str) -> Meddle) -> Between {
        let dir = short();
        let path = dir.path().join("between");
        let listener = UnixListener::bind(&path).unwrap();
        let between = Between { _dir: dir, path, seen: Arc::default() };
        let seen = between.seen.clone();
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let (from, seen) = (from.unwrap(), seen.clone());
                std::thread::spawn(move || pass_on(from, &seen, decide));
            }
        });
        between
    }

    pub fn host(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// How many requests so far had this in their first line.
    pub fn count(&self, text: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }
}

fn pass_on(mut from: UnixStream, seen: &Mutex<Vec<String>>, decide: fn(&str) -> Meddle) {
    let mut to = UnixStream::connect("/var/run/docker.sock").unwrap();
    let (mut back, mut answers) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut answers, &mut back);
        let _ = back.shutdown(std::net::Shutdown::Write);
    });
    let mut bytes = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let line = bytes[..count].split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        if line.ends_with(" HTTP/1.1") {
            seen.lock().unwrap().push(line.clone());
            match decide(&line) {
                Meddle::PassOn => {}
                Meddle::Stall => std::thread::sleep(Duration::from_secs(600)),
                Meddle::Answer(answer) => {
                    let _ = from.write_all(answer);
                    let _ = from.shutdown(std::net::Shutdown::Both);
                    return;
                }
            }
        }
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
