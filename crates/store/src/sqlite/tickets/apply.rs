//! Writes a decided change of a ticket: the row, attempts, events and the effect on dependent tickets.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, named_params, params};
use serde_json::{Value, json};
use skep_api::tickets::{Actor, Object};
use skep_tickets::{State, Step, StepKind, Ticket, Wait};

use super::{
    super::{
        columns::{self, execute, millis},
        error::SqliteError,
        events::{self, NewEvent},
        vms,
    },
    dependencies,
    row::Row,
    row_columns,
};
use crate::{EventKind, OpenAttempt, TicketCall, TicketSignal, VmWithoutAttempt, WaitingTicket};

/// A decided change, not yet written.
pub(super) struct Change<'a> {
    /// The ticket as stored.
    pub(super) before: &'a Row,
    /// The ticket with the edits, before the steps.
    pub(super) edited: Row,
    /// Old and new value of each edited field.
    pub(super) edits: Object,
    /// Transitions that follow the edits.
    pub(super) steps: Vec<Step>,
}

impl<'a> Change<'a> {
    /// A change that edits nothing.
    pub(super) fn of(before: &'a Row, steps: Vec<Step>) -> Self {
        Self { before, edited: before.clone(), edits: Object::new(), steps }
    }
}

/// Writes a change and returns the new row.
pub(super) fn apply(
    connection: &Connection,
    call: &TicketCall,
    decided: Change<'_>,
    signals: &mut Vec<TicketSignal>,
) -> Result<Row, SqliteError> {
    let Change { before, edited, mut edits, steps } = decided;
    let version = before.version + 1;
    let mut version_change = Some(json!([before.version, version]));
    let id = before.ticket.id;
    if !edits.is_empty() {
        edits.extend(version_change.take().map(|change| ("version".to_owned(), change)));
        append(connection, call, &edited.ticket, EventKind::TicketUpdated, None, json!(id), edits)?;
    }
    let (mut last, mut expired) = (edited.ticket.clone(), false);
    for step in &steps {
        let mut changes = differences(&last, &step.ticket);
        // Readiness is derived from other fields and does not count as a new version.
        if step.kind != StepKind::Ready {
            changes.extend(version_change.take().map(|change| ("version".to_owned(), change)));
        }
        let by = step.assignee.as_deref();
        append(connection, call, &step.ticket, event_of(step.kind), by, json!(id), changes)?;
        // If the end of an attempt made the ticket fail, the attempt keeps its own outcome, not that of the ticket.
        if !expired {
            record_attempt(connection, call, &last, step)?;
        }
        expired = matches!(step.kind, StepKind::Expired(_));
        last = step.ticket.clone();
    }
    let claimed = steps.iter().any(|step| step.kind == StepKind::Claimed);
    let after = Row {
        ready_at: is_claimable(&last).then(|| before.ready_at.unwrap_or(call.at)),
        ticket: last,
        version,
        updated_at: call.at,
        beats: if claimed { 0 } else { edited.beats },
        progress: if claimed { None } else { edited.progress.clone() },
        ..edited
    };
    row_columns::update(connection, before, &after)?;
    write_result(connection, &before.ticket, &after.ticket)?;
    push_signals(before, &after, &steps, call.at, signals);
    if !matches!(after.ticket.state, State::InProgress(_)) {
        signal_end_of_vm(connection, before, after.ticket.finish().is_some(), signals)?;
    }
    for step in &steps {
        update_dependents(connection, call, step, signals)?;
    }
    Ok(after)
}

/// Writes the events of steps that change only derived state.
pub(super) fn append_derived(
    connection: &Connection,
    call: &TicketCall,
    steps: &[Step],
    signals: &mut Vec<TicketSignal>,
) -> Result<(), SqliteError> {
    for step in steps {
        let (ticket, kind) = (&step.ticket, event_of(step.kind));
        append(connection, call, ticket, kind, None, json!(ticket.id), Object::new())?;
        if step.kind == StepKind::Ready {
            signals.push(TicketSignal::Ready(call.account));
        }
    }
    Ok(())
}

