//! Reads the metrics that are sampled at each scrape, and encodes all metrics.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use prometheus_client::{
    encoding::{
        EncodeLabelSet,
        text::{encode_eof, encode_registry},
    },
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use skep_api::{
    keys::Limits,
    swarm::{BASE_TEMPLATE, PoolState, Vm, VmState},
};
use skep_store::{Store, TicketMetrics};
use skep_swarm::{DiskTraffic, EgressRefusal, EgressTotals, SwarmMetrics};

use super::{Format, Metrics, PREFIX, process::Usage, tickets, vms};
use crate::{error::Refusal, swarm_handle::SwarmHandle};

/// How long the store may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
const STATES: [(VmState, &str); 2] = [(VmState::Running, "running"), (VmState::Paused, "paused")];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TemplateLabels {
    template: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OwnerLabels {
    owner: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The sources of all metrics of a server.
#[derive(Clone)]
pub(crate) struct Collector {
    pub metrics: Metrics,
    pub store: Arc<dyn Store>,
    pub vms: SwarmHandle,
    pub data_dir: PathBuf,
}

impl Collector {
    /// All metrics of the server.
    ///
    /// # Errors
    /// `internal` if they cannot be encoded.
    pub(crate) async fn encode_server(&self, format: Format) -> Result<String, Refusal> {
        let mut root = Registry::default();
        let registry = root.sub_registry_with_prefix(PREFIX);
        let seconds = ConstGauge::new(self.metrics.uptime().as_secs_f64());
        registry.register_with_unit("uptime", "Time since the server started", Unit::Seconds, seconds);
        let store = self.store.ping(PING_TIMEOUT).await.is_ok();
        flag(registry, "store_up", "Whether the store takes commands", store);
        match self.store.ticket_metrics(None).await {
            Ok(figures) => tickets::register(registry, figures, Timestamp::now()),
            Err(error) => tracing::warn!(%error, "metrics: the counts of tickets cannot be read"),
        }
        match self.store.vm_metrics().await {
            Ok(figures) => vms::register(registry, figures),
            Err(error) => tracing::warn!(%error, "metrics: the counts of VMs cannot be read"),
        }
        let working = self.vms.swarm_now().ok().filter(|swarm| swarm.health().is_ok());
        flag(registry, "swarm_up", "Whether VMs can be booted", working.is_some());
        let figures = match self.vms.swarm_now() {
            Ok(swarm) => swarm.metrics().await,
            // A counter at 0 before those of the egress process, which outlives the server, would look like traffic.
            Err(_) if self.vms.is_starting() => SwarmMetrics { egress: None, ..SwarmMetrics::default() },
            Err(_) => SwarmMetrics::default(),
        };
        register_swarm(registry, figures);
        let data_dir = self.data_dir.clone();
        let sampled = tokio::task::spawn_blocking(move || (rustix::fs::statvfs(&data_dir), Usage::now()));
        let (disk, usage) = sampled.await.map_err(internal)?;
        if let Ok(disk) = disk {
            register_disk(registry, &disk);
        }
        match usage {
            Ok(usage) => usage.register(&mut root),
            Err(error) => {
                tracing::warn!(%error, "metrics: the resource usage of this process cannot be read")
            }
        }
        let mut text = String::new();
        encode_registry(&mut text, &self.metrics.0.registry).map_err(internal)?;
        finish(text, &root, format)
    }

    /// The metrics of one account: its VMs, tickets and limits.
    ///
    /// # Errors
    /// `internal` if they cannot be encoded.
    pub(crate) fn encode_account(
        vms: &[Vm],
        figures: Vec<TicketMetrics>,
        limits: &Limits,
        format: Format,
    ) -> Result<String, Refusal> {
        let mut root = Registry::default();
        let registry = root.sub_registry_with_prefix(PREFIX);
        let counts = STATES.map(|(state, _)| (state, vms.iter().filter(|vm| vm.state == state).count()));
        register_vms(registry, &counts);
        tickets::register(registry, figures, Timestamp::now());
        let memory = ConstGauge::new(vms.iter().map(|vm| vm.memory_mb).sum::<u64>() << 20);
        registry.register_with_unit("vms_memory", "Memory of the guests", Unit::Bytes, memory);
        if let Some(limit) = limits.max_vms {
            registry.register("quota_vms", "VM limit of this account", ConstGauge::new(u64::from(limit)));
        }
        if let Some(limit_mb) = limits.max_memory_mb {
            let limit = ConstGauge::new(limit_mb.saturating_mul(1 << 20));
            registry.register_with_unit("quota_memory", "Limit of guest memory", Unit::Bytes, limit);
        }
        if let Some(limit_mb) = limits.max_disk_mb {
            let limit = ConstGauge::new(limit_mb.saturating_mul(1 << 20));
            registry.register_with_unit("quota_disk", "Limit of disk space", Unit::Bytes, limit);
        }
        finish(String::new(), &root, format)
    }
}

fn finish(mut text: String, registry: &Registry, format: Format) -> Result<String, Refusal> {
    encode_registry(&mut text, registry).and_then(|()| encode_eof(&mut text)).map_err(internal)?;
    Ok(format.convert(text))
}

fn internal(error: impl fmt::Display) -> Refusal {
    Refusal::internal(format!("metrics: {error}"))
}

fn flag(registry: &mut Registry, name: &str, help: &str, truth: bool) {
    registry.register(name, help, ConstGauge::new(u64::from(truth)));
}

fn register_vms(registry: &mut Registry, counts: &[(VmState, usize)]) {
    let family = Family::<StateLabels, Gauge>::default();
    for (state, label) in STATES {
        let count = counts.iter().filter(|(other, _)| *other == state).map(|(_, count)| count).sum::<usize>();
        family.get_or_create(&StateLabels { state: label }).set(signed(count));
    }
    registry.register("vms", "Live VMs, by state", family);
}

fn register_swarm(registry: &mut Registry, figures: SwarmMetrics) {
    let SwarmMetrics { vms, mut pool, capacity, held_bytes, disk, egress, vmms } = figures;
    register_vms(registry, &vms);
    if pool.is_empty() {
        pool.insert(BASE_TEMPLATE.to_owned(), PoolState { ready: 0, target: 0 });
    }
    let (ready, target) =
        (Family::<TemplateLabels, Gauge>::default(), Family::<TemplateLabels, Gauge>::default());
    for (template, state) in pool {
        let labels = TemplateLabels { template };
        ready.get_or_create(&labels).set(state.ready.into());
        target.get_or_create(&labels).set(state.target.into());
    }
    registry.register("pool_ready_vms", "VMs of the pool that are ready for use, by template", ready);
    registry.register("pool_target_vms", "VMs that the pool should hold, by template", target);
    if let Some(vmms) = vmms {
        let family = Family::<OwnerLabels, Gauge>::default();
        family.get_or_create(&OwnerLabels { owner: "account" }).set(signed(vmms.committed));
        family.get_or_create(&OwnerLabels { owner: "pool" }).set(signed(vmms.uncommitted));
        registry.register(
            "jails",
            "Jails with a VMM: those of accounts, and those not assigned to one yet",
            family,
        );
    }
    let limit = ConstGauge::new(u64::from(capacity.max_vms));
    registry.register("capacity_vms", "VM limit of this machine", limit);
    let mut bytes = |name: &str, help: &str, bytes: u64| {
        registry.register_with_unit(name, help, Unit::Bytes, ConstGauge::new(bytes));
    };
    let from_mb = |mb: u64| mb.saturating_mul(1 << 20);
    bytes("capacity_memory", "Memory that VMs may be promised in total", from_mb(capacity.memory_mb));
    bytes("reserved_memory", "Memory reserved by the VMs of accounts", from_mb(capacity.memory_used_mb));
    bytes("held_memory", "Memory that the end of all VMs would free, those of the pool included", held_bytes);
    if let Some(available_mb) = capacity.memory_available_mb {
        bytes(
            "available_memory",
            "Memory of the machine that is available, for VMs too",
            from_mb(available_mb),
        );
    }
    register_disk_traffic(registry, &disk);
    if let Some(egress) = egress {
        register_egress(registry, &egress);
    }
}

fn register_egress(registry: &mut Registry, egress: &EgressTotals) {
    let help = "Open connections of VMs to hosts outside";
    registry.register("egress_connections", help, ConstGauge::new(egress.open_connections));
    let help = "Names of hosts that VMs use, of at most 65,536";
    registry.register("egress_names", help, ConstGauge::new(egress.names));
    for (name, help, bytes) in [
        ("egress_sent", "Bytes that VMs sent to hosts outside", egress.sent_bytes),
        ("egress_received", "Bytes that VMs received from hosts outside", egress.received_bytes),
    ] {
        registry.register_with_unit(name, help, Unit::Bytes, ConstCounter::new(bytes));
    }
    let refused = Family::<ReasonLabels, Counter>::default();
    for reason in EgressRefusal::ALL {
        let count = egress.refused.get(&reason).copied().unwrap_or(0);
        refused.get_or_create(&ReasonLabels { reason: reason.as_str() }).inc_by(count);
    }
    let help = "Connections and look-ups of VMs that were refused, by reason";
    registry.register("egress_refused", help, refused);
}

fn register_disk_traffic(registry: &mut Registry, disk: &DiskTraffic) {
    for (name, help, bytes) in [
        ("vm_disk_read", "Bytes that guests read from their own disk layers", disk.read_bytes),
        ("vm_disk_written", "Bytes that guests wrote to their own disk layers", disk.written_bytes),
    ] {
        registry.register_with_unit(name, help, Unit::Bytes, ConstCounter::new(bytes));
    }
    for (name, help, operations) in [
        ("vm_disk_reads", "Read operations of guests on their own disk layers", disk.reads),
        ("vm_disk_writes", "Write operations of guests on their own disk layers", disk.writes),
        ("vm_disk_flushes", "Requests of guests to write caches to their own disk layers", disk.flushes),
    ] {
        registry.register(name, help, ConstCounter::new(operations));
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn register_disk(registry: &mut Registry, disk: &rustix::fs::StatVfs) {
    let bytes = |blocks: u64| ConstGauge::new(blocks.saturating_mul(disk.f_frsize));
    let (free, size) = (bytes(disk.f_bavail), bytes(disk.f_blocks));
    let help = "Free space of the file system with the data";
    registry.register_with_unit("disk_free", help, Unit::Bytes, free);
    let help = "Size of the file system with the data";
    registry.register_with_unit("disk_size", help, Unit::Bytes, size);
}
