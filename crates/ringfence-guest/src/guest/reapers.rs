//! Reapers: a small process between the guest and each command, to which everything comes that the command orphans. So all
//! that descends from a command can be found, whatever it did to hide (double forks, new sessions). Only a command that has
//! the whole box to itself is the guest's own child: what it orphans then cannot be anybody else's.
//!
//! A reaper is a copy of the guest, and as unreadable. It is forked ahead, waits for an order, starts the command, tells
//! how it went, and is used again when nothing is left of the command. Code beside it can stop it and kill it, as
//! it can all of its own kind; the guest then does its work (`Exec::attend`, `Exec::lost`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ringfence_guest::message::{Exited, Step};
use ringfence_linux::sys::{self, Fork, Stack, Waited};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::exec::{self, Order};
use super::{Part, token};

/// Most reapers that wait for an order.
const MOST_IDLE: usize = 4;

/// A command that ends before this is told of in one message.
pub const AT_ONCE: Duration = Duration::from_millis(1);

/// What a reaper tells.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Report {
    Failed {
        step: Step,
        errno: i32,
    },
    Started {
        pid: i32,
    },
    /// `left`: something that it started is still there. `Empty` follows when that is gone, too.
    Ended {
        pid: i32,
        exited: Exited,
        left: bool,
    },
    Empty,
}

impl Report {
    pub fn ended(child: Waited, left: bool) -> Report {
        let exited = Exited {
            status: child.status,
            user_micros: (child.cpu - child.system).as_micros() as u64,
            system_micros: child.system.as_micros() as u64,
            peak_memory: child.peak_memory,
        };
        Report::Ended { pid: child.pid, exited, left }
    }
}

#[derive(Debug)]
struct Reaper {
    orders: OwnedFd,
    /// Not where it waits for orders: whoever waits at a socket is woken when the other side takes what he sent.
    reports: OwnedFd,
    /// Which process the last order became, in a file in memory: known also when the reaper is killed before it could tell.
    note: OwnedFd,
    /// The stream whose command it looks after.
    owner: Option<u64>,
    /// Its command ended, and it stays with what that left behind.
    left: bool,
    /// What of its order did not fit into the socket.
    rest: Vec<u8>,
}

/// All reapers, by process id.
#[derive(Debug, Default)]
pub struct Reapers {
    all: BTreeMap<i32, Reaper>,
    idle: Vec<i32>,
    /// There was no process left for one. Tried again when one is needed or something has ended.
    starved: bool,
}

impl Reapers {
    /// Whether none is ready and one could be made.
    pub fn wants_spare(&self) -> bool {
        self.idle.is_empty() && !self.starved
    }

    /// How many look after a command.
    pub fn busy(&self) -> u64 {
        (self.all.len() - self.idle.len()) as u64
    }

    /// How many look after a command that somebody waits for.
    pub fn owned(&self) -> usize {
        self.all.values().filter(|reaper| reaper.owner.is_some()).count()
    }

    /// Whether it waits for an order.
    pub fn is_idle(&self, pid: i32) -> bool {
        self.idle.contains(&pid)
    }

    pub fn make_spare(&mut self, epoll: &OwnedFd) {
        match self.make(epoll) {
            Ok(pid) => self.idle.push(pid),
            Err(_) => self.starved = true,
        }
    }

    fn make(&mut self, epoll: &OwnedFd) -> Result<i32, Errno> {
        let pair = || rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let ((orders, their_orders), (reports, their_reports)) = (pair()?, pair()?);
        let note = rustix::fs::memfd_create(c"reaper", MemfdFlags::CLOEXEC)?;
        match sys::fork(0)? {
            Fork::Child => {
                let code = match serve(their_orders, their_reports, note) {
                    Ok(()) => 0,
                    Err(_) => 1,
                };
                sys::exit_now(code)
            }
            Fork::Parent(pid) => {
                let pid = pid.as_raw_nonzero().get();
                rustix::io::ioctl_fionbio(&orders, true)?;
                rustix::io::ioctl_fionbio(&reports, true)?;
                epoll::add(epoll, &reports, EventData::new_u64(token(pid as u64, Part::Reaper)), EventFlags::IN)?;
                self.all.insert(pid, Reaper { orders, reports, note, owner: None, left: false, rest: Vec::new() });
                Ok(pid)
            }
        }
    }

