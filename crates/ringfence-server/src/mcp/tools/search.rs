//! `search_files`: ripgrep's engine over contents that are read through the guest.
//!
//! The search runs outside, since the sandbox need not have a search program; the files are opened inside, since they are
//! hostile. No path is ever looked up on the host, no link is followed, and everything is bounded: time, files, directories
//! that wait, patterns of ignore files, and the answer.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

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
use crate::mcp::live::MOST_TIME;

const MOST_MATCHES: usize = 500;
const MATCHES: usize = 100;
const MOST_CONTEXT: usize = 10;
/// The longest piece of a line that is shown.
const LONGEST_LINE: usize = 400;
/// What one search may cost.
const LARGEST_FILE: u64 = 8 << 20;
const MOST_BYTES: u64 = 512 << 20;
const MOST_FILES: usize = 100_000;
const DEEPEST: usize = 64;
/// Directories that wait at the same time, and bytes of their paths.
const MOST_WAITING: usize = 100_000;
const MOST_PATHS: usize = 32 << 20;
/// Bytes of the lines in an answer, with their paths.
const MOST_ANSWER: usize = 4 << 20;
/// A longer .gitignore leaves nothing out.
const LARGEST_IGNORE: u64 = 64 << 10;
/// Patterns of all ignore files of one search; what comes after them leaves nothing out.
const MOST_PATTERNS: usize = 20_000;
/// Bytes of these patterns. Compiled, long ones took about a hundred times as much memory.
const MOST_PATTERN_BYTES: usize = 512 << 10;
/// Bytes of a pattern for paths. A longer one fits no path that can be opened.
const LONGEST_PATTERN: usize = 4096;
/// Braces in a pattern: nested ones are read by recursion.
const MOST_BRACES: usize = 64;
/// Entries that are looked at before other calls have their turn.
const TURN: usize = 256;

const TOO_LONG: &str = "it took more than 30 s";

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
        let Ok(_turn) = desk.live.walks.acquire().await else { return Err(Trouble::new("The server ends.")) };
        search.started = Instant::now();
        // A read inside the sandbox may take for ever.
        match tokio::time::timeout(MOST_TIME, search.walk(desk, self.path.as_deref().unwrap_or("."))).await {
            Ok(walked) => walked?,
            Err(_) => search.incomplete = Some(TOO_LONG),
        }
        let found = search.found();
        let text = found.text();
        done(&found, text)
    }
}

/// What one directory and those above it leave out. Directories without an ignore file share that of the one above.
struct Ignores {
    own: Gitignore,
    above: Option<Arc<Ignores>>,
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
    /// Bytes of the lines that were found, with their paths.
    answer: usize,
    /// Patterns of ignore files that were read.
    patterns: usize,
    pattern_bytes: usize,
    looked_at: usize,
    started: Instant,
    incomplete: Option<&'static str>,
}

/// A directory that waits: where it is, and what the ones above it leave out.
struct Waiting {
    path: PathBuf,
    depth: usize,
    ignores: Option<Arc<Ignores>>,
}

/// Directories that wait, in the order in which they were found.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Bytes of their paths.
    paths: usize,
}

impl Queue {
    /// Whether there was room.
    fn push(&mut self, directory: Waiting) -> bool {
        let paths = self.paths + directory.path.as_os_str().len();
        if self.waiting.len() >= MOST_WAITING || paths > MOST_PATHS {
            return false;
        }
        self.paths = paths;
        self.waiting.push_back(directory);
        true
    }

