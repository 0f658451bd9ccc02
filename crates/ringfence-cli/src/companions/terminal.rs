//! The box has a terminal of its own, and what is typed and shown is carried between it and ours. Ours is never handed
//! over: nothing inside can type into it or change its settings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use ringfence::records::Seen;
use ringfence::{Capture, Companion, Running, StdioSpec, Wanted};
use ringfence_linux::sys;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr};

use super::signals::Signals;
use super::{hand_over, reopen};

/// Whether what is typed and what is shown is a terminal: then the box gets one as well.
pub fn at_both_ends() -> bool {
    isatty(rustix::stdio::stdin()) && isatty(rustix::stdio::stdout())
}

/// Carries bytes between our terminal and the box's.
#[derive(Debug)]
pub struct Relay {
    signals: Signals,
    /// What is typed; `None` when it has ended.
    keyboard: Option<OwnedFd>,
    /// What is shown; `None` when nobody looks any more.
    screen: Option<OwnedFd>,
    /// The box's terminal, seen from outside.
    master: Option<OwnedFd>,
    raw: RawMode,
    typed: Buffer,
    shown: Buffer,
    interrupts: Interrupts,
    /// How much was shown.
    bytes: u64,
    /// What is to be recorded of it.
    capture: Option<Capture>,
}

// Keys of descriptors.
const SIGNALS: usize = 0;
const KEYBOARD: usize = 1;
const SCREEN: usize = 2;
const MASTER: usize = 3;

impl Relay {
    /// Prepares our terminal; the box's is to be made as the answer says.
    pub fn open(signals: Signals, capture: Option<Capture>) -> Result<(Relay, StdioSpec), Errno> {
        // Opened anew, since not to block is a property of the open file, which the shell shares.
        let keyboard = open_own(rustix::stdio::stdin(), false)?;
        let screen = open_own(rustix::stdio::stdout(), true)?;
        let stderr = rustix::stdio::stderr();
        let stderr = if isatty(stderr) { None } else { Some(hand_over(stderr, true)?) };
        let size = rustix::termios::tcgetwinsize(&screen)?;
        let relay = Relay {
            signals,
            keyboard: Some(keyboard),
            screen: Some(screen),
            master: None,
            raw: RawMode::default(),
            typed: Buffer::default(),
            shown: Buffer::default(),
            interrupts: Interrupts::default(),
            bytes: 0,
            capture,
        };
        Ok((relay, StdioSpec::Terminal { rows: size.ws_row, columns: size.ws_col, stderr }))
    }

