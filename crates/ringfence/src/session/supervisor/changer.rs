//! Changes of the sandbox from outside are made by threads beside the loop: the kernel may take its time for one. They wait for
//! no disk. One thread freezes and thaws and another sets limits, each in the order in which it was asked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfence_policy::limits::Limits;

use super::super::info::LimitChange;
use super::beside::{Bell, Beside};
use super::executions::Place;
use crate::engines::{Control, EngineError};

/// So many changes may wait before others than `Thaw` are refused.
const MOST_WAITING: usize = 64;

/// What a client asks for that is done to the sandbox from outside.
#[derive(Debug, Clone)]
pub enum Change {
    Freeze,
    Thaw,
    /// These limits from now on, and `room` processes more than they say.
    Limits {
        change: LimitChange,
        /// Has none of those.
        others: Box<Limits>,
        room: u64,
    },
}

/// A change that was asked for, for a client's stream.
#[derive(Debug)]
struct Ask {
    place: Place,
    control: Arc<dyn Control>,
    change: Change,
}

/// What came of one.
#[derive(Debug)]
pub struct Made {
    pub place: Place,
    pub what: What,
    pub result: Result<(), EngineError>,
}

#[derive(Debug)]
pub enum What {
    Frozen,
    Thawed,
    /// These hold, also where others could not be set.
    Limited(LimitChange),
}

#[derive(Debug)]
pub struct Changer {
    bell: Bell,
    freezer: Option<Beside<Ask, Made>>,
    limiter: Option<Beside<Ask, Made>>,
    /// The session ends: nothing is to be frozen any more.
    closed: Arc<AtomicBool>,
}

impl Changer {
    pub fn new(bell: &Bell) -> Changer {
        Changer { bell: bell.clone(), freezer: None, limiter: None, closed: Arc::default() }
    }

    fn threads(&mut self) -> impl Iterator<Item = &mut Beside<Ask, Made>> {
        self.freezer.iter_mut().chain(&mut self.limiter)
    }

    /// Whether so much waits that nothing but a thaw is taken.
    pub fn is_full(&mut self) -> bool {
        self.threads().map(|thread| thread.waiting()).sum::<usize>() >= MOST_WAITING
    }

    /// Has it made. Most sessions never ask for any: the thread is started for the first one.
    pub fn give(&mut self, place: Place, control: Arc<dyn Control>, change: Change) -> io::Result<()> {
        let thread = match change {
            Change::Freeze | Change::Thaw => &mut self.freezer,
            Change::Limits { .. } => &mut self.limiter,
        };
        let thread = match thread {
            Some(thread) => thread,
            None => {
                let closed = Arc::clone(&self.closed);
                let work = move |Ask { place, control, change }| {
                    let (what, result) = make(&*control, change, &closed);
                    Made { place, what, result }
                };
                thread.insert(Beside::start("changes", &self.bell, work)?)
            }
        };
        thread.give(Ask { place, control, change });
        Ok(())
    }

    /// What was made since.
    pub fn take(&mut self) -> Vec<Made> {
        self.threads().flat_map(Beside::take).collect()
    }

    /// From now on nothing stays frozen that is thawed after this.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }
}

fn make(control: &dyn Control, change: Change, closed: &AtomicBool) -> (What, Result<(), EngineError>) {
    match change {
        Change::Freeze => (What::Frozen, freeze_unless(closed, || control.freeze(), || control.thaw())),
        Change::Thaw => (What::Thawed, control.thaw()),
        Change::Limits { change, others, room } => {
            let (held, result) = one_by_one(change, |LimitChange { memory, cpus, processes, .. }| {
                // A file of the kernel takes no more than that.
                let pids = processes.map(|n| n.saturating_add(room).min(i64::MAX as u64));
                control.set(&Limits { memory, cpus, pids, ..(*others).clone() })
            });
            (What::Limited(held), result)
        }
    }
}

/// Whoever closes thaws after that. What was frozen meanwhile is thawed here.
fn freeze_unless<E>(
    closed: &AtomicBool,
    freeze: impl FnOnce() -> Result<(), E>,
    thaw: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    if closed.load(Ordering::SeqCst) {
        return Ok(());
    }
    freeze()?;
    if closed.load(Ordering::SeqCst) { thaw() } else { Ok(()) }
}

/// Sets each limit by itself, up to the first that cannot be set: those that hold. The supervisor itself keeps the time
/// limit, which therefore always holds.
fn one_by_one<E>(
    change: LimitChange,
    mut set: impl FnMut(LimitChange) -> Result<(), E>,
) -> (LimitChange, Result<(), E>) {
    let LimitChange { memory, cpus, processes, timeout } = change;
    let none = LimitChange::default();
    let mut held = LimitChange { timeout, ..none };
    let all = [LimitChange { processes, ..none }, LimitChange { memory, ..none }, LimitChange { cpus, ..none }];
    for one in all.into_iter().filter(|one| *one != none) {
        if let Err(error) = set(one) {
            return (held, Err(error));
        }
        held = LimitChange {
            memory: held.memory.or(one.memory),
            cpus: held.cpus.or(one.cpus),
            processes: held.processes.or(one.processes),
            timeout,
        };
    }
    (held, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_of_a_change_that_fails_is_known() {
        let change = LimitChange { memory: Some(1), cpus: Some(0.5), processes: Some(7), timeout: None };
        assert_eq!(one_by_one(change, |_| Ok::<_, ()>(())), (change, Ok(())));
        let mut asked = Vec::new();
        let (held, result) = one_by_one(change, |one| {
            asked.push(one);
            if one.memory.is_some() { Err(()) } else { Ok(()) }
        });
        assert_eq!((held, result), (LimitChange { processes: Some(7), ..LimitChange::default() }, Err(())));
        assert_eq!(asked.len(), 2);
        // What is not asked for is not touched.
        let memory = LimitChange { memory: Some(1), ..LimitChange::default() };
        assert_eq!(one_by_one(memory, |one| if one == memory { Ok(()) } else { Err(()) }), (memory, Ok(())));
    }

    #[test]
    fn nothing_stays_frozen_once_it_was_closed() {
        let frozen = AtomicBool::new(false);
        let set = |value: bool| {
            frozen.store(value, Ordering::SeqCst);
            Ok::<_, ()>(())
        };
        let closed = AtomicBool::new(false);
        freeze_unless(&closed, || set(true), || set(false)).unwrap();
        assert!(frozen.load(Ordering::SeqCst));
        set(false).unwrap();
        // It closes while this freezes, and its thaw may have come before.
        let closing = || {
            closed.store(true, Ordering::SeqCst);
            set(true)
        };
        freeze_unless(&closed, closing, || set(false)).unwrap();
        assert!(!frozen.load(Ordering::SeqCst));
        freeze_unless(&closed, || set(true), || set(false)).unwrap();
        assert!(!frozen.load(Ordering::SeqCst));
    }
}
