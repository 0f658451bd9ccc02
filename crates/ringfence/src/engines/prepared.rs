//! Boxes of a kind: a plan is compiled once, and as many boxes are started from it as one likes, right away or ahead of
//! time.
//!
//! A [`Prepared`] keeps what its plan needs on the host (stand-ins) from its making until its end. A [`Parked`] box is built
//! and walled, and waits for its command; it is used once. A [`Pool`] keeps some. Nothing here starts a thread: what is done
//! ahead of time is done when the owner says so.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_linux::launch::{self, Event, Launching, Processors, Spec, Start};
use ringfence_linux::limits::{Group, Series};
use ringfence_linux::mould::Mould;
use ringfence_linux::order::{Letter, Order};
use ringfence_linux::seed::{Seed, Soil};
use ringfence_linux::setup::Step;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::Limits;
use ringfence_policy::plan::{Mount, Plan};
use rustix::io::Errno;

use super::limits::{GUEST_PROCESSES, MOST_REAPERS, PROCESSES, is_of_commands, most, rlimits, series, stand_ins};
use super::running::stdio_parts;
use super::{Engine, EngineError, Running, StdioSpec, bubblewrap, c_path, c_string, env_strings, mounts_on, native};
use crate::keeper::{Keeper, Names};

/// A plan that is ready to be started. It is what it was when it was made: what appears on the host later is neither hidden
/// nor protected in its boxes. Run by root, they have one user namespace together. All but the first two are copies of what
/// they have in common, where that can be: a file system that is unmounted on the host stays in use until the next start.
pub struct Prepared {
    how: How,
    limits: Limits,
    guest: bool,
    /// How many processes the policy allows.
    pids: Option<u64>,
    command: Command,
    groups: Option<Arc<Series>>,
    /// Namespaces for the next box.
    ahead: Mutex<Option<Seed>>,
    common: Mutex<Common>,
    /// Whether a box was started: one alone needs nothing in common.
    started: AtomicBool,
    /// Keeps names on the host, and the groups. Last: a name with something mounted on it takes longer to remove.
    keeper: Option<Arc<Keeper>>,
}

/// What boxes after the first are copied from, and how often it could not be made, or was of no use.
#[derive(Default)]
struct Common {
    mould: Option<Arc<Mould>>,
    failures: u32,
}

/// So often in a row, and each box is built by itself from then on.
const MOST_FAILURES: u32 = 3;

impl Common {
    fn mould(&self) -> Option<Arc<Mould>> {
        self.mould.clone().filter(|mould| !mould.is_stale())
    }

    /// Makes it, and makes it again when anything on the host has changed under it.
    fn make(&mut self, spec: &Arc<Spec>) -> Option<Arc<Mould>> {
        if let Some(old) = self.mould.take_if(|mould| mould.is_stale()) {
            self.failures = if old.was_used() { 0 } else { self.failures + 1 };
        }
        if self.mould.is_none() && self.failures < MOST_FAILURES {
            match Mould::make(spec.clone()) {
                Ok(Some(mould)) => self.mould = Some(Arc::new(mould)),
                Ok(None) => self.failures = MOST_FAILURES,
                Err(_) => self.failures += 1,
            }
        }
        self.mould()
    }
}

/// What is compiled.
enum How {
    /// With what its guest holds its commands to where no group does, and what namespaces are made in ahead of time.
    Native { spec: Arc<Spec>, held: Option<u64>, soil: Option<Soil> },
    /// For each box anew: `bwrap` uses up what it is given.
    Bubblewrap(Box<(Plan, Facts)>),
}

/// A box that is being started.
struct Starting {
    launching: Launching,
    spec: Arc<Spec>,
    messages: Option<OwnedFd>,
    group: Option<Group>,
    held: Option<u64>,
}

/// What runs in a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// As the box sees it.
    pub program: PathBuf,
    /// The first is the name of the program.
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub workdir: PathBuf,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("command", &self.command).finish_non_exhaustive()
    }
}

impl Prepared {
    /// Compiles a plan, and makes the names on the host that it needs.
    pub fn new(engine: Engine, plan: &Plan, facts: &Facts) -> Result<Prepared, EngineError> {
        let mut prepared = Self::compile(engine, plan, facts, None)?;
        prepared.keep(plan, facts)?.map_or(Ok(()), Names::make)?;
        Ok(prepared)
    }

