//! The minimum throughput of a request body.

use std::time::Duration;

const MIN_BYTES_PER_SECOND: f64 = 1024.0;

/// Counts the bytes of the current window of [`BodyTimeouts::stall`]. Only time spent waiting for the body counts.
///
/// [`BodyTimeouts::stall`]: crate::door::limits::BodyTimeouts::stall
#[derive(Debug)]
pub(crate) struct Throughput {
    window: Duration,
    waited: Duration,
    /// The bytes of this window.
    pub(crate) received: usize,
}

impl Throughput {
    pub(crate) fn new(span: Duration) -> Self {
        Self { window: span, waited: Duration::ZERO, received: 0 }
    }

    pub(crate) fn left(&self) -> Duration {
        self.window.saturating_sub(self.waited)
    }

    /// Adds the bytes that arrived after a wait. Returns whether the throughput is high enough.
    pub(crate) fn add(&mut self, waited: Duration, came: usize) -> bool {
        self.waited += waited;
        self.received += came;
        if self.waited < self.window {
            return true;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let is_fast = self.received as f64 >= self.window.as_secs_f64() * MIN_BYTES_PER_SECOND;
        *self = Self::new(self.window);
        is_fast
    }
}

/// The reason to give up a body that brought this many bytes in a window.
pub(crate) fn too_slow(received: usize, window: Duration) -> String {
    if received == 0 {
        format!("nothing came for {window:?}")
    } else {
        format!("less than 1 KiB/s came for {window:?}; send it faster")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_with_too_few_bytes_is_too_slow() {
        let span = Duration::from_secs(30);
        let second = Duration::from_secs(1);
        let mut pace = Throughput::new(span);
        assert!((0..300).all(|_| pace.add(second, 1024)));
        let mut pace = Throughput::new(span);
        assert_eq!((0..30).filter(|_| !pace.add(second, 1023)).count(), 1);
        // Bytes count only in the window in which they arrive.
        let mut pace = Throughput::new(span);
        assert!(pace.add(Duration::ZERO, 30 << 10));
        assert!((0..30).all(|_| pace.add(second, 0)));
        assert_eq!((0..30).filter(|_| !pace.add(second, 1)).count(), 1);
    }
}
