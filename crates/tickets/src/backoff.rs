//! The delay before the next claim, after an attempt that ended without completion or release.

use std::time::Duration;

const FIRST_DELAY: Duration = Duration::from_secs(10);
const MAX_DELAY: Duration = Duration::from_secs(300);

/// The delay after `counted` such attempts: none after the first, then 10 s, doubled each time, at most 5 minutes.
pub(crate) fn delay(counted: u32) -> Duration {
    match counted {
        0 | 1 => Duration::ZERO,
        // Five doublings reach the maximum.
        more => FIRST_DELAY.saturating_mul(1 << (more - 2).min(5)).min(MAX_DELAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_retry_is_immediate_and_delays_are_at_most_five_minutes() {
        let seconds: Vec<u64> = (0..9).map(|counted| delay(counted).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(delay(u32::MAX), MAX_DELAY);
    }
}
