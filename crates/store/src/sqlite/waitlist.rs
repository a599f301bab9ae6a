//! The waitlist in SQLite.

use async_trait::async_trait;
use rusqlite::{Connection, named_params, params};
use skep_api::{WaitlistId, budget::Budget, waitlist::WaitlistEntry};

use super::{
    SqliteStore,
    columns::{Columns, execute, millis, page_end, query_all, query_optional},
    error::SqliteError,
};
use crate::{Error, JoinWaitlist, ListWaitlist, RemoveFromWaitlist, WaitlistPage, WaitlistStore};

#[async_trait]
impl WaitlistStore for SqliteStore {
    async fn join_waitlist(&self, command: JoinWaitlist) -> crate::Result<()> {
        let id = WaitlistId::generate();
        self.writer.run(move |c| join(c, id, &command)).await
    }

    async fn list_waitlist(&self, query: ListWaitlist) -> crate::Result<WaitlistPage> {
        self.readers.run(move |c| list(c, query)).await
    }

    async fn remove_from_waitlist(&self, command: RemoveFromWaitlist) -> crate::Result<WaitlistEntry> {
        self.writer.run(move |c| remove(c, &command)).await
    }
}

/// Adds an address. Inserts a row even if the address is on the list, so that the response time does not reveal that.
fn join(connection: &Connection, id: WaitlistId, command: &JoinWaitlist) -> Result<(), SqliteError> {
    execute(
        connection,
        "INSERT INTO waitlist (id, address, email, name, company, use_case, joined_at)
         VALUES (:id, :address, :email, :name, :company, :use_case, :at)",
        named_params! {
            ":id": id.to_string(),
            ":address": comparable(&command.email),
            ":email": command.email,
            ":name": command.name,
            ":company": command.company,
            ":use_case": command.use_case,
            ":at": millis(command.at),
        },
    )?;
    Ok(())
}

/// Returns a page of the list, newest first. Each address appears once, with its first row.
fn list(connection: &Connection, query: ListWaitlist) -> Result<WaitlistPage, SqliteError> {
    let before = page_end(query.before);
    let limit = usize::try_from(query.limit.max(1)).unwrap_or(usize::MAX);
    let mut entries = query_all(
        connection,
        "SELECT * FROM waitlist AS found WHERE id < ?1 AND NOT EXISTS (
             SELECT 1 FROM waitlist AS earlier WHERE earlier.address = found.address AND earlier.id < found.id
         ) ORDER BY id DESC LIMIT ?2",
        // One more row than the page size shows whether there is a next page.
        params![before, i64::from(query.limit.max(1)) + 1],
        decode,
    )?;
    let mut more = entries.len() > limit;
    entries.truncate(limit);
    more |= Budget::default().truncate_page(&mut entries);
    let next = entries.last().filter(|_| more).map(|last| last.id);
    Ok(WaitlistPage { entries, next })
}

/// Deletes all rows of an address and returns the first of them.
fn remove(connection: &Connection, command: &RemoveFromWaitlist) -> Result<WaitlistEntry, SqliteError> {
    let (entry, address) = match command {
        RemoveFromWaitlist::Id(id) => {
            let sql = "SELECT * FROM waitlist WHERE id = ?1";
            let found = query_optional(connection, sql, [id.to_string()], decode)?;
            (id.to_string(), found.map(|entry| comparable(&entry.email)))
        }
        RemoveFromWaitlist::Email(email) => (email.clone(), Some(comparable(email))),
    };
    let unknown = || SqliteError::from(Error::UnknownWaitlistEntry { entry: entry.clone() });
    let address = address.ok_or_else(unknown)?;
    let sql = "SELECT * FROM waitlist WHERE address = ?1 ORDER BY id LIMIT 1";
    let first = query_optional(connection, sql, [&address], decode)?.ok_or_else(unknown)?;
    execute(connection, "DELETE FROM waitlist WHERE address = ?1", [&address])?;
    Ok(first)
}

/// Normalises an address for comparison. By the standard only the domain is case-insensitive; in practice the whole
/// address is.
fn comparable(email: &str) -> String {
    email.to_lowercase()
}

fn decode(row: &Columns<'_>) -> Result<WaitlistEntry, SqliteError> {
    Ok(WaitlistEntry {
        id: row.parse("id")?,
        email: row.get("email")?,
        name: row.get("name")?,
        company: row.get("company")?,
        use_case: row.get("use_case")?,
        joined_at: row.time("joined_at")?,
    })
}
