//! Accounts in SQLite.

use std::path::PathBuf;

use async_trait::async_trait;
use rusqlite::{Connection, named_params, params};
use skep_accounts::DEFAULT_ACCOUNT;
use skep_api::{AccountId, KeyId, Scope, accounts::GitRelay, egress::EgressPolicy, keys::Limits};

use super::{
    SqliteStore,
    columns::{Columns, execute, millis, page_end, query_all, query_optional, signed, to_json},
    error::SqliteError,
    keys, templates, vms, webhooks,
};
use crate::{
    Account, AccountDeleted, AccountPage, AccountRoot, AccountStore, ChangeAccount, CreateAccount,
    DeleteAccount, EnsureDefaultAccount, Error, ListAccounts, RevokeAllKeys, SetAccountRoots,
};

#[async_trait]
impl AccountStore for SqliteStore {
    async fn ensure_default_account(&self, command: EnsureDefaultAccount) -> crate::Result<Account> {
        let id = AccountId::generate();
        self.writer.run(move |c| ensure_default(c, id, &command)).await
    }

    async fn set_account_roots(&self, command: SetAccountRoots) -> crate::Result<Account> {
        self.writer.run(move |c| set_roots(c, &command)).await
    }

    async fn account(&self, id: AccountId) -> crate::Result<Account> {
        self.readers.run(move |c| by_id(c, id)).await
    }

    async fn account_by_name(&self, name: &str) -> crate::Result<Account> {
        let name = name.to_owned();
        self.readers.run(move |c| by_name(c, &name)).await
    }

    async fn roots_of_other_accounts(&self, name: &str) -> crate::Result<Vec<AccountRoot>> {
        let name = name.to_owned();
        self.readers.run(move |c| roots_of_others(c, &name)).await
    }

    async fn create_account(&self, command: CreateAccount) -> crate::Result<Account> {
        let id = AccountId::generate();
        self.writer.run(move |c| create(c, id, &command)).await
    }

    async fn change_account(&self, command: ChangeAccount) -> crate::Result<Account> {
        self.writer.run(move |c| alter(c, &command)).await
    }

    async fn delete_account(&self, command: DeleteAccount) -> crate::Result<AccountDeleted> {
        let deleted = self.run_revocation(move |c| {
            let (account, revoked) = delete(c, &command)?;
            Ok((AccountDeleted { account, keys_revoked: keys::count(&revoked) }, revoked))
        });
        deleted.await
    }

    async fn list_accounts(&self, query: ListAccounts) -> crate::Result<AccountPage> {
        self.readers.run(move |c| list(c, query)).await
    }
}

/// Returns the account `default`, and creates it if it does not exist.
fn ensure_default(
    connection: &Connection,
    id: AccountId,
    command: &EnsureDefaultAccount,
) -> Result<Account, SqliteError> {
    let new = CreateAccount {
        name: DEFAULT_ACCOUNT.to_owned(),
        roots: command.roots.clone(),
        allowed_ips: Vec::new(),
        limits: Limits::NONE,
        egress: EgressPolicy::None,
        git_relay: GitRelay::default(),
        at: command.at,
    };
    insert(connection, id, &new)?;
    by_name(connection, DEFAULT_ACCOUNT)
}

fn create(connection: &Connection, id: AccountId, command: &CreateAccount) -> Result<Account, SqliteError> {
    if !insert(connection, id, command)? {
        return Err(Error::AccountNameTaken { name: command.name.clone() }.into());
    }
    let account = by_id(connection, id)?;
    check_roots(connection, &account)?;
    Ok(account)
}

