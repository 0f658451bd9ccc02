//! The client's session: made on first use, and ended with the client.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use ringfence::Notice;
use ringfence::code::CodeResult;
use ringfence::policy::git;
use ringfence::session::{Session, SessionError};
use ringfence_linux::sys::locked;
use rmcp::model::Tool;
use serde::Serialize;
use tokio::sync::{Mutex, Semaphore};

use super::answer::Trouble;
use super::client_roots::{self, Places};
use super::jobs::Jobs;
use super::owner::{Allowed, Owner, Refusal};
use super::tools;

/// So many pieces of code and skills run at once; more wait.
pub const MOST_BOXES: usize = 4;
/// So many searches and lists run at once; more wait. Each may hold a list of a million entries.
const MOST_WALKS: usize = 4;
/// A search or a list takes no longer.
pub const MOST_TIME: Duration = Duration::from_secs(30);
/// So many pieces of code and skills that ran are remembered.
const REMEMBERED: usize = 64;
/// How often the server looks whether skills have changed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The session and what belongs to it.
#[derive(Debug)]
pub struct Live {
    owner: Owner,
    opened: Mutex<Option<Arc<Opened>>>,
    /// The client is gone.
    closed: AtomicBool,
    /// What the client has seen.
    listed: std::sync::Mutex<Option<Listed>>,
    /// Somebody looks whether they change.
    pub watched: AtomicBool,
    /// Boxes beside the session that may run at once: each has all that the policy allows one sandbox.
    pub boxes: Semaphore,
    /// Searches and lists that may run at once.
    pub walks: Arc<Semaphore>,
    pub jobs: Jobs,
    /// What the owner was warned of.
    warned: std::sync::Mutex<BTreeSet<String>>,
    /// Code and skills that ran, the latest last.
    ran: std::sync::Mutex<VecDeque<Ran>>,
}

/// Code or a skill that ran.
#[derive(Debug, Clone, Serialize)]
pub struct Ran {
    /// Of its record; empty where that is the session's.
    id: String,
    what: String,
    status: &'static str,
    duration_ms: u64,
}

/// Tools, and the mark of the skills when they were listed.
#[derive(Debug, Clone)]
pub struct Listed {
    mark: Option<u64>,
    tools: String,
}

impl Listed {
    fn new(mark: Option<u64>, tools: &[Tool]) -> Listed {
        // Our own types always become JSON.
        Listed { mark, tools: serde_json::to_string(tools).unwrap_or_default() }
    }
}

/// A session that is there.
#[derive(Debug)]
pub struct Opened {
    pub session: Session,
    pub allowed: Allowed,
    pub places: Places,
    /// Where the working directory is inside.
    pub at: PathBuf,
    /// The engine has no boxes but those of sessions.
    pub sessions_only: bool,
    created: SystemTime,
}

