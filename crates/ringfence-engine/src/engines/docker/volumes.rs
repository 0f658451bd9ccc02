//! Volumes: package caches that boxes of a group share, and homes that outlive their containers.

use std::io;

use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, RemoveVolumeOptionsBuilder, UploadToContainerOptionsBuilder,
};
use ringfence_policy::plan::{Plan, Volume};

use super::daemon::Daemon;
use super::error::{DockerError, Step};
use super::files::Store;
use super::key::Key;
use super::labels::{self, Owner, Purpose};
use super::names::Name;
use super::request::Image;
use crate::engines::Cache;

/// The volumes of a box: what is ready, and what is not and why.
#[derive(Debug, Default)]
pub struct Volumes {
    /// Volumes that are ready, by what asked for them.
    pub ready: Vec<(Volume, Name)>,
    /// Caches that the box runs without, and why.
    failed: Vec<(String, DockerError)>,
}

impl Volumes {
    /// What became of each cache.
    pub fn caches(&self) -> Vec<Cache> {
        let ready = self.ready.iter().filter_map(|(volume, _)| match volume {
            Volume::Cache { name, .. } => Some(Cache { name: name.clone(), failed: None }),
            Volume::Home => None,
        });
        let failed =
            self.failed.iter().map(|(name, error)| Cache { name: name.clone(), failed: Some(error.to_string()) });
        ready.chain(failed).collect()
    }
}

/// Makes what is missing. A home that cannot be had stops the box; a cache only where the policy says so.
pub async fn ensure(
    daemon: &Daemon,
    plan: &Plan,
    image: &Image,
    slug: &str,
    key: &Key,
    store: &Store,
) -> Result<Volumes, DockerError> {
    let mut volumes = Volumes::default();
    let helper = Helper { daemon, image, key, store };
    for (volume, name) in super::volumes_of(plan, slug)? {
        let made = match &volume {
            Volume::Home => {
                let labels = labels::home(key, &name, slug);
                let directory = Directory { uid: plan.uid, gid: plan.gid, mode: 0o755 };
                match create(daemon, &name, labels, Some(key.owner()), Purpose::Home).await {
                    Ok(made) => helper.hand_over(&name, &made, directory).await,
                    Err(error) => Err(error),
                }
            }
            Volume::Cache { name: cache, .. } => {
                // Boxes of one group may run as different users.
                let directory = Directory { uid: plan.uid, gid: plan.gid, mode: 0o1777 };
                let made = match create(daemon, &name, labels::shared(Purpose::Cache), None, Purpose::Cache).await {
                    Ok(made) => helper.hand_over(&name, &made, directory).await,
                    Err(error) => Err(error),
                };
                made.map_err(|source| DockerError::Cache { cache: cache.clone(), source: Box::new(source) })
            }
        };
        match made {
            Ok(()) => volumes.ready.push((volume, name)),
            Err(DockerError::Cache { cache, source }) if !plan.caches_required => volumes.failed.push((cache, *source)),
            Err(error) => return Err(error),
        }
    }
    Ok(volumes)
}

/// Making one that is there gives that one, so its labels say whose it is.
async fn create(
    daemon: &Daemon,
    name: &Name,
    labels: std::collections::HashMap<String, String>,
    owner: Option<&Owner>,
    purpose: Purpose,
) -> Result<String, DockerError> {
    let request = VolumeCreateRequest {
        name: Some(name.to_string()),
        driver: Some("local".to_owned()),
        labels: Some(labels),
        ..VolumeCreateRequest::default()
    };
    let created = daemon.docker().create_volume(request).await;
    // What is there decides: a daemon that was restarted answers without labels, and with another driver it cannot be asked
    // for like this.
    let found = match (created, daemon.docker().inspect_volume(name.as_str()).await) {
        (_, Ok(volume)) => volume,
        (Err(source), Err(_)) => return Err(daemon.error(Step::CreateVolume, source)),
        (Ok(_), Err(source)) => return Err(daemon.error(Step::InspectVolume, source)),
    };
    let foreign =
        |difference: &str| DockerError::ForeignVolume { name: name.clone(), difference: difference.to_owned() };
    if !labels::is(&found.labels, owner, purpose) {
        return Err(foreign("its labels are not ours"));
    }
    if found.driver != "local" {
        return Err(foreign("another driver holds it"));
    }
    // With options it is not a directory of the daemon's, but whatever they mount.
    if !found.options.is_empty() {
        return Err(foreign("it is made with options"));
    }
    Ok(format!("{} {:?}", found.mountpoint, found.created_at))
}

