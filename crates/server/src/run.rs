//! From a listening socket to the last answer.

use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use axum_server::Handle;
use hyper_util::rt::TokioTimer;
use skep_api::{ErrorCode, ErrorKind, Failure};
use skep_store::Store;
use skep_swarm::Swarm;
use tokio::{sync::watch, task::JoinSet, time::timeout};

use crate::{
    BootDefaults,
    app::{Parts, router},
    key_uses::KeyUses,
    listener::OurWords,
    metrics::{self, Metrics, Readings},
    vms::Vms,
};

/// How long requests under way may take once the server shall end.
const GRACE: Duration = Duration::from_secs(30);
/// How long streams may take then. What they stream runs on, and they say how to come back to it.
const STREAM_GRACE: Duration = Duration::from_secs(25);
/// How long the head of a request may take to arrive, on a new connection and on one that is kept.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// What a server is made of.
pub struct ServerOrder {
    /// Bound and listening.
    pub listener: TcpListener,
    /// Accounts, keys, VMs and events.
    pub store: Arc<dyn Store>,
    /// The swarm, or why there is none.
    pub swarm: Result<Swarm, String>,
    /// Where the server writes.
    pub data_dir: PathBuf,
    /// What a boot gets that names nothing else.
    pub boot: BootDefaults,
    /// What is counted.
    pub metrics: Metrics,
    /// Where metrics are served without a key: bound to a loopback address, and listening.
    pub metrics_listener: Option<TcpListener>,
}

/// Why a server could not run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address would be reached from other machines, in plain text.
    #[error(
        "{address} is reached from other machines and would be served in plain text; listen on a loopback address \
         such as 127.0.0.1:7700"
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
    /// A fault of ours.
    #[error(transparent)]
    Internal(Failure),
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::PlainText { .. } | Self::MetricsAddress { .. } => ErrorCode::InvalidValue,
            Self::Listener(_) | Self::Internal(_) => ErrorCode::Internal,
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

/// Refuses an address on which keys would travel in plain text.
///
/// # Errors
/// [`Error::PlainText`] for every address that is not a loopback one.
pub fn check_address(address: SocketAddr) -> Result<(), Error> {
    if address.ip().to_canonical().is_loopback() { Ok(()) } else { Err(Error::PlainText { address }) }
}

/// Serves until `shutdown` is ready; then no connection is taken any more, and requests under way have 30 seconds.
///
/// # Errors
/// See [`Error`].
pub async fn run(order: ServerOrder, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
    let ServerOrder { listener, store, swarm, data_dir, boot, metrics, metrics_listener } = order;
    check_address(listener.local_addr().map_err(Error::Listener)?)?;
    listener.set_nonblocking(true).map_err(Error::Listener)?;
    let uses = KeyUses::default();
    let (closing, told) = watch::channel(false);
    let uses_of_router = uses.clone();
    let parts = Parts {
        store: Arc::clone(&store),
        swarm,
        data_dir,
        boot,
        uses: uses_of_router,
        metrics,
        closing: told,
    };
    let _metrics = serve_metrics(metrics_listener, &parts);
    let router = router(parts).map_err(Error::Internal)?;
    let handle = Handle::new();
    let mut server = axum_server::from_tcp(listener)
        .map_err(Error::Listener)?
        .map(OurWords::around)
        .handle(handle.clone())
        .http1_only();
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let serving = server.serve(router.into_make_service_with_connect_info::<SocketAddr>());
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        never = uses.write_regularly(&*store) => match never {},
        () = shutdown => {
            tracing::info!("shutting down: requests under way have {} s", GRACE.as_secs());
            handle.graceful_shutdown(Some(GRACE));
            match timeout(STREAM_GRACE, &mut serving).await {
                Ok(ended) => ended,
                Err(_) => {
                    closing.send_replace(true);
                    serving.await
                }
            }
        }
    };
    uses.write(&*store).await;
    ended.map_err(Error::Listener)
}

/// Serves metrics beside the API, where somebody asked for it, until what is answered is dropped.
fn serve_metrics(listener: Option<TcpListener>, parts: &Parts) -> JoinSet<()> {
    let mut aside = JoinSet::new();
    if let Some(listener) = listener {
        let readings = Readings {
            metrics: parts.metrics.clone(),
            store: Arc::clone(&parts.store),
            vms: Vms::new(parts.swarm.clone()),
            data_dir: parts.data_dir.clone(),
        };
        aside.spawn(async move {
            if let Err(error) = metrics::serve(listener, readings).await {
                tracing::error!(%error, "metrics are served no longer: {error}");
            }
        });
    }
    aside
}