    fn pop(&mut self) -> Option<Waiting> {
        let directory = self.waiting.pop_front()?;
        self.paths -= directory.path.as_os_str().len();
        Some(directory)
    }
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
            if !is_readable(&whole) {
                return Err(format!("it has more than {LONGEST_PATTERN} bytes or {MOST_BRACES} braces"));
            }
            Glob::new(&whole).map(|glob| glob.compile_matcher()).map_err(|error| error.to_string())
        });
        let glob = glob.transpose().map_err(|reason| Trouble::new(format!("`glob` cannot be used: {reason}.")))?;
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
            answer: 0,
            patterns: 0,
            pattern_bytes: 0,
            looked_at: 0,
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
        } else if self.answer > MOST_ANSWER {
            "the lines are more than an answer can carry"
        } else if self.started.elapsed() > MOST_TIME {
            TOO_LONG
        } else {
            return false;
        };
        self.incomplete = Some(why);
        true
    }

    async fn walk(&mut self, desk: &Desk<'_>, root: &str) -> Result<(), Trouble> {
        let mut waiting = Queue::default();
        waiting.push(Waiting { path: PathBuf::new(), depth: 0, ignores: None });
        while let Some(directory) = waiting.pop() {
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
        waiting: &mut Queue,
    ) -> Result<(), Trouble> {
        let mut ignores = directory.ignores;
        if !self.hidden && entries.iter().any(|entry| entry.path == b".gitignore" && entry.kind == EntryKind::File) {
            ignores = self.ignore_file(desk, root, &directory.path, ignores).await;
        }
        for entry in entries {
            self.looked_at += 1;
            if self.looked_at.is_multiple_of(TURN) {
                // The time limit acts here, too.
                tokio::task::yield_now().await;
                if desk.context.ct.is_cancelled() {
                    return Ok(());
                }
            }
            let Some(name) = name(&entry) else { continue };
            let below = directory.path.join(name);
            let is_dir = entry.kind == EntryKind::Directory;
            if !self.hidden && (name.as_bytes().starts_with(b".") || ignored(ignores.as_deref(), &below, is_dir)) {
                continue;
            }
            if is_dir && directory.depth < DEEPEST {
                if !waiting.push(Waiting { path: below, depth: directory.depth + 1, ignores: ignores.clone() }) {
                    self.incomplete = Some("there are too many directories beside each other");
                }
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
        let (lines, matches, answer) = (&mut self.lines, &mut self.matches, &mut self.answer);
        let mut sink = Lines { path: shown, lines, matches, answer, room };
        let searched = self.searcher.search_slice(&self.matcher, &bytes, &mut sink);
        searched.map_err(|error| Trouble::new(format!("cannot search `{shown}`: {error}")))
    }

    /// The ignore file of a directory, on top of those above. One that cannot be read leaves nothing out.
    async fn ignore_file(
        &mut self,
        desk: &Desk<'_>,
        root: &str,
        directory: &Path,
        above: Option<Arc<Ignores>>,
    ) -> Option<Arc<Ignores>> {
        let path = Path::new(root).join(directory).join(".gitignore");
        let Ok(bytes) = desk.files().read(path, LARGEST_IGNORE).await else { return above };
        let Ok(text) = String::from_utf8(bytes) else { return above };
        self.ignores(directory, &text, above)
    }

    fn ignores(&mut self, directory: &Path, text: &str, above: Option<Arc<Ignores>>) -> Option<Arc<Ignores>> {
        let is_pattern = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
        self.patterns += text.lines().filter(is_pattern).count();
        self.pattern_bytes += text.lines().filter(is_pattern).map(str::len).sum::<usize>();
        if self.patterns > MOST_PATTERNS || self.pattern_bytes > MOST_PATTERN_BYTES {
            self.incomplete = Some(
                "there are more than 20000 patterns or 512 KiB of them in .gitignore files, and not all were followed",
            );
            return above;
        }
        let mut builder = GitignoreBuilder::new(directory);
        // A line that is not understood leaves nothing out.
        for line in text.lines().filter(|line| is_readable(line)) {
            let _ = builder.add_line(None, line);
        }
        match builder.build() {
            Ok(own) if !own.is_empty() => Some(Arc::new(Ignores { own, above })),
            _ => above,
        }
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

/// Whether a pattern for paths can be read in little time and stack.
fn is_readable(pattern: &str) -> bool {
    pattern.len() <= LONGEST_PATTERN && pattern.bytes().filter(|byte| *byte == b'{').count() <= MOST_BRACES
}

/// The nearest file that has a say decides.
fn ignored(ignores: Option<&Ignores>, path: &Path, is_dir: bool) -> bool {
    let chain = std::iter::successors(ignores, |ignores| ignores.above.as_deref());
    let verdict = chain.map(|ignores| ignores.own.matched(path, is_dir)).find(|verdict| !verdict.is_none());
    verdict.is_some_and(|verdict| verdict.is_ignore())
}

/// Takes the lines that a searcher finds.
struct Lines<'a> {
    path: &'a str,
    lines: &'a mut Vec<FoundLine>,
    matches: &'a mut usize,
    answer: &'a mut usize,
    room: usize,
}

impl Lines<'_> {
    fn push(&mut self, line: Option<u64>, bytes: &[u8], context: bool) {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_LINE)]).into_owned();
        if bytes.len() > LONGEST_LINE {
            let _ = write!(text, " [{} bytes more]", bytes.len() - LONGEST_LINE);
        }
        *self.answer += self.path.len() + text.len();
        self.lines.push(FoundLine { path: self.path.to_owned(), line: line.unwrap_or(0), text, context });
    }
}