/// Writes an event of a ticket.
pub(super) fn append(
    connection: &Connection,
    call: &TicketCall,
    ticket: &Ticket,
    kind: EventKind,
    assignee: Option<&str>,
    subject: Value,
    changes: Object,
) -> Result<(), SqliteError> {
    let vm = match &ticket.state {
        State::Pending { lapsed } => lapsed.as_ref().and_then(|lapsed| lapsed.vm),
        _ => ticket.vm(),
    };
    let actor = Actor { key: call.key, assignee: assignee.map(str::to_owned), vm: assignee.and(vm) };
    let body = json!({ "ticket": subject, "actor": actor, "changes": changes, "attempt": ticket.attempt });
    let event =
        NewEvent { account: call.account, kind, body, at: call.at, request_id: call.request_id.as_deref() };
    events::append_for_ticket(connection, &ticket.id.to_string(), &event)
}

fn event_of(kind: StepKind) -> EventKind {
    match kind {
        StepKind::Ready => EventKind::TicketReady,
        StepKind::Claimed => EventKind::TicketClaimed,
        StepKind::Released | StepKind::Expired(skep_tickets::EndCause::VmDeleted) => {
            EventKind::TicketReleased
        }
        StepKind::Expired(_) => EventKind::TicketLeaseExpired,
        StepKind::Completed => EventKind::TicketCompleted,
        StepKind::Failed => EventKind::TicketFailed,
        StepKind::Reopened => EventKind::TicketReopened,
    }
}

/// Old and new value of each field of the record that differs.
fn differences(before: &Ticket, after: &Ticket) -> Object {
    let (old, new) = (tracked_fields(before), tracked_fields(after));
    let changed = old.into_iter().zip(new).filter(|((_, old), (_, new))| old != new);
    changed.map(|((name, old), (_, new))| (name.to_owned(), json!([old, new]))).collect()
}

fn tracked_fields(ticket: &Ticket) -> [(&'static str, Value); 8] {
    let finish = ticket.finish();
    [
        ("status", json!(ticket.status())),
        ("assignee", json!(ticket.assignee())),
        ("vm", json!(ticket.vm())),
        ("attempt", json!(ticket.attempt)),
        ("result", json!(finish.and_then(|finish| finish.result.as_ref()))),
        ("not_before", time_value(ticket.wait.time())),
        ("started_at", time_value(ticket.started_at)),
        ("finished_at", time_value(finish.map(|finish| finish.at))),
    ]
}

/// Formats a time as in a record.
pub(super) fn time_value(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, |at| Value::String(format!("{at:.3}")))
}

/// Inserts or ends the attempt that a step concerns.
fn record_attempt(
    connection: &Connection,
    call: &TicketCall,
    before: &Ticket,
    step: &Step,
) -> Result<(), SqliteError> {
    let after = &step.ticket;
    let (id, attempt) = (after.id.to_string(), after.attempt);
    if step.kind == StepKind::Claimed {
        let sql = "INSERT INTO ticket_attempts (ticket, attempt, account, assignee, vm, claimed_at)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let vm = after.vm().map(|vm| vm.to_string());
        execute(
            connection,
            sql,
            params![id, attempt, call.account.to_string(), after.assignee(), vm, millis(call.at)],
        )?;
        return Ok(());
    }
    let Some(outcome) = step.kind.ends() else { return Ok(()) };
    // Failing a ticket that is not in progress ends no attempt.
    let held = matches!(before.state, State::InProgress(_)) || after.assignee().is_some();
    if held {
        let result =
            after.finish().and_then(|finish| finish.result.as_ref()).map(columns::to_json).transpose()?;
        let sql = "UPDATE ticket_attempts SET ended_at = ?3, outcome = ?4, result = ?5
                   WHERE ticket = ?1 AND attempt = ?2";
        execute(connection, sql, params![id, attempt, millis(call.at), outcome.as_str(), result])?;
    }
    Ok(())
}

/// Whether claims select the ticket; must match the generated column `stage`.
pub(super) fn is_claimable(ticket: &Ticket) -> bool {
    matches!(ticket.state, State::Pending { .. })
        && ticket.blockers.total == 0
        && !matches!(ticket.wait, Wait::Until(_))
}

fn write_result(connection: &Connection, before: &Ticket, after: &Ticket) -> Result<(), SqliteError> {
    let (old, new) = (before.finish(), after.finish());
    if old.is_none() && new.is_none() {
        return Ok(());
    }
    let result = new.and_then(|finish| finish.result.as_ref()).map(columns::to_json).transpose()?;
    let sql = "UPDATE ticket_texts SET result = ?2 WHERE ticket = ?1";
    execute(connection, sql, params![after.id.to_string(), result])?;
    Ok(())
}

