//! Acts on processes, and what a process can find out about itself and others.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::{Act, Found, arg, done, number, sys};

pub const ACTS: &[(&str, Act)] = &[
    ("signal", |a| sys::call(libc::SYS_kill, &[number(a, 0)? as u64, 0]).map(done)),
    ("kill", |a| sys::call(libc::SYS_kill, &[number(a, 0)? as u64, libc::SIGKILL as u64]).map(done)),
    ("pidfd", |a| sys::call(libc::SYS_pidfd_open, &[number(a, 0)? as u64, 0]).map(done)),
    ("trace", |a| trace(number(a, 0)?)),
    ("trace-child", |_| trace_child()),
    ("attack", |a| attack(arg(a, 0)?)),
    ("attack-child", |_| attack_child()),
    ("vm-read", |a| vm_read(number(a, 0)?, number(a, 1)? as u64)),
    ("pids", |_| pids()),
    ("shm", |a| sys::call(libc::SYS_shmget, &[number(a, 0)? as u64, 0, 0]).map(done)),
    ("shm-own", |_| sys::call(libc::SYS_shmget, &[0x7777, 4096, libc::IPC_CREAT as u64 | 0o600]).map(done)),
    ("mqueue", |a| mqueue(arg(a, 0)?, 0)),
    ("mqueue-own", |_| mqueue("probe-own", libc::O_CREAT)),
    ("status", |a| status(arg(a, 0)?)),
    ("ids", |_| ids()),
    ("own-environment", |_| {
        let mut all: Vec<String> =
            std::env::vars_os().map(|(n, v)| format!("{}={}", n.to_string_lossy(), v.to_string_lossy())).collect();
        all.sort();
        Ok(all.join(" "))
    }),
    ("descriptors", |_| descriptors()),
    ("processes-with", |a| processes_with(arg(a, 0)?)),
    // The needle stands here, so that it is in no command line but the one that is looked for.
    ("find-bystander", |_| processes_with("BYSTANDER_SECRET")),
    ("find-held", |_| processes_with("held-in-the-one")),
    ("find-supervisor", |_| processes_with("session\0supervise")),
    ("find-launcher", |_| processes_with("needle-in-the-launcher")),
    ("type-into", |a| type_into(number(a, 0)? as i32, 0)),
    ("type-into-high", |a| type_into(number(a, 0)? as i32, 1 << 32)),
    ("terminal", |_| fs::File::options().read(true).write(true).open("/dev/tty").map(done)),
    ("hostname", |_| fs::read_to_string("/proc/sys/kernel/hostname")),
    ("set-hostname", |_| {
        let name = b"probe";
        sys::call(libc::SYS_sethostname, &[name.as_ptr() as u64, 5]).map(done)
    }),
    ("become", |a| become_user(number(a, 0)? as u64)),
    ("priority", |_| sys::call(libc::SYS_setpriority, &[0, 0, -5i64 as u64]).map(done)),
    ("rlimit", |a| {
        let mut limit = [0u64; 2];
        sys::call(libc::SYS_prlimit64, &[0, number(a, 0)? as u64, 0, (&raw mut limit) as u64])?;
        Ok(format!("{}", limit[0]))
    }),
];

fn trace(pid: i64) -> Found {
    sys::call(libc::SYS_ptrace, &[libc::PTRACE_SEIZE as u64, pid as u64, 0, 0])?;
    Ok(String::new())
}

fn trace_child() -> Found {
    let mut child = Command::new("/proc/self/exe").args(["hold", "30"]).spawn()?;
    let traced = trace(i64::from(child.id()));
    child.kill()?;
    child.wait()?;
    traced
}

/// Takes over every process that it may trace and stops the others, so that none of them ends this one; then leaves a process
/// behind that nothing but the end of the sandbox ends. Which processes were taken over.
fn attack(tag: &str) -> Found {
    let own = std::process::id();
    let others = pids()?;
    let others = others.split(' ').filter_map(|pid| pid.parse().ok()).filter(|pid| *pid != own);
    let (taken, rest): (Vec<u32>, Vec<u32>) = others.partition(|pid| take_over(*pid).is_ok());
    for pid in rest {
        // That it may not is as good.
        let _ = sys::call(libc::SYS_kill, &[u64::from(pid), libc::SIGSTOP as u64]);
    }
    let child = sys::fork(|| {
        let null = std::process::Stdio::null;
        let free = sys::call(libc::SYS_setsid, &[])
            .and_then(|_| sys::call(libc::SYS_prctl, &[libc::PR_SET_PDEATHSIG as u64, 0]))
            .and_then(|_| {
                let mut left = Command::new("/proc/self/exe");
                left.args(["hold", "1000", tag]).stdin(null()).stdout(null()).stderr(null()).spawn()
            });
        i32::from(free.is_err())
    })?;
    sys::wait(child)?;
    let taken: Vec<String> = taken.iter().map(u32::to_string).collect();
    Ok(if taken.is_empty() { "none".to_owned() } else { taken.join(" ") })
}

/// The same with a child, which may be traced.
fn attack_child() -> Found {
    let mut child = Command::new("/proc/self/exe").args(["hold", "30"]).spawn()?;
    // Until it sleeps in a system call.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let taken = take_over(child.id());
    let session = sys::call(libc::SYS_getsid, &[u64::from(child.id())])?;
    child.kill()?;
    child.wait()?;
    taken?;
    if session == i64::from(child.id()) { Ok(String::new()) } else { Err(io::Error::other("it kept its session")) }
}

