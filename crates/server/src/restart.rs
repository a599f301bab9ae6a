//! One server in the place of another.

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

/// Has another server take the place of this one: ready once that one serves. This one is told to end soon after.
pub type Restart = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send + Sync>;

/// What follows the end of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// Nobody, as far as this server knows.
    Nobody,
    /// Another serves already, at the same sockets.
    Successor,
}

/// How long callers that hold a connection open are told on it to take another one, before idle ones are closed. Who asks
/// again and again notices; a request that meets the closing of its connection is lost.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// Tells whoever asks on a connection of HTTP/1 that it is the last answer there, once this server is about to end.
pub(crate) async fn say_farewell(
    State(leaving): State<watch::Receiver<bool>>,
    request: Request,
    next: Next,
) -> Response {
    let has_connections_of_its_own = request.version() <= Version::HTTP_11;
    let mut answer = next.run(request).await;
    let is_http = answer.status() != StatusCode::SWITCHING_PROTOCOLS;
    if has_connections_of_its_own && is_http && *leaving.borrow() {
        close_after(answer.headers_mut());
    }
    answer
}

fn close_after(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
}
