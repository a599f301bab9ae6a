//! Browser sessions. The store keeps the hash of a token, never the token.

use async_trait::async_trait;
use jiff::Timestamp;
use skep_accounts::SessionHash;
use skep_api::KeyId;

use crate::{PresentedKey, Result};

/// The methods of a [`Store`](crate::Store) for browser sessions.
#[async_trait]
#[warn(missing_docs)]
pub trait SessionStore: Send + Sync {
    /// Creates a session; fails with `UnknownKey`. A key has at most a hundred sessions; beyond that the oldest one is
    /// ended.
    async fn create_session(&self, command: NewSession) -> Result<()>;
    /// Returns the session with this hash, whether or not it is valid.
    async fn session(&self, hash: SessionHash) -> Result<Option<PresentedSession>>;
    /// Ends a session; returns whether it existed.
    async fn end_session(&self, hash: SessionHash) -> Result<bool>;
}

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
