//! Processes beside this one, in the same memory, that work at the same time.
//!
//! They make system calls only: they allocate nothing and take no lock.

use std::mem::ManuallyDrop;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::pages::Pages;
use crate::sys::{STACK_SIZE, clone_sharing, kill, wait};

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
        Self::start_with(0, Pages::new(STACK_SIZE)?, child)
    }

    /// The same, but it may fork: a stack that is there in its child too, and more `CLONE_*` flags, none of which is about
    /// memory.
    pub(crate) fn start_forking(flags: libc::c_int, child: F) -> Result<Self, Errno> {
        Self::start_with(flags, Pages::copied(STACK_SIZE)?, child)
    }

    fn start_with(flags: libc::c_int, stack: Pages, child: F) -> Result<Self, Errno> {
        let mut memory = ManuallyDrop::new(Box::new((stack, child)));
        let (stack, child) = &mut **memory;
        // SAFETY: both live on and are freed by `join` alone, after the child has ended.
        let pid = unsafe { clone_sharing(stack.end(), flags | libc::CLONE_VM | libc::SIGCHLD, child) }?;
        Ok(Self { pid, memory })
    }

    /// Has it work on some processors only. Where it may not, it waits for its turn.
    pub fn go(&self, to: &CpuSet) {
        let _ = sched_setaffinity(Some(self.pid), to);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Ends it. That it has ended already is what is wanted.
    pub fn kill(&self) {
        let _ = kill(self.pid(), libc::SIGKILL);
    }

    /// Waits for its end, so long. Where that cannot be seen, it has ended.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let Ok(process) = pidfd_open(self.pid, PidfdFlags::empty()) else { return true };
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit))) != Ok(0)
    }

    /// Waits until it has ended.
    pub fn join(mut self) -> Result<(), Errno> {
        wait(self.pid(), true, false)?;
        // SAFETY: the only other user of this memory has just been reaped, and `self` is not used again.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
        Ok(())
    }
}

/// Where a process beside this one can work at the same time. Some kernels put one that is made or woken behind the one that
/// did it, though other processors idle.
#[derive(Debug)]
pub struct Elsewhere {
    /// All that this process may use.
    pub allowed: CpuSet,
    /// Without the one that it is on.
    pub others: CpuSet,
}

impl Elsewhere {
    /// `None` where it may use but one.
    pub fn now() -> Option<Elsewhere> {
        let allowed = sched_getaffinity(None).ok()?;
        let (mut others, here) = (allowed, sched_getcpu());
        if here >= CpuSet::MAX_CPU {
            return None;
        }
        others.unset(here);
        (others.count() > 0).then_some(Elsewhere { allowed, others })
    }
}
