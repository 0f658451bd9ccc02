//! The configuration of git, as far as Ringfence needs it: which values a file sets. Nothing is executed, and no include is
//! followed here.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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
    let bytes = try_read(path).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

fn try_read(path: &Path) -> io::Result<Vec<u8>> {
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
    Ok(bytes)
}

/// What a configuration sets, in order. It is read byte by byte as git reads it: what git takes for a setting is one here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Config {
    /// Names as git has them (`core.hookspath`, `submodule.Name.path`), and values. A name alone has none.
    pub entries: Vec<(Vec<u8>, Option<OsString>)>,
    /// Values as releases of git before 2.45 read them, where that differs: a tab between words is a space there.
    pub older: Vec<(Vec<u8>, Option<OsString>)>,
    /// The line at which git stops, and refuses to run. Another release may read on.
    pub broken: Option<usize>,
}

impl Config {
    pub fn read(path: &Path) -> Config {
        Config::try_read(path).unwrap_or_default()
    }

    /// Empty when there is no such file; an error when git may read in it what cannot be read here.
    pub fn try_read(path: &Path) -> io::Result<Config> {
        match try_read(path) {
            Ok(bytes) => Ok(Config::parse(&bytes)),
            Err(error) if is_missing(&error) => Ok(Config::default()),
            Err(error) => Err(error),
        }
    }

    pub fn parse(bytes: &[u8]) -> Config {
        let mut config = Config::default();
        let mut reader = Reader { rest: bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes), line: 1, ended: false };
        if reader.settings(&mut config).is_none() {
            config.broken = Some(reader.line);
        }
        config
    }

    /// What `GIT_CONFIG_COUNT` and its pairs, and `GIT_CONFIG_PARAMETERS` (which `git -c` sets for its children) say.
    pub fn of_environment(env: &BTreeMap<OsString, OsString>) -> Config {
        let variable = |name: &str| env.get(OsStr::new(name));
        let count = variable("GIT_CONFIG_COUNT").and_then(|n| n.to_str()?.trim().parse().ok()).unwrap_or(0);
        let mut config = Config::default();
        for index in 0..count.min(MOST_PAIRS) {
            let (key, value) = (format!("GIT_CONFIG_KEY_{index}"), format!("GIT_CONFIG_VALUE_{index}"));
            if let (Some(key), Some(value)) = (variable(&key), variable(&value)) {
                config.set(key.as_bytes(), value);
            }
        }
        for word in variable("GIT_CONFIG_PARAMETERS").map_or_else(Vec::new, |words| shell_words(words)) {
            let bytes = word.as_bytes();
            match bytes.iter().position(|byte| *byte == b'=') {
                Some(end) => config.set(&bytes[..end], OsStr::from_bytes(&bytes[end + 1..])),
                None => config.set(bytes, OsStr::new("true")),
            }
        }
        config
    }

    /// `section.key` or `section.subsection.key`, in which only the subsection keeps its case.
    fn set(&mut self, name: &[u8], value: &OsStr) {
        let dot = |byte: &u8| *byte == b'.';
        if let (Some(first), Some(last)) = (name.iter().position(dot), name.iter().rposition(dot)) {
            let (section, key) = (name[..first].to_ascii_lowercase(), name[last..].to_ascii_lowercase());
            self.entries.push(([&section, &name[first..last], &key].concat(), Some(value.to_owned())));
        }
    }

    /// The value that is in force.
    pub fn last(&self, name: &str) -> Option<&OsStr> {
        self.entries.iter().rev().find(|(n, v)| n == name.as_bytes() && v.is_some()).and_then(|(_, v)| v.as_deref())
    }

    fn named(&self, wanted: impl Fn(&[u8]) -> bool) -> impl Iterator<Item = &OsStr> {
        let all = self.entries.iter().chain(&self.older);
        all.filter(move |(name, _)| wanted(name)).filter_map(|(_, value)| value.as_deref())
    }

    /// Subsections of `section.` in which something is set.
    pub fn subsections(&self, section: &str) -> impl Iterator<Item = &OsStr> {
        let names = self.entries.iter().filter_map(move |(name, _)| name.strip_prefix(section.as_bytes()));
        names.filter_map(|rest| Some(OsStr::from_bytes(&rest[..rest.iter().rposition(|byte| *byte == b'.')?])))
    }

    pub fn values(&self) -> impl Iterator<Item = &OsStr> {
        self.named(|_| true)
    }

    pub fn all<'a>(&'a self, wanted: &'a str) -> impl Iterator<Item = &'a OsStr> {
        self.named(move |name| name == wanted.as_bytes())
    }

    /// The paths of submodules.
    pub fn submodule_paths(&self) -> impl Iterator<Item = &OsStr> {
        self.named(|name| name.starts_with(b"submodule.") && name.ends_with(b".path"))
    }

    /// Included files; conditions are taken as met.
    pub fn includes(&self) -> impl Iterator<Item = &OsStr> {
        self.named(|name| name == b"include.path" || name.starts_with(b"includeif.") && name.ends_with(b".path"))
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads as git's own parser (`config.c`) does: `None` where that stops.
struct Reader<'a> {
    rest: &'a [u8],
    line: usize,
    /// The end was met; it counts as the end of a line.
    ended: bool,
}

