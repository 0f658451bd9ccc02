//! The allocator of programs that are linked with musl, whose own takes several times as long: a run asks for memory some
//! thousand times.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;

/// Doug Lea's allocator behind a lock that costs next to nothing while nobody else wants it.
#[derive(Debug)]
pub struct Allocator(Mutex<Heap>);

struct Heap(Dlmalloc);

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Heap")
    }
}

impl Allocator {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Allocator {
        Allocator(Mutex::new(Heap(Dlmalloc::new())))
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the heap belongs to nobody else and is used under its lock alone; sizes and alignments are passed on as they are.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout is the one asked for here.
        unsafe { self.heap().0.malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { self.heap().0.calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller got the pointer from here, with this layout.
        unsafe { self.heap().0.free(pointer, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`; the new size is the caller's.
        unsafe { self.heap().0.realloc(pointer, layout.size(), layout.align(), size) }
    }
}
