//! The daemon is absent, closed, slow, restarted, out of disk, or kills behind our back. A private one plays these parts.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence::engines::docker::labels::Owner;
use ringfence::engines::docker::{DockerError, Step, container};
use ringfence::policy::Guarantee;
use ringfence::{Engine, EngineError};

use crate::support::{IMAGE, Scene, docker, skip};

/// A daemon of the test's own.
pub struct Private {
    pub dir: PathBuf,
    child: Option<Child>,
    size: Option<&'static str>,
    args: Vec<&'static str>,
}

impl Private {
    /// `size`: of the disk that it works on.
    pub fn start(dir: &Path, size: Option<&'static str>, args: &[&'static str]) -> Private {
        let mut private = Private { dir: dir.join("private"), child: None, size, args: args.to_vec() };
        std::fs::create_dir_all(private.dir.join("data")).unwrap();
        if let Some(size) = size {
            let data = private.dir.join("data");
            let mounted =
                Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(data).status();
            assert!(mounted.unwrap().success());
        }
        private.run();
        private
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("s")
    }

    fn run(&mut self) {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let log = std::fs::File::create(self.dir.join("log")).unwrap();
        let child = Command::new("dockerd")
            .args(["-H", &format!("unix://{}", path("s")), "--data-root", &path("data"), "--exec-root", &path("exec")])
            .args(["--pidfile", &path("pid"), "--bridge=none", "--iptables=false"])
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dockerd");
        self.child = Some(child);
        let until = Instant::now() + Duration::from_secs(40);
        while !self.docker(&["info"]).0 {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(self.dir.join("log")).unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn docker(&self, args: &[&str]) -> (bool, String) {
        let host = format!("unix://{}", self.socket().display());
        docker(&[&["-H", &host], args].concat())
    }

    /// Ends it as a restart of the service would.
    fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap();
    }

    /// Gives it the image of the tests.
    pub fn load(&self) {
        let file = self.dir.parent().unwrap().join("image.tar");
        assert!(docker(&["save", "-o", file.to_str().unwrap(), IMAGE]).0);
        let (loaded, text) = self.docker(&["load", "-i", file.to_str().unwrap()]);
        assert!(loaded, "{text}");
    }

    pub fn scene(&self, profile: &str) -> Scene {
        let mut scene = Scene::new(profile);
        scene.facts.env.insert("DOCKER_HOST".into(), format!("unix://{}", self.socket().display()).into());
        scene
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.stop();
        }
        if self.size.is_some() {
            let _ = Command::new("umount").arg("-l").arg(self.dir.join("data")).status();
        }
        let _ = Command::new("sh")
            .arg("-c")
            .arg(format!("umount -l {}/exec/netns/* 2>/dev/null", self.dir.display()))
            .status();
    }
}

fn root() -> bool {
    !skip() && rustix::process::geteuid().is_root()
}

pub fn short() -> tempfile::TempDir {
    // The path of a socket is at most 108 bytes.
    tempfile::Builder::new().prefix("rf").tempdir_in("/var/tmp").unwrap()
}

fn docker_error(error: EngineError) -> DockerError {
    match error {
        EngineError::Docker(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_is_there_or_may_be_asked() {
    if skip() {
        return;
    }
    let mut scene = Scene::new("shell");
    let mut at = |host: &str| {
        scene.facts.env.insert("DOCKER_HOST".into(), host.into());
        docker_error(scene.start().err().unwrap())
    };
    assert!(matches!(at("unix:///nonexistent/docker.sock"), DockerError::Absent(_)));
    assert!(matches!(at("tcp://127.0.0.1:2375"), DockerError::Address(_)));
    // A socket without a listener, as a daemon that was killed leaves.
    let dir = short();
    let path = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(matches!(at(&format!("unix://{}", path.display())), DockerError::Absent(_)));
}

#[test]
fn a_socket_that_is_closed_to_us() {
    if !root() {
        return;
    }
    // As another user, whom the socket is closed to.
    let dir = short();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let answer = std::thread::spawn(move || {
        // Of this thread alone.
        rustix::thread::set_thread_res_uid(
            rustix::process::Uid::ROOT,
            rustix::process::Uid::from_raw(65534),
            rustix::process::Uid::ROOT,
        )
        .unwrap();
        ringfence::engines::docker::Daemon::at(&path).err()
    });
    let error = answer.join().unwrap().unwrap();
    assert!(matches!(error, DockerError::Permission(_)), "{error:?}");
    assert!(error.cure().unwrap().contains("group"));
}

/// Passes on to the daemon, but for requests with this text in their first line: those are never answered.
fn stalling(dir: &Path, text: &'static str) -> PathBuf {
    let path = dir.join("stalling");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for from in listener.incoming() {
            let mut from = from.unwrap();
            std::thread::spawn(move || {
                let mut to = UnixStream::connect("/var/run/docker.sock").unwrap();
                let (mut back, mut answers) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
                let mut bytes = [0; 1 << 16];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    let line = bytes[..count].split(|byte| *byte == b'\r').next().unwrap();
                    if String::from_utf8_lossy(line).contains(text) {
                        std::thread::sleep(Duration::from_secs(600));
                    }
                    to.write_all(&bytes[..count]).unwrap();
                }
            });
        }
    });
    path
}

