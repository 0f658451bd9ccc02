//! Whom the installer believes: the certificate authorities that this host believes, so that an index behind a company's proxy
//! is reached. The installer has a copy of them, all in one file. Nothing else of the host's settings is passed on.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ringfence_policy::facts::Facts;

use super::RequirementsError;
use super::store::failed;

/// What the copy is called where the installer works.
pub(super) const FILE: &str = "authorities.pem";
/// What tells installers where it is: pip as it comes from anywhere, what pip asks when it asks the system, and npm, which
/// believes its own besides.
pub(super) const VARIABLES: [&str; 3] = ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"];
/// What names another file than the system's, as it does for curl, Python and others.
const NAMED: &str = "SSL_CERT_FILE";
/// Where systems have them all in one file.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const LARGEST: u64 = 8 << 20;

/// The authorities of this host; `None` where it has no such file.
pub(super) fn find(facts: &Facts) -> Result<Option<Vec<u8>>, RequirementsError> {
    let named = facts.env.iter().find(|(name, path)| *name == NAMED && !path.is_empty());
    let named = named.map(|(_, path)| Path::new(path));
    let bundle = named.or_else(|| BUNDLES.into_iter().map(Path::new).find(|path| path.is_file()));
    bundle.map(|path| read(path).map_err(failed("read", path))).transpose()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // What is no file is not waited for.
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}
