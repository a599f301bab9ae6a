//! Authentication: checks the bearer key or the session of a request before anything else below /api.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{
    Extensions, HeaderMap, Uri,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use jiff::Timestamp;
use skep_accounts::{KeySecret, SessionToken, check_validity};
use skep_api::{ErrorCode, Failure, exec_stream::BEARER_PROTOCOL, keys::Key};
use skep_store::{Account, PresentedKey, Store};

use crate::{
    address,
    audit_context::AuditContext,
    error::Refusal,
    key_uses::KeyUses,
    limits::Limiter,
    memory::{MemoryBudget, RequestMemory},
    origin::Origin,
    session::{self, CurrentSession},
    vm_listener,
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
            return Err(skep_accounts::Refusal::TokenExpired.into());
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
        found.ok_or_else(|| skep_accounts::Refusal::InvalidToken.into())
    }

    async fn by_session(
        &self,
        token: &SessionToken,
    ) -> Result<(PresentedKey, Option<CurrentSession>), Refusal> {
        let hash = token.hash();
        let found = self.store.session(hash).await?.ok_or(skep_accounts::Refusal::InvalidToken)?;
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

/// Whether a request carries a key rather than a session.
pub(crate) fn has_key(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION) || protocol_tokens(headers).next().is_some()
}

/// The tokens among the subprotocols of a WebSocket request, where a browser cannot set `Authorization`.
fn protocol_tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let is_upgrade =
        headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter().filter(move |_| is_upgrade);
    let offered = offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    offered.filter_map(|protocol| protocol.trim_matches([' ', '\t']).strip_prefix(BEARER_PROTOCOL))
}

/// The single token of the request, not yet checked.
fn token_of_request(headers: &HeaderMap) -> Result<&str, Failure> {
    let mut tokens = protocol_tokens(headers);
    match (tokens.next(), tokens.next(), headers.contains_key(AUTHORIZATION)) {
        (None, ..) => authorization_token(headers),
        (Some(token), None, false) => Ok(token),
        _ => {
            let message =
                "the request brings more than one key; send one, in `Authorization` or as a subprotocol";
            Err(Failure::new(ErrorCode::MalformedRequest, message))
        }
    }
}

/// The token of the `Authorization` header, not yet checked.
fn authorization_token(headers: &HeaderMap) -> Result<&str, Failure> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Err(missing_token()) };
    if values.next().is_some() {
        let message = "the request has more than one `Authorization` header; send one";
        return Err(Failure::new(ErrorCode::MalformedRequest, message));
    }
    let text = value.as_bytes().trim_ascii();
    if text.is_empty() {
        return Err(missing_token());
    }
    let text = std::str::from_utf8(text).map_err(|_| invalid_token())?;
    let (scheme, token) = text.split_once([' ', '\t']).ok_or_else(invalid_token)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(invalid_token());
    }
    Ok(token.trim_start_matches([' ', '\t']))
}

fn missing_token() -> Failure {
    Failure::new(ErrorCode::MissingToken, "Missing token")
}

fn invalid_token() -> Failure {
    skep_accounts::Refusal::InvalidToken.into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn token(values: &[&[u8]]) -> Result<String, (ErrorCode, String)> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        token_of_request(&headers).map(str::to_owned).map_err(|failure| (failure.code, failure.message))
    }

    #[test]
    fn the_scheme_matches_in_any_case_with_any_whitespace() {
        for value in ["Bearer k", "bearer k", "BEARER   k", "bEaReR \t k", "  Bearer k  "] {
            assert_eq!(token(&[value.as_bytes()]), Ok("k".to_owned()), "{value}");
        }
    }

    #[test]
    fn missing_and_invalid_tokens_have_the_messages_of_the_specification() {
        let missing = Err((ErrorCode::MissingToken, "Missing token".to_owned()));
        assert_eq!(token(&[]), missing);
        assert_eq!(token(&[b""]), missing);
        assert_eq!(token(&[b"  \t"]), missing);
        let invalid = Err((ErrorCode::InvalidToken, "Invalid token".to_owned()));
        for value in [&b"Bearer"[..], b"Basic abc", b"sk-skep-prod-1", b"Bearerx y", b"Bearer \xff"] {
            assert_eq!(token(&[value]), invalid, "{value:?}");
        }
        assert_eq!(token(&[b"Bearer a", b"Bearer a"]).unwrap_err().0, ErrorCode::MalformedRequest);
    }
}
