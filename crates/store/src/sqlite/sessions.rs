//! Sessions in SQLite.

use async_trait::async_trait;
use rusqlite::{Connection, params};
use skep_accounts::SessionHash;

use super::{
    SqliteStore,
    columns::{execute, millis, query_optional},
    error::SqliteError,
    keys,
};
use crate::{Error, NewSession, PresentedSession, SessionStore};

/// Maximum number of sessions of one key; beyond that the oldest is deleted. Otherwise a caller could fill the disk
/// with sessions.
const MAX_SESSIONS_PER_KEY: u32 = 100;
/// Number of expired sessions to delete whenever one is created.
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
        self.writer.run(move |c| end(c, hash)).await
    }
}

fn create(connection: &Connection, command: &NewSession) -> Result<(), SqliteError> {
    let key = command.key.to_string();
    let known = query_optional(connection, "SELECT id FROM keys WHERE id = ?1", [&key], |row| {
        row.get::<String>("id")
    })?;
    known.ok_or(Error::UnknownKey { id: command.key })?;
    execute(
        connection,
        "DELETE FROM sessions WHERE sha256 IN (SELECT sha256 FROM sessions WHERE expires_at <= ?1 LIMIT ?2)",
        params![millis(command.at), EXPIRED_BATCH],
    )?;
    execute(
        connection,
        "INSERT INTO sessions (sha256, key, created_at, expires_at) VALUES (?1, ?2, ?3, ?4)",
        params![command.hash.as_bytes(), key, millis(command.at), millis(command.expires_at)],
    )?;
    execute(
        connection,
        "DELETE FROM sessions WHERE sha256 <> ?3 AND sha256 IN (
             SELECT sha256 FROM sessions WHERE key = ?1 ORDER BY created_at DESC LIMIT -1 OFFSET ?2)",
        params![key, MAX_SESSIONS_PER_KEY, command.hash.as_bytes()],
    )?;
    Ok(())
}

/// Returns the session with this hash, whether or not it is valid.
fn presented(connection: &Connection, hash: SessionHash) -> Result<Option<PresentedSession>, SqliteError> {
    let found = query_optional(
        connection,
        "SELECT keys.sha256 AS key_sha256, sessions.expires_at FROM sessions JOIN keys ON keys.id = sessions.key
         WHERE sessions.sha256 = ?1",
        [hash.as_bytes()],
        |row| Ok((row.get::<[u8; 32]>("key_sha256")?, row.time("expires_at")?)),
    )?;
    let Some((key, expires_at)) = found else { return Ok(None) };
    let key = keys::presented(connection, skep_accounts::KeyHash::from_bytes(key))?;
    Ok(key.map(|key| PresentedSession { key, expires_at }))
}

/// Deletes a session; returns whether it existed.
fn end(connection: &Connection, hash: SessionHash) -> Result<bool, SqliteError> {
    Ok(execute(connection, "DELETE FROM sessions WHERE sha256 = ?1", [hash.as_bytes()])? == 1)
}
