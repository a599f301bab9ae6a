//! Events in SQLite.

use jiff::Timestamp;
use rusqlite::{Connection, Row, named_params, params};
use serde_json::{Map, Value};
use skep_api::AccountId;

use super::{
    columns::{Columns, all, broken, change, json, millis},
    fault::Fault,
};
use crate::{Event, EventKind};

/// An event that is about to be written.
pub(super) struct NewEvent<'a> {
    pub(super) account: AccountId,
    pub(super) kind: EventKind,
    /// An object.
    pub(super) body: Value,
    pub(super) at: Timestamp,
    pub(super) request_id: Option<&'a str>,
}

/// Writes an event of a ticket, which its history finds by that.
pub(super) fn append_of(connection: &Connection, ticket: &str, event: &NewEvent<'_>) -> Result<(), Fault> {
    insert(connection, Some(ticket), event)
}

/// Writes an event, in the transaction of the change that it tells of.
pub(super) fn append(connection: &Connection, event: &NewEvent<'_>) -> Result<(), Fault> {
    insert(connection, None, event)
}

fn insert(connection: &Connection, ticket: Option<&str>, event: &NewEvent<'_>) -> Result<(), Fault> {
    change(
        connection,
        "INSERT INTO events (epoch, account, type, body, at, request_id, ticket)
         VALUES ((SELECT value FROM meta WHERE name = 'epoch'), :account, :type, :body, :at, :request_id, :ticket)",
        named_params! {
            ":ticket": ticket,
            ":account": event.account.to_string(),
            ":type": event.kind.as_str(),
            ":body": json(&event.body)?,
            ":at": millis(event.at),
            ":request_id": event.request_id,
        },
    )?;
    Ok(())
}

/// The events after this sequence, in order.
pub(super) fn after(connection: &Connection, sequence: u64, limit: u32) -> Result<Vec<Event>, Fault> {
    // A sequence beyond what a column holds is after all events, and no error.
    let sequence = i64::try_from(sequence).unwrap_or(i64::MAX);
    let sql = "SELECT * FROM events WHERE sequence > ?1 ORDER BY sequence LIMIT ?2";
    all(connection, sql, params![sequence, limit], decode)
}

pub(super) fn decode(row: &Row<'_>) -> Result<Event, Fault> {
    Ok(Event {
        sequence: row.number("sequence")?,
        epoch: row.plain("epoch")?,
        account: row.word("account")?,
        kind: kind(&row.plain::<String>("type")?)?,
        body: row.json::<Map<String, Value>>("body")?,
        at: row.time("at")?,
        request_id: row.plain("request_id")?,
    })
}

fn kind(word: &str) -> Result<EventKind, Fault> {
    let known = EventKind::ALL.iter().copied().find(|kind| kind.as_str() == word);
    known.ok_or_else(|| broken("type", format!("`{word}` is no event")))
}
