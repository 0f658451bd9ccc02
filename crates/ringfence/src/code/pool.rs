//! Warm interpreters: each in a box of its own, prepared ahead in the background, and used once.
//!
//! A worker makes a box with an interpreter that waits for one piece of code: a fork of the pool's nursery, or where the
//! policy or the plan does not let it be one, an interpreter that is started. The result goes back as soon as it is there;
//! then the box ends, and the worker makes the next. No interpreter, no box and no descriptor ever serves two executions, and
//! no network in which one made a socket.
//! What forks share is in `docs/design/warm-interpreters.md`.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfence_linux::forked::Calls;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::format_size;
use ringfence_policy::plan::Plan;
use ringfence_policy::policy::Policy;
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::tree::Tree;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::channel::{Channel, Hurry};
use super::language::Wire;
use super::nursery::Nursery;
use super::{Code, CodeError, Language, Prepared, Ran, has_room, plan_for, request, result, with_environment};
use crate::engines::forked::{self, Place};
use crate::engines::{self, Engine, EngineError, Running, StdioSpec};
use crate::report::Report;
use crate::supervise::{Companion, Reason, supervise};

/// How long an interpreter may take until it waits for code.
const WARM_UP: Duration = Duration::from_secs(30);
/// So many forks may fail in a row until interpreters are started instead.
const MOST_FAILURES: usize = 3;
/// So many workers have one nursery, which makes one fork at a time; and no more nurseries than there are processors.
const WORKERS_OF_A_NURSERY: usize = 4;

/// Interpreters of one language under one policy, which are ready before they are needed.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    choice: EngineChoice,
    pub report: Report,
}

/// What a pool holds.
#[derive(Debug, Clone)]
pub struct Warm {
    pub language: &'static Language,
    /// Whether installed packages can be imported.
    pub packages: bool,
    /// Modules that are loaded before the code is there.
    pub preload: Vec<String>,
}

#[derive(Debug)]
struct Shared {
    warm: Warm,
    policy: Policy,
    facts: Facts,
    plan: Plan,
    engine: Engine,
    /// Tells an interpreter to get ready.
    request: Vec<u8>,
    /// At least one.
    forks: Vec<Mutex<Forks>>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Where forks come from.
#[derive(Debug)]
struct Forks {
    /// The walls of each; `None` where interpreters are started.
    calls: Option<Calls>,
    nursery: Option<Arc<Nursery>>,
    failures: usize,
}

/// A box whose interpreter waits for code.
#[derive(Debug)]
struct Ready {
    running: Running,
    channel: Channel,
    /// Ends when the last of its forks has.
    _nursery: Option<Arc<Nursery>>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Workers whose box is ready.
    ready: usize,
    closed: bool,
}

/// Code that waits for a box.
#[derive(Debug)]
struct Job {
    code: Code,
    request: Vec<u8>,
    cancel: Option<OwnedFd>,
    answer: SyncSender<Result<Ran, CodeError>>,
}

impl Pool {
    /// Starts as many interpreters as the policy says (`warm`); with none, everything runs cold. Returns at once.
    pub fn new(warm: Warm, policy: &Policy, facts: &Facts, choice: EngineChoice) -> Result<Pool, CodeError> {
        let mut code = Code::new(warm.language, "");
        code.packages = warm.packages;
        let request = request::warm(&warm);
        let policy = with_environment(policy);
        let plan = plan_for(&Tree::lookup(&policy, facts), &code, &policy, facts)?;
        let (engine, report) = engines::select(choice, &plan, facts)?;
        let size = if warm.language.wire == Wire::Lines { 0 } else { policy.warm as usize };
        let forks = policy.warm_fork && engine == Engine::Native && warm.language.wire == Wire::Marshal;
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let nurseries = size.div_ceil(WORKERS_OF_A_NURSERY).clamp(1, processors);
        let calls = |number| if forks { forked::calls(&plan, facts, number) } else { Ok(None) };
        let forks = (0..nurseries).map(|number| {
            let calls = calls(number)?;
            Ok(Mutex::new(Forks { calls, nursery: None, failures: 0 }))
        });
        let forks = forks.collect::<Result<_, EngineError>>()?;
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared =
            Arc::new(Shared { warm, policy, facts: facts.clone(), plan, engine, request, forks, queue, changed });
        // Dropped when one cannot be started, which ends those that were.
        let mut pool = Pool { shared, workers: Vec::new(), choice, report };
        for number in 0..size {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new().name("ringfence-warm".to_owned());
            pool.workers.push(worker.spawn(move || shared.work(number)).map_err(CodeError::Worker)?);
        }
        Ok(pool)
    }

