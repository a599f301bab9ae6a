//! Events in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, Params, named_params, params};
use serde_json::{Map, Value};
use skep_api::{AccountId, TicketId, events::EventId};
use tokio::sync::watch;

use super::{
    SqliteStore,
    columns::{Columns, execute, invalid_column, millis, query_all, query_optional, signed, to_json},
    error::SqliteError,
    tickets,
};
use crate::{Event, EventKind, EventPage, EventScope, EventSpan, EventStore, ReadEvents, TicketWithSpan};

#[async_trait]
impl EventStore for SqliteStore {
    async fn events_after(&self, sequence: u64, limit: u32) -> crate::Result<Vec<Event>> {
        self.readers.run(move |c| after(c, sequence, limit)).await
    }

    async fn read_events(&self, query: ReadEvents) -> crate::Result<EventPage> {
        self.readers.run(move |c| page(c, &query)).await
    }

    async fn event_position(&self, account: AccountId, since: Timestamp) -> crate::Result<EventId> {
        self.readers.run(move |c| position_before(c, account, since)).await
    }

    async fn event_span(&self, scope: EventScope) -> crate::Result<EventSpan> {
        self.readers.run(move |c| span(c, scope)).await
    }

    async fn ticket_with_span(
        &self,
        account: AccountId,
        id: TicketId,
        at: Timestamp,
    ) -> crate::Result<TicketWithSpan> {
        let query = move |c: &Connection| {
            Ok(TicketWithSpan {
                ticket: tickets::read(c, account, id, at)?,
                span: span(c, EventScope::Ticket(account, id))?,
            })
        };
        self.readers.run(query).await
    }

    fn commits(&self) -> watch::Receiver<u64> {
        self.commits.clone()
    }
}

pub(super) struct NewEvent<'a> {
    pub(super) account: AccountId,
    pub(super) kind: EventKind,
    /// A JSON object.
    pub(super) body: Value,
    pub(super) at: Timestamp,
    pub(super) request_id: Option<&'a str>,
}

/// Writes an event that is part of the history of a ticket.
pub(super) fn append_for_ticket(
    connection: &Connection,
    ticket: &str,
    event: &NewEvent<'_>,
) -> Result<(), SqliteError> {
    insert(connection, Some(ticket), event)
}

/// Writes an event, in the transaction of the change that it describes.
pub(super) fn append(connection: &Connection, event: &NewEvent<'_>) -> Result<(), SqliteError> {
    insert(connection, None, event)
}

fn insert(connection: &Connection, ticket: Option<&str>, event: &NewEvent<'_>) -> Result<(), SqliteError> {
    execute(
        connection,
        "INSERT INTO events (epoch, account, type, body, at, request_id, ticket)
         VALUES ((SELECT value FROM meta WHERE name = 'epoch'), :account, :type, :body, :at, :request_id, :ticket)",
        named_params! {
            ":ticket": ticket,
            ":account": event.account.to_string(),
            ":type": event.kind.as_str(),
            ":body": to_json(&event.body)?,
            ":at": millis(event.at),
            ":request_id": event.request_id,
        },
    )?;
    Ok(())
}

fn after(connection: &Connection, sequence: u64, limit: u32) -> Result<Vec<Event>, SqliteError> {
    // A sequence that does not fit the column is after all events.
    let sequence = i64::try_from(sequence).unwrap_or(i64::MAX);
    let sql = "SELECT * FROM events WHERE sequence > ?1 ORDER BY sequence LIMIT ?2";
    query_all(connection, sql, params![sequence, limit], decode)
}

/// Returns a page of events with the range of stored events at that time.
fn page(connection: &Connection, query: &ReadEvents) -> Result<EventPage, SqliteError> {
    let after = i64::try_from(query.after).unwrap_or(i64::MAX);
    let limit = query.limit.max(1);
    match query.scope {
        EventScope::All => {
            let sql = "SELECT * FROM events WHERE sequence > ?1 ORDER BY sequence LIMIT ?2";
            read_page(connection, query, sql, params![after, limit])
        }
        EventScope::Account(account) => {
            let sql = "SELECT * FROM events WHERE sequence > ?1 AND account = ?3 ORDER BY sequence LIMIT ?2";
            read_page(connection, query, sql, params![after, limit, account.to_string()])
        }
        EventScope::Ticket(account, ticket) => {
            let sql = "SELECT * FROM events WHERE sequence > ?1 AND ticket = ?4 AND account = ?3
                       ORDER BY sequence LIMIT ?2";
            read_page(connection, query, sql, params![after, limit, account.to_string(), ticket.to_string()])
        }
    }
}

