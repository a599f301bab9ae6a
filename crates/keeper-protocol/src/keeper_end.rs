//! The keeper's end: it receives requests and answers them.
//!
//! The server at the other end may be hostile, and the close of a descriptor that it sent may block: of a TCP socket with
//! `SO_LINGER` for as long as the server likes. The kernel closes what comes with a packet in the thread that receives it, and
//! what was not received in the thread that closes the socket. So one thread, which does nothing else, does both.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, mpsc as blocking},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
    net::{Shutdown, shutdown},
};
use skep_packet::Packet;
use tokio::sync::mpsc;

use crate::{Answer, Envelope, Error, Request, Welcome, socket::Socket};

/// Requests that were received and that nobody took yet. The thread waits for room; the rest stays in the kernel's queue.
const QUEUE: usize = 16;

type Received = Result<Envelope<Request>, Error>;

/// The keeper's end.
#[derive(Debug)]
pub struct KeeperEnd {
    sender: Arc<Sender>,
    requests: mpsc::Receiver<Received>,
}

impl KeeperEnd {
    /// Takes one end of [`crate::pair`]. Needs a runtime.
    ///
    /// # Errors
    /// The descriptor cannot be waited for, or no thread can be started.
    pub fn new(descriptor: OwnedFd) -> Result<Self, Error> {
        let readable = descriptor.try_clone().map_err(Error::Io)?;
        let (last, last_descriptor) = blocking::channel();
        let (received, requests) = mpsc::channel(QUEUE);
        let sender = Arc::new(Sender { socket: Some(Socket::new(descriptor)?), last });
        let receiving = thread::Builder::new().name("requests".to_owned());
        receiving.spawn(move || receive_all(readable, received, &last_descriptor)).map_err(Error::Io)?;
        Ok(Self { sender, requests })
    }

    /// Sends the first packet, with the listening sockets.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn welcome(&self, welcome: &Welcome, listeners: &[OwnedFd]) -> Result<(), Error> {
        self.sender.socket()?.send(welcome, listeners).await
    }

    /// The next request, and what answers it. `None`: the server is gone. May be dropped and called again.
    ///
    /// # Errors
    /// The server sent something else. Nothing is received after it.
    pub async fn receive(&mut self) -> Result<Option<(Request, Answerer)>, Error> {
        let Some(received) = self.requests.recv().await else { return Ok(None) };
        let envelope = received?;
        Ok(Some((envelope.body, Answerer { id: envelope.id, sender: Arc::clone(&self.sender) })))
    }

    /// Ends the conversation, whoever still holds the other end: no request is received, no answer is sent any more.
    pub fn close(&self) {
        if let Ok(socket) = self.sender.socket() {
            // The only error is that the other end is closed already.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

impl Drop for KeeperEnd {
    fn drop(&mut self) {
        // Wakes the thread that receives.
        self.close();
    }
}

/// Answers one request.
#[derive(Debug)]
pub struct Answerer {
    id: u64,
    sender: Arc<Sender>,
}

impl Answerer {
    /// Sends the answer, with the descriptors that belong to it.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn answer(self, answer: Answer, descriptors: &[OwnedFd]) -> Result<(), Error> {
        self.sender.socket()?.send(&Envelope { id: self.id, body: answer }, descriptors).await
    }
}

/// The socket as answers are sent by it. Its descriptor is closed by the thread that receives.
#[derive(Debug)]
struct Sender {
    /// `None` only while this is dropped.
    socket: Option<Socket>,
    last: blocking::Sender<OwnedFd>,
}

impl Sender {
    fn socket(&self) -> Result<&Socket, Error> {
        self.socket.as_ref().ok_or(Error::Closed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = self.last.send(socket.into_descriptor());
        }
    }
}

/// What the thread does: receives until the end or the first error, then waits for the last descriptor and closes it.
fn receive_all(socket: OwnedFd, requests: mpsc::Sender<Received>, last: &blocking::Receiver<OwnedFd>) {
    loop {
        let Packet { bytes, descriptors } = match next_packet(&socket) {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(error) => {
                let _ = requests.blocking_send(Err(Error::Io(error)));
                break;
            }
        };
        let request = if descriptors.is_empty() {
            serde_json::from_slice(&bytes).map_err(|error| Error::Protocol(error.to_string()))
        } else {
            Err(Error::Protocol("a request with descriptors".to_owned()))
        };
        let is_last = request.is_err();
        // Before the descriptors are closed, which may take for ever.
        if requests.blocking_send(request).is_err() || is_last {
            break;
        }
    }
    drop((requests, socket));
    // An error means that it was closed elsewhere, which nobody does.
    let _ = last.recv();
}

fn next_packet(socket: &OwnedFd) -> io::Result<Option<Packet>> {
    loop {
        retry_on_intr(|| poll(&mut [PollFd::new(socket, PollFlags::IN)], None))?;
        match skep_packet::receive(socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            received => return received,
        }
    }
}
