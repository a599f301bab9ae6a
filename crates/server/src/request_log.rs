//! The layer that gives every request an id, a log line, and the headers that every answer has.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use http::{Extensions, HeaderValue, Method, StatusCode};
use jiff::Timestamp;

use crate::{
    door::origin::Origin,
    error::{self, Cause},
    metrics::Metrics,
    request::{API_VERSION, Arrival, REQUEST_ID, RequestId, SKEP_VERSION},
};

/// The layer that adds the id and the arrival to a request, adds the headers to its answer, and logs it.
pub(crate) async fn observe(State(metrics): State<Metrics>, mut request: Request, next: Next) -> Response {
    let route = route_of(request.extensions());
    let mut under_way = metrics.begin(request.method(), Arc::clone(&route));
    let id = RequestId::of(request.headers());
    let arrival = Arrival { monotonic: Instant::now(), wall: Timestamp::now() };
    let mut line = LogLine::new(&request, id.clone(), route, arrival.monotonic);
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(arrival);
    let mut response = error::normalize_error(next.run(request).await);
    under_way.record_response(&response);
    line.status = Some(response.status());
    line.cause = response.extensions_mut().remove::<Cause>();
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        headers.insert(REQUEST_ID, value);
    }
    headers.insert(SKEP_VERSION, HeaderValue::from_static(API_VERSION));
    response
}

/// The route rather than the path, so that input of callers does not get into the log and the metrics.
fn route_of(extensions: &Extensions) -> Arc<str> {
    extensions.get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).into()
}

/// The log line of one request. Written on drop, so that a request whose caller disconnected is logged too.
struct LogLine {
    id: RequestId,
    method: Method,
    route: Arc<str>,
    peer: Option<IpAddr>,
    arrived: Instant,
    status: Option<StatusCode>,
    cause: Option<Cause>,
}

impl LogLine {
    fn new(request: &Request, id: RequestId, route: Arc<str>, arrived: Instant) -> Self {
        let peer = Origin::from_extensions(request.extensions()).address();
        Self { id, method: request.method().clone(), route, peer, arrived, status: None, cause: None }
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let Self { id, method, route, arrived, .. } = self;
        let (request_id, route) = (id.as_str(), &**route);
        let duration_ms = milliseconds(arrived.elapsed());
        let peer = self.peer.map(|peer| peer.to_string()).unwrap_or_default();
        let Some(status) = self.status.map(|status| status.as_u16()) else {
            tracing::info!(request_id, %method, route, peer, duration_ms, "request {request_id}: the caller went away");
            return;
        };
        match &self.cause {
            Some(Cause(cause)) if status == 500 => {
                tracing::error!(request_id, %method, route, peer, status, duration_ms, "request {request_id}: {cause}");
            }
            Some(Cause(cause)) => {
                tracing::warn!(request_id, %method, route, peer, status, duration_ms, "request {request_id}: {cause}");
            }
            None => {
                tracing::info!(request_id, %method, route, peer, status, duration_ms, "request {request_id}")
            }
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
