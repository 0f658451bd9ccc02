//! System calls that rustix does not have, one safe function each. Nothing that a child of a fork calls allocates.

mod descriptors;
mod mounts;
mod processes;
pub mod starter;
mod terminal;
pub mod view;
mod waiting;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

pub use descriptors::{MOST_SENT, Received, place_stdio, receive_with, send_with};
pub use mounts::{enter_mounts, set_file_ids};
pub use processes::{HeldSignals, each_child, has_children};
pub use terminal::{open_terminal, resize_terminal};
pub use waiting::{locked, pause_for, poll_for, poll_until, timespec};

pub(crate) fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        Err(Errno::from_raw_os_error(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)))
    } else {
        Ok(result)
    }
}

/// A setting of the kernel's by its name (`user.max_user_namespaces`); `None` where there is no such setting.
#[cfg(feature = "box")]
pub fn sysctl(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/")));
    text.ok().map(|text| text.trim().to_owned())
}

/// Which of the two processes a fork returned in.
#[derive(Debug)]
pub enum Fork {
    Child,
    Parent(rustix::process::Pid),
}

/// `clone(2)` in the manner of fork, with namespace flags.
///
/// The child has a copy of the caller's memory and one thread. It must only make system calls and touch memory that the
/// caller prepared: no allocation, no lock, no panic, since another thread may have held the allocator's lock.
pub fn fork(namespaces: u64) -> Result<Fork, Errno> {
    let flags = namespaces | libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM and with a null stack the child runs on its own copy of this stack, as after fork(2).
    forked(unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) })
}

/// As [`fork`], for a child that is born in a control group of version 2. Linux 5.7; `None`: it cannot be, or may not.
#[cfg(feature = "box")]
pub(crate) fn fork_into(group: BorrowedFd<'_>, namespaces: u64) -> Option<Fork> {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    // `struct clone_args`: flags, pidfd, child_tid, parent_tid, exit_signal, stack, its size, tls, set_tid, its size, cgroup.
    let args = [namespaces | INTO_CGROUP, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0, 0, 0, group.as_raw_fd() as u64];
    // SAFETY: without CLONE_VM and with a null stack the child runs on its own copy of this stack; the structure lives until
    // the call is over and has its size beside it, and `group` is open.
    forked(unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) }).ok()
}

fn forked(result: libc::c_long) -> Result<Fork, Errno> {
    Ok(match rustix::process::Pid::from_raw(check(result)? as i32) {
        Some(pid) => Fork::Parent(pid),
        None => Fork::Child,
    })
}

pub(crate) const STACK_SIZE: usize = 64 * 1024;

/// Memory for a child that shares this process's: made before any fork, never freed while the child lives.
#[derive(Debug)]
pub struct Stack(Box<[std::mem::MaybeUninit<u128>]>);

impl Stack {
    pub fn new() -> Stack {
        // Untouched pages cost nothing.
        Stack(Box::new_uninit_slice(STACK_SIZE / size_of::<u128>()))
    }
}

impl Default for Stack {
    fn default() -> Self {
        Self::new()
    }
}

/// `clone(2)` in the manner of vfork: the child runs `child` in this memory, and this process waits until it has executed
/// a program or ended. Saves the copy of the page tables, a tenth of a small program's whole run.
///
/// As after [`fork`], the child must only make system calls and leave by exec or [`exit_now`]; what it returns is its exit
/// code.
pub fn vfork<F: FnMut() -> i32>(stack: &Stack, mut child: F) -> Result<rustix::process::Pid, Errno> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let top = stack.0.as_ptr_range().end.cast_mut();
    // SAFETY: with CLONE_VFORK this frame and `child` outlive the child's use of them, and the stack is lent for that time.
    unsafe { clone_sharing(top.cast(), flags, &mut child) }
}

/// # Safety
/// `top` is the aligned end of a stack. That and `child` must stay alive and untouched by this process until the child has left
/// this memory.
pub(crate) unsafe fn clone_sharing<F: FnMut() -> i32>(
    top: *mut u8,
    flags: libc::c_int,
    child: &mut F,
) -> Result<rustix::process::Pid, Errno> {
    extern "C" fn enter<F: FnMut() -> i32>(child: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer is the `&mut F` below, which only the child uses.
        let child = unsafe { &mut *child.cast::<F>() };
        exit_now(child())
    }
    // SAFETY: `top` is the aligned end of memory that is the child's alone, which grows downwards; `enter` never returns.
    let pid = unsafe { libc::clone(enter::<F>, top.cast(), flags, std::ptr::from_mut(child).cast()) };
    rustix::process::Pid::from_raw(check(pid.into())? as i32).ok_or(Errno::INVAL)
}

