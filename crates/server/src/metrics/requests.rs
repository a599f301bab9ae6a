//! Metrics of requests, which are counted when they end for any reason.

use std::{sync::Arc, time::Instant};

use axum::response::Response;
use http::Method;
use skep_api::ErrorCode;

use super::{CodeLabels, Metrics, ResponseLabels, RouteLabels};
use crate::error::SKEP_ERROR;

/// The status of a request whose caller disconnected, as nginx logs it.
const CLIENT_CLOSED_REQUEST: u16 = 499;
/// A request in progress, counted when it is dropped.
#[derive(Debug)]
pub(crate) struct RequestInFlight {
    metrics: Metrics,
    method: &'static str,
    route: Arc<str>,
    began: Instant,
    status: u16,
}

impl Metrics {
    /// Begins the measurement of a request.
    pub(crate) fn begin(&self, method: &Method, route: Arc<str>) -> RequestInFlight {
        self.0.in_flight.inc();
        RequestInFlight {
            metrics: self.clone(),
            method: known_method(method),
            route,
            began: Instant::now(),
            status: CLIENT_CLOSED_REQUEST,
        }
    }
}

impl RequestInFlight {
    pub(crate) fn record_response(&mut self, response: &Response) {
        self.status = response.status().as_u16();
        let code = response.headers().get(SKEP_ERROR).and_then(|value| value.to_str().ok());
        let code = code.and_then(|text| ErrorCode::ALL.iter().find(|code| code.as_str() == text));
        if let Some(code) = code {
            self.metrics.0.refusals.get_or_create(&CodeLabels { code: code.as_str() }).inc();
        }
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let Self { metrics, method, route, began, status } = self;
        let (inner, method, status) = (&metrics.0, *method, *status);
        inner.in_flight.dec();
        let labels = RouteLabels { method, route: Arc::clone(route) };
        inner.durations.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
        inner.requests.get_or_create(&ResponseLabels { method, route: Arc::clone(route), status }).inc();
    }
}

/// Callers may send any method, so unknown ones share a label.
fn known_method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "OTHER",
    }
}
