//! Accounts: their records, and how they are made, changed and deleted.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::AccountId;

/// An account's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Account {
    /// Its id.
    pub id: AccountId,
    /// Its name, unique on this server; it never changes.
    #[cfg_attr(feature = "openapi", schema(example = "acme"))]
    pub name: String,
    /// Its part of the server's files; absolute paths.
    #[cfg_attr(feature = "openapi", schema(example = json!(["/var/lib/skep/workspaces/acme"])))]
    pub roots: Vec<String>,
    /// The networks that its callers come from, as CIDRs; empty is everywhere.
    #[cfg_attr(feature = "openapi", schema(example = json!(["192.0.2.0/24"])))]
    pub allowed_ips: Vec<String>,
    /// VMs at the same time; null is no limit of its own.
    pub max_vms: Option<u32>,
    /// Memory of its VMs together, in MiB; null is no limit of its own.
    pub max_memory_mb: Option<u64>,
    /// When it was made.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
}

/// The body of `POST /api/accounts`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateAccount {
    /// 1 to 63 characters: lowercase letters, digits and `-`, which is not the first. Unique on this server.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$", example = "acme"))]
    pub name: String,
    /// Absolute paths that exist, or are made by whoever may. Unless given, a folder of its own that the server makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots: Option<Vec<String>>,
    /// CIDRs or addresses; everywhere unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_ips: Option<Vec<String>>,
    /// VMs at the same time; no limit of its own unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub max_vms: Option<u32>,
    /// Memory of its VMs together, in MiB; no limit of its own unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_099_511_627_776_u64))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub max_memory_mb: Option<u64>,
}

/// The body of `PATCH /api/accounts/:id`. What is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeAccount {
    /// In place of all roots: absolute paths.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    pub roots: Option<Vec<String>>,
    /// In place of all networks; an empty list is everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    pub allowed_ips: Option<Vec<String>>,
    /// VMs at the same time; null is no limit of its own.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::patch::serialize",
        deserialize_with = "crate::whole::patch"
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64, value_type = Option<u32>, example = 10))]
    pub max_vms: Option<Option<u32>>,
    /// Memory of its VMs together, in MiB; null is no limit of its own.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::patch::serialize",
        deserialize_with = "crate::whole::patch"
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_099_511_627_776_u64, value_type = Option<u64>, example = 4096))]
    pub max_memory_mb: Option<Option<u64>>,
}

/// A page of accounts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccountList {
    /// Newest first.
    pub accounts: Vec<Account>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// The answer of `DELETE /api/accounts/:id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedAccount {
    /// Its id.
    pub id: AccountId,
    /// The name that it had, which is free again.
    pub name: String,
    /// Always true.
    pub deleted: bool,
    /// How many of its keys this call revoked.
    pub keys_revoked: u32,
    /// How many of its VMs this call ended.
    pub vms_ended: u32,
    /// Folders of the account, which stay on the server with all files in them.
    #[serde(default)]
    pub kept_roots: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::ChangeAccount;

    #[test]
    fn absent_null_and_a_value_are_three_things() {
        let read = |text: &str| serde_json::from_str::<ChangeAccount>(text);
        assert_eq!(read("{}").unwrap(), ChangeAccount::default());
        let null = read(r#"{"max_vms": null}"#).unwrap();
        assert_eq!((null.max_vms, null.max_memory_mb), (Some(None), None));
        assert_eq!(read(r#"{"allowed_ips": []}"#).unwrap().allowed_ips, Some(vec![]));
        // A list has an empty one; null would only hide a mistake.
        for wrong in [r#"{"roots": null}"#, r#"{"allowed_ips": null}"#, r#"{"name": "x"}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let text = serde_json::to_string(&ChangeAccount { max_vms: Some(None), ..ChangeAccount::default() });
        assert_eq!(text.unwrap(), r#"{"max_vms":null}"#);
    }
}
