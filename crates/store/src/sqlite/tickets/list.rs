//! Lists of tickets. Each combination of stage and priority is an ordered range of an index. A page merges the ranges
//! that its filter selects and reads only the entries that it needs, so that its cost does not depend on the number of
//! tickets. The exception is ready tickets by time of change, which are searched among all pending ones.

use rusqlite::{CachedStatement, Connection, Rows, ToSql};
use skep_api::{
    Label, TicketId,
    tickets::{Priority, Ticket as Record, TicketStatus},
};

use super::{
    super::{
        columns::{Columns, millis, query_all},
        error::SqliteError,
        table::ColumnValue,
    },
    fields::{rank, record},
    intersection::{Intersection, Term},
    row::{find, size_bytes},
};
use crate::{ListTickets, TicketFilter, TicketPage, TicketPosition, TicketSort};

/// Maximum size of the records of a page, in bytes of JSON plus the memory of their objects. A page ends with the
/// record that reaches it.
const MAX_PAGE_BYTES: usize = 8 << 20;

/// Sort key of a ticket: rank, time of change and id; those that do not apply to the sort order are 0.
type SortKey = (i64, i64, String);

pub(in super::super) fn list(
    connection: &Connection,
    query: &ListTickets,
) -> Result<TicketPage, SqliteError> {
    let limit = usize::try_from(query.limit.max(1)).unwrap_or(usize::MAX);
    let places = match query.filter.depends_on {
        Some(prerequisite) => dependents(connection, query, prerequisite, limit + 1)?,
        None => merged(connection, query, limit + 1)?,
    };
    let more = places.len() > limit;
    let (mut tickets, mut size) = (Vec::new(), 0);
    for (_, _, id) in places.into_iter().take(limit) {
        if size >= MAX_PAGE_BYTES {
            return Ok(page(tickets, query.sort, true));
        }
        let id: TicketId = id.parse().map_err(|error| super::super::columns::invalid_column("id", error))?;
        let Some(row) = find(connection, id)? else { continue };
        let ticket = record(connection, row, query.at)?;
        size += size_bytes(&ticket);
        tickets.push(ticket);
    }
    Ok(page(tickets, query.sort, more))
}

fn page(tickets: Vec<Record>, sort: TicketSort, more: bool) -> TicketPage {
    let position = |last: &Record| match sort {
        TicketSort::Created => TicketPosition::Created(last.id),
        TicketSort::Priority => TicketPosition::Priority(last.priority, last.id),
        TicketSort::Updated => TicketPosition::Updated(last.updated_at, last.id),
    };
    let next = tickets.last().filter(|_| more).map(position);
    TicketPage { tickets, next }
}

/// An index range.
#[derive(Clone, Copy)]
pub(super) struct IndexRange {
    pub(super) status: TicketStatus,
    pub(super) stage: i64,
    pub(super) priority: i64,
}

/// Returns the index ranges that a filter selects.
fn ranges(filter: &TicketFilter) -> Vec<IndexRange> {
    let statuses: &[TicketStatus] =
        if filter.statuses.is_empty() { TicketStatus::ALL } else { &filter.statuses };
    let stages = statuses.iter().flat_map(|status| stages_of(*status).iter().map(|stage| (*stage, *status)));
    let stages = stages.filter(|(stage, _)| filter.ready.is_none_or(|ready| (*stage == READY) == ready));
    let wanted = |priority: &&Priority| filter.priorities.is_empty() || filter.priorities.contains(priority);
    let mut stages: Vec<(i64, TicketStatus)> = stages.collect();
    stages.sort_unstable();
    stages.dedup();
    let ranks = Priority::ALL.iter().filter(wanted).map(|priority| rank(*priority));
    let of = |priority| {
        stages.iter().map(move |(stage, status)| IndexRange { status: *status, stage: *stage, priority })
    };
    ranks.flat_map(of).collect()
}

/// The stage of claimable tickets.
pub(super) const READY: i64 = 1;

fn stages_of(status: TicketStatus) -> &'static [i64] {
    match status {
        TicketStatus::Pending => &[0, READY],
        TicketStatus::InProgress => &[2],
        TicketStatus::Completed => &[3],
        TicketStatus::Failed => &[4],
    }
}

