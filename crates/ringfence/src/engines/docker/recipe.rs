//! The recipe of the standard image: Debian packages, unpacked by `mmdebstrap` and imported. No registry is asked.
//!
//! The same list, suite and day give the same files, byte for byte: packages come from a snapshot of the archive where one
//! is named, and every time stamp is that of the recipe.

use std::path::Path;
use std::process::Command;

use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use ringfence_policy::facts::Facts;

use super::daemon::Daemon;
use super::error::{DockerError, Step};

/// What is in it: Python, Node, git, and what commands of agents expect.
pub const PACKAGES: &[&str] = &[
    "bash",
    "ca-certificates",
    "curl",
    "file",
    "git",
    "jq",
    "less",
    "make",
    "nodejs",
    "npm",
    "openssh-client",
    "patch",
    "procps",
    "python3",
    "python3-pip",
    "python3-venv",
    "ripgrep",
    "rsync",
    "sqlite3",
    "unzip",
    "xz-utils",
    "zip",
];

/// The release of Debian.
pub const SUITE: &str = "bookworm";

/// All files of the image have this time, in seconds since 1970.
const STAMP: u64 = 1_747_699_200;

/// What is set in the image.
const CHANGES: &[&str] = &[
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "ENV LANG=C.UTF-8",
    "USER 1000:1000",
    "WORKDIR /home/sandbox",
    "CMD [\"/bin/bash\"]",
];

/// The archive that packages are taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Archive {
    /// As it was at a time, `20250520T000000Z`: the same files every time.
    Snapshot(String),
    /// As it is now.
    Mirror(String),
}

impl Archive {
    fn url(&self) -> String {
        match self {
            Archive::Snapshot(time) => format!("http://snapshot.debian.org/archive/debian/{time}"),
            Archive::Mirror(url) => url.clone(),
        }
    }
}

/// The command that unpacks the packages into a tape.
pub fn command(archive: &Archive, tape: &Path) -> Command {
    let mut command = Command::new("mmdebstrap");
    command.env("SOURCE_DATE_EPOCH", STAMP.to_string());
    command.args(["--quiet", "--variant=minbase", &format!("--include={}", PACKAGES.join(","))]);
    // A snapshot is older than its own signature allows.
    command.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
    command
        .arg("--customize-hook=chroot \"$1\" useradd --uid 1000 --user-group --create-home --shell /bin/bash sandbox");
    // What differs from one build to the next, and what nobody in a box needs.
    command.arg(
        "--customize-hook=rm -rf \"$1\"/var/lib/apt/lists/* \"$1\"/var/cache/* \"$1\"/var/log/* \"$1\"/etc/machine-id",
    );
    command.arg(SUITE).arg(tape).arg(archive.url());
    command
}

/// Imports a tape as an image. Returns its id.
pub fn import(facts: &Facts, tape: &Path, name: &str) -> Result<String, DockerError> {
    let failed = |source| DockerError::Files { what: "read", path: tape.to_path_buf(), source };
    let bytes = std::fs::read(tape).map_err(failed)?;
    let daemon = Daemon::connect(facts)?;
    super::block_on(async {
        daemon.abilities().await?;
        let (repository, tag) = name.rsplit_once(':').unwrap_or((name, "latest"));
        let changes = CHANGES.join("\n");
        let options =
            CreateImageOptionsBuilder::new().from_src("-").repo(repository).tag(tag).changes(vec![changes]).build();
        let body = bollard::body_full(bytes.into());
        let mut events = std::pin::pin!(daemon.docker().create_image(Some(options), Some(body), None));
        while let Some(event) = events.next().await {
            event.map_err(|source| daemon.error(Step::BuildImage, source))?;
        }
        Ok(super::images::inspect(&daemon, name).await?.id)
    })
}
