//! A scene: files of a made-up user on the host, a project, and what the policy of a box is to say.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ringfence::policy::Layer;
use ringfence::policy::facts::Account;

/// Where the project lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the home directory.
    Home,
    /// Outside of home and of `/tmp`.
    Apart,
    /// In `/tmp`.
    Temp,
}

/// Everything that one box stands in. Goes with all its files, sockets and processes when it is dropped.
pub struct Scene {
    pub home: PathBuf,
    pub project: PathBuf,
    /// Outside of home and of the project, and writable for the caller.
    pub elsewhere: PathBuf,
    /// What the flags of the box say.
    pub policy: Layer,
    /// Users of the host whose homes lie in the scene, for root to meet.
    pub accounts: Vec<Account>,
    /// The caller's environment.
    pub env: BTreeMap<String, String>,
    /// Text of the project's configuration file, which the box is made with.
    pub probe: PathBuf,
    /// Words that stand for something in an act: `{name}`.
    pub words: BTreeMap<String, String>,
    guards: Vec<Box<dyn Any + Send + Sync>>,
    dirs: Vec<tempfile::TempDir>,
    /// Where the sessions of this scene's user are: Ringfence's own, and not looked at for changes.
    sessions: tempfile::TempDir,
}

impl std::fmt::Debug for Scene {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scene").field("project", &self.project).field("home", &self.home).finish_non_exhaustive()
    }
}

/// What is in hidden files.
pub const SECRET: &str = "hunter2-the-secret";
/// What is in ordinary ones.
pub const PLAIN: &str = "plain";

/// The program that starts a box, ended when this is dropped at the latest.
#[derive(Debug)]
pub struct Launcher(pub Child);

impl Launcher {
    pub fn id(&self) -> i32 {
        self.0.id() as i32
    }

    /// `kill -9`, and waits for it.
    pub fn kill(self) {}
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Already gone is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Undoes a mount.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

impl Scene {
    pub fn new(place: Place, probe: &Path) -> Scene {
        let dir = |base: &Path| {
            let dir = tempfile::Builder::new().prefix("ringfence-case-").tempdir_in(base).expect("a directory");
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
            dir
        };
        let main = dir(&crate::base());
        let (home, elsewhere) = (main.path().join("home"), main.path().join("elsewhere"));
        let mut dirs = vec![main];
        let project = match place {
            Place::Home => home.join("project"),
            Place::Apart => dirs[0].path().join("project"),
            Place::Temp => {
                dirs.push(dir(Path::new("/tmp")));
                dirs[1].path().join("project")
            }
        };
        let mut env = BTreeMap::new();
        env.insert("HOME".to_owned(), home.display().to_string());
        env.insert("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        let mut scene = Scene {
            home,
            project,
            elsewhere,
            policy: Layer::flags(),
            accounts: Vec::new(),
            env,
            probe: probe.to_owned(),
            words: BTreeMap::new(),
            guards: Vec::new(),
            dirs,
            sessions: tempfile::Builder::new()
                .prefix("ringfence-sessions-")
                .tempdir_in(crate::base())
                .expect("a directory"),
        };
        scene.fill();
        scene
    }

    /// Where the sessions of this scene's user are.
    pub fn sessions(&self) -> PathBuf {
        self.sessions.path().join("sessions")
    }

