//! From a listening socket to the last answer.

use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    middleware::{from_fn, from_fn_with_state},
};
use axum_server::{Handle, Server};
use futures_util::{TryFutureExt, future::try_join_all};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use skep_api::{ErrorCode, ErrorKind, Failure};
use skep_store::Store;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::{
    BootDefaults, Farewell, Limits, Restart, RootRules, StartHelper, SwarmToCome, TrustedProxies,
    WebhookOrder,
    app::{Parts, router},
    chores::Chores,
    connection::{Door, track},
    metrics::{self, Metrics},
    restart::{FAREWELL, say_farewell},
    tls::{self, Certificates, warn_of_expiry},
    vms::Vms,
    webhooks::{Dispatcher, Outgoing},
};

/// How long requests under way may take once the server shall end.
const GRACE: Duration = Duration::from_secs(30);
/// How long streams may take then. What they stream runs on, and they say how to come back to it.
const STREAM_GRACE: Duration = Duration::from_secs(25);
/// How often it is looked whether all connections have ended: nobody tells.
const GLANCE: Duration = Duration::from_millis(20);
/// What an HTTP/1.1 connection reads ahead at the least: the HTTP library wants so much.
const LEAST_READ_AHEAD: usize = 8 << 10;
/// What an HTTP/2 stream keeps for a caller that does not read.
const STREAM_BUFFER: usize = 64 << 10;
/// Streams that an HTTP/2 peer may take back before they were looked at, and those that it makes us take back. One more,
/// and the connection ends.
const TAKEN_BACK: usize = 20;
const MADE_WRONG: usize = 128;

/// What a server is made of.
pub struct ServerOrder {
    /// Bound and listening.
    pub listener: TcpListener,
    /// The same for the API for VMs, which the packet filter lets only some of them reach. Each takes requests with its own key.
    pub vm_listener: Option<TcpListener>,
    /// Accounts, keys, VMs and events.
    pub store: Arc<dyn Store>,
    /// The swarm, or why there is none.
    pub swarm: SwarmToCome,
    /// Starts what starts programs on this machine.
    pub helper: StartHelper,
    /// Has another server take the place of this one.
    pub restart: Restart,
    /// Where the server writes.
    pub data_dir: PathBuf,
    /// Which folders accounts may have, and where they get their own.
    pub roots: RootRules,
    /// What a boot gets that names nothing else.
    pub boot: BootDefaults,
    /// What is counted.
    pub metrics: Metrics,
    /// Where metrics are served without a key: bound to a loopback address, and listening.
    pub metrics_listener: Option<TcpListener>,
    /// The certificate. `None`: plain text.
    pub tls: Option<Certificates>,
    /// Private networks and hosts that git may reach: CIDRs, addresses, names.
    pub git_allow: Vec<String>,
    /// The proxies whose word counts.
    pub proxies: TrustedProxies,
    /// What callers may take.
    pub limits: Limits,
    /// How webhooks are sent.
    pub webhooks: WebhookOrder,
}

/// Why a server could not run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address would be reached from other machines, in plain text.
    #[error(
        "{address} is reached from other machines and would be served in plain text; give --tls-cert and --tls-key, or \
         --tls self-signed, or name the proxy in front of it by --trusted-proxy, or listen on a loopback address such \
         as 127.0.0.1:7700"
    )]
    PlainText {
        /// What was asked for.
        address: SocketAddr,
    },
    /// Metrics would be reached from other machines, without a key.
    #[error(
        "{address} is reached from other machines, and metrics are served there without a key; name a loopback address \
         such as 127.0.0.1:7701"
    )]
    MetricsAddress {
        /// What was asked for.
        address: SocketAddr,
    },
    /// The listening socket failed.
    #[error("the listening socket failed")]
    Listener(#[source] io::Error),
    /// TLS cannot be spoken.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// A fault of ours.
    #[error(transparent)]
    Internal(Failure),
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::PlainText { .. } | Self::MetricsAddress { .. } => ErrorCode::InvalidValue,
            Self::Listener(_) | Self::Tls(_) | Self::Internal(_) => ErrorCode::Internal,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Refuses an address on which keys would travel in plain text. `guarded`: by TLS, or by a proxy that is named.
///
/// # Errors
/// [`Error::PlainText`] for every address that is neither guarded nor a loopback one.
pub fn check_address(address: SocketAddr, guarded: bool) -> Result<(), Error> {
    if guarded || address.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(Error::PlainText { address })
    }
}

