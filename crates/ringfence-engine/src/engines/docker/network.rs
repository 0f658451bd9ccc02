//! The network that boxes share: made once, checked, remembered on disk, and made again when somebody removed it.
//!
//! Boxes on it reach the outside, but neither each other nor a service of this host. Docker has an option for the first;
//! for the second, a rule of the firewall in front of the host is needed, which takes root once after each start.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use bollard::models::{NetworkCreateRequest, NetworkInspect};
use rustix::fs::FlockOperation;

use super::daemon::Daemon;
use super::error::{DockerError, Step};
use super::labels::{self, Purpose};
use super::names::Name;

/// The bridge on the host, which the firewall's rules name.
const BRIDGE: &str = "ringfence0";
/// What makes it ours, beside driver and labels.
const OPTIONS: [(&str, &str); 3] = [
    ("com.docker.network.bridge.name", BRIDGE),
    ("com.docker.network.bridge.enable_icc", "false"),
    ("com.docker.network.bridge.enable_ip_masquerade", "true"),
];
/// Where root notes that the firewall is set, for everybody. Not in a directory of ours, which may be closed to others.
const NOTE: &str = "/run/ringfence-docker-network";
/// Addresses that every cloud gives its credentials away at.
const LINK_LOCAL: &str = "169.254.0.0/16";

/// The id of the network, made and checked where it is not remembered. Only one caller at a time asks; the others find
/// what it has remembered.
pub async fn ensure(daemon: &Daemon, state: &Path) -> Result<String, DockerError> {
    if daemon.abilities().await?.rootless {
        let reason = "a rootless daemon leaves the addresses of this host open".to_owned();
        return Err(DockerError::Firewall { name: Name::network(), reason });
    }
    let memory = Memory::open(daemon, state)?;
    if let Some(id) = memory.read() {
        return Ok(id);
    }
    let id = find_or_create(daemon).await?;
    firewall(&id)?;
    memory.write(&id)?;
    Ok(id)
}

/// Somebody removed it: it is to be looked for again.
pub fn forget(daemon: &Daemon, state: &Path) -> Result<(), DockerError> {
    Memory::open(daemon, state)?.clear()
}

/// What was seen good, on disk: sessions are processes of their own.
struct Memory {
    path: PathBuf,
    /// Holds the lock until it is dropped.
    file: fs::File,
}

impl Memory {
    fn open(daemon: &Daemon, state: &Path) -> Result<Memory, DockerError> {
        let name = format!("network-{}", daemon.socket().display().to_string().replace(['/', '.'], "_"));
        let path = state.join(name);
        let failed = |source| DockerError::Files { what: "open", path: path.clone(), source };
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&path);
        let file = file.map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        Ok(Memory { path, file })
    }

    /// Good for this start of the machine: the firewall forgets.
    fn read(&self) -> Option<String> {
        let text = fs::read_to_string(&self.path).ok()?;
        let (boot, id) = text.trim().split_once(' ')?;
        (boot == boot_id() && !id.is_empty()).then(|| id.to_owned())
    }

    fn write(&self, id: &str) -> Result<(), DockerError> {
        let failed = |source| DockerError::Files { what: "write", path: self.path.clone(), source };
        self.file.set_len(0).map_err(failed)?;
        (&self.file).write_all(format!("{} {id}\n", boot_id()).as_bytes()).map_err(failed)
    }

    fn clear(&self) -> Result<(), DockerError> {
        let failed = |source| DockerError::Files { what: "write", path: self.path.clone(), source };
        self.file.set_len(0).map_err(failed)
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

async fn find_or_create(daemon: &Daemon) -> Result<String, DockerError> {
    let name = Name::network();
    match inspect(daemon, name.as_str()).await {
        Ok(found) => return check(&name, found),
        Err(error) if error.status() == Some(404) => {}
        Err(error) => return Err(error),
    }
    let pairs = OPTIONS.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let request = NetworkCreateRequest {
        name: name.to_string(),
        driver: Some("bridge".to_owned()),
        enable_ipv6: Some(false),
        options: Some(HashMap::from(pairs)),
        labels: Some(labels::shared(Purpose::Network)),
        ..NetworkCreateRequest::default()
    };
    match daemon.docker().create_network(request).await {
        Ok(created) => Ok(created.id),
        Err(source) => {
            let full = matches!(addresses_left(daemon).await, Ok(false));
            let error = daemon.error(Step::CreateNetwork, source);
            // Another user of the daemon may have been faster; what is there now decides, not what the message says.
            match inspect(daemon, name.as_str()).await {
                Ok(found) => check(&name, found),
                Err(_) => match error {
                    DockerError::Refused { step, source, .. } if full => Err(DockerError::NoAddresses { step, source }),
                    error => Err(error),
                },
            }
        }
    }
}

async fn inspect(daemon: &Daemon, name: &str) -> Result<NetworkInspect, DockerError> {
    let found = daemon.docker().inspect_network(name, None).await;
    found.map_err(|source| daemon.error(Step::InspectNetwork, source))
}

/// Whether what has our name is ours, and as we make it.
fn check(name: &Name, found: NetworkInspect) -> Result<String, DockerError> {
    let foreign = |difference: String| DockerError::ForeignNetwork { name: name.clone(), difference };
    if !labels::is(&found.labels.unwrap_or_default(), None, Purpose::Network) {
        return Err(foreign("its labels are not ours".to_owned()));
    }
    if found.driver.as_deref() != Some("bridge") {
        return Err(foreign(format!("its driver is `{}`", found.driver.unwrap_or_default())));
    }
    if found.internal == Some(true) || found.enable_ipv6 == Some(true) {
        return Err(foreign("it is internal, or has IPv6".to_owned()));
    }
    let options = found.options.unwrap_or_default();
    if let Some((key, value)) = OPTIONS.iter().find(|(key, value)| options.get(*key).map(String::as_str) != Some(value))
    {
        return Err(foreign(format!("`{key}` is not `{value}`")));
    }
    Ok(found.id.unwrap_or_default())
}

/// Whether some pool of the daemon has a network left that none of its networks overlaps.
async fn addresses_left(daemon: &Daemon) -> Result<bool, bollard::errors::Error> {
    let info = daemon.docker().info().await?;
    let networks = daemon.docker().list_networks(None).await?;
    let taken: Vec<Block> = networks
        .into_iter()
        .filter_map(|network| network.ipam?.config)
        .flatten()
        .filter_map(|config| Block::parse(&config.subnet?))
        .collect();
    let told: Vec<(Block, u32)> = info
        .default_address_pools
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pool| Some((Block::parse(&pool.base?)?, u32::try_from(pool.size?).ok()?)))
        .collect();
    let pools = if told.is_empty() { default_pools() } else { told };
    Ok(pools.iter().any(|(pool, size)| pool.parts(*size).any(|part| !taken.iter().any(|other| other.overlaps(part)))))
}

