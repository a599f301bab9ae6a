//! Counts what the files of an account occupy.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use skep_api::{AccountId, ErrorCode, Failure};
use skep_store::{AccountStore, Store};
use skep_workspace::occupied_bytes;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, Semaphore, oneshot},
    time::{Instant, sleep_until, timeout},
};

use super::sum::DiskSum;

/// How long a request waits for a count.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// After this time, a count is repeated in the background at the next use: files also change without the server.
const MAX_AGE: Duration = Duration::from_secs(600);
/// For a status, the files are not counted more often.
const MIN_STATUS_AGE: Duration = Duration::from_secs(5);
/// The most counts at the same time, of all accounts. Each has a thread, and a descriptor for each level of folders.
const MAX_COUNTS: usize = 4;
static COUNT_PERMITS: Semaphore = Semaphore::const_new(MAX_COUNTS);

/// The files of one account, and what else it occupies.
#[derive(Debug)]
pub(super) struct Counter {
    account: AccountId,
    sum: Mutex<DiskSum>,
    /// How often the files may have changed in a way that the sum does not know.
    changes: AtomicU64,
    /// Of these, the ones that the last count knows.
    counted_changes: AtomicU64,
    /// Whether a count in the background is going to begin.
    is_requested: AtomicBool,
    /// Locked during a count.
    last: Arc<AsyncMutex<LastCount>>,
}

#[derive(Debug, Default)]
struct LastCount {
    period: Option<(Instant, Instant)>,
    failure: Option<Failure>,
}

/// Which count a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// One that begins after it has asked, so that files which were removed before are not in it.
    NewCount,
    /// One that knows the changes up to now.
    CountOfChanges,
}

impl Counter {
    pub(super) fn new(account: AccountId) -> Self {
        Self {
            account,
            sum: Mutex::default(),
            changes: AtomicU64::new(0),
            counted_changes: AtomicU64::new(0),
            is_requested: AtomicBool::new(false),
            last: Arc::default(),
        }
    }

    pub(super) fn account(&self) -> AccountId {
        self.account
    }

