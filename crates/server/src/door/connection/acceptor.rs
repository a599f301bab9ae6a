//! Accepts connections: counts them, does the TLS handshake, and detects HTTP/2.

use std::{
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Extension, middleware::AddExtension};
use axum_server::accept::Accept;
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tower::Layer;

use super::{
    exchanges::Exchanges,
    guarded_stream::{GuardedStream, Parts},
    plain_text::refuse_plain_text,
    socket::Socket,
};
use crate::{
    door::{
        limits::{Concurrency, Limits, Permit, RequestsWithoutKey},
        origin::{Transport, TrustedProxies},
        tls::{HTTP2, TlsAcceptors},
        vm_listener::MAX_CONNECTIONS_PER_VM,
    },
    own_url::LocalAddress,
};

/// The connection preface of HTTP/2.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of a TLS connection: the content type of a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;
/// How long the preface of an accepted connection may take after the server began to stop.
const PREFACE_GRACE: Duration = Duration::from_millis(300);
/// Minimum interval between warnings about rejected connections.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Accepts the connections of one listener. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ConnectionAcceptor(Arc<Inner>);

struct Inner {
    limits: Arc<Limits>,
    connections: Concurrency,
    http2_connections: Concurrency,
    listener: ListenerKind,
    /// True once connections that have not sent a preface are dropped.
    stopping: watch::Receiver<bool>,
    last_warning: Mutex<Option<Instant>>,
}

/// Whose connections they are.
enum ListenerKind {
    Main {
        proxies: TrustedProxies,
        tls: Option<TlsAcceptors>,
    },
    /// VMs speak HTTP/1.1.
    Vms,
}

impl ConnectionAcceptor {
    /// An acceptor for the main listener.
    pub(crate) fn new(
        limits: Arc<Limits>,
        proxies: TrustedProxies,
        tls: Option<TlsAcceptors>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let connections = Concurrency::new(limits.max_connections, limits.max_connections_per_address);
        let http2_connections =
            Concurrency::new(limits.max_http2_connections, limits.max_http2_connections_per_address);
        let callers = ListenerKind::Main { proxies, tls };
        Self(Arc::new(Inner {
            limits,
            connections,
            http2_connections,
            listener: callers,
            stopping,
            last_warning: Mutex::default(),
        }))
    }

    /// An acceptor for the listener of the API for VMs: plain HTTP/1.1, with limits of its own.
    pub(crate) fn for_vms(limits: Arc<Limits>, stopping: watch::Receiver<bool>) -> Self {
        let connections = Concurrency::new(limits.max_vm_connections, MAX_CONNECTIONS_PER_VM);
        Self(Arc::new(Inner {
            limits,
            connections,
            http2_connections: Concurrency::new(0, 0),
            listener: ListenerKind::Vms,
            stopping,
            last_warning: Mutex::default(),
        }))
    }
}

type ConnectionService<S> = AddExtension<
    AddExtension<AddExtension<AddExtension<S, Exchanges>, RequestsWithoutKey>, Transport>,
    LocalAddress,
>;
type Accepted<S> = (GuardedStream<Socket>, ConnectionService<S>);

impl<S: Send + 'static> Accept<TcpStream, S> for ConnectionAcceptor {
    type Stream = GuardedStream<Socket>;
    type Service = ConnectionService<S>;
    type Future = Pin<Box<dyn Future<Output = io::Result<Accepted<S>>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.accept(stream, service).await })
    }
}

impl Inner {
    async fn accept<S>(&self, stream: TcpStream, service: S) -> io::Result<Accepted<S>> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?.ip();
        let local = LocalAddress(stream.local_addr()?);
        // A proxy opens connections for many callers, so the limit per address does not apply to it.
        let by_address =
            !matches!(&self.listener, ListenerKind::Main { proxies, .. } if proxies.contains(peer));
        let permit = self.connections.open(by_address.then_some(peer)).map_err(|full| {
            self.warn_rejected(&format!("{full:?}"));
            io::Error::from(io::ErrorKind::QuotaExceeded)
        })?;
        let mut stopping = self.stopping.clone();
        let handshake = self.handshake(stream, by_address.then_some(peer));
        let (stream, first, http2_permit) = tokio::select! {
            greeted = timeout(self.limits.header_timeout, handshake) => greeted??,
            () = stopped(&mut stopping) => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let is_http2 = http2_permit.is_some();
        let carrier = self.transport(&stream);
        let exchanges = Exchanges::new();
        let without_key =
            if by_address { RequestsWithoutKey::limited() } else { RequestsWithoutKey::unlimited() };
        let service = Extension(exchanges.clone()).layer(service);
        let service = Extension(without_key).layer(service);
        let service = Extension(carrier).layer(service);
        let service = Extension(local).layer(service);
        let limits = Arc::clone(&self.limits);
        let guarded = GuardedStream::new(Parts {
            stream,
            first,
            is_http2,
            exchanges,
            limits,
            permits: (permit, http2_permit),
        });
        Ok((guarded, service))
    }

