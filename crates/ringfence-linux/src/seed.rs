//! Namespaces that are made beside this process while it still works out what goes into them. They take as long as all the
//! rest of a box, and most of that is the kernel's work for the network.
//!
//! A process that shares this one's memory and descriptors makes them and waits. When the box is known, it forks process 1
//! from the memory as it is then, for this process as the parent, and ends. Its mounts are the host's, with those on top that
//! the box is known to begin with (its ground), or a copy of what all boxes of a kind have ([`Mould`]).

use std::ffi::CString;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, futex, sched_setaffinity};

use crate::beside::{Beside, Elsewhere};
use crate::launch::{self, Begun, Seedling};
use crate::mould::{HostMounts, Mould, PATIENCE};
use crate::setup::{Building, Ground, Idmaps, Step};
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
    /// What its mounts are a copy of, where it has no mould.
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
    /// [`GROUND`] when there is one, [`GROW`] when there is a seedling, [`END`] when there will be none.
    go: AtomicU32,
    ground: OnceLock<Ground>,
    seedling: AtomicPtr<Seedling>,
    /// Process 1 as the host sees it.
    pid: AtomicI32,
    /// One more than the descriptor of the mount namespace, in the table that both have; 0 where there is none.
    mounts: AtomicI32,
    /// Where the ground was made: for process 1, in its copy of this memory. Nobody else ever waits for the lock.
    building: Mutex<Option<Building>>,
}

const GROUND: u32 = 1;
const GROW: u32 = 2;
const END: u32 = 4;

impl Shared {
    fn tell(&self, word: u32) {
        self.go.fetch_or(word, Ordering::Release);
        let _ = futex::wake(&self.go, futex::Flags::PRIVATE, 1);
    }

    fn ground(&self) -> &[Step] {
        self.ground.get().map_or(&[], |ground| &ground.steps)
    }

    fn building(&self) -> MutexGuard<'_, Option<Building>> {
        self.building.lock().unwrap_or_else(PoisonError::into_inner)
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
            drop(self.shared.building().take());
        }
    }
}

impl Drop for Husk {
    fn drop(&mut self) {
        self.wait();
        drop(self.shared.mounts());
    }
}

/// A seed that was told what to grow.
pub(crate) struct Growing {
    /// First: as long as it is there, it uses the seedling.
    husk: Husk,
    /// What it grows. Behind a pointer: it is used where it is.
    seedling: Box<Seedling>,
    mould: Option<Arc<Mould>>,
    looks: usize,
}

impl std::fmt::Debug for Growing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Growing").finish_non_exhaustive()
    }
}

impl Growing {
    pub fn is_unnamed(&self) -> bool {
        self.seedling.start.unnamed
    }

