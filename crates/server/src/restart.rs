//! Handing over to a successor: a restarted server takes the sockets of the old one while that one still serves.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{
    HeaderValue, StatusCode, Version,
    header::{CONNECTION, HeaderMap},
};
use skep_api::Failure;
use tokio::sync::watch;

/// Starts a successor of this server. Completes once the successor serves; this server is asked to shut down soon
/// after.
pub type Restart = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send + Sync>;

/// How a server shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownKind {
    /// No successor is known.
    Final,
    /// A successor already serves at the same sockets.
    HandOver,
}

/// How long answers carry `Connection: close` before idle connections are closed. Callers that send requests in this
/// time reconnect by themselves; a request that is sent while its connection is being closed is lost.
pub(crate) const CLOSE_NOTICE: Duration = Duration::from_secs(1);

/// The layer that adds `Connection: close` to HTTP/1 answers once this server is about to stop.
pub(crate) async fn announce_close(
    State(leaving): State<watch::Receiver<bool>>,
    request: Request,
    next: Next,
) -> Response {
    let is_http1 = request.version() <= Version::HTTP_11;
    let mut answer = next.run(request).await;
    let is_http = answer.status() != StatusCode::SWITCHING_PROTOCOLS;
    if is_http1 && is_http && *leaving.borrow() {
        close_after(answer.headers_mut());
    }
    answer
}

fn close_after(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
}
