//! Changes of tickets by the server itself: expired timers, and ends of VMs and commands.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, params};
use skep_api::{Patch, TicketId, VmId, swarm::EndReason, tickets::Object};
use skep_tickets::{
    Command, Decision, EndCause, EndedAttempt, Finishing, Lease, Release, Resolution, State, decide,
};

use super::{
    super::{
        columns::{self, all, change, millis},
        fault::Fault,
        vms,
    },
    Told,
    apply::{self, Change, announce, apply},
    change::{renew, renewed},
    row::{Row, find},
};
use crate::{
    CommandOutcome, EndAttempt, Error, OpenAttempt, RecordCommandEnd, TicketCall, TicketNews, TimeUp,
    WaitingTicket, WakeTicket,
};

/// Ends an attempt whose timer fired; returns whether it was ended.
pub(in super::super) fn end_attempt(
    connection: &Connection,
    command: &EndAttempt,
) -> Result<Told<bool>, Fault> {
    let nothing = Ok((false, Vec::new()));
    let Some(row) = find(connection, command.ticket)? else { return nothing };
    let State::InProgress(holder) = &row.ticket.state else { return nothing };
    if row.ticket.attempt != command.attempt {
        return nothing;
    }
    let cause = match (command.why, holder.vm) {
        (TimeUp::Runtime, _) => EndCause::MaxRuntime,
        (TimeUp::Lease { beats }, _) if beats != row.beats => return nothing,
        (TimeUp::Lease { .. }, None) => EndCause::LeaseExpired,
        (TimeUp::Lease { .. }, Some(vm)) if vms::require_alive(connection, row.account, vm).is_ok() => {
            let lease = Lease::from(command.at, holder.lease.length);
            renew(connection, &row, lease, None)?;
            let mut row = row;
            renewed(&mut row, lease);
            return Ok((false, apply::held(&row).into_iter().collect()));
        }
        (TimeUp::Lease { .. }, Some(_)) => EndCause::VmEnded,
    };
    let call = by_itself(&row, command.at, None);
    let mut news = Vec::new();
    end(connection, &call, &row, cause, &mut news)?;
    Ok((true, news))
}

/// Ends the attempts of a VM that ended.
pub(in super::super) fn of_ended_vm(
    connection: &Connection,
    vm: VmId,
    reason: EndReason,
    at: Timestamp,
    request_id: Option<&str>,
) -> Result<Vec<TicketNews>, Fault> {
    let cause = match reason {
        EndReason::Deleted | EndReason::Cleanup | EndReason::TicketEnded => EndCause::VmDeleted,
        _ => EndCause::VmEnded,
    };
    let mut news = Vec::new();
    for row in held_by(connection, vm)? {
        let call = by_itself(&row, at, request_id);
        end(connection, &call, &row, cause, &mut news)?;
    }
    Ok(news)
}

/// Ends the attempts of a VM whose command ended, according to the outcome.
pub(in super::super) fn of_ended_command(
    connection: &Connection,
    command: &RecordCommandEnd,
) -> Result<Vec<TicketNews>, Fault> {
    let mut news = Vec::new();
    for row in held_by(connection, command.vm)? {
        let call = by_itself(&row, command.at, None);
        match &command.outcome {
            CommandOutcome::Completes(result) => {
                transition(connection, &call, &row, &completion(&row, result), &mut news)?;
            }
            CommandOutcome::Counts(evidence) => {
                end(connection, &call, &row, EndCause::CommandEnded, &mut news)?;
                keep_evidence(connection, &row, evidence)?;
            }
            CommandOutcome::GivesBack(evidence) => {
                transition(connection, &call, &row, &Command::Release(release(&row)), &mut news)?;
                keep_evidence(connection, &row, evidence)?;
            }
        }
    }
    Ok(news)
}

/// The tickets that a VM holds.
fn held_by(connection: &Connection, vm: VmId) -> Result<Vec<Row>, Fault> {
    let sql = "SELECT id FROM tickets WHERE vm = ?1 AND status = 'in_progress' ORDER BY id";
    let held = all(connection, sql, [vm.to_string()], |row| row.word::<TicketId>("id"))?;
    let rows = held.into_iter().map(|id| find(connection, id));
    rows.filter_map(Result::transpose).collect()
}

fn completion(row: &Row, result: &Object) -> Command {
    Command::Finish(Finishing {
        resolution: Resolution::Completed,
        result: Patch::Value(result.clone()),
        attempt: Some(row.ticket.attempt),
        assignee: None,
        // Used only for tickets without a holder.
        key_name: String::new(),
    })
}

fn release(row: &Row) -> Release {
    Release { attempt: Some(row.ticket.attempt), assignee: None, retry_after: None, by_status: true }
}

/// Stores the outcome of a command with the attempt. The result of the ticket does not change.
fn keep_evidence(connection: &Connection, row: &Row, evidence: &Object) -> Result<(), Fault> {
    let sql = "UPDATE ticket_attempts SET result = ?3 WHERE ticket = ?1 AND attempt = ?2";
    let (id, evidence) = (row.ticket.id.to_string(), columns::json(evidence)?);
    change(connection, sql, params![id, row.ticket.attempt, evidence])?;
    Ok(())
}

