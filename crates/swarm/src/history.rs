//! Samples of what all VMs use, for the last 15 minutes.
//!
//! A sample takes 32 bytes for each VM: with 1,000 VMs, the 450 samples take 14.4 MB. The oldest samples are dropped where
//! all of them would take more than 16 MiB.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use skep_api::{
    AccountId, VmId,
    budget::{Budget, MAX_ANSWER_BYTES},
    swarm::{SampleTotals, SwarmSample, VmSample},
};
use skep_keeper_protocol::Load;
use tokio::sync::watch;

/// The time between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// How many samples are kept: those of 15 minutes.
const MAX_SAMPLES: usize = 450;
/// The memory that all samples take at most, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// What the entry of an account and of a sample take, in bytes, with the allocations around them.
const ACCOUNT_BYTES: usize = 128;
const SAMPLE_BYTES: usize = 256;

/// One VM in a sample.
#[derive(Debug, Clone, Copy)]
struct Point {
    vm: VmId,
    cpu_ms: u64,
    memory_mb: u32,
    pid: u32,
}

#[derive(Debug)]
struct Sample {
    sequence: u64,
    at: Timestamp,
    /// The points of each account, by id.
    accounts: HashMap<AccountId, Box<[Point]>>,
    bytes: usize,
}

/// A VM that is sampled.
pub(crate) struct SampledVm {
    pub(crate) vm: VmId,
    pub(crate) account: AccountId,
    pub(crate) pid: u32,
}

/// The samples. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MetricsHistory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    samples: Mutex<Samples>,
    /// The sequence of the latest sample.
    latest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Samples {
    kept: VecDeque<Arc<Sample>>,
    bytes: usize,
}

/// The samples of an account.
#[derive(Debug)]
pub struct AccountSamples {
    /// Oldest first.
    pub samples: Vec<SwarmSample>,
    /// Whether older samples did not fit the answer.
    pub truncated: bool,
}

impl Default for MetricsHistory {
    fn default() -> Self {
        Self(Arc::new(Inner { samples: Mutex::default(), latest: watch::Sender::new(0) }))
    }
}

impl MetricsHistory {
    /// Adds a sample of these VMs. A VM without a load is left out.
    pub(crate) fn record(&self, at: Timestamp, sampled: Vec<SampledVm>, loads: &HashMap<VmId, Load>) {
        let mut accounts: HashMap<AccountId, Vec<Point>> = HashMap::new();
        for SampledVm { vm, account, pid } in sampled {
            let Some(load) = loads.get(&vm) else { continue };
            let memory_mb = u32::try_from(load.held_bytes >> 20).unwrap_or(u32::MAX);
            let point = Point { vm, cpu_ms: load.cpu_us / 1000, memory_mb, pid };
            accounts.entry(account).or_default().push(point);
        }
        let accounts: HashMap<AccountId, Box<[Point]>> = accounts
            .into_iter()
            .map(|(account, mut points)| {
                points.sort_unstable_by_key(|point| point.vm);
                (account, points.into_boxed_slice())
            })
            .collect();
        let bytes = |points: &[Point]| size_of_val(points) + ACCOUNT_BYTES;
        let bytes = SAMPLE_BYTES + accounts.values().map(|points| bytes(points)).sum::<usize>();
        let sequence = *self.0.latest.borrow() + 1;
        let mut samples = self.samples();
        // Callers name a sample by its time, which the API gives in milliseconds.
        let at = in_milliseconds(at);
        samples.kept.push_back(Arc::new(Sample { sequence, at, accounts, bytes }));
        samples.bytes += bytes;
        while samples.kept.len() > MAX_SAMPLES || (samples.bytes > MAX_BYTES && samples.kept.len() > 1) {
            let Some(dropped) = samples.kept.pop_front() else { break };
            samples.bytes -= dropped.bytes;
        }
        drop(samples);
        self.0.latest.send_replace(sequence);
    }

