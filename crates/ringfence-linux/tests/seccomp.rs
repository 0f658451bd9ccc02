//! The filter on the real kernel: each refused call beside an allowed one, and programs that people run.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use ringfence_linux::seccomp::{self, Notify, Options, Refused, SockFilter, Sockets};
use rustix::thread::set_no_new_privs;

/// Runs `act` in a child, under the filter if there is one. The child's exit code is the error number, 0 for success.
fn in_child(filter: Option<&[SockFilter]>, act: impl Fn() -> i32) -> i32 {
    // SAFETY: the child makes system calls only: it takes no lock, allocates nothing and leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let ready = filter.is_none_or(|f| set_no_new_privs(true).is_ok() && seccomp::install(f).is_ok());
            let code = if ready { act() } else { 255 };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child made above, into an integer of this frame.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "child died: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

/// A call with these arguments: 0, or the error number.
fn call(number: i64, args: [u64; 6]) -> i32 {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the tests pass null or invalid pointers, which the kernel refuses, or pointers to live buffers.
    if unsafe { libc::syscall(number, a, b, c, d, e, f) } < 0 { errno() } else { 0 }
}

fn errno() -> i32 {
    // SAFETY: this thread's `errno` is always readable.
    unsafe { *libc::__errno_location() }
}

fn prebuilt(nesting: bool, sockets: Sockets) -> &'static [SockFilter] {
    seccomp::prebuilt(nesting, sockets, Refused::NONE).expect("built with the crate")
}

fn default() -> &'static [SockFilter] {
    prebuilt(false, Sockets::All)
}

fn filtered(number: i64, args: &[u64]) -> i32 {
    in_child(Some(default()), || call(number, padded(args)))
}

fn bare(number: i64, args: &[u64]) -> i32 {
    in_child(None, || call(number, padded(args)))
}

fn padded(args: &[u64]) -> [u64; 6] {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    all
}

#[test]
fn refused_calls_answer_eperm_and_would_not_without_the_filter() {
    // Arguments on which the bare kernel answers anything but EPERM, so that the EPERM is the filter's.
    for (name, number, args) in [
        ("io_uring_setup", libc::SYS_io_uring_setup, &[1u64, 0][..]),
        ("io_uring_enter", libc::SYS_io_uring_enter, &[999]),
        ("io_uring_register", libc::SYS_io_uring_register, &[999]),
        ("keyctl", libc::SYS_keyctl, &[0, -3i64 as u64, 0]),
        ("add_key", libc::SYS_add_key, &[0, 0, 0, 0, 0]),
        ("kcmp", libc::SYS_kcmp, &[0]),
        ("setns", libc::SYS_setns, &[999]),
        ("open_tree", libc::SYS_open_tree, &[-100i64 as u64, 0, 0]),
        ("move_pages", libc::SYS_move_pages, &[0, 0, 0, 0, 0]),
        ("fanotify_mark", libc::SYS_fanotify_mark, &[999]),
        ("perf_event_open", libc::SYS_perf_event_open, &[0]),
    ] {
        assert_ne!(bare(number, args), libc::EPERM, "{name} bare");
        assert_eq!(filtered(number, args), libc::EPERM, "{name}");
    }
    // Older kernels ask for a capability first, so an ordinary user sees EPERM either way.
    assert_eq!(filtered(libc::SYS_open_by_handle_at, &[]), libc::EPERM);
}

#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
mod requests {
    pub const TIOCSTI: u64 = libc::TIOCSTI as u64;
    pub const TIOCGWINSZ: u64 = libc::TIOCGWINSZ as u64;
    pub const TIOCLINUX: u64 = libc::TIOCLINUX as u64;
    pub const FIONREAD: u64 = libc::FIONREAD as u64;
}

