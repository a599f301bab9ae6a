//! Accounts in SQLite.

use rusqlite::{Connection, Row, named_params, params};
use skep_accounts::DEFAULT_ACCOUNT;
use skep_api::{AccountId, keys::Limits};

use super::{
    columns::{Columns, change, json, millis, one},
    fault::Fault,
};
use crate::{Account, EnsureDefaultAccount, Error, SetAccountRoots};

/// The account `default`, made where it is missing.
pub(super) fn ensure_default(
    connection: &Connection,
    id: AccountId,
    command: &EnsureDefaultAccount,
) -> Result<Account, Fault> {
    change(
        connection,
        "INSERT INTO accounts (id, name, roots, allowed_ips, created_at)
         VALUES (:id, :name, :roots, '[]', :at) ON CONFLICT (name) DO NOTHING",
        named_params! {
            ":id": id.to_string(),
            ":name": DEFAULT_ACCOUNT,
            ":roots": json(&command.roots)?,
            ":at": millis(command.at),
        },
    )?;
    by_name(connection, DEFAULT_ACCOUNT)
}

/// Gives an account other roots.
pub(super) fn set_roots(connection: &Connection, command: &SetAccountRoots) -> Result<Account, Fault> {
    let roots = json(&command.roots)?;
    let sql = "UPDATE accounts SET roots = ?2 WHERE id = ?1";
    change(connection, sql, params![command.account.to_string(), roots])?;
    by_id(connection, command.account)
}

/// An account.
pub(super) fn by_id(connection: &Connection, id: AccountId) -> Result<Account, Fault> {
    let id = id.to_string();
    let found = one(connection, "SELECT * FROM accounts WHERE id = ?1", [&id], decode)?;
    found.ok_or_else(|| Error::UnknownAccount { account: id }.into())
}

/// An account by its name.
pub(super) fn by_name(connection: &Connection, name: &str) -> Result<Account, Fault> {
    let found = one(connection, "SELECT * FROM accounts WHERE name = ?1", [name], decode)?;
    found.ok_or_else(|| Error::UnknownAccount { account: name.to_owned() }.into())
}

fn decode(row: &Row<'_>) -> Result<Account, Fault> {
    Ok(Account {
        id: row.word("id")?,
        name: row.plain("name")?,
        roots: row.json("roots")?,
        allowed_ips: row.json("allowed_ips")?,
        limits: Limits {
            max_vms: row.maybe_number("max_vms")?,
            max_memory_mb: row.maybe_number("max_memory_mb")?,
        },
        created_at: row.time("created_at")?,
    })
}
