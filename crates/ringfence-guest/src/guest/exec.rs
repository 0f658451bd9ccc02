//! Commands: what the guest does for one ([`Exec`]), and how its reaper, or the guest itself, starts it ([`start`]).

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_guest::frame::{Channel, Kind, MAX_DATA};
use ringfence_guest::message::{self, Exited, Input, Reply, Size, Step};
use ringfence_linux::sys::{self, PointerList, Stack, Waited};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::link::Taken;
use super::reapers::{AT_ONCE, Note, Report};
use super::streams::{Ending, Sink, Source};
use super::{Context, Fault, Flow, Part};

/// What a reaper is told. Descriptors come with it: the terminal, or three of them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// Differs from every other one's.
    pub number: u64,
    /// `RLIMIT_*` and value.
    pub limits: Vec<(u32, u64)>,
    /// How many processes there may be, all of the guest's included.
    pub processes: Option<u64>,
    pub exec: message::Exec,
}

/// A failed step of a request.
pub type Failure = (Step, Errno);

/// Grown to this when a command fills what a pipe has by itself. Not at once: a user's pipes have one limit together.
const LARGE_PIPE: usize = 256 * 1024;

/// What was written to a terminal reaches its other side a little later. It ends by itself when its session does.
const TERMINAL_DRAIN: Duration = Duration::from_millis(100);

/// What is killed is gone by then.
const CLEARED: Duration = Duration::from_secs(2);

/// What is killed ends by then, also when somebody traces it who does what tracers do.
const UNTRACED: Duration = Duration::from_millis(500);

/// One command and its channels.
#[derive(Debug)]
pub struct Exec {
    stream: u32,
    /// The host closed the stream: nothing is sent any more.
    closed: bool,
    /// Looks after it. None when it was killed, or when nothing is left to look after.
    reaper: Option<i32>,
    /// The guest looks after it itself: all its children but the reapers descend from this command.
    own: bool,
    /// The number of the order that the reaper got.
    order: u64,
    pid: Option<i32>,
    opened: Instant,
    /// The host knows that it runs.
    announced: bool,
    input: Option<Sink>,
    outputs: [Option<Output>; 2],
    terminal: Option<OwnedFd>,
    /// Signals that came before the command did, a bit each.
    held: u64,
    /// A signal was sent to the whole tree: it ends when that is gone.
    whole_tree: bool,
    /// When its tree was first sent a KILL, which is repeated until nothing is left.
    killed: Option<Instant>,
    ended: Option<Exited>,
    give_up_at: Option<Instant>,
    /// What it takes to order it once more, until it runs: only where earlier commands left something.
    again: Option<Again>,
}

/// An order that may have to be given twice.
#[derive(Debug)]
struct Again {
    order: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// There was no process for it: what was left behind is being ended, and waited for until then.
    until: Option<Instant>,
}

#[derive(Debug)]
struct Output {
    source: Source,
    part: Part,
    /// What was in it when the command ended, and was not sent yet. What others write later is not waited for.
    left: Option<usize>,
    grown: bool,
}