    fn fill(&mut self) {
        for (path, text) in SECRETS {
            self.file(&self.home.join(path), SECRET, if *text { 0o600 } else { 0o644 });
        }
        self.file(&self.home.join("notes"), PLAIN, 0o644);
        self.file(&self.home.join("dir/inner"), PLAIN, 0o644);
        self.file(&self.elsewhere.join("file"), PLAIN, 0o644);
        self.file(&self.elsewhere.join("dir/inner"), PLAIN, 0o644);
        self.file(&self.project.join("file"), PLAIN, 0o644);
        self.file(&self.project.join("dir/inner"), PLAIN, 0o644);
        symlink(self.home.join(".ssh/id_rsa"), self.project.join("link-to-secret")).expect("a symlink");
        symlink(self.home.join("notes"), self.project.join("link-out")).expect("a symlink");
        symlink(&self.elsewhere, self.project.join("link-out-dir")).expect("a symlink");
        for (name, path) in [("home", &self.home), ("project", &self.project), ("elsewhere", &self.elsewhere)] {
            self.words.insert(name.to_owned(), path.display().to_string());
        }
        self.words.insert("probe".to_owned(), self.probe.display().to_string());
        self.words.insert("tag".to_owned(), tag());
    }

    /// What an image does not have: the probe, and what lies outside of home. Docker maps no ids, and runs nobody as root.
    pub fn for_image(&self, policy: &mut Layer) {
        policy.image(IMAGE).expect("the name of an image");
        let shown = [Some(self.elsewhere.as_path()), self.probe.parent()];
        for path in shown.into_iter().flatten() {
            policy.ro(&path.display().to_string());
        }
        if crate::host::is_root() {
            policy.user(&format!("{BOXED}:{BOXED}")).expect("ids");
        }
    }

    /// Gives everything to the user of a container, when root made it.
    pub fn hand_over(&self) {
        if crate::host::is_root() {
            for dir in &self.dirs {
                give(dir.path());
            }
        }
    }

    /// Makes a file with all directories above it.
    pub fn file(&self, path: &Path, text: &str, mode: u32) {
        fs::create_dir_all(path.parent().expect("a directory above")).expect("directories");
        fs::write(path, text).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    /// A repository as `git init` makes it, by hand: git need not be there.
    pub fn repository(&self) -> PathBuf {
        let git = self.project.join(".git");
        self.repository_at(&git);
        git
    }

    pub fn repository_at(&self, git: &Path) {
        for dir in ["hooks", "info", "objects/info", "objects/pack", "refs/heads", "refs/tags", "branches"] {
            fs::create_dir_all(git.join(dir)).expect("directories");
        }
        self.file(&git.join("HEAD"), "ref: refs/heads/main\n", 0o644);
        self.file(&git.join("config"), "[core]\n\trepositoryformatversion = 0\n\tbare = false\n", 0o644);
        self.file(&git.join("description"), "unnamed\n", 0o644);
        self.file(&git.join("info/exclude"), "", 0o644);
        self.file(&git.join("hooks/pre-commit"), "#!/bin/sh\n", 0o755);
    }

    /// Something that lives as long as the scene.
    pub fn keep(&mut self, thing: impl Any + Send + Sync) {
        self.guards.push(Box::new(thing));
    }

    pub fn word(&mut self, name: &str, value: impl ToString) {
        self.words.insert(name.to_owned(), value.to_string());
    }

    /// Replaces `{name}`s, and splits at spaces.
    pub fn act(&self, text: &str) -> Vec<String> {
        let replace = |word: &str| {
            self.words.iter().fold(word.to_owned(), |word, (name, value)| word.replace(&format!("{{{name}}}"), value))
        };
        text.split(' ').filter(|w| !w.is_empty()).map(replace).collect()
    }

    /// Listens on a Unix socket, streams and datagrams; the words are `name` and `name-datagram`.
    pub fn listen(&mut self, name: &str, path: &Path) {
        fs::create_dir_all(path.parent().expect("a directory above")).expect("directories");
        let datagram = path.with_extension("datagram");
        let (stream, datagrams) =
            (UnixListener::bind(path).expect("a socket"), UnixDatagram::bind(&datagram).expect("a socket"));
        for path in [path, &datagram] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("its mode");
        }
        self.word(name, path.display());
        self.word(&format!("{name}-datagram"), datagram.display());
        self.keep(Unlinked(path.to_owned()));
        self.keep(Unlinked(datagram));
        self.keep(stream);
        self.keep(datagrams);
    }

