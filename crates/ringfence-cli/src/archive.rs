//! Where the user's records are, and the skills beside them.

use ringfence::policy::config;
use ringfence::policy::records::Records;
use ringfence::policy::rules::LayerKind;
use ringfence::records::{Journal, Place, Store, StoreError};

use crate::failure::Failure;
use crate::files::{self, Links, Places};
use crate::output;

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

    /// Opens the records and brings them up to date. What cannot be brought in now stays in the journal.
    pub fn open(&self) -> Result<Store, Failure> {
        let mut store = self.connect()?;
        match store.refresh(&self.journal) {
            Ok(folded) => {
                if folded.broken > 0 {
                    output::say(&format!("warning: {} lines of the journal could not be understood", folded.broken));
                }
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
