//! Runs the server: binds the router to its listeners, serves, and shuts down gracefully.

use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use axum::{Router, middleware::from_fn_with_state};
use axum_server::{Handle, Server};
use futures_util::{TryFutureExt, future::try_join_all};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use skep_store::Store;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use crate::{
    BootDefaults, Dashboard, Limits, Restart, RootRules, ShutdownKind, StartHelper, SwarmReceiver,
    TrustedProxies, WebhookSettings, WorkspaceDisk,
    app::{Parts, router},
    background::{Background, Dispatcher},
    door::{
        connection::{ConnectionAcceptor, track},
        tls::{Certificates, TlsAcceptors, warn_of_expiry},
    },
    metrics::{self, Metrics},
    own_url::PublicUrl,
    restart::{CLOSE_NOTICE, announce_close},
    server_error::Error,
    swarm_handle::SwarmHandle,
    webhooks::WebhookContext,
};

/// How long running requests may take after the start of the shutdown.
const GRACE: Duration = Duration::from_secs(30);
/// How long streams may take after the start of the shutdown. Their last message describes how to resume, because their
/// source keeps running.
const STREAM_GRACE: Duration = Duration::from_secs(25);
/// How often the number of open connections is polled; axum-server has no notification for it.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The smallest read buffer of an HTTP/1.1 connection that hyper accepts, in bytes.
const MIN_READ_BUFFER: usize = 8 << 10;
/// The send buffer of an HTTP/2 stream, in bytes.
const STREAM_BUFFER: usize = 64 << 10;
/// The bytes of bodies that an HTTP/2 peer may send before requests read them, on a connection and on each of its streams. A
/// request that waits for memory leaves most of the connection's window to the others.
const CONNECTION_WINDOW: u32 = 1 << 20;
const STREAM_WINDOW: u32 = 256 << 10;
/// The longest head of an HTTP/2 request, in bytes as RFC 9113 counts them (section 6.5.2). Compressed, it takes a fraction of
/// these on the wire, and hundreds are decoded before the first of them is counted.
const MAX_HTTP2_HEAD: usize = 16 << 10;
/// Streams that an HTTP/2 peer may reset before they were accepted, and streams that this server may reset because of
/// errors of the peer. One more closes the connection.
const MAX_PENDING_RESETS: usize = 20;
const MAX_LOCAL_ERROR_RESETS: usize = 128;

/// The dependencies and options of a server.
pub struct ServerOptions {
    pub listener: TcpListener,
    /// The listener of the API for VMs, which the packet filter opens to some VMs. A VM must use its own key there.
    pub vm_listener: Option<TcpListener>,
    /// Accounts, keys, VMs and events.
    pub store: Arc<dyn Store>,
    /// The swarm, or the reason why there is none.
    pub swarm: SwarmReceiver,
    /// Starts the helper processes that run programs on this machine.
    pub helper: StartHelper,
    /// Starts a successor of this server.
    pub restart: Restart,
    pub data_dir: PathBuf,
    /// Which folders may be account roots, and where default roots are created.
    pub roots: RootRules,
    /// The files of accounts that have a limit on disk space.
    pub workspace_disk: WorkspaceDisk,
    /// Values for what a boot request leaves out.
    pub boot: BootDefaults,
    pub metrics: Metrics,
    /// The listener that serves metrics without a key, on a loopback address.
    pub metrics_listener: Option<TcpListener>,
    /// The TLS certificate. `None`: plain text.
    pub tls: Option<Certificates>,
    /// Private networks and hosts that git may reach: CIDRs, addresses, names.
    pub git_allow: Vec<String>,
    /// Networks and hosts that neither git nor webhooks may reach, likewise.
    pub egress_deny: Vec<String>,
    /// The proxies whose `X-Forwarded-*` headers are used.
    pub proxies: TrustedProxies,
    /// The address in links to this server; `None`: the address that the request was sent to.
    pub public_url: Option<PublicUrl>,
    /// The dashboard; `None` if this binary was built without it.
    pub dashboard: Option<Dashboard>,
    pub limits: Limits,
    pub webhooks: WebhookSettings,
}