    /// Compiles a plan. Nothing on the host is kept for it yet.
    fn compile(engine: Engine, plan: &Plan, facts: &Facts, seed: Option<&Seed>) -> Result<Prepared, EngineError> {
        let limits = match plan.guest {
            // The guest's own processes do not count against the caller; process 1 is allowed for already.
            true => Limits { pids: plan.limits.pids.map(|n| n + GUEST_PROCESSES), ..plan.limits.clone() },
            false => plan.limits.clone(),
        };
        let groups = series(&plan.limits);
        let how = match engine {
            Engine::Native => {
                let mut spec = native::spec(plan, facts, seed)?;
                let held = limit(&mut spec, plan, &limits, groups.is_some());
                How::Native {
                    spec: Arc::new(spec),
                    held,
                    soil: native::soil(plan.network, (plan.uid, plan.gid), (facts.uid, facts.gid)),
                }
            }
            Engine::Bubblewrap => How::Bubblewrap(Box::new((plan.clone(), facts.clone()))),
            // Its commands go through a guest.
            Engine::Docker => {
                let what = "commands without a session";
                return Err(EngineError::Cannot { engine, what, cure: "use ringfence session" });
            }
        };
        let command = Command {
            program: plan.command.program.clone(),
            args: plan.command.args.clone(),
            env: plan.env.clone(),
            workdir: plan.workdir.clone(),
        };
        let (guest, pids) = (plan.guest, plan.limits.pids);
        let (ahead, common, started) = Default::default();
        Ok(Prepared { how, limits, guest, pids, command, groups, ahead, common, started, keeper: None })
    }

