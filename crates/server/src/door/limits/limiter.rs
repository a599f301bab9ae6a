//! The rate limits of requests.

use std::net::IpAddr;

use skep_api::{ErrorCode, KeyId};

use super::{
    Limits,
    buckets::{Buckets, Exceeded},
    limit_key,
};
use crate::error::Refusal;

/// Counts requests by key and by address, and failed authentications by address.
pub(crate) struct Limiter {
    keys: Option<Buckets<KeyId>>,
    addresses: Option<Buckets<IpAddr>>,
    failures: Buckets<IpAddr>,
    waitlist: Buckets<Option<IpAddr>>,
}

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            keys: limits.rate_limit.map(|rate| Buckets::new("key", rate)),
            addresses: limits.address_rate_limit.map(|rate| Buckets::new("address", rate)),
            failures: Buckets::new("failed-authentications", limits.failed_auth_limit),
            waitlist: Buckets::new("waitlist", limits.waitlist_limit),
        }
    }

    /// Counts a request of an address. A request whose address is unknown is not counted.
    pub(crate) fn count_address(&self, address: Option<IpAddr>) -> Result<(), Refusal> {
        let (Some(buckets), Some(address)) = (&self.addresses, address) else { return Ok(()) };
        buckets.take(&limit_key(address)).map_err(|exceeded| too_many("requests from this address", exceeded))
    }

    /// Counts a request of a key.
    pub(crate) fn count_key(&self, key: KeyId) -> Result<(), Refusal> {
        let Some(buckets) = &self.keys else { return Ok(()) };
        buckets.take(&key).map_err(|exceeded| too_many("requests with this key", exceeded))
    }

    /// Counts an entry on the waitlist. All requests whose address is unknown share one bucket.
    pub(crate) fn count_waitlist(&self, address: Option<IpAddr>) -> Result<(), Refusal> {
        let taken = self.waitlist.take(&address.map(limit_key));
        taken.map_err(|exceeded| too_many("entries on the waitlist from this address", exceeded))
    }

    /// The refusal of a failed authentication: the given one, or `rate_limited` after too many of them. A request
    /// without a key is not counted.
    pub(crate) fn after_failure(&self, address: Option<IpAddr>, refusal: Refusal) -> Refusal {
        let has_wrong_key =
            matches!(refusal.failure().code, ErrorCode::InvalidToken | ErrorCode::TokenExpired);
        let Some(address) = address.filter(|_| has_wrong_key) else { return refusal };
        match self.failures.take(&limit_key(address)) {
            Ok(()) => refusal,
            Err(exceeded) => too_many("failed authentications from this address", exceeded),
        }
    }
}

fn too_many(what: &str, exceeded: Exceeded) -> Refusal {
    let message = format!("too many {what}: {}; try again in {} s", exceeded.limit(), exceeded.seconds());
    Refusal::new(ErrorCode::RateLimited, message).with_headers(exceeded.headers())
}
