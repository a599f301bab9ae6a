//! Asynchronous JSON packets. Each packet is sent and received atomically, so several tasks may send concurrently.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{fs::OFlags, io::Errno};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{Interest, unix::AsyncFd};

use crate::Error;

/// Registers a socket with the Tokio runtime that this is called in.
pub(crate) fn register(descriptor: OwnedFd) -> Result<AsyncFd<OwnedFd>, Error> {
    let non_blocking = || -> Result<(), Errno> {
        let flags = rustix::fs::fcntl_getfl(&descriptor)?;
        rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)
    };
    non_blocking().map_err(|error| Error::Io(error.into()))?;
    let interest = Interest::READABLE | Interest::WRITABLE;
    // SAFETY: the `OwnedFd` is moved in, so the descriptor stays open and unchanged as long as the `AsyncFd` exists.
    let registered = unsafe { AsyncFd::register_with_interest(descriptor, interest) };
    registered.map_err(|error| Error::Io(error.into()))
}

#[derive(Debug)]
pub(crate) struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    /// Must run in a Tokio runtime.
    pub(crate) fn new(descriptor: OwnedFd) -> Result<Self, Error> {
        register(descriptor).map(Self)
    }

    /// Deregisters the descriptor from the runtime and returns it.
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

    /// `None` if the other end is closed.
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
