//! Files of our own that containers see: the guest, the socket to it, and what stands in for hidden and protected paths.
//!
//! They lie in the state directory, which is the caller's alone: a container sees no more of it than what is mounted.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use ringfence_policy::rules::Kind;

use super::compile::Compiled;
use super::error::DockerError;
use super::request::Places;

/// The directory of our own in the state directory, made if it is missing.
#[derive(Debug, Clone)]
pub struct Store(PathBuf);

/// The files of one box. Dropping it removes them.
#[derive(Debug)]
pub struct BoxFiles {
    dir: PathBuf,
    pub places: Places,
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> DockerError + 'a {
    move |source| DockerError::Files { what, path: path.to_path_buf(), source }
}

/// Makes a directory unless it is there.
fn directory(path: &Path, mode: u32) -> Result<(), DockerError> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed("make", path)(error)),
        // The mask may have taken bits away.
        _ => fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("make", path)),
    }
}

/// Makes a file unless one of this name is there: names of shared files say what is in them.
fn file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DockerError> {
    if fs::symlink_metadata(path).is_ok_and(|data| data.is_file() && data.len() == bytes.len() as u64) {
        return Ok(());
    }
    // Complete before it has its name: another process may be doing the same.
    let partial = path.with_extension(format!("{}.{:x}", std::process::id(), crate::engines::nonce()));
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        fs::rename(&partial, path)
    };
    write().map_err(failed("write", path))
}

impl Store {
    /// `state`: Ringfence's state directory.
    pub fn open(state: &Path) -> Result<Store, DockerError> {
        let dir = state.join("docker");
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&dir).map_err(failed("make", &dir))?;
        let dir = dir.canonicalize().map_err(failed("find", &dir))?;
        directory(&dir.join("boxes"), 0o700)?;
        Ok(Store(dir))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether exactly this was noted.
    pub fn noted(&self, name: &str, text: &str) -> bool {
        fs::read_to_string(self.0.join(name)).is_ok_and(|noted| noted == text)
    }