impl Exec {
    /// Orders a command. `pipes` are its outputs, when the host has sent them. `alone`: nothing else is open.
    pub fn open(
        key: u64,
        stream: u32,
        exec: message::Exec,
        pipes: Vec<OwnedFd>,
        alone: bool,
        cx: &mut Context,
    ) -> Result<Exec, Failure> {
        let fork = |errno| (Step::Fork, errno);
        let mut new = Exec {
            stream,
            closed: false,
            reaper: None,
            own: alone && exec.terminal.is_none() && cx.is_first && cx.reapers.busy() == 0 && cx.is_childless(),
            order: 0,
            pid: None,
            opened: Instant::now(),
            announced: false,
            input: None,
            outputs: [None, None],
            terminal: None,
            held: 0,
            whole_tree: false,
            killed: None,
            ended: None,
            give_up_at: None,
            again: None,
        };
        let theirs = match exec.terminal {
            Some(size) => vec![new.open_terminal(size).map_err(|errno| (Step::Terminal, errno))?],
            None => new.open_pipes(exec.stdin, pipes).map_err(fork)?,
        };
        let piped = exec.piped;
        let nothing = (exec.terminal.is_none() && !exec.stdin).then(|| cx.null.as_fd());
        cx.orders += 1;
        new.order = cx.orders;
        let settings = cx.settings.clone().unwrap_or_default();
        let processes = settings.processes.map(|most| most + cx.reapers.busy());
        let order = Order { number: cx.orders, limits: settings.limits, processes, exec };
        let fds: Vec<_> = nothing.into_iter().chain(theirs.iter().map(AsFd::as_fd)).collect();
        if new.own {
            // Nobody else waits, and nobody in the box is there who could make this take long.
            new.arm(key, cx).map_err(fork)?;
            let pid = start(order, &fds, None, &cx.stack)?;
            (cx.own, new.pid) = (true, Some(pid));
            cx.bare.insert(pid);
            cx.commands.insert(pid);
            if !piped {
                new.started(pid, cx);
            }
            return Ok(new);
        }
        let order = postcard::to_allocvec(&order).map_err(|_| (Step::Refuse, Errno::INVAL))?;
        let left = is_alone(cx) && !cx.is_childless();
        match cx.reapers.order(key, &order, &fds, &cx.epoll) {
            Ok(reaper) => new.reaper = Some(reaper),
            Err(Errno::AGAIN) if left => {}
            Err(errno) => return Err(fork(errno)),
        }
        if left {
            let copies = fds.iter().map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 3)).collect::<Result<_, _>>();
            new.again = Some(Again { order, fds: copies.map_err(fork)?, until: None });
            if new.reaper.is_none() {
                new.clear(cx);
            }
        }
        Ok(new)
    }

    /// There is no process left for it, and nobody else's command runs: ends what earlier ones left behind.
    fn clear(&mut self, cx: &mut Context) {
        let guest = rustix::process::getpid().as_raw_nonzero().get();
        cx.processes.signal(guest, libc::SIGKILL, |pid| cx.reapers.is_idle(pid));
        if let Some(again) = &mut self.again {
            again.until = Some(Instant::now() + CLEARED);
        }
    }

    /// Orders it once more, when what was left behind is gone.
    fn order_again(&mut self, key: u64, cx: &mut Context) -> Result<Flow, Fault> {
        let Some(until) = self.again.as_ref().and_then(|again| again.until) else { return Ok(Flow::Goes) };
        if !cx.is_childless() && Instant::now() < until {
            return Ok(Flow::Goes);
        }
        let Some(again) = self.again.take() else { return Ok(Flow::Goes) };
        let fds: Vec<_> = again.fds.iter().map(AsFd::as_fd).collect();
        match cx.reapers.order(key, &again.order, &fds, &cx.epoll) {
            Ok(reaper) => {
                self.reaper = Some(reaper);
                Ok(Flow::Goes)
            }
            Err(errno) => self.report(key, Report::Failed { step: Step::Fork, errno: errno.raw_os_error() }, cx),
        }
    }

    /// What the command gets of them: its input, if it has one, and its two outputs.
    fn open_pipes(&mut self, stdin: bool, outputs: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, Errno> {
        let mut theirs = Vec::with_capacity(3);
        if stdin {
            let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&write, true)?;
            self.input = Some(Sink::new(write, self.stream, Ending::Close));
            theirs.push(read);
        }
        if !outputs.is_empty() {
            theirs.extend(outputs);
            return Ok(theirs);
        }
        for (slot, (channel, part)) in
            self.outputs.iter_mut().zip([(Channel::Out, Part::Out), (Channel::Err, Part::Err)])
        {
            let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&read, true)?;
            let source = Source::new(read, self.stream, channel);
            *slot = Some(Output { source, part, left: None, grown: false });
            theirs.push(write);
        }
        Ok(theirs)
    }

    fn open_terminal(&mut self, size: Size) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = |path: &std::ffi::CStr| rustix::fs::open(path, flags, Mode::empty());
        let master = open(c"/dev/pts/ptmx").or_else(|_| open(c"/dev/ptmx"))?;
        rustix::pty::unlockpt(&master)?;
        let peer =
            rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY | rustix::pty::OpenptFlags::CLOEXEC;
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, peer)?;
        rustix::termios::tcsetwinsize(&slave, window(size))?;
        let copy = || rustix::io::fcntl_dupfd_cloexec(&master, 3);
        self.input = Some(Sink::new(copy()?, self.stream, Ending::EndOfFile));
        let source = Source::new(copy()?, self.stream, Channel::Out);
        self.outputs[0] = Some(Output { source, part: Part::Out, left: None, grown: true });
        self.terminal = Some(master);
        Ok(slave)
    }

    /// Its reaper says something.
    pub fn report(&mut self, key: u64, report: Report, cx: &mut Context) -> Result<Flow, Fault> {
        match report {
            Report::Failed { step, errno } => {
                if let Some(reaper) = self.reaper.take() {
                    cx.reapers.release(reaper);
                }
                let none = (step, errno) == (Step::Fork, Errno::AGAIN.raw_os_error());
                if none && self.again.is_some() && !self.closed && is_alone(cx) {
                    self.clear(cx);
                    return Ok(Flow::Goes);
                }
                if !self.closed {
                    cx.link.message(self.stream, &Reply::Failed { step, errno });
                }
                Ok(Flow::Ended)
            }
            Report::Started { pid } => {
                self.started(pid, cx);
                self.arm(key, cx)?;
                Ok(Flow::Goes)
            }
            Report::Ended { pid, exited, left } => {
                self.started(pid, cx);
                self.ended = Some(exited);
                cx.commands.remove(&pid);
                self.measure();
                match self.reaper {
                    Some(reaper) if !left => {
                        cx.reapers.release(reaper);
                        self.reaper = None;
                    }
                    // What it left in the background is the session's from now on.
                    Some(reaper) if !self.whole_tree => {
                        // Among the guest's children it would pass for what its own command started.
                        if cx.own {
                            cx.reapers.leave(reaper);
                        } else {
                            cx.reapers.dismiss(reaper);
                        }
                        self.reaper = None;
                    }
                    _ => {}
                }
                self.finish(key, cx)
            }
            Report::Empty => {
                if let Some(reaper) = self.reaper.take() {
                    cx.reapers.release(reaper);
                }
                self.finish(key, cx)
            }
        }
    }

    fn started(&mut self, pid: i32, cx: &mut Context) {
        self.pid = Some(pid);
        cx.commands.insert(pid);
        self.again = None;
        if !std::mem::replace(&mut self.announced, true) && !self.closed {
            cx.link.message(self.stream, &Reply::Started { pid: pid as u32 });
        }
        while self.held != 0 {
            let signal = self.held.trailing_zeros() as i32 + 1;
            self.held &= self.held - 1;
            // It may have ended.
            let _ = sys::kill(-pid, signal);
        }
    }

    /// What is to be sent before the command's end is told.
    fn measure(&mut self) {
        for output in self.outputs.iter_mut().flatten() {
            let there = rustix::io::ioctl_fionread(output.source.fd()).unwrap_or(0);
            output.left = Some(if self.terminal.is_some() { usize::MAX } else { there as usize });
        }
        if self.terminal.is_some() {
            self.give_up_at = Some(Instant::now() + TERMINAL_DRAIN);
        }
    }

    /// Sends what is left, and then how it ended.
    fn finish(&mut self, key: u64, cx: &mut Context) -> Result<Flow, Fault> {
        let Some(exited) = self.ended else { return Ok(Flow::Goes) };
        for slot in &mut self.outputs {
            while let Some(output) = slot
                && let Some(left) = &mut output.left
                && (*left == 0 || output.source.can_send() && !cx.link.is_full())
            {
                let taken = if *left == 0 { Ok(Taken::End) } else { output.source.pump(&mut cx.link, *left) };
                match taken {
                    Ok(Taken::Bytes(n)) => *left = left.saturating_sub(n),
                    Ok(Taken::Nothing) => break,
                    Ok(Taken::End) | Err(_) => {
                        output.source.disarm(&cx.epoll);
                        *slot = None;
                    }
                }
            }
        }
        if self.give_up_at.is_some_and(|at| Instant::now() >= at)
            && self.outputs.iter().flatten().all(|o| o.source.can_send())
        {
            self.outputs = [None, None];
        }
        if self.outputs.iter().any(Option::is_some) {
            self.arm(key, cx)?;
            return Ok(Flow::Goes);
        }
        let others = |pid: i32| cx.is_others(pid, self.pid.unwrap_or(0));
        if self.whole_tree && (self.reaper.is_some() || self.own && !cx.has_no_child_but(others)) {
            return Ok(Flow::Goes);
        }
        if let Some(input) = &mut self.input {
            input.close(&cx.epoll);
        }
        if !self.closed {
            cx.link.message(self.stream, &Reply::Exited(exited));
        }
        if self.own {
            cx.own = false;
            cx.reapers.dismiss_left();
        }
        Ok(Flow::Ended)
    }

    fn arm(&mut self, key: u64, cx: &Context) -> Result<(), Errno> {
        for output in self.outputs.iter_mut().flatten() {
            output.source.arm(key, output.part, &cx.epoll)?;
        }
        Ok(())
    }

    /// One of its descriptors is ready.
    pub fn ready(&mut self, key: u64, part: Part, cx: &mut Context) -> Result<Flow, Fault> {
        if part == Part::In {
            if let Some(input) = &mut self.input {
                input.flush(key, cx)?;
            }
            return Ok(Flow::Goes);
        }
        if self.ended.is_some() {
            return self.finish(key, cx);
        }
        for slot in &mut self.outputs {
            let Some(output) = slot.as_mut().filter(|o| o.part == part) else { continue };
            match output.source.pump(&mut cx.link, MAX_DATA) {
                Ok(Taken::Bytes(n)) => {
                    if n == MAX_DATA && !output.grown {
                        output.grown = true;
                        // There may be no more to be had.
                        let _ = rustix::pipe::fcntl_setpipe_size(output.source.fd(), LARGE_PIPE);
                    }
                    output.source.arm(key, part, &cx.epoll)?;
                }
                Ok(Taken::Nothing) => {}
                // A terminal ends with an error.
                Ok(Taken::End) | Err(_) => {
                    output.source.disarm(&cx.epoll);
                    let channel = if part == Part::Err { Channel::Err } else { Channel::Out };
                    cx.link.frame(self.stream, Kind::Eof(channel), &[]);
                    *slot = None;
                }
            }
        }
        Ok(Flow::Goes)
    }

    pub fn grant(&mut self, key: u64, channel: Channel, bytes: u32, cx: &mut Context) -> Result<Flow, Fault> {
        let index = match channel {
            Channel::In => return Err(Fault::Credit),
            Channel::Out => 0,
            Channel::Err => 1,
        };
        if let Some(output) = &mut self.outputs[index] {
            output.source.grant(bytes)?;
        }
        if self.ended.is_some() {
            return self.finish(key, cx);
        }
        if self.pid.is_some() {
            self.arm(key, cx)?;
        }
        Ok(Flow::Goes)
    }

    /// Bytes for its standard input; `None`: no more follow.
    pub fn data(&mut self, key: u64, bytes: Option<&[u8]>, cx: &mut Context) -> Result<(), Fault> {
        let Some(input) = &mut self.input else { return Ok(()) };
        match bytes {
            Some(bytes) => input.push(bytes)?,
            None => input.end(),
        }
        Ok(input.flush(key, cx)?)
    }

    pub fn input(&mut self, input: Input, cx: &mut Context) {
        match input {
            Input::Resize(size) => {
                if let Some(terminal) = &self.terminal {
                    // A terminal that was hung up has no size, and nobody who would look.
                    let _ = rustix::termios::tcsetwinsize(terminal, window(size));
                }
            }
            Input::Signal { signal, .. } if !(1..=64).contains(&signal) => {}
            Input::Signal { signal, tree: true } => self.signal_tree(signal, cx),
            Input::Signal { signal, tree: false } => match self.pid {
                _ if self.ended.is_some() => {}
                // It may have ended.
                Some(pid) => {
                    let _ = sys::kill(-pid, signal);
                }
                None => self.held |= 1 << (signal - 1),
            },
        }
    }

    fn signal_tree(&mut self, signal: i32, cx: &mut Context) {
        self.whole_tree = true;
        if signal == libc::SIGKILL {
            self.killed.get_or_insert_with(Instant::now);
        }
        let traced = self.killed.is_some_and(|at| at.elapsed() >= UNTRACED);
        let end = |root: i32, spared: &dyn Fn(i32) -> bool| {
            cx.processes.signal(root, signal, spared);
            if traced {
                cx.processes.kill_tracers(root, spared);
            }
        };
        match (self.reaper, self.pid) {
            (Some(reaper), _) => {
                // Somebody may have stopped it.
                let _ = sys::kill(reaper, libc::SIGCONT);
                end(reaper, &|_| false);
            }
            // The guest's own, or its reaper was killed. What it orphaned cannot be told from what was left behind by
            // commands that have ended: all of it goes, and only what is surely a neighbour's stays.
            (None, Some(command)) if self.ended.is_none() || self.own => {
                let guest = rustix::process::getpid().as_raw_nonzero().get();
                end(guest, &|pid| cx.is_others(pid, command));
            }
            _ => {}
        }
    }

    /// The host closed the stream: everything of the command ends. Whether there is something to wait for.
    pub fn close(&mut self, cx: &mut Context) -> Flow {
        self.closed = true;
        for output in self.outputs.iter_mut().flatten() {
            output.source.disarm(&cx.epoll);
        }
        if let Some(input) = &mut self.input {
            input.close(&cx.epoll);
        }
        (self.outputs, self.input, self.terminal, self.again) = ([None, None], None, None, None);
        self.signal_tree(libc::SIGKILL, cx);
        if self.reaper.is_some() || self.own { Flow::Goes } else { Flow::Ended }
    }

    /// Which reaper looks after it.
    pub fn reaper(&self) -> Option<i32> {
        self.reaper
    }

    /// Its reaper was killed. What is left of the command is the guest's child now.
    pub fn lost(&mut self, key: u64, note: Note, cx: &mut Context) -> Result<Flow, Fault> {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        self.reaper = None;
        if self.ended.is_some() {
            return self.finish(key, cx);
        }
        if note.order == self.order {
            self.started(note.pid, cx);
            self.arm(key, cx)?;
        }
        let Some(pid) = self.pid else {
            return self.report(key, Report::Failed { step: Step::Fork, errno: Errno::OWNERDEAD.raw_os_error() }, cx);
        };
        if self.killed.is_some() {
            self.signal_tree(libc::SIGKILL, cx);
        }
        let here = Pid::from_raw(pid)
            .map(|pid| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT));
        match here {
            Some(Ok(_)) => {
                cx.bare.insert(pid);
                Ok(Flow::Goes)
            }
            // The reaper had seen its end and told nobody.
            _ => self.gone(
                key,
                Waited { pid, status: libc::SIGKILL, cpu: Duration::ZERO, system: Duration::ZERO, peak_memory: 0 },
                cx,
            ),
        }
    }

    /// Whether this process, a child of the guest's that ended, is its command.
    pub fn is_command(&self, pid: i32) -> bool {
        self.reaper.is_none() && self.ended.is_none() && self.pid == Some(pid)
    }

    /// The command ended without a reaper.
    pub fn gone(&mut self, key: u64, child: Waited, cx: &mut Context) -> Result<Flow, Fault> {
        self.report(key, Report::ended(child, false), cx)
    }

    /// Whether it must be looked at again soon.
    pub fn is_pending(&self) -> bool {
        let waits = self.own && (!self.announced || self.whole_tree);
        let again = self.again.as_ref().is_some_and(|again| again.until.is_some());
        let killed = self.killed.is_some() && (self.reaper.is_some() || self.ended.is_none());
        killed || self.give_up_at.is_some() || waits || again
    }

    pub fn look(&mut self, key: u64, cx: &mut Context) -> Result<Flow, Fault> {
        if let (true, Some(pid)) = (self.own && self.opened.elapsed() >= AT_ONCE, self.pid) {
            self.started(pid, cx);
        }
        if self.killed.is_some() {
            self.signal_tree(libc::SIGKILL, cx);
        }
        if self.order_again(key, cx)? == Flow::Ended {
            return Ok(Flow::Ended);
        }
        self.finish(key, cx)
    }
}

