//! Boxes around forks of a warm program, on the native engine.
//!
//! The program waits in a box of its own, the *nursery*, where it never gets anybody's code. Asked over its socket, it forks;
//! the fork makes the walls of a whole box around itself (`ringfence_linux::forked`), and only then gets code. The nursery
//! may make namespaces and mounts, and no fork may. Control groups, time and the end are enforced from outside, as for every
//! box, and when the nursery ends, so do its forks: their PID namespaces lie in its own.
//!
//! A network namespace in which nobody has made a socket is as new, and goes to the next fork of the same nursery
//! ([`Network`]).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_linux::forked::{self, Calls, Walls};
use ringfence_linux::launch::{Event, Launched, Processors};
use ringfence_linux::limits::{Group, Home, Series};
use ringfence_linux::notify;
use ringfence_linux::seccomp::Notify;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::Limits;
use ringfence_policy::plan::Plan;
use ringfence_policy::policy;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};

use super::limits::{group_stand_ins, needs_group, rlimits, series};
use super::{EngineError, Running, c_path, native};
use crate::keeper::{self, Keeper};

/// So many sockets are let be made until something else is looked at.
const MOST_HEARD: usize = 64;
/// How long a nursery may take to fork.
const FORKS: Duration = Duration::from_secs(10);
/// Events, three standard descriptors, a door for each hierarchy of control groups, and a network.
const MOST_DESCRIPTORS: usize = 8;

/// The plan of the nursery: what a box of the plan sees, with room to make boxes. What its forks use is not its own.
pub(crate) fn nursery(plan: &Plan) -> Plan {
    let limits = Limits { cpus: None, pids: None, files: None, cpu_time: None, timeout: None, ..plan.limits.clone() };
    Plan { nesting: true, limits, ..plan.clone() }
}

/// The walls of each fork of nursery `number`; `None` where a fork could not have those of the plan.
pub(crate) fn calls(plan: &Plan, facts: &Facts, number: usize) -> Result<Option<Calls>, EngineError> {
    if plan.nesting || plan.guest || plan.trace_denials || native::stacks(facts) {
        return Ok(None);
    }
    // Private places belong to whoever makes them, and that is the box's user here.
    let steps = native::compile(plan, None)?;
    let landlock = native::landlock_rules(plan)?;
    let tells_sockets = tells_sockets(plan);
    let notify = if tells_sockets { Notify::Sockets } else { Notify::Nothing };
    let filter = native::filter(plan, notify)?;
    let home = if needs_group(&plan.limits) { Home::find() } else { Home::None(String::new()) };
    let (doors, grouped) = (home.count(), !matches!(home, Home::None(_)));
    let (mut limits, mut processors) = (rlimits(plan), None);
    if !grouped {
        limits.extend(group_stand_ins(&plan.limits));
        // Forks of another nursery have other processors.
        let offset = (std::process::id() as usize).wrapping_add(number);
        let count = |cpus: f64| Processors { count: (cpus.ceil() as usize).max(1), offset };
        processors = plan.limits.cpus.map(count);
    }
    let workdir = c_path(&plan.workdir)?;
    Ok(forked::calls(&Walls {
        steps: &steps,
        uid: plan.uid,
        gid: plan.gid,
        own_network: plan.network == policy::Network::None,
        tells_sockets,
        doors,
        rlimits: &limits,
        processors,
        landlock: landlock.as_ref(),
        filter: &filter,
        workdir: &workdir,
    }))
}

/// Whether the owner hears of each socket that a fork makes. Calls that the policy adds might make one by another way.
fn tells_sockets(plan: &Plan) -> bool {
    plan.network == policy::Network::None && plan.allow_syscalls.is_empty()
}

/// The networks of a nursery in which nobody has made a socket yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Networks(Arc<Mutex<Vec<OwnedFd>>>);

impl Networks {
    fn take(&self) -> Option<OwnedFd> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

/// The network of a fork. The filter lets nobody in there make a socket before its owner has heard of it, and what is left in
/// a network namespace (ports, addresses, counters, sockets on their way) comes from sockets alone.
#[derive(Debug)]
pub(crate) struct Network {
    listener: OwnedFd,
    /// Until somebody makes a socket.
    unused: Mutex<Option<OwnedFd>>,
    back: Networks,
}

impl Network {
    /// Readable when somebody is about to make a socket, and waits for [`Network::hear`].
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Lets sockets be made by all who wait for it: the network is this box's alone from now on.
    pub fn hear(&self) -> Result<(), Errno> {
        drop(self.unused.lock().unwrap_or_else(PoisonError::into_inner).take());
        for _ in 0..MOST_HEARD {
            notify::next(self.listener())?;
            let mut more = [PollFd::new(&self.listener, PollFlags::IN)];
            let waits = poll(&mut more, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1);
            if !waits || !more[0].revents().contains(PollFlags::IN) {
                break;
            }
        }
        Ok(())
    }

