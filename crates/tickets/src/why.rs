//! Why a ticket does not take its next step, and whose act would free it.

use jiff::Timestamp;
use skep_api::tickets::{Blocker, Reason, TicketStatus, Why};

use crate::{Holder, State, Ticket, Wait, limits::NAMED};

/// Every rule that keeps a ticket from its next step. Its blockers must all be named.
pub fn why(ticket: &Ticket, now: Timestamp) -> Why {
    let reasons = match &ticket.state {
        State::Pending { .. } => pending(ticket, now),
        State::InProgress(holder) => vec![held(ticket.attempt, holder)],
        State::Completed(_) => vec![reason("completed", "it is done".to_owned(), "nobody".to_owned())],
        State::Failed(_) => {
            let who = "whoever retries it by PATCH `{\"status\": \"pending\"}`".to_owned();
            vec![reason("failed", "it was given up".to_owned(), who)]
        }
    };
    Why { id: ticket.id, status: ticket.status(), ready: ticket.is_ready(now), reasons }
}

/// A VM need not beat: while it lives its lease is renewed.
fn held(attempt: u32, Holder { assignee, vm, lease }: &Holder) -> Reason {
    if let Some(vm) = vm {
        let message = format!("{assignee} holds it (attempt {attempt}) with {vm}");
        let who = format!("{assignee}, or whoever ends {vm}: it is held no longer than that VM lives");
        return reason("held", message, who);
    }
    let message = format!("{assignee} holds it (attempt {attempt})");
    let who = format!("{assignee}, or nobody: its lease runs out unless it beats");
    Reason { until: Some(lease.expires_at), ..reason("held", message, who) }
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
            counted: 0,
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
    fn what_a_vm_holds_ends_with_it_and_not_at_a_time() {
        let vm = VmId::generate();
        let by_vm = held_by(Some(vm));
        assert_eq!((by_vm.code.as_str(), by_vm.until), ("held", None));
        assert!(by_vm.message.contains(&vm.to_string()) && by_vm.message.contains("attempt 3"), "{by_vm:?}");
        assert!(by_vm.who.contains(&format!("whoever ends {vm}")), "{by_vm:?}");
        assert!(!by_vm.who.contains("lease"), "{by_vm:?}");
        // The control: without a VM the lease is what ends it.
        let by_agent = held_by(None);
        assert_eq!(by_agent.until, Some("1970-01-01T00:01:00Z".parse().unwrap()));
        assert!(by_agent.who.contains("agent-7") && by_agent.who.contains("lease"), "{by_agent:?}");
    }
}
