//! What may take long is done by one thread beside the loop: lines of the journal, the state file. It does one thing after the
//! other, so that the lines of an execution keep their order. A disk that stalls holds up this thread and nothing else.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use ringfence_records::journal::Ended;
use ringfence_records::{JournalError, Ticket};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::super::info::End;
use super::super::place::{self, Last, StateFile};

/// Work that waits before no more records are begun: what is begun is also ended, and so this bounds the memory.
pub const MOST_WAITING: usize = 256;

#[derive(Debug)]
pub enum Job {
    /// A command begins, the so-manieth of the session. Its record, if there is to be one, is kept until its end; where
    /// nothing may run without one, what cannot be written is forgotten.
    Begin {
        execution: u64,
        ticket: Option<Box<Ticket>>,
        strict: bool,
    },
    End {
        execution: u64,
        ended: Box<Ended>,
    },
    /// A command that was not even tried.
    Refused {
        ticket: Box<Ticket>,
        ended: Box<Ended>,
    },
    Keep(Box<StateFile>),
    /// The last words, unless nobody can find them, and what only a live session needs is given up.
    Close(Box<StateFile>, End),
}

/// What came of a job.
#[derive(Debug)]
pub enum Done {
    Begun { execution: u64, trouble: Option<JournalError> },
    Written(Result<(), JournalError>),
    Kept,
}

#[derive(Debug)]
pub struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    /// Readable when something was done.
    ready: OwnedFd,
    waiting: usize,
    /// A state is being written, and whether it is outdated by now.
    keeping: Option<bool>,
}

impl Worker {
    /// `count`: where the number of executions is written.
    pub fn start(place: place::Place, count: Last) -> Result<Worker, Errno> {
        let ready = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let tell = rustix::io::fcntl_dupfd_cloexec(&ready, 3)?;
        let (jobs, work) = channel();
        let (answer, done) = channel();
        let work = move || {
            let mut tickets = HashMap::new();
            for job in work {
                let result = carry_out(job, &place, &count, &mut tickets);
                // The loop has ended: then nobody wants to know.
                let _ = answer.send(result);
                let _ = rustix::io::write(&tell, &1u64.to_ne_bytes());
            }
        };
        std::thread::Builder::new()
            .name("records".to_owned())
            .spawn(work)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Worker { jobs, done, ready, waiting: 0, keeping: None })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Whether so much waits that nothing new is begun.
    pub fn is_full(&self) -> bool {
        self.waiting >= MOST_WAITING
    }

    pub fn give(&mut self, job: Job) {
        // It goes on as long as this can be sent to.
        let _ = self.jobs.send(job);
        self.waiting += 1;
    }

    /// Has the state written. While one is, the next is asked for by [`Worker::kept`].
    pub fn keep(&mut self, kept: StateFile) {
        match &mut self.keeping {
            Some(outdated) => *outdated = true,
            None => {
                self.keeping = Some(false);
                self.give(Job::Keep(Box::new(kept)));
            }
        }
    }

    /// What was done since.
    pub fn take(&mut self) -> Vec<Done> {
        // It is only looked at whether it is readable.
        let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        let done: Vec<Done> = self.done.try_iter().collect();
        self.waiting -= done.len();
        done
    }

    /// A state was written. Whether there is a newer one.
    pub fn kept(&mut self) -> bool {
        self.keeping.take().unwrap_or(false)
    }

    /// Waits until everything was done, but no longer than until then. What a disk that stalls holds up is lost with this
    /// process: those executions are found without an end, or not at all.
    pub fn drain(&mut self, until: Instant) {
        while self.waiting > 0 {
            match self.done.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(_) => self.waiting -= 1,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn carry_out(job: Job, place: &place::Place, count: &Last, tickets: &mut HashMap<u64, Ticket>) -> Done {
    match job {
        Job::Begin { execution, ticket, strict } => {
            count.write(execution, None);
            let Some(mut ticket) = ticket else { return Done::Begun { execution, trouble: None } };
            let trouble = ticket.write_begin(strict).err();
            if trouble.is_none() || !strict {
                tickets.insert(execution, *ticket);
            }
            Done::Begun { execution, trouble }
        }
        Job::End { execution, ended } => {
            Done::Written(tickets.remove(&execution).map_or(Ok(()), |ticket| ticket.end_as(*ended)))
        }
        Job::Refused { ticket, ended } => Done::Written(ticket.end_as(*ended)),
        Job::Keep(kept) => {
            // Whoever asks the session itself is told all the same.
            let _ = place.keep(&kept);
            Done::Kept
        }
        Job::Close(kept, end) => {
            count.write(kept.info.executions, Some(end));
            // Whoever looks afterwards finds a supervisor that is gone, and these last words.
            let _ = place.keep(&kept);
            place.release(&kept.info.id, kept.info.name.as_deref());
            Done::Kept
        }
    }
}
