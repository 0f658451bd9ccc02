//! A terminal around the program, and a person (the test) in front of it.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize};

use crate::support::{Place, program};

/// A terminal with a shell in it, and whoever types.
pub struct Terminal {
    pub master: OwnedFd,
    child: Child,
    seen: String,
}

impl Terminal {
    /// A shell with job control on a terminal of its own; `setsid -c` makes it the controlling one.
    pub fn open(place: &Place) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        rustix::termios::tcsetwinsize(&master, Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 })
            .unwrap();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.args(["-c", "-w", "bash", "--norc", "--noediting", "-i"]);
        command.current_dir(&place.project).stdin(stdio()).stdout(stdio()).stderr(stdio());
        place.environment(&mut command);
        command.env("PS1", "outer> ").env("R", program());
        let child = command.spawn().unwrap();
        let mut terminal = Terminal { master, child, seen: String::new() };
        terminal.until("outer> ");
        terminal
    }

    pub fn typed(&mut self, text: &str) {
        rustix::io::write(&self.master, text.as_bytes()).unwrap();
    }

    /// Reads until this text is shown; what was shown.
    #[track_caller]
    pub fn until(&mut self, text: &str) -> String {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            assert!(Instant::now() < end, "waiting for {text:?}, seen {:?}", self.seen);
            let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap();
            if !fds[0].revents().is_empty() {
                let mut buffer = [0; 4096];
                let length = rustix::io::read(&self.master, &mut buffer).unwrap_or(0);
                self.seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        }
    }

    /// Runs a line in the outer shell, and waits for its next prompt.
    #[track_caller]
    pub fn line(&mut self, text: &str) -> String {
        self.typed(&format!("{text}\n"));
        self.until("\n");
        self.until("outer> ")
    }

    pub fn is_cooked(&self) -> bool {
        rustix::termios::tcgetattr(self.master.as_fd()).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
