//! The network of the VMs: a namespace with a bridge, and a tap with an address of its own for each VM.
//!
//! From the namespace every VM is reached at its address. A VM reaches nothing by itself: neither the bridge's address,
//! nor the machine, nor another VM; see [`ruleset`]. The one exception is the API at the bridge's address, for VMs that were
//! [admitted](Network::admit).

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
    net::{Ipv4Addr, TcpListener},
    os::fd::OwnedFd,
    thread::JoinHandle,
};

use tokio::sync::{mpsc, oneshot};

pub use error::Error;
pub use subnet::Subnet;

use addresses::{Addresses, Slot};
use links::Links;
use namespace::Namespace;

/// The bridge's name.
pub const BRIDGE: &str = "skep0";
/// The port of the API at the bridge's address.
pub const API_PORT: u16 = 7700;
/// Requests that wait for the namespace's thread; the keeper launches only a few VMs at once.
const QUEUE: usize = 16;

/// The network of one data directory. Its namespace goes with [`Network::destroy`], not with this value: VMs may outlive
/// the process that made it.
#[derive(Debug)]
pub struct Network {
    name: String,
    subnet: Subnet,
    requests: mpsc::Sender<Request>,
    thread: JoinHandle<()>,
}

/// A tap that no VM has opened yet.
#[derive(Debug)]
pub struct Tap {
    /// The device, to be inherited by the VMM. The tap goes when its last descriptor closes.
    pub fd: OwnedFd,
    /// Who it is.
    pub port: Port,
}

/// A port of the bridge, and who may speak there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The tap's name in the namespace.
    pub name: String,
    /// The guest's address.
    pub ip: Ipv4Addr,
    /// Length of the network's prefix.
    pub prefix_len: u8,
    /// The bridge's address.
    pub gateway: Ipv4Addr,
    /// The guest's hardware address: locally administered, derived from the address.
    pub mac: [u8; 6],
    slot: Slot,
}

enum Request {
    Add(oneshot::Sender<Result<Tap, Error>>),
    Remove(Port, oneshot::Sender<Result<(), Error>>),
    Admit(Port, oneshot::Sender<Result<(), Error>>),
    Listen(oneshot::Sender<Result<TcpListener, Error>>),
}

impl Network {
    /// Makes the namespace `/run/netns/<name>` with its bridge and packet filter.
    ///
    /// # Errors
    /// A namespace of that name exists, a program or kernel part is missing, or the system refused. Nothing is left then.
    pub async fn create(name: &str, subnet: Subnet) -> Result<Self, Error> {
        Ok(Self::begin(name, subnet, Beginning::New).await?.0)
    }

    /// Takes over the namespace that an earlier process made, with the ports of these addresses; every other port is
    /// taken away. The packet filter is loaded again, with the addresses that were admitted. Answers the ports that are there:
    /// an address without one is left out.
    ///
    /// # Errors
    /// There is no such namespace, it is not as it was made, or the system refused. What is there stays then.
    pub async fn adopt(
        name: &str,
        subnet: Subnet,
        addresses: Vec<Known>,
    ) -> Result<(Self, Vec<Port>), Error> {
        Self::begin(name, subnet, Beginning::Adopt(addresses)).await
    }

