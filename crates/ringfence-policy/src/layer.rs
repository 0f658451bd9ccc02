//! One layer of a policy: what one file or the flags say, each value with the place it comes from.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use crate::caches;
use crate::env::is_valid_name;
use crate::guarantee::Guarantee;
use crate::limits::{self, LimitError, Limits, format_duration, format_size};
use crate::policy::{Guard, Network, User};
use crate::presets::{Selection, UnknownPreset};
use crate::profiles::EngineChoice;
use crate::rules::{Access, Kind, LayerKind, Missing};
use crate::service::{ServiceSettings, Verdict};
use crate::suggest::Suggestion;
use crate::syscalls::SyscallGroup;

/// A value and the place it comes from: `config.toml:12`, `--ro`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Where it was set: a file with its line, or a flag.
    pub place: String,
}

impl<T> At<T> {
    /// A value that was set at this place.
    pub fn new(value: T, place: impl Into<String>) -> At<T> {
        At { value, place: place.into() }
    }
}

/// What one file or the flags say.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Which layer it is.
    pub kind: LayerKind,
    /// The file, for messages.
    pub name: String,
    /// The profile that it chooses.
    pub profile: Option<At<String>>,
    /// What it sets.
    pub settings: Settings,
    /// Profiles that it defines.
    pub profiles: Vec<Definition>,
}

/// A profile of the user's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// What it is called.
    pub name: At<String>,
    /// The profile that it starts from.
    pub extends: At<String>,
    /// What it sets.
    pub settings: Settings,
}

/// Everything that can be set, in a file, in a profile or by flags. What is not said is not there.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "a field is the key of its name in a configuration file (docs/configuration.md)")]
pub struct Settings {
    pub engine: Option<At<EngineChoice>>,
    pub network: Option<At<Network>>,
    pub image: Option<At<String>>,
    pub user: Option<At<User>>,
    pub caches: Vec<At<String>>,
    pub cache_group: Option<At<String>>,
    pub caches_required: Option<At<bool>>,
    pub docker: Option<At<bool>>,
    pub nesting: Option<At<bool>>,
    pub strict: Option<At<bool>>,
    pub trace_denials: Option<At<bool>>,
    pub optional: Vec<At<Guarantee>>,
    pub presets: Vec<At<Selection>>,
    pub files: Vec<At<FileEntry>>,
    pub env_pass: Vec<At<String>>,
    pub env_drop: Vec<At<String>>,
    pub env_set: Vec<At<(String, OsString)>>,
    pub limits: LimitSettings,
    pub records: RecordSettings,
    pub commands: Vec<At<(String, CommandSetting)>>,
    pub allow_syscalls: Vec<At<String>>,
    pub refuse_syscalls: Vec<At<SyscallGroup>>,
    pub skill_verdict: Option<At<Verdict>>,
    pub warm: Option<At<u64>>,
}

/// One path of `ro`, `rw` or `exclude`, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// What the rule allows.
    pub access: Access,
    /// The path or pattern, as it was written.
    pub path: String,
    /// What holds when the path is not there.
    pub missing: Missing,
}

