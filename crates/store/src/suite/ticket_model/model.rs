//! The in-memory model of an account's tickets: a second, simple implementation of the rules that shares no code with
//! the one that the store uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use skep_api::{
    ErrorCode, Label, TicketId,
    tickets::{Attempt, AttemptOutcome, Blocker, Object, Priority, Ticket, TicketStatus},
};
use skep_tickets::{ClaimReady, NewTicket};

use super::{actions::Known, model_ticket::ModelTicket};
use crate::{DeleteTicket, Dependents, EventKind};

/// Result of a command on the model.
pub(super) type Outcome = Result<(), ErrorCode>;

/// Model of all tickets of an account.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) now: Timestamp,
    pub(super) tickets: BTreeMap<TicketId, ModelTicket>,
    /// Kinds of the events of each ticket, including deleted ones.
    pub(super) events: BTreeMap<TicketId, Vec<EventKind>>,
    pub(super) attempts: BTreeMap<TicketId, Vec<Attempt>>,
}

impl Model {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { now, tickets: BTreeMap::new(), events: BTreeMap::new(), attempts: BTreeMap::new() }
    }

    /// What a caller may know about a ticket, which may be deleted.
    pub(super) fn known(&self, id: TicketId) -> Known {
        let of = |card: &ModelTicket| {
            let Ticket { attempt, version, .. } = card.record;
            Known { attempt, beats: card.beats, version }
        };
        self.tickets.get(&id).map(of).unwrap_or_default()
    }

    /// The complete record.
    pub(super) fn record(&self, id: TicketId) -> Ticket {
        let record = self.tickets[&id].record.clone();
        Ticket { ready: self.is_ready(id), blocked_by: self.blockers(id), ..record }
    }

    pub(super) fn blockers(&self, id: TicketId) -> Vec<Blocker> {
        let needs = self.tickets[&id].record.dependencies.iter().filter_map(|need| self.tickets.get(need));
        let open = needs.filter(|need| need.record.status != TicketStatus::Completed);
        open.map(|need| Blocker { id: need.record.id, status: need.record.status }).collect()
    }

    pub(super) fn is_ready(&self, id: TicketId) -> bool {
        let record = &self.tickets[&id].record;
        let time = record.not_before.is_none_or(|at| at <= self.now);
        record.status == TicketStatus::Pending && time && self.blockers(id).is_empty()
    }

    /// Whether the ticket is ready and an event was written for that.
    pub(super) fn is_announced(&self, id: TicketId) -> bool {
        self.is_ready(id) && self.tickets[&id].awake
    }

    /// Tickets that a claim selects, most urgent first, then oldest first.
    pub(super) fn claimable(&self, priorities: &[Priority], labels: &[Label]) -> Vec<TicketId> {
        let wanted = |id: &TicketId| {
            let record = &self.tickets[id].record;
            (priorities.is_empty() || priorities.contains(&record.priority))
                && labels.iter().all(|label| record.labels.contains(label))
        };
        let mut ids: Vec<_> =
            self.tickets.keys().copied().filter(|id| self.is_announced(*id)).filter(wanted).collect();
        let rank =
            |id: &TicketId| Priority::ALL.iter().position(|one| *one == self.tickets[id].record.priority);
        ids.sort_by_key(|id| (rank(id), *id));
        ids
    }

    /// Tickets with a `not_before` whose timer has not fired.
    pub(super) fn waiting(&self) -> BTreeMap<TicketId, Timestamp> {
        let waits = |(id, card): (&TicketId, &ModelTicket)| {
            Some((*id, card.record.not_before.filter(|_| !card.awake)?))
        };
        self.tickets.iter().filter_map(waits).collect()
    }

    /// Tickets in progress: attempt, number of renewals, and length of the lease.
    pub(super) fn held(&self) -> BTreeMap<TicketId, (u32, u64, Duration)> {
        let held = self.tickets.iter().filter(|(_, card)| card.record.status == TicketStatus::InProgress);
        held.map(|(id, card)| (*id, (card.record.attempt, card.beats, card.lease))).collect()
    }

    pub(super) fn ticket_mut(&mut self, id: TicketId) -> &mut ModelTicket {
        self.tickets.get_mut(&id).unwrap()
    }

    pub(super) fn record_event(&mut self, id: TicketId, kind: EventKind) {
        self.events.entry(id).or_default().push(kind);
    }

    fn mark_ready(&mut self, id: TicketId) {
        self.ticket_mut(id).awake = true;
        self.record_event(id, EventKind::TicketReady);
    }

    pub(super) fn mark_ready_if_ready(&mut self, id: TicketId) {
        if self.is_ready(id) {
            self.mark_ready(id);
        }
    }

    pub(super) fn increment_version(&mut self, id: TicketId) {
        let now = self.now;
        let record = &mut self.ticket_mut(id).record;
        (record.version, record.updated_at) = (record.version + 1, now);
    }

    pub(super) fn dependents(&self, id: TicketId) -> Vec<TicketId> {
        let needs = |card: &&ModelTicket| card.record.dependencies.contains(&id);
        self.tickets.values().filter(needs).map(|card| card.record.id).collect()
    }

    /// Adds tickets with the ids that the store generated.
    pub(super) fn make(&mut self, tickets: Vec<(TicketId, NewTicket, Vec<TicketId>)>) {
        let now = self.now;
        let ids: Vec<TicketId> = tickets.iter().map(|(id, ..)| *id).collect();
        for (id, new, dependencies) in tickets {
            self.tickets.insert(id, ModelTicket::new(id, new, dependencies, now));
            self.attempts.insert(id, Vec::new());
        }
        for id in ids {
            self.record_event(id, EventKind::TicketCreated);
            self.mark_ready_if_ready(id);
        }
    }

    /// Claims the first `count` claimable tickets and returns their ids.
    pub(super) fn claim_next(&mut self, command: &ClaimReady) -> Vec<TicketId> {
        let ClaimReady { each, count, priorities, labels } = command;
        let mut claimed = self.claimable(priorities, labels);
        claimed.truncate(usize::try_from(*count).unwrap());
        for id in &claimed {
            self.start_attempt(*id, each.assignee.name(), each.lease);
            self.increment_version(*id);
        }
        claimed
    }

    pub(super) fn start_attempt(&mut self, id: TicketId, name: &str, lease: Option<Duration>) {
        if !self.tickets[&id].awake {
            self.mark_ready(id);
        }
        let (now, lease) = (self.now, lease.unwrap_or(Duration::from_secs(3_600)));
        let card = self.ticket_mut(id);
        (card.beats, card.lease, card.lapsed) = (0, lease, None);
        let record = &mut card.record;
        record.status = TicketStatus::InProgress;
        record.assignee = Some(name.to_owned());
        record.attempt += 1;
        (record.started_at, record.lease_expires_at, record.progress) = (Some(now), Some(now + lease), None);
        let attempt = Attempt {
            attempt: record.attempt,
            assignee: name.to_owned(),
            vm: None,
            claimed_at: now,
            ended_at: None,
            outcome: None,
            result: None,
        };
        self.attempts.entry(id).or_default().push(attempt);
        self.record_event(id, EventKind::TicketClaimed);
    }

    pub(super) fn renew(&mut self, id: TicketId, lease: Option<Duration>, progress: Option<&String>) {
        let now = self.now;
        let card = self.ticket_mut(id);
        card.beats += 1;
        card.lease = lease.unwrap_or(card.lease);
        card.record.lease_expires_at = Some(now + card.lease);
        progress.iter().for_each(|progress| card.record.progress = Some((*progress).clone()));
    }

    /// Completes or fails a ticket; `by` is `None` if a ticket fails before it was claimed.
    pub(super) fn close(
        &mut self,
        id: TicketId,
        completed: bool,
        by: Option<String>,
        result: Option<Object>,
    ) {
        if by.is_some() {
            let outcome = if completed { AttemptOutcome::Completed } else { AttemptOutcome::Failed };
            self.end_attempt(id, outcome, result.clone());
        }
        self.set_status(id, if completed { TicketStatus::Completed } else { TicketStatus::Failed }, by, None);
        let now = self.now;
        let record = &mut self.ticket_mut(id).record;
        (record.result, record.finished_at) = (result, Some(now));
        self.record_event(id, if completed { EventKind::TicketCompleted } else { EventKind::TicketFailed });
        for dependent in self.dependents(id) {
            if completed && self.is_announced(dependent) {
                self.record_event(dependent, EventKind::TicketReady);
            } else if !completed && self.tickets[&dependent].record.status == TicketStatus::Pending {
                self.record_event(dependent, EventKind::TicketBlocked);
            }
        }
    }

    pub(super) fn end_attempt(&mut self, id: TicketId, outcome: AttemptOutcome, result: Option<Object>) {
        let now = self.now;
        let attempt = self.attempts.get_mut(&id).and_then(|all| all.last_mut()).unwrap();
        (attempt.ended_at, attempt.outcome, attempt.result) = (Some(now), Some(outcome), result);
    }

    pub(super) fn set_status(
        &mut self,
        id: TicketId,
        status: TicketStatus,
        by: Option<String>,
        lapsed: Option<String>,
    ) {
        let card = self.ticket_mut(id);
        card.lapsed = lapsed;
        let record = &mut card.record;
        (record.status, record.assignee, record.lease_expires_at) = (status, by, None);
        (record.result, record.finished_at) = (None, None);
    }

    /// Applies a back-off, during which the ticket cannot be claimed.
    pub(super) fn back_off(&mut self, id: TicketId, rest: Duration) {
        let until = self.now + rest;
        let card = self.ticket_mut(id);
        let later = !card.awake && card.record.not_before.is_some_and(|at| at > until);
        if !rest.is_zero() && !later {
            (card.record.not_before, card.awake) = (Some(until), false);
        }
        self.mark_ready_if_ready(id);
    }

    /// Ends an attempt by a timer; returns whether the attempt was open.
    pub(super) fn end(&mut self, id: TicketId, attempt: u32, beats: Option<u64>) -> bool {
        let Some(card) = self.tickets.get(&id) else { return false };
        let record = &card.record;
        let open = record.status == TicketStatus::InProgress && record.attempt == attempt;
        if !open || beats.is_some_and(|beats| beats != card.beats) {
            return false;
        }
        let outcome = if beats.is_some() { AttemptOutcome::LeaseExpired } else { AttemptOutcome::MaxRuntime };
        let (holder, most) = (record.assignee.clone(), record.max_attempts);
        self.end_attempt(id, outcome, None);
        self.record_event(id, EventKind::TicketLeaseExpired);
        let counted = &mut self.ticket_mut(id).counted;
        counted.push(serde_json::json!({"attempt": attempt, "assignee": holder, "outcome": outcome}));
        let ends = u32::try_from(counted.len()).unwrap();
        if ends < most {
            self.set_status(id, TicketStatus::Pending, None, holder);
            self.back_off(id, if ends == 1 { Duration::ZERO } else { Duration::from_secs(10 << (ends - 2)) });
        } else {
            let message = format!("{ends} attempts ended by themselves; that is all that it may have");
            let attempts = self.tickets[&id].counted.clone();
            let result =
                serde_json::json!({"error": "max_attempts", "message": message, "attempts": attempts});
            let kept = self.attempts[&id].clone();
            self.close(id, false, holder, result.as_object().cloned());
            // The attempt keeps its own outcome.
            self.attempts.insert(id, kept);
        }
        self.increment_version(id);
        true
    }

    /// The timer of a ticket's `not_before` fires.
    pub(super) fn wake(&mut self, id: TicketId) {
        self.ticket_mut(id).awake = true;
        if self.is_ready(id) {
            self.record_event(id, EventKind::TicketReady);
        }
    }

    pub(super) fn delete(&mut self, command: &DeleteTicket) -> Outcome {
        self.check_version(command.id, command.expected.as_deref())?;
        self.check_not_held(command.id, command)?;
        let unfinished = self.unfinished(command.id);
        if command.dependents == Dependents::Refuse && !unfinished.is_empty() {
            return Err(ErrorCode::HasDependents);
        }
        if command.dependents == Dependents::Delete {
            let mut all = BTreeSet::new();
            let mut open = unfinished;
            while let Some(id) = open.pop() {
                if all.insert(id) {
                    open.extend(self.unfinished(id));
                }
            }
            for id in &all {
                self.check_not_held(*id, command)?;
            }
            all.into_iter().rev().for_each(|id| self.remove(id));
        }
        self.remove(command.id);
        Ok(())
    }

    fn check_not_held(&self, id: TicketId, command: &DeleteTicket) -> Outcome {
        let held = self.tickets[&id].record.status == TicketStatus::InProgress;
        if held && !command.force { Err(ErrorCode::TicketState) } else { Ok(()) }
    }

    fn unfinished(&self, id: TicketId) -> Vec<TicketId> {
        let open = [TicketStatus::Pending, TicketStatus::InProgress];
        self.dependents(id).into_iter().filter(|id| open.contains(&self.tickets[id].record.status)).collect()
    }

    /// Removes a ticket, also from the dependencies of tickets that are not completed.
    fn remove(&mut self, id: TicketId) {
        let unfinished = self.dependents(id).into_iter();
        let unfinished: Vec<_> =
            unfinished.filter(|one| self.tickets[one].record.status != TicketStatus::Completed).collect();
        for one in unfinished {
            let was_announced = self.is_announced(one);
            self.ticket_mut(one).record.dependencies.retain(|need| *need != id);
            self.record_event(one, EventKind::TicketUpdated);
            if !was_announced {
                self.mark_ready_if_ready(one);
            }
            self.increment_version(one);
        }
        if self.tickets[&id].record.status == TicketStatus::InProgress {
            self.end_attempt(id, AttemptOutcome::Released, None);
        }
        self.record_event(id, EventKind::TicketDeleted);
        self.tickets.remove(&id);
    }
}