/// Makes a process forget that it dies with its parent, and leave its session.
#[cfg(target_arch = "x86_64")]
fn take_over(pid: u32) -> io::Result<()> {
    let trace =
        |request: u64, address: u64, data: u64| sys::call(libc::SYS_ptrace, &[request, u64::from(pid), address, data]);
    let stopped = || sys::call(libc::SYS_wait4, &[u64::from(pid), 0, libc::__WALL as u64, 0]);
    trace(libc::PTRACE_ATTACH as u64, 0, 0)?;
    stopped()?;
    // SAFETY: an all-zero structure of registers is valid.
    let mut saved: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETREGS as u64, 0, (&raw mut saved) as u64)?;
    // It waits in a system call, whose instruction is before the next one.
    for (call, args) in [(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as u64, 0]), (libc::SYS_setsid, [0, 0])] {
        let mut regs = saved;
        (regs.rip, regs.rax, regs.orig_rax) = (saved.rip - 2, call as u64, u64::MAX);
        [regs.rdi, regs.rsi] = args;
        trace(libc::PTRACE_SETREGS as u64, 0, (&raw mut regs) as u64)?;
        trace(libc::PTRACE_SINGLESTEP as u64, 0, 0)?;
        stopped()?;
    }
    trace(libc::PTRACE_SETREGS as u64, 0, (&raw mut saved) as u64)?;
    trace(libc::PTRACE_DETACH as u64, 0, 0).map(drop)
}

#[cfg(not(target_arch = "x86_64"))]
fn take_over(pid: u32) -> io::Result<()> {
    sys::call(libc::SYS_ptrace, &[libc::PTRACE_ATTACH as u64, u64::from(pid), 0, 0])?;
    sys::call(libc::SYS_wait4, &[u64::from(pid), 0, libc::__WALL as u64, 0])?;
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

fn vm_read(pid: i64, address: u64) -> Found {
    let mut bytes = [0u8; 16];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 16 };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: 16 };
    let args = [pid as u64, (&raw const local) as u64, 1, (&raw const remote) as u64, 1, 0];
    sys::call(libc::SYS_process_vm_readv, &args)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
}

fn pids() -> Found {
    let mut pids: Vec<i32> =
        fs::read_dir("/proc")?.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids.iter().map(i32::to_string).collect::<Vec<_>>().join(" "))
}

fn mqueue(name: &str, flags: i32) -> Found {
    let name = sys::c(name)?;
    sys::call(libc::SYS_mq_open, &[sys::at(&name), (libc::O_RDWR | flags) as u64, 0o600, 0]).map(done)
}

/// Lines of `/proc/self/status` that begin with one of the comma-separated words.
fn status(fields: &str) -> Found {
    let text = fs::read_to_string("/proc/self/status")?;
    let value = |field: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
        line.map_or("none", str::trim).split_whitespace().collect::<Vec<_>>().join(",")
    };
    Ok(fields.split(',').map(|f| format!("{f}={}", value(f))).collect::<Vec<_>>().join(" "))
}

fn ids() -> Found {
    let (mut r, mut e, mut s) = (0u32, 0u32, 0u32);
    sys::call(libc::SYS_getresuid, &[(&raw mut r) as u64, (&raw mut e) as u64, (&raw mut s) as u64])?;
    Ok(format!("{r} {e} {s}"))
}

/// Open descriptors but for the one that lists them.
fn descriptors() -> Found {
    let mut found = Vec::new();
    let listing = fs::File::open("/proc/self/fd")?;
    let own = listing.as_raw_fd();
    drop(listing);
    for fd in fs::read_dir("/proc/self/fd")?.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok()) {
        if fd != own {
            found.push(fd);
        }
    }
    found.sort_unstable();
    Ok(found.iter().map(i32::to_string).collect::<Vec<_>>().join(" "))
}

/// Which processes show a text in their environment, command line or memory map.
fn processes_with(text: &str) -> Found {
    let mut hits = Vec::new();
    let own = std::process::id().to_string();
    for pid in fs::read_dir("/proc")?.flatten().filter_map(|e| e.file_name().into_string().ok()) {
        if pid == own || pid == "self" || pid == "thread-self" || !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        for file in ["environ", "cmdline", "maps"] {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            if bytes.windows(text.len()).any(|w| w == text.as_bytes()) {
                hits.push(format!("{pid}/{file}"));
            }
        }
    }
    Ok(if hits.is_empty() { "nothing".to_owned() } else { format!("found in {}", hits.join(" ")) })
}

#[allow(clippy::unnecessary_cast, reason = "the number is signed on musl")]
const TIOCSTI: u64 = libc::TIOCSTI as u64;

/// Pushes a key into a terminal; `high` bits of the request are ignored by the kernel.
fn type_into(fd: i32, high: u64) -> Found {
    let key = b"x";
    sys::call(libc::SYS_ioctl, &[fd as u64, TIOCSTI | high, key.as_ptr() as u64]).map(done)
}

fn become_user(uid: u64) -> Found {
    // In a child, so that later acts are not affected.
    let mut child = Command::new("/proc/self/exe");
    child.args(["ids"]).uid(uid as u32);
    let output = child.output().map_err(|e| io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EPERM)))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().trim_start_matches("ok ").to_owned())
}