    /// Waits until process 1 is there. What it was to be made from, when it is not: the namespaces could not be made.
    pub fn finish(self) -> Result<(Pid, Husk), Seedling> {
        let Growing { seedling, mould, looks, mut husk } = self;
        if let (Some(mould), Some(process)) = (&mould, &husk.process)
            && !process.ends_within(PATIENCE)
        {
            mould.give_up();
            process.kill();
        }
        let shared = husk.shared.clone();
        let pid = || Pid::from_raw(shared.pid.load(Ordering::Acquire));
        // It uses the seedling until it has forked. Then it may wait behind process 1 for its processor, and nobody needs it.
        if !look(if seedling.start.unnamed { looks } else { 0 }, || pid().is_some()) {
            husk.wait();
        }
        pid().map(|pid| (pid, husk)).ok_or(*seedling)
    }
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
        let looks = if allowed.is_some() { LOOKS } else { 0 };
        let seed = Self::sow_and_look(soil, None, Some(HostMounts::now()?), looks, allowed)?;
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
            match wait(&own_shared, owner, looks) {
                Ok(true) => fork(&own_shared, own_mould.as_deref(), allowed.as_ref()),
                Ok(false) => 0,
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

    /// Has it go on with the steps that its box will begin with. Once: others are not made.
    pub fn prepare(&self, ground: Ground) {
        if !ground.steps.is_empty() && self.shared.ground.set(ground).is_ok() {
            self.shared.tell(GROUND);
        }
    }

    /// Whether it makes these namespaces.
    pub fn is_in(&self, soil: &Soil) -> bool {
        *self.soil == *soil
    }

    /// How its first steps map ids, where they do: so must the box.
    pub fn idmaps(&self) -> Option<&Idmaps> {
        self.shared.ground.get()?.idmaps.as_ref()
    }

    /// Has it fork process 1 of this box. The same again when that cannot be: the namespaces are not the box's, or not any
    /// more.
    pub(crate) fn grow(mut self, seedling: Seedling) -> Result<Growing, Seedling> {
        let spec = &seedling.spec;
        let current = self.mould.as_ref().is_none_or(|mould| mould.is_for(spec))
            && self.host.as_ref().is_none_or(HostMounts::are_the_same)
            && spec.soil().is_some_and(|soil| self.is_in(&soil))
            && spec.steps.starts_with(self.shared.ground());
        let Some(process) = self.process.take_if(|_| current) else { return Err(seedling) };
        let mut seedling = Box::new(seedling);
        self.shared.seedling.store(&mut *seedling, Ordering::Relaxed);
        self.shared.tell(GROW);
        let husk = Husk { process: Some(process), shared: self.shared.clone() };
        Ok(Growing { seedling, mould: self.mould.take(), looks: self.looks, husk })
    }
}

impl Drop for Seed {
    /// Not by a signal: between opening a descriptor and writing that down, it would leave it.
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            self.shared.tell(END);
            let _ = process.join();
            drop(self.shared.mounts());
            drop(self.shared.building().take());
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

/// Waits until process 1 is wanted, and makes the ground meanwhile. False when none will be.
fn wait(shared: &Shared, owner: Pid, looks: usize) -> Result<bool, Errno> {
    let told = || shared.go.load(Ordering::Acquire);
    let mut known = 0;
    end_with(owner)?;
    loop {
        look(looks, || told() != known);
        while told() == known {
            let _ = futex::wait(&shared.go, futex::Flags::PRIVATE, known, None);
        }
        let word = told();
        if word & END != 0 {
            return Ok(false);
        }
        if let (0, GROUND, Some(ground)) = (known & GROUND, word & GROUND, shared.ground.get()) {
            // As while the namespaces were made: it has descriptors of its own.
            rustix::process::set_parent_process_death_signal(Some(Signal::POWER))?;
            let building = Building::ground(ground);
            *shared.building() = Some(building?);
            end_with(owner)?;
        }
        if word & GROW != 0 {
            return Ok(true);
        }
        known = word;
    }
}

fn fork(shared: &Shared, mould: Option<&Mould>, allowed: Option<&CpuSet>) -> i32 {
    // Not before: by now the owner has said where this process runs.
    if let Some(allowed) = allowed
        && sched_setaffinity(None, allowed).is_err()
    {
        return 1;
    }
    // SAFETY: `Growing` keeps it in its place until this process has forked or ended, and does not change it meanwhile;
    // afterwards only process 1 uses it, which has a copy of that memory.
    let Seedling { spec, start, owner } = unsafe { &mut *shared.seedling.load(Ordering::Relaxed) };
    if mould.is_some_and(|mould| !mould.is_whole()) {
        return 1;
    }
    let inside = |group: BorrowedFd<'_>| sys::fork_into(group, libc::CLONE_PARENT as u64, Some(&shared.pid));
    match start.fork(inside, || sys::fork_for_parent(&shared.pid)) {
        Ok(Fork::Parent(_)) => 0,
        Ok(Fork::Child) => {
            let building = shared.building().take();
            let begun = match (mould, building) {
                (Some(_), _) => Begun::Mounts,
                (None, Some(building)) => Begun::Ground(building, shared.ground().len()),
                (None, None) => Begun::Namespaces,
            };
            launch::process_one(spec, start, None, owner, begun)
        }
        Err(_) => 1,
    }
}
