//! Requests that have their effect once: the answer is kept with the effect, in one transaction.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, params};
use serde::{Serialize, de::DeserializeOwned};
use skep_api::AccountId;

use super::super::{
    columns::{broken, change, json, millis, one},
    fault::Fault,
};
use crate::{Answered, Error, Once, TicketCall};

/// How long an answer is kept.
const KEPT: SignedDuration = SignedDuration::from_hours(24);
/// Old answers that go with each new one: more than one, so that they become fewer.
const SWEPT: u32 = 4;

/// The answer that was given before, or the one of `work`, which is kept where it is worth keeping.
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

/// Keeps an answer, in the transaction of its effect.
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

/// The answer that was given before, if there is one.
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
