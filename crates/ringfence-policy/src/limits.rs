//! Limits: how much a sandbox may spend. Enforced by `ringfence_linux::limits`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wire;

/// What one sandbox may spend; `None` is unlimited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of the whole tree in bytes, swap included.
    #[serde(deserialize_with = "wire::given")]
    pub memory: Option<u64>,
    /// CPUs of the whole tree, as a fraction.
    #[serde(with = "cpus")]
    pub cpus: Option<f64>,
    /// Processes and threads of the whole tree.
    #[serde(deserialize_with = "wire::given")]
    pub pids: Option<u64>,
    /// Open files of each process.
    #[serde(deserialize_with = "wire::given")]
    pub files: Option<u64>,
    /// Wall time of a command.
    #[serde(with = "wire::time")]
    pub timeout: Option<Duration>,
    /// The longest wall time that a caller may ask for.
    #[serde(with = "wire::time")]
    pub timeout_ceiling: Option<Duration>,
    /// CPU time of the whole tree.
    #[serde(with = "wire::time")]
    pub cpu_time: Option<Duration>,
    /// Size of `/tmp`; the other private places are bounded by it too.
    pub tmp_size: u64,
    /// Inodes of `/tmp`.
    pub tmp_inodes: u64,
    /// Bytes of output kept when output is captured.
    pub output: u64,
}

impl Limits {
    /// Open files, time and the rest unlimited; private space and kept output bounded, as they always are.
    pub const UNLIMITED: Limits = Limits {
        memory: None,
        cpus: None,
        pids: None,
        files: None,
        timeout: None,
        timeout_ceiling: None,
        cpu_time: None,
        tmp_size: 4 * GIB,
        tmp_inodes: 1 << 20,
        output: MIB,
    };

    /// Bytes and inodes of private space. Files there are memory: all that is kept in them is bounded by the memory limit,
    /// also where nothing counts it, and so is what the kernel needs for their names.
    pub fn private_space(&self) -> (u64, u64) {
        /// What an empty file takes, about.
        const INODE: u64 = KIB;
        match self.memory {
            Some(memory) => (self.tmp_size.min(memory), self.tmp_inodes.min((memory / INODE).max(1))),
            None => (self.tmp_size, self.tmp_inodes),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

/// JSON has no infinity: it would be written as `null`, which is unlimited.
mod cpus {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

    pub fn serialize<S: Serializer>(cpus: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        cpus.map(super::check_cpus).transpose().map_err(ser::Error::custom)?.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::deserialize(deserializer)?.map(super::check_cpus).transpose().map_err(de::Error::custom)
    }
}

/// 1,024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1,024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1,024 MiB.
pub const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// A limit that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The text is not a size.
    #[error("`{0}` is not a size (such as `512m`, `1.5GiB` or a number of bytes)")]
    Size(String),
    /// The size is smaller than this many bytes.
    #[error("size `{0}` is too small: at least {least}", least = format_size(*.1))]
    SizeTooSmall(String, u64),
    /// The size is too large.
    #[error("size `{0}` is too large")]
    SizeRange(String),
    /// The text is not a duration.
    #[error("`{0}` is not a duration (such as `500ms`, `30s`, `1h30m` or a number of seconds)")]
    Duration(String),
    /// The duration is zero.
    #[error("a limit of no time at all is none")]
    NoTime,
    /// The duration is too long.
    #[error("duration `{0}` is too long")]
    DurationRange(String),
    /// The text is not a number of CPUs.
    #[error("`{0}` is not a number of CPUs above 0 (such as `0.5` or `2`)")]
    Cpus(String),
    /// The text is not a number.
    #[error("`{0}` is not a whole number from 1 to 1073741824")]
    Count(String),
    /// The text is not a number of processes.
    #[error("`{0}` is not a number of processes from 1 to {MOST_PROCESSES}")]
    Processes(String),
    /// The text is not a number of files.
    #[error("`{0}` is not a number of files from {LEAST_INODES} to 1073741824: a sandbox needs some itself")]
    Inodes(String),
}

/// Reads a size: a number with `b`, `k`, `m`, `g` or `t`, also as `MB` or `MiB`, all of 1024; a plain number is bytes.
pub fn parse_size(text: &str) -> Result<u64, LimitError> {
    let bad = || LimitError::Size(text.to_owned());
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = trimmed.split_at(digits);
    let unit: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => KIB,
        "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => GIB,
        "t" | "tb" | "tib" => TIB,
        _ => return Err(bad()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && (fraction.is_empty() || unit == 1)) {
        return Err(bad());
    }
    let out_of_range = || LimitError::SizeRange(text.to_owned());
    let whole: u64 = whole.parse().map_err(|_| out_of_range())?;
    let fraction: f64 = if fraction.is_empty() { 0.0 } else { format!("0.{fraction}").parse().map_err(|_| bad())? };
    // A fraction of at most 1 TiB: exact enough in an f64, and never negative.
    let fraction = (fraction * unit as f64) as u64;
    whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(fraction)).ok_or_else(out_of_range)
}

/// Reads a duration: numbers with `ms`, `s`, `m`, `h` or `d`, one after the other; a plain number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, LimitError> {
    let bad = || LimitError::Duration(text.to_owned());
    let out_of_range = || LimitError::DurationRange(text.to_owned());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = Duration::ZERO;
    let mut last_unit = u64::MAX;
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        let millis: u64 = match unit {
            "ms" => 1,
            "" if parts == 0 && tail.is_empty() => 1000,
            "s" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(bad()),
        };
        // From large to small, each once: `30m1h` is more likely a mistake than meant.
        let well_formed = number.starts_with(|c: char| c.is_ascii_digit()) && !number.ends_with('.');
        if !well_formed || millis >= last_unit {
            return Err(bad());
        }
        let value: f64 = number.parse().map_err(|_| bad())?;
        let part = Duration::try_from_secs_f64(value * millis as f64 / 1000.0).map_err(|_| out_of_range())?;
        total = total.checked_add(part).ok_or_else(out_of_range)?;
        last_unit = millis;
        rest = tail;
        parts += 1;
    }
    // A hundred years: beyond it the clocks that enforce it overflow.
    if total > Duration::from_secs(100 * 365 * 86_400) {
        return Err(out_of_range());
    }
    if total.is_zero() { Err(LimitError::NoTime) } else { Ok(total) }
}

