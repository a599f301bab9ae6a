//! Idempotency keys: the answer of a request is stored in the transaction of its effect and repeated for retries.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, params};
use serde::{Serialize, de::DeserializeOwned};
use skep_api::AccountId;

use super::super::{
    columns::{execute, invalid_column, millis, query_optional, to_json},
    error::SqliteError,
};
use crate::{Answered, Error, IdempotentRequest, TicketCall};

/// How long answers are kept.
const RETENTION: SignedDuration = SignedDuration::from_hours(24);
/// Number of expired answers to delete with each new one; more than one, so that their number decreases.
const EXPIRED_BATCH: u32 = 4;

/// Returns the stored answer of the request, or that of `work`, which is stored if `should_store` returns true.
pub(super) fn run_once<T: Serialize + DeserializeOwned>(
    connection: &Connection,
    call: &TicketCall,
    once: Option<&IdempotentRequest>,
    should_store: impl FnOnce(&T) -> bool,
    work: impl FnOnce() -> Result<T, SqliteError>,
) -> Result<Answered<T>, SqliteError> {
    let Some(once) = once else { return Ok(Answered { answer: work()?, replayed: false }) };
    if let Some(answer) = find_answer(connection, call.account, once, call.at)? {
        return Ok(Answered { answer, replayed: true });
    }
    let answer = work()?;
    if should_store(&answer) {
        store_answer(connection, call.account, once, call.at, &answer)?;
    }
    Ok(Answered { answer, replayed: false })
}

/// Stores an answer, in the transaction of its effect.
pub(in super::super) fn store_answer(
    connection: &Connection,
    account: AccountId,
    once: &IdempotentRequest,
    at: Timestamp,
    answer: &impl Serialize,
) -> Result<(), SqliteError> {
    let sql = "INSERT OR REPLACE INTO idempotency (account, path, key, body, answer, at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let account = account.to_string();
    execute(
        connection,
        sql,
        params![account, once.path, once.key, once.body_hash, to_json(answer)?, millis(at)],
    )?;
    let sweep = "DELETE FROM idempotency WHERE rowid IN
                 (SELECT rowid FROM idempotency WHERE at < ?1 ORDER BY at LIMIT ?2)";
    execute(connection, sweep, params![millis(oldest(at)), EXPIRED_BATCH])?;
    Ok(())
}

/// Returns the stored answer of the request, if there is one.
pub(in super::super) fn find_answer<T: DeserializeOwned>(
    connection: &Connection,
    account: AccountId,
    once: &IdempotentRequest,
    at: Timestamp,
) -> Result<Option<T>, SqliteError> {
    let sql =
        "SELECT body, answer FROM idempotency WHERE account = ?1 AND path = ?2 AND key = ?3 AND at >= ?4";
    let parameters = params![account.to_string(), once.path, once.key, millis(oldest(at))];
    let found = query_optional(connection, sql, parameters, |row| {
        Ok((row.get::<Vec<u8>>("body")?, row.get::<String>("answer")?))
    })?;
    let Some((body, answer)) = found else { return Ok(None) };
    if body != once.body_hash {
        return Err(Error::IdempotencyMismatch { key: once.key.clone() }.into());
    }
    serde_json::from_str(&answer).map(Some).map_err(|error| invalid_column("answer", error))
}

/// Deletes the stored answer of the request, if there is one.
pub(in super::super) fn forget_answer(
    connection: &Connection,
    account: AccountId,
    once: &IdempotentRequest,
) -> Result<(), SqliteError> {
    let sql = "DELETE FROM idempotency WHERE account = ?1 AND path = ?2 AND key = ?3 AND body = ?4";
    execute(connection, sql, params![account.to_string(), once.path, once.key, once.body_hash])?;
    Ok(())
}

fn oldest(at: Timestamp) -> Timestamp {
    at.checked_sub(RETENTION).unwrap_or(Timestamp::MIN)
}
