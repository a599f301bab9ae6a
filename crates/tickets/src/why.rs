//! Why a ticket does not take its next step, and whose act would free it.

use jiff::Timestamp;
use skep_api::tickets::{Blocker, Reason, TicketStatus, Why};

use crate::{State, Ticket, Wait, limits::NAMED};

/// Every rule that keeps a ticket from its next step. Its blockers must all be named.
pub fn why(ticket: &Ticket, now: Timestamp) -> Why {
    let reasons = match &ticket.state {
        State::Pending { .. } => pending(ticket, now),
        State::InProgress(holder) => vec![Reason {
            until: Some(holder.lease.expires_at),
            ..reason(
                "held",
                format!("{} holds it (attempt {})", holder.assignee, ticket.attempt),
                format!("{}, or nobody: its lease runs out unless it beats", holder.assignee),
            )
        }],
        State::Completed(_) => vec![reason("completed", "it is done".to_owned(), "nobody".to_owned())],
        State::Failed(_) => {
            let who = "whoever retries it by PATCH `{\"status\": \"pending\"}`".to_owned();
            vec![reason("failed", "it was given up".to_owned(), who)]
        }
    };
    Why { id: ticket.id, status: ticket.status(), ready: ticket.is_ready(now), reasons }
}

fn pending(ticket: &Ticket, now: Timestamp) -> Vec<Reason> {
    let (failed, open): (Vec<Blocker>, Vec<Blocker>) =
        ticket.blockers.named.iter().partition(|one| one.status == TicketStatus::Failed);
    let mut reasons = Vec::new();
    if !open.is_empty() {
        let message = format!("{} of its dependencies are not completed", open.len());
        reasons.push(about(open, reason("blocked", message, "whoever completes them".to_owned())));
    }
    if !failed.is_empty() {
        let message = format!("{} of its dependencies failed", failed.len());
        let who = "whoever retries them, or takes them out of its `dependencies`".to_owned();
        reasons.push(about(failed, reason("blocked_by_failure", message, who)));
    }
    if let Wait::Until(until) = ticket.wait
        && until > now
    {
        let message = match ticket.counted {
            0 => "its time has not come".to_owned(),
            counted => format!("its time has not come; {counted} attempts ended by themselves"),
        };
        let who = "nobody: it becomes ready by itself".to_owned();
        reasons.push(Reason { until: Some(until), ..reason("waiting", message, who) });
    }
    reasons
}

fn about(mut tickets: Vec<Blocker>, reason: Reason) -> Reason {
    tickets.truncate(NAMED);
    Reason { tickets: Some(tickets), ..reason }
}

fn reason(code: &str, message: String, who: String) -> Reason {
    Reason { code: code.to_owned(), message, tickets: None, until: None, who }
}
