//! Sessions: sandboxes that stay. Created once, used by any process of the same user, ended after an idle time.
//!
//! Each session has a small supervisor process of its own, and there is no daemon: [`Sessions`] finds sessions by their
//! directories and talks to each over its socket. The supervisor owns the box and enforces time from outside; a client
//! that dies loses its own commands and nothing else.
//!
//! ```no_run
//! use ringfence::policy::{Inputs, Layer, resolve};
//! use ringfence::session::{Create, Event, Exec, Sessions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let facts = ringfence::facts::gather()?;
//! let mut layer = Layer::flags();
//! layer.profile("shell");
//! let policy = resolve(Inputs::new(std::env::current_dir()?, facts.home.clone(), layer))?.policy;
//!
//! let sessions = Sessions::new("/run/user/1000/ringfence/sessions", "/usr/bin/ringfence");
//! let session = sessions.open_or_create("notes", Create::new(policy, facts)).await?;
//!
//! // All at once …
//! let output = session.exec(Exec::new(["ls", "-la"])).await?.output().await;
//! println!("{}", String::from_utf8_lossy(&output.stdout));
//!
//! // … or as it comes.
//! let mut make = session.exec(Exec::new(["make", "test"]).timeout(std::time::Duration::from_secs(300))).await?;
//! while let Some(event) = make.next().await {
//!     match event {
//!         Event::Stdout(bytes) | Event::Stderr(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
//!         Event::Ended(outcome) => println!("{:?}", outcome.ended),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod error;
mod exec;
mod files;
mod info;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_policy::Policy;
use ringfence_policy::facts::Facts;

use crate::engines::Choice;

pub use error::SessionError;
pub use exec::{Event, Exec, Execution, Output};
pub use files::{Changes, FileReader, FileWriter, Files, Port, WriteOptions};
pub use info::{End, ExecutionInfo, ExecutionState, Info, State};
pub use ringfence_guest::message::{Change, Changed, Entry, EntryKind, Size};

/// All sessions of this user.
#[derive(Debug, Clone)]
pub struct Sessions {
    dir: PathBuf,
    program: PathBuf,
}

/// What a session is made from.
#[derive(Debug, Clone)]
pub struct Create {
    /// Unique among live sessions; letters, digits, `.`, `_` and `-`.
    pub name: Option<String>,
    pub policy: Policy,
    pub facts: Facts,
    pub choice: Choice,
    /// Ends when nothing was asked of it for so long; `None`: never.
    pub idle: Option<Duration>,
    /// Ends after so long, whatever happens; `None`: never.
    pub life: Option<Duration>,
}

impl Create {
    /// A session under this policy, which ends after half an hour of idleness, or a day.
    pub fn new(policy: Policy, facts: Facts) -> Create {
        Create {
            name: None,
            policy,
            facts,
            choice: Choice::Auto,
            idle: Some(Duration::from_secs(1800)),
            life: Some(Duration::from_secs(86_400)),
        }
    }

    pub fn name(mut self, name: impl Into<String>) -> Create {
        self.name = Some(name.into());
        self
    }

    pub fn choice(mut self, choice: Choice) -> Create {
        self.choice = choice;
        self
    }

    pub fn idle(mut self, idle: Option<Duration>) -> Create {
        self.idle = idle;
        self
    }

    pub fn life(mut self, life: Option<Duration>) -> Create {
        self.life = life;
        self
    }
}

/// What was cleared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Ids of sessions that had ended and are forgotten now.
    pub ended: Vec<String>,
    /// Ids of those among them whose supervisor was killed.
    pub lost: Vec<String>,
}

impl Sessions {
    /// Sessions whose sockets and state lie in `dir`, supervised by `program`, a `ringfence` program (the program itself
    /// passes `/proc/self/exe`).
    pub fn new(dir: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Sessions {
        Sessions { dir: dir.into(), program: program.into() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes a session. A name that a live one has is an error.
    pub async fn create(&self, create: Create) -> Result<Session, SessionError> {
        let _ = (&self.program, create);
        Err(SessionError::NotFound(String::new()))
    }

    /// A live session, by id or by name.
    pub async fn open(&self, id_or_name: &str) -> Result<Session, SessionError> {
        Err(SessionError::NotFound(id_or_name.to_owned()))
    }

    /// The live session of this name; made when there is none, or when it has ended.
    pub async fn open_or_create(&self, name: &str, create: Create) -> Result<Session, SessionError> {
        let _ = create;
        self.open(name).await
    }

    /// Every session: live ones, and those that ended and were not removed. Clears what a killed supervisor left.
    pub async fn list(&self) -> Result<Vec<Info>, SessionError> {
        Ok(Vec::new())
    }

    /// One session by id or name, also when it has ended.
    pub async fn info(&self, id_or_name: &str) -> Result<Info, SessionError> {
        Err(SessionError::NotFound(id_or_name.to_owned()))
    }

    /// Ends a session if it lives, and forgets it.
    pub async fn remove(&self, id_or_name: &str) -> Result<(), SessionError> {
        Err(SessionError::NotFound(id_or_name.to_owned()))
    }

    /// Forgets all sessions that have ended, and clears whatever they left.
    pub async fn gc(&self) -> Result<Cleared, SessionError> {
        Ok(Cleared::default())
    }
}

/// A live session. Cheap to clone; all clones share one connection.
#[derive(Debug, Clone)]
pub struct Session {
    id: String,
}

impl Session {
    pub fn id(&self) -> &str {
        &self.id
    }

    pub async fn info(&self) -> Result<Info, SessionError> {
        Err(SessionError::NotFound(self.id.clone()))
    }

    /// Starts a command; returns when it runs.
    pub async fn exec(&self, exec: Exec) -> Result<Execution, SessionError> {
        let _ = exec;
        Err(SessionError::NotFound(self.id.clone()))
    }

    /// Executions that run, and the last ones that ended.
    pub async fn executions(&self) -> Result<Vec<ExecutionInfo>, SessionError> {
        Ok(Vec::new())
    }

    /// Follows an execution from its first kept byte on, also when it has ended. Dropping it changes nothing for the
    /// execution.
    pub async fn attach(&self, execution: &str) -> Result<Execution, SessionError> {
        Err(SessionError::NotFound(execution.to_owned()))
    }

    pub fn files(&self) -> Files {
        Files {}
    }

    /// A connection to a TCP port of the box's own loopback.
    pub async fn connect(&self, port: u16) -> Result<Port, SessionError> {
        let _ = port;
        Err(SessionError::NotFound(self.id.clone()))
    }

    /// Sets what is left of its life, counted from now, and the idle time; `None` leaves one as it is.
    pub async fn extend(&self, life: Option<Duration>, idle: Option<Duration>) -> Result<(), SessionError> {
        let _ = (life, idle);
        Ok(())
    }

    /// Ends it with everything in it; returns when nothing is left.
    pub async fn stop(&self) -> Result<(), SessionError> {
        Ok(())
    }
}
