//! Tickets in SQLite. The rules in `skep-tickets` decide on transitions; this module reads and writes tickets with
//! their events and collects the signals to send.

mod apply;
mod boot;
mod change;
mod check;
mod claim;
mod clock;
mod create;
mod delete;
mod dependencies;
mod figures;
mod history;
mod intersection;
mod list;
mod once;
mod row;

use std::sync::{Mutex, PoisonError};

use skep_api::TicketId;

pub(super) use self::{
    boot::hand_to_vm,
    change::{beat, change},
    check::{counters, label_index, state_counts},
    claim::claim,
    clock::{
        end_attempt, of_ended_command, of_ended_vm, open_attempts, release_all, restart_leases, waiting, wake,
    },
    create::create,
    delete::delete,
    figures::figures,
    history::{forget, history},
    list::list,
    once::{given, keep},
    row::{read, read_of_vm, why},
};
use crate::TicketNews;

/// Result of a command, with the signals to send once it is durable.
pub(super) type Told<T> = (T, Vec<TicketNews>);

/// Generates ids that increase strictly, also within one millisecond.
#[derive(Debug, Default)]
pub(super) struct TicketIds(Mutex<Option<TicketId>>);

impl TicketIds {
    pub(super) fn next(&self) -> TicketId {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = TicketId::generate_after(*last);
        *last = Some(next);
        next
    }
}
