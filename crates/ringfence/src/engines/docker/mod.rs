//! The Docker engine: a plan becomes a create request, and the guest is process 1 of the container.
//!
//! [`compile`] and [`request`] are pure; what they cannot express they refuse. The rest talks to the daemon: through its
//! API alone, and about objects alone that carry our [`labels`].

pub mod compile;
pub mod container;
pub mod daemon;
pub mod error;
pub mod files;
pub mod images;
pub mod labels;
pub mod names;
pub mod network;
pub mod recipe;
pub mod request;
mod seccomp;
pub mod volumes;

pub use container::Container;
pub use daemon::{Abilities, Daemon};
pub use error::{DockerError, Step};
pub use names::Name;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::future::Future;

use ringfence_policy::Guarantee;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{GUARDS_DIR, Mount, Plan};
use ringfence_policy::policy::Network;

use super::{Engine, EngineError};
use crate::report::{Report, Verdict, answer, enforced, missing, weakened};
use request::{Image, Parts, Places};

/// Runs something that waits for the daemon on a thread of its own: the caller may or may not be in a runtime.
pub(super) fn block_on<T: Send>(work: impl Future<Output = Result<T, DockerError>> + Send) -> Result<T, DockerError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("docker".to_owned()).spawn_scoped(scope, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(DockerError::Thread)?.block_on(work)
        });
        let lost = || Err(DockerError::Thread(std::io::Error::other("it ended without an answer")));
        thread.map_err(DockerError::Thread)?.join().unwrap_or_else(|_| lost())
    })
}

/// Finds an image, or pulls it.
pub fn find_image(facts: &Facts, name: &str, progress: images::OnProgress<'_>) -> Result<Image, EngineError> {
    let daemon = Daemon::connect(facts)?;
    Ok(block_on(async {
        daemon.abilities().await?;
        images::find(&daemon, name, progress).await
    })?)
}

/// Whether an image is here.
pub fn has_image(facts: &Facts, name: &str) -> bool {
    let look = || {
        let daemon = Daemon::connect(facts)?;
        block_on(async {
            daemon.abilities().await?;
            images::inspect(&daemon, name).await
        })
    };
    look().is_ok()
}

/// What the daemon that the caller's environment names can do.
pub fn look(facts: &Facts) -> Result<std::sync::Arc<Abilities>, DockerError> {
    let daemon = Daemon::connect(facts)?;
    block_on(async { daemon.abilities().await })
}

/// Makes the network that boxes share, and sets the firewall before this host. What root does once, for everybody.
pub fn prepare_network(facts: &Facts, state: &std::path::Path) -> Result<(), DockerError> {
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

/// Mounts follow names, as root.
const SWAP: &str = "a second sandbox in the same project could swap a directory for a link while Docker mounts";

/// What this engine answers for each promise.
pub(super) fn promise(plan: &Plan, facts: &Facts) -> Result<Report, EngineError> {
    if plan.image.is_none() {
        let what = "root but an image's";
        return Err(EngineError::Cannot { engine: Engine::Docker, what, cure: "name an image: --image NAME" });
    }
    if plan.docker {
        let what = "way to let the Docker socket in";
        return Err(EngineError::Cannot { engine: Engine::Docker, what, cure: "use the native engine" });
    }
    if plan.nesting || plan.trace_denials {
        let what = if plan.nesting { "sandboxes inside a container" } else { "way to trace denials" };
        return Err(EngineError::Cannot { engine: Engine::Docker, what, cure: "use the native engine" });
    }
    let daemon = Daemon::connect(facts)?;
    let abilities = block_on(async { daemon.abilities().await })?;
    compile::compile(plan, &facts.mounts, &abilities)?;
    request::Unprivileged::check(plan)?;
    answer(Engine::Docker, plan, |guarantee| verdict(guarantee, plan, &abilities))
}

fn verdict(guarantee: Guarantee, plan: &Plan, can: &Abilities) -> Verdict {
    let update = "use a daemon with that control group, or list it under `optional`";
    let ids = match (can.rootless, can.userns) {
        (true, _) => "; rootless daemon: its root is an ordinary user of the host",
        (_, true) => "; the daemon maps ids: its root is nobody on the host",
        _ => "",
    };
    match guarantee {
        Guarantee::FsRootReadOnly => enforced("Docker: read-only root of the image, read-only binds"),
        Guarantee::FsWritesConfined => weakened(format!("Docker: own mount namespace, no devices; {SWAP}")),
        Guarantee::FsSecretsHidden => enforced("Docker: nothing of the host but what is bound; unreadable stand-ins"),
        Guarantee::FsProtectedPaths => {
            weakened(format!("Docker: read-only binds, pinned ancestors, stand-ins for missing names; {SWAP}"))
        }
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
        Guarantee::KernelFiltered if !can.seccomp => {
            missing("this daemon filters no system calls", "use a daemon with seccomp, or list it under `optional`")
        }
        Guarantee::KernelFiltered if !plan.allow_syscalls.is_empty() => {
            weakened(format!("Docker: our system-call filter, opened for {}", plan.allow_syscalls.join(", ")))
        }
        Guarantee::KernelFiltered => enforced("Docker: our system-call filter (allow list, one ABI)"),
        Guarantee::KernelSecondWall => missing(
            "Docker applies no Landlock rules",
            "use the native engine, or list `kernel.second-wall` under `optional`",
        ),
        Guarantee::LifeNoSurvivors => enforced("death of the guest ends the container; labels find what is left"),
        Guarantee::LifeDiesWithOwner => enforced("the guest ends when the socket to its owner closes"),
        Guarantee::LimitMemory if !can.memory => missing("this daemon cannot limit memory", update),
        Guarantee::LimitMemory if !can.swap => weakened("Docker: control group; this kernel does not count swap"),
        Guarantee::LimitMemory => enforced("Docker: control group, no swap"),
        Guarantee::LimitCpu if plan.limits.cpus.is_some() && !can.cpus => {
            missing("this daemon cannot limit processors", update)
        }
        Guarantee::LimitCpu if plan.limits.cpus.is_none() => {
            weakened("RLIMIT_CPU of each process and a watch over the container, every 50 ms")
        }
        Guarantee::LimitCpu => enforced("Docker: control group"),
        Guarantee::LimitProcesses if !can.pids => missing("this daemon cannot limit processes", update),
        Guarantee::LimitProcesses => enforced("Docker: control group"),
        Guarantee::LimitFiles => enforced("Docker: RLIMIT_NOFILE of each process"),
        Guarantee::LimitTime => enforced("ended from outside; the container is killed when it does not obey"),
        Guarantee::LimitOutput => enforced("streamed; captured output keeps a bounded head and tail"),
        Guarantee::NetByName => missing("Docker knows no names of destinations", "use network `none`"),
        Guarantee::RecordComplete => enforced("every execution is recorded by its supervisor"),
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
fn environment(plan: &Plan, image: &Image, caches: &[volumes::Cache]) -> Vec<(OsString, OsString)> {
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
