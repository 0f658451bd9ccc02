//! Where the user's records are, and the skills beside them.

use std::time::Duration;

use ringfence::policy::config;
use ringfence::policy::records::Records;
use ringfence::policy::rules::LayerKind;
use ringfence::records::{Folded, Journal, Place, Store, StoreError};

use crate::failure::Failure;
use crate::files::{self, Links, Places};
use crate::output;

/// Who wants to look waits so long for somebody who writes.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Archive {
    pub journal: Journal,
    pub place: Place,
    pub records: Records,
}

impl Archive {
    pub fn find() -> Result<Archive, Failure> {
        let facts = ringfence::facts::gather()?;
        let places = Places::new(&facts);
        let global = places.global_file();
        let text = files::read(&global, Links::Follow)?;
        let layer =
            text.map(|text| config::parse(&text, &global.display().to_string(), LayerKind::Global)).transpose()?;
        let records = Records::of(layer.as_ref());
        let journal = Journal::new(&places.records());
        let file = || Place::File(journal.dir().join("records.db"));
        let place = records.database.clone().map_or_else(file, Place::Url);
        Ok(Archive { journal, place, records })
    }

    /// Opens the database, and leaves the journal as it is.
    pub fn connect(&self) -> Result<Store, Failure> {
        self.journal.make().map_err(StoreError::from)?;
        Ok(Store::open(&self.place)?)
    }

    /// Opens the records to be looked at: brought up to date, or as they are where nothing can be written.
    pub fn look(&self) -> Result<Store, Failure> {
        let Place::File(file) = &self.place else { return self.open() };
        let trouble = match self.fresh() {
            Ok(store) => return Ok(store),
            Err(error @ (StoreError::Newer { .. } | StoreError::Migrate { .. })) => return Err(error.into()),
            Err(error) => error,
        };
        // What cannot be read either is told with what came first.
        let Ok((store, folded)) = Store::look(file, &self.journal) else { return Err(trouble.into()) };
        broken(folded);
        output::say(&format!("warning: the records are shown as they are, and cannot be written: {trouble}"));
        if let Some(hint) = self.unwritable() {
            output::say(&format!("hint: {hint}"));
        }
        Ok(store)
    }

    fn fresh(&self) -> Result<Store, StoreError> {
        self.journal.make()?;
        let mut store = Store::open_within(&self.place, PATIENCE)?;
        let folded = store.refresh(&self.journal)?;
        broken(folded);
        if folded.lines > 0 {
            store.prune(self.records.keep, self.records.max_size)?;
        }
        Ok(store)
    }

    /// Why nothing can be written where the records are, and what that means for the next run.
    fn unwritable(&self) -> Option<String> {
        let there = self.journal.dir().ancestors().find(|dir| dir.exists())?;
        let shown = output::one_line(&there.to_string_lossy());
        if rustix::fs::access(there, rustix::fs::Access::WRITE_OK).is_err() {
            return Some(format!("`{shown}` cannot be written to by you; runs are not recorded until it can"));
        }
        let disk = rustix::fs::statvfs(there).ok()?;
        let full = disk.f_bavail == 0 || (disk.f_files > 0 && disk.f_favail == 0);
        full.then(|| format!("the disk is full at `{shown}`; runs are not recorded until there is room"))
    }

    /// Opens the records and brings them up to date. What cannot be brought in now stays in the journal.
    pub fn open(&self) -> Result<Store, Failure> {
        let mut store = self.connect()?;
        match store.refresh(&self.journal) {
            Ok(folded) => {
                broken(folded);
                if folded.lines > 0 {
                    store.prune(self.records.keep, self.records.max_size)?;
                }
            }
            Err(error) => {
                output::say(&format!("warning: the latest runs are not shown: {}", Failure::from(error).message))
            }
        }
        Ok(store)
    }
}

fn broken(folded: Folded) {
    match folded.broken {
        0 => {}
        1 => output::say("warning: one line of the journal could not be understood"),
        n => output::say(&format!("warning: {n} lines of the journal could not be understood")),
    }
}
