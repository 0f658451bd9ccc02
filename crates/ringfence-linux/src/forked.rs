//! The walls of a program that is forked instead of executed, as a list of system calls.
//!
//! A warm interpreter that is to keep its memory cannot be started by [`launch`](crate::launch): whoever executes it takes
//! that memory away. So its fork makes the walls around itself, before it is given any code, by this list. Everything is
//! decided here; the fork ([`Program`]) calls, compares and stops at the first difference. The list mirrors `launch` and
//! `setup` step by step and carries nothing out.
//!
//! The fork begins in new user and PID namespaces, with a copy of the mounts of the box that it was forked in. What that box
//! has read-only is taken over, and what it has as its own (procfs, terminals, private space) is made anew. Descriptors 0
//! to [`FIRST_FREE`] are open, no others, so that each call knows the numbers that the calls before it got.

mod program;

use std::ffi::CString;

pub use self::program::Program;

use crate::landlock;
use crate::launch::{self, Processors, Stage};
use crate::seccomp::{self, SockFilter};
use crate::setup::{self, NO_LINKS, Room, Step, Tmpfs};
use crate::sys;

/// What a nursery has: a socket to its owner, and its [`Program`]. A fork has its own channel in the place of the socket.
const CHANNEL: i64 = 3;
const PROGRAM: i64 = 4;
/// What comes with each request: where events go, then three standard descriptors, the first for the channel, then the doors
/// of control groups.
const EVENTS: i64 = 5;
/// The lowest descriptor that is not open when the walls are made.
const FIRST_FREE: i64 = 6;

/// One system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What it is for, as [`Stage::number`].
    pub stage: i32,
    pub number: i64,
    pub args: Vec<Arg>,
    /// The only result that is a success.
    pub wants: i64,
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arg {
    Number(i64),
    /// The address of these bytes.
    Bytes(Vec<u8>),
    /// The address of these words.
    Words(Vec<Arg>),
}

/// What the walls are made from.
#[derive(Debug)]
pub struct Walls<'a> {
    /// As the box is built that it is forked in.
    pub steps: &'a [Step],
    pub uid: u32,
    pub gid: u32,
    /// An own network namespace with loopback only.
    pub own_network: bool,
    /// Whether the filter tells of sockets: then a listener goes to the owner, with the network namespace.
    pub tells_sockets: bool,
    /// How many hierarchies of control groups it joins.
    pub doors: usize,
    /// `RLIMIT_*` and value.
    pub rlimits: &'a [(u32, u64)],
    pub processors: Option<Processors>,
    pub landlock: Option<&'a landlock::Rules>,
    pub filter: &'a [SockFilter],
    pub workdir: &'a CString,
}

/// The calls: of the nursery, first of all and before each fork; of process 1, until it forks; then of process 1, until it
/// executes its program; and of the one that it forked, which gets the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calls {
    pub nursery: Vec<Call>,
    /// Makes the network of the next fork.
    pub new_network: Vec<Call>,
    /// Takes the one that came with the request, behind all other descriptors.
    pub same_network: Vec<Call>,
    pub process_one: Vec<Call>,
    pub becomes: Vec<Call>,
    pub command: Vec<Call>,
}

/// How process 1 begins: in the memory of the nursery, which waits until it has executed its program.
pub const CLONE: i64 =
    (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_PIDFD | libc::SIGCHLD)
        as i64;

