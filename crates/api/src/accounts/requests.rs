//! The operations on accounts.

use serde::{Deserialize, Serialize};

use super::{Account, AccountList, DeletedAccount, GitRelay};
use crate::{
    AccountId,
    ErrorCode::{AccountInUse, AccountProtected, NameTaken, UnknownAccount, WorkspaceTaken},
    Failure, Scope,
    egress::EgressPolicy,
    endpoint::{Access, Body, Endpoint, Method, PathField, PathId, Route, Success, list_request},
    refusals::SWARM,
};

/// A route of accounts.
const ACCOUNTS: Route = Route {
    tag: "accounts",
    ..Route::new(Method::Get, "/api/accounts", "", Access::AccountKey(&[Scope::ServerAdmin]))
};

/// A route of one account.
const ACCOUNT: Route = Route { path: "/api/accounts/{id}", refusals: &[&[UnknownAccount]], ..ACCOUNTS };

impl PathId for AccountId {
    const FIELD: PathField = PathField {
        name: "id",
        description: "The account's id, `acc_` and 26 characters",
        example: "acc_01jv0000000000000000000000",
    };

    fn parse(text: &str) -> Result<Self, Failure> {
        text.parse().map_err(|_| Failure::unknown_account(text))
    }
}

list_request! {
    /// Lists the accounts of the server: the query of `GET /api/accounts`.
    ListAccounts of AccountId
}

impl Endpoint for ListAccounts {
    const ROUTE: Route = Route {
        id: "list_accounts",
        summary: "List accounts",
        description: "The accounts of this server, newest first.",
        success: Success::Done("A page of accounts"),
        ..ACCOUNTS
    };
    type Path = ();
    type Answer = AccountList;
}

/// An account to create. Body of `POST /api/accounts`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateAccount {
    /// The name, unique on this server: 1 to 63 lower-case letters, digits and `-`. The first character is not `-`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$", example = "acme"))]
    pub name: String,
    /// The folders that the account can access, as absolute paths. The server does not create them. Default: a new
    /// folder that the server creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 100))]
    pub roots: Option<Vec<String>>,
    /// The networks from which requests are accepted, as CIDRs or addresses; default: all networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub allowed_ips: Option<Vec<String>>,
    /// The maximum number of VMs at the same time; default: no limit for this account.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    pub max_vms: Option<u32>,
    /// The maximum total memory of the guests of the account's VMs, in MiB, whether they use it or not; default: no limit
    /// for this account.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_099_511_627_776_u64))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    pub max_memory_mb: Option<u64>,
    /// The maximum number of VMs that are paused to disk; default: 1,000.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    pub max_paused_vms: Option<u32>,
    /// The maximum disk space of the account's files, of its templates, of its VMs on disk and of the disk layers of its other VMs
    /// together, in MiB; default: no limit for this account.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_099_511_627_776_u64))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    pub max_disk_mb: Option<u64>,
    /// What a VM may connect to outside if its boot has no `egress`; default: `"none"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::requested_policy_schema))]
    pub egress: Option<EgressPolicy>,
    /// Which remotes git on the server may connect to for repositories in the account's VMs; default: `known`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_relay: Option<GitRelay>,
}

impl Endpoint for CreateAccount {
    const ROUTE: Route = Route {
        method: Method::Post,
        id: "create_account",
        summary: "Create an account",
        description: "An account is a tenant with its own VMs, keys and files. `POST /api/keys` with `account` creates \
                      its first key. Without `roots`, the server creates an empty folder for it.",
        example: r#"{
            "name": "acme", "allowed_ips": ["192.0.2.0/24"], "max_vms": 10, "max_memory_mb": 4096,
            "max_disk_mb": 20480
        }"#,
        refusals: &[&[NameTaken, WorkspaceTaken]],
        success: Success::Created("The record"),
        ..ACCOUNTS
    };
    type Path = ();
    type Answer = Account;
}

/// Reads the record of an account: `GET /api/accounts/{id}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadAccount {}

