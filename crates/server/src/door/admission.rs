//! The layers before every route, public or not: they find the origin of a request, require https, and limit the rate of
//! each address and its requests under way.

use std::{net::IpAddr, sync::Arc};

use axum::{
    body::HttpBody as _,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use skep_api::ErrorCode;

use super::{
    limits::{BodyTimeouts, Concurrency, LimitReached, Limiter, Limits, Permit, RequestsWithoutKey},
    origin::{Origin, TrustedProxies},
};
use crate::{
    answer_body::keep_to_end,
    error::{HTTPS_REQUIRED, HeadRefusal, Refusal},
    memory::SMALL_BODY_BYTES,
};

pub(crate) struct Admission {
    proxies: TrustedProxies,
    limiter: Arc<Limiter>,
    under_way: Concurrency,
    max_of_address: usize,
    times: BodyTimeouts,
}

impl Admission {
    pub(crate) fn new(proxies: TrustedProxies, limiter: Arc<Limiter>, limits: &Limits) -> Self {
        let times = BodyTimeouts { total: limits.body_timeout, stall: limits.body_stall };
        let max_of_address = limits.max_requests_per_address;
        let under_way = Concurrency::new(limits.max_requests, max_of_address);
        Self { proxies, limiter, under_way, max_of_address, times }
    }

    /// Counts a request until the permit is dropped.
    ///
    /// # Errors
    /// `overloaded`.
    fn count(&self, address: Option<IpAddr>) -> Result<Permit, Refusal> {
        self.under_way.open(address).map_err(|reached| {
            let message = match reached {
                LimitReached::Total => {
                    "as many requests are under way as the server accepts; try again later".to_owned()
                }
                LimitReached::Address => format!(
                    "{} requests from this address are under way, as many as may be at the same time; try again when some of \
                     them have ended",
                    self.max_of_address
                ),
            };
            Refusal::new(ErrorCode::Overloaded, message)
        })
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

/// Refuses malformed requests, requests without https, and addresses over one of their limits.
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
    let permit = entrance.count(origin.address())?;
    Ok(next.run(request).await.map(|body| keep_to_end(body, permit)))
}

/// The layer around routes that need no key.
pub(crate) async fn limit_without_key(request: Request, next: Next) -> Result<Response, Refusal> {
    let Some(of_connection) = request.extensions().get::<RequestsWithoutKey>().cloned() else {
        return Ok(next.run(request).await);
    };
    let is_short = request.body().size_hint().upper().is_some_and(|bytes| bytes <= SMALL_BODY_BYTES);
    let permit = of_connection.count(is_short).await?;
    Ok(next.run(request).await.map(|body| keep_to_end(body, permit)))
}
