//! The Docker engine: a plan becomes a create request, and the guest is process 1 of the container.
//!
//! [`compile`] and [`request`] are pure; what they cannot express they refuse. The rest talks to the daemon: through its
//! API alone. What it removes carries a label that proves it ours ([`key`]), beside our other [`labels`].

mod compile;
pub mod container;
mod daemon;
mod error;
mod files;
mod images;
pub mod key;
pub mod labels;
mod network;
pub mod recipe;
mod request;
mod seccomp;
pub mod volumes;

pub use super::names::{self, Name};
pub use daemon::{Abilities, Daemon};
pub use error::{DockerError, Step};

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use ringfence_linux::sys::SignalsBlocked;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{GUARDS_DIR, Mount, Plan};
use ringfence_policy::policy::{Network, STANDARD_IMAGE};
use ringfence_policy::{Cure, Guarantee};
use tokio::runtime::Handle;

use super::{
    Abilities as EngineAbilities, About, Engine, EngineError, EngineRef, Finding, GuestSandbox, Left, OnProgress,
    Tried, no_gateway, second_wall,
};
use crate::report::{Report, Verdict, answer, enforced, missing, recorded, weakened};
use crate::watch::NOT_COVERED_AGAIN;
use request::{Image, Parts, Places};

const NAME: &str = "docker";

/// The engine `docker`.
pub const ENGINE: EngineRef = &Docker;

#[derive(Debug)]
struct Docker;

impl Engine for Docker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "Containers"
    }

    fn abilities(&self) -> EngineAbilities {
        EngineAbilities {
            descriptors: true,
            images: true,
            volumes: true,
            freeze: true,
            local: true,
            ..EngineAbilities::default()
        }
    }

    fn promise(&self, plan: &Plan, facts: &Facts) -> Result<Report, EngineError> {
        promise(plan, facts)
    }

    fn describe(&self, plan: &Plan, facts: &Facts) -> Result<String, EngineError> {
        describe(plan, facts)
    }

    fn start_guest(
        &self,
        plan: &mut Plan,
        facts: &Facts,
        about: About<'_>,
    ) -> Result<(Box<dyn GuestSandbox>, OwnedFd), EngineError> {
        container::start_guest(plan, facts, crate::guest::PROGRAM, about)
    }

    fn sweep(&self, left: &Left<'_>) -> Result<(), EngineError> {
        Ok(container::clear(left).map(drop)?)
    }

    /// The network that boxes share, and the firewall before this host.
    fn prepare_host(&self, facts: &Facts, state: &Path) -> Result<(), EngineError> {
        let daemon = Daemon::connect(facts)?;
        let store = files::Store::open(state)?;
        block_on(async {
            daemon.abilities().await?;
            // Set anew, whatever is remembered.
            network::forget(&daemon, store.path())?;
            network::ensure(&daemon, store.path()).await
        })?;
        Ok(())
    }

    fn look(&self, facts: &Facts, _: Tried<'_>) -> Vec<Finding> {
        vec![finding(facts)]
    }

    fn variables(&self) -> &'static [&'static str] {
        &daemon::VARIABLES
    }

    fn find_image(&self, facts: &Facts, name: &str, progress: OnProgress<'_>) -> Result<String, EngineError> {
        find_image(facts, name, progress).map(|image| image.id)
    }

    /// What containers of a daemon that maps ids write belongs to nobody whom the caller could be.
    fn writes_as_caller(&self, facts: &Facts) -> Result<bool, EngineError> {
        let daemon = Daemon::connect(facts)?;
        Ok(!block_on(async { daemon.abilities().await })?.userns)
    }

    fn made_from(&self, plan: &Plan, facts: &Facts) -> Result<String, EngineError> {
        container::hash_of(plan, facts)
    }

    fn remove_home(&self, facts: &Facts, state: &Path, keys: &Path, name: &str) -> Result<(), EngineError> {
        container::remove_home(facts, state, keys, name)
    }
}

