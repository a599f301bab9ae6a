//! The delay before the next claim, after an attempt that ended without completion or release.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);

/// The delay after `counted` such attempts: none after the first, then 10 s, doubled each time, at most 5 minutes.
pub(crate) fn rest(counted: u32) -> Duration {
    match counted {
        0 | 1 => Duration::ZERO,
        // Five doublings reach the maximum.
        more => FIRST.saturating_mul(1 << (more - 2).min(5)).min(LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_retry_is_at_once_and_none_rests_longer_than_five_minutes() {
        let seconds: Vec<u64> = (0..9).map(|counted| rest(counted).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(rest(u32::MAX), LONGEST);
    }
}
