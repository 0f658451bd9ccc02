//! Commands: what the guest does for one ([`Exec`]), and how its reaper, or the guest itself, starts it ([`start`]).

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_guest::frame::{Channel, Kind, MAX_DATA};
use ringfence_guest::message::{self, Exited, Input, Reply, Size, Step};
use ringfence_linux::sys::{self, HeldSignals, PointerList, Stack, Waited};
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

/// A reaper that is not kept from it starts its command sooner.
const SLOW: Duration = Duration::from_millis(10);

/// A reaper that is stopped and has not started its command by then is replaced.
const STUCK: Duration = Duration::from_millis(200);

/// Reapers that are tried for one command, while code beside them kills or stops each.
const MOST_TRIES: u32 = 1000;
/// So often the children of a reaper are looked at before none is believed to be left.
const LOOKS: u32 = 3;

/// One command and its channels.
#[derive(Debug)]
pub struct Exec {
    stream: u32,
    /// The host closed the stream: nothing is sent any more.
    closed: bool,
    /// Looks after it. None when it was killed, or when nothing is left to look after.
    reaper: Option<i32>,
    /// Its reaper was stopped.
    stopped: bool,
    /// The guest killed its reaper, which was stopped, to do the rest of its work.
    relieved: bool,
    /// Its reaper was killed by code beside it. What the command orphaned is the guest's child, and dies with it.
    lost: bool,
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
    held: HeldSignals,
    /// The host sent a signal to the whole tree: it ends when that is gone.
    whole_tree: bool,
    /// When its tree was first sent a KILL, which is repeated until nothing is left.
    killed: Option<Instant>,
    ended: Option<Exited>,
    give_up_at: Option<Instant>,
    /// What it takes to order it once more, until it runs.
    again: Option<Again>,
}

/// An order that may have to be given more than once.
#[derive(Debug)]
struct Again {
    order: Vec<u8>,
    /// The first descriptor is the null device; `fds` has the others.
    no_input: bool,
    fds: Vec<OwnedFd>,
    /// When it was given last, and how often before that.
    at: Instant,
    tries: u32,
    /// A reaper that had it was stopped.
    disturbed: bool,
    /// It is the only command, and earlier ones left something, which gives way where there is no process for it.
    left: bool,
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
            stopped: false,
            relieved: false,
            lost: false,
            own: alone && exec.terminal.is_none() && cx.is_first && cx.reapers.busy() == 0 && cx.is_childless(),
            order: 0,
            pid: None,
            opened: Instant::now(),
            announced: false,
            input: None,
            outputs: [None, None],
            terminal: None,
            held: HeldSignals::default(),
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
        let no_input = exec.terminal.is_none() && !exec.stdin;
        cx.orders += 1;
        new.order = cx.orders;
        let settings = cx.settings.clone().unwrap_or_default();
        let processes = settings.processes.map(|most| most + cx.reapers.busy());
        let order = Order { number: cx.orders, limits: settings.limits, processes, exec };
        if new.own {
            let fds = given(no_input, cx.null.as_fd(), &theirs);
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
        cx.note_children(new.order);
        let at = new.opened;
        new.again = Some(Again { order, no_input, fds: theirs, at, tries: 0, disturbed: false, left, until: None });
        match new.hand_over(key, cx) {
            Ok(()) => {}
            Err(Errno::AGAIN) if left => new.clear(cx),
            Err(errno) => return Err(fork(errno)),
        }
        Ok(new)
    }