    /// For when every process of the box is gone.
    pub fn give_back(self) {
        let unused = self.unused.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.back.0.lock().unwrap_or_else(PoisonError::into_inner).extend(unused);
    }
}

/// A place for one fork after the other. What they leave on the host when everything is killed has a keeper.
#[derive(Debug)]
pub(crate) struct Place {
    groups: Option<Arc<Series>>,
    spare: Spare,
    _keeper: Option<Arc<Keeper>>,
}

/// The control group of a box that is gone, for the next one at the same place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare(Arc<Mutex<Option<Group>>>);

impl Spare {
    pub fn put(&self, group: Group) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(group);
    }

    fn take(&self) -> Option<Group> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The keeper tries again.
        let _ = self.spare.take().map(Group::remove);
    }
}

impl Place {
    pub fn new(plan: &Plan) -> Result<Place, EngineError> {
        let groups = series(&plan.limits);
        let keeper = Keeper::start(&[], groups.clone(), &keeper::registry(), None)?;
        Ok(Place { groups, spare: Spare::default(), _keeper: keeper })
    }

    /// A group that is new, or as new.
    fn group(&self, plan: &Plan) -> Result<Option<Group>, EngineError> {
        let Some(groups) = &self.groups else { return Ok(None) };
        match self.spare.take() {
            Some(group) if group.renew() => return Ok(Some(group)),
            // The next has another number, and the keeper tries again.
            Some(group) => drop(group.remove()),
            None => {}
        }
        Ok(Some(Group::make_to_last(groups, &plan.limits)?))
    }

    /// Asks a nursery for a fork with these standard descriptors. It runs when this returns, and whether its walls stand is
    /// told by its first event or its first word.
    pub fn fork(
        &self,
        control: &OwnedFd,
        networks: &Networks,
        plan: &Plan,
        stdio: [OwnedFd; 3],
    ) -> Result<Running, EngineError> {
        let group = self.group(plan)?;
        let doors = group.as_ref().map(Group::doors).transpose()?.unwrap_or_default();
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(EngineError::Fork)?;
        let same = networks.take();
        let descriptors: Vec<BorrowedFd<'_>> =
            std::iter::once(&theirs).chain(&stdio).chain(&doors).chain(&same).map(AsFd::as_fd).collect();
        let request = match (plan.network, &same) {
            (policy::Network::None, None) => b"n",
            (policy::Network::None, Some(_)) => b"s",
            _ => b"f",
        };
        ask(control, request, &descriptors).map_err(EngineError::Fork)?;
        let process = answer(control)?.ok_or(EngineError::Fork(Errno::PROTO))?;
        drop(theirs);
        let launched = Launched::adopt(process, ours);
        // Said before the nursery answered. One whose walls failed says that instead, and is gone: it will not get ready.
        let network = match tells_sockets(plan).then(|| launched.next_event()) {
            Some(Ok(Event::Network { listener, namespace })) => {
                Some(Network { listener, unused: Mutex::new(Some(namespace)), back: networks.clone() })
            }
            _ => None,
        };
        Ok(Running {
            launched,
            network,
            // Whoever hears of a failure starts a box instead, and tells what is wrong with that.
            spec: None,
            program: plan.command.program.clone(),
            messages: None,
            group,
            spare: Some(self.spare.clone()),
            pids: plan.limits.pids,
            held: None,
            keeper: None,
        })
    }
}

fn ask(control: &OwnedFd, request: &[u8; 1], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    rustix::net::sendmsg(control, &[std::io::IoSlice::new(request)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// Waits for what the nursery says to a question: a descriptor where one was asked for, or why not.
pub(crate) fn answer(control: &OwnedFd) -> Result<Option<OwnedFd>, EngineError> {
    let patience = Timespec { tv_sec: FORKS.as_secs() as i64, tv_nsec: 0 };
    let mut ready = [PollFd::new(control, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| poll(&mut ready, Some(&patience))) {
        Ok(0) => return Err(EngineError::Lost("the nursery does not answer".to_owned())),
        Ok(_) => {}
        Err(errno) => return Err(EngineError::Lost(errno.to_string())),
    }
    let mut bytes = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(control, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .map_err(|errno| EngineError::Lost(errno.to_string()))?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match (received.bytes, i32::from_ne_bytes(bytes)) {
        (4, 0) => Ok(descriptor),
        (4, errno) => Err(EngineError::Fork(Errno::from_raw_os_error(errno.clamp(1, 4095)))),
        _ => Err(EngineError::Lost("the nursery has ended".to_owned())),
    }
}