    /// Hands an order to a reaper, and says which.
    pub fn order(&mut self, owner: u64, order: &[u8], fds: &[BorrowedFd<'_>], epoll: &OwnedFd) -> Result<i32, Errno> {
        let mut bytes = Vec::with_capacity(4 + order.len());
        bytes.extend_from_slice(&(order.len() as u32).to_le_bytes());
        bytes.extend_from_slice(order);
        let (pid, sent) = loop {
            let idle = self.idle.pop();
            let pid = match idle {
                Some(pid) if is_as_made(pid) => pid,
                // Forgotten when it is reaped.
                Some(pid) => {
                    self.dismiss(pid);
                    continue;
                }
                None => self.make(epoll)?,
            };
            let reaper = self.all.get_mut(&pid).ok_or(Errno::SRCH)?;
            match sys::send_with(&reaper.orders, &bytes, fds, SendFlags::empty()) {
                Ok(sent) => break (pid, sent),
                // Killed while it waited; it had nothing to look after, and is forgotten when it is reaped.
                Err(Errno::PIPE | Errno::CONNRESET) if idle.is_some() => {}
                Err(errno) => return Err(errno),
            }
        };
        let reaper = self.all.get_mut(&pid).ok_or(Errno::SRCH)?;
        reaper.owner = Some(owner);
        // Somebody may have stopped it.
        let _ = sys::kill(pid, libc::SIGCONT);
        if sent < bytes.len() {
            reaper.rest = bytes.split_off(sent);
            epoll::add(epoll, &reaper.orders, EventData::new_u64(token(pid as u64, Part::Reaper)), EventFlags::OUT)?;
        }
        Ok(pid)
    }

    /// Sends more of an order.
    pub fn flush(&mut self, pid: i32, epoll: &OwnedFd) -> Result<(), Errno> {
        let Some(reaper) = self.all.get_mut(&pid).filter(|reaper| !reaper.rest.is_empty()) else { return Ok(()) };
        match rustix::net::send(&reaper.orders, &reaper.rest, SendFlags::NOSIGNAL) {
            Ok(sent) => drop(reaper.rest.drain(..sent)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // It was killed, which is noticed when it is reaped.
            Err(_) => reaper.rest.clear(),
        }
        if reaper.rest.is_empty() {
            epoll::delete(epoll, &reaper.orders)?;
        }
        Ok(())
    }

    /// What a reaper has to say, and to which stream.
    pub fn reports(&mut self, pid: i32, epoll: &OwnedFd) -> (Option<u64>, Vec<Report>) {
        let Some(reaper) = self.all.get_mut(&pid) else { return (None, Vec::new()) };
        let mut bytes = [0u8; 256];
        let mut reports = Vec::new();
        match rustix::net::recv(&reaper.reports, &mut bytes, RecvFlags::empty()) {
            Ok((0, _)) => {
                // Killed; the rest is done when it is reaped.
                let _ = epoll::delete(epoll, &reaper.reports);
            }
            Ok((length, _)) => {
                let mut rest = &bytes[..length];
                while let Ok((report, more)) = postcard::take_from_bytes::<Report>(rest) {
                    reports.push(report);
                    rest = more;
                }
            }
            Err(_) => {}
        }
        (reaper.owner, reports)
    }

    /// The owner of a reaper's command has another key now.
    pub fn rename(&mut self, pid: i32, owner: u64) {
        if let Some(reaper) = self.all.get_mut(&pid) {
            reaper.owner = Some(owner);
        }
    }

    /// Nothing is left of the command: it can be used again.
    pub fn release(&mut self, pid: i32) {
        if self.idle.len() >= MOST_IDLE {
            self.dismiss(pid);
        } else if let Some(reaper) = self.all.get_mut(&pid) {
            (reaper.owner, reaper.left) = (None, false);
            self.idle.push(pid);
        }
    }

    /// Nobody waits for it any more; it stays with what is left, until that is gone.
    pub fn leave(&mut self, pid: i32) {
        if let Some(reaper) = self.all.get_mut(&pid) {
            (reaper.owner, reaper.left) = (None, true);
        }
    }

    /// Ends those that stay with what was left behind: it comes to the guest.
    pub fn dismiss_left(&mut self) {
        let left = self.all.iter().filter(|(_, reaper)| reaper.left).map(|(pid, _)| *pid);
        for pid in left.collect::<Vec<_>>() {
            self.dismiss(pid);
        }
    }

    /// Ends a reaper; what it looks after comes to the guest.
    pub fn dismiss(&mut self, pid: i32) {
        if let Some(reaper) = self.all.get_mut(&pid) {
            (reaper.owner, reaper.left) = (None, false);
            let _ = sys::kill(pid, libc::SIGKILL);
        }
    }

    /// A child of the guest's ended. `None`: it was no reaper. Else the stream that it left alone, if any, and what it had
    /// noted.
    pub fn reaped(&mut self, pid: i32) -> Option<Option<(u64, Note)>> {
        self.starved = false;
        let reaper = self.all.remove(&pid)?;
        self.idle.retain(|idle| *idle != pid);
        Some(reaper.owner.map(|owner| (owner, Note::read(&reaper.note))))
    }

    /// Whether it stays with what a command left behind, and nobody waits for it.
    pub fn is_left(&self, pid: i32) -> bool {
        self.all.get(&pid).is_some_and(|reaper| reaper.left)
    }

    /// The stream whose command it looks after.
    pub fn owner(&self, pid: i32) -> Option<u64> {
        self.all.get(&pid)?.owner
    }

    pub fn is_reaper(&self, pid: i32) -> bool {
        self.all.contains_key(&pid)
    }
}

/// Whether a reaper has the limits and the share of the CPUs that it was made with. Every process of the box may lower them
/// (`prlimit`, `setpriority`), and each command of it would have them from its first moment on.
fn is_as_made(pid: i32) -> bool {
    let limits = |who: &str| std::fs::read(format!("/proc/{who}/limits")).ok();
    let affinity = |pid: Option<Pid>| rustix::thread::sched_getaffinity(pid).ok();
    let who = pid.to_string();
    limits(&who).is_some_and(|its| Some(its) == limits("self"))
        && scheduling(&who).is_some_and(|its| Some(its) == scheduling("self"))
        && affinity(Pid::from_raw(pid)).is_some_and(|its| Some(its) == affinity(None))
}

/// Niceness, real-time priority and policy of a process.
fn scheduling(who: &str) -> Option<[String; 3]> {
    let stat = std::fs::read_to_string(format!("/proc/{who}/stat")).ok()?;
    // The name of the program comes before, and may have anything in it. The state of the process is field 3.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).map(|text| (*text).to_owned());
    Some([field(19)?, field(40)?, field(41)?])
}

/// Which process an order became. The process writes it itself, before it becomes the command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Note {
    pub order: u64,
    pub pid: i32,
}

impl Note {
    pub fn write(self, file: &OwnedFd) -> Result<(), Errno> {
        let mut bytes = [0u8; 12];
        bytes[..8].copy_from_slice(&self.order.to_le_bytes());
        bytes[8..].copy_from_slice(&self.pid.to_le_bytes());
        rustix::io::pwrite(file, &bytes, 0).map(drop)
    }

