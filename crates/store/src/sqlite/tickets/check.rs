//! Whether what is counted is what is there.

use rusqlite::Connection;

use super::super::{columns::one, fault::Fault};

/// A ticket whose counter of open dependencies is not their number, in words.
pub(in super::super) fn counters(connection: &Connection) -> Result<Option<String>, Fault> {
    let sql = "SELECT id, unmet, truth FROM (
                   SELECT t.id, t.unmet, (
                       SELECT count(*) FROM ticket_dependencies AS d JOIN tickets AS p ON p.id = d.prerequisite
                       WHERE d.dependent = t.id AND p.status <> 'completed'
                   ) AS truth FROM tickets AS t
               ) WHERE unmet <> truth LIMIT 1";
    one(connection, sql, [], |row| {
        let (id, counted, truth) =
            (row.plain::<String>("id")?, row.plain::<i64>("unmet")?, row.plain::<i64>("truth")?);
        Ok(format!("ticket `{id}` counts {counted} open dependencies and has {truth}"))
    })
}