impl Reader<'_> {
    fn next(&mut self) -> u8 {
        let (byte, rest) = match self.rest {
            [b'\r', b'\n', rest @ ..] => (b'\n', rest),
            [byte, rest @ ..] => (*byte, rest),
            [] => {
                self.ended = true;
                return b'\n';
            }
        };
        self.rest = rest;
        self.line += usize::from(byte == b'\n');
        byte
    }

    fn settings(&mut self, config: &mut Config) -> Option<()> {
        let (mut stem, mut comment) = (Vec::new(), false);
        loop {
            match self.next() {
                b'\n' if self.ended => return Some(()),
                b'\n' => comment = false,
                _ if comment => {}
                byte if is_space(byte) => {}
                b'#' | b';' => comment = true,
                b'[' => {
                    stem = self.header()?;
                    stem.push(b'.');
                }
                byte if byte.is_ascii_alphabetic() => {
                    let mut name = [stem.as_slice(), &[byte.to_ascii_lowercase()]].concat();
                    let values = self.setting(&mut name)?;
                    // A name or a value ends for git where it has a NUL byte, as any text of C does.
                    let name = until_nul(name);
                    let value = |bytes: Vec<u8>| Some(OsString::from_vec(until_nul(bytes)));
                    match values {
                        Some((plain, older)) => {
                            if plain != older {
                                config.older.push((name.clone(), value(older)));
                            }
                            config.entries.push((name, value(plain)));
                        }
                        None => config.entries.push((name, None)),
                    }
                }
                _ => return None,
            }
        }
    }

    /// What stands in brackets: `section`, `section.subsection` or `section "subsection"`.
    fn header(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        loop {
            match self.next() {
                _ if self.ended => return None,
                b']' => return (!name.is_empty()).then_some(name),
                byte if is_space(byte) => {
                    self.subsection(byte, &mut name)?;
                    return Some(name);
                }
                byte if is_key(byte) || byte == b'.' => name.push(byte.to_ascii_lowercase()),
                _ => return None,
            }
        }
    }

    fn subsection(&mut self, mut byte: u8, name: &mut Vec<u8>) -> Option<()> {
        while is_space(byte) {
            if byte == b'\n' {
                return None;
            }
            byte = self.next();
        }
        if byte != b'"' {
            return None;
        }
        name.push(b'.');
        loop {
            let byte = match self.next() {
                b'"' => break,
                b'\\' => self.next(),
                byte => byte,
            };
            if byte == b'\n' {
                return None;
            }
            name.push(byte);
        }
        (self.next() == b']').then_some(())
    }

    /// The rest of a name, and its value as git reads it now and did before.
    fn setting(&mut self, name: &mut Vec<u8>) -> Option<Option<(Vec<u8>, Vec<u8>)>> {
        let mut byte = self.next();
        while is_key(byte) {
            name.push(byte.to_ascii_lowercase());
            byte = self.next();
        }
        while matches!(byte, b' ' | b'\t') {
            byte = self.next();
        }
        match byte {
            b'\n' => Some(None),
            b'=' => self.value().map(Some),
            _ => None,
        }
    }

    fn value(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (mut value, mut older) = (Vec::new(), Vec::new());
        let (mut quoted, mut comment) = (false, false);
        // Where spaces begin that may be the last.
        let mut trim = 0;
        loop {
            let mut byte = self.next();
            if byte == b'\n' {
                if trim > 0 {
                    value.truncate(trim);
                    older.truncate(trim);
                }
                return (!quoted).then_some((value, older));
            }
            if comment {
                continue;
            }
            if is_space(byte) && !quoted {
                if trim == 0 {
                    trim = value.len();
                }
                if !value.is_empty() {
                    value.push(byte);
                    older.push(b' ');
                }
                continue;
            }
            if matches!(byte, b';' | b'#') && !quoted {
                comment = true;
                continue;
            }
            trim = 0;
            match byte {
                b'"' => {
                    quoted = !quoted;
                    continue;
                }
                b'\\' => {
                    byte = match self.next() {
                        b'\n' => continue,
                        b't' => b'\t',
                        b'b' => 8,
                        b'n' => b'\n',
                        byte @ (b'\\' | b'"') => byte,
                        _ => return None,
                    }
                }
                _ => {}
            }
            value.push(byte);
            older.push(byte);
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}

/// The path that a value names, as git reads it; `None` when it is in the home of an unknown user, or where git is installed.
pub(super) fn path_of(value: &OsStr, base: &Path, home: &Path, passwd: impl Fn() -> Vec<u8>) -> Option<PathBuf> {
    let value = value.as_bytes();
    let value = value.strip_prefix(b":(optional)").unwrap_or(value);
    if value.starts_with(b"%(prefix)/") {
        return None;
    }
    let Some(of_user) = value.strip_prefix(b"~") else { return Some(base.join(OsStr::from_bytes(value))) };
    let (user, rest) = of_user.split_at(of_user.iter().position(|byte| *byte == b'/').unwrap_or(of_user.len()));
    let home = if user.is_empty() { home.to_path_buf() } else { home_of(&passwd(), user)? };
    let rest = &rest[rest.iter().take_while(|byte| **byte == b'/').count()..];
    Some(home.join(OsStr::from_bytes(rest)))
}

/// The home of a user, as the text of `/etc/passwd` has it.
fn home_of(passwd: &[u8], user: &[u8]) -> Option<PathBuf> {
    let mut lines = passwd.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':'));
    let mut fields = lines.find(|fields| fields.clone().next() == Some(user))?;
    fields.nth(5).map(|home| PathBuf::from(OsStr::from_bytes(home)))
}

/// Words of a shell: git's own have parts in single quotes, with `\\'` and `\\!` between them.
pub(super) fn shell_words(text: &OsStr) -> Vec<OsString> {
    let (mut words, mut word, mut quoted) = (Vec::new(), Vec::new(), None);
    let mut bytes = text.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, quoted) {
            (b'\'' | b'"', None) => quoted = Some(byte),
            (_, Some(quote)) if byte == quote => quoted = None,
            (b'\\', None | Some(b'"')) => word.extend(bytes.next()),
            (_, None) if byte.is_ascii_whitespace() => words.push(std::mem::take(&mut word)),
            _ => word.push(byte),
        }
    }
    words.push(word);
    words.into_iter().filter(|word| !word.is_empty()).map(OsString::from_vec).collect()
}
