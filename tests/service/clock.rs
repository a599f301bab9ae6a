//! The clock of the runtime, which servers in the process of a test sleep by.

use std::time::Duration;

/// Moves the clock forward, so that what sleeps less wakes at once. Only for tests with one thread. The wall clock and the
/// clocks of other processes stay as they are.
pub(crate) async fn advance_clock(by: Duration) {
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}
