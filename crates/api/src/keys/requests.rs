//! The operations on keys, and the one that identifies the caller.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{CreatedKey, Key, KeyList, RevokedKeys, WhoAmI};
use crate::{
    AccountId, Environment,
    ErrorCode::{
        KeyNotValid, KeyRequired, NameTaken, SwarmUnavailable, UnknownAccount, UnknownKey, UnknownVm,
    },
    Failure, KeyId, Role, Scope,
    endpoint::{Access, Body, Endpoint, Method, PathField, PathId, Route, Success, list_request},
    exec::VmField,
};

/// A route of keys.
const KEYS: Route =
    Route { tag: "keys", ..Route::new(Method::Get, "/api/keys", "", Access::AccountKey(&[Scope::Admin])) };

/// A route of one key.
const KEY: Route = Route { path: "/api/keys/{id}", refusals: &[&[UnknownKey]], ..KEYS };

impl PathId for KeyId {
    const FIELD: PathField = PathField {
        name: "id",
        description: "The key's id, `key_` and 26 characters",
        example: "key_01jv0000000000000000000000",
    };

    fn parse(text: &str) -> Result<Self, Failure> {
        text.parse().map_err(|_| Failure::unknown_key(text))
    }
}

list_request! {
    /// Lists the keys of the account: the query of `GET /api/keys`.
    ListKeys of KeyId
}

impl Endpoint for ListKeys {
    const ROUTE: Route = Route {
        id: "list_keys",
        summary: "List keys",
        description: "The keys of the account, including revoked ones, newest first. Keys with scopes that the calling \
                      key lacks are left out. Secrets are never included.",
        success: Success::Done("A page of keys"),
        ..KEYS
    };
    type Path = ();
    type Answer = KeyList;
}

/// A key to create, with exactly one of `role` and `scopes`. Body of `POST /api/keys`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateKey {
    /// The name, 1 to 100 characters, unique among the account's valid keys.
    #[cfg_attr(
        feature = "openapi",
        schema(
            min_length = 1,
            max_length = 100,
            pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
            example = "ci"
        )
    )]
    pub name: String,
    /// The environment in the text of the key; default `prod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    /// A role, which is a preset of scopes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The individual scopes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_items = 1))]
    pub scopes: Option<Vec<Scope>>,
    /// When the key expires, in the future; default: never.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::time::option")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    /// The VM to which the key is bound, with the role `vm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmField>,
    /// The account of the key, which requires the scope `server:admin`; default: the account of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountId>,
}

impl Endpoint for CreateKey {
    const ROUTE: Route = Route {
        method: Method::Post,
        id: "create_key",
        summary: "Create a key",
        description: "Takes exactly one of `role` and `scopes`. The key itself is only in this answer; the server does \
                      not store it. A key cannot grant scopes that it does not have. With `account` the key belongs to \
                      another account, which also needs the scope `server:admin`.\n\n\
                      This operation needs the key itself: a session is refused.",
        example: r#"{"name": "ci", "role": "agent"}"#,
        refusals: &[&[KeyRequired, UnknownVm, UnknownAccount, NameTaken, SwarmUnavailable]],
        success: Success::Created("The key and its record"),
        ..KEYS
    };
    type Path = ();
    type Answer = CreatedKey;
}

/// Reads the record of a key: `GET /api/keys/{id}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadKey {}

impl Endpoint for ReadKey {
    const ROUTE: Route = Route {
        id: "read_key",
        summary: "Read a key",
        description: "Returns its record, without the secret. A key cannot read one that has more scopes.",
        success: Success::Done("The record"),
        ..KEY
    };
    type Path = KeyId;
    type Answer = Key;
}

/// Revokes a key: `DELETE /api/keys/{id}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokeKey {}

impl Endpoint for RevokeKey {
    const ROUTE: Route = Route {
        method: Method::Delete,
        id: "revoke_key",
        summary: "Revoke a key",
        description: "The key is refused from now on, and its open streams end. Revoking it again returns the same \
                      record. A key cannot revoke one that has more scopes.",
        success: Success::Done("The record, with `revoked_at`"),
        ..KEY
    };
    type Path = KeyId;
    type Answer = Key;
}

/// Options of a rotation. Body of `POST /api/keys/{id}/rotate`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RotateKey {
    /// When the new key expires, in the future; null means never. Default: when the old key expires.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Option<Timestamp>>,
}

impl Endpoint for RotateKey {
    const ROUTE: Route = Route {
        method: Method::Post,
        path: "/api/keys/{id}/rotate",
        id: "rotate_key",
        summary: "Rotate a key",
        description: "Creates a new key with the same properties, which takes over the name. The old key, which now has \
                      `rotated_at`, stays valid until it is revoked. The new key itself is only in this answer. A key \
                      cannot rotate one that has more scopes.\n\n\
                      This operation needs the key itself: a session is refused.",
        example: r#"{"expires_at": null}"#,
        refusals: &[&[KeyRequired, UnknownKey, KeyNotValid]],
        success: Success::Created("The new key and its record"),
        body: Body::Optional,
        ..KEY
    };
    type Path = KeyId;
    type Answer = CreatedKey;
}

/// Revokes all keys of an account: the query of `DELETE /api/keys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokeAllKeys {
    /// Must be `true`, so that a truncated path does not revoke all keys.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true, example = true))]
    pub all: bool,
    /// Whether to revoke the calling key too; default false.
    #[serde(default)]
    pub own: bool,
    /// The id of the account, which needs the scope `server:admin`. Default: the account of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(inline))]
    pub account: Option<AccountId>,
}

impl Endpoint for RevokeAllKeys {
    const ROUTE: Route = Route {
        method: Method::Delete,
        id: "revoke_all_keys",
        summary: "Revoke all keys",
        description: "Revokes all keys of the account except the calling one, which `own=true` revokes too, and those \
                      with scopes that the calling key lacks. They are refused from now on, and their open streams end.",
        answer_example: r#"{"revoked": 3, "kept": 0}"#,
        refusals: &[&[UnknownAccount]],
        success: Success::Done("The numbers of keys that were revoked and kept"),
        ..KEYS
    };
    type Path = ();
    type Answer = RevokedKeys;
}

/// Identifies the caller: `GET /api/whoami`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IdentifyCaller {}

impl Endpoint for IdentifyCaller {
    const ROUTE: Route = Route {
        path: "/api/whoami",
        id: "whoami",
        summary: "Identify the caller",
        description: "For any key: returns its record, its account, its scopes and its limits.",
        answer_example: r#"{
            "key": {"id": "key_01jv0000000000000000000000", "prefix": "sk-skep-prod-3f9a1c20", "name": "ci"},
            "account": {"id": "acc_01jv0000000000000000000000", "name": "default"},
            "scopes": ["swarm:read", "swarm:exec"], "roots": ["/var/lib/skep/workspaces/default"],
            "limits": {"max_vms": null, "max_memory_mb": null, "max_paused_vms": null, "max_disk_mb": null},
            "vm": null
        }"#,
        access: Access::AnyKey(&[]),
        success: Success::Done("The key, its account and its limits"),
        ..KEYS
    };
    type Path = ();
    type Answer = WhoAmI;
}