/// The calls for these walls; `None` when a box like this cannot be made from a copy of another one's mounts.
pub fn calls(walls: &Walls<'_>) -> Option<Calls> {
    let mut list = List::new(FIRST_FREE);
    // First of all: whatever follows is spent within the limits.
    let first = EVENTS + 4;
    for door in first..first + walls.doors as i64 {
        list.at(Stage::Groups).call_for(libc::SYS_write, [Arg::Number(door), bytes(b"0"), Arg::Number(1)], 1);
    }
    for (offset, (place, flags)) in [(CHANNEL, CLOEXEC), (1, 0), (2, 0)].into_iter().enumerate() {
        let args = [EVENTS + 1 + offset as i64, place, flags].map(Arg::Number);
        list.at(Stage::Stdio).call_for(libc::SYS_dup3, args, place);
    }
    list.call(libc::SYS_close_range, [FIRST_FREE, u32::MAX.into(), 0].map(Arg::Number));
    // Not the nursery's: flags and locks are of what was opened, and would stay for the next fork.
    list.call_for(libc::SYS_openat, [HERE, text(c"/dev/null"), Arg::Number(CLOEXEC), NOTHING], FIRST_FREE);
    list.call(libc::SYS_dup3, [FIRST_FREE, 0, 0].map(Arg::Number));
    list.close(FIRST_FREE);
    // The nursery lets the kernel reap; process 1 does it itself.
    let child = Arg::Number(libc::SIGCHLD.into());
    list.call(libc::SYS_rt_sigaction, [child, Arg::Bytes(vec![0; 32]), NOTHING, Arg::Number(8)]);
    list.identity(walls.uid, walls.gid);
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    list.at(Stage::Fork).call(libc::SYS_unshare, [Arg::Number(namespaces.into())]);
    list.at(Stage::Hostname).call(libc::SYS_sethostname, [bytes(b"ringfence"), Arg::Number(9)]);
    list.mounts(walls.steps)?;
    list.at(Stage::UserNamespaces).write(c"/proc/sys/user/max_user_namespaces", b"0");
    list.capabilities();
    list.at(Stage::NoNewPrivileges).prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
    list.at(Stage::Limits);
    if let Some(mask) = walls.processors.and_then(|processors| launch::kept_processors(processors).ok().flatten()) {
        let length = mask.len() as i64;
        list.call(libc::SYS_sched_setaffinity, [Arg::Number(0), Arg::Number(length), Arg::Bytes(mask)]);
    }
    let of_files = |limit: &&(u32, u64)| limit.0 == OPEN_FILES;
    walls.rlimits.iter().filter(|limit| !of_files(limit)).for_each(|limit| list.rlimit(*limit));
    if let Some(rules) = walls.landlock {
        list.landlock(rules);
    }
    list.at(Stage::Session).call_for(libc::SYS_setsid, [], 1);
    list.at(Stage::Filter).filter(walls.filter, walls.tells_sockets);

    // A network belongs to a user namespace of the nursery's own, in which it may make some and go from one to the other.
    // Its forks are in others, and may do nothing with theirs but use it.
    let network = first + walls.doors as i64;
    let (mut nursery, mut new_network, mut same_network) = (List::new(EVENTS), List::new(network), List::new(network));
    if walls.own_network {
        nursery.at(Stage::Fork).call(libc::SYS_unshare, [Arg::Number(libc::CLONE_NEWUSER.into())]);
        nursery.identity(walls.uid, walls.gid);
        new_network.at(Stage::Fork).call(libc::SYS_unshare, [Arg::Number(libc::CLONE_NEWNET.into())]);
        new_network.loopback();
        same_network.at(Stage::Fork).call(libc::SYS_setns, [network, libc::CLONE_NEWNET.into()].map(Arg::Number));
    }

    // Events go on at descriptor 0; the others close when it executes.
    let mut becomes = List::new(FIRST_FREE);
    becomes.at(Stage::Fork).call(libc::SYS_dup3, [EVENTS, 0, 0].map(Arg::Number));
    becomes.call(libc::SYS_close_range, [1, CHANNEL, 0].map(Arg::Number));
    let name = Arg::Words(vec![text(c"ringfence"), NOTHING]);
    let (nameless, empty) = (Arg::Number(libc::AT_EMPTY_PATH.into()), Arg::Bytes(vec![0; 8]));
    becomes.call(libc::SYS_execveat, [Arg::Number(PROGRAM), text(c""), name, empty, nameless]);

    let mut command = List::new(FIRST_FREE);
    command.at(Stage::Session).call_for(libc::SYS_setsid, [], 2);
    command.at(Stage::WorkingDirectory).call(libc::SYS_chdir, [text(walls.workdir)]);
    command.at(Stage::Limits);
    walls.rlimits.iter().filter(of_files).for_each(|limit| command.rlimit(*limit));
    // From the beginning of the fork to here all signals were blocked.
    let (set, size) = (Arg::Number(libc::SIG_SETMASK.into()), Arg::Number(8));
    command.call(libc::SYS_rt_sigprocmask, [set, Arg::Bytes(vec![0; 8]), NOTHING, size]);
    command.call(libc::SYS_close_range, [PROGRAM, EVENTS, 0].map(Arg::Number));
    Some(Calls {
        nursery: nursery.calls,
        new_network: new_network.calls,
        same_network: same_network.calls,
        process_one: list.calls,
        becomes: becomes.calls,
        command: command.calls,
    })
}