    pub(super) fn sum(&self) -> MutexGuard<'_, DiskSum> {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_stale(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn is_stale(&self) -> bool {
        self.changes.load(Ordering::SeqCst) != self.counted_changes.load(Ordering::SeqCst)
    }

    /// Takes disk space.
    ///
    /// # Errors
    /// The known total, if `max` does not permit more. The sum is stale then, because what the refused operation has written
    /// is removed.
    pub(super) fn try_take(&self, bytes: u64, max: u64) -> Result<(), u64> {
        let taken = self.sum().try_take(bytes, max);
        if taken.is_err() {
            self.set_stale();
        }
        taken
    }

    /// Counts the files, if no count has begun since this was called. Between two counts is a pause as long as the first of
    /// them, so that a caller cannot keep the disk busy.
    ///
    /// # Errors
    /// The store is not available, or the files cannot be counted; `overloaded` if that takes too long.
    pub(super) async fn count(self: &Arc<Self>, store: &dyn AccountStore) -> Result<(), Failure> {
        self.count_in_time(store, Need::NewCount).await
    }

    /// Counts the files if they may have changed in a way that the sum does not know.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub(super) async fn count_if_stale(self: &Arc<Self>, store: &dyn AccountStore) -> Result<(), Failure> {
        if self.is_stale() { self.count_in_time(store, Need::CountOfChanges).await } else { Ok(()) }
    }

    async fn count_in_time(self: &Arc<Self>, store: &dyn AccountStore, need: Need) -> Result<(), Failure> {
        let counted = timeout(TIME_LIMIT, self.count_after_pause(store, need)).await;
        counted.unwrap_or_else(|_| {
            let seconds = TIME_LIMIT.as_secs();
            let message = format!(
                "the files of this account have not been counted within {seconds} s, which its limit `max_disk_mb` \
                 needs; try again"
            );
            Err(Failure::new(ErrorCode::Overloaded, message))
        })
    }

    async fn count_after_pause(
        self: &Arc<Self>,
        store: &dyn AccountStore,
        need: Need,
    ) -> Result<(), Failure> {
        let asked = Instant::now();
        let last = Arc::clone(&self.last).lock_owned().await;
        if need == Need::CountOfChanges && !self.is_stale() {
            return Ok(());
        }
        if let Some((began, ended)) = last.period {
            if began >= asked {
                return last.failure.clone().map_or(Ok(()), Err);
            }
            sleep_until(ended + (ended - began)).await;
        }
        // The semaphore is never closed.
        let permit = COUNT_PERMITS.acquire().await;
        let roots =
            outermost(store.account(self.account).await?.roots.into_iter().map(PathBuf::from).collect());
        // The task goes on if the caller leaves, and keeps the next count waiting.
        let counter = Arc::clone(self);
        let counting = tokio::spawn(async move {
            let _permit = permit;
            counter.count_now(last, roots).await
        });
        counting.await.unwrap_or_else(|_| Err(internal()))
    }

    async fn count_now(
        &self,
        mut last: OwnedMutexGuard<LastCount>,
        roots: Vec<PathBuf>,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let changes = self.changes.load(Ordering::SeqCst);
        self.sum().begin_count();
        let counted = count_on_a_thread(roots).await;
        last.period = Some((began, Instant::now()));
        last.failure = counted.as_ref().err().cloned();
        match counted {
            Ok(bytes) => {
                self.sum().end_count(bytes);
                self.counted_changes.store(changes, Ordering::SeqCst);
            }
            // The next request counts them again, and is refused as well.
            Err(_) => self.set_stale(),
        }
        last.failure.clone().map_or(Ok(()), Err)
    }

    /// Counts the files in the background, if they have not been counted for a while.
    pub(super) fn count_if_old(self: &Arc<Self>, store: &Arc<dyn Store>) {
        // The lock is held during a count.
        let is_old = self
            .last
            .try_lock()
            .is_ok_and(|last| last.period.is_some_and(|(_, ended)| ended.elapsed() > MAX_AGE));
        if is_old {
            self.count_soon(store);
        }
    }

    /// Whether a status should count the files: what was removed is in the sum still. Not more often than every few seconds, and a
    /// tenth of the time.
    pub(super) fn is_due_for_status(&self) -> bool {
        // The lock is held during a count.
        self.last.try_lock().is_ok_and(|last| {
            last.period
                .is_none_or(|(began, ended)| ended.elapsed() > MIN_STATUS_AGE.max((ended - began) * 10))
        })
    }

    /// Counts the files in the background.
    pub(super) fn count_soon(self: &Arc<Self>, store: &Arc<dyn Store>) {
        if self.is_requested.swap(true, Ordering::SeqCst) {
            return;
        }
        let (counter, store) = (Arc::clone(self), Arc::clone(store));
        tokio::spawn(async move {
            let counted = counter.count(&*store).await;
            counter.is_requested.store(false, Ordering::SeqCst);
            if let Err(failure) = counted {
                tracing::warn!(account = %counter.account, %failure, "the files of an account were not counted");
            }
        });
    }
}

/// Leaves out roots that lie in another, whose files would count twice.
fn outermost(mut roots: Vec<PathBuf>) -> Vec<PathBuf> {
    // A folder sorts before what is in it.
    roots.sort();
    roots.dedup_by(|root, outer| root.starts_with(outer));
    roots
}

/// Counts on a thread of its own, which does not delay the end of the process.
async fn count_on_a_thread(roots: Vec<PathBuf>) -> Result<u64, Failure> {
    let (answer, answered) = oneshot::channel();
    let work = move || {
        // The receiver waits for it in a task that is not cancelled.
        let _ = answer.send(occupied_bytes(&roots));
    };
    let started = std::thread::Builder::new().name("disk-count".to_owned()).spawn(work);
    started.map_err(|error| not_counted(&error))?;
    let counted = answered.await.map_err(|_| internal())?;
    counted.map_err(|error| not_counted(&error))
}

fn not_counted(error: &io::Error) -> Failure {
    if error.get_ref().is_none() {
        tracing::error!(%error, "the files of an account cannot be counted");
        return internal();
    }
    let message = format!(
        "the files of this account cannot be counted, which its limit `max_disk_mb` needs: {error}; remove or move that first"
    );
    Failure::new(ErrorCode::QuotaExceeded, message)
}

fn internal() -> Failure {
    Failure::new(ErrorCode::Internal, "internal error")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_lies_in_another_is_left_out() {
        let roots = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let all = roots(&["/srv/a/b", "/srv/a", "/srv/ab", "/srv/a", "/srv/a/c/d", "/srv/b"]);
        assert_eq!(outermost(all), roots(&["/srv/a", "/srv/ab", "/srv/b"]));
    }
}
