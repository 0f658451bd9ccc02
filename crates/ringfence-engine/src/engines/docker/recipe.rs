//! The recipe of the standard image: Debian packages, unpacked by `mmdebstrap` and loaded. No registry is asked.
//!
//! The same list, suite and day give the same files, byte for byte: packages come from a snapshot of the archive where one
//! is named, and every time stamp is that of the recipe.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bollard::query_parameters::ImportImageOptionsBuilder;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use ringfence_policy::facts::Facts;
use sha2::{Digest, Sha256};

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
/// The same, as images write it.
const CREATED: &str = "2025-05-20T00:00:00Z";

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

/// What an image says of itself. Nothing in it depends on when or where it is made.
fn config(layer: &str) -> serde_json::Value {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    serde_json::json!({
        "architecture": architecture,
        "os": "linux",
        "created": CREATED,
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
            "User": "1000:1000",
            "WorkingDir": "/home/sandbox",
            "Cmd": ["/bin/bash"],
        },
        "rootfs": { "type": "layers", "diff_ids": [layer] },
        "history": [{ "created": CREATED, "created_by": "ringfence image build" }],
    })
}

/// Makes an image of a tape: as `docker save` would write it, so that its id says what is in it and nothing else. It lies
/// beside the tape until it is loaded. Returns its id.
pub fn load(facts: &Facts, tape: &Path, name: &str) -> Result<String, DockerError> {
    let daemon = Daemon::connect(facts)?;
    let packed = tape.with_extension("image");
    let failed = |what: &'static str| {
        let path = packed.clone();
        move |source: io::Error| DockerError::Files { what, path, source }
    };
    pack(tape, &packed, name).map_err(failed("write"))?;
    let file = File::open(&packed).map_err(failed("read"))?;
    super::block_on(async {
        daemon.abilities().await?;
        // Pieces of a file: no image is held in memory.
        let pieces = stream::iter(Pieces(file));
        let patient = daemon.docker().clone().with_timeout(PATIENCE);
        let options = ImportImageOptionsBuilder::new().build();
        let mut events = std::pin::pin!(patient.import_image(options, bollard::body_try_stream(pieces), None));
        let silent = |_| DockerError::Slow(Step::BuildImage);
        while let Some(event) = tokio::time::timeout(PATIENCE, events.next()).await.map_err(silent)? {
            event.map_err(|source| daemon.error(Step::BuildImage, source))?;
        }
        Ok(super::images::inspect(&daemon, name).await?.id)
    })
}

/// How long the daemon may take for the next word while it unpacks.
const PATIENCE: Duration = Duration::from_secs(600);

/// A file, piece by piece.
struct Pieces(File);

impl Iterator for Pieces {
    type Item = io::Result<Bytes>;

    fn next(&mut self) -> Option<io::Result<Bytes>> {
        let mut piece = vec![0; 1 << 18];
        match self.0.read(&mut piece) {
            Ok(0) => None,
            Ok(count) => {
                piece.truncate(count);
                Some(Ok(piece.into()))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

/// Writes the archive of an image with one layer.
fn pack(layer: &Path, to: &Path, name: &str) -> io::Result<()> {
    let mut hash = Sha256::new();
    for piece in Pieces(File::open(layer)?) {
        hash.update(&piece?);
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let config = config(&format!("sha256:{}", hex(&hash.finalize()))).to_string();
    let config_name = format!("{}.json", hex(&Sha256::digest(&config)));
    let tagged = if name.rsplit('/').next().is_some_and(|last| last.contains(':')) { "" } else { ":latest" };
    let manifest = serde_json::json!([
        { "Config": config_name, "RepoTags": [format!("{name}{tagged}")], "Layers": ["layer.tar"] }
    ]);
    let mut archive = tar::Builder::new(File::create(to)?);
    let mut put = |name: &str, size: u64, bytes: &mut dyn Read| {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(size);
        archive.append_data(&mut header, name, bytes)
    };
    let manifest = manifest.to_string();
    put("manifest.json", manifest.len() as u64, &mut manifest.as_bytes())?;
    put(&config_name, config.len() as u64, &mut config.as_bytes())?;
    let mut layer = File::open(layer)?;
    put("layer.tar", layer.metadata()?.len(), &mut layer)?;
    archive.finish()
}