#[allow(clippy::unnecessary_cast, reason = "the number is signed on musl")]
const OPEN_FILES: u32 = libc::RLIMIT_NOFILE as u32;
const HERE: Arg = Arg::Number(libc::AT_FDCWD as i64);
const NOTHING: Arg = Arg::Number(0);
const CLOEXEC: i64 = libc::O_CLOEXEC as i64;
/// `MOVE_MOUNT_F_EMPTY_PATH` and `MOVE_MOUNT_T_EMPTY_PATH`.
const MOVE: i64 = 0x4 | 0x40;
const FSCONFIG_SET_FLAG: i64 = 0;
const FSCONFIG_SET_STRING: i64 = 1;
const FSCONFIG_CMD_CREATE: i64 = 6;
const FSMOUNT_CLOEXEC: i64 = 1;
const OPEN_TREE_CLONE: i64 = 1;

fn bytes(data: &[u8]) -> Arg {
    Arg::Bytes(data.to_vec())
}

fn text(text: &std::ffi::CStr) -> Arg {
    Arg::Bytes(text.to_bytes_with_nul().to_vec())
}

/// Calls in the making.
#[derive(Debug)]
struct List {
    stage: i32,
    /// The lowest descriptor that is not open.
    free: i64,
    calls: Vec<Call>,
}

impl List {
    fn new(free: i64) -> List {
        List { stage: 0, free, calls: Vec::new() }
    }

    fn at(&mut self, stage: Stage) -> &mut Self {
        self.stage = stage.number();
        self
    }

    fn call(&mut self, number: libc::c_long, args: impl IntoIterator<Item = Arg>) {
        self.call_for(number, args, 0);
    }

    fn call_for(&mut self, number: libc::c_long, args: impl IntoIterator<Item = Arg>, wants: i64) {
        self.calls.push(Call { stage: self.stage, number, args: args.into_iter().collect(), wants });
    }

    fn close(&mut self, descriptor: i64) {
        self.call(libc::SYS_close, [Arg::Number(descriptor)]);
    }

    fn prctl(&mut self, option: libc::c_int, value: u64) {
        self.call(libc::SYS_prctl, [Arg::Number(option.into()), Arg::Number(value as i64), NOTHING, NOTHING, NOTHING]);
    }

    fn rlimit(&mut self, (resource, value): (u32, u64)) {
        let both = [value.to_ne_bytes(), value.to_ne_bytes()].concat();
        self.call(libc::SYS_prlimit64, [NOTHING, Arg::Number(resource.into()), Arg::Bytes(both), NOTHING]);
    }

    fn write(&mut self, path: &std::ffi::CStr, data: &[u8]) {
        let flags = i64::from(libc::O_WRONLY) | CLOEXEC;
        self.call_for(libc::SYS_openat, [HERE, text(path), Arg::Number(flags), NOTHING], self.free);
        let length = data.len() as i64;
        self.call_for(libc::SYS_write, [Arg::Number(self.free), bytes(data), Arg::Number(length)], length);
        self.close(self.free);
    }

    /// One user of the box around it, and no other.
    fn identity(&mut self, uid: u32, gid: u32) {
        self.at(Stage::IdMaps).write(c"/proc/self/setgroups", b"deny");
        self.write(c"/proc/self/uid_map", format!("{uid} {uid} 1").as_bytes());
        self.write(c"/proc/self/gid_map", format!("{gid} {gid} 1").as_bytes());
    }

    fn loopback(&mut self) {
        let socket = self.free;
        let kind = i64::from(libc::SOCK_DGRAM | libc::SOCK_CLOEXEC);
        let family = Arg::Number(libc::AF_INET.into());
        self.at(Stage::Loopback).call_for(libc::SYS_socket, [family, Arg::Number(kind), NOTHING], socket);
        let mut request = vec![0; size_of::<libc::ifreq>()];
        request[..2].copy_from_slice(b"lo");
        let flags = (libc::IFF_UP | libc::IFF_RUNNING) as u16;
        request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
        let set = Arg::Number(libc::SIOCSIFFLAGS as i64);
        self.call(libc::SYS_ioctl, [Arg::Number(socket), set, Arg::Bytes(request)]);
        self.close(socket);
    }

