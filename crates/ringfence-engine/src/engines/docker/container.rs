//! One container with a guest in it: made, watched, ended.
//!
//! Calls to the daemon are made on a thread of their own, one at a time, so that a box can be used from anywhere. Nothing
//! here depends on the guest's good will: killing and removing are the daemon's, and when that cannot be had, closing the
//! socket ends the guest.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    WaitContainerOptionsBuilder,
};
use futures_util::StreamExt;
use ringfence_linux::landlock::Abi;
use ringfence_linux::limits::{Gauge, Refusals, Usage};
use ringfence_linux::sys::sysctl;
use ringfence_policy::canonical;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::Limits;
use ringfence_policy::plan::{Mount, Plan};
use ringfence_policy::policy::{Device, Network};
use ringfence_policy::syscalls::SyscallGroup;
use serde::Serialize;

use super::compile;
use super::daemon::Daemon;
use super::error::{DockerError, Step};
use super::files::{BoxFiles, Store};
use super::images;
use super::key::Key;
use super::labels::{self, Owner, Purpose};
use super::names::{self, Name};
use super::network;
use super::request::{self, Image, Parts, Reach, Request};
use super::volumes;
use crate::engines::{About, Cache, Control, EngineError, GuestSandbox, Left, await_first_word, first_words};
use crate::janitor::Janitor;

/// How long a guest may take to call after its container was started.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a container may take to go after it was removed by force.
const LAST_WAIT: Duration = Duration::from_secs(15);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A container that runs.
#[derive(Debug)]
struct Container {
    daemon: PathBuf,
    id: String,
    /// Of the guest, as the host sees it.
    pid: i32,
    gauge: Option<Gauge>,
    files: BoxFiles,
    caches: Vec<Cache>,
    removed: bool,
    /// Keeps what it needs on this host. The last to go.
    _janitor: Option<Janitor>,
}

/// Makes a container with a guest in it that has spoken. The plan's environment becomes the container's.
pub fn start_guest(
    plan: &mut Plan,
    facts: &Facts,
    guest: &[u8],
    about: About<'_>,
) -> Result<(Box<dyn GuestSandbox>, OwnedFd), EngineError> {
    let janitor = Janitor::start(plan, &[], facts)?;
    request::Unprivileged::check(plan)?;
    let daemon = Daemon::connect(facts)?;
    let (abilities, image) = super::block_on(async {
        let abilities = daemon.abilities().await?;
        let image = images::find(&daemon, plan.image.as_deref().unwrap_or_default(), &|_| {}).await?;
        Ok((abilities, image))
    })?;
    let compiled = compile::compile(plan, &facts.mounts, &abilities)?;
    // Which ids a remapping daemon gives out is its own affair.
    if !abilities.userns {
        check_writable(plan, abilities.rootless.then_some(facts.uid))?;
    }
    let store = Store::open(about.state)?;
    let key = Key::find_or_make(&Owner::new(facts.uid, about.state), about.keys)?;
    let box_id = fresh_id();
    // A home without a name would be found by nobody.
    let slug = about.name.unwrap_or(about.session);
    let hash = hash(plan, &image)?;
    let name = Name::container(&names::part(about.profile).unwrap_or_else(|_| "own".to_owned()), &box_id)
        .map_err(DockerError::from)?;
    store.note_daemon(daemon.socket())?;
    let (files, listener) = store.furnish(&box_id, about.session, &compiled, guest)?;
    let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let labels = labels::sandbox(
        &key,
        &name,
        &labels::Sandbox { session: about.session, profile: about.profile, policy: &hash, created },
    );
    let volumes = super::block_on(async { volumes::ensure(&daemon, plan, &image, slug, &key, &store).await })?;
    let parts = Parts { name: name.clone(), image: &image, labels, files: &files.places, volumes: &volumes.ready };
    let mut request = request::request(plan, &compiled, &abilities, parts)?;
    if abilities.podman {
        request.for_podman(&store.keep_filter(request.filter())?, most_processes());
    }
    let confined = Abi::of_this_kernel().confines_writes().then(|| request.writable());
    let (id, pid, channel) = super::block_on(async {
        match bring_up(&daemon, &request, &store, &key, &listener).await {
            // Older daemons look the network up when a container starts, newer ones when it is created.
            Err((error, Some(network))) if error.status() == Some(404) && !exists(&daemon, &network).await => {
                network::forget(&daemon, store.path())?;
                bring_up(&daemon, &request, &store, &key, &listener).await.map_err(|(error, _)| error)
            }
            result => result.map_err(|(error, _)| error),
        }
    })?;
    drop(listener);
    let gauge = Gauge::of(pid);
    let (daemon, caches) = (daemon.socket().to_path_buf(), volumes.caches());
    let env = super::environment(plan, &image, &caches);
    let container = Container { daemon, id, pid, gauge, files, caches, removed: false, _janitor: janitor };
    container.files.hang_up()?;
    rustix::io::write(&channel, &first_words(plan, None, confined)?).map_err(EngineError::Guest)?;
    await_first_word(&channel)?;
    plan.env = env;
    Ok((Box::new(container), channel))
}

