//! Reading of ticket rows, and their conversion to API records.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, params};
use skep_api::{
    AccountId, Label, TicketId, VmId,
    budget::{estimated_memory, json_len},
    tickets::{Blocker, Object, Priority, Ticket as Record, TicketStatus, Why},
};
use skep_tickets::{Blockers, Finish, Holder, LapsedHolder, Lease, State, Ticket, Wait, limits};

use super::{
    super::{
        columns::{self, Columns, invalid_column, query_all, query_optional},
        fault::Fault,
    },
    dependencies,
};
use crate::{Error, TicketCall};

/// A stored ticket.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// State for the transition rules. At most [`limits::MAX_NAMED_TICKETS`] of the blockers are named.
    pub(super) ticket: Ticket,
    pub(super) account: AccountId,
    pub(super) title: String,
    pub(super) priority: Priority,
    pub(super) labels: Vec<Label>,
    pub(super) max_runtime: Duration,
    pub(super) beats: u64,
    pub(super) progress: Option<String>,
    pub(super) version: u64,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

pub(in super::super) fn read(
    connection: &Connection,
    account: AccountId,
    id: TicketId,
    at: Timestamp,
) -> Result<Record, Fault> {
    let row = of_account(connection, account, id)?;
    record(connection, row, at)
}

/// Returns the record of a ticket that a VM may read: one that it holds or held, or a direct dependency of such a
/// ticket.
pub(in super::super) fn read_of_vm(
    connection: &Connection,
    account: AccountId,
    vm: VmId,
    id: TicketId,
    at: Timestamp,
) -> Result<Record, Fault> {
    let row = of_account(connection, account, id)?;
    let sql = "SELECT 1 FROM ticket_attempts WHERE ticket = ?1 AND vm = ?2
               UNION ALL
               SELECT 1 FROM ticket_dependencies AS d JOIN ticket_attempts AS a ON a.ticket = d.dependent
               WHERE d.prerequisite = ?1 AND a.vm = ?2
               LIMIT 1";
    let known = query_optional(connection, sql, [id.to_string(), vm.to_string()], |_| Ok(()))?;
    known.ok_or_else(|| unknown(id))?;
    record(connection, row, at)
}

/// Returns why a ticket is not ready or not progressing.
pub(in super::super) fn why(
    connection: &Connection,
    account: AccountId,
    id: TicketId,
    at: Timestamp,
) -> Result<Why, Fault> {
    let mut row = of_account(connection, account, id)?;
    row.ticket.blockers.named = dependencies::blockers(connection, id, limits::MAX_DEPENDENCIES)?;
    Ok(skep_tickets::why(&row.ticket, at))
}

/// Returns a ticket that the caller may act on. For a key that is bound to a VM, that is a ticket that the VM holds or
/// held.
pub(super) fn find_for_caller(
    connection: &Connection,
    call: &TicketCall,
    id: TicketId,
) -> Result<Row, Fault> {
    let row = of_account(connection, call.account, id)?;
    if let Some(vm) = call.vm {
        let sql = "SELECT 1 FROM ticket_attempts WHERE ticket = ?1 AND vm = ?2 LIMIT 1";
        let own = query_optional(connection, sql, [id.to_string(), vm.to_string()], |_| Ok(()))?;
        own.ok_or_else(|| unknown(id))?;
    }
    Ok(row)
}

pub(super) fn of_account(connection: &Connection, account: AccountId, id: TicketId) -> Result<Row, Fault> {
    find(connection, id)?.filter(|row| row.account == account).ok_or_else(|| unknown(id))
}

pub(super) fn unknown(id: TicketId) -> Fault {
    Error::UnknownTicket { id: id.to_string() }.into()
}

