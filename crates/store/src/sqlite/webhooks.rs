//! Webhooks in SQLite, without their deliveries, which are in `deliveries`.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, named_params, params};
use skep_api::{
    AccountId, WebhookId,
    webhooks::{Delivery, DisabledReason},
};

use super::{
    SqliteStore, accounts,
    columns::{Columns, execute, millis, page_end, query_all, query_optional, to_json},
    deliveries,
    error::SqliteError,
};
use crate::{
    ChangeWebhook, CreateWebhook, DeleteWebhook, DeliveryPage, Disabled, DueDelivery, DueWebhook,
    EnqueueDeliveries, Enqueued, Error, ListDeliveries, ListDue, ListWebhooks, PreviousSecret, RecordAttempt,
    Redeliver, RotateWebhook, TestWebhook, Webhook, WebhookPage, WebhookStore,
};

#[async_trait]
impl WebhookStore for SqliteStore {
    async fn create_webhook(&self, command: CreateWebhook) -> crate::Result<Webhook> {
        self.writer.run(move |c| create(c, &command)).await
    }

    async fn change_webhook(&self, command: ChangeWebhook) -> crate::Result<Webhook> {
        self.writer.run(move |c| alter(c, &command)).await
    }

    async fn rotate_webhook(&self, command: RotateWebhook) -> crate::Result<Webhook> {
        self.writer.run(move |c| rotate(c, &command)).await
    }

    async fn delete_webhook(&self, command: DeleteWebhook) -> crate::Result<()> {
        self.writer.run(move |c| delete(c, command)).await
    }

    async fn webhook(&self, account: AccountId, id: WebhookId) -> crate::Result<Webhook> {
        self.readers.run(move |c| by_id(c, account, id)).await
    }

    async fn list_webhooks(&self, query: ListWebhooks) -> crate::Result<WebhookPage> {
        self.readers.run(move |c| list(c, query)).await
    }

    async fn list_deliveries(&self, query: ListDeliveries) -> crate::Result<DeliveryPage> {
        self.readers.run(move |c| deliveries::list(c, query)).await
    }

    async fn redeliver(&self, command: Redeliver) -> crate::Result<Delivery> {
        self.writer.run(move |c| deliveries::redeliver(c, &command)).await
    }

    async fn test_webhook(&self, command: TestWebhook) -> crate::Result<Delivery> {
        self.writer.run(move |c| deliveries::test(c, &command)).await
    }

    async fn enqueue_deliveries(&self, command: EnqueueDeliveries) -> crate::Result<Enqueued> {
        self.writer.run(move |c| deliveries::enqueue(c, &command)).await
    }

    async fn due_webhooks(&self) -> crate::Result<Vec<DueWebhook>> {
        self.readers.run(due).await
    }

    async fn due_deliveries(&self, query: ListDue) -> crate::Result<Vec<DueDelivery>> {
        self.readers.run(move |c| deliveries::due(c, query)).await
    }

    async fn record_attempt(&self, command: RecordAttempt) -> crate::Result<Option<DisabledReason>> {
        self.writer.run(move |c| deliveries::record(c, &command)).await
    }
}

fn create(connection: &Connection, command: &CreateWebhook) -> Result<Webhook, SqliteError> {
    accounts::by_id(connection, command.account)?;
    let account = command.account.to_string();
    let sql = "SELECT count(*) AS count FROM webhooks WHERE account = ?1 AND deleted_at IS NULL";
    let count: u32 = query_optional(connection, sql, [&account], |row| row.number("count"))?.unwrap_or(0);
    if count >= command.max_webhooks {
        return Err(Error::TooManyWebhooks { most: command.max_webhooks }.into());
    }
    execute(
        connection,
        "INSERT INTO webhooks (id, account, url, types, description, secret, cursor, created_at, updated_at)
         VALUES (:id, :account, :url, :types, :description, :secret,
                 coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0), :at, :at)",
        named_params! {
            ":id": command.id.to_string(),
            ":account": account,
            ":url": command.url,
            ":types": to_json(&command.types)?,
            ":description": command.description,
            ":secret": command.secret,
            ":at": millis(command.at),
        },
    )?;
    by_id(connection, command.account, command.id)
}

/// Changes the mutable fields of a webhook.
fn alter(connection: &Connection, command: &ChangeWebhook) -> Result<Webhook, SqliteError> {
    execute(
        connection,
        "UPDATE webhooks SET
             url = coalesce(:url, url),
             types = coalesce(:types, types),
             description = CASE WHEN :described THEN :description ELSE description END,
             cursor = CASE WHEN :enabled AND disabled_at IS NOT NULL
                           THEN coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)
                           ELSE cursor END,
             failing_since = CASE WHEN :enabled THEN NULL ELSE failing_since END,
             hold_until = CASE WHEN :enabled THEN NULL ELSE hold_until END,
             disabled_at = CASE WHEN :enabled IS NULL THEN disabled_at
                                WHEN :enabled THEN NULL ELSE coalesce(disabled_at, :at) END,
             disabled_reason = CASE WHEN :enabled IS NULL THEN disabled_reason
                                    WHEN :enabled THEN NULL ELSE coalesce(disabled_reason, :reason) END,
             updated_at = :at
         WHERE account = :account AND id = :id AND deleted_at IS NULL",
        named_params! {
            ":account": command.account.to_string(),
            ":id": command.id.to_string(),
            ":url": command.url,
            ":types": command.types.as_ref().map(to_json).transpose()?,
            ":described": command.description.is_some(),
            ":description": command.description.as_ref().and_then(Option::as_ref),
            ":enabled": command.enabled,
            ":reason": DisabledReason::Requested.as_str(),
            ":at": millis(command.at),
        },
    )?;
    by_id(connection, command.account, command.id)
}

