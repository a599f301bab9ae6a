//! When work on a thread ends at the latest: at its time, or when nobody waits for it any more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Work asks it now and then whether it should end.
#[derive(Debug, Clone)]
pub(crate) struct Leash {
    cut: Arc<AtomicBool>,
    deadline: Instant,
}

/// Ends the work when it is dropped.
#[derive(Debug)]
pub(crate) struct CutOnDrop(Arc<AtomicBool>);

impl Leash {
    /// For work that may take so long, and whoever waits for it.
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
