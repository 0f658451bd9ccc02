//! The starter: the last step inside a box that another program built.
//!
//! A builder such as bubblewrap executes a program in the finished box, but cannot tell its own messages from that
//! program's, nor its own failures from that program's status, and hands its signal mask on. So it executes this first: a
//! few instructions that take the command's descriptors, close all others, set its limits, say that the box stands,
//! unblock signals and become the command, or say why not. It needs nothing of the box but `/proc`: it is handed over as
//! an open file, and nothing of it is left when the command runs.
//!
//! Arguments: the program, then the command's `argv`. A script without an interpreter line is given to `/bin/sh`.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Where the starter writes: a zero when the box stands, then an error number when the command could not be executed.
pub const REPORT: i32 = 3;
/// The first of the three descriptors that become the command's standard ones.
pub const STDIO: i32 = 4;
/// The starter itself.
pub const SELF: i32 = 7;
/// What the builder executes.
pub const PATH: &str = "/proc/self/fd/7";

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .rodata.ringfence_starter, \"a\", @progbits",
    ".balign 8",
    ".globl ringfence_starter_start",
    "ringfence_starter_start:",
    "mov rbx, rsp", // argc, argv[0] (the starter), argv[1] (the program), argv[2] (the command's own argv) …
    // dup3(4, 0, 0), dup3(5, 1, 0), dup3(6, 2, 0)
    "xor r12d, r12d",
    "2: lea edi, [r12 + 4]",
    "mov esi, r12d",
    "xor edx, edx",
    "mov eax, 292",
    "syscall",
    "test rax, rax",
    "js 9f",
    "inc r12d",
    "cmp r12d, 3",
    "jne 2b",
    // close_range(3, ~0, CLOSE_RANGE_CLOEXEC)
    "mov edi, 3",
    "mov esi, -1",
    "mov edx, 4",
    "mov eax, 436",
    "syscall",
    "test rax, rax",
    "js 9f",
    // prlimit64(0, resource, limit, NULL) for each entry of the table behind the code
    "lea r12, [rip + ringfence_starter_end]",
    "3: mov rsi, [r12]",
    "cmp rsi, -1",
    "je 4f",
    "xor edi, edi",
    "lea rdx, [r12 + 8]",
    "xor r10d, r10d",
    "mov eax, 302",
    "syscall",
    "test rax, rax",
    "js 9f",
    "add r12, 24",
    "jmp 3b",
    // write(3, &0u64, 4): the box stands. Nobody reads: the owner is gone
    "4: push 0",
    "mov edi, 3",
    "mov rsi, rsp",
    "mov edx, 4",
    "mov eax, 1",
    "syscall",
    "test rax, rax",
    "js 9f",
    // rt_sigprocmask(SIG_SETMASK, &0u64, NULL, 8)
    "mov edi, 2",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "test rax, rax",
    "js 9f",
    // execve(argv[1], argv + 2, envp)
    "mov rdi, [rbx + 16]",
    "lea rsi, [rbx + 24]",
    "mov rax, [rbx]",
    "lea rdx, [rbx + rax*8 + 16]",
    "mov eax, 59",
    "syscall",
    "cmp rax, -8", // ENOEXEC
    "jne 9f",
    // execve("/bin/sh", {"/bin/sh", program, rest of argv}, envp)
    "mov rax, [rbx + 16]",
    "mov [rbx + 24], rax",
    "lea rdi, [rip + 8f]",
    "mov [rbx + 16], rdi",
    "lea rsi, [rbx + 16]",
    "mov eax, 59",
    "syscall",
    // write(3, &errno, 4); exit_group(125)
    "9: neg eax",
    "push rax",
    "mov edi, 3",
    "mov rsi, rsp",
    "mov edx, 4",
    "mov eax, 1",
    "syscall",
    "mov edi, 125",
    "mov eax, 231",
    "syscall",
    "ud2",
    "8: .asciz \"/bin/sh\"",
    ".balign 8",
    ".globl ringfence_starter_end",
    "ringfence_starter_end:",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .rodata.ringfence_starter, \"a\", @progbits",
    ".balign 8",
    ".globl ringfence_starter_start",
    "ringfence_starter_start:",
    "mov x19, sp",
    "mov x20, #0",
    "2: add x0, x20, #4",
    "mov x1, x20",
    "mov x2, #0",
    "mov x8, #24", // dup3
    "svc #0",
    "tbnz x0, #63, 9f",
    "add x20, x20, #1",
    "cmp x20, #3",
    "b.ne 2b",
    "mov x0, #3",
    "mov w1, #-1",
    "mov x2, #4",
    "mov x8, #436", // close_range
    "svc #0",
    "tbnz x0, #63, 9f",
    "adr x20, ringfence_starter_end",
    "3: ldr x1, [x20]",
    "cmn x1, #1",
    "b.eq 4f",
    "mov x0, #0",
    "add x2, x20, #8",
    "mov x3, #0",
    "mov x8, #261", // prlimit64
    "svc #0",
    "tbnz x0, #63, 9f",
    "add x20, x20, #24",
    "b 3b",
    "4: str xzr, [sp, #-16]!",
    "mov x0, #3",
    "mov x1, sp",
    "mov x2, #4",
    "mov x8, #64", // write
    "svc #0",
    "tbnz x0, #63, 9f",
    "mov x0, #2",
    "mov x1, sp",
    "mov x2, #0",
    "mov x3, #8",
    "mov x8, #135", // rt_sigprocmask
    "svc #0",
    "tbnz x0, #63, 9f",
    "ldr x0, [x19, #16]",
    "add x1, x19, #24",
    "ldr x2, [x19]",
    "add x2, x19, x2, lsl #3",
    "add x2, x2, #16",
    "mov x21, x2",
    "mov x8, #221", // execve
    "svc #0",
    "cmn x0, #8", // ENOEXEC
    "b.ne 9f",
    "ldr x0, [x19, #16]",
    "str x0, [x19, #24]",
    "adr x0, 8f",
    "str x0, [x19, #16]",
    "add x1, x19, #16",
    "mov x2, x21",
    "mov x8, #221", // execve
    "svc #0",
    "9: neg x0, x0",
    "str x0, [sp, #-16]!",
    "mov x0, #3",
    "mov x1, sp",
    "mov x2, #4",
    "mov x8, #64", // write
    "svc #0",
    "mov x0, #125",
    "mov x8, #94", // exit_group
    "svc #0",
    "udf #0",
    "8: .asciz \"/bin/sh\"",
    ".balign 8",
    ".globl ringfence_starter_end",
    "ringfence_starter_end:",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// The instructions, which run at any address.
