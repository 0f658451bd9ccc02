//! `read_file`, `write_file`, `edit_file` and `list_files`: through the guest, so that no path leads out of the sandbox.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use ringfence::policy::plan::Stub;
use ringfence::session::{Entry, EntryKind, Files, SessionError, WriteOptions};
use rmcp::model::CallToolResult;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Act, Desk, Nature};
use crate::mcp::answer::{ASK_OWNER, Trouble, done, with_place};
use crate::mcp::client_roots;
use crate::mcp::live::{MOST_TIME, Opened};

/// The most text that one answer carries.
const PAGE: usize = 64 << 10;
/// The largest file that can be edited.
const LARGEST_EDIT: u64 = 8 << 20;
/// The most that is read to find a line.
const FARTHEST: u64 = 1 << 30;
const LINES: u64 = 2000;
const ENTRIES: usize = 1000;
const DEEPEST: u16 = 16;

/// Reads a text file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// The file; relative to the working directory, or absolute inside the sandbox.
    path: String,
    /// The first line to show, counted from 1.
    #[schemars(range(min = 1))]
    from_line: Option<u64>,
    /// How many lines to show; 2000 at most.
    #[schemars(range(min = 1, max = 2000))]
    lines: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FileText {
    path: String,
    /// The lines, as they are in the file.
    text: String,
    /// The first line that is shown.
    from_line: u64,
    /// How many lines are shown.
    lines: u64,
    /// There is more: read_file with from_line this shows it.
    next_line: Option<u64>,
    /// The last line shown is longer than an answer can be, and was cut.
    cut: bool,
    /// Of the whole file, in bytes.
    size: u64,
}

/// Writes a file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// The file; relative to the working directory, or absolute inside the sandbox. Directories above it are made.
    path: String,
    /// Its whole new content.
    content: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Written {
    path: String,
    bytes: u64,
    /// It was not there before.
    created: bool,
}

/// Replaces text in a file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditFile {
    /// The file; relative to the working directory, or absolute inside the sandbox.
    path: String,
    /// The text to replace, exactly as it is in the file, white space included. It must be there once.
    old_text: String,
    /// What takes its place.
    new_text: String,
    /// Replace every occurrence instead of insisting on one.
    #[serde(default)]
    replace_all: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Edited {
    path: String,
    replacements: u64,
    /// The line of the first one.
    line: u64,
}

/// Lists a directory.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// The directory; the working directory when absent.
    path: Option<String>,
    /// How many levels down; 1 is the directory itself.
    #[schemars(range(min = 1, max = 16))]
    depth: Option<u16>,
    /// Leave out so many entries from the start, to see the next ones.
    skip: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Listing {
    path: String,
    entries: Vec<Listed>,
    /// Entries in all.
    total: usize,
    /// There is more: list_files with skip this shows it.
    next: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    /// Relative to the directory.
    path: String,
    kind: Kind,
    size: u64,
    /// Where a symbolic link leads.
    target: Option<String>,
    /// The sandbox's policy hides what is in it.
    hidden: bool,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    File,
    Directory,
    Symlink,
    Other,
}

