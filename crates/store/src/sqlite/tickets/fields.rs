//! The fields of a ticket that callers set and that no transition rule depends on, and the record that callers read.
//! Each field is listed once, with its type. Its name is that of the column, and of the field of [`NewTicket`] and [`Edits`].

use std::sync::LazyLock;

use jiff::Timestamp;
use rusqlite::{Connection, params_from_iter, types::ToSqlOutput};
use serde_json::json;
use skep_api::{
    Label, TicketId,
    tickets::{Object, Priority, Ticket as Record, TicketStatus, TicketSummary},
};
use skep_tickets::{Edits, NewTicket, limits};

use super::{
    super::{
        columns::{Columns, execute, invalid_column, query_optional},
        error::SqliteError,
        table::{ColumnSet, ColumnValue, column_set, insert_sql, select_sql, update_sql},
    },
    dependencies,
    row::Row,
    row_columns::{IdentityColumns, StateColumns},
};

/// Defines a struct of fields that are taken from [`NewTicket`] and changed by [`Edits`].
macro_rules! caller_fields {
    ($(#[$attribute:meta])* struct $name:ident { $($field:ident: $type:ty,)+ }) => {
        column_set! {
            $(#[$attribute])*
            #[derive(Debug, Clone)]
            struct $name { $($field: $type,)+ }
        }

        impl $name {
            pub(super) fn of(new: &NewTicket) -> Self {
                Self { $($field: new.$field.clone(),)+ }
            }

            /// Applies edits, and adds the old and the new value of each field that changes.
            pub(super) fn edit(&mut self, edits: &Edits, changes: &mut Object) {
                $(if let Some(new) = &edits.$field && *new != self.$field {
                    changes.insert(stringify!($field).to_owned(), json!([self.$field, new]));
                    self.$field.clone_from(new);
                })+
            }
        }
    };
}

caller_fields! {
    /// Fields in the table `tickets`.
    struct Fields {
        title: String,
        priority: Priority,
        labels: Vec<Label>,
        max_runtime_ms: u64,
    }
}

caller_fields! {
    /// Fields of any size, in the table `ticket_texts`, which claims do not read.
    struct Texts {
        description: Option<String>,
        metadata: Option<Object>,
    }
}

/// Converts a row to the record that callers read.
pub(super) fn record(connection: &Connection, row: Row, at: Timestamp) -> Result<Record, SqliteError> {
    let texts = Texts::find(connection, row.ticket.id)?;
    let result = row.ticket.finish().and_then(|finish| finish.result.clone());
    let (identity, state) = (IdentityColumns::of(&row), StateColumns::of(&row));
    let summary = summary(connection, identity, state, row.fields, at)?;
    Ok(summary.into_record(texts.description, result, texts.metadata))
}

/// The fields that callers read, without those of any size.
pub(super) fn summary(
    connection: &Connection,
    identity: IdentityColumns,
    state: StateColumns,
    fields: Fields,
    at: Timestamp,
) -> Result<TicketSummary, SqliteError> {
    let id = identity.id;
    let blocked_by = match state.unmet {
        0 => Vec::new(),
        _ => dependencies::blockers(connection, id, limits::MAX_DEPENDENCIES)?,
    };
    let is_over = !state.waiting || state.not_before.is_none_or(|not_before| not_before <= at);
    Ok(TicketSummary {
        id,
        title: fields.title,
        priority: fields.priority,
        dependencies: dependencies::of(connection, id)?,
        status: state.status,
        assignee: state.assignee,
        ready: state.status == TicketStatus::Pending && state.unmet == 0 && is_over,
        blocked_by,
        attempt: state.attempt,
        max_attempts: state.max_attempts,
        lease_expires_at: state.lease_expires_at,
        max_runtime_ms: fields.max_runtime_ms,
        not_before: state.not_before,
        progress: state.progress,
        vm: state.vm,
        labels: fields.labels,
        version: state.version,
        created_at: identity.created_at,
        updated_at: state.updated_at,
        started_at: state.started_at,
        finished_at: state.finished_at,
    })
}

impl Texts {
    fn find(connection: &Connection, ticket: TicketId) -> Result<Self, SqliteError> {
        static SELECT: LazyLock<String> =
            LazyLock::new(|| select_sql("ticket_texts", &[Texts::columns()]) + " WHERE ticket = ?");
        let found = query_optional(connection, &SELECT, [ticket.to_string()], Self::read)?;
        found.ok_or_else(|| invalid_column("ticket_texts", format!("`{ticket}` has none")))
    }

    pub(super) fn insert(&self, connection: &Connection, ticket: TicketId) -> Result<(), SqliteError> {
        static INSERT: LazyLock<String> =
            LazyLock::new(|| insert_sql("ticket_texts", &[Texts::columns(), vec!["ticket"]]));
        let mut values = self.bind()?;
        values.push(ticket.bind()?);
        execute(connection, &INSERT, params_from_iter(values))?;
        Ok(())
    }

    /// Applies edits to the stored texts, and adds the old and the new value of each text that changes.
    pub(super) fn update(
        connection: &Connection,
        ticket: TicketId,
        edits: &Edits,
        changes: &mut Object,
    ) -> Result<(), SqliteError> {
        static UPDATE: LazyLock<String> =
            LazyLock::new(|| update_sql("ticket_texts", &[Texts::columns()]) + " WHERE ticket = ?");
        let mut texts = Self::find(connection, ticket)?;
        let others = changes.len();
        texts.edit(edits, changes);
        if changes.len() == others {
            return Ok(());
        }
        let mut values = texts.bind()?;
        values.push(ticket.bind()?);
        execute(connection, &UPDATE, params_from_iter(values))?;
        Ok(())
    }
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

impl ColumnValue for Priority {
    fn bind(&self) -> Result<ToSqlOutput<'_>, SqliteError> {
        Ok(ToSqlOutput::from(rank(*self)))
    }

    fn read(row: &Columns<'_>, column: &str) -> Result<Self, SqliteError> {
        let stored: i64 = row.get(column)?;
        let found = Self::ALL.iter().copied().find(|priority| rank(*priority) == stored);
        found.ok_or_else(|| invalid_column(column, format!("unknown value {stored}")))
    }
}
