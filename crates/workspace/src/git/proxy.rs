//! The HTTP proxy through which git uses https. It checks each address before it connects.
//!
//! Git connects to this proxy alone and passes the host name, whatever the URL spells and wherever a redirect leads.
//! The address that is checked is the one that is connected to.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream, lookup_host},
    task::{JoinHandle, JoinSet},
};

use super::address::Allowed;

/// Limit of a request's head, in bytes.
const LONGEST_HEAD: usize = 8 << 10;
/// Limit for connecting to one address.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// Limit for receiving the head.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Concurrent connections.
const MOST: usize = 32;

/// A proxy on loopback. Dropping it ends its connections.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    refused: Refusals,
    serving: JoinHandle<()>,
}

type Refusals = Arc<Mutex<Option<String>>>;

impl Proxy {
    pub(super) async fn start(allowed: Allowed) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let refused = Refusals::default();
        let serving = tokio::spawn(serve(listener, Arc::new(allowed), Arc::clone(&refused)));
        Ok(Self { address, refused, serving })
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The last host whose addresses were all forbidden.
    pub(super) fn refused(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, allowed: Arc<Allowed>, refused: Refusals) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((caller, _)) = listener.accept().await else { continue };
        while connections.len() >= MOST {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        let (allowed, refused) = (Arc::clone(&allowed), Arc::clone(&refused));
        connections.spawn(async move {
            let _ = connection(caller, &allowed, &refused).await;
        });
    }
}

async fn connection(mut caller: TcpStream, allowed: &Allowed, refused: &Refusals) -> io::Result<()> {
    let head = tokio::time::timeout(HEAD_LIMIT, head(&mut caller)).await??;
    let Some((host, port)) = target(&head) else {
        return caller.write_all(b"HTTP/1.1 405 Only CONNECT\r\nContent-Length: 0\r\n\r\n").await;
    };
    match connect(&host, port, allowed).await {
        Ok(mut server) => {
            caller.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
            copy_bidirectional(&mut caller, &mut server).await?;
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(host);
            caller.write_all(b"HTTP/1.1 403 Forbidden address\r\nContent-Length: 0\r\n\r\n").await
        }
        Err(_) => caller.write_all(b"HTTP/1.1 502 No answer\r\nContent-Length: 0\r\n\r\n").await,
    }
}

/// Connects to the first permitted address of a host that accepts the connection.
///
/// # Errors
/// `PermissionDenied` if none of its addresses is permitted.
async fn connect(host: &str, port: u16, allowed: &Allowed) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    let (mut forbidden, mut tried) = (false, false);
    for address in lookup_host((host, port)).await? {
        if !allowed.reaches(host, address.ip()) {
            forbidden = true;
            continue;
        }
        tried = true;
        match tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = io::ErrorKind::TimedOut.into(),
        }
    }
    if forbidden && !tried { Err(io::ErrorKind::PermissionDenied.into()) } else { Err(failure) }
}

/// The first permitted address of a host; `None` if there is none.
pub(super) async fn pinned(host: &str, port: u16, allowed: &Allowed) -> io::Result<Option<IpAddr>> {
    let mut addresses = lookup_host((host, port)).await?;
    Ok(addresses.find(|address| allowed.reaches(host, address.ip())).map(|address| address.ip()))
}

async fn head(caller: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == LONGEST_HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Byte by byte: the bytes after the head belong to the tunnel.
        head.push(caller.read_u8().await?);
    }
    Ok(head)
}

fn target(head: &[u8]) -> Option<(String, u16)> {
    let head = std::str::from_utf8(head).ok()?;
    let mut words = head.lines().next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if method != "CONNECT" || !version.starts_with("HTTP/1.") || words.next().is_some() {
        return None;
    }
    let (host, port) = target.rsplit_once(':')?;
    let host = host.strip_prefix('[').map_or(Some(host), |inner| inner.strip_suffix(']'))?;
    let fits = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then_some(())?;
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    async fn asked(proxy: &Proxy, target: &str) -> String {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn no_spelling_of_a_private_address_is_connected_to() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let proxy = Proxy::start(Allowed::default()).await.unwrap();
        let spellings = [
            "127.0.0.1",
            "localhost",
            "localhost.",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "017700000001",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "0",
            "0.0.0.0",
            "[::]",
            "LOCALHOST",
        ];
        for host in spellings {
            let answer = asked(&proxy, &format!("{host}:{port}")).await;
            // 502 where this machine's resolver does not take the spelling at all.
            assert!(answer.ends_with("403") || answer.ends_with("502"), "{host}: {answer}");
        }
        assert!(proxy.refused().is_some());
        // Positive control: the same addresses are connected to when they are allowed.
        let open = Proxy::start(Allowed::of(&["127.0.0.0/8".to_owned()])).await.unwrap();
        for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1"] {
            assert!(asked(&open, &format!("{host}:{port}")).await.ends_with("200"), "{host}");
        }
    }

    #[tokio::test]
    async fn it_speaks_nothing_but_connect() {
        let proxy = Proxy::start(Allowed::default()).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        stream.write_all(b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 405");
    }

    proptest! {
        #[test]
        fn any_head_is_read_or_refused(head in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = target(&head);
        }
    }
}
