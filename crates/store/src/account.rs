//! Records and commands for accounts.

use std::path::PathBuf;

use async_trait::async_trait;
use jiff::Timestamp;
use skep_api::{AccountId, accounts::GitRelay, egress::EgressPolicy, keys::Limits};

use crate::Result;

/// The methods of a [`Store`](crate::Store) for accounts.
#[async_trait]
#[warn(missing_docs)]
pub trait AccountStore: Send + Sync {
    /// Returns the account `default`, and creates it if it does not exist.
    async fn ensure_default_account(&self, command: EnsureDefaultAccount) -> Result<Account>;
    /// Replaces the roots of an account; fails with `UnknownAccount`, `RootTaken`.
    async fn set_account_roots(&self, command: SetAccountRoots) -> Result<Account>;
    /// Returns an account; fails with `UnknownAccount`.
    async fn account(&self, id: AccountId) -> Result<Account>;
    /// Returns an account by name; fails with `UnknownAccount`.
    async fn account_by_name(&self, name: &str) -> Result<Account>;
    /// Returns the roots of all accounts except the one with this name, which need not exist.
    async fn roots_of_other_accounts(&self, name: &str) -> Result<Vec<AccountRoot>>;
    /// Creates an account; fails with `AccountNameTaken`, `RootTaken`.
    async fn create_account(&self, command: CreateAccount) -> Result<Account>;
    /// Changes the mutable fields of an account; fails with `UnknownAccount`, `RootTaken`.
    async fn change_account(&self, command: ChangeAccount) -> Result<Account>;
    /// Deletes an account; fails with `UnknownAccount`, `DefaultAccountStays`, `AccountInUse`.
    async fn delete_account(&self, command: DeleteAccount) -> Result<AccountDeleted>;
    /// Returns a page of accounts, newest first.
    async fn list_accounts(&self, query: ListAccounts) -> Result<AccountPage>;
}

/// A tenant. Times have millisecond precision, here and in every record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub id: AccountId,
    /// Unique on this server.
    pub name: String,
    /// Directories of the server that the account may use; absolute paths.
    pub roots: Vec<String>,
    /// Networks that the account's requests may come from, as CIDRs. Empty allows all.
    pub allowed_ips: Vec<String>,
    pub limits: Limits,
    /// The policy of VMs that are booted without one.
    pub egress: EgressPolicy,
    pub git_relay: GitRelay,
    pub created_at: Timestamp,
}

/// One root directory of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountRoot {
    pub account: String,
    pub path: PathBuf,
}

/// Creates the account `default` if it does not exist; otherwise changes nothing.
#[derive(Debug, Clone)]
pub struct EnsureDefaultAccount {
    /// Roots of the created account; absolute paths.
    pub roots: Vec<String>,
    pub at: Timestamp,
}

/// Replaces the roots of an account.
#[derive(Debug, Clone)]
pub struct SetAccountRoots {
    pub account: AccountId,
    /// Absolute paths.
    pub roots: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct CreateAccount {
    /// Unique among the accounts that are not deleted.
    pub name: String,
    /// Absolute paths.
    pub roots: Vec<String>,
    /// CIDRs; empty allows all.
    pub allowed_ips: Vec<String>,
    pub limits: Limits,
    pub egress: EgressPolicy,
    pub git_relay: GitRelay,
    pub at: Timestamp,
}

/// Changes the mutable fields of an account; `None` keeps the current value.
#[derive(Debug, Clone)]
pub struct ChangeAccount {
    pub account: AccountId,
    /// Replaces all roots.
    pub roots: Option<Vec<String>>,
    /// Replaces all networks.
    pub allowed_ips: Option<Vec<String>>,
    /// VMs at the same time. `Some(None)` removes the account's own limit.
    pub max_vms: Option<Option<u32>>,
    /// Total memory of the account's VMs, in MiB. `Some(None)` removes the account's own limit.
    pub max_memory_mb: Option<Option<u64>>,
    /// VMs that are paused to disk. `Some(None)` removes the account's own limit.
    pub max_paused_vms: Option<Option<u32>>,
    /// Disk space of templates, VMs on disk and disk layers, in MiB. `Some(None)` removes the account's own limit.
    pub max_disk_mb: Option<Option<u64>>,
    pub egress: Option<EgressPolicy>,
    pub git_relay: Option<GitRelay>,
}

/// Deletes an account that has no VMs and revokes its keys. The name becomes available again; the row stays, because
/// other records refer to it. Writes an event `key.revoked` for each key.
#[derive(Debug, Clone)]
pub struct DeleteAccount {
    pub account: AccountId,
    pub at: Timestamp,
    pub request_id: Option<String>,
}

/// Result of [`DeleteAccount`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountDeleted {
    pub account: Account,
    /// Number of keys that were revoked with the account.
    pub keys_revoked: u32,
}

/// Lists accounts, newest first.
#[derive(Debug, Clone, Copy)]
pub struct ListAccounts {
    /// Page size; at least 1.
    pub limit: u32,
    /// Cursor: only accounts older than this one.
    pub before: Option<AccountId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountPage {
    /// Newest first.
    pub accounts: Vec<Account>,
    /// `before` of the next page; `None` on the last page.
    pub next: Option<AccountId>,
}
