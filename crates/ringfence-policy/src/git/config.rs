//! The configuration of git, as far as Ringfence needs it: which values a file sets. Nothing is executed, and no include is
//! followed here.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::look::is_missing;

/// Files that Ringfence reads of a repository are small; what is larger is not one of them.
const LARGEST: u64 = 1 << 20;

/// More pairs in the environment than anybody sets.
const MOST_PAIRS: usize = 1024;

/// The text of a small ordinary file. It lies where a box may write: neither a link is followed nor a pipe waited for.
pub(super) fn read(path: &Path) -> Option<String> {
    try_read(path).ok()
}

fn try_read(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?);
    let meta = file.metadata()?;
    let kind = meta.file_type();
    if kind.is_dir() || kind.is_char_device() {
        // A placeholder, or `/dev/null`: git finds nothing there either.
        return Err(io::ErrorKind::NotFound.into());
    }
    if !kind.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    // Room for one more byte, so that the end is seen by the first call.
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len().min(LARGEST)).unwrap_or(0) + 64);
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// What Ringfence needs of a git configuration: sections and values, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Config {
    /// Section (without its subsection, lower case), key (lower case), value.
    pub entries: Vec<(String, String, String)>,
    /// Sections with a subsection in quotes.
    subsections: Vec<(String, String)>,
}

impl Config {
    pub fn read(path: &Path) -> Config {
        Config::try_read(path).unwrap_or_default()
    }

    /// Empty when there is no such file; an error when git may read in it what cannot be read here.
    pub fn try_read(path: &Path) -> io::Result<Config> {
        match try_read(path) {
            Ok(text) => Ok(Config::parse(&text)),
            Err(error) if is_missing(&error) => Ok(Config::default()),
            Err(error) => Err(error),
        }
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
                if let Some((_, quoted)) = header.split_once('"') {
                    let name = unquote(&format!("\"{quoted}"));
                    config.subsections.push((section.clone(), name));
                }
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

    /// What `GIT_CONFIG_COUNT` and its pairs, and `GIT_CONFIG_PARAMETERS` (which `git -c` sets for its children) say.
    pub fn of_environment(env: &BTreeMap<OsString, OsString>) -> Config {
        let variable = |name: &str| env.get(OsStr::new(name)).map(|value| value.to_string_lossy());
        let count = variable("GIT_CONFIG_COUNT").and_then(|n| n.trim().parse().ok()).unwrap_or(0).min(MOST_PAIRS);
        let mut config = Config::default();
        for index in 0..count {
            let (key, value) = (format!("GIT_CONFIG_KEY_{index}"), format!("GIT_CONFIG_VALUE_{index}"));
            if let (Some(key), Some(value)) = (variable(&key), variable(&value)) {
                config.set(&key, &value);
            }
        }
        for word in shell_words(&variable("GIT_CONFIG_PARAMETERS").unwrap_or_default()) {
            let (key, value) = word.split_once('=').unwrap_or((&word, "true"));
            config.set(key, value);
        }
        config
    }

    /// `section.key` or `section.subsection.key`.
    fn set(&mut self, name: &str, value: &str) {
        if let (Some((section, _)), Some((_, key))) = (name.split_once('.'), name.rsplit_once('.')) {
            self.entries.push((section.to_ascii_lowercase(), key.to_ascii_lowercase(), value.to_owned()));
        }
    }

    pub fn last(&self, section: &str, key: &str) -> Option<&str> {
        self.entries.iter().rev().find(|(s, k, _)| s == section && k == key).map(|(_, _, v)| v.as_str())
    }

    pub fn subsections<'a>(&'a self, section: &'a str) -> impl Iterator<Item = &'a str> {
        self.subsections.iter().filter(move |(s, _)| s == section).map(|(_, name)| name.as_str())
    }

    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(_, _, v)| v.as_str())
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

/// The path that a value names, as git reads it; `None` when it is in the home of a user whom nobody knows.
pub(super) fn path_of(value: &str, base: &Path, home: &Path, passwd: impl Fn() -> Vec<u8>) -> Option<PathBuf> {
    let value = value.strip_prefix(":(optional)").unwrap_or(value);
    let Some(of_user) = value.strip_prefix('~') else { return Some(base.join(value)) };
    let (user, rest) = of_user.split_once('/').unwrap_or((of_user, ""));
    let home = if user.is_empty() { home.to_path_buf() } else { home_of(&passwd(), user)? };
    Some(home.join(rest.trim_start_matches('/')))
}

/// The home of a user, as the text of `/etc/passwd` has it.
fn home_of(passwd: &[u8], user: &str) -> Option<PathBuf> {
    let mut lines = passwd.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':'));
    let mut fields = lines.find(|fields| fields.clone().next() == Some(user.as_bytes()))?;
    fields.nth(5).map(|home| PathBuf::from(OsStr::from_bytes(home)))
}

/// Words of a shell: git's own have parts in single quotes, with `\\'` and `\\!` between them.
pub(super) fn shell_words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), None);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quoted) {
            ('\'' | '"', None) => quoted = Some(c),
            (_, Some(quote)) if c == quote => quoted = None,
            ('\\', None | Some('"')) => word.extend(chars.next()),
            (_, None) if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
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
