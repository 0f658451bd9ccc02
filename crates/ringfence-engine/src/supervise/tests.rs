//! A real box, and how each way to its end is told.

use super::*;
use crate::engines::{self, StdioSpec};
use ringfence_policy::layer::Layer;
use ringfence_policy::layers::{Inputs, resolve};
use ringfence_policy::plan::plan;

/// Waits for nothing; gives up when it is told to.
#[derive(Default)]
struct Patience {
    give_up_at: Option<Instant>,
    drained: bool,
}

impl Companion for Patience {
    fn wants(&self) -> Vec<Wanted<'_>> {
        Vec::new()
    }
    fn ready(&mut self, _: usize, _: PollFlags, _: &Running) -> Result<(), Errno> {
        Ok(())
    }
    fn give_up_at(&self) -> Option<Instant> {
        self.give_up_at
    }
    fn drain(&mut self) -> Result<(), Errno> {
        self.drained = true;
        Ok(())
    }
}

fn null() -> OwnedFd {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap().into()
}

/// Runs a script in a box with these flags.
fn run(script: &str, flags: impl FnOnce(&mut Layer), patience: &mut Patience) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let facts = crate::facts::gather().unwrap();
    let mut layer = Layer::flags();
    layer.network(false);
    flags(&mut layer);
    let inputs = Inputs::new(dir.path().canonicalize().unwrap(), facts.home.clone(), layer);
    let policy = resolve(inputs).unwrap().policy;
    let plan = plan(&policy, &facts, &["sh".into(), "-c".into(), script.into()]).unwrap();
    let engine = crate::engines::native::ENGINE;
    let running = engines::start(
        engine,
        &plan,
        &engine.promise(&plan, &facts).unwrap(),
        &facts,
        StdioSpec::Files([null(), null(), null()]),
    )
    .unwrap();
    supervise(running, &policy, &facts, patience).unwrap()
}

#[test]
fn how_a_command_ends_by_itself() {
    let table = [
        ("exit 0", Ended::Exited(0)),
        ("exit 7", Ended::Exited(7)),
        ("kill -TERM $$", Ended::Signaled(libc::SIGTERM)),
        // What is left behind ends with the command.
        ("sleep 1000 & exit 3", Ended::Exited(3)),
    ];
    for (script, ended) in table {
        let mut patience = Patience::default();
        let outcome = run(script, |_| {}, &mut patience);
        assert_eq!((outcome.ended, outcome.reason), (ended, None), "{script}");
        assert!(patience.drained, "{script}");
    }
}

#[test]
fn time_is_up_politely_and_then_by_force() {
    let half = |layer: &mut Layer| layer.timeout("500ms").unwrap();
    let polite = run("trap 'exit 5' TERM; while :; do sleep 0.05; done", half, &mut Patience::default());
    assert_eq!((polite.ended, polite.reason), (Ended::Exited(5), Some(Reason::Time)));
    assert!(polite.duration >= Duration::from_millis(500), "{:?}", polite.duration);
    let deaf = run("trap '' TERM; while :; do sleep 0.05; done", half, &mut Patience::default());
    assert_eq!((deaf.ended, deaf.reason), (Ended::Signaled(libc::SIGKILL), Some(Reason::Time)));
    assert!(deaf.duration >= GRACE, "{:?}", deaf.duration);
    // One that is stopped cannot see the signal; it is ended all the same.
    let stopped = run("kill -STOP $$", half, &mut Patience::default());
    assert_eq!(stopped.reason, Some(Reason::Time));
}

#[test]
fn processor_time_counts_for_the_tree() {
    let outcome = run(
        "(while :; do :; done) & (while :; do :; done) & wait",
        |layer| layer.cpu_time("1s").unwrap(),
        &mut Patience::default(),
    );
    assert_eq!(outcome.reason, Some(Reason::CpuTime), "{outcome:?}");
    assert!(outcome.cpu >= Duration::from_millis(900), "{:?}", outcome.cpu);
}

#[test]
fn a_companion_that_gives_up_ends_it() {
    let mut patience = Patience { give_up_at: Some(Instant::now() + Duration::from_millis(200)), drained: false };
    let outcome = run("sleep 1000", |_| {}, &mut patience);
    assert_eq!((outcome.ended, outcome.reason), (Ended::Signaled(libc::SIGKILL), Some(Reason::Cancelled)));
}

#[test]
fn signals_have_names() {
    assert_eq!(signal_name(libc::SIGTERM), "SIGTERM (signal 15)");
    assert_eq!(signal_name(64), "signal 64");
}
