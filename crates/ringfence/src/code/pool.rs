//! Warm interpreters: each in a box of its own, prepared ahead in the background, and used once.
//!
//! A worker starts a box whose interpreter waits for one piece of code. The result goes back as soon as it is there; then the
//! box ends, and the worker starts the next. No interpreter, no box and no descriptor serves two executions.
//! `docs/design/warm-interpreters.md` says why.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfence_linux::sys;
use ringfence_linux::sys::locked;
use ringfence_policy::canonical;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::format_size;
use ringfence_policy::plan::Plan;
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::tree::Tree;
use ringfence_policy::{Policy, ServiceSettings};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

use super::channel::{Channel, Hurry};
use super::language::Wire;
use super::{Code, CodeError, Language, Prepared, Ran, has_room, plan_for, request, result, with_environment};
use crate::engines::{self, EngineError, EngineRef, Running, StdioSpec};
use crate::report::Report;
use crate::supervise::{Companion, Reason, supervise};

/// How long an interpreter may take until it waits for code.
const WARM_UP: Duration = Duration::from_secs(30);

/// Interpreters of one language under one policy, which are ready before they are needed.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
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
    engine: EngineRef,
    /// Tells an interpreter to get ready.
    request: Vec<u8>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Pools for plans that come again and again, as those of a server do. Code whose plan has a pool takes an interpreter
/// of it. Other code runs cold, and a pool of its plan is made for the next.
#[derive(Debug, Default)]
pub struct Pools {
    /// By what their sandboxes see; the one that was used last comes last.
    kept: Mutex<Vec<(String, Arc<Pool>)>>,
}

/// Pools that are kept; the one that was not used for longest gives way.
const MOST_POOLS: usize = 3;

impl Pools {
    /// Runs code as [`Prepared::run`] does, with an interpreter that is ready where there is one.
    pub fn run(
        &self,
        prepared: Prepared<'_>,
        warm: u64,
        facts: &Facts,
        cancel: Option<BorrowedFd<'_>>,
    ) -> Result<Ran, CodeError> {
        let Prepared { code, policy, plan, engine, report, .. } = &prepared;
        if warm == 0 || code.language.wire == Wire::Lines || code.requirements.is_some() {
            return prepared.run(facts, cancel);
        }
        let view = view(code.language, *engine, plan)?;
        if let Some(pool) = self.find(&view)
            && let Some(ran) = pool.run_if_ready(code, policy.limits.timeout, cancel, &view)
        {
            return ran;
        }
        let (warm, size) = (Warm { language: code.language, packages: code.packages, preload: Vec::new() }, warm);
        let (policy, plan, engine, report) = (policy.clone(), plan.clone(), *engine, report.clone());
        let ran = prepared.run(facts, cancel);
        // Interpreters start when the code has run, so that it has the CPUs for itself. If a pool cannot be started, the next
        // call runs cold too.
        if self.find(&view).is_none()
            && let Ok(pool) = Pool::start((warm, size), policy, facts.clone(), plan, engine, report)
        {
            self.keep(view, pool);
        }
        ran
    }

    fn find(&self, view: &str) -> Option<Arc<Pool>> {
        let mut kept = locked(&self.kept);
        let at = kept.iter().position(|(of, _)| of == view)?;
        let found = kept.remove(at);
        kept.push(found);
        kept.last().map(|(_, pool)| pool.clone())
    }

    /// Keeps a pool, unless there is one by now. The pool that gives way ends on a thread of its own.
    fn keep(&self, view: String, pool: Pool) {
        let mut kept = locked(&self.kept);
        let pool = Arc::new(pool);
        let gone = if kept.iter().any(|(of, _)| *of == view) {
            Some(pool)
        } else {
            kept.push((view, pool));
            (kept.len() > MOST_POOLS).then(|| kept.remove(0).1)
        };
        drop(kept);
        if let Some(gone) = gone {
            // Without a thread for it, it ends here.
            let _ = std::thread::Builder::new().name("ringfence-warm".to_owned()).spawn(move || drop(gone));
        }
    }
}

/// What a sandbox of this plan on this engine would see, made now. An interpreter that waits serves only code whose own sandbox would
/// see the same: a file that was made, replaced or removed since it was started may be one that a rule hides or protects.
fn view(language: &Language, engine: EngineRef, plan: &Plan) -> Result<String, CodeError> {
    let mut plan = plan.clone();
    // The owner of the sandbox counts it, for each piece of code anew.
    plan.limits.timeout = None;
    let files: Vec<Option<String>> = plan.host_paths().iter().map(|path| identity(path)).collect();
    Ok(canonical::hash(&(language.name, engine.name(), &plan, files)).map_err(EngineError::from)?)
}

