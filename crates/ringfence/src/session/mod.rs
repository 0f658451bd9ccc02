//! Sessions: sandboxes that stay. Created once, used by any process of the same user, ended after an idle time.
//!
//! Each session has a small supervisor process of its own, and there is no daemon: [`Sessions`] finds sessions by their
//! directories and talks to each over its socket. The supervisor owns the box and enforces time from outside; a client
//! that dies loses its own commands and nothing else.
//!
//! ```no_run
//! use ringfence::session::{Event, Exec};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let host = ringfence::Host::here()?;
//! let session = host.session("shell").named("notes").reuse().create().await?;
//!
//! // All at once …
//! let output = session.exec(["ls", "-la"]).await?.output().await?;
//! println!("{}", String::from_utf8_lossy(&output.stdout));
//!
//! // … or as it comes.
//! let mut make = session.exec(Exec::new(["make", "test"]).timeout(std::time::Duration::from_secs(300))).await?;
//! while let Some(event) = make.next().await? {
//!     match event {
//!         Event::Stdout(bytes) | Event::Stderr(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
//!         Event::Ended(outcome) => println!("{:?}", outcome.ended),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod contents;
mod document;
mod error;
mod exec;
mod files;
mod fingerprint;
mod force;
mod homes;
mod info;
mod link;
mod once;
mod outputs;
mod pipes;
mod place;
mod protocol;
mod start;
mod supervisor;
#[cfg(test)]
mod tests;
mod turn;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_linux::sys::locked;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{self, Plan, PlanError};
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::{Guarantee, Guarded, Policy, ServiceSettings};

use crate::engines;
use crate::host::{Host, Notice};
use crate::report::Report;
use crate::sandbox::SharedLookup;
use document::Document;
use error::unexpected;
use homes::{HomeFile, Homes};
use link::Link;
use place::{Place, StateFile};
use protocol::{ClientRequest, Refusal, SupervisorReply, TIME_LIMITS};
use tokio::time::error::Elapsed;

pub use contents::{FileReader, FileWriter};
pub use error::{SessionError, Tried};
pub use exec::{Controls, Event, Exec, Execution, Output};
pub use files::{Changes, Files, Port, WriteOptions};
pub use info::{End, ExecutionInfo, ExecutionState, Info, LimitChange, Placeholder, Required, State, Usage};
pub use place::is_name;
pub use ringfence_guest::message::{Change, Changed, Entry, EntryKind, Size, WriteMode};
pub use supervisor::{REMEMBERED, REMEMBERED_BYTES, SuperviseError, supervise};

/// All sessions of this user.
#[derive(Debug, Clone)]
pub struct Sessions {
    dir: PathBuf,
    program: PathBuf,
    homes: PathBuf,
    /// Whose facts are asked for what is to be cleared or started again.
    host: Option<Host>,
}

/// What a session is made from.
#[derive(Debug, Clone)]
pub struct Create {
    /// Unique among live sessions; letters, digits, `.`, `_` and `-`.
    pub name: Option<String>,
    /// What the sandbox may do.
    pub policy: Policy,
    /// What is known of this host.
    pub facts: Facts,
    /// The engine that is asked for.
    pub choice: EngineChoice,
    /// When it ends, and what is recorded of its executions.
    pub service: ServiceSettings,
    /// Where executions are recorded; `None`: nowhere.
    pub records: Option<PathBuf>,
    /// What the policy was judged with.
    pub(crate) judged: Option<SharedLookup>,
}

impl Create {
    /// A session under this policy, which ends as the built-in profiles say.
    pub fn new(policy: Policy, facts: Facts) -> Create {
        let service = ServiceSettings::default();
        Create { name: None, policy, facts, choice: EngineChoice::Auto, service, records: None, judged: None }
    }

    /// How people call it; unique among live sessions.
    pub fn name(mut self, name: impl Into<String>) -> Create {
        self.name = Some(name.into());
        self
    }

    /// The engine; without, the first one that keeps every promise.
    pub fn choice(mut self, choice: EngineChoice) -> Create {
        self.choice = choice;
        self
    }

    /// What the layers say besides the policy ([`Resolved::service`](ringfence_policy::Resolved::service)).
    pub fn service(mut self, service: ServiceSettings) -> Create {
        self.service = service;
        self
    }

