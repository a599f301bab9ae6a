//! Consistency checks of counters and indexes that triggers maintain.

use rusqlite::Connection;

use super::super::{columns::query_optional, error::SqliteError};

/// Describes a ticket whose entries in the label index differ from its labels, if there is one.
pub(in super::super) fn check_label_index(connection: &Connection) -> Result<Option<String>, SqliteError> {
    let sql = "WITH truth AS (
                   SELECT t.account, l.value AS label, t.stage, t.priority, t.id AS ticket, t.status, t.updated_at
                   FROM tickets AS t, json_each(t.labels) AS l
               ), found AS (SELECT account, label, stage, priority, ticket, status, updated_at FROM ticket_labels)
               SELECT ticket, label FROM (SELECT * FROM truth EXCEPT SELECT * FROM found)
               UNION ALL
               SELECT ticket, label FROM (SELECT * FROM found EXCEPT SELECT * FROM truth)
               LIMIT 1";
    query_optional(connection, sql, [], |row| {
        let (ticket, label) = (row.get::<String>("ticket")?, row.get::<String>("label")?);
        Ok(format!("ticket `{ticket}` is not in the index of label `{label}` as in its record"))
    })
}

/// Describes a ticket whose counter of unfinished dependencies is wrong, if there is one.
pub(in super::super) fn check_dependency_counters(
    connection: &Connection,
) -> Result<Option<String>, SqliteError> {
    let sql = "SELECT id, unmet, truth FROM (
                   SELECT t.id, t.unmet, (
                       SELECT count(*) FROM ticket_dependencies AS d JOIN tickets AS p ON p.id = d.prerequisite
                       WHERE d.dependent = t.id AND p.status <> 'completed'
                   ) AS truth FROM tickets AS t
               ) WHERE unmet <> truth LIMIT 1";
    query_optional(connection, sql, [], |row| {
        let (id, counted, truth) =
            (row.get::<String>("id")?, row.get::<i64>("unmet")?, row.get::<i64>("truth")?);
        Ok(format!("ticket `{id}` counts {counted} open dependencies and has {truth}"))
    })
}

/// Names an account whose ticket counts are wrong, or with a ticket whose `ready_at` does not match its stage, if there
/// is one.
pub(in super::super) fn check_state_counts(connection: &Connection) -> Result<Option<String>, SqliteError> {
    let sql = "SELECT account FROM (
                   SELECT account, stage, count(*) AS tickets FROM tickets GROUP BY account, stage
                   EXCEPT SELECT account, stage, tickets FROM ticket_counts)
               UNION ALL
               SELECT account FROM (
                   SELECT account, stage, tickets FROM ticket_counts WHERE tickets <> 0
                   EXCEPT SELECT account, stage, count(*) FROM tickets GROUP BY account, stage)
               UNION ALL
               SELECT account FROM tickets WHERE (stage = 1) <> (ready_at IS NOT NULL)
               LIMIT 1";
    query_optional(connection, sql, [], |row| {
        let account = row.get::<String>("account")?;
        Ok(format!("the ticket counts of account `{account}` are not those of its tickets"))
    })
}
