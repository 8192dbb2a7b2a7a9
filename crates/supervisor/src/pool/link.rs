//! Messages with descriptors over a pair of sockets that keeps their bounds.
#![allow(unsafe_code)] // Registering a descriptor with the runtime, once.

use super::protocol::malformed;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tokio::io::unix::AsyncFd;

/// No message is near that: what may be large goes into a file in memory.
const MOST_BYTES: usize = 16 << 10;
const MOST_DESCRIPTORS: usize = 8;

/// Both ends, which end with the next exec, and never wait.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// For a runtime, inside of it.
pub(super) fn watched(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is open, and stays the same one for as long as its owner, which goes into the answer, lives.
    unsafe { AsyncFd::register(descriptor) }.map_err(|error| error.into_parts().1)
}

pub(super) fn send(socket: impl AsFd, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for a message"));
    }
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent.map(|_| ())?),
        }
    }
}

#[derive(Debug)]
pub(super) enum Received<T> {
    Message(T, Vec<OwnedFd>),
    /// The same, but this process has no room for the descriptors that came with it.
    WithoutRoom(T),
    /// Nobody holds the other end any more.
    End,
}

/// The next message. Without one, `WouldBlock`.
pub(super) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Received<T>> {
    let mut bytes = vec![0_u8; MOST_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            // The other end died with something unread.
            Err(Errno::CONNRESET) => return Ok(Received::End),
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(malformed("it is too long"));
    }
    let message = serde_json::from_slice(&bytes[..received.bytes]).map_err(|error| malformed(&error.to_string()))?;
    Ok(match received.flags.contains(ReturnFlags::CTRUNC) {
        true => Received::WithoutRoom(message),
        false => Received::Message(message, descriptors),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_bounds_and_carry_descriptors() {
        let (one, other) = pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        send(&one, &1, &[]).unwrap();
        send(&one, &2, &[file.as_fd(), file.as_fd()]).unwrap();
        assert!(matches!(receive::<u8>(&other).unwrap(), Received::Message(1, fds) if fds.is_empty()));
        let Received::Message(2, descriptors) = receive::<u8>(&other).unwrap() else { panic!() };
        assert_eq!(descriptors.len(), 2);
        for descriptor in descriptors {
            assert!(rustix::io::fcntl_getfd(descriptor).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        assert_eq!(receive::<u8>(&other).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(one);
        assert!(matches!(receive::<u8>(&other).unwrap(), Received::End));
        assert!(send(&other, &3, &[]).is_err());
    }
}
