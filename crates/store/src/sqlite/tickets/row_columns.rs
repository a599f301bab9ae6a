//! The columns of the table `tickets`: the state of a ticket, one value each, and the fields that callers set.

use std::{sync::LazyLock, time::Duration};

use jiff::Timestamp;
use rusqlite::{Connection, params_from_iter};
use skep_api::{AccountId, TicketId, VmId, tickets::TicketStatus};
use skep_tickets::{Blockers, Finish, Holder, LapsedHolder, Lease, State, Ticket, Wait};

use super::{
    super::{
        columns::{Columns, execute, invalid_column, query_optional},
        error::SqliteError,
        table::{ColumnSet, ColumnValue, column_set, insert_sql, select_sql, update_sql},
    },
    fields::Fields,
    row::{Row, milliseconds, object},
};

column_set! {
    /// Columns that never change.
    struct IdentityColumns {
        id: TicketId,
        account: AccountId,
        created_at: Timestamp,
    }
}

column_set! {
    /// Columns that transitions and the server change.
    struct StateColumns {
        status: TicketStatus,
        assignee: Option<String>,
        vm: Option<VmId>,
        attempt: u32,
        counted: u32,
        max_attempts: u32,
        lease_ms: Option<u64>,
        lease_expires_at: Option<Timestamp>,
        beats: u64,
        progress: Option<String>,
        lapsed_assignee: Option<String>,
        lapsed_vm: Option<VmId>,
        not_before: Option<Timestamp>,
        waiting: bool,
        unmet: u32,
        version: u64,
        updated_at: Timestamp,
        started_at: Option<Timestamp>,
        finished_at: Option<Timestamp>,
        ready_at: Option<Timestamp>,
    }
}

pub(super) fn insert(connection: &Connection, row: &Row) -> Result<(), SqliteError> {
    static INSERT: LazyLock<String> = LazyLock::new(|| {
        insert_sql("tickets", &[IdentityColumns::columns(), StateColumns::columns(), Fields::columns()])
    });
    let (identity, state) = (IdentityColumns::of(row), StateColumns::of(row));
    let mut values = identity.bind()?;
    values.extend(state.bind()?);
    values.extend(row.fields.bind()?);
    execute(connection, &INSERT, params_from_iter(values))?;
    Ok(())
}

/// Writes a changed row. Fails if it is not as it was read, although this transaction holds the write lock.
pub(super) fn update(connection: &Connection, before: &Row, after: &Row) -> Result<(), SqliteError> {
    static UPDATE: LazyLock<String> = LazyLock::new(|| {
        update_sql("tickets", &[StateColumns::columns(), Fields::columns()])
            + " WHERE id = ? AND status = ? AND attempt = ? AND version = ?"
    });
    let state = StateColumns::of(after);
    let mut values = state.bind()?;
    values.extend(after.fields.bind()?);
    let Ticket { id, attempt, .. } = &before.ticket;
    let status = before.ticket.status();
    values.extend([id.bind()?, status.bind()?, attempt.bind()?, before.version.bind()?]);
    if execute(connection, &UPDATE, params_from_iter(values))? == 1 {
        return Ok(());
    }
    Err(SqliteError::Internal(crate::Cause::new(format!("ticket `{id}` changed under the writer"))))
}

/// A ticket of any account. Its blockers are counted, but not named.
pub(super) fn find(connection: &Connection, id: TicketId) -> Result<Option<Row>, SqliteError> {
    static SELECT: LazyLock<String> = LazyLock::new(|| {
        let columns = [IdentityColumns::columns(), StateColumns::columns(), Fields::columns()];
        select_sql("tickets", &columns) + " WHERE id = ?"
    });
    query_optional(connection, &SELECT, [id.to_string()], |row| read(connection, row))
}

