//! Webhook deliveries in SQLite.

use jiff::Timestamp;
use rusqlite::{Connection, named_params, params};
use serde_json::{Map, Value};
use skep_api::{
    AccountId, DeliveryId, WebhookId,
    budget::Budget,
    webhooks::{Delivery, DeliveryAttempt, DeliveryState, DisabledReason, TEST_EVENT},
};

use super::{
    columns::{Columns, execute, millis, page, page_end, query_all, query_optional, to_json},
    error::SqliteError,
    events, webhooks,
};
use crate::{
    DeliveryContent, DeliveryOutcome, DeliveryPage, DueDelivery, EnqueueDeliveries, Enqueued, Error,
    EventKind, EventScope, ListDeliveries, ListDue, RecordAttempt, Redeliver, TestWebhook,
};

/// Maximum number of attempts to keep of a delivery that is redelivered repeatedly.
const MAX_ATTEMPTS: usize = 20;

/// A webhook with unprocessed events.
struct LaggingWebhook {
    id: WebhookId,
    account: AccountId,
    types: Vec<String>,
    cursor: u64,
    pending: u32,
}

/// Creates deliveries for unprocessed events of webhooks.
pub(super) fn enqueue(connection: &Connection, command: &EnqueueDeliveries) -> Result<Enqueued, SqliteError> {
    let newest = events::span(connection, EventScope::All)?.newest;
    let behind = query_all(
        connection,
        "SELECT * FROM (
             SELECT id, account, types, cursor, (
                 SELECT count(*) FROM webhook_deliveries WHERE webhook = webhooks.id AND state = 'pending'
             ) AS pending
             FROM webhooks WHERE deleted_at IS NULL AND disabled_at IS NULL AND cursor < ?1
         ) WHERE pending < ?2 ORDER BY cursor, id LIMIT ?3",
        params![sequence(newest), command.max_pending.max(1), command.webhooks.max(1)],
        |row| {
            Ok(LaggingWebhook {
                id: row.parse("id")?,
                account: row.parse("account")?,
                types: row.json("types")?,
                cursor: row.number("cursor")?,
                pending: row.number("pending")?,
            })
        },
    )?;
    for webhook in &behind {
        let cursor = deliver_next(connection, webhook, command, newest)?;
        let sql = "UPDATE webhooks SET cursor = ?2 WHERE id = ?1";
        execute(connection, sql, params![webhook.id.to_string(), sequence(cursor)])?;
    }
    let sql =
        "SELECT 1 FROM webhooks WHERE deleted_at IS NULL AND disabled_at IS NULL AND cursor < ?1 LIMIT 1";
    let left = query_optional(connection, sql, [sequence(newest)], |_| Ok(()))?;
    Ok(Enqueued { newest, advanced: !behind.is_empty(), behind: left.is_some() })
}

/// Creates deliveries for the next events of one webhook, and returns its new cursor.
fn deliver_next(
    connection: &Connection,
    webhook: &LaggingWebhook,
    command: &EnqueueDeliveries,
    newest: u64,
) -> Result<u64, SqliteError> {
    let limit = command.events.max(1);
    let next = query_all(
        connection,
        "SELECT sequence, epoch, type FROM events WHERE account = ?1 AND sequence > ?2 ORDER BY sequence LIMIT ?3",
        params![webhook.account.to_string(), sequence(webhook.cursor), limit],
        |row| Ok((row.number::<u64>("sequence")?, row.get::<String>("epoch")?, row.get::<String>("type")?)),
    )?;
    let mut room = command.max_pending.saturating_sub(webhook.pending);
    let (mut cursor, mut last) = (webhook.cursor, newest_of(connection, webhook.id)?);
    for (at, epoch, word) in &next {
        if subscribes_to(&webhook.types, word) {
            if room == 0 {
                return Ok(cursor);
            }
            room -= 1;
            let id = DeliveryId::generate_after(last);
            last = Some(id);
            let event = skep_api::events::EventId { epoch: epoch.clone(), sequence: *at }.to_string();
            let new = NewDelivery { id, webhook: webhook.id, sequence: *at, event, kind: word, data: None };
            insert(connection, &new, command.at)?;
        }
        cursor = *at;
    }
    let all_seen = next.len() < usize::try_from(limit).unwrap_or(usize::MAX);
    Ok(if all_seen { newest.max(cursor) } else { cursor })
}

/// The newest delivery of a webhook. Ids of new ones are generated after it, because several may be created in a
/// millisecond.
fn newest_of(connection: &Connection, webhook: WebhookId) -> Result<Option<DeliveryId>, SqliteError> {
    let sql = "SELECT id FROM webhook_deliveries WHERE webhook = ?1 ORDER BY id DESC LIMIT 1";
    query_optional(connection, sql, [webhook.to_string()], |row| row.parse("id"))
}

fn subscribes_to(types: &[String], word: &str) -> bool {
    EventKind::named(word).is_some_and(|kind| types.iter().any(|wanted| kind.matches(wanted)))
}

struct NewDelivery<'a> {
    id: DeliveryId,
    webhook: WebhookId,
    sequence: u64,
    event: String,
    kind: &'a str,
    data: Option<&'a Map<String, Value>>,
}

