//! Warm interpreters: each in a box of its own, prepared ahead in the background, and used once.
//!
//! A worker starts a box whose interpreter waits for one piece of code. The result goes back as soon as it is there; then the
//! box ends, and the worker starts the next. No interpreter, no box and no descriptor serves two executions.
//! `docs/design/warm-interpreters.md` says why.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfence_linux::sys;
use ringfence_linux::sys::locked;
use ringfence_policy::Policy;
use ringfence_policy::canonical;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::Plan;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, StatxTimestamp};

use super::channel::{Answer, Channel, Hurry};
use super::language::Wire;
use super::{Code, CodeError, Language, Prepared, Ran, request};
use crate::engines::{self, EngineError, EngineRef, Running, StdioSpec};
use crate::report::Report;
use crate::supervise::{Companion, supervise};

/// How long an interpreter may take until it waits for code.
const WARM_UP: Duration = Duration::from_secs(30);

/// Interpreters of one language under one policy, which are ready before they are needed.
#[derive(Debug)]
struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    language: &'static Language,
    policy: Policy,
    facts: Facts,
    plan: Plan,
    report: Report,
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
    pub(crate) fn run(
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
        if let Some(pool) = self.find(&view) {
            let ran = pool.run(code, policy.limits.timeout, cancel, &view);
            // It may have given way meanwhile.
            drop_beside(pool);
            if let Some(ran) = ran {
                return ran;
            }
        }
        let (language, policy, plan, engine) = (code.language, policy.clone(), plan.clone(), *engine);
        let report = report.clone();
        let ran = prepared.run(facts, cancel);
        // Interpreters start when the code has run, so that it has the CPUs for itself. If a pool cannot be started, the next
        // call runs cold too.
        if !locked(&self.kept).iter().any(|(of, _)| *of == view)
            && let Ok(pool) = Pool::start(warm, language, policy, facts.clone(), plan, report, engine)
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

    /// Keeps a pool, unless there is one by now. The pool that gives way ends on a thread of its own ([`drop_beside`]).
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
            drop_beside(gone);
        }
    }
}

/// Lets go of a pool. The last to do so waits for its workers, on a thread of its own; without a thread for it, here.
fn drop_beside(pool: Arc<Pool>) {
    if let Some(last) = Arc::into_inner(pool) {
        let _ = std::thread::Builder::new().name("ringfence-warm".to_owned()).spawn(move || drop(last));
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
    /// What its sandbox must see; one that sees something else, or did not get ready, is not used.
    view: String,
    answer: SyncSender<Answer>,
}

impl Pool {
    /// Starts as many interpreters. Returns at once.
    fn start(
        size: u64,
        language: &'static Language,
        policy: Policy,
        facts: Facts,
        plan: Plan,
        report: Report,
        engine: EngineRef,
    ) -> Result<Pool, CodeError> {
        let (request, queue, changed) = (request::warm(language), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { language, policy, facts, plan, report, engine, request, queue, changed });
        // Dropped when one cannot be started, which ends those that were.
        let mut pool = Pool { shared, workers: Vec::new() };
        for _ in 0..size {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new().name("ringfence-warm".to_owned());
            pool.workers.push(worker.spawn(move || shared.work()).map_err(CodeError::Worker)?);
        }
        Ok(pool)
    }

    /// Runs code that was checked, if an interpreter is ready for it at once. `None`: it has not begun.
    fn run(&self, code: &Code, timeout: Option<Duration>, cancel: Option<BorrowedFd<'_>>, view: &str) -> Answer {
        let request = request::encode_warm(code).ok()?;
        let cancel = cancel.map(|fd| fd.try_clone_to_owned()).transpose().ok()?;
        let (answer, wait) = sync_channel(1);
        let job = Job { code: code.clone(), timeout, request, cancel, view: view.to_owned(), answer };
        let mut queue = self.shared.lock();
        if queue.ready <= queue.jobs.len() {
            return None;
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.changed.notify_one();
        // Every job is answered, unless its worker panicked.
        wait.recv().unwrap_or_else(|_| Some(Err(EngineError::Lost("its worker is gone".to_owned()).into())))
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
        sys::locked(&self.queue)
    }

    /// Box after box, each for one job.
    fn work(&self) {
        loop {
            // Why one did not get ready is said by the cold run.
            let ready = self.warm_up().ok().flatten();
            let job = self.next_job(ready.is_some());
            match (job, ready) {
                (Some(job), Some(ready)) if ready.view == job.view => self.serve(job, ready),
                (job, unused) => {
                    if let Some(job) = &job {
                        // The caller may be gone.
                        let _ = job.answer.send(None);
                    }
                    if let Some(unused) = unused {
                        // Nothing in it is of interest.
                        let _ = unused.running.finish();
                    }
                    if job.is_none() {
                        return;
                    }
                }
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

    /// A box with an interpreter that waits for code; `None` when it does not get ready.
    fn warm_up(&self) -> Result<Option<Ready>, CodeError> {
        let (mut channel, stdio) =
            Channel::open(self.request.clone(), self.plan.limits.output, None).map_err(CodeError::Channel)?;
        channel.keep_open();
        let before = view(self.language, self.engine, &self.plan)?;
        let running = engines::start(self.engine, &self.plan, &self.report, &self.facts, StdioSpec::Files(stdio))?;
        if !await_warm(&mut channel, &running)? {
            running.finish()?;
            return Ok(None);
        }
        // What changed while it was made may have been mounted or not: then it sees what no other one sees.
        let after = view(self.language, self.engine, &self.plan)?;
        let view = if after == before { after } else { String::new() };
        Ok(Some(Ready { running, channel, view }))
    }

    fn serve(&self, job: Job, ready: Ready) {
        let Ready { running, mut channel, .. } = ready;
        let Job { code, timeout, request, cancel, answer, .. } = job;
        let hurry = Hurry { code: code.clone(), engine: self.engine, started: Instant::now(), tell: answer.clone() };
        channel.begin(request, cancel, Some(hurry));
        let mut policy = self.policy.clone();
        policy.limits.timeout = timeout;
        let ran = supervise(running, &policy, &self.facts, &mut channel);
        if channel.has_told() {
            return;
        }
        let started = channel.has_started();
        let ran = ran.map_err(CodeError::from).and_then(|outcome| Ran::of(&code, self.engine, outcome, channel));
        // Something killed the box while it waited: the code has not run. The caller may be gone.
        let _ = answer.send(if ran.is_err() && !started { None } else { Some(ran) });
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
                wants.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
            sys::poll_for(&mut fds, Some(left)).map_err(CodeError::Channel)?;
            let revents = wants.iter().zip(&fds).map(|((key, ..), fd)| (*key, fd.revents()));
            revents.filter(|(_, flags)| !flags.is_empty()).collect()
        };
        for (key, flags) in ready {
            channel.ready(key, flags, running).map_err(CodeError::Channel)?;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
