//! Commands that run for the client, and those that ran: what each wrote, kept within bounds, and how it ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ringfence::session::{Controls, Event, Execution, SessionError};
use ringfence::{Capture, Outcome};
use ringfence_linux::sys::locked;
use tokio::sync::watch;

/// So many that ended are remembered; what is older is forgotten.
const REMEMBERED: usize = 64;
/// The most that is kept of one stream, whatever the policy says.
const MOST_KEPT: u64 = 1 << 20;
/// How long a command may leave its input unread before that is an error.
const INPUT_PATIENCE: Duration = Duration::from_secs(5);

/// A command.
#[derive(Debug)]
pub struct Job {
    pub id: String,
    pub started: Instant,
    shared: Mutex<Shared>,
    controls: Controls,
    /// Counts what happened, so that others can wait for it.
    changed: watch::Receiver<u64>,
}

#[derive(Debug)]
struct Shared {
    streams: [Capture; 2],
    /// How far the client has read each stream.
    read: [u64; 2],
    outcome: Option<Outcome>,
}

/// Why input did not reach a command.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("the command has ended")]
    Ended,
    #[error("the command does not read its input")]
    Unread,
    #[error(transparent)]
    Session(#[from] SessionError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout = 0,
    Stderr = 1,
}

/// Part of what a command wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Where it begins.
    pub at: u64,
    pub text: String,
    /// Where the next one begins.
    pub next: u64,
    /// Bytes written so far.
    pub total: u64,
}

impl Job {
    /// Looks after an execution until it has ended.
    pub fn start(execution: Execution, output_limit: u64) -> Arc<Job> {
        let (tell, changed) = watch::channel(0);
        let capture = || Capture::new(output_limit.min(MOST_KEPT));
        let shared = Shared { streams: [capture(), capture()], read: [0; 2], outcome: None };
        let id = execution.id().to_owned();
        let job = Arc::new(Job {
            id,
            started: Instant::now(),
            shared: Mutex::new(shared),
            controls: execution.controls(),
            changed,
        });
        tokio::spawn(follow(job.clone(), execution, tell));
        job
    }

    /// Nothing panics while it is held, and half a change to a capture is none.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        locked(&self.shared)
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.shared().outcome.clone()
    }

    /// A page of a stream from this place on, or from where the last one ended.
    pub fn page(&self, stream: Stream, from: Option<u64>, limit: usize) -> Page {
        let mut shared = self.shared();
        let index = stream as usize;
        let (at, mut bytes) = kept(&shared.streams[index], from.unwrap_or(shared.read[index]), limit);
        let total = shared.streams[index].total();
        if at + (bytes.len() as u64) < total {
            bytes.truncate(whole_characters(&bytes));
        }
        let next = at + bytes.len() as u64;
        shared.read[index] = next;
        Page { at, text: String::from_utf8_lossy(&bytes).into_owned(), next, total }
    }

    /// The end of a stream, beginning at this place at the earliest.
    pub fn tail(&self, stream: Stream, earliest: u64, limit: usize) -> Page {
        let shared = self.shared();
        let capture = &shared.streams[stream as usize];
        let total = capture.total();
        let from = total.saturating_sub(limit as u64).max(earliest);
        let (at, bytes) = kept(capture, from, limit);
        // Not from the middle of a character.
        let skip = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        Page { at: at + skip as u64, text: String::from_utf8_lossy(&bytes[skip..]).into_owned(), next: total, total }
    }

    /// Returns when it has ended.
    pub async fn ended(&self) -> Outcome {
        let mut changed = self.changed.clone();
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            if changed.changed().await.is_err() {
                // Whoever looked after it is gone, and with it the command.
                return self.outcome().unwrap_or(Outcome::lost(self.started.elapsed()));
            }
        }
    }

    /// Returns when something was written or it has ended.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// TERM to everything that descends from it, KILL after the grace.
    pub async fn stop(&self) {
        // A session that is gone has ended it already.
        let _ = self.controls.stop().await;
    }

    pub async fn input(&self, bytes: &[u8], close: bool) -> Result<(), InputError> {
        if self.outcome().is_some() {
            return Err(InputError::Ended);
        }
        let send = async {
            if !bytes.is_empty() {
                self.controls.write(bytes).await?;
            }
            if close {
                self.controls.close_stdin().await?;
            }
            Ok(())
        };
        tokio::time::timeout(INPUT_PATIENCE, send).await.unwrap_or(Err(InputError::Unread))
    }
}

