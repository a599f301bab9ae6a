//! Accounts: their records and commands.

use std::path::PathBuf;

use jiff::Timestamp;
use skep_api::{AccountId, keys::Limits};

/// A tenant. Times have milliseconds, here and in every record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its id.
    pub id: AccountId,
    /// Its name, unique on this server.
    pub name: String,
    /// Its part of the server's files; absolute paths.
    pub roots: Vec<String>,
    /// The networks that its callers come from, as CIDRs; empty is everywhere.
    pub allowed_ips: Vec<String>,
    /// What it may have.
    pub limits: Limits,
    /// When it was made.
    pub created_at: Timestamp,
}

/// A root of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountRoot {
    /// The account's name.
    pub account: String,
    /// The folder's path.
    pub path: PathBuf,
}

/// Makes the account `default` at the first start; later it changes nothing.
#[derive(Debug, Clone)]
pub struct EnsureDefaultAccount {
    /// The roots of an account that is made; absolute paths.
    pub roots: Vec<String>,
    /// Now.
    pub at: Timestamp,
}

/// Gives an account other roots.
#[derive(Debug, Clone)]
pub struct SetAccountRoots {
    /// The account.
    pub account: AccountId,
    /// Absolute paths.
    pub roots: Vec<String>,
}

/// Makes an account.
#[derive(Debug, Clone)]
pub struct CreateAccount {
    /// Unique among the accounts that there are.
    pub name: String,
    /// Absolute paths.
    pub roots: Vec<String>,
    /// CIDRs; empty is everywhere.
    pub allowed_ips: Vec<String>,
    /// What it may have.
    pub limits: Limits,
    /// Now.
    pub at: Timestamp,
}

/// Changes what may change of an account. What is `None` stays.
#[derive(Debug, Clone)]
pub struct ChangeAccount {
    /// Which account.
    pub account: AccountId,
    /// In place of all roots.
    pub roots: Option<Vec<String>>,
    /// In place of all networks.
    pub allowed_ips: Option<Vec<String>>,
    /// VMs at the same time; the inner `None` is no limit of its own.
    pub max_vms: Option<Option<u32>>,
    /// Memory of its VMs together, in MiB; the inner `None` is no limit of its own.
    pub max_memory_mb: Option<Option<u64>>,
}

/// Deletes an account that has no VMs, and revokes its keys. Its name is free again; its record stays, for what refers to
/// it. Event `key.revoked` for each key.
#[derive(Debug, Clone)]
pub struct DeleteAccount {
    /// Which account.
    pub account: AccountId,
    /// Now.
    pub at: Timestamp,
    /// The request that asks for it.
    pub request_id: Option<String>,
}

/// An account that was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountDeleted {
    /// What it was.
    pub account: Account,
    /// How many of its keys were revoked with it.
    pub keys_revoked: u32,
}

/// Asks for a page of accounts, newest first.
#[derive(Debug, Clone, Copy)]
pub struct ListAccounts {
    /// The most that the page holds; at least 1.
    pub limit: u32,
    /// Where the page before ended: only older accounts than this one.
    pub before: Option<AccountId>,
}

/// A page of accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountPage {
    /// Newest first.
    pub accounts: Vec<Account>,
    /// The next page's `before`; `None` at the end.
    pub next: Option<AccountId>,
}
