//! Trees that no cgroup limits, counted beside the loop.

use std::process::{Child, Command};

use super::*;

/// A shell with a process below it.
#[derive(Debug)]
struct Bare(Child);

impl GuestSandbox for Bare {
    fn process_id(&self) -> Option<i32> {
        Some(self.0.id().cast_signed())
    }

    fn is_limited(&self) -> bool {
        false
    }

    fn finish(mut self: Box<Self>) -> Result<limits::Usage, EngineError> {
        self.0.kill().and_then(|()| self.0.wait()).map_err(|error| EngineError::Lost(error.to_string()))?;
        Ok(limits::Usage::default())
    }
}

fn bare() -> (Tree, Bell) {
    let bell = Bell::new().unwrap();
    let child = Command::new("sh").args(["-c", "while :; do sleep 1000; done"]).spawn().unwrap();
    (Tree::new(Some(Box::new(Bare(child))), &bell), bell)
}

fn until<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(done) = done() {
            return done;
        }
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn with_memory(memory: u64) -> Limits {
    Limits { memory: Some(memory), ..Limits::default() }
}

#[test]
fn one_that_has_too_much_loses_its_largest() {
    let (mut tree, _bell) = bare();
    let roomy = with_memory(1 << 40);
    until(|| {
        tree.look(&roomy, true, Instant::now());
        (tree.counted().is_some() && tree.usage().processes == Some(1)).then_some(())
    });
    assert_eq!((tree.killed, tree.over), (0, 0));
    let limits = with_memory(1);
    for killed in 1..=3 {
        until(|| {
            tree.look(&limits, true, Instant::now());
            tree.counted();
            (tree.killed >= killed).then_some(())
        });
    }
    assert!(tree.over > 0);
    tree.finish();
    assert_eq!(until(|| tree.finished()), Ok(true));
}

#[test]
fn a_count_that_is_held_up_is_made_without_what_holds_it_up() {
    let (mut tree, _bell) = bare();
    let limits = with_memory(1 << 40);
    let now = Instant::now();
    tree.looked = now - LOOK;
    assert!(tree.look(&limits, true, now));
    // Once only: the answer is awaited.
    assert!(!tree.look(&limits, true, now + LOOK));
    assert_eq!(tree.next(&limits, true), tree.counting.map(|since| since + STUCK));
    // What it brought is not taken.
    assert!(tree.look(&limits, true, Instant::now() + STUCK) && tree.roughly);
    assert!(!until(|| tree.counted()).0);
    assert!(tree.next(&limits, true).is_some_and(|at| at < Instant::now() + STUCK));
    tree.finish();
    assert_eq!(until(|| tree.finished()), Ok(false));
}
