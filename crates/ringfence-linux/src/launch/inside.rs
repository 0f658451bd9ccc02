//! Process 1: builds the box around itself, gives up every privilege, starts the command and looks after it.
//!
//! It runs after the fork, in a copy of its owner's memory, and so makes system calls and nothing else.

use std::convert::Infallible;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::thread::LinkNameSpaceType;

use super::{
    EXITED, FAILED, Identity, LISTENER, Maps, Message, NOT_EXECUTED, Processors, STOPPED, Spec, Stage, Start, TERMINAL,
    Terminal, message,
};
use crate::builder::{self, Prepared, Said};
use crate::seccomp;
use crate::setup::{self, View};
use crate::sys::{self, HeldSignals, Wait};

#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
const OPEN_FILES: u32 = libc::RLIMIT_NOFILE as u32;

/// A failure on the way to the command: where, and why.
pub(crate) type Failure = (Stage, Errno);

pub(crate) fn at(stage: Stage) -> impl FnOnce(Errno) -> Failure {
    move |errno| (stage, errno)
}

/// Why the last process did not become its program.
enum NotStarted {
    Setup(Failure),
    NotExecuted(Errno),
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> NotStarted {
        NotStarted::Setup(failure)
    }
}

impl NotStarted {
    fn message(&self) -> Message {
        match self {
            NotStarted::Setup((stage, errno)) => message(FAILED, stage.number(), errno.raw_os_error()),
            NotStarted::NotExecuted(errno) => message(NOT_EXECUTED, errno.raw_os_error(), 0),
        }
    }
}

/// `stands`: told when the box is built, where process 1 builds it.
pub(super) fn process_one(
    spec: &Spec,
    start: &Start,
    prepared: Option<&Prepared>,
    owner: &OwnedFd,
    handles: &OwnedFd,
    view: &mut View,
    stands: Option<OwnedFd>,
) -> ! {
    let built = build(spec, start, owner, handles, view, stands.as_ref());
    let code = match built.and_then(|()| announce(stands)).and_then(|()| run(spec, start, prepared, owner)) {
        Ok(()) => 0,
        Err(failure) => {
            report(owner, NotStarted::Setup(failure).message());
            125
        }
    };
    sys::exit_now(code)
}

/// Nobody to tell when the owner is gone: then process 1 is about to be killed anyway.
fn report(owner: &OwnedFd, message: Message) {
    let _ = rustix::net::send(owner, &message, SendFlags::NOSIGNAL);
}

/// Tells the owner that the box is built.
fn announce(stands: Option<OwnedFd>) -> Result<(), Failure> {
    let Some(stands) = stands else { return Ok(()) };
    match rustix::io::write(&stands, &0u32.to_ne_bytes()) {
        // The owner is gone. That is seen where it matters.
        Ok(_) | Err(Errno::PIPE) => Ok(()),
        Err(errno) => Err((Stage::Session, errno)),
    }
}

