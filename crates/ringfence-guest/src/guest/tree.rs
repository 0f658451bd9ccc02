//! Everything that descends from a process, found through `/proc`, and ended.
//!
//! A process with a signal pending cannot fork: the kernel makes it see the signal first. So each one is stopped before
//! its children are read, and then the list is complete.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use ringfence_linux::sys;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

/// Rounds of looking for what came meanwhile.
const ROUNDS: usize = 64;

/// `/proc`, held open, and the list of this process's own children where the kernel has one.
#[derive(Debug)]
pub struct Processes {
    proc: OwnedFd,
    own: Option<OwnedFd>,
}

impl Processes {
    pub fn open() -> Result<Processes, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let proc = rustix::fs::open(c"/proc", flags | OFlags::DIRECTORY, Mode::empty())?;
        let own = rustix::fs::openat(&proc, c"thread-self/children", flags, Mode::empty()).ok();
        Ok(Processes { proc, own })
    }

    /// This process's own children; it has one thread. None when the kernel does not list them.
    pub fn own_children(&self) -> Option<Vec<i32>> {
        let mut children = Vec::new();
        sys::each_child(self.own.as_ref()?, |child| children.push(child)).ok()?;
        Some(children)
    }

    /// The children of a process, of all its threads. None when it is gone.
    pub fn children(&self, pid: i32) -> Vec<i32> {
        let mut children = Vec::new();
        // It went meanwhile: then its children are somebody else's, and found there.
        let _ = self.each_task(pid, c"children", |list| sys::each_child(list, |child| children.push(child)));
        children
    }

    /// Opens a file of each thread of a process.
    fn each_task(
        &self,
        pid: i32,
        name: &CStr,
        mut act: impl FnMut(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let tasks = CString::new(format!("{pid}/task")).map_err(|_| Errno::INVAL)?;
        let tasks = rustix::fs::openat(&self.proc, tasks, flags | OFlags::DIRECTORY, Mode::empty())?;
        for task in Dir::read_from(&tasks)? {
            let task = task?;
            if task.file_name().to_bytes().starts_with(b".") {
                continue;
            }
            let path = [task.file_name().to_bytes(), b"/", name.to_bytes()].concat();
            let Ok(file) = rustix::fs::openat(&tasks, path, flags, Mode::empty()) else { continue };
            act(&file)?;
        }
        Ok(())
    }

    /// The state of a process as a letter (`T`: stopped). None when it is gone.
    pub fn state(&self, pid: i32) -> Option<u8> {
        let stat = CString::new(format!("{pid}/stat")).ok()?;
        let stat = rustix::fs::openat(&self.proc, stat, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        read_state(&stat).ok()?
    }

    /// Whether a process has ended, all its threads, and was not reaped. None when it is gone.
    pub fn is_dead(&self, pid: i32) -> Option<bool> {
        let mut dead = Vec::new();
        self.each_task(pid, c"stat", |stat| {
            dead.extend(read_state(stat)?.map(|state| matches!(state, b'Z' | b'X')));
            Ok(())
        })
        .ok()?;
        (!dead.is_empty()).then(|| dead.iter().all(|dead| *dead))
    }

    /// All that descends from this one, not it itself.
    fn descendants(&self, root: i32, spared: impl Fn(i32) -> bool, mut found: impl FnMut(i32)) -> BTreeSet<i32> {
        let mut seen = BTreeSet::new();
        let mut open = vec![root];
        while let Some(pid) = open.pop() {
            for child in self.children(pid) {
                if !spared(child) && seen.insert(child) {
                    found(child);
                    open.push(child);
                }
            }
        }
        seen
    }

    /// Sends a signal to all that descends from this one, but to those that are spared and to what descends from them.
    pub fn signal(&self, root: i32, signal: i32, spared: impl Fn(i32) -> bool) {
        // It went meanwhile: that is no failure.
        let send = |pid: i32, signal: i32| {
            let _ = sys::kill(pid, signal);
        };
        if signal != libc::SIGKILL {
            let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
            for pid in self.descendants(root, &spared, |_| ()) {
                send(pid, signal);
                if !stops && signal != 0 {
                    // What is stopped would not see it.
                    send(pid, libc::SIGCONT);
                }
            }
            return;
        }
        let mut all = BTreeSet::new();
        for _ in 0..ROUNDS {
            let now = self.descendants(root, &spared, |pid| {
                if !all.contains(&pid) {
                    send(pid, libc::SIGSTOP);
                }
            });
            let before = all.len();
            all.extend(now);
            if all.len() == before {
                break;
            }
        }
        for pid in all {
            send(pid, libc::SIGKILL);
        }
    }

    /// Ends whoever traces something that descends from this one. A dead process is its tracer's first, and its parent does
    /// not hear of it before that one has waited for it, or is gone.
    pub fn kill_tracers(&self, root: i32, spared: impl Fn(i32) -> bool) {
        let tracers = self.descendants(root, spared, |_| ()).into_iter().flat_map(|pid| self.tracers(pid));
        for tracer in tracers.collect::<BTreeSet<_>>() {
            // It went meanwhile: that is no failure.
            let _ = sys::kill(tracer, libc::SIGKILL);
        }
    }

    /// Who traces a thread of this process.
    fn tracers(&self, pid: i32) -> Vec<i32> {
        let mut tracers = Vec::new();
        // It went meanwhile: then nobody traces it.
        let _ = self.each_task(pid, c"status", |status| {
            let mut text = [0u8; 1024];
            let length = rustix::io::read(status, &mut text)?;
            let line = text[..length].split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"TracerPid:"));
            let tracer = line.and_then(|pid| std::str::from_utf8(pid).ok()?.trim().parse().ok());
            // 0 is nobody, or somebody outside of what can be seen here.
            tracers.extend(tracer.filter(|pid: &i32| *pid > 1));
            Ok(())
        });
        tracers
    }
}

/// The state in a `stat` file. It follows the name, which may have anything in it.
fn read_state(stat: &OwnedFd) -> Result<Option<u8>, Errno> {
    let mut text = [0u8; 512];
    let length = rustix::io::read(stat, &mut text)?;
    let text = &text[..length];
    Ok(text.iter().rposition(|b| *b == b')').and_then(|end| text.get(end + 2).copied()))
}