/// As many processes as anybody may start here: Podman has no more itself.
fn most_processes() -> Option<u64> {
    let ours = rustix::process::getrlimit(rustix::process::Resource::Nproc).maximum;
    let all = sysctl("kernel.pid_max").and_then(|text| text.parse().ok());
    ours.into_iter().chain(all).min()
}

/// Twelve random digits: what a container and its files are called by.
pub(super) fn fresh_id() -> String {
    let mut bytes = [0u8; 6];
    // Cannot fail for so few bytes once the system is up; a name that is taken is an error of its own.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a container is made from. Another hash means another container.
#[derive(Serialize)]
struct MadeFrom<'a> {
    hardening: u32,
    image: &'a str,
    mounts: &'a [Mount],
    network: &'a Network,
    devices: &'a [Device],
    tmp_exec: bool,
    uid: u32,
    gid: u32,
    limits: &'a Limits,
    allow_syscalls: &'a [String],
    refuse_syscalls: &'a BTreeSet<SyscallGroup>,
}

/// Hash of what a container is made from.
pub fn hash(plan: &Plan, image: &Image) -> Result<String, EngineError> {
    /// Raised when the request changes for all.
    const HARDENING: u32 = 1;
    // A new field of a plan does not compile until it is decided here whether containers differ by it.
    let Plan {
        mounts,
        project: _,
        stubs: _,
        // As the daemon knows it, by its id.
        image: _,
        network,
        devices,
        caches_required: _,
        tmp_exec,
        // This engine refuses both.
        docker: _,
        nesting: _,
        uid,
        gid,
        owner: _,
        // Of commands, which come later.
        workdir: _,
        env: _,
        runs: _,
        handed_socket: _,
        limits,
        allow_syscalls,
        refuse_syscalls,
        trace_denials: _,
        // How it is judged, not what it is.
        strict: _,
        promises: _,
        weakened: _,
        warnings: _,
    } = plan;
    let made_from = MadeFrom {
        hardening: HARDENING,
        image: &image.id,
        mounts,
        network,
        devices,
        tmp_exec: *tmp_exec,
        uid: *uid,
        gid: *gid,
        limits,
        allow_syscalls,
        refuse_syscalls,
    };
    Ok(canonical::hash(&made_from)?.trim_start_matches("sha256:").chars().take(16).collect())
}

/// The working directory must be writable for the user of the container, where the policy says so: Docker maps no ids.
///
/// Other places that are writable by the policy (caches in the caller's home, say) stay what their owners made them: that
/// a box of root's cannot fill root's caches takes nothing from anybody.
///
/// `root`: who is root in containers of a rootless daemon.
fn check_writable(plan: &Plan, root: Option<u32>) -> Result<(), DockerError> {
    let workdir = plan.mounts.iter().find_map(|mount| match mount {
        Mount::Bind { source, target, writable: true, .. } if *target == plan.workdir => Some(source),
        _ => None,
    });
    let Some(path) = workdir else { return Ok(()) };
    let looked = std::fs::metadata(path);
    let data = looked.map_err(|source| DockerError::Files { what: "look at", path: path.clone(), source })?;
    let of_root = root == Some(data.uid());
    let bits = match () {
        () if root.is_some() => 0o002,
        () if data.uid() == plan.uid => 0o200,
        () if data.gid() == plan.gid => 0o020,
        () => 0o002,
    };
    // Of what a rootless daemon's containers are besides root, the caller knows nothing.
    if root.is_some() && !of_root {
        return Ok(());
    }
    // An access list says more than the bits; then the kernel decides.
    if data.mode() & bits == 0 && !has_access_list(path) {
        let owner = if of_root { (0, 0) } else { (data.uid(), data.gid()) };
        let path = path.clone();
        return Err(DockerError::NotWritable { path, uid: plan.uid, gid: plan.gid, owner });
    }
    Ok(())
}