    /// Runs code in a box that is ready, or in the next one that is. It is cancelled when `cancel` becomes readable.
    pub fn run(&self, code: &Code, cancel: Option<BorrowedFd<'_>>) -> Result<Ran, CodeError> {
        let Shared { warm, policy, facts, .. } = &*self.shared;
        let fits = code.language == warm.language && code.packages == warm.packages && code.requirements.is_none();
        if self.workers.is_empty() || !fits {
            return super::prepare(code, policy, facts, self.choice, None)?.run(facts, cancel);
        }
        code.check()?;
        has_room(code, &self.shared.plan)?;
        let request = request::encode_warm(code)?;
        let cancel = cancel.map(|fd| fd.try_clone_to_owned()).transpose();
        let cancel =
            cancel.map_err(|error| CodeError::Channel(Errno::from_io_error(&error).unwrap_or(Errno::MFILE)))?;
        let (answer, wait): (_, Receiver<_>) = sync_channel(1);
        self.shared.lock().jobs.push_back(Job { code: code.clone(), request, cancel, answer });
        self.shared.changed.notify_one();
        // Every job is answered, unless its worker panicked.
        wait.recv().unwrap_or_else(|_| Err(EngineError::Lost("its worker is gone".to_owned()).into()))
    }

    /// How many interpreters wait for code now.
    pub fn ready(&self) -> usize {
        self.shared.lock().ready
    }

    /// Whether interpreters are forked.
    pub fn forks(&self) -> bool {
        self.shared.forks.iter().all(|forks| locked(forks).calls.is_some())
    }

