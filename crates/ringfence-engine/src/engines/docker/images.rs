//! Images: found here, else pulled. `name@sha256:…` is that very one.

use std::time::Duration;

use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use ringfence_policy::policy::STANDARD_IMAGE;

use super::daemon::Daemon;
use super::error::{DockerError, Step};
use super::request::Image;
use crate::engines::{OnProgress, Progress};

/// How long a pull may go on without a word.
const SILENCE: Duration = Duration::from_secs(120);

/// Finds an image, or pulls it; but not the standard one, which is built here: a registry's of that name would be a stranger's.
pub async fn find(daemon: &Daemon, name: &str, progress: OnProgress<'_>) -> Result<Image, DockerError> {
    let missing = match inspect(daemon, name).await {
        Err(error) if error.status() == Some(404) => error,
        found => return found,
    };
    if let Some(image) = by_id(daemon, name).await? {
        return Ok(image);
    }
    let absent = |source| DockerError::NoImage { name: name.to_owned(), source: Box::new(source) };
    // An id is nothing that a registry has.
    if name.starts_with("sha256:") || name.split(['@', ':']).next() == Some(STANDARD_IMAGE) {
        return Err(absent(missing));
    }
    match pull(daemon, name, progress).await {
        Ok(()) => inspect(daemon, name).await.map_err(absent),
        Err(error) if error.is_unavailable() => Err(error),
        Err(error) => Err(absent(error)),
    }
}

pub(super) async fn inspect(daemon: &Daemon, name: &str) -> Result<Image, DockerError> {
    let found = daemon.docker().inspect_image(name).await;
    let found = found.map_err(|source| daemon.error(Step::InspectImage, source))?;
    let config = found.config.unwrap_or_default();
    Ok(Image {
        id: found.id.unwrap_or_else(|| name.to_owned()),
        env: config.env.unwrap_or_default(),
        volumes: config.volumes.unwrap_or_default().into_iter().map(Into::into).collect(),
    })
}

/// What was built here has no digest of a registry: its own id pins it as well.
async fn by_id(daemon: &Daemon, name: &str) -> Result<Option<Image>, DockerError> {
    let Some((name, digest)) = name.split_once('@') else { return Ok(None) };
    match inspect(daemon, name).await {
        Ok(image) => Ok(Some(image).filter(|image| image.id == digest)),
        Err(error) if error.status() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn pull(daemon: &Daemon, name: &str, progress: OnProgress<'_>) -> Result<(), DockerError> {
    // Without a tag the daemon would take all of them.
    let last = name.rsplit('/').next().unwrap_or(name);
    let full = if last.contains([':', '@']) { name.to_owned() } else { format!("{name}:latest") };
    let options = CreateImageOptionsBuilder::new().from_image(&full).build();
    let mut events = std::pin::pin!(daemon.docker().create_image(Some(options), None, None));
    // The client bounds the time until an answer begins, and not how long it is silent afterwards.
    let silent = |_| DockerError::Slow(Step::PullImage);
    while let Some(event) = tokio::time::timeout(SILENCE, events.next()).await.map_err(silent)? {
        let event = event.map_err(|source| daemon.error(Step::PullImage, source))?;
        let bytes = event.progress_detail.and_then(|detail| {
            let number = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok());
            Some((number(detail.current)?, number(detail.total)?))
        });
        progress(Progress { layer: event.id, status: event.status.unwrap_or_default(), bytes });
    }
    Ok(())
}
