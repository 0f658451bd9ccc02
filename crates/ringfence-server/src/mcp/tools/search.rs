//! `search_files`: ripgrep's engine over contents that are read through the guest.
//!
//! The search runs outside, since the sandbox need not have a search program; the files are opened inside, since they are
//! hostile. No path is ever looked up on the host, no link is followed, and everything is bounded.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use globset::{Glob, GlobMatcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ringfence::session::{Entry, EntryKind, SessionError};
use rmcp::model::CallToolResult;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Act, Desk, Nature};
use crate::mcp::answer::{Trouble, done};

const MOST_MATCHES: usize = 500;
const MATCHES: usize = 100;
const MOST_CONTEXT: usize = 10;
/// The longest piece of a line that is shown.
const LONGEST_LINE: usize = 400;
/// What one search may cost.
const LARGEST_FILE: u64 = 8 << 20;
const MOST_BYTES: u64 = 512 << 20;
const MOST_FILES: usize = 100_000;
const MOST_TIME: Duration = Duration::from_secs(30);
const DEEPEST: usize = 64;
/// A longer .gitignore leaves nothing out.
const LARGEST_IGNORE: u64 = 64 << 10;

/// Searches files.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchFiles {
    /// A regular expression, as ripgrep has them.
    pattern: String,
    /// A directory or a file; the working directory when absent.
    path: Option<String>,
    /// Only files whose path below the directory matches this, such as `*.rs` or `src/**/*.ts`.
    glob: Option<String>,
    /// The pattern is plain text.
    #[serde(default)]
    fixed: bool,
    /// Upper and lower case are the same.
    #[serde(default)]
    ignore_case: bool,
    /// Lines around each match; 10 at most.
    #[schemars(range(max = 10))]
    context: Option<usize>,
    /// Matching lines to show; 100 when absent, 500 at most.
    #[schemars(range(min = 1, max = 500))]
    max_matches: Option<usize>,
    /// Search hidden files and what .gitignore leaves out, too.
    #[serde(default)]
    hidden: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Found {
    matches: Vec<FoundLine>,
    files_searched: u64,
    /// Why there may be more: narrow the search by path, glob or pattern.
    incomplete: Option<&'static str>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FoundLine {
    path: String,
    line: u64,
    text: String,
    /// A line around a match, and not one itself.
    context: bool,
}

impl Act for SearchFiles {
    type Output = Found;
    const NAME: &'static str = "search_files";
    const TITLE: &'static str = "Search files";
    const ABOUT: &'static str = "Searches the contents of files in the sandbox for a regular expression, as ripgrep does: \
        what .gitignore leaves out, hidden files, binary files and links are left out.";
    const NATURE: Nature = Nature::Reads;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let mut search = Search::new(&self)?;
        search.walk(desk, self.path.as_deref().unwrap_or(".")).await?;
        let found = search.found();
        let text = found.text();
        done(&found, text)
    }
}

/// A search that is under way.
struct Search {
    matcher: RegexMatcher,
    searcher: Searcher,
    glob: Option<GlobMatcher>,
    hidden: bool,
    wanted: usize,
    lines: Vec<FoundLine>,
    matches: usize,
    files: usize,
    bytes: u64,
    started: Instant,
    incomplete: Option<&'static str>,
}

/// A directory that waits: where it is, and what the ones above it leave out.
struct Waiting {
    path: PathBuf,
    depth: usize,
    ignores: Vec<Gitignore>,
}

impl Search {
    fn new(asked: &SearchFiles) -> Result<Search, Trouble> {
        let wanted = asked.max_matches.unwrap_or(MATCHES);
        let context = asked.context.unwrap_or(0);
        if wanted == 0 || wanted > MOST_MATCHES || context > MOST_CONTEXT {
            let limits = format!("`max_matches` is 1 to {MOST_MATCHES}, `context` is 0 to {MOST_CONTEXT}.");
            return Err(Trouble::new(limits));
        }
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(asked.ignore_case)
            .fixed_strings(asked.fixed)
            .line_terminator(Some(b'\n'))
            .size_limit(8 << 20)
            .build(&asked.pattern)
            .map_err(|error| Trouble::new(format!("`pattern` cannot be used: {error}.")))?;
        let glob = asked.glob.as_deref().map(|glob| {
            // As in .gitignore: without a slash, it is about the name.
            let whole = if glob.contains('/') { glob.to_owned() } else { format!("**/{glob}") };
            Glob::new(&whole).map(|glob| glob.compile_matcher())
        });
        let glob = glob.transpose().map_err(|error| Trouble::new(format!("`glob` cannot be used: {error}.")))?;
        let searcher = SearcherBuilder::new()
            .line_number(true)
            .before_context(context)
            .after_context(context)
            .binary_detection(BinaryDetection::quit(0))
            .build();
        Ok(Search {
            matcher,
            searcher,
            glob,
            hidden: asked.hidden,
            wanted,
            lines: Vec::new(),
            matches: 0,
            files: 0,
            bytes: 0,
            started: Instant::now(),
            incomplete: None,
        })
    }