/// Replaces the secret of a webhook.
fn rotate(connection: &Connection, command: &RotateWebhook) -> Result<Webhook, SqliteError> {
    execute(
        connection,
        "UPDATE webhooks SET
             previous_secret = CASE WHEN :until IS NULL THEN NULL ELSE secret END, previous_until = :until,
             secret = :secret, updated_at = :at
         WHERE account = :account AND id = :id AND deleted_at IS NULL",
        named_params! {
            ":account": command.account.to_string(),
            ":id": command.id.to_string(),
            ":secret": command.secret,
            ":until": command.previous_until.map(millis),
            ":at": millis(command.at),
        },
    )?;
    by_id(connection, command.account, command.id)
}

/// Marks a webhook as deleted and removes its secrets. The row is deleted after its deliveries.
fn delete(connection: &Connection, command: DeleteWebhook) -> Result<(), SqliteError> {
    let DeleteWebhook { account, id, at } = command;
    if mark_deleted(connection, account, Some(id), at)? == 0 {
        return Err(unknown(id).into());
    }
    Ok(())
}

pub(super) fn delete_all(
    connection: &Connection,
    account: AccountId,
    at: Timestamp,
) -> Result<(), SqliteError> {
    mark_deleted(connection, account, None, at)?;
    Ok(())
}

fn mark_deleted(
    connection: &Connection,
    account: AccountId,
    id: Option<WebhookId>,
    at: Timestamp,
) -> Result<usize, SqliteError> {
    execute(
        connection,
        "UPDATE webhooks SET deleted_at = ?3, secret = x'', previous_secret = NULL, previous_until = NULL
         WHERE account = ?1 AND (?2 IS NULL OR id = ?2) AND deleted_at IS NULL",
        params![account.to_string(), id.map(|id| id.to_string()), millis(at)],
    )
}

pub(super) fn by_id(
    connection: &Connection,
    account: AccountId,
    id: WebhookId,
) -> Result<Webhook, SqliteError> {
    let sql = "SELECT * FROM webhooks WHERE account = ?1 AND id = ?2 AND deleted_at IS NULL";
    let found = query_optional(connection, sql, [account.to_string(), id.to_string()], decode)?;
    found.ok_or_else(|| unknown(id).into())
}

/// Returns a page of an account's webhooks, newest first. Ids are in the order of creation.
fn list(connection: &Connection, query: ListWebhooks) -> Result<WebhookPage, SqliteError> {
    let before = page_end(query.before);
    let limit = usize::try_from(query.limit.max(1)).unwrap_or(usize::MAX);
    let mut webhooks = query_all(
        connection,
        "SELECT * FROM webhooks WHERE account = ?1 AND id < ?2 AND deleted_at IS NULL ORDER BY id DESC LIMIT ?3",
        // One more row than the page size shows whether there is a next page.
        params![query.account.to_string(), before, i64::from(query.limit.max(1)) + 1],
        decode,
    )?;
    let more = webhooks.len() > limit;
    webhooks.truncate(limit);
    let next = webhooks.last().filter(|_| more).map(|last| last.id);
    Ok(WebhookPage { webhooks, next })
}

/// Returns each enabled webhook and when its next delivery is due.
fn due(connection: &Connection) -> Result<Vec<DueWebhook>, SqliteError> {
    let sql = "SELECT id, account, failing_since, hold_until, (
                   SELECT min(next_at) FROM webhook_deliveries WHERE webhook = webhooks.id AND state = 'pending'
               ) AS next_at
               FROM webhooks WHERE deleted_at IS NULL AND disabled_at IS NULL";
    query_all(connection, sql, [], |row| {
        let (next, hold) = (row.optional_time("next_at")?, row.optional_time("hold_until")?);
        Ok(DueWebhook {
            id: row.parse("id")?,
            account: row.parse("account")?,
            failing: row.optional_time("failing_since")?.is_some(),
            next_at: next.map(|next| hold.map_or(next, |hold| next.max(hold))),
        })
    })
}

fn unknown(id: WebhookId) -> Error {
    Error::UnknownWebhook { id }
}

fn decode(row: &Columns<'_>) -> Result<Webhook, SqliteError> {
    let previous = match (row.get("previous_secret")?, row.optional_time("previous_until")?) {
        (Some(secret), Some(until)) => Some(PreviousSecret { secret, until }),
        _ => None,
    };
    let disabled = match (row.optional_time("disabled_at")?, row.parse_optional("disabled_reason")?) {
        (Some(at), Some(reason)) => Some(Disabled { at, reason }),
        _ => None,
    };
    Ok(Webhook {
        id: row.parse("id")?,
        account: row.parse("account")?,
        url: row.get("url")?,
        types: row.json("types")?,
        description: row.get("description")?,
        secret: row.get("secret")?,
        previous,
        disabled,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}
