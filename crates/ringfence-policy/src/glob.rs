//! Globs of file rules: `*`, `?` and `[…]` inside one component, `**` for any number of whole components.
//!
//! A leading dot is nothing special: `*` must find hidden files too, or a rule that hides would miss them. Names are
//! matched as bytes, so that a name that is not UTF-8 cannot slip past `*`; `?` and `[…]` take a whole character where
//! there is one. A trailing `/**` names the directory before it, since every rule holds for all below what it names.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::look::is_missing;
use crate::wire;

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct Glob {
    text: String,
    /// What the pattern is below, taken literally.
    base: PathBuf,
    /// The components before the first wildcard.
    prefix: PathBuf,
    parts: Vec<Part>,
}

/// The form in which a glob is stored. Read back it is the same one, whatever characters the base has.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(with = "wire::absolute")]
    base: PathBuf,
    pattern: String,
}

impl From<Glob> for Written {
    fn from(glob: Glob) -> Written {
        let Glob { text, base, .. } = glob;
        let length = base.display().to_string().len() + 1;
        let pattern = if base == Path::new("/") { text } else { text.get(length..).unwrap_or_default().to_owned() };
        Written { base, pattern }
    }
}

impl TryFrom<Written> for Glob {
    type Error = GlobError;

    fn try_from(Written { base, pattern }: Written) -> Result<Glob, GlobError> {
        Glob::parse_under(&base, &pattern)
    }
}

/// What a pattern names on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matches {
    /// Sorted.
    pub paths: Vec<PathBuf>,
    /// Directories that cannot be listed or entered: what the pattern names in them is not known.
    pub closed: Vec<PathBuf>,
}

/// One component of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// `**`: any number of components, none included.
    Tree,
    Literal(Vec<u8>),
    Wild(Vec<Token>),
}

/// One element of a component with wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// `*`
    Any,
    /// `?`
    One,
    Char(u32),
    Class {
        negated: bool,
        ranges: Vec<(u32, u32)>,
    },
}

/// A pattern that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// The pattern does not begin with `/`.
    #[error("pattern `{0}` is not absolute")]
    NotAbsolute(String),
    /// A `[` has no `]`.
    #[error("pattern `{0}` has a `[` without its `]`")]
    UnclosedClass(String),
    /// A `[]` is empty.
    #[error("pattern `{0}` has an empty `[]`")]
    EmptyClass(String),
    /// A range in `[…]` runs backwards.
    #[error("pattern `{0}` has a range that runs backwards")]
    ReversedRange(String),
    /// A `**` is not a whole component.
    #[error("pattern `{0}` has a `**` that is not a whole component")]
    PartialTree(String),
    /// A `..` follows a wildcard.
    #[error("pattern `{0}` has a `..` after a wildcard")]
    ParentAfterWildcard(String),
    /// The pattern has too many components.
    #[error("pattern `{0}` has more than {MAX_PARTS} components from its first wildcard on")]
    TooLong(String),
}

/// States of the matcher are bits of one word: one for each part, and one for the end.
const MAX_PARTS: usize = 63;

/// Whether a path has wildcards in it.
pub(crate) fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

impl Glob {
    /// Parses an absolute pattern.
    pub fn parse(pattern: &str) -> Result<Glob, GlobError> {
        if !pattern.starts_with('/') {
            return Err(GlobError::NotAbsolute(pattern.to_owned()));
        }
        Glob::parse_under(Path::new("/"), pattern)
    }

