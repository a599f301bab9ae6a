//! Git credentials. The store holds encrypted tokens and never the encryption key.

use async_trait::async_trait;
use jiff::Timestamp;
use skep_api::AccountId;

use crate::Result;

/// The methods of a [`Store`](crate::Store) for git credentials.
#[async_trait]
#[warn(missing_docs)]
pub trait GitStore: Send + Sync {
    /// Stores a git credential; fails with `UnknownAccount`.
    async fn set_git_credential(&self, command: SetGitCredential) -> Result<()>;
    /// Returns the git credentials of an account, ordered by host.
    async fn git_credentials(&self, account: AccountId) -> Result<Vec<GitCredential>>;
    /// Deletes a git credential; returns whether it existed.
    async fn remove_git_credential(&self, account: AccountId, host: &str) -> Result<bool>;
}

/// User name and token for one git host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitCredential {
    /// The host, with its port unless that is the default one.
    pub host: String,
    pub username: String,
    pub encrypted_token: Vec<u8>,
    pub created_at: Timestamp,
}

/// Stores a credential, replacing an existing one for the same host.
#[derive(Debug, Clone)]
pub struct SetGitCredential {
    pub account: AccountId,
    pub credential: GitCredential,
}
