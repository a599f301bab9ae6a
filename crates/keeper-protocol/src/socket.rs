//! Packets of JSON, asynchronously. Each is sent and received whole, so many tasks may send at once.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{fs::OFlags, io::Errno};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{Interest, unix::AsyncFd};

use crate::Error;

#[derive(Debug)]
pub(crate) struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    /// Needs a runtime.
    pub(crate) fn new(descriptor: OwnedFd) -> Result<Self, Error> {
        let non_blocking = || -> Result<(), Errno> {
            let flags = rustix::fs::fcntl_getfl(&descriptor)?;
            rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)
        };
        non_blocking().map_err(|error| Error::Io(error.into()))?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        // SAFETY: the `OwnedFd` moves in: it stays open, and the same, as long as the `AsyncFd` has it.
        let registered = unsafe { AsyncFd::register_with_interest(descriptor, interest) };
        Ok(Self(registered.map_err(|error| Error::Io(error.into()))?))
    }

    /// The descriptor, which is not waited for any more.
    pub(crate) fn into_descriptor(self) -> OwnedFd {
        self.0.into_inner()
    }

    pub(crate) async fn send(&self, message: &impl Serialize, descriptors: &[OwnedFd]) -> Result<(), Error> {
        let text = serde_json::to_vec(message).map_err(|error| Error::Protocol(error.to_string()))?;
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let sent = self
            .0
            .async_io(Interest::WRITABLE, |socket| skep_packet::send(socket, &text, &descriptors))
            .await;
        sent.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Error::Closed,
            _ => Error::Io(error),
        })
    }

    /// `None`: the other end is closed.
    pub(crate) async fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, Error> {
        let packet = match self.0.async_io(Interest::READABLE, |socket| skep_packet::receive(socket)).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => None,
            other => other.map_err(Error::Io)?,
        };
        let Some(packet) = packet else { return Ok(None) };
        let message =
            serde_json::from_slice(&packet.bytes).map_err(|error| Error::Protocol(error.to_string()))?;
        Ok(Some((message, packet.descriptors)))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