/// The one thread on which connections to daemons live, from the first call on.
fn runtime() -> Result<Handle, DockerError> {
    static RUNTIME: Mutex<Option<Handle>> = Mutex::new(None);
    let mut known = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*known {
        return Ok(handle.clone());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DockerError::Thread)?;
    let handle = runtime.handle().clone();
    // Signals are for the threads of the program that take them.
    let _blocked = SignalsBlocked::new().map_err(|errno| DockerError::Thread(errno.into()))?;
    let thread = std::thread::Builder::new().name(NAME.to_owned());
    thread.spawn(move || runtime.block_on(std::future::pending::<()>())).map_err(DockerError::Thread)?;
    *known = Some(handle.clone());
    Ok(handle)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for something that a daemon does. The caller may or may not be in a runtime of its own: the work is done here, and
/// its connections and clocks are the engine's.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, DockerError>>) -> Result<T, DockerError> {
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut work = std::pin::pin!(work);
    loop {
        if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        std::thread::park();
    }
}

/// Finds an image, or pulls it.
pub fn find_image(facts: &Facts, name: &str, progress: OnProgress<'_>) -> Result<Image, EngineError> {
    let daemon = Daemon::connect(facts)?;
    Ok(block_on(async {
        daemon.abilities().await?;
        images::find(&daemon, name, progress).await
    })?)
}

/// Whether the daemon that the caller's environment names, and the standard image, are there.
fn finding(facts: &Facts) -> Finding {
    const FACT: &str = "engine docker";
    let looked = Daemon::connect(facts).and_then(|daemon| {
        let can = block_on(async { daemon.abilities().await })?;
        Ok((daemon, can))
    });
    let (daemon, can) = match looked {
        Ok(looked) => looked,
        Err(error) => return Finding::degraded(FACT, error.to_string(), error.cures()),
    };
    let kind = match (can.rootless, can.userns) {
        (true, _) => ", rootless",
        (_, true) => ", with mapped ids",
        _ => "",
    };
    let detail = format!("{}, API {}.{}{kind}", can.server, can.api.0, can.api.1);
    let lacks: Vec<&str> = [(can.seccomp, "seccomp"), (can.memory, "memory limits"), (can.pids, "process limits")]
        .into_iter()
        .filter_map(|(there, what)| (!there).then_some(what))
        .collect();
    if !lacks.is_empty() {
        let cures = [Cure::host("use a kernel and a daemon with them")];
        return Finding::degraded(FACT, format!("{detail}; without {}", lacks.join(", ")), cures);
    }
    match block_on(async { images::inspect(&daemon, STANDARD_IMAGE).await }) {
        Ok(_) => Finding::ok(FACT, format!("{detail}; {STANDARD_IMAGE} is there")),
        Err(_) => {
            let cures = [Cure::BuildImage, Cure::another("image")];
            Finding::degraded(FACT, format!("{detail}; no image {STANDARD_IMAGE}"), cures)
        }
    }
}

/// Mounts follow names, as root.
const SWAP: &str = "a second sandbox in the same project could swap a directory for a link while Docker mounts";

/// What this engine answers for each promise.
pub(super) fn promise(plan: &Plan, facts: &Facts) -> Result<Report, EngineError> {
    if plan.docker {
        return Err(EngineError::unable(NAME, "way to let the Docker socket in"));
    }
    if plan.nesting || plan.trace_denials {
        let what = if plan.nesting { "sandboxes inside a container" } else { "way to trace denials" };
        return Err(EngineError::unable(NAME, what));
    }
    let daemon = Daemon::connect(facts)?;
    let abilities = block_on(async { daemon.abilities().await })?;
    compile::compile(plan, &facts.mounts, &abilities)?;
    request::Unprivileged::check(plan)?;
    answer(NAME, plan, |guarantee| verdict(guarantee, plan, &abilities))
}