/// What is kept of a stream from this place on, so many bytes at most, and where it really begins: later when the place
/// was dropped. What lies before and behind a gap does not come together.
fn kept(capture: &Capture, from: u64, limit: usize) -> (u64, Vec<u8>) {
    let from = from.min(capture.total());
    let (skipped, first) = capture.at(from);
    let at = from + skipped;
    let mut bytes = first[..first.len().min(limit)].to_vec();
    loop {
        match capture.at(at + bytes.len() as u64) {
            (0, more) if !more.is_empty() && bytes.len() < limit => {
                bytes.extend_from_slice(&more[..more.len().min(limit - bytes.len())]);
            }
            _ => return (at, bytes),
        }
    }
}

/// How many of these bytes are whole characters; text that is not UTF-8 stays as it is.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// Takes what comes from an execution until it has ended.
async fn follow(job: Arc<Job>, mut execution: Execution, tell: watch::Sender<u64>) {
    while job.outcome().is_none() {
        let event = execution.next().await;
        let mut shared = job.shared();
        match event {
            Ok(Some(Event::Stdout(bytes))) => shared.streams[0].push(&bytes),
            Ok(Some(Event::Stderr(bytes))) => shared.streams[1].push(&bytes),
            Ok(Some(Event::Ended(outcome))) => shared.outcome = Some(outcome),
            Ok(None) | Err(_) => shared.outcome = Some(Outcome::lost(job.started.elapsed())),
        }
        drop(shared);
        tell.send_modify(|count| *count += 1);
    }
}

/// The commands of one client.
#[derive(Debug, Default)]
pub struct Jobs {
    all: Mutex<VecDeque<Arc<Job>>>,
}

impl Jobs {
    fn all(&self) -> MutexGuard<'_, VecDeque<Arc<Job>>> {
        locked(&self.all)
    }

    pub fn add(&self, job: Arc<Job>) {
        let mut all = self.all();
        all.push_back(job);
        while all.len() > REMEMBERED {
            // The oldest that has ended; what runs is bounded by the policy's limit on processes.
            match all.iter().position(|job| job.outcome().is_some()) {
                Some(old) => drop(all.remove(old)),
                None => break,
            }
        }
    }

    pub fn get(&self, id: &str) -> Option<Arc<Job>> {
        self.all().iter().find(|job| job.id == id).cloned()
    }

    pub fn clear(&self) {
        self.all().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_on_where_the_last_one_ended() {
        let mut capture = Capture::new(8);
        capture.push(b"abcdef");
        let page = |capture: &Capture, from, limit| {
            let (at, bytes) = kept(capture, from, limit);
            (at, String::from_utf8(bytes).unwrap())
        };
        assert_eq!(page(&capture, 0, 100), (0, "abcdef".into()));
        assert_eq!(page(&capture, 3, 2), (3, "de".into()));
        assert_eq!(page(&capture, 9, 2), (6, String::new()));
        capture.push(b"ghijkl");
        assert_eq!(page(&capture, 0, 100), (0, "abcd".into()));
        assert_eq!(page(&capture, 4, 3), (8, "ijk".into()));
        assert_eq!(page(&capture, 11, 100), (11, "l".into()));
        assert_eq!(page(&capture, u64::MAX, 100), (12, String::new()));
    }

    #[test]
    fn characters_stay_whole() {
        assert_eq!(whole_characters("aé".as_bytes()), 3);
        assert_eq!(whole_characters(&"aé".as_bytes()[..2]), 1);
        assert_eq!(whole_characters(b"a\xff\xffb"), 4, "not text: as it is");
    }
}
