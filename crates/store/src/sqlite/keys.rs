//! Keys in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, named_params, params};
use serde_json::json;
use skep_accounts::{DEFAULT_ACCOUNT, KeyHash, scopes_of};
use skep_api::{
    AccountId, Environment, KeyId, Role, VmId,
    keys::{Key, RevokedKeys},
};
use tokio::sync::broadcast;

use super::{
    SqliteStore, accounts,
    columns::{self, Columns, execute, millis, page_end, query_all, query_optional},
    error::SqliteError,
    events::{self, NewEvent},
    key_cache::Lookup,
    vms,
};
use crate::{
    ADMIN_KEY_NAME, EnsureAdminKey, Error, EventKind, KeyPage, KeyRecord, KeyStore, KeyUse, ListKeys, NewKey,
    PresentedKey, RevokeAllKeys, RevokeKey, RotateKey,
};

#[async_trait]
impl KeyStore for SqliteStore {
    async fn ensure_admin_key(&self, command: EnsureAdminKey) -> crate::Result<KeyRecord> {
        let id = KeyId::generate();
        self.writer.run(move |c| ensure_admin(c, id, &command)).await
    }

    async fn create_key(&self, command: NewKey) -> crate::Result<KeyRecord> {
        let id = KeyId::generate();
        self.writer.run(move |c| create(c, id, &command)).await
    }

    async fn revoke_key(&self, command: RevokeKey) -> crate::Result<KeyRecord> {
        self.run_revocation(move |c| Ok((revoke(c, &command)?, vec![command.id]))).await
    }

    async fn rotate_key(&self, command: RotateKey) -> crate::Result<KeyRecord> {
        let id = KeyId::generate();
        self.writer.run(move |c| rotate(c, id, &command)).await
    }

    async fn revoke_all_keys(&self, command: RevokeAllKeys) -> crate::Result<RevokedKeys> {
        let revoked = self.run_revocation(move |c| {
            let (revoked, kept) = revoke_all(c, &command)?;
            Ok((RevokedKeys { revoked: count(&revoked), kept: count(&kept) }, revoked))
        });
        revoked.await
    }

    fn revocations(&self) -> broadcast::Receiver<KeyId> {
        self.revocations.subscribe()
    }

    async fn key(&self, account: AccountId, id: KeyId) -> crate::Result<KeyRecord> {
        self.readers.run(move |c| by_id(c, account, id)).await
    }

    async fn list_keys(&self, query: ListKeys) -> crate::Result<KeyPage> {
        self.readers.run(move |c| list(c, query)).await
    }

    async fn key_by_hash(&self, hash: KeyHash) -> crate::Result<Option<PresentedKey>> {
        let version = match self.key_cache.look_up(&hash) {
            Lookup::Hit(key) => return Ok(Some(*key)),
            Lookup::Miss(version) => Some(version),
            Lookup::Unavailable => None,
        };
        let found = self.readers.run(move |c| presented(c, hash)).await?;
        if let (Some(key), Some(version)) = (&found, version) {
            self.key_cache.insert(hash, key.clone(), version);
        }
        Ok(found)
    }

    async fn record_key_uses(&self, uses: Vec<KeyUse>) -> crate::Result<()> {
        self.writer.run(move |c| record_uses(c, &uses)).await
    }
}

pub(super) fn create(connection: &Connection, id: KeyId, command: &NewKey) -> Result<KeyRecord, SqliteError> {
    accounts::by_id(connection, command.account)?;
    if let Some(vm) = command.vm {
        vms::require_running(connection, command.account, vm)?;
    }
    if !insert(connection, id, command)? {
        return Err(Error::NameTaken { name: command.name.clone() }.into());
    }
    let record = by_id(connection, command.account, id)?;
    append_created(connection, &record.key, command)?;
    Ok(record)
}

