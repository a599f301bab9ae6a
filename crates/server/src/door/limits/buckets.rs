//! Token buckets for rate limits, one for each key or address, in bounded memory.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    nanos::Nanos,
    state::StateStore,
};
use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};

use super::Rate;

/// Buckets whose state is kept. An attacker with more addresses makes the server drop buckets, not take more memory.
const MAX_BUCKETS: usize = 1 << 16;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// One token bucket for each key.
pub(crate) struct Buckets<K: Hash + Eq + Clone> {
    limiter: RateLimiter<K, BoundedStore<K>, DefaultClock>,
    policy: Policy,
}

#[derive(Debug, Clone, Copy)]
struct Policy {
    /// ASCII letters and `-`, because the name is a quoted string of a header.
    name: &'static str,
    rate: Rate,
}

/// The error of an empty bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exceeded {
    policy: Policy,
    wait: Duration,
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    /// All buckets are full. Messages and headers show the name.
    pub(crate) fn new(name: &'static str, rate: Rate) -> Self {
        Self::with_max_buckets(MAX_BUCKETS, name, rate)
    }

    fn with_max_buckets(max_buckets: usize, name: &'static str, rate: Rate) -> Self {
        // The interval is never zero, so the default is never used.
        let quota = Quota::with_period(rate.interval()).unwrap_or(Quota::per_second(rate.count()));
        let store = BoundedStore { max_buckets, buckets: Mutex::new(HashMap::new()) };
        let limiter = RateLimiter::new(quota.allow_burst(rate.count()), store, DefaultClock::default());
        Self { limiter, policy: Policy { name, rate } }
    }

    /// Takes one token.
    pub(crate) fn take(&self, key: &K) -> Result<(), Exceeded> {
        let taken = self.limiter.check_key(key);
        taken.map_err(|until| {
            let wait = until.wait_time_from(self.limiter.clock().now());
            Exceeded { policy: self.policy, wait }
        })
    }
}

impl Exceeded {
    /// Time until the bucket has a token again, in whole seconds, at least one.
    pub(crate) fn seconds(&self) -> u64 {
        (self.wait.as_secs() + u64::from(self.wait.subsec_nanos() > 0)).max(1)
    }

    /// The limit, for messages.
    pub(crate) fn limit(&self) -> String {
        let Policy { name, rate } = self.policy;
        format!("`{name}` is {rate}")
    }

    /// `Retry-After` and both headers of draft-ietf-httpapi-ratelimit-headers-10.
    pub(crate) fn headers(&self) -> HeaderMap {
        let Policy { name, rate } = self.policy;
        let seconds = self.seconds();
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        for (header, value) in [
            (RATE_LIMIT, format!("\"{name}\";r=0;t={seconds}")),
            (RATE_LIMIT_POLICY, format!("\"{name}\";q={};w={}", rate.count(), rate.seconds())),
        ] {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(header, value);
            }
        }
        headers
    }
}

/// The state of at most `max_buckets` buckets. A bucket without state is full.
#[derive(Debug)]
struct BoundedStore<K> {
    max_buckets: usize,
    buckets: Mutex<HashMap<K, Nanos>>,
}

impl<K: Hash + Eq + Clone> StateStore for BoundedStore<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get_mut(key) {
            let (outcome, state) = measure(Some(*bucket))?;
            *bucket = state;
            return Ok(outcome);
        }
        let (outcome, state) = measure(None)?;
        if buckets.len() >= self.max_buckets {
            // Buckets with at most one token missing are treated as full.
            buckets.retain(|_, other| *other > state);
        }
        if buckets.len() >= self.max_buckets {
            // Half of them at once, so that not every new key scans the whole map.
            let mut nth = 0_usize;
            buckets.retain(|_, _| {
                nth += 1;
                nth.is_multiple_of(2)
            });
        }
        buckets.insert(key.clone(), state);
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(most: usize, rate: &str) -> Buckets<u32> {
        Buckets::with_max_buckets(most, "test", rate.parse().unwrap())
    }

    #[test]
    fn a_bucket_gives_what_it_holds_and_reports_when_there_is_more() {
        let buckets = buckets(10, "3/h");
        for _ in 0..3 {
            buckets.take(&1).unwrap();
        }
        let exceeded = buckets.take(&1).unwrap_err();
        assert!((1190..=1200).contains(&exceeded.seconds()), "{exceeded:?}");
        let headers = exceeded.headers();
        assert_eq!(headers[RATE_LIMIT_POLICY], "\"test\";q=3;w=3600");
        let wait = headers[RETRY_AFTER].to_str().unwrap();
        assert_eq!(headers[RATE_LIMIT], format!("\"test\";r=0;t={wait}").as_str());
        buckets.take(&2).unwrap();
    }

    #[test]
    fn memory_is_bounded_for_many_keys() {
        let buckets = buckets(100, "5/h");
        for caller in 0..10_000 {
            buckets.take(&caller).unwrap();
            // Buckets in constant use miss more tokens than the others, so they are kept first.
            if caller < 5 {
                for _ in 0..4 {
                    buckets.take(&caller).unwrap();
                }
            }
            assert!(buckets.limiter.len() <= 100);
        }
        for caller in 0..5 {
            buckets.take(&caller).unwrap_err();
        }
    }

    #[test]
    fn memory_is_bounded_for_active_keys() {
        let buckets = buckets(100, "5/h");
        for caller in 0..1_000 {
            for _ in 0..5 {
                buckets.take(&caller).unwrap();
            }
            assert!(buckets.limiter.len() <= 100);
        }
    }

    impl governor::state::keyed::ShrinkableKeyedStateStore<u32> for BoundedStore<u32> {
        fn retain_recent(&self, drop_below: Nanos) {
            self.buckets.lock().unwrap().retain(|_, state| *state > drop_below);
        }

        fn len(&self) -> usize {
            self.buckets.lock().unwrap().len()
        }

        fn is_empty(&self) -> bool {
            self.len() == 0
        }
    }
}
