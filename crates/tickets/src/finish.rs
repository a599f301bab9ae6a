//! Completing and failing tickets: by the holder, by the last holder after its lease expired, or without a claim.

use jiff::Timestamp;
use skep_api::{Patch, VmId, tickets::Object};

use crate::{
    Decision, Error, Finish, FinishRequest, Lease, Resolution, State, Step, StepKind, Ticket,
    limits::DEFAULT_LEASE,
    transition::{
        claim_steps, require_holder, require_latest, require_ready, state_refusal, status_of, step,
    },
};

pub(crate) fn decide(ticket: &Ticket, finishing: &FinishRequest, now: Timestamp) -> Result<Decision, Error> {
    let (attempt, named) = (finishing.attempt, finishing.assignee.named());
    match &ticket.state {
        State::Pending { lapsed } => {
            require_latest(ticket, attempt)?;
            match lapsed {
                Some(lapsed) if attempt.is_some() => {
                    if named.is_some_and(|name| name != lapsed.assignee) {
                        let (id, current) = (ticket.id, ticket.attempt);
                        let holder = lapsed.assignee.clone();
                        return Err(Error::Superseded { id, attempt: current, current, holder });
                    }
                    Ok(finish_decision(ticket, finishing, Some(&lapsed.assignee), lapsed.vm, now))
                }
                _ => finish_pending(ticket, finishing, now),
            }
        }
        State::InProgress(holder) => {
            require_holder(ticket, holder, attempt, named)?;
            Ok(finish_decision(ticket, finishing, Some(&holder.assignee), holder.vm, now))
        }
        State::Completed(finish) | State::Failed(finish) => {
            require_latest(ticket, attempt)?;
            if ticket.status() == status_of(finishing.resolution) {
                return same_result(ticket, finish, &finishing.result);
            }
            Err(match finishing.resolution {
                Resolution::Completed => {
                    state_refusal(ticket, "be completed", "retry it first (set its `status` to `pending`)")
                }
                Resolution::Failed => state_refusal(ticket, "be failed", "create another one"),
            })
        }
    }
}

/// A result alone does not show whether the work is done, so it is accepted only on a finished ticket, if it is the
/// same result.
pub(crate) fn decide_result_only(ticket: &Ticket, result: &Patch<Object>) -> Result<Decision, Error> {
    match &ticket.state {
        State::Completed(finish) | State::Failed(finish) => same_result(ticket, finish, result),
        State::Pending { .. } | State::InProgress(_) => Err(state_refusal(
            ticket,
            "take a `result` alone",
            "send it with `status` `completed` or `failed`",
        )),
    }
}

fn same_result(ticket: &Ticket, finish: &Finish, result: &Patch<Object>) -> Result<Decision, Error> {
    let same = match result {
        Patch::Absent => true,
        Patch::Null => finish.result.is_none(),
        Patch::Value(result) => finish.result.as_ref() == Some(result),
    };
    if same {
        Ok(Decision::Nothing)
    } else {
        Err(state_refusal(ticket, "take another `result`", "read the one that it has"))
    }
}

/// Finishes a ticket that is not held: completing claims it in the same change, failing needs no attempt.
fn finish_pending(ticket: &Ticket, finishing: &FinishRequest, now: Timestamp) -> Result<Decision, Error> {
    match finishing.resolution {
        Resolution::Failed => Ok(finish_decision(ticket, finishing, None, None, now)),
        Resolution::Completed => {
            require_ready(ticket, now)?;
            let name = finishing.assignee.name();
            let mut steps = claim_steps(ticket, name, None, Lease::from(now, DEFAULT_LEASE), now);
            let claimed = steps.last().map_or_else(|| ticket.clone(), |step| step.ticket.clone());
            steps.push(finish_step(&claimed, finishing, Some(name), None, now));
            Ok(Decision::Changed(steps))
        }
    }
}

fn finish_decision(
    ticket: &Ticket,
    finishing: &FinishRequest,
    assignee: Option<&str>,
    vm: Option<VmId>,
    now: Timestamp,
) -> Decision {
    Decision::Changed(vec![finish_step(ticket, finishing, assignee, vm, now)])
}

fn finish_step(
    ticket: &Ticket,
    finishing: &FinishRequest,
    assignee: Option<&str>,
    vm: Option<VmId>,
    now: Timestamp,
) -> Step {
    let finish = Finish {
        assignee: assignee.map(str::to_owned),
        vm,
        result: finishing.result.value().cloned(),
        at: now,
    };
    let (kind, state) = match finishing.resolution {
        Resolution::Completed => (StepKind::Completed, State::Completed(finish)),
        Resolution::Failed => (StepKind::Failed, State::Failed(finish)),
    };
    step(kind, Ticket { state, ..ticket.clone() }, assignee.map(str::to_owned))
}
