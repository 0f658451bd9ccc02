//! The languages, as a table: adding one is a row here and a runner program.

use ringfence_policy::limits::{Limits, MIB};

use super::Code;
use crate::skills::scan;

/// A language that code can be in.
#[derive(Debug, PartialEq)]
pub struct Language {
    /// Its name: `python`, `javascript` …
    pub name: &'static str,
    /// Other names that people use.
    aliases: &'static [&'static str],
    /// Tried in this order.
    pub interpreters: &'static [&'static str],
    /// The extension of its files, without the dot.
    pub extension: &'static str,
    /// What messages call the code.
    pub program: &'static str,
    pub(super) wire: Wire,
    /// What the scanner reads it as.
    pub(crate) scanned: scan::Language,
    /// The interpreter's last words when it gets no more memory.
    starves: &'static [&'static str],
    /// Bytes of memory without which it does not come to run any code.
    pub(super) least: u64,
}

const NODE_STARVES: &[&str] = &["JavaScript heap out of memory", "process out of memory", "std::bad_alloc"];
/// Below this much memory Node gets no helper threads: it waits for ever for those that cannot be started.
const NODE_ALONE: u64 = 128 * MIB;
/// What Node needs beside its heap. A heap as large as the limit leaves no room for the program itself, whose pages the
/// kernel then throws out and reads again, for ever.
const NODE_ITSELF: u64 = 24 * MIB;

/// In which form a runner gets its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    /// What Python reads without importing anything.
    Marshal,
    Json,
    /// Lengths in lines, then bytes: what bash can read.
    Lines,
}

/// All of them.
pub static LANGUAGES: [Language; 4] = [
    Language {
        name: "python",
        aliases: &["py", "python3"],
        interpreters: &["python3", "python"],
        extension: "py",
        program: "main.py",
        wire: Wire::Marshal,
        scanned: scan::Language::Python,
        starves: &["MemoryError\n"],
        least: 0,
    },
    Language {
        name: "javascript",
        aliases: &["js", "node", "mjs", "cjs"],
        interpreters: &["node", "nodejs"],
        extension: "js",
        program: "main.js",
        wire: Wire::Json,
        scanned: scan::Language::JavaScript,
        starves: NODE_STARVES,
        least: 32 * MIB,
    },
    Language {
        name: "typescript",
        aliases: &["ts", "mts"],
        interpreters: &["node", "nodejs"],
        extension: "ts",
        program: "main.ts",
        wire: Wire::Json,
        scanned: scan::Language::TypeScript,
        starves: NODE_STARVES,
        least: 32 * MIB,
    },
    Language {
        name: "bash",
        aliases: &["sh", "shell"],
        interpreters: &["bash"],
        extension: "sh",
        program: "main.sh",
        wire: Wire::Lines,
        scanned: scan::Language::Bash,
        starves: &["xmalloc: cannot allocate", "xrealloc: cannot allocate"],
        least: 0,
    },
];

pub(super) const PYTHON: &str = include_str!("runners/python.py");
/// Goes with each request.
pub(super) const PYTHON_MORE: &str = include_str!("runners/python_more.py");
/// Makes an interpreter stay: goes with the first request.
pub(super) const PYTHON_STAY: &str = include_str!("runners/python_stay.py");
const NODE: &str = include_str!("runners/node.cjs");
pub(super) const BASH: &str = include_str!("runners/bash.sh");

impl Language {
    /// By its name, or another that people use.
    pub fn named(name: &str) -> Option<&'static Language> {
        LANGUAGES.iter().find(|language| language.name == name || language.aliases.contains(&name))
    }

    /// Where required packages stand in the box: where the language looks by itself, or is told to.
    pub(super) fn requirements_at(&self) -> &'static str {
        match self.wire {
            // Both ways to load a module look in every directory above.
            Wire::Json => "/node_modules",
            Wire::Marshal | Wire::Lines => "/site-packages",
        }
    }

    /// Whether an interpreter that has ended without a result said that it got no more memory.
    pub(super) fn starved(&self, stderr: &str) -> bool {
        self.starves.iter().any(|words| stderr.contains(words))
    }

    /// The interpreter with its runner program. The code itself is not in it. `grouped`: the kernel limits all its memory
    /// together.
    pub(super) fn command(&self, interpreter: &str, code: &Code, limits: &Limits, grouped: bool) -> Vec<String> {
        let mut command = vec![interpreter.to_owned()];
        let mut add = |words: &[&str]| command.extend(words.iter().map(|word| (*word).to_owned()));
        match self.wire {
            Wire::Marshal if code.packages => add(&["-I", "-c", PYTHON]),
            Wire::Marshal => add(&["-I", "-S", "-c", PYTHON]),
            Wire::Json => {
                // The limit of the box decides, not the interpreter's own. Where each process has a limit on what it maps,
                // stacks and code count too: an interpreter that does not know that crashes instead of giving up.
                if let Some(bytes) = limits.memory {
                    let heap = if grouped { bytes.saturating_sub(NODE_ITSELF) } else { bytes / 2 };
                    add(&[&format!("--max-old-space-size={}", heap.div_ceil(MIB).max(8))]);
                    if bytes < NODE_ALONE {
                        add(&["--v8-pool-size=0"]);
                    }
                }
                add(&["--experimental-vm-modules", "--no-warnings", "-e", NODE]);
            }
            Wire::Lines => add(&["--norc", "--noprofile", "-c", BASH]),
        }
        command
    }
}