    fn read(file: &OwnedFd) -> Note {
        let mut bytes = [0u8; 12];
        match rustix::io::pread(file, &mut bytes, 0) {
            Ok(12) => {
                let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
                Note { order: u64::from_le_bytes([a, b, c, d, e, f, g, h]), pid: i32::from_le_bytes([i, j, k, l]) }
            }
            // Nothing was noted yet.
            _ => Note::default(),
        }
    }
}

/// The life of a reaper: order, command, report, again. Ends when the guest does.
fn serve(orders: OwnedFd, reports: OwnedFd, note: OwnedFd) -> Result<(), Errno> {
    sys::close_all_but(&[orders.as_raw_fd(), reports.as_raw_fd(), note.as_raw_fd()]);
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut bytes = Vec::new();
    let stack = Stack::new();
    loop {
        // Of those that were waited for: the next one is to be the next command's.
        sys::take_signal(libc::SIGCHLD, Duration::ZERO)?;
        let fds = receive(&orders, &mut bytes)?;
        let order: Order = postcard::from_bytes(&bytes[4..]).map_err(|_| Errno::PROTO)?;
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let started = exec::start(order, &borrowed, Some(&note), &stack);
        // The command's alone from here on: what it closes is closed.
        drop(fds);
        match started {
            Err((step, errno)) => say(&reports, Report::Failed { step, errno: errno.raw_os_error() })?,
            Ok(pid) => look_after(&reports, pid)?,
        }
    }
}

/// Reaps until nothing is left of a command.
fn look_after(guest: &OwnedFd, command: i32) -> Result<(), Errno> {
    let child = wait_for(guest, command)?;
    let left = sys::has_children();
    say(guest, Report::ended(child, left))?;
    if left {
        while sys::wait(-1, sys::Wait::UntilEnd)?.is_some() {}
        say(guest, Report::Empty)?;
    }
    Ok(())
}

/// Waits for the command, and reaps whatever else ends before it.
fn wait_for(guest: &OwnedFd, command: i32) -> Result<Waited, Errno> {
    // One message for both saves the guest and the host from waking twice for a short command.
    let mut told = false;
    if !sys::take_signal(libc::SIGCHLD, AT_ONCE)? {
        say(guest, Report::Started { pid: command })?;
        told = true;
    }
    loop {
        match sys::wait(-1, if told { sys::Wait::UntilEnd } else { sys::Wait::IfEnded })? {
            Some(child) if child.pid == command => return Ok(child),
            Some(_) => {}
            None if told => return Err(Errno::CHILD),
            None => {
                say(guest, Report::Started { pid: command })?;
                told = true;
            }
        }
    }
}

fn say(guest: &OwnedFd, report: Report) -> Result<(), Errno> {
    let mut bytes = [0u8; 64];
    let used = postcard::to_slice(&report, &mut bytes).map_err(|_| Errno::PROTO)?;
    rustix::net::send(guest, used, SendFlags::NOSIGNAL).map(drop)
}

/// Most orders fit, and come with one call.
const ORDER: usize = 4096;

/// Waits for an order, its length before it, and its descriptors. Nothing follows it before it was reported on.
fn receive(guest: &OwnedFd, bytes: &mut Vec<u8>) -> Result<Vec<OwnedFd>, Errno> {
    bytes.resize(ORDER, 0);
    let mut fds = Vec::new();
    let received = sys::receive_with(guest, bytes, 3, RecvFlags::empty(), |fd| fds.push(fd))?;
    let Some(header) = bytes[..received.bytes].first_chunk::<4>() else { return Err(Errno::PIPE) };
    let (mut filled, whole) = (received.bytes, 4 + u32::from_le_bytes(*header) as usize);
    bytes.resize(whole, 0);
    while filled < whole {
        match rustix::net::recv(guest.as_fd(), &mut bytes[filled..], RecvFlags::empty())? {
            (0, _) => return Err(Errno::PIPE),
            (n, _) => filled += n,
        }
    }
    Ok(fds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reaper_that_was_killed_while_it_waited_gets_no_order() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut reapers = Reapers::default();
        reapers.make_spare(&epoll);
        reapers.make_spare(&epoll);
        let waiting = reapers.idle.clone();
        for pid in &waiting {
            sys::kill(*pid, libc::SIGKILL).unwrap();
            // Dead, and not yet reaped by a guest that has not looked.
            let pid = rustix::process::Pid::from_raw(*pid).unwrap();
            use rustix::process::{WaitId, WaitIdOptions, waitid};
            waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        }
        let fresh = reapers.order(7, b"", &[], &epoll).unwrap();
        assert!(!waiting.contains(&fresh));
        // Nobody was left alone by those.
        for pid in waiting {
            sys::wait(pid, sys::Wait::UntilEnd).unwrap();
            assert!(matches!(reapers.reaped(pid), Some(None)));
        }
        sys::kill(fresh, libc::SIGKILL).unwrap();
        sys::wait(fresh, sys::Wait::UntilEnd).unwrap();
        assert!(matches!(reapers.reaped(fresh), Some(Some((7, _)))));
    }
}
