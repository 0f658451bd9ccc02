//! Process 1: builds the box around itself, gives up every privilege, starts the command and looks after it.
//!
//! It runs after the fork, in a copy of its owner's memory, and so makes system calls and nothing else.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::thread::LinkNameSpaceType;

use super::{
    EXITED, FAILED, Identity, LISTENER, Message, NOT_EXECUTED, PARKED, Processors, STOPPED, Spec, Stage, Start,
    TERMINAL, Terminal, message,
};
use crate::builder::{self, Prepared, Said};
use crate::order::Opened;
use crate::seccomp;
use crate::seed::Maps;
use crate::setup::{self, Basis, Building, Step};
use crate::sys;

#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
const OPEN_FILES: u32 = libc::RLIMIT_NOFILE as u32;

/// A failure on the way to the command: where, and why.
pub(crate) type Failure = (Stage, Errno);

pub(crate) fn at(stage: Stage) -> impl FnOnce(Errno) -> Failure {
    move |errno| (stage, errno)
}

/// What is done when process 1 begins.
#[derive(Debug)]
pub(crate) enum Begun {
    Nothing,
    /// What a [`Seed`](crate::seed::Seed) does.
    Namespaces,
    /// And so many of the first steps, but for its procfs.
    Ground(Building, usize),
    /// And all mounts but its procfs, in a copy of a [`Mould`](crate::mould::Mould).
    Mounts,
}

pub(crate) fn process_one(
    spec: &Spec,
    start: &mut Start,
    prepared: Option<&Prepared>,
    owner: &OwnedFd,
    begun: Begun,
) -> ! {
    let code = match build(spec, start, owner, begun).and_then(|mounts| run(spec, start, prepared, owner, mounts)) {
        Ok(()) => 0,
        Err((stage, errno)) => {
            report(owner, message(FAILED, stage.number(), errno.raw_os_error()));
            125
        }
    };
    sys::exit_now(code)
}

/// Nobody to tell when the owner is gone: then process 1 is about to be killed anyway.
fn report(owner: &OwnedFd, message: Message) {
    let _ = rustix::net::send(owner, &message, SendFlags::NOSIGNAL);
}