fn has_access_list(path: &Path) -> bool {
    let mut value = [0u8; 1];
    !matches!(
        rustix::fs::getxattr(path, c"system.posix_acl_access", &mut value),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP | rustix::io::Errno::NOENT)
    )
}

/// Creates a container and starts it; with an error comes the network that it was to be on.
async fn bring_up(
    daemon: &Daemon,
    request: &Request,
    store: &Store,
    key: &Key,
    listener: &UnixListener,
) -> Result<(String, i32, OwnedFd), (DockerError, Option<String>)> {
    let network = match request.reach() {
        Reach::Nothing => None,
        Reach::Bridge(_) => Some(network::ensure(daemon, store.path()).await.map_err(|error| (error, None))?),
    };
    let created = create(daemon, request, network.as_deref(), key).await;
    let id = created.map_err(|error| (error, network.clone()))?;
    match run(daemon, &id, listener).await {
        Ok((pid, channel)) => Ok((id, pid, channel)),
        Err(error) => {
            // What is left is found by its labels, should this fail as well.
            let _ = remove(daemon, &id).await;
            Err((error, network))
        }
    }
}

async fn create(daemon: &Daemon, request: &Request, network: Option<&str>, key: &Key) -> Result<String, DockerError> {
    let mut again = true;
    loop {
        let options = CreateContainerOptionsBuilder::new().name(request.name.as_str()).build();
        let error = match daemon.docker().create_container(Some(options), request.body(network)).await {
            Ok(created) => return Ok(created.id),
            Err(source) => daemon.error(Step::CreateContainer, source),
        };
        // One of this name is there. What a crash left is ours to remove; anything else is not.
        if error.status() != Some(409) || !again {
            return Err(error);
        }
        clear_name(daemon, request, key, error).await?;
        again = false;
    }
}

async fn exists(daemon: &Daemon, network: &str) -> bool {
    daemon.docker().inspect_network(network, None).await.is_ok()
}

async fn clear_name(daemon: &Daemon, request: &Request, key: &Key, taken: DockerError) -> Result<(), DockerError> {
    let found = inspect(daemon, request.name.as_str()).await?;
    let running = found.state.as_ref().and_then(|state| state.running).unwrap_or(false);
    match &found.id {
        Some(id) if is_ours(&found, key) && !running => remove(daemon, id).await,
        _ => Err(taken),
    }
}

/// Whether a container was made by us: it has a name of ours, it starts what ours start, and its labels prove that they are
/// its own. Labels that it inherited from an image, or that were copied to it, are made for another name.
fn is_ours(found: &ContainerInspectResponse, key: &Key) -> bool {
    // The API puts a slash before names.
    let name = found.name.as_deref().map_or("", |name| name.trim_start_matches('/'));
    let Some(config) = &found.config else { return false };
    let starts = config.entrypoint.as_deref().unwrap_or_default();
    let known = starts == [request::GUEST, request::CHANNEL] || starts == [volumes::NEVER_STARTED];
    let labels = config.labels.as_ref();
    known && Name::is_container(name) && labels.is_some_and(|labels| labels::prove(labels, key, Purpose::Sandbox, name))
}

/// Starts a container, and waits until its guest calls.
async fn run(daemon: &Daemon, id: &str, listener: &UnixListener) -> Result<(i32, OwnedFd), DockerError> {
    let started = daemon.docker().start_container(id, None).await;
    started.map_err(|source| daemon.error(Step::StartContainer, source))?;
    let channel = tokio::select! {
        called = called(listener) => called?,
        ended = ended(daemon, id) => return Err(ended),
        () = tokio::time::sleep(PATIENCE) => return Err(DockerError::NoGuest(PATIENCE)),
    };
    let state = inspect(daemon, id).await?.state.unwrap_or_default();
    let pid = state.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
    if !state.running.unwrap_or(false) || pid == 0 {
        return Err(DockerError::Ended(state.error.unwrap_or_default()));
    }
    let caller = rustix::net::sockopt::socket_peercred(&channel);
    match caller {
        // Whoever else calls is not the guest.
        Ok(caller) if caller.pid.as_raw_nonzero().get() == pid => Ok((pid, channel)),
        _ => Err(DockerError::Ended("another process called in its place".to_owned())),
    }
}

