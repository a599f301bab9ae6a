//! Changes of tickets by the server itself: expired timers, and ends of VMs and commands.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, params};
use skep_api::{Patch, TicketId, VmId, swarm::EndReason, tickets::Object};
use skep_tickets::{
    Assignee, Command, Decision, EndCause, EndedAttempt, FinishRequest, Lease, Release, Resolution, State,
    decide,
};

use super::{
    super::{
        columns::{self, execute, millis, query_all},
        error::SqliteError,
        vms,
    },
    WithSignals,
    apply::{self, Change, append_derived, apply},
    change::{apply_renewal, renew},
    row::{Row, find},
};
use crate::{
    AttemptTimer, CommandOutcome, EndAttempt, Error, OpenAttempt, RecordCommandEnd, TicketCall, TicketSignal,
    WaitingTicket, WakeTicket,
};

/// Ends an attempt whose timer fired; returns whether it was ended.
pub(in super::super) fn end_attempt(
    connection: &Connection,
    command: &EndAttempt,
) -> Result<WithSignals<bool>, SqliteError> {
    let nothing = Ok((false, Vec::new()));
    let Some(row) = find(connection, command.ticket)? else { return nothing };
    let State::InProgress(holder) = &row.ticket.state else { return nothing };
    if row.ticket.attempt != command.attempt {
        return nothing;
    }
    let cause = match (command.timer, holder.vm) {
        (AttemptTimer::Runtime, _) => EndCause::MaxRuntime,
        (AttemptTimer::Lease { beats }, _) if beats != row.beats => return nothing,
        (AttemptTimer::Lease { .. }, None) => EndCause::LeaseExpired,
        (AttemptTimer::Lease { .. }, Some(vm))
            if vms::require_running(connection, row.account, vm).is_ok() =>
        {
            let lease = Lease::from(command.at, holder.lease.length);
            renew(connection, &row, lease, None)?;
            let mut row = row;
            apply_renewal(&mut row, lease);
            return Ok((false, apply::held_signal(&row).into_iter().collect()));
        }
        (AttemptTimer::Lease { .. }, Some(_)) => EndCause::VmEnded,
    };
    let call = server_call(&row, command.at, None);
    let mut signals = Vec::new();
    end(connection, &call, &row, cause, &mut signals)?;
    Ok((true, signals))
}

/// Ends the attempts of a VM that ended.
pub(in super::super) fn end_attempts_of_vm(
    connection: &Connection,
    vm: VmId,
    reason: EndReason,
    at: Timestamp,
    request_id: Option<&str>,
) -> Result<Vec<TicketSignal>, SqliteError> {
    let cause = match reason {
        EndReason::Deleted | EndReason::Cleanup | EndReason::TicketEnded => EndCause::VmDeleted,
        _ => EndCause::VmEnded,
    };
    let mut signals = Vec::new();
    for row in held_by(connection, vm)? {
        let call = server_call(&row, at, request_id);
        end(connection, &call, &row, cause, &mut signals)?;
    }
    Ok(signals)
}

/// Ends the attempts of a VM whose command ended, according to the outcome.
pub(in super::super) fn apply_command_end(
    connection: &Connection,
    command: &RecordCommandEnd,
) -> Result<Vec<TicketSignal>, SqliteError> {
    let mut signals = Vec::new();
    for row in held_by(connection, command.vm)? {
        let call = server_call(&row, command.at, None);
        match &command.outcome {
            CommandOutcome::Completed(result) => {
                transition(connection, &call, &row, &completion(&row, result), &mut signals)?;
            }
            CommandOutcome::AttemptFailed(evidence) => {
                end(connection, &call, &row, EndCause::CommandEnded, &mut signals)?;
                store_attempt_result(connection, &row, evidence)?;
            }
            CommandOutcome::Released(evidence) => {
                transition(connection, &call, &row, &Command::Release(release(&row)), &mut signals)?;
                store_attempt_result(connection, &row, evidence)?;
            }
        }
    }
    Ok(signals)
}

/// The tickets that a VM holds.
fn held_by(connection: &Connection, vm: VmId) -> Result<Vec<Row>, SqliteError> {
    let sql = "SELECT id FROM tickets WHERE vm = ?1 AND status = 'in_progress' ORDER BY id";
    let held = query_all(connection, sql, [vm.to_string()], |row| row.parse::<TicketId>("id"))?;
    let rows = held.into_iter().map(|id| find(connection, id));
    rows.filter_map(Result::transpose).collect()
}

fn completion(row: &Row, result: &Object) -> Command {
    Command::Finish(FinishRequest {
        resolution: Resolution::Completed,
        result: Patch::Value(result.clone()),
        attempt: Some(row.ticket.attempt),
        // The ticket has a holder, so the name of a key is not used.
        assignee: Assignee::KeyName(String::new()),
    })
}

fn release(row: &Row) -> Release {
    Release { attempt: Some(row.ticket.attempt), assignee: None, retry_after: None, by_status: true }
}

/// Stores the outcome of a command with the attempt. The result of the ticket does not change.
fn store_attempt_result(connection: &Connection, row: &Row, evidence: &Object) -> Result<(), SqliteError> {
    let sql = "UPDATE ticket_attempts SET result = ?3 WHERE ticket = ?1 AND attempt = ?2";
    let (id, evidence) = (row.ticket.id.to_string(), columns::to_json(evidence)?);
    execute(connection, sql, params![id, row.ticket.attempt, evidence])?;
    Ok(())
}