impl Endpoint for ReadAccount {
    const ROUTE: Route = Route {
        id: "read_account",
        summary: "Read an account",
        description: "Returns its record: roots, networks and quotas.",
        success: Success::Done("The record"),
        ..ACCOUNT
    };
    type Path = AccountId;
    type Answer = Account;
}

/// Changes to an account. Body of `PATCH /api/accounts/{id}`. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeAccount {
    /// Replaces all roots; absolute paths.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, min_items = 1, max_items = 100))]
    pub roots: Option<Vec<String>>,
    /// Replaces all networks; an empty list means all networks.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, max_items = 100))]
    pub allowed_ips: Option<Vec<String>>,
    /// The maximum number of VMs at the same time; null means no limit for this account.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::patch::serialize",
        deserialize_with = "crate::whole_number::patch"
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64, value_type = Option<u32>, example = 10))]
    pub max_vms: Option<Option<u32>>,
    /// The maximum total memory of the account's VMs, in MiB; null means no limit for this account.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::patch::serialize",
        deserialize_with = "crate::whole_number::patch"
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_099_511_627_776_u64, value_type = Option<u64>, example = 4096))]
    pub max_memory_mb: Option<Option<u64>>,
    /// The maximum number of VMs that are paused to disk; null means 1,000. VMs above a smaller limit stay.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::patch::serialize",
        deserialize_with = "crate::whole_number::patch"
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64, value_type = Option<u32>, example = 10))]
    pub max_paused_vms: Option<Option<u32>>,
    /// The maximum disk space of the account's files, of its templates, of its VMs on disk and of the disk layers of its other VMs
    /// together, in MiB; null means no limit for this account. What is there stays.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::patch::serialize",
        deserialize_with = "crate::whole_number::patch"
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_099_511_627_776_u64, value_type = Option<u64>, example = 10_240))]
    pub max_disk_mb: Option<Option<u64>>,
    /// Replaces what a VM may connect to outside if its boot has no `egress`. VMs that run keep theirs.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::policy_schema))]
    pub egress: Option<EgressPolicy>,
    /// Which remotes git on the server may connect to for repositories in the account's VMs.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = GitRelay))]
    pub git_relay: Option<GitRelay>,
}

impl Endpoint for ChangeAccount {
    const ROUTE: Route = Route {
        method: Method::Patch,
        id: "change_account",
        summary: "Change an account",
        description: "Absent fields stay unchanged. The change applies from the account's next request on; VMs above a \
                      smaller quota keep running. The roots of the account `default` are set by `skep serve --root`.",
        example: r#"{"max_vms": 20, "allowed_ips": []}"#,
        refusals: &[&[UnknownAccount, AccountProtected]],
        success: Success::Done("The record"),
        body: Body::Optional,
        ..ACCOUNT
    };
    type Path = AccountId;
    type Answer = Account;
}

/// Deletes an account: the query of `DELETE /api/accounts/{id}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeleteAccount {
    /// Whether to end the VMs of the account too; default false.
    #[serde(default)]
    pub force: bool,
}

impl Endpoint for DeleteAccount {
    const ROUTE: Route = Route {
        method: Method::Delete,
        id: "delete_account",
        summary: "Delete an account",
        description: "Revokes its keys, which ends their open streams, and frees its name. The files in its roots are \
                      kept. An account with running VMs is deleted only with `force=true`, which ends them. The account \
                      `default` cannot be deleted.",
        answer_example: r#"{
            "id": "acc_01jv0000000000000000000000", "name": "acme", "deleted": true, "keys_revoked": 2, "vms_ended": 0,
            "kept_roots": ["/var/lib/skep/workspaces/acme"]
        }"#,
        refusals: &[&[UnknownAccount, AccountInUse, AccountProtected], SWARM],
        success: Success::Done("It was deleted"),
        ..ACCOUNT
    };
    type Path = AccountId;
    type Answer = DeletedAccount;
}
