//! An HTTP proxy that takes `CONNECT` only and checks each address before it connects.
//!
//! A program that connects only through this proxy sends it each host name, also after a redirect, and the proxy checks the
//! address that it connects to.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use crate::{
    allowlist::Reach,
    resolver::{Error, Resolver},
};

/// Limit of a request's head, in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Limit for receiving the head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait after a connection could not be accepted, usually because no descriptor is free: the connection
/// stays in the queue, so that another attempt without a pause would fail at once.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Concurrent connections.
const MAX_CONNECTIONS: usize = 32;

/// A proxy on loopback. Dropping it ends its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    refused: RefusedHost,
    server_task: JoinHandle<()>,
}

type RefusedHost = Arc<Mutex<Option<String>>>;

impl Proxy {
    /// Starts it on a free port.
    ///
    /// # Errors
    /// No socket can be bound.
    pub async fn start(resolver: Resolver) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let refused = RefusedHost::default();
        let serving = tokio::spawn(serve(listener, resolver, Arc::clone(&refused)));
        Ok(Self { address, refused, server_task: serving })
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The last host whose addresses were all forbidden.
    pub fn refused(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server_task.abort();
    }
}

async fn serve(listener: TcpListener, resolver: Resolver, refused: RefusedHost) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((caller, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        while connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        let (resolver, refused) = (resolver.clone(), Arc::clone(&refused));
        connections.spawn(async move {
            let _ = handle_connection(caller, &resolver, &refused).await;
        });
    }
}

async fn handle_connection(
    mut caller: TcpStream,
    resolver: &Resolver,
    refused: &RefusedHost,
) -> io::Result<()> {
    let head = tokio::time::timeout(HEAD_TIMEOUT, read_head(&mut caller)).await??;
    let Some((host, port)) = parse_connect(&head) else {
        return caller.write_all(b"HTTP/1.1 405 Only CONNECT\r\nContent-Length: 0\r\n\r\n").await;
    };
    let pinned = match resolver.resolve(&host, Reach::PublicOrListed).await {
        Ok(pinned) => pinned,
        Err(Error::Refused { host }) => {
            *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(host);
            return caller.write_all(b"HTTP/1.1 403 Forbidden address\r\nContent-Length: 0\r\n\r\n").await;
        }
        Err(Error::NotFound { .. }) => return no_answer(&mut caller).await,
    };
    let Ok(mut server) = pinned.connect(port).await else { return no_answer(&mut caller).await };
    caller.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
    copy_bidirectional(&mut caller, &mut server).await?;
    Ok(())
}

async fn no_answer(caller: &mut TcpStream) -> io::Result<()> {
    caller.write_all(b"HTTP/1.1 502 No answer\r\nContent-Length: 0\r\n\r\n").await
}

async fn read_head(caller: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_HEAD_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Byte by byte: the bytes after the head belong to the tunnel.
        head.push(caller.read_u8().await?);
    }
    Ok(head)
}

fn parse_connect(head: &[u8]) -> Option<(String, u16)> {
    let head = std::str::from_utf8(head).ok()?;
    let mut fields = head.lines().next()?.split(' ');
    let (method, target, version) = (fields.next()?, fields.next()?, fields.next()?);
    if method != "CONNECT" || !version.starts_with("HTTP/1.") || fields.next().is_some() {
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
    use crate::allowlist::Allowlist;

    async fn start(allow: &[&str]) -> Proxy {
        let allow: Vec<String> = allow.iter().map(|&entry| entry.to_owned()).collect();
        Proxy::start(Resolver::system(Allowlist::parse(&allow))).await.unwrap()
    }

    async fn connect_status(proxy: &Proxy, target: &str) -> String {
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
        let proxy = start(&[]).await;
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
            let answer = connect_status(&proxy, &format!("{host}:{port}")).await;
            // 502 where this machine's resolver does not take the spelling at all.
            assert!(answer.ends_with("403") || answer.ends_with("502"), "{host}: {answer}");
        }
        assert!(proxy.refused().is_some());
        // Positive control: the same addresses are connected to when they are allowed.
        let open = start(&["127.0.0.0/8"]).await;
        for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1"] {
            assert!(connect_status(&open, &format!("{host}:{port}")).await.ends_with("200"), "{host}");
        }
    }

    #[tokio::test]
    async fn it_speaks_nothing_but_connect() {
        let proxy = start(&[]).await;
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        stream.write_all(b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 405");
    }

    proptest! {
        #[test]
        fn any_head_is_read_or_refused(head in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse_connect(&head);
        }
    }
}