impl Desk<'_> {
    pub(super) fn files(&self) -> Files {
        self.opened.session.files()
    }

    /// What to say about a path that could not be used.
    pub(super) async fn file_trouble(&self, error: SessionError, path: &str) -> Trouble {
        let (missing, odd) = match &error {
            SessionError::File { errno, .. } => {
                (*errno == Errno::NOENT, matches!(*errno, Errno::NOENT | Errno::ISDIR | Errno::NOTDIR))
            }
            _ => (false, false),
        };
        let trouble = self.live.trouble(error).await;
        let asked = plain_path(&self.opened.at.join(path));
        if odd && self.stand_ins().any(|(stand_in, _)| asked.starts_with(stand_in)) {
            let message = format!("`{path}` is not there, and cannot be made: it is protected.");
            return Trouble::new(message).advise(ASK_OWNER);
        }
        if missing { with_place(trouble, path, &self.opened) } else { trouble }
    }

    /// What stands in for protected names that are missing, by its path inside.
    fn stand_ins(&self) -> impl Iterator<Item = (PathBuf, &Stub)> {
        let Opened { allowed, at, places, .. } = &*self.opened;
        let inside = |stub: &Stub| client_roots::inside(&stub.path, &places.workdir, at);
        let named = allowed.stubs.iter().map(move |stub| (inside(stub).unwrap_or_else(|| stub.path.clone()), stub));
        // A directory that was empty looks like one; what the client works in is none.
        named.filter(|(path, _)| !at.starts_with(path) && !places.also.iter().any(|root| root.starts_with(path)))
    }

    /// Takes out of a listing what only stands in for protected names that are missing: it is there while boxes live, it is
    /// empty, and it is nobody's. What has something in it stays.
    async fn leave_out_stand_ins(&self, listed: &str, entries: &mut Vec<Entry>) {
        let directory = plain_path(&self.opened.at.join(listed));
        for (path, stub) in self.stand_ins() {
            let Ok(below) = path.strip_prefix(&directory) else { continue };
            let is_it = |entry: &Entry| entry.path == below.as_os_str().as_bytes();
            let Some(entry) = entries.iter().find(|entry| is_it(entry)) else { continue };
            let empty = match entry.kind {
                EntryKind::Directory => self.files().list(&path, 1).await.is_ok_and(|inside| inside.is_empty()),
                EntryKind::File => entry.size == stub.text.len() as u64 && entry.mode & 0o222 == 0,
                EntryKind::Symlink | EntryKind::Other => false,
            };
            if empty {
                entries.retain(|entry| !is_it(entry));
            }
        }
    }
}

