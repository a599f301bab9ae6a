//! Waiting for what comes by itself.

use std::time::{Duration, Instant};

/// A machine under full load is slow, not wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tries until it holds. Fails when it never does.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "no sign of {what} in {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
