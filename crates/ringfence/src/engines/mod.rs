//! Engines: what enforces a plan. Each compiles it by a pure function and carries the result out, or refuses.
//!
//! No engine decides policy and none knows another; which one is taken is decided here.

pub mod bubblewrap;
pub mod docker;
pub(crate) mod forked;
mod identity;
pub mod native;
mod prepared;

use std::borrow::Cow;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_guest::frame::Kind;
use ringfence_guest::message::Settings;
use ringfence_linux::launch::{Identity, Launched, Spec, Stage, Terminal};
use ringfence_linux::limits::{Group, Home, LimitError, Refusals, Usage};
use ringfence_linux::sys::{PointerList, Waited};
use ringfence_policy::Guarantee;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::{Limits, format_duration, format_size};
use ringfence_policy::plan::{Mount, Plan};
use ringfence_policy::policy::{Network, Policy};
use ringfence_policy::profiles::EngineChoice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::keeper::{self, Keeper, KeeperError};
use crate::report::{Report, Verdict, enforced, weakened};

pub(crate) use identity::has_roots_rights;

pub use prepared::{Command, Parked, Pool, Prepared};
pub use ringfence_linux::launch::Event;
pub use ringfence_linux::seed::Seed;

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
    #[error("the guest did not answer in {} s", GUEST_ANSWERS.as_secs())]
    Silent,
}

