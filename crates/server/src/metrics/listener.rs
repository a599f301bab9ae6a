//! Serves metrics without a key, on a separate loopback socket.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{
    HeaderMap,
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioTimer;
use skep_api::ErrorCode;

use super::{Collector, Format};
use crate::{
    error::{Refusal, normalize_error},
    server_error::Error,
};

/// How long the head of a request may take to arrive, on a new connection and on an idle one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Refuses an address that other machines can reach, because this listener asks for no key.
///
/// # Errors
/// [`Error::MetricsAddress`] for every address that is not a loopback address.
pub fn check_metrics_address(address: SocketAddr) -> Result<(), Error> {
    if address.ip().to_canonical().is_loopback() { Ok(()) } else { Err(Error::MetricsAddress { address }) }
}

/// Serves `GET /metrics` only, until it is dropped.
///
/// # Errors
/// The address is not a loopback address, or the socket failed.
pub(crate) async fn serve(listener: TcpListener, readings: Collector) -> Result<(), Error> {
    check_metrics_address(listener.local_addr().map_err(Error::Listener)?)?;
    listener.set_nonblocking(true).map_err(Error::Listener)?;
    let router =
        Router::new().route("/metrics", get(metrics)).with_state(readings).layer(from_fn(require_local_host));
    let mut server = axum_server::from_tcp(listener).map_err(Error::Listener)?.http1_only();
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let served: io::Result<()> = server.serve(router.into_make_service()).await;
    served.map_err(Error::Listener)
}

async fn metrics(State(readings): State<Collector>, headers: HeaderMap) -> Result<Response, Refusal> {
    let format = Format::negotiate(&headers);
    Ok(([(CONTENT_TYPE, format.content_type())], readings.encode_server(format).await?).into_response())
}

/// Checks `Host` against DNS rebinding: a page in a local browser can reach loopback under a host name of its own.
async fn require_local_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|value| value.to_str().ok());
    if host.is_some_and(is_local_host) {
        return normalize_error(next.run(request).await);
    }
    let message =
        "metrics are served to this machine only; use a loopback address or `localhost` as the host";
    Refusal::new(ErrorCode::MalformedRequest, message).into_response()
}

fn is_local_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_hosts_are_accepted() {
        for ours in ["127.0.0.1:9100", "localhost", "LocalHost:1", "[::1]:9100", "127.8.9.1"] {
            assert!(is_local_host(ours), "{ours}");
        }
        for other in [
            "",
            "example.com",
            "localhost.example.com:80",
            "10.0.0.1:9100",
            "[::2]:1",
            "[",
            "127.0.0.1.nip.io",
        ] {
            assert!(!is_local_host(other), "{other}");
        }
    }

    #[test]
    fn only_loopback_addresses_are_accepted() {
        for ours in ["127.0.0.1:0", "[::1]:9100", "[::ffff:127.0.0.1]:1"] {
            check_metrics_address(ours.parse().unwrap()).unwrap();
        }
        for other in ["0.0.0.0:9100", "[::]:9100", "10.0.0.1:9100"] {
            let error = check_metrics_address(other.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(other) && error.contains("127.0.0.1"), "{error}");
        }
    }
}