#[test]
fn arguments_are_looked_at() {
    use requests::*;
    const HIGH: u64 = 1 << 32;
    let inet = |kind: i32, protocol: u64| [libc::AF_INET as u64, kind as u64, protocol];
    // (call, refused arguments, error, allowed arguments, what the kernel then says)
    for (number, refused, error, allowed, then) in [
        (libc::SYS_unshare, &[libc::CLONE_NEWUTS as u64][..], libc::EPERM, &[libc::CLONE_FILES as u64][..], 0),
        (libc::SYS_unshare, &[libc::CLONE_NEWUSER as u64], libc::EPERM, &[libc::CLONE_FS as u64], 0),
        (libc::SYS_socket, &[libc::AF_ALG as u64, 5, 0], libc::EAFNOSUPPORT, &[libc::AF_UNIX as u64, 1, 0], 0),
        (libc::SYS_socket, &[libc::AF_VSOCK as u64, 1, 0], libc::EAFNOSUPPORT, &inet(libc::SOCK_STREAM, 0), 0),
        (libc::SYS_socket, &[libc::AF_PACKET as u64, 3, 0], libc::EAFNOSUPPORT, &inet(libc::SOCK_DGRAM, 17), 0),
        (libc::SYS_socket, &inet(libc::SOCK_RAW, 1), libc::EPERM, &[libc::AF_INET6 as u64, 1, 6], 0),
        (libc::SYS_socket, &inet(libc::SOCK_STREAM, 262), libc::EPROTONOSUPPORT, &[libc::AF_NETLINK as u64, 3, 0], 0),
        (
            libc::SYS_socket,
            &[libc::AF_NETLINK as u64, 3, 9],
            libc::EPROTONOSUPPORT,
            &[libc::AF_NETLINK as u64, 2, 0],
            0,
        ),
        // Descriptor 999 is not open: past the filter, the kernel says so.
        (libc::SYS_ioctl, &[999, TIOCSTI], libc::EPERM, &[999, TIOCGWINSZ], libc::EBADF),
        (libc::SYS_ioctl, &[999, TIOCSTI | HIGH], libc::EPERM, &[999, TIOCGWINSZ | HIGH], libc::EBADF),
        (libc::SYS_ioctl, &[999, TIOCLINUX | HIGH << 31], libc::EPERM, &[999, FIONREAD], libc::EBADF),
        (libc::SYS_prctl, &[libc::PR_SET_MM as u64, 15], libc::EPERM, &[libc::PR_GET_DUMPABLE as u64], 0),
        (libc::SYS_prctl, &[100], libc::EINVAL, &[libc::PR_GET_NO_NEW_PRIVS as u64], 0),
        (libc::SYS_personality, &[0x0040_0000], libc::EPERM, &[libc::ADDR_NO_RANDOMIZE as u64], 0),
        (libc::SYS_personality, &[0x0040_0000 | HIGH], libc::EPERM, &[0xffff_ffff], 0),
        // A null path: past the filter, the kernel faults on it.
        (libc::SYS_mknodat, &[0, 0, 0o020666, 0x103], libc::EPERM, &[0, 0, 0o010644], libc::EFAULT),
        (libc::SYS_clone3, &[0, 0], libc::ENOSYS, &[0, 0], libc::ENOSYS),
    ] {
        assert_eq!(filtered(number, refused), error, "refused {number} {refused:x?}");
        assert_eq!(filtered(number, allowed), then, "allowed {number} {allowed:x?}");
    }
    assert_eq!(bare(libc::SYS_clone3, &[0, 0]), libc::EINVAL);
    // clone with a namespace fails before there is a child; without one it makes one, which ends here.
    let clone = |flags: i32| {
        move || match clone_child(flags) {
            0 => leave(),
            -1 => errno(),
            _ => 0,
        }
    };
    assert_eq!(in_child(Some(default()), clone(libc::CLONE_NEWUSER | libc::SIGCHLD)), libc::EPERM);
    assert_eq!(in_child(Some(default()), clone(libc::SIGCHLD)), 0);
}

fn clone_child(flags: i32) -> i64 {
    // SAFETY: like fork: no new stack, no shared memory; the child only exits.
    unsafe { libc::syscall(libc::SYS_clone, flags as u64, 0u64, 0u64, 0u64, 0u64) }
}

fn leave() -> i32 {
    // SAFETY: ends the child at once.
    unsafe { libc::_exit(0) }
}

#[test]
fn nesting_and_named_calls_open_what_they_say() {
    let nesting = prebuilt(true, Sockets::All);
    let unshare = || call(libc::SYS_unshare, padded(&[libc::CLONE_NEWUSER as u64]));
    assert_eq!(in_child(Some(nesting), unshare), in_child(None, unshare));
    assert_eq!(in_child(Some(nesting), || call(libc::SYS_clone3, [0; 6])), libc::EINVAL);

    let named = seccomp::program(&Options { allow: &["kcmp"], ..Options::default() }).unwrap();
    assert_eq!(in_child(Some(&named), || call(libc::SYS_kcmp, [0; 6])), libc::ESRCH);
    assert_eq!(in_child(Some(&named), || call(libc::SYS_keyctl, [0; 6])), libc::EPERM);
}

