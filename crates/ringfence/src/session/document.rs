//! Documents: what is stored, and what is shown. Each says in JSON what it is, and in which version, before anything else
//! of it is read.
//!
//! `{"format": "ringfence.session-info", "version": 1, "body": …}`. A reader ignores fields that it does not know. A new
//! field has a default (`#[serde(default)]`); what cannot be expressed in this way raises the version of its format.
//!
//! What only one build reads and writes, since it contains a plan, is packed: a first line in JSON says what it is, in which
//! version, which release wrote it and with which hash, and the rest is postcard. The hash is over what is meant, names of
//! fields included, so that two builds of one release whose plans differ do not misread each other.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};

use ringfence_policy::Guarded;
use ringfence_policy::canonical::{self, CanonicalError};

use super::info::{ExecutionInfo, Info, Placeholder};
use crate::report::Report;

/// Something that is stored or shown.
pub trait Document: Serialize + DeserializeOwned {
    const FORMAT: &'static str;
    /// The version that this release writes, and the newest that it reads.
    const VERSION: u32 = 1;
    /// The oldest that it reads.
    const OLDEST: u32 = 1;
}

impl Document for Info {
    const FORMAT: &'static str = "ringfence.session-info";
}

impl Document for Report {
    const FORMAT: &'static str = "ringfence.report";
}

impl Document for Vec<ExecutionInfo> {
    const FORMAT: &'static str = "ringfence.executions";
}

impl Document for Guarded {
    const FORMAT: &'static str = "ringfence.guarded";
}

impl Document for Vec<Placeholder> {
    const FORMAT: &'static str = "ringfence.placeholders";
}

/// Why bytes are not the document that they should be.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("it is no document of Ringfence: {0}")]
    NoDocument(serde_json::Error),
    #[error("it is a `{found}`, not a `{wanted}`")]
    Format { found: String, wanted: &'static str },
    #[error("it is a `{format}` of version {found}, and this release of Ringfence reads {}: {}", versions(.wanted), cure(*.found, .wanted))]
    Version { format: &'static str, found: u32, wanted: RangeInclusive<u32> },
    #[error("it is a malformed `{format}`: {source}")]
    Malformed { format: &'static str, source: serde_json::Error },
    #[error(
        "it is a `{format}` of release {found}, and this is release {RELEASE} of Ringfence: use one release for both"
    )]
    Release { format: &'static str, found: String },
    #[error("it is a `{format}` of another build of release {RELEASE}: use one build for both")]
    Build { format: &'static str },
    #[error("it is a malformed `{format}`: {source}")]
    Unpack { format: &'static str, source: postcard::Error },
}

/// Something that is read by the build that wrote it, and by no other.
pub trait Packed: Serialize + DeserializeOwned {
    const FORMAT: &'static str;
    /// The only version that is read.
    const VERSION: u32 = 1;
}

const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// A first line is never longer.
const LONGEST_LINE: usize = 256;

fn cure(found: u32, wanted: &RangeInclusive<u32>) -> &'static str {
    if found > *wanted.end() { "use the newer release that wrote it" } else { "remove it, and make it again" }
}

fn versions(wanted: &RangeInclusive<u32>) -> impl fmt::Display {
    let (oldest, newest) = (wanted.start(), wanted.end());
    if oldest == newest { format!("version {newest}") } else { format!("versions {oldest} to {newest}") }
}

#[derive(Serialize)]
struct Written<'a, T> {
    format: &'static str,
    version: u32,
    body: &'a T,
}

#[derive(Deserialize)]
struct Header {
    format: String,
    version: u32,
}

#[derive(Deserialize)]
struct Body<T> {
    body: T,
}

pub fn write<T: Document>(body: &T) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Written { format: T::FORMAT, version: T::VERSION, body })
}

/// What the header says, before anything else is read.
fn check(bytes: &[u8], format: &'static str, wanted: RangeInclusive<u32>) -> Result<(), DocumentError> {
    let header: Header = serde_json::from_slice(bytes).map_err(DocumentError::NoDocument)?;
    if header.format != format {
        return Err(DocumentError::Format { found: header.format, wanted: format });
    }
    if !wanted.contains(&header.version) {
        return Err(DocumentError::Version { format, found: header.version, wanted });
    }
    Ok(())
}

pub fn read<T: Document>(bytes: &[u8]) -> Result<T, DocumentError> {
    check(bytes, T::FORMAT, T::OLDEST..=T::VERSION)?;
    let malformed = |source| DocumentError::Malformed { format: T::FORMAT, source };
    serde_json::from_slice::<Body<T>>(bytes).map(|read| read.body).map_err(malformed)
}

