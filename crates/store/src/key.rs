//! Records and commands for API keys. No record contains a secret.

use std::net::IpAddr;

use async_trait::async_trait;
use jiff::Timestamp;
use skep_accounts::KeyHash;
use skep_api::{
    AccountId, Environment, KeyId, Role, Scope, VmId,
    keys::{Key, RevokedKeys},
};
use tokio::sync::broadcast;

use crate::{Account, Result};

/// The methods of a [`Store`](crate::Store) for API keys.
#[async_trait]
#[warn(missing_docs)]
pub trait KeyStore: Send + Sync {
    /// Returns the admin key with this hash, and creates it if needed; fails with `UnknownAccount` if there is no
    /// account `default`.
    async fn ensure_admin_key(&self, command: EnsureAdminKey) -> Result<KeyRecord>;
    /// Creates a key; fails with `NameTaken`, `UnknownAccount`, `UnknownVm`.
    async fn create_key(&self, command: NewKey) -> Result<KeyRecord>;
    /// Revokes a key. For a key that is revoked already it only returns the record. Fails with `UnknownKey`.
    async fn revoke_key(&self, command: RevokeKey) -> Result<KeyRecord>;
    /// Creates a key that replaces an existing one and takes its name; fails with `UnknownKey`, `KeyNotValid`.
    async fn rotate_key(&self, command: RotateKey) -> Result<KeyRecord>;
    /// Revokes the keys of an account; fails with `UnknownAccount`.
    async fn revoke_all_keys(&self, command: RevokeAllKeys) -> Result<RevokedKeys>;
    /// Subscribes to the ids of keys that this store revokes for any reason, sent once the revocation is durable.
    /// Revocations by other processes are not included.
    fn revocations(&self) -> broadcast::Receiver<KeyId>;
    /// Returns a key of this account; fails with `UnknownKey`.
    async fn key(&self, account: AccountId, id: KeyId) -> Result<KeyRecord>;
    /// Returns a page of the keys of an account, including revoked ones, newest first.
    async fn list_keys(&self, query: ListKeys) -> Result<KeyPage>;
    /// Returns the key with this hash, whether or not it is valid.
    async fn key_by_hash(&self, hash: KeyHash) -> Result<Option<PresentedKey>>;
    /// Records when keys were last used; unknown keys are ignored.
    async fn record_key_uses(&self, uses: Vec<KeyUse>) -> Result<()>;
}

/// Name of the key that is created at the first start.
pub const ADMIN_KEY_NAME: &str = "admin";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    pub key: Key,
}

/// A key from a request, with its account. The store does not check whether the key is still valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentedKey {
    pub record: KeyRecord,
    pub account: Account,
    /// Address of the VM that the key is bound to, if any.
    pub vm_ip: Option<IpAddr>,
    pub hash: KeyHash,
}

/// Creates a key. Writes an event `key.created`.
#[derive(Debug, Clone)]
pub struct NewKey {
    pub account: AccountId,
    /// Unique among the account's keys that are neither revoked nor rotated.
    pub name: String,
    pub environment: Environment,
    /// The preset that `scopes` were taken from.
    pub role: Option<Role>,
    pub scopes: Vec<Scope>,
    /// A running VM of the account that the key is bound to. The key is revoked when the VM ends.
    pub vm: Option<VmId>,
    pub hash: KeyHash,
    /// The secret up to its 8th hex digit.
    pub prefix: String,
    pub expires_at: Option<Timestamp>,
    pub at: Timestamp,
    pub request_id: Option<String>,
}

/// Creates the admin key of the account `default`, with all scopes, unless a key with this hash exists. A revoked one
/// stays revoked. Another key named `admin` is marked as rotated. Writes an event `key.created`.
#[derive(Debug, Clone)]
pub struct EnsureAdminKey {
    pub hash: KeyHash,
    /// The secret up to its 8th hex digit.
    pub prefix: String,
    pub at: Timestamp,
}

/// Revokes a key. Writes an event `key.revoked` the first time.
#[derive(Debug, Clone)]
pub struct RevokeKey {
    pub account: AccountId,
    pub id: KeyId,
    pub at: Timestamp,
    pub request_id: Option<String>,
}

/// Creates a key with the name and rights of an existing one, which is marked as rotated. Both stay valid. Writes
/// events `key.created` and `key.rotated`.
#[derive(Debug, Clone)]
pub struct RotateKey {
    pub account: AccountId,
    pub id: KeyId,
    /// Hash of the new secret.
    pub hash: KeyHash,
    /// The new secret up to its 8th hex digit.
    pub prefix: String,
    /// Expiry of the new key.
    pub expires_at: Option<Timestamp>,
    pub at: Timestamp,
    pub request_id: Option<String>,
}

/// Revokes all keys of an account that are not revoked yet. Writes an event `key.revoked` for each.
#[derive(Debug, Clone)]
pub struct RevokeAllKeys {
    pub account: AccountId,
    /// Keys with any other scope stay valid.
    pub scopes: Vec<Scope>,
    /// A key that is not revoked.
    pub except: Option<KeyId>,
    pub at: Timestamp,
    pub request_id: Option<String>,
}

/// Lists the keys of an account, newest first.
#[derive(Debug, Clone)]
pub struct ListKeys {
    pub account: AccountId,
    /// Keys with any other scope are left out.
    pub scopes: Vec<Scope>,
    /// Page size; at least 1.
    pub limit: u32,
    /// Cursor: only keys older than this one.
    pub before: Option<KeyId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPage {
    /// Newest first.
    pub keys: Vec<KeyRecord>,
    /// `before` of the next page; `None` on the last page.
    pub next: Option<KeyId>,
}

/// One use of a key. Uses are recorded in batches, so that a request does not cost a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUse {
    pub id: KeyId,
    /// Ignored if it is older than the recorded last use.
    pub at: Timestamp,
}