/// Whether no command runs, so that all that is there was left behind by earlier ones.
fn is_alone(cx: &Context) -> bool {
    cx.reapers.owned() == 0 && !cx.own && cx.bare.is_empty()
}

fn window(size: Size) -> rustix::termios::Winsize {
    rustix::termios::Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Starts a command; its process id. `note` is its reaper's, where it has one.
pub fn start(order: Order, fds: &[BorrowedFd<'_>], note: Option<&OwnedFd>, stack: &Stack) -> Result<i32, Failure> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let held = order.processes.map(|_| getrlimit(Resource::Nproc));
    let started = start_held(order, fds, note, stack);
    if let Some(before) = held {
        // What else this process forks is not held to it. Where the box lowered a reaper's in this moment, it gets no other order.
        let _ = setrlimit(Resource::Nproc, before);
    }
    started
}

fn start_held(order: Order, fds: &[BorrowedFd<'_>], note: Option<&OwnedFd>, stack: &Stack) -> Result<i32, Failure> {
    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| (Step::Refuse, Errno::INVAL));
    let list = |strings: Vec<Vec<u8>>| strings.into_iter().map(text).collect::<Result<Vec<_>, _>>();
    if let Some(most) = order.processes {
        // For the fork below: a command is refused where there is no room for it, as a descendant of one would be.
        hold_to(most).map_err(|errno| (Step::Fork, errno))?;
    }
    let exec = order.exec;
    let name = exec.argv.first().filter(|name| !name.is_empty()).ok_or((Step::Refuse, Errno::INVAL))?;
    let programs = list(candidates(name, &exec.env))?;
    let arguments = list(exec.argv)?;
    let rest = arguments[1..].to_vec();
    let command = Command {
        number: order.number,
        parent: rustix::process::getpid(),
        note,
        cwd: text(exec.cwd)?,
        argv: PointerList::new(arguments),
        env: PointerList::new(list(exec.env)?),
        terminal: exec.terminal.is_some(),
        limits: order.limits,
        processes: order.processes,
        fds,
    };
    match command.start(&programs, stack) {
        // A script without an interpreter line.
        Err((Step::Execute, Errno::NOEXEC, index)) => {
            let mut argv = vec![c"/bin/sh".to_owned(), programs[index].clone()];
            argv.extend(rest);
            let command = Command { argv: PointerList::new(argv), ..command };
            command.start(&[c"/bin/sh".to_owned()], stack)
        }
        other => other,
    }
    .map_err(|(step, errno, _)| (step, errno))
}

#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
const PROCESSES: u32 = libc::RLIMIT_NPROC as u32;

/// Bounds how many processes there may be when this one forks.
fn hold_to(most: u64) -> Result<(), Errno> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nproc).maximum;
    let current = Some(maximum.map_or(most, |maximum| most.min(maximum)));
    setrlimit(Resource::Nproc, Rlimit { current, maximum })
}

