//! The audit log in SQLite.

use async_trait::async_trait;
use rusqlite::{Connection, named_params};
use skep_api::{
    AuditId, ErrorCode,
    audit::{AuditEntry, AuditKey, Outcome},
    budget::Budget,
};

use super::{
    SqliteStore,
    columns::{Columns, execute, invalid_column, millis, page_end, query_all, to_json},
    error::SqliteError,
    retention,
};
use crate::{AuditPage, AuditStore, ListAudit, NewAuditEntry, OutcomeFilter, TrimHistory, Trimmed};

#[async_trait]
impl AuditStore for SqliteStore {
    async fn record_audit(&self, entries: Vec<NewAuditEntry>) -> crate::Result<()> {
        self.writer.run(move |c| record(c, &entries)).await
    }

    async fn list_audit(&self, query: ListAudit) -> crate::Result<AuditPage> {
        self.readers.run(move |c| list(c, &query)).await
    }

    async fn trim_history(&self, command: TrimHistory) -> crate::Result<Trimmed> {
        self.writer.run(move |c| retention::trim(c, &command)).await
    }
}

/// Writes entries and ignores existing ones, because a batch may be retried.
fn record(connection: &Connection, entries: &[NewAuditEntry]) -> Result<(), SqliteError> {
    for NewAuditEntry { id, account, entry } in entries {
        execute(
            connection,
            "INSERT INTO audit (id, account, key, prefix, address, action, resource, egress, status, code, request_id, at)
             VALUES (:id, :account, :key, :prefix, :address, :action, :resource, :egress, :status, :code, :request_id, :at)
             ON CONFLICT (id) DO NOTHING",
            named_params! {
                ":id": id.to_string(),
                ":account": account.map(|account| account.to_string()),
                ":key": entry.key.as_ref().map(|key| key.id.to_string()),
                ":prefix": entry.key.as_ref().map(|key| key.prefix.as_str()),
                ":address": entry.address.map(|address| address.to_string()),
                ":action": entry.action,
                ":resource": entry.resource,
                ":egress": entry.egress.as_ref().map(to_json).transpose()?,
                ":status": entry.outcome.status,
                ":code": entry.outcome.code.map(ErrorCode::as_str),
                ":request_id": entry.request_id,
                ":at": millis(entry.at),
            },
        )?;
    }
    Ok(())
}

fn list(connection: &Connection, query: &ListAudit) -> Result<AuditPage, SqliteError> {
    let limit = usize::try_from(query.limit.max(1)).unwrap_or(usize::MAX);
    let mut found = select(connection, query, Some(query.account.to_string()))?;
    if query.include_unattributed {
        // Two queries, each with the index on `account`. A single one would scan the entries of all accounts.
        found.extend(select(connection, query, None)?);
        found.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
    }
    let mut more = found.len() > limit;
    found.truncate(limit);
    more |= Budget::default().truncate_page(&mut found);
    let next = found.last().filter(|_| more).map(|(id, _)| *id);
    Ok(AuditPage { entries: found.into_iter().map(|(_, entry)| entry).collect(), next })
}

/// Returns the newest entries of one account, or of none: one more than the page size, which shows whether there is a
/// next page.
fn select(
    connection: &Connection,
    query: &ListAudit,
    account: Option<String>,
) -> Result<Vec<(AuditId, AuditEntry)>, SqliteError> {
    let filter = &query.filter;
    let (mut done, mut refused, mut status, mut code) = (false, false, None, None);
    match filter.outcome {
        None => {}
        Some(OutcomeFilter::Succeeded) => done = true,
        Some(OutcomeFilter::Refused) => refused = true,
        Some(OutcomeFilter::Status(wanted)) => status = Some(wanted),
        Some(OutcomeFilter::Code(wanted)) => code = Some(wanted.as_str()),
    }
    query_all(
        connection,
        "SELECT * FROM audit WHERE account IS :account AND id < :before
             AND (:key IS NULL OR key = :key) AND (:action IS NULL OR action = :action)
             AND (NOT :done OR status < 400) AND (NOT :refused OR status >= 400)
             AND (:status IS NULL OR status = :status) AND (:code IS NULL OR code = :code)
             AND (:since IS NULL OR at >= :since) AND (:until IS NULL OR at < :until)
         ORDER BY id DESC LIMIT :limit",
        named_params! {
            ":account": account,
            ":before": page_end(query.before),
            ":key": filter.key.map(|key| key.to_string()),
            ":action": filter.action,
            ":done": done,
            ":refused": refused,
            ":status": status,
            ":code": code,
            ":since": filter.since.map(millis),
            ":until": filter.until.map(millis),
            ":limit": i64::from(query.limit.max(1)) + 1,
        },
        decode,
    )
}

fn decode(row: &Columns<'_>) -> Result<(AuditId, AuditEntry), SqliteError> {
    let key = match row.parse_optional("key")? {
        Some(id) => Some(AuditKey { id, prefix: row.get("prefix")? }),
        None => None,
    };
    let code = row.get::<Option<String>>("code")?.map(|word| code_of(&word)).transpose()?;
    let entry = AuditEntry {
        at: row.time("at")?,
        key,
        address: row.parse_optional("address")?,
        action: row.get("action")?,
        resource: row.get("resource")?,
        egress: row.optional_json("egress")?,
        outcome: Outcome { status: row.optional_number("status")?, code },
        request_id: row.get("request_id")?,
    };
    Ok((row.parse("id")?, entry))
}

fn code_of(word: &str) -> Result<ErrorCode, SqliteError> {
    let known = ErrorCode::ALL.iter().copied().find(|code| code.as_str() == word);
    known.ok_or_else(|| invalid_column("code", format!("unknown error code `{word}`")))
}