/// Where the kernel put this program's arguments and environment: `/proc/PID/cmdline` and `environ` show these bytes.
mod initial {
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    static START: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
    static LENGTH: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }

    /// Called by the C library before `main`. Only glibc hands the program's vectors over; but the environment is there on
    /// every one, and the arguments lie before it, after their number.
    extern "C" fn remember() {
        // SAFETY: nothing has run that could have replaced the environment that the kernel made, or be doing so now.
        let envp = unsafe { environ };
        let mut argv = envp.wrapping_sub(1);
        let mut count = 0;
        loop {
            argv = argv.wrapping_sub(1);
            // SAFETY: before the null that ends the arguments lie as many pointers as the number before them says; that
            // number is smaller than any pointer, so that it is found before anything else is read.
            if unsafe { *argv } as usize == count {
                break;
            }
            count += 1;
        }
        let mut first: *mut u8 = std::ptr::null_mut();
        let mut end: *mut u8 = std::ptr::null_mut();
        for list in [argv.wrapping_add(1), envp] {
            let mut at = list;
            // SAFETY: both lists end with a null pointer, and their strings with a NUL; the kernel made them, and nothing
            // has run that could have changed them.
            while let Some(string) = std::ptr::NonNull::new(unsafe { *at }) {
                let string = string.as_ptr();
                // SAFETY: as above.
                let length = unsafe { libc::strlen(string) } + 1;
                if first.is_null() {
                    first = string.cast();
                }
                end = string.cast::<u8>().wrapping_add(length);
                at = at.wrapping_add(1);
            }
        }
        START.store(first, Ordering::Relaxed);
        LENGTH.store((end as usize).saturating_sub(first as usize), Ordering::Relaxed);
    }

    #[used]
    // SAFETY: the C library calls every function in this section once, before main.
    #[unsafe(link_section = ".init_array")]
    static REMEMBER: extern "C" fn() = remember;

    pub fn wipe() {
        let (start, length) = (START.load(Ordering::Relaxed), LENGTH.load(Ordering::Relaxed));
        if !start.is_null() {
            // SAFETY: the strings are one block at the top of the initial stack, which is mapped and writable for the life
            // of the process; the caller promises that nobody reads them any more.
            unsafe { std::ptr::write_bytes(start, 0, length) };
        }
    }
}

/// Zeroes the arguments and the environment that this process was started with. For a forked child that will never look
/// at them again: its copies are wiped, its parent's stay.
pub fn forget_arguments() {
    initial::wipe();
}

/// Ends the process without running any exit handler, which belong to the process that forked.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) takes no pointer and does not return.
    unsafe { libc::_exit(code) }
}

/// Attributes for [`mount_setattr`]; the layout of the kernel's `struct mount_attr`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct MountAttr {
    pub set: u64,
    pub clear: u64,
    pub propagation: u64,
    pub userns_fd: u64,
}

pub const ATTR_RDONLY: u64 = 0x1;
pub const ATTR_NOSUID: u64 = 0x2;
pub const ATTR_NODEV: u64 = 0x4;
pub const ATTR_NOEXEC: u64 = 0x8;
pub const ATTR_IDMAP: u64 = 0x10_0000;

/// `mount_setattr(2)` on the mount that `fd` refers to, with all that is mounted below when `recursive`.
pub fn mount_setattr(fd: BorrowedFd<'_>, attr: &MountAttr, recursive: bool) -> Result<(), Errno> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: `attr` is a live, initialised `struct mount_attr` and its true size is given; the path is a NUL-terminated
    // literal.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// `execve(2)`; returns only on failure.
pub fn execve(program: &CStr, argv: Strings<'_>, envp: Strings<'_>) -> Errno {
    // SAFETY: both are null-terminated arrays of pointers to NUL-terminated strings that outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.0.as_ptr(), envp.0.as_ptr()) };
    Errno::from_raw_os_error(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
}

/// `execveat(2)` of an open file, which need not have a name; returns only on failure.
pub fn execute_file(program: BorrowedFd<'_>, argv: Strings<'_>, envp: Strings<'_>) -> Errno {
    // SAFETY: the path is a NUL-terminated literal, and both lists are null-terminated arrays of pointers to NUL-terminated
    // strings that outlive the call.
    let failed = check(unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.0.as_ptr(),
            envp.0.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    });
    failed.err().unwrap_or(Errno::INVAL)
}

/// What [`execve`] takes: a null-terminated array of pointers to NUL-terminated strings.
#[derive(Debug, Clone, Copy)]
pub struct Strings<'a>(&'a [*const libc::c_char]);

