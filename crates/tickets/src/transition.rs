//! The transition table: the effect of each command in each state, or why it is refused.

use std::time::Duration;

use jiff::Timestamp;
use skep_api::tickets::{AttemptOutcome, Heartbeat, Object, TicketStatus};

use crate::{
    Assignee, Blockers, Claim, Command, EndCause, EndedAttempt, Error, Finish, Holder, LapsedHolder, Lease,
    Release, State, Ticket, Wait, backoff, finish, limits::DEFAULT_LEASE,
};

/// The effect of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// No change: the ticket is already in the requested state.
    Nothing,
    /// Only the lease is renewed. This creates no event and no new version.
    Renewed(Lease),
    /// One change with one new version. Each step, in order, is an event.
    Changed(Vec<Step>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub kind: StepKind,
    /// The ticket after the step.
    pub ticket: Ticket,
    /// The holder whose attempt the step belongs to, even if the step ends it.
    pub assignee: Option<String>,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// The ticket can be claimed from now on.
    Ready,
    /// An attempt begins.
    Claimed,
    Released,
    /// The attempt ends without completion or release.
    Expired(EndCause),
    Completed,
    Failed,
    /// The ticket is retried.
    Reopened,
}

impl StepKind {
    /// The outcome that the step gives the latest attempt, if that attempt is open or lapsed.
    pub const fn ends(self) -> Option<AttemptOutcome> {
        match self {
            Self::Ready | Self::Claimed | Self::Reopened => None,
            Self::Released => Some(AttemptOutcome::Released),
            Self::Expired(cause) => Some(cause.outcome()),
            Self::Completed => Some(AttemptOutcome::Completed),
            Self::Failed => Some(AttemptOutcome::Failed),
        }
    }
}

/// Determines the effect of a command at the time `now`.
///
/// # Errors
/// Why the command is refused.
pub fn decide(ticket: &Ticket, command: &Command, now: Timestamp) -> Result<Decision, Error> {
    match command {
        Command::Claim(claim) => decide_claim(ticket, claim, now),
        Command::Finish(finishing) => finish::decide(ticket, finishing, now),
        Command::Release(release) => decide_release(ticket, release, now),
        Command::ResultOnly(result) => finish::decide_result_only(ticket, result),
        Command::Heartbeat(beat) => decide_heartbeat(ticket, beat, now),
        Command::EndAttempt { attempt, cause, earlier } => {
            Ok(decide_attempt_end(ticket, *attempt, *cause, earlier, now))
        }
        Command::Wake { not_before } => Ok(decide_wake(ticket, *not_before, now)),
    }
}

/// The step [`StepKind::Ready`], if a new ticket or a change of dependencies or time made the ticket ready.
pub fn ready_step(before: Option<&Ticket>, after: &Ticket, now: Timestamp) -> Option<Step> {
    // If the timer of a wait has not fired, the ready event has not been emitted, and after this change that timer
    // may no longer emit it.
    let was_announced = |before: &Ticket| before.is_ready(now) && !matches!(before.wait, Wait::Until(_));
    let was = before.is_some_and(was_announced);
    (after.is_ready(now) && !was).then(|| step(StepKind::Ready, after.with_elapsed_wait(now), None))
}

/// The steps of a claim. Also precedes the completion of a ticket that is not held, which needs an attempt.
pub(crate) fn claim_steps(
    ticket: &Ticket,
    assignee: &str,
    vm: Option<skep_api::VmId>,
    lease: Lease,
    now: Timestamp,
) -> Vec<Step> {
    let mut steps = Vec::with_capacity(2);
    let seen = ticket.with_elapsed_wait(now);
    if seen.wait != ticket.wait {
        // The timer has not emitted the ready event yet.
        steps.push(step(StepKind::Ready, seen.clone(), None));
    }
    let holder = Holder { assignee: assignee.to_owned(), vm, lease };
    let claimed = Ticket {
        attempt: ticket.attempt.saturating_add(1),
        started_at: Some(now),
        state: State::InProgress(holder),
        ..seen
    };
    steps.push(step(StepKind::Claimed, claimed, Some(assignee.to_owned())));
    steps
}

pub fn rescheduled(ticket: &Ticket, wait: Wait, blockers: Blockers) -> Ticket {
    Ticket { wait, blockers, ..ticket.clone() }
}

pub(crate) fn step(kind: StepKind, ticket: Ticket, assignee: Option<String>) -> Step {
    Step { kind, ticket, assignee }
}