fn transition(
    connection: &Connection,
    call: &TicketCall,
    row: &Row,
    command: &Command,
    news: &mut Vec<TicketNews>,
) -> Result<(), Fault> {
    if let Decision::Changed(steps) = decide(&row.ticket, command, call.at).map_err(Error::from)? {
        apply(connection, call, Change::of(row, steps), news)?;
    }
    Ok(())
}

/// Releases all tickets that are in progress.
pub(in super::super) fn release_all(connection: &Connection, at: Timestamp) -> Result<(), Fault> {
    let sql = "SELECT id FROM tickets WHERE status = 'in_progress' ORDER BY id";
    for id in all(connection, sql, [], |row| row.word::<TicketId>("id"))? {
        let Some(row) = find(connection, id)? else { continue };
        let call = by_itself(&row, at, None);
        transition(connection, &call, &row, &Command::Release(release(&row)), &mut Vec::new())?;
    }
    Ok(())
}

fn end(
    connection: &Connection,
    call: &TicketCall,
    row: &Row,
    cause: EndCause,
    news: &mut Vec<TicketNews>,
) -> Result<(), Fault> {
    let attempt = row.ticket.attempt;
    let earlier = earlier(connection, row)?;
    transition(connection, call, row, &Command::End { attempt, cause, earlier }, news)
}

/// Returns the attempts that the server ended since the ticket was created or reopened, if no further one is allowed.
fn earlier(connection: &Connection, row: &Row) -> Result<Vec<EndedAttempt>, Fault> {
    if row.ticket.counted + 1 < row.ticket.max_attempts {
        return Ok(Vec::new());
    }
    let sql = "SELECT attempt, assignee, outcome FROM ticket_attempts
               WHERE ticket = ?1 AND outcome IN ('lease_expired', 'max_runtime', 'vm_ended', 'command_ended')
               ORDER BY attempt DESC LIMIT ?2";
    let mut ended = all(connection, sql, params![row.ticket.id.to_string(), row.ticket.counted], |row| {
        Ok(EndedAttempt {
            attempt: row.number("attempt")?,
            assignee: row.plain("assignee")?,
            outcome: row.word("outcome")?,
        })
    })?;
    ended.reverse();
    Ok(ended)
}

/// Marks a ticket's `not_before` as passed; returns whether that changed anything.
pub(in super::super) fn wake(connection: &Connection, command: &WakeTicket) -> Result<Told<bool>, Fault> {
    let nothing = Ok((false, Vec::new()));
    let Some(row) = find(connection, command.ticket)? else { return nothing };
    let sql =
        "UPDATE tickets SET waiting = 0, ready_at = CASE WHEN unmet = 0 AND status = 'pending' THEN ?3 END
               WHERE id = ?1 AND waiting = 1 AND not_before = ?2";
    let (id, not_before) = (command.ticket.to_string(), millis(command.not_before));
    if change(connection, sql, params![id, not_before, millis(command.at)])? == 0 {
        return nothing;
    }
    let call = by_itself(&row, command.at, None);
    let mut news = Vec::new();
    // From the row, with millisecond precision; that of the command may be higher.
    let not_before = row.ticket.wait.time().unwrap_or(command.not_before);
    let decided = decide(&row.ticket, &Command::Wake { not_before }, command.at);
    if let Decision::Changed(steps) = decided.map_err(Error::from)? {
        announce(connection, &call, &steps, &mut news)?;
    }
    Ok((true, news))
}

fn by_itself(row: &Row, at: Timestamp, request_id: Option<&str>) -> TicketCall {
    TicketCall { account: row.account, key: None, vm: None, at, request_id: request_id.map(str::to_owned) }
}

/// Extends all open leases to their full length from `at`.
pub(in super::super) fn restart_leases(connection: &Connection, at: Timestamp) -> Result<(), Fault> {
    let sql = "UPDATE tickets SET lease_expires_at = ?1 + lease_ms WHERE status = 'in_progress'";
    change(connection, sql, [millis(at)])?;
    Ok(())
}

/// Returns the open attempts.
pub(in super::super) fn open_attempts(connection: &Connection) -> Result<Vec<OpenAttempt>, Fault> {
    let sql = "SELECT id, attempt, beats, lease_ms, max_runtime_ms FROM tickets WHERE status = 'in_progress' ORDER BY id";
    all(connection, sql, [], |row| {
        Ok(OpenAttempt {
            ticket: row.word("id")?,
            attempt: row.number("attempt")?,
            beats: row.number("beats")?,
            lease: Duration::from_millis(row.number("lease_ms")?),
            max_runtime: Duration::from_millis(row.number("max_runtime_ms")?),
        })
    })
}

/// Returns the tickets whose `not_before` is in the future.
pub(in super::super) fn waiting(connection: &Connection) -> Result<Vec<WaitingTicket>, Fault> {
    let sql = "SELECT id, not_before FROM tickets WHERE waiting = 1 ORDER BY not_before, id";
    all(connection, sql, [], |row| {
        Ok(WaitingTicket { ticket: row.word("id")?, not_before: row.time("not_before")?, rest: None })
    })
}
