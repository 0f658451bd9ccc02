//! The scanner: reads the syntax tree of a piece of code and says what a person should look at before it runs.
//!
//! It never runs the code, never reads a file and never uses the network. Its verdict is advice and a gate by policy, not a
//! wall: what it does not see, the sandbox still holds.
//!
//! How a verdict comes about:
//! - `dangerous`: at least one finding of high severity;
//! - `review`: at least one of medium severity, or three different rules of low severity;
//! - `clean`: neither.
//!
//! No sum of small things makes something dangerous. Where two acts are worse together than each alone (reading all
//! environment variables, and sending something), that is a rule of its own.

#![forbid(unsafe_code)]

mod apis;
mod bash;
mod decode;
mod flow;
mod javascript;
mod places;
mod python;
mod rules;
mod secrets;
mod unicode;
mod value;
mod walk;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use javascript::javascript_tree;
pub use ringfence_policy::service::Verdict;
pub use rules::{RULES, Rule};

/// So much of a source is read. What is longer is for a person.
const MAX_SOURCE: usize = 1 << 20;
/// So many findings are kept.
const MAX_FINDINGS: usize = 200;
/// So long a scan takes at most. A small one takes milliseconds; this is for sources that are made to take long.
const MAX_TIME: Duration = Duration::from_secs(10);
/// So much of it may go into finding out what names stand for, so that there is always time for findings.
const LEARNING: Duration = Duration::from_secs(3);
/// Code in a string in code in a string …
const MAX_DEPTH: usize = 4;
/// Characters of an excerpt.
const EXCERPT: usize = 120;

/// What the scanner reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    JavaScript,
    TypeScript,
    Bash,
}

/// What a finding means for the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Low,
    Medium,
    High,
}

/// One thing that somebody should look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub rule: String,
    pub severity: Severity,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    pub reason: String,
    pub excerpt: String,
}

/// The result of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    pub verdict: Verdict,
    pub findings: Vec<Finding>,
    /// Whether there were more findings than are kept.
    pub truncated: bool,
}

impl Scan {
    /// The scan of a source that ended its scanner, and how that ended.
    pub fn unread(how: &str) -> Scan {
        let declared = Declared::default();
        let mut findings = Findings::new("", &declared);
        findings.add(&rules::FAILED, 0, how);
        findings.into_scan()
    }
}

/// What was declared, and so is no finding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// Hosts that may be reached: `api.example.org`, or `*.example.org` for all below it.
    pub hosts: Vec<String>,
    /// Files that are handed in, by the path the code sees.
    pub files: Vec<String>,
}

/// Scans one source. Any bytes will do: what cannot be read is a finding.
pub fn scan(language: Language, source: &[u8], declared: &Declared) -> Scan {
    let (bytes, cut) = match source.get(..MAX_SOURCE) {
        Some(head) if source.len() > MAX_SOURCE => (head, true),
        _ => (source, false),
    };
    let text = String::from_utf8_lossy(bytes);
    let mut findings = Findings::new(&text, declared);
    if cut {
        findings.add(&rules::LIMIT, 0, "only the first MiB was read");
    }
    if bytes.contains(&0) || text.contains('\u{FFFD}') && std::str::from_utf8(bytes).is_err() && !cut {
        findings.add(&rules::NOT_TEXT, 0, "");
    }
    unicode::look(language, &text, &mut findings);
    secrets::look(&text, &mut findings);
    read(language, &text, &mut findings);
    findings.into_scan()
}

/// Scans text as code of a language, also when it stands in other code.
fn read(language: Language, text: &str, findings: &mut Findings<'_>) {
    match language {
        Language::Python => python::read(text, findings),
        Language::JavaScript | Language::TypeScript => javascript::read(language, text, findings),
        Language::Bash => bash::read(text, findings),
    }
}

