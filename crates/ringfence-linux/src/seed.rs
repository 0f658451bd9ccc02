//! Namespaces that are made beside this process while it still works out what goes into them. They take as long as all the
//! rest of a box, and most of that is the kernel's work for the network.
//!
//! A process that shares this one's memory and descriptors makes them and waits. When the box is known, it forks process 1
//! from the memory as it is then, for this process as the parent, and ends. Its mounts are the host's, or a copy of what all
//! boxes of a kind have ([`Mould`]).

use std::ffi::CString;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, futex, sched_setaffinity};

use crate::beside::{Beside, Elsewhere};
use crate::launch::{self, Begun, Spec, Start};
use crate::mould::{HostMounts, Mould, PATIENCE};
use crate::sys::{self, Fork};

/// What a box is made in; it must be what [`Spec`] says later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Soil {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// Where a user namespace is among them.
    pub maps: Option<Maps>,
}

/// How the user and group ids of a user namespace are mapped, as the kernel takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maps {
    pub uids: CString,
    pub gids: CString,
}

type Process = Beside<Box<dyn FnMut() -> i32 + Send + Sync>>;

/// Namespaces in the making. Dropped without [`Seed::grow`], they are gone.
pub struct Seed {
    soil: Arc<Soil>,
    mould: Option<Arc<Mould>>,
    /// What its mounts are a copy of, where it is to wait and has no mould.
    host: Option<HostMounts>,
    process: Option<Process>,
    looks: usize,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seed").field("soil", &self.soil).finish_non_exhaustive()
    }
}

/// What both processes look at.
#[derive(Default)]
struct Shared {
    /// [`GROW`] when there is an order, [`END`] when there will be none.
    go: AtomicU32,
    order: AtomicPtr<Order>,
    /// Process 1 as the host sees it.
    pid: AtomicI32,
    /// One more than the descriptor of the mount namespace, in the table that both have; 0 where there is none.
    mounts: AtomicI32,
}

const GROW: u32 = 1;
const END: u32 = 2;

impl Shared {
    fn tell(&self, word: u32) {
        self.go.store(word, Ordering::Release);
        let _ = futex::wake(&self.go, futex::Flags::PRIVATE, 1);
    }

    /// The mount namespace that the seed made, for whoever asks first.
    fn mounts(&self) -> Option<OwnedFd> {
        let mounts = self.mounts.swap(0, Ordering::AcqRel);
        // SAFETY: the seed has opened it for this, and whoever takes it leaves 0.
        (mounts > 0).then(|| unsafe { OwnedFd::from_raw_fd(mounts - 1) })
    }
}

/// What is left of a seed when process 1 is there.
pub(crate) struct Husk {
    process: Option<Process>,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Husk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Husk").finish_non_exhaustive()
    }
}

impl Husk {
    /// Waits until it is gone. The mount namespace that it made.
    pub fn join(mut self) -> Option<OwnedFd> {
        self.wait();
        self.shared.mounts()
    }

    fn wait(&mut self) {
        if let Some(process) = self.process.take() {
            let _ = process.join();
        }
    }
}

impl Drop for Husk {
    fn drop(&mut self) {
        self.wait();
        drop(self.shared.mounts());
    }
}

struct Order {
    spec: *const Spec,
    start: *mut Start,
    owner: *const OwnedFd,
}

/// How often one looks for the other before going to sleep, which takes longer to end than a thousand looks. The processor is
/// not offered to others meanwhile: on a busy machine it would be back after milliseconds.
const LOOKS: usize = 10_000;

impl Seed {
    /// Starts to make namespaces that will be wanted soon. Whether that works out is told by [`Seed::grow`].
    pub fn sow(soil: Soil) -> Result<Seed, Errno> {
        let elsewhere = Elsewhere::now();
        let allowed = elsewhere.as_ref().map(|elsewhere| elsewhere.allowed);
        // Who looks keeps the other from working where there is but one.
        let seed = Self::sow_and_look(soil, None, None, if allowed.is_some() { LOOKS } else { 0 }, allowed)?;
        if let (Some(elsewhere), Some(process)) = (elsewhere, &seed.process) {
            process.go(&elsewhere.others);
        }
        Ok(seed)
    }

    /// The same, for a time that nobody knows. `mould`: of the box that it is for; all its mounts but procfs are made then.
    pub fn sow_ahead(soil: Soil, mould: Option<Arc<Mould>>) -> Result<Seed, Errno> {
        let host = if mould.is_none() { Some(HostMounts::now()?) } else { None };
        Self::sow_and_look(soil, mould, host, 0, None)
    }

    /// `allowed`: the processors that process 1 may use, where the seed may not use them all.
    fn sow_and_look(
        soil: Soil,
        mould: Option<Arc<Mould>>,
        host: Option<HostMounts>,
        looks: usize,
        allowed: Option<CpuSet>,
    ) -> Result<Seed, Errno> {
        let (soil, shared) = (Arc::new(soil), Arc::new(Shared::default()));
        let (own_soil, own_mould, own_shared) = (soil.clone(), mould.clone(), shared.clone());
        let owner = rustix::process::getpid();
        let work: Box<dyn FnMut() -> i32 + Send + Sync> = Box::new(move || {
            let Ok(mounts) = prepare(&own_soil, own_mould.as_deref()) else {
                // Nor can the next one be.
                own_mould.iter().for_each(|mould| mould.give_up());
                return 1;
            };
            // In the table that both have: process 1 closes what it does not need.
            own_shared.mounts.store(mounts.into_raw_fd() + 1, Ordering::Release);
            match end_with(owner) {
                Ok(()) => wait_and_fork(&own_shared, own_mould.as_deref(), looks, allowed.as_ref()),
                Err(_) => 1,
            }
        });
        // In a mould, it makes its user namespace there.
        let userns = soil.maps.is_some() && mould.is_none();
        let flags = libc::CLONE_FILES | if userns { libc::CLONE_NEWUSER } else { 0 };
        // From its first moment: a handler of the owner's would run in there, on memory that both have.
        let _blocked = sys::SignalsBlocked::new()?;
        Ok(Seed { soil, mould, host, process: Some(Beside::start_forking(flags, work)?), looks, shared })
    }

