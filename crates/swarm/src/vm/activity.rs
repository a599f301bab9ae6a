//! The activity of a VM: calls that need its guest, while they last.
//!
//! A call holds the lock for reading, and a pause for being idle holds it for writing. So no call begins between the look
//! whether there is one and the end of the pause: it waits, finds the VM paused, and resumes it.

use std::{
    sync::{Arc, Mutex as BlockingMutex, MutexGuard as BlockingMutexGuard, PoisonError},
    time::Duration,
};

use futures_util::StreamExt;
use skep_channel::Content;
use tokio::{
    sync::{Mutex, MutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock},
    time::Instant,
};

#[derive(Debug)]
pub(crate) struct Activity {
    calls: Arc<RwLock<()>>,
    last: BlockingMutex<Instant>,
    resume: Mutex<()>,
}

/// A call that needs the guest. No idle timeout pauses the VM as long as this exists.
#[derive(Debug)]
pub(crate) struct ActiveCall {
    activity: Arc<Activity>,
    _lock: OwnedRwLockReadGuard<()>,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        let last = BlockingMutex::new(Instant::now());
        Arc::new(Self { calls: Arc::default(), last, resume: Mutex::default() })
    }

    /// Begins a call. Waits for the end of a pause for being idle.
    pub(crate) async fn begin(self: &Arc<Self>) -> ActiveCall {
        let lock = Arc::clone(&self.calls).read_owned().await;
        ActiveCall { activity: Arc::clone(self), _lock: lock }
    }

    /// Lets no call begin until the guard is dropped. `None` if there is a call, or another pause.
    pub(crate) fn exclude_calls(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        Arc::clone(&self.calls).try_write_owned().ok()
    }

    /// Waits until no other call resumes the VM.
    pub(crate) async fn resume_alone(&self) -> MutexGuard<'_, ()> {
        self.resume.lock().await
    }

    /// Counts the time without activity from now.
    pub(crate) fn touch(&self) {
        *self.last() = Instant::now();
    }

    /// The time since the last activity, if there is none now.
    pub(crate) fn idle_time(&self) -> Duration {
        self.last().elapsed()
    }

    fn last(&self) -> BlockingMutexGuard<'_, Instant> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveCall {
    /// Passes a byte stream on. The call lasts as long as the stream exists.
    pub(crate) fn during(self, content: Content) -> Content {
        Box::pin(content.inspect(move |_| {
            let _call = &self;
        }))
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.activity.touch();
    }
}