/// Inserts the row; returns whether the name was available.
fn insert(connection: &Connection, id: KeyId, command: &NewKey) -> Result<bool, SqliteError> {
    let inserted = execute(
        connection,
        "INSERT INTO keys (id, account, sha256, prefix, name, environment, role, scopes, vm, created_at, expires_at)
         VALUES (:id, :account, :sha256, :prefix, :name, :environment, :role, :scopes, :vm, :at, :expires_at)
         ON CONFLICT (account, name) WHERE revoked_at IS NULL AND rotated_at IS NULL DO NOTHING",
        named_params! {
            ":id": id.to_string(),
            ":account": command.account.to_string(),
            ":sha256": command.hash.as_bytes(),
            ":prefix": command.prefix,
            ":name": command.name,
            ":environment": command.environment.as_str(),
            ":role": command.role.map(Role::as_str),
            ":scopes": columns::to_json(&command.scopes)?,
            ":vm": command.vm.map(|vm| vm.to_string()),
            ":at": millis(command.at),
            ":expires_at": command.expires_at.map(millis),
        },
    )?;
    Ok(inserted == 1)
}

fn append_created(connection: &Connection, key: &Key, command: &NewKey) -> Result<(), SqliteError> {
    let body = json!({
        "key": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "role": key.role,
        "scopes": key.scopes,
        "vm": key.vm,
        "expires_at": key.expires_at,
    });
    events::append(
        connection,
        &NewEvent {
            account: key.account,
            kind: EventKind::KeyCreated,
            body,
            at: command.at,
            request_id: command.request_id.as_deref(),
        },
    )
}

/// Returns the admin key of the account `default` with this hash, and creates it if it does not exist.
fn ensure_admin(
    connection: &Connection,
    id: KeyId,
    command: &EnsureAdminKey,
) -> Result<KeyRecord, SqliteError> {
    if let Some(known) = by_hash(connection, command.hash)? {
        return Ok(known);
    }
    let account = accounts::by_name(connection, DEFAULT_ACCOUNT)?.id;
    // If an operator removed the file of the key, a new key is created, although the old one still has the name.
    let sql = "UPDATE keys SET rotated_at = ?3
               WHERE account = ?1 AND name = ?2 AND revoked_at IS NULL AND rotated_at IS NULL RETURNING id";
    let taken = params![account.to_string(), ADMIN_KEY_NAME, millis(command.at)];
    let old: Option<KeyId> = query_optional(connection, sql, taken, |row| row.parse("id"))?;
    let new = NewKey {
        account,
        name: ADMIN_KEY_NAME.to_owned(),
        environment: Environment::Prod,
        role: Some(Role::Admin),
        scopes: scopes_of(Role::Admin, DEFAULT_ACCOUNT),
        vm: None,
        hash: command.hash,
        prefix: command.prefix.clone(),
        expires_at: None,
        at: command.at,
        request_id: None,
    };
    let record = create(connection, id, &new)?;
    if let Some(old) = old {
        append_rotated(connection, &by_id(connection, account, old)?.key, id, command.at, None)?;
    }
    Ok(record)
}

/// Creates a key with the name and rights of an existing one. Both are valid.
fn rotate(connection: &Connection, id: KeyId, command: &RotateKey) -> Result<KeyRecord, SqliteError> {
    let rotated = execute(
        connection,
        "UPDATE keys SET rotated_at = ?3
         WHERE account = ?1 AND id = ?2 AND revoked_at IS NULL AND rotated_at IS NULL",
        params![command.account.to_string(), command.id.to_string(), millis(command.at)],
    )?;
    let old = by_id(connection, command.account, command.id)?.key;
    if rotated == 0 {
        return Err(not_valid(&old).into());
    }
    let new = NewKey {
        account: old.account,
        name: old.name.clone(),
        environment: old.environment,
        role: old.role,
        scopes: old.scopes.clone(),
        vm: old.vm,
        hash: command.hash,
        prefix: command.prefix.clone(),
        expires_at: command.expires_at,
        at: command.at,
        request_id: command.request_id.clone(),
    };
    let record = create(connection, id, &new)?;
    append_rotated(connection, &old, id, command.at, command.request_id.as_deref())?;
    Ok(record)
}

