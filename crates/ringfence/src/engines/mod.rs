//! Engines: what enforces a plan. Each compiles it by a pure function and carries the result out, or refuses.
//!
//! No engine decides policy and none knows another; which one is taken is decided here.

pub mod bubblewrap;
pub mod docker;
pub(crate) mod forked;
mod identity;
mod inhabited;
mod limits;
pub mod native;
mod prepared;
mod running;

use std::borrow::Cow;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_linux::launch::Stage;
use ringfence_linux::limits::{Home, LimitError};
use ringfence_linux::seccomp::Sockets;
use ringfence_linux::sys::PointerList;
use ringfence_policy::Guarantee;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::Limits;
use ringfence_policy::look::Lookup;
use ringfence_policy::plan::{Mount, Plan};
use ringfence_policy::policy::{Network, Policy, User};
use ringfence_policy::profiles::{self, EngineChoice};
use rustix::io::Errno;

use crate::keeper::KeeperError;
use crate::report::Report;

pub(crate) use identity::has_roots_rights;
pub(crate) use limits::GUEST_PROCESSES;

pub use inhabited::{About, Inhabited, inhabit, start_guest};
pub use prepared::{Command, Parked, Pool, Prepared};
pub use ringfence_linux::launch::Event;
pub use ringfence_linux::seed::Seed;
pub use running::{Running, StdioSpec};

/// The engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Engine {
    Native,
    Bubblewrap,
    Docker,
}

impl Engine {
    pub const ALL: [Engine; 3] = [Engine::Native, Engine::Bubblewrap, Engine::Docker];

    pub fn name(self) -> &'static str {
        match self {
            Engine::Native => "native",
            Engine::Bubblewrap => "bubblewrap",
            Engine::Docker => "docker",
        }
    }
}

