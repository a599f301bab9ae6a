//! Work of tests that counts itself when it begins, and then waits.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

/// Each piece of work waits until one is released, or until the sender is dropped.
#[derive(Clone)]
pub(crate) struct HeldWork {
    begun: Arc<AtomicUsize>,
    released: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl HeldWork {
    pub(crate) fn new() -> (mpsc::Sender<()>, Self) {
        let (release, released) = mpsc::channel();
        (release, Self { begun: Arc::default(), released: Arc::new(Mutex::new(released)) })
    }

    pub(crate) fn begin_and_wait(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _ = self.released.lock().unwrap().recv();
    }

    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }
}
