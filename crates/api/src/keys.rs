//! Keys: their records, their creation, and who the caller is.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AccountId, Environment, KeyId, Role, Scope, VmId, exec::VmField};

/// A key's record. The secret is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Key {
    /// The record's id.
    pub id: KeyId,
    /// The account that the key belongs to.
    pub account: AccountId,
    /// The key up to its 8th hex digit.
    #[cfg_attr(feature = "openapi", schema(example = "sk-skep-prod-3f9a1c20"))]
    pub prefix: String,
    /// Unique among the account's keys that are valid.
    #[cfg_attr(feature = "openapi", schema(example = "ci"))]
    pub name: String,
    /// The environment in the key's name.
    pub environment: Environment,
    /// The preset that it was made from, if any.
    pub role: Option<Role>,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// The VM that it is bound to.
    pub vm: Option<VmId>,
    /// When it was made.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
    /// When it was last used, to about a minute.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub last_used_at: Option<Timestamp>,
    /// When it ends by itself.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub revoked_at: Option<Timestamp>,
    /// When another key took its name. It stays valid until it is revoked.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub rotated_at: Option<Timestamp>,
}

/// The body of `POST /api/keys`: exactly one of `role` and `scopes`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateKey {
    /// 1 to 100 characters, unique among the account's valid keys.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 100, example = "ci"))]
    pub name: String,
    /// The environment in the key's name; `prod` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    /// A preset of scopes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The scopes one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Scope>>,
    /// When it ends by itself; in the future.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::time::option")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    /// The VM to bind it to, with role `vm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmField>,
    /// The account that it is for, with the scope `server:admin`; the caller's own unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountId>,
}

/// The body of `POST /api/keys/:id/rotate`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RotateKey {
    /// When the new key ends by itself, in the future; null is never. Unless given, when the old one does.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Option<Timestamp>>,
}

/// The answer of `DELETE /api/keys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokedKeys {
    /// How many keys this call revoked.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub revoked: u32,
}

/// The answer of `POST /api/keys`: the record, and the secret, which is shown this once.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedKey {
    /// The key itself. It is not kept and cannot be shown again.
    #[cfg_attr(feature = "openapi", schema(example = "sk-skep-prod-3f9a1c20"))]
    pub key: String,
    /// Its record.
    #[serde(flatten)]
    pub record: Key,
}

/// A page of keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyList {
    /// Newest first.
    pub keys: Vec<Key>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// The answer of `GET /api/whoami`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoAmI {
    /// The key that asked.
    pub key: WhoAmIKey,
    /// Its account.
    pub account: WhoAmIAccount,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// The account's part of the server's files.
    pub roots: Vec<String>,
    /// What the account may have.
    pub limits: Limits,
    /// The VM that the key is bound to.
    pub vm: Option<VmId>,
}

/// The key that asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoAmIKey {
    /// The record's id.
    pub id: KeyId,
    /// The key up to its 8th hex digit.
    #[cfg_attr(feature = "openapi", schema(example = "sk-skep-prod-3f9a1c20"))]
    pub prefix: String,
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(example = "ci"))]
    pub name: String,
}

/// The account of the key that asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoAmIAccount {
    /// Its id.
    pub id: AccountId,
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(example = "default"))]
    pub name: String,
}

/// What an account may have; null is no limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Limits {
    /// VMs at the same time.
    pub max_vms: Option<u32>,
    /// Memory of its VMs together, in MiB.
    pub max_memory_mb: Option<u64>,
}
