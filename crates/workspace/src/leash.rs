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
pub(crate) struct Leash {
    cut: Arc<AtomicBool>,
    deadline: Instant,
}

/// Cancels the work when dropped.
#[derive(Debug)]
pub(crate) struct CutOnDrop(Arc<AtomicBool>);

impl Leash {
    /// A token for work that may take up to `limit`. The caller keeps the guard for as long as it waits.
    pub(crate) fn of(limit: Duration) -> (Self, CutOnDrop) {
        let cut = Arc::default();
        (Self { cut: Arc::clone(&cut), deadline: Instant::now() + limit }, CutOnDrop(cut))
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed) || Instant::now() > self.deadline
    }
}

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
