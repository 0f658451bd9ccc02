//! Looks at the finished view of a sandbox from inside, before any command runs in it: each place must be the mount that was
//! planned. For programs that another program builds a sandbox around: the [starter](super::starter), and the guest in a
//! container.
//!
//! A path is looked up once, without following a symlink at its end, and tells the id of the mount that it leads to. The
//! kernel's list of mounts (`mountinfo`) tells where the mount with that id stands. Only where that is the path itself, no
//! symlink was on the way, the mount is the topmost one there, and what is mounted below is reached through it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

/// What must be seen at a path inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Absolute, without symlinks.
    pub path: CString,
    pub is: PlaceIs,
}

/// What is seen at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceIs {
    /// The file of the host with this identity. Without one, any.
    Host { file: Option<FileId>, writable: bool },
    /// An empty file or directory without these permissions. `or_missing`: or nothing is there.
    Closed { directory: bool, permissions: u16, or_missing: bool },
    /// Private space in memory.
    Space { writable: bool },
}

/// Which file of this machine it is, under any name and in any namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

impl FileId {
    pub fn of(data: &Statx) -> FileId {
        FileId { device: u64::from(data.stx_dev_major) << 32 | u64::from(data.stx_dev_minor), inode: data.stx_ino }
    }
}

/// A place that is not as it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deviation {
    /// Its number in the list.
    pub place: usize,
    /// `STALE`: something else is seen there.
    pub errno: Errno,
}

/// Whether this kernel tells which mount a path leads to (Linux 5.8).
pub fn can_be_verified() -> bool {
    let data = statx(CWD, c"/", AtFlags::empty(), StatxFlags::MNT_ID);
    data.is_ok_and(|data| {
        StatxFlags::from_bits_retain(data.stx_mask).contains(StatxFlags::MNT_ID)
            && data.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
    })
}

/// Looks at each place.
pub fn verify(places: &[Place]) -> Result<(), Deviation> {
    if places.is_empty() {
        return Ok(());
    }
    let at = |place| move |errno| Deviation { place, errno };
    let text = std::fs::read("/proc/self/mountinfo");
    let text = text.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)).map_err(at(0))?;
    let mounts = mounts(&text);
    places.iter().enumerate().try_for_each(|(index, place)| place.verify(&mounts).map_err(at(index)))
}

/// One line of the kernel's list.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    point: Vec<u8>,
    read_only: bool,
    in_memory: bool,
}

/// The mounts of this namespace by their ids.
fn mounts(text: &[u8]) -> BTreeMap<u64, Mounted> {
    let line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let point = unescaped(fields.nth(3)?);
        let read_only = fields.next()?.split(|byte| *byte == b',').any(|option| option == b"ro");
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some((id, Mounted { point, read_only, in_memory: kind == b"tmpfs" }))
    };
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits {
            Some(digits) => {
                out.push(digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

impl Place {
    fn verify(&self, mounts: &BTreeMap<u64, Mounted>) -> Result<(), Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let data = match statx(CWD, &self.path, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID) {
            Ok(data) => data,
            Err(Errno::NOENT) if matches!(self.is, PlaceIs::Closed { or_missing: true, .. }) => return Ok(()),
            // A directory above is closed to this user. The list of mounts has no such bounds.
            Err(Errno::ACCESS) => return self.is_listed(mounts),
            Err(errno) => return Err(errno),
        };
        let mounted = mounts.get(&data.stx_mnt_id).ok_or(Errno::STALE)?;
        let is_root = data.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        let fits = is_root && mounted.point == self.path.as_bytes() && self.is.fits(&data, mounted);
        if fits { Ok(()) } else { Err(Errno::STALE) }
    }

    fn is_listed(&self, mounts: &BTreeMap<u64, Mounted>) -> Result<(), Errno> {
        let mut here = mounts.values().filter(|mounted| mounted.point == self.path.as_bytes());
        let fits = here.any(|mounted| mounted.read_only || self.is.is_writable());
        if fits { Ok(()) } else { Err(Errno::ACCESS) }
    }
}

impl PlaceIs {
    fn is_writable(self) -> bool {
        matches!(self, PlaceIs::Host { writable: true, .. } | PlaceIs::Space { writable: true })
    }

    fn fits(self, data: &Statx, mounted: &Mounted) -> bool {
        let locked = mounted.read_only || self.is_writable();
        locked
            && match self {
                PlaceIs::Host { file, .. } => file.is_none_or(|file| file == FileId::of(data)),
                PlaceIs::Closed { directory, permissions, .. } => {
                    let is_directory = FileType::from_raw_mode(data.stx_mode.into()) == FileType::Directory;
                    is_directory == directory
                        && data.stx_mode & 0o777 == permissions
                        && (directory || data.stx_size == 0)
                        && (!directory || mounted.in_memory)
                }
                PlaceIs::Space { .. } => mounted.in_memory,
            }
    }
}

/// What one place is written as: its kind, flags and numbers, and the length of its path.
const HEAD: usize = 2 + 2 + 8 + 8 + 4;

/// Places as [`read`] takes them.
pub fn written(places: &[Place]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(places.len() * (HEAD + 64));
    for Place { path, is } in places {
        let (kind, flags, permissions, file) = match *is {
            PlaceIs::Host { file, writable } => (0, u8::from(writable) | u8::from(file.is_some()) << 1, 0, file),
            PlaceIs::Closed { directory, permissions, or_missing } => {
                (1, u8::from(directory) | u8::from(or_missing) << 1, permissions, None)
            }
            PlaceIs::Space { writable } => (2, u8::from(writable), 0, None),
        };
        let file = file.unwrap_or(FileId { device: 0, inode: 0 });
        bytes.extend_from_slice(&[kind, flags]);
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&file.device.to_le_bytes());
        bytes.extend_from_slice(&file.inode.to_le_bytes());
        bytes.extend_from_slice(&(path.as_bytes().len() as u32).to_le_bytes());
        bytes.extend_from_slice(path.as_bytes());
    }
    bytes
}

/// Reads what was [`written`]; `None` where it is anything else.
pub fn read(mut bytes: &[u8]) -> Option<Vec<Place>> {
    let mut places = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let number = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let length = u32::from_le_bytes(head[20..24].try_into().ok()?);
        let (path, rest) = rest.split_at_checked(length as usize)?;
        let (first, second) = (head[1] & 1 != 0, head[1] & 2 != 0);
        let is = match head[0] {
            0 => {
                let file = FileId { device: number(4)?, inode: number(12)? };
                PlaceIs::Host { file: second.then_some(file), writable: first }
            }
            1 => PlaceIs::Closed {
                directory: first,
                permissions: u16::from_le_bytes(head[2..4].try_into().ok()?),
                or_missing: second,
            },
            2 => PlaceIs::Space { writable: first },
            _ => return None,
        };
        places.push(Place { path: CString::new(path).ok()?, is });
        bytes = rest;
    }
    Some(places)
}