    /// What the box has shown.
    pub fn seen(&self) -> Seen<'_> {
        self.capture.as_ref().map_or(Seen::Bytes(self.bytes), Seen::Output)
    }

    fn resize(&self) {
        if let (Some(screen), Some(master)) = (&self.screen, &self.master)
            && let Ok(size) = rustix::termios::tcgetwinsize(screen)
        {
            // The box's terminal may be gone by now.
            let _ = rustix::termios::tcsetwinsize(master, size);
        }
    }

    /// Takes the keyboard, when it is ours to take: a job in the background leaves it alone.
    fn resume(&mut self) {
        if sys::is_foreground(rustix::stdio::stdin()) {
            self.raw.enter();
        }
        self.resize();
    }

    fn on_signals(&mut self, running: &Running) {
        while let Some(signal) = self.signals.next() {
            match signal {
                libc::SIGWINCH => self.resize(),
                libc::SIGCONT => {
                    self.resume();
                    let _ = running.signal(libc::SIGCONT);
                }
                libc::SIGTTOU => {}
                libc::SIGTSTP => {
                    let _ = running.signal(libc::SIGTSTP);
                }
                libc::SIGHUP => {
                    // Nobody is left who could end it by hand.
                    self.signals.forward(libc::SIGHUP, running);
                    self.signals.lose_patience();
                }
                other => self.signals.forward(other, running),
            }
        }
    }

    fn on_keyboard(&mut self) -> Result<(), Errno> {
        let Some(keyboard) = &self.keyboard else { return Ok(()) };
        match self.typed.fill(keyboard) {
            Ok(0) | Err(Errno::IO) => self.keyboard = None,
            Ok(_) => {
                if let Some(master) = &self.master
                    && let Some(interrupt) = interrupt_key(master)
                    && self.typed.bytes().contains(&interrupt)
                    && self.interrupts.typed(Instant::now(), edits_no_line(master))
                {
                    self.signals.give_up();
                }
                self.flush_typed()?;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn flush_typed(&mut self) -> Result<(), Errno> {
        if let Some(master) = &self.master {
            match self.typed.flush(master) {
                Err(Errno::IO) => self.master = None,
                result => result?,
            }
        }
        Ok(())
    }

    fn flush_shown(&mut self) -> Result<(), Errno> {
        let result = match &self.screen {
            Some(screen) => self.shown.flush(screen),
            None => Err(Errno::IO),
        };
        match result {
            // Nobody looks any more: what comes is read, so that the command is not held up, and dropped.
            Err(Errno::IO | Errno::PIPE) => {
                self.screen = None;
                self.shown.clear();
                Ok(())
            }
            result => result,
        }
    }

    /// Reads what the box shows; whether there may be more at once.
    fn read_master(&mut self) -> Result<bool, Errno> {
        let Some(master) = &self.master else { return Ok(false) };
        match self.shown.fill(master) {
            Ok(0) | Err(Errno::IO) => {
                self.master = None;
                Ok(false)
            }
            Ok(n) => {
                self.bytes += n as u64;
                if let Some(capture) = &mut self.capture {
                    capture.push(self.shown.bytes());
                }
                self.interrupts.shown(self.shown.bytes());
                Ok(true)
            }
            Err(Errno::INTR) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until our terminal takes more. `false` when somebody has had enough.
    fn wait_for_screen(&mut self) -> bool {
        let Some(screen) = &self.screen else { return true };
        let mut fds = [PollFd::new(screen, PollFlags::OUT), PollFd::from_borrowed_fd(self.signals.fd(), PollFlags::IN)];
        let _ = poll(&mut fds, None);
        if fds[1].revents().is_empty() {
            return true;
        }
        !matches!(self.signals.next(), Some(libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT))
    }
}

impl Companion for Relay {
    fn wants(&self) -> Vec<Wanted<'_>> {
        let mut wanted = vec![(SIGNALS, self.signals.fd(), PollFlags::IN)];
        if let (Some(keyboard), true, true) = (&self.keyboard, self.raw.is_on(), self.typed.is_empty()) {
            wanted.push((KEYBOARD, keyboard.as_fd(), PollFlags::IN));
        }
        if let (Some(screen), false) = (&self.screen, self.shown.is_empty()) {
            wanted.push((SCREEN, screen.as_fd(), PollFlags::OUT));
        }
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.shown.is_empty());
        flags.set(PollFlags::OUT, !self.typed.is_empty());
        if let (Some(master), false) = (&self.master, flags.is_empty()) {
            wanted.push((MASTER, master.as_fd(), flags));
        }
        wanted
    }

    fn ready(&mut self, key: usize, flags: PollFlags, running: &Running) -> Result<(), Errno> {
        match key {
            SIGNALS => self.on_signals(running),
            KEYBOARD => self.on_keyboard()?,
            SCREEN => self.flush_shown()?,
            _ => {
                if flags.contains(PollFlags::OUT) {
                    self.flush_typed()?;
                }
                if self.shown.is_empty() && flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    self.read_master()?;
                    self.flush_shown()?;
                }
            }
        }
        Ok(())
    }

    fn terminal(&mut self, master: OwnedFd) {
        // Without it a full terminal of the box would hold us up; with it we come back when it has room.
        if rustix::io::ioctl_fionbio(&master, true).is_ok() {
            self.master = Some(master);
        }
        self.resume();
    }

    /// The shell that started us shall see that its job has stopped, as with any other program.
    fn stopped(&mut self, _: i32, _: &Running) -> Result<(), Errno> {
        self.signals.pause_soon();
        Ok(())
    }

    fn is_to_pause(&self) -> bool {
        self.signals.is_to_pause()
    }

    fn pause(&mut self, running: &Running) -> Result<(), Errno> {
        while self.shown.is_empty() && self.read_master()? {
            self.flush_shown()?;
        }
        self.raw.leave();
        self.signals.pause()?;
        // Continued: by the user, in the foreground or not, or because the command's time is up.
        self.on_signals(running);
        Ok(())
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.signals.give_up_at()
    }

    fn drain(&mut self) -> Result<(), Errno> {
        loop {
            self.flush_shown()?;
            if self.shown.is_empty() {
                if !self.read_master()? {
                    return Ok(());
                }
            } else if !self.wait_for_screen() {
                return Ok(());
            }
        }
    }
}

fn open_own(fd: BorrowedFd<'_>, write: bool) -> Result<OwnedFd, Errno> {
    reopen(fd, write, OFlags::NONBLOCK).or_else(|_| rustix::io::fcntl_dupfd_cloexec(fd, 3))
}

/// The key that interrupts the program in the box, if one does: full-screen programs take it as any other.
fn interrupt_key(master: &OwnedFd) -> Option<u8> {
    // Of a master, these are the settings of the other side.
    let settings = tcgetattr(master).ok()?;
    let key = settings.special_codes[SpecialCodeIndex::VINTR];
    (settings.local_modes.contains(LocalModes::ISIG) && key != 0).then_some(key)
}

/// Whether the program leaves lines to the terminal: a shell's or interpreter's own line editor does not.
fn edits_no_line(master: &OwnedFd) -> bool {
    tcgetattr(master).is_ok_and(|settings| settings.local_modes.contains(LocalModes::ICANON))
}

/// Tells a command that hangs from one that answers: typed twice, and nothing but the echo came in between.
/// Whoever types it four times in two seconds means it, whatever the command answers; a line editor, which answers each
/// with a new prompt, is not taken at its word (`insistent`).
#[derive(Debug, Default)]
struct Interrupts {
    first: Option<Instant>,
    last: [Option<Instant>; 4],
}

impl Interrupts {
    /// A command gets so much time to answer before the second one counts.
    const ANSWER: Duration = Duration::from_millis(200);

    const INSISTENT: Duration = Duration::from_secs(2);

    /// An interrupt was typed; whether to end the box by force.
    fn typed(&mut self, now: Instant, insistent: bool) -> bool {
        self.last.rotate_left(1);
        self.last[3] = Some(now);
        let insists = insistent && self.last[0].is_some_and(|at| now.duration_since(at) <= Self::INSISTENT);
        let first = *self.first.get_or_insert(now);
        insists || now.duration_since(first) >= Self::ANSWER
    }

    /// The box shows something.
    fn shown(&mut self, bytes: &[u8]) {
        if !bytes.iter().all(|byte| matches!(byte, b'^' | b'C' | b'\r' | b'\n')) {
            self.first = None;
        }
    }
}

/// Bytes on their way; what does not fit waits where it comes from.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    const SIZE: usize = 1 << 14;

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }

    /// Reads once; only into an empty buffer.
    pub(super) fn fill(&mut self, from: &OwnedFd) -> Result<usize, Errno> {
        self.start = 0;
        self.bytes.resize(Self::SIZE, 0);
        let result = rustix::io::read(from, &mut self.bytes[..]);
        self.bytes.truncate(result.unwrap_or(0));
        result
    }

    /// So many bytes were written.
    pub(super) fn advance(&mut self, count: usize) {
        self.start += count;
        if self.is_empty() {
            self.clear();
        }
    }

    /// Writes as much as is taken.
    fn flush(&mut self, to: &OwnedFd) -> Result<(), Errno> {
        while !self.is_empty() {
            match rustix::io::write(to, self.bytes()) {
                Ok(n) => self.start += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(())
    }
}

/// The settings of our terminal while it is raw; where a panic finds them too.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// Our terminal is raw while this is on, and as it was before at the latest when it is dropped.
#[derive(Debug, Default)]
pub struct RawMode {
    on: bool,
}

impl RawMode {
    fn is_on(&self) -> bool {
        self.on
    }

    pub fn enter(&mut self) {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                before(info);
            }));
        });
        let stdin = rustix::stdio::stdin();
        if self.on {
            return;
        }
        let Ok(settings) = tcgetattr(stdin) else { return };
        let mut raw = settings.clone();
        raw.make_raw();
        *sys::locked(&SAVED) = Some(settings);
        self.on = tcsetattr(stdin, OptionalActions::Drain, &raw).is_ok();
    }

    pub fn leave(&mut self) {
        if self.on {
            restore();
            self.on = false;
        }
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.leave();
    }
}