/// What a daemon takes networks from when it is not told.
fn default_pools() -> Vec<(Block, u32)> {
    let middle = (17..32).map(|n| (Block { base: (172 << 24) | (n << 16), bits: 16 }, 16));
    middle.chain([(Block { base: (192 << 24) | (168 << 16), bits: 16 }, 20)]).collect()
}

/// Addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    base: u32,
    bits: u32,
}

impl Block {
    fn parse(text: &str) -> Option<Block> {
        let (address, bits) = text.split_once('/')?;
        let bits = bits.parse().ok().filter(|bits| *bits <= 32)?;
        let address: std::net::Ipv4Addr = address.parse().ok()?;
        Some(Block { base: u32::from(address) & mask(bits), bits })
    }

    fn overlaps(self, other: Block) -> bool {
        let bits = self.bits.min(other.bits);
        self.base & mask(bits) == other.base & mask(bits)
    }

    fn parts(self, bits: u32) -> impl Iterator<Item = Block> {
        let bits = bits.clamp(self.bits, 32);
        let count = 1u64 << (bits - self.bits).min(16);
        (0..count).map(move |n| Block { base: self.base | ((n << (32 - bits)) as u32), bits })
    }
}

fn mask(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

/// Sees to it that boxes do not reach the services of this host.
fn firewall(id: &str) -> Result<(), DockerError> {
    let failed = |reason: String| DockerError::Firewall { name: Name::network(), reason };
    let note = format!("{} {id}", boot_id());
    if !rustix::process::geteuid().is_root() {
        let by_root = fs::symlink_metadata(NOTE).is_ok_and(|data| data.is_file() && data.uid() == 0);
        let noted = by_root && fs::read_to_string(NOTE).is_ok_and(|text| text.trim() == note);
        return if noted { Ok(()) } else { Err(failed("only root can set the firewall".to_owned())) };
    }
    let program =
        ["/usr/sbin/iptables", "/sbin/iptables", "/usr/bin/iptables"].into_iter().find(|p| Path::new(p).exists());
    let program = program.ok_or_else(|| failed("iptables is not installed".to_owned()))?;
    let rules: [&[&str]; 2] = [
        // Before the host itself.
        &["INPUT", "-i", BRIDGE, "-j", "REJECT"],
        // Before what is passed on; Docker keeps this chain for such rules and asks it first.
        &["DOCKER-USER", "-i", BRIDGE, "-d", LINK_LOCAL, "-j", "REJECT"],
    ];
    for rule in rules {
        let run = |act: &str| Command::new(program).args(["-w", "5", act]).args(rule).env_clear().output();
        if run("-C").is_ok_and(|output| output.status.success()) {
            continue;
        }
        let output = run("-I").map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
    }
    // For everybody to read, whatever the mask of this process is.
    let write = || {
        fs::write(NOTE, format!("{note}\n"))?;
        fs::set_permissions(NOTE, fs::Permissions::from_mode(0o644))
    };
    write().map_err(|source| DockerError::Files { what: "write", path: PathBuf::from(NOTE), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_addresses() {
        let block = |text| Block::parse(text).unwrap();
        assert!(block("10.0.0.0/8").overlaps(block("10.1.2.0/24")));
        assert!(block("10.1.2.0/24").overlaps(block("10.0.0.0/8")));
        assert!(!block("10.1.2.0/24").overlaps(block("10.1.3.0/24")));
        assert_eq!(block("10.1.0.0/16").parts(24).count(), 256);
        assert_eq!(block("10.1.0.0/30").parts(32).nth(3), Some(block("10.1.0.3/32")));
        assert_eq!(default_pools().iter().map(|(pool, size)| pool.parts(*size).count()).sum::<usize>(), 31);
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "fe80::/64"] {
            assert_eq!(Block::parse(bad), None, "{bad}");
        }
    }
}
