//! The configuration of git, as far as Ringfence needs it: which values a file sets. Nothing is executed, and no include is
//! followed here.

use std::fs;
use std::io::Read;
use std::path::Path;

use rustix::fs::OFlags;

/// Files that Ringfence reads of a repository are small; what is larger is not one of them.
const LARGEST: u64 = 1 << 20;

/// The text of a small ordinary file. It lies where a box may write: neither a link is followed nor a pipe waited for.
pub(super) fn read(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?);
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.len() > LARGEST {
        return None;
    }
    // Room for one more byte, so that the end is seen by the first call.
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).ok()? + 64);
    file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// What Ringfence needs of a git configuration: sections and values, in order.
#[derive(Debug, Default)]
pub(super) struct Config {
    /// Section (without its subsection, lower case), key (lower case), value.
    pub entries: Vec<(String, String, String)>,
}

impl Config {
    pub fn read(path: &Path) -> Config {
        read(path).map(|text| Config::parse(&text)).unwrap_or_default()
    }

    /// Forgiving: a line that git would refuse stops git, so that it can be skipped here.
    pub fn parse(text: &str) -> Config {
        let mut config = Config::default();
        let mut section = String::new();
        let joined = text.replace("\r\n", "\n").replace("\\\n", "");
        for line in joined.lines() {
            let mut line = line.trim_start();
            if let Some(rest) = line.strip_prefix('[') {
                let (header, rest) = split_header(rest);
                let name = header.split(|c: char| c == '"' || c == '.' || c.is_whitespace()).next().unwrap_or_default();
                section = name.to_ascii_lowercase();
                line = rest.trim_start();
            }
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or((line, "true"));
            config.entries.push((section.clone(), key.trim().to_ascii_lowercase(), unquote(value)));
        }
        config
    }

    pub fn last(&self, section: &str, key: &str) -> Option<&str> {
        self.entries.iter().rev().find(|(s, k, _)| s == section && k == key).map(|(_, _, v)| v.as_str())
    }

    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.entries.iter().filter(move |(_, k, _)| k == key).map(|(_, _, v)| v.as_str())
    }

    /// Included files; conditions are taken as met.
    pub fn includes(&self) -> impl Iterator<Item = &str> {
        let included = |s: &str, k: &str| matches!(s, "include" | "includeif") && k == "path";
        self.entries.iter().filter(move |(s, k, _)| included(s, k)).map(|(_, _, v)| v.as_str())
    }
}

/// A section's header and what follows it on its line; a `]` in quotes does not end it.
fn split_header(rest: &str) -> (&str, &str) {
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ']' if !quoted => return (&rest[..at], &rest[at + 1..]),
            _ => {}
        }
    }
    (rest, "")
}

/// A value without quotes, escapes and comment.
fn unquote(value: &str) -> String {
    let mut out = String::new();
    let mut quoted = false;
    let mut chars = value.trim().chars();
    let mut kept = 0;
    while let Some(c) = chars.next() {
        match c {
            '"' => quoted = !quoted,
            '#' | ';' if !quoted => break,
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(other) => out.push(other),
                None => {}
            },
            other => out.push(other),
        }
        if quoted || !c.is_whitespace() {
            kept = out.len();
        }
    }
    out.truncate(kept);
    out
}