fn restore() {
    // A panic while it is locked has nothing to restore it from but what it holds.
    let saved = sys::locked(&SAVED).take();
    if let Some(settings) = saved {
        // The terminal may be gone.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &settings);
    }
}

/// The settings of a terminal that the box holds a descriptor of: put back at the end.
#[derive(Debug)]
pub struct Settings {
    kept: Option<(OwnedFd, Termios)>,
}

impl Settings {
    pub fn remember() -> Settings {
        let ours = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
        let kept = ours.into_iter().find(|fd| isatty(fd)).and_then(|fd| {
            let settings = tcgetattr(fd).ok()?;
            // Our own stdin and stdout are let go of.
            Some((rustix::io::fcntl_dupfd_cloexec(fd, 3).ok()?, settings))
        });
        Settings { kept }
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let Some((terminal, before)) = &self.kept else { return };
        let foreground = sys::is_foreground(terminal.as_fd());
        let changed = tcgetattr(terminal).is_ok_and(|now| format!("{now:?}") != format!("{before:?}"));
        if foreground && changed {
            // The terminal may be gone.
            let _ = tcsetattr(terminal, OptionalActions::Drain, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_interrupt_counts_when_nothing_answered() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let mut interrupts = Interrupts::default();
        assert!(!interrupts.typed(start, true));
        interrupts.shown(b"^C\r\n");
        assert!(interrupts.typed(later, true));

        let mut interrupts = Interrupts::default();
        assert!(!interrupts.typed(start, true));
        interrupts.shown(b"^C\r\n$ ");
        assert!(!interrupts.typed(later, true));

        // Two at once, before anything could answer.
        let mut interrupts = Interrupts::default();
        assert!(!interrupts.typed(start, true));
        assert!(!interrupts.typed(start + Duration::from_millis(50), true));
    }
}
