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
    plain_text::refuse_plain_text,
    steady::{Parts, Steady},
    wire::Wire,
};
use crate::{
    from_vm::{MOST_CONNECTIONS, MOST_CONNECTIONS_OF_VM},
    limits::{Connections, Limits},
    origin::{Carrier, TrustedProxies},
};

/// The connection preface of HTTP/2.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of a TLS connection: the content type of a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;
/// How long the preface of an accepted connection may take after the server began to stop.
const FIRST_WORDS: Duration = Duration::from_millis(300);
/// Minimum interval between warnings about rejected connections.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Accepts the connections of one listener. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Door(Arc<Inner>);

struct Inner {
    limits: Arc<Limits>,
    connections: Connections,
    callers: Callers,
    /// True once connections that have not sent a preface are dropped.
    stopping: watch::Receiver<bool>,
    told: Mutex<Option<Instant>>,
}

/// Whose connections they are.
enum Callers {
    Anybody { proxies: TrustedProxies, tls: Option<TlsAcceptor> },
    Vms,
}

impl Door {
    /// An acceptor for the main listener.
    pub(crate) fn new(
        limits: Arc<Limits>,
        proxies: TrustedProxies,
        tls: Option<TlsAcceptor>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let connections = Connections::new(limits.max_connections, limits.max_connections_per_address);
        let callers = Callers::Anybody { proxies, tls };
        Self(Arc::new(Inner { limits, connections, callers, stopping, told: Mutex::default() }))
    }

    /// An acceptor for the listener of the API for VMs: plain HTTP/1.1, with limits of its own.
    pub(crate) fn for_vms(limits: Arc<Limits>, stopping: watch::Receiver<bool>) -> Self {
        let connections = Connections::new(MOST_CONNECTIONS, MOST_CONNECTIONS_OF_VM);
        Self(Arc::new(Inner { limits, connections, callers: Callers::Vms, stopping, told: Mutex::default() }))
    }
}

type Served<S> = AddExtension<AddExtension<S, Exchanges>, Carrier>;
type LetIn<S> = (Steady<Wire>, Served<S>);

impl<S: Send + 'static> Accept<TcpStream, S> for Door {
    type Stream = Steady<Wire>;
    type Service = Served<S>;
    type Future = Pin<Box<dyn Future<Output = io::Result<LetIn<S>>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.let_in(stream, service).await })
    }
}

impl Inner {
    async fn let_in<S>(&self, stream: TcpStream, service: S) -> io::Result<LetIn<S>> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?.ip();
        // A proxy opens connections for many callers, so the limit per address does not apply to it.
        let by_address = !matches!(&self.callers, Callers::Anybody { proxies, .. } if proxies.hold(peer));
        let permit = self.connections.open(peer, by_address).map_err(|full| {
            self.tell(&format!("{full:?}"));
            io::Error::from(io::ErrorKind::QuotaExceeded)
        })?;
        let mut stopping = self.stopping.clone();
        let (stream, first) = tokio::select! {
            greeted = timeout(self.limits.header_timeout, self.greet(stream)) => greeted??,
            () = stopped(&mut stopping) => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let is_http2 = first == HTTP2_PREFACE;
        let carrier = match (&self.callers, &stream) {
            (Callers::Vms, _) if is_http2 => return Err(io::ErrorKind::Unsupported.into()),
            (Callers::Vms, _) => Carrier::Vms,
            (Callers::Anybody { .. }, Wire::Tls(_)) => Carrier::Tls,
            (Callers::Anybody { .. }, Wire::Plain(_)) => Carrier::PlainText,
        };
        let exchanges = Exchanges::new();
        let service = Extension(exchanges.clone()).layer(service);
        let service = Extension(carrier).layer(service);
        let limits = Arc::clone(&self.limits);
        let steady = Steady::new(Parts { stream, first, is_http2, exchanges, limits, permit });
        Ok((steady, service))
    }

    /// Does the TLS handshake and reads the preface.
    async fn greet(&self, stream: TcpStream) -> io::Result<(Wire, Vec<u8>)> {
        let mut wire = match &self.callers {
            Callers::Vms | Callers::Anybody { tls: None, .. } => Wire::Plain(stream),
            Callers::Anybody { tls: Some(tls), .. } => {
                let mut byte = [0];
                stream.peek(&mut byte).await?;
                if byte[0] != TLS_HANDSHAKE && byte[0].is_ascii_uppercase() {
                    return Err(refuse_plain_text(stream).await);
                }
                Wire::Tls(Box::new(tls.accept(stream).await?))
            }
        };
        let first = first_words(&mut wire).await?;
        Ok((wire, first))
    }

    fn tell(&self, full: &str) {
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| now - told >= TELL_AGAIN) {
            *told = Some(now);
            match &self.callers {
                Callers::Anybody { .. } => tracing::warn!(
                    full,
                    "connections are turned away: there are as many as --max-connections or \
                     --max-connections-per-address allows ({full})"
                ),
                Callers::Vms => tracing::warn!(
                    full,
                    "connections of VMs are turned away: there may be {MOST_CONNECTIONS_OF_VM} of one VM and \
                     {MOST_CONNECTIONS} of all ({full})"
                ),
            }
        }
    }
}

/// Waits for the stop of the server, and a little longer for the preface of connections that were just accepted.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
    sleep(FIRST_WORDS).await;
}

/// Reads until it is known whether the client speaks HTTP/2. Returns the bytes read.
async fn first_words(wire: &mut Wire) -> io::Result<Vec<u8>> {
    let mut words = [0; HTTP2_PREFACE.len()];
    let mut length = 0;
    while length < words.len() && HTTP2_PREFACE.starts_with(&words[..length]) {
        match wire.read(&mut words[length..]).await? {
            0 if length == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            more => length += more,
        }
    }
    Ok(words[..length].to_vec())
}
