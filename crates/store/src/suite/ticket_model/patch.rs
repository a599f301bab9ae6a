//! The model's rules for changes of tickets and renewals of leases.

use std::time::Duration;

use skep_api::{
    ErrorCode, Patch, TicketId,
    tickets::{AttemptOutcome, Heartbeat, Object, TicketStatus},
};
use skep_tickets::{Assignee, Claim, Command, Edits, FinishRequest, Release, Resolution};

use super::model::{Model, Outcome};
use crate::EventKind;

impl Model {
    /// Changes a ticket. A refused change has no effect.
    pub(super) fn change(
        &mut self,
        id: TicketId,
        expected: Option<&[u64]>,
        edits: &Edits,
        step: Option<&Command>,
    ) -> Outcome {
        let kept = self.clone();
        let outcome = self.try_change(id, expected, edits, step);
        if outcome.is_err() {
            *self = kept;
        }
        outcome
    }

    fn try_change(
        &mut self,
        id: TicketId,
        expected: Option<&[u64]>,
        edits: &Edits,
        step: Option<&Command>,
    ) -> Outcome {
        self.check_version(id, expected)?;
        let edited = self.edit(id, edits)?;
        let moved = match step {
            None => false,
            Some(Command::Claim(claim)) => self.claim(id, claim)?,
            Some(Command::Finish(finishing)) => self.finish(id, finishing)?,
            Some(Command::Release(release)) => self.release(id, release)?,
            Some(Command::ResultOnly(result)) => self.give_result(id, result)?,
            Some(other) => unreachable!("{other:?} is no PATCH"),
        };
        if edited || moved {
            self.increment_version(id);
        }
        Ok(())
    }

    pub(super) fn check_version(&self, id: TicketId, expected: Option<&[u64]>) -> Outcome {
        let card = self.tickets.get(&id).ok_or(ErrorCode::UnknownTicket)?;
        match expected {
            Some(expected) if !expected.contains(&card.record.version) => Err(ErrorCode::VersionStale),
            _ => Ok(()),
        }
    }

    fn edit(&mut self, id: TicketId, edits: &Edits) -> Result<bool, ErrorCode> {
        let was_announced = self.is_announced(id);
        let before = self.tickets[&id].record.clone();
        let needs = edits.dependencies.as_ref().is_some_and(|_| before.status != TicketStatus::Pending);
        let others = Edits { metadata: None, labels: None, ..edits.clone() };
        if needs || (before.status == TicketStatus::Completed && !others.is_empty()) {
            return Err(ErrorCode::TicketState);
        }
        if let Some(dependencies) = edits.dependencies.as_ref().filter(|new| **new != before.dependencies) {
            self.check_needs(id, dependencies)?;
            self.ticket_mut(id).record.dependencies.clone_from(dependencies);
        }
        let now = self.now;
        let card = self.ticket_mut(id);
        card.edit_fields(edits);
        let edited = match edits.not_before {
            Some(at) if at != card.record.not_before => {
                card.record.not_before = at;
                card.awake = at.is_none_or(|at| at <= now);
                true
            }
            _ => card.record != before,
        };
        if edited {
            self.record_event(id, EventKind::TicketUpdated);
            if !was_announced {
                self.mark_ready_if_ready(id);
            }
        }
        Ok(edited)
    }

    /// Fails if a dependency is unknown or would create a cycle.
    fn check_needs(&self, id: TicketId, dependencies: &[TicketId]) -> Outcome {
        if dependencies.iter().any(|need| !self.tickets.contains_key(need)) {
            return Err(ErrorCode::UnknownDependency);
        }
        let mut reached = dependencies.to_vec();
        let mut next = 0;
        while let Some(one) = reached.get(next).copied() {
            if one == id {
                return Err(ErrorCode::Cycle);
            }
            let more: Vec<_> = self
                .blockers(one)
                .iter()
                .map(|need| need.id)
                .filter(|need| !reached.contains(need))
                .collect();
            reached.extend(more);
            next += 1;
        }
        Ok(())
    }

    /// Fails if the attempt is given and not the latest one.
    fn require_latest(&self, id: TicketId, attempt: Option<u32>) -> Outcome {
        match attempt {
            Some(attempt) if attempt != self.tickets[&id].record.attempt => Err(ErrorCode::Superseded),
            _ => Ok(()),
        }
    }

    fn require_ready(&self, id: TicketId) -> Outcome {
        if !self.blockers(id).is_empty() {
            return Err(ErrorCode::Blocked);
        }
        if self.is_ready(id) { Ok(()) } else { Err(ErrorCode::NotYet) }
    }

