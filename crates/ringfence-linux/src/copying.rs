//! Copying and comparing for programs that are linked with musl, whose own compare byte by byte and take long to begin with a
//! copy: a run does both some ten thousand times, with short paths.
//!
//! In assembly, since whatever a compiler makes of a loop that copies may be a call of the function that it stands in.

#[cfg(all(target_arch = "x86_64", any(test, target_env = "musl")))]
macro_rules! define {
    ($memcpy:literal, $memmove:literal, $memcmp:literal, $bcmp:literal) => {
        std::arch::global_asm!(
            concat!(".globl ", $memcpy),
            concat!(".globl ", $memmove),
            concat!(".type ", $memcpy, ", @function"),
            concat!(".type ", $memmove, ", @function"),
            ".p2align 4",
            concat!($memcpy, ":"),
            concat!($memmove, ":"),
            "mov rax, rdi",
            "cmp rdx, 16",
            "jb 4f",
            "movdqu xmm0, [rsi]",
            "movdqu xmm1, [rsi + rdx - 16]",
            "cmp rdx, 32",
            "ja 2f",
            "movdqu [rdi], xmm0",
            "movdqu [rdi + rdx - 16], xmm1",
            "ret",
            "2: cmp rdx, 64",
            "ja 3f",
            "movdqu xmm2, [rsi + 16]",
            "movdqu xmm3, [rsi + rdx - 32]",
            "movdqu [rdi], xmm0",
            "movdqu [rdi + 16], xmm2",
            "movdqu [rdi + rdx - 32], xmm3",
            "movdqu [rdi + rdx - 16], xmm1",
            "ret",
            // Forwards, unless the target begins inside the source.
            "3: mov rcx, rdi",
            "sub rcx, rsi",
            "cmp rcx, rdx",
            "jb 32f",
            "cmp rdx, 1024",
            "ja 33f",
            "lea r8, [rdi + rdx - 16]",
            "31: movdqu xmm0, [rsi]",
            "movdqu [rdi], xmm0",
            "add rsi, 16",
            "add rdi, 16",
            "sub rdx, 16",
            "cmp rdx, 16",
            "ja 31b",
            "movdqu [r8], xmm1",
            "ret",
            "32: movdqu xmm2, [rsi + rdx - 16]",
            "movdqu [rdi + rdx - 16], xmm2",
            "sub rdx, 16",
            "cmp rdx, 16",
            "ja 32b",
            "movdqu [rdi], xmm0",
            "ret",
            "33: mov rcx, rdx",
            "rep movsb",
            "ret",
            "4: cmp rdx, 8",
            "jb 5f",
            "mov rcx, [rsi]",
            "mov r8, [rsi + rdx - 8]",
            "mov [rdi], rcx",
            "mov [rdi + rdx - 8], r8",
            "ret",
            "5: cmp rdx, 4",
            "jb 6f",
            "mov ecx, [rsi]",
            "mov r8d, [rsi + rdx - 4]",
            "mov [rdi], ecx",
            "mov [rdi + rdx - 4], r8d",
            "ret",
            "6: cmp rdx, 2",
            "jb 7f",
            "movzx ecx, word ptr [rsi]",
            "movzx r8d, byte ptr [rsi + rdx - 1]",
            "mov [rdi], cx",
            "mov [rdi + rdx - 1], r8b",
            "ret",
            "7: test rdx, rdx",
            "jz 8f",
            "movzx ecx, byte ptr [rsi]",
            "mov [rdi], cl",
            "8: ret",
            concat!(".size ", $memcpy, ", . - ", $memcpy),
            concat!(".size ", $memmove, ", . - ", $memmove),
        );
        std::arch::global_asm!(
            concat!(".globl ", $memcmp),
            concat!(".globl ", $bcmp),
            concat!(".type ", $memcmp, ", @function"),
            concat!(".type ", $bcmp, ", @function"),
            ".p2align 4",
            concat!($memcmp, ":"),
            concat!($bcmp, ":"),
            "xor eax, eax",
            "cmp rdx, 16",
            "jb 4f",
            "2: movdqu xmm0, [rdi]",
            "movdqu xmm1, [rsi]",
            "pcmpeqb xmm0, xmm1",
            "pmovmskb ecx, xmm0",
            "xor ecx, 0xffff",
            "jnz 3f",
            "add rdi, 16",
            "add rsi, 16",
            "sub rdx, 16",
            "cmp rdx, 16",
            "jae 2b",
            "test rdx, rdx",
            "jz 9f",
            // The last sixteen bytes, some of them for the second time.
            "lea rdi, [rdi + rdx - 16]",
            "lea rsi, [rsi + rdx - 16]",
            "mov edx, 16",
            "jmp 2b",
            "3: bsf ecx, ecx",
            "movzx eax, byte ptr [rdi + rcx]",
            "movzx ecx, byte ptr [rsi + rcx]",
            "sub eax, ecx",
            "ret",
            "4: cmp rdx, 8",
            "jb 6f",
            "mov rcx, [rdi]",
            "mov r8, [rsi]",
            "cmp rcx, r8",
            "jne 5f",
            "mov rcx, [rdi + rdx - 8]",
            "mov r8, [rsi + rdx - 8]",
            "cmp rcx, r8",
            "je 9f",
            "5: bswap rcx",
            "bswap r8",
            "cmp rcx, r8",
            "sbb eax, eax",
            "or eax, 1",
            "ret",
            "6: test rdx, rdx",
            "jz 9f",
            "7: movzx eax, byte ptr [rdi]",
            "movzx ecx, byte ptr [rsi]",
            "sub eax, ecx",
            "jnz 9f",
            "inc rdi",
            "inc rsi",
            "dec rdx",
            "jnz 7b",
            "9: ret",
            concat!(".size ", $memcmp, ", . - ", $memcmp),
            concat!(".size ", $bcmp, ", . - ", $bcmp),
        );
    };
}

