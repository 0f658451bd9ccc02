//! The nursery: one warm interpreter in a box of its own, which is forked for each piece of code and never sees any.
//!
//! Each fork has all the walls of a box, made before it gets its code (`engines::forked`), and is used once. What forks of
//! one nursery share is written down in `docs/design/warm-interpreters.md`; after some of them there is another nursery.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ringfence_linux::forked::Calls;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::Plan;
use rustix::net::SendFlags;

use super::channel::Channel;
use super::pool::await_warm;
use super::{CodeError, Warm, request};
use crate::engines::forked::{self, Networks, Place};
use crate::engines::{self, Engine, EngineError, Running, StdioSpec};

/// After so many forks the next nursery is started, with an address layout and a hash seed of its own.
const MOST_FORKS: u64 = 1000;

#[derive(Debug)]
pub(super) struct Nursery {
    /// `None` only when it goes.
    running: Mutex<Option<Running>>,
    control: Mutex<OwnedFd>,
    networks: Networks,
    forks: AtomicU64,
}

impl Nursery {
    /// Starts an interpreter, and waits until it can be forked.
    pub fn start(warm: &Warm, plan: &Plan, facts: &Facts, calls: &Calls) -> Result<Nursery, CodeError> {
        let (mut channel, stdio) =
            Channel::open(request::warm(warm), plan.limits.output, None).map_err(CodeError::Channel)?;
        channel.keep_open();
        let plan = forked::nursery(plan);
        let running = engines::start(Engine::Native, &plan, facts, StdioSpec::Files(stdio))?;
        let lost = |reason: &str| CodeError::from(EngineError::Lost(reason.to_owned()));
        if !await_warm(&mut channel, &running)? {
            return Err(lost("the nursery did not get ready"));
        }
        let control = channel.into_socket().ok_or_else(|| lost("the nursery has ended"))?;
        rustix::io::ioctl_fionbio(&control, false).map_err(CodeError::Channel)?;
        let request = request::fork(calls);
        let mut rest = request.as_slice();
        while !rest.is_empty() {
            let sent = rustix::net::send(&control, rest, SendFlags::NOSIGNAL).map_err(CodeError::Channel)?;
            rest = &rest[sent..];
        }
        // That it has one thread, and all it needs.
        forked::answer(&control)?;
        Ok(Nursery {
            running: Mutex::new(Some(running)),
            control: Mutex::new(control),
            networks: Networks::default(),
            forks: AtomicU64::new(0),
        })
    }

    pub fn fork(&self, place: &Place, plan: &Plan, stdio: [OwnedFd; 3]) -> Result<Running, EngineError> {
        self.forks.fetch_add(1, Ordering::Relaxed);
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        place.fork(&control, &self.networks, plan, stdio).inspect_err(|error| {
            self.forks.store(MOST_FORKS, Ordering::Relaxed);
            // Its forks that run go on. But an answer that comes late would be taken for that to the next question.
            if matches!(error, EngineError::Lost(_)) {
                let _ = rustix::net::shutdown(&*control, rustix::net::Shutdown::Both);
            }
        })
    }

    /// Whether another one should be started.
    pub fn is_spent(&self) -> bool {
        self.forks.load(Ordering::Relaxed) >= MOST_FORKS
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running {
            // Nobody is left to be told.
            let _ = running.finish();
        }
    }
}
