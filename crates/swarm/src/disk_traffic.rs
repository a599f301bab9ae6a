//! What guests read from and wrote to their disks, as their VMMs count it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use skep_engine::{DiskTraffic, Machine};
use tokio::time::timeout;

/// How long a reader waits for a VMM.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the counters of one VM. Cheap to clone.
#[derive(Clone)]
pub(crate) struct DiskMeter {
    /// The task of the VM owns it. `None` if the VM has not run under this server.
    machine: Arc<Mutex<Option<Weak<dyn Machine>>>>,
    last: Arc<Mutex<Option<DiskTraffic>>>,
    totals: DiskTotals,
    /// Held while the VMM is asked, so that one that does not answer is not asked again and again.
    asking: Arc<tokio::sync::Mutex<()>>,
}

impl DiskMeter {
    /// `known`: the counters that are in the totals already. `None`: all that the VM did before the first sample is.
    pub(crate) fn new(
        machine: Option<&Arc<dyn Machine>>,
        known: Option<DiskTraffic>,
        totals: DiskTotals,
    ) -> Self {
        Self {
            machine: Arc::new(Mutex::new(machine.map(Arc::downgrade))),
            last: Arc::new(Mutex::new(known)),
            totals,
            asking: Arc::default(),
        }
    }

    /// The counters now, or the last ones if the VMM does not answer in time or is gone. `None` if none were read yet.
    pub(crate) async fn read(&self) -> Option<DiskTraffic> {
        let meter = self.clone();
        let sample = async move {
            let asking = meter.asking.clone().lock_owned().await;
            // In a task of its own: a command to the monitor must not be cut off by a reader that stops waiting.
            let asked = tokio::spawn(async move {
                meter.sample().await;
                drop(asking);
            });
            asked.await
        };
        // A panic is logged where it happened.
        let _ = timeout(ANSWER_TIMEOUT, sample).await;
        *lock(&self.last)
    }

    /// Reads from another VMM from now on, whose counters begin with zero.
    pub(crate) fn replace(&self, machine: &Arc<dyn Machine>) {
        *lock(&self.machine) = Some(Arc::downgrade(machine));
        *lock(&self.last) = Some(DiskTraffic::default());
    }

    async fn sample(&self) {
        let Some(machine) = lock(&self.machine).as_ref().and_then(Weak::upgrade) else { return };
        match machine.disk_traffic().await {
            Ok(now) => {
                let before = lock(&self.last).replace(now);
                self.totals.add(now, before.unwrap_or(now));
            }
            Err(error) => tracing::debug!(%error, "the counters of a disk cannot be read: {error}"),
        }
    }
}

/// The sums over all VMs since the start of this server, with VMs that have ended. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiskTotals(Arc<Mutex<DiskTraffic>>);

impl DiskTotals {
    pub(crate) fn read(&self) -> DiskTraffic {
        *lock(&self.0)
    }

    fn add(&self, now: DiskTraffic, before: DiskTraffic) {
        let mut totals = lock(&self.0);
        // A compromised VMM may report anything.
        let add = |total: &mut u64, now: u64, before: u64| {
            *total = total.saturating_add(now.saturating_sub(before));
        };
        add(&mut totals.read_bytes, now.read_bytes, before.read_bytes);
        add(&mut totals.written_bytes, now.written_bytes, before.written_bytes);
        add(&mut totals.reads, now.reads, before.reads);
        add(&mut totals.writes, now.writes, before.writes);
        add(&mut totals.flushes, now.flushes, before.flushes);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
