//! The daemon: where it listens, whether it is there, what it can do. Asked once, and remembered for a short time.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bollard::{API_DEFAULT_VERSION, ClientVersion, Docker};
use ringfence_policy::facts::Facts;

use super::error::{DockerError, Step};

/// Where Docker listens when nobody says otherwise.
const SOCKET: &str = "/var/run/docker.sock";
/// Seconds that one call may take. Making a container on a busy host takes some.
const PATIENCE: u64 = 60;
/// How long it may take to say what it is: one that hangs is told from a busy one by this, before anything is asked of it.
const GREETING: Duration = Duration::from_secs(10);
/// How long an answer about the daemon itself is good for.
const REMEMBERED: Duration = Duration::from_secs(5);

/// What a daemon can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// Version of its API.
    pub api: (usize, usize),
    /// Version of the daemon.
    pub server: String,
    /// Filters system calls.
    pub seccomp: bool,
    /// Runs without root's rights.
    pub rootless: bool,
    /// Maps ids of containers to others of the host.
    pub userns: bool,
    /// Memory can be limited.
    pub memory: bool,
    /// Swap can be limited.
    pub swap: bool,
    /// CPUs can be limited.
    pub cpus: bool,
    /// Processes can be limited.
    pub pids: bool,
    /// Where it keeps its files.
    pub root: PathBuf,
    /// It is Podman, which speaks the same API and wants filters as files.
    pub podman: bool,
}

impl Abilities {
    /// From which version on read-only binds are so with everything mounted below them.
    pub fn recursive_read_only(&self) -> bool {
        self.api >= (1, 44)
    }
}

/// When it was asked, and what it said.
type Asked = (Instant, Arc<Abilities>);

/// A daemon on this host. Cheap to clone.
#[derive(Clone)]
pub struct Daemon {
    docker: Docker,
    socket: PathBuf,
    asked: Arc<Mutex<Option<Asked>>>,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Variables that name the daemon; the first that is set does.
pub const VARIABLES: [&str; 2] = ["DOCKER_HOST", "CONTAINER_HOST"];

/// Where the daemon listens, by the caller's environment.
pub fn socket(facts: &Facts) -> Result<PathBuf, DockerError> {
    let variable = |name: &str| facts.env.get(OsStr::new(name)).filter(|value| !value.is_empty());
    let Some(host) = VARIABLES.into_iter().find_map(variable) else {
        return Ok(PathBuf::from(SOCKET));
    };
    let path = host.to_str().and_then(|host| host.strip_prefix("unix://")).map(PathBuf::from);
    path.filter(|path| path.is_absolute()).ok_or_else(|| DockerError::Address(host.to_string_lossy().into_owned()))
}

impl Daemon {
    /// The daemon that the caller's environment names. Fails at once when nobody listens or may be asked.
    pub fn connect(facts: &Facts) -> Result<Daemon, DockerError> {
        Self::at(&socket(facts)?)
    }

    /// The daemon at a socket.
    pub fn at(socket: &Path) -> Result<Daemon, DockerError> {
        // What is known of a daemon is known to all boxes of this process.
        type Known = Mutex<HashMap<PathBuf, Arc<Mutex<Option<(Instant, Arc<Abilities>)>>>>>;
        static KNOWN: OnceLock<Known> = OnceLock::new();
        if let Err(error) = std::os::unix::net::UnixStream::connect(socket) {
            return Err(match error.kind() {
                std::io::ErrorKind::PermissionDenied => DockerError::Permission(socket.to_path_buf()),
                _ => DockerError::Absent(socket.to_path_buf()),
            });
        }
        let path = socket.to_str().ok_or_else(|| DockerError::Address(socket.display().to_string()))?;
        let known = KNOWN.get_or_init(Mutex::default).lock();
        let asked = known.map(|mut known| known.entry(socket.to_path_buf()).or_default().clone()).unwrap_or_default();
        let api = asked.lock().ok().and_then(|asked| asked.as_ref().map(|(_, abilities)| abilities.api));
        let version = api.map_or(*API_DEFAULT_VERSION, |(major, minor)| {
            let known = ClientVersion { major_version: major, minor_version: minor };
            if known < *API_DEFAULT_VERSION { known } else { *API_DEFAULT_VERSION }
        });
        let docker = Docker::connect_with_unix(path, PATIENCE, &version)
            .map_err(|error| DockerError::of(Step::Connect, socket, error))?;
        Ok(Daemon { docker, socket: socket.to_path_buf(), asked })
    }

