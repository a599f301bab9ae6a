//! The network of the VMs: a network namespace with a bridge, and a tap with its own address for each VM.
//!
//! Processes in the namespace can connect to every VM. VMs cannot open connections: neither to the bridge's address,
//! nor to the host, nor to other VMs; see [`ruleset`]. The exceptions are the API at the bridge's address, for VMs that
//! were [admitted](Network::admit), and the listeners of the egress process, for VMs that have
//! [egress](Network::set_egress).

mod addresses;
mod error;
mod links;
mod listener;
mod namespace;
pub mod ruleset;
mod subnet;
mod tap;

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4, TcpListener},
    os::fd::OwnedFd,
    thread::JoinHandle,
};

use tokio::sync::{mpsc, oneshot};

pub use error::Error;
pub use subnet::Subnet;

use addresses::{AddressPool, Slot};
use links::Links;
use namespace::Namespace;
use ruleset::VmSet;

pub const BRIDGE: &str = "skep0";
/// The port of the API at the bridge's address.
pub const API_PORT: u16 = 7700;
/// The port that connections of VMs to the outside are redirected to.
const EGRESS_PORT: u16 = 7701;
/// The port of the DNS forwarder at the bridge's address.
const DNS_PORT: u16 = 53;
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

#[derive(Debug)]
pub struct Tap {
    /// To be inherited by the VMM. The kernel removes the tap when its last descriptor closes.
    pub fd: OwnedFd,
    pub port: Port,
}

/// A port of the bridge, and the addresses that may send there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The name of the tap device.
    pub name: String,
    pub ip: Ipv4Addr,
    pub prefix_len: u8,
    pub gateway: Ipv4Addr,
    /// The guest's MAC address: locally administered, derived from the IP address.
    pub mac: [u8; 6],
    slot: Slot,
}

/// The bytes that a VM received and sent, link-layer headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

/// Sockets in the namespace of the VMs for the egress process, in the order in which it inherits them.
#[derive(Debug)]
pub struct EgressListeners {
    /// To this one the packet filter redirects connections.
    pub proxy: OwnedFd,
    pub dns_udp: OwnedFd,
    pub dns_tcp: OwnedFd,
}

impl EgressListeners {
    /// Whether these are sockets at the bridge's address of this subnet, with the ports that they should have.
    pub fn are_of(&self, subnet: Subnet) -> bool {
        let has = |socket: &OwnedFd, port: u16| {
            let address =
                rustix::net::getsockname(socket).ok().and_then(|found| SocketAddrV4::try_from(found).ok());
            address == Some(SocketAddrV4::new(subnet.gateway(), port))
        };
        has(&self.proxy, EGRESS_PORT) && has(&self.dns_udp, DNS_PORT) && has(&self.dns_tcp, DNS_PORT)
    }
}

enum Request {
    Add(oneshot::Sender<Result<Tap, Error>>),
    AddAt(Ipv4Addr, oneshot::Sender<Result<Tap, Error>>),
    /// Begins or ends a reservation.
    Reserve(Ipv4Addr, bool, oneshot::Sender<Result<(), Error>>),
    EndReservations(oneshot::Sender<()>),
    Remove(Port, oneshot::Sender<Result<(), Error>>),
    Admit(Port, oneshot::Sender<Result<(), Error>>),
    SetEgress(Port, bool, oneshot::Sender<Result<(), Error>>),
    Listen(oneshot::Sender<Result<TcpListener, Error>>),
    ListenForEgress(oneshot::Sender<Result<EgressListeners, Error>>),
    Traffic(Port, oneshot::Sender<Result<Traffic, Error>>),
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