impl Place {
    pub fn path(&self) -> &Path {
        Path::new(std::ffi::OsStr::from_bytes(self.path.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_of_mounts() {
        let text = b"21 1 0:19 / / ro,relatime shared:1 - ext4 /dev/x rw\n\
                     30 21 0:20 /a\\040b /m\\040n\\134 rw,nosuid master:1 - tmpfs tmpfs rw,size=1k\nbroken\n";
        let mounts = mounts(text);
        let root = Mounted { point: b"/".into(), read_only: true, in_memory: false };
        let space = Mounted { point: b"/m n\\".into(), read_only: false, in_memory: true };
        assert_eq!(mounts, BTreeMap::from([(21, root), (30, space)]));
    }

    #[test]
    fn places_are_read_as_they_were_written() {
        let file = Some(FileId { device: 7 << 32 | 1, inode: u64::MAX });
        let all = [
            PlaceIs::Host { file, writable: true },
            PlaceIs::Host { file: None, writable: false },
            PlaceIs::Closed { directory: true, permissions: 0o111, or_missing: false },
            PlaceIs::Closed { directory: false, permissions: 0, or_missing: true },
            PlaceIs::Space { writable: true },
        ];
        let places: Vec<Place> = all.into_iter().map(|is| Place { path: c"/a/b".into(), is }).collect();
        let bytes = written(&places);
        assert_eq!(read(&bytes).unwrap(), places);
        assert!((1..bytes.len()).all(|cut| read(&bytes[..cut]).is_none_or(|some| some.len() < places.len())));
    }

    /// Of this process's own namespace: `/proc` is a mount, `/proc/self` a link, and `/proc/sys` a part of a mount.
    #[test]
    fn a_mount_is_told_from_what_is_none() {
        let host = |path: &std::ffi::CStr, file| {
            verify(&[Place { path: path.into(), is: PlaceIs::Host { file, writable: true } }])
        };
        let stale = Err(Deviation { place: 0, errno: Errno::STALE });
        let here = FileId::of(&statx(CWD, c"/proc", AtFlags::empty(), StatxFlags::BASIC_STATS).unwrap());
        assert!(can_be_verified());
        assert_eq!(host(c"/proc", None), Ok(()));
        assert_eq!(host(c"/proc", Some(here)), Ok(()));
        assert_eq!(host(c"/proc", Some(FileId { inode: here.inode + 1, ..here })), stale);
        assert_eq!(host(c"/proc/sys", None), stale);
        assert_eq!(host(c"/proc/self", None), stale);
        assert_eq!(host(c"/proc/self/root/proc", None), stale);
        assert_eq!(host(c"/no/such", None), Err(Deviation { place: 0, errno: Errno::NOENT }));
    }
}
