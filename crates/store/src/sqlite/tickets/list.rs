//! Lists of tickets. Each combination of stage and priority is an ordered range of an index. A page merges the ranges
//! that its filter selects and reads only the entries that it needs, so that its cost does not depend on the number of
//! tickets. The exception is ready tickets by time of change, which are searched among all pending ones.

use jiff::Timestamp;
use rusqlite::{CachedStatement, Connection, Rows, ToSql};
use skep_api::{
    TicketId,
    tickets::{Priority, TicketStatus},
};

use super::{
    super::{
        columns::{Columns, invalid_column, millis},
        error::SqliteError,
    },
    fields::rank,
    intersection::{Intersection, Term},
    related::{RelatedTickets, related_tickets},
    search::{MAX_EXAMINED, Search},
    summary::Listed,
};
use crate::{ListTickets, TicketFilter, TicketPage, TicketPosition, TicketSort};

/// Maximum size of the records of a page, in bytes of JSON plus the memory of their objects. A page ends with the
/// record that reaches it.
const MAX_PAGE_BYTES: usize = 8 << 20;

/// Columns of the statements whose rows have the title.
const COLUMNS_WITH_TITLE: usize = 3;

/// Sort key of a ticket: rank, time of change and id; those that do not apply to the sort order are 0.
pub(super) type SortKey = (i64, i64, String);

pub(in super::super) fn list<T: Listed>(
    connection: &Connection,
    query: &ListTickets,
) -> Result<TicketPage<T>, SqliteError> {
    list_examining(connection, query, MAX_EXAMINED)
}

/// Like [`list`]; a search examines at most `examined` tickets.
fn list_examining<T: Listed>(
    connection: &Connection,
    query: &ListTickets,
    examined: usize,
) -> Result<TicketPage<T>, SqliteError> {
    let limit = usize::try_from(query.limit.max(1)).unwrap_or(usize::MAX);
    let (RelatedTickets { mut places, truncated }, mut more) =
        match related_tickets(connection, query, limit + 1)? {
            Some(related) => (related, None),
            None => {
                let merged = merged(connection, query, limit + 1, examined)?;
                (RelatedTickets { places: merged.places, truncated: None }, merged.stopped_at)
            }
        };
    if places.len() > limit {
        places.truncate(limit);
        more = places.last().cloned();
    }
    let (mut tickets, mut size) = (Vec::new(), 0);
    let mut previous = None;
    for place in places {
        if size >= MAX_PAGE_BYTES {
            more = previous;
            break;
        }
        let id: TicketId = place.2.parse().map_err(|error| invalid_column("id", error))?;
        let Some(ticket) = T::read(connection, id, query.at)? else { continue };
        size += ticket.size_bytes();
        tickets.push(ticket);
        previous = Some(place);
    }
    let next = more.map(|place| position(query.sort, &place)).transpose()?;
    Ok(TicketPage { tickets, truncated, next })
}

/// Converts a sort key to a cursor.
fn position(sort: TicketSort, (rank_of, at, id): &SortKey) -> Result<TicketPosition, SqliteError> {
    let id = id.parse().map_err(|error| invalid_column("id", error))?;
    let priority = || Priority::ALL.iter().copied().find(|priority| rank(*priority) == *rank_of);
    let position = match sort {
        TicketSort::Created => Some(TicketPosition::Created(id)),
        TicketSort::Priority => priority().map(|priority| TicketPosition::Priority(priority, id)),
        TicketSort::Updated => {
            Timestamp::from_millisecond(*at).ok().map(|at| TicketPosition::Updated(at, id))
        }
    };
    position.ok_or_else(|| invalid_column("sort key", format!("`{rank_of}`, `{at}` is none")))
}

/// An index range.
#[derive(Clone, Copy)]
pub(super) struct IndexRange {
    pub(super) status: TicketStatus,
    pub(super) stage: i64,
    pub(super) priority: i64,
}

