//! What can go wrong with a container engine, told apart by what the API and the kernel say, never by words of a message.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::errors::Error as Bollard;
use ringfence_policy::Cure;
use ringfence_policy::failure;

use super::names::{Name, NameError};
use crate::engines::EngineError;

/// Why the daemon did not do what it was asked to.
/// Nothing listens at the daemon's socket.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum DockerError {
    /// This user may not use the daemon's socket.
    #[error("no container daemon listens at `{}`", .0.display())]
    Absent(PathBuf),
    /// The text is not the address of a daemon on this host.
    #[error("not permitted to use the container daemon at `{}`", .0.display())]
    Permission(PathBuf),
    /// The daemon did not answer in time.
    #[error("`{0}` is not the address of a daemon on this host")]
    Address(String),
    /// The connection to the daemon broke.
    #[error("the container daemon did not answer in time: {0}")]
    Slow(Step),
    /// The daemon refused.
    #[error("the container daemon went away: {step}: {source}")]
    Gone { step: Step, source: Bollard },
    /// The daemon's answer cannot be understood.
    #[error("cannot {step}: {source}")]
    Refused { step: Step, status: u16, source: Bollard },
    /// The daemon's disk is full.
    #[error("the container daemon's answer makes no sense: {step}: {source}")]
    Answer { step: Step, source: Bollard },
    /// The daemon has no addresses for another network.
    #[error("cannot {step}: no space is left at `{}`", at.display())]
    DiskFull { step: Step, at: PathBuf, source: Box<DockerError> },
    /// The image is neither here nor can it be pulled.
    #[error("cannot {step}: no addresses are left for another network")]
    NoAddresses { step: Step, source: Bollard },
    /// A network of this name belongs to something else.
    #[error("there is no image `{name}` here, and it cannot be pulled: {source}")]
    NoImage { name: String, source: Box<DockerError> },
    /// A volume of this name belongs to something else.
    #[error("network `{name}` is there, and not ours: {difference}")]
    ForeignNetwork { name: Name, difference: String },
    /// The cache cannot be had.
    #[error("volume `{name}` is there, and not ours: {difference}")]
    ForeignVolume { name: Name, difference: String },
    /// The network could not be shut off from services of this host.
    #[error("cache `{cache}` cannot be had: {source}")]
    Cache { cache: String, source: Box<DockerError> },
    /// A name cannot be made.
    #[error("cannot keep the services of this host from network `{name}`: {reason}")]
    Firewall { name: Name, reason: String },
    /// The container ended before its guest answered.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The guest did not answer in time.
    #[error("the container ended before its guest answered{}", detail(.0))]
    Ended(String),
    /// The container could not be removed.
    #[error("the guest in the container did not answer within {} s", .0.as_secs())]
    NoGuest(Duration),
    /// A file for the container could not be made or read.
    #[error("container `{0}` cannot be removed")]
    Stuck(String),
    /// The user of the container cannot write to the directory.
    #[error("cannot {what} `{}`: {source}", path.display())]
    Files { what: &'static str, path: PathBuf, source: io::Error },
    /// A thread could not be started.
    #[error("`{}` cannot be written by {uid}:{gid}, whom the container runs as", path.display())]
    NotWritable { path: PathBuf, uid: u32, gid: u32, owner: (u32, u32) },
    #[error("cannot start a thread for the container daemon: {0}")]
    Thread(io::Error),
}

fn detail(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// A daemon may quote what it was asked in its answer, and that is long; people read the beginning.
fn shortened(mut message: String) -> String {
    const MOST: usize = 1000;
    if let Some(end) = (0..=MOST).rev().find(|at| message.is_char_boundary(*at)).filter(|_| message.len() > MOST) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "its text says what each is")]
pub enum Step {
    Connect,
    Ask,
    InspectImage,
    PullImage,
    BuildImage,
    InspectNetwork,
    CreateNetwork,
    InspectVolume,
    CreateVolume,
    RemoveVolume,
    PrepareVolume,
    CreateContainer,
    StartContainer,
    InspectContainer,
    ListContainers,
    RemoveContainer,
    WaitContainer,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Connect => "connect to the daemon",
            Step::Ask => "ask the daemon about itself",
            Step::InspectImage => "look at the image",
            Step::PullImage => "pull the image",
            Step::BuildImage => "build the image",
            Step::InspectNetwork => "look at the network",
            Step::CreateNetwork => "create the network",
            Step::InspectVolume => "look at the volume",
            Step::CreateVolume => "create the volume",
            Step::RemoveVolume => "remove the volume",
            Step::PrepareVolume => "hand the volume to the user of the container",
            Step::CreateContainer => "create the container",
            Step::StartContainer => "start the container",
            Step::InspectContainer => "look at the container",
            Step::ListContainers => "list the containers",
            Step::RemoveContainer => "remove the container",
            Step::WaitContainer => "wait for the container",
        })
    }
}

