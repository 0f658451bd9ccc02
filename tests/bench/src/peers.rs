//! The peers that are installed, each asked for the nearest thing to the same box around the same command.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::line::{Line, answer, which};
use crate::measure::{Contender, Failure, Skip};

/// What is run everywhere.
pub const TRUE: &str = "/bin/true";
/// What a container lives by that waits for commands; it needs the same libraries.
pub const SLEEP: &str = "/bin/sleep";

/// A program that takes a command. Versions differ in their flags: the first form that works is taken.
struct Peer {
    name: &'static str,
    forms: &'static [&'static [&'static str]],
}

const BWRAP: &[&str] = &["--ro-bind", "/", "/", "--unshare-all", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"];

const PEERS: &[Peer] = &[
    Peer { name: "nsjail", forms: &[&["-Mo", "-Q", "--chroot", "/", "--"]] },
    Peer { name: "hakoniwa", forms: &[&["run", "--unshare-network", "--"], &["run", "--"]] },
    Peer {
        name: "sandlock",
        forms: &[
            &["run", "-r", "/usr", "-r", "/lib", "-r", "/lib64", "-r", "/bin", "-r", "/etc", "--"],
            &["run", "-r", "/", "--"],
        ],
    },
    Peer {
        name: "nono",
        forms: &[
            &["run", "--silent", "--allow", ".", "--block-net", "--"],
            &["run", "--silent", "--allow", ".", "--net-block", "--"],
            &["run", "--allow", ".", "--"],
        ],
    },
    Peer { name: "srt", forms: &[&[]] },
    Peer { name: "codex", forms: &[&["sandbox", "linux", "--"], &["sandbox", "--"]] },
];

/// The peers that can run here, and why the others cannot.
#[derive(Debug, Default)]
pub struct Peers {
    lines: Vec<(&'static str, Line)>,
    crun: Option<Crun>,
    docker: Option<Line>,
    pub skips: Vec<Skip>,
}

impl Peers {
    /// Looks for them. `place` is for their bundles and images.
    pub fn find(place: &Path) -> Peers {
        let mut peers = Peers::default();
        peers.add("bwrap", &[BWRAP]);
        let root = RootFs::make(&place.join("rootfs"));
        match root.as_ref().map_err(Clone::clone).and_then(|root| Crun::find(place, root)) {
            Ok(crun) => peers.crun = Some(crun),
            Err(reason) => peers.skip("crun", reason),
        }
        match root.as_ref().map_err(Clone::clone).and_then(|root| docker(place, root)) {
            Ok(line) => peers.docker = Some(line),
            Err(reason) => peers.skip("docker", reason),
        }
        for peer in PEERS {
            peers.add(peer.name, peer.forms);
        }
        peers
    }

    fn add(&mut self, name: &'static str, forms: &[&[&str]]) {
        let Some(program) = which(name) else { return self.skip(name, "not installed".to_owned()) };
        let mut reason = String::new();
        for form in forms {
            let line = Line::new(&program, form.iter().copied().chain([TRUE]));
            match line.trial() {
                Ok(()) => return self.lines.push((name, line)),
                Err(error) if reason.is_empty() => reason = error,
                Err(_) => {}
            }
        }
        self.skip(name, reason);
    }

    fn skip(&mut self, name: &str, reason: Failure) {
        self.skips.push(Skip { name: name.to_owned(), reason });
    }

    pub fn contenders(&self) -> Vec<Contender<'_>> {
        let lines = self.lines.iter().map(|(name, line)| Contender::new(*name, || line.run()));
        let crun = self.crun.iter().map(|crun| Contender::new("crun", || crun.run()));
        let docker = self.docker.iter().map(|line| Contender::new("docker run", || line.run()));
        lines.chain(crun).chain(docker).collect()
    }

    /// Those with which a crowd is compared.
    pub fn crowd(&self) -> Vec<Contender<'_>> {
        self.contenders().into_iter().filter(|c| ["bwrap", "docker run"].contains(&c.name.as_str())).collect()
    }

    /// bwrap with more arguments around another command.
    pub fn bwrap(&self, rest: &[&str]) -> Option<Line> {
        let (_, line) = self.lines.iter().find(|(name, _)| *name == "bwrap")?;
        Some(Line::new(&line.program, BWRAP.iter().chain(rest).copied()))
    }

    /// What was run, for whoever wants to repeat it.
    pub fn commands(&self) -> BTreeMap<String, String> {
        let lines = self.lines.iter().map(|(name, line)| ((*name).to_owned(), line.text()));
        let crun = self.crun.iter().map(|crun| ("crun".to_owned(), crun.line("ID").text()));
        let docker = self.docker.iter().map(|line| ("docker run".to_owned(), line.text()));
        lines.chain(crun).chain(docker).collect()
    }

    pub fn versions(&self) -> BTreeMap<String, String> {
        let names = self.lines.iter().map(|(name, _)| *name);
        let names = names.chain(self.crun.iter().map(|_| "crun")).chain(self.docker.iter().map(|_| "docker"));
        let version = |name| answer(&Line::new(which(name)?, ["--version"]));
        names.filter_map(|name| Some((name.to_owned(), version(name)?.lines().next()?.to_owned()))).collect()
    }
}

/// A root directory with the host's own `true` and the libraries that it needs: images run the same command as everybody.
#[derive(Debug)]
struct RootFs(PathBuf);

impl RootFs {
    fn make(at: &Path) -> Result<RootFs, Failure> {
        let wrong = |e: std::io::Error| format!("cannot make a root directory: {e}");
        let ldd = which("ldd").ok_or("no ldd to tell the libraries of /bin/true")?;
        // A static program has none, and ldd says so by failing.
        let listed = answer(&Line::new(ldd, [TRUE])).unwrap_or_default();
        let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.chain([TRUE, SLEEP]) {
            let target = at.join(file.trim_start_matches('/'));
            fs::create_dir_all(target.parent().unwrap_or(at)).map_err(wrong)?;
            fs::copy(file, &target).map_err(wrong)?;
        }
        for dir in ["dev", "proc", "sys", "tmp", "etc"] {
            fs::create_dir_all(at.join(dir)).map_err(wrong)?;
        }
        Ok(RootFs(at.to_path_buf()))
    }
}

/// crun with a bundle of its own.
#[derive(Debug)]
struct Crun {
    program: PathBuf,
    bundle: PathBuf,
    state: PathBuf,
    next: AtomicU64,
}

impl Crun {
    fn find(place: &Path, root: &RootFs) -> Result<Crun, Failure> {
        let program = which("crun").ok_or("not installed")?;
        let bundle = place.join("crun-bundle");
        let state = place.join("crun-state");
        let wrong = |e: std::io::Error| format!("cannot make a bundle: {e}");
        for dir in [&bundle, &state] {
            fs::create_dir_all(dir).map_err(wrong)?;
        }
        let rootless = (!rustix::process::getuid().is_root()).then_some("--rootless");
        Line::new(&program, ["spec"].into_iter().chain(rootless)).at(&bundle).trial()?;
        let file = bundle.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).map_err(wrong)?).map_err(|e| e.to_string())?;
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!([TRUE]);
        config["root"] = json!({ "path": root.0, "readonly": true });
        fs::write(&file, config.to_string()).map_err(wrong)?;
        let crun = Crun { program, bundle, state, next: AtomicU64::new(0) };
        crun.line("trial").trial()?;
        Ok(crun)
    }

    fn line(&self, id: &str) -> Line {
        let (state, bundle) = (self.state.as_os_str(), self.bundle.as_os_str());
        Line::new(&self.program, ["--root".as_ref(), state, "run".as_ref(), "--bundle".as_ref(), bundle, id.as_ref()])
    }

    fn run(&self) -> Result<(), Failure> {
        let id = format!("ringfence-bench-{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        self.line(&id).run()
    }
}

/// `docker run`, when a daemon answers. The image is made here: nothing is pulled.
fn docker(place: &Path, root: &RootFs) -> Result<Line, Failure> {
    let docker = which("docker").ok_or("not installed")?;
    Line::new(&docker, ["version"]).trial().map_err(|e| format!("no daemon: {e}"))?;
    let image = format!("ringfence-bench:{}", std::process::id());
    // First, so that ./bench removes the image whatever happens.
    fs::write(place.join("docker-image"), &image).map_err(|e| e.to_string())?;
    let wrong = |e: std::io::Error| format!("cannot make an image: {e}");
    let mut tar = Command::new("tar")
        .args(["-c", "-C"])
        .args([root.0.as_os_str(), ".".as_ref()])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(wrong)?;
    let import = Command::new(&docker)
        .args(["import", "-", &image])
        .stdin(tar.stdout.take().map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    tar.wait().map_err(wrong)?;
    if !import.map_err(wrong)?.success() {
        return Err("cannot make an image: docker import failed".to_owned());
    }
    let line = Line::new(docker, ["run", "--rm", "--network", "none", "--pull", "never", &image, TRUE]);
    line.trial()?;
    Ok(line)
}
