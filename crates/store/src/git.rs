//! Git credentials. The store holds encrypted tokens and never the encryption key.

use jiff::Timestamp;
use skep_api::AccountId;

/// User name and token for one git host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitCredential {
    /// The host, with its port unless that is the default one.
    pub host: String,
    pub username: String,
    /// The encrypted token.
    pub encrypted_token: Vec<u8>,
    pub created_at: Timestamp,
}

/// Stores a credential, replacing an existing one for the same host.
#[derive(Debug, Clone)]
pub struct SetGitCredential {
    pub account: AccountId,
    pub credential: GitCredential,
}
