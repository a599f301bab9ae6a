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
use skep_accounts::{KeySecret, SessionToken, verdict};
use skep_api::{ErrorCode, Failure, exec_stream::BEARER_PROTOCOL, keys::Key};
use skep_store::{Account, PresentedKey, Store};

use crate::{
    address,
    error::Refusal,
    from_vm,
    key_uses::KeyUses,
    limits::Limiter,
    memory::{RequestMemory, SharedMemory},
    origin::Origin,
    session::{self, Current},
    trail::Trail,
};

/// An authenticated caller: its key and its account.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub key: Key,
    pub account: Account,
    /// The caller's address, where it is known.
    pub peer: Option<IpAddr>,
    /// The session, where the request was authenticated by a session cookie.
    pub session: Option<Current>,
    /// The memory that this request reserves for large bodies and answers.
    pub memory: RequestMemory,
}

/// Authenticates requests.
pub(crate) struct Gate {
    store: Arc<dyn Store>,
    uses: KeyUses,
    limiter: Arc<Limiter>,
    memory: SharedMemory,
}

impl Gate {
    pub(crate) fn new(store: Arc<dyn Store>, uses: KeyUses, limiter: Arc<Limiter>) -> Self {
        Self { store, uses, limiter, memory: SharedMemory::default() }
    }

    /// Identifies the caller by the key or the session of the request.
    ///
    /// # Errors
    /// `missing_token`, `invalid_token`, `token_expired`, with the texts of the specification; `malformed_request` for
    /// two `Authorization` headers; `address_not_allowed`; `vm_key_required`; `rate_limited`, for the key and for an
    /// address that sent many wrong keys.
    pub(crate) async fn admit(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Identity, Refusal> {
        let address = Origin::of(extensions).address();
        let known = self.look_up(uri, headers, extensions).await;
        let identity = known.map_err(|refusal| self.limiter.after_failure(address, refusal))?;
        self.limiter.count_key(identity.key.id)?;
        Ok(identity)
    }

    async fn look_up(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Identity, Refusal> {
        let (found, session) = match session::presented(uri, headers, extensions) {
            Some(token) => self.by_session(&token?).await?,
            None => (self.by_key(&KeySecret::parse(presented(headers)?)?).await?, None),
        };
        let now = Timestamp::now();
        let key = found.record.key;
        if let Some(trail) = Trail::of(extensions) {
            trail.presents(&key);
        }
        verdict(&key, now)?;
        if session.is_some_and(|session| session.expires_at <= now) {
            return Err(skep_accounts::Refusal::TokenExpired.into());
        }
        let origin = Origin::of(extensions);
        let peer = origin.address();
        if origin.is_from_vm() {
            // The account's allowlist does not hold the addresses of VMs.
            from_vm::check(found.vm_ip, peer)?;
        } else {
            address::check(&found.account.allowed_ips, peer)?;
        }
        self.uses.note(key.id, now);
        let memory = self.memory.for_request(found.account.id);
        Ok(Identity { key, account: found.account, peer, session, memory })
    }

    async fn by_key(&self, secret: &KeySecret) -> Result<PresentedKey, Refusal> {
        let found = self.store.key_by_hash(secret.hash()).await?;
        found.ok_or_else(|| skep_accounts::Refusal::InvalidToken.into())
    }

    async fn by_session(&self, token: &SessionToken) -> Result<(PresentedKey, Option<Current>), Refusal> {
        let hash = token.hash();
        let found = self.store.session(hash).await?.ok_or(skep_accounts::Refusal::InvalidToken)?;
        Ok((found.key, Some(Current { hash, expires_at: found.expires_at })))
    }
}

/// The layer around all routes that need a key.
pub(crate) async fn guard(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let identity = gate.admit(request.uri(), request.headers(), request.extensions()).await?;
    let memory = identity.memory.clone();
    request.extensions_mut().insert(Arc::new(identity));
    Ok(next.run(request).await.map(|body| memory.kept_by(body)))
}

/// Whether a request carries a key rather than a session.
pub(crate) fn brings_key(headers: &HeaderMap) -> bool {
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
fn presented(headers: &HeaderMap) -> Result<&str, Failure> {
    let mut tokens = protocol_tokens(headers);
    match (tokens.next(), tokens.next(), headers.contains_key(AUTHORIZATION)) {
        (None, ..) => in_header(headers),
        (Some(token), None, false) => Ok(token),
        _ => {
            let message =
                "the request brings more than one key; send one, in `Authorization` or as a subprotocol";
            Err(Failure::new(ErrorCode::MalformedRequest, message))
        }
    }
}

/// The token of the `Authorization` header, not yet checked.
fn in_header(headers: &HeaderMap) -> Result<&str, Failure> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Err(missing()) };
    if values.next().is_some() {
        let message = "the request has more than one `Authorization` header; send one";
        return Err(Failure::new(ErrorCode::MalformedRequest, message));
    }
    let text = value.as_bytes().trim_ascii();
    if text.is_empty() {
        return Err(missing());
    }
    let text = std::str::from_utf8(text).map_err(|_| invalid())?;
    let (scheme, token) = text.split_once([' ', '\t']).ok_or_else(invalid)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(invalid());
    }
    Ok(token.trim_start_matches([' ', '\t']))
}

fn missing() -> Failure {
    Failure::new(ErrorCode::MissingToken, "Missing token")
}

fn invalid() -> Failure {
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
        presented(&headers).map(str::to_owned).map_err(|failure| (failure.code, failure.message))
    }

    #[test]
    fn bearer_counts_in_any_case_with_any_blanks() {
        for value in ["Bearer k", "bearer k", "BEARER   k", "bEaReR \t k", "  Bearer k  "] {
            assert_eq!(token(&[value.as_bytes()]), Ok("k".to_owned()), "{value}");
        }
    }

    #[test]
    fn what_is_no_token_has_the_words_of_the_spec() {
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