    /// Passes on what arrives at the socket of this word, which is then as good as the one at `to`.
    pub fn pass_on(&mut self, path: &Path, to: &'static str) {
        fs::remove_file(path).expect("the socket that nobody answers at");
        let listener = UnixListener::bind(path).expect("a socket");
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("its mode");
        let accepting = listener.try_clone().expect("a descriptor");
        self.keep(Hung(listener));
        std::thread::spawn(move || {
            while let Ok((from, _)) = accepting.accept() {
                // Whoever asks sees the end of the connection when there is nothing at the other end.
                let Ok(to) = UnixStream::connect(to) else { continue };
                for (mut a, mut b) in [(from.try_clone(), to.try_clone()), (Ok(to), Ok(from))]
                    .map(|(a, b)| (a.expect("a descriptor"), b.expect("a descriptor")))
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut a, &mut b);
                        let _ = b.shutdown(std::net::Shutdown::Write);
                    });
                }
            }
        });
    }

    /// Listens on an abstract Unix socket; the word is its name.
    pub fn listen_abstract(&mut self, word: &str) {
        let name = tag();
        let address = |n: &str| SocketAddr::from_abstract_name(n).expect("an abstract name");
        self.keep(UnixListener::bind_addr(&address(&name)).expect("a socket"));
        let datagram = format!("{name}-datagram");
        self.keep(UnixDatagram::bind_addr(&address(&datagram)).expect("a socket"));
        self.word(&format!("{word}-datagram"), datagram);
        self.word(word, name);
    }

    /// Listens on a TCP port of the host's loopback; the word is the address.
    pub fn listen_tcp(&mut self, word: &str, address: &str) {
        let listener = TcpListener::bind(address).expect("a listener");
        self.word(word, listener.local_addr().expect("its address"));
        self.keep(listener);
    }

    /// Answers datagrams on a UDP port of the host's loopback.
    pub fn answer_udp(&mut self, word: &str) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        self.word(word, socket.local_addr().expect("its address"));
        socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("a time limit");
        std::thread::spawn(move || {
            let mut bytes = [0; 8];
            while let Ok((n, from)) = socket.recv_from(&mut bytes) {
                if socket.send_to(&bytes[..n], from).is_err() {
                    return;
                }
            }
        });
    }

    /// A process of the caller on the host; the word is its pid.
    pub fn bystander(&mut self, word: &str) -> i32 {
        let child = Command::new(&self.probe)
            .args(["hold", "1000", &format!("bystander-{}", tag())])
            .env("BYSTANDER_SECRET", SECRET)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        let pid = child.id() as i32;
        self.word(word, pid);
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its memory");
        self.word(&format!("{word}-address"), format!("0x{}", maps.split('-').next().expect("an address")));
        self.keep(Launcher(child));
        pid
    }

    /// Shows a directory at another place; for root only.
    pub fn alias(&mut self, of: &Path, at: &Path) {
        fs::create_dir_all(at).expect("directories");
        rustix::mount::mount_bind(of, at).expect("a bind mount");
        self.keep(Mounted(at.to_owned()));
    }

    /// Shows a directory at another place, through an overlay; for root only.
    pub fn overlay(&mut self, of: &Path, at: &Path) {
        let other = self.dirs[0].path().join("other-layer");
        for dir in [at, &other] {
            fs::create_dir_all(dir).expect("directories");
        }
        let options = format!("lowerdir={}:{}", of.display(), other.display());
        let options = std::ffi::CString::new(options).expect("no NUL in a path");
        rustix::mount::mount("overlay", at, "overlay", rustix::mount::MountFlags::RDONLY, Some(options.as_c_str()))
            .expect("an overlay");
        self.keep(Mounted(at.to_owned()));
    }

    /// What changed since then. A start of another sandbox may be removing what this one left: then it is gone in a moment.
    pub fn changed_since(&self, then: &Snapshot, but: Option<&Path>) -> String {
        let mut changes = String::new();
        crate::host::eventually(std::time::Duration::from_secs(1), || {
            changes = then.changes(&self.snapshot(), but);
            changes.is_empty()
        });
        changes
    }

    /// Everything of this scene on the host, as it is now.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for dir in &self.dirs {
            snapshot.add(dir.path());
        }
        snapshot
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Mounts first, then the directories that they are on.
        self.guards.clear();
        // What sessions on Docker hide directories with is nobody's to enter, nor so to be removed with what it is in.
        let hidden = self.sessions().join("docker/hidden-dir");
        let _ = fs::set_permissions(hidden, fs::Permissions::from_mode(0o700));
    }
}

