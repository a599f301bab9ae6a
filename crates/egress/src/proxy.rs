//! An HTTP proxy that takes `CONNECT` only and checks each address before it connects.
//!
//! A program that connects only through this proxy sends it each host name, also after a redirect, and the proxy checks the
//! address that it connects to. Its URL holds a password, so that no other program of the machine can use it.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use data_encoding::{BASE64, HEXLOWER};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use crate::{
    resolver::{Error, PinnedAddresses, Resolver},
    rules::Reach,
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
/// The user in the URL of a proxy. Only the password differs between proxies.
const USER: &str = "skep";

/// Which addresses of a host may be connected to at a port. `None`: none at all.
pub type HostRules = Box<dyn Fn(&str, u16) -> Option<Reach> + Send + Sync>;

/// A proxy on loopback. Dropping it ends its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    gate: Arc<Gate>,
    server_task: JoinHandle<()>,
}

/// What decides about connections.
struct Gate {
    resolver: Resolver,
    hosts: HostRules,
    password: Password,
    refused: Mutex<Option<RefusedHost>>,
}

/// A host that was not connected to, because of the rules for hosts or because all of its addresses are forbidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedHost {
    pub host: String,
    pub port: u16,
}

impl Gate {
    async fn resolve(&self, host: &str, port: u16) -> Result<PinnedAddresses, Error> {
        match (self.hosts)(host, port) {
            Some(reach) => self.resolver.resolve(host, reach).await,
            None => Err(Error::Refused { host: host.to_owned() }),
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// The password of a proxy.
struct Password(String);

impl Proxy {
    /// Starts it on a free port, with a new password.
    ///
    /// # Errors
    /// No socket can be bound, or the kernel has no random bytes.
    pub async fn start(resolver: Resolver, hosts: HostRules) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, password) = (listener.local_addr()?, Password::random()?);
        let gate = Arc::new(Gate { resolver, hosts, password, refused: Mutex::default() });
        let server_task = tokio::spawn(serve(listener, Arc::clone(&gate)));
        Ok(Self { address, gate, server_task })
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL with user and password.
    pub fn url(&self) -> String {
        format!("http://{USER}:{}@{}", self.gate.password.0, self.address)
    }

    /// The last host that was refused.
    pub fn refused(&self) -> Option<RefusedHost> {
        self.gate.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Password {
    fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        let count = getrandom(&mut bytes, GetRandomFlags::empty())?;
        if count == bytes.len() {
            Ok(Self(HEXLOWER.encode(&bytes)))
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Whether the head of a request has this password (RFC 7617, `Proxy-Authorization` of RFC 9110).
    fn is_in(&self, head: &[u8]) -> bool {
        let expected = format!("Basic {}", BASE64.encode(format!("{USER}:{}", self.0).as_bytes()));
        let Ok(head) = std::str::from_utf8(head) else { return false };
        let mut fields = head.lines().filter_map(|line| line.split_once(':'));
        fields
            .any(|(name, value)| name.eq_ignore_ascii_case("proxy-authorization") && value.trim() == expected)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server_task.abort();
    }
}

async fn serve(listener: TcpListener, gate: Arc<Gate>) {
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
        let gate = Arc::clone(&gate);
        connections.spawn(async move {
            let _ = handle_connection(caller, &gate).await;
        });
    }
}

async fn handle_connection(mut caller: TcpStream, gate: &Gate) -> io::Result<()> {
    let head = tokio::time::timeout(HEAD_TIMEOUT, read_head(&mut caller)).await??;
    if !gate.password.is_in(&head) {
        const UNAUTHENTICATED: &[u8] = b"HTTP/1.1 407 Proxy Authentication Required\r\n\
            Proxy-Authenticate: Basic realm=\"skep\"\r\nContent-Length: 0\r\n\r\n";
        return caller.write_all(UNAUTHENTICATED).await;
    }
    let Some((host, port)) = parse_connect(&head) else {
        return caller.write_all(b"HTTP/1.1 405 Only CONNECT\r\nContent-Length: 0\r\n\r\n").await;
    };
    let pinned = match gate.resolve(&host, port).await {
        Ok(pinned) => pinned,
        Err(Error::Refused { host }) => {
            let refused = RefusedHost { host, port };
            *gate.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(refused);
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
    use crate::{allowlist::Allowlist, networks::Networks, rules::Rules};

    /// Other ports are reached only at hosts that the operator allows.
    fn open_at(open_port: u16) -> HostRules {
        Box::new(move |_, port| Some(if port == open_port { Reach::PublicOrListed } else { Reach::Listed }))
    }

    async fn start(allow: &[&str], open_port: u16) -> Proxy {
        let rules = Rules { allow: Allowlist::parse(allow), ..Rules::default() };
        Proxy::start(Resolver::system(rules), open_at(open_port)).await.unwrap()
    }

    async fn connect_status(proxy: &Proxy, target: &str) -> String {
        let user = format!("{USER}:{}", proxy.gate.password.0);
        let authorization = format!("proxy-authorization: Basic {}\r\n", BASE64.encode(user.as_bytes()));
        status_of(proxy, &format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n")).await
    }

    async fn status_of(proxy: &Proxy, head: &str) -> String {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn only_who_has_its_password_is_connected() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = server.local_addr().unwrap().to_string();
        let (proxy, other) = (start(&["127.0.0.0/8"], 443).await, start(&["127.0.0.0/8"], 443).await);
        assert_ne!(proxy.gate.password.0, other.gate.password.0);
        let basic = |user: &str| format!("Proxy-Authorization: Basic {}\r\n", BASE64.encode(user.as_bytes()));
        let right = basic(&format!("{USER}:{}", proxy.gate.password.0));
        for authorization in [
            String::new(),
            basic(USER),
            basic(&format!("{USER}:")),
            basic(&format!("{USER}:{}", other.gate.password.0)),
            right.replace("Proxy-", ""),
            right.replace("Basic", "Bearer"),
        ] {
            let status =
                status_of(&proxy, &format!("CONNECT {target} HTTP/1.1\r\n{authorization}\r\n")).await;
            assert!(status.ends_with("407"), "{authorization}: {status}");
        }
        let status = status_of(&proxy, &format!("CONNECT {target} HTTP/1.1\r\n{right}\r\n")).await;
        assert!(status.ends_with("200"), "the control: {status}");
        assert_eq!(connect_status(&proxy, &target).await, "HTTP/1.1 200");
    }

    #[tokio::test]
    async fn nothing_listens_after_the_call() {
        let proxy = start(&[], 443).await;
        let address = proxy.address;
        TcpStream::connect(address).await.expect("the control");
        drop(proxy);
        // The task that owns the listener ends at its next turn.
        let ended = async { while TcpStream::connect(address).await.is_ok() {} };
        tokio::time::timeout(std::time::Duration::from_secs(60), ended).await.unwrap();
    }

    #[tokio::test]
    async fn no_spelling_of_a_private_address_is_connected_to() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        // At the port that is open at every host.
        let proxy = start(&[], port).await;
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
        let open = start(&["127.0.0.0/8"], 443).await;
        for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1"] {
            assert!(connect_status(&open, &format!("{host}:{port}")).await.ends_with("200"), "{host}");
        }
    }

    #[tokio::test]
    async fn other_ports_are_open_only_at_hosts_that_the_operator_allows() {
        // The kernel sends nothing to this address by TCP, so that no connection is made.
        let target = "255.255.255.255";
        let rules = Rules { public: Networks::parse(&[target]), ..Rules::default() };
        let proxy = Proxy::start(Resolver::system(rules), open_at(443)).await.unwrap();
        assert!(connect_status(&proxy, &format!("{target}:443")).await.ends_with("502"), "the control");
        for port in [22, 25, 80, 8443] {
            assert!(connect_status(&proxy, &format!("{target}:{port}")).await.ends_with("403"), "{port}");
        }
        let allowing = start(&[target], 443).await;
        assert!(connect_status(&allowing, &format!("{target}:8443")).await.ends_with("502"));
    }

    #[tokio::test]
    async fn a_host_that_its_rules_refuse_is_not_connected_to() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let rules = Rules { allow: Allowlist::parse(&["127.0.0.0/8"]), ..Rules::default() };
        let hosts = move |host: &str, at: u16| (host == "127.0.0.1" && at == port).then_some(Reach::Listed);
        let proxy = Proxy::start(Resolver::system(rules), Box::new(hosts)).await.unwrap();
        assert!(connect_status(&proxy, &format!("127.0.0.1:{port}")).await.ends_with("200"), "the control");
        assert_eq!(proxy.refused(), None);
        for (host, at) in [("localhost", port), ("127.0.0.2", port), ("127.0.0.1", 1)] {
            assert!(connect_status(&proxy, &format!("{host}:{at}")).await.ends_with("403"), "{host}:{at}");
            assert_eq!(proxy.refused(), Some(RefusedHost { host: host.to_owned(), port: at }));
        }
        server.set_nonblocking(true).unwrap();
        assert!(server.accept().is_ok(), "the control");
        assert_eq!(server.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn it_speaks_nothing_but_connect() {
        let proxy = start(&[], 443).await;
        let authorization = BASE64.encode(format!("{USER}:{}", proxy.gate.password.0).as_bytes());
        let head =
            format!("GET http://127.0.0.1/ HTTP/1.1\r\nProxy-Authorization: Basic {authorization}\r\n\r\n");
        assert_eq!(status_of(&proxy, &head).await, "HTTP/1.1 405");
    }

    proptest! {
        #[test]
        fn any_head_is_read_or_refused(head in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse_connect(&head);
            prop_assert!(!Password("x".to_owned()).is_in(&head));
        }
    }
}