    /// Parses a pattern below `base`, which is taken literally whatever characters it has.
    pub(crate) fn parse_under(base: &Path, pattern: &str) -> Result<Glob, GlobError> {
        let failed = |error: fn(String) -> GlobError| error(pattern.to_owned());
        let mut prefix = base.to_path_buf();
        let mut parts: Vec<Part> = Vec::new();
        for component in pattern.split('/') {
            match component {
                "" | "." => {}
                ".." if parts.is_empty() => {
                    prefix.pop();
                }
                ".." => return Err(failed(GlobError::ParentAfterWildcard)),
                "**" if parts.last() == Some(&Part::Tree) => {}
                "**" => parts.push(Part::Tree),
                _ if component.contains("**") => return Err(failed(GlobError::PartialTree)),
                _ if is_glob(component) => parts.push(Part::Wild(tokens(component, pattern)?)),
                _ if parts.is_empty() => prefix.push(component),
                _ => parts.push(Part::Literal(component.as_bytes().to_vec())),
            }
        }
        if parts.last() == Some(&Part::Tree) {
            parts.pop();
        }
        if parts.len() > MAX_PARTS {
            return Err(failed(GlobError::TooLong));
        }
        let text = if base == Path::new("/") {
            pattern.to_owned()
        } else {
            format!("{}/{}", base.display(), pattern.trim_start_matches("./"))
        };
        Ok(Glob { text, base: base.to_path_buf(), prefix, parts })
    }

    /// The pattern as text, absolute.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The path itself, when nothing of the pattern is wild (`src/**`).
    pub fn literal(&self) -> Option<&Path> {
        self.parts.is_empty().then_some(self.prefix.as_path())
    }

    /// Whether the pattern names this absolute, normalised path.
    pub fn matches(&self, path: &Path) -> bool {
        self.nearest(path) == Some(path.as_os_str().len())
    }

    /// The length in bytes of the longest of `path` and its ancestors that the pattern names.
    pub fn nearest(&self, path: &Path) -> Option<usize> {
        let below = path.strip_prefix(&self.prefix).ok()?;
        let mut length = self.prefix.as_os_str().len();
        let mut states = self.start();
        let mut found = self.accepts(states).then_some(length);
        for component in below.components() {
            let Component::Normal(name) = component else { return None };
            length += name.len() + usize::from(length > 1);
            states = self.step(states, name.as_bytes());
            if states == 0 {
                break;
            }
            if self.accepts(states) {
                found = Some(length);
            }
        }
        found
    }

    /// Every path that is there and that the pattern names. Symbolic links are named but not followed below the literal
    /// prefix, and `/proc`, of which every box has its own, is left out.
    pub(crate) fn expand(&self) -> Matches {
        let (mut found, mut closed) = (Vec::new(), BTreeSet::new());
        let start = self.start();
        if self.accepts(start) && fs::symlink_metadata(&self.prefix).is_ok() {
            found.push(self.prefix.clone());
        }
        let mut open = vec![(self.prefix.clone(), start)];
        while let Some((dir, states)) = open.pop() {
            let mut fails = |error: &io::Error| {
                if !is_missing(error) {
                    // Where not even its own entry can be seen, one above it is what is closed.
                    closed.extend(dir.ancestors().find(|dir| fs::symlink_metadata(dir).is_ok()).map(Path::to_path_buf));
                }
            };
            let mut visit = |path: PathBuf, is_dir: bool, states: u64| {
                if self.accepts(states) {
                    found.push(path.clone());
                }
                let more = states & !self.end() != 0;
                if is_dir && more && path != Path::new("/proc") {
                    open.push((path, states));
                }
            };
            if let Some(names) = self.only_literals(states) {
                for name in names {
                    let path = dir.join(std::ffi::OsStr::from_bytes(name));
                    match fs::symlink_metadata(&path) {
                        Ok(meta) => visit(path, meta.is_dir(), self.step(states, name)),
                        Err(error) => fails(&error),
                    }
                }
                continue;
            }
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) => {
                    fails(&error);
                    continue;
                }
            };
            for entry in entries {
                let named = entry.and_then(|entry| {
                    let next = self.step(states, entry.file_name().as_bytes());
                    Ok((next != 0).then_some((entry.path(), entry.file_type()?.is_dir(), next)))
                });
                match named {
                    Ok(Some((path, is_dir, next))) => visit(path, is_dir, next),
                    Ok(None) => {}
                    Err(error) => fails(&error),
                }
            }
        }
        found.sort();
        found.dedup();
        Matches { paths: found, closed: closed.into_iter().collect() }
    }

    fn end(&self) -> u64 {
        1 << self.parts.len()
    }

    fn accepts(&self, states: u64) -> bool {
        states & self.end() != 0
    }

    fn start(&self) -> u64 {
        self.skip_trees(1)
    }

    /// `**` may stand for nothing: a state before it is also one after it.
    fn skip_trees(&self, mut states: u64) -> u64 {
        for (index, part) in self.parts.iter().enumerate() {
            if *part == Part::Tree && states & (1 << index) != 0 {
                states |= 1 << (index + 1);
            }
        }
        states
    }

    /// The states after one more component.
    fn step(&self, states: u64, name: &[u8]) -> u64 {
        let mut next = 0;
        for (index, part) in self.parts.iter().enumerate() {
            if states & (1 << index) == 0 {
                continue;
            }
            match part {
                Part::Tree => next |= 1 << index,
                Part::Literal(literal) if literal == name => next |= 1 << (index + 1),
                Part::Wild(tokens) if component_matches(tokens, name) => next |= 1 << (index + 1),
                Part::Literal(_) | Part::Wild(_) => {}
            }
        }
        self.skip_trees(next)
    }

    /// The names to look for, when no wildcard is at this level.
    fn only_literals(&self, states: u64) -> Option<Vec<&[u8]>> {
        let mut names = Vec::new();
        for (index, part) in self.parts.iter().enumerate() {
            if states & (1 << index) != 0 {
                let Part::Literal(name) = part else { return None };
                names.push(name.as_slice());
            }
        }
        names.dedup();
        Some(names)
    }
}