    /// Forks process 1 of this box. `None` when that cannot be: the namespaces could not be made, or are not the box's any
    /// more.
    pub(crate) fn grow(mut self, spec: &Spec, start: &mut Start, owner: &OwnedFd) -> Option<(Pid, Husk)> {
        let current = self.mould.as_ref().is_none_or(|mould| mould.is_for(spec))
            && self.host.as_ref().is_none_or(HostMounts::are_the_same);
        if !current || spec.soil() != Some((*self.soil).clone()) {
            return None;
        }
        let mut husk = Husk { process: Some(self.process.take()?), shared: self.shared.clone() };
        let pid = || Pid::from_raw(self.shared.pid.load(Ordering::Acquire));
        let unnamed = start.unnamed;
        let mut order = Order { spec, start, owner };
        self.shared.order.store(&mut order, Ordering::Relaxed);
        self.shared.tell(GROW);
        if let (Some(mould), Some(process)) = (&self.mould, &husk.process)
            && !process.ends_within(PATIENCE)
        {
            mould.give_up();
            process.kill();
        }
        // It uses the order until it has forked. Then it may wait behind process 1 for its processor, and nobody needs it.
        if !look(if unnamed { self.looks } else { 0 }, || pid().is_some()) {
            husk.wait();
        }
        Some((pid()?, husk))
    }
}

impl Drop for Seed {
    /// Not by a signal: between opening a descriptor and writing that down, it would leave it.
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            self.shared.tell(END);
            let _ = process.join();
            drop(self.shared.mounts());
        }
    }
}

/// Everything that does not depend on what goes into the box; the mount namespace. `errno` is the other process's too, so that
/// calls which may well fail go past the C library.
fn prepare(soil: &Soil, mould: Option<&Mould>) -> Result<OwnedFd, Errno> {
    // For good: process 1 takes them over.
    sys::SignalsBlocked::forever()?;
    // Sharing its descriptors, it would not see its owner's end in any other way. Not yet at once, and it is blocked: killed
    // while it has one of its own open, it would leave that to an owner of which only a thread has ended.
    rustix::process::set_parent_process_death_signal(Some(Signal::POWER))?;
    // There is no procfs in a mould that knows this process.
    let this = launch::this_process()?;
    if let Some(mould) = mould {
        mould.enter()?;
    }
    if let Some(maps) = &soil.maps {
        if mould.is_some() {
            sys::unshare(libc::CLONE_NEWUSER as u64)?;
        }
        launch::map_ids(&this, maps)?;
        // Forty calls that nobody has to wait for. What it may do itself stays as it is.
        sys::drop_bounding_set()?;
    }
    sys::unshare(soil.namespaces & !(libc::CLONE_NEWUSER as u64))?;
    if soil.namespaces & libc::CLONE_NEWNET as u64 != 0 {
        launch::loopback_up()?;
    }
    if let Some(mould) = mould {
        mould.complete()?;
    }
    launch::namespace(&this, c"ns/mnt")
}

/// From here on, this process ends with the thread that made it, unless that has ended by now.
fn end_with(owner: Pid) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let gone = sys::has_come(libc::SIGPWR) || rustix::process::getppid() != Some(owner);
    if gone { Err(Errno::SRCH) } else { Ok(()) }
}

/// Whether it came to be meanwhile.
fn look(times: usize, done: impl Fn() -> bool) -> bool {
    (0..times).any(|_| {
        std::hint::spin_loop();
        done()
    })
}

fn wait_and_fork(shared: &Shared, mould: Option<&Mould>, looks: usize, allowed: Option<&CpuSet>) -> i32 {
    look(looks, || shared.go.load(Ordering::Acquire) != 0);
    while shared.go.load(Ordering::Acquire) == 0 {
        let _ = futex::wait(&shared.go, futex::Flags::PRIVATE, 0, None);
    }
    if shared.go.load(Ordering::Acquire) == END {
        return 0;
    }
    // Not before: by now the owner has said where this process runs.
    if let Some(allowed) = allowed
        && sched_setaffinity(None, allowed).is_err()
    {
        return 1;
    }
    let order = shared.order.load(Ordering::Relaxed);
    // SAFETY: `grow` stays in its frame, where the order and what it points to live, until this process has forked, and does
    // not use them meanwhile; afterwards only process 1 does, which has a copy of that memory.
    let (spec, start, owner) = unsafe { (&*(*order).spec, &mut *(*order).start, &*(*order).owner) };
    if mould.is_some_and(|mould| !mould.is_whole()) {
        return 1;
    }
    let begun = mould.map_or(Begun::Namespaces, |_| Begun::Mounts);
    let inside = |group: BorrowedFd<'_>| sys::fork_into(group, libc::CLONE_PARENT as u64, Some(&shared.pid));
    match start.fork(inside, || sys::fork_for_parent(&shared.pid)) {
        Ok(Fork::Parent(_)) => 0,
        Ok(Fork::Child) => launch::process_one(spec, start, None, owner, begun),
        Err(_) => 1,
    }
}