/// Adds the signals of a change.
fn push_signals(before: &Row, after: &Row, steps: &[Step], at: Timestamp, signals: &mut Vec<TicketSignal>) {
    let ticket = &after.ticket;
    match &ticket.state {
        State::InProgress(_) => signals.extend(held_signal(after)),
        _ if matches!(before.ticket.state, State::InProgress(_)) => {
            signals.push(TicketSignal::NotHeld(ticket.id))
        }
        _ => {}
    }
    if let Wait::Until(not_before) = ticket.wait
        && ticket.wait != before.ticket.wait
    {
        // A back-off set by a step is a duration; a `not_before` set by a caller is wall-clock time.
        let is_backoff = !steps.is_empty();
        let backoff =
            is_backoff.then(|| Duration::try_from(not_before.duration_since(at)).unwrap_or_default());
        signals.push(TicketSignal::Waiting(WaitingTicket { ticket: ticket.id, not_before, backoff }));
    }
    if steps.iter().any(|step| step.kind == StepKind::Ready) {
        signals.push(TicketSignal::Ready(after.account));
    }
}

/// Adds the signal to end the VM that held the attempt, unless the VM is to be kept or has ended.
pub(super) fn signal_end_of_vm(
    connection: &Connection,
    before: &Row,
    finished: bool,
    signals: &mut Vec<TicketSignal>,
) -> Result<(), SqliteError> {
    if let State::InProgress(holder) = &before.ticket.state
        && let Some(vm) = holder.vm
        && vms::ends_with_attempt(connection, vm, before.ticket.id)?
    {
        let account = before.account;
        signals.push(TicketSignal::VmWithoutAttempt(VmWithoutAttempt { account, vm, finished }));
    }
    Ok(())
}

/// The signal of a ticket that is in progress.
pub(super) fn held_signal(row: &Row) -> Option<TicketSignal> {
    let State::InProgress(holder) = &row.ticket.state else { return None };
    Some(TicketSignal::Held(OpenAttempt {
        ticket: row.ticket.id,
        attempt: row.ticket.attempt,
        beats: row.beats,
        lease: holder.lease.length,
        max_runtime: Duration::from_millis(row.fields.max_runtime_ms),
    }))
}

/// Updates the dependent tickets after a step. The number of statements does not depend on the number of dependents.
fn update_dependents(
    connection: &Connection,
    call: &TicketCall,
    step: &Step,
    signals: &mut Vec<TicketSignal>,
) -> Result<(), SqliteError> {
    let finished = matches!(step.kind, StepKind::Completed | StepKind::Failed);
    if !finished || !dependencies::has_dependents(connection, step.ticket.id)? {
        return Ok(());
    }
    let id = step.ticket.id.to_string();
    let (kind, condition) = match step.kind {
        StepKind::Completed => {
            let sql = "UPDATE tickets SET unmet = unmet - 1,
                           ready_at = CASE WHEN unmet = 1 AND waiting = 0 AND status = 'pending' THEN ?2 END
                       WHERE id IN (SELECT dependent FROM ticket_dependencies WHERE prerequisite = ?1)";
            execute(connection, sql, params![id, millis(call.at)])?;
            // Those that are claimable now became so by this step, because this ticket blocked all of them.
            (EventKind::TicketReady, "t.stage = 1")
        }
        StepKind::Failed => (EventKind::TicketBlocked, "t.status = 'pending'"),
        _ => return Ok(()),
    };
    let sql = format!(
        "INSERT INTO events (epoch, account, type, body, at, request_id, ticket)
         SELECT (SELECT value FROM meta WHERE name = 'epoch'), t.account, :type,
                json_object('ticket', t.id, 'actor', json(:actor), 'changes', json('{{}}'), 'attempt', t.attempt),
                :at, :request_id, t.id
         FROM ticket_dependencies AS d JOIN tickets AS t ON t.id = d.dependent
         WHERE d.prerequisite = :id AND {condition} ORDER BY d.dependent"
    );
    let actor = Actor { key: call.key, assignee: step.assignee.clone(), vm: step.ticket.vm() };
    let announced = execute(
        connection,
        &sql,
        named_params! {
            ":type": kind.as_str(),
            ":actor": columns::to_json(&actor)?,
            ":at": millis(call.at),
            ":request_id": call.request_id,
            ":id": id,
        },
    )?;
    if announced > 0 && kind == EventKind::TicketReady {
        signals.push(TicketSignal::Ready(call.account));
    }
    Ok(())
}