    pub fn engine(&self) -> Engine {
        self.shared.engine
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        for worker in self.workers.drain(..) {
            // One that panicked has nothing left to end.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }

    /// Box after box, each for one job.
    fn work(&self, number: usize) {
        let forks = &self.forks[number % self.forks.len()];
        let mut place = None;
        loop {
            let warm = self.forked(forks, &mut place).map_or_else(|| self.warm_up(), Ok);
            let Some(job) = self.next_job(warm.is_ok()) else {
                if let Ok(ready) = warm {
                    // Nobody is left to be told.
                    let _ = ready.running.finish();
                }
                return;
            };
            match warm {
                Ok(ready) => self.serve(job, ready),
                Err(error) => self.answer(&job, Err(error)),
            }
        }
    }

    /// A box with a fork that waits for code; `None` where one is to be started. That costs time and nothing else.
    fn forked(&self, forks: &Mutex<Forks>, place: &mut Option<Place>) -> Option<Ready> {
        let nursery = self.nursery(forks)?;
        let forked = self.fork(place, &nursery);
        let mut forks = locked(forks);
        match &forked {
            Ok(_) => forks.failures = 0,
            // Of all who had this one, the first; a sibling may have started another since.
            Err(_) if forks.nursery.as_ref().is_some_and(|current| Arc::ptr_eq(current, &nursery)) => {
                forks.failures += 1;
                forks.nursery = None;
            }
            Err(_) => {}
        }
        forked.ok()
    }

    /// The nursery, which is started where there is none or it has served its time.
    fn nursery(&self, forks: &Mutex<Forks>) -> Option<Arc<Nursery>> {
        let mut forks = locked(forks);
        if forks.failures >= MOST_FAILURES {
            (forks.calls, forks.nursery) = (None, None);
        }
        let calls = forks.calls.as_ref()?;
        if let Some(nursery) = forks.nursery.as_ref().filter(|nursery| !nursery.is_spent()) {
            return Some(Arc::clone(nursery));
        }
        match Nursery::start(&self.warm, &self.plan, &self.facts, calls) {
            Ok(nursery) => forks.nursery = Some(Arc::new(nursery)),
            Err(_) => forks.failures += 1,
        }
        forks.nursery.clone()
    }

    fn fork(&self, place: &mut Option<Place>, nursery: &Arc<Nursery>) -> Result<Ready, CodeError> {
        let place = match place {
            Some(place) => place,
            none => none.insert(Place::new(&self.plan)?),
        };
        let (mut channel, stdio) =
            Channel::open(Vec::new(), self.plan.limits.output, None).map_err(CodeError::Channel)?;
        channel.keep_open();
        let running = nursery.fork(place, &self.plan, stdio)?;
        let warm = await_warm(&mut channel, &running);
        if !matches!(warm, Ok(true)) {
            // Wholly, so that the next one can have its control group.
            let _ = running.finish();
            warm?;
            return Err(EngineError::Lost("a fork did not get ready".to_owned()).into());
        }
        Ok(Ready { running, channel, _nursery: Some(Arc::clone(nursery)) })
    }

    /// Waits for a job; `None` when there will be none.
    fn next_job(&self, is_ready: bool) -> Option<Job> {
        let mut queue = self.lock();
        queue.ready += usize::from(is_ready);
        let job = loop {
            if queue.closed {
                break None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                break Some(job);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        };
        queue.ready -= usize::from(is_ready);
        job
    }

    /// A box with an interpreter that was started and waits for code.
    fn warm_up(&self) -> Result<Ready, CodeError> {
        let (mut channel, stdio) =
            Channel::open(self.request.clone(), self.plan.limits.output, None).map_err(CodeError::Channel)?;
        channel.keep_open();
        let running = engines::start(self.engine, &self.plan, &self.facts, StdioSpec::Files(stdio))?;
        if await_warm(&mut channel, &running)? {
            return Ok(Ready { running, channel, _nursery: None });
        }
        // One that has ended says why.
        if !channel.is_closed() {
            channel.give_up();
        }
        let outcome = supervise(running, &self.policy, &self.facts, &mut channel)?;
        let code = Code { packages: self.warm.packages, ..Code::new(self.warm.language, "") };
        result::result(&code, self.engine, &outcome, channel.into_parts())?;
        let reason = match (outcome.reason, self.plan.limits.memory) {
            (Some(Reason::Memory), Some(memory)) => format!("{} of memory is too little for it", format_size(memory)),
            _ => "it did not get ready".to_owned(),
        };
        Err(CodeError::NotStarted { language: self.warm.language.name, reason })
    }

    fn serve(&self, mut job: Job, ready: Ready) {
        let Ready { running, mut channel, _nursery } = ready;
        let hurry =
            Hurry { code: job.code.clone(), engine: self.engine, started: Instant::now(), tell: job.answer.clone() };
        let cancel = match job.cancel.as_ref().map(|fd| fd.as_fd().try_clone_to_owned()).transpose() {
            Ok(cancel) => cancel,
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
                return self.answer(&job, Err(CodeError::Channel(errno)));
            }
        };
        channel.begin(std::mem::take(&mut job.request), cancel, Some(hurry));
        let ran = supervise(running, &self.policy, &self.facts, &mut channel);
        if channel.has_told() {
            return;
        }
        let started = channel.has_started();
        let ran = ran.map_err(CodeError::from).and_then(|outcome| {
            let parts = channel.into_parts();
            let captures = [parts.stdout.clone(), parts.stderr.clone()];
            Ok(Ran { result: result::result(&job.code, self.engine, &outcome, parts)?, outcome, captures })
        });
        match ran {
            // Something killed the box while it waited. The code has not run, and gets another one.
            Err(_) if !started => self.answer(&job, self.run_cold(&job)),
            ran => self.answer(&job, ran),
        }
    }

    fn run_cold(&self, job: &Job) -> Result<Ran, CodeError> {
        let Shared { policy, facts, plan, engine, .. } = self;
        let report = engines::select((*engine).into(), plan, facts)?.1;
        let (policy, request) = (policy.clone(), request::encode(&job.code, None, job.code.installed.is_some())?);
        let prepared = Prepared {
            code: &job.code,
            policy,
            request,
            seed: None,
            plan: plan.clone(),
            engine: *engine,
            report,
            unkept: None,
        };
        prepared.run(facts, job.cancel.as_ref().map(AsFd::as_fd))
    }

    fn answer(&self, job: &Job, ran: Result<Ran, CodeError>) {
        // Whoever asked may be gone.
        let _ = job.answer.send(ran);
    }
}

/// A panic elsewhere leaves nothing half done in what is guarded here.
fn locked<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the interpreter says that it is ready; false when it has ended or takes too long.
pub(super) fn await_warm(channel: &mut Channel, running: &Running) -> Result<bool, CodeError> {
    let until = Instant::now() + WARM_UP;
    while !channel.is_warm() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || channel.is_closed() {
            return Ok(false);
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let (count, ready): (usize, Vec<(usize, PollFlags)>) = {
            let wants = channel.wants();
            let listener = running.listener().map(|fd| (fd, PollFlags::IN));
            let all = wants.iter().copied().chain(listener);
            let mut fds: Vec<PollFd<'_>> = all.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(CodeError::Channel(errno)),
            }
            let revents = fds.iter().map(PollFd::revents).enumerate();
            (wants.len(), revents.filter(|(_, flags)| !flags.is_empty()).collect())
        };
        for (index, flags) in ready {
            let done = match index < count {
                true => channel.ready(index, flags, running),
                // A module that was loaded may make sockets in a fork. Without IN everybody who could is gone.
                false if flags.contains(PollFlags::IN) => running.hear(),
                false => Ok(()),
            };
            done.map_err(CodeError::Channel)?;
        }
    }
    Ok(true)
}