/// A null-terminated array of C strings, made before the fork.
#[derive(Debug)]
pub struct PointerList {
    pointers: Vec<*const libc::c_char>,
    _strings: Vec<std::ffi::CString>,
}

impl PointerList {
    pub fn new(strings: Vec<std::ffi::CString>) -> Self {
        let mut pointers: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Self { pointers, _strings: strings }
    }

    pub fn strings(&self) -> Strings<'_> {
        Strings(&self.pointers)
    }
}

// SAFETY: the pointers lead to heap memory owned by `_strings`, which nothing changes.
unsafe impl Send for PointerList {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for PointerList {}

/// `close_range(2)`: closes every descriptor from `first` to `last`, or marks them close-on-exec.
pub fn close_range(first: u32, last: u32, on_exec: bool) -> Result<(), Errno> {
    let flags = if on_exec { libc::CLOSE_RANGE_CLOEXEC } else { 0 };
    // SAFETY: no pointer is passed. Descriptors closed here belong to the process that is about to become the box; its
    // owners in this address space are never dropped there, since that process leaves by exec or _exit.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })?;
    Ok(())
}

/// Closes every descriptor of this process but these.
pub fn close_all_but<const N: usize>(keep: &[i32; N]) {
    let mut keep_sorted = *keep;
    keep_sorted.sort_unstable();
    let mut next = 0u32;
    for fd in keep_sorted.into_iter().filter_map(|fd| u32::try_from(fd).ok()) {
        if fd > next {
            let _ = close_range(next, fd - 1, false);
        }
        next = fd + 1;
    }
    let _ = close_range(next, u32::MAX, false);
}

/// `dup3(2)` onto one of the standard descriptors.
pub fn dup_onto(fd: BorrowedFd<'_>, target: i32) -> Result<(), Errno> {
    if fd.as_raw_fd() == target {
        // dup3 refuses equal numbers; what is wanted is a descriptor that survives exec.
        // SAFETY: F_SETFD takes an integer.
        check(unsafe { libc::fcntl(target, libc::F_SETFD, 0) }.into())?;
        return Ok(());
    }
    // SAFETY: no pointer is passed.
    check(unsafe { libc::dup3(fd.as_raw_fd(), target, 0) }.into())?;
    Ok(())
}

/// `sethostname(2)`.
pub fn set_hostname(name: &[u8]) -> Result<(), Errno> {
    // SAFETY: pointer and length describe one live slice.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }.into())?;
    Ok(())
}

/// SECBIT_NOROOT, SECBIT_NO_SETUID_FIXUP and SECBIT_NO_CAP_AMBIENT_RAISE, each with its lock.
const LOCKED_SECUREBITS: u64 = 0b11 | 0b1100 | 0b1100_0000;

/// Drops every capability from the bounding set, and keeps user id 0 from gaining any by exec.
pub fn drop_bounding_set() -> Result<(), Errno> {
    // SAFETY: prctl with integers only.
    check(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, LOCKED_SECUREBITS as libc::c_ulong, 0, 0, 0) }.into())?;
    for capability in 0..64 {
        let one = rustix::thread::CapabilitySet::from_bits_retain(1 << capability);
        match rustix::thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            Err(Errno::INVAL) if capability > 0 => break, // past the last capability of this kernel
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Empties the effective, permitted and inheritable sets; the ambient set follows.
pub fn drop_capabilities() -> Result<(), Errno> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let mut header = Header { version: 0x2008_0522, pid: 0 };
    let data = [Data { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: version 3 of the header goes with an array of two data structs, both live.
    check(unsafe { libc::syscall(libc::SYS_capset, std::ptr::from_mut(&mut header), data.as_ptr()) })?;
    Ok(())
}

/// Brings the loopback interface of the current network namespace up.
pub fn loopback_up(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: an all-zero `ifreq` is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let set_flags = libc::SIOCSIFFLAGS as libc::Ioctl;
    // SAFETY: SIOCSIFFLAGS reads one live `ifreq`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), set_flags, std::ptr::from_ref(&request)) }.into())?;
    Ok(())
}

/// `setns(2)`.
pub fn set_namespace(namespace: BorrowedFd<'_>, kind: rustix::thread::LinkNameSpaceType) -> Result<(), Errno> {
    rustix::thread::move_into_link_name_space(namespace, Some(kind))
}

/// `unshare(2)`, of namespaces alone.
pub fn unshare(namespaces: u64) -> Result<(), Errno> {
    let flags = rustix::thread::UnshareFlags::from_bits_retain(namespaces as u32);
    // SAFETY: descriptors stay what they are.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Becomes `uid`:`gid` with no supplementary groups, in this thread (the only one after a fork).
pub fn become_user(uid: u32, gid: u32) -> Result<(), Errno> {
    // SAFETY: a null list of length 0.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0usize, std::ptr::null::<u32>()) })?;
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })?;
    Ok(())
}

/// A signalfd for all signals, which are blocked in this thread.
pub fn signal_fd_for_all() -> Result<OwnedFd, Errno> {
    // SAFETY: an all-zero sigset is valid memory for sigfillset, which then initialises it.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is live and writable.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: `all` is an initialised set; no old set is asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut()) }.into())?;
    // SAFETY: `all` is an initialised set.
    let fd = check(unsafe { libc::signalfd(-1, &all, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }.into())?;
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// All signals are blocked while this lives, and after a fork in the child: none is lost between the two.
#[derive(Debug)]
pub struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: all-zero sigsets are valid memory for sigfillset and sigprocmask, which initialise them.
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: `all` is live and writable.
        unsafe { libc::sigfillset(&mut all) };
        // SAFETY: `all` is an initialised set and `old` is live and writable.
        check(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old) }.into())?;
        Ok(Self(old))
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the kernel; no old set is asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// A signalfd for these signals, which are blocked in this thread.
pub fn signal_fd(signals: &[i32]) -> Result<OwnedFd, Errno> {
    // SAFETY: an all-zero sigset is valid memory for sigemptyset, which then initialises it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live and writable.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in signals {
        // SAFETY: `set` is an initialised set; a number that is no signal is refused.
        check(unsafe { libc::sigaddset(&mut set, *signal) }.into())?;
    }
    // SAFETY: `set` is an initialised set; no old set is asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) }.into())?;
    // SAFETY: `set` is an initialised set.
    let fd = check(unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }.into())?;
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether this process was started with the signal ignored (`nohup`, a background job of a script).
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is valid memory to write to.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set; `action` is live and writable.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Stops this process as Ctrl-Z does. A CONT continues it, after this much time at the latest. Where no shell does job
/// control for the process group, the kernel does not stop it: nothing could continue it. A CONT follows in both cases.
pub fn pause(at_most: Option<std::time::Duration>) -> Result<(), Errno> {
    let mut timer: libc::timer_t = std::ptr::null_mut();
    if let Some(time) = at_most {
        // SAFETY: an all-zero sigevent is valid.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGCONT;
        // SAFETY: both pointers are live.
        check(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) }.into())?;
        let value = libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().max(1).into() };
        let once = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // SAFETY: the timer was just made; `once` is live.
        check(unsafe { libc::timer_settime(timer, 0, &once, std::ptr::null_mut()) }.into())?;
    }
    let this = std::process::id() as i32;
    // A TSTP, unlike a STOP, is dropped for an orphaned process group.
    let stopped = with_unblocked(libc::SIGTSTP, || kill(this, libc::SIGTSTP)).and_then(|()| kill(this, libc::SIGCONT));
    if at_most.is_some() {
        // SAFETY: the timer was made above and is deleted once.
        unsafe { libc::timer_delete(timer) };
    }
    stopped
}

