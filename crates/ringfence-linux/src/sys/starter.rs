//! The starter: the last step inside a box that another program built.
//!
//! A builder such as bubblewrap executes a program in the finished box, but cannot tell its own messages from that
//! program's, nor its own failures from that program's status, and hands its signal mask on. So it executes this first: the
//! guest's program under the name [`PATH`], as process 1. It takes the command's descriptors, closes all others, sets the
//! command's limits, looks at the finished [view], says that the box stands, unblocks signals and starts the command, or says why not. It needs nothing of
//! the box but `/proc`: it is handed over as an open file.
//!
//! A command is a child of the starter. The starter stays process 1: it cannot be traced or read by the command, so that
//! nothing inside can undo that it dies with the builder. It waits for orphans too, and ends when the command does. A guest
//! takes the place of the starter, since it does all of this itself.
//!
//! Arguments: [`COMMAND`] or [`GUEST`], the program, then its `argv`. A script without an interpreter line is given to
//! `/bin/sh`.

use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::{
    PointerList, Stack, Wait, close_range, dup_onto, execve, reset_signals, send_with, set_rlimit, vfork, view, wait,
};

/// Where the starter writes: a zero when the box stands, then an error number when the command could not be executed.
const REPORT: i32 = 3;
/// The first of the command's three descriptors. The starter itself is behind them.
const STDIO: i32 = 4;
/// Where the limits are read.
const LIMITS: i32 = 8;
/// Where the sandbox's mount namespace is handed out.
const HANDLES: i32 = 9;
/// Where it is read what the finished view must look like.
const VIEW: i32 = 10;
/// The last number that is taken.
pub const LAST: i32 = VIEW;
/// Said from here on: a place of the view is not as it must be, this one. An error number follows.
pub const DEVIATION: u32 = 1 << 24;
/// What the builder executes.
pub const PATH: &str = "/proc/self/fd/7";
/// First argument: the program is started as a child.
pub const COMMAND: &str = "command";
/// First argument: the starter becomes the program.
pub const GUEST: &str = "guest";

/// Bytes of one limit: `RLIMIT_*` and value.
const LIMIT: usize = 12;

/// Limits as they are read.
#[cfg(feature = "box")]
pub(crate) fn written(limits: &[(u32, u64)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(limits.len() * LIMIT);
    for (resource, value) in limits {
        bytes.extend_from_slice(&resource.to_ne_bytes());
        bytes.extend_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// Starts the command and waits for its end, or becomes the guest; returns the exit code.
pub fn run() -> u8 {
    hand_out(given(HANDLES), None);
    let started = Program::from_arguments().and_then(|(how, program)| {
        verify_view()?;
        if how == GUEST { program.execute().map(|never| match never {}) } else { look_after(&program) }
    });
    started.unwrap_or_else(|errno| {
        report(errno);
        125
    })
}

fn report(errno: Errno) {
    // Whoever would read it may be gone.
    let _ = rustix::io::write(given(REPORT), &errno.raw_os_error().to_ne_bytes());
}

/// Hands this process's mount namespace to the owner of the sandbox, who can put back what the host takes away. An owner that
/// does not get it says so in its report.
pub(crate) fn hand_out(handles: BorrowedFd<'_>, placeholders: Option<BorrowedFd<'_>>) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(mounts) = rustix::fs::open(c"/proc/self/ns/mnt", flags, Mode::empty()) else { return };
    let _ = match placeholders {
        Some(placeholders) => send_with(handles, &[0], &[mounts.as_fd(), placeholders], SendFlags::DONTWAIT),
        None => send_with(handles, &[0], &[mounts.as_fd()], SendFlags::DONTWAIT),
    };
}

fn given(number: i32) -> BorrowedFd<'static> {
    // SAFETY: the builder opened this number for the starter, and nothing here closes it before the command is executed.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Looks whether the box is what was planned, before anything of the command runs.
fn verify_view() -> Result<(), Errno> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match rustix::io::pread(given(VIEW), &mut part[..], bytes.len() as u64)? {
            0 => break,
            length => bytes.extend_from_slice(&part[..length]),
        }
    }
    let places = view::read(&bytes).ok_or(Errno::INVAL)?;
    view::verify(&places).map_err(|deviation| {
        // What follows is the error number.
        let _ = rustix::io::write(given(REPORT), &(DEVIATION + deviation.place as u32).to_ne_bytes());
        deviation.errno
    })
}

