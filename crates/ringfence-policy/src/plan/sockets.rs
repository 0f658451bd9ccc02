//! The sockets of container daemons: where they are looked for, and which one Docker clients use.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::PlanError;
use crate::facts::Facts;
use crate::look::Lookup;

/// The sockets of container daemons on this host, symlinks resolved.
pub(super) struct DockerSockets {
    pub found: Vec<PathBuf>,
    /// The one that Docker clients of the caller use, resolved where it exists.
    pub chosen: PathBuf,
}

impl DockerSockets {
    pub fn find(lookup: &Lookup, facts: &Facts) -> Self {
        let variable = |name: &str| facts.env.get(OsStr::new(name)).filter(|v| !v.is_empty());
        let unix = |name: &str| {
            variable(name)
                .and_then(|v| v.as_bytes().strip_prefix(b"unix://"))
                .map(|p| PathBuf::from(OsStr::from_bytes(p)))
        };
        let mut candidates: Vec<PathBuf> = CONTAINER_SOCKETS.iter().map(PathBuf::from).collect();
        if let Some(runtime) = variable("XDG_RUNTIME_DIR") {
            candidates.extend(["docker.sock", "podman/podman.sock"].map(|name| Path::new(runtime).join(name)));
        }
        candidates.extend(HOME_SOCKETS.map(|name| facts.home.join(name)));
        candidates.extend(unix("CONTAINER_HOST"));
        let asked = unix("DOCKER_HOST").unwrap_or_else(|| PathBuf::from("/var/run/docker.sock"));
        candidates.push(asked.clone());
        let mut found: Vec<PathBuf> = candidates.iter().filter_map(|c| lookup.real(c)).collect();
        found.sort();
        found.dedup();
        Self { found, chosen: lookup.real(&asked).unwrap_or(asked) }
    }

    pub fn check(&self) -> Result<(), PlanError> {
        match fs::metadata(&self.chosen) {
            Ok(data) if data.file_type().is_socket() => Ok(()),
            Ok(_) => Err(PlanError::DockerSocketWrong(self.chosen.clone())),
            Err(_) => Err(PlanError::DockerSocketMissing(self.chosen.clone())),
        }
    }
}

const CONTAINER_SOCKETS: [&str; 8] = [
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
    "/run/k3s/containerd/containerd.sock",
];

/// Docker Desktop, Colima, Rancher Desktop, Lima.
const HOME_SOCKETS: [&str; 5] = [
    ".docker/run/docker.sock",
    ".docker/desktop/docker.sock",
    ".colima/default/docker.sock",
    ".rd/docker.sock",
    ".lima/docker/sock/docker.sock",
];