#[test]
fn socket_reach() {
    let pair = |kind: i32| {
        move || {
            let mut fds = [0i32; 2];
            call(libc::SYS_socketpair, padded(&[libc::AF_UNIX as u64, kind as u64, 0, (&raw mut fds) as u64]))
        }
    };
    let unix_only = prebuilt(false, Sockets::UnixOnly);
    let pairs_only = prebuilt(false, Sockets::PairsOnly);
    let socket = |family: i32| move || call(libc::SYS_socket, padded(&[family as u64, libc::SOCK_STREAM as u64, 0]));
    assert_eq!(in_child(Some(unix_only), socket(libc::AF_INET)), libc::EAFNOSUPPORT);
    assert_eq!(in_child(Some(unix_only), socket(libc::AF_UNIX)), 0);
    assert_eq!(in_child(Some(pairs_only), socket(libc::AF_UNIX)), libc::EPERM);
    assert_eq!(in_child(Some(pairs_only), pair(libc::SOCK_STREAM)), 0);
    assert_eq!(in_child(Some(pairs_only), pair(libc::SOCK_DGRAM)), libc::EPERM);
    assert_eq!(in_child(Some(pairs_only), pair(libc::SOCK_RAW)), libc::EPERM);
    assert_eq!(in_child(Some(default()), pair(libc::SOCK_DGRAM)), 0);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn other_abis_are_refused() {
    const GETPID_I386: i64 = 20;
    fn int80(number: i64) -> i64 {
        let result;
        // SAFETY: a 32-bit getpid, or a number that is refused: neither touches memory. The kernel clobbers r8 to r11.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("rax") number => result,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _);
        }
        result
    }
    // Works outside (where the kernel has 32-bit calls), answers ENOSYS inside.
    assert_eq!(in_child(None, || i32::from(int80(GETPID_I386) <= 0)), 0, "this kernel has no 32-bit calls");
    assert_eq!(in_child(Some(default()), || -int80(GETPID_I386) as i32), libc::ENOSYS);
    // Number 425 through the 32-bit door, and getpid through the x32 one.
    assert_eq!(in_child(Some(default()), || -int80(425) as i32), libc::ENOSYS);
    assert_eq!(filtered(0x4000_0000 | libc::SYS_getpid, &[]), libc::ENOSYS);
    assert_eq!(filtered(0x4000_0000 | libc::SYS_io_uring_setup, &[]), libc::ENOSYS);
    assert_eq!(filtered(libc::SYS_getpid, &[]), 0);
    assert_eq!(filtered(9999, &[]), libc::ENOSYS);
}

#[test]
fn filters_stack_and_only_tighten() {
    let stacked = || i32::from(seccomp::install(prebuilt(true, Sockets::All)).is_err());
    assert_eq!(in_child(Some(default()), stacked), 0);
    let wider_inside = || {
        let installed = seccomp::install(prebuilt(true, Sockets::All));
        if installed.is_err() { 1 } else { call(libc::SYS_unshare, padded(&[libc::CLONE_NEWUSER as u64])) }
    };
    assert_eq!(in_child(Some(default()), wider_inside), libc::EPERM);
    assert_eq!(in_child(None, || i32::from(seccomp::install(&[]).is_ok())), 0);
}

#[test]
fn a_listener_hears_of_opens() {
    let program = seccomp::program(&Options { notify: Notify::Opens, ..Options::default() }).unwrap();
    let listens = || {
        if set_no_new_privs(true).is_err() {
            return 1;
        }
        let Ok(listener) = seccomp::install_with_listener(&program) else { return 2 };
        if listener.as_raw_fd() < 0 {
            return 3;
        }
        // A second one is refused, a plain filter is not.
        if seccomp::install_with_listener(&program).is_ok() || seccomp::install(default()).is_err() {
            return 4;
        }
        drop(listener);
        // With nobody listening any more, the call does not exist.
        call(libc::SYS_openat, padded(&[0, 0]))
    };
    assert_eq!(in_child(None, listens), libc::ENOSYS);
}

/// Runs a program under the filter. None, with a line that says so, where it is not installed.
fn run(program: &str, args: &[&str]) -> Option<Output> {
    run_in(std::path::Path::new("/"), program, args)
}

fn run_in(directory: &std::path::Path, program: &str, args: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(args).current_dir(directory).stdin(Stdio::null());
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            set_no_new_privs(true)?;
            seccomp::install(default()).map_err(|_| std::io::ErrorKind::PermissionDenied.into())
        });
    }
    match command.output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let _ = writeln!(std::io::stderr(), "SKIP: {program} is not installed");
            None
        }
        Err(e) => panic!("{program}: {e}"),
        Ok(output) => Some(output),
    }
}

#[track_caller]
fn prints(output: Option<Output>, expected: &str) {
    let Some(output) = output else { return };
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains(expected) || stderr.contains(expected), "{stdout}\n{stderr}");
}

