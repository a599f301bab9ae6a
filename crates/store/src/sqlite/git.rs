//! Git credentials in SQLite.

use rusqlite::{Connection, params};
use skep_api::AccountId;

use super::{
    accounts,
    columns::{execute, millis, query_all},
    fault::Fault,
};
use crate::{GitCredential, SetGitCredential};

pub(super) fn set(connection: &Connection, command: &SetGitCredential) -> Result<(), Fault> {
    accounts::by_id(connection, command.account)?;
    let GitCredential { host, username, encrypted_token: sealed, created_at } = &command.credential;
    execute(
        connection,
        "INSERT INTO git_credentials (account, host, username, sealed, created_at) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (account, host) DO UPDATE SET
             username = excluded.username, sealed = excluded.sealed, created_at = excluded.created_at",
        params![command.account.to_string(), host, username, sealed, millis(*created_at)],
    )?;
    Ok(())
}

/// Returns the credentials of an account, ordered by host.
pub(super) fn list(connection: &Connection, account: AccountId) -> Result<Vec<GitCredential>, Fault> {
    let sql = "SELECT * FROM git_credentials WHERE account = ?1 ORDER BY host";
    query_all(connection, sql, [account.to_string()], |row| {
        Ok(GitCredential {
            host: row.get("host")?,
            username: row.get("username")?,
            encrypted_token: row.get("sealed")?,
            created_at: row.time("created_at")?,
        })
    })
}

/// Deletes the credential for a host; returns whether it existed.
pub(super) fn remove(connection: &Connection, account: AccountId, host: &str) -> Result<bool, Fault> {
    let sql = "DELETE FROM git_credentials WHERE account = ?1 AND host = ?2";
    Ok(execute(connection, sql, params![account.to_string(), host])? == 1)
}
