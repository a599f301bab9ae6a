//! The server's end. It sends requests, several concurrently.

use std::{
    collections::HashMap,
    fs::File,
    net::Ipv4Addr,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use skep_api::{HelperKind, TemplateId, VmId, egress::EgressReport};
use tokio::{
    net::UnixStream,
    sync::{oneshot, watch},
};

use crate::{
    Answer, EgressTotals, Envelope, Error, HeldVm, LIST_PAGE_SIZE, Launched, MachineMemory, OutOfMemory,
    Request, ServerSetup, TlsPair, Usage, VmEgress, socket::Socket,
};

/// A VMM that waits for its guest state, with the descriptors to control it.
#[derive(Debug)]
pub struct LaunchedVm {
    pub launched: Launched,
    /// Readable when the VMM has ended. The server cannot send signals by it, because the process has another user.
    pub pidfd: OwnedFd,
    pub monitor: UnixStream,
    /// The channel to the guest's agent.
    pub agent: UnixStream,
    pub console: UnixStream,
    /// The device state to load, positioned at its beginning.
    pub state: File,
}

/// A VMM whose guest runs, with the descriptors to control it.
#[derive(Debug)]
pub struct AttachedVm {
    pub launched: Launched,
    /// Readable when the VMM has ended.
    pub pidfd: OwnedFd,
    pub monitor: UnixStream,
    /// The channel to the guest's agent.
    pub agent: UnixStream,
    pub console: UnixStream,
}

/// The server's end. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerEnd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: Socket,
    next_id: AtomicU64,
    /// Requests without an answer yet, by id. `None` after the keeper is gone.
    waiting: Mutex<Option<HashMap<u64, Waiter>>>,
    closed: watch::Sender<bool>,
}

pub(crate) type Reply = (Answer, Vec<OwnedFd>);
type Waiter = oneshot::Sender<Reply>;

impl ServerEnd {
    /// Takes the inherited descriptor and waits for the first packet: the setup of the server, and the listening sockets.
    /// Spawns a task that reads answers, so it must run in a Tokio runtime.
    ///
    /// # Errors
    /// The keeper is gone, or this is not a keeper's socket.
    pub async fn connect(descriptor: OwnedFd) -> Result<(Self, ServerSetup, Vec<OwnedFd>), Error> {
        let socket = Socket::new(descriptor)?;
        let (setup, listeners) = socket.receive::<ServerSetup>().await?.ok_or(Error::Closed)?;
        let inner = Arc::new(Inner {
            socket,
            next_id: AtomicU64::new(1),
            waiting: Mutex::new(Some(HashMap::new())),
            closed: watch::Sender::new(false),
        });
        tokio::spawn(Arc::clone(&inner).read());
        Ok((Self(inner), setup, listeners))
    }