/// Returns the sort key after which the page starts, if its cursor is of the same sort order.
fn cursor(query: &ListTickets) -> Option<SortKey> {
    match (query.sort, query.after?) {
        (TicketSort::Created, TicketPosition::Created(id)) => Some((0, 0, id.to_string())),
        (TicketSort::Priority, TicketPosition::Priority(priority, id)) => {
            Some((rank(priority), 0, id.to_string()))
        }
        (TicketSort::Updated, TicketPosition::Updated(at, id)) => Some((0, millis(at), id.to_string())),
        _ => None,
    }
}

/// Merges the selected ranges and returns the first sort keys.
fn merged(connection: &Connection, query: &ListTickets, wanted: usize) -> Result<Vec<SortKey>, SqliteError> {
    let by_change = query.sort == TicketSort::Updated;
    let cursor = cursor(query);
    let account = query.account.to_string();
    let assignee = query.filter.assignee.as_ref();
    let sql = sql_of(by_change, assignee.is_some());
    // The index by time of change contains all pending tickets together. If both ready and waiting ones are selected,
    // one range without a condition on the stage is read, because reading each separately would skip all entries of the
    // other.
    let all_stages = by_change && query.filter.ready.is_none();
    let labelled = !query.filter.labels.is_empty();
    let mut statements: Vec<(Option<CachedStatement<'_>>, IndexRange)> = Vec::new();
    for range in ranges(&query.filter) {
        if all_stages && range.stage == READY {
            continue;
        }
        if query.sort == TicketSort::Priority
            && cursor.as_ref().is_some_and(|(rank, ..)| range.priority < *rank)
        {
            continue;
        }
        let statement = (!labelled).then(|| connection.prepare_cached(sql)).transpose()?;
        statements.push((statement, range));
    }
    let mut streams = Vec::with_capacity(statements.len());
    for (statement, range) in &mut statements {
        let (at, id) = start_position(query.sort, cursor.as_ref(), range.priority);
        let rank = if query.sort == TicketSort::Priority { range.priority } else { 0 };
        let Some(statement) = statement else {
            let (account, terms, after) = (account.clone(), terms(&query.filter), (at, id));
            let range = *range;
            let common = Intersection { connection, account, terms, range, by_change, all_stages, after };
            streams.push(Stream::of(Source::Intersection(common), rank, by_change)?);
            continue;
        };
        let status = range.status.as_str();
        let stage = (!all_stages).then_some(range.stage);
        let mut params: Vec<(&str, &dyn ToSql)> =
            vec![(":account", &account), (":stage", &stage), (":priority", &range.priority), (":id", &id)];
        if by_change {
            params.extend([(":at", &at as &dyn ToSql), (":status", &status)]);
        }
        if let Some(assignee) = &assignee {
            params.push((":assignee", assignee));
        }
        let rows = statement.query(params.as_slice())?;
        streams.push(Stream::of(Source::Rows(rows), rank, by_change)?);
    }
    take(streams, by_change, wanted)
}

/// Start position in the range of a priority.
fn start_position(sort: TicketSort, cursor: Option<&SortKey>, priority: i64) -> (i64, String) {
    match cursor {
        // All tickets of a less urgent priority follow the cursor.
        Some((rank, ..)) if sort == TicketSort::Priority && priority > *rank => (i64::MAX, String::new()),
        Some((_, at, id)) => (*at, id.clone()),
        None if sort == TicketSort::Updated => (i64::MAX, "~".to_owned()),
        None => (i64::MAX, String::new()),
    }
}

fn sql_of(by_change: bool, assignee: bool) -> &'static str {
    match (by_change, assignee) {
        (false, false) => {
            "SELECT id, updated_at FROM tickets
             WHERE account = :account AND stage = :stage AND priority = :priority AND id > :id ORDER BY id"
        }
        (false, true) => {
            "SELECT id, updated_at FROM tickets
             WHERE account = :account AND assignee = :assignee AND stage = :stage AND priority = :priority AND id > :id
             ORDER BY id"
        }
        (true, false) => {
            "SELECT id, updated_at FROM tickets INDEXED BY tickets_by_change
             WHERE account = :account AND status = :status AND priority = :priority AND (updated_at, id) < (:at, :id)
                 AND (:stage IS NULL OR stage = :stage)
             ORDER BY updated_at DESC, id DESC"
        }
        (true, true) => {
            "SELECT id, updated_at FROM tickets INDEXED BY tickets_of_assignee_by_change
             WHERE account = :account AND assignee = :assignee AND status = :status AND priority = :priority
                 AND (updated_at, id) < (:at, :id) AND (:stage IS NULL OR stage = :stage)
             ORDER BY updated_at DESC, id DESC"
        }
    }
}

