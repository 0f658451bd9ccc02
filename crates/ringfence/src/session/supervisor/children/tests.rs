//! Processes that a session needs beside its sandbox, and their end.

use rustix::event::Timespec;

use super::*;

const FIRST: u64 = 4;

fn helper(script: &str, restarts: bool) -> Helper {
    let args = vec!["-c".into(), script.into()];
    Helper { path: "/bin/sh".into(), args, env: vec![("A".into(), "b".into())], restarts }
}

/// What the loop has of them.
struct Loop {
    epoll: OwnedFd,
    bell: Bell,
    children: Children,
}

impl Loop {
    fn new() -> Loop {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let bell = Bell::new().unwrap();
        epoll::add(&epoll, bell.fd(), EventData::new_u64(0), EventFlags::IN).unwrap();
        let children = Children::new(&bell);
        Loop { epoll, bell, children }
    }

    /// Waits until one has ended, or could not be started. When that was, and whether the session ends with it.
    fn wait(&mut self) -> (Instant, bool) {
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        loop {
            let mut events = Vec::with_capacity(1);
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)).unwrap();
            let (number, now) = (events.pop().expect("an event in time").data.u64(), Instant::now());
            if number >= FIRST {
                return (now, self.children.ended(number - FIRST, now));
            }
            self.bell.silence();
            let ends = self.children.started(&self.epoll, FIRST, now);
            if ends || self.children.next().is_some() {
                return (now, ends);
            }
        }
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn one_is_started_again_after_a_while_and_another_ends_the_session() {
    let dir = tempfile::tempdir().unwrap();
    let mut it = Loop::new();
    let log = dir.path().join("log");
    let script = format!("echo $A $(ls /proc/self/fd | wc -l) >> {}; exit 1", log.display());
    it.children.start(helper(&script, true));
    for wait_for in [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT] {
        let (now, ends) = it.wait();
        assert!(!ends);
        assert_eq!(it.children.next(), Some(now + wait_for));
        // Not before its time.
        it.children.look(now);
        assert!(it.children.next().is_some());
        it.children.look(now + wait_for);
        assert_eq!(it.children.next(), None);
    }
    assert!(!it.wait().1);
    // Nothing of ours was handed over: three descriptors, and the one that `ls` reads with.
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.lines().collect::<Vec<_>>(), ["b 4"; 4]);

    let mut it = Loop::new();
    it.children.start(helper("exit 0", false));
    assert!(it.wait().1);
    // One that cannot be started is tried again, or ends the session.
    for restarts in [true, false] {
        let mut it = Loop::new();
        it.children.start(Helper { path: "/nonexistent".into(), ..helper("", restarts) });
        assert_eq!((it.wait().1, it.children.next().is_some()), (!restarts, restarts));
    }
}

#[test]
fn none_survives_its_owner() {
    for dropped in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let mut it = Loop::new();
        it.children.start(helper(&format!("echo $$ > {}; exec sleep 1000", file.display()), true));
        let pid = || std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok());
        until("it runs", || pid().is_some());
        let stat = format!("/proc/{}/stat", pid().unwrap());
        assert!(std::fs::exists(&stat).unwrap());
        if dropped {
            drop(it);
        } else {
            // Its handle is lost: the thread that started it is its owner.
            it.children.started(&it.epoll, FIRST, Instant::now());
            std::mem::forget(std::mem::take(&mut it.children.all));
            drop(it.children.starter.take());
        }
        let ended = || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
        until("it is gone", ended);
    }
}

#[test]
fn an_event_that_is_late_waits_for_no_end() {
    let mut it = Loop::new();
    it.children.start(helper("exec sleep 1000", false));
    let bell = it.bell.clone();
    until("it runs", || {
        rustix::event::poll(&mut [rustix::event::PollFd::new(&bell.fd(), rustix::event::PollFlags::IN)], None) == Ok(1)
    });
    it.children.started(&it.epoll, FIRST, Instant::now());
    assert!(!it.children.ended(0, Instant::now()));
    // Its end is one.
    let ChildState::Runs(Running(child, _), _) = &mut it.children.all[0].state else { panic!("it does not run") };
    child.kill().unwrap();
    assert!(it.wait().1);
}