    /// Whether the search has to stop here.
    fn over(&mut self) -> bool {
        let why = if self.matches >= self.wanted {
            "there are more matches than max_matches"
        } else if self.bytes > MOST_BYTES {
            "more than 512 MiB would have to be searched"
        } else if self.files > MOST_FILES {
            "there are more than 100000 files"
        } else if self.started.elapsed() > MOST_TIME {
            "it took more than 30 s"
        } else {
            return false;
        };
        self.incomplete = Some(why);
        true
    }

    async fn walk(&mut self, desk: &Desk<'_>, root: &str) -> Result<(), Trouble> {
        let mut waiting = VecDeque::from([Waiting { path: PathBuf::new(), depth: 0, ignores: Vec::new() }]);
        while let Some(directory) = waiting.pop_front() {
            if self.over() || desk.context.ct.is_cancelled() {
                break;
            }
            let mut entries = match desk.files().list(Path::new(root).join(&directory.path), 1).await {
                Ok(entries) => entries,
                Err(SessionError::File { errno: Errno::NOTDIR, .. }) if directory.depth == 0 => {
                    return self.named_file(desk, root).await;
                }
                // The root must be there; what lies below may go, or be closed to us.
                Err(error) if directory.depth == 0 => return Err(desk.file_trouble(error, root).await),
                Err(_) => continue,
            };
            entries.sort_by(|a, b| a.path.cmp(&b.path));
            self.directory(desk, root, directory, entries, &mut waiting).await?;
        }
        Ok(())
    }

    /// The one file that was asked for.
    async fn named_file(&mut self, desk: &Desk<'_>, path: &str) -> Result<(), Trouble> {
        match desk.files().stat(path).await {
            Ok(entry) => self.file(desk, Path::new(path), path, &entry).await,
            Err(error) => Err(desk.file_trouble(error, path).await),
        }
    }

    async fn directory(
        &mut self,
        desk: &Desk<'_>,
        root: &str,
        directory: Waiting,
        entries: Vec<Entry>,
        waiting: &mut VecDeque<Waiting>,
    ) -> Result<(), Trouble> {
        let mut ignores = directory.ignores;
        if !self.hidden && entries.iter().any(|entry| entry.path == b".gitignore" && entry.kind == EntryKind::File) {
            ignores.extend(ignore_file(desk, root, &directory.path).await);
        }
        for entry in entries {
            let Some(name) = name(&entry) else { continue };
            let below = directory.path.join(name);
            let is_dir = entry.kind == EntryKind::Directory;
            if !self.hidden && (name.as_bytes().starts_with(b".") || ignored(&ignores, &below, is_dir)) {
                continue;
            }
            if is_dir && directory.depth < DEEPEST {
                waiting.push_back(Waiting { path: below, depth: directory.depth + 1, ignores: ignores.clone() });
            } else if entry.kind == EntryKind::File && self.glob.as_ref().is_none_or(|glob| glob.is_match(&below)) {
                if self.over() || desk.context.ct.is_cancelled() {
                    return Ok(());
                }
                let shown = if root == "." { below.clone() } else { Path::new(root).join(&below) };
                self.file(desk, &Path::new(root).join(&below), &shown.to_string_lossy(), &entry).await?;
            }
        }
        Ok(())
    }

    async fn file(&mut self, desk: &Desk<'_>, path: &Path, shown: &str, entry: &Entry) -> Result<(), Trouble> {
        self.files += 1;
        if entry.size > LARGEST_FILE {
            self.incomplete = Some("files larger than 8 MiB were left out");
            return Ok(());
        }
        // It may be gone by now, or have become something else.
        let Ok(bytes) = desk.files().read(path, LARGEST_FILE).await else { return Ok(()) };
        self.bytes += bytes.len() as u64;
        let room = self.wanted - self.matches;
        let mut sink = Lines { path: shown, lines: &mut self.lines, matches: &mut self.matches, room };
        let searched = self.searcher.search_slice(&self.matcher, &bytes, &mut sink);
        searched.map_err(|error| Trouble::new(format!("cannot search `{shown}`: {error}")))
    }

    fn found(self) -> Found {
        Found { matches: self.lines, files_searched: self.files as u64, incomplete: self.incomplete }
    }
}

/// The name of an entry; a guest that gives more than a name is not followed.
fn name(entry: &Entry) -> Option<&OsStr> {
    let name = OsStr::from_bytes(&entry.path);
    (!entry.path.contains(&b'/') && !matches!(entry.path.as_slice(), b"" | b"." | b"..")).then_some(name)
}

async fn ignore_file(desk: &Desk<'_>, root: &str, directory: &Path) -> Option<Gitignore> {
    let path = Path::new(root).join(directory).join(".gitignore");
    let text = String::from_utf8(desk.files().read(path, LARGEST_IGNORE).await.ok()?).ok()?;
    let mut builder = GitignoreBuilder::new(directory);
    for line in text.lines() {
        // A line that is not understood leaves nothing out.
        let _ = builder.add_line(None, line);
    }
    builder.build().ok()
}

