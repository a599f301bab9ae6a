//! The server's end: it asks, several things at once.

use std::{
    collections::HashMap,
    fs::File,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use skep_api::{HelperKind, VmId};
use tokio::{
    net::UnixStream,
    sync::{oneshot, watch},
};

use crate::{
    Answer, Envelope, Error, HeldVm, LIST_PART, Launched, Request, TlsPair, Usage, Welcome, socket::Socket,
};

/// A VMM that waits for its guest, and all that it is driven by.
#[derive(Debug)]
pub struct LaunchedVm {
    /// What is known of it.
    pub launched: Launched,
    /// Readable when the VMM has ended. The server may wait for it, and cannot signal by it: another user's process.
    pub pidfd: OwnedFd,
    /// The monitor.
    pub monitor: UnixStream,
    /// The channel to the guest's agent.
    pub agent: UnixStream,
    /// The serial console.
    pub console: UnixStream,
    /// The device state that is to be loaded, at its beginning.
    pub state: File,
}

/// A VMM whose guest runs already, and all that it is driven by.
#[derive(Debug)]
pub struct AttachedVm {
    /// What was told at its launch.
    pub launched: Launched,
    /// Readable when the VMM has ended.
    pub pidfd: OwnedFd,
    /// The monitor.
    pub monitor: UnixStream,
    /// The channel to the guest's agent.
    pub agent: UnixStream,
    /// The serial console.
    pub console: UnixStream,
}

/// The server's end. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerEnd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: Socket,
    next_id: AtomicU64,
    /// `None` once the keeper is gone.
    waiting: Mutex<Option<HashMap<u64, Waiter>>>,
    closed: watch::Sender<bool>,
}

type Reply = (Answer, Vec<OwnedFd>);
type Waiter = oneshot::Sender<Reply>;

impl ServerEnd {
    /// Takes the inherited descriptor and waits for the first packet: what the server has to know, and the listening
    /// sockets. Needs a runtime, on which it goes on reading.
    ///
    /// # Errors
    /// The keeper is gone, or this is no keeper's socket.
    pub async fn connect(descriptor: OwnedFd) -> Result<(Self, Welcome, Vec<OwnedFd>), Error> {
        let socket = Socket::new(descriptor)?;
        let (welcome, listeners) = socket.receive::<Welcome>().await?.ok_or(Error::Closed)?;
        let inner = Arc::new(Inner {
            socket,
            next_id: AtomicU64::new(1),
            waiting: Mutex::new(Some(HashMap::new())),
            closed: watch::Sender::new(false),
        });
        tokio::spawn(Arc::clone(&inner).read());
        Ok((Self(inner), welcome, listeners))
    }