/// Reads a size of memory: less than a program needs to start would end it without a word.
pub(crate) fn parse_memory(text: &str) -> Result<u64, LimitError> {
    at_least(text, MIB)
}

/// Reads a size of private space. To the kernel, none would mean without limit.
pub(crate) fn parse_space(text: &str) -> Result<u64, LimitError> {
    at_least(text, 4 * KIB)
}

fn at_least(text: &str, least: u64) -> Result<u64, LimitError> {
    parse_size(text).and_then(|n| if n < least { Err(LimitError::SizeTooSmall(text.to_owned(), least)) } else { Ok(n) })
}

/// Reads a number of CPUs: finite and above 0.
pub(crate) fn parse_cpus(text: &str) -> Result<f64, LimitError> {
    let cpus: f64 = text.trim().parse().map_err(|_| LimitError::Cpus(text.to_owned()))?;
    check_cpus(cpus)
}

/// Whether a number of CPUs can be a limit.
pub(crate) fn check_cpus(cpus: f64) -> Result<f64, LimitError> {
    if cpus.is_finite() && cpus > 0.0 { Ok(cpus) } else { Err(LimitError::Cpus(cpus.to_string())) }
}

/// More than any kernel counts.
const MOST: u64 = 1 << 30;

/// Reads a count of processes or files: a whole number from 1 to 1073741824.
pub(crate) fn parse_count(text: &str) -> Result<u64, LimitError> {
    text.trim().parse().ok().filter(|n| (1..=MOST).contains(n)).ok_or_else(|| LimitError::Count(text.to_owned()))
}

/// What Linux can count; a few are left for process 1 and the guest.
const MOST_PROCESSES: u64 = (1 << 22) - 64;

/// Reads a number of processes.
pub(crate) fn parse_processes(text: &str) -> Result<u64, LimitError> {
    let error = || LimitError::Processes(text.to_owned());
    parse_count(text).ok().filter(|n| *n <= MOST_PROCESSES).ok_or_else(error)
}

/// Places to mount on take some.
const LEAST_INODES: u64 = 64;

/// Reads how many files and directories private space can hold.
pub(crate) fn parse_inodes(text: &str) -> Result<u64, LimitError> {
    parse_count(text).ok().filter(|n| *n >= LEAST_INODES).ok_or_else(|| LimitError::Inodes(text.to_owned()))
}

/// A size as [`parse_size`] reads it: the largest unit that says it exactly.
pub fn format_size(bytes: u64) -> String {
    let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    match units.iter().find(|(unit, _)| bytes != 0 && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// A duration as [`parse_duration`] reads it, to the millisecond.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    let mut out = String::new();
    for (millis, unit) in [(3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")] {
        if rest >= millis {
            out.push_str(&format!("{}{unit}", rest / millis));
            rest %= millis;
        }
    }
    if out.is_empty() { "0s".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let table = [
            ("1234", 1234),
            ("512m", 512 * MIB),
            ("1g", GIB),
            ("1.5GiB", GIB + GIB / 2),
            ("10MiB", 10 * MIB),
            ("4 KB", 4096),
            ("2T", 2 * TIB),
            ("7b", 7),
        ];
        for (text, bytes) in table {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes), "{text}");
        }
        for text in ["", "m", "-1", "1.2.3m", "1.m", ".5m", "1.5", "1x", "1mm", "0x10", "1e3", "nan", "∞"] {
            assert_eq!(parse_size(text), Err(LimitError::Size(text.to_owned())), "{text}");
        }
        for text in ["99999999999999999999", "99999999t"] {
            assert_eq!(parse_size(text), Err(LimitError::SizeRange(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn durations() {
        let table = [
            ("30s", 30_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("500ms", 500),
            ("1h30m", 5_400_000),
            ("45", 45_000),
            ("0.5", 500),
            ("1.5s", 1500),
            ("1d", 86_400_000),
        ];
        for (text, millis) in table {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(
                parse_duration(&format_duration(Duration::from_millis(millis))).unwrap().as_millis(),
                millis.into()
            );
        }
        for text in ["", "s", "-1s", "1x", "30m1h", "1m1m", "1h30", "1.s", "nan", "inf", "1 s"] {
            assert_eq!(parse_duration(text), Err(LimitError::Duration(text.to_owned())), "{text}");
        }
        for text in ["99999999999999999999d", "36600d"] {
            assert_eq!(parse_duration(text), Err(LimitError::DurationRange(text.to_owned())), "{text}");
        }
        assert_eq!(format_duration(Duration::from_millis(5_400_001)), "1h30m1ms");
    }

    #[test]
    fn cpus_and_counts() {
        assert_eq!(parse_cpus("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "", "x"] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
        assert_eq!(parse_count("64"), Ok(64));
        assert_eq!((parse_processes("4194240"), parse_inodes("64")), (Ok(4_194_240), Ok(64)));
        assert!(parse_processes("4194241").is_err() && parse_processes("0").is_err() && parse_inodes("63").is_err());
        assert_eq!(parse_count("1073741824"), Ok(1 << 30));
        for text in ["0", "-1", "1.5", "", "64k", "1073741825", "18446744073709551615"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }
}
