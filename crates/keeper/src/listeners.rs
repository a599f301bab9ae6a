//! The listening sockets of the HTTP service.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt::ipv6_v6only},
};

use crate::Error;

/// How many ports are tried if the kernel chooses the port, because it may be in use on the other loopback address.
const MAX_TRIES: usize = 100;

/// The open listeners.
pub(crate) struct Listeners {
    sockets: Vec<TcpListener>,
    /// Keeps the port of the first one from other programs, see [`reserve_other_loopback`].
    _reserved: Option<OwnedFd>,
}

impl Listeners {
    /// Listens at each address. The first one is that of the API and the dashboard.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::OtherLoopback`].
    pub(crate) fn open(addresses: &[SocketAddr]) -> Result<Self, Error> {
        let Some((first, others)) = addresses.split_first() else {
            return Ok(Self { sockets: Vec::new(), _reserved: None });
        };
        let (listener, reserved) = listen_and_reserve(*first)?;
        let others = others.iter().map(|address| listen_at(*address));
        let sockets = std::iter::once(Ok(listener)).chain(others).collect::<Result<_, _>>()?;
        Ok(Self { sockets, _reserved: reserved })
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }
}

fn listen_at(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).map_err(|source| Error::Listen { address, source })
}

fn listen_and_reserve(address: SocketAddr) -> Result<(TcpListener, Option<OwnedFd>), Error> {
    let mut tries = if address.port() == 0 { MAX_TRIES } else { 1 };
    loop {
        tries -= 1;
        let listener = listen_at(address)?;
        match reserve_other_loopback(&listener) {
            Ok(reserved) => return Ok((listener, reserved)),
            Err(Error::OtherLoopback { source, .. })
                if tries > 0 && source.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reserves the listener's port on the other loopback address until the returned socket is dropped. Returns `None` if there
/// is no such address to reserve.
///
/// Browsers try both `::1` and `127.0.0.1` for `localhost` and its subdomains. Without the reservation, another user's
/// program could listen on the address that the server does not use, and receive login links, cookies and keys. The socket
/// does not listen, so the kernel refuses connections to it, and browsers fall back to the server's address.
///
/// # Errors
/// [`Error::OtherLoopback`] if another program has the port there.
fn reserve_other_loopback(listener: &TcpListener) -> Result<Option<OwnedFd>, Error> {
    let own = listener.local_addr().map_err(Error::io("address of a listener"))?;
    let other: IpAddr = match own.ip().to_canonical() {
        IpAddr::V4(ip) if ip == Ipv4Addr::LOCALHOST || ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv4Addr::LOCALHOST.into(),
        // The socket accepts IPv4 connections too, unless `net.ipv6.bindv6only` is set.
        IpAddr::V6(ip) if ip.is_unspecified() && ipv6_v6only(listener).is_ok_and(|only| only) => {
            Ipv4Addr::LOCALHOST.into()
        }
        _ => return Ok(None),
    };
    let address = SocketAddr::new(other, own.port());
    match bound(address) {
        Ok(socket) => Ok(Some(socket)),
        // The machine has no IPv6, or no such address.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => Ok(None),
        Err(source) => Err(Error::OtherLoopback { own, address, source: io::Error::from(source) }),
    }
}

/// Binds a socket without listening on it. SO_REUSEADDR is not set, so the kernel refuses every other socket on this
/// address.
fn bound(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    fn kind<T>(outcome: io::Result<T>) -> Result<(), ErrorKind> {
        outcome.map(drop).map_err(|error| error.kind())
    }

    #[test]
    fn nobody_else_listens_at_the_other_loopback_address() {
        let has_ipv6 = bound(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))).is_ok();
        for (own, other) in [("127.0.0.1:0", "::1"), ("0.0.0.0:0", "::1"), ("[::1]:0", "127.0.0.1")] {
            if !has_ipv6 {
                eprintln!("this machine has no IPv6: only that the server starts was checked");
                assert!(Listeners::open(&["127.0.0.1:0".parse().unwrap()]).unwrap()._reserved.is_none());
                continue;
            }
            let Listeners { sockets, _reserved: reserved } =
                Listeners::open(&[own.parse().unwrap()]).unwrap();
            let port = sockets[0].local_addr().unwrap().port();
            let other = SocketAddr::new(other.parse().unwrap(), port);
            assert_eq!(kind(TcpListener::bind(other)), Err(ErrorKind::AddrInUse), "{own}");
            let connected = kind(TcpStream::connect(other));
            assert_eq!(connected, Err(ErrorKind::ConnectionRefused), "browsers go on to the server: {own}");
            // A VMM that inherited the socket would block the port after a restart of the keeper.
            assert!(fcntl_getfd(reserved.as_ref().unwrap()).unwrap().contains(FdFlags::CLOEXEC));
            drop(reserved);
            // Control: without the reservation another program can take the port, and then the service does not start.
            let _attacker = TcpListener::bind(other).unwrap();
            let error = reserve_other_loopback(&sockets[0]).unwrap_err().to_string();
            assert!(error.contains(&other.to_string()) && error.contains(&port.to_string()), "{error}");
        }
    }

    #[test]
    fn other_addresses_reserve_nothing() {
        for own in ["127.0.0.2:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(own) else { continue };
            let is_v6_only = listener.local_addr().unwrap().is_ipv6() && ipv6_v6only(&listener).unwrap();
            assert_eq!(reserve_other_loopback(&listener).unwrap().is_some(), is_v6_only, "{own}");
        }
    }
}