/// What is to be executed. All memory is made before the fork.
struct Program {
    path: CString,
    argv: PointerList,
    script_argv: PointerList,
    env: PointerList,
}

impl Program {
    /// And the first argument, which says how it is started.
    fn from_arguments() -> Result<(std::ffi::OsString, Program), Errno> {
        let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| Errno::INVAL);
        let mut words = std::env::args_os().skip(1);
        let how = words.next().filter(|how| [COMMAND, GUEST].map(OsStr::new).contains(&&**how)).ok_or(Errno::INVAL)?;
        let mut words = words.map(|word| text(word.into_vec()));
        let path = words.next().ok_or(Errno::INVAL)??;
        let argv = words.collect::<Result<Vec<_>, _>>()?;
        let entry = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            text([name.as_bytes(), b"=", value.as_bytes()].concat())
        };
        let env = PointerList::new(std::env::vars_os().map(entry).collect::<Result<Vec<_>, _>>()?);
        let rest = argv.iter().skip(1).cloned();
        let script_argv = PointerList::new([c"/bin/sh".to_owned(), path.clone()].into_iter().chain(rest).collect());
        Ok((how, Program { path, argv: PointerList::new(argv), script_argv, env }))
    }

    /// This process becomes it, with its descriptors and limits; returns only on failure. Makes system calls only.
    fn execute(&self) -> Result<Infallible, Errno> {
        let mut limits = [0; 32 * LIMIT];
        let length = rustix::io::pread(given(LIMITS), &mut limits, 0)?;
        for target in 0..3 {
            dup_onto(given(STDIO + target), target)?;
        }
        close_range(3, u32::MAX, true)?;
        for limit in limits[..length].chunks_exact(LIMIT) {
            let (resource, value) = limit.split_at(4);
            let (Ok(resource), Ok(value)) = (resource.try_into(), value.try_into()) else { return Err(Errno::INVAL) };
            set_rlimit(u32::from_ne_bytes(resource), u64::from_ne_bytes(value))?;
        }
        rustix::io::write(given(REPORT), &0u32.to_ne_bytes())?;
        reset_signals()?;
        match execve(&self.path, self.argv.strings(), self.env.strings()) {
            Errno::NOEXEC => Err(execve(c"/bin/sh", self.script_argv.strings(), self.env.strings())),
            errno => Err(errno),
        }
    }
}

/// Starts the command and reaps until it has ended; returns its status as a shell does.
fn look_after(program: &Program) -> Result<u8, Errno> {
    // Before there is another process in the box. The command is traceable again by its execution.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    rustix::thread::set_name(c"ringfence")?;
    let command = vfork(&Stack::new(), || {
        let Err(errno) = program.execute();
        report(errno);
        125
    })?;
    // A pipe that process 1 kept open would never end.
    close_range(0, u32::MAX, false)?;
    while let Some(child) = wait(-1, Wait::UntilEnd)? {
        let status = child.status;
        if child.pid != command.as_raw_nonzero().get() {
            continue;
        }
        if libc::WIFEXITED(status) {
            return Ok(libc::WEXITSTATUS(status) as u8);
        }
        // A child that asked to be traced is told of when it stops.
        if libc::WIFSIGNALED(status) {
            return Ok(128 + libc::WTERMSIG(status) as u8);
        }
    }
    Err(Errno::CHILD)
}