fn append_rotated(
    connection: &Connection,
    key: &Key,
    successor: KeyId,
    at: Timestamp,
    request_id: Option<&str>,
) -> Result<(), SqliteError> {
    let body = json!({ "key": key.id, "name": key.name, "successor": successor });
    let event = NewEvent { account: key.account, kind: EventKind::KeyRotated, body, at, request_id };
    events::append(connection, &event)
}

fn not_valid(key: &Key) -> Error {
    let (state, way_out) = match key.revoked_at {
        Some(_) => ("revoked", "create another one"),
        None => ("rotated already", "rotate the one that has its name now"),
    };
    Error::KeyNotValid { id: key.id, state, way_out }
}

/// Revokes the keys of an account that are not revoked yet, and returns their ids, and those of the keys that stay valid
/// because of their scopes.
pub(super) fn revoke_all(
    connection: &Connection,
    command: &RevokeAllKeys,
) -> Result<(Vec<KeyId>, Vec<KeyId>), SqliteError> {
    accounts::by_id(connection, command.account)?;
    let sql = "SELECT * FROM keys WHERE account = ?1 AND revoked_at IS NULL AND id IS NOT ?2 ORDER BY id";
    let except = command.except.map(|id| id.to_string());
    let valid = query_all(connection, sql, params![command.account.to_string(), except], decode)?;
    let (weaker, stronger): (Vec<KeyRecord>, Vec<KeyRecord>) = valid
        .into_iter()
        .partition(|record| record.key.scopes.iter().all(|had| command.scopes.contains(had)));
    let revoked = revoke_each(connection, weaker, command.at, command.request_id.as_deref())?;
    Ok((revoked, stronger.iter().map(|record| record.key.id).collect()))
}

/// Revokes a key, unless it is revoked already.
fn revoke(connection: &Connection, command: &RevokeKey) -> Result<KeyRecord, SqliteError> {
    let revoked = execute(
        connection,
        "UPDATE keys SET revoked_at = ?3 WHERE account = ?1 AND id = ?2 AND revoked_at IS NULL",
        params![command.account.to_string(), command.id.to_string(), millis(command.at)],
    )?;
    let record = by_id(connection, command.account, command.id)?;
    if revoked == 1 {
        append_revoked(connection, &record.key, command.at, command.request_id.as_deref())?;
    }
    Ok(record)
}

/// Revokes the keys that are bound to an ended VM, and returns their ids.
pub(super) fn revoke_keys_of_vm(
    connection: &Connection,
    vm: VmId,
    at: Timestamp,
    request_id: Option<&str>,
) -> Result<Vec<KeyId>, SqliteError> {
    let sql = "SELECT * FROM keys WHERE vm = ?1 AND revoked_at IS NULL ORDER BY id";
    let bound = query_all(connection, sql, [vm.to_string()], decode)?;
    revoke_each(connection, bound, at, request_id)
}

/// Whether a key is or was bound to a VM, valid or not.
pub(super) fn exist_for_vm(connection: &Connection, vm: VmId) -> Result<bool, SqliteError> {
    let sql = "SELECT 1 FROM keys WHERE vm = ?1 LIMIT 1";
    Ok(query_optional(connection, sql, [vm.to_string()], |_| Ok(()))?.is_some())
}

fn revoke_each(
    connection: &Connection,
    keys: Vec<KeyRecord>,
    at: Timestamp,
    request_id: Option<&str>,
) -> Result<Vec<KeyId>, SqliteError> {
    let mut revoked = Vec::new();
    for KeyRecord { key } in keys {
        let (account, id) = (key.account, key.id);
        revoke(connection, &RevokeKey { account, id, at, request_id: request_id.map(str::to_owned) })?;
        revoked.push(id);
    }
    Ok(revoked)
}