impl DockerError {
    /// What an error of the API means. `socket`: the daemon's, to tell whether anybody is there and may be asked.
    pub(super) fn of(step: Step, socket: &Path, source: Bollard) -> DockerError {
        match source {
            Bollard::DockerResponseServerError { status_code, message } => {
                let source = Bollard::DockerResponseServerError { status_code, message: shortened(message) };
                DockerError::Refused { step, status: status_code, source }
            }
            Bollard::RequestTimeoutError => DockerError::Slow(step),
            // In the middle of a stream there is no status; the words are for people.
            Bollard::DockerStreamError { .. } | Bollard::DockerContainerWaitError { .. } => {
                DockerError::Refused { step, status: 0, source }
            }
            Bollard::JsonDataError { .. } | Bollard::JsonSerdeError { .. } => DockerError::Answer { step, source },
            source => match std::os::unix::net::UnixStream::connect(socket) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    DockerError::Permission(socket.to_path_buf())
                }
                Err(_) => DockerError::Absent(socket.to_path_buf()),
                Ok(_) => DockerError::Gone { step, source },
            },
        }
    }

    /// The status of the API's answer, where there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            DockerError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the daemon cannot be had now; then a later try may do well.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            DockerError::Absent(_) | DockerError::Permission(_) | DockerError::Slow(_) | DockerError::Gone { .. }
        )
    }

    /// What helps.
    pub fn cures(&self) -> Vec<Cure> {
        let cure = match self {
            DockerError::Absent(_) => Cure::host("start Docker, or set DOCKER_HOST=unix://PATH to where it listens"),
            DockerError::Permission(_) => Cure::host(
                "become a member of its group (usermod -aG docker USER; whoever is in it is root on this host), or use a \
                 rootless daemon",
            ),
            DockerError::Address(_) => Cure::host(
                "set DOCKER_HOST=unix://PATH: working directories are mounted, so the daemon must see the files of this host",
            ),
            DockerError::Slow(_) | DockerError::Gone { .. } => {
                Cure::host("look at the daemon's log; the next call tries again")
            }
            DockerError::DiskFull { at, .. } => {
                Cure::host(format!("make space at `{}` (docker system df)", at.display()))
            }
            DockerError::NoAddresses { .. } => Cure::host(
                "remove networks that nobody uses (docker network prune), or give the daemon more address pools",
            ),
            DockerError::NoImage { name, .. } if name == ringfence_policy::policy::STANDARD_IMAGE => Cure::BuildImage,
            DockerError::NoImage { name, .. } => {
                let load = Cure::host(format!("load it (docker load, docker pull {name})"));
                return vec![load, Cure::another("image")];
            }
            DockerError::ForeignNetwork { name, .. } => {
                Cure::host(format!("whoever made it may need it; if nobody does: docker network rm {name}"))
            }
            DockerError::ForeignVolume { name, .. } => {
                Cure::host(format!("whoever made it may need it; if nobody does: docker volume rm {name}"))
            }
            DockerError::Cache { source, .. } => return source.cures(),
            DockerError::Firewall { .. } => Cure::PrepareHost,
            DockerError::NoGuest(_) => {
                Cure::host("the daemon must run on this host and see its files: not in a virtual machine")
            }
            DockerError::NotWritable { owner: (0, _), path, .. } => {
                Cure::host(format!("a container never runs as root: chown or setfacl `{}`", path.display()))
            }
            DockerError::NotWritable { owner: (uid, gid), .. } => Cure::set("user", format!("{uid}:{gid}")),
            _ => return Vec::new(),
        };
        vec![cure]
    }

    fn step(&self) -> failure::Step {
        match self {
            DockerError::Ended(_) | DockerError::NoGuest(_) => failure::Step::Guest,
            DockerError::Stuck(_) => failure::Step::Remove,
            _ => failure::Step::Prepare,
        }
    }
}

impl From<DockerError> for EngineError {
    fn from(error: DockerError) -> EngineError {
        EngineError::own(super::NAME, error.step(), error.cures(), error)
    }
}
