//! One connection of a VM: judged, connected, and copied in both directions.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::net::sockopt::set_socket_linger;
use skep_api::egress::EgressPolicy;
use skep_keeper_protocol::EgressRefusal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes},
    net::TcpStream,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    first_bytes::{self, FirstBytes},
    meter::Metered,
    names::is_of_name,
    outside,
    proxy::Proxy,
    rules::AddressRefusal,
    vms::{Outcome, Target, Vm},
};

/// How long to wait for first bytes. Then the connection belongs to a protocol whose server speaks first.
const SILENCE: Duration = Duration::from_millis(300);
/// How long the rest of a ClientHello or of a request's head may take.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);
/// The buffer of each direction, in bytes.
const BUFFER_BYTES: usize = 8 << 10;

/// A connection that the packet filter redirected.
pub(crate) struct Redirected {
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
    #[error("the address stands for no name")]
    UnknownName,
    #[error("the VM has too many connections")]
    TooMany,
    #[error("the VM opens too many connections at a time")]
    TooFast,
    #[error("the first bytes name {0:?}, which the policy does not allow")]
    OtherHost(String),
    #[error("the first bytes name no host that can be read")]
    UnreadableHost,
    #[error(transparent)]
    Outside(#[from] outside::Error),
    #[error("the VM ended the connection")]
    Guest(io::Error),
}

impl Error {
    fn outcome(&self) -> Outcome {
        let refusal = match self {
            Self::Outside(outside::Error::NotFound | outside::Error::Unreachable(_)) | Self::Guest(_) => {
                return Outcome::Failed(self.to_string());
            }
            Self::Policy => EgressRefusal::Policy,
            Self::UnknownName => EgressRefusal::UnknownName,
            Self::TooMany | Self::TooFast => EgressRefusal::Limit,
            Self::OtherHost(_) => EgressRefusal::OtherHost,
            Self::UnreadableHost => EgressRefusal::UnreadableHost,
            Self::Outside(outside::Error::Refused(refusal)) => match refusal {
                AddressRefusal::Denied => EgressRefusal::Operator,
                AddressRefusal::OwnAddress => EgressRefusal::OwnAddress,
                AddressRefusal::NotPublic => EgressRefusal::NotPublic,
            },
        };
        Outcome::Refused(refusal, self.to_string())
    }
}

/// Serves a connection until it ends, or the policy forbids it.
pub(crate) async fn handle(proxy: &Proxy, redirected: Redirected) {
    let Redirected { guest, source, destination } = redirected;
    // A VM without a policy: the packet filter lets no such connection through.
    let Some(vm) = proxy.vms.find(source) else { return reset(guest) };
    let (address, port) = (*destination.ip(), destination.port());
    let name = proxy.names.name(address);
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
            let error = if target.name.is_none() && is_of_name(address) { Error::UnknownName } else { Error::Policy };
            refuse(&vm, &target, guest, &error);
        }
        outcome = relay(proxy, &vm, &target, address, port, &mut guest) => match outcome {
            Ok(()) => {}
            Err(error) => refuse(&vm, &target, guest, &error),
        }
    }
}

/// Whether the policy permits a target. An address that may stand for a name is never meant itself.
fn is_permitted(policy: &EgressPolicy, target: &Target, address: Ipv4Addr, port: u16) -> bool {
    match &target.name {
        Some(name) => policy.permits_name(name, port),
        None => !is_of_name(address) && policy.permits_address(address, port),
    }
}

/// Connects, and copies until both directions have ended. An error of a connection that was made is its end.
async fn relay(
    proxy: &Proxy,
    vm: &Vm,
    target: &Target,
    address: Ipv4Addr,
    port: u16,
    guest: &mut TcpStream,
) -> Result<(), Error> {
    let mut first = Vec::new();
    let connected = async { Ok(proxy.outside.connect(target.name.as_deref(), address.into(), port).await?) };
    let (outside, ()) = match &target.name {
        Some(_) => tokio::try_join!(connected, check_first_bytes(vm, port, guest, &mut first))?,
        None => (connected.await?, ()),
    };
    let peer = outside.peer_addr().ok().map(|peer| peer.ip());
    vm.note(&Target { address: peer, ..target.clone() }, Outcome::Allowed);
    // Errors from here on are the end of the connection, which both ends learn by the drop of the streams.
    let _ = copy(vm, guest, outside, &first, proxy.vms.limits().idle).await;
    Ok(())
}

/// Reads first bytes into `first`, and checks the hosts that they name.
async fn check_first_bytes(
    vm: &Vm,
    port: u16,
    guest: &mut TcpStream,
    first: &mut Vec<u8>,
) -> Result<(), Error> {
    // `all` needs no check: every name is allowed.
    if *vm.policy() == EgressPolicy::All {
        return Ok(());
    }
    let begun = Instant::now();
    loop {
        let deadline = match first_bytes::read(first) {
            FirstBytes::Hosts(hosts) => return check_hosts(&vm.policy(), port, hosts),
            FirstBytes::NoHost => return Ok(()),
            FirstBytes::Malformed => return Err(Error::UnreadableHost),
            FirstBytes::Incomplete if first.len() >= first_bytes::MAX_BYTES => {
                return Err(Error::UnreadableHost);
            }
            FirstBytes::Incomplete => begun + FIRST_BYTES_TIMEOUT,
            FirstBytes::Silence => begun + SILENCE,
        };
        let is_incomplete = deadline > begun + SILENCE;
        match timeout_at(deadline, guest.read_buf(first)).await {
            // The end of the stream is copied like the bytes before it.
            Ok(Ok(0)) | Err(_) if is_incomplete => return Err(Error::UnreadableHost),
            Ok(Ok(0)) | Err(_) => return Ok(()),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(Error::Guest(error)),
        }
    }
}

fn check_hosts(policy: &EgressPolicy, port: u16, hosts: Vec<String>) -> Result<(), Error> {
    match hosts.into_iter().find(|host| !policy.permits_name(host, port)) {
        None => Ok(()),
        // The name comes from the guest.
        Some(host) => Err(Error::OtherHost(host.chars().take(64).collect())),
    }
}

async fn copy(
    vm: &Vm,
    guest: &mut TcpStream,
    mut outside: TcpStream,
    first: &[u8],
    idle_time: Duration,
) -> io::Result<()> {
    outside.write_all(first).await?;
    vm.sent.total.fetch_add(first.len() as u64, Ordering::Relaxed);
    let moved = Arc::new(AtomicU64::new(0));
    let idle = idle(&moved, idle_time);
    let mut guest = Metered::new(guest, &vm.sent, &moved);
    let mut outside = Metered::new(&mut outside, &vm.received, &moved);
    tokio::select! {
        copied = copy_bidirectional_with_sizes(&mut guest, &mut outside, BUFFER_BYTES, BUFFER_BYTES) => {
            if copied.is_err() {
                // The other end learns that the connection broke, rather than ended.
                let _ = set_socket_linger(&*guest.stream, Some(Duration::ZERO));
                let _ = set_socket_linger(&*outside.stream, Some(Duration::ZERO));
            }
            copied.map(drop)
        }
        () = idle => Ok(()),
    }
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
    vm.note(target, error.outcome());
    reset(guest);
}

/// Ends a connection so that the VM sees a reset.
pub(crate) fn reset(stream: TcpStream) {
    // After an error it ends by an ordinary close.
    let _ = set_socket_linger(&stream, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests;