#[test]
fn python_works() {
    let code = r#"
import asyncio, multiprocessing, os, socket, sqlite3, subprocess, tempfile, threading
def square(n): return n * n
if __name__ == "__main__":
    threads = [threading.Thread(target=square, args=(n,)) for n in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert subprocess.run(["echo", "hi"], capture_output=True).stdout == b"hi\n"
    async def child():
        p = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
        return (await p.communicate())[0]
    assert asyncio.run(child()) == b"hi\n"
    for how in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(how).Pool(2) as pool:
            assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
    async def echo():
        async def serve(r, w): w.write(await r.read(2)); await w.drain(); w.close()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        r, w = await asyncio.open_connection(*server.sockets[0].getsockname())
        w.write(b"ok"); return await r.read(2)
    assert asyncio.run(echo()) == b"ok"
    socket.getaddrinfo("localhost", 80); socket.if_nameindex()
    os.mkfifo(os.path.join(tempfile.mkdtemp(dir=os.getcwd()), "f"))
    sqlite3.connect("x.db").execute("create table t (a)")
    print("all fine")
"#;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.py"), code).unwrap();
    prints(run_in(dir.path(), "python3", &["t.py"]), "all fine");
}

#[test]
fn node_works() {
    let code = r#"
const { Worker } = require("worker_threads"), fs = require("fs"), cp = require("child_process"), net = require("net");
(async () => {
  await new Promise(r => new Worker("process.exit(0)", { eval: true }).on("exit", r));
  if (cp.execSync("echo hi").toString() !== "hi\n") throw 1;
  await fs.promises.readFile("/etc/passwd");
  fs.watch("/tmp").close();
  require("os").networkInterfaces();
  const s = net.createServer(c => c.end("ok")).listen(0, "127.0.0.1", () =>
    net.connect(s.address().port, "127.0.0.1").on("data", d => { console.log("all", "" + d); s.close(); }));
})();
"#;
    prints(run("node", &["-e", code]), "all ok");
}

#[test]
fn git_works() {
    let dir = tempfile::tempdir().unwrap();
    let script = "git init -q . && echo a > a && git add a && git -c user.name=a -c user.email=a@b commit -qm one && \
                  git clone -q . copy && git gc -q && git log --oneline | cat";
    prints(run_in(dir.path(), "sh", &["-c", script]), "one");
}

#[test]
fn compilers_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    std::fs::write(path.join("t.c"), "#include <stdio.h>\nint main(void) { puts(\"from C\"); return 0; }\n").unwrap();
    prints(
        run_in(path, "sh", &["-c", "command -v gcc >/dev/null || { echo from C; exit; }; gcc -g t.c -o t && ./t"]),
        "from C",
    );
    std::fs::create_dir(path.join("src")).unwrap();
    let manifest = "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    std::fs::write(path.join("Cargo.toml"), manifest).unwrap();
    std::fs::write(path.join("src/main.rs"), "fn main() { println!(\"from Rust\") }").unwrap();
    prints(run_in(path, "cargo", &["run", "-q", "--offline"]), "from Rust");
}

#[test]
fn debuggers_of_own_children_work() {
    prints(run("strace", &["-f", "-e", "trace=execve", "sh", "-c", "/bin/true; echo traced"]), "execve(\"/bin/true\"");
    // A debugger that says that it could not switch randomisation off has lost `personality`.
    let gdb = run("gdb", &["-nx", "-batch", "-ex", "run", "-ex", "info inferiors", "--args", "/bin/echo", "debugged"]);
    if let Some(output) = &gdb {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("randomization"), "{stderr}");
    }
    prints(gdb, "debugged");
}

#[test]
fn other_programs_work() {
    prints(run("java", &["-version"]), "version");
    prints(run("busybox", &["sh", "-c", "busybox seq 3 | busybox wc -l"]), "3");
    prints(run("bash", &["-c", "set -o pipefail; diff <(echo a) <(echo a) && sleep 0.01 & wait; echo done"]), "done");
    prints(run("perl", &["-e", "fork or exit; wait; print 'done'"]), "done");
    prints(run("tar", &["cf", "/dev/null", "/etc/passwd", "--checkpoint-action=exec=true"]), "");
}

#[test]
fn bubblewrap_takes_the_program() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), seccomp::to_bytes(default())).unwrap();
    let script = format!(
        "exec bwrap --bind / / --unshare-pid --seccomp 3 grep Seccomp: /proc/self/status 3<{}",
        file.path().display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    if output.status.code() == Some(127) {
        let _ = writeln!(std::io::stderr(), "SKIP: bwrap is not installed");
        return;
    }
    prints(Some(output), "Seccomp:\t2");
}