fn append_revoked(
    connection: &Connection,
    key: &Key,
    at: Timestamp,
    request_id: Option<&str>,
) -> Result<(), SqliteError> {
    let body = json!({ "key": key.id, "name": key.name, "vm": key.vm });
    let event = NewEvent { account: key.account, kind: EventKind::KeyRevoked, body, at, request_id };
    events::append(connection, &event)
}

fn by_id(connection: &Connection, account: AccountId, id: KeyId) -> Result<KeyRecord, SqliteError> {
    let sql = "SELECT * FROM keys WHERE account = ?1 AND id = ?2";
    let found = query_optional(connection, sql, [account.to_string(), id.to_string()], decode)?;
    found.ok_or_else(|| Error::UnknownKey { id }.into())
}

/// Returns the key with this hash, with its account.
pub(super) fn presented(connection: &Connection, hash: KeyHash) -> Result<Option<PresentedKey>, SqliteError> {
    let Some(record) = by_hash(connection, hash)? else { return Ok(None) };
    // Includes keys of deleted accounts, which are revoked and so distinguished from unknown ones.
    let account = accounts::by_id_or_deleted(connection, record.key.account)?;
    // Safe to cache: the address of a VM never changes, and the key is revoked when the VM ends.
    let vm_ip = record.key.vm.map(|vm| vms::ip_of(connection, vm)).transpose()?.flatten();
    Ok(Some(PresentedKey { record, account, vm_ip, hash }))
}

fn by_hash(connection: &Connection, hash: KeyHash) -> Result<Option<KeyRecord>, SqliteError> {
    query_optional(connection, "SELECT * FROM keys WHERE sha256 = ?1", [hash.as_bytes()], decode)
}

/// Returns a page of keys, newest first. Ids are in the order of creation.
fn list(connection: &Connection, query: ListKeys) -> Result<KeyPage, SqliteError> {
    let before = page_end(query.before);
    let limit = usize::try_from(query.limit.max(1)).unwrap_or(usize::MAX);
    let mut keys = query_all(
        connection,
        "SELECT * FROM keys WHERE account = ?1 AND id < ?2
         AND NOT EXISTS (SELECT 1 FROM json_each(scopes) WHERE value NOT IN (SELECT value FROM json_each(?3)))
         ORDER BY id DESC LIMIT ?4",
        // One more row than the page size shows whether there is a next page.
        params![
            query.account.to_string(),
            before,
            columns::to_json(&query.scopes)?,
            i64::from(query.limit.max(1)) + 1
        ],
        decode,
    )?;
    let more = keys.len() > limit;
    keys.truncate(limit);
    let next = keys.last().filter(|_| more).map(|last| last.key.id);
    Ok(KeyPage { keys, next })
}

fn record_uses(connection: &Connection, uses: &[KeyUse]) -> Result<(), SqliteError> {
    for KeyUse { id, at } in uses {
        execute(
            connection,
            "UPDATE keys SET last_used_at = ?2 WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)",
            params![id.to_string(), millis(*at)],
        )?;
    }
    Ok(())
}

fn decode(row: &Columns<'_>) -> Result<KeyRecord, SqliteError> {
    let key = Key {
        id: row.parse("id")?,
        account: row.parse("account")?,
        prefix: row.get("prefix")?,
        name: row.get("name")?,
        environment: row.parse("environment")?,
        role: row.parse_optional("role")?,
        scopes: row.json("scopes")?,
        vm: row.parse_optional("vm")?,
        created_at: row.time("created_at")?,
        last_used_at: row.optional_time("last_used_at")?,
        expires_at: row.optional_time("expires_at")?,
        revoked_at: row.optional_time("revoked_at")?,
        rotated_at: row.optional_time("rotated_at")?,
    };
    Ok(KeyRecord { key })
}

/// The number of keys, for an answer.
pub(super) fn count(keys: &[KeyId]) -> u32 {
    u32::try_from(keys.len()).unwrap_or(u32::MAX)
}