    /// Has a VMM started, its guest not yet loaded. A caller that goes away meanwhile leaves no VMM behind.
    ///
    /// # Errors
    /// The keeper refused, or is gone.
    pub async fn launch(&self, vm: VmId, template: &str) -> Result<LaunchedVm, Error> {
        let request = Request::Launch { vm, template: template.to_owned() };
        match self.ask(request).await? {
            (Answer::Launched(launched), descriptors) => unpack(launched, descriptors),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Has a VMM ended and all that belongs to it cleared away. Tells whether the kernel had killed it for memory.
    ///
    /// # Errors
    /// The keeper does not hold it, or is gone.
    pub async fn end(&self, vm: VmId) -> Result<bool, Error> {
        match self.ask(Request::End { vm }).await? {
            (Answer::Ended { out_of_memory }, _) => Ok(out_of_memory),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// What a VMM uses now.
    ///
    /// # Errors
    /// The keeper does not hold it, or is gone.
    pub async fn usage(&self, vm: VmId) -> Result<Usage, Error> {
        match self.ask(Request::Usage { vm }).await? {
            (Answer::Usage(usage), _) => Ok(usage),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Has a VM outlive this server, because it is somebody's now. Until then it ends with it.
    ///
    /// # Errors
    /// The keeper does not hold it, cannot remember it, or is gone.
    pub async fn commit(&self, vm: VmId) -> Result<(), Error> {
        match self.ask(Request::Commit { vm }).await? {
            (Answer::Committed, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Has the packet filter let the guest of a VM reach the API at the bridge's address, until the VM ends. Keepers that come
    /// later remember it.
    ///
    /// # Errors
    /// The keeper does not hold it, cannot remember it, or is gone; or the packet filter could not be changed.
    pub async fn admit_to_api(&self, vm: VmId) -> Result<(), Error> {
        match self.ask(Request::AdmitToApi { vm }).await? {
            (Answer::Admitted, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The VMs that the keeper holds, in the order of their ids.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn list(&self) -> Result<Vec<HeldVm>, Error> {
        let mut held: Vec<HeldVm> = Vec::new();
        loop {
            let after = held.last().map(|held| held.launched.vm);
            match self.ask(Request::List { after }).await? {
                (Answer::List { vms }, _) => {
                    let is_last = vms.len() < LIST_PART;
                    held.extend(vms);
                    if is_last {
                        return Ok(held);
                    }
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }

    /// Has a VM that an earlier server drove connected anew. Its streams answer once that server's are closed.
    ///
    /// # Errors
    /// The keeper does not hold it, its VMM takes no connection, or the keeper is gone.
    pub async fn attach(&self, vm: VmId) -> Result<AttachedVm, Error> {
        match self.ask(Request::Attach { vm }).await? {
            (Answer::Attached(launched), descriptors) => {
                let [pidfd, monitor, agent, console] = exactly(descriptors)?;
                let (monitor, agent, console) = (stream(monitor)?, stream(agent)?, stream(console)?);
                Ok(AttachedVm { launched, pidfd, monitor, agent, console })
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The certificate and key of the HTTP service, where they are newer than the edition that was seen last. `serving` is
    /// the edition that is shown to callers: a later server begins with it.
    ///
    /// # Errors
    /// The keeper has none, or is gone.
    pub async fn tls(&self, seen: u64, serving: u64) -> Result<Option<TlsPair>, Error> {
        match self.ask(Request::Tls { seen, serving }).await? {
            (Answer::Tls { pair }, _) => Ok(pair),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// A process of this kind that starts programs for callers: a new one, which ends with the stream.
    ///
    /// # Errors
    /// It could not be started, or the keeper is gone.
    pub async fn helper(&self, kind: HelperKind) -> Result<UnixStream, Error> {
        match self.ask(Request::Helper { kind }).await? {
            (Answer::Helper, descriptors) => {
                let [socket] = exactly(descriptors)?;
                stream(socket)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Says that we serve, and waits until nothing is left of the server whose place we take.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn ready(&self) -> Result<(), Error> {
        match self.ask(Request::Ready).await? {
            (Answer::Alone, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Says that we cannot serve. No answer is waited for: we end.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn unable(&self, reason: String) -> Result<(), Error> {
        self.0.socket.send(&Envelope { id: 0, body: Request::Unable { reason } }, &[]).await
    }

    /// Has another server take our place. Soon after the answer this one is asked to end, as when everything stops. `false`:
    /// this server is what the restart that is under way brought, and goes on.
    ///
    /// # Errors
    /// The settings cannot start a server, and nothing happens; or the keeper is gone.
    pub async fn restart(&self) -> Result<bool, Error> {
        match self.ask(Request::Restart).await? {
            (Answer::Restarting, _) => Ok(true),
            (Answer::Restarted, _) => Ok(false),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Whether the keeper is gone.
    pub fn is_closed(&self) -> bool {
        *self.0.closed.borrow()
    }

    /// Waits until the keeper is gone. Then the server has to end.
    pub async fn closed(&self) {
        // The sender lives as long as `self`, so this ends by the value alone.
        let _ = self.0.closed.subscribe().wait_for(|closed| *closed).await;
    }

    async fn ask(&self, request: Request) -> Result<Reply, Error> {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let (waiter, reply) = oneshot::channel();
        self.0.with_waiting(|waiting| waiting.insert(id, waiter)).ok_or(Error::Closed)?;
        if let Err(error) = self.0.socket.send(&Envelope { id, body: request }, &[]).await {
            self.0.with_waiting(|waiting| waiting.remove(&id));
            return Err(error);
        }
        match reply.await {
            Ok((Answer::Refused(failure), _)) => Err(Error::Refused(failure)),
            Ok(reply) => Ok(reply),
            Err(_) => Err(Error::Closed),
        }
    }
}

impl Inner {
    async fn read(self: Arc<Self>) {
        loop {
            match self.socket.receive::<Envelope<Answer>>().await {
                Ok(Some((envelope, descriptors))) => self.deliver(envelope, descriptors).await,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "the keeper's socket is given up");
                    break;
                }
            }
        }
        // Each waiter that is dropped here tells its caller that the keeper is gone.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.closed.send_replace(true);
    }

    async fn deliver(&self, envelope: Envelope<Answer>, descriptors: Vec<OwnedFd>) {
        let waiter = self.with_waiting(|waiting| waiting.remove(&envelope.id)).flatten();
        let unclaimed = match waiter {
            Some(waiter) => waiter.send((envelope.body, descriptors)).err(),
            None => Some((envelope.body, descriptors)),
        };
        let Some((Answer::Launched(launched), _)) = unclaimed else { return };
        // Whoever wanted this VM went away. Nobody waits for the answer of this request either.
        let end = Envelope { id: 0, body: Request::End { vm: launched.vm } };
        if let Err(error) = self.socket.send(&end, &[]).await {
            tracing::warn!(vm = %launched.vm, %error, "VM {} is nobody's and could not be ended", launched.vm);
        }
    }

    /// `None` once the keeper is gone.
    fn with_waiting<T>(&self, change: impl FnOnce(&mut HashMap<u64, Waiter>) -> T) -> Option<T> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(change)
    }
}

fn unpack(launched: Launched, descriptors: Vec<OwnedFd>) -> Result<LaunchedVm, Error> {
    let [pidfd, monitor, agent, console, state] = exactly(descriptors)?;
    Ok(LaunchedVm {
        launched,
        pidfd,
        monitor: stream(monitor)?,
        agent: stream(agent)?,
        console: stream(console)?,
        state: state.into(),
    })
}

fn exactly<const COUNT: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; COUNT], Error> {
    <[OwnedFd; COUNT]>::try_from(descriptors)
        .map_err(|descriptors| Error::Protocol(format!("an answer with {} descriptors", descriptors.len())))
}

fn stream(descriptor: OwnedFd) -> Result<UnixStream, Error> {
    let stream = std::os::unix::net::UnixStream::from(descriptor);
    stream.set_nonblocking(true).map_err(Error::Io)?;
    UnixStream::from_std(stream).map_err(Error::Io)
}

fn unexpected(answer: &Answer) -> Error {
    Error::Protocol(format!("an answer to another question: {answer:?}"))
}
