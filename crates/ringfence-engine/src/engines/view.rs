//! What engines need to compare a finished view with its plan.

use std::path::{Path, PathBuf};

use ringfence_linux::sys::view::{FileId, Place, PlaceIs};
use ringfence_policy::Guarantee;
use ringfence_policy::plan::Expected;
use ringfence_policy::rules::Kind;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::EngineError;

/// The file that a path of a plan leads to. A path of a plan has no symlinks: one that is there now was put there since, and so
/// was another kind of file. `kind`: `None` for a symlink.
pub(super) fn identify(expected: &Expected<'_>, source: &Path, kind: Option<Kind>) -> Result<FileId, EngineError> {
    let failed = |errno| changed(expected.guarantee(), expected.target.to_path_buf(), errno);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(CWD, source, flags, Mode::empty(), no_links).map_err(failed)?;
    let data = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map_err(failed)?;
    let fits = match FileType::from_raw_mode(data.stx_mode.into()) {
        FileType::Directory => kind == Some(Kind::Dir),
        FileType::Symlink => kind.is_none(),
        _ => kind == Some(Kind::File),
    };
    if fits { Ok(FileId::of(&data)) } else { Err(failed(Errno::STALE)) }
}

/// The promise that is broken where something else is seen.
pub(super) fn guarantee_of(place: &Place) -> Guarantee {
    match place.is {
        PlaceIs::Closed { permissions: 0 | 0o111, .. } => Guarantee::FsSecretsHidden,
        PlaceIs::Closed { .. } | PlaceIs::Host { writable: false, .. } => Guarantee::FsProtectedPaths,
        PlaceIs::Host { writable: true, .. } => Guarantee::FsWritesConfined,
        PlaceIs::Space { .. } => Guarantee::FsTempPrivate,
    }
}

/// An error for a place that is not as it was planned.
pub(super) fn changed(guarantee: Guarantee, path: PathBuf, errno: Errno) -> EngineError {
    let reason = match errno {
        Errno::STALE => "something else is seen there".to_owned(),
        errno => errno.to_string(),
    };
    EngineError::View { guarantee, path, reason }
}
