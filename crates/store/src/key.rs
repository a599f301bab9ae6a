//! Keys: their records and commands. No record holds a secret.

use std::net::IpAddr;

use jiff::Timestamp;
use skep_accounts::KeyHash;
use skep_api::{AccountId, Environment, KeyId, Role, Scope, VmId, keys::Key};

use crate::Account;

/// The name of the key that the first start makes.
pub const ADMIN_KEY_NAME: &str = "admin";

/// A key as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// What callers may see.
    pub key: Key,
}

/// A key that somebody presented, and whose it is. Whether it is valid is for the rules of accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentedKey {
    /// The key.
    pub record: KeyRecord,
    /// Its account.
    pub account: Account,
    /// The address of the VM that it is bound to, where it is bound to one.
    pub vm_ip: Option<IpAddr>,
}

/// Makes a key. Event `key.created`.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The account that it belongs to.
    pub account: AccountId,
    /// Unique among the account's keys that are neither revoked nor rotated.
    pub name: String,
    /// The environment in its name.
    pub environment: Environment,
    /// The preset that it was made from.
    pub role: Option<Role>,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// The VM that it is bound to: one of the account, alive. The key is revoked when that ends.
    pub vm: Option<VmId>,
    /// Of its secret.
    pub hash: KeyHash,
    /// The secret up to its 8th hex digit.
    pub prefix: String,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// Now.
    pub at: Timestamp,
    /// The request that asks for it.
    pub request_id: Option<String>,
}

/// Makes the admin key of the account `default`, with all scopes, unless a key with this hash is known. A revoked one stays
/// revoked. Another key named `admin` counts as rotated from then on. Event `key.created`.
#[derive(Debug, Clone)]
pub struct EnsureAdminKey {
    /// Of its secret.
    pub hash: KeyHash,
    /// The secret up to its 8th hex digit.
    pub prefix: String,
    /// Now.
    pub at: Timestamp,
}

/// Revokes a key. Event `key.revoked`, the first time.
#[derive(Debug, Clone)]
pub struct RevokeKey {
    /// Whose key.
    pub account: AccountId,
    /// Which key.
    pub id: KeyId,
    /// Now.
    pub at: Timestamp,
    /// The request that asks for it.
    pub request_id: Option<String>,
}

/// Makes a key like another one, which counts as rotated from then on: both are valid, and the new one has the name. Events
/// `key.created` and `key.rotated`.
#[derive(Debug, Clone)]
pub struct RotateKey {
    /// Whose key.
    pub account: AccountId,
    /// Which key.
    pub id: KeyId,
    /// Of the new key's secret.
    pub hash: KeyHash,
    /// The new secret up to its 8th hex digit.
    pub prefix: String,
    /// When the new key ends by itself.
    pub expires_at: Option<Timestamp>,
    /// Now.
    pub at: Timestamp,
    /// The request that asks for it.
    pub request_id: Option<String>,
}

/// Revokes all keys of an account that are not revoked yet. Event `key.revoked` for each.
#[derive(Debug, Clone)]
pub struct RevokeAllKeys {
    /// Whose keys.
    pub account: AccountId,
    /// The one that is spared.
    pub except: Option<KeyId>,
    /// Now.
    pub at: Timestamp,
    /// The request that asks for it.
    pub request_id: Option<String>,
}

/// Asks for a page of an account's keys, newest first.
#[derive(Debug, Clone, Copy)]
pub struct ListKeys {
    /// Whose keys.
    pub account: AccountId,
    /// The most that the page holds; at least 1.
    pub limit: u32,
    /// Where the page before ended: only older keys than this one.
    pub before: Option<KeyId>,
}

/// A page of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPage {
    /// Newest first.
    pub keys: Vec<KeyRecord>,
    /// The next page's `before`; `None` at the end.
    pub next: Option<KeyId>,
}

/// One use of a key. Many are noted together, so that no request costs a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUse {
    /// Which key.
    pub id: KeyId,
    /// When. An older use than the one known changes nothing.
    pub at: Timestamp,
}
