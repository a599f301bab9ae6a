//! One connection of a VM: judged, connected, and copied in both directions.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::net::sockopt::set_socket_linger;
use skep_api::egress::EgressPolicy;
use skep_egress::{AddressRefusal, Rules};
use skep_keeper_protocol::EgressRefusal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::{
    connector,
    first_bytes::{self, FirstBytes},
    names::{self, is_placeholder},
    proxy::Proxy,
    transfer::Transfer,
    vms::{Outcome, Target, Vm},
};

/// How long the rest of a ClientHello or of a request's head may take.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest part of a name that a guest sent in the reason of a refusal.
const MAX_SHOWN_BYTES: usize = 64;

/// A connection that the packet filter redirected.
pub(crate) struct RedirectedConnection {
    pub(crate) guest: TcpStream,
    /// The address of the VM.
    pub(crate) source: Ipv4Addr,
    /// What the VM connected to.
    pub(crate) destination: SocketAddrV4,
}

/// Why a connection ends before any bytes are copied.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the policy does not allow it")]
    Policy,
    #[error("the address is a placeholder address of no name that the VM has looked up")]
    UnknownName,
    #[error(transparent)]
    Name(#[from] names::Error),
    #[error("the VM has too many connections")]
    TooMany,
    #[error("the VM opens too many connections at a time")]
    TooFast,
    #[error("the first bytes name \"{0}\", which the policy does not allow")]
    OtherHost(String),
    #[error("the first bytes name \"{0}\", which the operator forbids")]
    DeniedHost(String),
    #[error("the first bytes name no host that can be read")]
    UnreadableHost,
    #[error(transparent)]
    Connector(#[from] connector::Error),
    #[error("the VM ended the connection")]
    Guest(io::Error),
}

impl Error {
    fn outcome(&self) -> Outcome {
        let refusal = match self {
            Self::Connector(connector::Error::NotFound | connector::Error::Unreachable(_))
            | Self::Guest(_) => {
                return Outcome::Failed(self.to_string());
            }
            Self::Policy => EgressRefusal::Policy,
            Self::UnknownName => EgressRefusal::UnknownName,
            Self::TooMany | Self::TooFast => EgressRefusal::Limit,
            Self::Name(error) => error.refusal(),
            Self::OtherHost(_) => EgressRefusal::OtherHost,
            Self::UnreadableHost => EgressRefusal::UnreadableHost,
            Self::DeniedHost(_) => EgressRefusal::Operator,
            Self::Connector(connector::Error::Refused(refusal)) => match refusal {
                AddressRefusal::Denied => EgressRefusal::Operator,
                AddressRefusal::OwnAddress => EgressRefusal::OwnAddress,
                AddressRefusal::NotPublic => EgressRefusal::NotPublic,
            },
        };
        Outcome::Refused(refusal, self.to_string())
    }
}

/// Serves a connection until it ends, or the policy forbids it.
pub(crate) async fn handle(proxy: &Proxy, redirected: RedirectedConnection) {
    let RedirectedConnection { guest, source, destination } = redirected;
    // A VM without a policy: the packet filter lets no such connection through.
    let Some(vm) = proxy.vms.find(source) else { return reset(guest) };
    let (address, port) = (*destination.ip(), destination.port());
    let name = vm.name_of(&proxy.names, address);
    let target = Target { name, address: Some(address.into()), port: Some(port) };
    let Ok(_permit) = Arc::clone(&vm.connections).try_acquire_owned() else {
        return refuse(&vm, &target, guest, &Error::TooMany);
    };
    if vm.connection_rate.check().is_err() {
        return refuse(&vm, &target, guest, &Error::TooFast);
    }
    let mut guest = guest;
    let permits = |policy: &EgressPolicy| is_permitted(policy, &target, address, port);
    tokio::select! {
        biased;
        () = vm.policy_forbids(permits) => {
            let error = if target.name.is_none() && is_placeholder(address) { Error::UnknownName } else { Error::Policy };
            refuse(&vm, &target, guest, &error);
        }
        outcome = relay(proxy, &vm, &target, address, port, &mut guest) => match outcome {
            Ok(()) => {}
            Err(error) => refuse(&vm, &target, guest, &error),
        }
    }
}

/// Whether the policy permits a target. A placeholder address is permitted by its name only.
fn is_permitted(policy: &EgressPolicy, target: &Target, address: Ipv4Addr, port: u16) -> bool {
    match &target.name {
        Some(name) => policy.permits_name(name, port),
        None => !is_placeholder(address) && policy.permits_address(address, port),
    }
}

/// Connects, and copies until both directions have ended. Only errors before the copy are returned.
async fn relay(
    proxy: &Proxy,
    vm: &Vm,
    target: &Target,
    address: Ipv4Addr,
    port: u16,
    guest: &mut TcpStream,
) -> Result<(), Error> {
    if let Some(name) = &target.name {
        // The name may be one that a copy of another VM has not looked up itself, which counts from now on.
        vm.use_name(&proxy.names, name)?;
    }
    let rules = proxy.connector.rules();
    let check = HostCheck { vm, rules, by_name: target.name.is_some(), port };
    let connected = proxy.connector.connect(target.name.as_deref(), address.into(), port);
    let idle_time = proxy.vms.limits().idle;
    let mut first = Vec::new();
    let (outside, sender) = if check.is_needed() {
        connect_and_check(connected, &check, guest, &mut first, idle_time).await?
    } else {
        (connected.await?, FirstSender::Unknown)
    };
    let peer = outside.peer_addr().ok().map(|peer| peer.ip());
    vm.record(&Target { address: peer, ..target.clone() }, Outcome::Allowed);
    if sender != FirstSender::Nobody {
        // An error of the copy ends the connection. Both ends notice, because the streams are closed.
        let _ = copy(proxy, vm, guest, outside, &first).await;
    }
    Ok(())
}

/// Which end of a connection has sent the first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstSender {
    Guest,
    Host,
    /// The host ended the connection, or it was idle for too long.
    Nobody,
    /// The bytes need no check.
    Unknown,
}

