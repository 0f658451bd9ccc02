//! What waits for a disk is done by one thread beside the loop: lines of the journal, the state file, a look for the lock file.
//! It does one thing after the other, so that the lines of an execution keep their order. A disk that stalls holds up this
//! thread and nothing else.

use std::collections::HashMap;
use std::time::Instant;

use ringfence_records::journal::Ended;
use ringfence_records::{JournalError, Ticket};

use super::super::info::End;
use super::super::place::{self, Last, StateFile};
use super::beside::{Bell, Beside};
use super::life::{LockFile, Looked};

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
    /// Looks for the lock file, and has its events told from now on.
    LookForLock(LockFile),
    /// The last words, unless nobody can find them, and what only a live session needs is given up.
    Close(Box<StateFile>, End),
}

/// What came of a job.
#[derive(Debug)]
pub enum Done {
    Begun { execution: u64, trouble: Option<JournalError> },
    Written(Result<(), JournalError>),
    Kept,
    Looked(Looked),
    Closed,
}

#[derive(Debug)]
pub struct Worker {
    thread: Beside<Job, Done>,
    /// A state is being written, and whether it is outdated by now.
    keeping: Option<bool>,
}

impl Worker {
    /// `count`: where the number of executions is written.
    pub fn start(place: place::Place, count: Last, bell: &Bell) -> std::io::Result<Worker> {
        let mut tickets = HashMap::new();
        let work = move |job| carry_out(job, &place, &count, &mut tickets);
        Ok(Worker { thread: Beside::start("records", bell, work)?, keeping: None })
    }

    /// Whether so much waits that nothing new is begun.
    pub fn is_full(&self) -> bool {
        self.thread.waiting() >= MOST_WAITING
    }

    /// Whether everything was done.
    pub fn is_idle(&self) -> bool {
        self.thread.waiting() == 0
    }

    pub fn give(&mut self, job: Job) {
        self.thread.give(job);
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
        self.thread.take()
    }

    /// A state was written. Whether there is a newer one.
    pub fn kept(&mut self) -> bool {
        self.keeping.take().unwrap_or(false)
    }

    /// Waits until everything was done, but no longer than until then. What a disk that stalls holds up is lost with this
    /// process: those executions are found without an end, or not at all.
    pub fn drain(&mut self, until: Instant) {
        self.thread.drain(until);
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
        Job::LookForLock(lock) => Done::Looked(lock.look(place)),
        Job::Close(kept, end) => {
            count.write(kept.info.executions, Some(end));
            // Whoever looks afterwards finds a supervisor that is gone, and these last words.
            let _ = place.keep(&kept);
            place.release(&kept.info.id, kept.info.name.as_deref());
            Done::Closed
        }
    }
}