/// Everything about a limit but what enforces it: its name, its type, how it is read and written. `()` after a type: each of
/// its fields is a limit, and a new one does not compile until it is listed.
macro_rules! limits {
    ($($of:ident: $holder:ident($($rest:tt)*) {
        $($name:ident: $type:ty, $bound:ident $parse:ident, $text:expr;)*
    })*) => {
        /// Limits that are said; the inner `None` is "unlimited".
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct LimitSettings {
            $($(
                #[doc = concat!("The key `", stringify!($name), "` of `[limits]`.")]
                pub $name: Option<At<$type>>,
            )*)*
        }

        impl LimitSettings {
            pub(crate) const NAMES: &[&str] = &[$($(stringify!($name)),*),*];

            /// Sets a limit by its name, from its text. False where there is no limit of this name.
            pub(crate) fn set(&mut self, name: &str, text: &str, place: impl Into<String>) -> Result<bool, LimitError> {
                match name {
                    $($(stringify!($name) => self.$name = Some(At::new($bound(text, limits::$parse)?, place)),)*)*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Puts them in the place of what holds. The key and the place of each.
            pub(crate) fn apply(&self, $($of: &mut $holder),*) -> Vec<(&'static str, &str)> {
                let mut said = Vec::new();
                $($(if let Some(At { value, place }) = &self.$name {
                    $of.$name = *value;
                    said.push((concat!("limits.", stringify!($name)), place.as_str()));
                })*)*
                said
            }

            /// Those that are larger than what holds: the key and the place of each.
            pub(crate) fn larger(&self, $($of: &$holder),*) -> Vec<(&'static str, &str)> {
                let mut larger = Vec::new();
                $($(if let Some(At { value, place }) = &self.$name && value.exceeds(&$of.$name) {
                    larger.push((concat!("limits.", stringify!($name)), place.as_str()));
                })*)*
                larger
            }

            /// What holds: the key and the text of each.
            pub(crate) fn texts($($of: &$holder),*) -> Vec<(&'static str, String)> {
                $(let $holder { $($name,)* $($rest)* } = $of;)*
                vec![$($((concat!("limits.", stringify!($name)), optional_text((*$name).into(), $text))),*),*]
            }
        }
    };
}

limits! {
    limits: Limits() {
        memory: Option<u64>, unlimited parse_memory, format_size;
        cpus: Option<f64>, unlimited parse_cpus, |n: f64| n.to_string();
        pids: Option<u64>, unlimited parse_processes, |n: u64| n.to_string();
        files: Option<u64>, unlimited parse_count, |n: u64| n.to_string();
        timeout: Option<Duration>, unlimited parse_duration, format_duration;
        timeout_ceiling: Option<Duration>, unlimited parse_duration, format_duration;
        cpu_time: Option<Duration>, unlimited parse_duration, format_duration;
        tmp_size: u64, always parse_space, format_size;
        tmp_inodes: u64, always parse_inodes, |n: u64| n.to_string();
        output: u64, always parse_size, format_size;
    }
    service: ServiceSettings(..) {
        idle: Option<Duration>, unlimited parse_duration, format_duration;
        life: Option<Duration>, unlimited parse_duration, format_duration;
    }
}

/// More than another limit of its kind.
trait Exceeds {
    fn exceeds(&self, now: &Self) -> bool;
}

impl Exceeds for u64 {
    fn exceeds(&self, now: &u64) -> bool {
        self > now
    }
}

impl<T: PartialOrd> Exceeds for Option<T> {
    fn exceeds(&self, now: &Option<T>) -> bool {
        now.as_ref().is_some_and(|now| self.as_ref().is_none_or(|value| value > now))
    }
}

/// `[records]`; the inner `None` is "without limit".
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "a field is the key of its name in `[records]` (docs/configuration.md)")]
pub struct RecordSettings {
    pub output: Option<At<bool>>,
    pub secrets: Vec<At<String>>,
    pub keep: Option<At<Option<Duration>>>,
    pub max_size: Option<At<Option<u64>>>,
    pub database: Option<At<String>>,
}

/// One line of `[commands]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandSetting {
    /// `true`: no rule.
    Remove,
    /// `false`
    Block,
    /// `"@git"`
    Guard(Guard),
    /// A path, as it was written.
    Wrapper(String),
}

/// A value that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum SettingError {
    /// No preset has this name.
    #[error(transparent)]
    Preset(#[from] UnknownPreset),
    /// The limit cannot be understood.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The text cannot be the name of an environment variable.
    #[error("`{0}` is not the name of an environment variable")]
    EnvName(String),
    /// The text cannot be the name of a system call.
    #[error("`{0}` is not the name of a system call")]
    Syscall(String),
    /// No group of system calls has this name.
    #[error("unknown group of system calls `{name}`{suggestion}")]
    SyscallGroup { name: String, suggestion: Suggestion },
    /// The text cannot be the name of an image.
    #[error("`{0}` is not the name of an image")]
    Image(String),
    /// The text is not a user that a sandbox can have.
    #[error("`{0}` is neither `caller` nor UID:GID of somebody who is not root")]
    User(String),
    /// No cache has this name.
    #[error("unknown cache `{name}`{suggestion}")]
    Cache { name: String, suggestion: Suggestion },
}

