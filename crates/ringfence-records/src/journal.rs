//! The journal: one line of JSON for each beginning and each end of an execution, appended by whoever runs it.
//!
//! An append writes once and looks at the file once more; it is kept open for the next. It takes no lock that others
//! have, waits for nobody, and never touches the database. Whoever folds the journal into the database first *seals*
//! it: gives the file another name, then takes away its write permission as a sign. Who finds the sign after writing
//! was too late to be sure of being read, and writes again to the new file; a line that is read twice counts once. So
//! nothing is lost, whenever either of them dies.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::Mode;
use rustix::process::Resource;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Caller, Owner, SkillRun, Status};
use ringfence_policy::Reason;

/// The file that is written to; sealed ones have a dot and an id after it.
const NAME: &str = "journal";
/// A larger one is sealed, so that what is too old can be dropped as a whole.
const SEGMENT: u64 = 8 << 20;
/// Longer than any line that is written.
const LONGEST: usize = 1 << 20;

/// A line that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum JournalError {
    /// A directory or file could not be made.
    #[error("cannot make `{}`: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    /// The journal could not be opened.
    #[error("cannot open `{}`: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// The journal is not a regular file.
    #[error("`{}` is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// The journal could not be written.
    #[error("cannot write to `{}`: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The journal could not be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The journal could not be sealed.
    #[error("cannot seal `{}`: {source}", path.display())]
    Seal { path: PathBuf, source: io::Error },
    /// A sealed journal could not be removed.
    #[error("cannot remove `{}`: {source}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    /// A line could not be written as JSON.
    #[error("cannot write a line: {0}")]
    Encode(#[from] serde_json::Error),
}

/// One line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line {
    /// The id of the execution.
    pub id: String,
    /// What is known at its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Begun>,
    /// What is known at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Ended>,
}

/// What is known when an execution begins; no secret is left in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Begun {
    /// Milliseconds since 1970.
    pub time: i64,
    /// The profile of its policy.
    pub profile: Option<String>,
    /// The engine that ran it.
    pub engine: Option<String>,
    /// The session or the container.
    pub sandbox: Option<String>,
    /// The command, redacted.
    pub command: Vec<String>,
    /// The working directory.
    pub workdir: Option<String>,
    /// Who asked for it.
    pub caller: Caller,
    /// The process that will write the end.
    pub owner: Owner,
    /// The report, as JSON.
    pub report: Option<Box<RawValue>>,
    /// The skill that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill: Option<SkillRun>,
}

/// What is known when it has ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ended {
    /// Milliseconds since 1970.
    pub time: i64,
    /// How it ended.
    pub status: Status,
    /// The exit code, where it exited.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why Ringfence ended it, if it did.
    pub reason: Option<Reason>,
    /// What Ringfence itself had to say.
    pub error: Option<String>,
    /// Microseconds from start to end.
    pub duration_us: Option<u64>,
    /// Microseconds of CPU time.
    pub cpu_us: Option<u64>,
    /// Bytes of memory at most.
    pub peak_memory: Option<u64>,
    /// What it wrote to stdout.
    pub stdout: Stream,
    /// What it wrote to stderr.
    pub stderr: Stream,
}

/// What was written to one stream: how much, where that was seen, and what is kept of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Bytes that were written.
    pub bytes: Option<u64>,
    /// What came first.
    pub head: Option<String>,
    /// What came last, where something lies between it and the head.
    pub tail: Option<String>,
}

/// A file that is open, and which one it is.
type Kept = (File, [u64; 2]);

fn which(data: &Metadata) -> [u64; 2] {
    [data.dev(), data.ino()]
}

/// The journal of one directory.
#[derive(Debug, Clone)]
pub struct Journal {
    dir: PathBuf,
    /// The file that was written to last.
    file: Arc<Mutex<Option<Kept>>>,
}