/// Which file this is, and on which mount. Numbers of inodes are used again; the time of its birth tells such files apart.
fn identity(path: &Path) -> Option<String> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::BTIME | StatxFlags::CTIME | StatxFlags::MNT_ID;
    let found = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted).ok()?;
    let nanoseconds = |time: StatxTimestamp| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    let device = (found.stx_dev_major, found.stx_dev_minor);
    let is_dir = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory;
    // That of a directory changes with every name in it. That of a file changes when it gets a name again.
    let changed = if is_dir { 0 } else { nanoseconds(found.stx_ctime) };
    let (mount, inode, born) = (found.stx_mnt_id, found.stx_ino, nanoseconds(found.stx_btime));
    Some(format!("{device:?} {mount} {inode} {born} {changed}"))
}

/// A box whose interpreter waits for code.
#[derive(Debug)]
struct Ready {
    running: Running,
    channel: Channel,
    /// What it sees.
    view: String,
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
    /// What it has of time.
    timeout: Option<Duration>,
    request: Vec<u8>,
    cancel: Option<OwnedFd>,
    /// What its sandbox must see; one that sees something else, or did not get ready, is not used, and the code runs cold.
    view: Option<String>,
    answer: SyncSender<Result<Ran, CodeError>>,
}

impl Pool {
    /// Starts as many interpreters as the settings say (`warm`); with none, everything runs cold. Returns at once.
    pub fn new(
        warm: Warm,
        policy: &Policy,
        service: &ServiceSettings,
        facts: &Facts,
        choice: EngineChoice,
    ) -> Result<Pool, CodeError> {
        let mut code = Code::new(warm.language, "");
        code.packages = warm.packages;
        let policy = with_environment(policy);
        let plan = plan_for(&Tree::lookup(&policy, facts), &code, &policy, facts)?;
        let (engine, report) = engines::select(&choice, &plan, facts)?;
        let size = if warm.language.wire == Wire::Lines { 0 } else { service.warm };
        Pool::start((warm, size), policy, facts.clone(), plan, engine, report)
    }

    /// The same for a plan that is made.
    fn start(
        (warm, size): (Warm, u64),
        policy: Policy,
        facts: Facts,
        plan: Plan,
        engine: EngineRef,
        report: Report,
    ) -> Result<Pool, CodeError> {
        let request = request::warm(&warm);
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { warm, policy, facts, plan, engine, request, queue, changed });
        // Dropped when one cannot be started, which ends those that were.
        let mut pool = Pool { shared, workers: Vec::new(), report };
        for _ in 0..size {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new().name("ringfence-warm".to_owned());
            pool.workers.push(worker.spawn(move || shared.work()).map_err(CodeError::Worker)?);
        }
        Ok(pool)
    }

    /// Runs code in a box that is ready, or in the next one that is. It is cancelled when `cancel` becomes readable.
    pub fn run(&self, code: &Code, cancel: Option<BorrowedFd<'_>>) -> Result<Ran, CodeError> {
        let Shared { warm, policy, facts, engine, .. } = &*self.shared;
        let fits = code.language == warm.language && code.packages == warm.packages && code.requirements.is_none();
        if self.workers.is_empty() || !fits {
            return super::prepare(code, policy, facts, (*engine).into())?.run(facts, cancel);
        }
        code.check()?;
        let timeout = policy.limits.timeout.map(|limit| super::time_left(limit, code.spent));
        let (job, wait) = self.job(code, timeout, cancel, None)?;
        self.shared.lock().jobs.push_back(job);
        self.shared.changed.notify_one();
        answered(&wait)
    }

    /// The same for code that was checked, if an interpreter is ready for it at once.
    fn run_if_ready(
        &self,
        code: &Code,
        timeout: Option<Duration>,
        cancel: Option<BorrowedFd<'_>>,
        view: &str,
    ) -> Option<Result<Ran, CodeError>> {
        let (job, wait) = match self.job(code, timeout, cancel, Some(view.to_owned())) {
            Ok(made) => made,
            Err(error) => return Some(Err(error)),
        };
        let mut queue = self.shared.lock();
        if queue.ready <= queue.jobs.len() {
            return None;
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.changed.notify_one();
        Some(answered(&wait))
    }

    fn job(
        &self,
        code: &Code,
        timeout: Option<Duration>,
        cancel: Option<BorrowedFd<'_>>,
        view: Option<String>,
    ) -> Result<(Job, Receiver<Result<Ran, CodeError>>), CodeError> {
        has_room(code, &self.shared.plan)?;
        let request = request::encode_warm(code)?;
        let cancel = cancel.map(|fd| fd.try_clone_to_owned()).transpose();
        let cancel =
            cancel.map_err(|error| CodeError::Channel(Errno::from_io_error(&error).unwrap_or(Errno::MFILE)))?;
        let (answer, wait) = sync_channel(1);
        Ok((Job { code: code.clone(), timeout, request, cancel, view, answer }, wait))
    }

    /// How many interpreters wait for code now.
    pub fn ready(&self) -> usize {
        self.shared.lock().ready
    }

    pub fn engine(&self) -> EngineRef {
        self.shared.engine
    }
}

