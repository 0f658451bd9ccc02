//! The box has our own descriptors: there are only signals to look after.

use std::time::Instant;

use ringfence::{Companion, Running, Wanted};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::signals::Signals;

/// Forwards signals.
#[derive(Debug)]
pub struct Through {
    signals: Signals,
}

impl Through {
    pub fn new(signals: Signals) -> Through {
        Through { signals }
    }
}

/// Looks at every signal that has come.
pub(super) fn handle(signals: &mut Signals, running: &Running) {
    while let Some(signal) = signals.next() {
        match signal {
            // The command is stopped first, and continued by the CONT that continues us.
            libc::SIGTSTP => {
                let _ = running.signal(libc::SIGTSTP);
                signals.pause_soon();
                // What came with it is looked at when we go on.
                return;
            }
            libc::SIGWINCH | libc::SIGTTOU => {}
            other => signals.forward(other, running),
        }
    }
}

impl Companion for Through {
    fn wants(&self) -> Vec<Wanted<'_>> {
        vec![(0, self.signals.fd(), PollFlags::IN)]
    }

    fn ready(&mut self, _: usize, _: PollFlags, running: &Running) -> Result<(), Errno> {
        handle(&mut self.signals, running);
        Ok(())
    }

    fn is_to_pause(&self) -> bool {
        self.signals.is_to_pause()
    }

    fn pause(&mut self, _: &Running) -> Result<(), Errno> {
        self.signals.pause()
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.signals.give_up_at()
    }
}