pub(crate) fn require_ready(ticket: &Ticket, now: Timestamp) -> Result<(), Error> {
    if ticket.blockers.total > 0 {
        let Blockers { total, named } = ticket.blockers.clone();
        return Err(Error::Blocked { id: ticket.id, total, named });
    }
    match ticket.wait {
        Wait::Until(until) if until > now => Err(Error::NotYet { id: ticket.id, until }),
        _ => Ok(()),
    }
}

pub(crate) fn require_latest(ticket: &Ticket, attempt: Option<u32>) -> Result<(), Error> {
    let (id, current) = (ticket.id, ticket.attempt);
    match attempt {
        Some(attempt) if attempt > current => Err(Error::NeverBegun { id, attempt, current }),
        Some(attempt) if attempt < current => {
            let lapsed = match &ticket.state {
                State::Pending { lapsed } => lapsed.as_ref().map(|lapsed| lapsed.assignee.as_str()),
                _ => None,
            };
            let holder = ticket.assignee().or(lapsed).unwrap_or("released since").to_owned();
            Err(Error::Superseded { id, attempt, current, holder })
        }
        _ => Ok(()),
    }
}

/// Checks that the caller is the holder, as far as it gave an attempt and a name.
pub(crate) fn require_holder(
    ticket: &Ticket,
    holder: &Holder,
    attempt: Option<u32>,
    assignee: Option<&str>,
) -> Result<(), Error> {
    require_latest(ticket, attempt)?;
    match assignee {
        Some(assignee) if assignee != holder.assignee => Err(held_refusal(ticket, holder)),
        _ => Ok(()),
    }
}

fn held_refusal(ticket: &Ticket, holder: &Holder) -> Error {
    Error::HeldBy {
        id: ticket.id,
        holder: holder.assignee.clone(),
        attempt: ticket.attempt,
        until: holder.lease.expires_at,
    }
}

fn decide_claim(ticket: &Ticket, claim: &Claim, now: Timestamp) -> Result<Decision, Error> {
    let id = ticket.id;
    match &ticket.state {
        State::Pending { .. } => {
            require_latest(ticket, claim.attempt)?;
            if claim.attempt.is_some_and(|attempt| attempt > 0) {
                return Err(Error::LeaseLost { id, attempt: ticket.attempt });
            }
            require_ready(ticket, now)?;
            let lease = Lease::from(now, claim.lease.unwrap_or(DEFAULT_LEASE));
            Ok(Decision::Changed(claim_steps(ticket, claim.assignee.name(), claim.vm, lease, now)))
        }
        State::InProgress(holder) => {
            let Assignee::Named(name) = &claim.assignee else { return Err(held_refusal(ticket, holder)) };
            require_holder(ticket, holder, claim.attempt, Some(name))?;
            Ok(Decision::Renewed(Lease::from(now, claim.lease.unwrap_or(holder.lease.length))))
        }
        State::Completed(_) => Err(state_refusal(ticket, "be claimed", "create another one")),
        State::Failed(_) => {
            Err(state_refusal(ticket, "be claimed", "retry it first (set its `status` to `pending`)"))
        }
    }
}

pub(crate) fn state_refusal(ticket: &Ticket, what: &'static str, way_out: &'static str) -> Error {
    Error::State { id: ticket.id, status: ticket.status(), what, way_out }
}

fn decide_release(ticket: &Ticket, release: &Release, now: Timestamp) -> Result<Decision, Error> {
    match &ticket.state {
        // The caller's attempt is not checked: every attempt has ended.
        State::Pending { .. } => Ok(Decision::Nothing),
        State::InProgress(holder) => {
            require_holder(ticket, holder, release.attempt, release.assignee.as_deref())?;
            let rest = release.retry_after.unwrap_or_default();
            let released = pending(ticket, ticket.counted_attempts, delayed(ticket.wait, rest, now), None);
            Ok(Decision::Changed(with_ready_step(
                StepKind::Released,
                released,
                Some(holder.assignee.clone()),
                now,
            )))
        }
        State::Completed(_) => Err(state_refusal(ticket, "be taken up again", "create another one")),
        State::Failed(_) if !release.by_status => {
            Err(state_refusal(ticket, "be given back", "retry it (set its `status` to `pending`)"))
        }
        State::Failed(_) => {
            require_latest(ticket, release.attempt)?;
            let rest = release.retry_after.unwrap_or_default();
            let reopened = pending(ticket, 0, delayed(ticket.wait, rest, now), None);
            Ok(Decision::Changed(with_ready_step(StepKind::Reopened, reopened, None, now)))
        }
    }
}