/// This one and no other.
impl From<Engine> for EngineChoice {
    fn from(engine: Engine) -> EngineChoice {
        match engine {
            Engine::Native => EngineChoice::Native,
            Engine::Bubblewrap => EngineChoice::Bubblewrap,
            Engine::Docker => EngineChoice::Docker,
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a box did not start. Nothing of the command ran.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("engine {engine} has no {what}")]
    Cannot { engine: Engine, what: &'static str, cure: &'static str },
    #[error("engine {engine} cannot promise {guarantee}: {reason}")]
    Unmet { engine: Engine, guarantee: Guarantee, reason: String, cure: String },
    #[error("engine {0} is not there yet")]
    NotThere(EngineChoice),
    #[error("no engine can honour this policy: {}", list(.0))]
    NoEngine(Vec<EngineError>),
    #[error("`{}` has a NUL byte in it", .0.display())]
    Nul(OsString),
    #[error(transparent)]
    Docker(#[from] docker::DockerError),
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    #[error(transparent)]
    Limits(#[from] LimitError),
    #[error("cannot wait for process 1: {0}")]
    Wait(Errno),
    #[error("cannot prepare user ids: {0}")]
    UserNamespace(Errno),
    #[error("cannot start process 1: {0}")]
    Fork(Errno),
    #[error("cannot hand arguments to `{}`: {source}", program.display())]
    Arguments { program: PathBuf, source: Errno },
    #[error("cannot {what}: {errno}")]
    Setup { stage: Stage, what: String, errno: Errno },
    #[error("bubblewrap cannot build the sandbox: {reason}")]
    Builder { reason: String },
    #[error("cannot execute `{}`: {errno}", program.display())]
    Execute { program: PathBuf, errno: Errno },
    #[error("process 1 of the sandbox is gone: {0}")]
    Lost(String),
    #[error(transparent)]
    Filter(#[from] ringfence_linux::seccomp::Error),
    #[error("cannot prepare standard descriptors: {0}")]
    Stdio(Errno),
    #[error("arguments and environment are too long for a parked sandbox")]
    TooLong,
    #[error("cannot prepare the guest: {0}")]
    Guest(Errno),
    #[error("the guest did not answer in {} s", inhabited::GUEST_ANSWERS.as_secs())]
    Silent,
}

fn list(errors: &[EngineError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Takes the engine that will enforce the plan: the one asked for, or the first that can honour it.
pub fn select(choice: EngineChoice, plan: &Plan, facts: &Facts) -> Result<(Engine, Report), EngineError> {
    choose(choice, |engine| promise(engine, plan, facts))
}

/// The engine asked for, or the first whose answer is not a refusal. None is ever asked for less than another.
fn choose(
    choice: EngineChoice,
    ask: impl Fn(Engine) -> Result<Report, EngineError>,
) -> Result<(Engine, Report), EngineError> {
    let only = |engine: Engine| ask(engine).map(|report| (engine, report));
    match choice {
        EngineChoice::Native => only(Engine::Native),
        EngineChoice::Bubblewrap => only(Engine::Bubblewrap),
        EngineChoice::Docker => only(Engine::Docker),
        EngineChoice::Kubernetes => Err(EngineError::NotThere(choice)),
        EngineChoice::Auto => {
            let mut refusals = Vec::new();
            for engine in Engine::ALL {
                match only(engine) {
                    Ok(chosen) => return Ok(chosen),
                    Err(refusal) => refusals.push(refusal),
                }
            }
            Err(EngineError::NoEngine(refusals))
        }
    }
}

/// What the engine answers for each promise of the plan; an error when one that is not optional cannot be kept.
fn promise(engine: Engine, plan: &Plan, facts: &Facts) -> Result<Report, EngineError> {
    if engine != Engine::Docker {
        refuse_containers(engine, plan)?;
    }
    match engine {
        Engine::Native => native::promise(plan, facts),
        Engine::Bubblewrap => bubblewrap::promise(plan, facts),
        Engine::Docker => docker::promise(plan, facts),
    }
}

/// What only an engine of containers has.
fn refuse_containers(engine: Engine, plan: &Plan) -> Result<(), EngineError> {
    let volume = plan.mounts.iter().any(|mount| matches!(mount, Mount::Volume { .. }));
    match plan {
        Plan { image: Some(_), .. } => Err(no_containers(engine, "images")),
        Plan { network: Network::Bridge, .. } => Err(no_containers(engine, "bridge network")),
        _ if volume => Err(no_containers(engine, "volumes")),
        _ => Ok(()),
    }
}

fn no_containers(engine: Engine, what: &'static str) -> EngineError {
    EngineError::Cannot { engine, what, cure: "use --engine docker" }
}

/// The name that a step mounts on.
fn mounts_on(mount: &Mount) -> Option<&Path> {
    match mount {
        Mount::Dir { .. } | Mount::File { .. } | Mount::Symlink { .. } | Mount::Seal { .. } => None,
        mount => Some(mount.target()),
    }
}

/// The symlink that a step would mount on, where an earlier one shows it. Whoever mounts by name follows it, so that the
/// link itself would stay open to be replaced.
fn symlink_in_bind<'a>(earlier: &[Mount], mount: &'a Mount) -> Option<&'a Path> {
    let target = mounts_on(mount)?;
    // What the box sees at the target's place so far: the last mount above it decides.
    let above = earlier.iter().filter(|m| mounts_on(m).is_some_and(|t| target.starts_with(t)));
    let Some(Mount::Bind { source, target: at, .. }) = above.max_by_key(|m| mounts_on(m).map(|t| t.as_os_str().len()))
    else {
        return None;
    };
    let below = target.strip_prefix(at).ok().filter(|below| !below.as_os_str().is_empty())?;
    std::fs::symlink_metadata(source.join(below)).is_ok_and(|m| m.is_symlink()).then_some(target)
}

/// The compiled form of a plan, for people: nothing is started.
pub fn describe(engine: Engine, plan: &Plan, facts: &Facts) -> Result<String, EngineError> {
    match engine {
        Engine::Native => native::describe(plan, facts),
        Engine::Bubblewrap => bubblewrap::describe(plan, facts),
        Engine::Docker => docker::describe(plan, facts),
    }
}

/// Begins with what a box will need if its policy says what this profile does and this flag, while the policy is still to be
/// worked out. Where it says something else, a little work was for nothing.
pub fn guess(profile: &str, network: Option<bool>) -> Option<Seed> {
    let profile = profiles::builtin(profile)?;
    let network = match network {
        None => profile.network,
        Some(true) => Network::Open,
        Some(false) => Network::None,
    };
    let caller = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let ids = match profile.user {
        User::Caller => caller,
        User::Ids { uid, gid } => (uid, gid),
    };
    if !limits::needs_group(&profile.limits) {
        return None;
    }
    Home::find();
    native::sow(network, ids, caller)
}

/// Begins with what every box of this policy needs, while its plan is still to be made, with the same lookup.
pub fn begin(
    guess: Option<Seed>,
    choice: EngineChoice,
    lookup: &Lookup,
    policy: &Policy,
    facts: &Facts,
) -> Option<Seed> {
    match choice {
        EngineChoice::Auto | EngineChoice::Native => {
            // Whoever guessed has looked.
            if guess.is_none() {
                find_home(&policy.limits);
            }
            native::begin(guess, lookup, policy, facts)
        }
        _ => None,
    }
}

/// Before a seed: with a process beside it, this one is not alone in its control group, nor would that one follow into another.
fn find_home(limits: &Limits) {
    if limits::needs_group(limits) {
        Home::find();
    }
}

/// Starts a box.
pub fn start(engine: Engine, plan: &Plan, facts: &Facts, stdio: StdioSpec) -> Result<Running, EngineError> {
    let sow = || {
        find_home(&plan.limits);
        native::sow(plan.network, (plan.uid, plan.gid), (facts.uid, facts.gid))
    };
    let seed = if engine == Engine::Native { sow() } else { None };
    start_from(seed, engine, plan, facts, stdio)
}

/// Starts a box from what [`begin`] began. A name of the host's that was to be hidden and went since the plan was made, such
/// as a neighbour's socket, stops a builder that mounts by name: the box is then made without it.
pub fn start_from(
    seed: Option<Seed>,
    engine: Engine,
    plan: &Plan,
    facts: &Facts,
    mut stdio: StdioSpec,
) -> Result<Running, EngineError> {
    let mut plan = Cow::Borrowed(plan);
    for _ in 0..MOST_TRIES {
        if engine != Engine::Bubblewrap || !plan.is_fleeting() {
            break;
        }
        let copy = stdio.try_clone().map_err(EngineError::Stdio)?;
        let running = Prepared::new(engine, &plan, facts)?.launch(None, stdio, None, false)?;
        if running.is_built() {
            return Ok(running);
        }
        match plan.without_gone() {
            None => return Ok(running),
            Some(rest) => {
                running.finish()?;
                (plan, stdio) = (Cow::Owned(rest), copy);
            }
        }
    }
    Prepared::once(seed, engine, &plan, facts, stdio)
}

/// So often a box is made anew because names went.
const MOST_TRIES: usize = 10;
/// Tells two boxes of one process apart.
fn nonce() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

fn c_string(text: &OsStr) -> Result<CString, EngineError> {
    CString::new(text.as_bytes()).map_err(|_| EngineError::Nul(text.to_owned()))
}

/// What the filter lets the command do with sockets.
fn sockets(plan: &Plan) -> Sockets {
    if plan.handed_socket { Sockets::Handed } else { Sockets::All }
}

fn c_path(path: &Path) -> Result<CString, EngineError> {
    c_string(path.as_os_str())
}

fn pointers<'a>(strings: impl IntoIterator<Item = &'a OsStr>) -> Result<PointerList, EngineError> {
    Ok(PointerList::new(strings.into_iter().map(c_string).collect::<Result<_, _>>()?))
}

/// `NAME=value` strings for `execve`.
fn env_strings(env: &[(OsString, OsString)]) -> Result<Vec<CString>, EngineError> {
    let join = |(name, value): &(OsString, OsString)| {
        let mut entry = name.clone();
        entry.push("=");
        entry.push(value);
        c_string(&entry)
    };
    env.iter().map(join).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(engine: Engine) -> Report {
        Report { engine: engine.name().into(), guarantees: Vec::new() }
    }

    fn refusal(engine: Engine) -> EngineError {
        let (guarantee, reason, cure) = (Guarantee::ProcIsolated, "not here".to_owned(), "another host".to_owned());
        EngineError::Unmet { engine, guarantee, reason, cure }
    }

    /// Chooses where these engines can honour the policy.
    fn chosen(choice: EngineChoice, able: &[Engine]) -> Result<Engine, EngineError> {
        let ask = |engine: Engine| if able.contains(&engine) { Ok(report(engine)) } else { Err(refusal(engine)) };
        let (engine, report) = choose(choice, ask)?;
        assert_eq!(report.engine, engine.name());
        Ok(engine)
    }

    #[test]
    fn the_first_engine_that_can_honour_the_policy() {
        use Engine::{Bubblewrap, Native};
        assert_eq!(chosen(EngineChoice::Auto, &[Native, Bubblewrap]).unwrap(), Native);
        assert_eq!(chosen(EngineChoice::Auto, &[Bubblewrap]).unwrap(), Bubblewrap);
        assert_eq!(chosen(Bubblewrap.into(), &[Native, Bubblewrap]).unwrap(), Bubblewrap);
    }

    #[test]
    fn never_another_than_the_one_asked_for_and_never_a_weaker_one() {
        use Engine::{Bubblewrap, Native};
        let only = chosen(Native.into(), &[Bubblewrap]).unwrap_err();
        assert!(matches!(only, EngineError::Unmet { engine: Native, .. }), "{only}");
        match chosen(EngineChoice::Auto, &[]).unwrap_err() {
            EngineError::NoEngine(refusals) => {
                let engines: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                assert_eq!(engines.len(), Engine::ALL.len());
                assert!(engines[0].contains("native") && engines[1].contains("bubblewrap"), "{engines:?}");
            }
            other => panic!("{other}"),
        }
    }
}
