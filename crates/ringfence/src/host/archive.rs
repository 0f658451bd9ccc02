//! Where the user's records are, and the skills beside them.

use std::path::PathBuf;
use std::time::Duration;

use ringfence_policy::records::Records;

use super::{Host, HostError, Notice};
use crate::records::{Folded, Journal, Place, Store, StoreError};

/// Who wants to look waits so long for somebody who writes.
const PATIENCE: Duration = Duration::from_secs(1);

/// The records of a host: the journal that executions append to, and the database that it is folded into.
#[derive(Debug, Clone)]
pub struct Archive {
    /// What executions append to.
    pub journal: Journal,
    /// Where the database is.
    pub place: Place,
    /// What is recorded, and for how long.
    pub records: Records,
    host: Host,
}

impl Host {
    /// The records of this host, as its configuration file says. Nothing is made.
    pub fn archive(&self) -> Result<Archive, HostError> {
        let records = Records::of(self.global()?.as_ref());
        let journal = Journal::new(&self.directories()?.records());
        let file = || Place::File(journal.dir().join("records.db"));
        let place = records.database.clone().map_or_else(file, Place::Url);
        Ok(Archive { journal, place, records, host: self.clone() })
    }
}

impl Archive {
    /// Opens the database, and leaves the journal as it is.
    pub fn connect(&self) -> Result<Store, StoreError> {
        self.journal.make()?;
        Store::open(&self.place)
    }

    /// Opens the database to be looked at, and leaves the journal as it is. Nothing is made only because somebody looks.
    pub fn connect_to_look(&self) -> Result<Store, StoreError> {
        match &self.place {
            Place::File(file) if !file.exists() => Ok(Store::look(file, &self.journal)?.0),
            _ => self.connect(),
        }
    }

    /// Opens the records to be looked at: brought up to date, or as they are where nothing can be written. Where nothing was
    /// recorded yet nothing is made.
    pub fn look(&self) -> Result<Store, StoreError> {
        let Place::File(file) = &self.place else { return self.open() };
        if !self.journal.dir().exists() {
            return Ok(Store::look(file, &self.journal)?.0);
        }
        let trouble = match self.fresh() {
            Ok(store) => return Ok(store),
            Err(error @ (StoreError::Newer { .. } | StoreError::Migrate { .. })) => return Err(error),
            Err(error) => error,
        };
        // What cannot be read either is told with what came first.
        let Ok((store, folded)) = Store::look(file, &self.journal) else { return Err(trouble) };
        self.broken(folded);
        self.host.notice(Notice::RecordsUnwritable { trouble: &trouble, why: self.unwritable() });
        Ok(store)
    }

    fn fresh(&self) -> Result<Store, StoreError> {
        self.journal.make()?;
        let mut store = Store::open_within(&self.place, PATIENCE)?;
        let folded = store.refresh(&self.journal)?;
        self.broken(folded);
        if folded.lines > 0 {
            store.prune(self.records.keep, self.records.max_size)?;
        }
        Ok(store)
    }

    /// Why nothing can be written where the records are.
    fn unwritable(&self) -> Option<Unwritable> {
        let there = self.journal.dir().ancestors().find(|dir| dir.exists())?.to_path_buf();
        if rustix::fs::access(&there, rustix::fs::Access::WRITE_OK).is_err() {
            return Some(Unwritable::Forbidden(there));
        }
        let disk = rustix::fs::statvfs(&there).ok()?;
        let full = disk.f_bavail == 0 || (disk.f_files > 0 && disk.f_favail == 0);
        full.then_some(Unwritable::Full(there))
    }

    /// Opens the records and brings them up to date. What cannot be brought in now stays in the journal.
    pub fn open(&self) -> Result<Store, StoreError> {
        let mut store = self.connect()?;
        match store.refresh(&self.journal) {
            Ok(folded) => {
                self.broken(folded);
                if folded.lines > 0 {
                    store.prune(self.records.keep, self.records.max_size)?;
                }
            }
            Err(error) => self.host.notice(Notice::LatestNotShown(&error)),
        }
        Ok(store)
    }

    fn broken(&self, folded: Folded) {
        if folded.broken > 0 {
            self.host.notice(Notice::BrokenLines(folded.broken));
        }
    }
}

/// Why records cannot be written, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unwritable {
    /// This user may not.
    Forbidden(PathBuf),
    /// The disk is full.
    Full(PathBuf),
}