fn code() -> &'static [u8] {
    unsafe extern "C" {
        static ringfence_starter_start: u8;
        static ringfence_starter_end: u8;
    }
    let (start, end) = (&raw const ringfence_starter_start, &raw const ringfence_starter_end);
    // SAFETY: both symbols are defined above, in this order, in one read-only section that nothing else contributes to
    // between them; all bytes from one to the other are initialised and live as long as the program.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

const BASE: u64 = 0x40_0000;
pub(crate) const HEADERS: u64 = 64 + 2 * 56;

/// Instructions as a program: two headers, the code, and a table behind it.
pub(crate) fn image(code: &[u8], table: &[u64]) -> Vec<u8> {
    let size = HEADERS + code.len() as u64 + table.len() as u64 * 8;
    let mut image = Vec::with_capacity(size as usize);
    image.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    image.extend([2u16, MACHINE].iter().flat_map(|v| v.to_le_bytes())); // an executable
    image.extend(1u32.to_le_bytes());
    image.extend([BASE + HEADERS, 64, 0].iter().flat_map(|v| v.to_le_bytes())); // entry, program headers, no sections
    image.extend(0u32.to_le_bytes());
    image.extend([64u16, 56, 2, 0, 0, 0].iter().flat_map(|v| v.to_le_bytes()));
    // PT_LOAD, readable and executable: all of it.
    image.extend([1u32, 5].iter().flat_map(|v| v.to_le_bytes()));
    image.extend([0, BASE, BASE, size, size, 0x1_0000].iter().flat_map(|v| v.to_le_bytes()));
    // PT_GNU_STACK, readable and writable.
    image.extend([0x6474_e551u32, 6].iter().flat_map(|v| v.to_le_bytes()));
    image.extend([0u64, 0, 0, 0, 0, 16].iter().flat_map(|v| v.to_le_bytes()));
    image.extend_from_slice(code);
    image.extend(table.iter().flat_map(|v| v.to_le_bytes()));
    image
}