fn tokens(component: &str, pattern: &str) -> Result<Vec<Token>, GlobError> {
    let mut out = Vec::new();
    let mut chars = component.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '*' => out.push(Token::Any),
            '?' => out.push(Token::One),
            '[' => {
                let mut body = Vec::new();
                let negated = chars.next_if(|c| matches!(c, '!' | '^')).is_some();
                // As in the shell, a `]` that comes first is a member, unless nothing closes the class then.
                let first_closes = chars.peek() == Some(&']') && !chars.clone().skip(1).any(|c| c == ']');
                if first_closes {
                    return Err(GlobError::EmptyClass(pattern.to_owned()));
                }
                loop {
                    match chars.next() {
                        None => return Err(GlobError::UnclosedClass(pattern.to_owned())),
                        Some(']') if !body.is_empty() => break,
                        Some(c) => body.push(c),
                    }
                }
                out.push(Token::Class { negated, ranges: ranges(&body, pattern)? });
            }
            other => out.push(Token::Char(u32::from(other))),
        }
    }
    Ok(out)
}

fn ranges(body: &[char], pattern: &str) -> Result<Vec<(u32, u32)>, GlobError> {
    let mut out = Vec::new();
    let mut rest = body;
    loop {
        match rest {
            [] => return Ok(out),
            [low, '-', high, tail @ ..] => {
                if low > high {
                    return Err(GlobError::ReversedRange(pattern.to_owned()));
                }
                out.push((u32::from(*low), u32::from(*high)));
                rest = tail;
            }
            [one, tail @ ..] => {
                out.push((u32::from(*one), u32::from(*one)));
                rest = tail;
            }
        }
    }
}

