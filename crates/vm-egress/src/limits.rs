//! The limits of the operator, and the bucket that limits a rate of bytes.

use std::{
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How far a VM may be ahead of its rate, so that timers of a millisecond do not slow it down.
const BURST: Duration = Duration::from_millis(100);

/// The limits of connections. They apply to each VM but for `all_connections`.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections, including those for DNS.
    pub connections: NonZeroU32,
    /// New connections in a second. Five times as many may be opened at once.
    pub new_connections: NonZeroU32,
    /// Megabits in a second, in each direction.
    pub mbit: NonZeroU32,
    /// Open connections of all VMs. Further ones wait.
    pub all_connections: NonZeroU32,
    /// A connection that moves no bytes for this long ends.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let number = |value| NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN);
        Self {
            connections: number(1024),
            new_connections: number(200),
            mbit: number(250),
            all_connections: number(8000),
            idle: Duration::from_secs(15 * 60),
        }
    }
}

/// Limits the bytes of one direction of a VM: bytes are counted when they were read, and the next ones are read when
/// the time is reached that they take at the rate.
#[derive(Debug)]
pub(crate) struct Bucket {
    bytes_per_second: u64,
    /// When all bytes so far have had their time.
    paid: Mutex<Instant>,
}

impl Bucket {
    pub(crate) fn new(mbit: NonZeroU32) -> Self {
        Self { bytes_per_second: u64::from(mbit.get()) * 125_000, paid: Mutex::new(Instant::now()) }
    }

    /// Counts bytes. Returns when the next ones may be read; `None`: at once.
    pub(crate) fn count(&self, bytes: u64) -> Option<Instant> {
        let now = Instant::now();
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let time = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.bytes_per_second);
        *paid = (*paid).max(earliest) + time;
        Some(*paid).filter(|paid| *paid > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_pass_at_the_rate() {
        let bucket = Bucket::new(NonZeroU32::new(8).unwrap());
        let begun = Instant::now();
        for _ in 0..1000 {
            if let Some(next) = bucket.count(10_000) {
                tokio::time::sleep_until(next).await;
            }
        }
        // 10 MB at 1 MB/s. The paused clock moves with the timers alone, in steps of a millisecond.
        let took = begun.elapsed();
        assert!((Duration::from_millis(9_900)..=Duration::from_millis(10_100)).contains(&took), "{took:?}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(bucket.count(50_000).is_none(), "a burst after a pause");
        assert!(bucket.count(100_000).is_some(), "a pause is no credit without limit");
    }
}
