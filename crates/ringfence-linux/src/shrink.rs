//! An idle process 1 gives its memory back. It is a copy of its owner, whose heap, threads' stacks and page tables it has no
//! use for; all it needs is its code, its static data and the stack that it runs on.
//!
//! What is given up is all private anonymous memory but that around the stack pointer and the thread pointer, and but what
//! directly follows a mapped file, which is its zero-initialised static data.

use std::ffi::CStr;
use std::ops::Range;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Kept around the stack pointer, below and above. Everything that is still used lies in frames within it.
const STACK: (usize, usize) = (32 << 10, 64 << 10);
/// Kept around the thread pointer: the C library's own record of the thread lies above, thread-local variables below.
const THREAD: (usize, usize) = (32 << 10, 16 << 10);

/// Unmaps what an idle process 1 does not need.
///
/// # Safety
/// This is the only thread, and it never again touches the heap, another thread's stack, or a frame further above than
/// [`STACK`].
pub(crate) unsafe fn give_back() -> Result<(), Errno> {
    let here = 0u8;
    let kept = [window(std::ptr::from_ref(&here) as usize, STACK), window(thread_pointer(), THREAD)];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let maps = rustix::fs::open(MAPS, flags, Mode::empty())?;
    let mut lines = Lines { buffer: [0; 2048], filled: 0, used: 0 };
    let mut before = Before::default();
    loop {
        // The file is read on while its subject changes: the kernel goes on where it was, by address.
        let line = match lines.next(&maps)? {
            None => return Ok(()),
            Some(line) => line,
        };
        let Some(area) = Area::parse(line) else { continue };
        let of_a_file = area.file || (before.of_a_file && before.end == area.range.start && !area.named);
        before = Before { end: area.range.end, of_a_file };
        if !area.anonymous || of_a_file {
            continue;
        }
        let mut start = area.range.start;
        // Sorted, so that what lies between them is found from below upwards.
        let mut windows = kept.clone();
        windows.sort_unstable_by_key(|w| w.start);
        for window in windows {
            unmap(start..window.start.clamp(start, area.range.end));
            start = window.end.clamp(start, area.range.end);
        }
        unmap(start..area.range.end);
    }
}

const MAPS: &CStr = c"/proc/self/maps";

#[derive(Default)]
struct Before {
    end: usize,
    of_a_file: bool,
}

fn window(at: usize, (below, above): (usize, usize)) -> Range<usize> {
    let page = rustix::param::page_size();
    let down = |address: usize| address & !(page - 1);
    down(at.saturating_sub(below))..down(at.saturating_add(above)) + page
}