/// Ends the thread that accepts at it.
struct Hung(UnixListener);

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

struct Unlinked(PathBuf);

impl Drop for Unlinked {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The image of boxes on Docker, which `./test` builds.
pub const IMAGE: &str = "ringfence-test/busybox";
/// Whom a container runs as when root starts it.
const BOXED: u32 = 1000;

fn give(path: &Path) {
    let data = fs::symlink_metadata(path);
    // What is a program of root's for everybody stays so.
    if data.as_ref().is_ok_and(|data| !data.is_dir() && data.mode() & 0o6000 != 0) {
        return;
    }
    // Sockets of other cases come and go.
    let _ = std::os::unix::fs::lchown(path, Some(BOXED), Some(BOXED));
    let is_directory = data.is_ok_and(|data| data.is_dir());
    for entry in is_directory.then(|| fs::read_dir(path).ok()).flatten().into_iter().flatten().flatten() {
        give(&entry.path());
    }
}

/// A word that nothing else on this host has.
pub fn tag() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("ringfence-tag-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Files that `@base` hides, and whether only their owner may read them.
pub const SECRETS: &[(&str, bool)] = &[
    (".ssh/id_rsa", true),
    (".gnupg/private-keys-v1.d/key", true),
    (".aws/credentials", true),
    (".config/gcloud/credentials.db", true),
    (".kube/config", false),
    (".docker/config.json", false),
    (".netrc", true),
    (".npmrc", false),
    (".pypirc", false),
    (".mozilla/firefox/profile/logins.json", false),
    (".config/google-chrome/Default/Cookies", false),
];

/// Names, kinds, modes, owners, sizes, link targets and contents of files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<PathBuf, String>);

impl Snapshot {
    fn add(&mut self, path: &Path) {
        let Ok(data) = fs::symlink_metadata(path) else { return };
        let what = if data.is_symlink() {
            fs::read_link(path).map(|to| to.display().to_string()).unwrap_or_default()
        } else if data.is_file() {
            let text = fs::read(path).unwrap_or_default();
            format!("{} {:?}", text.len(), String::from_utf8_lossy(&text[..text.len().min(64)]))
        } else {
            String::new()
        };
        self.0.insert(path.to_owned(), format!("{:o} {}:{} {what}", data.mode(), data.uid(), data.gid()));
        if data.is_dir() {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                self.add(&entry.path());
            }
        }
    }

    /// What differs, in words; empty when nothing does. Names below `but` do not count.
    pub fn changes(&self, later: &Snapshot, but: Option<&Path>) -> String {
        let counts = |path: &&PathBuf| but.is_none_or(|but| !path.starts_with(but));
        let mut changes = Vec::new();
        for path in self.0.keys().filter(counts) {
            match later.0.get(path) {
                None => changes.push(format!("{} is gone", path.display())),
                Some(now) if *now != self.0[path] => {
                    changes.push(format!("{} was {} and is {now}", path.display(), self.0[path]));
                }
                Some(_) => {}
            }
        }
        let new = later.0.keys().filter(counts).filter(|p| !self.0.contains_key(*p));
        changes.extend(new.map(|p| format!("{} is new: {}", p.display(), later.0[p])));
        changes.join("; ")
    }
}
