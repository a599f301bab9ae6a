//! Browser sessions. The store keeps the hash of a token, never the token.

use jiff::Timestamp;
use skep_accounts::SessionHash;
use skep_api::KeyId;

use crate::PresentedKey;

#[derive(Debug, Clone, Copy)]
pub struct NewSession {
    /// Hash of the session token.
    pub hash: SessionHash,
    /// The key that the session authenticates as.
    pub key: KeyId,
    pub at: Timestamp,
    pub expires_at: Timestamp,
}

/// A session from a request, with the key that it authenticates as. The store does not check whether they are still
/// valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentedSession {
    pub key: PresentedKey,
    pub expires_at: Timestamp,
}
