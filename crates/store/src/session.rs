//! Browser sessions, and the links that open them. The store keeps the hash of a token, never the token.

use async_trait::async_trait;
use jiff::Timestamp;
use skep_accounts::SessionHash;
use skep_api::KeyId;
use tokio::sync::broadcast;

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
    /// Records when sessions were last used. Unknown sessions are ignored, and an earlier time than the recorded one
    /// changes nothing.
    async fn record_session_uses(&self, uses: Vec<SessionUse>) -> Result<()>;
    /// Creates a link that opens one session; fails with `UnknownKey`. A key has at most a hundred links; beyond that
    /// the oldest one is deleted.
    async fn create_session_link(&self, command: NewSessionLink) -> Result<()>;
    /// Deletes the link with this hash and returns it, whether or not it is valid. Of several calls one gets it.
    async fn take_session_link(&self, hash: SessionHash) -> Result<Option<PresentedSession>>;
    /// Subscribes to the sessions that [`end_session`](Self::end_session) ends through this store. A receiver that lags
    /// must look its sessions up again.
    fn ended_sessions(&self) -> broadcast::Receiver<SessionHash>;
}

#[derive(Debug, Clone, Copy)]
pub struct NewSession {
    /// Hash of the session token.
    pub hash: SessionHash,
    /// The key that the session authenticates as.
    pub key: KeyId,
    /// The time of the creation, which counts as the first use.
    pub at: Timestamp,
    pub expires_at: Timestamp,
}

/// A new link that opens one session.
#[derive(Debug, Clone, Copy)]
pub struct NewSessionLink {
    /// Hash of the token in the link.
    pub hash: SessionHash,
    /// The key that the session will authenticate as.
    pub key: KeyId,
    pub at: Timestamp,
    pub expires_at: Timestamp,
}

/// The last use of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionUse {
    pub hash: SessionHash,
    pub at: Timestamp,
}

/// A session or a link from a request, with the key that it authenticates as. The store does not check whether they are
/// still valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentedSession {
    pub key: PresentedKey,
    pub expires_at: Timestamp,
    /// When a request last used the session; for a link, when it was created.
    pub last_used_at: Timestamp,
}