/// Where a program may be: at its path, or in a directory of the command's own `PATH`.
fn candidates(name: &[u8], env: &[Vec<u8>]) -> Vec<Vec<u8>> {
    if name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    let path = env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or(b"/usr/bin:/bin");
    let directories = path.split(|b| *b == b':').map(|dir| if dir.is_empty() { b"." } else { dir });
    directories.map(|dir| [dir, b"/", name].concat()).collect()
}

struct Command<'a> {
    number: u64,
    parent: Pid,
    note: Option<&'a OwnedFd>,
    cwd: CString,
    argv: PointerList,
    env: PointerList,
    terminal: bool,
    limits: Vec<(u32, u64)>,
    processes: Option<u64>,
    fds: &'a [BorrowedFd<'a>],
}

impl Command<'_> {
    /// Tries one program after the other; says which one it failed for.
    fn start(&self, programs: &[CString], stack: &Stack) -> Result<i32, (Step, Errno, usize)> {
        let mut failure = None;
        let pid = sys::vfork(stack, || {
            failure = Some(match self.prepare() {
                Ok(()) => self.execute(programs),
                Err((step, errno)) => (step, errno, 0),
            });
            127
        });
        let pid = pid.map_err(|errno| (Step::Fork, errno, 0))?.as_raw_nonzero().get();
        match failure {
            None => Ok(pid),
            Some(failure) => {
                // It is nobody's command: only its end is waited for.
                let _ = sys::wait(pid, true, false);
                Err(failure)
            }
        }
    }

    /// The last steps before the program.
    fn prepare(&self) -> Result<(), Failure> {
        let fork = |errno| (Step::Fork, errno);
        // One of its own even without a terminal: the scheduler then gives each command a share like any other session's.
        rustix::process::setsid().map_err(fork)?;
        let [first, ..] = self.fds else { return Err((Step::Fork, Errno::BADF)) };
        if self.terminal {
            rustix::process::ioctl_tiocsctty(first).map_err(|errno| (Step::Terminal, errno))?;
        }
        // One that is in another's place gives way first.
        let mut moved: [Option<OwnedFd>; 3] = [None, None, None];
        for (target, slot) in (0..3).zip(&mut moved) {
            let fd = self.fds.get(target as usize).unwrap_or(first);
            if fd.as_raw_fd() < 3 && fd.as_raw_fd() != target {
                *slot = Some(rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(fork)?);
            }
        }
        for (target, slot) in (0..3).zip(&moved) {
            let fd = slot.as_ref().map(AsFd::as_fd).or(self.fds.get(target as usize).copied()).unwrap_or(*first);
            sys::dup_onto(fd, target).map_err(fork)?;
        }
        sys::close_range(3, u32::MAX, true).map_err(fork)?;
        rustix::process::chdir(&self.cwd).map_err(|errno| (Step::WorkingDirectory, errno))?;
        for (resource, value) in &self.limits {
            sys::set_rlimit(*resource, *value).map_err(fork)?;
        }
        if let Some(most) = self.processes {
            sys::set_rlimit(PROCESSES, most).map_err(fork)?;
        }
        sys::reset_signals().map_err(fork)?;
        // Noted first, looked at then: a reaper that is still there was not killed before the note was written. Else the
        // guest may have given this process up, and nothing must come of it.
        if let Some(note) = self.note {
            let pid = rustix::process::getpid().as_raw_nonzero().get();
            Note { order: self.number, pid }.write(note).map_err(fork)?;
        }
        if rustix::process::getppid() == Some(self.parent) { Ok(()) } else { Err((Step::Fork, Errno::OWNERDEAD)) }
    }

    /// Returns only when none could be executed.
    fn execute(&self, programs: &[CString]) -> (Step, Errno, usize) {
        let mut worst = (Step::Execute, Errno::NOENT, 0);
        for (index, program) in programs.iter().enumerate() {
            match sys::execve(program, self.argv.strings(), self.env.strings()) {
                Errno::NOENT | Errno::NOTDIR => {}
                // There, but not for us: another directory may have it.
                Errno::ACCESS => worst = (Step::Execute, Errno::ACCESS, index),
                errno => return (Step::Execute, errno, index),
            }
        }
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_in_the_commands_own_path() {
        let env = |text: &str| vec![b"X=1".to_vec(), text.as_bytes().to_vec()];
        let found = |name: &str, env: &[Vec<u8>]| {
            let found = candidates(name.as_bytes(), env).into_iter();
            found.map(|c| String::from_utf8(c).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(found("sh", &env("PATH=/a:/b")), ["/a/sh", "/b/sh"]);
        assert_eq!(found("sh", &env("PATH=:/b")), ["./sh", "/b/sh"]);
        assert_eq!(found("sh", &[]), ["/usr/bin/sh", "/bin/sh"]);
        assert_eq!(found("./sh", &env("PATH=/a")), ["./sh"]);
    }
}
