//! Packets of bytes and file descriptors over a socket pair or a connection to a path.
//!
//! `SOCK_SEQPACKET` preserves packet boundaries, so a reader never gets a partial packet. All descriptors that are
//! created or received here have `CLOEXEC` set.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
    socketpair,
};

/// Maximum size of a packet.
pub const MAX_BYTES: usize = 64 << 10;
/// Maximum number of descriptors of a packet.
pub const MAX_DESCRIPTORS: usize = 64;

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

#[derive(Debug, Default)]
pub struct Packet {
    /// Never empty.
    pub bytes: Vec<u8>,
    /// In the order of sending.
    pub descriptors: Vec<OwnedFd>,
}

/// Creates a connected socket pair.
///
/// # Errors
/// The limit of open descriptors is reached.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens for connections at a path, which must not exist.
///
/// # Errors
/// The path is taken or too long for a socket, or the system call failed.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = unconnected()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 1)?;
    Ok(socket)
}

/// Accepts a connection. On a non-blocking socket `WouldBlock` means that there is none yet.
///
/// # Errors
/// The system call failed.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::retry_on_intr(|| rustix::net::accept_with(&listener, SocketFlags::CLOEXEC))?)
}

/// Connects to a path. Does not block: if the queue of the listener is full, it fails with `WouldBlock`.
///
/// # Errors
/// Nobody listens there, or the system call failed.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = unconnected()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn unconnected() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one packet. On a non-blocking socket `WouldBlock` means that nothing was sent.
///
/// # Errors
/// The packet is empty or too large, the other end is closed (`BrokenPipe`), or the system call failed.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.is_empty() || bytes.len() > MAX_BYTES || descriptors.len() > MAX_DESCRIPTORS {
        let what = format!("a packet of {} bytes and {} descriptors", bytes.len(), descriptors.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives one packet. `None` if the other end is closed and all packets are read.
///
/// # Errors
/// The packet exceeds the limits, or the system call failed. On a non-blocking socket `WouldBlock` means that there is
/// no packet yet.
pub fn receive(socket: impl AsFd) -> io::Result<Option<Packet>> {
    let mut bytes = vec![0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet over the limits"));
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(received.bytes);
    Ok(Some(Packet { bytes, descriptors }))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
    };

    use super::*;

    #[test]
    fn bytes_and_descriptors_arrive_together() {
        let (here, there) = pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        send(&here, b"one", &[writer.as_fd()]).unwrap();
        send(&here, b"two", &[]).unwrap();
        drop((writer, here));

        let first = receive(&there).unwrap().unwrap();
        assert_eq!(first.bytes, b"one");
        let [passed] = <[OwnedFd; 1]>::try_from(first.descriptors).unwrap();
        assert!(rustix::io::fcntl_getfd(&passed).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        File::from(passed).write_all(b"through").unwrap();
        let mut text = String::new();
        File::from(OwnedFd::from(reader)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");

        assert_eq!(receive(&there).unwrap().unwrap().bytes, b"two");
        assert!(receive(&there).unwrap().is_none());
    }

    #[test]
    fn a_packet_over_the_limits_is_refused_at_both_ends() {
        let (here, there) = pair().unwrap();
        assert!(send(&here, &vec![1; MAX_BYTES + 1], &[]).is_err());
        assert!(send(&here, b"", &[]).is_err());
        let flags = SendFlags::NOSIGNAL;
        rustix::net::send(&here, &vec![1; MAX_BYTES + 1], flags).unwrap();
        assert_eq!(receive(&there).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_closed_end_is_an_error_without_a_signal() {
        let (here, there) = pair().unwrap();
        drop(there);
        assert_eq!(send(&here, b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