/// For `#[serde(deserialize_with = "known")]`: what a newer release says, and this one does not know, is the default.
pub fn known<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Read<T> {
        Known(T),
        Other(IgnoredAny),
    }
    Ok(match Read::deserialize(deserializer)? {
        Read::Known(known) => known,
        Read::Other(_) => T::default(),
    })
}

#[derive(Serialize, Deserialize)]
struct Line {
    format: String,
    version: u32,
    release: String,
    hash: String,
}

/// Over what is read, so that what is not packed does not count.
fn hash<T: Packed>(body: &T) -> Result<String, CanonicalError> {
    canonical::hash(body)
}

pub fn pack<T: Packed>(body: &T) -> Result<Vec<u8>, std::io::Error> {
    let packed = postcard::to_allocvec(body).map_err(std::io::Error::other)?;
    let again: T = postcard::from_bytes(&packed).map_err(std::io::Error::other)?;
    let (format, release) = (T::FORMAT.to_owned(), RELEASE.to_owned());
    let hash = hash(&again).map_err(std::io::Error::other)?;
    let mut bytes = serde_json::to_vec(&Line { format, version: T::VERSION, release, hash })?;
    bytes.push(b'\n');
    bytes.extend(packed);
    Ok(bytes)
}

pub fn unpack<T: Packed>(bytes: &[u8]) -> Result<T, DocumentError> {
    let end = bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n').unwrap_or(0);
    check(&bytes[..end], T::FORMAT, T::VERSION..=T::VERSION)?;
    let line: Line = serde_json::from_slice(&bytes[..end]).map_err(DocumentError::NoDocument)?;
    let format = T::FORMAT;
    if line.release != RELEASE {
        return Err(DocumentError::Release { format, found: line.release });
    }
    let body = postcard::from_bytes(&bytes[end + 1..]).map_err(|source| DocumentError::Unpack { format, source })?;
    if hash(&body).is_ok_and(|hash| hash == line.hash) { Ok(body) } else { Err(DocumentError::Build { format }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Number(u32);

    impl Packed for Number {
        const FORMAT: &'static str = "ringfence.number";
    }

    #[test]
    fn what_one_release_packed_no_other_unpacks() {
        let packed = pack(&Number(300)).unwrap();
        assert_eq!(unpack::<Number>(&packed).unwrap().0, 300);
        let line = |version: u32, release: &str| {
            let (format, release) = (Number::FORMAT.to_owned(), release.to_owned());
            serde_json::to_string(&Line { format, version, release, hash: String::new() }).unwrap() + "\nwhatever"
        };
        let error = |bytes: &[u8]| unpack::<Number>(bytes).map(|_| ()).unwrap_err().to_string();
        let other = error(line(1, "9.9.9").as_bytes());
        assert!(other.contains("release 9.9.9") && other.contains("use one release"), "{other}");
        assert!(error(b"{\"format\":\"x\",\"version\":1,\"release\":7}\n").contains("it is a `x`"));
        // The version comes before all that it may change.
        assert!(error(b"{\"format\":\"ringfence.number\",\"version\":2,\"release\":7}\n").contains("of version 2"));
        assert!(error(&packed[..packed.len() - 2]).contains("malformed"));
        for bytes in [&b""[..], b"\n", &[b'x'; 1000], &packed[..10]] {
            assert!(error(bytes).contains("no document"));
        }
    }

    #[test]
    fn what_it_is_comes_first() {
        let error = |text: &str| read::<Vec<Placeholder>>(text.as_bytes()).unwrap_err().to_string();
        let good = write(&vec![Placeholder { path: "/x".into(), length: 2 }]).unwrap();
        assert_eq!(read::<Vec<Placeholder>>(&good).unwrap()[0].length, 2);
        // A field of a newer release is ignored.
        let newer = r#"{"format":"ringfence.placeholders","version":1,"by":"x","body":[]}"#;
        assert!(read::<Vec<Placeholder>>(newer.as_bytes()).unwrap().is_empty());
        // The body is not looked at.
        let newest = error(r#"{"format":"ringfence.placeholders","version":2,"body":{"other":1}}"#);
        assert!(newest.contains("version 2") && newest.contains("version 1") && newest.contains("newer release"));
        let oldest = error(r#"{"format":"ringfence.placeholders","version":0,"body":{"other":1}}"#);
        assert!(oldest.contains("make it again"), "{oldest}");
        assert!(error(r#"{"format":"ringfence.report","version":1,"body":[]}"#).contains("it is a `ringfence.report`"));
        assert!(error(r#"{"format":"ringfence.placeholders","version":1,"body":7}"#).contains("malformed"));
        for bytes in ["", "\x07\x01", "{}", "[1]"] {
            assert!(error(bytes).contains("no document"), "{bytes:?}");
        }
    }
}