/// A path without `.` and `..`, by its words alone.
fn plain_path(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

impl Act for ReadFile {
    type Output = FileText;
    const NAME: &'static str = "read_file";
    const TITLE: &'static str = "Read a file";
    const ABOUT: &'static str = "Reads a text file in the sandbox, by lines; a long one comes in pages.";
    const NATURE: Nature = Nature::Reads;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let (first, lines) = (self.from_line.unwrap_or(1), self.lines.unwrap_or(LINES));
        if first == 0 || first > FARTHEST || lines == 0 || lines > LINES {
            return Err(Trouble::new(format!("`from_line` is 1 to {FARTHEST}, and `lines` is 1 to {LINES}.")));
        }
        let size = match desk.files().stat(&self.path).await {
            Ok(entry) => entry.size,
            Err(error) => return Err(desk.file_trouble(error, &self.path).await),
        };
        let mut window = Window::new(first, lines);
        let mut reader = match desk.files().reader(&self.path, 0).await {
            Ok(reader) => reader,
            Err(error) => return Err(desk.file_trouble(error, &self.path).await),
        };
        loop {
            match reader.next().await {
                Ok(Some(bytes)) => {
                    if window.push(&bytes)? {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => return Err(desk.file_trouble(error, &self.path).await),
            }
        }
        let seen = window.line;
        let (text, shown, next_line, cut) = window.finish()?;
        if shown == 0 && first > 1 {
            return Err(Trouble::new(format!("`{}` has {seen} lines: there is no line {first}.", self.path)));
        }
        let mut answer = text.clone();
        if let Some(next) = next_line {
            let _ = write!(answer, "\n[more: read_file path={} from_line={next}]", self.path);
        }
        done(&FileText { path: self.path, text, from_line: first, lines: shown, next_line, cut, size }, answer)
    }
}

/// Collects some lines of a stream.
struct Window {
    first: u64,
    lines: u64,
    /// Complete lines seen so far.
    line: u64,
    bytes: Vec<u8>,
    seen: u64,
    /// Something follows what was collected.
    more: bool,
    cut: bool,
}

impl Window {
    fn new(first: u64, lines: u64) -> Window {
        Window { first, lines, line: 0, bytes: Vec::new(), seen: 0, more: false, cut: false }
    }

    /// Takes bytes; true when nothing more is needed.
    fn push(&mut self, bytes: &[u8]) -> Result<bool, Trouble> {
        self.seen += bytes.len() as u64;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line + 1 >= self.first + self.lines {
                self.more = true;
                return Ok(true);
            }
            if self.line + 1 >= self.first {
                if self.bytes.len() + piece.len() > PAGE {
                    // Whole lines, unless the first alone is too long.
                    let complete = self.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                    if complete == 0 {
                        let room = PAGE - self.bytes.len();
                        self.bytes.extend_from_slice(&piece[..room]);
                        self.cut = true;
                    } else {
                        self.bytes.truncate(complete);
                    }
                    self.more = true;
                    return Ok(true);
                }
                self.bytes.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                self.line += 1;
            }
        }
        if self.seen > FARTHEST {
            return Err(Trouble::new("The line is more than 1 GiB into the file: use run_command with sed or tail."));
        }
        Ok(false)
    }

    /// The text, how many lines it has, and where the next one begins.
    fn finish(mut self) -> Result<(String, u64, Option<u64>, bool), Trouble> {
        if self.cut {
            // Not in the middle of a character.
            let valid = std::str::from_utf8(&self.bytes).map_or_else(|error| error.valid_up_to(), str::len);
            if valid + 4 > self.bytes.len() {
                self.bytes.truncate(valid);
            }
        }
        let Ok(text) = String::from_utf8(self.bytes) else {
            return Err(Trouble::new("It is not text: look at it with run_command, for one with `file` or `xxd`."));
        };
        let shown = text.split_inclusive('\n').count() as u64;
        let next = (self.more).then_some(self.first + shown);
        Ok((text, shown, next, self.cut))
    }
}

impl Act for WriteFile {
    type Output = Written;
    const NAME: &'static str = "write_file";
    const TITLE: &'static str = "Write a file";
    const ABOUT: &'static str = "Writes a whole text file in the sandbox, in one step: readers see the old content or the \
        new. What was there is replaced. To change a part, use edit_file.";
    const NATURE: Nature = Nature::Writes;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let before = desk.files().stat(&self.path).await.ok();
        before.as_ref().map_or(Ok(()), no_link)?;
        let mode = before.as_ref().map_or(0o644, |entry| entry.mode & 0o777);
        let options = WriteOptions { mode, parents: true, ..WriteOptions::default() };
        let content = self.content.as_bytes();
        if let Err(error) = desk.files().write(&self.path, content, options).await {
            return Err(desk.file_trouble(error, &self.path).await);
        }
        let written = Written { bytes: content.len() as u64, created: before.is_none(), path: self.path };
        let verb = if written.created { "created" } else { "replaced" };
        let text = format!("{verb} {}, {} bytes", written.path, written.bytes);
        done(&written, text)
    }
}

impl Act for EditFile {
    type Output = Edited;
    const NAME: &'static str = "edit_file";
    const TITLE: &'static str = "Edit a file";
    const ABOUT: &'static str = "Replaces an exact piece of text in a file in the sandbox. The text must be there exactly \
        once, unless replace_all is set; otherwise nothing is changed.";
    const NATURE: Nature = Nature::Edits;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        if self.old_text.is_empty() {
            return Err(Trouble::new("`old_text` is empty. Nothing was changed; write_file writes whole files."));
        }
        let entry = match desk.files().stat(&self.path).await {
            Ok(entry) => entry,
            Err(error) => return Err(desk.file_trouble(error, &self.path).await),
        };
        no_link(&entry)?;
        if entry.size > LARGEST_EDIT {
            return Err(Trouble::new("The file is larger than 8 MiB: edit it with run_command, for one with sed."));
        }
        let bytes = match desk.files().read(&self.path, LARGEST_EDIT).await {
            Ok(bytes) => bytes,
            Err(error) => return Err(desk.file_trouble(error, &self.path).await),
        };
        let text = String::from_utf8(bytes).map_err(|_| Trouble::new("It is not UTF-8 text. Nothing was changed."))?;
        let (new, replacements, line) = replaced(&text, &self)?;
        let options = WriteOptions { mode: entry.mode & 0o777, ..WriteOptions::default() };
        if let Err(error) = desk.files().write(&self.path, new.as_bytes(), options).await {
            return Err(desk.file_trouble(error, &self.path).await);
        }
        let text = match replacements {
            1 => format!("replaced at line {line} of {}", self.path),
            many => format!("replaced {many} times in {}, first at line {line}", self.path),
        };
        done(&Edited { path: self.path, replacements, line }, text)
    }
}

