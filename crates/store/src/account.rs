//! Accounts: their records and commands.

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