/// Every job is answered, unless its worker panicked.
fn answered(wait: &Receiver<Result<Ran, CodeError>>) -> Result<Ran, CodeError> {
    wait.recv().unwrap_or_else(|_| Err(EngineError::Lost("its worker is gone".to_owned()).into()))
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
        sys::locked(&self.queue)
    }

    /// Box after box, each for one job.
    fn work(&self) {
        loop {
            let warm = self.warm_up();
            let Some(job) = self.next_job(warm.is_ok()) else {
                if let Ok(ready) = warm {
                    // Nobody is left to be told.
                    let _ = ready.running.finish();
                }
                return;
            };
            match (warm, &job.view) {
                (Ok(ready), Some(view)) if ready.view != *view => {
                    self.answer(&job, self.run_cold(&job));
                    // It was not used: nothing in it is of interest.
                    let _ = ready.running.finish();
                }
                (Ok(ready), _) => self.serve(job, ready),
                (Err(_), Some(_)) => self.answer(&job, self.run_cold(&job)),
                (Err(error), None) => self.answer(&job, Err(error)),
            }
        }
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

    /// A box with an interpreter that waits for code.
    fn warm_up(&self) -> Result<Ready, CodeError> {
        let (mut channel, stdio) =
            Channel::open(self.request.clone(), self.plan.limits.output, None).map_err(CodeError::Channel)?;
        channel.keep_open();
        let before = view(self.warm.language, self.engine, &self.plan)?;
        let running = engines::start(self.engine, &self.plan, &self.facts, StdioSpec::Files(stdio))?;
        if await_warm(&mut channel, &running)? {
            // What changed while it was made may have been mounted or not: then it sees what no other one sees.
            let after = view(self.warm.language, self.engine, &self.plan)?;
            let view = if after == before { after } else { String::new() };
            return Ok(Ready { running, channel, view });
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
        let Ready { running, mut channel, .. } = ready;
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
        let mut policy = self.policy.clone();
        policy.limits.timeout = job.timeout;
        let ran = supervise(running, &policy, &self.facts, &mut channel);
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
        let report = engines::select(&(*engine).into(), plan, facts)?.1;
        let request = request::encode(&job.code, None, job.code.installed.is_some())?;
        let (mut policy, plan, engine) = (policy.clone(), plan.clone(), *engine);
        policy.limits.timeout = job.timeout;
        let prepared = Prepared { code: &job.code, policy, request, plan, engine, report, runner: None };
        prepared.run(facts, job.cancel.as_ref().map(AsFd::as_fd))
    }

    fn answer(&self, job: &Job, ran: Result<Ran, CodeError>) {
        // Whoever asked may be gone.
        let _ = job.answer.send(ran);
    }
}

/// Waits until the interpreter says that it is ready; false when it has ended or takes too long.
fn await_warm(channel: &mut Channel, running: &Running) -> Result<bool, CodeError> {
    let until = Instant::now() + WARM_UP;
    while !channel.is_warm() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || channel.is_closed() {
            return Ok(false);
        }
        let ready: Vec<(usize, PollFlags)> = {
            let wants = channel.wants();
            let mut fds: Vec<PollFd<'_>> =
                wants.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
            sys::poll_for(&mut fds, Some(left)).map_err(CodeError::Channel)?;
            let revents = fds.iter().map(PollFd::revents).enumerate();
            revents.filter(|(_, flags)| !flags.is_empty()).collect()
        };
        for (index, flags) in ready {
            channel.ready(index, flags, running).map_err(CodeError::Channel)?;
        }
    }
    Ok(true)
}
