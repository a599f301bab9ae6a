//! The disk space of one account, during one request.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use skep_api::{AddsFiles, ErrorCode, Failure, keys::Limits};
use skep_store::Store;
use skep_swarm::{check_disk, disk_refusal};
use skep_workspace::{DiskSpace, ENTRY_BYTES};
use tokio::time::sleep;

use super::counter::Counter;
use crate::swarm_handle::SwarmHandle;

/// How often the files are counted while git may add to them.
const GIT_INTERVAL: Duration = Duration::from_secs(1);

/// How much a push may add to the files: references, and their logs.
const PUSH_BYTES: u64 = 4 << 20;

/// How often the files are counted for one refusal.
const MAX_COUNTS: usize = 3;

/// The disk space of an account with a limit, for one request.
pub(crate) struct AccountSpace {
    store: Arc<dyn Store>,
    counter: Arc<Counter>,
    limits: Limits,
    vms: SwarmHandle,
    /// Whether this request has found out what is left.
    is_fresh: AtomicBool,
    /// What was refused last, in bytes.
    refused_bytes: AtomicU64,
    /// What this request has taken, in bytes.
    own_bytes: AtomicU64,
}

impl AccountSpace {
    pub(super) fn new(
        store: Arc<dyn Store>,
        counter: Arc<Counter>,
        limits: Limits,
        vms: SwarmHandle,
    ) -> Self {
        let [refused_bytes, own_bytes] = [(); 2].map(|()| AtomicU64::new(0));
        Self { store, counter, limits, vms, is_fresh: AtomicBool::new(false), refused_bytes, own_bytes }
    }

    /// Runs git, and ends it where the files exceed the limit.
    ///
    /// # Errors
    /// `quota_exceeded`, and those of the work.
    pub(crate) async fn guard<T>(
        &self,
        adds: AddsFiles,
        work: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        let before = match adds {
            AddsFiles::Never => return work.await,
            AddsFiles::Perhaps => self.files_before_push().await,
            AddsFiles::Always => {
                self.require_room().await?;
                Some(0)
            }
        };
        let Some(before) = before else { return work.await };
        let _stale = StaleOnDrop(self);
        tokio::select! {
            biased;
            done = work => done,
            exceeded = self.exceeds(before) => Err(exceeded),
        }
    }

    async fn require_room(&self) -> Result<(), Failure> {
        let mut is_final = false;
        while let Err(refused) = self.try_take(ENTRY_BYTES) {
            if is_final {
                return Err(refused);
            }
            is_final = self.refresh().await?;
        }
        self.written(ENTRY_BYTES);
        Ok(())
    }

    /// The files that a push may leave behind. `None` if they cannot be counted: the push is not watched then.
    async fn files_before_push(&self) -> Option<u64> {
        self.count().await.ok()?;
        Some(self.counter.sum().files()?.saturating_add(PUSH_BYTES))
    }

    /// Completes once the account occupies more than it may, and its files more than before.
    async fn exceeds(&self, before: u64) -> Failure {
        loop {
            sleep(GIT_INTERVAL).await;
            // By two counts: a VM may end during one, a snapshot may be refused, and what is moved may be counted twice.
            if self.found_excess(before).await.is_some()
                && let Some(exceeded) = self.found_excess(before).await
            {
                return exceeded;
            }
        }
    }

    /// Why git must end, by a new count.
    async fn found_excess(&self, before: u64) -> Option<Failure> {
        let counted = self.count().await;
        if let Err(failure) = counted
            && failure.code == ErrorCode::QuotaExceeded
        {
            return Some(failure);
        }
        // Where the count has failed, or takes longer, this is the one before.
        let sum = self.counter.sum();
        let (files, total) = (sum.counted().unwrap_or_default(), sum.counted_total().unwrap_or_default());
        if files > before { check_disk(&self.limits, total, 0).err() } else { None }
    }

    /// Counts again where something was moved during a count, and so many bytes do not fit by its result.
    async fn count_until_certain(&self, wanted: u64) -> Result<(), Failure> {
        for _ in 0..MAX_COUNTS {
            self.counter.count(&*self.store).await?;
            let sum = self.counter.sum();
            if !sum.is_uncertain() || sum.total().saturating_add(wanted) <= self.max_bytes() {
                break;
            }
        }
        Ok(())
    }

    async fn count(&self) -> Result<(), Failure> {
        self.read_outside().await?;
        self.counter.count(&*self.store).await
    }

    fn max_bytes(&self) -> u64 {
        self.limits.max_disk_mb.map_or(u64::MAX, |mb| mb.saturating_mul(1 << 20))
    }

    /// Reads what the account occupies outside of its workspace: VMs write to their disks, and end.
    async fn read_outside(&self) -> Result<(), Failure> {
        let account = self.counter.account();
        if self.vms.is_starting() {
            // Until an earlier server has handed over its VMs, only the templates are known, and the next request reads again.
            let bytes = self.store.account_disk(account).await?.templates_bytes;
            self.counter.sum().set_outside_at_least(bytes);
            return Ok(());
        }
        let bytes = match self.vms.swarm_now() {
            Ok(swarm) => swarm.bytes_outside_workspace(&account).await?,
            Err(_) => self.store.account_disk(account).await?.templates_bytes,
        };
        self.counter.sum().set_outside(bytes);
        Ok(())
    }
}

impl DiskSpace for AccountSpace {
    fn try_take(&self, bytes: u64) -> Result<(), Failure> {
        self.counter.count_if_old(&self.store);
        let is_fresh = self.is_fresh.load(Ordering::SeqCst);
        let is_known = is_fresh || !(self.counter.is_stale() || self.counter.sum().is_outside_old());
        let taken = if is_known {
            self.counter.try_take(bytes, self.max_bytes())
        } else {
            Err(self.counter.sum().total())
        };
        let own = self.own_bytes.load(Ordering::SeqCst);
        taken.map_err(|total| {
            self.refused_bytes.store(bytes, Ordering::SeqCst);
            disk_refusal(&self.limits, total.saturating_sub(own), bytes.saturating_add(own))
        })?;
        self.own_bytes.fetch_add(bytes, Ordering::SeqCst);
        // Work that has begun is stopped only by what really does not fit.
        self.is_fresh.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn written(&self, bytes: u64) {
        self.counter.sum().written(bytes);
    }

    fn moved(&self, bytes: Option<u64>) {
        self.counter.sum().moved(bytes);
    }

    fn begin_again(&self) {
        self.own_bytes.store(0, Ordering::SeqCst);
    }

    fn refresh(&self) -> BoxFuture<'_, Result<bool, Failure>> {
        Box::pin(async {
            self.read_outside().await?;
            let wanted = self.refused_bytes.load(Ordering::SeqCst);
            let fits = self.counter.sum().total().saturating_add(wanted) <= self.max_bytes();
            // Otherwise the sum may contain files that were removed.
            if fits {
                self.counter.count_if_stale(&*self.store).await?;
            } else {
                self.count_until_certain(wanted).await?;
            }
            self.is_fresh.store(true, Ordering::SeqCst);
            Ok(!fits)
        })
    }
}

impl fmt::Debug for AccountSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountSpace").field("counter", &self.counter).finish_non_exhaustive()
    }
}

/// Has the files counted at the end of a program, also if its caller has left.
struct StaleOnDrop<'a>(&'a AccountSpace);

impl Drop for StaleOnDrop<'_> {
    fn drop(&mut self) {
        self.0.counter.set_stale();
        self.0.counter.count_soon(&self.0.store);
    }
}
