//! `/api/tickets`.

use skep_api::{
    TicketId,
    tickets::{
        Beat, ChangeTicket, ClaimTickets, ClaimedTickets, CreateTicket, CreateTickets, CreatedTickets,
        DeletedTicket, Heartbeat, Ticket, TicketHistory, TicketList, Why,
    },
};

use crate::{Answered, Client, Result, client::segment};

/// Which tickets, and which page of them; what is `None` holds nothing back.
#[derive(Debug, Clone, Default)]
pub struct TicketQuery {
    /// That stand so: words with commas between.
    pub status: Option<String>,
    /// That are so urgent: words with commas between.
    pub priority: Option<String>,
    /// That this one holds, or finished.
    pub assignee: Option<String>,
    /// That have all of these labels: words with commas between.
    pub label: Option<String>,
    /// That can be claimed now, or cannot.
    pub ready: Option<bool>,
    /// That depend on this one.
    pub depends_on: Option<TicketId>,
    /// `created`, `priority` or `-updated_at`.
    pub sort: Option<String>,
    /// Tickets on the page, 1 to 1,000.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// How a ticket is deleted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deletion {
    /// Also while somebody holds it.
    pub force: bool,
    /// What becomes of unfinished tickets that depend on it: `detach` or `delete`.
    pub dependents: Option<&'static str>,
}

impl Client {
    /// `GET /api/tickets`.
    ///
    /// # Errors
    /// `invalid_value`, and those of every call: see [`crate::Error`].
    pub async fn tickets(&self, query: &TicketQuery) -> Result<Answered<TicketList>> {
        let given = [
            ("status", query.status.clone()),
            ("priority", query.priority.clone()),
            ("assignee", query.assignee.clone()),
            ("label", query.label.clone()),
            ("ready", query.ready.map(|ready| ready.to_string())),
            ("depends_on", query.depends_on.map(|id| id.to_string())),
            ("sort", query.sort.clone()),
            ("limit", query.limit.map(|limit| limit.to_string())),
            ("cursor", query.cursor.clone()),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let pairs: Vec<String> = given.map(|(name, value)| format!("{name}={}", segment(&value))).collect();
        self.get(&format!("api/tickets?{}", pairs.join("&"))).await
    }

    /// `POST /api/tickets`.
    ///
    /// # Errors
    /// `unknown_dependency`, `field_too_large`, and those of every call.
    pub async fn create_ticket(&self, request: &CreateTicket) -> Result<Answered<Ticket>> {
        self.post("api/tickets", request).await
    }

    /// `POST /api/tickets/batch`.
    ///
    /// # Errors
    /// `unknown_dependency`, `cycle`, `field_too_large`, and those of every call.
    pub async fn create_tickets(&self, request: &CreateTickets) -> Result<Answered<CreatedTickets>> {
        self.post("api/tickets/batch", request).await
    }

    /// `POST /api/tickets/claim`.
    ///
    /// # Errors
    /// Those of every call.
    pub async fn claim_tickets(&self, request: &ClaimTickets) -> Result<Answered<ClaimedTickets>> {
        self.post("api/tickets/claim", request).await
    }

    /// `GET /api/tickets/{id}`.
    ///
    /// # Errors
    /// `unknown_ticket`, and those of every call.
    pub async fn ticket(&self, id: TicketId) -> Result<Answered<Ticket>> {
        self.get(&format!("api/tickets/{id}")).await
    }

    /// `PATCH /api/tickets/{id}`.
    ///
    /// # Errors
    /// `unknown_ticket`; `claim_lost`, `blocked`, `not_yet`, `superseded`, `lease_lost`, `ticket_state` where the rules say
    /// no; and those of every call.
    pub async fn change_ticket(&self, id: TicketId, request: &ChangeTicket) -> Result<Answered<Ticket>> {
        self.patch(&format!("api/tickets/{id}"), request).await
    }

    /// `POST /api/tickets/{id}/heartbeat`.
    ///
    /// # Errors
    /// `unknown_ticket`; `claim_lost`, `superseded`, `lease_lost`, `ticket_state` where the ticket is lost; and those of
    /// every call.
    pub async fn beat_ticket(&self, id: TicketId, request: &Heartbeat) -> Result<Answered<Beat>> {
        self.post(&format!("api/tickets/{id}/heartbeat"), request).await
    }

    /// `DELETE /api/tickets/{id}`.
    ///
    /// # Errors
    /// `unknown_ticket`, `ticket_state`, `has_dependents`, and those of every call.
    pub async fn delete_ticket(&self, id: TicketId, how: Deletion) -> Result<Answered<DeletedTicket>> {
        let dependents = how.dependents.map_or_else(String::new, |word| format!("&dependents={word}"));
        self.delete(&format!("api/tickets/{id}?force={}{dependents}", how.force)).await
    }

    /// `GET /api/tickets/{id}/why`.
    ///
    /// # Errors
    /// `unknown_ticket`, and those of every call.
    pub async fn why_ticket(&self, id: TicketId) -> Result<Answered<Why>> {
        self.get(&format!("api/tickets/{id}/why")).await
    }

    /// `GET /api/tickets/{id}/history`: a page, from `cursor` on.
    ///
    /// # Errors
    /// `unknown_ticket`, and those of every call.
    pub async fn ticket_history(
        &self,
        id: TicketId,
        cursor: Option<&str>,
    ) -> Result<Answered<TicketHistory>> {
        let cursor = cursor.map_or_else(String::new, |cursor| format!("?cursor={}", segment(cursor)));
        self.get(&format!("api/tickets/{id}/history{cursor}")).await
    }
}
