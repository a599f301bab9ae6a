//! Timeouts and delays of delivery attempts.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, fmt::rfc2822};

/// In seconds.
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

/// The timeout and the retry delays of deliveries.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    /// Timeout of an attempt, including its answer.
    pub timeout: Duration,
    /// Delay after each failed attempt, to which up to 20 % are added at random. After these, the delivery fails.
    pub delays: Vec<Duration>,
    /// The longest `Retry-After` that is honoured.
    pub max_delay: Duration,
    /// A webhook without a success for this time is disabled.
    pub disable_after: SignedDuration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        // With the random 20 %, the last one is up to a day.
        let delays =
            [5, MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR];
        Self {
            timeout: Duration::from_secs(15),
            delays: delays.map(Duration::from_secs).to_vec(),
            max_delay: Duration::from_secs(24 * HOUR),
            disable_after: SignedDuration::from_hours(5 * 24),
        }
    }
}

impl RetryPolicy {
    /// The delay after `failed` attempts. `None` means that the delivery failed. `random` is a random number that varies the delay.
    pub(crate) fn delay(&self, failed: u32, asked: Option<Duration>, random: u64) -> Option<Duration> {
        let delay = *self.delays.get(usize::try_from(failed.checked_sub(1)?).ok()?)?;
        let delay = asked.map_or(delay, |asked| self.clamp_delay(asked));
        let max_jitter_ms = u64::try_from(delay.as_millis() / 5).unwrap_or(u64::MAX);
        // Jitter, so that deliveries that failed together are not retried together.
        let jitter = Duration::from_millis(random % max_jitter_ms.saturating_add(1));
        Some((delay + jitter).min(self.max_delay))
    }

    /// A `Retry-After`, limited to the allowed range.
    pub(crate) fn clamp_delay(&self, asked: Duration) -> Duration {
        let shortest = self.delays.first().copied().unwrap_or_default().min(self.max_delay);
        asked.clamp(shortest, self.max_delay)
    }
}

/// Parses a `Retry-After`: seconds or a date.
pub(crate) fn parse_retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let until = rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(until.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_from_seconds_to_a_day_and_end() {
        let pace = RetryPolicy::default();
        let (day, mut last) = (Duration::from_secs(24 * HOUR), Duration::ZERO);
        for failed in 1..=9 {
            let least = pace.delay(failed, None, 0).unwrap();
            let most = (0..5_000).map(|n| pace.delay(failed, None, n * 7_919).unwrap()).max().unwrap();
            assert!(least >= Duration::from_secs(5) && least > last && most > least, "{failed}: {least:?}");
            assert!(most <= day && most <= least + least / 5, "{failed}: {most:?}");
            last = least;
        }
        assert_eq!(pace.delay(10, None, 0), None);
        assert_eq!(pace.delay(u32::MAX, None, 0), None);
        assert_eq!(pace.delay(0, None, 0), None);
    }

    #[test]
    fn what_an_endpoint_asks_for_is_bounded() {
        let pace = RetryPolicy::default();
        let retry_after = |seconds| pace.delay(3, Some(Duration::from_secs(seconds)), 0).unwrap().as_secs();
        assert_eq!((retry_after(0), retry_after(120), retry_after(u64::MAX)), (5, 120, 24 * HOUR));
    }

    #[test]
    fn a_retry_after_is_seconds_or_a_date() {
        let now: Timestamp = "2015-10-21T07:27:00Z".parse().unwrap();
        let seconds = |text: &str| parse_retry_after(text, now).map(|time| time.as_secs());
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds(" 0 "), Some(0));
        assert_eq!(seconds("99999999999999999999"), Some(u64::MAX));
        assert_eq!(seconds("Wed, 21 Oct 2015 07:28:00 GMT"), Some(60));
        assert_eq!(seconds("Wed, 21 Oct 2015 07:00:00 GMT"), Some(0));
        for nothing in ["", "soon", "-5", "1.5"] {
            assert_eq!(seconds(nothing), None, "{nothing}");
        }
    }
}