/// Calls `act` while this thread takes this signal, and blocks it again.
fn with_unblocked(signal: i32, act: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    // SAFETY: all-zero sigsets are valid memory for sigemptyset and pthread_sigmask, which initialise them.
    let (mut set, mut old): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live and writable.
    unsafe { libc::sigemptyset(&mut set) };
    // SAFETY: `set` was initialised above; a number that is no signal changes nothing.
    unsafe { libc::sigaddset(&mut set, signal) };
    // SAFETY: both sets are live.
    check(unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, &mut old) }.into())?;
    let done = act();
    // SAFETY: `old` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
    done
}

/// The signal number of the next signal waiting in a signalfd, if any.
pub fn read_signal(fd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(fd, &mut info) {
        Ok(n) if n == info.len() => Some(i32::from_ne_bytes([info[0], info[1], info[2], info[3]])),
        _ => None,
    }
}

/// Waits until this signal, which must be blocked, has come, and takes it. False when it has not come in time.
pub fn take_signal(signal: i32, at_most: std::time::Duration) -> Result<bool, Errno> {
    // SAFETY: an all-zero sigset is valid memory for sigemptyset, which then initialises it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live and writable.
    unsafe { libc::sigemptyset(&mut set) };
    // SAFETY: `set` is an initialised set; a number that is no signal is refused.
    check(unsafe { libc::sigaddset(&mut set, signal) }.into())?;
    let time = libc::timespec { tv_sec: at_most.as_secs() as _, tv_nsec: at_most.subsec_nanos().into() };
    // SAFETY: `set` and `time` are live and initialised; no information about the signal is asked for.
    match check(unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &time) }.into()) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Unblocks every signal and takes back what Rust's runtime ignores. What the caller ignores (`nohup`) stays ignored, and