/// Builds the box around this process and takes every privilege away from it.
fn build(
    spec: &Spec,
    start: &Start,
    owner: &OwnedFd,
    handles: &OwnedFd,
    view: &mut View,
    stands: Option<&OwnedFd>,
) -> Result<(), Failure> {
    // First of all: whatever follows is spent within the limits.
    for group in start.groups.iter().filter(|_| start.born_in.is_none()) {
        rustix::io::write(group, b"0").map_err(at(Stage::Groups))?;
    }
    if let Identity::Outside(builder) = &spec.identity {
        // The starter sets the other limits: some of them would hold the builder up.
        if let Some(processors) = spec.processors {
            keep_processors(processors).map_err(at(Stage::Limits))?;
        }
        return builder::prepare(builder, &spec.steps);
    }
    let_go(spec, start.stdio.each_ref().map(Option::as_ref), [Some(owner), Some(handles), stands]);
    if let Identity::Mapped(maps) = &spec.identity {
        map_ids(maps).map_err(at(Stage::IdMaps))?;
    }
    if spec.loopback {
        loopback_up().map_err(at(Stage::Loopback))?;
    }
    if !start.groups.is_empty() || spec.namespaces != 0 {
        // After joining, so that the box sees its own group as the root.
        sys::unshare(libc::CLONE_NEWCGROUP as u64).map_err(at(Stage::Groups))?;
    }
    if spec.namespaces & libc::CLONE_NEWUTS as u64 != 0 {
        sys::set_hostname(b"ringfence").map_err(at(Stage::Hostname))?;
    }
    let placeholders = setup::carry_out(&spec.steps, spec.idmaps(), view)?;
    if spec.namespaces & libc::CLONE_NEWNS as u64 != 0 {
        sys::starter::hand_out(handles.as_fd(), placeholders.as_ref().map(AsFd::as_fd));
    }
    drop(placeholders);
    if let Identity::Entered { userns, .. } = &spec.identity {
        sys::set_namespace(userns.as_fd(), LinkNameSpaceType::User).map_err(at(Stage::Become))?;
    }
    if !matches!(spec.identity, Identity::Kept) {
        if !spec.nesting {
            write_file(c"/proc/sys/user/max_user_namespaces", b"0").map_err(at(Stage::UserNamespaces))?;
        }
        sys::drop_bounding_set().map_err(at(Stage::Capabilities))?;
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
    Ok(())
}

/// Closes what this process has of its owner's and does not need. An owner of a thousand boxes has thousands, and the command's
/// process would get a copy of each; and who holds the other end of a socket does not see its owner go. The first three stay
/// until the command has its own: nothing that is opened may take their places.
fn let_go(spec: &Spec, stdio: [Option<&OwnedFd>; 3], sockets: [Option<&OwnedFd>; 3]) {
    let number = |fd: Option<&OwnedFd>| fd.map_or(-1, AsRawFd::as_raw_fd);
    let [stdin, stdout, stderr] = stdio.map(number);
    let (userns, callers, owners) = match &spec.identity {
        Identity::Entered { userns, idmaps, .. } => (Some(userns), Some(&idmaps.callers), idmaps.owners.as_ref()),
        _ => (None, None, None),
    };
    let (userns, callers, owners) = (number(userns), number(callers), number(owners));
    let becomes = number(spec.becomes.as_ref());
    let [owner, handles, stands] = sockets.map(number);
    sys::close_all_but(&[0, 1, 2, owner, handles, stands, stdin, stdout, stderr, userns, callers, owners, becomes]);
}

/// Maps the ids of the user namespace that this process is in.
fn map_ids(maps: &Maps) -> Result<(), Errno> {
    // An unprivileged writer must first give up setgroups; before the maps, since they end the right to.
    write_file(c"/proc/self/setgroups", b"deny")?;
    write_file(c"/proc/self/uid_map", maps.uids.as_bytes())?;
    write_file(c"/proc/self/gid_map", maps.gids.as_bytes())
}

/// Brings the loopback of the network namespace that this process is in up.
fn loopback_up() -> Result<(), Errno> {
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
fn run(spec: &Spec, start: &Start, prepared: Option<&Prepared>, owner: &OwnedFd) -> Result<(), Failure> {
    let slave = match start.terminal {
        Terminal::None => None,
        Terminal::Own { rows, columns } => {
            // The host's devpts may not let its own ptmx be opened; the box's has no other.
            let ptmx = if prepared.is_some() { c"/dev/ptmx" } else { c"/dev/pts/ptmx" };
            let (master, slave) = sys::open_terminal(ptmx, rows, columns).map_err(at(Stage::Terminal))?;
            send_with(owner, &message(TERMINAL, 0, 0), master.as_fd()).map_err(at(Stage::Terminal))?;
            Some(slave)
        }
    };
    if let Some(rules) = &spec.landlock {
        rules.apply().map_err(at(Stage::Landlock))?;
    }
    let mut children = None;
    if matches!(spec.identity, Identity::Kept) {
        // No PID namespace takes orphans along: they become this process's own, and are killed at the end. What they are is
        // read from this file: without it, no command is started.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(at(Stage::Session))?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(c"/proc/thread-self/children", flags, Mode::empty());
        children = Some(file.map_err(at(Stage::Session))?);
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
            send_with(owner, &message(LISTENER, 0, 0), listener.as_fd()).map_err(at(Stage::Filter))?;
        } else {
            seccomp::install(filter).map_err(at(Stage::Filter))?;
        }
    }
    if is_gone(owner) {
        return Ok(());
    }
    if let Some(program) = &spec.becomes {
        let Err(failed) = become_program(spec, &start.stdio, program);
        report(owner, failed.message());
        return Ok(());
    }
    let process_one = rustix::process::getpid();
    let started = sys::vfork(&spec.stack, || {
        if let Some(prepared) = prepared {
            become_builder(spec, prepared, owner, slave.as_ref(), process_one);
        } else {
            let Err(failed) = become_command(spec, &start.stdio, slave.as_ref());
            report(owner, failed.message());
        }
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
        children.as_ref().map_or(-1, AsRawFd::as_raw_fd),
    ]);
    let ended = look_after(command, owner, &signals, slave.as_ref(), prepared);
    if prepared.is_some() {
        builder::end((!ended).then_some(command));
    }
    if spec.lingers && !is_alone() {
        let _ = poll(&mut [PollFd::new(owner, PollFlags::IN)], None);
    }
    match children {
        Some(children) => kill_descendants(&children).map_err(at(Stage::Session)),
        None => Ok(()),
    }
}

/// Whether nothing is left of what the command started: it would be this process's child by now.
fn is_alone() -> bool {
    while let Ok(Some(_)) = sys::wait(-1, Wait::IfEnded) {}
    !sys::has_children()
}

/// The owner never sends: readable means that it is gone.
fn is_gone(owner: &OwnedFd) -> bool {
    sys::poll_for(&mut [PollFd::new(owner, PollFlags::IN)], Some(Duration::ZERO)) != Ok(0)
}

/// So often children are killed. Each time kills those that the last one left as orphans, and a tree is not as deep. One that
/// forks faster than it is killed is left to the sandbox around this one, whose process limit stops it.
const MOST_KILLS: usize = 10_000;

/// Kills every child, which makes their children ours, until there is none. `list`: the file that names them.
fn kill_descendants(list: &OwnedFd) -> Result<(), Errno> {
    for _ in 0..MOST_KILLS {
        let mut killed = false;
        sys::each_child(list, |pid| killed |= sys::kill(pid, libc::SIGKILL).is_ok())?;
        if killed {
            sys::wait(-1, Wait::UntilEnd)?;
        }
        if is_alone() {
            return Ok(());
        }
    }
    Err(Errno::BUSY)
}

/// The last steps of the process that becomes the builder; returns when it could not.
fn become_builder(
    spec: &Spec,
    prepared: &Prepared,
    owner: &OwnedFd,
    slave: Option<&OwnedFd>,
    process_one: rustix::process::Pid,
) {
    match prepared.keep(owner) {
        Err(errno) => report(owner, NotStarted::Setup((Stage::Stdio, errno)).message()),
        Ok(owner) => {
            let Err(failure) = try_become_builder(spec, prepared, slave, process_one);
            report(&owner, NotStarted::Setup(failure).message());
        }
    }
}

fn try_become_builder(
    spec: &Spec,
    prepared: &Prepared,
    slave: Option<&OwnedFd>,
    process_one: rustix::process::Pid,
) -> Result<Infallible, Failure> {
    builder::die_with(process_one, prepared).map_err(at(Stage::Session))?;
    enter_session(slave)?;
    let slave = slave.map(|fd| prepared.keep(fd)).transpose().map_err(at(Stage::Stdio))?;
    prepared.place(slave.as_ref()).map_err(at(Stage::Stdio))?;
    rustix::process::chdir(&spec.workdir).map_err(at(Stage::WorkingDirectory))?;
    sys::reset_signals().map_err(at(Stage::Session))?;
    sys::block_all_but_stops().map_err(at(Stage::Session))?;
    Err((Stage::Builder, sys::execve(&spec.program, spec.argv.strings(), spec.env.strings())))
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

/// Process 1 becomes another program.
fn become_program(spec: &Spec, stdio: &[Option<OwnedFd>; 3], program: &OwnedFd) -> Result<Infallible, NotStarted> {
    place_stdio(stdio, None)?;
    rustix::process::chdir(c"/").map_err(at(Stage::WorkingDirectory))?;
    Err(NotStarted::NotExecuted(sys::execute_file(program.as_fd(), spec.argv.strings(), spec.env.strings())))
}

/// The last steps of the command's own process.
fn become_command(
    spec: &Spec,
    stdio: &[Option<OwnedFd>; 3],
    slave: Option<&OwnedFd>,
) -> Result<Infallible, NotStarted> {
    enter_session(slave)?;
    place_stdio(stdio, slave)?;
    rustix::process::chdir(&spec.workdir).map_err(at(Stage::WorkingDirectory))?;
    for (resource, value) in spec.rlimits.iter().filter(|(resource, _)| *resource == OPEN_FILES) {
        sys::set_rlimit(*resource, *value).map_err(at(Stage::Limits))?;
    }
    sys::reset_signals().map_err(at(Stage::Session))?;
    let errno = match sys::execve(&spec.program, spec.argv.strings(), spec.env.strings()) {
        Errno::NOEXEC => sys::execve(c"/bin/sh", spec.script_argv.strings(), spec.env.strings()),
        errno => errno,
    };
    Err(NotStarted::NotExecuted(errno))
}

/// Puts the standard descriptors in their places; no other one is open in the program that follows.
fn place_stdio(stdio: &[Option<OwnedFd>; 3], slave: Option<&OwnedFd>) -> Result<(), Failure> {
    let [stdin, stdout, stderr] = stdio.each_ref().map(|fd| fd.as_ref().or(slave));
    let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err((Stage::Stdio, Errno::BADF));
    };
    sys::place_stdio([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]).map_err(at(Stage::Stdio))
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
    let mut held = HeldSignals::default();
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
            held.add(signal);
        }
        if waiting.is_none() {
            while let Some(signal) = held.take() {
                forward(signal, command, slave);
            }
        }
        if prepared.is_some() {
            builder::sweep(command);
        }
        while let Ok(Some(child)) = sys::wait(-1, Wait::IfChanged) {
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
        Some(Said::Deviation(place, errno)) => message(FAILED, Stage::View(place).number(), errno.raw_os_error()),
        Some(Said::NotReady(errno)) => message(FAILED, Stage::Stdio.number(), errno.raw_os_error()),
        Some(Said::Nothing) if libc::WIFSIGNALED(status) => exited,
        Some(Said::Nothing) => message(FAILED, Stage::Builder.number(), Errno::CANCELED.raw_os_error()),
    }
}

/// Sends a message and a descriptor to the owner.
fn send_with(owner: &OwnedFd, message: &[u8], fd: BorrowedFd<'_>) -> Result<(), Errno> {
    sys::send_with(owner, message, &[fd], SendFlags::empty()).map(drop)
}

/// Gives the terminal to a process group. It fails when the group has just ended, which its exit then tells.
fn foreground(slave: &OwnedFd, group: i32) {
    if let Some(group) = rustix::process::Pid::from_raw(group) {
        let _ = rustix::termios::tcsetpgrp(slave, group);
    }
}

fn write_file(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::io::write(&file, text)? {
        n if n == text.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}