/// The nearest file that has a say decides.
fn ignored(ignores: &[Gitignore], path: &Path, is_dir: bool) -> bool {
    let verdict = ignores.iter().rev().map(|ignore| ignore.matched(path, is_dir)).find(|verdict| !verdict.is_none());
    verdict.is_some_and(|verdict| verdict.is_ignore())
}

/// Takes the lines that a searcher finds.
struct Lines<'a> {
    path: &'a str,
    lines: &'a mut Vec<FoundLine>,
    matches: &'a mut usize,
    room: usize,
}

impl Lines<'_> {
    fn push(&mut self, line: Option<u64>, bytes: &[u8], context: bool) {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_LINE)]).into_owned();
        if bytes.len() > LONGEST_LINE {
            let _ = write!(text, " [{} bytes more]", bytes.len() - LONGEST_LINE);
        }
        self.lines.push(FoundLine { path: self.path.to_owned(), line: line.unwrap_or(0), text, context });
    }
}

impl Sink for Lines<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, std::io::Error> {
        if self.room == 0 {
            return Ok(false);
        }
        self.room -= 1;
        *self.matches += 1;
        self.push(found.line_number(), found.bytes(), false);
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, around: &SinkContext<'_>) -> Result<bool, std::io::Error> {
        self.push(around.line_number(), around.bytes(), true);
        Ok(true)
    }
}

impl Found {
    fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.matches {
            let mark = if line.context { '-' } else { ':' };
            let _ = writeln!(text, "{}{mark}{}{mark}{}", line.path, line.line, line.text);
        }
        if self.matches.is_empty() {
            let _ = writeln!(text, "no match in {} files", self.files_searched);
        }
        if let Some(why) = self.incomplete {
            let _ = writeln!(text, "[not complete: {why}; narrow it by path, glob or pattern]");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(asked: serde_json::Value, text: &str) -> Vec<(u64, String, bool)> {
        let asked: SearchFiles = serde_json::from_value(asked).unwrap();
        let mut search = Search::new(&asked).unwrap_or_else(|trouble| panic!("{trouble}"));
        let mut sink = Lines { path: "f", lines: &mut search.lines, matches: &mut search.matches, room: search.wanted };
        search.searcher.search_slice(&search.matcher, text.as_bytes(), &mut sink).unwrap();
        search.lines.into_iter().map(|line| (line.line, line.text, line.context)).collect()
    }

    #[test]
    fn lines_are_found_as_ripgrep_finds_them() {
        let text = "fn main() {\n    Call(1);\n}\n";
        let json = |value| value;
        assert_eq!(search(json(serde_json::json!({"pattern": "^fn \\w+"})), text), [(1, "fn main() {".into(), false)]);
        assert_eq!(search(serde_json::json!({"pattern": "call"}), text), []);
        let found =
            search(serde_json::json!({"pattern": "call(", "fixed": true, "ignore_case": true, "context": 1}), text);
        assert_eq!(
            found.iter().map(|(line, _, context)| (*line, *context)).collect::<Vec<_>>(),
            [(1, true), (2, false), (3, true)]
        );
        assert_eq!(search(serde_json::json!({"pattern": "x", "max_matches": 2}), "x\nx\nx\n").len(), 2);
        assert_eq!(search(serde_json::json!({"pattern": "x"}), "a\0b\nx\n"), [], "binary");
        let long = "x".repeat(10_000);
        assert!(search(serde_json::json!({"pattern": "x"}), &long)[0].1.ends_with("[9600 bytes more]"));
    }

    #[test]
    fn bad_questions_are_refused() {
        for asked in [
            serde_json::json!({"pattern": "("}),
            serde_json::json!({"pattern": "x", "glob": "["}),
            serde_json::json!({"pattern": "x", "max_matches": 0}),
            serde_json::json!({"pattern": "x", "context": 11}),
            serde_json::json!({"pattern": "(a{1000}){1000}{1000}"}),
        ] {
            let asked: SearchFiles = serde_json::from_value(asked).unwrap();
            assert!(Search::new(&asked).is_err(), "{asked:?}");
        }
    }

    #[test]
    fn ignore_files_are_read_where_they_lie() {
        let ignore = |directory: &str, text: &str| {
            let mut builder = GitignoreBuilder::new(directory);
            text.lines().for_each(|line| drop(builder.add_line(None, line)));
            builder.build().unwrap()
        };
        let all = [ignore("", "target/\n*.log\n/only-top\n"), ignore("sub", "!keep.log\nlocal\n")];
        let gone = |path: &str, is_dir| ignored(&all, Path::new(path), is_dir);
        assert!(gone("target", true) && gone("a.log", false) && gone("only-top", false) && gone("sub/local", false));
        assert!(!gone("sub/keep.log", false) && !gone("sub/only-top", false) && !gone("src", true));
    }
}
