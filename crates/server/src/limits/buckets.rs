//! Token buckets, one for each key or address, in bounded memory.

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

/// Buckets that are remembered. An attacker with more addresses than that makes us forget, and takes no more memory.
const REMEMBERED: usize = 1 << 16;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// A bucket for each key of some sort.
pub(crate) struct Buckets<K: Hash + Eq + Clone> {
    limiter: RateLimiter<K, Bounded<K>, DefaultClock>,
    policy: Policy,
}

/// What is limited, and how far.
#[derive(Debug, Clone, Copy)]
struct Policy {
    /// Plain letters and `-`: it stands between quotes in a header.
    name: &'static str,
    rate: Rate,
}

/// A bucket is empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exceeded {
    policy: Policy,
    wait: Duration,
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    /// Full buckets. The name is what callers read.
    pub(crate) fn new(name: &'static str, rate: Rate) -> Self {
        Self::remembering(REMEMBERED, name, rate)
    }

    fn remembering(most: usize, name: &'static str, rate: Rate) -> Self {
        // An interval is never zero, so the other arm is never taken.
        let quota = Quota::with_period(rate.interval()).unwrap_or(Quota::per_second(rate.count()));
        let store = Bounded { most, buckets: Mutex::new(HashMap::new()) };
        let limiter = RateLimiter::new(quota.allow_burst(rate.count()), store, DefaultClock::default());
        Self { limiter, policy: Policy { name, rate } }
    }

    /// Takes one out of a bucket.
    pub(crate) fn take(&self, key: &K) -> Result<(), Exceeded> {
        let taken = self.limiter.check_key(key);
        taken.map_err(|until| {
            let wait = until.wait_time_from(self.limiter.clock().now());
            Exceeded { policy: self.policy, wait }
        })
    }
}

impl Exceeded {
    /// Whole seconds, at least one, after which there is something in the bucket again.
    pub(crate) fn seconds(&self) -> u64 {
        (self.wait.as_secs() + u64::from(self.wait.subsec_nanos() > 0)).max(1)
    }

    /// What is limited, and how far.
    pub(crate) fn limit(&self) -> String {
        let Policy { name, rate } = self.policy;
        format!("`{name}` is {rate}")
    }

    /// The headers of the answer: `Retry-After`, and both of draft-ietf-httpapi-ratelimit-headers-10.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        let Policy { name, rate } = self.policy;
        let seconds = self.seconds();
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        for (header, value) in [
            (RATE_LIMIT, format!("\"{name}\";r=0;t={seconds}")),
            (RATE_LIMIT_POLICY, format!("\"{name}\";q={};w={}", rate.count(), rate.seconds())),
        ] {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(header, value);
            }
        }
    }
}

/// The state of so many buckets and no more. What is not remembered is full.
#[derive(Debug)]
struct Bounded<K> {
    most: usize,
    buckets: Mutex<HashMap<K, Nanos>>,
}

impl<K: Hash + Eq + Clone> StateStore for Bounded<K> {
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
        if buckets.len() >= self.most {
            // A bucket that lacks no more than this one is as good as full.
            buckets.retain(|_, other| *other > state);
        }
        if buckets.len() >= self.most {
            // Half of them at once, so that not every newcomer goes through all.
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
        Buckets::remembering(most, "test", rate.parse().unwrap())
    }

    #[test]
    fn a_bucket_gives_what_it_holds_and_says_when_there_is_more() {
        let buckets = buckets(10, "3/h");
        for _ in 0..3 {
            buckets.take(&1).unwrap();
        }
        let exceeded = buckets.take(&1).unwrap_err();
        assert!((1190..=1200).contains(&exceeded.seconds()), "{exceeded:?}");
        let mut headers = HeaderMap::new();
        exceeded.mark(&mut headers);
        assert_eq!(headers[RATE_LIMIT_POLICY], "\"test\";q=3;w=3600");
        let wait = headers[RETRY_AFTER].to_str().unwrap();
        assert_eq!(headers[RATE_LIMIT], format!("\"test\";r=0;t={wait}").as_str());
        buckets.take(&2).unwrap();
    }

    #[test]
    fn no_crowd_takes_more_memory_than_there_is_for_it() {
        let buckets = buckets(100, "5/h");
        for caller in 0..10_000 {
            buckets.take(&caller).unwrap();
            // Those who keep coming lack more than the others, and are remembered before them.
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
    fn a_crowd_that_keeps_coming_is_bounded_too() {
        let buckets = buckets(100, "5/h");
        for caller in 0..1_000 {
            for _ in 0..5 {
                buckets.take(&caller).unwrap();
            }
            assert!(buckets.limiter.len() <= 100);
        }
    }

    impl governor::state::keyed::ShrinkableKeyedStateStore<u32> for Bounded<u32> {
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
