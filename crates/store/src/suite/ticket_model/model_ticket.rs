//! The record of a modelled ticket: as it is created, and as edits change it.

use std::time::Duration;

use jiff::Timestamp;
use skep_api::{
    TicketId,
    tickets::{Ticket, TicketStatus},
};
use skep_tickets::{Edits, NewTicket};

#[derive(Debug, Clone)]
pub(super) struct ModelTicket {
    /// The record, without derived fields.
    pub(super) record: Ticket,
    /// Attempts that the server ended since the ticket was created or reopened, as in the result of a failed ticket.
    pub(super) counted: Vec<serde_json::Value>,
    /// Whether `not_before` is unset or its timer has fired.
    pub(super) awake: bool,
    /// The last holder, if the lease expired and the ticket has not been claimed since.
    pub(super) lapsed: Option<String>,
    pub(super) beats: u64,
    pub(super) lease: Duration,
}

impl ModelTicket {
    pub(super) fn new(id: TicketId, new: NewTicket, dependencies: Vec<TicketId>, now: Timestamp) -> Self {
        let record = Ticket {
            id,
            title: new.title,
            description: new.description,
            priority: new.priority,
            dependencies,
            status: TicketStatus::Pending,
            assignee: None,
            result: None,
            ready: false,
            blocked_by: Vec::new(),
            attempt: 0,
            max_attempts: new.max_attempts,
            lease_expires_at: None,
            max_runtime_ms: new.max_runtime_ms,
            not_before: new.not_before,
            progress: None,
            vm: None,
            labels: new.labels,
            metadata: new.metadata,
            version: 1,
            created_at: now,
            updated_at: now,
            started_at: None,
            finished_at: None,
        };
        let awake = record.not_before.is_none_or(|at| at <= now);
        Self { record, counted: Vec::new(), awake, lapsed: None, beats: 0, lease: Duration::ZERO }
    }

    /// Applies the edits that no rule depends on.
    pub(super) fn edit_fields(&mut self, edits: &Edits) {
        // Every field is named, so that a new one cannot be forgotten. The caller applies the last two.
        let Edits {
            title,
            description,
            priority,
            labels,
            metadata,
            max_attempts,
            max_runtime_ms,
            dependencies: _,
            not_before: _,
        } = edits;
        let record = &mut self.record;
        title.iter().for_each(|title| record.title.clone_from(title));
        description.iter().for_each(|text| record.description.clone_from(text));
        metadata.iter().for_each(|metadata| record.metadata.clone_from(metadata));
        labels.iter().for_each(|labels| record.labels.clone_from(labels));
        priority.iter().for_each(|priority| record.priority = *priority);
        max_attempts.iter().for_each(|most| record.max_attempts = *most);
        max_runtime_ms.iter().for_each(|most| record.max_runtime_ms = *most);
    }
}
