//! Processes beside this one, in the same memory, that work at the same time.
//!
//! They make system calls only: they allocate nothing and take no lock.

use std::mem::ManuallyDrop;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::pages::Pages;
use crate::sys::{STACK_SIZE, Wait, clone_sharing, wait};

/// A process that shares this memory and goes on beside this one, also when this one is killed. [`Beside::join`] gives back
/// what it used; dropped without, that memory is lost rather than freed under its feet.
#[derive(Debug)]
pub struct Beside<F: FnMut() -> i32> {
    pid: Pid,
    memory: ManuallyDrop<Box<(Pages, F)>>,
}

impl<F: FnMut() -> i32> Beside<F> {
    /// `clone(2)` without a copy of the memory. The child must only make system calls, allocate nothing and take no lock;
    /// what it returns is its exit code.
    pub fn start(child: F) -> Result<Self, Errno> {
        Self::start_with(0, child)
    }

    /// The same with more `CLONE_*` flags, none of which is about memory.
    pub(crate) fn start_with(flags: libc::c_int, child: F) -> Result<Self, Errno> {
        let mut memory = ManuallyDrop::new(Box::new((Pages::new(STACK_SIZE)?, child)));
        let (stack, child) = &mut **memory;
        // SAFETY: both live on and are freed by `join` alone, after the child has ended.
        let pid = unsafe { clone_sharing(stack.end(), flags | libc::CLONE_VM | libc::SIGCHLD, child) }?;
        Ok(Self { pid, memory })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until it has ended.
    pub fn join(mut self) -> Result<(), Errno> {
        wait(self.pid(), Wait::UntilEnd)?;
        // SAFETY: the only other user of this memory has just been reaped, and `self` is not used again.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
        Ok(())
    }
}
