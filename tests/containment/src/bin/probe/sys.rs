//! System calls by number, for what no library offers.

use std::ffi::CString;
use std::io;

/// A system call; every pointer among the arguments is null, invalid on purpose, or of a live buffer of the caller.
pub fn call(number: i64, args: &[u64]) -> io::Result<i64> {
    let mut all = [0u64; 6];
    all[..args.len()].copy_from_slice(args);
    let [a, b, c, d, e, f] = all;
    // SAFETY: the kernel checks every argument; buffers that are given live until the call returns.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub fn c(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(io::Error::other)
}

/// The address of a string, for [`call`]; it must live until the call returns.
pub fn at(text: &CString) -> u64 {
    text.as_ptr() as u64
}

/// Forks; the child runs `act` and exits with its result.
pub fn fork(act: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: the probe has one thread, so that the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => std::process::exit(act()),
        pid => Ok(pid),
    }
}

/// Waits for a child: its exit code, or 128 and the signal.
pub fn wait(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: writes into an integer of this frame.
    if unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) })
}

pub fn error_name(code: i32) -> String {
    let name = match code {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ESRCH => "ESRCH",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOTTY => "ENOTTY",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::ELOOP => "ELOOP",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ENOSYS => "ENOSYS",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::ESOCKTNOSUPPORT => "ESOCKTNOSUPPORT",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ENODATA => "ENODATA",
        libc::ESTALE => "ESTALE",
        libc::EDQUOT => "EDQUOT",
        other => return format!("errno {other}"),
    };
    name.to_owned()
}