/// Connects, and waits for the first bytes of either end. Those of the guest are read into `first` and checked. If the
/// host sends first, the protocol is neither TLS nor HTTP, and the guest's bytes need no check. There is no time after
/// which silence counts as such a protocol: the guest could wait that long, and then name any host.
async fn connect_and_check(
    connected: impl Future<Output = Result<TcpStream, connector::Error>>,
    check: &HostCheck<'_>,
    guest: &mut TcpStream,
    first: &mut Vec<u8>,
    idle_time: Duration,
) -> Result<(TcpStream, FirstSender), Error> {
    let (mut connected, mut byte) = (pin!(connected), [0]);
    let begun = tokio::select! {
        // If both ends have sent, the guest's bytes are checked.
        biased;
        begun = guest.peek(&mut byte) => begun,
        outside = &mut connected => {
            let outside = outside?;
            let sender = timeout(idle_time, first_sender(guest, &outside)).await;
            return match sender.unwrap_or(FirstSender::Nobody) {
                FirstSender::Guest => {
                    check.read(guest, first).await?;
                    Ok((outside, FirstSender::Guest))
                }
                other => Ok((outside, other)),
            };
        }
    };
    begun.map_err(Error::Guest)?;
    let connected = async { Ok(connected.await?) };
    let (outside, ()) = tokio::try_join!(connected, check.read(guest, first))?;
    Ok((outside, FirstSender::Guest))
}

/// Waits for bytes of either end, without reading them. The end of the guest's stream counts as bytes.
async fn first_sender(guest: &TcpStream, outside: &TcpStream) -> FirstSender {
    let (mut guest_byte, mut outside_byte) = ([0], [0]);
    tokio::select! {
        biased;
        _ = guest.peek(&mut guest_byte) => FirstSender::Guest,
        peeked = outside.peek(&mut outside_byte) => match peeked {
            Ok(1..) => FirstSender::Host,
            Ok(0) | Err(_) => FirstSender::Nobody,
        },
    }
}

