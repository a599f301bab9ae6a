//! Waits for conditions.

use std::time::{Duration, Instant};

/// Long enough for a machine under full load.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls a condition until it holds. Fails after the time limit.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < TIMEOUT, "no sign of {what} in {TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
