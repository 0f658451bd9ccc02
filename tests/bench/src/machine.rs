//! The machine that the figures are of.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub memory_gib: f64,
    pub kernel: String,
    pub system: String,
    /// Others who were running when it began.
    pub load: f64,
}

impl Machine {
    pub fn look() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, name: &str, separator: char| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(separator)).map(|(_, v)| v.trim().trim_matches('"').to_owned())
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal", ':').unwrap_or_default();
        let kib: f64 = memory.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or_default();
        Machine {
            processor: value(&read("/proc/cpuinfo"), "model name", ':')
                .unwrap_or_else(|| "unknown processor".to_owned()),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kib / f64::from(1 << 20),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            system: value(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_default(),
            load: read("/proc/loadavg").split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or_default(),
        }
    }

    /// Others had a part of the processors: the figures are not worth much.
    pub fn is_busy(&self) -> bool {
        self.load > 0.3 * self.processors as f64
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, processors, memory_gib, kernel, system, load } = self;
        write!(f, "{processors} × {processor}, {memory_gib:.0} GiB, Linux {kernel}, {system}; load {load}")
    }
}
