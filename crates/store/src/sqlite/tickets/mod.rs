//! Tickets in SQLite. The rules in `skep-tickets` decide on transitions; this module reads and writes tickets with
//! their events and collects the signals to send.

mod apply;
mod boot;
mod change;
mod check;
mod claim;
mod create;
mod delete;
mod dependencies;
mod history;
mod idempotency;
mod intersection;
mod list;
mod metrics;
mod row;
mod server_actions;

use std::sync::{Mutex, PoisonError};

use skep_api::TicketId;

pub(super) use self::{
    boot::assign_to_vm,
    change::{beat, change},
    check::{check_dependency_counters, check_label_index, check_state_counts},
    claim::claim,
    create::create,
    delete::delete,
    history::{delete_attempts, history},
    idempotency::{find_answer, store_answer},
    list::list,
    metrics::metrics,
    row::{read, read_of_vm, why},
    server_actions::{
        apply_command_end, end_attempt, end_attempts_of_vm, open_attempts, release_all, restart_leases,
        waiting, wake,
    },
};
use crate::TicketSignal;

/// Result of a command, with the signals to send once it is durable.
pub(super) type WithSignals<T> = (T, Vec<TicketSignal>);

/// Generates ids that increase strictly, also within one millisecond.
#[derive(Debug, Default)]
pub(super) struct TicketIdGenerator(Mutex<Option<TicketId>>);

impl TicketIdGenerator {
    pub(super) fn next(&self) -> TicketId {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = TicketId::generate_after(*last);
        *last = Some(next);
        next
    }
}