    /// Gives its order to a reaper.
    fn hand_over(&mut self, key: u64, cx: &mut Context) -> Result<(), Errno> {
        let Some(again) = &mut self.again else { return Err(Errno::INVAL) };
        (again.at, again.until) = (Instant::now(), None);
        let fds = given(again.no_input, cx.null.as_fd(), &again.fds);
        match cx.reapers.order(key, &again.order, &fds, &cx.epoll) {
            Ok(reaper) => (self.reaper, self.stopped) = (Some(reaper), false),
            // Code beside it killed the new reaper before the order was sent. The next try waits until this one is reaped.
            Err(Errno::PIPE | Errno::CONNRESET) if again.tries < MOST_TRIES => {
                again.tries += 1;
                again.until = Some(again.at);
            }
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Errno::OWNERDEAD),
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// There is no process left for it, and nobody else's command runs: ends what earlier ones left behind.
    fn clear(&mut self, cx: &mut Context) {
        let guest = rustix::process::getpid().as_raw_nonzero().get();
        cx.processes.signal(guest, libc::SIGKILL, |pid| cx.reapers.is_idle(pid));
        if let Some(again) = &mut self.again {
            again.until = Some(Instant::now() + CLEARED);
        }
    }

    /// Orders it once more, when what was left behind is gone or the time has come.
    fn order_again(&mut self, key: u64, cx: &mut Context) -> Result<Flow, Fault> {
        let Some(until) = self.again.as_ref().and_then(|again| again.until) else { return Ok(Flow::Goes) };
        if !cx.is_childless() && Instant::now() < until {
            return Ok(Flow::Goes);
        }
        if let Some(again) = &mut self.again {
            // Not once more.
            again.left = false;
        }
        // What was to end before it began does not begin.
        let ordered = if self.whole_tree { Err(Errno::OWNERDEAD) } else { self.hand_over(key, cx) };
        match ordered {
            Ok(()) => Ok(Flow::Goes),
            Err(errno) => self.report(key, Report::Failed { step: Step::Fork, errno: errno.raw_os_error() }, cx),
        }
    }

    /// Its reaper was killed before it started the command: another one gets the order.
    fn order_anew(&mut self, key: u64, cx: &mut Context) -> Result<Flow, Fault> {
        let may = match &mut self.again {
            Some(again) if !self.whole_tree && again.tries < MOST_TRIES => {
                again.tries += 1;
                true
            }
            _ => false,
        };
        let errno = match may.then(|| self.hand_over(key, cx)) {
            Some(Ok(())) => return Ok(Flow::Goes),
            Some(Err(errno)) => errno,
            None => Errno::OWNERDEAD,
        };
        self.report(key, Report::Failed { step: Step::Fork, errno: errno.raw_os_error() }, cx)
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
        let open = |ptmx: &std::ffi::CStr| sys::open_terminal(ptmx, size.rows, size.columns);
        let (master, slave) = open(c"/dev/pts/ptmx").or_else(|_| open(c"/dev/ptmx"))?;
        rustix::io::ioctl_fionbio(&master, true)?;
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
                if none && self.again.as_ref().is_some_and(|again| again.left) && !self.closed && is_alone(cx) {
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
        if self.again.take().is_some_and(|again| again.disturbed) {
            // What stops reapers may have stopped this one before it was the command.
            let _ = sys::kill(pid, libc::SIGCONT);
        }
        if !std::mem::replace(&mut self.announced, true) && !self.closed {
            cx.link.message(self.stream, &Reply::Started { pid: pid as u32 });
        }
        while let Some(signal) = self.held.take() {
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
        if self.lost && self.end_orphans(cx) {
            self.lost = false;
        }
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
        if self.whole_tree && self.killed.is_some() {
            // The host wants it gone. It may have granted no room for what is left, and need not.
            for output in self.outputs.iter_mut().filter_map(|slot| slot.take_if(|output| !output.source.can_send())) {
                let Output { mut source, .. } = output;
                source.disarm(&cx.epoll);
            }
        }
        if self.outputs.iter().any(Option::is_some) {
            self.arm(key, cx)?;
            return Ok(Flow::Goes);
        }
        let others = |pid: i32| self.is_not_its(pid, cx);
        let goes = || self.reaper.is_some() || self.own && !cx.has_no_child_but(others);
        if self.lost || self.whole_tree && goes() {
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

    /// The command has ended, and its reaper was killed: ends what the command orphaned. Whether nothing of it is left.
    fn end_orphans(&mut self, cx: &Context) -> bool {
        if cx.has_no_child_but(|pid| self.is_not_its(pid, cx)) {
            return true;
        }
        if self.killed.is_none() {
            self.send(libc::SIGKILL, cx);
        }
        // What the kernel keeps is not waited for. Where the host wants all of it ended, the host ends the box instead.
        !self.whole_tree && self.killed.is_some_and(|at| at.elapsed() >= CLEARED)
    }

    /// Whether a child of the guest's is not of this command, which has no reaper: it was there before the command was
    /// ordered, or it is surely another one's.
    fn is_not_its(&self, child: i32, cx: &Context) -> bool {
        // The number of one that has ended may be another's.
        let command = self.pid.filter(|_| self.ended.is_none() || self.own).unwrap_or(0);
        cx.is_others(child, command) || cx.seen.get(&child).is_some_and(|order| *order <= self.order)
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

    pub fn input(&mut self, key: u64, input: Input, cx: &mut Context) -> Result<Flow, Fault> {
        match input {
            Input::Resize(size) => {
                if let Some(terminal) = &self.terminal {
                    // A terminal that was hung up has no size, and nobody who would look.
                    let _ = sys::resize_terminal(terminal, size.rows, size.columns);
                }
            }
            Input::Signal { signal, .. } if !(1..=64).contains(&signal) => {}
            Input::Signal { signal, tree: true } => {
                self.signal_tree(signal, cx);
                // Its end may wait for a host that takes nothing.
                return self.finish(key, cx);
            }
            Input::Signal { signal, tree: false } => match self.pid {
                _ if self.ended.is_some() => {}
                // It may have ended.
                Some(pid) => {
                    let _ = sys::kill(-pid, signal);
                }
                None => self.held.add(signal),
            },
            // Not a command's; the guest opens no stream so far.
            Input::HostStreams { .. } => {}
        }
        Ok(Flow::Goes)
    }

    fn signal_tree(&mut self, signal: i32, cx: &Context) {
        self.whole_tree = true;
        // What was left behind until now was to stay.
        self.relieved = false;
        self.send(signal, cx);
    }

    /// Sends a signal to all that is left of the command.
    fn send(&mut self, signal: i32, cx: &Context) {
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
            // The guest's own, or its reaper was killed. What it orphaned cannot be told from what others orphaned
            // since it was ordered: all of it goes, and only what is surely a neighbour's stays.
            (None, Some(_)) if self.ended.is_none() || self.own || self.lost => {
                let guest = rustix::process::getpid().as_raw_nonzero().get();
                end(guest, &|pid| self.is_not_its(pid, cx));
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
        if self.reaper.is_some() || self.own || self.lost { Flow::Goes } else { Flow::Ended }
    }

    /// Which reaper looks after it.
    pub fn reaper(&self) -> Option<i32> {
        self.reaper
    }

    /// Its reaper was stopped.
    pub fn reaper_stopped(&mut self) {
        self.stopped = true;
        if let Some(again) = &mut self.again {
            again.disturbed = true;
        }
    }

    /// Looks after a reaper that something keeps from its work. A stopped one is still the parent of all that its
    /// command orphans, so it is left alone until it has something to do: to start the command, or to tell of an end.
    fn attend(&mut self, cx: &Context) {
        let Some(reaper) = self.reaper else { return };
        let wake = |pid: i32| {
            let _ = sys::kill(pid, libc::SIGCONT);
        };
        let stopped = cx.processes.state(reaper) == Some(b'T');
        // The kernel's list can leave a child out while another one ends, so nothing counts as gone at the first look.
        let is_left = || {
            let sees_one =
                || cx.processes.children(reaper).into_iter().any(|pid| cx.processes.is_dead(pid) == Some(false));
            (0..LOOKS).any(|_| sees_one())
        };
        let stuck = match (self.pid, &self.again) {
            (None, Some(again)) => {
                if again.at.elapsed() >= SLOW {
                    wake(reaper);
                    // What is to be the command may have been stopped, too.
                    cx.processes.children(reaper).into_iter().for_each(wake);
                }
                let stuck = stopped && again.at.elapsed() >= STUCK;
                self.relieved = stuck && !self.whole_tree;
                stuck
            }
            _ if !stopped => {
                // The guest is told of the next time.
                self.stopped = false;
                false
            }
            (Some(command), _) if self.ended.is_none() => match cx.processes.is_dead(command) {
                Some(dead) => {
                    self.relieved = dead && !(self.whole_tree && is_left());
                    self.relieved
                }
                // It knows the end, and was stopped before it told.
                None => {
                    wake(reaper);
                    false
                }
            },
            _ => {
                self.relieved = !is_left();
                self.relieved
            }
        };
        if stuck {
            // Dead processes that it has not reaped come to the guest, each with its end.
            let _ = sys::kill(reaper, libc::SIGKILL);
        }
    }

    /// Its reaper was killed. What is left of the command is the guest's child now.
    pub fn lost(&mut self, key: u64, note: Note, cx: &mut Context) -> Result<Flow, Fault> {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        self.reaper = None;
        self.lost = true;
        if self.ended.is_some() {
            self.lost = !self.relieved;
            return self.finish(key, cx);
        }
        if note.order == self.order {
            self.started(note.pid, cx);
            self.arm(key, cx)?;
        }
        let Some(pid) = self.pid else {
            self.lost = false;
            return self.order_anew(key, cx);
        };
        if self.killed.is_some() {
            self.send(libc::SIGKILL, cx);
        }
        let here = Pid::from_raw(pid)
            .map(|pid| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT));
        match here {
            Some(Ok(ended)) => {
                cx.bare.insert(pid);
                // What it left behind is the session's, as if its reaper had told of the end.
                self.lost = !(self.relieved && ended.is_some());
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
        let killed = self.killed.is_some() && (self.reaper.is_some() || self.ended.is_none() || self.lost);
        let attends = self.reaper.is_some() && (self.stopped || self.pid.is_none());
        killed || self.give_up_at.is_some() || waits || again || attends
    }

    pub fn look(&mut self, key: u64, cx: &mut Context) -> Result<Flow, Fault> {
        if let (true, Some(pid)) = (self.own && self.opened.elapsed() >= AT_ONCE, self.pid) {
            self.started(pid, cx);
        }
        if self.killed.is_some() {
            self.send(libc::SIGKILL, cx);
        }
        self.attend(cx);
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

/// The descriptors that a command begins with.
fn given<'a>(no_input: bool, null: BorrowedFd<'a>, fds: &'a [OwnedFd]) -> Vec<BorrowedFd<'a>> {
    no_input.then_some(null).into_iter().chain(fds.iter().map(AsFd::as_fd)).collect()
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
                let _ = sys::wait(pid, sys::Wait::UntilEnd);
                Err(failure)
            }
        }
    }

    /// The last steps before the program.
    fn prepare(&self) -> Result<(), Failure> {
        let fork = |errno| (Step::Fork, errno);
        // What is done to reapers by their name is not meant for a command.
        rustix::thread::set_name(c"command").map_err(fork)?;
        // One of its own even without a terminal: the scheduler then gives each command a share like any other session's.
        rustix::process::setsid().map_err(fork)?;
        let [first, ..] = self.fds else { return Err((Step::Fork, Errno::BADF)) };
        if self.terminal {
            rustix::process::ioctl_tiocsctty(first).map_err(|errno| (Step::Terminal, errno))?;
        }
        let standard = std::array::from_fn(|number| *self.fds.get(number).unwrap_or(first));
        sys::place_stdio(standard).map_err(fork)?;
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