/// what it handles has its default meaning after exec.
pub fn reset_signals() -> Result<(), Errno> {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // SAFETY: an all-zero set is the empty one.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `none` is an initialised set.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) }.into())?;
    Ok(())
}

/// Children that end stay until they are waited for, also where the caller of this program ignored theirs.
pub fn keep_ended_children() {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Blocks every signal but those that stop and continue a process: what is meant for the command must not end a program
/// that stands between.
pub fn block_all_but_stops() -> Result<(), Errno> {
    // SAFETY: an all-zero sigset is valid memory for sigfillset, which then initialises it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live and writable.
    unsafe { libc::sigfillset(&mut set) };
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT, libc::SIGCHLD] {
        // SAFETY: `set` is an initialised set, and the signal is a valid one.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    // SAFETY: `set` is an initialised set; no old set is asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) }.into())?;
    Ok(())
}

/// `kill(2)`; a negative id means a process group.
pub fn kill(pid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: integers only.
    check(unsafe { libc::kill(pid, signal) }.into())?;
    Ok(())
}

/// Gives up the lock (`flock`) of a file that is open under this number.
pub fn unlock(fd: i32) -> Result<(), Errno> {
    // SAFETY: it touches no memory, and refuses a number under which nothing is open.
    check(unsafe { libc::flock(fd, libc::LOCK_UN) }.into()).map(drop)
}

/// Whether the terminal takes what this process does for the doing of its foreground job. Compares bare numbers: a group
/// whose leader is outside the PID namespace is 0, on both sides.
pub fn is_foreground(terminal: BorrowedFd<'_>) -> bool {
    // SAFETY: integers only; the descriptor is open for the call.
    let (foreground, own) = unsafe { (libc::tcgetpgrp(terminal.as_raw_fd()), libc::getpgrp()) };
    foreground == own
}

/// One child's change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waited {
    pub pid: i32,
    /// As of `waitpid(2)`.
    pub status: i32,
    /// User and system time of the child and all it waited for.
    pub cpu: std::time::Duration,
    /// The part of it that the kernel spent for them.
    pub system: std::time::Duration,
    /// Peak resident memory of the largest process among them, in bytes.
    pub peak_memory: u64,
}

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The end of a child, however long it takes.
    UntilEnd,
    /// One that has ended already.
    IfEnded,
    /// One that has ended or was stopped already.
    IfChanged,
}

/// `wait4(2)`. `None` when nothing has happened yet and it is not waited for, or when there is no child.
pub fn wait(pid: i32, what: Wait) -> Result<Option<Waited>, Errno> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = libc::__WALL
        | match what {
            Wait::UntilEnd => 0,
            Wait::IfEnded => libc::WNOHANG,
            Wait::IfChanged => libc::WNOHANG | libc::WUNTRACED,
        };
    loop {
        // SAFETY: both out pointers are live and writable.
        match check(unsafe { libc::wait4(pid, &mut status, options, &mut usage) }.into()) {
            Ok(0) => return Ok(None),
            Ok(pid) => {
                let time = |t: libc::timeval| {
                    std::time::Duration::from_micros((t.tv_sec * 1_000_000 + t.tv_usec).max(0) as u64)
                };
                return Ok(Some(Waited {
                    pid: pid as i32,
                    status,
                    cpu: time(usage.ru_utime) + time(usage.ru_stime),
                    system: time(usage.ru_stime),
                    peak_memory: (usage.ru_maxrss.max(0) as u64) * 1024,
                }));
            }
            Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}

/// `setrlimit(2)` of both limits.
pub fn set_rlimit(resource: u32, value: u64) -> Result<(), Errno> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: `limit` is live; an unknown resource is refused by the kernel.
    check(unsafe { libc::setrlimit(resource as _, &limit) }.into())?;
    Ok(())
}
