//! Links that open one browser session without a key.

use jiff::Timestamp;
use skep_accounts::{SessionToken, session_link_end};
use skep_api::{keys::Key, session::SessionLink};
use skep_store::{NewSessionLink, SessionStore};

use crate::{error::Refusal, own_url::PublicUrl, random};

/// Creates a link that opens one session of a key. The token stands in the fragment, which browsers never send.
///
/// # Errors
/// Those of the store.
pub(crate) async fn create_link(
    store: &dyn SessionStore,
    key: &Key,
    url: &PublicUrl,
) -> Result<SessionLink, Refusal> {
    let now = Timestamp::now();
    let expires_at = session_link_end(key, now);
    let token = SessionToken::from_random(random::bytes()?);
    let link = NewSessionLink { hash: token.hash(), key: key.id, at: now, expires_at };
    store.create_session_link(link).await?;
    Ok(SessionLink { url: format!("{url}/#login={}", token.expose()), expires_at })
}

/// Creates a link for the terminal that starts a server. `url` is the address of that server.
///
/// # Errors
/// Why there is none, in one sentence.
pub async fn link_for_operator(
    store: &dyn SessionStore,
    key: &Key,
    url: &PublicUrl,
) -> Result<SessionLink, String> {
    create_link(store, key, url).await.map_err(|refusal| refusal.failure().message.clone())
}
