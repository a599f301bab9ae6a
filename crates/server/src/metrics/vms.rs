//! Metrics of VMs by account: their number and the memory of their guests.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use skep_store::VmMetrics;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    account: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AccountLabels {
    account: String,
}

/// Registers the counts of VMs, with the account as a label. The store returns at most a thousand accounts.
pub(super) fn register(registry: &mut Registry, figures: Vec<VmMetrics>) {
    let states = Family::<StateLabels, Gauge>::default();
    let memory = Family::<AccountLabels, Gauge>::default();
    for VmMetrics { account, running, paused, memory_mb } in figures {
        for (state, count) in [("running", running), ("paused", paused)] {
            let labels = StateLabels { account: account.clone(), state };
            states.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let bytes = i64::try_from(memory_mb.saturating_mul(1 << 20)).unwrap_or(i64::MAX);
        memory.get_or_create(&AccountLabels { account }).set(bytes);
    }
    registry.register("account_vms", "Live VMs, by account and state", states);
    registry.register_with_unit(
        "account_vms_memory",
        "Memory of the guests, by account",
        Unit::Bytes,
        memory,
    );
}
