//! Edits and transitions of a ticket by a caller, and renewals of its lease.

use rusqlite::{Connection, params};
use serde_json::json;
use skep_api::tickets::{Beat as BeatAnswer, Object, Ticket as Record};
use skep_tickets::{
    Command, Decision, Edits, Lease, State, Ticket, Wait, check_edits, decide, ready_step, rescheduled,
};

use super::{
    super::{
        columns::{execute as write, millis, signed},
        error::SqliteError,
    },
    WithSignals,
    apply::{self, Change, apply, time_value},
    dependencies,
    fields::{Texts, record},
    open_limit,
    row::{Row, check_version, find_for_caller, milliseconds},
};
use crate::{BeatTicket, ChangeTicket, Error, TicketSignal};

/// Changes a ticket and returns its record.
pub(in super::super) fn change(
    connection: &Connection,
    command: &ChangeTicket,
) -> Result<WithSignals<Record>, SqliteError> {
    let ChangeTicket { call, id, expected, edits, transition } = command;
    check_vm_key(command)?;
    let before = find_for_caller(connection, call, *id)?;
    check_version(&before, expected.as_deref())?;
    check_edits(&before.ticket, edits).map_err(Error::from)?;
    let mut signals = Vec::new();
    let (mut edited, changes) = edit(connection, command, &before)?;
    let mut steps = Vec::new();
    if !changes.is_empty()
        && let Some(ready) = ready_step(Some(&before.ticket), &edited.ticket, call.at)
    {
        // Becoming ready is recorded here and must not be recorded again by the transition.
        edited.ticket = ready.ticket.clone();
        steps.push(ready);
    }
    let decision = match transition {
        Some(transition) => decide(&edited.ticket, transition, call.at).map_err(Error::from)?,
        None => Decision::Nothing,
    };
    let mut current = before.clone();
    match decision {
        Decision::Nothing => {}
        Decision::Renewed(lease) => {
            renew(connection, &before, lease, None)?;
            for row in [&mut edited, &mut current] {
                apply_renewal(row, lease);
            }
            signals.extend(apply::held_signal(&current));
        }
        Decision::Changed(more) => steps.extend(more),
    }
    if !before.ticket.is_open() && steps.last().is_some_and(|step| step.ticket.is_open()) {
        open_limit::check(connection, before.account, 1)?;
    }
    if !changes.is_empty() || !steps.is_empty() {
        let decided = Change { before: &current, edited, edits: changes, steps };
        current = apply(connection, call, decided, &mut signals)?;
        if current.ticket.is_ready(call.at) && affects_claims(&command.edits) {
            signals.push(TicketSignal::Ready(current.account));
        }
    }
    Ok((record(connection, current, call.at)?, signals))
}

/// Whether waiting claims that did not match the ticket may match it after these edits.
fn affects_claims(edits: &Edits) -> bool {
    edits.labels.is_some() || edits.priority.is_some()
}

/// A key that is bound to a VM may finish the ticket of that VM, and nothing else.
fn check_vm_key(command: &ChangeTicket) -> Result<(), SqliteError> {
    let Some(vm) = command.call.vm else { return Ok(()) };
    let finishes = matches!(command.transition, Some(Command::Finish(_)));
    if finishes && command.edits.is_empty() {
        return Ok(());
    }
    Err(Error::VmKeyLimited { vm, what: "change tickets in another way" }.into())
}

pub(in super::super) fn beat(
    connection: &Connection,
    command: &BeatTicket,
) -> Result<WithSignals<BeatAnswer>, SqliteError> {
    let row = find_for_caller(connection, &command.call, command.id)?;
    let decided = decide(&row.ticket, &Command::Heartbeat(command.beat.clone()), command.call.at)
        .map_err(Error::from)?;
    let Decision::Renewed(lease) = decided else {
        return Err(SqliteError::Internal(crate::Cause::new("a beat did not renew the lease")));
    };
    renew(connection, &row, lease, command.beat.progress.as_deref())?;
    let mut after = row;
    apply_renewal(&mut after, lease);
    let answer = BeatAnswer { attempt: after.ticket.attempt, lease_expires_at: lease.expires_at };
    Ok((answer, apply::held_signal(&after).into_iter().collect()))
}

/// Writes a renewed lease. Writes no event and keeps the version.
pub(super) fn renew(
    connection: &Connection,
    row: &Row,
    lease: Lease,
    progress: Option<&str>,
) -> Result<(), SqliteError> {
    let sql = "UPDATE tickets SET lease_ms = ?4, lease_expires_at = ?5, beats = beats + 1, progress = coalesce(?6, progress)
               WHERE id = ?1 AND status = 'in_progress' AND attempt = ?2 AND beats = ?3";
    let (id, length) = (row.ticket.id.to_string(), signed(milliseconds(lease.length))?);
    let changed = write(
        connection,
        sql,
        params![id, row.ticket.attempt, signed(row.beats)?, length, millis(lease.expires_at), progress],
    )?;
    if changed == 1 {
        Ok(())
    } else {
        Err(SqliteError::Internal(crate::Cause::new("a lease changed under the writer")))
    }
}

/// Applies a renewal to a row in memory.
pub(super) fn apply_renewal(row: &mut Row, lease: Lease) {
    row.beats += 1;
    if let State::InProgress(holder) = &mut row.ticket.state {
        holder.lease = lease;
    }
}

/// Applies edits, and returns the edited row with the old and new values. Texts and dependencies are written here.
fn edit(connection: &Connection, command: &ChangeTicket, before: &Row) -> Result<(Row, Object), SqliteError> {
    let edits = &command.edits;
    let mut changes = Object::new();
    let mut after = before.clone();
    if edits.is_empty() {
        return Ok((after, changes));
    }
    after.fields.edit(edits, &mut changes);
    Texts::update(connection, before.ticket.id, edits, &mut changes)?;
    if let Some(wanted) = edits.max_attempts
        && wanted != before.ticket.max_attempts
    {
        changes.insert("max_attempts".to_owned(), json!([before.ticket.max_attempts, wanted]));
        after.ticket.max_attempts = wanted;
    }
    if let Some(wanted) = edits.not_before {
        let (old, new) = (time_value(before.ticket.wait.time()), time_value(wanted));
        if old != new {
            changes.insert("not_before".to_owned(), json!([old, new]));
        }
        let wait = Wait::until(wanted, command.call.at);
        after.ticket = rescheduled(&after.ticket, wait, after.ticket.blockers.clone());
    }
    if let Some(wanted) = &edits.dependencies {
        let old = dependencies::of(connection, before.ticket.id)?;
        if old != *wanted {
            let blockers = dependencies::replace(connection, before.account, before.ticket.id, wanted)?;
            changes.insert("dependencies".to_owned(), json!([old, wanted]));
            after.ticket = rescheduled(&after.ticket, after.ticket.wait, blockers);
        }
    }
    Ok((after, changes))
}

/// The ticket without one of its dependencies, which was completed or not.
pub(super) fn without_dependency(ticket: &Ticket, completed: bool) -> Ticket {
    let mut blockers = ticket.blockers.clone();
    blockers.total = blockers.total.saturating_sub(u32::from(!completed));
    rescheduled(ticket, ticket.wait, blockers)
}