/// Builds the box around this process and takes every privilege away from it. Its mount namespace, where the owner is to have
/// that.
fn build(spec: &Spec, start: &Start, owner: &OwnedFd, begun: Begun) -> Result<Option<OwnedFd>, Failure> {
    // First of all: whatever follows is spent within the limits.
    for group in start.groups.iter().filter(|_| start.born_in.is_none()) {
        rustix::io::write(group, b"0").map_err(at(Stage::Groups))?;
    }
    if let Identity::Outside(builder) = &spec.identity {
        // The starter sets the other limits: some of them would hold the builder up.
        if let Some(processors) = spec.processors {
            keep_processors(processors).map_err(at(Stage::Limits))?;
        }
        return builder::prepare(builder, &spec.steps).map(|()| None);
    }
    let ground = if let Begun::Ground(building, _) = &begun { Some(building) } else { None };
    let_go(spec, start.stdio.each_ref().map(Option::as_ref), owner, ground);
    let mut mounts = None;
    let sown = !matches!(begun, Begun::Nothing);
    if !sown {
        let this = this_process().map_err(at(Stage::IdMaps))?;
        // Without it the box ends a little later.
        mounts = start.order.as_ref().and_then(|_| namespace(&this, c"ns/mnt").ok());
        if let Identity::Mapped(maps) = &spec.identity {
            map_ids(&this, maps).map_err(at(Stage::IdMaps))?;
        }
        if spec.loopback {
            loopback_up().map_err(at(Stage::Loopback))?;
        }
    }
    if !start.groups.is_empty() || spec.namespaces != 0 {
        // After joining, so that the box sees its own group as the root.
        sys::unshare(libc::CLONE_NEWCGROUP as u64).map_err(at(Stage::Groups))?;
    }
    if spec.namespaces & libc::CLONE_NEWUTS as u64 != 0 {
        sys::set_hostname(b"ringfence").map_err(at(Stage::Hostname))?;
    }
    let (basis, done) = match begun {
        Begun::Nothing | Begun::Namespaces => (Basis::Nothing, 0),
        Begun::Ground(building, steps) => (Basis::Ground(building), steps),
        Begun::Mounts => (Basis::Copy, spec.steps.len()),
    };
    setup::carry_out(&spec.steps, spec.idmaps(), basis, |index, step| match step {
        Step::Names if start.unnamed => wait_for_names(owner).map(|()| false),
        // Of the PID namespace of whoever mounts it, which the seed is not in.
        Step::Proc { .. } => Ok(true),
        _ => Ok(index >= done),
    })?;
    if let Identity::Entered { userns, .. } = &spec.identity {
        sys::set_namespace(userns.as_fd(), LinkNameSpaceType::User).map_err(at(Stage::Become))?;
    }
    if !matches!(spec.identity, Identity::Kept) {
        if !spec.nesting {
            write_file(c"/proc/sys/user/max_user_namespaces", b"0").map_err(at(Stage::UserNamespaces))?;
        }
        if !sown || !matches!(spec.identity, Identity::Mapped(_)) {
            sys::drop_bounding_set().map_err(at(Stage::Capabilities))?;
        }
    }
    if let Identity::Entered { uid, gid, .. } = &spec.identity {
        sys::become_user(*uid, *gid).map_err(at(Stage::Become))?;
    }
    sys::drop_capabilities().map_err(at(Stage::Capabilities))?;
    rustix::thread::set_no_new_privs(true).map_err(at(Stage::NoNewPrivileges))?;
    // The launcher's command line would be read from this copy of its memory.
    sys::forget_arguments();
    // Not traceable, and its memory and environment, which are the launcher's, not readable through /proc. Last of the
    // identity steps, since they each reset it and it closes /proc/self/*_map.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(at(Stage::NoNewPrivileges))?;
    if let Some(processors) = spec.processors {
        keep_processors(processors).map_err(at(Stage::Limits))?;
    }
    // That of open files comes last, in the command's own process: this one may need more.
    for (resource, value) in spec.rlimits.iter().filter(|(resource, _)| *resource != OPEN_FILES) {
        sys::set_rlimit(*resource, *value).map_err(at(Stage::Limits))?;
    }
    Ok(mounts)
}

/// Closes what this process has of its owner's and does not need. An owner of a thousand boxes has thousands, and the command's
/// process would get a copy of each; and who holds the other end of a socket does not see its owner go. The first three stay
/// until the command has its own: nothing that is opened may take their places.
pub(crate) fn let_go(spec: &Spec, stdio: [Option<&OwnedFd>; 3], owner: &OwnedFd, ground: Option<&Building>) {
    let number = |fd: Option<&OwnedFd>| fd.map_or(-1, AsRawFd::as_raw_fd);
    let [stdin, stdout, stderr] = stdio.map(number);
    let (userns, callers, owners) = match &spec.identity {
        Identity::Entered { userns, idmaps, .. } => (Some(userns), Some(&idmaps.callers), idmaps.owners.as_ref()),
        _ => (None, None, None),
    };
    let (userns, callers, owners) = (number(userns), number(callers), number(owners));
    let becomes = number(spec.becomes.as_ref());
    let [root, writable, fixed] = ground.map_or([-1; 3], Building::descriptors);
    let owner = owner.as_raw_fd();
    let ids = [userns, callers, owners];
    sys::close_all_but(&[
        0, 1, 2, owner, stdin, stdout, stderr, ids[0], ids[1], ids[2], becomes, root, writable, fixed,
    ]);
}

/// An error when the owner is gone, which nobody will read.
fn wait_for_names(owner: &OwnedFd) -> Result<(), Errno> {
    match rustix::net::recv(owner, &mut [0u8; 1], RecvFlags::empty())? {
        (_, 0) => Err(Errno::PIPE),
        _ => Ok(()),
    }
}

/// As procfs shows it.
pub(crate) fn this_process() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(c"/proc/self", flags, Mode::empty())
}

