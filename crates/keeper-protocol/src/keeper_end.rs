//! The keeper's end: it receives requests and answers them.

use std::{os::fd::OwnedFd, sync::Arc};

use crate::{Answer, Envelope, Error, Request, Welcome, socket::Socket};

/// The keeper's end.
#[derive(Debug)]
pub struct KeeperEnd {
    socket: Arc<Socket>,
}

impl KeeperEnd {
    /// Takes one end of [`crate::pair`]. Needs a runtime.
    ///
    /// # Errors
    /// The descriptor cannot be waited for.
    pub fn new(descriptor: OwnedFd) -> Result<Self, Error> {
        Ok(Self { socket: Arc::new(Socket::new(descriptor)?) })
    }

    /// Sends the first packet, with the listening sockets of the HTTP service.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn welcome(&self, welcome: &Welcome, listeners: &[OwnedFd]) -> Result<(), Error> {
        self.socket.send(welcome, listeners).await
    }

    /// The next request, and what answers it. `None`: the server is gone. May be dropped and called again.
    ///
    /// # Errors
    /// The server said something else. Whoever does so is not to be talked with further.
    pub async fn receive(&self) -> Result<Option<(Request, Answerer)>, Error> {
        let Some((envelope, descriptors)) = self.socket.receive::<Envelope<Request>>().await? else {
            return Ok(None);
        };
        if !descriptors.is_empty() {
            return Err(Error::Protocol("a request with descriptors".to_owned()));
        }
        Ok(Some((envelope.body, Answerer { id: envelope.id, socket: Arc::clone(&self.socket) })))
    }
}

/// Answers one request.
#[derive(Debug)]
pub struct Answerer {
    id: u64,
    socket: Arc<Socket>,
}

impl Answerer {
    /// Sends the answer, with the descriptors that belong to it.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn answer(self, answer: Answer, descriptors: &[OwnedFd]) -> Result<(), Error> {
        self.socket.send(&Envelope { id: self.id, body: answer }, descriptors).await
    }
}