/// Inserts the row; returns whether the name was available.
fn insert(connection: &Connection, id: AccountId, command: &CreateAccount) -> Result<bool, SqliteError> {
    let inserted = execute(
        connection,
        "INSERT INTO accounts (id, name, roots, allowed_ips, max_vms, max_memory_mb, max_paused_vms, max_disk_mb,
                               egress, git_relay, created_at)
         VALUES (:id, :name, :roots, :allowed_ips, :max_vms, :max_memory_mb, :max_paused_vms, :max_disk_mb, :egress,
                 :git_relay, :at)
         ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING",
        named_params! {
            ":id": id.to_string(),
            ":name": command.name,
            ":roots": to_json(&command.roots)?,
            ":allowed_ips": to_json(&command.allowed_ips)?,
            ":max_vms": command.limits.max_vms,
            ":max_memory_mb": command.limits.max_memory_mb.map(signed).transpose()?,
            ":max_paused_vms": command.limits.max_paused_vms,
            ":max_disk_mb": command.limits.max_disk_mb.map(signed).transpose()?,
            ":egress": to_json(&command.egress)?,
            ":git_relay": command.git_relay.as_str(),
            ":at": millis(command.at),
        },
    )?;
    Ok(inserted == 1)
}

/// Changes the mutable fields of an account.
fn alter(connection: &Connection, command: &ChangeAccount) -> Result<Account, SqliteError> {
    execute(
        connection,
        "UPDATE accounts SET roots = coalesce(:roots, roots),
                             allowed_ips = coalesce(:allowed_ips, allowed_ips),
                             max_vms = CASE WHEN :vms THEN :max_vms ELSE max_vms END,
                             max_memory_mb = CASE WHEN :memory THEN :max_memory_mb ELSE max_memory_mb END,
                             max_paused_vms = CASE WHEN :paused THEN :max_paused_vms ELSE max_paused_vms END,
                             max_disk_mb = CASE WHEN :disk THEN :max_disk_mb ELSE max_disk_mb END,
                             egress = coalesce(:egress, egress),
                             git_relay = coalesce(:git_relay, git_relay)
         WHERE id = :id AND deleted_at IS NULL",
        named_params! {
            ":id": command.account.to_string(),
            ":roots": command.roots.as_ref().map(to_json).transpose()?,
            ":allowed_ips": command.allowed_ips.as_ref().map(to_json).transpose()?,
            ":vms": command.max_vms.is_some(),
            ":max_vms": command.max_vms.flatten(),
            ":memory": command.max_memory_mb.is_some(),
            ":max_memory_mb": command.max_memory_mb.flatten().map(signed).transpose()?,
            ":paused": command.max_paused_vms.is_some(),
            ":max_paused_vms": command.max_paused_vms.flatten(),
            ":disk": command.max_disk_mb.is_some(),
            ":max_disk_mb": command.max_disk_mb.flatten().map(signed).transpose()?,
            ":egress": command.egress.as_ref().map(to_json).transpose()?,
            ":git_relay": command.git_relay.map(GitRelay::as_str),
        },
    )?;
    let account = by_id(connection, command.account)?;
    if command.roots.is_some() {
        check_roots(connection, &account)?;
    }
    Ok(account)
}

/// Deletes an account without VMs; returns its last record and the keys that were revoked with it.
fn delete(connection: &Connection, command: &DeleteAccount) -> Result<(Account, Vec<KeyId>), SqliteError> {
    let account = by_id(connection, command.account)?;
    if account.name == DEFAULT_ACCOUNT {
        return Err(Error::DefaultAccountStays.into());
    }
    let vms = vms::count_running(connection, account.id)?;
    if vms > 0 {
        return Err(Error::AccountInUse { name: account.name, vms }.into());
    }
    let revocation = RevokeAllKeys {
        account: account.id,
        scopes: Scope::ALL.to_vec(),
        except: None,
        at: command.at,
        request_id: command.request_id.clone(),
    };
    let (revoked, _) = keys::revoke_all(connection, &revocation)?;
    webhooks::delete_all(connection, account.id, command.at)?;
    templates::delete_all(connection, account.id)?;
    let sql = "UPDATE accounts SET deleted_at = ?2 WHERE id = ?1 AND deleted_at IS NULL";
    execute(connection, sql, params![account.id.to_string(), millis(command.at)])?;
    execute(connection, "DELETE FROM git_credentials WHERE account = ?1", [account.id.to_string()])?;
    Ok((account, revoked))
}

