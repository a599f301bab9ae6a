//! Idempotency keys: the answer of a request is stored in the transaction of its effect and repeated for retries.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, params};
use serde::{Serialize, de::DeserializeOwned};
use skep_api::AccountId;

use super::super::{
    columns::{broken, change, json, millis, one},
    fault::Fault,
};
use crate::{Answered, Error, Once, TicketCall};

/// How long answers are kept.
const KEPT: SignedDuration = SignedDuration::from_hours(24);
/// Number of expired answers to delete with each new one; more than one, so that their number decreases.
const SWEPT: u32 = 4;

/// Returns the stored answer of the request, or that of `work`, which is stored if `worth_keeping` returns true.
pub(super) fn answer<T: Serialize + DeserializeOwned>(
    connection: &Connection,
    call: &TicketCall,
    once: Option<&Once>,
    worth_keeping: impl FnOnce(&T) -> bool,
    work: impl FnOnce() -> Result<T, Fault>,
) -> Result<Answered<T>, Fault> {
    let Some(once) = once else { return Ok(Answered { answer: work()?, replayed: false }) };
    if let Some(answer) = given(connection, call.account, once, call.at)? {
        return Ok(Answered { answer, replayed: true });
    }
    let answer = work()?;
    if worth_keeping(&answer) {
        keep(connection, call.account, once, call.at, &answer)?;
    }
    Ok(Answered { answer, replayed: false })
}

/// Stores an answer, in the transaction of its effect.
pub(in super::super) fn keep(
    connection: &Connection,
    account: AccountId,
    once: &Once,
    at: Timestamp,
    answer: &impl Serialize,
) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO idempotency (account, path, key, body, answer, at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let account = account.to_string();
    change(connection, sql, params![account, once.path, once.key, once.body, json(answer)?, millis(at)])?;
    let sweep = "DELETE FROM idempotency WHERE rowid IN
                 (SELECT rowid FROM idempotency WHERE at < ?1 ORDER BY at LIMIT ?2)";
    change(connection, sweep, params![millis(oldest(at)), SWEPT])?;
    Ok(())
}

/// Returns the stored answer of the request, if there is one.
pub(in super::super) fn given<T: DeserializeOwned>(
    connection: &Connection,
    account: AccountId,
    once: &Once,
    at: Timestamp,
) -> Result<Option<T>, Fault> {
    let sql =
        "SELECT body, answer FROM idempotency WHERE account = ?1 AND path = ?2 AND key = ?3 AND at >= ?4";
    let parameters = params![account.to_string(), once.path, once.key, millis(oldest(at))];
    let found = one(connection, sql, parameters, |row| {
        Ok((row.plain::<Vec<u8>>("body")?, row.plain::<String>("answer")?))
    })?;
    let Some((body, answer)) = found else { return Ok(None) };
    if body != once.body {
        return Err(Error::IdempotencyMismatch { key: once.key.clone() }.into());
    }
    serde_json::from_str(&answer).map(Some).map_err(|error| broken("answer", error))
}

fn oldest(at: Timestamp) -> Timestamp {
    at.checked_sub(KEPT).unwrap_or(Timestamp::MIN)
}
