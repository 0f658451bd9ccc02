//! A plan becomes what a container needs: mounts, private space, and a few files of our own. Pure but for looking up
//! whether a mount point is a symlink.
//!
//! What cannot be expressed is refused, never left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_policy::facts::MountPoint;
use ringfence_policy::plan::{MARKER_DIR, Mount, Plan, Volume};
use ringfence_policy::rules::Kind;
use ringfence_policy::{Cure, Guarantee};

use super::NAME;
use super::daemon::Abilities;
use crate::engines::{EngineError, link_cures, symlink_in_bind};

/// What a container is made of.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// What is mounted, by target.
    pub mounts: BTreeMap<PathBuf, Source>,
    /// Files of our own at [`MARKER_DIR`]: relative path, contents, mode.
    pub texts: Vec<(PathBuf, String, u32)>,
    /// Empty files at [`MARKER_DIR`] that something is mounted on.
    pub points: Vec<PathBuf>,
    /// Directories that stand in for hidden ones of which a part is shown: where each stands, and what is mounted in it.
    pub skeletons: Vec<(PathBuf, Vec<(PathBuf, Kind)>)>,
}

/// What is mounted at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A path of the host, symlinks resolved.
    Host {
        path: PathBuf,
        writable: bool,
    },
    /// A file of our own that can be neither read nor changed.
    HiddenFile,
    HiddenDir,
    /// The directory of our own with this number in [`Compiled::skeletons`].
    Skeleton(usize),
    /// A file of our own that is empty and cannot be changed.
    EmptyFile,
    EmptyDir,
    Space {
        mode: u32,
        size: u64,
        inodes: u64,
        exec: bool,
    },
    Volume {
        volume: Volume,
        writable: bool,
    },
}

/// Compiles the mounts of a plan.
pub fn compile(plan: &Plan, host: &[MountPoint], abilities: &Abilities) -> Result<Compiled, EngineError> {
    let mut out = Compiled::default();
    for (index, mount) in plan.mounts.iter().enumerate() {
        if let Some(target) = symlink_in_bind(&plan.mounts[..index], mount) {
            let reason = format!("`{}` is a symlink, and Docker would mount on what it leads to", target.display());
            return Err(unmet(Guarantee::FsProtectedPaths, reason, link_cures()));
        }
        out.mount(plan, mount)?;
    }
    out.check_read_only(host, abilities)?;
    out.furnish();
    Ok(out)
}

impl Compiled {
    fn mount(&mut self, plan: &Plan, mount: &Mount) -> Result<(), EngineError> {
        // The last one at a place is what is seen there.
        let mut put = |target: &Path, source: Source| {
            self.mounts.insert(target.to_path_buf(), source);
        };
        match mount {
            Mount::Bind { source, target, writable, .. } => {
                put(target, Source::Host { path: source.clone(), writable: *writable });
                if let Ok(below) = target.strip_prefix(MARKER_DIR) {
                    self.points.push(below.to_path_buf());
                }
            }
            // The directory of our own stands there.
            Mount::Tmpfs { target, .. } if target == Path::new(MARKER_DIR) => {}
            Mount::Tmpfs { target, mode, size, inodes } => {
                // Only what is temporary is closed to programs: a home is not.
                let exec = plan.tmp_exec || target.starts_with("/home");
                put(target, Source::Space { mode: *mode, size: *size, inodes: *inodes, exec });
            }
            Mount::Dev { target, shm_size, shm_inodes } => {
                let space = Source::Space { mode: 0o1777, size: *shm_size, inodes: *shm_inodes, exec: plan.tmp_exec };
                put(&target.join("shm"), space);
            }
            Mount::Volume { volume, target, writable } => {
                put(target, Source::Volume { volume: volume.clone(), writable: *writable });
            }
            Mount::Hide { target, kind: Kind::File, .. } => put(target, Source::HiddenFile),
            Mount::Hide { target, kind: Kind::Dir, passable: false, .. } => put(target, Source::HiddenDir),
            Mount::Hide { target, kind: Kind::Dir, passable: true, .. } => {
                put(target, Source::Skeleton(self.skeletons.len()));
                self.skeletons.push((target.clone(), Vec::new()));
            }
            Mount::Empty { target, kind: Kind::File } => put(target, Source::EmptyFile),
            Mount::Empty { target, kind: Kind::Dir } => put(target, Source::EmptyDir),
            Mount::Text { target, text, mode } => match target.strip_prefix(MARKER_DIR) {
                Ok(below) => self.texts.push((below.to_path_buf(), text.clone(), *mode)),
                Err(_) => return Err(cannot("files of its own in an image")),
            },
            Mount::Symlink { .. } => return Err(cannot("links of its own in an image")),
            Mount::Link { .. } => return Err(cannot("way to mount a link")),
            // Docker has a procfs and makes the names that it mounts on; what is read-only is mounted so.
            Mount::Proc { .. } | Mount::Dir { .. } | Mount::File { .. } | Mount::Seal { .. } => {}
        }
        Ok(())
    }

    /// Older daemons make the top of a bind read-only, and not what is mounted below it.
    fn check_read_only(&self, host: &[MountPoint], abilities: &Abilities) -> Result<(), EngineError> {
        if abilities.recursive_read_only() {
            return Ok(());
        }
        for source in self.mounts.values() {
            let Source::Host { path, writable: false } = source else { continue };
            if let Some(below) = host.iter().find(|m| m.at != *path && m.at.starts_with(path) && !m.read_only) {
                let reason = format!(
                    "`{}` is mounted in `{}`, and this daemon would leave it writable",
                    below.at.display(),
                    path.display()
                );
                return Err(unmet(
                    Guarantee::FsRootReadOnly,
                    reason,
                    [Cure::host("use Docker 25 or later"), Cure::another("engine")],
                ));
            }
        }
        Ok(())
    }

    /// What is mounted in a stand-in needs a name in it.
    fn furnish(&mut self) {
        let mounts = &self.mounts;
        for (at, points) in &mut self.skeletons {
            for (target, source) in mounts.range(at.clone()..).take_while(|(target, _)| target.starts_with(&*at)) {
                let nearest = target.ancestors().skip(1).find(|above| mounts.contains_key(*above));
                if nearest == Some(at.as_path())
                    && let Ok(below) = target.strip_prefix(&*at)
                {
                    points.push((below.to_path_buf(), source.kind()));
                }
            }
        }
    }
}

impl Source {
    fn kind(&self) -> Kind {
        match self {
            Source::HiddenFile | Source::EmptyFile => Kind::File,
            Source::Host { path, .. } if !path.is_dir() => Kind::File,
            _ => Kind::Dir,
        }
    }
}

fn cannot(what: &'static str) -> EngineError {
    EngineError::unable(NAME, what)
}

pub(super) fn unmet(guarantee: Guarantee, reason: String, cures: impl Into<Vec<Cure>>) -> EngineError {
    EngineError::Unmet { engine: NAME, guarantee, reason, cures: cures.into() }
}
