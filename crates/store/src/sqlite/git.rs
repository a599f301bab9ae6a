//! Git credentials in SQLite.

use async_trait::async_trait;
use rusqlite::{Connection, params};
use skep_api::AccountId;

use super::{
    SqliteStore, accounts,
    columns::{execute, millis, query_all},
    error::SqliteError,
};
use crate::{GitCredential, GitStore, SetGitCredential};

#[async_trait]
impl GitStore for SqliteStore {
    async fn set_git_credential(&self, command: SetGitCredential) -> crate::Result<()> {
        self.writer.run(move |c| set(c, &command)).await
    }

    async fn git_credentials(&self, account: AccountId) -> crate::Result<Vec<GitCredential>> {
        self.readers.run(move |c| list(c, account)).await
    }

    async fn remove_git_credential(&self, account: AccountId, host: &str) -> crate::Result<bool> {
        let host = host.to_owned();
        self.writer.run(move |c| remove(c, account, &host)).await
    }
}

fn set(connection: &Connection, command: &SetGitCredential) -> Result<(), SqliteError> {
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
fn list(connection: &Connection, account: AccountId) -> Result<Vec<GitCredential>, SqliteError> {
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
fn remove(connection: &Connection, account: AccountId, host: &str) -> Result<bool, SqliteError> {
    let sql = "DELETE FROM git_credentials WHERE account = ?1 AND host = ?2";
    Ok(execute(connection, sql, params![account.to_string(), host])? == 1)
}