fn read_page(
    connection: &Connection,
    query: &ReadEvents,
    sql: &str,
    params: impl Params,
) -> Result<EventPage, SqliteError> {
    let mut page = EventPage {
        events: Vec::new(),
        examined_to: query.after,
        more: false,
        span: span(connection, query.scope)?,
    };
    let (mut examined, mut bytes) = (0, 0);
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        let row = Columns::of(row);
        examined += 1;
        if query.kinds.contains(&kind(&row.get::<String>("type")?)?) {
            bytes += row.bytes("body")?;
            if bytes > query.bytes && !page.events.is_empty() {
                page.more = true;
                return Ok(page);
            }
            page.events.push(decode(&row)?);
        }
        page.examined_to = row.number("sequence")?;
    }
    page.more = examined >= query.limit.max(1);
    if !page.more {
        // Events up to the newest belong to other accounts or tickets.
        page.examined_to = page.examined_to.max(page.span.newest);
    }
    Ok(page)
}

/// Number of events before the found position to examine again, because the times of nearly simultaneous events may be
/// out of order.
const OUT_OF_ORDER_WINDOW: u64 = 1_000;

/// Binary search for the position just before the first event at or after a time, among those from which on no event of the account is
/// deleted.
fn position_before(
    connection: &Connection,
    account: AccountId,
    since: Timestamp,
) -> Result<EventId, SqliteError> {
    let EventSpan { epoch, epoch_start: began, oldest, newest } =
        span(connection, EventScope::Account(account))?;
    let since = millis(since);
    // Events up to `low` are taken as earlier than `since`, those after `high` as later.
    let (mut low, mut high) = (began.max(oldest.saturating_sub(1)).min(newest), newest);
    let probe = "SELECT sequence, at FROM events WHERE sequence > ?1 ORDER BY sequence LIMIT 1";
    while low < high {
        let middle = low + (high - low) / 2;
        let found = query_optional(connection, probe, [signed(middle)?], |row| {
            Ok((row.number::<u64>("sequence")?, row.get::<i64>("at")?))
        })?;
        match found {
            Some((sequence, at)) if at < since => low = sequence.min(high),
            _ => high = middle,
        }
    }
    let recheck =
        "SELECT min(sequence) AS first FROM events WHERE sequence > ?1 AND sequence <= ?2 AND at >= ?3";
    let from = low.saturating_sub(OUT_OF_ORDER_WINDOW).max(began);
    let earlier = query_optional(connection, recheck, [signed(from)?, signed(low)?, since], |row| {
        row.optional_number::<u64>("first")
    })?;
    let sequence = earlier.flatten().map_or(low, |first| first - 1);
    Ok(EventId { epoch, sequence })
}

pub(super) fn span(connection: &Connection, scope: EventScope) -> Result<EventSpan, SqliteError> {
    let account = match scope {
        EventScope::All => None,
        EventScope::Account(account) | EventScope::Ticket(account, _) => Some(account.to_string()),
    };
    let sql = "SELECT (SELECT value FROM meta WHERE name = 'epoch') AS epoch,
                      (SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'epoch_began') AS began,
                      (SELECT min(sequence) FROM events) AS oldest,
                      (SELECT max(trimmed_to) FROM history WHERE account IN ('', ?1) AND kind = 'events') AS trimmed_to,
                      (SELECT seq FROM sqlite_sequence WHERE name = 'events') AS newest";
    let span = query_optional(connection, sql, [&account], |row| {
        let newest = row.optional_number("newest")?.unwrap_or(0);
        let oldest = match &account {
            Some(_) => row.optional_number::<u64>("trimmed_to")?.unwrap_or(0) + 1,
            None => row.optional_number("oldest")?.unwrap_or(newest + 1),
        };
        let (epoch, epoch_start) = (row.get("epoch")?, row.number("began")?);
        Ok(EventSpan { epoch, epoch_start, oldest, newest })
    })?;
    span.ok_or_else(|| invalid_column("epoch", "it is missing"))
}

pub(super) fn decode(row: &Columns<'_>) -> Result<Event, SqliteError> {
    Ok(Event {
        sequence: row.number("sequence")?,
        epoch: row.get("epoch")?,
        account: row.parse("account")?,
        kind: kind(&row.get::<String>("type")?)?,
        body: row.json::<Map<String, Value>>("body")?,
        at: row.time("at")?,
        request_id: row.get("request_id")?,
        ticket: row.parse_optional("ticket")?,
    })
}

fn kind(word: &str) -> Result<EventKind, SqliteError> {
    EventKind::named(word).ok_or_else(|| invalid_column("type", format!("unknown event kind `{word}`")))
}