    /// Starts a keeper for what the plan needs on the host. Names are listed, and still to be made.
    fn keep<'a>(&mut self, plan: &'a Plan, facts: &Facts) -> Result<Option<Names<'a>>, EngineError> {
        let spare = facts.spare.as_deref();
        let (keeper, names) = Keeper::prepare(&plan.stubs, self.groups.clone(), &facts.registry, spare)?;
        self.keeper = keeper;
        Ok(names)
    }

    /// Starts the one box of a plan. Process 1 builds what does not need names on the host while these are listed and made.
    pub(super) fn once(
        mut seed: Option<Seed>,
        engine: Engine,
        plan: &Plan,
        facts: &Facts,
        stdio: StdioSpec,
    ) -> Result<Running, EngineError> {
        let mut prepared = Self::compile(engine, plan, facts, seed.as_ref())?;
        let waits = matches!(&prepared.how, How::Native { spec, .. } if spec.steps.contains(&Step::Names));
        let registry = &facts.registry;
        // A control group must be kept before process 1 is in it; with neighbours there may be names that no plan has; and the
        // registry of those that are gone by now may be hidden.
        let hidden = |mount: &Mount| mounts_on(mount).is_some_and(|at| at.starts_with(registry));
        let alone = !registry.exists() && !plan.mounts.iter().any(hidden);
        let first = waits && alone && prepared.groups.is_none();
        let mut begun = match seed.take_if(|_| first) {
            None => None,
            seed => Some(prepared.begin(seed, stdio.try_clone().map_err(EngineError::Stdio)?, None, true)?),
        };
        let mut names = prepared.keep(plan, facts)?;
        // Those that are not in the plan were a neighbour's: a step before may need one.
        if let Some(names) = names.take_if(|names| !waits || !names.are_planned()) {
            drop(begun.take());
            names.make()?;
        }
        let begun = begun.map_or_else(|| prepared.begin(seed, stdio, None, names.is_some()), Ok)?;
        let unnamed = names.is_some();
        names.map_or(Ok(()), Names::make)?;
        let mut running = prepared.finish(begun)?;
        if unnamed {
            running.launched.named();
        }
        Ok(running)
    }

    /// The command of the plan.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// Starts a box with the command of the plan. What the next one can be given ahead of time is begun then; the second
    /// start, and one after something has changed on the host, makes what the next ones have in common first.
    pub fn start(&self, stdio: StdioSpec) -> Result<Running, EngineError> {
        let running = self.launch(self.seed(), stdio, None, false)?;
        let again = self.started.swap(true, Ordering::Relaxed);
        // Not while the next ones are locked: it takes as long as a box.
        let mould = if again { self.mould() } else { None };
        let mut ahead = self.ahead();
        if ahead.is_none() {
            *ahead = self.sow(mould);
        }
        drop(ahead);
        Ok(running)
    }

    /// Builds a box that waits for its command. It is still being built when this returns; [`Parked::wait`] waits for it. What
    /// it has in common with others is made first, unless it is there.
    pub fn park(&self) -> Result<Parked, EngineError> {
        let (engine, cure) = match &self.how {
            How::Bubblewrap(_) => (Engine::Bubblewrap, "use the native engine"),
            How::Native { .. } if self.guest => (Engine::Native, "use a session"),
            How::Native { spec, .. } if spec.listens => (Engine::Native, "leave `trace_denials` out"),
            How::Native { .. } => return self.park_native(),
        };
        Err(EngineError::Cannot { engine, what: "sandboxes that wait for their command", cure })
    }

    fn park_native(&self) -> Result<Parked, EngineError> {
        let nothing = StdioSpec::Files([null()?, null()?, null()?]);
        self.mould();
        let running = self.launch(self.seed(), nothing, Some(Letter::new().map_err(EngineError::Fork)?), false)?;
        Ok(Parked { running, command: self.command.clone(), waits: false })
    }

    /// Starts a box: with this order once it has come, else with the command of the plan. `unnamed`: it waits for a word
    /// before the first step that needs names.
    pub(super) fn launch(
        &self,
        seed: Option<Seed>,
        stdio: StdioSpec,
        order: Option<Letter>,
        unnamed: bool,
    ) -> Result<Running, EngineError> {
        self.finish(self.begin(seed, stdio, order, unnamed)?)
    }

    /// Begins to start a box; process 1 need not be there yet.
    fn begin(
        &self,
        seed: Option<Seed>,
        stdio: StdioSpec,
        order: Option<Letter>,
        unnamed: bool,
    ) -> Result<Starting, EngineError> {
        let group = self.group()?;
        let (spec, held, messages) = match &self.how {
            How::Native { spec, held, .. } => (spec.clone(), *held, None),
            How::Bubblewrap(given) => {
                let (plan, facts) = &**given;
                let (mut spec, messages) = bubblewrap::spec(plan, facts)?;
                let held = limit(&mut spec, plan, &self.limits, group.is_some());
                (Arc::new(spec), held, Some(messages))
            }
        };
        let (terminal, stdio) = stdio_parts(stdio);
        let groups = group.as_ref().map(Group::doors).transpose()?.unwrap_or_default();
        let born_in = group.as_ref().and_then(Group::cradle);
        let start = Start { groups, born_in, terminal, stdio, order, unnamed };
        let launching = launch::launch(spec.clone(), start, seed).map_err(EngineError::Fork)?;
        Ok(Starting { launching, spec, messages, group, held })
    }

    /// Waits until process 1 is there.
    fn finish(&self, begun: Starting) -> Result<Running, EngineError> {
        let Starting { launching, spec, messages, group, held } = begun;
        let launched = launching.finish().map_err(EngineError::Fork)?;
        let (program, pids, keeper) = (self.command.program.clone(), self.pids, self.keeper.clone());
        let (network, spare) = (None, None);
        Ok(Running { launched, spec: Some(spec), program, messages, group, network, spare, pids, held, keeper })
    }

    /// A control group for the next box, where there are any.
    fn group(&self) -> Result<Option<Group>, EngineError> {
        let Some(groups) = &self.groups else { return Ok(None) };
        let group = Group::make(groups, &self.limits)?;
        if self.guest {
            group.kill_one_by_one()?;
        }
        Ok(Some(group))
    }

    fn ahead(&self) -> MutexGuard<'_, Option<Seed>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Namespaces for the next box: those that were begun ahead, or where its mounts can be a copy, new ones.
    fn seed(&self) -> Option<Seed> {
        let ahead = self.ahead().take();
        // Whoever makes what is to be copied takes longer than a box that is built.
        ahead.or_else(|| self.sow(Some(self.common.try_lock().ok()?.mould()?)))
    }

    /// Begins with the namespaces of a box. When that cannot be, its start tells.
    fn sow(&self, mould: Option<Arc<Mould>>) -> Option<Seed> {
        match &self.how {
            How::Native { soil: Some(soil), .. } => Seed::sow_ahead(soil.clone(), mould).ok(),
            _ => None,
        }
    }

    /// What boxes are copied from, where they can be.
    fn mould(&self) -> Option<Arc<Mould>> {
        let How::Native { spec, soil: Some(_), .. } = &self.how else { return None };
        self.common.lock().unwrap_or_else(PoisonError::into_inner).make(spec)
    }
}