/// What the top of a volume is to be.
#[derive(Debug, Clone, Copy)]
struct Directory {
    uid: u32,
    gid: u32,
    mode: u32,
}

/// Hands fresh volumes over: they are root's. A container that is never started has the volume, and a tape with nothing but
/// the directory on it is unpacked above it. What was handed over is noted, so that this is done once.
struct Helper<'a> {
    daemon: &'a Daemon,
    image: &'a Image,
    key: &'a Key,
    store: &'a Store,
}

/// What the helper would start.
pub(super) const NEVER_STARTED: &str = "/never-started";
/// Where the helper has volumes.
const ABOVE: &str = "/ringfence-volumes";

impl Helper<'_> {
    async fn hand_over(&self, name: &Name, made: &str, directory: Directory) -> Result<(), DockerError> {
        let note = format!("volume-{name}");
        let text = format!("{made} {directory:?}");
        if self.store.noted(&note, &text) {
            return Ok(());
        }
        let helper = Name::container("volumes", &super::container::fresh_id())?;
        let labels = labels::sandbox(
            self.key,
            &helper,
            &labels::Sandbox { session: "volumes", profile: "helper", policy: "", created: 0 },
        );
        let body = ContainerCreateBody {
            image: Some(self.image.id.clone()),
            entrypoint: Some(vec![NEVER_STARTED.to_owned()]),
            labels: Some(labels),
            network_disabled: Some(true),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                cap_drop: Some(vec!["ALL".to_owned()]),
                mounts: Some(vec![Mount {
                    target: Some(format!("{ABOVE}/{name}")),
                    source: Some(name.to_string()),
                    typ: Some(MountType::VOLUME),
                    volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
                    ..Mount::default()
                }]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let fail = |source| self.daemon.error(Step::PrepareVolume, source);
        let named = CreateContainerOptionsBuilder::new().name(helper.as_str()).build();
        let id = self.daemon.docker().create_container(Some(named), body).await.map_err(fail)?.id;
        let options = UploadToContainerOptionsBuilder::new().path(ABOVE).build();
        let tape = tape(name, directory).map_err(|source| DockerError::Files {
            what: "pack",
            path: name.as_str().into(),
            source,
        })?;
        let sent = self.daemon.docker().upload_to_container(&id, Some(options), bollard::body_full(tape.into())).await;
        super::container::remove(self.daemon, &id).await?;
        sent.map_err(fail)?;
        self.store.note(&note, &text)
    }
}

/// A tape with one empty directory.
fn tape(name: &Name, directory: Directory) -> io::Result<Vec<u8>> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(directory.mode);
    header.set_uid(u64::from(directory.uid));
    header.set_gid(u64::from(directory.gid));
    header.set_size(0);
    let mut tape = tar::Builder::new(Vec::new());
    tape.append_data(&mut header, format!("{name}/"), io::empty())?;
    tape.into_inner()
}

/// Removes a home. That it is gone already is what is wanted.
pub async fn remove_home(daemon: &Daemon, slug: &str, key: &Key) -> Result<(), DockerError> {
    let name = Name::home(slug)?;
    let found = match daemon.docker().inspect_volume(name.as_str()).await {
        Ok(volume) => volume,
        Err(source) => {
            let error = daemon.error(Step::InspectVolume, source);
            return if error.status() == Some(404) { Ok(()) } else { Err(error) };
        }
    };
    if !labels::prove(&found.labels, key, Purpose::Home, name.as_str()) {
        let difference = "its labels do not prove that this user made it".to_owned();
        return Err(DockerError::ForeignVolume { name, difference });
    }
    let options = RemoveVolumeOptionsBuilder::new().build();
    match daemon.docker().remove_volume(name.as_str(), Some(options)).await {
        Ok(()) => Ok(()),
        Err(source) => {
            let error = daemon.error(Step::RemoveVolume, source);
            if error.status() == Some(404) { Ok(()) } else { Err(error) }
        }
    }
}