fn decide_heartbeat(ticket: &Ticket, beat: &Heartbeat, now: Timestamp) -> Result<Decision, Error> {
    match &ticket.state {
        State::Pending { .. } => {
            require_latest(ticket, beat.attempt)?;
            Err(Error::LeaseLost { id: ticket.id, attempt: ticket.attempt })
        }
        State::InProgress(holder) => {
            require_holder(ticket, holder, beat.attempt, beat.assignee.as_deref())?;
            let length = beat.lease_ms.map_or(holder.lease.length, Duration::from_millis);
            Ok(Decision::Renewed(Lease::from(now, length)))
        }
        State::Completed(_) | State::Failed(_) => {
            require_latest(ticket, beat.attempt)?;
            Err(state_refusal(ticket, "be kept by a heartbeat", "stop working on it"))
        }
    }
}

fn decide_attempt_end(
    ticket: &Ticket,
    attempt: u32,
    cause: EndCause,
    earlier: &[EndedAttempt],
    now: Timestamp,
) -> Decision {
    let State::InProgress(holder) = &ticket.state else { return Decision::Nothing };
    if attempt != ticket.attempt {
        return Decision::Nothing;
    }
    let by = Some(holder.assignee.clone());
    if !cause.is_counted() {
        let released = pending(ticket, ticket.counted_attempts, ticket.wait, None);
        return Decision::Changed(with_ready_step(StepKind::Released, released, by, now));
    }
    let counted = ticket.counted_attempts.saturating_add(1);
    let lapsed = Some(LapsedHolder { assignee: holder.assignee.clone(), vm: holder.vm });
    if counted < ticket.max_attempts {
        let wait = delayed(ticket.wait, backoff::delay(counted), now);
        return Decision::Changed(with_ready_step(
            StepKind::Expired(cause),
            pending(ticket, counted, wait, lapsed),
            by,
            now,
        ));
    }
    let expired = pending(ticket, counted, ticket.wait, lapsed);
    let last = EndedAttempt { attempt, assignee: holder.assignee.clone(), outcome: cause.outcome() };
    let finish = Finish {
        assignee: by.clone(),
        vm: holder.vm,
        result: Some(exhausted_result(earlier, &last, counted)),
        at: now,
    };
    let failed = Ticket { state: State::Failed(finish), ..expired.clone() };
    Decision::Changed(vec![
        step(StepKind::Expired(cause), expired, by.clone()),
        step(StepKind::Failed, failed, by),
    ])
}

/// The result of a ticket that failed because it reached `max_attempts`.
fn exhausted_result(earlier: &[EndedAttempt], last: &EndedAttempt, counted: u32) -> Object {
    let attempts = earlier.iter().chain([last]).map(
        |one| serde_json::json!({"attempt": one.attempt, "assignee": one.assignee, "outcome": one.outcome}),
    );
    Object::from_iter([
        ("error".to_owned(), "max_attempts".into()),
        (
            "message".to_owned(),
            format!("{counted} attempts ended by themselves; that is all that it may have").into(),
        ),
        ("attempts".to_owned(), attempts.collect::<Vec<_>>().into()),
    ])
}

fn decide_wake(ticket: &Ticket, not_before: Timestamp, now: Timestamp) -> Decision {
    if ticket.wait != Wait::Until(not_before) {
        return Decision::Nothing;
    }
    let awake = Ticket { wait: Wait::Passed(not_before), ..ticket.clone() };
    if awake.is_ready(now) {
        Decision::Changed(vec![step(StepKind::Ready, awake, None)])
    } else {
        Decision::Nothing
    }
}

fn pending(ticket: &Ticket, counted: u32, wait: Wait, lapsed: Option<LapsedHolder>) -> Ticket {
    Ticket { counted_attempts: counted, wait, state: State::Pending { lapsed }, ..ticket.clone() }
}

/// The wait after a delay from now. A later existing wait is kept.
fn delayed(wait: Wait, rest: std::time::Duration, now: Timestamp) -> Wait {
    if rest.is_zero() {
        return wait;
    }
    let until = now.checked_add(rest).unwrap_or(Timestamp::MAX);
    match wait {
        Wait::Until(later) if later > until => wait,
        _ => Wait::Until(until),
    }
}

fn with_ready_step(kind: StepKind, ticket: Ticket, by: Option<String>, now: Timestamp) -> Vec<Step> {
    let ready = ticket.is_ready(now).then(|| step(StepKind::Ready, ticket.with_elapsed_wait(now), None));
    std::iter::once(step(kind, ticket, by)).chain(ready).collect()
}

pub(crate) const fn status_of(resolution: crate::Resolution) -> TicketStatus {
    match resolution {
        crate::Resolution::Completed => TicketStatus::Completed,
        crate::Resolution::Failed => TicketStatus::Failed,
    }
}
