//! Authentication: checks the bearer key or the session of a request before anything else below /api.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use http::{Extensions, HeaderMap, Method, Uri};
use jiff::Timestamp;
use skep_accounts::{
    AccountPermit, AccountPermits, KeyHash, KeySecret, SessionToken, check_session, check_validity,
};
use skep_api::{AccountId, ErrorCode, keys::Key};
use skep_store::{Account, PresentedKey, Store};

use crate::{
    answer_body::keep_to_end,
    audit_context::AuditContext,
    bearer::{has_key, token_of_request},
    door::{
        address,
        admission::limit_without_key,
        limits::{Limiter, Limits, RequestsWithoutKey},
        origin::Origin,
        vm_listener,
    },
    error::Refusal,
    key_uses::KeyUses,
    memory::{MemoryBudget, RequestMemory},
    session::{self, CurrentSession},
};

pub(crate) const SESSION_PATH: &str = "/api/session";

/// An authenticated caller: its key and its account.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub key: Key,
    pub key_hash: KeyHash,
    pub account: Account,
    /// The caller's address, where it is known.
    pub peer: Option<IpAddr>,
    /// The session, where the request was authenticated by a session cookie.
    pub session: Option<CurrentSession>,
    /// The memory that this request reserves for large bodies and answers.
    pub memory: RequestMemory,
}

pub(crate) struct Authenticator {
    store: Arc<dyn Store>,
    uses: KeyUses,
    limiter: Arc<Limiter>,
    under_way: AccountPermits,
    max_of_account: usize,
    memory: MemoryBudget,
}

impl Authenticator {
    pub(crate) fn new(store: Arc<dyn Store>, uses: KeyUses, limiter: Arc<Limiter>, limits: &Limits) -> Self {
        let max_of_account = limits.max_requests_per_account;
        let under_way = AccountPermits::new(max_of_account);
        Self { store, uses, limiter, under_way, max_of_account, memory: MemoryBudget::default() }
    }

    /// Counts a request of an account until the permit is dropped.
    ///
    /// # Errors
    /// `overloaded`.
    fn count(&self, account: AccountId) -> Result<AccountPermit, Refusal> {
        self.under_way.acquire(account).ok_or_else(|| {
            let message = format!(
                "{} requests of this account are under way, as many as may be at the same time; try again when some of them \
                 have ended",
                self.max_of_account
            );
            Refusal::new(ErrorCode::Overloaded, message)
        })
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
        if let Some(of_connection) = extensions.get::<RequestsWithoutKey>() {
            of_connection.end_limit();
        }
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
        let (key, key_hash) = (found.record.key, found.hash);
        if let Some(audit_context) = AuditContext::from_extensions(extensions) {
            audit_context.set_key(&key);
        }
        check_validity(&key, now)?;
        let origin = Origin::from_extensions(extensions);
        let peer = origin.address();
        if origin.is_from_vm() {
            // The account's allowlist does not hold the addresses of VMs.
            vm_listener::check_key(found.vm_ip, peer)?;
        } else {
            address::check(&found.account.allowed_ips, peer)?;
        }
        self.uses.record(key.id, now);
        if let Some(session) = session {
            self.uses.record_session(session.hash, now);
        }
        let memory = self.memory.for_request(found.account.id);
        Ok(Identity { key, key_hash, account: found.account, peer, session, memory })
    }

    /// Takes the link with this token, which opens one session, and returns its key. It can not be used again, even if
    /// it is refused.
    ///
    /// # Errors
    /// `missing_token` for a page of another origin; `invalid_token`, `token_expired`, `address_not_allowed`,
    /// `rate_limited`.
    pub(crate) async fn redeem_link(
        &self,
        token: &str,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<PresentedKey, Refusal> {
        if session::is_cross_origin(uri, headers, extensions) {
            return Err(Refusal::new(ErrorCode::MissingToken, "Missing token"));
        }
        let address = Origin::from_extensions(extensions).address();
        let taken = self.take_link(token, address, extensions).await;
        let found = taken.map_err(|refusal| self.limiter.after_failure(address, refusal))?;
        self.limiter.count_key(found.record.key.id)?;
        Ok(found)
    }

    async fn take_link(
        &self,
        token: &str,
        address: Option<IpAddr>,
        extensions: &Extensions,
    ) -> Result<PresentedKey, Refusal> {
        let token = SessionToken::parse(token)?;
        let found = self.store.take_session_link(token.hash()).await?;
        let link = found.ok_or(skep_accounts::Error::InvalidToken)?;
        let key = &link.key.record.key;
        if let Some(audit_context) = AuditContext::from_extensions(extensions) {
            audit_context.set_key(key);
        }
        let now = Timestamp::now();
        check_validity(key, now)?;
        if link.expires_at <= now {
            return Err(skep_accounts::Error::TokenExpired.into());
        }
        address::check(&link.key.account.allowed_ips, address)?;
        self.uses.record(key.id, now);
        Ok(link.key)
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
        check_session(found.last_used_at, found.expires_at, Timestamp::now())?;
        Ok((found.key, Some(CurrentSession { hash, expires_at: found.expires_at })))
    }
}

/// The layer around all routes that need a key.
pub(crate) async fn authenticate(
    State(gate): State<Arc<Authenticator>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    if takes_link(&request) {
        return limit_without_key(request, next).await;
    }
    let identity = gate.authenticate_request(request.uri(), request.headers(), request.extensions()).await?;
    let permit = gate.count(identity.account.id)?;
    let memory = identity.memory.clone();
    request.extensions_mut().insert(Arc::new(identity));
    Ok(next.run(request).await.map(|body| keep_to_end(memory.attach_to(body), permit)))
}

/// Whether a request may log in by a link: it creates a session, and has no key. A session that it may have is ignored.
fn takes_link(request: &Request) -> bool {
    request.method() == Method::POST
        && request.extensions().get::<MatchedPath>().is_some_and(|path| path.as_str() == SESSION_PATH)
        && !has_key(request.headers())
        && !Origin::from_extensions(request.extensions()).is_from_vm()
}
