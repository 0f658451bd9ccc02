//! What a parked box is told to run, over its socket: working directory, program, arguments, environment and the three
//! standard descriptors, in one message of bounded size.
//!
//! The sender is the owner; the receiver is process 1, which has no memory but what was made for it before the fork. It
//! takes nothing on trust that would lead it out of that memory.

use std::ffi::{CStr, CString};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::pages::Pages;
use crate::sys::{PointerRoom, Strings};

/// Bytes of all strings together.
pub const MAX_BYTES: usize = 128 * 1024;
/// Strings in arguments and environment together.
pub const MAX_STRINGS: usize = 4096;

/// A command for a parked box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub workdir: CString,
    pub program: CString,
    pub args: Vec<CString>,
    /// `NAME=value`.
    pub env: Vec<CString>,
}

impl Order {
    /// Sends it; `E2BIG` when it is too long.
    pub(crate) fn send(&self, to: &OwnedFd, stdio: [BorrowedFd<'_>; 3]) -> Result<(), Errno> {
        let strings = || [&self.workdir, &self.program].into_iter().chain(&self.args).chain(&self.env);
        let length: usize = 8 + strings().map(|s| s.as_bytes_with_nul().len()).sum::<usize>();
        if length > MAX_BYTES || self.args.len() + self.env.len() > MAX_STRINGS {
            return Err(Errno::TOOBIG);
        }
        let mut bytes = Vec::with_capacity(length);
        for count in [self.args.len(), self.env.len()] {
            bytes.extend_from_slice(&(count as u32).to_ne_bytes());
        }
        strings().for_each(|string| bytes.extend_from_slice(string.as_bytes_with_nul()));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&stdio));
        loop {
            match rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                result => return result.map(drop),
            }
        }
    }
}

/// Room for an order. Untouched pages cost nothing, so that a box that waits is not larger by it.
#[derive(Debug)]
pub struct Letter {
    bytes: Pages,
    length: usize,
    pointers: PointerRoom,
}

/// An order that was received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened<'a> {
    pub workdir: &'a CStr,
    pub program: &'a CStr,
    pub argv: Strings<'a>,
    pub script_argv: Strings<'a>,
    pub env: Strings<'a>,
}

impl Letter {
    pub fn new() -> Result<Letter, Errno> {
        // Arguments twice, as those of a script as well, and the ends of three lists.
        let pointers = PointerRoom::new(2 * MAX_STRINGS + 8);
        Ok(Letter { bytes: Pages::copied(MAX_BYTES)?, length: 0, pointers })
    }

    /// Waits for an order. `None` when the owner is gone. Allocates nothing.
    pub(crate) fn receive(&mut self, owner: &OwnedFd) -> Result<Option<[OwnedFd; 3]>, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut self.bytes)];
            match rustix::net::recvmsg(owner, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                result => break result?,
            }
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        self.length = received.bytes;
        let mut stdio = [None, None, None];
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                stdio.iter_mut().zip(fds).for_each(|(slot, fd)| *slot = Some(fd));
            }
        }
        match stdio {
            [Some(stdin), Some(stdout), Some(stderr)] => Ok(Some([stdin, stdout, stderr])),
            _ => Err(Errno::PROTO),
        }
    }

    /// Takes a received order apart. Allocates nothing.
    pub(crate) fn open(&mut self) -> Result<Opened<'_>, Errno> {
        let Letter { bytes, length, pointers } = self;
        let bytes = &bytes[..*length];
        let word = |at: usize| {
            let word = bytes.get(at..at + 4).and_then(|w| w.try_into().ok()).map(u32::from_ne_bytes);
            word.map(|n| n as usize).filter(|n| *n <= MAX_STRINGS).ok_or(Errno::PROTO)
        };
        let (args, env) = (word(0)?, word(4)?);
        let texts = || bytes[8..].split_inclusive(|b| *b == 0).map_while(|s| CStr::from_bytes_with_nul(s).ok());
        let mut strings = texts();
        let (Some(workdir), Some(program)) = (strings.next(), strings.next()) else { return Err(Errno::PROTO) };
        if strings.count() != args + env {
            return Err(Errno::PROTO);
        }
        let arguments = || texts().skip(2).take(args);
        let mut fits = true;
        arguments().for_each(|s| fits &= pointers.add(s));
        fits &= pointers.end();
        let script = pointers.mark();
        [c"/bin/sh", program].into_iter().chain(arguments().skip(1)).for_each(|s| fits &= pointers.add(s));
        fits &= pointers.end();
        let environment = pointers.mark();
        texts().skip(2 + args).for_each(|s| fits &= pointers.add(s));
        fits &= pointers.end();
        if !fits {
            return Err(Errno::TOOBIG);
        }
        // SAFETY: all strings lie in `bytes`, borrowed as long as what is returned, or are literals.
        let lists = unsafe { (pointers.list(0), pointers.list(script), pointers.list(environment)) };
        match lists {
            (Some(argv), Some(script_argv), Some(env)) => Ok(Opened { workdir, program, argv, script_argv, env }),
            _ => Err(Errno::PROTO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn order(argument: usize) -> Order {
        let text = |t: &str| CString::new(t).unwrap();
        let args = vec![text("sh"), text(&"x".repeat(argument)), text("")];
        Order { workdir: text("/w"), program: text("/bin/sh"), args, env: vec![text("A=1")] }
    }

    #[test]
    fn comes_as_it_was_sent() {
        let (ours, theirs) = pair();
        let null = std::fs::File::open("/dev/null").unwrap();
        order(100_000).send(&ours, [null.as_fd(); 3]).unwrap();
        let mut letter = Letter::new().unwrap();
        assert!(letter.receive(&theirs).unwrap().is_some());
        let opened = letter.open().unwrap();
        assert_eq!((opened.workdir, opened.program), (c"/w", c"/bin/sh"));
        drop(ours);
        assert!(Letter::new().unwrap().receive(&theirs).unwrap().is_none());
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        let (ours, _theirs) = pair();
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(order(MAX_BYTES).send(&ours, [null.as_fd(); 3]), Err(Errno::TOOBIG));
        let mut many = order(1);
        many.env = vec![c"A=1".to_owned(); MAX_STRINGS];
        assert_eq!(many.send(&ours, [null.as_fd(); 3]), Err(Errno::TOOBIG));
    }

    #[test]
    fn what_is_no_order_is_refused() {
        for bytes in [&b""[..], b"1234567", &[0; 8], &[9, 0, 0, 0, 0, 0, 0, 0, b'a', 0, b'b', 0], &[255; 64]] {
            let mut letter = Letter::new().unwrap();
            letter.bytes[..bytes.len()].copy_from_slice(bytes);
            letter.length = bytes.len();
            assert_eq!(letter.open().map(|_| ()), Err(Errno::PROTO), "{bytes:?}");
        }
    }
}