async fn called(listener: &UnixListener) -> Result<OwnedFd, DockerError> {
    let failed =
        |source: io::Error| DockerError::Files { what: "listen at", path: PathBuf::from(request::CHANNEL), source };
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = listener.try_clone().and_then(tokio::net::UnixListener::from_std).map_err(failed)?;
    let (stream, _) = listener.accept().await.map_err(failed)?;
    let stream = stream.into_std().map_err(failed)?;
    stream.set_nonblocking(false).map_err(failed)?;
    Ok(stream.into())
}

/// Waits for the end of a container that should not have ended.
async fn ended(daemon: &Daemon, id: &str) -> DockerError {
    let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
    let mut wait = std::pin::pin!(daemon.docker().wait_container(id, Some(options)));
    match wait.next().await {
        Some(Ok(response)) => DockerError::Ended(format!("exit code {}", response.status_code)),
        Some(Err(bollard::errors::Error::DockerContainerWaitError { code, .. })) => {
            DockerError::Ended(format!("exit code {code}"))
        }
        Some(Err(source)) => daemon.error(Step::WaitContainer, source),
        None => DockerError::Ended(String::new()),
    }
}

async fn inspect(daemon: &Daemon, id: &str) -> Result<ContainerInspectResponse, DockerError> {
    let found = daemon.docker().inspect_container(id, None).await;
    found.map_err(|source| daemon.error(Step::InspectContainer, source))
}

/// Kills and removes a container, and waits until it is gone. That it is gone already is what is wanted.
pub(super) async fn remove(daemon: &Daemon, id: &str) -> Result<(), DockerError> {
    let until = std::time::Instant::now() + LAST_WAIT;
    loop {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let error = match daemon.docker().remove_container(id, Some(options)).await {
            Ok(()) => return Ok(()),
            Err(source) => daemon.error(Step::RemoveContainer, source),
        };
        match error.status() {
            Some(404) => return Ok(()),
            // Somebody is at it: the daemon itself, where it removes what has ended.
            Some(409 | 500) if std::time::Instant::now() < until => {
                // One that is paused may not die. That it is not paused is no matter.
                let _ = daemon.docker().unpause_container(id).await;
                tokio::time::sleep(LOOK).await;
            }
            Some(409 | 500) => return Err(DockerError::Stuck(id.to_owned())),
            _ => return Err(error),
        }
    }
}

impl GuestSandbox for Container {
    fn process_id(&self) -> Option<i32> {
        Some(self.pid)
    }

    fn id(&self) -> Option<&str> {
        Some(&self.id)
    }

    /// The daemon limits what it makes.
    fn is_limited(&self) -> bool {
        true
    }

    fn usage(&self) -> Usage {
        self.gauge.as_ref().map(Gauge::usage).unwrap_or_default()
    }

    fn refusals(&self) -> Option<Refusals> {
        self.gauge.as_ref().and_then(Gauge::refusals)
    }

    fn control(&self) -> Option<Arc<dyn Control>> {
        self.gauge.as_ref().map(|gauge| Arc::new(gauge.control()) as Arc<dyn Control>)
    }

    fn caches(&self) -> &[Cache] {
        &self.caches
    }

    fn finish(mut self: Box<Self>) -> Result<Usage, EngineError> {
        let usage = self.usage();
        // Tried here, and not again when this is dropped.
        self.removed = true;
        let daemon = Daemon::at(&self.daemon)?;
        super::block_on(async { remove(&daemon, &self.id).await })?;
        Ok(usage)
    }
}

impl Drop for Container {
    /// For a start that failed half-way; what this leaves is found by its labels.
    fn drop(&mut self) {
        if !self.removed
            && let Ok(daemon) = Daemon::at(&self.daemon)
        {
            let _ = super::block_on(async { remove(&daemon, &self.id).await });
        }
    }
}

