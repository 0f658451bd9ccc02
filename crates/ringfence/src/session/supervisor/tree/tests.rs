//! Trees that no cgroup limits, counted beside the loop.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

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

impl Drop for Bare {
    fn drop(&mut self) {
        // With what is below the shell. It may be gone.
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

fn bare() -> (Tree, Bell) {
    let bell = Bell::new().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "while :; do sleep 1000; done"]).process_group(0).stdin(Stdio::null());
    // What is left of a test that failed holds no output of the test run.
    let child = shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
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

/// The next count is held up until what this returns is dropped.
fn hold_up(tree: &mut Tree, bell: &Bell) -> Sender<()> {
    let (held, holds) = channel();
    let work = move |ask| {
        let _ = holds.recv();
        count(ask)
    };
    tree.counter = Some(Beside::start("held", bell, work).unwrap());
    held
}

fn since(tree: &Tree) -> Option<Instant> {
    tree.counting.as_ref().map(|(since, _)| *since)
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
        (tree.counted(&roomy).is_some() && tree.usage().processes == Some(1)).then_some(())
    });
    assert_eq!((tree.killed, tree.over), (0, 0));
    let limits = with_memory(1);
    for killed in 1..=3 {
        until(|| {
            tree.look(&limits, true, Instant::now());
            tree.counted(&limits);
            (tree.killed >= killed).then_some(())
        });
    }
    assert!(tree.over > 0);
    tree.finish();
    assert_eq!(until(|| tree.finished()), Ok(true));
}

#[test]
fn a_count_that_is_held_up_is_made_without_what_holds_it_up() {
    let (mut tree, bell) = bare();
    let limits = with_memory(1 << 40);
    let now = Instant::now();
    tree.looked = now - LOOK;
    let held = hold_up(&mut tree, &bell);
    assert!(tree.look(&limits, true, now).is_some());
    // Once only: the answer is awaited.
    assert!(tree.look(&limits, true, now + LOOK).is_none());
    assert_eq!(tree.next(&limits, true), since(&tree).map(|since| since + STUCK));
    assert!(tree.look(&limits, true, Instant::now() + STUCK).is_some());
    assert_eq!((tree.stuck.len(), until(|| tree.counted(&limits)).0), (1, None));
    assert!(tree.counting.is_none());
    // It is back: what held it up is counted again, and what it brought is not taken.
    drop(held);
    until(|| tree.counted(&limits).is_none().then_some(()).filter(|()| tree.stuck.is_empty()));
    tree.finish();
    assert_eq!(until(|| tree.finished()), Ok(false));
}

#[test]
fn memory_is_watched_while_clients_ask() {
    for (memory, least) in [(1, 2), (1 << 40, 0)] {
        let (mut tree, _bell) = bare();
        let (limits, begun) = (with_memory(memory), Instant::now());
        let mut answered = 0;
        until(|| {
            tree.count_for((7, 1), &limits);
            tree.look(&limits, true, Instant::now());
            answered += tree.counted(&limits).map_or(0, |(_, answers)| answers.len());
            (tree.killed >= least && answered >= 20 && tree.looked > begun + LOOK).then_some(())
        });
        // No faster than without them: what was killed needs its time to go.
        let most = if least == 0 { 0 } else { begun.elapsed().as_millis() / LOOK.as_millis() + 1 };
        assert!(u128::from(tree.killed) <= most, "{} of {most}", tree.killed);
        tree.finish();
        assert!(until(|| tree.finished()).is_ok());
    }
}

#[test]
fn a_client_is_answered_while_counts_are_held_up() {
    for frozen in [false, true] {
        let (mut tree, bell) = bare();
        let limits = with_memory(1 << 40);
        tree.frozen = frozen.then(Instant::now);
        let mut held = Vec::new();
        for at in 1..=MOST_STUCK as u32 {
            held.push(hold_up(&mut tree, &bell));
            assert!(tree.count_for((7, at), &limits) && tree.count_for((8, at), &limits));
            let late = tree.next(&limits, false).unwrap();
            assert_eq!(Some(late), since(&tree).map(|since| since + STUCK));
            let (end, answers) = tree.look(&limits, false, late).unwrap();
            assert_eq!((end.is_some(), answers), (at == MOST_STUCK as u32, vec![(7, at), (8, at)]));
            // While it stands still nothing is looked at again; else the next count is held up in its turn.
            assert_eq!(tree.counting.is_none(), frozen || end.is_some());
            tree.counting = None;
        }
        // No further thread is lost. Clients hear what is known.
        assert!(!tree.count_for((7, 9), &limits) && tree.asking.is_empty());
        drop(held);
        until(|| {
            tree.counted(&limits);
            tree.stuck.is_empty().then_some(())
        });
        assert!(tree.count_for((7, 10), &limits));
        assert_eq!(tree.unanswered(), [(7, 10)]);
        tree.finish();
        assert_eq!(until(|| tree.finished()), Ok(false));
    }
}

/// Takes long to thaw.
#[derive(Debug)]
struct Slow(std::sync::Mutex<Receiver<()>>);

impl Control for Slow {
    fn can_freeze(&self) -> bool {
        true
    }

    fn can_limit(&self) -> bool {
        false
    }

    fn freeze(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn thaw(&self) -> Result<(), EngineError> {
        let _ = self.0.lock().unwrap().recv();
        Ok(())
    }

    fn set(&self, _limits: &Limits) -> Result<(), EngineError> {
        Ok(())
    }

    fn load(&self) -> limits::Load {
        limits::Load::default()
    }
}

#[test]
fn the_end_waits_for_no_thaw_and_says_what_failed() {
    let (mut tree, _bell) = bare();
    let (thaw, thaws) = channel();
    tree.control = Some(Arc::new(Slow(thaws.into())));
    tree.finish();
    assert_eq!(tree.finished(), None);
    drop(thaw);
    assert_eq!(until(|| tree.finished()), Ok(false));
    // There was no thread for it.
    tree.ender = Some(Err(io::Error::from_raw_os_error(libc::EAGAIN)));
    assert!(tree.finished().unwrap().unwrap_err().contains("thread"));
}