    /// Ends when nothing was asked of it for so long; `None`: never.
    pub fn idle(mut self, idle: Option<Duration>) -> Create {
        self.service.idle = idle;
        self
    }

    /// Where its executions are recorded.
    pub fn records(mut self, dir: impl Into<PathBuf>) -> Create {
        self.records = Some(dir.into());
        self
    }

    /// What is done, with the lookup that the policy was judged with.
    fn plan(&self) -> Result<Plan, PlanError> {
        match &self.judged {
            None => plan::plan_guest(&self.policy, &self.facts),
            Some(lookup) => plan::plan_guest_with(&locked(lookup), &self.policy, &self.facts),
        }
    }

    /// Ends after so long, whatever happens; `None`: never.
    pub fn life(mut self, life: Option<Duration>) -> Create {
        self.service.life = life;
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
        let dir = dir.into();
        let homes = dir.join("homes");
        Sessions { dir, program: program.into(), homes, host: None }
    }

    /// Where it is kept how sessions with a home of their own are made: a place that outlives a restart of the machine.
    pub fn homes(mut self, dir: impl Into<PathBuf>) -> Sessions {
        self.homes = dir.into();
        self
    }

    /// The host that they are on ([`Host::sessions`] says so). Without, nothing is cleared at a container engine, no home is
    /// started again, and the values of this process's environment are not kept out of records.
    pub fn on(mut self, host: Host) -> Sessions {
        self.host = Some(host);
        self
    }

    /// Facts of this moment.
    fn facts(&self) -> Result<Option<Facts>, SessionError> {
        Ok(self.host.as_ref().map(Host::facts).transpose()?)
    }

    /// Where its sessions have their directories.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the directory, so that a policy that is made afterwards can hide it.
    pub fn prepare(&self) -> Result<(), SessionError> {
        self.place().prepare()
    }

    fn place(&self) -> Place {
        Place::new(&self.dir)
    }

    /// Makes a session. A name that a live one has is an error.
    pub async fn create(&self, create: Create) -> Result<Session, SessionError> {
        let (place, program, homes) = (self.place(), self.program.clone(), Homes::new(&self.homes));
        let id = blocking(move || make(&place, &program, &homes, create)).await?;
        self.connect(&id, None).await.map(|(session, _)| session)
    }

    /// A live session, by id or by name. One with a home of its own is started again when it has ended.
    pub async fn open(&self, id_or_name: &str) -> Result<Session, SessionError> {
        self.open_for(id_or_name, None).await.map(|(session, _)| session)
    }

    /// Starts a command in a session that is opened for it, as [`Sessions::open`] and [`Session::exec`] do, with one
    /// wait for both: the command is asked for before the supervisor has spoken. It begins to listen when it has, so that a
    /// command that was asked of one that never did is asked for again.
    pub async fn exec(&self, id_or_name: &str, exec: Exec) -> Result<Execution, SessionError> {
        let (_session, asked) = self.open_for(id_or_name, Some(&exec)).await?;
        // Whatever comes now is the command's: it was heard, and is not asked for again.
        asked.ok_or_else(unexpected)?.begun(&exec).await
    }

    /// The id of a session, by id or by name, live or not.
    pub fn id(&self, id_or_name: &str) -> Result<String, SessionError> {
        self.place().resolve(id_or_name)
    }