/// The check of the hosts that the first bytes of a guest name.
struct HostCheck<'a> {
    vm: &'a Vm,
    rules: &'a Rules,
    /// Whether the target has a name. If it is an address that the policy lists, the first bytes may name any host.
    by_name: bool,
    port: u16,
}

impl HostCheck<'_> {
    /// `all` allows every name that the operator does not forbid.
    fn is_needed(&self) -> bool {
        self.rules.deny_hosts() || (self.by_name && *self.vm.policy() != EgressPolicy::All)
    }

    /// Reads first bytes into `first` until they can be judged.
    async fn read(&self, guest: &mut TcpStream, first: &mut Vec<u8>) -> Result<(), Error> {
        let deadline = Instant::now() + FIRST_BYTES_TIMEOUT;
        loop {
            let read = timeout_at(deadline, guest.read_buf(first)).await;
            let is_end = match read {
                Ok(Ok(bytes)) => bytes == 0,
                Ok(Err(error)) => return Err(Error::Guest(error)),
                Err(_) => return Err(Error::UnreadableHost),
            };
            match first_bytes::read(first) {
                FirstBytes::Hosts(hosts) => return self.judge(hosts),
                FirstBytes::NoHost => return Ok(()),
                FirstBytes::Malformed => return Err(Error::UnreadableHost),
                // A guest that sends nothing and ends its stream. The end is copied.
                FirstBytes::Incomplete if is_end && first.is_empty() => return Ok(()),
                FirstBytes::Incomplete if is_end || first.len() >= first_bytes::MAX_BYTES => {
                    return Err(Error::UnreadableHost);
                }
                FirstBytes::Incomplete => {}
            }
        }
    }

    fn judge(&self, hosts: Vec<String>) -> Result<(), Error> {
        let policy = self.vm.policy();
        for host in hosts {
            if self.rules.denies_host(&host) {
                return Err(Error::DeniedHost(shown(&host)));
            }
            if self.by_name && !policy.permits_name(&host, self.port) {
                return Err(Error::OtherHost(shown(&host)));
            }
        }
        Ok(())
    }
}

/// The beginning of a text of the guest, in visible ASCII.
fn shown(text: &str) -> String {
    text.escape_default().take(MAX_SHOWN_BYTES).collect()
}

async fn copy(
    proxy: &Proxy,
    vm: &Vm,
    guest: &mut TcpStream,
    mut outside: TcpStream,
    first: &[u8],
) -> io::Result<()> {
    outside.write_all(first).await?;
    vm.sent.total.fetch_add(first.len() as u64, Ordering::Relaxed);
    let moved = AtomicU64::new(0);
    let copied = {
        let (large, moved) = ([&vm.large_buffers, &proxy.large_buffers], &moved);
        let ((from_guest, to_guest), (from_outside, to_outside)) = (guest.split(), outside.split());
        let out = Transfer { from: from_guest, to: to_outside, direction: &vm.sent, moved, large };
        let back = Transfer { from: from_outside, to: to_guest, direction: &vm.received, moved, large };
        tokio::select! {
            // One that fails ends both.
            copied = async { tokio::try_join!(out.run(), back.run()) } => copied.map(drop),
            () = idle(moved, proxy.vms.limits().idle) => Ok(()),
        }
    };
    if copied.is_err() {
        // The other end learns that the connection broke, rather than ended.
        let _ = set_socket_linger(&*guest, Some(Duration::ZERO));
        let _ = set_socket_linger(&outside, Some(Duration::ZERO));
    }
    copied
}

/// Waits until no bytes have moved for the idle time.
async fn idle(moved: &AtomicU64, idle_time: Duration) {
    let mut before = None;
    loop {
        let now = Some(moved.load(Ordering::Relaxed));
        if now == before {
            return;
        }
        before = now;
        sleep(idle_time).await;
    }
}

fn refuse(vm: &Vm, target: &Target, guest: TcpStream, error: &Error) {
    vm.record(target, error.outcome());
    reset(guest);
}

/// Ends a connection so that the VM sees a reset.
pub(crate) fn reset(stream: TcpStream) {
    // If the option cannot be set, the connection ends by an ordinary close.
    let _ = set_socket_linger(&stream, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests;
