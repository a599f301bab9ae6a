//! Sessions in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};
use skep_accounts::{KeyHash, SessionHash};
use skep_api::KeyId;
use tokio::sync::broadcast;

use super::{
    SqliteStore,
    columns::{Columns, execute, millis, query_optional},
    error::SqliteError,
    keys,
};
use crate::{Error, NewSession, NewSessionLink, PresentedSession, SessionStore, SessionUse};

/// Maximum number of sessions of one key, and of its links; beyond that the oldest is deleted. Otherwise a caller could
/// fill the disk with them.
const MAX_PER_KEY: u32 = 100;
/// Number of expired sessions or links to delete whenever one is created.
const EXPIRED_BATCH: u32 = 10;

#[async_trait]
impl SessionStore for SqliteStore {
    async fn create_session(&self, command: NewSession) -> crate::Result<()> {
        self.writer.run(move |c| create(c, &command)).await
    }

    async fn session(&self, hash: SessionHash) -> crate::Result<Option<PresentedSession>> {
        self.readers.run(move |c| presented(c, hash)).await
    }

    async fn end_session(&self, hash: SessionHash) -> crate::Result<bool> {
        let listeners = self.ended_sessions.clone();
        let notify = move |ended: &bool| {
            if *ended {
                // Without subscribers nobody needs it.
                let _ = listeners.send(hash);
            }
        };
        self.writer.run_and_notify(move |c| end(c, hash), notify).await
    }

    async fn record_session_uses(&self, uses: Vec<SessionUse>) -> crate::Result<()> {
        self.writer.run(move |c| record_uses(c, &uses)).await
    }

    async fn create_session_link(&self, command: NewSessionLink) -> crate::Result<()> {
        self.writer.run(move |c| create_link(c, &command)).await
    }

    async fn take_session_link(&self, hash: SessionHash) -> crate::Result<Option<PresentedSession>> {
        self.writer.run(move |c| take_link(c, hash)).await
    }

    fn ended_sessions(&self) -> broadcast::Receiver<SessionHash> {
        self.ended_sessions.subscribe()
    }
}

fn create(connection: &Connection, command: &NewSession) -> Result<(), SqliteError> {
    require_key(connection, command.key)?;
    execute(
        connection,
        "DELETE FROM sessions WHERE sha256 IN (SELECT sha256 FROM sessions WHERE expires_at <= ?1 LIMIT ?2)",
        params![millis(command.at), EXPIRED_BATCH],
    )?;
    let key = command.key.to_string();
    execute(
        connection,
        "INSERT INTO sessions (sha256, key, created_at, last_used_at, expires_at) VALUES (?1, ?2, ?3, ?3, ?4)",
        params![command.hash.as_bytes(), key, millis(command.at), millis(command.expires_at)],
    )?;
    execute(
        connection,
        "DELETE FROM sessions WHERE sha256 <> ?3 AND sha256 IN (
             SELECT sha256 FROM sessions WHERE key = ?1 ORDER BY created_at DESC LIMIT -1 OFFSET ?2)",
        params![key, MAX_PER_KEY, command.hash.as_bytes()],
    )?;
    Ok(())
}

fn create_link(connection: &Connection, command: &NewSessionLink) -> Result<(), SqliteError> {
    require_key(connection, command.key)?;
    execute(
        connection,
        "DELETE FROM session_links
         WHERE sha256 IN (SELECT sha256 FROM session_links WHERE expires_at <= ?1 LIMIT ?2)",
        params![millis(command.at), EXPIRED_BATCH],
    )?;
    let key = command.key.to_string();
    execute(
        connection,
        "INSERT INTO session_links (sha256, key, created_at, expires_at) VALUES (?1, ?2, ?3, ?4)",
        params![command.hash.as_bytes(), key, millis(command.at), millis(command.expires_at)],
    )?;
    execute(
        connection,
        "DELETE FROM session_links WHERE sha256 <> ?3 AND sha256 IN (
             SELECT sha256 FROM session_links WHERE key = ?1 ORDER BY created_at DESC LIMIT -1 OFFSET ?2)",
        params![key, MAX_PER_KEY, command.hash.as_bytes()],
    )?;
    Ok(())
}

fn require_key(connection: &Connection, key: KeyId) -> Result<(), SqliteError> {
    let found =
        query_optional(connection, "SELECT 1 FROM keys WHERE id = ?1", [key.to_string()], |_| Ok(()))?;
    Ok(found.ok_or(Error::UnknownKey { id: key })?)
}

/// Returns the session with this hash, whether or not it is valid.
fn presented(connection: &Connection, hash: SessionHash) -> Result<Option<PresentedSession>, SqliteError> {
    let found = query_optional(
        connection,
        "SELECT keys.sha256 AS key_sha256, sessions.last_used_at, sessions.expires_at
         FROM sessions JOIN keys ON keys.id = sessions.key WHERE sessions.sha256 = ?1",
        [hash.as_bytes()],
        |row| decode(row, "last_used_at"),
    )?;
    with_key(connection, found)
}

/// Deletes a link and returns it.
fn take_link(connection: &Connection, hash: SessionHash) -> Result<Option<PresentedSession>, SqliteError> {
    let found = query_optional(
        connection,
        "SELECT keys.sha256 AS key_sha256, session_links.created_at, session_links.expires_at
         FROM session_links JOIN keys ON keys.id = session_links.key WHERE session_links.sha256 = ?1",
        [hash.as_bytes()],
        |row| decode(row, "created_at"),
    )?;
    execute(connection, "DELETE FROM session_links WHERE sha256 = ?1", [hash.as_bytes()])?;
    with_key(connection, found)
}

/// A session or a link, with the hash of its key.
struct SessionRow {
    key: KeyHash,
    last_used_at: Timestamp,
    expires_at: Timestamp,
}

fn decode(row: &Columns<'_>, last_used_at: &str) -> Result<SessionRow, SqliteError> {
    Ok(SessionRow {
        key: KeyHash::from_bytes(row.get("key_sha256")?),
        last_used_at: row.time(last_used_at)?,
        expires_at: row.time("expires_at")?,
    })
}

fn with_key(
    connection: &Connection,
    row: Option<SessionRow>,
) -> Result<Option<PresentedSession>, SqliteError> {
    let Some(SessionRow { key, last_used_at, expires_at }) = row else { return Ok(None) };
    let key = keys::presented(connection, key)?;
    Ok(key.map(|key| PresentedSession { key, expires_at, last_used_at }))
}

fn record_uses(connection: &Connection, uses: &[SessionUse]) -> Result<(), SqliteError> {
    for one in uses {
        execute(
            connection,
            "UPDATE sessions SET last_used_at = ?2 WHERE sha256 = ?1 AND last_used_at < ?2",
            params![one.hash.as_bytes(), millis(one.at)],
        )?;
    }
    Ok(())
}

/// Deletes a session; returns whether it existed.
fn end(connection: &Connection, hash: SessionHash) -> Result<bool, SqliteError> {
    Ok(execute(connection, "DELETE FROM sessions WHERE sha256 = ?1", [hash.as_bytes()])? == 1)
}