/// Removes the containers, and the files of boxes, whose session is not among the living.
///
/// Asked are the daemons that were used; where that is not known any more (the state directory was emptied), the one that
/// the caller's environment names, as far as it can be. `keys`: the directory with the key. Without it nothing is ours.
pub fn clear(left: &Left<'_>) -> Result<Vec<String>, DockerError> {
    let Left { state, keys, facts, lives: living } = *left;
    let mut cleared = Vec::new();
    let mut used = Vec::new();
    if Store::is_at(state) {
        let store = Store::open(state)?;
        for (id, session) in store.boxes()? {
            if !living(&session) {
                store.clear(&id)?;
                cleared.push(session);
            }
        }
        used = store.daemons()?;
    }
    // Last: what lies on this host needs no key, and is cleared also when the key is damaged.
    if let Some(key) = Key::find(&Owner::new(facts.uid, state), keys)? {
        cleared.extend(clear_containers(used, &key, facts, living)?);
    }
    cleared.sort();
    cleared.dedup();
    Ok(cleared)
}

/// Removes the containers at these daemons whose session is not among the living. Returns the sessions.
fn clear_containers(
    used: Vec<PathBuf>,
    key: &Key,
    facts: &Facts,
    living: &dyn Fn(&str) -> bool,
) -> Result<Vec<String>, DockerError> {
    let mut cleared = Vec::new();
    let known = !used.is_empty();
    let sockets = if known { used } else { super::daemon::socket(facts).into_iter().collect() };
    for socket in sockets {
        let found = match Daemon::at(&socket) {
            Ok(daemon) => super::block_on(async { list(&daemon, key).await }).map(|found| (daemon, found)),
            Err(error) => Err(error),
        };
        let (daemon, found) = match found {
            Ok(found) => found,
            // Without a daemon there are no containers, and one that was never used has none of ours.
            Err(DockerError::Absent(_)) => continue,
            Err(_) if !known => continue,
            Err(error) => return Err(error),
        };
        let dead: Vec<(String, String)> = found.into_iter().filter(|(_, session)| !living(session)).collect();
        super::block_on(async {
            for (id, _) in &dead {
                remove(&daemon, id).await?;
            }
            Ok(())
        })?;
        cleared.extend(dead.into_iter().map(|(_, session)| session));
    }
    Ok(cleared)
}

/// Hash of all that the box of a plan would be made from now.
pub fn hash_of(plan: &Plan, facts: &Facts) -> Result<String, EngineError> {
    let daemon = Daemon::connect(facts)?;
    let image = super::block_on(async {
        daemon.abilities().await?;
        images::find(&daemon, plan.image.as_deref().unwrap_or_default(), &|_| {}).await
    })?;
    hash(plan, &image)
}

/// Removes the home that is kept by a name.
pub fn remove_home(facts: &Facts, state: &Path, keys: &Path, slug: &str) -> Result<(), EngineError> {
    let daemon = Daemon::connect(facts)?;
    let key = Key::find_or_make(&Owner::new(facts.uid, state), keys)?;
    super::block_on(async {
        daemon.abilities().await?;
        volumes::remove_home(&daemon, slug, &key).await
    })?;
    Ok(())
}

/// Our containers, each with its session.
async fn list(daemon: &Daemon, key: &Key) -> Result<Vec<(String, String)>, DockerError> {
    // The daemon is asked what it can do first, so that it is spoken to in its own version.
    daemon.abilities().await?;
    let options =
        ListContainersOptionsBuilder::new().all(true).filters(&labels::filters(key.owner(), Purpose::Sandbox)).build();
    let found = daemon.docker().list_containers(Some(options)).await;
    let found = found.map_err(|source| daemon.error(Step::ListContainers, source))?;
    let mut ours = Vec::new();
    for id in found.into_iter().filter_map(|container| container.id) {
        // The daemon was asked by labels that anyone can write: each is looked at.
        match inspect(daemon, &id).await {
            Ok(found) if is_ours(&found, key) => {
                let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
                ours.extend(labels::session(&labels).map(|session| (id, session.to_owned())));
            }
            Ok(_) => {}
            Err(error) if error.status() == Some(404) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ours)
}
