//! Configuration files: TOML text to a [`Layer`]. Strict: what is not known is an error that says where and what was meant.

use std::cell::Cell;
use std::ffi::OsStr;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::caches;
use crate::env::is_valid_name;
use crate::glob::is_glob;
use crate::guarantee::Guarantee;
use crate::layer::{
    self, At, CommandSetting, Definition, FileEntry, Layer, LimitSettings, RecordSettings, SettingError, Settings,
    missing_in_file, unlimited,
};
use crate::limits::{self, LimitError};
use crate::policy::{Guard, Network};
use crate::presets::{Selection, UnknownPreset};
use crate::profiles::{self, EngineChoice};
use crate::rules::{Access, LayerKind};
use crate::service::{MOST_WARM, Verdict};
use crate::suggest::Suggestion;

/// A file that cannot be understood, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {kind}")]
pub struct ConfigError {
    /// The file, as messages call it.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub kind: ConfigErrorKind,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum ConfigErrorKind {
    /// The text is not TOML.
    #[error("{0}")]
    Syntax(String),
    /// No setting has this key.
    #[error("unknown key `{key}`{suggestion}")]
    UnknownKey { key: String, suggestion: Suggestion },
    /// The value has another type than the key takes.
    #[error("`{key}` is {expected}, not {found}")]
    WrongType { key: String, expected: &'static str, found: String },
    /// The key does not take this value.
    #[error("`{key}` cannot be `{value}`{suggestion}")]
    UnknownValue { key: String, value: String, suggestion: Suggestion },
    /// No preset has this name.
    #[error(transparent)]
    UnknownPreset(#[from] UnknownPreset),
    /// No guarantee has this id.
    #[error("unknown guarantee `{name}`{suggestion}")]
    UnknownGuarantee { name: String, suggestion: Suggestion },
    /// The value of the key cannot be understood.
    #[error("`{key}`: {source}")]
    Setting { key: String, source: SettingError },
    /// What it is would show a password.
    #[error("`{0}` is an address that begins with `postgresql://`, and this one does not")]
    Database(String),
    /// The text cannot be the name of a group of caches.
    #[error("`cache_group`: `{0}` is not of small letters, digits and dashes")]
    Group(String),
    /// The text cannot be the name of a program.
    #[error("`commands`: `{0}` is not the name of a program")]
    Program(String),
    /// Only the user's own file can have this key.
    #[error("`{0}` belongs to your own configuration file, at its top")]
    OwnFileOnly(String),
    /// The file names more paths than rules can be made for.
    #[error("more than {MOST_PATHS} paths, or {MOST_PATTERNS} with wildcards; name directories instead")]
    TooManyPaths,
    /// A built-in profile has this name.
    #[error("profile `{0}` is built in and cannot be defined again; choose another name and extend it")]
    BuiltIn(String),
}

/// Keys that a profile and a file have in common.
const SETTINGS: &[&str] = &[
    "engine",
    "network",
    "image",
    "user",
    "caches",
    "cache_group",
    "caches_required",
    "docker",
    "nesting",
    "strict",
    "trace_denials",
    "optional",
    "presets",
    "files",
    "env",
    "limits",
    "records",
    "commands",
    "kernel",
    "skill_verdict",
    "warm",
];

const RECORDS: &[&str] = &["output", "secrets", "keep", "max_size", "database"];

type Value<'i> = Spanned<DeValue<'i>>;

/// Makes a value of its text.
type Read<T> = fn(&str) -> Result<T, SettingError>;

fn bad_name(name: &str) -> SettingError {
    SettingError::EnvName(name.replace('\0', "\\0"))
}

/// A string of an array, and where it stands.
type Item = (At<String>, Range<usize>);

/// Reads one configuration file; `file` is its name in messages and origins.
pub fn parse(text: &str, file: &str, kind: LayerKind) -> Result<Layer, ConfigError> {
    let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let reader = Reader { lines, file, kind, paths: Cell::new((0, 0)) };
    let table = DeTable::parse(text).map_err(|error| {
        let message = error.message().trim().replace('\n', ", ");
        reader.error(&error.span().unwrap_or(0..0), ConfigErrorKind::Syntax(message))
    })?;
    let mut layer = Layer::new(kind, file);
    for (key, value) in table.get_ref() {
        match key.get_ref().as_ref() {
            "profile" => layer.profile = Some(reader.string("profile", value)?),
            "profiles" => {
                for (name, value) in reader.table("profiles", value)? {
                    layer.profiles.push(reader.definition(name, value)?);
                }
            }
            name => reader.setting(&mut layer.settings, "", name, key, value, &["profile", "profiles"])?,
        }
    }
    Ok(layer)
}

/// Paths and patterns in one file, and how many of them may have wildcards. Each is looked for before a command starts, and
/// a project's file may mean to delay that.
const MOST_PATHS: usize = 5000;
const MOST_PATTERNS: usize = 1000;

struct Reader<'a> {
    /// Where each line begins.
    lines: Vec<usize>,
    file: &'a str,
    kind: LayerKind,
    /// How many paths were read, and how many of them have wildcards.
    paths: Cell<(usize, usize)>,
}

impl Reader<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        self.lines.partition_point(|start| *start <= span.start).max(1)
    }

    fn error(&self, span: &Range<usize>, kind: ConfigErrorKind) -> ConfigError {
        ConfigError { file: self.file.to_owned(), line: self.line(span), kind }
    }

    fn at<T, V>(&self, value: T, from: &Spanned<V>) -> At<T> {
        At::new(value, format!("{}:{}", self.file, self.line(&from.span())))
    }

    fn unknown<'k>(
        &self,
        prefix: &str,
        key: &Spanned<impl AsRef<str>>,
        valid: impl IntoIterator<Item = &'k str>,
    ) -> ConfigError {
        let name = key.get_ref().as_ref();
        let suggestion = Suggestion::among(name, valid);
        self.error(&key.span(), ConfigErrorKind::UnknownKey { key: format!("{prefix}{name}"), suggestion })
    }

    /// A key that belongs into a table.
    fn nested(&self, prefix: &str, key: &Spanned<impl AsRef<str>>, table: &str) -> ConfigError {
        let name = key.get_ref().as_ref();
        let (key_name, suggestion) =
            (format!("{prefix}{name}"), Suggestion::Nearest(format!("{prefix}{table}.{name}")));
        self.error(&key.span(), ConfigErrorKind::UnknownKey { key: key_name, suggestion })
    }

    fn wrong_type(&self, key: &str, expected: &'static str, value: &Value<'_>) -> ConfigError {
        let found = match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.wrong_value(key, expected, value, found)
    }

    fn wrong_value(&self, key: &str, expected: &'static str, value: &Value<'_>, found: &str) -> ConfigError {
        let kind = ConfigErrorKind::WrongType { key: key.to_owned(), expected, found: found.to_owned() };
        self.error(&value.span(), kind)
    }

    fn definition(&self, name: &Spanned<impl AsRef<str>>, value: &Value<'_>) -> Result<Definition, ConfigError> {
        let text = name.get_ref().as_ref();
        if profiles::NAMES.contains(&text) {
            return Err(self.error(&name.span(), ConfigErrorKind::BuiltIn(text.to_owned())));
        }
        let prefix = format!("profiles.{text}.");
        let mut settings = Settings::default();
        let mut extends = self.at(profiles::DEFAULT.to_owned(), name);
        for (key, value) in self.table(&format!("profiles.{text}"), value)? {
            match key.get_ref().as_ref() {
                "extends" => extends = self.string(&format!("{prefix}extends"), value)?,
                other => self.setting(&mut settings, &prefix, other, key, value, &["extends"])?,
            }
        }
        Ok(Definition { name: self.at(text.to_owned(), name), extends, settings })
    }

    /// One key that a profile and a file have in common.
    fn setting(
        &self,
        settings: &mut Settings,
        prefix: &str,
        name: &str,
        key: &Spanned<impl AsRef<str>>,
        value: &Value<'_>,
        also_valid: &[&'static str],
    ) -> Result<(), ConfigError> {
        let full = format!("{prefix}{name}");
        match name {
            "engine" => {
                let text = self.string(&full, value)?;
                let engine = EngineChoice::from_name(text.value);
                settings.engine = Some(At::new(engine, text.place));
            }
            "network" => {
                let network = match value.get_ref() {
                    DeValue::Boolean(true) => Network::Open,
                    DeValue::Boolean(false) => Network::None,
                    DeValue::String(text) => Network::from_name(text)
                        .ok_or_else(|| self.unknown_value(&full, text, value, Network::NAMES))?,
                    _ => {
                        return Err(self.wrong_type(&full, "a boolean, \"open\", \"bridge\" or \"none\"", value));
                    }
                };
                settings.network = Some(self.at(network, value));
            }
            "image" => {
                settings.image = Some(self.read(&full, self.string(&full, value)?, &value.span(), layer::image)?)
            }
            "user" => settings.user = Some(self.read(&full, self.string(&full, value)?, &value.span(), layer::user)?),
            "caches" => settings.caches.extend(self.read_all(&full, value, layer::cache)?),
            "cache_group" => {
                let text = self.string(&full, value)?;
                if !caches::is_group(&text.value) {
                    return Err(self.error(&value.span(), ConfigErrorKind::Group(text.value)));
                }
                settings.cache_group = Some(text);
            }
            "caches_required" => settings.caches_required = Some(self.boolean(&full, value)?),
            "docker" => settings.docker = Some(self.boolean(&full, value)?),
            "nesting" => settings.nesting = Some(self.boolean(&full, value)?),
            "strict" => settings.strict = Some(self.boolean(&full, value)?),
            "trace_denials" => settings.trace_denials = Some(self.boolean(&full, value)?),
            "optional" => {
                for (id, item) in self.strings(&full, value)? {
                    let guarantee = id.value.parse::<Guarantee>().map_err(|_| {
                        let suggestion = Suggestion::among(&id.value, Guarantee::ALL.iter().map(|g| g.id()));
                        self.error(&item, ConfigErrorKind::UnknownGuarantee { name: id.value.clone(), suggestion })
                    })?;
                    settings.optional.push(At::new(guarantee, id.place));
                }
            }
            "presets" => {
                for (text, span) in self.strings(&full, value)? {
                    let selection = Selection::parse(&text.value).map_err(|error| self.error(&span, error.into()))?;
                    settings.presets.push(At::new(selection, text.place));
                }
            }
            "files" => self.files(settings, &full, value)?,
            "env" => self.env(settings, &full, value)?,
            "limits" => {
                for (key, value) in self.table(&full, value)? {
                    self.limit(&mut settings.limits, &full, key, value)?;
                }
            }
            "records" => self.records(&mut settings.records, &full, value)?,
            "commands" => self.commands(settings, &full, value)?,
            "warm" => {
                let text = self.number_or_text(&full, value)?;
                let number = text.parse::<u64>().ok().filter(|number| *number <= MOST_WARM);
                let number =
                    number.ok_or_else(|| self.wrong_value(&full, "a whole number from 0 to 256", value, &text))?;
                settings.warm = Some(self.at(number, value));
            }
            "skill_verdict" => {
                let text = self.string(&full, value)?;
                let verdict = Verdict::from_name(&text.value)
                    .ok_or_else(|| self.unknown_value(&full, &text.value, value, Verdict::ALL.map(Verdict::name)))?;
                settings.skill_verdict = Some(At::new(verdict, text.place));
            }
            "kernel" => {
                for (key, value) in self.table(&full, value)? {
                    match key.get_ref().as_ref() {
                        "allow_syscalls" => {
                            let full = format!("{full}.allow_syscalls");
                            settings.allow_syscalls.extend(self.read_all(&full, value, layer::syscall)?);
                        }
                        "refuse_syscalls" => {
                            let full = format!("{full}.refuse_syscalls");
                            settings.refuse_syscalls.extend(self.read_all(&full, value, layer::syscall_group)?);
                        }
                        _ => return Err(self.unknown(&format!("{full}."), key, ["allow_syscalls", "refuse_syscalls"])),
                    }
                }
            }
            "ro" | "rw" | "exclude" => return Err(self.nested(prefix, key, "files")),
            name if LimitSettings::NAMES.contains(&name) => return Err(self.nested(prefix, key, "limits")),
            _ => return Err(self.unknown(prefix, key, SETTINGS.iter().chain(also_valid).copied())),
        }
        Ok(())
    }

    fn files(&self, settings: &mut Settings, full: &str, value: &Value<'_>) -> Result<(), ConfigError> {
        for (key, value) in self.table(full, value)? {
            let access = match key.get_ref().as_ref() {
                "ro" => Access::Ro,
                "rw" => Access::Rw,
                "exclude" => Access::Exclude,
                _ => return Err(self.unknown(&format!("{full}."), key, ["ro", "rw", "exclude"])),
            };
            for (path, span) in self.strings(&format!("{full}.{access}"), value)? {
                let (paths, patterns) = self.paths.get();
                let read = (paths + 1, patterns + usize::from(is_glob(&path.value)));
                if read.0 > MOST_PATHS || read.1 > MOST_PATTERNS {
                    return Err(self.error(&span, ConfigErrorKind::TooManyPaths));
                }
                self.paths.set(read);
                let missing = missing_in_file(access);
                settings.files.push(At::new(FileEntry { access, path: path.value, missing }, path.place));
            }
        }
        Ok(())
    }

    fn env(&self, settings: &mut Settings, full: &str, value: &Value<'_>) -> Result<(), ConfigError> {
        let checked = |key: &str, name: &str, span: &Range<usize>| {
            let stem = name.strip_suffix('*').filter(|_| !key.ends_with("set")).unwrap_or(name);
            let valid = name == "*" || is_valid_name(OsStr::new(stem)) && !stem.contains('*');
            if valid { Ok(()) } else { Err(self.not_read(key, span, bad_name(name))) }
        };
        for (key, value) in self.table(full, value)? {
            let sub = format!("{full}.{}", key.get_ref());
            match key.get_ref().as_ref() {
                "pass" | "drop" => {
                    let names = self.strings(&sub, value)?;
                    for (name, span) in &names {
                        checked(&sub, &name.value, span)?;
                    }
                    let names = names.into_iter().map(|(name, _)| name);
                    if key.get_ref() == "pass" {
                        settings.env_pass.extend(names);
                    } else {
                        settings.env_drop.extend(names);
                    }
                }
                "set" => {
                    for (name, value) in self.table(&sub, value)? {
                        checked(&sub, name.get_ref(), &name.span())?;
                        let text = self.string(&format!("{sub}.{}", name.get_ref()), value)?;
                        if text.value.contains('\0') {
                            return Err(self.wrong_type(&sub, "text without NUL bytes", value));
                        }
                        let pair = (name.get_ref().to_string(), text.value.into());
                        settings.env_set.push(At::new(pair, text.place));
                    }
                }
                _ => return Err(self.unknown(&format!("{full}."), key, ["pass", "drop", "set"])),
            }
        }
        Ok(())
    }

    fn commands(&self, settings: &mut Settings, full: &str, value: &Value<'_>) -> Result<(), ConfigError> {
        for (name, value) in self.table(full, value)? {
            let program = name.get_ref().as_ref();
            if program.is_empty() || matches!(program, "." | "..") || program.contains(['/', '\0']) {
                return Err(self.error(&name.span(), ConfigErrorKind::Program(program.replace('\0', "\\0"))));
            }
            let key = format!("{full}.{program}");
            let rule = match value.get_ref() {
                DeValue::Boolean(true) => CommandSetting::Remove,
                DeValue::Boolean(false) => CommandSetting::Block,
                DeValue::String(text) => match text.as_ref() {
                    "@git" => CommandSetting::Guard(Guard::Git),
                    guard if guard.starts_with('@') => return Err(self.unknown_value(&key, guard, value, ["@git"])),
                    path => CommandSetting::Wrapper(path.to_owned()),
                },
                _ => return Err(self.wrong_type(&key, "a boolean, a guard or a path", value)),
            };
            settings.commands.push(self.at((program.to_owned(), rule), value));
        }
        Ok(())
    }

    /// What is recorded belongs to a policy; where, for how long and how much is one decision for all of them.
    fn records(&self, out: &mut RecordSettings, full: &str, value: &Value<'_>) -> Result<(), ConfigError> {
        for (key, value) in self.table(full, value)? {
            let name = key.get_ref().as_ref();
            let sub = format!("{full}.{name}");
            match name {
                "output" => out.output = Some(self.boolean(&sub, value)?),
                "secrets" => {
                    for (name, span) in self.strings(&sub, value)? {
                        let stem = name.value.strip_suffix('*').unwrap_or(&name.value);
                        if !is_valid_name(OsStr::new(stem)) || stem.contains('*') {
                            return Err(self.not_read(&sub, &span, bad_name(&name.value)));
                        }
                        out.secrets.push(name);
                    }
                }
                "keep" | "max_size" | "database" if self.kind == LayerKind::Project || full != "records" => {
                    return Err(self.error(&key.span(), ConfigErrorKind::OwnFileOnly(sub)));
                }
                "keep" => out.keep = Some(self.amount(&sub, value, limits::parse_duration)?),
                "max_size" => out.max_size = Some(self.amount(&sub, value, limits::parse_size)?),
                "database" => {
                    let url = self.string(&sub, value)?;
                    if !["postgresql://", "postgres://"].iter().any(|scheme| url.value.starts_with(scheme)) {
                        return Err(self.error(&value.span(), ConfigErrorKind::Database(sub)));
                    }
                    out.database = Some(url);
                }
                _ => return Err(self.unknown(&format!("{full}."), key, RECORDS.iter().copied())),
            }
        }
        Ok(())
    }

    fn amount<T>(
        &self,
        key: &str,
        value: &Value<'_>,
        parse: impl FnOnce(&str) -> Result<T, LimitError>,
    ) -> Result<At<Option<T>>, ConfigError> {
        let text = self.number_or_text(key, value)?;
        let parsed = unlimited(&text, parse).map_err(|error| self.not_read(key, &value.span(), error))?;
        Ok(self.at(parsed, value))
    }

    fn number_or_text(&self, key: &str, value: &Value<'_>) -> Result<String, ConfigError> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
            DeValue::Float(number) => Ok(number.as_str().to_owned()),
            _ => Err(self.wrong_type(key, "a number or a string", value)),
        }
    }

    fn limit(
        &self,
        out: &mut LimitSettings,
        full: &str,
        key: &Spanned<impl AsRef<str>>,
        value: &Value<'_>,
    ) -> Result<(), ConfigError> {
        let name = key.get_ref().as_ref();
        let full = format!("{full}.{name}");
        let text = self.number_or_text(&full, value)?;
        match out.set(name, &text, self.at((), value).place) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.unknown("limits.", key, LimitSettings::NAMES.iter().copied())),
            Err(error) => Err(self.not_read(&full, &value.span(), error)),
        }
    }

    fn unknown_value<'k>(
        &self,
        key: &str,
        text: &str,
        value: &Value<'_>,
        valid: impl IntoIterator<Item = &'k str>,
    ) -> ConfigError {
        let suggestion = match text {
            "on" | "yes" | "true" if key.ends_with("network") => Suggestion::Nearest("true".to_owned()),
            "off" | "no" | "false" if key.ends_with("network") => Suggestion::Nearest("false".to_owned()),
            _ => Suggestion::among(text, valid),
        };
        let kind = ConfigErrorKind::UnknownValue { key: key.to_owned(), value: text.to_owned(), suggestion };
        self.error(&value.span(), kind)
    }

    fn not_read(&self, key: &str, span: &Range<usize>, source: impl Into<SettingError>) -> ConfigError {
        self.error(span, ConfigErrorKind::Setting { key: key.to_owned(), source: source.into() })
    }

    fn read<T>(&self, key: &str, text: At<String>, span: &Range<usize>, read: Read<T>) -> Result<At<T>, ConfigError> {
        let value = read(&text.value).map_err(|error| self.not_read(key, span, error))?;
        Ok(At::new(value, text.place))
    }

    fn read_all<T>(&self, key: &str, value: &Value<'_>, read: Read<T>) -> Result<Vec<At<T>>, ConfigError> {
        self.strings(key, value)?.into_iter().map(|(text, span)| self.read(key, text, &span, read)).collect()
    }

    fn table<'v, 'i>(&self, key: &str, value: &'v Value<'i>) -> Result<&'v DeTable<'i>, ConfigError> {
        value.get_ref().as_table().ok_or_else(|| self.wrong_type(key, "a table", value))
    }

    fn boolean(&self, key: &str, value: &Value<'_>) -> Result<At<bool>, ConfigError> {
        let boolean = value.get_ref().as_bool().ok_or_else(|| self.wrong_type(key, "a boolean", value))?;
        Ok(self.at(boolean, value))
    }

    fn string(&self, key: &str, value: &Value<'_>) -> Result<At<String>, ConfigError> {
        let text = value.get_ref().as_str().ok_or_else(|| self.wrong_type(key, "a string", value))?;
        Ok(self.at(text.to_owned(), value))
    }

    fn strings(&self, key: &str, value: &Value<'_>) -> Result<Vec<Item>, ConfigError> {
        let array = value.get_ref().as_array().ok_or_else(|| self.wrong_type(key, "an array of strings", value))?;
        let item = |item: &Value<'_>| match item.get_ref().as_str() {
            Some(text) => Ok((self.at(text.to_owned(), item), item.span())),
            None => Err(self.wrong_type(key, "an array of strings", item)),
        };
        array.iter().map(item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Layer, ConfigError> {
        parse(text, "c.toml", LayerKind::Global)
    }

    #[test]
    fn every_key() {
        let text = r#"
profile = "mine"
engine = "native"
network = "none"
docker = true
nesting = false
strict = true
trace_denials = true
optional = ["kernel.second-wall"]
presets = ["@lint/ts", "!@caches"]

[files]
ro = ["a/", "b"]
rw = ["~/c"]
exclude = ["**/*.pem"]

[env]
pass = ["AWS_*", "X"]
drop = ["*"]
set = { A = "1" }

[limits]
memory = "512m"
cpus = 0.5
pids = 64
files = "none"
timeout = 30
timeout_ceiling = "1h"
cpu_time = "10m"
tmp_size = "10MiB"
tmp_inodes = 100
output = 1000
idle = "1h"
life = "never"

[records]
output = true
secrets = ["MY_*"]
keep = "30d"
max_size = "none"
database = "postgresql://localhost/x"

[commands]
git = true
curl = false
rm = "@git"
npm = "./wrap"

[kernel]
allow_syscalls = ["io_uring_setup"]
refuse_syscalls = ["vmsplice"]

[profiles.mine]
extends = "shell"
network = true
[profiles.mine.limits]
memory = "1g"
"#;
        let layer = read(text).unwrap();
        assert_eq!(layer.profile, Some(At::new("mine".into(), "c.toml:2")));
        let settings = &layer.settings;
        assert_eq!(settings.network, Some(At::new(Network::None, "c.toml:4")));
        assert_eq!(settings.files.len(), 4);
        assert!(settings.files.iter().any(|f| f.place == "c.toml:15" && f.value.access == Access::Exclude));
        assert_eq!(settings.limits.timeout_ceiling.as_ref().unwrap().place, "c.toml:28");
        assert_eq!(settings.limits.files.as_ref().unwrap().value, None);
        assert_eq!(settings.limits.idle, Some(At::new(Some(std::time::Duration::from_secs(3600)), "c.toml:33")));
        assert_eq!(settings.limits.life, Some(At::new(None, "c.toml:34")));
        assert_eq!(settings.commands.len(), 4);
        assert_eq!(layer.profiles[0].extends.value, "shell");
        assert_eq!(layer.profiles[0].settings.limits.memory.as_ref().unwrap().place, "c.toml:57");
        assert_eq!(settings.records.keep.as_ref().unwrap().place, "c.toml:39");
        assert_eq!(settings.records.max_size.as_ref().unwrap().value, None);
        assert_eq!(read("").unwrap(), Layer::new(LayerKind::Global, "c.toml"));
    }

    /// Sixty thousand patterns delayed a start by 19 s, and as many names by more.
    #[test]
    fn paths_are_bounded() {
        let list = |name: &dyn Fn(usize) -> String, count| {
            let lines: Vec<String> = (0..count).map(|n| format!("  \"{}\",", name(n))).collect();
            format!("[files]\nexclude = [\n{}\n]", lines.join("\n"))
        };
        let glob = |n| format!("**/*{n}.x");
        assert_eq!(read(&list(&glob, 1000)).unwrap().settings.files.len(), 1000);
        let error = read(&list(&glob, 60_000)).unwrap_err();
        assert_eq!((error.line, error.kind), (1003, ConfigErrorKind::TooManyPaths));
        let name = |n| format!("name-{n}");
        assert_eq!(read(&list(&name, 5000)).unwrap().settings.files[4999].place, "c.toml:5002");
        assert_eq!(read(&list(&name, 5001)).unwrap_err().kind, ConfigErrorKind::TooManyPaths);
    }

    #[test]
    fn errors_say_where_and_what_was_meant() {
        let table = [
            ("netwrok = true", "c.toml:1: unknown key `netwrok` (did you mean `network`?)"),
            ("\n[files]\nread = []", "c.toml:3: unknown key `files.read` (expected one of `ro`, `rw`, `exclude`)"),
            ("[limits]\nmemroy = 1", "c.toml:2: unknown key `limits.memroy` (did you mean `memory`?)"),
            ("docker = \"yes\"", "c.toml:1: `docker` is a boolean, not a string"),
            ("presets = \"@git\"", "c.toml:1: `presets` is an array of strings, not a string"),
            ("presets = [\n\"@git\",\n1]", "c.toml:3: `presets` is an array of strings, not an integer"),
            ("presets = [\n\"@gti\"]", "c.toml:2: unknown preset `@gti` (did you mean `@git`?)"),
            ("network = \"on\"", "c.toml:1: `network` cannot be `on` (did you mean `true`?)"),
            ("network = \"off\"", "c.toml:1: `network` cannot be `off` (did you mean `false`?)"),
            ("warm = 1000", "c.toml:1: `warm` is a whole number from 0 to 256, not 1000"),
            ("warm = 0.5", "c.toml:1: `warm` is a whole number from 0 to 256, not 0.5"),
            ("rw = [\"x\"]", "c.toml:1: unknown key `rw` (did you mean `files.rw`?)"),
            ("memory = \"1g\"", "c.toml:1: unknown key `memory` (did you mean `limits.memory`?)"),
            (
                "optional = [\"limit.memry\"]",
                "c.toml:1: unknown guarantee `limit.memry` (did you mean `limit.memory`?)",
            ),
            (
                "[limits]\nmemory = \"lots\"",
                "c.toml:2: `limits.memory`: `lots` is not a size (such as `512m`, `1.5GiB` or a number of bytes)",
            ),
            ("[env]\npass = [\"A=B\"]", "c.toml:2: `env.pass`: `A=B` is not the name of an environment variable"),
            ("[env.set]\n\"A*\" = \"x\"", "c.toml:2: `env.set`: `A*` is not the name of an environment variable"),
            ("[commands]\n\"a/b\" = false", "c.toml:2: `commands`: `a/b` is not the name of a program"),
            ("[commands]\na = \"@gitt\"", "c.toml:2: `commands.a` cannot be `@gitt` (did you mean `@git`?)"),
            ("[profiles.x]\nextend = \"a\"", "c.toml:2: unknown key `profiles.x.extend` (did you mean `extends`?)"),
            (
                "[profiles.agent]",
                "c.toml:1: profile `agent` is built in and cannot be defined again; choose another name and extend it",
            ),
            ("[records]\nkep = 1", "c.toml:2: unknown key `records.kep` (did you mean `keep`?)"),
            (
                "[records]\ndatabase = \"mysql://x\"",
                "c.toml:2: `records.database` is an address that begins with `postgresql://`, and this one does not",
            ),
            (
                "[profiles.x.records]\nkeep = 1",
                "c.toml:2: `profiles.x.records.keep` belongs to your own configuration file, at its top",
            ),
            (
                "[kernel]\nallow_syscalls = [\"A B\"]",
                "c.toml:2: `kernel.allow_syscalls`: `A B` is not the name of a system call",
            ),
            (
                "[kernel]\nrefuse_syscalls = [\"debuging\"]",
                "c.toml:2: `kernel.refuse_syscalls`: unknown group of system calls `debuging` (did you mean `debugging`?)",
            ),
        ];
        for (text, expected) in table {
            assert_eq!(read(text).unwrap_err().to_string(), expected, "{text}");
        }
        for text in ["a = ", "docker = true\ndocker = false", "[files", "\u{0}"] {
            assert!(matches!(read(text).unwrap_err().kind, ConfigErrorKind::Syntax(_)), "{text}");
        }
    }

    /// Hostile text ends in an error or a layer, never in a panic.
    #[test]
    fn damaged_files() {
        let text = "profile = \"é\"\n[limits]\nmemory = \"1.5g\"\ntimeout = 1e3\n[env.set]\nA = '''\nx'''\n[[files]]\nro=[1979-05-27]";
        for end in 0..=text.len() {
            if let Some(part) = text.get(..end) {
                let _ = read(part);
                let _ = read(&part.replace('=', "=[["));
                let _ = read(&part.replace('"', "\u{0}"));
            }
        }
    }
}
