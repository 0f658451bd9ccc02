//! The instructions of a nursery: what forks a warm program, and what is process 1 of each fork.
//!
//! They are one small file. The warm program maps it and calls [`serve`](Program::serve), which returns in forks alone, when
//! their walls stand. Process 1 of a fork executes the file: a program without memory of anybody's, which reaps, forwards
//! signals and says how the command ended.
//!
//! Why not the program's own code: a fork of an interpreter that runs the interpreter copies each page that it touches, and
//! process 1 would hold such a copy to its end. So the one that makes the walls borrows the nursery's memory (`CLONE_VM`), and
//! the nursery stands still meanwhile (`CLONE_VFORK`), until it has executed this file. Only the command's process is a copy.
//! The file cannot be read by whom it runs for, so that the kernel lets nobody look into process 1 from its first moment on.
//!
//! Descriptors of a nursery: 3 is the socket to its owner, 4 this file; what comes with a request follows from 5 on.

use crate::starter;

/// What a nursery maps and executes.
#[derive(Debug)]
pub struct Program {
    /// An ELF file.
    pub file: Vec<u8>,
    /// Where in the file the function is that forks. Its one argument is a list of words: see the table at the code.
    pub serve: usize,
}

impl Program {
    pub fn new() -> Program {
        unsafe extern "C" {
            static ringfence_nursery_start: u8;
            static ringfence_nursery_serve: u8;
            static ringfence_nursery_end: u8;
        }
        let (start, end) = (&raw const ringfence_nursery_start, &raw const ringfence_nursery_end);
        let serve = (&raw const ringfence_nursery_serve).addr() - start.addr();
        // SAFETY: the symbols are defined below, in this order, in one read-only section that nothing else contributes to
        // between them; all bytes from the first to the last are initialised and live as long as the program.
        let code = unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) };
        Program { file: starter::image(code, &[]), serve: starter::HEADERS as usize + serve }
    }
}

impl Default for Program {
    fn default() -> Self {
        Self::new()
    }
}

