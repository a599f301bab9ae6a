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
mod fields;
mod history;
mod idempotency;
mod intersection;
mod list;
mod metrics;
mod open_limit;
mod related;
mod row;
mod row_columns;
mod search;
mod server_actions;
mod summary;

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;
use skep_api::{
    AccountId, TicketId, VmId,
    tickets::{
        Beat, ClaimedTickets, CreatedTickets, DeletedTicket, Ticket, TicketSummary, TicketTotals, Why,
    },
};
use tokio::sync::broadcast;

use self::{
    change::{beat, change},
    claim::claim,
    create::create,
    delete::delete,
    history::history,
    list::list,
    metrics::metrics,
    row::{read_of_vm, why},
    server_actions::{end_attempt, open_attempts, restart_leases, waiting, wake},
    summary::totals,
};
use super::SqliteStore;
use crate::{
    Answered, BeatTicket, ChangeTicket, ClaimTickets, CreateTickets, DeleteTicket, EndAttempt, ListTickets,
    OpenAttempt, ReadTicketHistory, Result, TicketHistoryPage, TicketMetrics, TicketPage, TicketSignal,
    TicketStore, WaitingTicket, WakeTicket,
};

pub(super) use self::{
    boot::assign_to_vm,
    check::{check_dependency_counters, check_label_index, check_state_counts},
    history::delete_attempts,
    idempotency::{find_answer, forget_answer, store_answer},
    row::read,
    server_actions::{apply_command_end, end_attempts_of_vm, release_all},
};

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

#[async_trait]
impl TicketStore for SqliteStore {
    async fn create_tickets(&self, command: CreateTickets) -> Result<Answered<CreatedTickets>> {
        let ids = Arc::clone(&self.ticket_ids);
        self.run_ticket_command(move |c| create(c, &ids, &command)).await
    }

    async fn change_ticket(&self, command: ChangeTicket) -> Result<Ticket> {
        self.run_ticket_command(move |c| change(c, &command)).await
    }

    async fn beat_ticket(&self, command: BeatTicket) -> Result<Beat> {
        self.run_ticket_command(move |c| beat(c, &command)).await
    }

    async fn claim_tickets(&self, command: ClaimTickets) -> Result<Answered<ClaimedTickets>> {
        self.run_ticket_command(move |c| claim(c, &command)).await
    }

    async fn delete_ticket(&self, command: DeleteTicket) -> Result<DeletedTicket> {
        self.run_ticket_command(move |c| delete(c, &command)).await
    }

    async fn end_attempt(&self, command: EndAttempt) -> Result<bool> {
        self.run_ticket_command(move |c| end_attempt(c, &command)).await
    }

    async fn wake_ticket(&self, command: WakeTicket) -> Result<bool> {
        self.run_ticket_command(move |c| wake(c, &command)).await
    }

    async fn ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Ticket> {
        self.readers.run(move |c| read(c, account, id, at)).await
    }

    async fn ticket_of_vm(
        &self,
        account: AccountId,
        vm: VmId,
        id: TicketId,
        at: Timestamp,
    ) -> Result<Ticket> {
        self.readers.run(move |c| read_of_vm(c, account, vm, id, at)).await
    }

    async fn list_tickets(&self, query: ListTickets) -> Result<TicketPage> {
        self.readers.run(move |c| list(c, &query)).await
    }

    async fn list_ticket_summaries(&self, query: ListTickets) -> Result<TicketPage<TicketSummary>> {
        self.readers.run(move |c| list(c, &query)).await
    }

    async fn ticket_totals(&self, account: AccountId) -> Result<TicketTotals> {
        self.readers.run(move |c| totals(c, account)).await
    }

    async fn ticket_history(&self, query: ReadTicketHistory) -> Result<TicketHistoryPage> {
        self.readers.run(move |c| history(c, &query)).await
    }

    async fn why_ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Why> {
        self.readers.run(move |c| why(c, account, id, at)).await
    }

    async fn restart_leases(&self, at: Timestamp) -> Result<()> {
        self.writer.run(move |c| restart_leases(c, at)).await
    }

    async fn open_attempts(&self) -> Result<Vec<OpenAttempt>> {
        self.readers.run(open_attempts).await
    }

    async fn ticket_metrics(&self, account: Option<AccountId>) -> Result<Vec<TicketMetrics>> {
        self.readers.run(move |c| metrics(c, account)).await
    }

    async fn waiting_tickets(&self) -> Result<Vec<WaitingTicket>> {
        self.readers.run(waiting).await
    }

    fn ticket_signals(&self) -> broadcast::Receiver<TicketSignal> {
        self.ticket_signals.subscribe()
    }
}