/// Maps the ids of the user namespace that this process is in.
pub(crate) fn map_ids(this: &OwnedFd, maps: &Maps) -> Result<(), Errno> {
    // An unprivileged writer must first give up setgroups; before the maps, since they end the right to.
    write_at(this.as_fd(), c"setgroups", b"deny")?;
    write_at(this.as_fd(), c"uid_map", maps.uids.as_bytes())?;
    write_at(this.as_fd(), c"gid_map", maps.gids.as_bytes())
}

/// A namespace that this process is in, by its name in procfs.
pub(crate) fn namespace(this: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(this, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Brings the loopback of the network namespace that this process is in up.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sys::loopback_up(socket.as_fd())
}

/// Keeps some of the processors that this process may use.
fn keep_processors(Processors { count, offset }: Processors) -> Result<(), Errno> {
    // Boxes of one `Spec` must not all have the same.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec as usize / 1000;
    match choose_processors(Processors { count, offset: offset.wrapping_add(now) })? {
        Some(kept) => rustix::thread::sched_setaffinity(None, &kept),
        None => Ok(()),
    }
}

/// Which ones would be kept, a bit each; `None` for all.
pub(crate) fn kept_processors(processors: Processors) -> Result<Option<Vec<u8>>, Errno> {
    let kept = choose_processors(processors)?;
    Ok(kept.map(|kept| {
        let mut mask = vec![0; rustix::thread::CpuSet::MAX_CPU / 8];
        (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|cpu| kept.is_set(*cpu))
            .for_each(|cpu| mask[cpu / 8] |= 1 << (cpu % 8));
        mask
    }))
}

fn choose_processors(Processors { count, offset }: Processors) -> Result<Option<rustix::thread::CpuSet>, Errno> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let total = allowed.count() as usize;
    if total == 0 || count >= total {
        return Ok(None);
    }
    let start = offset % total;
    let mut kept = rustix::thread::CpuSet::new();
    let usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    for (index, cpu) in usable.enumerate() {
        if (index + total - start) % total < count {
            kept.set(cpu);
        }
    }
    Ok(Some(kept))
}

