//! Descriptors that travel over a local socket, and those that a program begins with. Nothing here allocates.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::{close_range, dup_onto};

/// Most descriptors that one message carries.
pub const MOST_SENT: usize = 64;

/// Sends bytes, and at most [`MOST_SENT`] descriptors with the first of them. How many bytes the socket took.
pub fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL)
}

/// What was received at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub bytes: usize,
    /// More descriptors came than were wanted, and the others are lost.
    pub cut: bool,
}

/// Receives bytes, and hands at most `most` descriptors that came with them to `take`. No program that follows inherits them.
pub fn receive_with(
    socket: impl AsFd,
    buffer: &mut [u8],
    most: usize,
    flags: RecvFlags,
    mut take: impl FnMut(OwnedFd),
) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT))];
    let room = rustix::cmsg_space!(ScmRights(most)).min(space.len());
    let mut ancillary = RecvAncillaryBuffer::new(&mut space[..room]);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
    let mut cut = received.flags.contains(ReturnFlags::CTRUNC);
    let mut left = most;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                // For alignment there is room for one or two more than were wanted.
                match left.checked_sub(1) {
                    Some(rest) => {
                        left = rest;
                        take(descriptor);
                    }
                    None => cut = true,
                }
            }
        }
    }
    Ok(Received { bytes: received.bytes, cut })
}

/// Puts the standard descriptors in their places; no other one is open in the program that follows.
pub fn place_stdio(descriptors: [BorrowedFd<'_>; 3]) -> Result<(), Errno> {
    // One that is in another's place gives way first.
    let mut moved: [Option<OwnedFd>; 3] = [None, None, None];
    for (target, (descriptor, slot)) in (0..).zip(descriptors.iter().zip(&mut moved)) {
        if descriptor.as_raw_fd() < 3 && descriptor.as_raw_fd() != target {
            *slot = Some(rustix::io::fcntl_dupfd_cloexec(descriptor, 3)?);
        }
    }
    for (target, (descriptor, slot)) in (0..).zip(descriptors.iter().zip(&moved)) {
        dup_onto(slot.as_ref().map_or(*descriptor, AsFd::as_fd), target)?;
    }
    close_range(3, u32::MAX, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_arrive_with_the_bytes() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let both = [read.as_fd(), write.as_fd()];
        for (most, cut) in [(2, false), (1, true)] {
            assert_eq!(send_with(&ours, b"ab", &both, SendFlags::empty()), Ok(2));
            let (mut buffer, mut came) = ([0; 8], Vec::new());
            let received = receive_with(&theirs, &mut buffer, most, RecvFlags::empty(), |fd| came.push(fd)).unwrap();
            assert_eq!(received, Received { bytes: 2, cut });
            assert_eq!((&buffer[..2], came.len()), (&b"ab"[..], most));
        }
        assert_eq!(send_with(&ours, b"c", &[], SendFlags::empty()), Ok(1));
        let mut came = 0;
        let received = receive_with(&theirs, &mut [0; 8], 2, RecvFlags::empty(), |_| came += 1).unwrap();
        assert_eq!((received, came), (Received { bytes: 1, cut: false }, 0));
    }
}
