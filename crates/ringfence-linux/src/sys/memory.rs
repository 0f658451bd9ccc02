//! The allocator of programs that are linked with musl, whose own takes several times as long: a run asks for memory some
//! thousand times.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use dlmalloc::Dlmalloc;

/// Doug Lea's allocator behind a lock that is held for some dozen instructions, and costs next to nothing while nobody else
/// wants it.
pub struct Allocator {
    taken: AtomicBool,
    heap: UnsafeCell<Dlmalloc>,
}

// SAFETY: the heap is used by whoever has taken it alone.
unsafe impl Sync for Allocator {}

impl std::fmt::Debug for Allocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Allocator")
    }
}

impl Allocator {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Allocator {
        Allocator { taken: AtomicBool::new(false), heap: UnsafeCell::new(Dlmalloc::new()) }
    }

    #[inline]
    fn with<R>(&self, act: impl FnOnce(&mut Dlmalloc) -> R) -> R {
        while self.taken.swap(true, Ordering::Acquire) {
            rustix::thread::sched_yield();
        }
        // SAFETY: taken, and nothing in `act` asks for memory in another way or unwinds.
        let done = act(unsafe { &mut *self.heap.get() });
        self.taken.store(false, Ordering::Release);
        done
    }
}

// SAFETY: the heap belongs to nobody else and is used under its lock alone; sizes and alignments are passed on as they are.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout is the one asked for here.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller got the pointer from here, with this layout.
        self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`; the new size is the caller's.
        self.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), size) })
    }
}