fn read(connection: &Connection, row: &Columns<'_>) -> Result<Row, SqliteError> {
    let identity = IdentityColumns::read(row)?;
    let columns = StateColumns::read(row)?;
    let ticket = Ticket {
        id: identity.id,
        attempt: columns.attempt,
        counted_attempts: columns.counted,
        max_attempts: columns.max_attempts,
        wait: match (columns.not_before, columns.waiting) {
            (None, _) => Wait::None,
            (Some(at), true) => Wait::Until(at),
            (Some(at), false) => Wait::Passed(at),
        },
        blockers: Blockers { total: columns.unmet, named: Vec::new() },
        started_at: columns.started_at,
        state: columns.state(connection, identity.id)?,
    };
    Ok(Row {
        ticket,
        account: identity.account,
        fields: Fields::read(row)?,
        beats: columns.beats,
        progress: columns.progress,
        version: columns.version,
        ready_at: columns.ready_at,
        created_at: identity.created_at,
        updated_at: columns.updated_at,
    })
}

impl IdentityColumns {
    pub(super) fn of(row: &Row) -> Self {
        Self { id: row.ticket.id, account: row.account, created_at: row.created_at }
    }
}

impl StateColumns {
    pub(super) fn of(row: &Row) -> Self {
        let ticket = &row.ticket;
        let (holder, lapsed) = match &ticket.state {
            State::InProgress(holder) => (Some(holder), None),
            State::Pending { lapsed } => (None, lapsed.as_ref()),
            State::Completed(_) | State::Failed(_) => (None, None),
        };
        Self {
            status: ticket.status(),
            assignee: ticket.assignee().map(str::to_owned),
            vm: ticket.vm(),
            attempt: ticket.attempt,
            counted: ticket.counted_attempts,
            max_attempts: ticket.max_attempts,
            lease_ms: holder.map(|holder| milliseconds(holder.lease.length)),
            lease_expires_at: holder.map(|holder| holder.lease.expires_at),
            beats: row.beats,
            progress: row.progress.clone(),
            lapsed_assignee: lapsed.map(|lapsed| lapsed.assignee.clone()),
            lapsed_vm: lapsed.and_then(|lapsed| lapsed.vm),
            not_before: ticket.wait.time(),
            waiting: matches!(ticket.wait, Wait::Until(_)),
            unmet: ticket.blockers.total,
            version: row.version,
            updated_at: row.updated_at,
            started_at: ticket.started_at,
            finished_at: ticket.finish().map(|finish| finish.at),
            ready_at: row.ready_at,
        }
    }

    fn state(&self, connection: &Connection, id: TicketId) -> Result<State, SqliteError> {
        let missing = |column: &str| invalid_column(column, format!("`{id}` has none"));
        match self.status {
            TicketStatus::Pending => {
                let lapsed = self.lapsed_assignee.clone();
                let lapsed = lapsed.map(|assignee| LapsedHolder { assignee, vm: self.lapsed_vm });
                Ok(State::Pending { lapsed })
            }
            TicketStatus::InProgress => Ok(State::InProgress(Holder {
                assignee: self.assignee.clone().ok_or_else(|| missing("assignee"))?,
                vm: self.vm,
                lease: Lease {
                    length: Duration::from_millis(self.lease_ms.ok_or_else(|| missing("lease_ms"))?),
                    expires_at: self.lease_expires_at.ok_or_else(|| missing("lease_expires_at"))?,
                },
            })),
            TicketStatus::Completed => Ok(State::Completed(self.finish(connection, id)?)),
            TicketStatus::Failed => Ok(State::Failed(self.finish(connection, id)?)),
        }
    }

    fn finish(&self, connection: &Connection, id: TicketId) -> Result<Finish, SqliteError> {
        let sql = "SELECT result FROM ticket_texts WHERE ticket = ?1";
        let result =
            query_optional(connection, sql, [id.to_string()], |row| object(row, "result"))?.flatten();
        let at = self.finished_at.ok_or_else(|| invalid_column("finished_at", format!("`{id}` has none")))?;
        Ok(Finish { assignee: self.assignee.clone(), vm: self.vm, result, at })
    }
}