/// Returns a page of accounts, newest first. Ids are in the order of creation.
fn list(connection: &Connection, query: ListAccounts) -> Result<AccountPage, SqliteError> {
    let before = page_end(query.before);
    let limit = usize::try_from(query.limit.max(1)).unwrap_or(usize::MAX);
    let mut accounts = query_all(
        connection,
        "SELECT * FROM accounts WHERE id < ?1 AND deleted_at IS NULL ORDER BY id DESC LIMIT ?2",
        // One more row than the page size shows whether there is a next page.
        params![before, i64::from(query.limit.max(1)) + 1],
        decode,
    )?;
    let more = accounts.len() > limit;
    accounts.truncate(limit);
    let next = accounts.last().filter(|_| more).map(|last| last.id);
    Ok(AccountPage { accounts, next })
}

/// Replaces the roots of an account.
fn set_roots(connection: &Connection, command: &SetAccountRoots) -> Result<Account, SqliteError> {
    let roots = to_json(&command.roots)?;
    let sql = "UPDATE accounts SET roots = ?2 WHERE id = ?1 AND deleted_at IS NULL";
    execute(connection, sql, params![command.account.to_string(), roots])?;
    let account = by_id(connection, command.account)?;
    check_roots(connection, &account)?;
    Ok(account)
}

/// Returns the roots of all accounts except this one.
pub(super) fn roots_of_others(connection: &Connection, name: &str) -> Result<Vec<AccountRoot>, SqliteError> {
    let sql = "SELECT accounts.name AS name, each.value AS path
               FROM accounts, json_each(accounts.roots) AS each
               WHERE accounts.deleted_at IS NULL AND accounts.name <> ?1
               ORDER BY accounts.id, each.key";
    query_all(connection, sql, [name], |row| {
        let (account, path): (String, String) = (row.get("name")?, row.get("path")?);
        Ok(AccountRoot { account, path: path.into() })
    })
}

/// Fails if roots overlap with those of another account. Runs in the transaction that wrote them, so that one of two
/// concurrent requests fails. Compares paths lexically; they are resolved already.
fn check_roots(connection: &Connection, account: &Account) -> Result<(), SqliteError> {
    let others = roots_of_others(connection, &account.name)?;
    for path in account.roots.iter().map(PathBuf::from) {
        let overlaps = |other: &&AccountRoot| path.starts_with(&other.path) || other.path.starts_with(&path);
        if let Some(other) = others.iter().find(overlaps) {
            return Err(Error::RootTaken { other: other.clone(), path }.into());
        }
    }
    Ok(())
}

pub(super) fn by_id(connection: &Connection, id: AccountId) -> Result<Account, SqliteError> {
    let id = id.to_string();
    let sql = "SELECT * FROM accounts WHERE id = ?1 AND deleted_at IS NULL";
    let found = query_optional(connection, sql, [&id], decode)?;
    found.ok_or_else(|| Error::UnknownAccount { account: id }.into())
}

/// Returns the account that another record refers to, which may be deleted.
pub(super) fn by_id_or_deleted(connection: &Connection, id: AccountId) -> Result<Account, SqliteError> {
    let id = id.to_string();
    let found = query_optional(connection, "SELECT * FROM accounts WHERE id = ?1", [&id], decode)?;
    found.ok_or_else(|| Error::UnknownAccount { account: id }.into())
}

pub(super) fn by_name(connection: &Connection, name: &str) -> Result<Account, SqliteError> {
    let sql = "SELECT * FROM accounts WHERE name = ?1 AND deleted_at IS NULL";
    let found = query_optional(connection, sql, [name], decode)?;
    found.ok_or_else(|| Error::UnknownAccount { account: name.to_owned() }.into())
}

fn decode(row: &Columns<'_>) -> Result<Account, SqliteError> {
    Ok(Account {
        id: row.parse("id")?,
        name: row.get("name")?,
        roots: row.json("roots")?,
        allowed_ips: row.json("allowed_ips")?,
        limits: Limits {
            max_vms: row.optional_number("max_vms")?,
            max_memory_mb: row.optional_number("max_memory_mb")?,
            max_paused_vms: row.optional_number("max_paused_vms")?,
            max_disk_mb: row.optional_number("max_disk_mb")?,
        },
        egress: row.json("egress")?,
        git_relay: row.word("git_relay")?,
        created_at: row.time("created_at")?,
    })
}