fn verdict(guarantee: Guarantee, plan: &Plan, can: &Abilities) -> Verdict {
    let update = || [Cure::host("use a daemon with that control group"), Cure::optional(guarantee)];
    let ids = match (can.rootless, can.userns) {
        (true, _) => "; rootless daemon: its root is an ordinary user of the host",
        (_, true) => "; the daemon maps ids: its root is nobody on the host",
        _ => "",
    };
    match guarantee {
        Guarantee::FsRootReadOnly => enforced("Docker: read-only root of the image, read-only binds"),
        Guarantee::FsWritesConfined => weakened(format!("Docker: own mount namespace, no devices; {SWAP}")),
        Guarantee::FsSecretsHidden => weakened(format!(
            "Docker: nothing of the host but what is bound; unreadable placeholders; {NOT_COVERED_AGAIN}"
        )),
        Guarantee::FsProtectedPaths => weakened(format!(
            "Docker: read-only binds, pinned ancestors, placeholders for missing names; {SWAP}; {NOT_COVERED_AGAIN}"
        )),
        Guarantee::FsTempPrivate => enforced("Docker: own tmpfs at /tmp, /var/tmp, /dev/shm and /run"),
        Guarantee::FsDiskBounded if plan.mounts.iter().any(|m| matches!(m, Mount::Volume { writable: true, .. })) => {
            weakened("Docker: size and inode limit of each tmpfs; volumes have none")
        }
        Guarantee::FsDiskBounded if can.podman => {
            weakened("Podman: size of each tmpfs; it cannot limit the number of files")
        }
        Guarantee::FsDiskBounded => enforced("Docker: size and inode limit of each tmpfs"),
        Guarantee::NetIsolated => enforced("Docker: own network namespace with loopback only"),
        Guarantee::NetHostSocketsClosed if plan.network == Network::None => {
            enforced("Docker: no socket is bound in, own network namespace")
        }
        Guarantee::NetHostSocketsClosed => {
            enforced("Docker: no socket is bound in, own network namespace, a firewall rule before the host")
        }
        Guarantee::ProcIsolated => enforced(format!("Docker: own PID, IPC, UTS and cgroup namespaces{ids}")),
        Guarantee::ProcUnprivileged => {
            enforced(format!("Docker: not root, no capability in any set, no new privileges{ids}"))
        }
        Guarantee::ProcCleanStart => enforced("environment from the policy and the image; the guest closes the rest"),
        Guarantee::KernelFiltered if !can.seccomp => missing(
            "this daemon filters no system calls",
            [Cure::host("use a daemon with seccomp"), Cure::optional(guarantee)],
        ),
        Guarantee::KernelFiltered if !plan.allow_syscalls.is_empty() => {
            weakened(format!("Docker: our system-call filter, opened for {}", plan.allow_syscalls.join(", ")))
        }
        Guarantee::KernelFiltered => enforced("Docker: our system-call filter (allow list, one ABI)"),
        Guarantee::KernelSecondWall => second_wall(None),
        Guarantee::LifeNoSurvivors => enforced("death of the guest ends the container; labels find what is left"),
        Guarantee::LifeDiesWithOwner => enforced("the guest ends when the socket to its owner closes"),
        Guarantee::LimitMemory if !can.memory => missing("this daemon cannot limit memory", update()),
        Guarantee::LimitMemory if !can.swap => weakened("Docker: control group; this kernel does not count swap"),
        Guarantee::LimitMemory => enforced("Docker: control group, no swap"),
        Guarantee::LimitCpu if plan.limits.cpus.is_some() && !can.cpus => {
            missing("this daemon cannot limit processors", update())
        }
        Guarantee::LimitCpu if plan.limits.cpus.is_none() => {
            weakened("RLIMIT_CPU of each process and a watch over the container, every 50 ms")
        }
        Guarantee::LimitCpu => enforced("Docker: control group"),
        Guarantee::LimitProcesses if !can.pids => missing("this daemon cannot limit processes", update()),
        Guarantee::LimitProcesses => enforced("Docker: control group"),
        Guarantee::LimitFiles => enforced("Docker: RLIMIT_NOFILE of each process"),
        Guarantee::LimitTime => enforced("ended from outside; the container is killed when it does not obey"),
        Guarantee::LimitOutput => enforced("streamed; captured output keeps a bounded head and tail"),
        Guarantee::NetByName => no_gateway(),
        Guarantee::RecordComplete => recorded(),
    }
}

