//! System calls that the filter has an opinion on.

use std::io;

use crate::{Act, Found, arg, done, number, sys};

pub const ACTS: &[(&str, Act)] = &[
    ("call", |a| named(arg(a, 0)?)),
    ("unshare", |a| sys::call(libc::SYS_unshare, &[number(a, 0)? as u64]).map(done)),
    ("clone", |a| clone(number(a, 0)? as u64)),
    ("clone3", |a| clone3(number(a, 0)? as u64)),
    ("int80", |a| int80(number(a, 0)?)),
    ("x32", |a| sys::call(0x4000_0000 | number(a, 0)?, &[]).map(done)),
    ("personality", |a| sys::call(libc::SYS_personality, &[number(a, 0)? as u64]).map(done)),
    ("prctl", |a| sys::call(libc::SYS_prctl, &[number(a, 0)? as u64, 0, 0, 0, 0]).map(done)),
    ("ioctl", |a| ioctl(arg(a, 0)?, number(a, 1)? as u64)),
    ("number", |a| sys::call(number(a, 0)?, &[]).map(done)),
];

/// Calls with arguments on which a bare kernel says anything but EPERM; what it says then counts as `ok`, since the call was
/// reached.
fn named(name: &str) -> Found {
    let here = libc::AT_FDCWD as u64;
    let (number, args): (i64, &[u64]) = match name {
        "io_uring_setup" => (libc::SYS_io_uring_setup, &[1, 0]),
        "io_uring_enter" => (libc::SYS_io_uring_enter, &[999]),
        "io_uring_register" => (libc::SYS_io_uring_register, &[999]),
        "userfaultfd" => (libc::SYS_userfaultfd, &[0xffff_ffff]),
        "bpf" => (libc::SYS_bpf, &[0xffff, 0, 0]),
        "perf_event_open" => (libc::SYS_perf_event_open, &[0]),
        "keyctl" => (libc::SYS_keyctl, &[0, -3i64 as u64, 0]),
        "add_key" => (libc::SYS_add_key, &[0, 0, 0, 0, 0]),
        "request_key" => (libc::SYS_request_key, &[0, 0, 0, 0]),
        "kcmp" => (libc::SYS_kcmp, &[0]),
        "mount" => (libc::SYS_mount, &[1, 1, 1, 0, 0]),
        "fsopen" => (libc::SYS_fsopen, &[0, 0]),
        "open_tree" => (libc::SYS_open_tree, &[here, 0, 0]),
        "move_mount" => (libc::SYS_move_mount, &[999, 0, 999, 0, 0]),
        "mount_setattr" => (libc::SYS_mount_setattr, &[999, 0, 0, 0, 0]),
        "pivot_root" => (libc::SYS_pivot_root, &[0, 0]),
        "setns" => (libc::SYS_setns, &[999, 0]),
        "init_module" => (libc::SYS_init_module, &[0, 0, 0]),
        "finit_module" => (libc::SYS_finit_module, &[999, 0, 0]),
        "kexec_load" => (libc::SYS_kexec_load, &[0, 0, 0, 0]),
        "fanotify_mark" => (libc::SYS_fanotify_mark, &[999, 0, 0, 0, 0]),
        "move_pages" => (libc::SYS_move_pages, &[0, 0, 0, 0, 0]),
        "clock_settime" => (libc::SYS_clock_settime, &[99, 0]),
        "swapon" => (libc::SYS_swapon, &[0, 0]),
        "syslog" => (libc::SYS_syslog, &[99, 0, 0]),
        "acct" => (libc::SYS_acct, &[1]),
        "modify_ldt" => (libc::SYS_modify_ldt, &[0, 0, 0]),
        "ptrace" => (libc::SYS_ptrace, &[0x4206, 0x7fff_fff0, 0, 0]),
        "process_vm_readv" => (libc::SYS_process_vm_readv, &[0x7fff_fff0, 0, 0, 0, 0, 0]),
        "process_vm_writev" => (libc::SYS_process_vm_writev, &[0x7fff_fff0, 0, 0, 0, 0, 0]),
        "pidfd_getfd" => (libc::SYS_pidfd_getfd, &[999, 0, 0]),
        "vmsplice" => (libc::SYS_vmsplice, &[999, 0, 0, 0]),
        "seccomp" => (libc::SYS_seccomp, &[1, 0, 0]),
        "getpid" => (libc::SYS_getpid, &[]),
        other => return Err(io::Error::other(format!("no call `{other}`"))),
    };
    match sys::call(number, args) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => Err(e),
        // The kernel was reached.
        _ => Ok(String::new()),
    }
}

/// A request to a file or directory that is open for reading. What it would be told is zero, or room for an answer.
fn ioctl(path: &str, request: u64) -> Found {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path)?;
    let mut room = [0u64; 512];
    sys::call(libc::SYS_ioctl, &[file.as_raw_fd() as u64, request, room.as_mut_ptr() as u64]).map(done)
}

fn clone(flags: u64) -> Found {
    let pid = sys::call(libc::SYS_clone, &[flags | libc::SIGCHLD as u64, 0, 0, 0, 0])?;
    if pid == 0 {
        std::process::exit(0);
    }
    sys::wait(pid as i32).map(done)
}

fn clone3(flags: u64) -> Found {
    let mut args = [0u64; 11];
    args[0] = flags;
    args[4] = libc::SIGCHLD as u64;
    let pid = sys::call(libc::SYS_clone3, &[(&raw const args) as u64, 88])?;
    if pid == 0 {
        std::process::exit(0);
    }
    sys::wait(pid as i32).map(done)
}

#[cfg(target_arch = "x86_64")]
fn int80(number: i64) -> Found {
    let result: i64;
    // SAFETY: a 32-bit call without pointers, or one that is refused. The kernel clobbers r8 to r11.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") number => result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    match result as i32 {
        error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
        _ => Ok(String::new()),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn int80(_: i64) -> Found {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}
