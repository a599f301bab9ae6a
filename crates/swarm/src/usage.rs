//! What VMs use: samples of all VMs, and the metrics of one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use skep_api::{
    VmId,
    swarm::{
        CpuMetrics, DiskMetrics, DiskTrafficMetrics, GuestMetrics, MemoryMetrics, NetworkMetrics, Vm,
        VmMetrics, VmUsage,
    },
};
use skep_channel::GuestUsage;
use skep_engine::DiskTraffic;
use skep_keeper_protocol::{Load, ServerEnd, Usage};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::{
    Error,
    budget::{Budget, MemorySample},
    history::{self, MetricsHistory},
    pool::Pool,
    registry::Registry,
    vm::VmHandle,
};

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of the keeper's answer to a sample.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(2);

/// The last sample of each VM. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsageSamples(Arc<Mutex<HashMap<VmId, Load>>>);

impl UsageSamples {
    /// Adds the last sample of a VM to its record.
    pub(crate) fn add_to(&self, record: Vm) -> Vm {
        Vm { usage: self.of(record.id).map(to_api), ..record }
    }

    /// The last sample of a VM. `None` if it has none yet, or no VMM.
    pub(crate) fn of(&self, vm: VmId) -> Option<Load> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&vm).copied()
    }

    /// The sum of the memory that all VMs hold, in bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().map(|load| load.held_bytes).sum()
    }

    /// Samples all VMs and the memory of the machine until the keeper is gone, and records every second sample in the
    /// history. Ends parked VMs when memory is low.
    pub(crate) async fn run(self, pool: Arc<Pool>, registry: Arc<Registry>, history: MetricsHistory) {
        let keeper = pool.restorer.keeper.clone();
        let mut recorded: Option<Instant> = None;
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !keeper.is_closed() {
            ticks.tick().await;
            // A keeper that does not answer is noticed elsewhere; until then, the last sample stays.
            let taken = timeout(KEEPER_TIMEOUT, self.take(&keeper, &pool.budget)).await;
            // The timer may fire a little early or late.
            if taken.is_ok_and(|taken| taken.is_ok())
                && recorded
                    .is_none_or(|last| last.elapsed() + SAMPLE_INTERVAL / 2 >= history::SAMPLE_INTERVAL)
            {
                self.record(&registry, &history);
                recorded = Some(Instant::now());
            }
            pool.evict_if_memory_is_low().await;
        }
    }

    fn record(&self, registry: &Registry, history: &MetricsHistory) {
        let sample = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        history.record(Timestamp::now(), registry.sampled_vms(), &sample);
    }

    /// Takes one sample.
    pub(crate) async fn take(&self, keeper: &ServerEnd, budget: &Budget) -> Result<(), Error> {
        let (held, machine) = tokio::try_join!(keeper.list(), keeper.memory())?;
        let sample = held.into_iter().map(|vm| (vm.launched.vm, vm.load)).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sample;
        budget.observe(MemorySample { machine, held_bytes: self.held_bytes() });
        Ok(())
    }
}

fn to_api(load: Load) -> VmUsage {
    VmUsage { cpu_ms: load.cpu_us / 1000, memory_mb: load.held_bytes >> 20 }
}

/// Reads the current metrics of a VM, which is promised this memory.
///
/// # Errors
/// The keeper does not hold it, or is gone.
pub(crate) async fn read(keeper: &ServerEnd, vm: &VmHandle, promised_mb: u64) -> Result<VmMetrics, Error> {
    // A paused guest does not answer.
    let guest = async { vm.guest().ok()?.usage().await.ok() };
    let (usage, guest, traffic) = tokio::join!(keeper.usage(vm.facts.id), guest, vm.disk.read());
    let usage = usage?;
    Ok(VmMetrics {
        cpu: CpuMetrics { used_ms: usage.load.cpu_us / 1000, vcpus: vm.facts.vcpus },
        memory: memory(&usage, promised_mb),
        disk: disk(&usage, traffic),
        network: NetworkMetrics { received_bytes: usage.received_bytes, sent_bytes: usage.sent_bytes },
        guest: guest.map(guest_metrics),
    })
}

fn disk(usage: &Usage, traffic: Option<DiskTraffic>) -> DiskMetrics {
    DiskMetrics {
        used_mb: usage.load.disk_bytes >> 20,
        size_mb: usage.disk_size_bytes >> 20,
        traffic: traffic.map(|traffic| DiskTrafficMetrics {
            read_bytes: traffic.read_bytes,
            written_bytes: traffic.written_bytes,
            reads: traffic.reads,
            writes: traffic.writes,
            flushes: traffic.flushes,
        }),
    }
}

fn memory(usage: &Usage, promised_mb: u64) -> MemoryMetrics {
    MemoryMetrics {
        held_mb: usage.load.held_bytes >> 20,
        promised_mb,
        charged_mb: usage.memory_bytes >> 20,
        limit_mb: usage.memory_limit_bytes >> 20,
    }
}

fn guest_metrics(usage: GuestUsage) -> GuestMetrics {
    GuestMetrics {
        processes: usage.processes,
        memory_mb: usage.memory_bytes >> 20,
        memory_available_mb: usage.memory_available_bytes >> 20,
    }
}
