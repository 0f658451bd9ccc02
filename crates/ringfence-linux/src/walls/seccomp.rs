//! The system-call filter: `list` says what is let through and why, `compile` makes a program of it, and [`install`] puts
//! it on the calling thread.
//!
//! The programs for every combination of nesting and sockets, with all groups that a policy can refuse or with none, are
//! built with the crate, so that a run without extra calls only loads one. A filter stays on for good, is inherited by every child and stacks: a nested sandbox adds its own, and
//! the stricter answer wins.
//!
//! Calls of another ABI (32-bit, x32) and unknown numbers answer ENOSYS, known and refused ones EPERM.

mod compile;
mod list;
mod profile;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::os::fd::{FromRawFd, OwnedFd};

use ringfence_policy::syscalls::SyscallGroup;
use rustix::io::Errno;

use crate::sys::check;

pub use compile::{Arch, Notify, Options, SockFilter, Sockets};
pub use list::{Answer, Refused, RefusedGroup};
pub use profile::{Argument, ProfileRule};

include!(concat!(env!("OUT_DIR"), "/seccomp_programs.rs"));

#[cfg(target_arch = "x86_64")]
const ARCH: Arch = Arch::X86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: Arch = Arch::Aarch64;

/// Why there is no filter.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unknown system call `{name}`, did you mean `{nearest}`?")]
    UnknownCall { name: String, nearest: &'static str },
}

impl FromIterator<SyscallGroup> for Refused {
    fn from_iter<T: IntoIterator<Item = SyscallGroup>>(groups: T) -> Refused {
        groups.into_iter().fold(Refused::NONE, |refused, group| {
            refused.with(match group {
                SyscallGroup::Debugging => RefusedGroup::Debugging,
                SyscallGroup::NestedFilters => RefusedGroup::NestedFilters,
                SyscallGroup::Personality => RefusedGroup::Personality,
                SyscallGroup::Vmsplice => RefusedGroup::Vmsplice,
            })
        })
    }
}

/// The program for these options. Allocates only where calls are named or reported, or where some groups are refused.
pub fn program(options: &Options) -> Result<Cow<'static, [SockFilter]>, Error> {
    if options.allow.is_empty()
        && options.notify == Notify::Nothing
        && let Some(program) = prebuilt(options.nesting, options.sockets, options.refuse)
    {
        return Ok(Cow::Borrowed(program));
    }
    let unknown = |e: compile::UnknownCall| Error::UnknownCall { name: e.name, nearest: e.nearest };
    compile::compile(ARCH, options).map(Cow::Owned).map_err(unknown)
}

/// The same as rules, for a container engine that compiles its own filter. What they do not name is to answer ENOSYS.
pub fn profile(options: &Options) -> Result<Vec<ProfileRule>, Error> {
    // Names are checked where they are compiled.
    program(options)?;
    Ok(profile::rules(ARCH, options))
}

/// A program that was built with the crate, where it is one of those.
pub fn prebuilt(nesting: bool, sockets: Sockets, refuse: Refused) -> Option<&'static [SockFilter]> {
    let all = match refuse {
        Refused::NONE => 0,
        Refused::ALL => 1,
        _ => return None,
    };
    Some(PREBUILT[all][usize::from(nesting)][sockets as usize])
}

/// The program as bytes, for `bwrap --seccomp FD`.
pub fn to_bytes(program: &[SockFilter]) -> Vec<u8> {
    let bytes = |i: &SockFilter| {
        let [c0, c1] = i.code.to_ne_bytes();
        let [k0, k1, k2, k3] = i.k.to_ne_bytes();
        [c0, c1, i.jt, i.jf, k0, k1, k2, k3]
    };
    program.iter().flat_map(bytes).collect()
}

/// Puts the filter on the calling thread, for good, and on all that it starts from now on.
///
/// The thread must have set no_new_privs before, or the kernel answers EACCES. Other threads of the process keep running
/// without it. Allocates nothing, so it can stand between a fork and the program that follows.
pub fn install(program: &[SockFilter]) -> Result<(), Errno> {
    load(program, 0).map(drop)
}

/// Like [`install`], and returns the descriptor at which calls answered [`Answer::Notify`] arrive.
///
/// One filter of a thread can have a listener: inside another one's, this fails with EBUSY.
pub fn install_with_listener(program: &[SockFilter]) -> Result<OwnedFd, Errno> {
    let fd = load(program, listener_flags())?;
    // SAFETY: with NEW_LISTENER a successful call returns a descriptor that was just made and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What a filter with a listener is installed with on this kernel.
fn listener_flags() -> libc::c_ulong {
    let new_listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Since Linux 5.19 a call that the listener has taken up can be left to wait through harmless signals. Without that,
    // a program with a timer (Go's scheduler) starts the same call again and again.
    let both = new_listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let mode = libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER);
    // SAFETY: the kernel looks at the flags first; without a program it installs none and answers EFAULT.
    let asked = check(unsafe { libc::syscall(libc::SYS_seccomp, mode, both, std::ptr::null::<libc::sock_fprog>()) });
    if asked == Err(Errno::INVAL) { new_listener } else { both }
}

fn load(program: &[SockFilter], flags: libc::c_ulong) -> Result<i32, Errno> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let fprog = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: `fprog` points at `len` instructions that live through the call; `SockFilter` has the layout of the kernel's
    // `struct sock_filter` (checked below), and the kernel copies them without writing.
    let result = check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER), flags, &raw const fprog)
    })?;
    Ok(i32::try_from(result).unwrap_or_default())
}

const _: () = {
    assert!(size_of::<SockFilter>() == size_of::<libc::sock_filter>());
    assert!(align_of::<SockFilter>() == align_of::<libc::sock_filter>());
    assert!(std::mem::offset_of!(SockFilter, k) == std::mem::offset_of!(libc::sock_filter, k));
};