    async fn open_for(
        &self,
        id_or_name: &str,
        exec: Option<&Exec>,
    ) -> Result<(Session, Option<exec::Asked>), SessionError> {
        let mut tries = 0;
        loop {
            let live = match self.place().resolve(id_or_name) {
                Ok(id) => self.connect(&id, exec).await,
                Err(error) => Err(error),
            };
            let ended = match live {
                Err(error @ (SessionError::NotFound(_) | SessionError::Ended { .. })) => error,
                result => return result,
            };
            let (homes, name) = (Homes::new(&self.homes), id_or_name.to_owned());
            let Some(home) = blocking(move || Ok(homes.find(&name))).await? else { return Err(ended) };
            let (place, program, name) = (self.place(), self.program.clone(), id_or_name.to_owned());
            let homes = Homes::new(&self.homes);
            let sessions = self.clone();
            let start = move || match sessions.facts()?.and_then(|facts| home.start_now(facts)) {
                Some(start) => start_in(&place, &program, &homes, Some(&name), start, None),
                None => Err(ended),
            };
            match blocking(start).await {
                Ok(id) => {
                    if let Some(host) = &self.host {
                        host.notice(Notice::StartedAgain(id_or_name));
                    }
                    return self.connect(&id, exec).await;
                }
                // Somebody else starts it in this moment.
                Err(SessionError::NameTaken(_)) if tries < 100 => {
                    tries += 1;
                    tokio::time::sleep(STARTING).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A live session, by id or by name; none is started.
    pub async fn open_live(&self, id_or_name: &str) -> Result<Session, SessionError> {
        let id = self.place().resolve(id_or_name)?;
        self.connect(&id, None).await.map(|(session, _)| session)
    }

    /// The live session of this name; made when there is none, or when it has ended. One that was made with another
    /// policy is an error.
    pub async fn open_or_create(&self, name: &str, create: Create) -> Result<Session, SessionError> {
        self.end_outdated(name, &create).await?;
        let mut tries = 0;
        loop {
            if let Some(session) = self.open_alike(name, &create).await? {
                return Ok(session);
            }
            match self.create(create.clone().name(name)).await {
                // Somebody else made it in this moment, or its maker has just died.
                Err(SessionError::NameTaken(_)) if tries < 100 => {
                    tries += 1;
                    tokio::time::sleep(STARTING).await;
                }
                result => return result,
            }
        }
    }

    /// The live session of this name, if there is one. One that was made with another policy is an error: the caller
    /// would take it to keep the policy that it asked for.
    pub async fn open_alike(&self, name: &str, create: &Create) -> Result<Option<Session>, SessionError> {
        let session = match self.open_live(name).await {
            Ok(session) => session,
            Err(SessionError::NotFound(_) | SessionError::Ended { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let info = match session.info().await {
            Ok(info) => info,
            // It ended in this moment.
            Err(SessionError::Lost { .. } | SessionError::Ended { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Create { policy, service, facts, choice, .. } = create;
        let wanted = fingerprint::of(policy, service, facts, choice).map_err(engines::EngineError::from)?;
        match info.policy == wanted {
            true => Ok(Some(session)),
            false => Err(SessionError::OtherPolicy(name.to_owned())),
        }
    }

    /// A live session with a home that is made otherwise by now gives way; its home stays.
    async fn end_outdated(&self, name: &str, create: &Create) -> Result<(), SessionError> {
        if !create.policy.keep_home {
            return Ok(());
        }
        let (homes, kept, asked) = (Homes::new(&self.homes), name.to_owned(), create.clone());
        let outdated = blocking(move || {
            let Some(home) = homes.find(&kept) else { return Ok(false) };
            let plan = asked.plan()?;
            Ok(home.hash != homes::hash(home.engine()?, &plan, &asked.policy.env, &asked.facts)?)
        });
        if outdated.await?
            && let Ok(live) = self.open_live(name).await
        {
            live.stop().await?;
        }
        Ok(())
    }

    /// Removes the home of a session, with all that is in it; a live session of this name is ended first.
    pub async fn remove_home(&self, name: &str) -> Result<(), SessionError> {
        // Nothing is ended for a home that this release cannot remove.
        let (homes, looked_up) = (Homes::new(&self.homes), name.to_owned());
        blocking(move || Ok(homes.find_any(&looked_up)?.map(|home| home.engine()).transpose()?)).await?;
        match self.end_and_forget(name).await {
            Ok(()) | Err(SessionError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        let (sessions, homes, name) = (self.clone(), Homes::new(&self.homes), name.to_owned());
        blocking(move || {
            let Some(home) = homes.find_any(&name)? else { return Err(SessionError::NotFound(name)) };
            let engine = home.engine()?;
            let facts = match sessions.facts()? {
                Some(facts) => home.facts(facts),
                None => home.facts_then(homes.dir())?,
            };
            engine.remove_home(&facts, &sessions.dir, homes.dir(), &name)?;
            homes.forget(&name)
        })
        .await
    }

    /// Every session: live ones, and those that ended and were not removed. Clears what a killed supervisor left.
    pub async fn list(&self) -> Result<Vec<Info>, SessionError> {
        let place = self.place();
        let ended = blocking(move || {
            crate::janitor::sweep(&crate::janitor::registry());
            place.clear(false)
        })
        .await?;
        let mut all: Vec<Info> = ended.into_iter().map(|kept| kept.info).collect();
        let mut looks = tokio::task::JoinSet::new();
        for id in self.place().ids() {
            if all.iter().any(|info| info.id == id) {
                continue;
            }
            // It is being made: then it is none yet, and may not be for a while.
            if self.place().socket(&id).exists() || self.place().known(&id).is_some() {
                let sessions = self.clone();
                looks.spawn(async move { sessions.look(&id).await });
            }
            if looks.len() >= LOOKS {
                all.extend(looks.join_next().await.and_then(Result::ok).flatten());
            }
        }
        while let Some(looked) = looks.join_next().await {
            all.extend(looked.ok().flatten());
        }
        all.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(all)
    }

    /// One session by id or name, also when it has ended, or cannot be talked to: then `unreachable` says why.
    pub async fn info(&self, id_or_name: &str) -> Result<Info, SessionError> {
        let id = self.place().resolve(id_or_name)?;
        self.look(&id).await.ok_or_else(|| SessionError::NotFound(id_or_name.to_owned()))
    }

    /// What is to be known of a session; `None`: it was removed while we looked, or does not stand yet.
    async fn look(&self, id: &str) -> Option<Info> {
        let asked = async {
            let (session, _) = self.connect_for(id, None, ANSWER).await?;
            session.info().await
        };
        let error = match tokio::time::timeout(2 * ANSWER, asked).await {
            Ok(Ok(info)) => return Some(info),
            Ok(Err(error)) => error,
            Err(_) => silent(id),
        };
        let (place, id) = (self.place(), id.to_owned());
        let known = blocking(move || {
            // It may have ended this moment: then that is what there is to say.
            match place.ended(&id) {
                Ok(Some(kept)) => Ok(Some((kept.info, false))),
                Ok(None) => Ok(place.known(&id).map(|info| (info, true))),
                // It has ended, and what it left cannot be read here.
                Err(error) => Ok(place.known(&id).map(|info| {
                    let (state, unreachable) = (State::Unknown, Some(error.to_string()));
                    (Info { state, unreachable, ..info }, false)
                })),
            }
        });
        let (mut info, lives) = known.await.ok().flatten()?;
        if lives && info.state == State::Live {
            info.unreachable = Some(match error {
                error @ SessionError::Version { .. } => error.to_string(),
                SessionError::Connect { source, .. } => source.to_string(),
                error => error.to_string(),
            });
        }
        Some(info)
    }

    /// Ends a live session with everything in it, also one that cannot be talked to.
    pub async fn stop(&self, id_or_name: &str) -> Result<(), SessionError> {
        let id = self.place().resolve(id_or_name)?;
        self.end(&id).await
    }

    /// Ends a session: by asking its supervisor, and where that does not answer or speaks another version, by its process.
    async fn end(&self, id: &str) -> Result<(), SessionError> {
        // Asked before it has spoken: one that has as many clients as it takes hears nothing else of a new one.
        let asked = self.connect_with(id, ENDING, |link| link.open(&ClientRequest::Stop, Vec::new())).await;
        let failed = match asked {
            Ok((session, asked)) => match tokio::time::timeout(MAKING * 4, session.stopped(asked)).await {
                Ok(Ok(())) if self.place().lives(id) => silent(id),
                Ok(result) => return result,
                Err(_) => silent(id),
            },
            Err(error @ (SessionError::Version { .. } | SessionError::Connect { .. } | SessionError::Lost { .. })) => {
                error
            }
            Err(error) => return Err(error),
        };
        let (place, silent) = (self.place(), id.to_owned());
        if blocking(move || force::end(&place, &silent)).await? { Ok(()) } else { Err(failed) }
    }

    /// How each guarantee was kept, also of a session that has ended.
    pub async fn report(&self, id_or_name: &str) -> Result<Report, SessionError> {
        let place = self.place();
        let id = place.resolve(id_or_name)?;
        let kept = blocking(move || Ok(place.kept(&id))).await?;
        kept.map(|kept| kept.report).ok_or_else(|| SessionError::NotFound(id_or_name.to_owned()))
    }

    /// Ends a session if it lives, and forgets it; one that is being made is waited for. A home of its own stays, and is there
    /// for the next one of its name.
    pub async fn remove(&self, id_or_name: &str) -> Result<(), SessionError> {
        let (place, asked) = (self.place(), id_or_name.to_owned());
        let named = blocking(move || {
            let kept = place.resolve(&asked).ok().and_then(|id| place.kept(&id));
            Ok(kept.and_then(|kept| kept.info.name).unwrap_or(asked))
        });
        let (homes, name) = (Homes::new(&self.homes), named.await?);
        // First: whoever uses it meanwhile does not start it again.
        let had_home = blocking(move || homes.retire(&name)).await?;
        match self.end_and_forget(id_or_name).await {
            // Nothing but its home was left, after a restart of the machine.
            Err(SessionError::NotFound(_)) if had_home => Ok(()),
            result => result,
        }
    }

    async fn end_and_forget(&self, id_or_name: &str) -> Result<(), SessionError> {
        let id = self.place().resolve(id_or_name)?;
        let until = std::time::Instant::now() + MAKING;
        loop {
            let (sessions, gone) = (self.clone(), id.clone());
            if blocking(move || sessions.clear_left(&gone).and_then(|()| sessions.place().remove(&gone))).await? {
                return Ok(());
            }
            match self.end(&id).await {
                Ok(()) => {}
                Err(SessionError::Ended { .. } | SessionError::NotFound(_)) if std::time::Instant::now() < until => {}
                // It lives, and does not answer.
                Err(SessionError::Ended { .. } | SessionError::NotFound(_)) => {
                    return Err(SessionError::Connect { id, source: std::io::ErrorKind::TimedOut.into() });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Forgets all sessions that have ended, and clears whatever they left.
    pub async fn gc(&self) -> Result<Cleared, SessionError> {
        let sessions = self.clone();
        let ended = blocking(move || {
            let place = sessions.place();
            // Engines sweep what is on a host that is known; this much is always here.
            crate::janitor::sweep(&crate::janitor::registry());
            let ended = place.clear(true)?;
            sessions.sweep(&|id| place.lives(id))?;
            Ok(ended)
        })
        .await?;
        let lost = |kept: &&StateFile| kept.info.state == State::Ended(End::Lost);
        Ok(Cleared {
            lost: ended.iter().filter(lost).map(|kept| kept.info.id.clone()).collect(),
            ended: ended.iter().map(|kept| kept.info.id.clone()).collect(),
        })
    }

    /// Has every engine remove what was left by sessions that do not live.
    fn sweep(&self, lives: &dyn Fn(&str) -> bool) -> Result<(), SessionError> {
        let Some(facts) = self.facts()? else { return Ok(()) };
        let (place, homes) = (self.place(), Homes::new(&self.homes));
        let left = engines::Left { state: place.dir(), keys: homes.dir(), facts: &facts, lives };
        engines::all().into_iter().try_for_each(|engine| engine.sweep(&left)).map_err(SessionError::from)
    }

    /// Removes what the supervisor of an ended session could not; while it is still there, the session is not forgotten.
    fn clear_left(&self, id: &str) -> Result<(), SessionError> {
        match self.place().kept(id).is_some_and(|kept| kept.info.left.is_some()) {
            true => self.sweep(&|session: &str| session != id),
            false => Ok(()),
        }
    }

    /// Connects to a session, and asks for a command if there is one; waits while it is being made.
    async fn connect(&self, id: &str, exec: Option<&Exec>) -> Result<(Session, Option<exec::Asked>), SessionError> {
        self.connect_for(id, exec, MAKING).await
    }

    /// The same for so long.
    async fn connect_for(
        &self,
        id: &str,
        exec: Option<&Exec>,
        patience: Duration,
    ) -> Result<(Session, Option<exec::Asked>), SessionError> {
        self.connect_with(id, patience, |link| exec.map(|exec| exec.send(link)).transpose()).await
    }

    /// The same, and asks for this before the supervisor has spoken.
    async fn connect_with<T>(
        &self,
        id: &str,
        patience: Duration,
        ask: impl Fn(&Link) -> Result<T, SessionError>,
    ) -> Result<(Session, T), SessionError> {
        let place = self.place();
        let path = place.socket(id);
        let until = std::time::Instant::now() + patience;
        loop {
            let failed = match Link::connect(id, &path, self.host.clone(), until).await {
                Ok(link) => match greeted(&link, &ask, patience).await {
                    Ok(Ok(asked)) => return Ok((Session { link, place }, asked)),
                    Ok(Err(lost @ SessionError::Lost { .. })) => lost,
                    Ok(Err(error)) => return Err(error),
                    Err(_) => return Err(silent(id)),
                },
                Err(error) if absent(&error) => SessionError::NotFound(id.to_owned()),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Err(silent(id)),
                Err(source) => return Err(SessionError::Connect { id: id.to_owned(), source }),
            };
            let (looked, gone) = (self.place(), id.to_owned());
            if let Some(kept) = blocking(move || looked.ended(&gone)).await? {
                let end = match kept.info.state {
                    State::Ended(end) => end,
                    State::Live => End::Lost,
                    State::Unknown => End::Unknown,
                };
                return Err(SessionError::Ended { id: id.to_owned(), end });
            }
            if !place.session(id).is_dir() {
                return Err(SessionError::NotFound(id.to_owned()));
            }
            if std::time::Instant::now() >= until {
                // Else it is still being made.
                let stands = matches!(failed, SessionError::NotFound(_)) && place.known(id).is_some();
                let source = std::io::Error::new(std::io::ErrorKind::NotFound, "nobody listens at its socket");
                return Err(if stands { SessionError::Connect { id: id.to_owned(), source } } else { failed });
            }
            tokio::time::sleep(STARTING).await;
        }
    }
}

/// Asks for something, and waits until the supervisor has spoken: it listens when it has.
async fn greeted<T>(
    link: &Link,
    ask: impl Fn(&Link) -> Result<T, SessionError>,
    patience: Duration,
) -> Result<Result<T, SessionError>, Elapsed> {
    let asked = match ask(link) {
        Ok(asked) => asked,
        Err(error) => return Ok(Err(error)),
    };
    let spoken = tokio::time::timeout(patience, link.greeted()).await?;
    Ok(spoken.map(|()| asked))
}

/// How long a session may take to be made, for those who wait for it.
const MAKING: Duration = Duration::from_secs(15);
/// How long its supervisor may take to answer, for a list; and for whoever ends it, by force afterwards.
const ANSWER: Duration = Duration::from_secs(3);
const ENDING: Duration = Duration::from_secs(10);
/// Sessions that are looked at at once.
const LOOKS: usize = 64;
/// Between two looks at one that is being made.
const STARTING: Duration = Duration::from_millis(5);

/// Its supervisor lives, and says nothing.
fn silent(id: &str) -> SessionError {
    let source = std::io::Error::new(std::io::ErrorKind::TimedOut, "its supervisor does not answer");
    SessionError::Connect { id: id.to_owned(), source }
}

/// Nobody listens there, or not yet.
fn absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}

/// Runs what waits for files and processes away from other tasks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SessionError> + Send + 'static,
) -> Result<T, SessionError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(SessionError::ShuttingDown),
        },
    }
}

/// Plans a box, takes a place for it and starts its supervisor. Its id.
fn make(place: &Place, program: &Path, homes: &Homes, create: Create) -> Result<String, SessionError> {
    let judged = create.judged.clone();
    let made = make_planned(place, program, homes, create);
    if let Some(lookup) = judged {
        locked(&lookup).let_go();
    }
    made
}

fn make_planned(place: &Place, program: &Path, homes: &Homes, create: Create) -> Result<String, SessionError> {
    let plan = create.plan()?;
    let Create { name, policy, facts, choice, service, records, judged: _ } = create;
    let fingerprint = fingerprint::of(&policy, &service, &facts, &choice).map_err(engines::EngineError::from)?;
    let (engine, mut report) = engines::select(&choice, &plan, &facts)?;
    let records = records.map(|dir| {
        let strict = plan.strict && !policy.optional.contains(&Guarantee::RecordComplete);
        report.recorded_in_session(strict);
        supervisor::record::Wanted { dir, policy: service.records, strict }
    });
    if homes::has_home(&plan) && name.is_none() {
        return Err(SessionError::NamelessHome);
    }
    let start = supervisor::SessionStart {
        dir: place.dir().to_path_buf(),
        id: String::new(),
        name: name.clone(),
        workdir: policy.workdir().to_path_buf(),
        profile: policy.profile,
        policy: fingerprint,
        engine: engine.name().to_owned(),
        plan,
        facts,
        report,
        idle: service.idle,
        life: service.life,
        records,
        requirements: policy.shown,
        rules: policy.rules,
        keys: homes.dir().to_path_buf(),
    };
    let Some(name) = name.filter(|_| homes::has_home(&start.plan)) else {
        let name = start.name.clone();
        return start_in(place, program, homes, name.as_deref(), start, None);
    };
    let home = HomeFile::new(homes::hash(engine, &start.plan, &policy.env, &start.facts)?, &start);
    start_in(place, program, homes, Some(&name), start, Some(&home))
}

/// Takes a place for a session, and starts its supervisor. Its id. How one with a home is made is kept before it stands, so
/// that no home is without it, and put back when it does not: what cannot be made is not tried again by itself.
fn start_in(
    place: &Place,
    program: &Path,
    homes: &Homes,
    name: Option<&str>,
    mut start: supervisor::SessionStart,
    home: Option<&HomeFile>,
) -> Result<String, SessionError> {
    let place::Fresh { id, lock } = place.make(name)?;
    start.id = id.clone();
    start.dir = place.dir().to_path_buf();
    start.keys = homes.dir().to_path_buf();
    let kept = match (home, name) {
        (Some(home), Some(name)) => homes.replace(name, home).map(|before| Some((name, before))),
        _ => Ok(None),
    };
    let started = kept.and_then(|kept| {
        start::start(program, &start, lock).inspect_err(|_| {
            if let Some((name, before)) = kept {
                // That it does not stand is what is said.
                let _ = homes.put_back(name, before);
            }
        })
    });
    started.inspect_err(|_| place.unmake(&id))?;
    Ok(id)
}

/// Keeps a session in use.
#[derive(Debug)]
pub struct Held {
    _stream: link::Stream,
}

/// A live session. Cheap to clone; all clones share one connection.
#[derive(Debug, Clone)]
pub struct Session {
    link: Link,
    place: Place,
}

impl Session {
    /// Its id, which no other session ever has.
    pub fn id(&self) -> &str {
        self.link.id()
    }

    /// Whether it has ended, as far as this connection knows.
    pub fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// What it is and how it is doing.
    pub async fn info(&self) -> Result<Info, SessionError> {
        self.document(&ClientRequest::Info).await
    }

    /// How each guarantee is kept.
    pub async fn report(&self) -> Result<Report, SessionError> {
        self.document(&ClientRequest::Report).await
    }

    /// What stands in for protected names that are missing.
    pub async fn placeholders(&self) -> Result<Vec<Placeholder>, SessionError> {
        self.document(&ClientRequest::Placeholders).await
    }

    /// What of the host its policy hides and protects, and names that no sandbox makes on the host by itself.
    pub async fn guarded(&self) -> Result<Guarded, SessionError> {
        self.document(&ClientRequest::Guarded).await
    }

    /// Bytes of each output that it keeps, and that [`Execution::output`] does.
    pub fn output_limit(&self) -> u64 {
        self.link.keeps()
    }

    /// Starts a command; returns when it runs.
    pub async fn exec(&self, exec: impl Into<Exec>) -> Result<Execution, SessionError> {
        exec.into().start(&self.link).await
    }

    /// Executions that run, and the last ones that ended.
    pub async fn executions(&self) -> Result<Vec<ExecutionInfo>, SessionError> {
        self.document(&ClientRequest::Executions).await
    }

    /// Follows an execution from its first kept byte on, also when it has ended. Dropping it changes nothing for the
    /// execution.
    pub async fn attach(&self, execution: &str) -> Result<Execution, SessionError> {
        let missing = || SessionError::NoExecution(execution.to_owned());
        let id = execution.parse().map_err(|_| missing())?;
        match Execution::begin(self.link.open(&ClientRequest::Attach { execution: id }, Vec::new())?, None).await {
            Err(SessionError::NoExecution(_)) => Err(missing()),
            result => result,
        }
    }

    /// Its files, as its guest sees them.
    pub fn files(&self) -> Files {
        Files { link: self.link.clone() }
    }

    /// A connection to a TCP port of the box's own loopback.
    pub async fn connect(&self, port: u16) -> Result<Port, SessionError> {
        Port::open(&self.link, port).await
    }

    /// Sets what is left of its life, counted from now, and the idle time; `None` leaves one as it is, and [`Duration::MAX`]
    /// is without end.
    pub async fn extend(&self, life: Option<Duration>, idle: Option<Duration>) -> Result<(), SessionError> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match self.ask(&ClientRequest::Extend { life_ms: life.map(millis), idle_ms: idle.map(millis) }).await? {
            SupervisorReply::Done { .. } => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// What its sandbox uses, as far as that is counted.
    pub async fn usage(&self) -> Result<Usage, SessionError> {
        match self.ask(&ClientRequest::Usage).await? {
            SupervisorReply::Usage(usage) => Ok(usage),
            _ => Err(unexpected()),
        }
    }

    /// Stops everything in it until [`thaw`](Session::thaw), without a signal. Time limits of commands stand still meanwhile;
    /// its life goes on, and it can be stopped.
    pub async fn freeze(&self) -> Result<(), SessionError> {
        self.change(&ClientRequest::Freeze).await
    }

    /// Lets everything in it go on after [`Session::freeze`].
    pub async fn thaw(&self) -> Result<(), SessionError> {
        self.change(&ClientRequest::Thaw).await
    }

    /// Sets other limits of the tree as a whole, and of the time of commands: lower ones, or higher ones up to those that it
    /// was made with.
    ///
    /// ```no_run
    /// # async fn example(session: ringfence::Session) -> Result<(), ringfence::session::SessionError> {
    /// use ringfence::session::LimitChange;
    /// let minute = Some(std::time::Duration::from_secs(60));
    /// session.change_limits(LimitChange { memory: Some(256 << 20), timeout: minute, ..LimitChange::default() }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn change_limits(&self, change: LimitChange) -> Result<(), SessionError> {
        // An older supervisor would leave the time as it is and say that all is done.
        if change.timeout.is_some() {
            self.link.greeted().await?;
            if self.link.lacks(TIME_LIMITS) {
                return Err(SessionError::UnknownRequest { id: self.id().to_owned() });
            }
        }
        self.change(&ClientRequest::ChangeLimits(change)).await
    }

    /// The kernel may take its time, and so may a disk that something else waits for.
    async fn change(&self, request: &ClientRequest) -> Result<(), SessionError> {
        match tokio::time::timeout(ENDING, self.ask(request)).await {
            Ok(Ok(SupervisorReply::Done { .. })) => Ok(()),
            Ok(Ok(_)) => Err(unexpected()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(silent(self.id())),
        }
    }

    /// From now on it ends with this connection (all clones of this session dropped, or this process gone, however that
    /// happened), and for nothing else but `stop`.
    pub async fn own(&self) -> Result<(), SessionError> {
        match self.ask(&ClientRequest::TieToConnection).await? {
            SupervisorReply::Done { .. } => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Counts as use of the session, which is not idle until what is returned is dropped.
    pub fn hold(&self) -> Result<Held, SessionError> {
        Ok(Held { _stream: self.link.open(&ClientRequest::KeepInUse, Vec::new())? })
    }

    /// Waits until it has ended.
    pub async fn closed(&self) {
        self.link.closed().await;
    }

    /// Ends it with everything in it; returns when nothing is left.
    pub async fn stop(&self) -> Result<(), SessionError> {
        match self.link.open(&ClientRequest::Stop, Vec::new()) {
            Ok(asked) => self.stopped(asked).await,
            Err(SessionError::Lost { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits for the end that was asked for.
    async fn stopped(&self, asked: link::Stream) -> Result<(), SessionError> {
        match self.link.answer(asked).await {
            // Ended by somebody else is what was wanted.
            Ok(SupervisorReply::Done { .. } | SupervisorReply::Refused(Refusal::SessionEnded(_)))
            | Err(SessionError::Lost { .. }) => {}
            Ok(SupervisorReply::Refused(refusal)) => return Err(refusal.into_error(self.id())),
            Ok(_) => return Err(unexpected()),
            Err(error) => return Err(error),
        }
        self.link.closed().await;
        // The last thing that a supervisor gives up is its lock, a moment after its sockets.
        let until = std::time::Instant::now() + MAKING;
        while self.place.lives(self.id()) && std::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn document<T: Document>(&self, request: &ClientRequest) -> Result<T, SessionError> {
        match self.ask(request).await? {
            SupervisorReply::Document(bytes) => {
                document::read(&bytes).map_err(|source| SessionError::Document { id: self.id().to_owned(), source })
            }
            _ => Err(unexpected()),
        }
    }

    async fn ask(&self, ask: &ClientRequest) -> Result<SupervisorReply, SessionError> {
        match self.link.ask(ask).await? {
            SupervisorReply::Refused(refusal) => Err(refusal.into_error(self.id())),
            answer => Ok(answer),
        }
    }
}

/// The examples of the guide compile.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/sessions.md")]
struct Guide;