impl Journal {
    /// The journal in this directory.
    pub fn new(dir: &Path) -> Journal {
        Journal { dir: dir.to_path_buf(), file: Arc::default() }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Appends one line. `max_size` bounds what nobody has folded yet: the oldest goes.
    pub fn append(&self, line: &Line, max_size: Option<u64>) -> Result<(), JournalError> {
        // A line that was cut off by a full disk must not swallow this one: each begins anew.
        let mut bytes = b"\n".to_vec();
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        let path = self.dir.join(NAME);
        let mut kept = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Twice in a row only when somebody folds at this very moment, again and again.
        for _ in 0..16 {
            let failed = |source| JournalError::Write { path: path.clone(), source };
            let there = path.symlink_metadata().ok();
            let (mut file, length) = match (kept.take(), there) {
                (Some((file, which)), Some(data)) if which == self::which(&data) => (file, data.len()),
                _ => self.open(&path)?,
            };
            within_file_limit(length + bytes.len() as u64).map_err(failed)?;
            // One call, so that lines of others do not come in between.
            match file.write(&bytes).map_err(failed)? {
                n if n == bytes.len() => {}
                _ => return Err(failed(io::ErrorKind::StorageFull.into())),
            }
            let after = file.metadata().map_err(failed)?;
            if after.mode() & 0o200 == 0 {
                continue;
            }
            if after.len() > SEGMENT {
                self.turn(max_size);
            }
            *kept = Some((file, which(&after)));
            return Ok(());
        }
        Err(JournalError::Write { path, source: io::ErrorKind::ResourceBusy.into() })
    }

    /// The file, and its length.
    fn open(&self, path: &Path) -> Result<(File, u64), JournalError> {
        let mut options = OpenOptions::new();
        // Neither a link, nor a pipe or a lease in its place holds us up.
        options
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make()?;
                options.open(path)
            }
            result => result,
        };
        let file = file.map_err(|source| JournalError::Open { path: path.to_path_buf(), source })?;
        match file.metadata() {
            Ok(data) if data.is_file() => Ok((file, data.len())),
            Ok(_) => Err(JournalError::NotAFile(path.to_path_buf())),
            Err(source) => Err(JournalError::Read { path: path.to_path_buf(), source }),
        }
    }

    /// Whether a line could be written, as far as can be said without writing one.
    pub fn check(&self) -> Result<(), JournalError> {
        self.open(&self.dir.join(NAME)).map(drop)
    }

    /// Makes the directory, for its owner alone.
    pub fn make(&self) -> Result<(), JournalError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|source| JournalError::Make { path: self.dir.clone(), source })
    }

    /// Begins a new file, and drops the oldest where there is more than is to be kept. That it failed is tried again with
    /// the next line.
    fn turn(&self, max_size: Option<u64>) {
        let _ = self.seal();
        let (Some(max), Ok(segments)) = (max_size, self.segments()) else { return };
        let sizes: Vec<u64> = segments.iter().map(|path| path.metadata().map_or(0, |data| data.len())).collect();
        let mut total: u64 = sizes.iter().sum();
        for (path, size) in segments.iter().zip(sizes) {
            if total <= max {
                return;
            }
            // Somebody may be folding it: that is as good.
            let _ = std::fs::remove_file(path);
            total -= size;
        }
    }

    /// Gives the present file its last name. Nothing to seal is fine.
    pub fn seal(&self) -> Result<(), JournalError> {
        let path = self.dir.join(NAME);
        match path.symlink_metadata() {
            Ok(data) if data.is_file() => {}
            Ok(_) => return Err(JournalError::NotAFile(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(JournalError::Seal { path, source }),
        }
        let sealed = self.dir.join(format!("{NAME}.{}", super::new_id()));
        match std::fs::rename(&path, &sealed) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => result.map_err(|source| JournalError::Seal { path, source })?,
        }
        close(&sealed).map(drop)
    }

    /// All files, the oldest first.
    pub fn files(&self) -> Result<Vec<PathBuf>, JournalError> {
        let mut files = self.segments()?;
        files.push(self.dir.join(NAME));
        Ok(files)
    }

    /// Sealed files, the oldest first.
    pub fn segments(&self) -> Result<Vec<PathBuf>, JournalError> {
        let failed = |source| JournalError::Read { path: self.dir.clone(), source };
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let is_segment = entry.file_name().to_str().is_some_and(|name| {
                name.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('.')).is_some_and(|id| !id.is_empty())
            });
            if is_segment {
                found.push(entry.path());
            }
        }
        found.sort();
        Ok(found)
    }
}

/// Takes the write permission away: from now on writers know that they came too late.
fn close(path: &Path) -> Result<File, JournalError> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| JournalError::Open { path: path.to_path_buf(), source })?;
    let failed = |source| JournalError::Seal { path: path.to_path_buf(), source };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(JournalError::NotAFile(path.to_path_buf()));
    }
    rustix::fs::fchmod(&file, Mode::RUSR).map_err(|errno| failed(errno.into()))?;
    Ok(file)
}

/// Reads a sealed file. Calls `each` for every line that can be understood; how many cannot.
pub fn read<E>(path: &Path, each: impl FnMut(Line) -> Result<(), E>) -> Result<u64, E>
where
    E: From<JournalError>,
{
    lines(path, close(path)?, each)
}

/// Reads a file of a journal as it is, and leaves it so. One that is not there has no lines.
pub fn peek<E>(path: &Path, each: impl FnMut(Line) -> Result<(), E>) -> Result<u64, E>
where
    E: From<JournalError>,
{
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        file => file.map_err(|source| JournalError::Open { path: path.to_path_buf(), source })?,
    };
    lines(path, file, each)
}

fn lines<E>(path: &Path, file: File, mut each: impl FnMut(Line) -> Result<(), E>) -> Result<u64, E>
where
    E: From<JournalError>,
{
    let mut broken = 0;
    let mut lines = io::BufReader::with_capacity(1 << 16, file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = bounded_line(&mut lines, &mut line);
        match read.map_err(|source| JournalError::Read { path: path.to_path_buf(), source })? {
            Next::End => return Ok(broken),
            Next::TooLong => broken += 1,
            Next::Line if line.is_empty() => {}
            Next::Line => match serde_json::from_slice(&line) {
                Ok(line) => each(line)?,
                Err(_) => broken += 1,
            },
        }
    }
}

enum Next {
    Line,
    TooLong,
    End,
}

fn bounded_line(from: &mut impl io::BufRead, line: &mut Vec<u8>) -> io::Result<Next> {
    let read = io::BufRead::read_until(&mut from.take(LONGEST as u64 + 1), b'\n', line)?;
    if read == 0 {
        return Ok(Next::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Next::Line);
    }
    if read <= LONGEST {
        // Cut off at the end of the file.
        return Ok(Next::Line);
    }
    from.skip_until(b'\n')?;
    Ok(Next::TooLong)
}

/// To write beyond the limit on the size of a file would not fail: it would kill us.
fn within_file_limit(size: u64) -> io::Result<()> {
    match rustix::process::getrlimit(Resource::Fsize).current {
        Some(limit) if size > limit => Err(io::ErrorKind::FileTooLarge.into()),
        _ => Ok(()),
    }
}