/// What could be the name of an image; whether there is one, the daemon knows.
pub(crate) fn image(name: &str) -> Result<String, SettingError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/:@".contains(&b);
    // It becomes part of an address at the daemon, and leads nowhere else.
    let below = |part: &str| !matches!(part, "" | "." | "..");
    let valid = (1..=512).contains(&name.len())
        && name.bytes().all(plain)
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.split('/').all(below);
    if valid { Ok(name.to_owned()) } else { Err(SettingError::Image(name.to_owned())) }
}

pub(crate) fn user(text: &str) -> Result<User, SettingError> {
    User::parse(text).ok_or_else(|| SettingError::User(text.to_owned()))
}

pub(crate) fn cache(name: &str) -> Result<String, SettingError> {
    let unknown = || {
        let suggestion = Suggestion::among(name, caches::ALL.iter().map(|cache| cache.name));
        SettingError::Cache { name: name.to_owned(), suggestion }
    };
    caches::find(name).map(|_| name.to_owned()).ok_or_else(unknown)
}

/// What could be the name of a system call; whether it is one, the filter knows.
pub(crate) fn syscall(name: &str) -> Result<String, SettingError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let valid = !name.is_empty() && name.bytes().all(plain);
    if valid { Ok(name.to_owned()) } else { Err(SettingError::Syscall(name.to_owned())) }
}

pub(crate) fn syscall_group(name: &str) -> Result<SyscallGroup, SettingError> {
    SyscallGroup::parse(name).map_err(|suggestion| SettingError::SyscallGroup { name: name.to_owned(), suggestion })
}

/// What a missing path means in a file: read-only and hidden places must not appear either.
pub(crate) fn missing_in_file(access: Access) -> Missing {
    match access {
        Access::Rw => Missing::Ignore,
        Access::Ro | Access::Exclude => Missing::Protect(Kind::Dir),
    }
}

/// The layer of the flags: a method for each, named as it is.
#[allow(missing_docs, reason = "a method is the flag of its name")]
impl Layer {
    pub fn new(kind: LayerKind, name: impl Into<String>) -> Layer {
        Layer { kind, name: name.into(), profile: None, settings: Settings::default(), profiles: Vec::new() }
    }

    pub fn flags() -> Layer {
        Layer::new(LayerKind::Flags, "flags")
    }

    pub fn profile(&mut self, name: &str) {
        self.profile = Some(At::new(name.to_owned(), "--profile"));
    }

    pub fn engine(&mut self, engine: EngineChoice) {
        self.settings.engine = Some(At::new(engine, "--engine"));
    }

    /// The user named it: a path that is not there is an error.
    pub fn ro(&mut self, path: &str) {
        self.file(Access::Ro, path, Missing::Fail, "--ro");
    }

    /// The user named it: a path that is not there is an error.
    pub fn rw(&mut self, path: &str) {
        self.file(Access::Rw, path, Missing::Fail, "--rw");
    }

    /// Holds in a writable place also when there is nothing yet.
    pub fn exclude(&mut self, path: &str) {
        self.file(Access::Exclude, path, missing_in_file(Access::Exclude), "--exclude");
    }

    fn file(&mut self, access: Access, path: &str, missing: Missing, flag: &str) {
        self.settings.files.push(At::new(FileEntry { access, path: path.to_owned(), missing }, flag));
    }

    pub fn preset(&mut self, name: &str) -> Result<(), SettingError> {
        self.settings.presets.push(At::new(Selection::parse(name)?, "--preset"));
        Ok(())
    }

    /// `NAME` passes the caller's value, `NAME=VALUE` sets one.
    pub fn env(&mut self, text: &OsStr) -> Result<(), SettingError> {
        let bytes = text.as_bytes();
        let (name, value) = match bytes.iter().position(|b| *b == b'=') {
            Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
            None => (bytes, None),
        };
        let bad = || SettingError::EnvName(String::from_utf8_lossy(name).into_owned());
        let valid = is_valid_name(OsStr::from_bytes(name)) && value.as_ref().is_none_or(|v| !v.as_bytes().contains(&0));
        let name = std::str::from_utf8(name).ok().filter(|_| valid).ok_or_else(bad)?.to_owned();
        match value {
            Some(value) => self.settings.env_set.push(At::new((name, value), "--env")),
            None => self.settings.env_pass.push(At::new(name, "--env")),
        }
        Ok(())
    }

