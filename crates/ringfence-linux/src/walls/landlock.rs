//! Landlock: the second wall behind the mounts. It confirms that writes stay in the writable places and that no signal and
//! no abstract socket reaches outside, whatever happened to the mounts.
//!
//! It cannot deny something below an allowed directory, so that hidden and protected paths rest on the mounts alone.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys::check;

const WRITE_FILE: u64 = 1 << 1;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_ANY: u64 = 0b111_1111 << 6; // char, dir, reg, sock, fifo, block, sym
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
const BIND_TCP: u64 = 1 << 0;
const CONNECT_TCP: u64 = 1 << 1;
const SCOPE_ABSTRACT_SOCKETS: u64 = 1 << 0;
const SCOPE_SIGNALS: u64 = 1 << 1;

/// What the kernel can enforce: the Landlock ABI, 0 when there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Abi(pub i32);

impl Abi {
    /// Asks the kernel.
    pub fn of_this_kernel() -> Abi {
        // SAFETY: with the version flag the kernel takes a null attribute of size 0.
        let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, 1u32) };
        Abi(version.max(0) as i32)
    }

    /// Below ABI 2 every rename between directories is refused, which no build survives: such a wall is not put up.
    pub fn confines_writes(self) -> bool {
        self.0 >= 2
    }

    pub fn scopes(self) -> bool {
        self.0 >= 6
    }

    pub fn filters_tcp(self) -> bool {
        self.0 >= 4
    }

    fn write_rights(self) -> u64 {
        let mut rights = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_ANY | REFER;
        if self.0 >= 3 {
            rights |= TRUNCATE;
        }
        if self.0 >= 5 {
            rights |= IOCTL_DEV;
        }
        rights
    }
}

/// A place that may be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writable {
    pub path: CString,
    pub directory: bool,
}

/// What is confined; made before the fork, applied after it.
#[derive(Debug)]
pub struct Rules {
    abi: Abi,
    /// `None` leaves files to the mounts alone.
    writable: Option<Vec<Writable>>,
    /// Refuse TCP altogether.
    no_tcp: bool,
}

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

impl Rules {
    /// Rules as far as this ABI goes; `None` when it can enforce nothing of it.
    pub fn new(abi: Abi, writable: Option<Vec<Writable>>, no_tcp: bool) -> Option<Rules> {
        let writable = writable.filter(|_| abi.confines_writes());
        let no_tcp = no_tcp && abi.filters_tcp();
        (writable.is_some() || no_tcp || abi.scopes()).then_some(Rules { abi, writable, no_tcp })
    }

    fn rights(&self) -> u64 {
        if self.writable.is_some() { self.abi.write_rights() } else { 0 }
    }

    /// Confines this process and all it starts, for good. Needs no-new-privileges.
    pub fn apply(&self) -> Result<(), Errno> {
        let rights = self.rights();
        let attr = RulesetAttr {
            handled_access_fs: rights,
            handled_access_net: if self.no_tcp { BIND_TCP | CONNECT_TCP } else { 0 },
            scoped: if self.abi.scopes() { SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS } else { 0 },
        };
        // An older kernel takes a shorter struct, and refuses trailing bytes only when they are not zero.
        // SAFETY: `attr` is live and its true size is given.
        let fd = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::from_ref(&attr), size_of::<RulesetAttr>(), 0u32)
        };
        let fd = check(fd)?;
        // SAFETY: the kernel just gave this descriptor to us alone.
        let ruleset = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        for place in self.writable.iter().flatten() {
            let allowed_access = if place.directory { rights } else { rights & (WRITE_FILE | TRUNCATE | IOCTL_DEV) };
            let at = rustix::fs::open(&place.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let rule = PathBeneath { allowed_access, parent_fd: at.as_raw_fd() };
            // SAFETY: `rule` is a live `struct landlock_path_beneath_attr`, which rule type 1 takes.
            check(unsafe {
                libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), 1u32, std::ptr::from_ref(&rule), 0u32)
            })?;
        }
        // SAFETY: integers only.
        check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) })?;
        Ok(())
    }
}
