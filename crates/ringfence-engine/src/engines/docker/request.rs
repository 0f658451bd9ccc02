//! The create request, as pure data. There is no field for privileges, devices, namespaces of the host or capabilities:
//! what has no field cannot be asked for.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions, ResourcesUlimits,
};
use ringfence_policy::limits::Limits;
use ringfence_policy::plan::{MARKER_DIR, Plan, Volume};
use ringfence_policy::policy::Network;
use ringfence_policy::{Cure, Guarantee};

use super::compile::{Compiled, Source, unmet};
use super::daemon::Abilities;
use super::names::Name;
use super::seccomp;
use crate::engines::{EngineError, GUEST_PROCESSES};

/// Where the guest and the socket to it lie inside.
pub const GUEST: &str = "/dev/ringfence/guest";
pub const CHANNEL: &str = "/dev/ringfence/channel";

/// Descriptors that a guest may have.
const GUEST_FILES: u64 = 8192;

/// Somebody who is not root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unprivileged {
    uid: u32,
    gid: u32,
}

impl Unprivileged {
    pub fn new(uid: u32, gid: u32) -> Option<Unprivileged> {
        (uid != 0 && gid != 0).then_some(Unprivileged { uid, gid })
    }

    /// Whom a plan's box runs as.
    pub fn check(plan: &Plan) -> Result<Unprivileged, EngineError> {
        Self::new(plan.uid, plan.gid).ok_or_else(|| {
            let reason = format!("a container would run as {}:{}, with root's rights to files", plan.uid, plan.gid);
            unmet(Guarantee::ProcUnprivileged, reason, [Cure::set("user", "1000:1000")])
        })
    }
}

/// What a container may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    Nothing,
    Bridge(Name),
}

/// Everything that a container is created from.
#[derive(Debug, Clone)]
pub struct Request {
    pub name: Name,
    /// The id of the image: what it is called may change meanwhile.
    image: String,
    user: Unprivileged,
    reach: Reach,
    limits: Limits,
    /// By target: what is bound, and whether it can be written.
    binds: BTreeMap<PathBuf, (PathBuf, bool)>,
    volumes: BTreeMap<PathBuf, (Name, bool)>,
    space: BTreeMap<PathBuf, String>,
    filter: String,
    labels: HashMap<String, String>,
    recursive_read_only: bool,
    /// Processes of its user on the whole host, where the daemon would set a limit of its own.
    user_processes: Option<u64>,
}

/// What is known once everything that a container needs is there.
#[derive(Debug)]
pub struct Parts<'a> {
    pub name: Name,
    pub image: &'a Image,
    pub labels: HashMap<String, String>,
    pub files: &'a Places,
    /// The names of the volumes that are ready. What is not here is not mounted.
    pub volumes: &'a [(Volume, Name)],
}

/// What of an image matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// Places for which it asks for a volume.
    pub volumes: Vec<PathBuf>,
}

/// Files of our own on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Mounted at [`MARKER_DIR`].
    pub marker: PathBuf,
    pub hidden_file: PathBuf,
    pub hidden_dir: PathBuf,
    pub empty_file: PathBuf,
    pub empty_dir: PathBuf,
    pub skeletons: Vec<PathBuf>,
}

impl Places {
    /// Names for a description: nothing is there yet.
    pub fn described(skeletons: usize) -> Places {
        let at = |name: &str| Path::new("/STATE/docker").join(name);
        Places {
            marker: at("boxes/ID/ringfence"),
            hidden_file: at("hidden-file"),
            hidden_dir: at("hidden-dir"),
            empty_file: at("empty-file"),
            empty_dir: at("empty-dir"),
            skeletons: (0..skeletons).map(|index| at(&format!("boxes/ID/hide-{index}"))).collect(),
        }
    }
}