/// Whether one name matches. On a mismatch the last `*` takes one character more; no earlier one has to.
fn component_matches(tokens: &[Token], name: &[u8]) -> bool {
    let (mut token, mut at) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while at < name.len() {
        let (c, width) = character(&name[at..]);
        let taken = match tokens.get(token) {
            Some(Token::Any) => {
                retry = Some((token + 1, at));
                token += 1;
                continue;
            }
            Some(Token::One) => true,
            Some(Token::Char(wanted)) => c == *wanted,
            Some(Token::Class { negated, ranges }) => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
            None => false,
        };
        if taken {
            token += 1;
            at += width;
        } else if let Some((after, from)) = retry {
            let next = from + character(&name[from..]).1;
            retry = Some((after, next));
            token = after;
            at = next;
        } else {
            return false;
        }
    }
    tokens[token..].iter().all(|t| *t == Token::Any)
}

/// The first character and its width; a byte that is no part of one stands for itself, outside Unicode.
fn character(bytes: &[u8]) -> (u32, usize) {
    let width = match bytes[0] {
        0x00..=0x7f => return (u32::from(bytes[0]), 1),
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    let decoded = bytes.get(..width).and_then(|b| std::str::from_utf8(b).ok()).and_then(|s| s.chars().next());
    match decoded {
        Some(c) => (u32::from(c), width),
        None => (0x11_0000 + u32::from(bytes[0]), 1),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn names() {
        let table = [
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/.b", true),
            ("/a/*", "/a/b/c", false),
            ("/a/*", "/a", false),
            ("/a/**", "/a", true),
            ("/a/**", "/a/b", false),
            ("/**/x", "/x", true),
            ("/**/x", "/a/b/x", true),
            ("/a/**/x", "/a/x", true),
            ("/a/**/**/x/**", "/a/b/c/x", true),
            ("/a/**/x", "/b/x", false),
            ("/a/.env.*", "/a/.env.local", true),
            ("/a/.env.*", "/a/.env", false),
            ("/a/?", "/a/é", true),
            ("/a/?", "/a/ab", false),
            ("/a/??", "/a/é", false),
            ("/a/*??", "/a/é", false),
            ("/a/[a-c]x", "/a/bx", true),
            ("/a/[!a-c]x", "/a/bx", false),
            ("/a/[^a-c]x", "/a/dx", true),
            ("/a/[]]", "/a/]", true),
            ("/a/[a-]", "/a/-", true),
            ("/a/[[]x]", "/a/[x]", true),
            ("/a/*b*d", "/a/abcbd", true),
            ("/a/*b*d", "/a/abcb", false),
            ("/a//./b*/", "/a/bc", true),
            ("/a/x/../b*", "/a/bc", true),
            ("/*/*/c", "/a/b/c", true),
            ("/**", "/", true),
        ];
        for (pattern, path, expected) in table {
            assert_eq!(Glob::parse(pattern).unwrap().matches(Path::new(path)), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn unparsable() {
        type Variant = fn(String) -> GlobError;
        let table: [(&str, Variant); 10] = [
            ("/a/[b", GlobError::UnclosedClass),
            ("/a/[", GlobError::UnclosedClass),
            ("/a/[]", GlobError::EmptyClass),
            ("/a/[!]", GlobError::EmptyClass),
            ("/a/[z-a]", GlobError::ReversedRange),
            ("/a**b", GlobError::PartialTree),
            ("/a/**b/c", GlobError::PartialTree),
            ("/a/***", GlobError::PartialTree),
            ("/a/*/../b", GlobError::ParentAfterWildcard),
            ("a/*", GlobError::NotAbsolute),
        ];
        for (pattern, error) in table {
            assert_eq!(Glob::parse(pattern), Err(error(pattern.to_owned())), "{pattern}");
        }
        assert!(matches!(Glob::parse(&"/*".repeat(64)), Err(GlobError::TooLong(_))));
        assert!(Glob::parse(&"/*".repeat(63)).is_ok());
    }

    #[test]
    fn base_is_literal() {
        let glob = Glob::parse_under(Path::new("/w/[x]*"), "./*.rs").unwrap();
        assert!(glob.matches(Path::new("/w/[x]*/a.rs")));
        assert!(!glob.matches(Path::new("/w/xy/a.rs")));
        assert_eq!(glob.as_str(), "/w/[x]*/*.rs");
        assert_eq!(Glob::parse_under(Path::new("/w/[x]"), "src/**").unwrap().literal(), Some(Path::new("/w/[x]/src")));
    }

    #[test]
    fn bytes_that_are_not_text() {
        let path = Path::new(OsStr::from_bytes(b"/a/\xff\xfe.env"));
        for pattern in ["/a/*", "/a/*.env", "/a/??.env", "/**/*.env", "/a/[!a]?.env"] {
            assert!(Glob::parse(pattern).unwrap().matches(path), "{pattern}");
        }
    }

    #[test]
    fn nearest_ancestor() {
        let glob = Glob::parse("/a/**/x*").unwrap();
        assert_eq!(glob.nearest(Path::new("/a/x1/b/x2/c")), Some("/a/x1/b/x2".len()));
        assert_eq!(glob.nearest(Path::new("/a/b")), None);
        assert_eq!(Glob::parse("/*").unwrap().nearest(Path::new("/a/b")), Some(2));
    }

    /// Every match of a small universe agrees with a slow, obvious matcher.
    #[test]
    fn agrees_with_the_obvious_matcher() {
        fn slow(tokens: &[char], name: &[char]) -> bool {
            match tokens {
                [] => name.is_empty(),
                ['*', rest @ ..] => (0..=name.len()).any(|n| slow(rest, &name[n..])),
                ['?', rest @ ..] => !name.is_empty() && slow(rest, &name[1..]),
                [c, rest @ ..] => name.first() == Some(c) && slow(rest, &name[1..]),
            }
        }
        fn words(alphabet: &str, longest: usize) -> Vec<String> {
            let mut all = vec![String::new()];
            let mut last = all.clone();
            for _ in 0..longest {
                last = last.iter().flat_map(|w| alphabet.chars().map(move |c| format!("{w}{c}"))).collect();
                all.extend(last.iter().cloned());
            }
            all.retain(|w| !w.is_empty());
            all
        }
        for pattern in words("aé*?", 4).iter().filter(|p| !p.contains("**")) {
            let glob = Glob::parse(&format!("/{pattern}")).unwrap();
            let tokens: Vec<char> = pattern.chars().collect();
            for name in words("aé.", 4) {
                let expected = slow(&tokens, &name.chars().collect::<Vec<_>>());
                if name != "." && name != ".." {
                    assert_eq!(glob.matches(Path::new(&format!("/{name}"))), expected, "{pattern} {name}");
                }
            }
        }
    }

    #[test]
    fn expands_what_it_matches() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for sub in ["a/b/c", "a/.h", "d/b", "[x]"] {
            fs::create_dir_all(root.join(sub)).unwrap();
        }
        for file in ["a/.env", "a/b/.env", "a/b/c/.env.local", "a/.h/.env", "d/b/x.rs", "[x]/.env"] {
            fs::write(root.join(file), "").unwrap();
        }
        fs::write(root.join(OsStr::from_bytes(b"d/\xff.env")), "").unwrap();
        std::os::unix::fs::symlink(&root, root.join("d/loop")).unwrap();

        let mut all = Vec::new();
        let mut open = vec![root.clone()];
        while let Some(path) = open.pop() {
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                open.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            }
            all.push(path);
        }
        all.sort();
        for pattern in
            ["*", "**", "**/.env", "**/*env*", "a/*/c", "*/b", "*/b/c/*", "nothing/*", "**/b/**/*", "d/*", "[[]x]/*"]
        {
            let glob = Glob::parse_under(&root, pattern).unwrap();
            let expected: Vec<PathBuf> = all.iter().filter(|p| glob.matches(p)).cloned().collect();
            assert_eq!(glob.expand().paths, expected, "{pattern}");
        }
        assert_eq!(Glob::parse_under(&root, "**/.env").unwrap().expand().paths.len(), 4);
    }
}