fn list(errors: &[EngineError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The standard descriptors of the command.
#[derive(Debug)]
pub enum StdioSpec {
    /// These descriptors.
    Files([OwnedFd; 3]),
    /// A terminal of the box's own; the master comes as [`Event::Terminal`]. `stderr` in its place where it is not one.
    Terminal { rows: u16, columns: u16, stderr: Option<OwnedFd> },
}

impl StdioSpec {
    fn try_clone(&self) -> Result<StdioSpec, Errno> {
        let copy = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
        Ok(match self {
            StdioSpec::Files([stdin, stdout, stderr]) => StdioSpec::Files([copy(stdin)?, copy(stdout)?, copy(stderr)?]),
            StdioSpec::Terminal { rows, columns, stderr } => {
                StdioSpec::Terminal { rows: *rows, columns: *columns, stderr: stderr.as_ref().map(copy).transpose()? }
            }
        })
    }
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
fn mounts_on(mount: &Mount) -> Option<&PathBuf> {
    match mount {
        Mount::Bind { target, .. }
        | Mount::Tmpfs { target, .. }
        | Mount::Proc { target }
        | Mount::Dev { target, .. }
        | Mount::Hide { target, .. }
        | Mount::Empty { target, .. }
        | Mount::Text { target, .. }
        | Mount::Volume { target, .. } => Some(target),
        Mount::Dir { .. } | Mount::File { .. } | Mount::Symlink { .. } | Mount::Seal { .. } => None,
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

/// Begins with what every box of this policy needs, while its plan is still to be made. Costs little when it is not used.
pub fn begin(choice: EngineChoice, policy: &Policy, facts: &Facts) -> Option<Seed> {
    match choice {
        EngineChoice::Auto | EngineChoice::Native => native::seed(policy.network, policy.ids(facts), facts),
        _ => None,
    }
}

/// Starts a box.
pub fn start(engine: Engine, plan: &Plan, facts: &Facts, stdio: StdioSpec) -> Result<Running, EngineError> {
    let seed = if engine == Engine::Native { native::seed(plan.network, (plan.uid, plan.gid), facts) } else { None };
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
        let running = Prepared::new(engine, &plan, facts)?.launch(None, stdio, None)?;
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
    Prepared::new(engine, &plan, facts)?.launch(seed, stdio, None)
}

/// So often a box is made anew because names went.
const MOST_TRIES: usize = 10;
/// So long a builder may take until it is left to itself.
const BUILDING: Duration = Duration::from_secs(10);

/// Reapers that wait for a command, and the like.
pub(crate) const GUEST_PROCESSES: u64 = 4;

/// More commands at once than a guest takes.
const MOST_REAPERS: u64 = 1024;

#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
const PROCESSES: u32 = libc::RLIMIT_NPROC as u32;

/// How long a guest may take until its first word.
const GUEST_ANSWERS: Duration = Duration::from_secs(30);

/// Starts a box with a guest in it, for a plan made by [`plan_guest`](ringfence_policy::plan::plan_guest). Returns when the
/// guest has spoken: its first frame can be read from the socket, which is all there is to talk to it. The box ends when the
/// socket is closed, and at the latest with [`Running::finish`]; events of the box mean nothing any more.
pub fn start_guest(engine: Engine, plan: &Plan, facts: &Facts) -> Result<(Running, OwnedFd), EngineError> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(EngineError::Guest)?;
    let null = |flags| rustix::fs::open(c"/dev/null", flags | OFlags::CLOEXEC, Mode::empty());
    let nothing = || null(OFlags::RDWR).map_err(EngineError::Stdio);
    let running = start(engine, plan, facts, StdioSpec::Files([theirs, nothing()?, nothing()?]))?;
    // A few bytes into an empty socket: never partly. That the guest is gone is told by whoever waits for it.
    let _ = rustix::net::send(&ours, &first_words(plan, running.held)?, SendFlags::NOSIGNAL);
    await_guest(&running, &ours)?;
    Ok((running, ours))
}

/// Whom a box with a guest is for.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// The id of its session.
    pub session: &'a str,
    /// The name of its session.
    pub name: Option<&'a str>,
    pub profile: &'a str,
    /// Where state of this user lies.
    pub state: &'a Path,
}

/// A box with a guest in it.
#[derive(Debug)]
pub enum Inhabited {
    /// A tree of processes of this host.
    Process(Running),
    /// A container, and who keeps what it needs on this host.
    Container(docker::Container, Option<Keeper>),
}

/// Makes a box with a guest in it, on any engine. The plan's environment becomes that of the box.
pub fn inhabit(
    engine: Engine,
    plan: &mut Plan,
    facts: &Facts,
    about: About<'_>,
) -> Result<(Inhabited, OwnedFd), EngineError> {
    if engine != Engine::Docker {
        return start_guest(engine, plan, facts).map(|(running, channel)| (Inhabited::Process(running), channel));
    }
    let keeper = Keeper::start(&plan.stubs, Vec::new(), &keeper::registry(), facts.spare.as_deref())?;
    let made = docker::container::start(plan, facts, crate::guest::PROGRAM, about, &|_| {})?;
    rustix::io::write(&made.channel, &first_words(plan, None)?).map_err(EngineError::Guest)?;
    // Whoever takes the socket over finds the guest's first word in it, or its end.
    let mut ready = [PollFd::new(&made.channel, PollFlags::IN)];
    let patience = Timespec { tv_sec: GUEST_ANSWERS.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut ready, Some(&patience)) {
        Ok(0) => return Err(EngineError::Silent),
        Ok(_) => {}
        Err(errno) => return Err(EngineError::Guest(errno)),
    }
    plan.env = made.env;
    Ok((Inhabited::Container(made.container, keeper), made.channel))
}

impl Inhabited {
    /// The id of process 1 as the host sees it.
    pub fn pid(&self) -> i32 {
        match self {
            Inhabited::Process(running) => running.pid(),
            Inhabited::Container(container, _) => container.pid(),
        }
    }

    /// Whether the kernel limits the tree as a whole.
    pub fn has_group(&self) -> bool {
        match self {
            Inhabited::Process(running) => running.has_group(),
            Inhabited::Container(..) => true,
        }
    }

    /// Makes room for the guest's own processes, one for each command, so that they do not count against the caller. A
    /// container has the room that it was made with.
    pub fn make_room(&self, commands: u64) -> Result<(), EngineError> {
        match self {
            Inhabited::Process(running) => running.make_room(commands),
            Inhabited::Container(..) => Ok(()),
        }
    }

    /// What the box used so far, as its control group counts; nothing where there is none.
    pub fn usage(&self) -> Usage {
        match self {
            Inhabited::Process(running) => running.usage(),
            Inhabited::Container(container, _) => container.usage(),
        }
    }

    /// What its control group refuses, for whoever asks often; `None` where there is none.
    pub fn refusals(&self) -> Option<Refusals> {
        match self {
            Inhabited::Process(running) => running.group.as_ref().and_then(Group::refusals),
            Inhabited::Container(container, _) => container.refusals(),
        }
    }

    /// What became of the package caches that the policy asks for.
    pub fn caches(&self) -> &[docker::volumes::Cache] {
        match self {
            Inhabited::Process(_) => &[],
            Inhabited::Container(container, _) => container.caches(),
        }
    }

    /// Ends whatever is left and waits until nothing of the box is there.
    pub fn finish(self) -> Result<(Option<Waited>, Usage), EngineError> {
        match self {
            Inhabited::Process(running) => running.finish(),
            Inhabited::Container(container, keeper) => {
                let usage = container.finish()?;
                drop(keeper);
                Ok((None, usage))
            }
        }
    }
}

/// What a guest is told before anything else.
fn first_words(plan: &Plan, processes: Option<u64>) -> Result<Vec<u8>, EngineError> {
    let limits = rlimits(plan).into_iter().filter(is_of_commands).collect();
    let mut first = Vec::new();
    ringfence_guest::frame::put_message(&mut first, 0, Kind::Input, &Settings { limits, processes })
        .map_err(|_| EngineError::Guest(Errno::INVAL))?;
    Ok(first)
}

/// Waits until the guest has spoken, or setting up has failed.
fn await_guest(running: &Running, channel: &OwnedFd) -> Result<(), EngineError> {
    let lost = |e: Errno| EngineError::Lost(e.to_string());
    let started = Instant::now();
    let mut becoming = true;
    loop {
        let left = GUEST_ANSWERS.checked_sub(started.elapsed()).ok_or(EngineError::Silent)?;
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut ready = [
            PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(running.events(), PollFlags::IN),
        ];
        let watched = if becoming { 2 } else { 1 };
        match poll(&mut ready[..watched], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(lost(e)),
        }
        if becoming && !ready[1].revents().is_empty() {
            match running.next_event()? {
                Event::Closed => becoming = false,
                Event::Exited { status } => {
                    return Err(EngineError::Lost(format!("it ended with status {status:#x}")));
                }
                _ => {}
            }
        }
        if !ready[0].revents().is_empty() {
            let mut byte = [0u8];
            match rustix::net::recv(channel, &mut byte, RecvFlags::PEEK) {
                Ok((1, _)) => return Ok(()),
                // Why is told by an event, if at all.
                Ok(_) if becoming => channel_closed(running)?,
                Ok(_) => return Err(EngineError::Lost("it closed its socket".to_owned())),
                Err(Errno::INTR) => {}
                Err(e) => return Err(lost(e)),
            }
        }
    }
}

/// The socket closed before the guest spoke: what happened is the box's next event.
fn channel_closed(running: &Running) -> Result<(), EngineError> {
    match running.next_event()? {
        Event::Closed | Event::Exited { .. } => Err(EngineError::Lost("it closed its socket".to_owned())),
        _ => Ok(()),
    }
}

/// Whether the plan has a limit on the tree as a whole.
fn needs_group(plan: &Plan) -> bool {
    plan.limits.memory.is_some() || plan.limits.cpus.is_some() || plan.limits.pids.is_some()
}

/// Tells two boxes of one process apart.
fn nonce() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// What is answered for a limit, by every engine whose box is a tree of processes of this host.
fn limit(guarantee: Guarantee, plan: &Plan) -> Verdict {
    match guarantee {
        Guarantee::LimitFiles => return enforced("RLIMIT_NOFILE of each process"),
        Guarantee::LimitTime => return enforced("TERM, then KILL of process 1 from outside"),
        Guarantee::LimitOutput => return enforced("streamed; captured output keeps a bounded head and tail"),
        Guarantee::LimitCpu if plan.limits.cpus.is_none() => {
            return weakened(
                "RLIMIT_CPU of each process and a watch over the tree, which misses what ends between two looks",
            );
        }
        _ => {}
    }
    match Home::find() {
        Home::V2(_) => enforced("control group v2"),
        Home::V1 { .. } => enforced("control group v1"),
        Home::None(reason) => weakened(match guarantee {
            Guarantee::LimitMemory => format!("RLIMIT_DATA of each process and a watch over the tree ({reason})"),
            Guarantee::LimitProcesses => format!("process count of the sandbox's own user namespace ({reason})"),
            _ => {
                format!("affinity to as many processors as asked for, rounded up, which a program can undo ({reason})")
            }
        }),
    }
}

/// The limits of a plan in words.
fn limit_steps(plan: &Plan) -> Vec<String> {
    let limits = &plan.limits;
    let mut lines = Vec::new();
    lines.extend(limits.memory.map(|n| format!("limit memory to {}", format_size(n))));
    lines.extend(limits.cpus.map(|n| format!("limit processors to {n}")));
    lines.extend(limits.pids.map(|n| format!("limit processes to {n}")));
    lines.extend(limits.files.map(|n| format!("limit open files to {n}")));
    lines.extend(limits.cpu_time.map(|t| format!("limit processor time to {}", format_duration(t))));
    lines.extend(limits.timeout.map(|t| format!("end everything after {}", format_duration(t))));
    lines
}

/// Timers and queued signals: they are counted for the user, outside too.
const PENDING_SIGNALS: u64 = 4096;

/// Limits of each process, which every box has; none is above this process's own.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
fn rlimits(plan: &Plan) -> Vec<(u32, u64)> {
    // 0 would not stop a core dump that is piped to a program; 1 does.
    let mut limits = vec![(libc::RLIMIT_CORE as _, 1), (libc::RLIMIT_SIGPENDING as _, PENDING_SIGNALS)];
    limits.extend(plan.limits.files.map(|n| (libc::RLIMIT_NOFILE as _, n)));
    limits.extend(plan.limits.cpu_time.map(|t| (libc::RLIMIT_CPU as _, t.as_secs().max(1) + 1)));
    limits.into_iter().map(|(resource, value)| (resource, value.min(most(resource)))).collect()
}

/// What this process is held to itself, which is less than some limit that is asked for: then nobody can have more anyway.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
fn most(resource: u32) -> u64 {
    use rustix::process::Resource;
    let known = [
        (PROCESSES, Resource::Nproc),
        (libc::RLIMIT_NOFILE as u32, Resource::Nofile),
        (libc::RLIMIT_SIGPENDING as u32, Resource::Sigpending),
        (libc::RLIMIT_CORE as u32, Resource::Core),
        (libc::RLIMIT_CPU as u32, Resource::Cpu),
        (libc::RLIMIT_DATA as u32, Resource::Data),
    ];
    let Some((_, resource)) = known.into_iter().find(|(number, _)| *number == resource) else { return u64::MAX };
    rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX)
}

/// What stands in for a control group: the process count of the box's own user namespace, and a bound on each process,
/// while the tree as a whole is watched from outside.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
fn stand_ins(limits: &Limits, identity: &Identity) -> Vec<(u32, u64)> {
    let mut rlimits = group_stand_ins(limits);
    // Without a user namespace of its own the outer box's processes would count as well.
    if matches!(identity, Identity::Kept) {
        rlimits.retain(|(resource, _)| *resource != PROCESSES);
    }
    rlimits
}

/// The same, for a box with a user namespace of its own.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
fn group_stand_ins(limits: &Limits) -> Vec<(u32, u64)> {
    let processes = limits.pids.map(|n| (PROCESSES, (n + 1).min(most(PROCESSES))));
    processes.into_iter().chain(limits.memory.map(|n| (libc::RLIMIT_DATA as _, n))).collect()
}

/// Whether this limit is for commands and not for a guest, which lives long and needs descriptors for each stream.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed on musl")]
fn is_of_commands((resource, _): &(u32, u64)) -> bool {
    [libc::RLIMIT_NOFILE as u32, libc::RLIMIT_CPU as u32].contains(resource)
}

/// A box that was started. Dropping it without [`Running::finish`] ends it too.
#[derive(Debug)]
pub struct Running {
    launched: Launched,
    /// For the message when one of them failed.
    spec: Option<Arc<Spec>>,
    program: PathBuf,
    /// What a program that builds the box has to say; not the command's.
    messages: Option<OwnedFd>,
    group: Option<Group>,
    /// Where the group goes in the end, for the next box.
    spare: Option<forked::Spare>,
    /// How many processes the policy allows.
    pids: Option<u64>,
    /// How many its guest holds its commands to, itself included, where no group does.
    held: Option<u64>,
    /// Held until everything in the box is gone.
    _keepers: [Option<Arc<Keeper>>; 2],
}

impl Running {
    /// Readable when [`Running::next_event`] will not wait.
    pub fn events(&self) -> std::os::fd::BorrowedFd<'_> {
        self.launched.events()
    }

    /// Waits until a builder has made the box; false when it has not, and the next event will say so.
    fn is_built(&self) -> bool {
        self.messages.as_ref().is_none_or(|messages| self.launched.is_built(messages, BUILDING))
    }

    /// Waits for the next event; a failed set-up or execution is an error.
    pub fn next_event(&self) -> Result<Event, EngineError> {
        match self.launched.next_event().map_err(|e| EngineError::Lost(e.to_string()))? {
            Event::Failed { stage: Stage::Builder, errno } => {
                let reason = self.messages.as_ref().and_then(read_message).unwrap_or_else(|| errno.to_string());
                Err(EngineError::Builder { reason })
            }
            Event::Failed { stage, errno } => {
                let what = match stage {
                    Stage::Step(index) => {
                        let step = self.spec.as_ref().and_then(|spec| spec.steps.get(index));
                        step.map_or_else(|| stage.to_string(), ToString::to_string)
                    }
                    stage => stage.to_string(),
                };
                Err(EngineError::Setup { stage, what, errno })
            }
            Event::NotExecuted(errno) => Err(EngineError::Execute { program: self.program.clone(), errno }),
            event => Ok(event),
        }
    }

    /// Forwards a signal to the command's process group; KILL ends the whole box at once.
    pub fn signal(&self, signal: i32) -> Result<(), Errno> {
        self.launched.signal(signal)
    }

    /// The id of process 1 as the host sees it.
    pub fn pid(&self) -> i32 {
        self.launched.pid()
    }

    /// Whether the kernel limits the tree as a whole.
    pub fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// Makes room for a process of the guest's own for each command. Where there is no group, the guest does it.
    fn make_room(&self, commands: u64) -> Result<(), EngineError> {
        if let (Some(group), Some(pids)) = (&self.group, self.pids) {
            group.set_processes(pids + commands.max(GUEST_PROCESSES))?;
        }
        Ok(())
    }

    /// What the box used so far, as its control group counts; nothing where there is none.
    pub fn usage(&self) -> Usage {
        self.group.as_ref().map(Group::usage).unwrap_or_default()
    }

    /// Ends whatever is left and waits until nothing of the box is there.
    pub fn finish(self) -> Result<(Option<Waited>, Usage), EngineError> {
        // Already gone is what is wanted.
        let _ = self.launched.signal(libc::SIGKILL);
        let waited = self.launched.reap().map_err(EngineError::Wait)?;
        let usage = self.group.as_ref().map(Group::usage).unwrap_or_default();
        match (self.group, self.spare) {
            (Some(group), Some(spare)) => spare.put(group),
            // The keeper tries again, and for longer: it is not what the command's outcome hangs on.
            (Some(group), None) => drop(group.remove()),
            (None, _) => {}
        }
        Ok((waited, usage))
    }
}

/// The first lines that were written to a pipe, without waiting.
fn read_message(pipe: &OwnedFd) -> Option<String> {
    let mut buffer = [0; 4096];
    let length = rustix::io::read(pipe, &mut buffer).ok()?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    let text = text.trim().trim_start_matches("bwrap: ").replace(char::is_control, " ");
    (!text.is_empty()).then_some(text)
}

/// The parts of a `Spec` that do not depend on the engine.
fn stdio_parts(stdio: StdioSpec) -> (Terminal, [Option<OwnedFd>; 3]) {
    match stdio {
        StdioSpec::Files([stdin, stdout, stderr]) => (Terminal::None, [Some(stdin), Some(stdout), Some(stderr)]),
        StdioSpec::Terminal { rows, columns, stderr } => (Terminal::Own { rows, columns }, [None, None, stderr]),
    }
}

fn c_string(text: &OsStr) -> Result<CString, EngineError> {
    CString::new(text.as_bytes()).map_err(|_| EngineError::Nul(text.to_owned()))
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
