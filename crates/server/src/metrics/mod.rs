//! Prometheus metrics of the server.
//!
//! ```text
//! observe ── requests ──┐
//! swarm ── boots, ends ─┼─► Metrics ──┐
//! store ── commits ─────┘             ├─► Collector ─► text: GET /metrics, and the loopback listener
//! at each scrape: VMs, pool, process ─┘
//! ```
//! The cardinality of every label is bounded, whatever callers send: routes are templates, methods and codes are fixed.

mod collector;
mod listener;
mod process;
mod requests;
mod text;
mod tickets;
mod vms;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Registry, Unit},
};
use skep_api::{
    ErrorCode,
    swarm::{BootReceipt, BootSource, EndReason},
};
use skep_store::{Commit, CommitObserver};
use skep_swarm::Observer;

pub(crate) use self::{collector::Collector, listener::serve, text::Format};
pub use listener::check_metrics_address;

use crate::request::API_VERSION;

const PREFIX: &str = "skep";
/// In seconds: from a health check to a boot on an emulated machine or a command that runs for a minute.
const REQUEST_BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];
/// In seconds: from a VM taken from the pool to a cold boot of an emulated guest.
const READY_BUCKETS: [f64; 13] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 15.0, 60.0];
/// In seconds: from a fast disk to one that hangs.
const COMMIT_BUCKETS: [f64; 12] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Every reason, so that each series exists before its first event.
const REASONS: [EndReason; 10] = [
    EndReason::Deleted,
    EndReason::Cleanup,
    EndReason::Expired,
    EndReason::Poweroff,
    EndReason::Crashed,
    EndReason::OutOfMemory,
    EndReason::Lost,
    EndReason::Failed,
    EndReason::TicketEnded,
    EndReason::Idle,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    method: &'static str,
    route: Arc<str>,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// The result of an attempt to send a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebhookOutcome {
    /// The endpoint answered 2xx.
    Delivered,
    /// The endpoint answered something else than 2xx.
    Rejected,
    /// The address of the endpoint is not allowed.
    Refused,
    /// The endpoint could not be reached, or closed the connection.
    Unreachable,
    Timeout,
}

impl WebhookOutcome {
    const ALL: [Self; 5] = [Self::Delivered, Self::Rejected, Self::Refused, Self::Unreachable, Self::Timeout];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Rejected => "rejected",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
        }
    }
}

/// A histogram for each set of labels, all with the same buckets.
type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics that are updated as events happen. Clones are cheap and share them.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    started: Instant,
    requests: Family<ResponseLabels, Counter>,
    durations: Histograms<RouteLabels>,
    in_flight: Gauge,
    refusals: Family<CodeLabels, Counter>,
    boots: Family<SourceLabels, Counter>,
    ready: Histograms<SourceLabels>,
    ends: Family<ReasonLabels, Counter>,
    commits: Histogram,
    batches: Histogram,
    failed_commits: Counter,
    webhooks: Family<OutcomeLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut inner = Inner {
            registry: Registry::with_prefix(PREFIX),
            started: Instant::now(),
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS)),
            in_flight: Gauge::default(),
            refusals: Family::default(),
            boots: Family::default(),
            ready: Family::new_with_constructor(|| Histogram::new(READY_BUCKETS)),
            ends: Family::default(),
            commits: Histogram::new(COMMIT_BUCKETS),
            batches: Histogram::new(exponential_buckets(1.0, 2.0, 8)),
            failed_commits: Counter::default(),
            webhooks: Family::default(),
        };
        inner.register_requests();
        inner.register_swarm();
        inner.register_store();
        inner.register_webhooks();
        inner.create_series();
        Self(Arc::new(inner))
    }
}

impl Inner {
    fn register_requests(&mut self) {
        let version = vec![("version", env!("CARGO_PKG_VERSION")), ("api", API_VERSION)];
        let registry = &mut self.registry;
        registry.register("build", "The version of skep and of its API", Info::new(version));
        registry.register(
            "http_requests",
            "Requests by route, method and status; 499 is a caller that disconnected before its answer",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "http_request_duration",
            "From the head of a request to the head of its answer; what is streamed afterwards is not counted",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register(
            "http_requests_in_flight",
            "Requests whose answer has not begun",
            self.in_flight.clone(),
        );
        registry.register("http_refusals", "Refusals by their stable code", self.refusals.clone());
    }

    fn register_swarm(&mut self) {
        let registry = &mut self.registry;
        registry.register("vm_boots", "VMs that were booted, by source: pool or cold", self.boots.clone());
        registry.register_with_unit(
            "vm_boot_ready",
            "From the arrival of a boot request until the VM takes commands under its own identity",
            Unit::Seconds,
            self.ready.clone(),
        );
        registry.register("vm_ends", "VMs that ended, by reason", self.ends.clone());
    }

    fn register_store(&mut self) {
        let registry = &mut self.registry;
        registry.register_with_unit(
            "store_commit_duration",
            "One commit of the store with all its commands, until it is on disk",
            Unit::Seconds,
            self.commits.clone(),
        );
        registry.register(
            "store_commit_commands",
            "Commands that one commit of the store carried out together",
            self.batches.clone(),
        );
        registry.register(
            "store_commit_failures",
            "Commits of the store that failed: locked, full, damaged or gone",
            self.failed_commits.clone(),
        );
    }

    fn register_webhooks(&mut self) {
        self.registry.register(
            "webhook_attempts",
            "Attempts to send an event to an endpoint of an account, by outcome",
            self.webhooks.clone(),
        );
    }

    /// Creates the series at zero: one that appears with its first event hides that event from `rate` and from alerts.
    fn create_series(&self) {
        for code in ErrorCode::ALL {
            drop(self.refusals.get_or_create(&CodeLabels { code: code.as_str() }));
        }
        for reason in REASONS {
            drop(self.ends.get_or_create(&ReasonLabels { reason: reason.as_str() }));
        }
        for outcome in WebhookOutcome::ALL {
            drop(self.webhooks.get_or_create(&OutcomeLabels { outcome: outcome.as_str() }));
        }
        for source in [BootSource::Pool, BootSource::Cold] {
            let labels = SourceLabels { source: source_label(source) };
            drop(self.boots.get_or_create(&labels));
            drop(self.ready.get_or_create(&labels));
        }
    }
}

const fn source_label(source: BootSource) -> &'static str {
    match source {
        BootSource::Pool => "pool",
        BootSource::Cold => "cold",
    }
}

impl Metrics {
    pub(crate) fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// Counts an attempt to send a webhook.
    pub(crate) fn webhook_attempt(&self, outcome: WebhookOutcome) {
        self.0.webhooks.get_or_create(&OutcomeLabels { outcome: outcome.as_str() }).inc();
    }
}

impl Observer for Metrics {
    fn booted(&self, receipt: &BootReceipt) {
        let labels = SourceLabels { source: source_label(receipt.source) };
        self.0.boots.get_or_create(&labels).inc();
        self.0.ready.get_or_create(&labels).observe(receipt.ready_ms / 1e3);
    }

    fn ended(&self, reason: EndReason) {
        self.0.ends.get_or_create(&ReasonLabels { reason: reason.as_str() }).inc();
    }
}

impl CommitObserver for Metrics {
    fn committed(&self, commit: Commit) {
        self.0.commits.observe(commit.took.as_secs_f64());
        // Batches are small, because the queue of the store is.
        self.0.batches.observe(f64::from(u32::try_from(commit.commands).unwrap_or(u32::MAX)));
        if !commit.succeeded {
            self.0.failed_commits.inc();
        }
    }
}