/// The starter as an open, sealed file, with these limits (`RLIMIT_*`, value).
pub fn open(limits: &[(u32, u64)]) -> Result<OwnedFd, Errno> {
    let mut table: Vec<u64> =
        limits.iter().flat_map(|(resource, value)| [u64::from(*resource), *value, *value]).collect();
    table.push(u64::MAX);
    sealed(c"ringfence-starter", &image(code(), &table), MemfdFlags::EXEC)
}

/// A file in memory that nobody can change any more.
pub fn sealed_file(name: &std::ffi::CStr, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    sealed(name, bytes, MemfdFlags::NOEXEC_SEAL)
}

/// A program in memory that nobody can change any more.
pub fn sealed_program(name: &std::ffi::CStr, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    sealed(name, bytes, MemfdFlags::EXEC)
}

fn sealed(name: &std::ffi::CStr, bytes: &[u8], exec: MemfdFlags) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match rustix::fs::memfd_create(name, flags | exec) {
        // Before Linux 6.3 there was nothing to choose.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the starter the way a builder does, with the descriptors that it expects.
    fn start(limits: &[(u32, u64)], args: &str) -> (String, Option<i32>, Vec<u8>) {
        let file = open(limits).unwrap();
        let report = tempfile::NamedTempFile::new().unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let script = format!(
            "exec 7</proc/self/fd/{fd} 3>{report} 4</dev/null 5>&1 6>&2 8</dev/null >/dev/null 2>&1; exec {PATH} {args}",
            fd = std::os::fd::AsRawFd::as_raw_fd(&file),
            report = report.path().display()
        );
        let out = std::process::Command::new("/bin/bash").args(["-c", &script]).output().unwrap();
        (String::from_utf8(out.stdout).unwrap(), out.status.code(), std::fs::read(report.path()).unwrap())
    }

    #[test]
    fn becomes_the_command() {
        let (out, code, report) = start(&[], "/bin/sh name -c 'echo $0 $1; ls /proc/self/fd; exit 7' a b");
        assert_eq!(out, "a b\n0\n1\n2\n3\n", "3 is the directory that ls reads");
        assert_eq!(code, Some(7));
        assert_eq!(report, 0u32.to_ne_bytes());
    }

    #[test]
    fn sets_limits() {
        let (out, ..) = start(
            &[(libc::RLIMIT_NOFILE as _, 33), (libc::RLIMIT_CORE as _, 0)],
            "/bin/sh sh -c 'ulimit -n; ulimit -c'",
        );
        assert_eq!(out, "33\n0\n");
    }

    #[test]
    fn says_why_it_cannot() {
        let (_, code, report) = start(&[], "/no/such/program x");
        assert_eq!(code, Some(125));
        assert_eq!(report, [0u32.to_ne_bytes(), 2u32.to_ne_bytes()].concat());
    }

    #[test]
    fn gives_plain_scripts_to_the_shell() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, "echo plain $0 $1\n").unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (out, code, _) = start(&[], &format!("{} name one", script.display()));
        assert_eq!((out, code), (format!("plain {} one\n", script.display()), Some(0)));
    }
}