#[cfg(all(target_arch = "x86_64", target_env = "musl", not(test)))]
define!("memcpy", "memmove", "memcmp", "bcmp");

#[cfg(all(target_arch = "x86_64", test))]
define!("ringfence_memcpy", "ringfence_memmove", "ringfence_memcmp", "ringfence_bcmp");

#[cfg(all(target_arch = "x86_64", test))]
mod tests {
    unsafe extern "C" {
        fn ringfence_memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8;
        fn ringfence_memcmp(a: *const u8, b: *const u8, length: usize) -> i32;
    }

    fn lengths() -> impl Iterator<Item = usize> {
        (0..200).chain([255, 256, 1000, 1023, 1024, 1025, 1040, 4000])
    }

    #[test]
    fn copies_whatever_overlaps() {
        let bytes: Vec<u8> = (0..8192u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for length in lengths() {
            for (from, to) in
                [(0, 4096), (4096, 0), (9, 10), (10, 9), (100, 117), (117, 100), (50, 50), (1, 1000), (1000, 1)]
            {
                let (mut ours, mut expected) = (bytes.clone(), bytes.clone());
                expected.copy_within(from..from + length, to);
                // SAFETY: both ranges are in the vector.
                let returned = unsafe {
                    let start = ours.as_mut_ptr();
                    ringfence_memmove(start.add(to), start.add(from), length) == start.add(to)
                };
                assert!(returned && ours == expected, "{length} from {from} to {to}");
            }
        }
    }

    #[test]
    fn compares_as_unsigned_bytes() {
        for length in lengths() {
            let a: Vec<u8> = (0..length).map(|i| (i * 31) as u8).collect();
            // SAFETY: as long as is said.
            let compare = |a: &[u8], b: &[u8]| unsafe { ringfence_memcmp(a.as_ptr(), b.as_ptr(), a.len()) };
            assert_eq!(compare(&a, &a.clone()), 0, "{length}");
            for at in 0..length {
                for (mut other, after) in [(a.clone(), 0u8), (a.clone(), 255)] {
                    other[at] = other[at].wrapping_add(if after == 0 { 1 } else { 200 });
                    if at + 1 < length {
                        other[at + 1] = after;
                    }
                    assert_eq!(compare(&a, &other).signum(), a.cmp(&other) as i32, "{length} at {at}");
                }
            }
        }
    }
}