/// Files are written beside the old one and then take its name: a link would be replaced, and what it leads to stay.
fn no_link(entry: &Entry) -> Result<(), Trouble> {
    let Some(target) = &entry.target else { return Ok(()) };
    let message = format!("It is a link to `{}`. Nothing was changed.", String::from_utf8_lossy(target));
    Err(Trouble::new(message).advise("Name the file that it leads to."))
}

/// The new text, how often something was replaced, and the line of the first time.
fn replaced(text: &str, edit: &EditFile) -> Result<(String, u64, u64), Trouble> {
    let count = text.matches(&edit.old_text).count() as u64;
    let Some(first) = text.find(&edit.old_text) else {
        let trouble = Trouble::new(format!("`old_text` is not in {}. Nothing was changed.", edit.path));
        return Err(trouble.advise("read_file shows the text as it is, white space included."));
    };
    if count > 1 && !edit.replace_all {
        let message = format!("`old_text` is in {} {count} times. Nothing was changed.", edit.path);
        return Err(Trouble::new(message).advise("Take more of the text around it, or set replace_all."));
    }
    let grows = (edit.new_text.len() as u64).saturating_sub(edit.old_text.len() as u64).saturating_mul(count);
    if text.len() as u64 + grows.min(LARGEST_EDIT + 1) > LARGEST_EDIT {
        return Err(Trouble::new(format!("{} would be larger than 8 MiB. Nothing was changed.", edit.path)));
    }
    let line = text[..first].matches('\n').count() as u64 + 1;
    Ok((text.replace(&edit.old_text, &edit.new_text), count, line))
}

impl Act for ListFiles {
    type Output = Listing;
    const NAME: &'static str = "list_files";
    const TITLE: &'static str = "List files";
    const ABOUT: &'static str = "Lists a directory in the sandbox, one level or several; a long list comes in pages.";
    const NATURE: Nature = Nature::Reads;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let (path, depth) = (self.path.unwrap_or_else(|| ".".to_owned()), self.depth.unwrap_or(1));
        if depth == 0 || depth > DEEPEST {
            return Err(Trouble::new(format!("`depth` is 1 to {DEEPEST}.")));
        }
        let Ok(_turn) = desk.live.walks.acquire().await else { return Err(Trouble::new("The server ends.")) };
        let Ok(answer) = tokio::time::timeout(MOST_TIME, desk.files().list(&path, depth)).await else {
            return Err(Trouble::new("It took more than 30 s.").advise("List less, or use run_command."));
        };
        let mut found = match answer {
            Ok(found) => found,
            Err(error @ (SessionError::TooLong { .. } | SessionError::Malformed(_))) => {
                return Err(Trouble::from(error).advise("There is too much in it: list less, or use run_command."));
            }
            Err(error) => return Err(desk.file_trouble(error, &path).await),
        };
        desk.leave_out_stand_ins(&path, &mut found).await;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        let (total, skip) = (found.len(), self.skip.unwrap_or(0));
        let entries: Vec<Listed> = found.into_iter().skip(skip).take(ENTRIES).map(listed).collect();
        let next = (skip + entries.len() < total).then_some(skip + entries.len());
        let mut text = String::new();
        for entry in &entries {
            let _ = match (entry.kind, &entry.target) {
                _ if entry.hidden => writeln!(text, "{}  [hidden by the sandbox's policy]", entry.path),
                (Kind::Directory, _) => writeln!(text, "{}/", entry.path),
                (_, Some(target)) => writeln!(text, "{} -> {target}", entry.path),
                _ => writeln!(text, "{}  {}", entry.path, entry.size),
            };
        }
        match next {
            Some(next) => text.push_str(&format!("[{total} in all; more: list_files path={path} skip={next}]")),
            None if total == 0 => text.push_str("[empty]"),
            None => {}
        }
        done(&Listing { path, entries, total, next }, text)
    }
}