/// Adds the limits, by what there is for them; how many processes a guest holds its commands to, where no group does.
fn limit(spec: &mut Spec, plan: &Plan, limits: &Limits, grouped: bool) -> Option<u64> {
    let mut held = None;
    if !grouped {
        let mut stand_ins = stand_ins(limits, &spec.identity);
        for (_, value) in stand_ins.iter_mut().filter(|limit| plan.guest && limit.0 == PROCESSES) {
            held = Some(*value);
            *value += MOST_REAPERS;
        }
        spec.rlimits.extend(stand_ins);
        spec.lingers = limits.pids.is_some();
        let processors =
            |cpus: f64| Processors { count: (cpus.ceil() as usize).max(1), offset: std::process::id() as usize };
        spec.processors = limits.cpus.map(processors);
    }
    spec.rlimits.extend(rlimits(plan).into_iter().filter(|limit| !plan.guest || !is_of_commands(limit)));
    spec.rlimits.iter_mut().for_each(|(resource, value)| *value = (*value).min(most(*resource)));
    held
}

fn null() -> Result<OwnedFd, EngineError> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(c"/dev/null", flags, rustix::fs::Mode::empty()).map_err(EngineError::Stdio)
}

/// A box that stands, behind all its walls, with nothing in it but process 1, which waits for a command. It ends when this
/// is dropped, and with its owner.
#[derive(Debug)]
pub struct Parked {
    running: Running,
    command: Command,
    waits: bool,
}

impl Parked {
    /// Waits until the box is built; an error when that failed.
    pub fn wait(&mut self) -> Result<(), EngineError> {
        if !self.waits {
            match self.running.next_event()? {
                Event::Parked(mounts) => {
                    self.running.launched.hold(mounts);
                    self.waits = true;
                }
                other => return Err(EngineError::Lost(format!("{other:?} from a parked sandbox"))),
            }
        }
        Ok(())
    }

    /// The id of process 1 as the host sees it.
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Lets the command of the plan, or another one, run in it. A box that is built ahead has no terminal of its own.
    pub fn start(mut self, command: Option<&Command>, stdio: StdioSpec) -> Result<Running, EngineError> {
        let StdioSpec::Files([stdin, stdout, stderr]) = stdio else { return Err(EngineError::Stdio(Errno::NOTTY)) };
        let command = command.unwrap_or(&self.command);
        let order = Order {
            workdir: c_path(&command.workdir)?,
            program: c_path(&command.program)?,
            args: command.args.iter().map(|arg| c_string(arg)).collect::<Result<_, _>>()?,
            env: env_strings(&command.env)?,
        };
        let program = command.program.clone();
        self.wait()?;
        match self.running.launched.order(&order, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]) {
            Ok(()) => {}
            Err(Errno::TOOBIG) => return Err(EngineError::TooLong),
            Err(errno) => return Err(EngineError::Lost(errno.to_string())),
        }
        Ok(Running { program, ..self.running })
    }
}

/// Parked boxes of one kind, at most so many. Nothing is built but by [`Pool::fill`]: when to is the owner's decision.
#[derive(Debug)]
pub struct Pool {
    prepared: Prepared,
    size: usize,
    parked: Mutex<VecDeque<Parked>>,
}

impl Pool {
    /// An empty one.
    pub fn new(prepared: Prepared, size: usize) -> Pool {
        Pool { prepared, size, parked: Mutex::default() }
    }

    /// Parks boxes until there are as many as there may be; does not wait until they stand.
    pub fn fill(&self) -> Result<(), EngineError> {
        while self.parked().len() < self.size {
            let parked = self.prepared.park()?;
            self.parked().push_back(parked);
        }
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.parked().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the oldest; builds one when there is none.
    pub fn take(&self) -> Result<Parked, EngineError> {
        let oldest = self.parked().pop_front();
        oldest.map_or_else(|| self.prepared.park(), Ok)
    }

    fn parked(&self) -> MutexGuard<'_, VecDeque<Parked>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
