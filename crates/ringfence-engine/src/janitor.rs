//! The janitor: a process beside the sandbox that removes what a sandbox leaves on the host, also when Ringfence is killed.
//!
//! Two things outlive a killed process: placeholders and cgroups. A protected path that is missing can only be kept from
//! appearing by a mount, and a mount needs a name: the placeholder. The janitor waits until its owner is gone, and removes both.
//!
//! Removing a name drops what is mounted on it, in every sandbox. So what was made is kept in lists ([`registry`]) that no
//! sandbox can reach. A sandbox holds a shared lock on each list that it needs, from before it is planned until it has ended.
//! What is on a list is removed by the process that gets the list for itself: the janitor of the last sandbox, or the next
//! start. Nothing in a project is locked, and nothing there decides what is removed.

mod placeholders;
mod registry;
mod removal;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_linux::beside::Beside;
use ringfence_linux::sys;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{Plan, Stub};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use registry::Lists;

pub use registry::{Hold, hold, own_directory, places, registry, sweep};

/// Why a sandbox cannot have its placeholders.
#[derive(Debug, thiserror::Error)]
pub enum JanitorError {
    #[error("cannot make `{}` to keep it protected: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot keep the list of placeholders at `{}`: {source}", path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("`{}` is not a directory of this user alone", .0.display())]
    NotOurs(PathBuf),
    #[error("cannot start the janitor: {0}")]
    Start(rustix::io::Errno),
}

/// Removes placeholders and cgroups when it is dropped, or when its process dies.
pub struct Janitor {
    lists: Arc<Lists>,
    process: Option<Beside<Box<dyn FnMut() -> i32 + Send + Sync>>>,
    /// When its other end closes, the janitor begins.
    lifeline: Option<OwnedFd>,
}

impl std::fmt::Debug for Janitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Janitor").finish_non_exhaustive()
    }
}

impl Janitor {
    /// Locks the lists that a sandbox needs, starts a janitor for them and for these cgroups, and makes the placeholders
    /// that are missing. `None` when there is nothing to remove.
    pub fn start(plan: &Plan, groups: &[PathBuf], facts: &Facts) -> Result<Option<Janitor>, JanitorError> {
        Self::start_for((&plan.project, &facts.home), &plan.stubs, groups, &facts.registry)
    }

    fn start_for(
        places: (&Path, &Path),
        stubs: &[Stub],
        groups: &[PathBuf],
        registry: &Path,
    ) -> Result<Option<Janitor>, JanitorError> {
        let lists = Arc::new(Lists::of_sandbox(registry, places, stubs, groups)?);
        if lists.is_empty() {
            return Ok(None);
        }
        let groups = groups.iter().map(|path| c_path(path)).collect::<Result<Vec<_>, _>>()?;
        let janitor = Self::beside(lists, groups)?;
        janitor.make(stubs)?;
        Ok(Some(janitor))
    }

    /// Makes those placeholders that are missing, also while the sandbox lives. Each is on a list before it is made.
    pub fn make(&self, stubs: &[Stub]) -> Result<(), JanitorError> {
        self.lists.make(stubs)
    }

    /// Nothing is removed before this process has ended: process 1 of the sandbox. A process that is gone needs nothing.
    pub fn wait_for(&self, pid: i32) {
        let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let (Some(process), Some(lifeline)) = (process, &self.lifeline) {
            // A janitor that is killed waits for nobody, and the next start removes the placeholders.
            let _ = sys::send_with(lifeline, &[WAIT_FOR], &[process.as_fd()], SendFlags::DONTWAIT);
        }
    }

    /// Starts the process. It shares this one's memory, which costs a tenth of a fork, and lives on when this one is killed.
    fn beside(lists: Arc<Lists>, groups: Vec<CString>) -> Result<Janitor, JanitorError> {
        let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(JanitorError::Start)?;
        let shared = lists.clone();
        // What is shared is made here; afterwards there are only system calls.
        let wait_and_clear: Box<dyn FnMut() -> i32 + Send + Sync> = Box::new(move || {
            // Signals to the terminal's process group are not for the janitor.
            let _ = rustix::process::setsid();
            shared.close_all_but(theirs.as_raw_fd());
            let mut process = None;
            if !is_released(&theirs, &mut process) {
                // What is frozen does not see that its owner is gone, and does not end.
                groups.iter().for_each(|group| removal::thaw_group(group));
                wait_for_end(process);
            }
            shared.release();
            groups.iter().for_each(|group| removal::remove_group(group));
            shared.release_groups();
            0
        });
        let process = Some(Beside::start(wait_and_clear).map_err(JanitorError::Start)?);
        Ok(Janitor { lists, process, lifeline: Some(ours) })
    }

    fn tell(&mut self) {
        if let Some(lifeline) = self.lifeline.take() {
            // The sandbox has ended: the janitor need not wait for it.
            let _ = send(&lifeline, &[RELEASED], SendFlags::NOSIGNAL);
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.tell();
        // When the janitor has ended, the placeholders are gone.
        if let Some(process) = self.process.take() {
            let _ = process.join();
        }
    }
}

/// What an owner says to its janitor: remove everything, and end; wait for this process first.
const RELEASED: u8 = 1;
const WAIT_FOR: u8 = 2;

/// Waits until the owner says that the sandbox has ended. False when the owner is gone without.
fn is_released(owner: &OwnedFd, process: &mut Option<OwnedFd>) -> bool {
    loop {
        let mut word = [0];
        match sys::receive_with(owner, &mut word, 1, RecvFlags::empty(), |sent| *process = Some(sent)) {
            Ok(received) if received.bytes == 1 => {}
            Err(rustix::io::Errno::INTR) => continue,
            _ => return false,
        }
        if word == [RELEASED] {
            return true;
        }
    }
}

/// The owner was killed. The sandbox dies with it, but not in the same moment: a placeholder that is removed too early can be
/// planted.
fn wait_for_end(process: Option<OwnedFd>) {
    if let Some(process) = process {
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut ended, None) == Err(rustix::io::Errno::INTR) {}
    }
    // Of a `bwrap` it is the process beside it that was waited for; and one that is not dead yet makes the names anew that it
    // finds missing.
    sys::pause_for(SETTLING);
}

const SETTLING: Duration = Duration::from_millis(200);

fn c_path(path: &Path) -> Result<CString, JanitorError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|e| JanitorError::List { path: path.to_path_buf(), source: e.into() })
}

#[cfg(test)]
mod tests;