    fn capabilities(&mut self) {
        self.at(Stage::Capabilities).prctl(libc::PR_SET_SECUREBITS, sys::LOCKED_SECUREBITS);
        (0..=last_capability()).for_each(|capability| self.prctl(libc::PR_CAPBSET_DROP, capability));
        // Version 3 and this thread; then three empty sets, twice.
        let header = [0x2008_0522_u32.to_ne_bytes(), [0; 4]].concat();
        self.call(libc::SYS_capset, [Arg::Bytes(header), Arg::Bytes(vec![0; 24])]);
    }

    /// Makes anew what each box has of its own; everything else it has by its copy of the mounts.
    fn mounts(&mut self, steps: &[Step]) -> Option<()> {
        let own = setup::own(steps)?;
        // Nothing of the copy is ever passed on, to whom it was copied from or back.
        let private = Arg::Number((libc::MS_REC | libc::MS_PRIVATE) as i64);
        self.at(Stage::Pivot).call(libc::SYS_mount, [NOTHING, text(c"/"), NOTHING, private, NOTHING]);
        let mut room = false;
        for (index, step) in steps.iter().enumerate() {
            self.at(Stage::Step(index));
            match step {
                Step::Proc { target } => {
                    self.file_system(c"proc", &[], sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC);
                    self.attach(target);
                }
                Step::Devpts { target } => {
                    let (ptmx, mode, most) = (Some(c"0666"), Some(c"0620"), Some(c"64"));
                    let options = [(c"newinstance", None), (c"ptmxmode", ptmx), (c"mode", mode), (c"max", most)];
                    self.file_system(c"devpts", &options, sys::ATTR_NOSUID | sys::ATTR_NOEXEC);
                    self.attach(target);
                }
                Step::Tmpfs { target, tmpfs } => {
                    self.tmpfs(tmpfs);
                    self.attach(target);
                }
                Step::Room { room: Room::Writable, target, tmpfs } => {
                    room = true;
                    self.tmpfs(tmpfs);
                    // It stays open for its parts, in the lowest place.
                    self.move_to(FIRST_FREE + 1, target);
                    self.close(FIRST_FREE);
                    self.call_for(
                        libc::SYS_dup3,
                        [Arg::Number(FIRST_FREE + 1), Arg::Number(ROOM), Arg::Number(CLOEXEC)],
                        ROOM,
                    );
                    self.close(FIRST_FREE + 1);
                }
                Step::Part { room: Room::Writable, name, target, mode, .. } => {
                    self.call(libc::SYS_mkdirat, [Arg::Number(ROOM), text(name), Arg::Number((*mode).into())]);
                    let flags = Arg::Number(OPEN_TREE_CLONE | CLOEXEC);
                    self.call_for(libc::SYS_open_tree, [Arg::Number(ROOM), text(name), flags], FIRST_FREE);
                    self.move_to(FIRST_FREE, target);
                    self.close(FIRST_FREE);
                }
                // Nothing of the host, but it would have to be said here as well.
                _ if own[index] => return None,
                _ => {}
            }
        }
        if room {
            self.close(ROOM);
        }
        Some(())
    }

    fn tmpfs(&mut self, tmpfs: &Tmpfs) {
        let mut flags = sys::ATTR_NOSUID | sys::ATTR_NODEV;
        if !tmpfs.exec {
            flags |= sys::ATTR_NOEXEC;
        }
        let options =
            [(c"mode", Some(&*tmpfs.mode)), (c"size", Some(&*tmpfs.size)), (c"nr_inodes", Some(&*tmpfs.inodes))];
        self.file_system(c"tmpfs", &options, flags);
    }

