//! The layers before every route, public or not: they find the origin of a request, require https and limit the rate of
//! each address.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use skep_api::ErrorCode;

use super::{
    limits::{BodyTimeouts, Limiter, Limits},
    origin::{Origin, TrustedProxies},
};
use crate::error::{HTTPS_REQUIRED, HeadRefusal, Refusal};

pub(crate) struct Admission {
    proxies: TrustedProxies,
    limiter: Arc<Limiter>,
    times: BodyTimeouts,
}

impl Admission {
    pub(crate) fn new(proxies: TrustedProxies, limiter: Arc<Limiter>, limits: &Limits) -> Self {
        let times = BodyTimeouts { total: limits.body_timeout, stall: limits.body_stall };
        Self { proxies, limiter, times }
    }
}

/// The outermost layer: stores the [`Origin`] of the request for the inner layers and the log.
pub(crate) async fn resolve_origin(
    State(entrance): State<Arc<Admission>>,
    mut request: Request,
    next: Next,
) -> Response {
    let origin = entrance.proxies.origin_of(request.headers(), request.extensions());
    let extensions = request.extensions_mut();
    extensions.insert(origin);
    extensions.insert(entrance.times);
    next.run(request).await
}

/// Refuses malformed requests, requests without https, and addresses over their rate limit.
pub(crate) async fn admit(
    State(entrance): State<Arc<Admission>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    if let Some(refusal) = request.extensions().get::<HeadRefusal>() {
        return Ok(refusal.into_response());
    }
    let origin = Origin::from_extensions(request.extensions());
    if !origin.trusted() {
        return Err(Refusal::new(ErrorCode::HttpsRequired, HTTPS_REQUIRED));
    }
    entrance.limiter.count_address(origin.address())?;
    Ok(next.run(request).await)
}
