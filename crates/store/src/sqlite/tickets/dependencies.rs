//! Dependencies between tickets.

use rusqlite::{Connection, params};
use skep_api::{
    AccountId, TicketId,
    tickets::{Blocker, TicketStatus},
};
use skep_tickets::{Blockers, find_cycle, limits};

use super::{
    super::{
        columns::{execute, query_all, query_optional},
        error::SqliteError,
    },
    row,
};
use crate::Error;

/// Returns the dependencies of a ticket, in the order in which they were given.
pub(super) fn of(connection: &Connection, id: TicketId) -> Result<Vec<TicketId>, SqliteError> {
    let sql = "SELECT prerequisite FROM ticket_dependencies WHERE dependent = ?1 ORDER BY position";
    query_all(connection, sql, [id.to_string()], |row| row.parse("prerequisite"))
}

/// Whether any ticket depends on this one.
pub(super) fn has_dependents(connection: &Connection, id: TicketId) -> Result<bool, SqliteError> {
    let sql = "SELECT 1 FROM ticket_dependencies WHERE prerequisite = ?1 LIMIT 1";
    Ok(query_optional(connection, sql, [id.to_string()], |_| Ok(()))?.is_some())
}

/// Returns the dependencies of a ticket that are not completed.
pub(super) fn blockers(
    connection: &Connection,
    id: TicketId,
    limit: usize,
) -> Result<Vec<Blocker>, SqliteError> {
    let sql = "SELECT p.id, p.status FROM ticket_dependencies AS d JOIN tickets AS p ON p.id = d.prerequisite
               WHERE d.dependent = ?1 AND p.status <> 'completed' ORDER BY d.position LIMIT ?2";
    row::blockers(connection, sql, id, limit)
}

/// Returns the status of a ticket that is to become a dependency.
pub(super) fn status_of(
    connection: &Connection,
    account: AccountId,
    id: TicketId,
) -> Result<TicketStatus, SqliteError> {
    let sql = "SELECT status FROM tickets WHERE id = ?1 AND account = ?2";
    let found =
        query_optional(connection, sql, [id.to_string(), account.to_string()], |row| row.parse("status"))?;
    // The error for a ticket of another account is the same as for an unknown one.
    found.ok_or_else(|| Error::UnknownDependency { id }.into())
}

/// Inserts the dependencies of a ticket.
pub(super) fn insert(
    connection: &Connection,
    id: TicketId,
    prerequisites: &[TicketId],
) -> Result<(), SqliteError> {
    let sql = "INSERT INTO ticket_dependencies (dependent, position, prerequisite) VALUES (?1, ?2, ?3)";
    for (position, prerequisite) in (0_i64..).zip(prerequisites) {
        execute(connection, sql, params![id.to_string(), position, prerequisite.to_string()])?;
    }
    Ok(())
}

/// Replaces the dependencies of a ticket; fails if that would create a cycle.
pub(super) fn replace(
    connection: &Connection,
    account: AccountId,
    id: TicketId,
    prerequisites: &[TicketId],
) -> Result<Blockers, SqliteError> {
    let mut blockers = Blockers::default();
    for prerequisite in prerequisites {
        let status = status_of(connection, account, *prerequisite)?;
        if status != TicketStatus::Completed {
            blockers.total += 1;
            if blockers.named.len() < limits::MAX_NAMED_TICKETS {
                blockers.named.push(Blocker { id: *prerequisite, status });
            }
        }
    }
    let found = find_cycle(id, prerequisites, |one| {
        // Completed tickets block nothing, so the search stops there.
        let open = blockers_of_node(connection, one);
        open.map(|open| open.into_iter().map(|blocker| blocker.id).collect())
    })?;
    if let Some(path) = found {
        let path = path.into_iter().map(|id| id.to_string()).collect();
        return Err(Error::from(skep_tickets::Error::Cycle { path }).into());
    }
    execute(connection, "DELETE FROM ticket_dependencies WHERE dependent = ?1", [id.to_string()])?;
    insert(connection, id, prerequisites)?;
    Ok(blockers)
}

fn blockers_of_node(connection: &Connection, id: TicketId) -> Result<Vec<Blocker>, SqliteError> {
    blockers(connection, id, limits::MAX_DEPENDENCIES)
}