/// Collects findings, each once per rule and line, within bounds.
struct Findings<'a> {
    source: &'a str,
    /// Start of each line, for positions.
    lines: Vec<usize>,
    declared: &'a Declared,
    found: Vec<Finding>,
    seen: HashSet<(&'static str, usize)>,
    truncated: bool,
    /// When to stop finding out what names stand for, and when to stop.
    learned: Instant,
    deadline: Instant,
    /// Where embedded code stands in the source: all that is found in it is found there.
    embedded: Vec<usize>,
}

impl<'a> Findings<'a> {
    fn new(source: &'a str, declared: &'a Declared) -> Findings<'a> {
        let lines = std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let now = Instant::now();
        Findings {
            source,
            lines,
            declared,
            found: Vec::new(),
            seen: HashSet::new(),
            truncated: false,
            learned: now + LEARNING,
            deadline: now + MAX_TIME,
            embedded: Vec::new(),
        }
    }

    /// A finding at a byte of the source; `detail` says more than the rule does, or nothing.
    fn add(&mut self, rule: &'static Rule, at: usize, detail: &str) {
        let at = self.embedded.first().copied().unwrap_or(at);
        let line = self.lines.partition_point(|start| *start <= at).max(1);
        if !self.seen.insert((rule.id, line)) {
            return;
        }
        // A flood of small findings does not push a large one out.
        if self.found.len() >= MAX_FINDINGS {
            self.truncated = true;
            let lesser = self.found.iter().rposition(|f| f.severity < rule.severity);
            match lesser {
                Some(index) => drop(self.found.remove(index)),
                None => return,
            }
        }
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        let column = self.source.get(start..at).map_or(0, |before| before.chars().count()) + 1;
        let text = self.source.get(start..).unwrap_or_default().lines().next().unwrap_or_default();
        let from = (column - 1).saturating_sub(EXCERPT / 2).min(text.chars().count().saturating_sub(EXCERPT));
        let from = if text.chars().count() <= EXCERPT { 0 } else { from };
        let excerpt = text.chars().skip(from).take(EXCERPT).map(visible).collect::<String>();
        let detail: String = detail.chars().take(EXCERPT).map(visible).collect();
        let reason = match detail.is_empty() {
            true => format!("{}: {}", rule.what, rule.why),
            false => format!("{} ({detail}): {}", rule.what, rule.why),
        };
        let excerpt = secrets::mask(excerpt.trim());
        let reason = secrets::mask(&reason);
        self.found.push(Finding { rule: rule.id.to_owned(), severity: rule.severity, line, column, reason, excerpt });
    }

    /// Scans code that stands in a string at `at`.
    fn embed(&mut self, language: Language, text: &str, at: usize) {
        if self.embedded.len() >= MAX_DEPTH {
            self.add(&rules::LIMIT, at, "code in code in code");
            return;
        }
        self.embedded.push(at);
        read(language, text, self);
        self.embedded.pop();
    }

    fn is_embedded(&self) -> bool {
        !self.embedded.is_empty()
    }

    fn out_of_time(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Whether what is known has to do.
    fn knows_enough(&self) -> bool {
        Instant::now() >= self.learned
    }

    fn into_scan(mut self) -> Scan {
        self.found.sort_by(|a, b| (a.line, a.column, &a.rule).cmp(&(b.line, b.column, &b.rule)));
        let worst = self.found.iter().map(|finding| finding.severity).max();
        let low: HashSet<&str> = self.found.iter().map(|finding| finding.rule.as_str()).collect();
        let verdict = match worst {
            Some(Severity::High) => Verdict::Dangerous,
            Some(Severity::Medium) => Verdict::Review,
            Some(Severity::Low) if low.len() >= 3 => Verdict::Review,
            _ => Verdict::Clean,
        };
        Scan { verdict, findings: self.found, truncated: self.truncated }
    }
}

/// What a terminal would hide or obey is shown as `·`.
fn visible(c: char) -> char {
    if c.is_control() || unicode::is_hidden(c) { '·' } else { c }
}