    /// Starts a VMM, whose guest state is not yet loaded, with this address or a free one. If the future is dropped, the VMM is ended.
    ///
    /// # Errors
    /// The keeper refused, or is gone.
    pub async fn launch(
        &self,
        vm: VmId,
        template: TemplateId,
        ip: Option<Ipv4Addr>,
    ) -> Result<LaunchedVm, Error> {
        match self.request(Request::Launch { vm, template, ip }).await? {
            (Answer::Launched(launched), descriptors) => unpack(launched, descriptors),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Ends a VMM and removes its resources. Returns whether and why it was ended because memory ran out.
    ///
    /// # Errors
    /// The keeper does not hold it, or is gone.
    pub async fn end(&self, vm: VmId) -> Result<Option<OutOfMemory>, Error> {
        match self.request(Request::End { vm }).await? {
            (Answer::Ended { out_of_memory }, _) => Ok(out_of_memory),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The current resource usage of a VMM.
    ///
    /// # Errors
    /// The keeper does not hold it, or is gone.
    pub async fn usage(&self, vm: VmId) -> Result<Usage, Error> {
        match self.request(Request::Usage { vm }).await? {
            (Answer::Usage(usage), _) => Ok(usage),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The memory of the machine.
    ///
    /// # Errors
    /// It cannot be read, or the keeper is gone.
    pub async fn memory(&self) -> Result<MachineMemory, Error> {
        match self.request(Request::Memory).await? {
            (Answer::Memory(memory), _) => Ok(memory),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Marks a VM as owned, so that it outlives this server. Uncommitted VMs end with their server.
    ///
    /// # Errors
    /// The keeper does not hold it, cannot record it, or is gone.
    pub async fn commit(&self, vm: VmId) -> Result<(), Error> {
        match self.request(Request::Commit { vm }).await? {
            (Answer::Committed, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Allows the guest of a VM to reach the API at the bridge's address, until the VM ends. A later keeper preserves
    /// this.
    ///
    /// # Errors
    /// The keeper does not hold it, cannot record it, or is gone; or the packet filter could not be changed.
    pub async fn admit_to_api(&self, vm: VmId) -> Result<(), Error> {
        match self.request(Request::AdmitToApi { vm }).await? {
            (Answer::Admitted, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Sets what the guest of a VM may connect to outside, until the VM ends. A later keeper preserves this.
    ///
    /// # Errors
    /// The keeper does not hold it, cannot record it, has no egress process, or is gone.
    pub async fn set_egress(&self, vm: VmId, egress: VmEgress) -> Result<(), Error> {
        match self.request(Request::SetEgress { vm, egress }).await? {
            (Answer::EgressSet, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// What the guest of a VM may connect to outside, and what it tried.
    ///
    /// # Errors
    /// As [`ServerEnd::set_egress`].
    pub async fn egress_report(&self, vm: VmId) -> Result<EgressReport, Error> {
        match self.request(Request::EgressReport { vm }).await? {
            (Answer::EgressReport(report), _) => Ok(report),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The sums over the connections of all VMs to hosts outside.
    ///
    /// # Errors
    /// The keeper is gone, or the egress process does not answer.
    pub async fn egress_totals(&self) -> Result<EgressTotals, Error> {
        match self.request(Request::EgressTotals).await? {
            (Answer::EgressTotals(totals), _) => Ok(totals),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// All running VMs, in the order of their ids.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn list(&self) -> Result<Vec<HeldVm>, Error> {
        let mut held: Vec<HeldVm> = Vec::new();
        loop {
            let after = held.last().map(|held| held.launched.vm);
            match self.request(Request::List { after }).await? {
                (Answer::List { vms }, _) => {
                    let is_last = vms.len() < LIST_PAGE_SIZE;
                    held.extend(vms);
                    if is_last {
                        return Ok(held);
                    }
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }

    /// Opens new streams to a VM that an earlier server controlled. The VMM serves them after that server's streams are
    /// closed.
    ///
    /// # Errors
    /// The keeper does not hold it, its VMM takes no connection, or the keeper is gone.
    pub async fn attach(&self, vm: VmId) -> Result<AttachedVm, Error> {
        match self.request(Request::Attach { vm }).await? {
            (Answer::Attached(launched), descriptors) => {
                let [pidfd, monitor, agent, console] = expect_descriptors(descriptors)?;
                let (monitor, agent, console) = (stream(monitor)?, stream(agent)?, stream(console)?);
                Ok(AttachedVm { launched, pidfd, monitor, agent, console })
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The certificate and key of the HTTP service, if newer than the edition `seen`. `serving` is the edition that the
    /// service uses; the next server begins with it.
    ///
    /// # Errors
    /// The keeper has no certificate, or is gone.
    pub async fn tls(&self, seen: u64, serving: u64) -> Result<Option<TlsPair>, Error> {
        match self.request(Request::Tls { seen, serving }).await? {
            (Answer::Tls { pair }, _) => Ok(pair),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Starts a new helper of this kind. It ends when the stream closes.
    ///
    /// # Errors
    /// It could not be started, or the keeper is gone.
    pub async fn helper(&self, kind: HelperKind) -> Result<UnixStream, Error> {
        match self.request(Request::Helper { kind }).await? {
            (Answer::Helper, descriptors) => {
                let [socket] = expect_descriptors(descriptors)?;
                stream(socket)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Reports that this server answers requests. For a server without a predecessor; others call [`Self::ready`]. Does not wait
    /// for an answer, because the keeper sends none.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn serving(&self) -> Result<(), Error> {
        self.0.socket.send(&Envelope { id: 0, body: Request::Serving }, &[]).await
    }

    /// Reports that this server is ready, and waits until its predecessor has ended.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn ready(&self) -> Result<(), Error> {
        match self.request(Request::Ready).await? {
            (Answer::Alone, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Reports that this server cannot start. Does not wait for an answer, because the process ends.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn unable(&self, reason: String) -> Result<(), Error> {
        self.0.socket.send(&Envelope { id: 0, body: Request::Unable { reason } }, &[]).await
    }

    /// Requests a restart. `true`: a successor is ready and this server gets SIGTERM soon. `false`: this server is
    /// itself the successor of a restart in progress, and keeps running.
    ///
    /// # Errors
    /// No server can be started with the current settings, and this one keeps running; or the keeper is gone.
    pub async fn restart(&self) -> Result<bool, Error> {
        match self.request(Request::Restart).await? {
            (Answer::Restarting, _) => Ok(true),
            (Answer::Restarted, _) => Ok(false),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Whether the keeper is gone.
    pub fn is_closed(&self) -> bool {
        *self.0.closed.borrow()
    }

    /// Waits until the keeper is gone. The server must end then.
    pub async fn closed(&self) {
        // The sender lives as long as `self`, so this never fails.
        let _ = self.0.closed.subscribe().wait_for(|closed| *closed).await;
    }

    pub(crate) async fn request(&self, request: Request) -> Result<Reply, Error> {
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
                    tracing::error!(%error, "no further answers of the keeper are read");
                    break;
                }
            }
        }
        // Dropping the waiters fails their requests with `Error::Closed`.
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
        // The caller of `launch` is gone, so the VM is ended. The answer of this request is ignored.
        let end = Envelope { id: 0, body: Request::End { vm: launched.vm } };
        if let Err(error) = self.socket.send(&end, &[]).await {
            tracing::warn!(vm = %launched.vm, %error, "the unclaimed VM {} could not be ended", launched.vm);
        }
    }

    /// `None` after the keeper is gone.
    fn with_waiting<T>(&self, change: impl FnOnce(&mut HashMap<u64, Waiter>) -> T) -> Option<T> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(change)
    }
}

fn unpack(launched: Launched, descriptors: Vec<OwnedFd>) -> Result<LaunchedVm, Error> {
    let [pidfd, monitor, agent, console, state] = expect_descriptors(descriptors)?;
    Ok(LaunchedVm {
        launched,
        pidfd,
        monitor: stream(monitor)?,
        agent: stream(agent)?,
        console: stream(console)?,
        state: state.into(),
    })
}

pub(crate) fn expect_descriptors<const COUNT: usize>(
    descriptors: Vec<OwnedFd>,
) -> Result<[OwnedFd; COUNT], Error> {
    <[OwnedFd; COUNT]>::try_from(descriptors)
        .map_err(|descriptors| Error::Protocol(format!("an answer with {} descriptors", descriptors.len())))
}

fn stream(descriptor: OwnedFd) -> Result<UnixStream, Error> {
    let stream = std::os::unix::net::UnixStream::from(descriptor);
    stream.set_nonblocking(true).map_err(Error::Io)?;
    UnixStream::from_std(stream).map_err(Error::Io)
}

pub(crate) fn unexpected(answer: &Answer) -> Error {
    Error::Protocol(format!("an answer to another question: {answer:?}"))
}
