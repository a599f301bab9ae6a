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
use tokio::{sync::watch, time::timeout};

use crate::{
    BootDefaults,
    app::{Parts, router},
    audit::AuditQueue,
    chores::Chores,
    key_uses::KeyUses,
    listener::OurWords,
};

/// How long requests under way may take once the server shall end.
const GRACE: Duration = Duration::from_secs(30);
/// How long streams may take then. What they stream runs on, and they say how to come back to it.
const STREAM_GRACE: Duration = Duration::from_secs(25);
/// How long the head of a request may take to arrive, on a new connection and on one that is kept.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

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
    /// Where accounts get folders of their own.
    pub workspaces: PathBuf,
    /// What a boot gets that names nothing else.
    pub boot: BootDefaults,
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
            Self::PlainText { .. } => ErrorCode::InvalidValue,
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
    let ServerOrder { listener, store, swarm, data_dir, workspaces, boot } = order;
    check_address(listener.local_addr().map_err(Error::Listener)?)?;
    listener.set_nonblocking(true).map_err(Error::Listener)?;
    let (uses, audit) = (KeyUses::default(), AuditQueue::default());
    let chores = Chores { store: Arc::clone(&store), uses: uses.clone(), audit: audit.clone() };
    let (closing, told) = watch::channel(false);
    let parts = Parts { store, swarm, data_dir, workspaces, boot, uses, audit, closing: told };
    let router = router(parts).map_err(Error::Internal)?;
    let handle = Handle::new();
    let mut server = axum_server::from_tcp(listener)
        .map_err(Error::Listener)?
        .map(OurWords::around)
        .handle(handle.clone())
        .http1_only();
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let serving = server.serve(router.into_make_service_with_connect_info::<SocketAddr>());
    let until_the_end = async {
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            ended = &mut serving => return ended,
            () = shutdown => {}
        }
        tracing::info!("shutting down: requests under way have {} s", GRACE.as_secs());
        handle.graceful_shutdown(Some(GRACE));
        if let Ok(ended) = timeout(STREAM_GRACE, &mut serving).await {
            return ended;
        }
        closing.send_replace(true);
        serving.await
    };
    let ended = tokio::select! {
        ended = until_the_end => ended,
        never = chores.regularly() => match never {},
    };
    chores.finish().await;
    ended.map_err(Error::Listener)
}
