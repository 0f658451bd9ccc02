//! The listener's side of a filter that reports calls: who called, what, with which path.
//!
//! Every call goes on as if nobody had listened. That there was one is the kernel's word. What it was about is for diagnosis
//! only: a path is read from memory that belongs to the program, which can change it meanwhile, so that nothing may ever be
//! decided by it.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::sys::check;

#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    number: i32,
    arch: u32,
    instruction: u64,
    args: [u64; 6],
}

#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

const RECEIVE: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;
const CONTINUE: u32 = 1;
/// Longer than any path the kernel takes.
const LONGEST: usize = 4096;

const _: () = assert!(size_of::<Notification>() == 80 && size_of::<Response>() == 24);

/// One call that was reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// The path as the program wrote it, made absolute by its directory.
    Path { act: Act, path: PathBuf },
    /// A connection to this address.
    Connect(SocketAddr),
}

/// What the call wants with the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Read,
    Write,
    Execute,
}

/// Takes the next reported call, lets it go on, and says what it was; `None` when it concerns no path or is gone.
pub fn next(listener: BorrowedFd<'_>) -> Result<Option<Call>, Errno> {
    let mut call = Notification::default();
    // SAFETY: RECEIVE fills one live `struct seccomp_notif`, which must be and is zeroed.
    match check(unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, std::ptr::from_mut(&mut call)) }.into()) {
        Ok(_) => {}
        // The caller died before we looked.
        Err(Errno::NOENT | Errno::INTR) => return Ok(None),
        Err(e) => return Err(e),
    }
    // Read before the call goes on: afterwards the program may have reused the memory.
    let seen = describe(&call);
    let response = Response { id: call.id, value: 0, error: 0, flags: CONTINUE };
    let send = || {
        // SAFETY: SEND reads one live `struct seccomp_notif_resp`.
        check(unsafe { libc::ioctl(listener.as_raw_fd(), SEND, std::ptr::from_ref(&response)) }.into())
    };
    match rustix::io::retry_on_intr(send) {
        Ok(_) | Err(Errno::NOENT) => Ok(seen),
        Err(e) => Err(e),
    }
}

fn describe(call: &Notification) -> Option<Call> {
    let [a, b, c, d, ..] = call.args;
    let open = |flags: u64| {
        let writes = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
        if flags & writes as u64 == 0 { Act::Read } else { Act::Write }
    };
    let here = libc::AT_FDCWD as u64;
    let (act, directory, path) = match i64::from(call.number) {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => (open(b), here, a),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat | libc::SYS_mkdir | libc::SYS_unlink | libc::SYS_rmdir | libc::SYS_chmod => {
            (Act::Write, here, a)
        }
        // Of the two paths of these, the new one.
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink => (Act::Write, here, b),
        libc::SYS_openat => (open(c), a, b),
        libc::SYS_openat2 => {
            let flags = read_memory(call.pid, c, 8).and_then(|m| m.try_into().ok()).map_or(0, u64::from_ne_bytes);
            (open(flags), a, b)
        }
        libc::SYS_execve => (Act::Execute, here, a),
        libc::SYS_execveat => (Act::Execute, a, b),
        libc::SYS_mkdirat | libc::SYS_unlinkat | libc::SYS_fchmodat => (Act::Write, a, b),
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => (Act::Write, c, d),
        libc::SYS_symlinkat => (Act::Write, b, c),
        libc::SYS_truncate => (Act::Write, here, a),
        libc::SYS_connect => (Act::Write, here, 0),
        _ => return None,
    };
    if i64::from(call.number) == libc::SYS_connect {
        return address(&read_memory(call.pid, b, 128)?).map(Call::Connect);
    }
    let text = read_memory(call.pid, path, LONGEST)?;
    let text: Vec<u8> = text.into_iter().take_while(|byte| *byte != 0).collect();
    let path = PathBuf::from(OsString::from_vec(text));
    let base = match directory as i32 {
        libc::AT_FDCWD => format!("/proc/{}/cwd", call.pid),
        fd => format!("/proc/{}/fd/{fd}", call.pid),
    };
    let path = if path.is_absolute() { path } else { std::fs::read_link(base).ok()?.join(path) };
    Some(Call::Path { act, path })
}

/// An internet address in the kernel's form.
fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    let ip = match family {
        libc::AF_INET => IpAddr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?),
        libc::AF_INET6 => IpAddr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Up to `length` bytes of another process's memory; fewer where its mapping ends.
fn read_memory(pid: u32, address: u64, length: usize) -> Option<Vec<u8>> {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut bytes = vec![0; length];
    // A string near the end of a page: read to the page's end first.
    let to_page_end = 4096 - (address as usize % 4096);
    let read = memory.read_at(&mut bytes, address).or_else(|_| {
        let shorter = to_page_end.min(length);
        memory.read_at(&mut bytes[..shorter], address)
    });
    bytes.truncate(read.ok()?);
    Some(bytes)
}
