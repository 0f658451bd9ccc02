//! How paths, durations and the like are written where serde's own form loses something or does not fit.
//!
//! Between processes (postcard) a path is the bytes that it is. In a form that people read (JSON) it is a string, or
//! `{"hex": "2f7372…"}` where it is not UTF-8: serde's own form refuses such a path.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A name or path of the operating system.
struct Os<'a>(Cow<'a, OsStr>);

impl<'a> Os<'a> {
    fn of(text: &'a (impl AsRef<OsStr> + ?Sized)) -> Os<'a> {
        Os(Cow::Borrowed(text.as_ref()))
    }
}

/// Its form for people.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Readable {
    Text(String),
    Bytes(Bytes),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bytes {
    hex: String,
}

impl Serialize for Os<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            _ if !serializer.is_human_readable() => serializer.serialize_bytes(self.0.as_bytes()),
            Some(text) => serializer.serialize_str(text),
            None => Readable::Bytes(Bytes { hex: hex(self.0.as_bytes()) }).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Os<'static> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = if !deserializer.is_human_readable() {
            Vec::deserialize(deserializer)?
        } else {
            match Readable::deserialize(deserializer)? {
                Readable::Text(text) => text.into_bytes(),
                Readable::Bytes(Bytes { hex }) => unhex(&hex).ok_or_else(|| D::Error::custom("not hex digits"))?,
            }
        };
        Ok(Os(Cow::Owned(OsString::from_vec(bytes))))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| (*byte as char).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| if let [high, low] = pair { Some(digit(high)? << 4 | digit(low)?) } else { None }).collect()
}

/// For `#[serde(with = "wire::path")]`.
#[allow(missing_docs, reason = "serde calls these two")]
pub mod path {
    use std::path::{Path, PathBuf};

    use super::*;

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        Os::of(path).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Ok(Os::deserialize(deserializer)?.0.into_owned().into())
    }
}

/// For `#[serde(with = "wire::paths")]`.
#[allow(missing_docs, reason = "serde calls these two")]
pub mod paths {
    use std::path::PathBuf;

    use super::*;

    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(Os::of))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        let list = Vec::<Os<'_>>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|path| path.0.into_owned().into()).collect())
    }
}

/// For `#[serde(with = "wire::absolute")]`: a path that is absolute and has no `.`, `..` or doubled slash. Another one
/// is refused when it is read: a rule that names it would never hold.
pub(crate) mod absolute {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::rules::normalise;

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        Os::of(path).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        let path = path::deserialize(deserializer)?;
        if normalise(&path).as_os_str() != path.as_os_str() {
            return Err(D::Error::custom(format!("`{}` is not an absolute, normalised path", path.display())));
        }
        Ok(path)
    }
}

#[derive(Serialize, Deserialize)]
struct Absolute(#[serde(with = "absolute")] std::path::PathBuf);

/// For `#[serde(with = "wire::absolutes")]`: a list of such paths.
pub(crate) mod absolutes {
    use std::path::PathBuf;

    use super::*;

    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(Os::of))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<Absolute>::deserialize(deserializer)?.into_iter().map(|path| path.0).collect())
    }
}

/// For `#[serde(with = "wire::maybe_absolute")]`: as [`absolute`], or `null`, which must be said.
pub(crate) mod maybe_absolute {
    use std::path::PathBuf;

    use super::*;

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_ref().map(|path| Absolute(path.clone())).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<Absolute>::deserialize(deserializer)?.map(|path| path.0))
    }
}

/// For `#[serde(with = "wire::variables")]`: values by names that need not be UTF-8. In JSON, whose keys are strings, a list
/// of pairs.
pub(crate) mod variables {
    use std::collections::BTreeMap;

    use super::*;

    type Map = BTreeMap<OsString, OsString>;

    pub fn serialize<S: Serializer>(map: &Map, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.collect_seq(map.iter().map(|(name, value)| (Os::of(name), Os::of(value))));
        }
        map.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map, D::Error> {
        if !deserializer.is_human_readable() {
            return Map::deserialize(deserializer);
        }
        let pairs = Vec::<(Os<'_>, Os<'_>)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().map(|(name, value)| (name.0.into_owned(), value.0.into_owned())).collect())
    }
}

/// For `#[serde(with = "wire::values")]`: values of variables by name.
pub(crate) mod values {
    use std::collections::BTreeMap;

    use super::*;

    pub fn serialize<S: Serializer>(map: &BTreeMap<String, OsString>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(map.iter().map(|(name, value)| (name, Os::of(value))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, OsString>, D::Error> {
        let map = BTreeMap::<String, Os<'_>>::deserialize(deserializer)?;
        Ok(map.into_iter().map(|(name, value)| (name, value.0.into_owned())).collect())
    }
}

/// For `#[serde(deserialize_with = "wire::given")]`: `null` must be said. Serde would take a limit that is left out for
/// one that is `null`, which is unlimited.
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}

/// For `#[serde(with = "wire::time")]`: seconds as text (`"90s"`, `"0.25s"`), exact to the nanosecond, or `null`.
pub(crate) mod time {
    use std::time::Duration;

    use super::*;

    pub fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { time.map(text).serialize(serializer) } else { time.serialize(serializer) }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        if !deserializer.is_human_readable() {
            return Option::deserialize(deserializer);
        }
        let text = Option::<String>::deserialize(deserializer)?;
        let wrong = |text: &String| D::Error::custom(format!("`{text}` is not a time in seconds, such as `0.5s`"));
        text.map(|text| read(&text).ok_or_else(|| wrong(&text))).transpose()
    }

    fn text(time: Duration) -> String {
        let fraction = format!(".{:09}", time.subsec_nanos());
        format!("{}{}s", time.as_secs(), fraction.trim_end_matches('0').trim_end_matches('.'))
    }

    fn read(text: &str) -> Option<Duration> {
        let number = text.strip_suffix('s')?;
        let (seconds, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
            return None;
        }
        Some(Duration::new(seconds.parse().ok()?, format!("{fraction:0<9}").parse().ok()?))
    }
}