fn insert(connection: &Connection, new: &NewDelivery<'_>, at: Timestamp) -> Result<usize, SqliteError> {
    execute(
        connection,
        "INSERT INTO webhook_deliveries (id, webhook, sequence, event, type, data, state, next_at, created_at)
         VALUES (:id, :webhook, :sequence, :event, :type, :data, 'pending', :at, :at)",
        named_params! {
            ":id": new.id.to_string(),
            ":webhook": new.webhook.to_string(),
            ":sequence": sequence(new.sequence),
            ":event": new.event,
            ":type": new.kind,
            ":data": new.data.map(to_json).transpose()?,
            ":at": millis(at),
        },
    )
}

/// Creates a test delivery, which is not an event.
pub(super) fn test(connection: &Connection, command: &TestWebhook) -> Result<Delivery, SqliteError> {
    require_enabled(connection, command.account, command.webhook)?;
    let newest = events::span(connection, EventScope::All)?.newest;
    let new = NewDelivery {
        id: command.delivery,
        webhook: command.webhook,
        // Deleted together with the next event.
        sequence: newest + 1,
        event: command.delivery.to_string(),
        kind: TEST_EVENT,
        data: Some(&command.data),
    };
    insert(connection, &new, command.at)?;
    clear_hold(connection, command.webhook)?;
    by_id(connection, command.webhook, command.delivery)
}

/// Clears the pause that the endpoint requested, because a manual delivery is sent immediately.
fn clear_hold(connection: &Connection, webhook: WebhookId) -> Result<(), SqliteError> {
    execute(connection, "UPDATE webhooks SET hold_until = NULL WHERE id = ?1", [webhook.to_string()])?;
    Ok(())
}

/// Schedules a delivery again, with no attempts counted.
pub(super) fn redeliver(connection: &Connection, command: &Redeliver) -> Result<Delivery, SqliteError> {
    webhooks::by_id(connection, command.account, command.webhook)?;
    by_id(connection, command.webhook, command.delivery)?;
    require_enabled(connection, command.account, command.webhook)?;
    let sql = "UPDATE webhook_deliveries SET state = 'pending', next_at = ?2, tries = 0 WHERE id = ?1";
    execute(connection, sql, params![command.delivery.to_string(), millis(command.at)])?;
    clear_hold(connection, command.webhook)?;
    by_id(connection, command.webhook, command.delivery)
}

fn require_enabled(connection: &Connection, account: AccountId, id: WebhookId) -> Result<(), SqliteError> {
    match webhooks::by_id(connection, account, id)?.disabled {
        Some(_) => Err(Error::WebhookDisabled { id }.into()),
        None => Ok(()),
    }
}

/// Returns a page of a webhook's deliveries, newest first. Ids are in the order of creation.
pub(super) fn list(connection: &Connection, query: ListDeliveries) -> Result<DeliveryPage, SqliteError> {
    webhooks::by_id(connection, query.account, query.webhook)?;
    let before = page_end(query.before);
    let (deliveries, more) = page(
        connection,
        "SELECT * FROM webhook_deliveries WHERE webhook = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
        params![query.webhook.to_string(), before, i64::from(query.limit.max(1)) + 1],
        query.limit,
        Budget::default(),
        decode,
    )?;
    let next = deliveries.last().filter(|_| more).map(|last| last.id);
    Ok(DeliveryPage { deliveries, next })
}

/// Returns the deliveries of a webhook that are due.
pub(super) fn due(connection: &Connection, query: ListDue) -> Result<Vec<DueDelivery>, SqliteError> {
    let sql = "SELECT id, event, sequence, data, tries, created_at FROM webhook_deliveries
               WHERE webhook = ?1 AND state = 'pending' AND next_at <= ?2 ORDER BY next_at, id LIMIT ?3";
    query_all(connection, sql, params![query.webhook.to_string(), millis(query.at), query.limit], |row| {
        let content = match row.get::<Option<String>>("data")? {
            Some(_) => DeliveryContent::Test(row.time("created_at")?, row.json("data")?),
            None => {
                let sql = "SELECT * FROM events WHERE sequence = ?1";
                let event = query_optional(connection, sql, [row.get::<i64>("sequence")?], events::decode)?;
                event.map_or(DeliveryContent::EventDeleted, |event| DeliveryContent::Event(Box::new(event)))
            }
        };
        Ok(DueDelivery {
            id: row.parse("id")?,
            event: row.get("event")?,
            attempts: row.number("tries")?,
            content,
        })
    })
}

