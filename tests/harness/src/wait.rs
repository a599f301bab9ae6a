//! Waits for conditions.

use std::{
    fmt::Debug,
    thread,
    time::{Duration, Instant},
};

/// A guard against waiting for ever, longer than anything takes on a machine under full load.
const TIMEOUT: Duration = Duration::from_secs(120);
const INTERVAL: Duration = Duration::from_millis(20);

/// Polls a condition until it holds. Fails after the time limit.
pub async fn eventually(what: &str, holds: impl AsyncFnMut() -> bool) {
    eventually_within(TIMEOUT, what, holds).await;
}

/// Like [`eventually`], for what may take longer.
pub async fn eventually_within(limit: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < limit, "no sign of {what} in {limit:?}");
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Polls a list until it is empty. Fails after the time limit, with what is in it.
pub async fn eventually_empty<T: Debug>(what: &str, mut list: impl AsyncFnMut() -> Vec<T>) {
    let begun = Instant::now();
    loop {
        let found = list().await;
        if found.is_empty() {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "{what} after {TIMEOUT:?}: {found:#?}");
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
