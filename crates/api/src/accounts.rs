//! Accounts: records, and the operations on them.

mod requests;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AccountId, egress::EgressPolicy};

pub use self::requests::{ChangeAccount, CreateAccount, DeleteAccount, ListAccounts, ReadAccount};

/// Which remotes git on the server may connect to for repositories in the account's VMs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum GitRelay {
    /// Those that the VM's egress policy permits, and those for whose host the account has a git credential.
    #[default]
    Known,
    /// All that git may connect to for the account's workspace.
    Any,
}

impl GitRelay {
    /// The value as it is sent, such as `known`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Any => "any",
        }
    }
}

/// The record of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Account {
    /// The unique id of the account.
    pub id: AccountId,
    /// The name, unique on this server. It cannot be changed.
    #[cfg_attr(feature = "openapi", schema(example = "acme"))]
    pub name: String,
    /// The folders on the server that the account can access, as absolute paths.
    #[cfg_attr(feature = "openapi", schema(example = json!(["/var/lib/skep/workspaces/acme"])))]
    pub roots: Vec<String>,
    /// The networks from which requests are accepted, as CIDRs; empty means all networks.
    #[cfg_attr(feature = "openapi", schema(example = json!(["192.0.2.0/24"])))]
    pub allowed_ips: Vec<String>,
    /// The maximum number of VMs at the same time; null means no limit for this account.
    pub max_vms: Option<u32>,
    /// The maximum total memory of the guests of the account's VMs, in MiB, whether they use it or not; the overhead of
    /// VMMs does not count. Null means no limit for this account.
    pub max_memory_mb: Option<u64>,
    /// The maximum number of VMs that are paused to disk; null means 1,000. Such VMs count for this and for `max_disk_mb`
    /// only.
    pub max_paused_vms: Option<u32>,
    /// The maximum disk space of the files in the account's workspace, of its templates, of its VMs on disk and of the disk
    /// layers of its other VMs together, in MiB; null means no limit for this account. What VMs, and commands on the server,
    /// write while they run is counted, and not refused.
    pub max_disk_mb: Option<u64>,
    /// What a VM may connect to outside if its boot has no `egress`.
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::policy_schema))]
    pub egress: EgressPolicy,
    /// Which remotes git on the server may connect to for repositories in the account's VMs.
    pub git_relay: GitRelay,
    /// When the account was created.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
}

/// A page of accounts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccountList {
    /// The accounts, newest first.
    pub accounts: Vec<Account>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The answer of `DELETE /api/accounts/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedAccount {
    /// The id of the deleted account.
    pub id: AccountId,
    /// The name of the deleted account, which can be used again.
    pub name: String,
    /// Always true.
    pub deleted: bool,
    /// The number of keys that this request revoked.
    pub keys_revoked: u32,
    /// The number of VMs that this request ended.
    pub vms_ended: u32,
    /// The folders of the account that remain on the server with all their files.
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
        // An empty list has its own meaning; null is probably a mistake.
        for wrong in [r#"{"roots": null}"#, r#"{"allowed_ips": null}"#, r#"{"name": "x"}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let text = serde_json::to_string(&ChangeAccount { max_vms: Some(None), ..ChangeAccount::default() });
        assert_eq!(text.unwrap(), r#"{"max_vms":null}"#);
    }
}