    /// The kept samples of an account that were taken after a time, as many of the newest as an answer may have.
    pub fn after(&self, account: AccountId, since: Option<Timestamp>) -> AccountSamples {
        let kept: Vec<Arc<Sample>> = self.samples().kept.iter().cloned().collect();
        let (mut budget, mut samples) = (Budget::new(MAX_ANSWER_BYTES), Vec::new());
        let mut truncated = false;
        for (at, sample) in kept.iter().enumerate().rev() {
            if since.is_some_and(|since| sample.at <= since) {
                continue;
            }
            let previous = at.checked_sub(1).map(|before| &*kept[before]);
            let one = sample_of(account, previous, sample);
            if !budget.try_add(&one) {
                truncated = true;
                break;
            }
            samples.push(one);
        }
        samples.reverse();
        AccountSamples { samples, truncated }
    }

    /// The position for [`Self::next`] after which the samples after a time follow; `None`: those from now on.
    pub fn position(&self, since: Option<Timestamp>) -> u64 {
        let latest = *self.0.latest.borrow();
        let Some(since) = since else { return latest };
        let samples = self.samples();
        samples.kept.iter().find(|sample| sample.at > since).map_or(latest, |sample| sample.sequence - 1)
    }

    /// Waits for the first kept sample after a position, and returns it with its own position.
    pub async fn next(&self, account: AccountId, position: u64) -> (u64, SwarmSample) {
        let mut latest = self.0.latest.subscribe();
        loop {
            latest.mark_unchanged();
            if let Some((previous, sample)) = self.first_after(position) {
                return (sample.sequence, sample_of(account, previous.as_deref(), &sample));
            }
            if latest.changed().await.is_err() {
                // `self` has the sender.
                return std::future::pending().await;
            }
        }
    }

    /// The first kept sample after a position, and the one before it.
    fn first_after(&self, position: u64) -> Option<(Option<Arc<Sample>>, Arc<Sample>)> {
        let samples = self.samples();
        let at = samples.kept.partition_point(|sample| sample.sequence <= position);
        let sample = samples.kept.get(at)?.clone();
        Some((at.checked_sub(1).and_then(|before| samples.kept.get(before).cloned()), sample))
    }

    fn samples(&self) -> MutexGuard<'_, Samples> {
        self.0.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of a sample that belongs to an account. Shares of processors are those since the previous sample.
fn sample_of(account: AccountId, previous: Option<&Sample>, sample: &Sample) -> SwarmSample {
    let points = |sample: &Sample| sample.accounts.get(&account).cloned().unwrap_or_default();
    let (before, elapsed) = match previous {
        Some(previous) => (points(previous), sample.at.duration_since(previous.at)),
        None => (Box::default(), SignedDuration::ZERO),
    };
    let vms: Vec<VmSample> = points(sample)
        .iter()
        .map(|point| VmSample {
            id: point.vm,
            pid: point.pid,
            cpu_ms: point.cpu_ms,
            cpu_percent: before
                .binary_search_by_key(&point.vm, |one| one.vm)
                .ok()
                .and_then(|at| percent(point.cpu_ms.saturating_sub(before[at].cpu_ms), elapsed)),
            memory_mb: point.memory_mb.into(),
        })
        .collect();
    // The sum of no numbers is -0.0.
    let cpu_percent = vms.iter().filter_map(|vm| vm.cpu_percent).fold(0.0, |sum, one| sum + one);
    let totals = SampleTotals {
        vms: u32::try_from(vms.len()).unwrap_or(u32::MAX),
        cpu_percent: rounded(cpu_percent),
        memory_mb: vms.iter().map(|vm| vm.memory_mb).sum(),
    };
    SwarmSample { at: sample.at, totals, vms }
}

/// The share of one processor, in percent with one decimal; `None` if the clock was set back.
#[expect(clippy::cast_precision_loss, reason = "a share with one decimal")]
fn percent(used_ms: u64, elapsed: SignedDuration) -> Option<f64> {
    let elapsed = elapsed.as_secs_f64() * 1000.0;
    (elapsed > 0.0).then(|| rounded(used_ms as f64 / elapsed * 100.0))
}

fn in_milliseconds(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at)
}

fn rounded(percent: f64) -> f64 {
    (percent * 10.0).round() / 10.0
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
