//! Children, and signals that wait for one.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// Whether this process has a child, dead or alive.
pub fn has_children() -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, look), Err(Errno::CHILD))
}

/// The process ids in a `children` file of `/proc`, from its beginning. Allocates nothing.
pub fn each_child(list: impl AsFd, mut found: impl FnMut(i32)) -> Result<(), Errno> {
    let mut text = [0; 4096];
    let mut at = 0;
    loop {
        let length = rustix::io::pread(&list, &mut text, at)?;
        // The last number may be cut off: it is read again with what follows.
        let Some(end) = text[..length].iter().rposition(|byte| *byte == b' ') else { return Ok(()) };
        for word in text[..end].split(|byte| *byte == b' ') {
            let pid = word.iter().fold(0i32, |n, d| n.wrapping_mul(10).wrapping_add(i32::from(d.wrapping_sub(b'0'))));
            // 0 is a child outside of what can be seen here; 1 is nobody's child.
            if pid > 1 {
                found(pid);
            }
        }
        at += end as u64 + 1;
    }
}

/// Signals that came before the process that they are for, a bit each.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeldSignals(u64);

impl HeldSignals {
    /// A number that is no signal is left out.
    pub fn add(&mut self, signal: i32) {
        if let 1..=64 = signal {
            self.0 |= 1 << (signal - 1);
        }
    }

    /// Takes the lowest one.
    pub fn take(&mut self) -> Option<i32> {
        let lowest = self.0.trailing_zeros() as i32;
        self.0 &= self.0.checked_sub(1)?;
        Some(lowest + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn long_lists_are_read_whole() {
        let mut list = tempfile::tempfile().unwrap();
        let pids: Vec<i32> = (0..5000).map(|n| n * 7).collect();
        for pid in &pids {
            write!(list, "{pid} ").unwrap();
        }
        let mut read = Vec::new();
        each_child(&list, |pid| read.push(pid)).unwrap();
        assert_eq!(read, pids[1..]);
        let mut none = 0;
        each_child(tempfile::tempfile().unwrap(), |_| none += 1).unwrap();
        assert_eq!(none, 0);
    }

    #[test]
    fn each_held_signal_comes_once() {
        let mut held = HeldSignals::default();
        [15, 1, 64, 15, 0, 65, -1].into_iter().for_each(|signal| held.add(signal));
        assert_eq!(std::array::from_fn(|_| held.take()), [Some(1), Some(15), Some(64), None]);
    }
}
