//! Credentials of git. The store has their tokens encrypted, and not the key.

use jiff::Timestamp;
use skep_api::AccountId;

/// What a host wants to hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitCredential {
    /// The host, with its port where that is another one than usual.
    pub host: String,
    /// As whom.
    pub username: String,
    /// The token, encrypted.
    pub sealed: Vec<u8>,
    /// When it was given.
    pub created_at: Timestamp,
}

/// Keeps a credential, in the place of the one that the host had.
#[derive(Debug, Clone)]
pub struct SetGitCredential {
    /// Whose it is.
    pub account: AccountId,
    /// What is kept.
    pub credential: GitCredential,
}
