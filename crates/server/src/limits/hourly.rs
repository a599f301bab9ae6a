//! A few calls an hour for each address: for public operations that write.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    time::Duration,
};

use axum::response::{IntoResponse, Response};
use governor::{
    Quota, RateLimiter,
    clock::{Clock, MonotonicClock},
    middleware::NoOpMiddleware,
    state::keyed::HashMapStateStore,
};
use http::{HeaderName, HeaderValue, header::RETRY_AFTER};
use skep_api::ErrorCode;

use crate::error::Refusal;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const HOUR_SECONDS: u32 = 3_600;

/// Addresses that are remembered. Beyond it all callers share one allowance, until some are forgotten.
const REMEMBERED: usize = 1 << 16;

/// Who shares an allowance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Party {
    /// An address: an IPv6 one stands for its /64, which is what one subscriber has.
    Address(IpAddr),
    /// All callers whose address is not known, or whom there is no room to remember.
    Rest,
}

impl Party {
    fn of(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            None => Self::Rest,
            Some(IpAddr::V6(address)) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Self::Address(Ipv6Addr::from_bits(network).into())
            }
            Some(address) => Self::Address(address),
        }
    }
}

/// The allowances of all addresses.
pub(crate) struct Hourly<C: Clock = MonotonicClock> {
    limiter: RateLimiter<Party, HashMapStateStore<Party>, C, NoOpMiddleware<C::Instant>>,
    clock: C,
    calls: NonZeroU32,
    remembered: usize,
}

impl Hourly {
    /// So many calls an hour: all at once or one after the other.
    pub(crate) fn new(calls: NonZeroU32) -> Self {
        Self::with(calls, MonotonicClock, REMEMBERED)
    }
}

impl<C: Clock + Clone> Hourly<C> {
    fn with(calls: NonZeroU32, clock: C, remembered: usize) -> Self {
        let limiter = RateLimiter::hashmap_with_clock(Quota::per_hour(calls), clock.clone());
        Self { limiter, clock, calls, remembered }
    }

    /// Takes one call off the allowance of an address. Where nothing is left of it: the answer `rate_limited`, which says
    /// how long to wait.
    pub(crate) fn refused(&self, address: Option<IpAddr>) -> Option<Response> {
        self.take(address).err().map(|wait| self.refusal(address, wait))
    }

    fn take(&self, address: Option<IpAddr>) -> Result<(), Duration> {
        if self.limiter.len() >= self.remembered {
            self.limiter.retain_recent();
        }
        let has_room = self.limiter.len() < self.remembered;
        let party = if has_room { Party::of(address) } else { Party::Rest };
        self.limiter.check_key(&party).map_err(|refused| refused.wait_time_from(self.clock.now()))
    }

    fn refusal(&self, address: Option<IpAddr>, wait: Duration) -> Response {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let seconds = seconds.max(1);
        let from = address.map_or_else(|| "an unknown address".to_owned(), |a| a.to_canonical().to_string());
        let calls = self.calls;
        let message =
            format!("{from} may call this {calls} times an hour, and did; try again in {seconds} seconds");
        let mut response = Refusal::new(ErrorCode::RateLimited, message).into_response();
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        for (name, text) in [
            (RATE_LIMIT, format!("\"hourly\";r=0;t={seconds}")),
            (RATE_LIMIT_POLICY, format!("\"hourly\";q={calls};w={HOUR_SECONDS}")),
        ] {
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(name, value);
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn three() -> (Hourly<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        (Hourly::with(NonZeroU32::new(3).unwrap(), clock.clone(), 100), clock)
    }

    fn from(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn an_address_has_its_calls_an_hour_and_no_more() {
        let (hourly, clock) = three();
        for _ in 0..3 {
            hourly.take(from("192.0.2.7")).unwrap();
        }
        let wait = hourly.take(from("192.0.2.7")).unwrap_err();
        assert_eq!(wait, Duration::from_secs(1_200), "the next one of three an hour");
        assert!(hourly.take(from("192.0.2.8")).is_ok(), "another address has its own");
        clock.advance(wait);
        assert!(hourly.take(from("192.0.2.7")).is_ok());
        assert!(hourly.take(from("192.0.2.7")).is_err());
    }

    #[test]
    fn spellings_and_neighbours_of_one_address_share_its_calls() {
        for together in [
            ["192.0.2.7", "::ffff:192.0.2.7", "192.0.2.7", "::ffff:c000:207"],
            ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::", "2001:db8::ffff:ffff:ffff:ffff"],
        ] {
            let (hourly, _) = three();
            let taken = together.iter().filter(|address| hourly.take(from(address)).is_ok()).count();
            assert_eq!(taken, 3, "{together:?}");
        }
        let (hourly, _) = three();
        let apart = ["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db8:0:3::1"];
        assert!(apart.iter().all(|address| hourly.take(from(address)).is_ok()), "each is a /64 of its own");
    }

    #[test]
    fn a_flood_of_addresses_takes_no_more_memory_than_it_may() {
        let (hourly, clock) = three();
        let all = |hourly: &Hourly<FakeRelativeClock>| {
            (0..10_000_u32).filter(|number| hourly.take(Some(IpAddr::V4((*number).into()))).is_ok()).count()
        };
        let taken = all(&hourly);
        assert!((100..110).contains(&taken), "those remembered, and what the rest share: {taken}");
        assert!(hourly.limiter.len() <= 101, "{}", hourly.limiter.len());
        clock.advance(Duration::from_secs(7_200));
        assert!(hourly.take(from("192.0.2.7")).is_ok(), "those of an hour ago are forgotten");
        assert!(hourly.limiter.len() < 100);
    }

    #[test]
    fn a_refusal_says_how_long_to_wait() {
        let (hourly, _) = three();
        for _ in 0..3 {
            assert!(hourly.refused(from("192.0.2.7")).is_none());
        }
        let refused = hourly.refused(from("192.0.2.7")).unwrap();
        assert_eq!(refused.status(), 429);
        assert_eq!(refused.headers()["retry-after"], "1200");
        assert_eq!(refused.headers()["ratelimit"], "\"hourly\";r=0;t=1200");
        assert_eq!(refused.headers()["ratelimit-policy"], "\"hourly\";q=3;w=3600");
    }
}
