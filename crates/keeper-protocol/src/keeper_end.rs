//! The keeper's end. It receives requests and answers them.
//!
//! The server may be hostile, and closing a descriptor that it sent may block: for example a TCP socket with
//! `SO_LINGER`. Descriptors of a received packet are closed in the receiving thread, and the kernel closes those of
//! unreceived packets in the thread that closes the socket. So a dedicated thread does both.

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

use crate::{Answer, Envelope, Error, Request, ServerSetup, socket::Socket};

/// Capacity of the channel from the receiving thread. When it is full, the thread waits and further requests stay in
/// the kernel's queue.
const QUEUE_CAPACITY: usize = 16;

type Received = Result<Envelope<Request>, Error>;

#[derive(Debug)]
pub struct KeeperEnd {
    sender: Arc<Sender>,
    requests: mpsc::Receiver<Received>,
}

impl KeeperEnd {
    /// Takes one end of [`crate::pair`]. Must run in a Tokio runtime.
    ///
    /// # Errors
    /// The descriptor cannot be polled, or no thread can be started.
    pub fn new(descriptor: OwnedFd) -> Result<Self, Error> {
        let readable = descriptor.try_clone().map_err(Error::Io)?;
        let (last, last_descriptor) = blocking::channel();
        let (received, requests) = mpsc::channel(QUEUE_CAPACITY);
        let sender = Arc::new(Sender { socket: Some(Socket::new(descriptor)?), descriptor_return: last });
        let receiving = thread::Builder::new().name("requests".to_owned());
        receiving.spawn(move || receive_all(readable, received, &last_descriptor)).map_err(Error::Io)?;
        Ok(Self { sender, requests })
    }

    /// Sends the first packet, with the listening sockets.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn send_setup(&self, setup: &ServerSetup, listeners: &[OwnedFd]) -> Result<(), Error> {
        self.sender.socket()?.send(setup, listeners).await
    }

    /// The next request, with its [`Answerer`]. `None` if the server is gone. Cancel-safe.
    ///
    /// # Errors
    /// The server sent an invalid packet. No further requests are received.
    pub async fn receive(&mut self) -> Result<Option<(Request, Answerer)>, Error> {
        let Some(received) = self.requests.recv().await else { return Ok(None) };
        let envelope = received?;
        Ok(Some((envelope.body, Answerer { id: envelope.id, sender: Arc::clone(&self.sender) })))
    }

    /// Shuts the socket down in both directions, even if other processes hold copies of it.
    pub fn close(&self) {
        if let Ok(socket) = self.sender.socket() {
            // The only possible error is that the other end is already closed.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

impl Drop for KeeperEnd {
    fn drop(&mut self) {
        // Wakes the receiving thread.
        self.close();
    }
}

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

/// The sending side of the socket. Its descriptor is closed by the receiving thread.
#[derive(Debug)]
struct Sender {
    /// `None` only in `drop`.
    socket: Option<Socket>,
    descriptor_return: blocking::Sender<OwnedFd>,
}

impl Sender {
    fn socket(&self) -> Result<&Socket, Error> {
        self.socket.as_ref().ok_or(Error::Closed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = self.descriptor_return.send(socket.into_descriptor());
        }
    }
}

/// Body of the receiving thread: receives until the end or the first error, then waits for the descriptor of the sender
/// and closes it.
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
        // Sent before the descriptors are closed, which may block forever.
        if requests.blocking_send(request).is_err() || is_last {
            break;
        }
    }
    drop((requests, socket));
    // Fails only if the sender's descriptor was not handed over, which does not happen.
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
