//! Authentication: checks the bearer key or the session of a request before anything else below /api.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{Extensions, HeaderMap, Uri};
use jiff::Timestamp;
use skep_accounts::{KeySecret, SessionToken, check_validity};
use skep_api::keys::Key;
use skep_store::{Account, PresentedKey, Store};

use crate::{
    audit_context::AuditContext,
    bearer::token_of_request,
    door::{address, limits::Limiter, origin::Origin, vm_listener},
    error::Refusal,
    key_uses::KeyUses,
    memory::{MemoryBudget, RequestMemory},
    session::{self, CurrentSession},
};

/// An authenticated caller: its key and its account.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub key: Key,
    pub account: Account,
    /// The caller's address, where it is known.
    pub peer: Option<IpAddr>,
    /// The session, where the request was authenticated by a session cookie.
    pub session: Option<CurrentSession>,
    /// The memory that this request reserves for large bodies and answers.
    pub memory: RequestMemory,
}

/// Authenticates requests.
pub(crate) struct Authenticator {
    store: Arc<dyn Store>,
    uses: KeyUses,
    limiter: Arc<Limiter>,
    memory: MemoryBudget,
}

impl Authenticator {
    pub(crate) fn new(store: Arc<dyn Store>, uses: KeyUses, limiter: Arc<Limiter>) -> Self {
        Self { store, uses, limiter, memory: MemoryBudget::default() }
    }

    /// Identifies the caller by the key or the session of the request.
    ///
    /// # Errors
    /// `missing_token`, `invalid_token`, `token_expired`, with the texts of the specification; `malformed_request` for
    /// two `Authorization` headers; `address_not_allowed`; `vm_key_required`; `rate_limited`, for the key and for an
    /// address that sent many wrong keys.
    pub(crate) async fn authenticate_request(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Identity, Refusal> {
        let address = Origin::from_extensions(extensions).address();
        let identified = self.look_up(uri, headers, extensions).await;
        let identity = identified.map_err(|refusal| self.limiter.after_failure(address, refusal))?;
        self.limiter.count_key(identity.key.id)?;
        Ok(identity)
    }

    async fn look_up(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Identity, Refusal> {
        let (found, session) = match session::session_token(uri, headers, extensions) {
            Some(token) => self.by_session(&token?).await?,
            None => (self.by_key(&KeySecret::parse(token_of_request(headers)?)?).await?, None),
        };
        let now = Timestamp::now();
        let key = found.record.key;
        if let Some(trail) = AuditContext::from_extensions(extensions) {
            trail.set_key(&key);
        }
        check_validity(&key, now)?;
        if session.is_some_and(|session| session.expires_at <= now) {
            return Err(skep_accounts::Error::TokenExpired.into());
        }
        let origin = Origin::from_extensions(extensions);
        let peer = origin.address();
        if origin.is_from_vm() {
            // The account's allowlist does not hold the addresses of VMs.
            vm_listener::check_key(found.vm_ip, peer)?;
        } else {
            address::check(&found.account.allowed_ips, peer)?;
        }
        self.uses.record(key.id, now);
        let memory = self.memory.for_request(found.account.id);
        Ok(Identity { key, account: found.account, peer, session, memory })
    }

    async fn by_key(&self, secret: &KeySecret) -> Result<PresentedKey, Refusal> {
        let found = self.store.key_by_hash(secret.hash()).await?;
        found.ok_or_else(|| skep_accounts::Error::InvalidToken.into())
    }

    async fn by_session(
        &self,
        token: &SessionToken,
    ) -> Result<(PresentedKey, Option<CurrentSession>), Refusal> {
        let hash = token.hash();
        let found = self.store.session(hash).await?.ok_or(skep_accounts::Error::InvalidToken)?;
        Ok((found.key, Some(CurrentSession { hash, expires_at: found.expires_at })))
    }
}

/// The layer around all routes that need a key.
pub(crate) async fn authenticate(
    State(gate): State<Arc<Authenticator>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let identity = gate.authenticate_request(request.uri(), request.headers(), request.extensions()).await?;
    let memory = identity.memory.clone();
    request.extensions_mut().insert(Arc::new(identity));
    Ok(next.run(request).await.map(|body| memory.attach_to(body)))
}