/// Returns the index ranges that a filter selects.
pub(super) fn ranges(filter: &TicketFilter) -> Vec<IndexRange> {
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
pub(super) fn cursor(query: &ListTickets) -> Option<SortKey> {
    match (query.sort, query.after?) {
        (TicketSort::Created, TicketPosition::Created(id)) => Some((0, 0, id.to_string())),
        (TicketSort::Priority, TicketPosition::Priority(priority, id)) => {
            Some((rank(priority), 0, id.to_string()))
        }
        (TicketSort::Updated, TicketPosition::Updated(at, id)) => Some((0, millis(at), id.to_string())),
        _ => None,
    }
}

/// The first sort keys of the merged ranges.
struct Merged {
    places: Vec<SortKey>,
    /// Where a search stopped because it examined as much as a page may.
    stopped_at: Option<SortKey>,
}

/// Merges the selected ranges and returns the first sort keys. A search examines at most `examined` tickets.
fn merged(
    connection: &Connection,
    query: &ListTickets,
    wanted: usize,
    examined: usize,
) -> Result<Merged, SqliteError> {
    let by_change = query.sort == TicketSort::Updated;
    let cursor = cursor(query);
    let account = query.account.to_string();
    let assignee = query.filter.assignee.as_ref();
    let search = query.filter.search.as_deref().map(Search::of);
    let sql = sql_of(by_change, assignee.is_some(), search.is_some());
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
        let statement = (!labelled).then(|| connection.prepare_cached(&sql)).transpose()?;
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
    take(connection, streams, by_change, wanted, search.map(|search| (search, examined)))
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

fn sql_of(by_change: bool, assignee: bool, with_title: bool) -> String {
    let columns = if with_title { "id, updated_at, title" } else { "id, updated_at" };
    let of_assignee = if assignee { "AND assignee = :assignee" } else { "" };
    if !by_change {
        return format!(
            "SELECT {columns} FROM tickets
             WHERE account = :account {of_assignee} AND stage = :stage AND priority = :priority AND id > :id
             ORDER BY id"
        );
    }
    let index = if assignee { "tickets_of_assignee_by_change" } else { "tickets_by_change" };
    format!(
        "SELECT {columns} FROM tickets INDEXED BY {index}
         WHERE account = :account {of_assignee} AND status = :status AND priority = :priority
             AND (updated_at, id) < (:at, :id) AND (:stage IS NULL OR stage = :stage)
         ORDER BY updated_at DESC, id DESC"
    )
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
    /// The title of the head, if the rows have it.
    title: Option<String>,
}

impl<'a> Stream<'a> {
    fn of(source: Source<'a>, rank: i64, by_change: bool) -> Result<Self, SqliteError> {
        let mut stream = Self { source, rank, by_change, head: None, title: None };
        stream.advance()?;
        Ok(stream)
    }

    fn advance(&mut self) -> Result<(), SqliteError> {
        self.title = None;
        let next = match &mut self.source {
            Source::Intersection(common) => common.next()?,
            Source::Rows(rows) => match rows.next()? {
                None => None,
                Some(row) => {
                    let columns = Columns::of(row);
                    let next = (columns.get::<i64>("updated_at")?, columns.get("id")?);
                    if row.as_ref().column_count() == COLUMNS_WITH_TITLE {
                        self.title = Some(columns.get("title")?);
                    }
                    Some(next)
                }
            },
        };
        self.head = next.map(|(at, id)| (self.rank, if self.by_change { at } else { 0 }, id));
        Ok(())
    }
}

/// Takes the first sort keys of the streams. With a search, those of matching tickets, until as many as its limit are
/// examined.
fn take(
    connection: &Connection,
    mut streams: Vec<Stream<'_>>,
    latest_first: bool,
    wanted: usize,
    search: Option<(Search, usize)>,
) -> Result<Merged, SqliteError> {
    let (mut places, mut examined) = (Vec::new(), 0);
    while places.len() < wanted {
        let heads = streams.iter_mut().filter(|stream| stream.head.is_some());
        // Linear search suffices: there is at most one stream for each stage of each priority.
        let next = if latest_first {
            heads.max_by(|a, b| a.head.cmp(&b.head))
        } else {
            heads.min_by(|a, b| a.head.cmp(&b.head))
        };
        let Some(stream) = next else { break };
        let (Some(place), title) = (stream.head.take(), stream.title.take()) else { break };
        stream.advance()?;
        let Some((search, limit)) = &search else {
            places.push(place);
            continue;
        };
        examined += 1;
        let stopped_at = (examined >= *limit).then(|| place.clone());
        if search.matches_place(connection, &place.2, title.as_deref())? {
            places.push(place);
        }
        if stopped_at.is_some() {
            return Ok(Merged { places, stopped_at });
        }
    }
    Ok(Merged { places, stopped_at: None })
}

#[cfg(test)]
mod tests {
    use rusqlite::params;
    use skep_api::{AccountId, tickets::TicketSummary};

    use super::*;
    use crate::sqlite::migrations::migrate;

    /// Inserts a ticket without texts.
    fn insert(connection: &Connection, account: AccountId, after: Option<TicketId>, title: &str) -> TicketId {
        let id = TicketId::generate_after(after);
        let sql = "INSERT INTO tickets (id, account, title, priority, status, attempt, counted, max_attempts,
                       max_runtime_ms, waiting, unmet, version, created_at, updated_at)
                   VALUES (?1, ?2, ?3, 1, 'pending', 0, 0, 5, 1000, 0, 0, 1, 0, 0)";
        connection.execute(sql, params![id.to_string(), account.to_string(), title]).unwrap();
        id
    }

    #[test]
    fn a_search_that_examined_its_limit_continues_on_the_next_page() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        let account = AccountId::generate();
        let sql =
            "INSERT INTO accounts (id, name, roots, allowed_ips, created_at) VALUES (?1, 'a', '[]', '[]', 0)";
        connection.execute(sql, [account.to_string()]).unwrap();
        let (mut last, mut wanted) = (None, Vec::new());
        for number in 0..95 {
            let title = if number % 30 == 7 { "needle" } else { "hay" };
            let id = insert(&connection, account, last, title);
            last = Some(id);
            if title == "needle" {
                wanted.push(id);
            }
        }
        for sort in [TicketSort::Created, TicketSort::Priority, TicketSort::Updated] {
            let filter = TicketFilter { search: Some("needle".to_owned()), ..TicketFilter::default() };
            let at = Timestamp::now();
            let mut query = ListTickets { account, filter, sort, limit: 50, after: None, at };
            let (mut found, mut pages) = (Vec::new(), 0);
            loop {
                let page: TicketPage<TicketSummary> = list_examining(&connection, &query, 10).unwrap();
                found.extend(page.tickets.into_iter().map(|ticket| ticket.id));
                pages += 1;
                query.after = page.next;
                if query.after.is_none() {
                    break;
                }
            }
            found.sort_unstable();
            assert_eq!((&found, pages), (&wanted, 10), "{sort:?}");
        }
    }
}
