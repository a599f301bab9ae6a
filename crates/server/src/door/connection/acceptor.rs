//! Accepts connections: counts them, does the TLS handshake, and detects HTTP/2.

use std::{
    future::Future,
    io,
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
use tokio_rustls::TlsAcceptor;
use tower::Layer;

use super::{
    exchanges::Exchanges,
    guarded_stream::{GuardedStream, Parts},
    plain_text::refuse_plain_text,
    socket::Socket,
};
use crate::{
    door::{
        limits::{Concurrency, Limits},
        origin::{Transport, TrustedProxies},
        vm_listener::{MAX_CONNECTIONS_PER_VM, MAX_VM_CONNECTIONS},
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
    listener: ListenerKind,
    /// True once connections that have not sent a preface are dropped.
    stopping: watch::Receiver<bool>,
    last_warning: Mutex<Option<Instant>>,
}

/// Whose connections they are.
enum ListenerKind {
    Main { proxies: TrustedProxies, tls: Option<TlsAcceptor> },
    Vms,
}

impl ConnectionAcceptor {
    /// An acceptor for the main listener.
    pub(crate) fn new(
        limits: Arc<Limits>,
        proxies: TrustedProxies,
        tls: Option<TlsAcceptor>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let connections = Concurrency::new(limits.max_connections, limits.max_connections_per_address);
        let callers = ListenerKind::Main { proxies, tls };
        Self(Arc::new(Inner {
            limits,
            connections,
            listener: callers,
            stopping,
            last_warning: Mutex::default(),
        }))
    }

    /// An acceptor for the listener of the API for VMs: plain HTTP/1.1, with limits of its own.
    pub(crate) fn for_vms(limits: Arc<Limits>, stopping: watch::Receiver<bool>) -> Self {
        let connections = Concurrency::new(MAX_VM_CONNECTIONS, MAX_CONNECTIONS_PER_VM);
        Self(Arc::new(Inner {
            limits,
            connections,
            listener: ListenerKind::Vms,
            stopping,
            last_warning: Mutex::default(),
        }))
    }
}

type ConnectionService<S> = AddExtension<AddExtension<AddExtension<S, Exchanges>, Transport>, LocalAddress>;
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
        let (stream, first) = tokio::select! {
            greeted = timeout(self.limits.header_timeout, self.handshake(stream)) => greeted??,
            () = stopped(&mut stopping) => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let is_http2 = first == HTTP2_PREFACE;
        let carrier = match (&self.listener, &stream) {
            (ListenerKind::Vms, _) if is_http2 => return Err(io::ErrorKind::Unsupported.into()),
            (ListenerKind::Vms, _) => Transport::Vms,
            (ListenerKind::Main { .. }, Socket::Tls(_)) => Transport::Tls,
            (ListenerKind::Main { .. }, Socket::Plain(_)) => Transport::PlainText,
        };
        let exchanges = Exchanges::new();
        let service = Extension(exchanges.clone()).layer(service);
        let service = Extension(carrier).layer(service);
        let service = Extension(local).layer(service);
        let limits = Arc::clone(&self.limits);
        let guarded = GuardedStream::new(Parts { stream, first, is_http2, exchanges, limits, permit });
        Ok((guarded, service))
    }

    /// Does the TLS handshake and reads the preface.
    async fn handshake(&self, stream: TcpStream) -> io::Result<(Socket, Vec<u8>)> {
        let mut wire = match &self.listener {
            ListenerKind::Vms | ListenerKind::Main { tls: None, .. } => Socket::Plain(stream),
            ListenerKind::Main { tls: Some(tls), .. } => {
                let mut byte = [0];
                stream.peek(&mut byte).await?;
                if byte[0] != TLS_HANDSHAKE && byte[0].is_ascii_uppercase() {
                    return Err(refuse_plain_text(stream).await);
                }
                Socket::Tls(Box::new(tls.accept(stream).await?))
            }
        };
        let first = read_preface(&mut wire).await?;
        Ok((wire, first))
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
                     {MAX_VM_CONNECTIONS} of all ({full})"
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