fn transition(
    connection: &Connection,
    call: &TicketCall,
    row: &Row,
    command: &Command,
    signals: &mut Vec<TicketSignal>,
) -> Result<(), SqliteError> {
    if let Decision::Changed(steps) = decide(&row.ticket, command, call.at).map_err(Error::from)? {
        apply(connection, call, Change::of(row, steps), signals)?;
    }
    Ok(())
}

/// Releases all tickets that are in progress.
pub(in super::super) fn release_all(connection: &Connection, at: Timestamp) -> Result<(), SqliteError> {
    let sql = "SELECT id FROM tickets WHERE status = 'in_progress' ORDER BY id";
    for id in query_all(connection, sql, [], |row| row.parse::<TicketId>("id"))? {
        let Some(row) = find(connection, id)? else { continue };
        let call = server_call(&row, at, None);
        transition(connection, &call, &row, &Command::Release(release(&row)), &mut Vec::new())?;
    }
    Ok(())
}

fn end(
    connection: &Connection,
    call: &TicketCall,
    row: &Row,
    cause: EndCause,
    signals: &mut Vec<TicketSignal>,
) -> Result<(), SqliteError> {
    let attempt = row.ticket.attempt;
    let earlier = ended_attempts(connection, row)?;
    transition(connection, call, row, &Command::EndAttempt { attempt, cause, earlier }, signals)
}

/// Returns the attempts that the server ended since the ticket was created or reopened, if no further one is allowed.
fn ended_attempts(connection: &Connection, row: &Row) -> Result<Vec<EndedAttempt>, SqliteError> {
    if row.ticket.counted_attempts + 1 < row.ticket.max_attempts {
        return Ok(Vec::new());
    }
    let sql = "SELECT attempt, assignee, outcome FROM ticket_attempts
               WHERE ticket = ?1 AND outcome IN ('lease_expired', 'max_runtime', 'vm_ended', 'command_ended')
               ORDER BY attempt DESC LIMIT ?2";
    let mut ended =
        query_all(connection, sql, params![row.ticket.id.to_string(), row.ticket.counted_attempts], |row| {
            Ok(EndedAttempt {
                attempt: row.number("attempt")?,
                assignee: row.get("assignee")?,
                outcome: row.parse("outcome")?,
            })
        })?;
    ended.reverse();
    Ok(ended)
}

/// Marks a ticket's `not_before` as passed; returns whether that changed anything.
pub(in super::super) fn wake(
    connection: &Connection,
    command: &WakeTicket,
) -> Result<WithSignals<bool>, SqliteError> {
    let nothing = Ok((false, Vec::new()));
    let Some(row) = find(connection, command.ticket)? else { return nothing };
    let sql =
        "UPDATE tickets SET waiting = 0, ready_at = CASE WHEN unmet = 0 AND status = 'pending' THEN ?3 END
               WHERE id = ?1 AND waiting = 1 AND not_before = ?2";
    let (id, not_before) = (command.ticket.to_string(), millis(command.not_before));
    if execute(connection, sql, params![id, not_before, millis(command.at)])? == 0 {
        return nothing;
    }
    let call = server_call(&row, command.at, None);
    let mut signals = Vec::new();
    // From the row, with millisecond precision; that of the command may be higher.
    let not_before = row.ticket.wait.time().unwrap_or(command.not_before);
    let decided = decide(&row.ticket, &Command::Wake { not_before }, command.at);
    if let Decision::Changed(steps) = decided.map_err(Error::from)? {
        append_derived(connection, &call, &steps, &mut signals)?;
    }
    Ok((true, signals))
}

fn server_call(row: &Row, at: Timestamp, request_id: Option<&str>) -> TicketCall {
    TicketCall { account: row.account, key: None, vm: None, at, request_id: request_id.map(str::to_owned) }
}

/// Extends all open leases to their full length from `at`.
pub(in super::super) fn restart_leases(connection: &Connection, at: Timestamp) -> Result<(), SqliteError> {
    let sql = "UPDATE tickets SET lease_expires_at = ?1 + lease_ms WHERE status = 'in_progress'";
    execute(connection, sql, [millis(at)])?;
    Ok(())
}

/// Returns the open attempts.
pub(in super::super) fn open_attempts(connection: &Connection) -> Result<Vec<OpenAttempt>, SqliteError> {
    let sql = "SELECT id, attempt, beats, lease_ms, max_runtime_ms FROM tickets WHERE status = 'in_progress' ORDER BY id";
    query_all(connection, sql, [], |row| {
        Ok(OpenAttempt {
            ticket: row.parse("id")?,
            attempt: row.number("attempt")?,
            beats: row.number("beats")?,
            lease: Duration::from_millis(row.number("lease_ms")?),
            max_runtime: Duration::from_millis(row.number("max_runtime_ms")?),
        })
    })
}

/// Returns the tickets whose `not_before` is in the future.
pub(in super::super) fn waiting(connection: &Connection) -> Result<Vec<WaitingTicket>, SqliteError> {
    let sql = "SELECT id, not_before FROM tickets WHERE waiting = 1 ORDER BY not_before, id";
    query_all(connection, sql, [], |row| {
        Ok(WaitingTicket { ticket: row.parse("id")?, not_before: row.time("not_before")?, backoff: None })
    })
}
