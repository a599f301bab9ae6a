//! Waits for conditions.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Long enough for a machine under full load.
const TIMEOUT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(20);

/// Polls a condition until it holds. Fails after the time limit.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < TIMEOUT, "no sign of {what} in {TIMEOUT:?}");
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Like [`eventually`], for tests without a runtime.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TIMEOUT, "no sign of {what} in {TIMEOUT:?}");
        thread::sleep(INTERVAL);
    }
}