    async fn start(name: &str, subnet: Subnet, beginning: StartMode) -> Result<(Self, Vec<Port>), Error> {
        let (requests, queue) = mpsc::channel(QUEUE_CAPACITY);
        let (ready, outcome) = oneshot::channel();
        let owned = name.to_owned();
        let thread = std::thread::Builder::new()
            .name("network".to_owned())
            .spawn(move || serve(&owned, subnet, beginning, queue, ready))
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

    /// Creates a tap with a free address that was not used recently.
    ///
    /// # Errors
    /// All addresses are in use, or the system refused.
    pub async fn add_tap(&self) -> Result<Tap, Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Add(answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Creates a tap with this address, which is usually reserved.
    ///
    /// # Errors
    /// Another VM has the address, it is none of this network, or the system refused.
    pub async fn add_tap_at(&self, ip: Ipv4Addr) -> Result<Tap, Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::AddAt(ip, answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Keeps an address for a VM that has no port, or none soon. [`Network::add_tap`] does not assign it.
    ///
    /// # Errors
    /// It is no address of a VM in this network.
    pub async fn reserve(&self, ip: Ipv4Addr) -> Result<(), Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Reserve(ip, true, answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Ends a reservation. A port with the address keeps it.
    ///
    /// # Errors
    /// As [`Network::reserve`].
    pub async fn end_reservation(&self, ip: Ipv4Addr) -> Result<(), Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Reserve(ip, false, answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Ends all reservations, as [`Network::end_reservation`].
    ///
    /// # Errors
    /// The thread of the network has ended.
    pub async fn end_all_reservations(&self) -> Result<(), Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::EndReservations(answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)
    }

    /// Opens the listener of the API at the bridge's address, port [`API_PORT`]. Waits while another process still uses
    /// the address, such as the server of a killed keeper.
    ///
    /// # Errors
    /// The address stays in use for too long, or the system refused.
    pub async fn listen(&self) -> Result<TcpListener, Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Listen(answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Opens the listeners of the egress process. Waits like [`Network::listen`].
    ///
    /// # Errors
    /// As [`Network::listen`].
    pub async fn listen_for_egress(&self) -> Result<EgressListeners, Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::ListenForEgress(answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Sets whether connections of the VM at this port to the outside go to the egress process, until the port is
    /// removed.
    ///
    /// # Errors
    /// The port was removed, or the system refused.
    pub async fn set_egress(&self, port: Port, redirected: bool) -> Result<(), Error> {
        let (answer, outcome) = oneshot::channel();
        let request = Request::SetEgress(port, redirected, answer);
        self.requests.send(request).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Allows the VM at this port to reach the API, until the port is removed.
    ///
    /// # Errors
    /// The port was removed, or the system refused.
    pub async fn admit(&self, port: Port) -> Result<(), Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Admit(port, answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// The traffic of the VM at this port since its tap was created.
    ///
    /// # Errors
    /// The port was removed, or the system refused.
    pub async fn traffic(&self, port: Port) -> Result<Traffic, Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Traffic(port, answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Removes a port with its tap, even if a descriptor of it is still open, and releases its address.
    ///
    /// # Errors
    /// The system refused; the address stays taken.
    pub async fn remove(&self, port: Port) -> Result<(), Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Remove(port, answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
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

/// The address of a VM that an earlier process created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownAddress {
    pub ip: Ipv4Addr,
    /// Whether the VM was admitted to the API.
    pub admitted: bool,
    /// Whether its connections to the outside went to the egress process.
    pub egress: bool,
}

enum StartMode {
    New,
    Adopt(Vec<KnownAddress>),
}

/// Body of the network thread. All work in the namespace is done there, because a network namespace is per thread.
fn serve(
    name: &str,
    subnet: Subnet,
    beginning: StartMode,
    queue: mpsc::Receiver<Request>,
    ready: oneshot::Sender<Result<Vec<Port>, Error>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime.map_err(Error::io("runtime of the network")) {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error))),
    };
    runtime.block_on(async {
        let begun = match beginning {
            StartMode::New => NetworkState::create(name, subnet).await.map(|inside| (inside, Vec::new())),
            StartMode::Adopt(addresses) => NetworkState::adopt(name, subnet, &addresses).await,
        };
        match begun {
            Ok((inside, ports)) => {
                // If the receiver is gone, the queue is closed as well.
                let _ = ready.send(Ok(ports));
                inside.serve_requests(queue).await;
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    });
}

struct NetworkState {
    links: Links,
    bridge: u32,
    subnet: Subnet,
    addresses: AddressPool,
    /// VMs that may reach the API.
    admitted: BTreeSet<Slot>,
    /// VMs whose connections to the outside go to the egress process.
    egress: BTreeSet<Slot>,
}

impl NetworkState {
    async fn create(name: &str, subnet: Subnet) -> Result<Self, Error> {
        // Removed by its drop after an error.
        let namespace = Namespace::create(name)?;
        let inside = Self::build(subnet).await?;
        namespace.persist();
        Ok(inside)
    }

    async fn adopt(
        name: &str,
        subnet: Subnet,
        addresses: &[KnownAddress],
    ) -> Result<(Self, Vec<Port>), Error> {
        Namespace::enter(name)?;
        namespace::disable_forwarding()?;
        let links = Links::connect()?;
        let bridge = links.find(BRIDGE).await?;
        let mut inside = Self::new(links, bridge, subnet);
        let mut ports = Vec::new();
        let names = inside.links.names().await?;
        for known in addresses {
            let Some(slot) = subnet.slot(known.ip) else { continue };
            let port = inside.port(slot);
            if names.contains(&port.name) && inside.addresses.adopt(slot) {
                ports.push(port);
                if known.admitted {
                    inside.admitted.insert(slot);
                }
                if known.egress {
                    inside.egress.insert(slot);
                }
            }
        }
        let addresses = |slots: &BTreeSet<Slot>| -> Vec<Ipv4Addr> {
            slots.iter().map(|slot| subnet.address(*slot)).collect()
        };
        ruleset::load(subnet, &addresses(&inside.admitted), &addresses(&inside.egress))?;
        let fixed = |name: &str| name == BRIDGE || name == "lo";
        for name in names.iter().filter(|name| !fixed(name) && ports.iter().all(|port| port.name != **name)) {
            inside.links.delete(name).await?;
        }
        Ok((inside, ports))
    }

    async fn build(subnet: Subnet) -> Result<Self, Error> {
        namespace::disable_forwarding()?;
        // The filter first, so that no frame passes without it.
        ruleset::load(subnet, &[], &[])?;
        let links = Links::connect()?;
        links.set_up("lo").await?;
        let bridge = links.add_bridge(BRIDGE, subnet.mac(subnet.gateway())).await?;
        links.add_address(bridge, subnet.gateway(), subnet.prefix_len()).await?;
        links.set_up(BRIDGE).await?;
        Ok(Self::new(links, bridge, subnet))
    }

    fn new(links: Links, bridge: u32, subnet: Subnet) -> Self {
        Self {
            links,
            bridge,
            subnet,
            addresses: AddressPool::new(subnet.slots()),
            admitted: BTreeSet::new(),
            egress: BTreeSet::new(),
        }
    }

    async fn serve_requests(mut self, mut queue: mpsc::Receiver<Request>) {
        while let Some(request) = queue.recv().await {
            match request {
                Request::Add(answer) => {
                    let outcome = self.add().await;
                    self.hand_over(outcome, answer).await;
                }
                Request::AddAt(ip, answer) => {
                    let outcome = self.add_at(ip).await;
                    self.hand_over(outcome, answer).await;
                }
                Request::Reserve(ip, reserved, answer) => {
                    let _ = answer.send(self.reserve(ip, reserved));
                }
                Request::EndReservations(answer) => {
                    self.addresses.end_all_reservations();
                    let _ = answer.send(());
                }
                Request::Remove(port, answer) => {
                    let _ = answer.send(self.remove(&port).await);
                }
                Request::Admit(port, answer) => {
                    let _ = answer.send(self.admit(&port));
                }
                Request::SetEgress(port, redirected, answer) => {
                    let _ = answer.send(self.set_egress(&port, redirected));
                }
                Request::ListenForEgress(answer) => {
                    let _ = answer.send(listener::bind_for_egress(self.subnet.gateway()).await);
                }
                Request::Listen(answer) => {
                    let _ = answer.send(listener::bind(self.subnet.gateway(), API_PORT).await);
                }
                Request::Traffic(port, answer) => {
                    let _ = answer.send(self.traffic(&port).await);
                }
            }
        }
    }

    async fn hand_over(&mut self, outcome: Result<Tap, Error>, answer: oneshot::Sender<Result<Tap, Error>>) {
        if let Err(Ok(tap)) = answer.send(outcome) {
            // The caller is gone, so the address is released.
            let Tap { fd, port } = tap;
            drop(fd);
            let _ = self.remove(&port).await;
        }
    }

    fn reserve(&mut self, ip: Ipv4Addr, reserved: bool) -> Result<(), Error> {
        let slot = self.subnet.slot(ip).ok_or(Error::ForeignAddress(ip))?;
        if reserved {
            self.addresses.reserve(slot);
        } else {
            self.addresses.end_reservation(slot);
        }
        Ok(())
    }

    async fn add(&mut self) -> Result<Tap, Error> {
        let slot = self.addresses.take().ok_or(Error::NoAddress(self.subnet))?;
        self.add_with(slot).await
    }

    async fn add_at(&mut self, ip: Ipv4Addr) -> Result<Tap, Error> {
        let slot = self.subnet.slot(ip).ok_or(Error::ForeignAddress(ip))?;
        if !self.addresses.adopt(slot) {
            return Err(Error::AddressTaken(ip));
        }
        self.add_with(slot).await
    }

    /// Creates the tap of a slot that was taken for it.
    async fn add_with(&mut self, slot: Slot) -> Result<Tap, Error> {
        let port = self.port(slot);
        match self.attach(&port).await {
            Ok(fd) => Ok(Tap { fd, port }),
            Err(error) => {
                self.addresses.release(slot);
                Err(error)
            }
        }
    }

    fn port(&self, slot: Slot) -> Port {
        let ip = self.subnet.address(slot);
        Port {
            name: ruleset::tap_name(slot),
            ip,
            prefix_len: self.subnet.prefix_len(),
            gateway: self.subnet.gateway(),
            mac: self.subnet.mac(ip),
            slot,
        }
    }

    async fn attach(&self, port: &Port) -> Result<OwnedFd, Error> {
        let fd = tap::open(&port.name)?;
        self.links.add_port(&port.name, self.bridge).await?;
        Ok(fd)
    }

    /// Blocks for some milliseconds.
    fn admit(&mut self, port: &Port) -> Result<(), Error> {
        // If the VM ended meanwhile, the address may belong to another VM next.
        if !self.addresses.is_taken(port.slot) {
            return Err(Error::PortRemoved(port.ip));
        }
        ruleset::add(VmSet::ApiCallers, port.ip)?;
        self.admitted.insert(port.slot);
        Ok(())
    }

    /// Blocks for some milliseconds.
    fn set_egress(&mut self, port: &Port, redirected: bool) -> Result<(), Error> {
        if !self.addresses.is_taken(port.slot) {
            return Err(Error::PortRemoved(port.ip));
        }
        if redirected {
            ruleset::add(VmSet::Egress, port.ip)?;
            self.egress.insert(port.slot);
        } else if self.egress.contains(&port.slot) {
            ruleset::remove(VmSet::Egress, port.ip)?;
            self.egress.remove(&port.slot);
        }
        Ok(())
    }

    async fn traffic(&self, port: &Port) -> Result<Traffic, Error> {
        let counted = self.links.traffic(&port.name).await?.ok_or(Error::PortRemoved(port.ip))?;
        // What the host receives over the tap, the VM has sent.
        Ok(Traffic { received_bytes: counted.sent_bytes, sent_bytes: counted.received_bytes })
    }

    async fn remove(&mut self, port: &Port) -> Result<(), Error> {
        self.links.delete(&port.name).await?;
        // Before the address can be assigned to another VM.
        if self.admitted.contains(&port.slot) {
            ruleset::remove(VmSet::ApiCallers, port.ip)?;
            self.admitted.remove(&port.slot);
        }
        self.set_egress(port, false)?;
        self.addresses.release(port.slot);
        Ok(())
    }
}
