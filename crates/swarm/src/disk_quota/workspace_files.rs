//! The disk space of files outside of this crate.

use async_trait::async_trait;
use skep_api::{AccountId, Failure};

/// What the files of accounts occupy in their workspaces.
#[async_trait]
#[warn(missing_docs)]
pub trait WorkspaceFiles: Send + Sync {
    /// The disk space of the account's files, in bytes, as far as it is known within two seconds.
    async fn used_bytes(&self, account: AccountId) -> u64;

    /// Sets what the account occupies besides, in bytes, and returns the disk space of its files at that moment. `None` if they have
    /// not been counted.
    fn used_beside(&self, account: AccountId, outside: u64) -> Option<u64>;

    /// Counts the account's files again.
    ///
    /// # Errors
    /// The store is not available, or the files cannot be counted; `overloaded` if that takes more than a minute.
    async fn count(&self, account: AccountId) -> Result<(), Failure>;
}