/// Serves until `shutdown` is ready; then no connection is taken any more, and requests under way have 30 seconds. Where
/// another server serves by then, whoever asks on a connection in the next second is told to take another one.
///
/// # Errors
/// See [`Error`].
pub async fn run(order: ServerOrder, shutdown: impl Future<Output = Farewell> + Send) -> Result<(), Error> {
    let ServerOrder { listener, vm_listener, metrics_listener, tls, proxies, limits, .. } = order;
    check_address(listener.local_addr().map_err(Error::Listener)?, tls.is_some() || !proxies.is_empty())?;
    let (closing, told) = watch::channel(false);
    let (stopping, stopped) = watch::channel(false);
    let (leaving, left) = watch::channel(false);
    let sessions = TaskTracker::new();
    let outgoing = Outgoing::of(&order.data_dir, &order.webhooks.allow);
    let (store, metrics) = (Arc::clone(&order.store), order.metrics.clone());
    let dispatcher = Dispatcher::new(store, &outgoing, order.webhooks, metrics, stopped.clone());
    let vms = Vms::new(order.swarm.clone());
    let chores = Chores::new(Arc::clone(&order.store), dispatcher, vms);
    let acceptor = tls.as_ref().map(Certificates::server_config).transpose()?;
    let acceptor = acceptor.map(|config| TlsAcceptor::from(Arc::new(config)));
    let shared = Arc::new(limits.clone());
    let door = Door::new(Arc::clone(&shared), proxies.clone(), acceptor, stopped.clone());
    let for_vms = vm_listener.map(|listener| (listener, Door::for_vms(shared, stopped.clone())));
    let servers = servers_of([(listener, door)].into_iter().chain(for_vms), &limits)?;
    let parts = Parts {
        store: order.store,
        swarm: order.swarm,
        helper: order.helper,
        restart: order.restart,
        data_dir: order.data_dir,
        roots: order.roots,
        boot: order.boot,
        uses: chores.uses.clone(),
        metrics: order.metrics,
        audit: chores.audit.clone(),
        limits,
        proxies,
        waiters: chores.waiters.clone(),
        tail: chores.tail.clone(),
        outgoing,
        stopping: stopped,
        closing: told,
        sessions: sessions.clone(),
        git_allow: order.git_allow,
    };
    let _metrics = serve_metrics(metrics_listener, &parts);
    let router = router(parts).map_err(Error::Internal)?.layer(from_fn(track));
    let router = router.layer(from_fn_with_state(left, say_farewell));
    let ended = tokio::select! {
        ended = serve(servers, router, shutdown, Stages { leaving, stopping, closing, sessions }) => ended,
        never = chores.regularly() => match never {},
        never = warn_of_expiry(tls) => match never {},
    };
    chores.finish().await;
    ended.map_err(Error::Listener)
}

/// How far the end is. Each becomes true once.
struct Stages {
    /// Callers are told to take another connection.
    leaving: watch::Sender<bool>,
    /// Connections that wait for a request are closed.
    stopping: watch::Sender<bool>,
    /// Streams are cut off.
    closing: watch::Sender<bool>,
    /// The WebSockets that are open.
    sessions: TaskTracker,
}

/// A server for each listener, with what lets its connections in.
fn servers_of(
    listeners: impl Iterator<Item = (TcpListener, Door)>,
    limits: &Limits,
) -> Result<Vec<Server<SocketAddr, Door>>, Error> {
    let server = |(listener, door): (TcpListener, Door)| {
        listener.set_nonblocking(true)?;
        let mut server = axum_server::from_tcp(listener)?.acceptor(door);
        configure(server.http_builder(), limits);
        Ok(server)
    };
    listeners.map(server).collect::<io::Result<_>>().map_err(Error::Listener)
}

async fn serve(
    servers: Vec<Server<SocketAddr, Door>>,
    router: Router,
    shutdown: impl Future<Output = Farewell> + Send,
    stages: Stages,
) -> io::Result<()> {
    let handle = Handle::new();
    // The handle counts the connections of all of them.
    let serving = servers.into_iter().map(|server| {
        server
            .handle(handle.clone())
            .serve(router.clone().into_make_service_with_connect_info::<SocketAddr>())
    });
    let mut serving = Box::pin(try_join_all(serving).map_ok(drop));
    let farewell = tokio::select! {
        ended = &mut serving => return ended,
        farewell = shutdown => farewell,
    };
    stages.leaving.send_replace(true);
    if farewell == Farewell::Successor {
        // Takes connections, and nothing else: those that are there are served on. The next one is the other server's.
        drop(serving);
        leave(&handle, stages).await;
        return Ok(());
    }
    tracing::info!("shutting down: requests under way have {} s", GRACE.as_secs());
    stages.stopping.send_replace(true);
    handle.graceful_shutdown(Some(GRACE));
    stages.sessions.close();
    let mut serving = Box::pin(async {
        let ended = serving.await;
        stages.sessions.wait().await;
        ended
    });
    if let Ok(ended) = timeout(STREAM_GRACE, &mut serving).await {
        return ended;
    }
    stages.closing.send_replace(true);
    serving.await
}

/// Ends the connections that are left once another server takes the new ones.
async fn leave(handle: &Handle<SocketAddr>, stages: Stages) {
    sleep(FAREWELL).await;
    tracing::info!("another server serves: requests under way have {} s", GRACE.as_secs());
    stages.stopping.send_replace(true);
    handle.graceful_shutdown(None);
    let all_left = async {
        while handle.connection_count() > 0 || !stages.sessions.is_empty() {
            sleep(GLANCE).await;
        }
    };
    let mut all_left = std::pin::pin!(all_left);
    if timeout(STREAM_GRACE, &mut all_left).await.is_err() {
        stages.closing.send_replace(true);
        if timeout(GRACE.saturating_sub(STREAM_GRACE), all_left).await.is_err() {
            handle.shutdown();
        }
    }
}

/// Serves metrics beside the API, where somebody asked for it, until what is answered is dropped.
fn serve_metrics(listener: Option<TcpListener>, parts: &Parts) -> JoinSet<()> {
    let mut aside = JoinSet::new();
    if let Some(listener) = listener {
        let readings = parts.readings();
        aside.spawn(async move {
            if let Err(error) = metrics::serve(listener, readings).await {
                tracing::error!(%error, "metrics are served no longer: {error}");
            }
        });
    }
    aside
}

/// What the HTTP library itself limits. The times of a connection are kept where it is read and written.
fn configure(builder: &mut Builder<TokioExecutor>, limits: &Limits) {
    builder
        .http1()
        .header_read_timeout(None)
        .max_headers(limits.max_headers)
        // A head that does not fit into what is read ahead is refused as too large.
        .max_buf_size(limits.max_header_bytes.max(LEAST_READ_AHEAD));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(TAKEN_BACK)
        .max_local_error_reset_streams(MADE_WRONG)
        .max_send_buf_size(STREAM_BUFFER)
        .keep_alive_interval(limits.ping_interval)
        .keep_alive_timeout(limits.ping_timeout);
}
