//! Package caches that boxes share: which there are, where they stand in a box, and how tools are told.
//!
//! They lie beside the home directory and not in it: a mount point in a home of the box's own would leave its parents to
//! somebody else.

/// One cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// What users call it.
    pub name: &'static str,
    /// Variables that send the tool there.
    pub variables: &'static [&'static str],
}

/// Every cache, by name.
pub const ALL: &[Cache] = &[
    // Holds what `cargo login` stores too: with a secret of its own, a box belongs into a group of its own.
    Cache { name: "cargo", variables: &["CARGO_HOME"] },
    Cache { name: "go", variables: &["GOMODCACHE"] },
    Cache { name: "npm", variables: &["npm_config_cache"] },
    Cache { name: "pip", variables: &["PIP_CACHE_DIR"] },
    Cache { name: "pnpm", variables: &["npm_config_store_dir"] },
    Cache { name: "uv", variables: &["UV_CACHE_DIR"] },
    Cache { name: "yarn", variables: &["YARN_CACHE_FOLDER"] },
];

/// The directory that holds all of them, inside.
pub const DIR: &str = "/var/cache/ringfence";

/// Longest name of a group.
const LONGEST: usize = 32;

/// The cache of this name.
pub fn find(name: &str) -> Option<&'static Cache> {
    ALL.iter().find(|cache| cache.name == name)
}

impl Cache {
    /// Where it stands inside.
    pub fn target(&self) -> String {
        format!("{DIR}/{}", self.name)
    }
}

/// Whether this can be the name of a group: it becomes part of the name of a volume.
pub(crate) fn is_group(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=LONGEST).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('-') && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_groups() {
        assert!(ALL.is_sorted_by_key(|cache| cache.name));
        assert_eq!(find("pip").map(Cache::target), Some("/var/cache/ringfence/pip".to_owned()));
        assert_eq!(find("../pip"), None);
        for good in ["a", "team-1", "0"] {
            assert!(is_group(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a/b", "a b", "a.b", "ä", &"a".repeat(33)] {
            assert!(!is_group(bad), "{bad}");
        }
    }
}
