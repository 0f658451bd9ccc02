//! Starts a program that belongs to nobody: no parent that must reap it, no terminal, no descriptor but the given ones. And the
//! other way round: one that does not outlive its owner.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;

use crate::sys::{self, PointerList, SignalsBlocked, Stack};

/// Most descriptors that are handed over.
const MOST: usize = 4;

/// Executes a program in a session of its own, with `descriptors` as its numbers 0, 1, … and `/` as its working directory.
/// It is nobody's child here: a process between this one and it has ended when this returns.
pub fn start(
    program: &CStr,
    argv: &PointerList,
    env: &PointerList,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    if descriptors.len() > MOST {
        return Err(Errno::INVAL);
    }
    let (outer, inner) = (Stack::new(), Stack::new());
    // Written by the children, whose memory is ours; both have ended or left it when `vfork` returns.
    let mut failed: Option<Errno> = None;
    let _blocked = SignalsBlocked::new()?;
    let between = sys::vfork(&outer, || {
        let started = rustix::process::setsid().and_then(|_| {
            sys::vfork(&inner, || {
                failed = Some(become_program(program, argv, env, descriptors));
                125
            })
        });
        if let Err(errno) = started {
            failed = Some(errno);
        }
        0
    })?;
    // A caller that ignores SIGCHLD has nothing to reap.
    sys::wait(between.as_raw_nonzero().get(), sys::Wait::UntilEnd)?;
    failed.map_or(Ok(()), Err)
}

/// Has the program be killed when the thread that starts it ends, however that happens, and hands no descriptor to it but the
/// standard ones.
pub fn belong(command: &mut Command) {
    let owner = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // It may have ended before it was asked for its death.
        if rustix::process::getppid() != Some(owner) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(sys::close_range(3, u32::MAX, true)?)
    };
    // SAFETY: between fork and exec it only makes system calls.
    unsafe { command.pre_exec(prepare) };
}

/// Returns only when it could not.
fn become_program(program: &CStr, argv: &PointerList, env: &PointerList, descriptors: &[BorrowedFd<'_>]) -> Errno {
    let place = || {
        // They may be each other's numbers: duplicate first, place then.
        let mut placed: [Option<OwnedFd>; MOST] = [const { None }; MOST];
        for (slot, fd) in placed.iter_mut().zip(descriptors) {
            *slot = Some(rustix::io::fcntl_dupfd_cloexec(fd, 16)?);
        }
        for (target, fd) in (0..).zip(placed.iter().flatten()) {
            sys::dup_onto(fd.as_fd(), target)?;
        }
        // Never dropped here: the table is this process's own, and exec closes them.
        std::mem::forget(placed);
        sys::close_range(descriptors.len() as u32, u32::MAX, true)?;
        rustix::process::chdir(c"/")?;
        sys::reset_signals()
    };
    match place() {
        Err(errno) => errno,
        Ok(()) => sys::execve(program, argv.strings(), env.strings()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::Read;

    use super::*;

    fn list(words: &[&str]) -> PointerList {
        PointerList::new(words.iter().map(|w| CString::new(*w).unwrap()).collect())
    }

    fn run(program: &CStr, argv: &[&str]) -> (Result<(), Errno>, String) {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let fds = [null.as_fd(), write.as_fd(), null.as_fd()];
        let result = start(program, &list(argv), &list(&["A=b"]), &fds);
        drop(write);
        let mut text = String::new();
        std::fs::File::from(read).read_to_string(&mut text).unwrap();
        (result, text)
    }

    #[test]
    fn a_program_of_its_own() {
        let (result, text) = run(
            c"/bin/sh",
            &["sh", "-c", "pwd; echo $A; ls -1 /proc/self/fd | wc -l; cut -d' ' -f4,6 /proc/$$/stat; echo $$"],
        );
        assert_eq!(result, Ok(()));
        let lines: Vec<&str> = text.lines().collect();
        // `ls` has a descriptor of its own for what it lists.
        assert_eq!(lines[..3], ["/", "b", "4"], "{text}");
        let (parent, session) = lines[3].split_once(' ').unwrap();
        assert_ne!(parent, std::process::id().to_string());
        // The session is that of the process between, which has ended. Ours is 0 when its leader is outside the namespace.
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        let own = own.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap();
        assert_ne!(session, own);
    }

    #[test]
    fn a_missing_program_is_told() {
        assert_eq!(run(c"/nonexistent/program", &["x"]).0, Err(Errno::NOENT));
    }
}
