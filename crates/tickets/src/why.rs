//! The reasons why a ticket cannot be claimed, and what would resolve them.

use jiff::Timestamp;
use skep_api::tickets::{Blocker, Reason, TicketStatus, Why};

use crate::{Holder, State, Ticket, Wait, limits::MAX_NAMED_TICKETS};

/// Lists all reasons. `ticket.blockers` must name every blocker.
pub fn why(ticket: &Ticket, now: Timestamp) -> Why {
    let reasons = match &ticket.state {
        State::Pending { .. } => pending_reasons(ticket, now),
        State::InProgress(holder) => vec![held_reason(ticket.attempt, holder)],
        State::Completed(_) => {
            let who = "nothing: a completed ticket does not change".to_owned();
            vec![reason("completed", "it is completed".to_owned(), who)]
        }
        State::Failed(_) => {
            let who = "a retry (set its `status` to `pending`)".to_owned();
            vec![reason("failed", "it failed".to_owned(), who)]
        }
    };
    Why { id: ticket.id, status: ticket.status(), ready: ticket.is_ready(now), reasons }
}

/// The lease of a VM is renewed while the VM lives, so no time is given for it.
fn held_reason(attempt: u32, Holder { assignee, vm, lease }: &Holder) -> Reason {
    if let Some(vm) = vm {
        let message = format!("{assignee} holds it (attempt {attempt}) with {vm}");
        let who = format!("{assignee}, or the end of {vm}: its lease is renewed while that VM lives");
        return reason("held", message, who);
    }
    let message = format!("{assignee} holds it (attempt {attempt})");
    let who = format!("{assignee}, or the end of its lease, which heartbeats renew");
    Reason { until: Some(lease.expires_at), ..reason("held", message, who) }
}

fn pending_reasons(ticket: &Ticket, now: Timestamp) -> Vec<Reason> {
    let (failed, open): (Vec<Blocker>, Vec<Blocker>) =
        ticket.blockers.named.iter().partition(|one| one.status == TicketStatus::Failed);
    let mut reasons = Vec::new();
    if !open.is_empty() {
        let message = format!("blocked by {}", with_plural(open.len(), "unfinished ticket"));
        let who = if open.len() == 1 { "its completion" } else { "their completion" };
        reasons.push(with_tickets(open, reason("blocked", message, who.to_owned())));
    }
    if !failed.is_empty() {
        let message = format!("blocked by {}", with_plural(failed.len(), "failed ticket"));
        let who = "a retry, or other `dependencies` of this ticket".to_owned();
        reasons.push(with_tickets(failed, reason("blocked_by_failure", message, who)));
    }
    if let Wait::Until(until) = ticket.wait
        && until > now
    {
        let message = match usize::try_from(ticket.counted_attempts).unwrap_or(usize::MAX) {
            0 => "its `not_before` has not passed".to_owned(),
            ended => format!("it waits after {} without a result", with_plural(ended, "attempt")),
        };
        let who = "waiting: the ticket becomes ready at that time".to_owned();
        reasons.push(Reason { until: Some(until), ..reason("waiting", message, who) });
    }
    reasons
}

/// The number with the noun, in the plural unless it is 1.
fn with_plural(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

fn with_tickets(mut tickets: Vec<Blocker>, reason: Reason) -> Reason {
    tickets.truncate(MAX_NAMED_TICKETS);
    Reason { tickets: Some(tickets), ..reason }
}

fn reason(code: &str, message: String, who: String) -> Reason {
    Reason { code: code.to_owned(), message, tickets: None, until: None, who }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skep_api::{TicketId, VmId};

    use super::*;
    use crate::{Blockers, Lease};

    fn held_by(vm: Option<VmId>) -> Reason {
        let lease = Lease::from(Timestamp::UNIX_EPOCH, Duration::from_secs(60));
        let ticket = Ticket {
            id: TicketId::generate(),
            attempt: 3,
            counted_attempts: 0,
            max_attempts: 5,
            wait: Wait::None,
            blockers: Blockers::default(),
            started_at: Some(Timestamp::UNIX_EPOCH),
            state: State::InProgress(Holder { assignee: "agent-7".to_owned(), vm, lease }),
        };
        let mut reasons = why(&ticket, Timestamp::UNIX_EPOCH).reasons;
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        reasons.remove(0)
    }

    #[test]
    fn a_ticket_held_by_a_vm_has_no_time_of_release() {
        let vm = VmId::generate();
        let by_vm = held_by(Some(vm));
        assert_eq!((by_vm.code.as_str(), by_vm.until), ("held", None));
        assert!(by_vm.message.contains(&vm.to_string()) && by_vm.message.contains("attempt 3"), "{by_vm:?}");
        assert!(by_vm.who.contains(&format!("the end of {vm}")), "{by_vm:?}");
        // For comparison: without a VM, the lease ends the attempt at a known time.
        let by_agent = held_by(None);
        assert_eq!(by_agent.until, Some("1970-01-01T00:01:00Z".parse().unwrap()));
        assert!(by_agent.who.contains("agent-7") && by_agent.who.contains("lease"), "{by_agent:?}");
    }

    #[test]
    fn one_and_several_blockers_are_counted_in_plain_words() {
        let blockers = |status, count| {
            (0..count).map(move |_| Blocker { id: TicketId::generate(), status }).collect::<Vec<_>>()
        };
        for (open, failed, expected) in [
            (1, 0, vec!["blocked by 1 unfinished ticket"]),
            (2, 0, vec!["blocked by 2 unfinished tickets"]),
            (2, 1, vec!["blocked by 2 unfinished tickets", "blocked by 1 failed ticket"]),
            (0, 3, vec!["blocked by 3 failed tickets"]),
        ] {
            let mut named = blockers(TicketStatus::Pending, open);
            named.extend(blockers(TicketStatus::Failed, failed));
            let ticket = Ticket {
                id: TicketId::generate(),
                attempt: 0,
                counted_attempts: 0,
                max_attempts: 5,
                wait: Wait::None,
                blockers: Blockers { total: u32::try_from(named.len()).unwrap(), named },
                started_at: None,
                state: State::Pending { lapsed: None },
            };
            let reasons = why(&ticket, Timestamp::UNIX_EPOCH).reasons;
            assert_eq!(reasons.iter().map(|one| one.message.as_str()).collect::<Vec<_>>(), expected);
        }
    }
}