    /// A new file system: its context at the first free descriptor, its mount at the second.
    fn file_system(
        &mut self,
        kind: &std::ffi::CStr,
        options: &[(&std::ffi::CStr, Option<&std::ffi::CStr>)],
        flags: u64,
    ) {
        let context = || Arg::Number(FIRST_FREE);
        self.call_for(libc::SYS_fsopen, [text(kind), Arg::Number(1)], FIRST_FREE);
        for (name, value) in options {
            let command = Arg::Number(if value.is_some() { FSCONFIG_SET_STRING } else { FSCONFIG_SET_FLAG });
            let value = value.map_or(NOTHING, text);
            self.call(libc::SYS_fsconfig, [context(), command, text(name), value, NOTHING]);
        }
        self.call(libc::SYS_fsconfig, [context(), Arg::Number(FSCONFIG_CMD_CREATE), NOTHING, NOTHING, NOTHING]);
        let args = [context(), Arg::Number(FSMOUNT_CLOEXEC), Arg::Number(flags as i64)];
        self.call_for(libc::SYS_fsmount, args, FIRST_FREE + 1);
    }

    /// Puts the new file system where it belongs.
    fn attach(&mut self, target: &CString) {
        self.move_to(FIRST_FREE + 1, target);
        self.close(FIRST_FREE + 1);
        self.close(FIRST_FREE);
    }

