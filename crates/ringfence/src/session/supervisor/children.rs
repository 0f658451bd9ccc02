//! Processes of this host that belong to a session: started, watched, started again where they may be, and ended with it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_linux::detach;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process that ends again at once is started after so long, and then after twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// One that ran for so long did well.
const WELL: Duration = Duration::from_secs(60);

/// What is to run.
#[derive(Debug, Clone)]
pub struct Program {
    pub path: PathBuf,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    /// It is started again when it ends. Otherwise the session ends with it.
    pub restarts: bool,
}

/// All of them, under the numbers that the poller has them by.
#[derive(Debug, Default)]
pub struct Children(Vec<Owned>);

#[derive(Debug)]
struct Owned {
    program: Program,
    /// `None`: it waits for its next start.
    running: Option<(Child, OwnedFd)>,
    started: Instant,
    wait: Duration,
}

impl Children {
    /// Starts one, and has the poller wait for its end: `first` is the number of the first one.
    #[cfg_attr(not(test), expect(dead_code, reason = "the gateway will be the first one"))]
    pub fn start(&mut self, epoll: &OwnedFd, first: u64, program: Program) -> std::io::Result<()> {
        let running = Some(start(epoll, first + self.0.len() as u64, &program)?);
        self.0.push(Owned { program, running, started: Instant::now(), wait: FIRST_WAIT });
        Ok(())
    }

    /// The poller says that one has ended. True: the session ends with it.
    pub fn ended(&mut self, number: u64, now: Instant) -> bool {
        let Some(owned) = usize::try_from(number).ok().and_then(|at| self.0.get_mut(at)) else { return false };
        let Some((mut child, _)) = owned.running.take() else { return false };
        // It has ended: there is nothing to wait for, and how it did so is nobody's question.
        let _ = child.wait();
        if now.saturating_duration_since(owned.started) >= WELL {
            owned.wait = FIRST_WAIT;
        }
        // From now on it is when its wait began.
        owned.started = now;
        !owned.program.restarts
    }

    /// When the next one is to be started again.
    pub fn next(&self) -> Option<Instant> {
        self.0.iter().filter(|owned| owned.running.is_none()).map(|owned| owned.started + owned.wait).min()
    }

    /// Starts those again that have waited. One that cannot be started waits once more.
    pub fn look(&mut self, epoll: &OwnedFd, first: u64, now: Instant) {
        for (number, owned) in (first..).zip(&mut self.0) {
            if owned.running.is_none() && now >= owned.started + owned.wait {
                owned.running = start(epoll, number, &owned.program).ok();
                owned.started = now;
                owned.wait = LONGEST_WAIT.min(2 * owned.wait);
            }
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for (mut child, _) in self.0.drain(..).filter_map(|owned| owned.running) {
            // It may have ended.
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

fn start(epoll: &OwnedFd, number: u64, program: &Program) -> std::io::Result<(Child, OwnedFd)> {
    let mut command = Command::new(&program.path);
    command.args(&program.args).env_clear().envs(program.env.iter().cloned()).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    detach::belong(&mut command);
    let mut child = command.spawn()?;
    let watched = || {
        let pid = Pid::from_raw(child.id().cast_signed()).ok_or(Errno::SRCH)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        epoll::add(epoll, &process, EventData::new_u64(number), EventFlags::IN)?;
        Ok::<_, Errno>(process)
    };
    match watched() {
        Ok(process) => Ok((child, process)),
        Err(errno) => {
            // One that cannot be watched is not left alone.
            let _ = child.kill().and_then(|()| child.wait());
            Err(errno.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::Timespec;

    use super::*;

    const FIRST: u64 = 4;

    fn program(script: &str, restarts: bool) -> Program {
        let args = vec!["-c".into(), script.into()];
        Program { path: "/bin/sh".into(), args, env: vec![("A".into(), "b".into())], restarts }
    }

    /// Waits for the end of one, as the loop does.
    fn wait(epoll: &OwnedFd) -> Option<u64> {
        let mut events = Vec::with_capacity(4);
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)).unwrap();
        events.first().map(|event| event.data.u64() - FIRST)
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
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut children = Children::default();
        let log = dir.path().join("log");
        let script = format!("echo $A $(ls /proc/self/fd | wc -l) >> {}; exit 1", log.display());
        children.start(&epoll, FIRST, program(&script, true)).unwrap();
        for wait_for in [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT] {
            let ended = wait(&epoll).unwrap();
            let now = Instant::now();
            assert!(!children.ended(ended, now));
            assert_eq!(children.next(), Some(now + wait_for));
            // Not before its time.
            children.look(&epoll, FIRST, now);
            assert!(children.next().is_some());
            children.look(&epoll, FIRST, now + wait_for);
            assert_eq!(children.next(), None);
        }
        assert_eq!(wait(&epoll), Some(0));
        // Nothing of ours was handed over: three descriptors, and the one that `ls` reads with.
        let text = std::fs::read_to_string(&log).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), ["b 4"; 4]);
        assert!(!children.ended(0, Instant::now()));

        children.start(&epoll, FIRST, program("exit 0", false)).unwrap();
        assert_eq!(wait(&epoll), Some(1));
        assert!(children.ended(1, Instant::now()));
        let missing = Program { path: "/nonexistent".into(), ..program("", true) };
        assert!(children.start(&epoll, FIRST, missing).is_err());
    }

    #[test]
    fn none_survives_its_owner() {
        for dropped in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("pid");
            let script = format!("echo $$ > {}; exec sleep 1000", file.display());
            // The thread that starts it is its owner.
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let owner = std::thread::spawn(move || {
                let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
                let mut children = Children::default();
                children.start(&epoll, FIRST, program(&script, true)).unwrap();
                let _ = gone.recv();
                if !dropped {
                    std::mem::forget(children);
                }
            });
            let pid = || std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok());
            until("it runs", || pid().is_some());
            let stat = format!("/proc/{}/stat", pid().unwrap());
            assert!(std::fs::exists(&stat).unwrap());
            drop(go);
            owner.join().unwrap();
            let ended = || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
            until("it is gone", ended);
        }
    }
}