    /// Fails if the caller is not the holder.
    fn require_holder(&self, id: TicketId, attempt: Option<u32>, name: Option<&str>) -> Outcome {
        self.require_latest(id, attempt)?;
        let holder = self.tickets[&id].record.assignee.as_deref();
        if name.is_some() && name != holder { Err(ErrorCode::ClaimLost) } else { Ok(()) }
    }

    fn claim(&mut self, id: TicketId, claim: &Claim) -> Result<bool, ErrorCode> {
        match (self.tickets[&id].record.status, &claim.assignee) {
            (TicketStatus::Pending, Assignee::Named(name) | Assignee::KeyName(name)) => {
                self.require_latest(id, claim.attempt)?;
                if claim.attempt.is_some_and(|attempt| attempt > 0) {
                    return Err(ErrorCode::LeaseLost);
                }
                self.require_ready(id)?;
                self.start_attempt(id, name, claim.lease);
                Ok(true)
            }
            (TicketStatus::InProgress, Assignee::KeyName(_)) => Err(ErrorCode::ClaimLost),
            (TicketStatus::InProgress, Assignee::Named(name)) => {
                self.require_holder(id, claim.attempt, Some(name))?;
                self.renew(id, claim.lease, None);
                Ok(false)
            }
            _ => Err(ErrorCode::TicketState),
        }
    }

    pub(super) fn beat(&mut self, id: TicketId, beat: &Heartbeat) -> Outcome {
        self.check_version(id, None)?;
        if self.tickets[&id].record.status != TicketStatus::InProgress {
            self.require_latest(id, beat.attempt)?;
            let pending = self.tickets[&id].record.status == TicketStatus::Pending;
            return Err(if pending { ErrorCode::LeaseLost } else { ErrorCode::TicketState });
        }
        self.require_holder(id, beat.attempt, beat.assignee.as_deref())?;
        self.renew(id, beat.lease_ms.map(Duration::from_millis), beat.progress.as_ref());
        Ok(())
    }

    fn finish(&mut self, id: TicketId, finishing: &FinishRequest) -> Result<bool, ErrorCode> {
        let FinishRequest { resolution, result, attempt, assignee } = finishing;
        let completed = *resolution == Resolution::Completed;
        let record = &self.tickets[&id].record;
        match record.status {
            TicketStatus::InProgress => {
                self.require_holder(id, *attempt, assignee.named())?;
                let holder = self.tickets[&id].record.assignee.clone();
                self.close(id, completed, holder, result.value().cloned());
            }
            TicketStatus::Pending => {
                self.require_latest(id, *attempt)?;
                match self.tickets[&id].lapsed.clone().filter(|_| attempt.is_some()) {
                    Some(lapsed) if assignee.named().is_some_and(|name| name != lapsed) => {
                        return Err(ErrorCode::Superseded);
                    }
                    Some(lapsed) => self.close(id, completed, Some(lapsed), result.value().cloned()),
                    None if completed => {
                        self.require_ready(id)?;
                        let name = assignee.name();
                        self.start_attempt(id, name, None);
                        self.close(id, true, Some(name.to_owned()), result.value().cloned());
                    }
                    None => self.close(id, false, None, result.value().cloned()),
                }
            }
            TicketStatus::Completed | TicketStatus::Failed => {
                self.require_latest(id, *attempt)?;
                if completed != (self.tickets[&id].record.status == TicketStatus::Completed) {
                    return Err(ErrorCode::TicketState);
                }
                return self.give_result(id, result);
            }
        }
        Ok(true)
    }

    fn give_result(&self, id: TicketId, result: &Patch<Object>) -> Result<bool, ErrorCode> {
        let record = &self.tickets[&id].record;
        let same = match result {
            Patch::Absent => true,
            Patch::Null => record.result.is_none(),
            Patch::Value(result) => record.result.as_ref() == Some(result),
        };
        let closed = matches!(record.status, TicketStatus::Completed | TicketStatus::Failed);
        if closed && same { Ok(false) } else { Err(ErrorCode::TicketState) }
    }

    fn release(&mut self, id: TicketId, release: &Release) -> Result<bool, ErrorCode> {
        match self.tickets[&id].record.status {
            TicketStatus::Pending => return Ok(false),
            TicketStatus::InProgress => {
                self.require_holder(id, release.attempt, release.assignee.as_deref())?;
                self.end_attempt(id, AttemptOutcome::Released, None);
                self.record_event(id, EventKind::TicketReleased);
            }
            TicketStatus::Failed if release.by_status => {
                self.require_latest(id, release.attempt)?;
                self.ticket_mut(id).counted.clear();
                self.record_event(id, EventKind::TicketReopened);
            }
            TicketStatus::Failed | TicketStatus::Completed => return Err(ErrorCode::TicketState),
        }
        self.set_status(id, TicketStatus::Pending, None, None);
        self.back_off(id, release.retry_after.unwrap_or_default());
        Ok(true)
    }
}