/// Starts the command behind the last walls, and looks after it until it ends.
fn run(
    spec: &Spec,
    start: &mut Start,
    prepared: Option<&Prepared>,
    owner: &OwnedFd,
    mounts: Option<OwnedFd>,
) -> Result<(), Failure> {
    let slave = match start.terminal {
        Terminal::None => None,
        Terminal::Own { rows, columns } => {
            // The host's devpts may not let its own ptmx be opened; the box's has no other.
            let ptmx = if prepared.is_some() { c"/dev/ptmx" } else { c"/dev/pts/ptmx" };
            Some(open_terminal(ptmx, owner, rows, columns).map_err(at(Stage::Terminal))?)
        }
    };
    if let Some(rules) = &spec.landlock {
        rules.apply().map_err(at(Stage::Landlock))?;
    }
    if matches!(spec.identity, Identity::Kept) {
        // No PID namespace takes orphans along: they become this process's own, and are killed at the end.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(at(Stage::Session))?;
    }
    let signals = sys::signal_fd_for_all().map_err(at(Stage::Fork))?;
    // With a terminal, process 1 leads the session, so that a stopped command is not an orphan and can be continued.
    if slave.is_some() || !matches!(spec.identity, Identity::Kept) {
        rustix::process::setsid().map_err(at(Stage::Session))?;
    }
    if let Some(slave) = &slave {
        rustix::process::ioctl_tiocsctty(slave).map_err(at(Stage::Terminal))?;
    }
    if spec.becomes.is_some() {
        // It sees the owner's socket close, unless somebody has stopped it.
        let kill = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(kill).map_err(at(Stage::Session))?;
    }
    if let Some(filter) = &spec.filter {
        if spec.listens {
            let listener = seccomp::install_with_listener(filter).map_err(at(Stage::Filter))?;
            send_with(owner, &message(LISTENER, 0, 0), &[listener.as_fd()]).map_err(at(Stage::Filter))?;
        } else {
            seccomp::install(filter).map_err(at(Stage::Filter))?;
        }
    }
    let command = match &mut start.order {
        Some(letter) => {
            // A user may have so many descriptors on their way, and no more.
            let sent = mounts.map(|mounts| send_with(owner, &message(PARKED, 0, 0), &[mounts.as_fd()]));
            if sent != Some(Ok(())) {
                report(owner, message(PARKED, 0, 0));
            }
            // The owner is gone, and so is the box.
            let Some(stdio) = letter.receive(owner).map_err(at(Stage::Order))? else { return Ok(()) };
            start.stdio = stdio.map(Some);
            letter.open().map_err(at(Stage::Order))?
        }
        None if is_gone(owner) => return Ok(()),
        None => Opened {
            workdir: &spec.workdir,
            program: &spec.program,
            argv: spec.argv.strings(),
            script_argv: spec.script_argv.strings(),
            env: spec.env.strings(),
        },
    };
    let stdio = &start.stdio;
    if let Some(program) = &spec.becomes {
        let errno = become_program(spec, stdio, program)?;
        report(owner, message(NOT_EXECUTED, errno.raw_os_error(), 0));
        return Ok(());
    }
    let process_one = rustix::process::getpid();
    let started = sys::vfork(&spec.stack, || {
        if let Some(prepared) = prepared {
            become_builder(spec, prepared, owner, slave.as_ref(), process_one);
            return 125;
        }
        let (kind, a, b) = match become_command(spec, stdio, command, slave.as_ref()) {
            Err((stage, errno)) => (FAILED, stage.number(), errno.raw_os_error()),
            Ok(errno) => (NOT_EXECUTED, errno.raw_os_error(), 0),
        };
        report(owner, message(kind, a, b));
        125
    });
    let command = started.map_err(at(Stage::Fork))?.as_raw_nonzero().get();
    if let Some(slave) = &slave {
        // Also done by the child: whoever comes first, the group exists before anything reads from the terminal.
        let _ = rustix::process::setpgid(rustix::process::Pid::from_raw(command), None);
        foreground(slave, command);
    }
    // Standard ones included: a pipe that process 1 kept open would never end.
    sys::close_all_but(&[
        owner.as_raw_fd(),
        signals.as_raw_fd(),
        slave.as_ref().map_or(-1, AsRawFd::as_raw_fd),
        prepared.map_or(-1, |p| p.started.as_raw_fd()),
    ]);
    let ended = look_after(command, owner, &signals, slave.as_ref(), prepared);
    if prepared.is_some() {
        builder::end((!ended).then_some(command));
    }
    if spec.lingers && !is_alone() {
        let _ = poll(&mut [PollFd::new(owner, PollFlags::IN)], None);
    }
    if matches!(spec.identity, Identity::Kept) {
        kill_descendants();
    }
    Ok(())
}

/// Whether nothing is left of what the command started: it would be this process's child by now.
fn is_alone() -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    while let Ok(Some(_)) = sys::wait(-1, false, false) {}
    let left = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT);
    left.is_err_and(|errno| errno == Errno::CHILD)
}

/// The owner sends nothing but an order: without one, readable means that it is gone.
fn is_gone(owner: &OwnedFd) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(owner, PollFlags::IN)], Some(&now)) != Ok(0)
}

