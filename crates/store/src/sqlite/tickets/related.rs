//! Tickets that a filter names by their dependencies: those that depend on a ticket, and those that are connected with one.

use std::collections::{BTreeSet, VecDeque};

use rusqlite::{Connection, params};
use skep_api::{AccountId, Label, TicketId};

use super::{
    super::{
        columns::{Columns, query_all, to_json},
        error::SqliteError,
        table::ColumnValue,
    },
    list::{SortKey, cursor, ranges},
    row::of_account,
    search::Search,
};
use crate::{ListTickets, TicketSort};

/// How many tickets a connected graph has at most.
pub(super) const MAX_RELATED: usize = 1_000;

/// The sort keys of the matching tickets, and whether the graph was cut.
pub(super) struct RelatedTickets {
    pub(super) places: Vec<SortKey>,
    /// `None` unless the filter names a graph.
    pub(super) truncated: Option<bool>,
}

/// Returns the tickets that the filter names by their dependencies, or `None` if it names none in this way. It examines
/// only these tickets.
///
/// # Errors
/// `UnknownTicket`, also for a ticket of another account.
pub(super) fn related_tickets(
    connection: &Connection,
    query: &ListTickets,
    wanted: usize,
) -> Result<Option<RelatedTickets>, SqliteError> {
    let filter = &query.filter;
    let (found, truncated) = match (filter.related_to, filter.depends_on) {
        (None, None) => return Ok(None),
        (None, Some(prerequisite)) => (dependents(connection, query, prerequisite)?, None),
        (Some(id), prerequisite) => {
            let (ids, truncated) = related(connection, query.account, id)?;
            let mut found = with_ids(connection, query, &ids)?;
            if let Some(prerequisite) = prerequisite {
                let dependents: BTreeSet<SortKey> =
                    dependents(connection, query, prerequisite)?.into_iter().collect();
                found.retain(|place| dependents.contains(place));
            }
            (found, Some(truncated))
        }
    };
    let begins = cursor(query);
    let latest_first = query.sort == TicketSort::Updated;
    let comes_after = |place: &SortKey| {
        begins.as_ref().is_none_or(|begins| if latest_first { place < begins } else { place > begins })
    };
    let mut places: Vec<SortKey> = found.into_iter().filter(comes_after).collect();
    places.sort_unstable();
    if latest_first {
        places.reverse();
    }
    places.truncate(wanted);
    Ok(Some(RelatedTickets { places, truncated }))
}

/// Returns the sort keys of matching dependents of a ticket.
fn dependents(
    connection: &Connection,
    query: &ListTickets,
    prerequisite: TicketId,
) -> Result<Vec<SortKey>, SqliteError> {
    let sql = "SELECT t.id, t.stage, t.priority, t.updated_at, t.assignee, t.labels, t.title
               FROM ticket_dependencies AS d JOIN tickets AS t ON t.id = d.dependent
               WHERE d.prerequisite = ?1 AND t.account = ?2 ORDER BY d.dependent";
    matching(connection, query, sql, &prerequisite.to_string())
}

/// Returns the sort keys of the matching ones of these tickets.
fn with_ids(
    connection: &Connection,
    query: &ListTickets,
    ids: &BTreeSet<TicketId>,
) -> Result<Vec<SortKey>, SqliteError> {
    let sql = "SELECT t.id, t.stage, t.priority, t.updated_at, t.assignee, t.labels, t.title
               FROM json_each(?1) AS one JOIN tickets AS t ON t.id = one.value WHERE t.account = ?2";
    matching(connection, query, sql, &to_json(ids)?)
}

fn matching(
    connection: &Connection,
    query: &ListTickets,
    sql: &str,
    prerequisite: &str,
) -> Result<Vec<SortKey>, SqliteError> {
    let filter = &query.filter;
    let (ranges, search) = (ranges(filter), filter.search.as_deref().map(Search::of));
    let found = query_all(connection, sql, params![prerequisite, query.account.to_string()], |row| {
        let id: String = row.get("id")?;
        let (stage, priority) = (row.get::<i64>("stage")?, row.get::<i64>("priority")?);
        let updated_at = row.get("updated_at")?;
        let assignee: Option<String> = row.get("assignee")?;
        let own = Vec::<Label>::read(row, "labels")?;
        let fits = ranges.iter().any(|one| (one.stage, one.priority) == (stage, priority))
            && (filter.assignee.is_none() || filter.assignee == assignee)
            && filter.labels.iter().all(|label| own.contains(label))
            && is_found(search.as_ref(), row, &id)?;
        let rank = if query.sort == TicketSort::Priority { priority } else { 0 };
        let at = if query.sort == TicketSort::Updated { updated_at } else { 0 };
        Ok(fits.then_some((rank, at, id)))
    })?;
    Ok(found.into_iter().flatten().collect())
}

fn is_found(search: Option<&Search>, row: &Columns<'_>, id: &str) -> Result<bool, SqliteError> {
    let Some(search) = search else { return Ok(true) };
    Ok(search.matches(id, &row.get::<String>("title")?))
}

/// Returns the tickets that are connected with one by dependencies in either direction, itself included, and whether
/// there are more than [`MAX_RELATED`]. The search is breadth-first, so that a graph that is cut has the nearest
/// tickets.
///
/// # Errors
/// `UnknownTicket`, also for a ticket of another account.
fn related(
    connection: &Connection,
    account: AccountId,
    id: TicketId,
) -> Result<(BTreeSet<TicketId>, bool), SqliteError> {
    of_account(connection, account, id)?;
    let (mut found, mut next) = (BTreeSet::from([id]), VecDeque::from([id]));
    while let Some(id) = next.pop_front() {
        for neighbour in neighbours(connection, id)? {
            if found.contains(&neighbour) {
                continue;
            }
            if found.len() == MAX_RELATED {
                return Ok((found, true));
            }
            found.insert(neighbour);
            next.push_back(neighbour);
        }
    }
    Ok((found, false))
}

/// Returns tickets that one depends on or that depend on it. Of more than [`MAX_RELATED`] in one direction it returns
/// one more than that, which suffices to exceed the maximum. Dependencies never lead to another account.
fn neighbours(connection: &Connection, id: TicketId) -> Result<Vec<TicketId>, SqliteError> {
    // A finished ticket keeps the ids of deleted prerequisites.
    let prerequisites = "SELECT t.id FROM ticket_dependencies AS d JOIN tickets AS t ON t.id = d.prerequisite
                         WHERE d.dependent = ?1 ORDER BY d.position LIMIT ?2";
    let dependents = "SELECT dependent AS id FROM ticket_dependencies WHERE prerequisite = ?1
                      ORDER BY dependent LIMIT ?2";
    let limit = i64::try_from(MAX_RELATED).unwrap_or(i64::MAX).saturating_add(1);
    let read = |sql| query_all(connection, sql, params![id.to_string(), limit], |row| row.parse("id"));
    let mut found = read(prerequisites)?;
    found.extend(read(dependents)?);
    Ok(found)
}