#[test]
fn a_daemon_that_does_not_answer() {
    if skip() {
        return;
    }
    // Not at all: known in seconds, and so for everybody who asks.
    let dir = short();
    let mut scene = Scene::new("shell");
    scene.facts.env.insert("DOCKER_HOST".into(), format!("unix://{}", stalling(dir.path(), " /").display()).into());
    let begun = Instant::now();
    let error = docker_error(scene.start().err().unwrap());
    assert!(matches!(error, DockerError::Slow(Step::Ask)), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    // In the middle: a minute for one call, and what was made is removed.
    let dir = short();
    let host = format!("unix://{}", stalling(dir.path(), "/start").display());
    scene.facts.env.insert("DOCKER_HOST".into(), host.into());
    let error = docker_error(scene.start().err().unwrap());
    assert!(matches!(error, DockerError::Slow(Step::StartContainer)), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(150), "{:?}", begun.elapsed());
    assert_eq!(scene.containers(), [""; 0]);
    assert_eq!(std::fs::read_dir(scene.state.join("docker/boxes")).unwrap().count(), 0);
    // The next call works when the daemon does.
    scene.facts.env.remove(std::ffi::OsStr::new("DOCKER_HOST"));
    scene.start().unwrap().finish();
}

#[test]
fn a_daemon_that_maps_ids() {
    if !root() {
        return;
    }
    let Ok(subordinate) = std::fs::read_to_string("/etc/subuid") else { return };
    let of = |line: &str| Some(line.strip_prefix("ringfence-test:")?.split(':').next()?.parse::<u32>().unwrap());
    let Some(first) = subordinate.lines().find_map(of) else {
        eprintln!("SKIP a daemon that maps ids: ringfence-test has no ids to map to");
        return;
    };
    let dir = short();
    let private = Private::start(dir.path(), None, &["--userns-remap=ringfence-test"]);
    private.load();
    let scene = private.scene("shell");
    // The box's 1000 is another one outside: the working directory must be that one's.
    std::os::unix::fs::chown(&scene.project, Some(first + 1000), Some(first + 1000)).unwrap();
    let (_, report) = ringfence::select(Engine::Docker.into(), &scene.plan(), &scene.facts).unwrap();
    let answer = report.guarantees.iter().find(|answer| answer.id == Guarantee::ProcUnprivileged).unwrap();
    assert!(answer.by.contains("maps ids"), "{answer:?}");
    let mut live = scene.start().unwrap();
    assert_eq!(live.sh("id -u; echo inside >made; cat made").stdout, "1000\ninside\n");
    let status = std::fs::read_to_string(format!("/proc/{}/status", live.pid())).unwrap();
    assert!(status.contains(&format!("Uid:\t{0}\t{0}", first + 1000)), "{status}");
    assert_eq!(std::fs::metadata(scene.project.join("made")).unwrap().uid(), first + 1000);
    live.finish();
}

#[test]
fn a_daemon_that_stops_and_comes_back() {
    if !root() {
        return;
    }
    let dir = short();
    let mut private = Private::start(dir.path(), None, &[]);
    private.load();
    let scene = private.scene("shell");
    let mut live = scene.start().unwrap();
    assert_eq!(live.sh("echo here").stdout, "here\n");
    // It takes its containers with it: the guest's socket closes, and the end of the box is an error, not a hang.
    private.stop();
    let started = Instant::now();
    let gone = docker_error(scene.start().err().unwrap());
    assert!(matches!(gone, DockerError::Absent(_)), "{gone:?}");
    let ended = live.inhabited.take().unwrap().finish();
    assert!(matches!(ended, Err(EngineError::Docker(DockerError::Absent(_)))), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
    // When it is back, the next call works, and nothing of the old one is left.
    private.run();
    let mut live = scene.start().unwrap();
    assert_eq!(live.sh("echo again").stdout, "again\n");
    let id = live.id().to_owned();
    let cleared = container::clear(&scene.state, &|_| true).unwrap();
    assert_eq!(cleared, [""; 0]);
    assert!(private.docker(&["inspect", &id]).0);
    live.finish();
    assert_eq!(private.docker(&["ps", "-aq"]).1, "");
}

#[test]
fn killed_behind_our_back() {
    if skip() {
        return;
    }
    let scene = Scene::new("shell");
    let live = scene.start().unwrap();
    assert!(docker(&["kill", live.id()]).0);
    // Gone already is what is wanted.
    live.finish();
    assert_eq!(scene.containers(), [""; 0]);
}

#[test]
fn a_disk_that_is_full() {
    if !root() {
        return;
    }
    let dir = short();
    let private = Private::start(dir.path(), Some("24m"), &["--storage-driver=vfs"]);
    private.load();
    let scene = private.scene("shell");
    scene.start().unwrap().finish();
    let filler = private.dir.join("data/filler");
    let _ = Command::new("sh").arg("-c").arg(format!("cat /dev/zero >{} 2>/dev/null", filler.display())).status();
    let error = docker_error(scene.start().err().unwrap());
    assert!(matches!(error, DockerError::DiskFull { .. }), "{error:?}");
    assert!(error.cure().unwrap().contains("make space"));
    // And when there is space again, it works.
    std::fs::remove_file(filler).unwrap();
    scene.start().unwrap().finish();
}

#[test]
fn no_image_and_no_registry() {
    if skip() {
        return;
    }
    let mut scene = Scene::new("shell");
    scene
        .layer
        .image("127.0.0.1:9/ringfence-test/nowhere@sha256:0000000000000000000000000000000000000000000000000000000000000000")
        .unwrap();
    let error = docker_error(scene.start().err().unwrap());
    assert!(matches!(error, DockerError::NoImage { .. }), "{error:?}");
    assert!(error.cure().unwrap().contains("docker load"), "{:?}", error.cure());
    // Pinned by its own id, what was built here is found.
    let id = docker(&["image", "inspect", "-f", "{{.Id}}", IMAGE]).1;
    scene.layer.image(&format!("{IMAGE}@{id}")).unwrap();
    scene.start().unwrap().finish();
}

#[test]
fn what_a_crash_leaves_is_found_by_its_labels() {
    if skip() {
        return;
    }
    let scene = Scene::new("home");
    let mut scene = scene;
    scene.layer.network(false);
    // Of a run that was killed.
    docker(&["volume", "rm", "--force", "ringfence-home-rfcrash"]);
    let mut live = scene.start_named(Some("rfcrash")).unwrap();
    let id = live.id().to_owned();
    // Whoever made it is gone at once: nothing is dropped, and the socket closes.
    std::mem::forget(live.inhabited.take());
    drop(live);
    // The guest ends with its socket, the container with its guest, and the daemon removes it.
    let until = Instant::now() + Duration::from_secs(10);
    while !scene.containers().is_empty() {
        assert!(Instant::now() < until, "{id} is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    // What a daemon left that crashed as well: found by its labels, and by nobody else.
    let owner = Owner::new(scene.facts.uid, &scene.state);
    let owner = format!("ringfence.owner={}", owner.as_str());
    let labels = ["--label", &owner, "--label", "ringfence.purpose=sandbox", "--label", "ringfence.session=s-left"];
    let (made, left) = docker(&[&["create"][..], &labels, &[IMAGE, "true"]].concat());
    assert!(made, "{left}");
    let elsewhere = Scene::new("shell");
    elsewhere.start().unwrap().finish();
    container::clear(&elsewhere.state, &|_| false).unwrap();
    assert_eq!(scene.containers(), [left]);
    assert_eq!(container::clear(&scene.state, &|_| false).unwrap(), ["s-0123456789ab", "s-left"]);
    assert_eq!(scene.containers(), [""; 0]);
    // Twice is as good as once.
    assert_eq!(container::clear(&scene.state, &|_| false).unwrap(), [""; 0]);
    docker(&["volume", "rm", "ringfence-home-rfcrash"]);
}