/// Kills every child, which makes their children ours, until there is none.
fn kill_descendants() {
    for _ in 0..10_000 {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let mut text = [0u8; 4096];
        let length = rustix::fs::open(c"/proc/thread-self/children", flags, rustix::fs::Mode::empty())
            .and_then(|file| rustix::io::read(&file, &mut text))
            .unwrap_or(0);
        // The last number may be cut off; it comes again in the next round.
        let Some(end) = text[..length].iter().rposition(|b| *b == b' ') else { return };
        for word in text[..end].split(|b| *b == b' ') {
            let pid = word.iter().fold(0i32, |n, d| n.wrapping_mul(10).wrapping_add(i32::from(d.wrapping_sub(b'0'))));
            if pid > 1 {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
        while let Ok(Some(_)) = sys::wait(-1, false, false) {}
    }
}

/// The last steps of the process that becomes the builder; returns when it could not.
fn become_builder(
    spec: &Spec,
    prepared: &Prepared,
    owner: &OwnedFd,
    slave: Option<&OwnedFd>,
    process_one: rustix::process::Pid,
) {
    let failed = |(stage, errno): Failure| message(FAILED, stage.number(), errno.raw_os_error());
    match prepared.keep(owner) {
        Err(errno) => report(owner, failed((Stage::Stdio, errno))),
        Ok(owner) => {
            let (Ok(failure) | Err(failure)) = try_become_builder(spec, prepared, slave, process_one);
            report(&owner, failed(failure));
        }
    }
}

fn try_become_builder(
    spec: &Spec,
    prepared: &Prepared,
    slave: Option<&OwnedFd>,
    process_one: rustix::process::Pid,
) -> Result<Failure, Failure> {
    builder::die_with(process_one, prepared).map_err(at(Stage::Session))?;
    enter_session(slave)?;
    let slave = slave.map(|fd| prepared.keep(fd)).transpose().map_err(at(Stage::Stdio))?;
    prepared.place(slave.as_ref()).map_err(at(Stage::Stdio))?;
    rustix::process::chdir(&spec.workdir).map_err(at(Stage::WorkingDirectory))?;
    sys::reset_signals().map_err(at(Stage::Session))?;
    sys::block_all_but_stops().map_err(at(Stage::Session))?;
    Ok((Stage::Builder, sys::execve(&spec.program, spec.argv.strings(), spec.env.strings())))
}

/// A group, or without a terminal a session, of the command's own.
fn enter_session(slave: Option<&OwnedFd>) -> Result<(), Failure> {
    match slave {
        Some(slave) => {
            rustix::process::setpgid(None, None).map_err(at(Stage::Session))?;
            foreground(slave, rustix::process::getpid().as_raw_nonzero().get());
            Ok(())
        }
        // No terminal of the host's can be made this session's own, and so none can be typed into (TIOCSTI).
        None => rustix::process::setsid().map(drop).map_err(at(Stage::Session)),
    }
}

/// Process 1 becomes another program; returns only when it could not.
fn become_program(spec: &Spec, stdio: &[Option<OwnedFd>; 3], program: &OwnedFd) -> Result<Errno, Failure> {
    place_stdio(stdio, None)?;
    rustix::process::chdir(c"/").map_err(at(Stage::WorkingDirectory))?;
    Ok(sys::execute_file(program.as_fd(), spec.argv.strings(), spec.env.strings()))
}

/// The last steps of the command's own process; returns only when it could not be executed.
fn become_command(
    spec: &Spec,
    stdio: &[Option<OwnedFd>; 3],
    command: Opened<'_>,
    slave: Option<&OwnedFd>,
) -> Result<Errno, Failure> {
    enter_session(slave)?;
    place_stdio(stdio, slave)?;
    rustix::process::chdir(command.workdir).map_err(at(Stage::WorkingDirectory))?;
    for (resource, value) in spec.rlimits.iter().filter(|(resource, _)| *resource == OPEN_FILES) {
        sys::set_rlimit(*resource, *value).map_err(at(Stage::Limits))?;
    }
    sys::reset_signals().map_err(at(Stage::Session))?;
    match sys::execve(command.program, command.argv, command.env) {
        Errno::NOEXEC => Ok(sys::execve(c"/bin/sh", command.script_argv, command.env)),
        errno => Ok(errno),
    }
}

/// Puts the standard descriptors in their places; no other one is open in the program that follows.
fn place_stdio(stdio: &[Option<OwnedFd>; 3], slave: Option<&OwnedFd>) -> Result<(), Failure> {
    // From above 2 downwards they may be each other's numbers: duplicate first, place then.
    let mut placed: [Option<OwnedFd>; 3] = [None, None, None];
    for (slot, fd) in placed.iter_mut().zip(stdio) {
        let source = fd.as_ref().or(slave).ok_or((Stage::Stdio, Errno::BADF))?;
        *slot = Some(rustix::io::fcntl_dupfd_cloexec(source, 10).map_err(at(Stage::Stdio))?);
    }
    for (target, fd) in (0..).zip(&placed) {
        if let Some(fd) = fd {
            sys::dup_onto(fd.as_fd(), target).map_err(at(Stage::Stdio))?;
        }
    }
    sys::close_range(3, u32::MAX, true).map_err(at(Stage::Stdio))
}

/// Reaps, forwards signals, reports; returns when the command has ended, and everything else in the box ends then. False
/// when it has not ended, but its owner is gone.
fn look_after(
    command: i32,
    owner: &OwnedFd,
    signals: &OwnedFd,
    slave: Option<&OwnedFd>,
    prepared: Option<&Prepared>,
) -> bool {
    // Signals that came before the command did, a bit each.
    let mut held = 0u64;
    let mut waiting = prepared;
    loop {
        let starting = waiting.map_or(owner, |p| &p.started);
        let mut ready = [
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(owner, PollFlags::IN),
            PollFd::new(starting, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        // The owner never sends: readable means that it is gone.
        if !ready[1].revents().is_empty() {
            return false;
        }
        if !ready[2].revents().is_empty() {
            waiting = None;
        }
        while let Some(signal) = sys::read_signal(signals.as_fd()) {
            held |= 1u64.checked_shl(signal as u32 - 1).unwrap_or(0);
        }
        while waiting.is_none() && held != 0 {
            let lowest = held.trailing_zeros();
            held &= held - 1;
            forward(lowest as i32 + 1, command, slave);
        }
        if prepared.is_some() {
            builder::sweep(command);
        }
        while let Ok(Some(child)) = sys::wait(-1, false, true) {
            if child.pid != command {
                continue;
            }
            if libc::WIFSTOPPED(child.status) {
                report(owner, message(STOPPED, libc::WSTOPSIG(child.status), 0));
            } else {
                report(owner, ended(child.status, prepared));
                return true;
            }
        }
    }
}

/// Hands a signal to the command's group.
fn forward(signal: i32, command: i32, slave: Option<&OwnedFd>) {
    let signal = match signal {
        libc::SIGCHLD => return,
        // An orphaned group ignores the terminal's stop; this one cannot be ignored.
        libc::SIGTSTP => libc::SIGSTOP,
        other => other,
    };
    if let (libc::SIGCONT, Some(slave)) = (signal, slave) {
        foreground(slave, command);
    }
    // The group is there once the command's process has made it. Without, there is that process alone.
    if sys::kill(-command, signal) == Err(Errno::SRCH) {
        let _ = sys::kill(command, signal);
    }
}

/// How it ended. The status of a builder is the command's only when the command was started.
fn ended(status: i32, prepared: Option<&Prepared>) -> Message {
    let exited = message(EXITED, status, 0);
    match prepared.map(Prepared::said) {
        None | Some(Said::Started) => exited,
        Some(Said::NotExecuted(errno)) => message(NOT_EXECUTED, errno.raw_os_error(), 0),
        Some(Said::NotReady(errno)) => message(FAILED, Stage::Stdio.number(), errno.raw_os_error()),
        Some(Said::Nothing) if libc::WIFSIGNALED(status) => exited,
        Some(Said::Nothing) => message(FAILED, Stage::Builder.number(), Errno::CANCELED.raw_os_error()),
    }
}

/// A terminal; the master goes to the owner.
fn open_terminal(ptmx: &CStr, owner: &OwnedFd, rows: u16, columns: u16) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let master = rustix::fs::open(ptmx, flags, rustix::fs::Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(
        &master,
        rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY | rustix::pty::OpenptFlags::CLOEXEC,
    )?;
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&slave, size)?;
    send_with(owner, &message(TERMINAL, 0, 0), &[master.as_fd()])?;
    Ok(slave)
}

/// Sends a message and descriptors, two at most, to the owner.
pub(crate) fn send_with(owner: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    rustix::net::sendmsg(owner, &[std::io::IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// Gives the terminal to a process group. It fails when the group has just ended, which its exit then tells.
fn foreground(slave: &OwnedFd, group: i32) {
    if let Some(group) = rustix::process::Pid::from_raw(group) {
        let _ = rustix::termios::tcsetpgrp(slave, group);
    }
}

pub(crate) fn write_file(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    write_at(rustix::fs::CWD, path, text)
}

fn write_at(dir: BorrowedFd<'_>, path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::openat(dir, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::io::write(&file, text)? {
        n if n == text.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}