/// A ticket of any account.
pub(super) fn find(connection: &Connection, id: TicketId) -> Result<Option<Row>, Fault> {
    let found = query_optional(connection, "SELECT * FROM tickets WHERE id = ?1", [id.to_string()], |row| {
        decode(connection, row)
    })?;
    let Some(mut row) = found else { return Ok(None) };
    if row.ticket.blockers.total > 0 {
        row.ticket.blockers.named = dependencies::blockers(connection, id, limits::MAX_NAMED_TICKETS)?;
    }
    Ok(Some(row))
}

/// Fails unless the version of the ticket is one of the expected ones.
pub(super) fn check_version(row: &Row, expected: Option<&[u64]>) -> Result<(), Fault> {
    match expected {
        Some(expected) if !expected.contains(&row.version) => {
            Err(Error::VersionStale { id: row.ticket.id, version: row.version }.into())
        }
        _ => Ok(()),
    }
}

/// Converts a row to the API record.
pub(super) fn record(connection: &Connection, row: Row, at: Timestamp) -> Result<Record, Fault> {
    let id = row.ticket.id;
    let ready = row.ticket.is_ready(at);
    let (status, vm) = (row.ticket.status(), row.ticket.vm());
    let assignee = row.ticket.assignee().map(str::to_owned);
    let blocked_by = match row.ticket.blockers.total {
        0 => Vec::new(),
        _ => dependencies::blockers(connection, id, limits::MAX_DEPENDENCIES)?,
    };
    let lease_expires_at = match &row.ticket.state {
        State::InProgress(holder) => Some(holder.lease.expires_at),
        _ => None,
    };
    let sql = "SELECT description, metadata FROM ticket_texts WHERE ticket = ?1";
    let texts = query_optional(connection, sql, [id.to_string()], |row| {
        Ok((row.get::<Option<String>>("description")?, object(row, "metadata")?))
    })?;
    let (description, metadata) =
        texts.ok_or_else(|| invalid_column("ticket_texts", format!("`{id}` has none")))?;
    let finish = row.ticket.finish();
    Ok(Record {
        id,
        title: row.title,
        description,
        priority: row.priority,
        dependencies: dependencies::of(connection, id)?,
        status,
        assignee,
        result: finish.and_then(|finish| finish.result.clone()),
        ready,
        blocked_by,
        attempt: row.ticket.attempt,
        max_attempts: row.ticket.max_attempts,
        lease_expires_at,
        max_runtime_ms: milliseconds(row.max_runtime),
        not_before: row.ticket.wait.time(),
        progress: row.progress,
        vm,
        labels: row.labels,
        metadata,
        version: row.version,
        created_at: row.created_at,
        updated_at: row.updated_at,
        started_at: row.ticket.started_at,
        finished_at: finish.map(|finish| finish.at),
    })
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Encodes a priority; the most urgent one is the least.
pub(super) fn rank(priority: Priority) -> i64 {
    match priority {
        Priority::Critical => 0,
        Priority::High => 1,
        Priority::Medium => 2,
        Priority::Low => 3,
    }
}

fn priority_of_rank(rank: i64) -> Result<Priority, Fault> {
    let found = Priority::ALL.iter().copied().find(|priority| self::rank(*priority) == rank);
    found.ok_or_else(|| invalid_column("priority", format!("unknown value {rank}")))
}

/// Decodes a nullable JSON object.
pub(super) fn object(row: &Columns<'_>, column: &str) -> Result<Option<Object>, Fault> {
    let text = row.get::<Option<String>>(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| invalid_column(column, error))).transpose()
}

pub(super) fn labels(row: &Columns<'_>) -> Result<Vec<Label>, Fault> {
    let text = row.get::<Option<String>>("labels")?;
    let labels =
        text.map(|text| serde_json::from_str(&text).map_err(|error| invalid_column("labels", error)));
    Ok(labels.transpose()?.unwrap_or_default())
}

/// Encodes labels; no labels are null.
pub(super) fn labels_column(labels: &[Label]) -> Result<Option<String>, Fault> {
    (!labels.is_empty()).then(|| columns::to_json(&labels)).transpose()
}

