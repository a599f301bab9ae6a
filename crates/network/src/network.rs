//! The handle of the network, whose work a thread of its own does.

use std::{
    net::{Ipv4Addr, TcpListener},
    thread::JoinHandle,
};

use tokio::sync::{mpsc, oneshot};

use crate::{
    EgressListeners, Error, KnownAddress, Port, Subnet, Tap, Traffic, namespace,
    thread::{Request, StartMode, serve},
};

/// Capacity of the request queue of the network thread. The keeper launches only a few VMs concurrently.
const QUEUE_CAPACITY: usize = 16;

/// The network of one data directory. Dropping it does not remove the namespace, because VMs may outlive this process;
/// see [`Network::destroy`].
#[derive(Debug)]
pub struct Network {
    name: String,
    subnet: Subnet,
    requests: mpsc::Sender<Request>,
    thread: JoinHandle<()>,
}

impl Network {
    /// Creates the namespace `/run/netns/<name>` with bridge and packet filter.
    ///
    /// # Errors
    /// A namespace of that name exists, a program or kernel feature is missing, or the system refused. Nothing is left
    /// behind then.
    pub async fn create(name: &str, subnet: Subnet) -> Result<Self, Error> {
        Ok(Self::start(name, subnet, StartMode::New).await?.0)
    }

    /// Takes over the namespace of an earlier process and the ports of these addresses. Removes all other ports, and
    /// reloads the packet filter with the admitted addresses. Returns the existing ports; addresses without a port are
    /// skipped.
    ///
    /// # Errors
    /// There is no such namespace, it is incomplete, or the system refused. Nothing is removed then.
    pub async fn adopt(
        name: &str,
        subnet: Subnet,
        addresses: Vec<KnownAddress>,
    ) -> Result<(Self, Vec<Port>), Error> {
        Self::start(name, subnet, StartMode::Adopt(addresses)).await
    }

    async fn start(name: &str, subnet: Subnet, mode: StartMode) -> Result<(Self, Vec<Port>), Error> {
        let (requests, queue) = mpsc::channel(QUEUE_CAPACITY);
        let (ready, outcome) = oneshot::channel();
        let owned = name.to_owned();
        let thread = std::thread::Builder::new()
            .name("network".to_owned())
            .spawn(move || serve(&owned, subnet, mode, queue, ready))
            .map_err(Error::io("thread of the network"))?;
        let ports = outcome.await.unwrap_or(Err(Error::ThreadGone))?;
        Ok((Self { name: name.to_owned(), subnet, requests, thread }, ports))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// Sends a request to the thread, and waits for its answer.
    async fn request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request,
    ) -> Result<T, Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Creates a tap with a free address that was not used recently.
    ///
    /// # Errors
    /// All addresses are in use, or the system refused.
    pub async fn add_tap(&self) -> Result<Tap, Error> {
        self.request(Request::Add).await
    }

    /// Creates a tap with this address, which is usually reserved.
    ///
    /// # Errors
    /// Another VM has the address, it is none of this network, or the system refused.
    pub async fn add_tap_at(&self, ip: Ipv4Addr) -> Result<Tap, Error> {
        self.request(|answer| Request::AddAt(ip, answer)).await
    }

    /// Keeps an address for a VM that has no port, or none soon. [`Network::add_tap`] does not assign it.
    ///
    /// # Errors
    /// It is no address of a VM in this network.
    pub async fn reserve(&self, ip: Ipv4Addr) -> Result<(), Error> {
        self.request(|answer| Request::Reserve(ip, true, answer)).await
    }

    /// Ends a reservation. A port with the address keeps it.
    ///
    /// # Errors
    /// As [`Network::reserve`].
    pub async fn end_reservation(&self, ip: Ipv4Addr) -> Result<(), Error> {
        self.request(|answer| Request::Reserve(ip, false, answer)).await
    }

    /// Ends all reservations, as [`Network::end_reservation`].
    ///
    /// # Errors
    /// The thread of the network has ended.
    pub async fn end_all_reservations(&self) -> Result<(), Error> {
        self.request(Request::EndReservations).await
    }

    /// Opens the listener of the API at the bridge's address, port [`API_PORT`]. Waits while another process still uses
    /// the address, such as the server of a killed keeper.
    ///
    /// # Errors
    /// The address stays in use for too long, or the system refused.
    pub async fn listen(&self) -> Result<TcpListener, Error> {
        self.request(Request::Listen).await
    }

    /// Opens the listeners of the egress process. Waits like [`Network::listen`].
    ///
    /// # Errors
    /// As [`Network::listen`].
    pub async fn listen_for_egress(&self) -> Result<EgressListeners, Error> {
        self.request(Request::ListenForEgress).await
    }

    /// Sets whether connections of the VM at this port to the outside go to the egress process, until the port is
    /// removed.
    ///
    /// # Errors
    /// The port was removed, or the system refused.
    pub async fn set_egress(&self, port: Port, redirected: bool) -> Result<(), Error> {
        self.request(|answer| Request::SetEgress(port, redirected, answer)).await
    }

    /// Allows the VM at this port to reach the API, until the port is removed.
    ///
    /// # Errors
    /// The port was removed, or the system refused.
    pub async fn admit(&self, port: Port) -> Result<(), Error> {
        self.request(|answer| Request::Admit(port, answer)).await
    }

    /// The traffic of the VM at this port since its tap was created.
    ///
    /// # Errors
    /// The port was removed, or the system refused.
    pub async fn traffic(&self, port: Port) -> Result<Traffic, Error> {
        self.request(|answer| Request::Traffic(port, answer)).await
    }

    /// Removes a port with its tap, even if a descriptor of it is still open, and releases its address.
    ///
    /// # Errors
    /// The system refused; the address stays taken.
    pub async fn remove(&self, port: Port) -> Result<(), Error> {
        self.request(|answer| Request::Remove(port, answer)).await
    }

    /// Removes the namespace with everything in it.
    ///
    /// # Errors
    /// The system refused.
    pub async fn close(self) -> Result<(), Error> {
        let Self { name, requests, thread, .. } = self;
        drop(requests);
        let removal = tokio::task::spawn_blocking(move || {
            // An error means that the thread panicked, so it has ended as well.
            let _ = thread.join();
            Self::destroy(&name)
        });
        removal.await.map_err(|_| Error::ThreadGone)?
    }

    /// Removes a namespace by its name, if it exists, for example after a crash. Blocks.
    ///
    /// # Errors
    /// The system refused.
    pub fn destroy(name: &str) -> Result<(), Error> {
        namespace::remove_name(name)
    }
}