/// Refuses an address on which keys would be sent in plain text. `guarded`: TLS or a trusted proxy is configured.
///
/// # Errors
/// [`Error::PlainText`] for an address that is neither guarded nor a loopback one.
pub fn check_address(address: SocketAddr, guarded: bool) -> Result<(), Error> {
    if guarded || address.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(Error::PlainText { address })
    }
}

/// Serves until `shutdown` completes. Then no connection is accepted any more, and running requests have 30 seconds.
/// Where a successor serves by then, answers of the next second also carry `Connection: close`.
///
/// # Errors
/// See [`Error`].
pub async fn run(
    options: ServerOptions,
    shutdown: impl Future<Output = ShutdownKind> + Send,
) -> Result<(), Error> {
    let ServerOptions { listener, vm_listener, metrics_listener, tls, proxies, limits, .. } = options;
    check_address(listener.local_addr().map_err(Error::Listener)?, tls.is_some() || !proxies.is_empty())?;
    let [(closing, close), (stopping, stop), (draining, drain)] = [(); 3].map(|()| watch::channel(false));
    let outgoing = WebhookContext::new(&options.data_dir, &options.webhooks.allow, &options.egress_deny);
    let (store, metrics) = (Arc::clone(&options.store), options.metrics.clone());
    let dispatcher = Dispatcher::new(Arc::clone(&store), &outgoing, options.webhooks, metrics, stop.clone());
    let background = Background::new(store, dispatcher, SwarmHandle::new(options.swarm.clone()));
    let tls_acceptors = tls.as_ref().map(TlsAcceptors::new).transpose()?;
    let (sessions, requests, shared) = (TaskTracker::new(), TaskTracker::new(), Arc::new(limits.clone()));
    let main = ConnectionAcceptor::new(Arc::clone(&shared), proxies.clone(), tls_acceptors, stop.clone());
    let for_vms = vm_listener.map(|listener| (listener, ConnectionAcceptor::for_vms(shared, stop.clone())));
    let servers = build_servers([(listener, main)].into_iter().chain(for_vms), &limits)?;
    let parts = Parts {
        store: options.store,
        swarm: options.swarm,
        helper: options.helper,
        restart: options.restart,
        data_dir: options.data_dir,
        roots: options.roots,
        workspace_disk: options.workspace_disk,
        boot: options.boot,
        key_uses: background.key_uses.clone(),
        metrics: options.metrics,
        audit: background.audit.clone(),
        limits,
        proxies,
        public_url: options.public_url,
        dashboard: options.dashboard,
        waiters: background.waiters.clone(),
        builds: background.builds.clone(),
        tail: background.tail.clone(),
        outgoing,
        stopping: stop,
        closing: close,
        sessions: sessions.clone(),
        git_allow: options.git_allow,
        egress_deny: options.egress_deny,
    };
    let _metrics = serve_metrics(metrics_listener, &parts);
    let router = followed(router(parts).map_err(Error::Internal)?, &requests, drain);
    let stages = ShutdownStages { draining, stopping, closing, requests, sessions };
    let ended = tokio::select! {
        ended = serve(servers, router, shutdown, stages) => ended,
        never = background.run() => match never {},
        never = warn_of_expiry(tls) => match never {},
    };
    background.finish().await;
    ended.map_err(Error::Listener)
}

/// Has `requests` contain the requests of a router until they are answered, and their answers announce the end of their connection once
/// `drain` is true.
fn followed(router: Router, requests: &TaskTracker, drain: watch::Receiver<bool>) -> Router {
    router.layer(from_fn_with_state(requests.clone(), track)).layer(from_fn_with_state(drain, announce_close))
}

/// The stages of a shutdown. Each signal becomes true once.
struct ShutdownStages {
    /// Answers carry `Connection: close`.
    draining: watch::Sender<bool>,
    /// Idle connections are closed.
    stopping: watch::Sender<bool>,
    /// Streams are about to be cut off.
    closing: watch::Sender<bool>,
    /// The requests that are not answered yet. Those of HTTP/2 outlive their connection.
    requests: TaskTracker,
    /// The open WebSocket sessions.
    sessions: TaskTracker,
}