    pub fn network(&mut self, on: bool) {
        self.network_kind(if on { Network::Open } else { Network::None });
    }

    pub fn network_kind(&mut self, network: Network) {
        self.settings.network = Some(At::new(network, "--network"));
    }

    pub fn image(&mut self, name: &str) -> Result<(), SettingError> {
        self.settings.image = Some(At::new(image(name)?, "--image"));
        Ok(())
    }

    pub fn user(&mut self, text: &str) -> Result<(), SettingError> {
        self.settings.user = Some(At::new(user(text)?, "--user"));
        Ok(())
    }

    pub fn cache(&mut self, name: &str) -> Result<(), SettingError> {
        self.settings.caches.push(At::new(cache(name)?, "--cache"));
        Ok(())
    }

    pub fn docker(&mut self, on: bool) {
        self.settings.docker = Some(At::new(on, "--docker"));
    }

    pub fn nesting(&mut self, on: bool) {
        self.settings.nesting = Some(At::new(on, "--nesting"));
    }

    pub fn strict(&mut self, on: bool) {
        self.settings.strict = Some(At::new(on, "--strict"));
    }

    pub fn trace_denials(&mut self, on: bool) {
        self.settings.trace_denials = Some(At::new(on, "--trace-denials"));
    }

    pub fn optional(&mut self, guarantee: Guarantee) {
        self.settings.optional.push(At::new(guarantee, "--optional"));
    }

    pub fn allow_syscall(&mut self, name: &str) -> Result<(), SettingError> {
        self.settings.allow_syscalls.push(At::new(syscall(name)?, "--allow-syscall"));
        Ok(())
    }
}

/// A flag for each limit that has one.
macro_rules! limit_flags {
    ($($flag:ident: $limit:ident $place:literal,)*) => {
        impl Layer {
            $(
            #[doc = concat!("The flag `", $place, "`.")]
            pub fn $flag(&mut self, text: &str) -> Result<(), SettingError> {
                Ok(self.settings.limits.set(stringify!($limit), text, $place).map(drop)?)
            })*
        }
    };
}

limit_flags! {
    memory: memory "--memory",
    cpus: cpus "--cpus",
    pids: pids "--pids",
    files: files "--files",
    timeout: timeout "--timeout",
    cpu_time: cpu_time "--cpu-time",
    tmp_size: tmp_size "--tmp-size",
    tmp_inodes: tmp_inodes "--tmp-inodes",
    output_limit: output "--output-limit",
}

/// A limit that there is always.
fn always<T>(text: &str, parse: impl FnOnce(&str) -> Result<T, LimitError>) -> Result<T, LimitError> {
    parse(text)
}

/// `none` and `unlimited` take a limit away.
pub(crate) fn unlimited<T>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, LimitError>,
) -> Result<Option<T>, LimitError> {
    if matches!(text, "none" | "never" | "unlimited") { Ok(None) } else { parse(text).map(Some) }
}

/// A limit that may not be there, as text.
pub(crate) fn optional_text<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "none".to_owned(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_flag() {
        let mut layer = Layer::flags();
        for text in ["A", "B=", "C=x=y"] {
            layer.env(OsStr::new(text)).unwrap();
        }
        assert_eq!(layer.settings.env_pass, [At::new("A".to_owned(), "--env")]);
        let set: Vec<_> = layer.settings.env_set.into_iter().map(|at| at.value).collect();
        assert_eq!(set, [("B".to_owned(), "".into()), ("C".to_owned(), "x=y".into())]);
        for text in ["", "=x", "A\0", "A=\0"] {
            assert!(matches!(Layer::flags().env(OsStr::new(text)), Err(SettingError::EnvName(_))), "{text:?}");
        }
    }

    #[test]
    fn limits_can_be_taken_away() {
        let mut layer = Layer::flags();
        layer.memory("none").unwrap();
        layer.pids("64").unwrap();
        assert_eq!(layer.settings.limits.memory.unwrap().value, None);
        assert_eq!(layer.settings.limits.pids.unwrap().value, Some(64));
        assert!(Layer::flags().tmp_size("none").is_err());
    }
}