    async fn begin(name: &str, subnet: Subnet, beginning: Beginning) -> Result<(Self, Vec<Port>), Error> {
        let (requests, queue) = mpsc::channel(QUEUE);
        let (ready, outcome) = oneshot::channel();
        let owned = name.to_owned();
        let thread = std::thread::Builder::new()
            .name("network".to_owned())
            .spawn(move || serve(&owned, subnet, beginning, queue, ready))
            .map_err(Error::io("thread of the network"))?;
        let ports = outcome.await.unwrap_or(Err(Error::ThreadGone))?;
        Ok((Self { name: name.to_owned(), subnet, requests, thread }, ports))
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The addresses in use.
    pub fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// Makes a tap with an address that no other has, and that was not in use lately.
    ///
    /// # Errors
    /// All addresses are in use, or the system refused.
    pub async fn add_tap(&self) -> Result<Tap, Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Add(answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Listens for the API at the bridge's address, port [`API_PORT`]. Where another process listens there still, such as the
    /// server of a keeper that was killed, it is waited for.
    ///
    /// # Errors
    /// It listens for too long, or the system refused.
    pub async fn listen(&self) -> Result<TcpListener, Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Listen(answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Lets the VM at this port reach the API, until the port is removed.
    ///
    /// # Errors
    /// The port was removed, or the system refused.
    pub async fn admit(&self, port: Port) -> Result<(), Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Admit(port, answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Gives a port's address back. Its tap is gone then, even where a descriptor of it is still open somewhere.
    ///
    /// # Errors
    /// The system refused; the address stays taken.
    pub async fn remove(&self, port: Port) -> Result<(), Error> {
        let (answer, outcome) = oneshot::channel();
        self.requests.send(Request::Remove(port, answer)).await.map_err(|_| Error::ThreadGone)?;
        outcome.await.map_err(|_| Error::ThreadGone)?
    }

    /// Takes the namespace away, with all that is in it.
    ///
    /// # Errors
    /// The system refused.
    pub async fn close(self) -> Result<(), Error> {
        let Self { name, requests, thread, .. } = self;
        drop(requests);
        let removal = tokio::task::spawn_blocking(move || {
            // A thread that panicked has ended as well.
            let _ = thread.join();
            Self::destroy(&name)
        });
        removal.await.map_err(|_| Error::ThreadGone)?
    }

    /// Takes a namespace away by its name, such as one that a crash left. One that does not exist is no error. Blocks.
    ///
    /// # Errors
    /// The system refused.
    pub fn destroy(name: &str) -> Result<(), Error> {
        namespace::unbind(name)
    }
}

/// An address that an earlier process gave to a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The address.
    pub ip: Ipv4Addr,
    /// Whether the VM was admitted to the API.
    pub admitted: bool,
}

/// How a network begins.
enum Beginning {
    New,
    Adopt(Vec<Known>),
}

/// All that is done inside the namespace happens on this thread: a namespace is a thread's.
fn serve(
    name: &str,
    subnet: Subnet,
    beginning: Beginning,
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
            Beginning::New => Inside::make(name, subnet).await.map(|inside| (inside, Vec::new())),
            Beginning::Adopt(addresses) => Inside::adopt(name, subnet, &addresses).await,
        };
        match begun {
            Ok((inside, ports)) => {
                // Nobody waits any more: the queue is closed then too.
                let _ = ready.send(Ok(ports));
                inside.answer(queue).await;
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    });
}

/// What the thread knows.
struct Inside {
    links: Links,
    bridge: u32,
    subnet: Subnet,
    addresses: Addresses,
    /// Those that reach the API.
    admitted: BTreeSet<Slot>,
}

impl Inside {
    async fn make(name: &str, subnet: Subnet) -> Result<Self, Error> {
        // Goes again with an error.
        let namespace = Namespace::create(name)?;
        let inside = Self::build(subnet).await?;
        namespace.keep();
        Ok(inside)
    }

    async fn adopt(name: &str, subnet: Subnet, addresses: &[Known]) -> Result<(Self, Vec<Port>), Error> {
        Namespace::enter(name)?;
        namespace::forbid_forwarding()?;
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
            }
        }
        let admitted: Vec<Ipv4Addr> = inside.admitted.iter().map(|slot| subnet.address(*slot)).collect();
        ruleset::load(subnet, &admitted)?;
        let fixed = |name: &str| name == BRIDGE || name == "lo";
        for name in names.iter().filter(|name| !fixed(name) && ports.iter().all(|port| port.name != **name)) {
            inside.links.delete(name).await?;
        }
        Ok((inside, ports))
    }

    async fn build(subnet: Subnet) -> Result<Self, Error> {
        namespace::forbid_forwarding()?;
        // First the filter: no frame passes before it.
        ruleset::load(subnet, &[])?;
        let links = Links::connect()?;
        links.up("lo").await?;
        let bridge = links.add_bridge(BRIDGE, subnet.mac(subnet.gateway())).await?;
        links.add_address(bridge, subnet.gateway(), subnet.prefix_len()).await?;
        links.up(BRIDGE).await?;
        Ok(Self::new(links, bridge, subnet))
    }

    fn new(links: Links, bridge: u32, subnet: Subnet) -> Self {
        Self { links, bridge, subnet, addresses: Addresses::new(subnet.slots()), admitted: BTreeSet::new() }
    }

    async fn answer(mut self, mut queue: mpsc::Receiver<Request>) {
        while let Some(request) = queue.recv().await {
            match request {
                Request::Add(answer) => {
                    let outcome = self.add().await;
                    if let Err(Ok(tap)) = answer.send(outcome) {
                        // Whoever asked has gone; its address must not be lost.
                        let Tap { fd, port } = tap;
                        drop(fd);
                        let _ = self.remove(&port).await;
                    }
                }
                Request::Remove(port, answer) => {
                    let _ = answer.send(self.remove(&port).await);
                }
                Request::Admit(port, answer) => {
                    let _ = answer.send(self.admit(&port));
                }
                Request::Listen(answer) => {
                    let _ = answer.send(listener::at(self.subnet.gateway(), API_PORT).await);
                }
            }
        }
    }

    async fn add(&mut self) -> Result<Tap, Error> {
        let slot = self.addresses.take().ok_or(Error::NoAddress(self.subnet))?;
        let port = self.port(slot);
        match self.attach(&port).await {
            Ok(fd) => Ok(Tap { fd, port }),
            Err(error) => {
                self.addresses.give_back(slot);
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
        // One that ended meanwhile: its address may be another VM's next.
        if !self.addresses.is_taken(port.slot) {
            return Err(Error::Gone(port.ip));
        }
        ruleset::admit(port.ip)?;
        self.admitted.insert(port.slot);
        Ok(())
    }

    async fn remove(&mut self, port: &Port) -> Result<(), Error> {
        self.links.delete(&port.name).await?;
        // Before the address can be another VM's.
        if self.admitted.contains(&port.slot) {
            ruleset::dismiss(port.ip)?;
            self.admitted.remove(&port.slot);
        }
        self.addresses.give_back(port.slot);
        Ok(())
    }
}
