//! Which projects' files the user trusts: one line for each, the hash of its content and its path.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_policy::layers::content_hash;

use super::files::{Directories, FileError};

/// Which projects' files this user trusts.
#[derive(Debug, Default)]
pub struct TrustStore {
    entries: Vec<Entry>,
    file: PathBuf,
}

/// A file that the user trusts as it was then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Of the content that is trusted.
    pub hash: String,
    /// The file.
    pub path: PathBuf,
}

impl TrustStore {
    /// Reads what the user trusts.
    pub fn read(directories: &Directories) -> Result<TrustStore, FileError> {
        let file = directories.trust_file();
        let bytes = match fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Vec::new(),
            Err(source) => return Err(FileError::Read { path: file, source }),
        };
        let entries = bytes.split(|b| *b == b'\n').filter_map(Entry::parse).collect();
        Ok(TrustStore { entries, file })
    }

    /// Whether the file is trusted with exactly this content.
    pub fn trusts(&self, path: &Path, text: &str) -> bool {
        self.entries.iter().any(|entry| entry.path == path && entry.hash == content_hash(text.as_bytes()))
    }

    /// All that is trusted.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Trusts a file with this content and no other.
    pub fn add(&mut self, path: &Path, text: &str) -> Result<(), FileError> {
        if path.as_os_str().as_bytes().contains(&b'\n') {
            return Err(FileError::LineBreak(path.to_path_buf()));
        }
        self.entries.retain(|entry| entry.path != path);
        self.entries.push(Entry { hash: content_hash(text.as_bytes()), path: path.to_path_buf() });
        self.write()
    }

    /// Whether there was something to remove.
    pub fn remove(&mut self, path: &Path) -> Result<bool, FileError> {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.path != path);
        if self.entries.len() == before {
            return Ok(false);
        }
        self.write().map(|()| true)
    }

    /// Replaces the file in one step.
    fn write(&self) -> Result<(), FileError> {
        let fail = |source: io::Error| FileError::Write { path: self.file.clone(), source };
        if let Some(dir) = self.file.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail)?;
        }
        let mut text = Vec::new();
        for entry in &self.entries {
            text.extend_from_slice(entry.hash.as_bytes());
            text.push(b' ');
            text.extend_from_slice(entry.path.as_os_str().as_bytes());
            text.push(b'\n');
        }
        let new = self.file.with_extension(format!("new-{}", std::process::id()));
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&new, &self.file));
        if written.is_err() {
            // What is half written must not stay; that it is not there is as good.
            let _ = fs::remove_file(&new);
        }
        written.map_err(fail)
    }
}

impl Entry {
    fn parse(line: &[u8]) -> Option<Entry> {
        let at = line.iter().position(|b| *b == b' ')?;
        let hash = std::str::from_utf8(&line[..at]).ok()?.to_owned();
        Some(Entry { hash, path: PathBuf::from(OsStr::from_bytes(&line[at + 1..])) })
    }
}