/// Makes the request for a plan.
pub fn request(
    plan: &Plan,
    compiled: &Compiled,
    abilities: &Abilities,
    parts: Parts<'_>,
) -> Result<Request, EngineError> {
    let user = Unprivileged::check(plan)?;
    let files = parts.files;
    let mut request = Request {
        name: parts.name,
        image: parts.image.id.clone(),
        user,
        reach: match plan.network {
            Network::None | Network::Allowlist(_) => Reach::Nothing,
            Network::Bridge | Network::Open => Reach::Bridge(Name::network()),
        },
        limits: plan.limits.clone(),
        binds: BTreeMap::from([(PathBuf::from(MARKER_DIR), (files.marker.clone(), false))]),
        volumes: BTreeMap::new(),
        space: BTreeMap::new(),
        filter: seccomp::profile(plan)?,
        labels: parts.labels,
        recursive_read_only: abilities.recursive_read_only(),
        user_processes: None,
    };
    let most = |inodes: u64| (!abilities.podman).then_some(inodes);
    for (target, source) in &compiled.mounts {
        let mut bind = |path: &Path, writable| {
            request.binds.insert(target.clone(), (path.to_path_buf(), writable));
        };
        match source {
            Source::Host { path, writable } => bind(path, *writable),
            Source::HiddenFile => bind(&files.hidden_file, false),
            Source::HiddenDir => bind(&files.hidden_dir, false),
            Source::EmptyFile => bind(&files.empty_file, false),
            Source::EmptyDir => bind(&files.empty_dir, false),
            Source::Skeleton(index) => bind(files.skeletons.get(*index).unwrap_or(&files.hidden_dir), false),
            Source::Space { mode, size, inodes, exec } => {
                request.space.insert(target.clone(), space(user, *mode, *size, most(*inodes), *exec));
            }
            Source::Volume { volume, writable } => {
                if let Some((_, name)) = parts.volumes.iter().find(|(ready, _)| ready == volume) {
                    request.volumes.insert(target.clone(), (name.clone(), *writable));
                }
            }
        }
    }
    // Docker would make a nameless volume, writable and without a limit.
    for asked in &parts.image.volumes {
        check_volume(asked, &request)?;
        if !request.binds.contains_key(asked) && !request.volumes.contains_key(asked) {
            let (size, inodes) = plan.limits.private_space();
            let options = space(user, 0o755, size, most(inodes), plan.tmp_exec);
            request.space.entry(asked.clone()).or_insert(options);
        }
    }
    Ok(request)
}

/// An image may ask for private space in its own files. In what is mounted, the daemon would make the place for it, as root
/// and on the host.
fn check_volume(asked: &Path, request: &Request) -> Result<(), EngineError> {
    let plain = asked.has_root() && asked.components().all(|part| part != Component::ParentDir);
    let mut mounted = request.binds.keys().chain(request.volumes.keys());
    let within = mounted.find(|target| asked.starts_with(target) && asked != target.as_path());
    let reason = match within {
        Some(target) => format!("the image asks for a volume at `{}`, inside `{}`", asked.display(), target.display()),
        None if !plain => format!("the image asks for a volume at `{}`", asked.display()),
        None => return Ok(()),
    };
    Err(unmet(Guarantee::FsWritesConfined, reason, [Cure::another("image")]))
}

/// Options of private space. Podman knows neither a number of files nor an owner: it is everybody's then, and there is
/// nobody but the user.
fn space(user: Unprivileged, mode: u32, size: u64, inodes: Option<u64>, exec: bool) -> String {
    let exec = if exec { "exec" } else { "noexec" };
    let Unprivileged { uid, gid } = user;
    match inodes {
        Some(inodes) => {
            format!("rw,nosuid,nodev,{exec},mode={mode:o},size={size},nr_inodes={inodes},uid={uid},gid={gid}")
        }
        None => format!("rw,nosuid,nodev,{exec},mode=1777,size={size},notmpcopyup"),
    }
}

impl Request {
    /// The places that can be written inside, for the second wall.
    pub fn writable(&self) -> Vec<Vec<u8>> {
        let binds = self.binds.iter().filter(|(_, (_, writable))| *writable).map(|(target, _)| target.as_path());
        let volumes = self.volumes.iter().filter(|(_, (_, writable))| *writable).map(|(target, _)| target.as_path());
        let own = [Path::new("/proc"), Path::new("/dev")];
        let all = own.into_iter().chain(binds).chain(volumes).chain(self.space.keys().map(PathBuf::as_path));
        all.map(|path| path.as_os_str().as_bytes().to_vec()).collect()
    }

