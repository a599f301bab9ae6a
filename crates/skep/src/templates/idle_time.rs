//! How long no VM has used a loaded template.

use std::time::{Duration, Instant};

/// A template that no VM used for this long is dropped from memory. The next boot loads it again.
const LIMIT: Duration = Duration::from_mins(1);

/// Starts when a look finds the template unused, and again after each use.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IdleTime {
    since: Option<Instant>,
}

impl IdleTime {
    /// Records whether a VM uses the template now. Returns whether none has done so for the limit.
    pub(super) fn is_over(&mut self, is_in_use: bool, now: Instant) -> bool {
        if is_in_use {
            self.since = None;
            return false;
        }
        now.saturating_duration_since(*self.since.get_or_insert(now)) >= LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_minute_without_use_is_too_long() {
        let start = Instant::now();
        let mut idle = IdleTime::default();
        let mut look =
            |seconds: u64, is_in_use| idle.is_over(is_in_use, start + Duration::from_secs(seconds));
        assert!(!look(0, false) && !look(59, false));
        assert!(!look(60, true), "a template in use is kept");
        assert!(!look(70, false) && !look(129, false), "the use before counts no longer");
        assert!(look(130, false));
    }
}
