//! The allocator of programs that are linked with musl, whose own takes several times as long: a run asks for memory some
//! thousand times. What is large goes back to the kernel when it is freed, so that a process which lives long is only as
//! large as what it holds.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{copy_nonoverlapping, null_mut};

use dlmalloc::GlobalDlmalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// Mapped for itself from this size on. Below, mapping costs more than it saves.
const LARGE: usize = 512 << 10;
/// The kernel's mappings begin at multiples of this.
const PAGE: usize = 4096;

#[derive(Debug)]
pub struct Allocator;

/// Whether such a piece of memory is mapped for itself. Its layout alone says so, as long as it lives.
fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

fn map(size: usize) -> *mut u8 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: without an address, the kernel takes a place that nothing else is mapped at.
    let mapped = unsafe { mmap_anonymous(null_mut(), size, access, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), |start| start.cast())
}

// SAFETY: memory of a large layout comes from `map` and of any other from `GlobalDlmalloc`. Each is freed by the one it came
// from, since the caller passes the layout that it was asked for with. A new mapping is aligned to a page and zeroed.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { GlobalDlmalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        // SAFETY: as above.
        unsafe { GlobalDlmalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if is_large(&layout) {
            // It can fail where the process has as many mappings as it may. Then the memory stays, unused.
            // SAFETY: this is a whole mapping of `map` of this size, and the caller does not use it any more.
            let _ = unsafe { munmap(start.cast(), layout.size()) };
            return;
        }
        // SAFETY: as above.
        unsafe { GlobalDlmalloc.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a size that is valid with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(&layout), is_large(&new)) {
            // SAFETY: as above.
            (false, false) => unsafe { GlobalDlmalloc.realloc(start, layout, size) },
            (true, true) => {
                // SAFETY: this is a whole mapping of `map` of this size; the caller uses only what is returned.
                let moved = unsafe { mremap(start.cast(), layout.size(), size, MremapFlags::MAYMOVE) };
                moved.map_or(null_mut(), |start| start.cast())
            }
            _ => {
                // SAFETY: the size is not 0: one of both layouts is large, and the caller asks for no empty one.
                let moved = unsafe { self.alloc(new) };
                if !moved.is_null() {
                    // SAFETY: both are at least so long, and a new piece of memory overlaps no other. The old one is
                    // not used any more by the contract of this function.
                    unsafe {
                        copy_nonoverlapping(start, moved, layout.size().min(size));
                        self.dealloc(start, layout);
                    }
                }
                moved
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
    }

    #[test]
    fn what_is_large_keeps_its_contents_and_goes_back() {
        let layout = |size: usize| Layout::from_size_align(size, 8).unwrap();
        let mut size = 1000;
        // SAFETY: each piece is used within its size, and freed once with its last layout.
        unsafe {
            let mut start = Allocator.alloc(layout(size));
            for (at, byte) in (0u8..200).enumerate() {
                start.add(at).write(byte);
            }
            for next in [LARGE - 1, LARGE, 64 << 20, 2 * LARGE, 700] {
                start = Allocator.realloc(start, layout(size), next);
                assert!(!start.is_null());
                size = next;
                assert!((0u8..200).enumerate().all(|(at, byte)| start.add(at).read() == byte), "{next}");
            }
            Allocator.dealloc(start, layout(size));
            let before = resident();
            let all: Vec<*mut u8> = (0..64).map(|_| Allocator.alloc_zeroed(layout(1 << 20))).collect();
            for start in &all {
                assert_eq!(start.read(), 0);
                start.write_bytes(1, 1 << 20);
            }
            assert!(resident() > before + (60 << 20));
            all.into_iter().for_each(|start| Allocator.dealloc(start, layout(1 << 20)));
            assert!(resident() < before + (32 << 20));
        }
    }
}