/// Returns the terms of a filter with labels.
fn terms(filter: &TicketFilter) -> Vec<Term<'_>> {
    let assignee = filter.assignee.as_deref().map(Term::Assignee);
    filter.labels.iter().map(Term::Label).chain(assignee).collect()
}

/// Source of the entries of a range.
enum Source<'a> {
    Rows(Rows<'a>),
    Intersection(Intersection<'a>),
}

/// A range that is being read, with its next entry.
struct Stream<'a> {
    source: Source<'a>,
    rank: i64,
    by_change: bool,
    head: Option<SortKey>,
}

impl<'a> Stream<'a> {
    fn of(source: Source<'a>, rank: i64, by_change: bool) -> Result<Self, SqliteError> {
        let mut stream = Self { source, rank, by_change, head: None };
        stream.advance()?;
        Ok(stream)
    }

    fn advance(&mut self) -> Result<(), SqliteError> {
        let next = match &mut self.source {
            Source::Intersection(common) => common.next()?,
            Source::Rows(rows) => match rows.next()? {
                None => None,
                Some(row) => {
                    let columns = Columns::of(row);
                    Some((columns.get::<i64>("updated_at")?, columns.get("id")?))
                }
            },
        };
        self.head = next.map(|(at, id)| (self.rank, if self.by_change { at } else { 0 }, id));
        Ok(())
    }
}

fn take(
    mut streams: Vec<Stream<'_>>,
    latest_first: bool,
    wanted: usize,
) -> Result<Vec<SortKey>, SqliteError> {
    let mut places = Vec::new();
    while places.len() < wanted {
        let heads = streams.iter_mut().filter(|stream| stream.head.is_some());
        // Linear search suffices: there is at most one stream for each stage of each priority.
        let next = if latest_first {
            heads.max_by(|a, b| a.head.cmp(&b.head))
        } else {
            heads.min_by(|a, b| a.head.cmp(&b.head))
        };
        let Some(stream) = next else { break };
        places.extend(stream.head.take());
        stream.advance()?;
    }
    Ok(places)
}

/// Returns the sort keys of matching dependents of a ticket. Examines all its dependents and no other tickets.
fn dependents(
    connection: &Connection,
    query: &ListTickets,
    prerequisite: TicketId,
    wanted: usize,
) -> Result<Vec<SortKey>, SqliteError> {
    let filter = &query.filter;
    let ranges = ranges(filter);
    let sql = "SELECT t.id, t.stage, t.priority, t.updated_at, t.assignee, t.labels
               FROM ticket_dependencies AS d JOIN tickets AS t ON t.id = d.dependent
               WHERE d.prerequisite = ?1 AND t.account = ?2 ORDER BY d.dependent";
    let params = [prerequisite.to_string(), query.account.to_string()];
    let found = query_all(connection, sql, params, |row| {
        let (stage, priority) = (row.get::<i64>("stage")?, row.get::<i64>("priority")?);
        let assignee: Option<String> = row.get("assignee")?;
        let own = Vec::<Label>::read(row, "labels")?;
        let fits = ranges.iter().any(|one| (one.stage, one.priority) == (stage, priority))
            && (filter.assignee.is_none() || filter.assignee == assignee)
            && filter.labels.iter().all(|label| own.contains(label));
        let rank = if query.sort == TicketSort::Priority { priority } else { 0 };
        let at = if query.sort == TicketSort::Updated { row.get("updated_at")? } else { 0 };
        Ok(fits.then_some((rank, at, row.get("id")?)))
    })?;
    let cursor = cursor(query);
    let latest_first = query.sort == TicketSort::Updated;
    let comes_after = |place: &SortKey| {
        cursor.as_ref().is_none_or(|begins| if latest_first { place < begins } else { place > begins })
    };
    let mut places: Vec<SortKey> = found.into_iter().flatten().filter(comes_after).collect();
    places.sort_unstable();
    if latest_first {
        places.reverse();
    }
    places.truncate(wanted);
    Ok(places)
}