fn unmap(range: Range<usize>) {
    if !range.is_empty() {
        // SAFETY: the caller of `give_back` promises that nothing in it is used again; both ends are page boundaries. That
        // it cannot be done costs memory, and nothing else.
        unsafe { libc::munmap(range.start as *mut libc::c_void, range.len()) };
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Area {
    range: Range<usize>,
    /// Private, writable, and of no file.
    anonymous: bool,
    file: bool,
    /// `[heap]` and the like.
    named: bool,
}

impl Area {
    /// `start-end perms offset device inode name`
    fn parse(line: &[u8]) -> Option<Area> {
        let mut words = line.split(|b| *b == b' ').filter(|word| !word.is_empty());
        let (range, perms, _offset, _device) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let inode = words.next()?;
        let name = words.next();
        let dash = range.iter().position(|b| *b == b'-')?;
        let file = inode != b"0";
        // The kernel's own pages have names too; those of a stack or heap are as good as unnamed ones.
        let ordinary = matches!(name, None | Some(b"[heap]" | b"[stack]"));
        Some(Area {
            range: hex(&range[..dash])?..hex(&range[dash + 1..])?,
            anonymous: !file && ordinary && perms == b"rw-p",
            file,
            named: name.is_some(),
        })
    }
}

fn hex(digits: &[u8]) -> Option<usize> {
    digits.iter().try_fold(0usize, |n, d| Some(n << 4 | (*d as char).to_digit(16)? as usize))
}

/// Lines of a file, without memory for it. One that is too long is an error, and the rest stays as it is.
struct Lines {
    buffer: [u8; 2048],
    filled: usize,
    used: usize,
}

impl Lines {
    fn next(&mut self, file: &std::os::fd::OwnedFd) -> Result<Option<&[u8]>, Errno> {
        loop {
            let rest = &self.buffer[self.used..self.filled];
            if let Some(end) = rest.iter().position(|b| *b == b'\n') {
                let start = self.used;
                self.used += end + 1;
                return Ok(Some(&self.buffer[start..start + end]));
            }
            self.buffer.copy_within(self.used..self.filled, 0);
            self.filled -= self.used;
            self.used = 0;
            if self.filled == self.buffer.len() {
                return Err(Errno::NAMETOOLONG);
            }
            match rustix::io::read(file, &mut self.buffer[self.filled..])? {
                0 => return Ok(None),
                n => self.filled += n,
            }
        }
    }
}

/// Where the C library's record of this thread is.
fn thread_pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the word at the thread pointer is, by the ABI, the thread pointer itself; reading it changes nothing.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags))
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reading the register changes nothing.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags))
    };
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let area = |line: &str| Area::parse(line.as_bytes()).map(|a| (a.range, a.anonymous, a.file, a.named));
        assert_eq!(
            area("0cfc4000-0cfe6000 rw-p 00000000 00:00 0                          [heap]"),
            Some((0x0cfc_4000..0x0cfe_6000, true, false, true))
        );
        assert_eq!(area("7f00-7f10 rw-p 00000000 00:00 0"), Some((0x7f00..0x7f10, true, false, false)));
        assert_eq!(area("7f00-7f10 ---p 00000000 00:00 0"), Some((0x7f00..0x7f10, false, false, false)));
        assert_eq!(area("4ee000-4f2000 rw-p 000ed000 fe:00 12 /a b"), Some((0x4e_e000..0x4f_2000, false, true, true)));
        assert_eq!(
            area("7f00-7f10 rw-s 00000000 00:01 7 /dev/zero (deleted)"),
            Some((0x7f00..0x7f10, false, true, true))
        );
        assert_eq!(
            area("7fff00-7fff10 r--p 00000000 00:00 0 [vvar]"),
            Some((0x7f_ff00..0x7f_ff10, false, false, true))
        );
        assert_eq!(area("nonsense"), None);
    }

    /// In a child of its own: it still works afterwards, and has less.
    #[test]
    fn works_on_with_less() {
        let resident = |pid: i32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
            let field = |name: &str| {
                let line = text.lines().find(|l| l.starts_with(name)).unwrap();
                line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
            };
            field("Anonymous:")
        };
        let much = vec![1u8; 8 << 20];
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (wait, go) = rustix::pipe::pipe().unwrap();
        match crate::sys::fork(0).unwrap() {
            crate::sys::Fork::Child => {
                // SAFETY: from here on there are system calls with values of this frame alone.
                let result = unsafe { give_back() };
                let said = [u8::from(result.is_ok())];
                let _ = rustix::io::write(&write, &said);
                drop(go);
                let _ = rustix::io::read(&wait, &mut [0u8; 1]);
                crate::sys::exit_now(0)
            }
            crate::sys::Fork::Parent(pid) => {
                let mut said = [0u8; 1];
                rustix::io::read(&read, &mut said).unwrap();
                let (own, child) = (resident(std::process::id() as i32), resident(pid.as_raw_nonzero().get()));
                drop(go);
                let waited = crate::sys::wait(pid.as_raw_nonzero().get(), true, false).unwrap().unwrap();
                assert_eq!((said, waited.status), ([1], 0));
                assert!(own > 8 << 10 && child < 1 << 10, "{own} KiB and {child} KiB");
            }
        }
        drop(much);
    }
}