fn listed(entry: ringfence::session::Entry) -> Listed {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let kind = match entry.kind {
        EntryKind::File => Kind::File,
        EntryKind::Directory => Kind::Directory,
        EntryKind::Symlink => Kind::Symlink,
        EntryKind::Other => Kind::Other,
    };
    // What stands in for something hidden has no permission at all.
    let hidden = entry.mode & 0o7777 == 0 && matches!(kind, Kind::File | Kind::Directory);
    Listed { path: text(&entry.path), kind, size: entry.size, target: entry.target.as_deref().map(text), hidden }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(first: u64, lines: u64, chunks: &[&str]) -> (String, u64, Option<u64>, bool) {
        let mut window = Window::new(first, lines);
        for chunk in chunks {
            if window.push(chunk.as_bytes()).unwrap() {
                break;
            }
        }
        window.finish().unwrap()
    }

    #[test]
    fn lines_are_found_however_they_come() {
        let text = "one\ntwo\nthree\nfour";
        let table = [
            (1, 10, "one\ntwo\nthree\nfour", 4, None),
            (2, 2, "two\nthree\n", 2, Some(4)),
            (4, 1, "four", 1, None),
            (3, 1, "three\n", 1, Some(4)),
            (5, 1, "", 0, None),
        ];
        for (first, lines, shown, count, next) in table {
            for size in [1, 3, 5, 100] {
                let chunks: Vec<&str> =
                    text.as_bytes().chunks(size).map(|chunk| std::str::from_utf8(chunk).unwrap()).collect();
                assert_eq!(
                    window(first, lines, &chunks),
                    (shown.to_owned(), count, next, false),
                    "{first} {lines} {size}"
                );
            }
        }
    }

    #[test]
    fn a_page_ends_with_a_whole_line() {
        let long = format!("{}\n", "x".repeat(1000));
        let text = long.repeat(100);
        let (shown, lines, next, cut) = window(1, LINES, &[&text]);
        assert!(shown.len() <= PAGE && shown.ends_with('\n') && !cut);
        assert_eq!(next, Some(lines + 1));
        let endless = "é".repeat(PAGE);
        let (shown, _, next, cut) = window(1, 5, &[&endless]);
        assert!(cut && shown.len() <= PAGE && next == Some(2));
    }

    #[test]
    fn an_edit_must_be_unambiguous() {
        let edit = |old: &str, all: bool| {
            let edit = EditFile { path: "f".into(), old_text: old.into(), new_text: "X".into(), replace_all: all };
            replaced("a\nb\na\n", &edit).map_err(|trouble| trouble.to_string())
        };
        assert_eq!(edit("b", false), Ok(("a\nX\na\n".to_owned(), 1, 2)));
        assert!(edit("a", false).unwrap_err().contains("2 times"));
        assert_eq!(edit("a", true), Ok(("X\nb\nX\n".to_owned(), 2, 1)));
        assert!(edit("c", true).unwrap_err().contains("not in f"));
        // What would fill the memory is refused before it is made.
        let (path, old_text) = (String::from("f"), String::from("a"));
        let edit = EditFile { path, old_text, new_text: "x".repeat(1 << 20), replace_all: true };
        assert!(replaced(&"a".repeat(1 << 20), &edit).unwrap_err().to_string().contains("larger than 8 MiB"));
    }
}
