//! Sessions of browsers. The store keeps the hash of a token, never the token.

use jiff::Timestamp;
use skep_accounts::SessionHash;
use skep_api::KeyId;

use crate::PresentedKey;

/// Begins a session.
#[derive(Debug, Clone, Copy)]
pub struct NewSession {
    /// Of its token.
    pub hash: SessionHash,
    /// The key that it counts as.
    pub key: KeyId,
    /// Now.
    pub at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Timestamp,
}

/// A session that somebody presented, and the key that it counts as. Whether they are valid is for the rules of accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentedSession {
    /// The key, and whose it is.
    pub key: PresentedKey,
    /// When the session ends by itself.
    pub expires_at: Timestamp,
}
