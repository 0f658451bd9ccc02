//! Documents: what is stored, and what is shown. Each says in JSON what it is, and in which version, before anything else
//! of it is read.
//!
//! `{"format": "ringfence.session-info", "version": 1, "body": …}`. A reader ignores fields that it does not know. A new
//! field has a default (`#[serde(default)]`); what cannot be expressed in this way raises the version of its format.
//!
//! What only one release reads and writes, since it contains a plan, is packed: the first line says what it is and which
//! release wrote it, and the rest is postcard.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::info::{ExecutionInfo, Info, Placeholder};
use crate::report::Report;

/// Something that is stored or shown.
pub trait Document: Serialize + DeserializeOwned {
    const FORMAT: &'static str;
    /// The only version that this release reads and writes.
    const VERSION: u32 = 1;
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
    #[error("it is a `{format}` of version {found}, and this release of Ringfence reads version {wanted}: {}", cure(*.found, *.wanted))]
    Version { format: &'static str, found: u32, wanted: u32 },
    #[error("it is a malformed `{format}`: {source}")]
    Malformed { format: &'static str, source: serde_json::Error },
    #[error(
        "it is a `{format}` of release {found}, and this is release {RELEASE} of Ringfence: use one release for both"
    )]
    Release { format: &'static str, found: String },
    #[error("it is a malformed `{format}`: {source}")]
    Unpack { format: &'static str, source: postcard::Error },
}

/// Something that is read by the release that wrote it, and by no other.
pub trait Packed: Serialize + DeserializeOwned {
    const FORMAT: &'static str;
}

const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// A first line is never longer.
const LONGEST_LINE: usize = 256;

fn cure(found: u32, wanted: u32) -> &'static str {
    if found > wanted { "use the newer release that wrote it" } else { "remove it, and make it again" }
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

pub fn read<T: Document>(bytes: &[u8]) -> Result<T, DocumentError> {
    let header: Header = serde_json::from_slice(bytes).map_err(DocumentError::NoDocument)?;
    if header.format != T::FORMAT {
        return Err(DocumentError::Format { found: header.format, wanted: T::FORMAT });
    }
    if header.version != T::VERSION {
        return Err(DocumentError::Version { format: T::FORMAT, found: header.version, wanted: T::VERSION });
    }
    let malformed = |source| DocumentError::Malformed { format: T::FORMAT, source };
    serde_json::from_slice::<Body<T>>(bytes).map(|read| read.body).map_err(malformed)
}

#[derive(Serialize, Deserialize)]
struct Line {
    format: String,
    release: String,
}

pub fn pack<T: Packed>(body: &T) -> Result<Vec<u8>, std::io::Error> {
    let line = Line { format: T::FORMAT.to_owned(), release: RELEASE.to_owned() };
    let mut bytes = serde_json::to_vec(&line)?;
    bytes.push(b'\n');
    postcard::to_extend(body, bytes).map_err(std::io::Error::other)
}

pub fn unpack<T: Packed>(bytes: &[u8]) -> Result<T, DocumentError> {
    let end = bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n').unwrap_or(0);
    let line: Line = serde_json::from_slice(&bytes[..end]).map_err(DocumentError::NoDocument)?;
    if line.format != T::FORMAT {
        return Err(DocumentError::Format { found: line.format, wanted: T::FORMAT });
    }
    if line.release != RELEASE {
        return Err(DocumentError::Release { format: T::FORMAT, found: line.release });
    }
    postcard::from_bytes(&bytes[end + 1..]).map_err(|source| DocumentError::Unpack { format: T::FORMAT, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Number(u32);

    impl Packed for Number {
        const FORMAT: &'static str = "ringfence.number";
    }

    #[test]
    fn what_one_release_packed_no_other_unpacks() {
        let packed = pack(&Number(300)).unwrap();
        assert_eq!(unpack::<Number>(&packed).unwrap().0, 300);
        let error = |bytes: &[u8]| unpack::<Number>(bytes).map(|_| ()).unwrap_err().to_string();
        let other = error(b"{\"format\":\"ringfence.number\",\"release\":\"9.9.9\"}\nwhatever");
        assert!(other.contains("release 9.9.9") && other.contains("use one release"), "{other}");
        assert!(error(b"{\"format\":\"x\",\"release\":\"9.9.9\"}\n").contains("it is a `x`"));
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