    /// Notes what needs not be done again.
    pub fn note(&self, name: &str, text: &str) -> Result<(), DockerError> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(failed("write", &path))
    }

    /// Keeps a filter in a file that is called by its contents.
    pub fn keep_filter(&self, text: &str) -> Result<PathBuf, DockerError> {
        let hash = ringfence_policy::layers::content_hash(text.as_bytes());
        let path = self.0.join(format!("filter-{}", hash.trim_start_matches("sha256:").get(..16).unwrap_or_default()));
        file(&path, text.as_bytes(), 0o600)?;
        Ok(path)
    }

    /// Whether there is one.
    pub fn is_at(state: &Path) -> bool {
        state.join("docker").is_dir()
    }

    /// Boxes that have files here, each with its session.
    pub fn boxes(&self) -> Result<Vec<(String, String)>, DockerError> {
        let dir = self.0.join("boxes");
        let entries = fs::read_dir(&dir).map_err(failed("list", &dir))?;
        let pair = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let session = fs::read_to_string(entry.path().join("session")).unwrap_or_default();
            Some((entry.file_name().into_string().ok()?, session))
        };
        Ok(entries.filter_map(pair).collect())
    }

    /// Notes that a daemon was used: what is left at it is looked for.
    pub fn note_daemon(&self, socket: &Path) -> Result<(), DockerError> {
        let hash = ringfence_policy::layers::content_hash(socket.as_os_str().as_bytes());
        let name = format!("daemon-{}", hash.trim_start_matches("sha256:").get(..16).unwrap_or_default());
        let text = socket.display().to_string();
        if self.noted(&name, &text) { Ok(()) } else { self.note(&name, &text) }
    }

    /// Sockets of the daemons that were used.
    pub fn daemons(&self) -> Result<Vec<PathBuf>, DockerError> {
        let entries = fs::read_dir(&self.0).map_err(failed("list", &self.0))?;
        let noted = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let named = entry.file_name().as_bytes().starts_with(b"daemon-");
            named.then(|| fs::read_to_string(entry.path()).ok().map(PathBuf::from)).flatten()
        };
        Ok(entries.filter_map(noted).collect())
    }

    /// Removes what a box has left. That it is gone already is what is wanted.
    pub fn clear(&self, id: &str) -> Result<(), DockerError> {
        let dir = self.0.join("boxes").join(id);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &dir)(error)),
            _ => Ok(()),
        }
    }

    /// Makes the files of a box, and the socket at which its guest will call.
    pub fn furnish(
        &self,
        id: &str,
        session: &str,
        compiled: &Compiled,
        guest: &[u8],
    ) -> Result<(BoxFiles, UnixListener), DockerError> {
        let at = |name: &str| self.0.join(name);
        file(&at("hidden-file"), b"", 0)?;
        file(&at("empty-file"), b"", 0o444)?;
        directory(&at("hidden-dir"), 0)?;
        directory(&at("empty-dir"), 0o555)?;

        let dir = at("boxes").join(id);
        fs::DirBuilder::new().mode(0o700).create(&dir).map_err(failed("make", &dir))?;
        let marker = dir.join("ringfence");
        let mut places = Places {
            marker: marker.clone(),
            hidden_file: at("hidden-file"),
            hidden_dir: at("hidden-dir"),
            empty_file: at("empty-file"),
            empty_dir: at("empty-dir"),
            skeletons: Vec::new(),
        };
        // From here on, what is made goes when this fails.
        let mut files = BoxFiles { dir: dir.clone(), places: places.clone() };
        file(&dir.join("session"), session.as_bytes(), 0o600)?;
        directory(&marker, 0o755)?;
        // A copy for each. This directory is hidden from other sandboxes, and with a second name the file could not be.
        file(&marker.join("guest"), guest, 0o555)?;
        for (path, text, mode) in &compiled.texts {
            parents(&marker, path, 0o755)?;
            file(&marker.join(path), text.as_bytes(), *mode)?;
        }
        for path in &compiled.points {
            parents(&marker, path, 0o755)?;
            file(&marker.join(path), b"", 0o444)?;
        }
        for (index, (_, points)) in compiled.skeletons.iter().enumerate() {
            let skeleton = dir.join(format!("hide-{index}"));
            directory(&skeleton, 0o755)?;
            for (path, kind) in points {
                parents(&skeleton, path, 0o755)?;
                match kind {
                    Kind::Dir => directory(&skeleton.join(path), 0o755)?,
                    Kind::File => file(&skeleton.join(path), b"", 0)?,
                }
            }
            // It can be walked through, and not listed.
            for path in points.iter().flat_map(|(path, _)| path.ancestors().skip(1)).chain([Path::new("")]) {
                directory(&skeleton.join(path), 0o111)?;
            }
            places.skeletons.push(skeleton);
        }
        let listener = listen(&marker)?;
        files.places = places;
        Ok((files, listener))
    }
}

/// Makes the directories between `base` and a path below it.
fn parents(base: &Path, path: &Path, mode: u32) -> Result<(), DockerError> {
    let mut between: Vec<&Path> = path.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
    between.reverse();
    between.into_iter().try_for_each(|path| directory(&base.join(path), mode))
}

/// A socket in a directory, whatever the length of its path.
fn listen(dir: &Path) -> Result<UnixListener, DockerError> {
    let opened = fs::File::open(dir).map_err(failed("open", dir))?;
    let path = dir.join("channel");
    let bound = UnixListener::bind(format!("/proc/self/fd/{}/channel", opened.as_raw_fd()));
    let listener = bound.map_err(failed("listen at", &path))?;
    // The guest is another user, and the directory above is closed to all but us.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(failed("open", &path))?;
    Ok(listener)
}

impl BoxFiles {
    /// The guest has called: nobody else may.
    pub fn hang_up(&self) -> Result<(), DockerError> {
        let path = self.places.marker.join("channel");
        fs::remove_file(&path).map_err(failed("remove", &path))
    }
}

impl Drop for BoxFiles {
    fn drop(&mut self) {
        // What stays is cleared with the next look, by its id.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
