//! `search_files`: ripgrep's engine over contents that are read through the guest.
//!
//! The search runs outside, since the sandbox need not have a search program; the files are opened inside, since they are
//! hostile. No path is ever looked up on the host, no link is followed, and everything is bounded: time, files, directories
//! that wait, patterns of ignore files, and the answer. Contents are searched on other threads, in pieces, since a pattern
//! may take a second for one piece.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
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
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::spawn_blocking;

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
/// Bytes of a pattern. A longer one for paths fits no path that can be opened.
const LONGEST_PATTERN: usize = 4096;
/// Braces in a pattern: nested ones are read by recursion.
const MOST_BRACES: usize = 64;
/// Entries that are looked at before other calls have their turn.
const TURN: usize = 16;
/// Bytes that a pattern may take when it is compiled: the first that is enough decides how long lines may be.
const PATTERN_SIZES: [usize; 3] = [16 << 10, 256 << 10, 4 << 20];
/// A byte of a line took up to 0.06 ns for each byte of the compiled pattern, so a line takes about a second.
const MOST_WORK: usize = 16 << 30;
/// What a pattern may remember while it searches.
const PATTERN_CACHE: usize = 2 << 20;

const TOO_LONG: &str = "it took more than 30 s";
const LONG_LINES: &str = "long lines were left out (the larger the pattern, the shorter a line may be)";

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

    async fn act(mut self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let ends = |_| Trouble::new("The server ends.");
        let path = self.path.take().unwrap_or_else(|| ".".to_owned());
        let turn =
            Arc::new(desk.live.walks.clone().acquire_owned().await.map_err(|_| Trouble::new("The server ends."))?);
        let mut search = spawn_blocking(move || Search::new(&self, Some(turn))).await.map_err(ends)??;
        tokio::select! {
            // A read inside the sandbox may take for ever.
            walked = tokio::time::timeout(MOST_TIME, search.walk(desk, &path)) => match walked {
                Ok(walked) => walked?,
                Err(_) => search.incomplete = Some(TOO_LONG),
            },
            () = desk.context.ct.cancelled() => {}
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
    finder: Arc<Finder>,
    /// Threads hold it too: one that is not waited for any more counts until it ends.
    turn: Option<Arc<OwnedSemaphorePermit>>,
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
    fn new(asked: &SearchFiles, turn: Option<Arc<OwnedSemaphorePermit>>) -> Result<Search, Trouble> {
        let wanted = asked.max_matches.unwrap_or(MATCHES);
        let context = asked.context.unwrap_or(0);
        if wanted == 0 || wanted > MOST_MATCHES || context > MOST_CONTEXT {
            let limits = format!("`max_matches` is 1 to {MOST_MATCHES}, `context` is 0 to {MOST_CONTEXT}.");
            return Err(Trouble::new(limits));
        }
        let glob = asked.glob.as_deref().map(|glob| {
            // As in .gitignore: without a slash, it is about the name.
            let whole = if glob.contains('/') { glob.to_owned() } else { format!("**/{glob}") };
            if !is_readable(&whole) {
                return Err(format!("it has more than {LONGEST_PATTERN} bytes or {MOST_BRACES} braces"));
            }
            Glob::new(&whole).map(|glob| glob.compile_matcher()).map_err(|error| error.to_string())
        });
        let glob = glob.transpose().map_err(|reason| Trouble::new(format!("`glob` cannot be used: {reason}.")))?;
        Ok(Search {
            finder: Arc::new(Finder::new(asked, context)?),
            turn,
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
        let (finder, turn, path) = (self.finder.clone(), self.turn.clone(), shown.to_owned());
        let (room, answer, until) = (self.wanted - self.matches, self.answer, self.started + MOST_TIME);
        let (tell, told) = oneshot::channel();
        spawn_blocking(move || {
            let found = finder.search(path, &bytes, room, answer, || tell.is_closed() || Instant::now() > until);
            drop(turn);
            // The search may have ended meanwhile.
            let _ = tell.send(found);
        });
        let Ok(found) = told.await else { return Err(Trouble::new(format!("cannot search `{shown}`"))) };
        self.add(found);
        Ok(())
    }

    fn add(&mut self, found: FoundInFile) {
        self.matches += found.matches;
        self.answer = found.answer;
        self.lines.extend(found.lines);
        self.incomplete = found.incomplete.or(self.incomplete);
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

/// A pattern, and how contents are searched for it.
struct Finder {
    matcher: RegexMatcher,
    context: usize,
    /// Bytes of a line. One piece that is searched has no more.
    longest: usize,
}

impl Finder {
    fn new(asked: &SearchFiles, context: usize) -> Result<Finder, Trouble> {
        let refused = |why: String| Trouble::new(format!("`pattern` cannot be used: {why}."));
        if asked.pattern.len() > LONGEST_PATTERN {
            return Err(refused(format!("it has more than {LONGEST_PATTERN} bytes")));
        }
        let of_size = |size: usize| {
            let mut builder = RegexMatcherBuilder::new();
            builder.case_insensitive(asked.ignore_case).fixed_strings(asked.fixed).line_terminator(Some(b'\n'));
            let matcher = builder.size_limit(size).dfa_size_limit(PATTERN_CACHE).build(&asked.pattern)?;
            Ok(Finder { matcher, context, longest: MOST_WORK / size })
        };
        let [small, medium, large] = PATTERN_SIZES;
        let finder = of_size(small).or_else(|_| of_size(medium)).or_else(|_| of_size(large));
        finder.map_err(|error: grep_regex::Error| refused(error.to_string()))
    }

    /// Searches one file for so many lines at most. `answer`: bytes of the lines before; `ended`: asked before each piece.
    fn search(&self, path: String, bytes: &[u8], room: usize, answer: usize, ended: impl Fn() -> bool) -> FoundInFile {
        let mut found = FoundInFile { path, room, answer, lines: Vec::new(), matches: 0, incomplete: None };
        let mut pieces = Pieces { left: bytes, ready: 0, longest: self.longest, ended, incomplete: None };
        let mut searcher = SearcherBuilder::new()
            .line_number(true)
            .before_context(self.context)
            .after_context(self.context)
            .binary_detection(BinaryDetection::quit(0))
            // Text that is not UTF-8 has other lines when it is decoded.
            .heap_limit(Some((self.context + 4) * self.longest))
            .build();
        let searched = searcher.search_reader(&self.matcher, &mut pieces, &mut found);
        found.incomplete = pieces.incomplete.or(searched.is_err().then_some(LONG_LINES));
        found
    }
}

/// The contents of a file, in pieces of whole lines. A line that is too long is an empty one.
struct Pieces<'a, F> {
    left: &'a [u8],
    /// Bytes of it that are the rest of a piece.
    ready: usize,
    longest: usize,
    ended: F,
    incomplete: Option<&'static str>,
}

impl<F: Fn() -> bool> Pieces<'_, F> {
    /// Bytes of the next piece.
    fn piece(&mut self) -> usize {
        if (self.ended)() {
            self.incomplete = Some(TOO_LONG);
            return 0;
        }
        let piece = &self.left[..self.left.len().min(self.longest)];
        if piece.len() == self.left.len() {
            return piece.len();
        }
        if let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') {
            return end + 1;
        }
        let end = self.left.iter().position(|byte| *byte == b'\n').unwrap_or(self.left.len());
        // Of a binary file, what comes after a NUL is not searched.
        if self.left[..end].contains(&0) {
            return 0;
        }
        self.incomplete = Some(LONG_LINES);
        self.left = &self.left[end..];
        self.left.len().min(1)
    }
}

impl<F: Fn() -> bool> io::Read for Pieces<'_, F> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.ready == 0 {
            self.ready = self.piece();
        }
        let length = self.ready.min(room.len());
        let (now, later) = self.left.split_at(length);
        room[..length].copy_from_slice(now);
        self.left = later;
        self.ready -= length;
        Ok(length)
    }
}

/// What was found in one file.
struct FoundInFile {
    path: String,
    room: usize,
    answer: usize,
    lines: Vec<FoundLine>,
    matches: usize,
    incomplete: Option<&'static str>,
}

impl FoundInFile {
    fn push(&mut self, line: Option<u64>, bytes: &[u8], context: bool) {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_LINE)]).into_owned();
        if bytes.len() > LONGEST_LINE {
            let _ = write!(text, " [{} bytes more]", bytes.len() - LONGEST_LINE);
        }
        self.answer += self.path.len() + text.len();
        self.lines.push(FoundLine { path: self.path.clone(), line: line.unwrap_or(0), text, context });
    }
}

impl Sink for FoundInFile {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        if self.matches == self.room || self.answer > MOST_ANSWER {
            return Ok(false);
        }
        self.matches += 1;
        self.push(found.line_number(), found.bytes(), false);
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, around: &SinkContext<'_>) -> Result<bool, io::Error> {
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
mod tests;