    /// The filter, as Docker takes it.
    pub fn filter(&self) -> &str {
        &self.filter
    }

    /// What Podman wants otherwise: the filter as a file, and a number of processes that it may set. Its own is the
    /// highest there is, which takes a right that it may not have.
    pub fn for_podman(&mut self, filter: &Path, user_processes: Option<u64>) {
        self.filter = filter.display().to_string();
        self.user_processes = user_processes;
    }

    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// What the daemon is asked for. `network`: the id of the one that is called so, where it is known.
    pub fn body(&self, network: Option<&str>) -> ContainerCreateBody {
        let Unprivileged { uid, gid } = self.user;
        ContainerCreateBody {
            image: Some(self.image.clone()),
            user: Some(format!("{uid}:{gid}")),
            hostname: Some("ringfence".to_owned()),
            entrypoint: Some(vec![GUEST.to_owned(), CHANNEL.to_owned()]),
            cmd: Some(Vec::new()),
            working_dir: Some("/".to_owned()),
            // A check of the image's own would be executed beside the guest.
            healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
            labels: Some(self.labels.clone()),
            network_disabled: Some(self.reach == Reach::Nothing),
            host_config: Some(self.host_config(network)),
            ..ContainerCreateBody::default()
        }
    }

    fn host_config(&self, network: Option<&str>) -> HostConfig {
        let limits = &self.limits;
        let memory = limits.memory.map(to_i64);
        HostConfig {
            network_mode: Some(match &self.reach {
                Reach::Nothing => "none".to_owned(),
                // Another one may have taken the name meanwhile.
                Reach::Bridge(name) => network.map_or_else(|| name.to_string(), str::to_owned),
            }),
            memory,
            // As much as the memory: none of it is swap.
            memory_swap: memory,
            nano_cpus: limits.cpus.map(|cpus| (cpus * 1e9) as i64),
            // The guest's own do not count against the caller.
            pids_limit: limits.pids.map(|pids| to_i64(pids + 1 + GUEST_PROCESSES)),
            ulimits: Some(self.ulimits()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges:true".to_owned(), format!("seccomp={}", self.filter)]),
            readonly_rootfs: Some(true),
            privileged: Some(false),
            ipc_mode: Some("private".to_owned()),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            mounts: Some(self.mounts()),
            tmpfs: Some(self.space.iter().map(|(at, options)| (at.display().to_string(), options.clone())).collect()),
            // What a command writes goes through the guest; nothing is written to the daemon's disk.
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            // It goes as soon as it has ended, whoever is still there to see to it. A home is a volume, and stays.
            auto_remove: Some(true),
            init: Some(false),
            ..HostConfig::default()
        }
    }

    fn ulimits(&self) -> Vec<ResourcesUlimits> {
        let limit = |name: &str, value: u64| {
            let value = Some(to_i64(value));
            ResourcesUlimits { name: Some(name.to_owned()), soft: value, hard: value }
        };
        // 0 would not stop a core dump that is piped to a program; 1 does.
        let mut all = vec![limit("core", 1)];
        // The guest needs a few for each stream; it gives commands what the policy says, and processor time as well.
        all.extend(self.limits.files.map(|files| limit("nofile", files.max(GUEST_FILES))));
        all.extend(self.user_processes.map(|most| limit("nproc", most)));
        all
    }

    fn mounts(&self) -> Vec<Mount> {
        let binds = self.binds.iter().map(|(target, (source, writable))| Mount {
            target: Some(target.display().to_string()),
            source: Some(source.display().to_string()),
            typ: Some(MountType::BIND),
            read_only: Some(!writable),
            bind_options: Some(MountBindOptions {
                propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
                read_only_force_recursive: (self.recursive_read_only && !writable).then_some(true),
                ..MountBindOptions::default()
            }),
            ..Mount::default()
        });
        let volumes = self.volumes.iter().map(|(target, (name, writable))| Mount {
            target: Some(target.display().to_string()),
            source: Some(name.to_string()),
            typ: Some(MountType::VOLUME),
            read_only: Some(!writable),
            // What an image has at the place is the image's, and not copied into what others share.
            volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
            ..Mount::default()
        });
        binds.chain(volumes).collect()
    }
}

fn to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
