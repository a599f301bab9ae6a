//! Tickets in SQLite, a file for each subject. What may happen is decided by the rules of `skep-tickets`; here it is read,
//! written with its events, and told.

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

/// What a command did, and what is to be told of it.
pub(super) type Told<T> = (T, Vec<TicketNews>);

/// Gives ids, each later in order than all before it.
#[derive(Debug, Default)]
pub(super) struct TicketIds(Mutex<Option<TicketId>>);

impl TicketIds {
    /// The next one.
    pub(super) fn next(&self) -> TicketId {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = TicketId::generate_after(*last);
        *last = Some(next);
        next
    }
}