    /// The socket that it listens at.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn docker(&self) -> &Docker {
        &self.docker
    }

    /// An error of a call, in our words.
    pub(super) fn error(&self, step: Step, source: bollard::errors::Error) -> DockerError {
        let error = DockerError::of(step, &self.socket, source);
        if error.is_unavailable() {
            self.forget();
        }
        self.or_disk_full(step, error)
    }

    /// The API has one status for every failure inside the daemon. That its disk is full can be seen from here.
    fn or_disk_full(&self, step: Step, error: DockerError) -> DockerError {
        let known = self.asked.lock().ok().and_then(|asked| asked.as_ref().map(|(_, abilities)| abilities.clone()));
        let at = known.map(|abilities| abilities.root.clone());
        match (&error, at) {
            (DockerError::Refused { status: 500 | 0, .. }, Some(at)) if is_full(&at) => {
                DockerError::DiskFull { step, at, source: Box::new(error) }
            }
            _ => error,
        }
    }

    fn forget(&self) {
        if let Ok(mut asked) = self.asked.lock() {
            *asked = None;
        }
    }

    /// What the daemon can do, and with that whether it is there: asked at most every few seconds.
    pub async fn abilities(&self) -> Result<Arc<Abilities>, DockerError> {
        if let Ok(asked) = self.asked.lock()
            && let Some((when, abilities)) = asked.as_ref()
            && when.elapsed() < REMEMBERED
        {
            return Ok(abilities.clone());
        }
        let answer = tokio::time::timeout(GREETING, self.ask()).await;
        let abilities = Arc::new(answer.unwrap_or(Err(DockerError::Slow(Step::Ask)))?);
        if let Ok(mut asked) = self.asked.lock() {
            *asked = Some((Instant::now(), abilities.clone()));
        }
        Ok(abilities)
    }

    async fn ask(&self) -> Result<Abilities, DockerError> {
        let fail = |source| DockerError::of(Step::Ask, &self.socket, source);
        // The client takes over what the daemon speaks; its copies share that.
        self.docker.clone().negotiate_version().await.map_err(fail)?;
        let version = self.docker.version().await.map_err(fail)?;
        let info = self.docker.info().await.map_err(fail)?;
        let options = info.security_options.unwrap_or_default();
        let has =
            |name: &str| options.iter().any(|option| option.split(',').any(|part| part == format!("name={name}")));
        let number = |text: &str| {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        Ok(Abilities {
            api: version.api_version.as_deref().and_then(number).unwrap_or((1, 0)),
            server: version.version.unwrap_or_default(),
            seccomp: has("seccomp"),
            rootless: has("rootless"),
            userns: has("userns"),
            memory: info.memory_limit.unwrap_or(false),
            swap: info.swap_limit.unwrap_or(false),
            cpus: info.cpu_cfs_quota.unwrap_or(false),
            pids: info.pids_limit.unwrap_or(false),
            root: PathBuf::from(info.docker_root_dir.unwrap_or_default()),
            podman: version.components.unwrap_or_default().iter().any(|part| part.name == "Podman Engine"),
        })
    }
}

/// Whether the file system has no block or inode left for an ordinary user.
fn is_full(path: &Path) -> bool {
    // The daemon's directory may be root's alone; the file system is the same above it.
    let at = path.ancestors().find(|path| path.exists());
    at.and_then(|at| rustix::fs::statvfs(at).ok()).is_some_and(|fs| {
        let least = fs.f_blocks / 200;
        fs.f_bavail <= least || (fs.f_files > 0 && fs.f_favail == 0)
    })
}