fn decode(connection: &Connection, row: &Columns<'_>) -> Result<Row, Fault> {
    let (id, account, title) = (row.parse::<TicketId>("id")?, row.parse("account")?, row.get("title")?);
    let (priority, labels) = (priority_of_rank(row.get("priority")?)?, self::labels(row)?);
    let state = state(connection, id, row)?;
    let (attempt, counted, max_attempts) =
        (row.number("attempt")?, row.number("counted")?, row.number("max_attempts")?);
    let max_runtime = Duration::from_millis(row.number("max_runtime_ms")?);
    let (beats, progress) = (row.number("beats")?, row.get("progress")?);
    let wait = match (row.optional_time("not_before")?, row.get::<bool>("waiting")?) {
        (None, _) => Wait::None,
        (Some(at), true) => Wait::Until(at),
        (Some(at), false) => Wait::Passed(at),
    };
    let blockers = Blockers { total: row.number("unmet")?, named: Vec::new() };
    let version = row.number("version")?;
    let (created_at, updated_at) = (row.time("created_at")?, row.time("updated_at")?);
    let started_at = row.optional_time("started_at")?;
    let ticket =
        Ticket { id, attempt, counted_attempts: counted, max_attempts, wait, blockers, started_at, state };
    Ok(Row {
        ticket,
        account,
        title,
        priority,
        labels,
        max_runtime,
        beats,
        progress,
        version,
        created_at,
        updated_at,
    })
}

fn state(connection: &Connection, id: TicketId, row: &Columns<'_>) -> Result<State, Fault> {
    let missing = |column: &str| invalid_column(column, format!("`{id}` has none"));
    let status = row.parse::<TicketStatus>("status")?;
    match status {
        TicketStatus::Pending => {
            let lapsed = match row.get::<Option<String>>("lapsed_assignee")? {
                Some(assignee) => Some(LapsedHolder { assignee, vm: row.parse_optional("lapsed_vm")? }),
                None => None,
            };
            Ok(State::Pending { lapsed })
        }
        TicketStatus::InProgress => {
            let (assignee, vm) = (row.get::<Option<String>>("assignee")?, row.parse_optional("vm")?);
            let lease = Lease {
                length: Duration::from_millis(row.number("lease_ms")?),
                expires_at: row.time("lease_expires_at")?,
            };
            Ok(State::InProgress(Holder {
                assignee: assignee.ok_or_else(|| missing("assignee"))?,
                vm,
                lease,
            }))
        }
        TicketStatus::Completed | TicketStatus::Failed => {
            let sql = "SELECT result FROM ticket_texts WHERE ticket = ?1";
            let result =
                query_optional(connection, sql, [id.to_string()], |row| object(row, "result"))?.flatten();
            let (assignee, vm) = (row.get("assignee")?, row.parse_optional("vm")?);
            let at = row.optional_time("finished_at")?.ok_or_else(|| missing("finished_at"))?;
            let finish = Finish { assignee, vm, result, at };
            Ok(if status == TicketStatus::Completed {
                State::Completed(finish)
            } else {
                State::Failed(finish)
            })
        }
    }
}

/// Returns the tickets of a query that selects `id` and `status`.
pub(super) fn blockers(
    connection: &Connection,
    sql: &str,
    id: TicketId,
    limit: usize,
) -> Result<Vec<Blocker>, Fault> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    query_all(connection, sql, params![id.to_string(), limit], |row| {
        Ok(Blocker { id: row.parse("id")?, status: row.parse("status")? })
    })
}

/// Size of a record in an answer, in bytes: its JSON plus the memory of its objects.
pub(super) fn size_bytes(ticket: &Record) -> usize {
    let objects = [&ticket.metadata, &ticket.result].into_iter().flatten();
    json_len(ticket) + objects.flat_map(Object::values).map(estimated_memory).sum::<usize>()
}