impl ShutdownStages {
    /// Waits for the end of what may outlive its connection. Requests have until `end`; sessions end by themselves.
    async fn all_ended(&self, end: Instant) {
        self.sessions.close();
        self.sessions.wait().await;
        self.requests.close();
        // What goes on ends with the process.
        let _ = timeout_at(end, self.requests.wait()).await;
    }
}

/// Creates a server for each listener, with its acceptor.
fn build_servers(
    listeners: impl Iterator<Item = (TcpListener, ConnectionAcceptor)>,
    limits: &Limits,
) -> Result<Vec<Server<SocketAddr, ConnectionAcceptor>>, Error> {
    let server = |(listener, door): (TcpListener, ConnectionAcceptor)| {
        listener.set_nonblocking(true)?;
        let mut server = axum_server::from_tcp(listener)?.acceptor(door);
        configure(server.http_builder(), limits);
        Ok(server)
    };
    listeners.map(server).collect::<io::Result<_>>().map_err(Error::Listener)
}

async fn serve(
    servers: Vec<Server<SocketAddr, ConnectionAcceptor>>,
    router: Router,
    shutdown: impl Future<Output = ShutdownKind> + Send,
    stages: ShutdownStages,
) -> io::Result<()> {
    let handle = Handle::new();
    // All servers share the handle, so it counts the connections of all of them.
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
    stages.draining.send_replace(true);
    if farewell == ShutdownKind::HandOver {
        // Dropping the future stops accepting; open connections are still served. The successor accepts the next ones.
        drop(serving);
        drain(&handle, stages).await;
        return Ok(());
    }
    tracing::info!("shutting down: requests under way have {} s", GRACE.as_secs());
    let end = Instant::now() + GRACE;
    stages.stopping.send_replace(true);
    handle.graceful_shutdown(Some(GRACE));
    let mut ending = Box::pin(async {
        let ended = serving.await;
        stages.all_ended(end).await;
        ended
    });
    if let Ok(ended) = timeout(STREAM_GRACE, &mut ending).await {
        return ended;
    }
    stages.closing.send_replace(true);
    ending.await
}

/// Ends the remaining connections once a successor accepts new ones.
async fn drain(handle: &Handle<SocketAddr>, stages: ShutdownStages) {
    sleep(CLOSE_NOTICE).await;
    tracing::info!("another server serves: requests under way have {} s", GRACE.as_secs());
    let end = Instant::now() + GRACE;
    stages.stopping.send_replace(true);
    handle.graceful_shutdown(None);
    let all_closed = async {
        while handle.connection_count() > 0 {
            sleep(POLL_INTERVAL).await;
        }
        stages.all_ended(end).await;
    };
    let mut all_left = std::pin::pin!(all_closed);
    if timeout(STREAM_GRACE, &mut all_left).await.is_err() {
        stages.closing.send_replace(true);
        if timeout(GRACE.saturating_sub(STREAM_GRACE), all_left).await.is_err() {
            handle.shutdown();
        }
    }
}

/// Serves metrics on their own listener, where there is one, until the returned set is dropped.
fn serve_metrics(listener: Option<TcpListener>, parts: &Parts) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if let Some(listener) = listener {
        let readings = parts.readings();
        tasks.spawn(async move {
            if let Err(error) = metrics::serve(listener, readings).await {
                tracing::error!(%error, "metrics are no longer served: {error}");
            }
        });
    }
    tasks
}

/// Sets the limits of hyper. The timeouts of a connection are enforced by the connection's stream instead.
fn configure(builder: &mut Builder<TokioExecutor>, limits: &Limits) {
    builder
        .http1()
        .header_read_timeout(None)
        .max_headers(limits.max_headers)
        // A head that does not fit into the read buffer is refused as too large.
        .max_buf_size(limits.max_header_bytes.max(MIN_READ_BUFFER));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(limits.max_header_bytes.min(MAX_HTTP2_HEAD)).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_LOCAL_ERROR_RESETS)
        .max_send_buf_size(STREAM_BUFFER)
        .keep_alive_interval(limits.ping_interval)
        .keep_alive_timeout(limits.ping_timeout);
}
