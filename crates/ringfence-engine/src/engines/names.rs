//! Names of what is made at the daemon: purpose and id, of letters that mean nothing to anybody else.

use std::fmt;

/// First part of every name.
const PREFIX: &str = "ringfence";
/// Fewest hex digits of an id.
const SHORTEST: usize = 8;
/// Most of one part.
const LONGEST: usize = 40;

/// A checked name: it can stand in a URL, in a command line and in a file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

/// What cannot be part of a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text cannot be part of a name.
    #[error("`{0}` is not of small letters, digits and single dashes")]
    Part(String),
    /// The text is not the id of a session.
    #[error("`{0}` is not an id of at least 8 hex digits")]
    Id(String),
}

impl Name {
    /// A container: `ringfence-skill-1f3a…`.
    pub fn container(purpose: &str, id: &str) -> Result<Name, NameError> {
        let digits = id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !digits || !(SHORTEST..=LONGEST).contains(&id.len()) {
            return Err(NameError::Id(id.to_owned()));
        }
        Ok(Name(format!("{PREFIX}-{}-{id}", part(purpose)?)))
    }

    /// Whether a container could be called so by us.
    #[cfg(any(feature = "docker", test))]
    pub(crate) fn is_container(name: &str) -> bool {
        let parts = name.strip_prefix(PREFIX).and_then(|name| name.strip_prefix('-')?.rsplit_once('-'));
        parts.is_some_and(|(purpose, id)| Name::container(purpose, id).is_ok())
    }

    /// The volume of a package cache, shared by a group: `ringfence-cache-pip`.
    pub fn cache(cache: &str, group: Option<&str>) -> Result<Name, NameError> {
        let group = group.map(part).transpose()?.map_or_else(String::new, |group| format!("-of-{group}"));
        Ok(Name(format!("{PREFIX}-cache-{}{group}", part(cache)?)))
    }

    /// The volume of a home that outlives its container, by the name of its session.
    pub fn home(slug: &str) -> Result<Name, NameError> {
        Ok(Name(format!("{PREFIX}-home-{}", part(slug)?)))
    }

    /// The network that boxes share.
    pub fn network() -> Name {
        Name(format!("{PREFIX}-bridge"))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A profile or slug as users write it, in the letters of a name: capitals, dots and underscores stay apart.
pub fn part(text: &str) -> Result<String, NameError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_' || b == b'.';
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    if !bytes.iter().copied().all(plain) || bytes.len() > LONGEST || !ends(bytes.first()) || !ends(bytes.last()) {
        return Err(NameError::Part(text.to_owned()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_purpose_and_id() {
        assert_eq!(Name::container("skill", "1f3a5b7c").unwrap().as_str(), "ringfence-skill-1f3a5b7c");
        assert!(Name::is_container("ringfence-my-own-1f3a5b7c"));
        for other in
            ["ringfence-1f3a5b7c", "skill-1f3a5b7c", "ringfence-skill", "ringfence-skill-web", "ringfence--1f3a5b7c"]
        {
            assert!(!Name::is_container(other), "{other}");
        }
        assert_eq!(Name::cache("pip", None).unwrap().as_str(), "ringfence-cache-pip");
        assert_eq!(Name::cache("pip", Some("team")).unwrap().as_str(), "ringfence-cache-pip-of-team");
        assert_eq!(Name::home("alice").unwrap().as_str(), "ringfence-home-alice");
    }

    #[test]
    fn nothing_else_gets_into_a_name() {
        for id in ["", "1f3a5b7", "1F3A5B7C", "1f3a5b7g", "1f3a5b7c/..", "1f3a5b7c\n", &"a".repeat(41)] {
            assert_eq!(Name::container("skill", id), Err(NameError::Id(id.to_owned())), "{id:?}");
        }
        for text in ["", "-a", "a-", "a/b", "../a", "a b", "a?b", "a%2f", "a\0", "ä", "A", ".", "..", &"a".repeat(41)]
        {
            assert_eq!(Name::home(text), Err(NameError::Part(text.to_owned())), "{text:?}");
            assert!(Name::container(text, "1f3a5b7c").is_err(), "{text:?}");
        }
    }
}