/// The create request, as JSON. Nothing is created, and nothing is asked that could be.
pub(super) fn describe(plan: &Plan, facts: &Facts) -> Result<String, EngineError> {
    let daemon = Daemon::connect(facts)?;
    let abilities = block_on(async { daemon.abilities().await })?;
    let compiled = compile::compile(plan, &facts.mounts, &abilities)?;
    let image = Image { id: plan.image.clone().unwrap_or_default(), ..Image::default() };
    let files = Places::described(compiled.skeletons.len());
    let volumes = volumes_of(plan, "SLUG")?;
    let parts = Parts {
        name: Name::container("sandbox", "00000000").map_err(DockerError::from)?,
        image: &image,
        labels: labels::shared(labels::Purpose::Sandbox),
        files: &files,
        volumes: &volumes,
    };
    let body = request::request(plan, &compiled, &abilities, parts)?.body(None);
    let mut out = String::new();
    for stub in &plan.stubs {
        let _ = writeln!(out, "keep the name `{}` until the end", stub.path.display());
    }
    out.push_str("create a container:\n");
    out.push_str(&serde_json::to_string_pretty(&body).unwrap_or_default());
    out.push('\n');
    Ok(out)
}

/// The environment of a command: what the plan says over what the image says, guards first in `PATH`.
///
/// A tool is not sent to a cache that is not there: some would fail for that.
fn environment(plan: &Plan, image: &Image, caches: &[super::Cache]) -> Vec<(OsString, OsString)> {
    let mut all: BTreeMap<OsString, OsString> = BTreeMap::from([("PATH".into(), IMAGE_PATH.into())]);
    let pairs = image.env.iter().filter_map(|pair| pair.split_once('='));
    all.extend(pairs.filter(|(name, _)| !name.is_empty()).map(|(name, value)| (name.into(), value.into())));
    all.extend(plan.env.iter().cloned());
    let absent = caches.iter().filter(|cache| cache.failed.is_some());
    for cache in absent.filter_map(|cache| ringfence_policy::caches::find(&cache.name)) {
        let target = cache.target();
        all.retain(|name, value| !(cache.variables.iter().any(|variable| name == variable) && *value == *target));
    }
    let guarded = |m: &Mount| matches!(m, Mount::Bind { target, .. } if target.starts_with(GUARDS_DIR));
    if plan.mounts.iter().any(guarded) {
        let behind = all.remove(OsStr::new("PATH")).unwrap_or_default();
        let mut path = OsString::from(GUARDS_DIR);
        path.push(":");
        path.push(behind);
        all.insert("PATH".into(), path);
    }
    all.into_iter().collect()
}

/// Where programs are looked up when an image does not say.
const IMAGE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The volumes of a plan and what they are called.
fn volumes_of(plan: &Plan, slug: &str) -> Result<Vec<(ringfence_policy::plan::Volume, Name)>, DockerError> {
    use ringfence_policy::plan::Volume;
    let mut all = Vec::new();
    for mount in &plan.mounts {
        if let Mount::Volume { volume, .. } = mount {
            let name = match volume {
                Volume::Home => Name::home(slug)?,
                Volume::Cache { name, group } => Name::cache(name, group.as_deref())?,
            };
            all.push((volume.clone(), name));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