    /// Does the TLS handshake and reads the preface. Returns the permit of a connection that speaks HTTP/2.
    async fn handshake(
        &self,
        stream: TcpStream,
        peer: Option<IpAddr>,
    ) -> io::Result<(Socket, Vec<u8>, Option<Permit>)> {
        let mut offered = None;
        let mut wire = match &self.listener {
            ListenerKind::Vms | ListenerKind::Main { tls: None, .. } => Socket::Plain(stream),
            ListenerKind::Main { tls: Some(tls), .. } => {
                let mut byte = [0];
                stream.peek(&mut byte).await?;
                if byte[0] != TLS_HANDSHAKE && byte[0].is_ascii_uppercase() {
                    return Err(refuse_plain_text(stream).await);
                }
                offered = self.http2_connections.open(peer).ok();
                let stream = tls.offering(offered.is_some()).accept(stream).await?;
                if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
                    offered = None;
                }
                Socket::Tls(Box::new(stream))
            }
        };
        let first = read_preface(&mut wire).await?;
        let permit = match offered {
            _ if first != HTTP2_PREFACE => None,
            // A client may begin HTTP/2 without negotiating it (RFC 9113, section 3.3).
            None => Some(self.http2_connections.open(peer).map_err(|_| self.http2_refused())?),
            offered => offered,
        };
        Ok((wire, first, permit))
    }

    fn transport(&self, stream: &Socket) -> Transport {
        match (&self.listener, stream) {
            (ListenerKind::Vms, _) => Transport::Vms,
            (ListenerKind::Main { .. }, Socket::Tls(_)) => Transport::Tls,
            (ListenerKind::Main { .. }, Socket::Plain(_)) => Transport::PlainText,
        }
    }

    /// The error for a client that spoke HTTP/2 without a permit.
    fn http2_refused(&self) -> io::Error {
        let (all, of_address) =
            (self.limits.max_http2_connections, self.limits.max_http2_connections_per_address);
        tracing::debug!("an HTTP/2 connection is closed: there may be {all}, and {of_address} of an address");
        io::ErrorKind::QuotaExceeded.into()
    }

    fn warn_rejected(&self, full: &str) {
        let now = Instant::now();
        let mut last_warning = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if last_warning.is_none_or(|last| now - last >= WARN_INTERVAL) {
            *last_warning = Some(now);
            match &self.listener {
                ListenerKind::Main { .. } => tracing::warn!(
                    full,
                    "connections are turned away: there are as many as --max-connections or \
                     --max-connections-per-address allows ({full})"
                ),
                ListenerKind::Vms => tracing::warn!(
                    full,
                    "connections of VMs are turned away: there may be {MAX_CONNECTIONS_PER_VM} of one VM and \
                     {} of all ({full})",
                    self.limits.max_vm_connections
                ),
            }
        }
    }
}

/// Waits for the stop of the server, and a little longer for the preface of connections that were just accepted.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
    sleep(PREFACE_GRACE).await;
}

/// Reads until it is known whether the client speaks HTTP/2. Returns the bytes read.
async fn read_preface(wire: &mut Socket) -> io::Result<Vec<u8>> {
    let mut bytes = [0; HTTP2_PREFACE.len()];
    let mut length = 0;
    while length < bytes.len() && HTTP2_PREFACE.starts_with(&bytes[..length]) {
        match wire.read(&mut bytes[length..]).await? {
            0 if length == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            more => length += more,
        }
    }
    Ok(bytes[..length].to_vec())
}