// The words that `serve` is given, of 8 bytes each:
//    0 socket to the owner          8 `msghdr` for requests        16 room for their descriptors
//   24 flags of clone              32 end of a stack               40 where clone puts the descriptor of process 1
//   48 calls of process 1          56 `fork` of the C library      64 calls of process 1 after it; the last one executes
//   72 calls of the command        80 `msghdr` for answers         88 room for their descriptor
//   96 where the error number goes 104 offset of rseq's area       112 its size, or 0
//  120 the stack of the caller   128 calls of the nursery itself  136 those for a new network
//  144 those for the network that came with the request
// A request is one byte: 'f' for a fork as it is, 'n' for one with a new network, 's' for one with the same as another had.
// A call is nine words: stage, number, six arguments, the only right result. A negative number ends a list.

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .rodata.ringfence_nursery, \"a\", @progbits",
    ".balign 16",
    ".globl ringfence_nursery_start",
    ".globl ringfence_nursery_serve",
    ".globl ringfence_nursery_end",
    // Process 1: descriptor 0 leads to the owner, all signals are blocked, process 2 is the command.
    "ringfence_nursery_start:",
    // prctl(PR_SET_DUMPABLE, 0)
    "mov edi, 4",
    "xor esi, esi",
    "mov eax, 157",
    "syscall",
    "sub rsp, 64",
    "mov qword ptr [rsp], -1", // all signals; [rsp + 8] is a status, [rsp + 16] a message
    // rt_sigtimedwait(&all, NULL, NULL, 8)
    "2: mov rdi, rsp",
    "xor esi, esi",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 128",
    "syscall",
    "test rax, rax",
    "jle 2b",
    "mov r13, rax",
    "cmp r13d, 17", // SIGCHLD
    "je 4f",
    // kill(-2, signal), or kill(2, signal) where that is nobody
    "mov rdi, -2",
    "mov rsi, r13",
    "mov eax, 62",
    "syscall",
    "test rax, rax",
    "jns 2b",
    "mov edi, 2",
    "mov rsi, r13",
    "mov eax, 62",
    "syscall",
    "jmp 2b",
    // wait4(-1, &status, WNOHANG | WUNTRACED, NULL)
    "4: mov rdi, -1",
    "lea rsi, [rsp + 8]",
    "mov edx, 3",
    "xor r10d, r10d",
    "mov eax, 61",
    "syscall",
    "test rax, rax",
    "jle 2b",
    "cmp eax, 2",
    "jne 4b",
    "mov ecx, [rsp + 8]",
    "mov eax, 5", // EXITED
    "cmp cl, 0x7f",
    "jne 5f",
    "shr ecx, 8",
    "movzx ecx, cl",
    "mov eax, 4", // STOPPED
    // write(0, {kind, status, 0}, 12)
    "5: mov [rsp + 16], eax",
    "mov [rsp + 20], ecx",
    "mov dword ptr [rsp + 24], 0",
    "xor edi, edi",
    "lea rsi, [rsp + 16]",
    "mov edx, 12",
    "mov eax, 1",
    "syscall",
    "jmp 4b",
    ".balign 16",
    // The nursery: request after request. Returns 0 in the command's process of each fork.
    "ringfence_nursery_serve:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov rbx, rdi",
    "mov [rbx + 120], rsp",
    "xor r13d, r13d",
    "mov r12, [rbx + 128]",
    "call 7f",
    // recvmsg(socket, request, MSG_CMSG_CLOEXEC), of one byte
    "2: mov rsi, [rbx + 8]",
    "mov rax, [rbx + 16]",
    "mov [rsi + 40], rax",
    "mov rdi, [rbx]",
    "mov edx, 0x40000000",
    "mov eax, 47",
    "syscall",
    "cmp rax, 1",
    "jne 9f",
    "mov rsi, [rbx + 8]",
    "mov rsi, [rsi + 16]",
    "mov rsi, [rsi]",
    "movzx eax, byte ptr [rsi]",
    "mov r12, [rbx + 136]",
    "cmp al, 'n'",
    "je 3f",
    "mov r12, [rbx + 144]",
    "cmp al, 's'",
    "jne 5f",
    // A network that cannot be had is answered, as a fork that cannot be made is.
    "3: lea r13, [rip + 11f]",
    "call 7f",
    // clone(flags, stack, &process, NULL, 0): this process waits until the other has executed or ended
    "5: mov rdi, [rbx + 24]",
    "mov rsi, [rbx + 32]",
    "mov rdx, [rbx + 40]",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jz 4f",
    "jmp 10f",
    "11: neg rax",
    // sendmsg(socket, answer, MSG_NOSIGNAL): the descriptor of process 1, or why there is none
    "10: mov rsi, [rbx + 80]",
    "mov rcx, [rbx + 88]",
    "xor edx, edx",
    "test rax, rax",
    "jns 3f",
    "mov edx, eax",
    "neg edx",
    "xor ecx, ecx",
    "3: mov [rsi + 40], rcx",
    "mov rcx, [rbx + 96]",
    "mov [rcx], edx",
    "mov rdi, [rbx]",
    "mov edx, 0x4000",
    "mov eax, 46",
    "syscall",
    // close_range(5, ~0, 0)
    "mov edi, 5",
    "mov esi, -1",
    "xor edx, edx",
    "mov eax, 436",
    "syscall",
    "jmp 2b",
    // exit_group(0): the owner is gone
    "9: xor edi, edi",
    "mov eax, 231",
    "syscall",
    "ud2",
    // Process 1, in the nursery's memory on a stack of its own.
    "4: xor r13d, r13d",
    "mov r12, [rbx + 48]",
    "call 7f",
    "call qword ptr [rbx + 56]",
    "mov r12, [rbx + 64]",
    "test eax, eax",
    "jz 5f",
    "mov rax, -11",
    "js 8f",
    "call 7f",
    "mov rax, -71",
    "jmp 8f",
    // The command's process, in a copy of that memory: rseq(fs:0 + offset, size, 0, signature), which a fork of one that
    // shares memory does not have; then back to whom called `serve`.
    "5: mov rsi, [rbx + 112]",
    "test rsi, rsi",
    "jz 6f",
    "mov rdi, fs:0",
    "add rdi, [rbx + 104]",
    "xor edx, edx",
    "mov r10d, 0x53053053",
    "mov eax, 334",
    "syscall",
    "6: mov r12, [rbx + 72]",
    "call 7f",
    "mov rsp, [rbx + 120]",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "xor eax, eax",
    "ret",
    // Makes the calls of the list at r12.
    "7: mov rax, [r12 + 8]",
    "test rax, rax",
    "js 3f",
    "mov rdi, [r12 + 16]",
    "mov rsi, [r12 + 24]",
    "mov rdx, [r12 + 32]",
    "mov r10, [r12 + 40]",
    "mov r8, [r12 + 48]",
    "mov r9, [r12 + 56]",
    "syscall",
    "cmp rax, [r12 + 64]",
    "jne 8f",
    "add r12, 72",
    "jmp 7b",
    "3: ret",
    // write(5, {FAILED, stage, error number}, 12), exit_group(125). A result that is wrong and no error is EPROTO.
    "8: neg rax",
    "lea rcx, [rax - 1]",
    "cmp rcx, 4095",
    "jb 3f",
    "mov eax, 71",
    // The nursery goes on where r13 says.
    "3: test r13, r13",
    "jz 3f",
    "mov rsp, [rbx + 120]",
    "jmp r13",
    "3: sub rsp, 16",
    "mov ecx, [r12]",
    "mov dword ptr [rsp], 1",
    "mov [rsp + 4], ecx",
    "mov [rsp + 8], eax",
    "mov edi, 5",
    "mov rsi, rsp",
    "mov edx, 12",
    "mov eax, 1",
    "syscall",
    "mov edi, 125",
    "mov eax, 231",
    "syscall",
    "ud2",
    ".balign 8",
    "ringfence_nursery_end:",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .rodata.ringfence_nursery, \"a\", @progbits",
    ".balign 16",
    ".globl ringfence_nursery_start",
    ".globl ringfence_nursery_serve",
    ".globl ringfence_nursery_end",
    "ringfence_nursery_start:",
    "mov x0, #4",
    "mov x1, #0",
    "mov x8, #167", // prctl
    "svc #0",
    "sub sp, sp, #64",
    "mov x9, #-1",
    "str x9, [sp]",
    "2: mov x0, sp",
    "mov x1, #0",
    "mov x2, #0",
    "mov x3, #8",
    "mov x8, #137", // rt_sigtimedwait
    "svc #0",
    "cmp x0, #0",
    "b.le 2b",
    "mov x19, x0",
    "cmp x19, #17", // SIGCHLD
    "b.eq 4f",
    "mov x0, #-2",
    "mov x1, x19",
    "mov x8, #129", // kill
    "svc #0",
    "tbz x0, #63, 2b",
    "mov x0, #2",
    "mov x1, x19",
    "mov x8, #129", // kill
    "svc #0",
    "b 2b",
    "4: mov x0, #-1",
    "add x1, sp, #8",
    "mov x2, #3",
    "mov x3, #0",
    "mov x8, #260", // wait4
    "svc #0",
    "cmp x0, #0",
    "b.le 2b",
    "cmp w0, #2",
    "b.ne 4b",
    "ldr w9, [sp, #8]",
    "mov w10, #5", // EXITED
    "and w11, w9, #0xff",
    "cmp w11, #0x7f",
    "b.ne 5f",
    "ubfx w9, w9, #8, #8",
    "mov w10, #4", // STOPPED
    "5: stp w10, w9, [sp, #16]",
    "str wzr, [sp, #24]",
    "mov x0, #0",
    "add x1, sp, #16",
    "mov x2, #12",
    "mov x8, #64", // write
    "svc #0",
    "b 4b",
    ".balign 16",
    "ringfence_nursery_serve:",
    "stp x29, x30, [sp, #-160]!",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "stp d8, d9, [sp, #96]",
    "stp d10, d11, [sp, #112]",
    "stp d12, d13, [sp, #128]",
    "stp d14, d15, [sp, #144]",
    "mov x19, x0",
    "mov x9, sp",
    "str x9, [x19, #120]",
    "mov x21, #0",
    "ldr x20, [x19, #128]",
    "bl 7f",
    "2: ldr x1, [x19, #8]",
    "ldr x9, [x19, #16]",
    "str x9, [x1, #40]",
    "ldr x0, [x19]",
    "mov x2, #0x40000000",
    "mov x8, #212", // recvmsg
    "svc #0",
    "cmp x0, #1",
    "b.ne 9f",
    "ldr x1, [x19, #8]",
    "ldr x1, [x1, #16]",
    "ldr x1, [x1]",
    "ldrb w9, [x1]",
    "ldr x20, [x19, #136]",
    "cmp w9, #110", // 'n'
    "b.eq 3f",
    "ldr x20, [x19, #144]",
    "cmp w9, #115", // 's'
    "b.ne 5f",
    "3: adr x21, 11f",
    "bl 7f",
    "5: ldr x0, [x19, #24]",
    "ldr x1, [x19, #32]",
    "ldr x2, [x19, #40]",
    "mov x3, #0",
    "mov x4, #0",
    "mov x8, #220", // clone
    "svc #0",
    "cbz x0, 4f",
    "b 10f",
    "11: neg x0, x0",
    "10: ldr x1, [x19, #80]",
    "ldr x9, [x19, #88]",
    "mov w10, #0",
    "tbz x0, #63, 3f",
    "neg w10, w0",
    "mov x9, #0",
    "3: str x9, [x1, #40]",
    "ldr x9, [x19, #96]",
    "str w10, [x9]",
    "ldr x0, [x19]",
    "mov x2, #0x4000",
    "mov x8, #211", // sendmsg
    "svc #0",
    "mov x0, #5",
    "mov w1, #-1",
    "mov x2, #0",
    "mov x8, #436", // close_range
    "svc #0",
    "b 2b",
    "9: mov x0, #0",
    "mov x8, #94", // exit_group
    "svc #0",
    "udf #0",
    "4: mov x21, #0",
    "ldr x20, [x19, #48]",
    "bl 7f",
    "ldr x9, [x19, #56]",
    "blr x9",
    "ldr x20, [x19, #64]",
    "cbz w0, 5f",
    "mov x9, x0",
    "mov x0, #-11",
    "tbnz w9, #31, 8f",
    "bl 7f",
    "mov x0, #-71",
    "b 8f",
    "5: ldr x1, [x19, #112]",
    "cbz x1, 6f",
    "mrs x0, tpidr_el0",
    "ldr x9, [x19, #104]",
    "add x0, x0, x9",
    "mov x2, #0",
    "movz w3, #0xbc00",
    "movk w3, #0xd428, lsl #16",
    "mov x8, #293", // rseq
    "svc #0",
    "6: ldr x20, [x19, #72]",
    "bl 7f",
    "ldr x9, [x19, #120]",
    "mov sp, x9",
    "ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp d8, d9, [sp, #96]",
    "ldp d10, d11, [sp, #112]",
    "ldp d12, d13, [sp, #128]",
    "ldp d14, d15, [sp, #144]",
    "ldp x29, x30, [sp], #160",
    "mov x0, #0",
    "ret",
    "7: ldr x8, [x20, #8]",
    "tbnz x8, #63, 3f",
    "ldp x0, x1, [x20, #16]",
    "ldp x2, x3, [x20, #32]",
    "ldp x4, x5, [x20, #48]",
    "svc #0",
    "ldr x9, [x20, #64]",
    "cmp x0, x9",
    "b.ne 8f",
    "add x20, x20, #72",
    "b 7b",
    "3: ret",
    "8: neg x0, x0",
    "sub x9, x0, #1",
    "cmp x9, #4095",
    "b.lo 3f",
    "mov x0, #71",
    "3: cbz x21, 3f",
    "ldr x9, [x19, #120]",
    "mov sp, x9",
    "br x21",
    "3: sub sp, sp, #16",
    "mov w9, #1",
    "ldr w10, [x20]",
    "stp w9, w10, [sp]",
    "str w0, [sp, #8]",
    "mov x0, #5",
    "mov x1, sp",
    "mov x2, #12",
    "mov x8, #64", // write
    "svc #0",
    "mov x0, #125",
    "mov x8, #94", // exit_group
    "svc #0",
    "udf #0",
    ".balign 8",
    "ringfence_nursery_end:",
    ".popsection",
);
