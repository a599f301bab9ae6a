//! Keys: records, the operations on them, and the identity of the caller.

mod requests;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AccountId, Environment, KeyId, Role, Scope, VmId};

pub use self::requests::{CreateKey, IdentifyCaller, ListKeys, ReadKey, RevokeAllKeys, RevokeKey, RotateKey};

/// The record of a key. It does not contain the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Key {
    /// The id of the record.
    pub id: KeyId,
    /// The account that the key belongs to.
    pub account: AccountId,
    /// The first characters of the key, up to its 8th hexadecimal digit.
    #[cfg_attr(feature = "openapi", schema(example = "sk-skep-prod-3f9a1c20"))]
    pub prefix: String,
    /// The name, unique among the account's valid keys.
    #[cfg_attr(feature = "openapi", schema(example = "ci"))]
    pub name: String,
    /// The environment in the text of the key.
    pub environment: Environment,
    /// The role that the scopes were taken from; null if they were given one by one.
    pub role: Option<Role>,
    /// The operations that the key permits.
    pub scopes: Vec<Scope>,
    /// The VM that the key is bound to; null for other keys.
    pub vm: Option<VmId>,
    /// When the key was created.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
    /// When the key was last used, to the minute; null if never.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub last_used_at: Option<Timestamp>,
    /// When the key expires; null means never.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub expires_at: Option<Timestamp>,
    /// When the key was revoked; null for other keys.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub revoked_at: Option<Timestamp>,
    /// When a rotated key with the same name replaced this one. The key stays valid until it expires or is revoked.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub rotated_at: Option<Timestamp>,
}

/// The answer of `DELETE /api/keys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokedKeys {
    /// The number of keys that this request revoked.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub revoked: u32,
    /// The number of keys that stay valid because they have scopes that the calling key lacks.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    // Servers of earlier versions do not send it.
    #[serde(default)]
    pub kept: u32,
}

/// A new key: its record and the key itself, which is returned only once. Answer of `POST /api/keys`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedKey {
    /// The key. The server stores only a hash of it.
    #[cfg_attr(feature = "openapi", schema(example = "sk-skep-prod-3f9a1c20"))]
    pub key: String,
    /// The record of the key.
    #[serde(flatten)]
    pub record: Key,
}

/// A page of keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyList {
    /// The keys, newest first.
    pub keys: Vec<Key>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The key of the request, and its permissions. Answer of `GET /api/whoami`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoAmI {
    /// The key of the request.
    pub key: WhoAmIKey,
    /// The account of the key.
    pub account: WhoAmIAccount,
    /// The scopes of the key.
    pub scopes: Vec<Scope>,
    /// The folders on the server that the account can access, as absolute paths.
    pub roots: Vec<String>,
    /// The limits of the account.
    pub limits: Limits,
    /// The VM that the key is bound to; null for other keys.
    pub vm: Option<VmId>,
}

/// The key of the request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoAmIKey {
    /// The id of the key's record.
    pub id: KeyId,
    /// The first characters of the key, up to its 8th hexadecimal digit.
    #[cfg_attr(feature = "openapi", schema(example = "sk-skep-prod-3f9a1c20"))]
    pub prefix: String,
    /// The name of the key.
    #[cfg_attr(feature = "openapi", schema(example = "ci"))]
    pub name: String,
}

/// The account of the key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoAmIAccount {
    /// The id of the account.
    pub id: AccountId,
    /// The name of the account.
    #[cfg_attr(feature = "openapi", schema(example = "default"))]
    pub name: String,
}

/// The limits of an account; null means no limit for this account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Limits {
    /// The maximum number of VMs at the same time.
    pub max_vms: Option<u32>,
    /// The maximum total memory of the guests of the account's VMs, in MiB, whether they use it or not.
    pub max_memory_mb: Option<u64>,
    /// The maximum number of VMs that are paused to disk; null means 1,000. They do not count for the other two.
    pub max_paused_vms: Option<u32>,
    /// The maximum disk space of the account's files, templates, VMs on disk and disk layers of VMs together, in MiB.
    pub max_disk_mb: Option<u64>,
}

/// The maximum number of VMs on disk of an account without a limit of its own.
pub const DEFAULT_MAX_PAUSED_VMS: u32 = 1_000;

impl Limits {
    /// No limits.
    pub const NONE: Self =
        Self { max_vms: None, max_memory_mb: None, max_paused_vms: None, max_disk_mb: None };
}