/// Records an attempt and its consequences; returns a reason if it disabled the webhook.
pub(super) fn record(
    connection: &Connection,
    command: &RecordAttempt,
) -> Result<Option<DisabledReason>, SqliteError> {
    let id = command.delivery.to_string();
    let sql = "SELECT webhook, attempts FROM webhook_deliveries WHERE id = ?1";
    let found = query_optional(connection, sql, [&id], |row| {
        Ok((row.get::<String>("webhook")?, row.json::<Vec<DeliveryAttempt>>("attempts")?))
    })?;
    let Some((webhook, mut attempts)) = found else {
        return Err(Error::UnknownDelivery { id: command.delivery }.into());
    };
    attempts.push(command.attempt.clone());
    let surplus = attempts.len().saturating_sub(MAX_ATTEMPTS);
    attempts.drain(..surplus);
    let (state, next_at) = match command.outcome {
        DeliveryOutcome::Delivered => (DeliveryState::Delivered, None),
        DeliveryOutcome::RetryAt(at) => (DeliveryState::Pending, Some(at)),
        DeliveryOutcome::Failed => (DeliveryState::Failed, None),
    };
    let sql = "UPDATE webhook_deliveries SET attempts = ?2, state = ?3, next_at = ?4, tries = tries + 1 WHERE id = ?1";
    execute(connection, sql, params![id, to_json(&attempts)?, state.as_str(), next_at.map(millis)])?;
    update_webhook(connection, &webhook, command)
}

/// Applies the result of an attempt to the webhook; returns a reason if it is disabled.
fn update_webhook(
    connection: &Connection,
    webhook: &str,
    command: &RecordAttempt,
) -> Result<Option<DisabledReason>, SqliteError> {
    if command.outcome == DeliveryOutcome::Delivered {
        let sql = "UPDATE webhooks SET failing_since = NULL, hold_until = NULL
                   WHERE id = ?1 AND (failing_since IS NOT NULL OR hold_until IS NOT NULL)";
        execute(connection, sql, [webhook])?;
        return Ok(None);
    }
    let at = command.attempt.at;
    // At the lower end of the clock's range nothing can have been failing for longer.
    let failing_before = millis(at.checked_sub(command.disable_after).unwrap_or(Timestamp::MIN));
    let sql = "UPDATE webhooks SET failing_since = coalesce(failing_since, ?2), hold_until = coalesce(?3, hold_until)
               WHERE id = ?1";
    execute(connection, sql, params![webhook, millis(at), command.hold_until.map(millis)])?;
    let reason = if command.endpoint_gone { DisabledReason::Gone } else { DisabledReason::Failing };
    let sql = "UPDATE webhooks SET disabled_at = ?2, disabled_reason = ?3
               WHERE id = ?1 AND disabled_at IS NULL AND deleted_at IS NULL AND (?4 OR failing_since < ?5)";
    let disabled = execute(
        connection,
        sql,
        params![webhook, millis(at), reason.as_str(), command.endpoint_gone, failing_before],
    )?;
    Ok((disabled > 0).then_some(reason))
}

/// Deletes the deliveries of events that were deleted before older ones of other accounts. Tests, which have the sequence of a later event
/// of any account, are deleted with what is older.
pub(super) fn delete_of_events(connection: &Connection, sequences: &[u64]) -> Result<u64, SqliteError> {
    let mut gone = 0;
    for deleted in sequences {
        let sql = "DELETE FROM webhook_deliveries WHERE sequence = ?1 AND data IS NULL";
        gone += execute(connection, sql, [sequence(*deleted)])? as u64;
    }
    Ok(gone)
}

/// Deletes one batch of deliveries whose event or webhook was deleted, and deleted webhooks without deliveries.
pub(super) fn delete_orphaned(connection: &Connection, batch: u32) -> Result<u64, SqliteError> {
    let oldest = events::span(connection, EventScope::All)?.oldest;
    let sql = "DELETE FROM webhook_deliveries WHERE rowid IN (
                   SELECT rowid FROM webhook_deliveries WHERE sequence < ?1 ORDER BY sequence LIMIT ?2)";
    let mut gone = execute(connection, sql, params![sequence(oldest), batch])?;
    let sql = "DELETE FROM webhook_deliveries WHERE rowid IN (
                   SELECT d.rowid FROM webhooks w JOIN webhook_deliveries d ON d.webhook = w.id
                   WHERE w.deleted_at IS NOT NULL LIMIT ?1)";
    gone += execute(connection, sql, [batch])?;
    let sql = "DELETE FROM webhooks WHERE deleted_at IS NOT NULL
                   AND NOT EXISTS (SELECT 1 FROM webhook_deliveries WHERE webhook = webhooks.id)";
    execute(connection, sql, [])?;
    Ok(gone as u64)
}

fn by_id(connection: &Connection, webhook: WebhookId, id: DeliveryId) -> Result<Delivery, SqliteError> {
    let sql = "SELECT * FROM webhook_deliveries WHERE webhook = ?1 AND id = ?2";
    let found = query_optional(connection, sql, [webhook.to_string(), id.to_string()], decode)?;
    found.ok_or_else(|| Error::UnknownDelivery { id }.into())
}

/// Encodes a sequence. One that does not fit the column is after all events.
fn sequence(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn decode(row: &Columns<'_>) -> Result<Delivery, SqliteError> {
    Ok(Delivery {
        id: row.parse("id")?,
        event: row.get("event")?,
        kind: row.get("type")?,
        state: row.parse("state")?,
        attempts: row.json("attempts")?,
        next_attempt_at: row.optional_time("next_at")?,
        created_at: row.time("created_at")?,
    })
}
