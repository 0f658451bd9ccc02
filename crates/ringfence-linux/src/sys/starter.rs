//! The starter: the last step inside a box that another program built.
//!
//! A builder such as bubblewrap executes a program in the finished box, but cannot tell its own messages from that
//! program's, nor its own failures from that program's status, and hands its signal mask on. So it executes this first: the
//! guest's program under the name [`PATH`]. It takes the command's descriptors, closes all others, sets the command's limits,
//! says that the box stands, unblocks signals and becomes the command, or says why not. It needs nothing of the box but
//! `/proc`: it is handed over as an open file, and nothing of it is left when the command runs.
//!
//! Arguments: the program, then the command's `argv`. A script without an interpreter line is given to `/bin/sh`.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::io::Errno;

use super::{PointerList, close_range, dup_onto, execve, reset_signals, set_rlimit};

/// Where the starter writes: a zero when the box stands, then an error number when the command could not be executed.
const REPORT: i32 = 3;
/// The first of the command's three descriptors. The starter itself is behind them.
const STDIO: i32 = 4;
/// Where the limits are read.
const LIMITS: i32 = 8;
/// The last number that is taken.
pub const LAST: i32 = LIMITS;
/// What the builder executes.
pub const PATH: &str = "/proc/self/fd/7";

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

/// Becomes the command; returns the exit code of a starter that could not.
pub fn run() -> u8 {
    let Err(errno) = become_command();
    // Whoever would read it may be gone.
    let _ = rustix::io::write(given(REPORT), &errno.raw_os_error().to_ne_bytes());
    125
}

fn given(number: i32) -> BorrowedFd<'static> {
    // SAFETY: the builder opened this number for the starter, and nothing here closes it before the command is executed.
    unsafe { BorrowedFd::borrow_raw(number) }
}

fn become_command() -> Result<Infallible, Errno> {
    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| Errno::INVAL);
    let mut words = std::env::args_os().skip(1).map(|word| text(word.into_vec()));
    let program = words.next().ok_or(Errno::INVAL)??;
    let argv = words.collect::<Result<Vec<_>, _>>()?;
    let entry = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        text([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let env = PointerList::new(std::env::vars_os().map(entry).collect::<Result<Vec<_>, _>>()?);
    let rest = argv.iter().skip(1).cloned();
    let script = PointerList::new([c"/bin/sh".to_owned(), program.clone()].into_iter().chain(rest).collect());
    let argv = PointerList::new(argv);
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
    match execve(&program, argv.strings(), env.strings()) {
        Errno::NOEXEC => Err(execve(c"/bin/sh", script.strings(), env.strings())),
        errno => Err(errno),
    }
}
