//! Cancellation of blocking work: by a time limit, or when the caller stops waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Checked regularly by blocking work to see whether it must stop.
#[derive(Debug, Clone)]
pub(crate) struct Cancellation {
    cancelled: Arc<AtomicBool>,
    deadline: Instant,
}

/// Cancels the work when dropped.
#[derive(Debug)]
pub(crate) struct CancelOnDrop(Arc<AtomicBool>);

impl Cancellation {
    /// A token for work that may take up to `limit`. The caller keeps the guard for as long as it waits.
    pub(crate) fn with_time_limit(limit: Duration) -> (Self, CancelOnDrop) {
        let cut = Arc::default();
        (Self { cancelled: Arc::clone(&cut), deadline: Instant::now() + limit }, CancelOnDrop(cut))
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || Instant::now() > self.deadline
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
