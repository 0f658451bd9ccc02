//! The watch over what the host takes from a living sandbox.
//!
//! The kernel drops a mount when its name is removed or renamed over outside of the sandbox. The user's watcher (a process of
//! its own, see `docs/design/watcher.md`) puts it back. Here is the owner's side: which names those are, the connection, and
//! what it means for the report.

mod connect;
mod names;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_guest::watch::{self, Cover, Notice, Order};
use ringfence_linux::launch::Handles;
use ringfence_linux::sys;
use ringfence_policy::Guarantee;
use ringfence_policy::plan::Plan;
use ringfence_policy::report::Report;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

pub use names::Names;

/// A sandbox is watched from this age on: most commands end before. What was replaced until then is put back then.
pub const BEGINS: Duration = Duration::from_millis(50);
/// A sandbox that takes longer to build is asked again after so long, this many times.
const AGAIN: Duration = Duration::from_millis(100);
const MOST_TRIES: u32 = 100;
/// So often a watcher may be lost.
const MOST_LOST: u32 = 5;
/// So long the end of a sandbox waits for the watcher to let go of it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why engines that cannot put a mount back say `weakened`.
pub const NOT_COVERED_AGAIN: &str = "what the host replaces is not covered again";

/// A guarantee that does not hold as it was reported, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The guarantee.
    pub guarantee: Guarantee,
    /// What happened, for people.
    pub reason: String,
}

impl Loss {
    /// Whether a sandbox with this plan must not go on.
    pub fn ends(&self, plan: &Plan) -> bool {
        plan.strict && plan.promises.iter().any(|promise| promise.guarantee == self.guarantee && !promise.optional)
    }

    /// Has the report say so.
    pub fn tell(&self, report: &mut Report) {
        report.weaken(self.guarantee, &self.reason);
    }
}

/// One sandbox's place at the watcher.
#[derive(Debug)]
pub struct Watch {
    names: Names,
    registry: PathBuf,
    handles: Option<Handles>,
    socket: Option<OwnedFd>,
    /// When to connect. `None`: it is connected, or was given up.
    due: Option<Instant>,
    tries: u32,
    lost: u32,
}

impl Watch {
    /// Begins when it is [due](Watch::next).
    pub fn new(names: Names, registry: &Path, now: Instant) -> Watch {
        let due = (!names.list.names.is_empty()).then_some(now);
        Watch { names, registry: registry.to_path_buf(), handles: None, socket: None, due, tries: 0, lost: 0 }
    }

    /// When [`look`](Watch::look) has something to do.
    pub fn next(&self) -> Option<Instant> {
        self.due
    }

    /// Readable when the watcher has something to say.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Connects when it is time to. `handles`: what the sandbox handed out so far.
    pub fn look(&mut self, now: Instant, handles: impl FnOnce() -> Option<Handles>) -> Vec<Loss> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        self.handles = self.handles.take().or_else(handles);
        let Some(handles) = &self.handles else {
            self.tries += 1;
            self.due = (self.tries < MOST_TRIES).then(|| now + AGAIN);
            return if self.due.is_some() { Vec::new() } else { not_watched("it did not hand out its namespace") };
        };
        self.due = None;
        match connect::register(&self.registry, &self.names, handles) {
            Ok(socket) => {
                self.socket = Some(socket);
                Vec::new()
            }
            Err(error) => not_watched(&error.to_string()),
        }
    }

    /// Reads what the watcher said.
    pub fn ready(&mut self) -> Vec<Loss> {
        let mut losses = Vec::new();
        let mut buffer = vec![0; 16 * 1024];
        while let Some(socket) = &self.socket {
            let notice = match rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Ok((0, _)) | Err(_) => {
                    self.socket = None;
                    self.lost += 1;
                    if self.lost > MOST_LOST {
                        losses.extend(not_watched("the watcher ends again and again"));
                    } else {
                        self.due = Some(Instant::now());
                    }
                    break;
                }
                Ok((length, _)) => watch::decode(&buffer[..length]),
            };
            match notice {
                // What appeared since the plan was made was told by nobody.
                Some(Notice::Watches) => self.names.unknown().iter().for_each(|path| self.cover(path)),
                Some(Notice::Restored(index)) => losses.extend(self.names.loss(index, None)),
                Some(Notice::Open(index, why)) => losses.extend(self.names.loss(index, Some(&why))),
                Some(Notice::Appeared(path)) => self.cover(Path::new(std::ffi::OsStr::from_bytes(&path))),
                Some(Notice::Missed) => losses.extend(not_watched("more happened than was told")),
                Some(Notice::Failed(why)) => {
                    losses.extend(not_watched(&why));
                    self.socket = None;
                }
                None => {
                    losses.extend(not_watched("the watcher is another release"));
                    self.socket = None;
                }
            }
        }
        losses
    }

    /// A name appeared. If a rule hides or protects it, it is covered.
    fn cover(&mut self, path: &Path) {
        let Some(socket) = &self.socket else { return };
        for name in self.names.ruled(path) {
            let order = watch::encode(&Order::Cover(name.clone()));
            // An owner that is not heard is told so: nothing is answered then.
            if rustix::net::send(socket, &order, SendFlags::NOSIGNAL).is_ok() {
                self.names.list.names.push(name);
            }
        }
    }

    /// The sandbox has ended. When this returns, the watcher does not look at its names any more.
    pub fn leave(self) {
        let Some(socket) = self.socket else { return };
        if rustix::net::shutdown(&socket, Shutdown::Write).is_err() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        let mut buffer = [0; 64];
        loop {
            match sys::poll_until(&mut [PollFd::new(&socket, PollFlags::IN)], until) {
                Ok(0) | Err(_) => return,
                // What it still says is not needed.
                Ok(_) => match rustix::net::recv(&socket, &mut buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                    Ok((_, 0)) | Err(_) => return,
                    Ok(_) => {}
                },
            }
        }
    }
}

/// Both guarantees of files hold as long as the host replaces nothing.
fn not_watched(why: &str) -> Vec<Loss> {
    let reason = format!("{NOT_COVERED_AGAIN}: {why}");
    [Guarantee::FsSecretsHidden, Guarantee::FsProtectedPaths]
        .map(|guarantee| Loss { guarantee, reason: reason.clone() })
        .to_vec()
}

fn guarantee(cover: Cover) -> Guarantee {
    match cover {
        Cover::Hidden => Guarantee::FsSecretsHidden,
        Cover::Protected | Cover::Pinned => Guarantee::FsProtectedPaths,
    }
}