impl Live {
    pub fn new(owner: Owner) -> Live {
        Live {
            owner,
            opened: Mutex::new(None),
            closed: AtomicBool::new(false),
            listed: Default::default(),
            watched: AtomicBool::new(false),
            boxes: Semaphore::new(MOST_BOXES),
            walks: Arc::new(Semaphore::new(MOST_WALKS)),
            jobs: Jobs::default(),
            warned: Default::default(),
            ran: Default::default(),
        }
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The session, if there is one.
    pub async fn current(&self) -> Option<Arc<Opened>> {
        self.opened.lock().await.clone()
    }

    /// What the owner allows where the session is, or where it would be made.
    pub fn allowed(&self, places: &Places) -> Result<Allowed, Trouble> {
        let allowed = self.owner.allowed(places);
        allowed.map_err(|refusal| Trouble::new(format!("There is no sandbox: {refusal}")).advise("Tell the owner."))
    }

    /// Where the session is made when the client names these directories.
    pub fn places(&self, client: &[String]) -> Places {
        client_roots::choose(&self.owner.roots, client)
    }

    /// The session; made when there is none, in the directories that the client named.
    pub async fn open(&self, roots: Vec<String>) -> Result<Arc<Opened>, Trouble> {
        let mut opened = self.opened.lock().await;
        if let Some(there) = opened.as_ref() {
            return Ok(there.clone());
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(Trouble::new("The client is gone."));
        }
        let places = self.places(&roots);
        self.owner.prepare()?;
        let mut allowed = self.allowed(&places)?;
        let create = allowed.sandbox.create().map_err(Refusal::from)?;
        let sessions = &self.owner.sessions;
        let made = match &self.owner.keep {
            Some(name) => sessions.open_or_create(name, create).await,
            // It ends with the server.
            None => sessions.create_owned(create).await,
        };
        let session = made.map_err(|error| match error {
            // What is said of a sandbox must be true of it.
            SessionError::OtherPolicy(name) => {
                let message = format!(
                    "The sandbox {name} was made with another policy than the one that holds now. Nothing was run. \
                     `ringfence session stop {name}` ends it, and the next call makes a new one."
                );
                Trouble::new(message).advise("Tell the owner. `--keep` with another name leaves this one as it is.")
            }
            error => Trouble::new(format!("There is no sandbox: {error}."))
                .advise("Tell the owner; `ringfence doctor` looks for causes."),
        })?;
        let info = session.info().await?;
        // How it is kept there, which may be otherwise than a new one would be.
        allowed.report = session.report().await?;
        let commands = |engine: ringfence::EngineRef| engine.abilities().commands;
        // What a kept session did before is none of this client's.
        let created = if self.owner.keep.is_some() { SystemTime::now() } else { info.created };
        let sessions_only = !ringfence::engines::find(&info.engine).is_some_and(commands);
        let new = Arc::new(Opened { session, allowed, places, at: info.workdir_inside, sessions_only, created });
        *opened = Some(new.clone());
        Ok(new)
    }

    /// The client has seen these tools.
    pub fn listed(&self, mark: Option<u64>, tools: &[Tool]) {
        *locked(&self.listed) = Some(Listed::new(mark, tools));
    }

    /// Returns when there are other tools than the client has seen, and than it was told of here before. One that has seen
    /// none need not be told.
    pub async fn tools_changed(self: &Arc<Self>, told: &mut Option<Listed>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(seen) = locked(&self.listed).clone() else { continue };
            let mark = self.owner.skills_mark();
            if seen.mark == mark || told.as_ref().is_some_and(|told| told.mark == mark) {
                continue;
            }
            let now = Listed::new(mark, &tools::all(self).await);
            let known = now.tools == seen.tools || told.as_ref().is_some_and(|told| told.tools == now.tools);
            *told = Some(now);
            if !known {
                return;
            }
        }
    }

    /// What commands left since then in the directories of a session that git outside would go into. The owner is told once,
    /// whatever the client does with the answer.
    pub fn changed_since(&self, opened: &Opened, since: SystemTime) -> Vec<String> {
        let home = &opened.allowed.sandbox.facts().home;
        let dirs = std::iter::once(&opened.places.workdir).chain(&opened.places.also);
        let lines: Vec<String> = dirs.flat_map(|dir| git::changed_since(dir, home, since).warnings()).collect();
        let mut told = locked(&self.warned);
        let new: Vec<String> = lines.iter().filter(|line| !told.contains(*line)).cloned().collect();
        if !new.is_empty() {
            self.owner.notice(Notice::Changed(&new));
        }
        // A client can have a file of any name made.
        if told.len() < REMEMBERED {
            told.extend(new);
        }
        lines
    }

    /// Remembers code or a skill that ran.
    pub fn ran(&self, what: &str, result: &CodeResult) {
        let (status, duration_ms) = (tools::status(result.status), result.usage.duration_ms);
        let mut all = locked(&self.ran);
        all.push_back(Ran { id: result.id.clone(), what: what.to_owned(), status, duration_ms });
        if all.len() > REMEMBERED {
            all.pop_front();
        }
    }

    /// Code and skills that ran, the latest last.
    pub fn all_ran(&self) -> Vec<Ran> {
        locked(&self.ran).iter().cloned().collect()
    }

    /// What to say when something went wrong. A session that is gone is forgotten, so that the next call makes a new one.
    pub async fn trouble(&self, error: SessionError) -> Trouble {
        use SessionError::{CommandLost, Ended, Lost, NotFound};
        if matches!(error, Ended { .. } | Lost { .. } | CommandLost { .. } | NotFound(_)) {
            self.opened.lock().await.take();
            self.jobs.clear();
        }
        error.into()
    }

    /// The client is gone: no session is made any more, and the one that is there ends.
    pub async fn end(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let Some(opened) = self.opened.lock().await.take() else { return };
        if self.owner.keep.is_none() {
            // A session that has ended already is as good; one that cannot be reached ends with this process.
            let _ = self.owner.sessions.remove(opened.session.id()).await;
        }
        self.changed_since(&opened, opened.created);
    }
}
