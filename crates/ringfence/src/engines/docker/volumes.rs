//! Volumes: package caches that boxes of a group share, and homes that outlive their containers.

use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::RemoveVolumeOptionsBuilder;
use ringfence_policy::plan::{Plan, Volume};

use super::daemon::Daemon;
use super::error::{DockerError, Step};
use super::labels::{self, Owner, Purpose};
use super::names::Name;

/// The volumes of a box: what is ready, and what is not and why.
#[derive(Debug, Default)]
pub struct Volumes {
    pub ready: Vec<(Volume, Name)>,
    /// Caches that the box runs without.
    pub failed: Vec<DockerError>,
}

/// Makes what is missing. A home that cannot be had stops the box; a cache only where the policy says so.
pub async fn ensure(daemon: &Daemon, plan: &Plan, slug: &str, owner: &Owner) -> Result<Volumes, DockerError> {
    let mut volumes = Volumes::default();
    for (volume, name) in super::volumes_of(plan, slug)? {
        let made = match &volume {
            Volume::Home => {
                let labels = labels::home(owner, slug);
                create(daemon, &name, labels, Some(owner), Purpose::Home).await
            }
            Volume::Cache { name: cache, .. } => {
                let made = create(daemon, &name, labels::shared(Purpose::Cache), None, Purpose::Cache).await;
                made.map_err(|source| DockerError::Cache { cache: cache.clone(), source: Box::new(source) })
            }
        };
        match made {
            Ok(()) => volumes.ready.push((volume, name)),
            Err(error @ DockerError::Cache { .. }) if !plan.caches_required => volumes.failed.push(error),
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
) -> Result<(), DockerError> {
    let request = VolumeCreateRequest {
        name: Some(name.to_string()),
        driver: Some("local".to_owned()),
        labels: Some(labels),
        ..VolumeCreateRequest::default()
    };
    let found = match daemon.docker().create_volume(request).await {
        Ok(volume) => volume,
        // With another driver, it cannot be asked for like this.
        Err(source) => {
            let error = daemon.error(Step::CreateVolume, source);
            match daemon.docker().inspect_volume(name.as_str()).await {
                Ok(volume) => volume,
                Err(_) => return Err(error),
            }
        }
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
    Ok(())
}

/// Removes a home. That it is gone already is what is wanted.
pub async fn remove_home(daemon: &Daemon, slug: &str, owner: &Owner) -> Result<(), DockerError> {
    let name = Name::home(slug)?;
    let found = match daemon.docker().inspect_volume(name.as_str()).await {
        Ok(volume) => volume,
        Err(source) => {
            let error = daemon.error(Step::InspectVolume, source);
            return if error.status() == Some(404) { Ok(()) } else { Err(error) };
        }
    };
    if !labels::is(&found.labels, Some(owner), Purpose::Home) {
        let difference = "its labels are not ours".to_owned();
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
