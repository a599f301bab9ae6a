//! Metrics of tickets: counts by state, outcomes of attempts, and the age of the oldest ready ticket.

use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use skep_api::tickets::AttemptOutcome;
use skep_store::{TicketCounts, TicketMetrics};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    account: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    account: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AccountLabels {
    account: String,
}

/// Registers the counts of tickets, with the account as a label.
pub(super) fn register(registry: &mut Registry, figures: Vec<TicketMetrics>, now: Timestamp) {
    let states = Family::<StateLabels, Gauge>::default();
    let attempts = Family::<OutcomeLabels, Counter>::default();
    let ages = Family::<AccountLabels, Gauge>::default();
    for TicketMetrics { account, counts, outcomes, oldest_ready } in figures {
        for (state, count) in by_state(counts) {
            let labels = StateLabels { account: account.clone(), state };
            states.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        for outcome in AttemptOutcome::ALL {
            let count = outcomes.iter().find(|(one, _)| one == outcome).map_or(0, |(_, count)| *count);
            let labels = OutcomeLabels { account: account.clone(), outcome: outcome.as_str() };
            attempts.get_or_create(&labels).inc_by(count);
        }
        // The age would be negative if the wall clock was set back.
        let age = oldest_ready.map_or(0, |since| now.duration_since(since).as_secs().max(0));
        ages.get_or_create(&AccountLabels { account }).set(age);
    }
    registry.register(
        "tickets",
        "Tickets by account and state: waiting (for other tickets or a time), ready, in_progress, completed, failed",
        states,
    );
    registry.register(
        "ticket_attempts",
        "Attempts that ended, by account and outcome; lease_expired are leases that lapsed",
        attempts,
    );
    registry.register_with_unit(
        "ticket_oldest_ready",
        "Time that the oldest ready ticket has waited for a claim; 0 if none is ready",
        Unit::Seconds,
        ages,
    );
}

fn by_state(counts: TicketCounts) -> [(&'static str, u64); 5] {
    let TicketCounts { waiting, ready, in_progress, completed, failed } = counts;
    [
        ("waiting", waiting),
        ("ready", ready),
        ("in_progress", in_progress),
        ("completed", completed),
        ("failed", failed),
    ]
}