    /// Attaches the mount of a descriptor; no symlink is followed on the way.
    fn move_to(&mut self, mount: i64, target: &CString) {
        let at = mount + 1;
        let path = [b"/", target.as_bytes_with_nul()].concat();
        let flags = (libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;
        // `struct open_how`: flags, mode, resolve.
        let how = [flags, 0, NO_LINKS.bits()].map(u64::to_ne_bytes).concat();
        let length = Arg::Number(how.len() as i64);
        self.call_for(libc::SYS_openat2, [HERE, Arg::Bytes(path), Arg::Bytes(how), length], at);
        let args = [Arg::Number(mount), text(c""), Arg::Number(at), text(c""), Arg::Number(MOVE)];
        self.call(libc::SYS_move_mount, args);
        self.close(at);
    }

    fn landlock(&mut self, rules: &landlock::Rules) {
        let (ruleset, at) = (FIRST_FREE, FIRST_FREE + 1);
        let attr = rules.attributes().map(u64::to_ne_bytes).concat();
        let length = Arg::Number(attr.len() as i64);
        self.at(Stage::Landlock);
        self.call_for(libc::SYS_landlock_create_ruleset, [Arg::Bytes(attr), length, NOTHING], ruleset);
        for (path, rights) in rules.places() {
            let flags = Arg::Number(i64::from(libc::O_PATH) | CLOEXEC);
            self.call_for(libc::SYS_openat, [HERE, text(path), flags, NOTHING], at);
            let rule = [rights.to_ne_bytes().as_slice(), (at as i32).to_ne_bytes().as_slice()].concat();
            let args = [Arg::Number(ruleset), Arg::Number(1), Arg::Bytes(rule), NOTHING];
            self.call(libc::SYS_landlock_add_rule, args);
            self.close(at);
        }
        self.call(libc::SYS_landlock_restrict_self, [Arg::Number(ruleset), NOTHING]);
        self.close(ruleset);
    }

    fn filter(&mut self, program: &[SockFilter], tells_sockets: bool) {
        // `struct sock_fprog`: the number of instructions in the lower bytes, the pointer.
        let program = Arg::Words(vec![Arg::Number(program.len() as i64), Arg::Bytes(seccomp::to_bytes(program))]);
        let mode = Arg::Number(libc::SECCOMP_SET_MODE_FILTER.into());
        if !tells_sockets {
            return self.call(libc::SYS_seccomp, [mode, NOTHING, program]);
        }
        let (listener, network) = (FIRST_FREE, FIRST_FREE + 1);
        let flags = Arg::Number(seccomp::listener_flags() as i64);
        self.call_for(libc::SYS_seccomp, [mode, flags, program], listener);
        let path = text(c"/proc/self/ns/net");
        self.call_for(libc::SYS_openat, [HERE, path, Arg::Number(CLOEXEC), NOTHING], network);
        self.send(&launch::message(launch::NETWORK, 0, 0), [listener, network]);
        self.close(network);
        self.close(listener);
    }

    /// Sends a message to the owner, with these descriptors.
    fn send(&mut self, message: &[u8], descriptors: [i64; 2]) {
        let length = message.len() as i64;
        // `struct cmsghdr`: its length, level and type, then the descriptors.
        let (level, kind) = (libc::SOL_SOCKET.to_ne_bytes(), libc::SCM_RIGHTS.to_ne_bytes());
        let [one, other] = descriptors.map(|descriptor| (descriptor as i32).to_ne_bytes());
        let rights = [24_u64.to_ne_bytes().as_slice(), &level, &kind, &one, &other].concat();
        let part = Arg::Words(vec![bytes(message), Arg::Number(length)]);
        // `struct msghdr`: no name; one part; the descriptors; no flags.
        let (count, room) = (Arg::Number(1), Arg::Number(rights.len() as i64));
        let header = Arg::Words(vec![NOTHING, NOTHING, part, count, Arg::Bytes(rights), room, NOTHING]);
        let flags = Arg::Number(libc::MSG_NOSIGNAL.into());
        self.call_for(libc::SYS_sendmsg, [Arg::Number(EVENTS), header, flags], length);
    }
}

/// Where shared private space stays open until all of its parts are there; above every descriptor that is used beside it.
const ROOM: i64 = FIRST_FREE + 10;

/// The highest capability of this kernel.
fn last_capability() -> u64 {
    // Without /proc none is dropped too few: the call for one that is not there fails, and so does the fork.
    let text = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap").unwrap_or_default();
    text.trim().parse().unwrap_or(63)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walls<'a>(steps: &'a [Step], workdir: &'a CString) -> Walls<'a> {
        Walls {
            steps,
            uid: 1000,
            gid: 1000,
            own_network: true,
            tells_sockets: true,
            doors: 3,
            rlimits: &[(OPEN_FILES, 64)],
            processors: None,
            landlock: None,
            filter: &[],
            workdir,
        }
    }

    fn named(name: &str) -> CString {
        CString::new(name).unwrap()
    }

    #[test]
    fn each_descriptor_is_closed_again() {
        let tmpfs = || Tmpfs::new(0o755, 1 << 20, 100, None);
        let part = |target: &str| Step::Part {
            room: Room::Writable,
            name: named(target),
            target: named(target),
            mode: 0o1777,
            owner: None,
        };
        let steps = [
            Step::RootTmpfs(tmpfs()),
            Step::Proc { target: named("proc") },
            Step::Devpts { target: named("dev/pts") },
            Step::Room { room: Room::Writable, target: named("tmp"), tmpfs: tmpfs() },
            part("tmp"),
            part("run"),
            Step::Seal { target: named("") },
        ];
        let workdir = named("/tmp");
        for doors in [0, 1, 3] {
            let calls = calls(&Walls { doors, ..walls(&steps, &workdir) }).unwrap();
            // Events, three standard descriptors, the doors; then the network, where there is one.
            let network = EVENTS + 4 + doors as i64;
            closes_what_it_opens(&calls.process_one, FIRST_FREE);
            closes_what_it_opens(&calls.nursery, EVENTS);
            closes_what_it_opens(&calls.new_network, network);
            assert_eq!(calls.same_network.len(), 1);
            assert_eq!(calls.same_network[0].args[0], Arg::Number(network));
        }
    }

    fn closes_what_it_opens(calls: &[Call], free: i64) {
        let mut open = std::collections::BTreeSet::new();
        assert!(calls.iter().any(|call| call.number == libc::SYS_close));
        for call in calls {
            if call.number == libc::SYS_close {
                let Arg::Number(closed) = call.args[0] else { panic!("{call:?}") };
                assert!(open.remove(&closed), "{call:?}");
            } else if call.wants >= free && ![libc::SYS_write, libc::SYS_sendmsg].contains(&call.number) {
                let lowest = (free..).find(|fd| !open.contains(fd)).unwrap();
                assert!(call.wants == lowest || call.number == libc::SYS_dup3, "{call:?}");
                assert!(open.insert(call.wants), "{call:?}");
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn what_cannot_be_made_from_a_copy() {
        let tmpfs = || Tmpfs::new(0o755, 1 << 20, 100, None);
        let workdir = named("/");
        // A root that two boxes would write to.
        assert!(calls(&walls(&[Step::RootTmpfs(tmpfs())], &workdir)).is_none());
        // Something in a place that is made anew.
        let bind = |target: &str| Step::Touch { target: named(target) };
        let steps = |target| [Step::Tmpfs { target: named("tmp"), tmpfs: tmpfs() }, bind(target)];
        assert!(calls(&walls(&steps("tmp/x"), &workdir)).is_none());
        assert!(calls(&walls(&steps("tmpx"), &workdir)).is_some());
    }
}
