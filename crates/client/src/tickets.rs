//! Requests of `/api/tickets`.

use skep_api::{
    TicketId,
    tickets::{
        Beat, ChangeTicket, ClaimTickets, ClaimedTickets, CreateTicket, CreateTickets, CreatedTickets,
        DeletedTicket, Heartbeat, Ticket, TicketHistory, TicketList, TicketSummaryList, TicketTotals, Why,
    },
};

use crate::{
    Answered, Client, Result,
    client::{encode_segment, with_query},
};

/// Selects tickets. Fields that are `None` do not restrict the selection.
#[derive(Debug, Clone, Default)]
pub struct TicketQuery {
    /// Statuses, separated by commas.
    pub status: Option<String>,
    /// Priorities, separated by commas.
    pub priority: Option<String>,
    /// The holder of the ticket, or the holder that finished it.
    pub assignee: Option<String>,
    /// Labels that a ticket must all have, separated by commas.
    pub label: Option<String>,
    /// Whether the ticket can be claimed now.
    pub ready: Option<bool>,
    /// A ticket that the selected ones depend on.
    pub depends_on: Option<TicketId>,
    /// A ticket with which the selected ones are connected by dependencies.
    pub related_to: Option<TicketId>,
    /// A text that title or id of a ticket contains, in any case.
    pub search: Option<String>,
    /// The order: `created`, `priority` or `-updated_at`.
    pub sort: Option<String>,
    /// The maximum number of tickets, 1 to 1,000.
    pub limit: Option<u32>,
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

impl TicketQuery {
    fn path(&self, view: Option<&str>) -> String {
        let given = [
            ("status", self.status.clone()),
            ("priority", self.priority.clone()),
            ("assignee", self.assignee.clone()),
            ("label", self.label.clone()),
            ("ready", self.ready.map(|ready| ready.to_string())),
            ("depends_on", self.depends_on.map(|id| id.to_string())),
            ("related_to", self.related_to.map(|id| id.to_string())),
            ("q", self.search.clone()),
            ("view", view.map(str::to_owned)),
            ("sort", self.sort.clone()),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("cursor", self.cursor.clone()),
        ];
        with_query("api/tickets", &given)
    }
}

/// Options for the deletion of a ticket.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deletion {
    /// Whether the ticket is deleted even if it is held.
    pub force: bool,
    /// The treatment of unfinished tickets that depend on it: `detach` or `delete`. If there are any, `None` is an
    /// error.
    pub dependents: Option<&'static str>,
}

impl Client {
    /// `GET /api/tickets`: a page of tickets.
    ///
    /// # Errors
    /// `invalid_value`; `unknown_ticket` for the one of `related_to`; and those of every request: see [`crate::Error`].
    pub async fn tickets(&self, query: &TicketQuery) -> Result<Answered<TicketList>> {
        self.get(&query.path(None)).await
    }

    /// `GET /api/tickets?view=summary`: a page of tickets without descriptions, results and metadata.
    ///
    /// # Errors
    /// As [`Client::tickets`].
    pub async fn ticket_summaries(&self, query: &TicketQuery) -> Result<Answered<TicketSummaryList>> {
        self.get(&query.path(Some("summary"))).await
    }

    /// `GET /api/tickets/summary`: how many tickets there are, by status.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn ticket_totals(&self) -> Result<Answered<TicketTotals>> {
        self.get("api/tickets/summary").await
    }

    /// `POST /api/tickets`: creates a ticket.
    ///
    /// # Errors
    /// `unknown_dependency`, `field_too_large`, and those of every request.
    pub async fn create_ticket(&self, request: &CreateTicket) -> Result<Answered<Ticket>> {
        self.post("api/tickets", request).await
    }

    /// `POST /api/tickets/batch`: creates several tickets, or none.
    ///
    /// # Errors
    /// `unknown_dependency`, `cycle`, `field_too_large`, and those of every request.
    pub async fn create_tickets(&self, request: &CreateTickets) -> Result<Answered<CreatedTickets>> {
        self.post("api/tickets/batch", request).await
    }

    /// `POST /api/tickets/claim`: claims tickets. The list is empty if none can be claimed.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn claim_tickets(&self, request: &ClaimTickets) -> Result<Answered<ClaimedTickets>> {
        self.post("api/tickets/claim", request).await
    }

    /// `GET /api/tickets/{id}`: the record of a ticket.
    ///
    /// # Errors
    /// `unknown_ticket`, and those of every request.
    pub async fn ticket(&self, id: TicketId) -> Result<Answered<Ticket>> {
        self.get(&format!("api/tickets/{id}")).await
    }

    /// `PATCH /api/tickets/{id}`: claims, finishes, releases or edits a ticket.
    ///
    /// # Errors
    /// `unknown_ticket`; `claim_lost`, `blocked`, `not_yet`, `superseded`, `lease_lost`, `ticket_state` if the
    /// ticket's state does not permit the change; and those of every request.
    pub async fn change_ticket(&self, id: TicketId, request: &ChangeTicket) -> Result<Answered<Ticket>> {
        self.patch(&format!("api/tickets/{id}"), request).await
    }

    /// `POST /api/tickets/{id}/heartbeat`: renews the lease of a ticket.
    ///
    /// # Errors
    /// `unknown_ticket`; `claim_lost`, `superseded`, `lease_lost`, `ticket_state` if the caller no longer holds the
    /// ticket; and those of every request.
    pub async fn heartbeat_ticket(&self, id: TicketId, request: &Heartbeat) -> Result<Answered<Beat>> {
        self.post(&format!("api/tickets/{id}/heartbeat"), request).await
    }

    /// `DELETE /api/tickets/{id}`: deletes a ticket.
    ///
    /// # Errors
    /// `unknown_ticket`, `ticket_state`, `has_dependents`, and those of every request.
    pub async fn delete_ticket(&self, id: TicketId, how: Deletion) -> Result<Answered<DeletedTicket>> {
        let dependents = how.dependents.map_or_else(String::new, |word| format!("&dependents={word}"));
        self.delete(&format!("api/tickets/{id}?force={}{dependents}", how.force)).await
    }

    /// `GET /api/tickets/{id}/why`: the reasons why a ticket cannot be claimed.
    ///
    /// # Errors
    /// `unknown_ticket`, and those of every request.
    pub async fn explain_ticket(&self, id: TicketId) -> Result<Answered<Why>> {
        self.get(&format!("api/tickets/{id}/why")).await
    }

    /// `GET /api/tickets/{id}/history`: a page of the ticket's events, and with the first page its attempts.
    ///
    /// # Errors
    /// `unknown_ticket`, and those of every request.
    pub async fn ticket_history(
        &self,
        id: TicketId,
        cursor: Option<&str>,
    ) -> Result<Answered<TicketHistory>> {
        let cursor = cursor.map_or_else(String::new, |cursor| format!("?cursor={}", encode_segment(cursor)));
        self.get(&format!("api/tickets/{id}/history{cursor}")).await
    }
}