impl Sink for Lines<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, std::io::Error> {
        if self.room == 0 || *self.answer > MOST_ANSWER {
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
        let Search { matcher, searcher, lines, matches, answer, wanted: room, .. } = &mut search;
        let mut sink = Lines { path: "f", lines, matches, answer, room: *room };
        searcher.search_slice(&*matcher, text.as_bytes(), &mut sink).unwrap();
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

    fn any_search() -> Search {
        let asked: SearchFiles = serde_json::from_value(serde_json::json!({"pattern": "x"})).unwrap();
        Search::new(&asked).unwrap_or_else(|trouble| panic!("{trouble}"))
    }

    #[test]
    fn ignore_files_are_read_where_they_lie() {
        let mut search = any_search();
        let top = search.ignores(Path::new(""), "target/\n*.log\n/only-top\n# a comment\n", None);
        let all = search.ignores(Path::new("sub"), "!keep.log\nlocal\n*.{tmp,bak}\n", top);
        let gone = |path: &str, is_dir| ignored(all.as_deref(), Path::new(path), is_dir);
        assert!(gone("target", true) && gone("a.log", false) && gone("only-top", false) && gone("sub/local", false));
        assert!(gone("sub/a.tmp", false) && gone("sub/a.bak", false) && !gone("sub/a.txt", false));
        assert!(!gone("sub/keep.log", false) && !gone("sub/only-top", false) && !gone("src", true));
        assert_eq!((search.patterns, search.incomplete), (6, None));
    }

    /// The bytes that this process has now.
    fn memory() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    /// Every directory has what the one above leaves out, once in memory however many there are.
    #[test]
    fn ignore_files_are_shared() {
        let mut search = any_search();
        let text: String = (0..2500).map(|n| format!("**/*{n:x}*[a-z]*?/**\n")).collect();
        let top = search.ignores(Path::new(""), &text, None);
        assert!(ignored(top.as_deref(), Path::new("a/x7fby1/z"), false), "it has a say");
        let before = memory();
        let mut queue = Queue::default();
        for n in 0..20_000 {
            // One without an ignore file, and one whose ignore file says nothing.
            let ignores =
                if n % 2 == 0 { top.clone() } else { search.ignores(Path::new("d"), "# nothing\n\n", top.clone()) };
            assert!(queue.push(Waiting { path: PathBuf::from(format!("d{n}")), depth: 1, ignores }));
        }
        let grown = memory().saturating_sub(before);
        assert!(grown < 50 << 20, "{grown}");
        let last = queue.waiting.back().and_then(|directory| directory.ignores.as_deref());
        assert!(ignored(last, Path::new("a/x7fby1/z"), false));
    }

    #[test]
    fn patterns_and_directories_are_bounded() {
        let mut search = any_search();
        let text = "*.log\n".repeat(MOST_PATTERNS / 2);
        let first = search.ignores(Path::new(""), &text, None);
        let second = search.ignores(Path::new("a"), &text, first);
        assert_eq!(search.incomplete, None);
        let third = search.ignores(Path::new("a/b"), "*.txt\n", second);
        assert!(search.incomplete.is_some_and(|why| why.contains("20000 patterns")));
        let gone = |path: &str| ignored(third.as_deref(), Path::new(path), false);
        assert!(gone("a/b/x.log") && !gone("a/b/x.txt"));

        // Few and long ones: what they are compiled to is larger still.
        let mut search = any_search();
        let long = format!("{}\n", "?".repeat(4000)).repeat(15);
        for number in 0..8 {
            search.ignores(Path::new(&format!("d{number}")), &long, None);
        }
        assert_eq!(search.incomplete, None);
        search.ignores(Path::new("d8"), &long, None);
        assert!(search.incomplete.is_some_and(|why| why.contains("512 KiB")));

        let mut queue = Queue::default();
        let push = |queue: &mut Queue, path: String| {
            queue.push(Waiting { path: PathBuf::from(path), depth: 1, ignores: None })
        };
        assert!((0..MOST_WAITING).all(|n| push(&mut queue, n.to_string())) && !push(&mut queue, "more".into()));
        assert_eq!(queue.pop().map(|directory| directory.path), Some(PathBuf::from("0")));
        assert!(push(&mut queue, "more".into()));
        let mut queue = Queue::default();
        let long = "x/".repeat(2000);
        assert!(!(0..MOST_WAITING).all(|_| push(&mut queue, long.clone())) && queue.paths <= MOST_PATHS);
        while queue.pop().is_some() {}
        assert_eq!(queue.paths, 0);
    }

    /// They are read by recursion: a server must not run out of stack because of a file in the sandbox.
    #[test]
    fn nested_braces_are_not_read() {
        let bomb = format!("{}a{}", "{".repeat(32_000), "}".repeat(32_000));
        let mut search = any_search();
        let ignores = search.ignores(Path::new(""), &format!("{bomb}\n*.log\n"), None);
        assert!(
            ignored(ignores.as_deref(), Path::new("x.log"), false)
                && !ignored(ignores.as_deref(), Path::new("a"), false)
        );
        let asked = |glob: &str| serde_json::from_value(serde_json::json!({"pattern": "x", "glob": glob})).unwrap();
        assert!(Search::new(&asked(&bomb)).is_err());
        assert!(Search::new(&asked("*.{rs,{toml,lock}}")).is_ok());
    }

    #[test]
    fn an_answer_is_bounded() {
        let asked = serde_json::json!({"pattern": "x", "max_matches": 500, "context": 10});
        let asked: SearchFiles = serde_json::from_value(asked).unwrap();
        let mut search = Search::new(&asked).unwrap_or_else(|trouble| panic!("{trouble}"));
        let text = format!("x\n{}", "y\n".repeat(20)).repeat(500);
        let path = "d/".repeat(2000);
        for _ in 0..2 {
            let Search { matcher, searcher, lines, matches, answer, wanted: room, .. } = &mut search;
            let mut sink = Lines { path: &path, lines, matches, answer, room: *room };
            searcher.search_slice(&*matcher, text.as_bytes(), &mut sink).unwrap();
        }
        assert!(search.over() && search.answer < MOST_ANSWER + 200_000, "{}", search.answer);
        assert!(search.incomplete.is_some_and(|why| why.contains("an answer can carry")), "{:?}", search.incomplete);
    }
}
