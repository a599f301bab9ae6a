//! `/api/session`: creates, reads and ends browser sessions, and creates links that open them.

use std::sync::Arc;

use axum::{
    extract::{FromRequest, FromRequestParts, Request, State},
    response::{IntoResponse, Response},
};
use http::{Extensions, HeaderMap, StatusCode, Uri, header::SET_COOKIE};
use jiff::Timestamp;
use skep_accounts::{SessionToken, session_end};
use skep_api::{
    ErrorCode,
    keys::{Key, WhoAmIKey},
    session::{CreateSession, Session, SessionEnded, SessionLink},
};
use skep_store::{NewSession, SessionStore};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Routes};
use crate::{
    auth::{Authenticator, Identity},
    body::{Body, NoBody},
    error::Refusal,
    extract::{AnyKey, Caller, NoParameters, Query},
    json::Json,
    openapi::refusals::{CreateSessionRefused, SessionLinkRefused},
    own_url::PublicUrl,
    random,
    session::{clear_session_cookie, is_encrypted, set_session_cookie},
    session_host::RequestAddress,
    session_links,
};

#[derive(Clone)]
pub(crate) struct SessionState {
    pub store: Arc<dyn SessionStore>,
    /// Checks the links that open sessions.
    pub gate: Arc<Authenticator>,
    pub public_url: Option<PublicUrl>,
}

pub(crate) fn routes(state: SessionState) -> Routes {
    vec![routes!(create, read, end).with_state(state.clone()), routes!(create_link).with_state(state)]
}

/// Create a session
///
/// For browsers: sets a cookie that is accepted instead of this key on same-origin requests, which browsers mark with
/// `Origin` or `Sec-Fetch-Site`. It lasts 12 hours, but not longer than its key, and ends after 60 minutes without a
/// request; its streams end with it. This operation needs the key itself, which a session cannot replace, or no key and
/// the `token` of a link of `POST /api/session/links`, which can be used once.
///
/// Browsers send a cookie of `localhost` to all ports of the machine. So where the server is reached over the loopback
/// interface, sessions of a key exist at one host only, `skep-XXXXXXXX.localhost`, which links lead to; at any other one
/// they are refused with 403 `session_host_required`. The address that `--public-url` names is allowed too.
#[utoipa::path(
    post, path = "/api/session", tag = "session", operation_id = "create_session", security(("bearer" = [])),
    request_body(content = Option<CreateSession>, example = json!({})),
    responses((status = 201, description = "The session; its token is only in the cookie", body = Session,
        headers(("Set-Cookie" = String, description = "`skep_session`; under TLS `__Host-skep_session`")),
        example = json!({
            "key": {"id": "key_01jv0000000000000000000000", "prefix": "sk-skep-prod-3f9a1c20", "name": "ci"},
            "expires_at": "2026-05-01T12:00:00.000Z"
        })
    ), CreateSessionRefused)
)]
async fn create(
    State(state): State<SessionState>,
    uri: Uri,
    headers: HeaderMap,
    extensions: Extensions,
    address: RequestAddress,
    login: Login,
) -> Result<Response, Refusal> {
    let (key, hash) = match login {
        Login::Key(caller) => (caller.key.clone(), caller.key_hash),
        Login::Link(token) => {
            let found = state.gate.redeem_link(&token, &uri, &headers, &extensions).await?;
            (found.record.key, found.hash)
        }
    };
    address.check_session(state.public_url.as_ref(), &hash)?;
    let now = Timestamp::now();
    let expires_at = session_end(&key, now);
    let token = SessionToken::from_random(random::bytes()?);
    let session = NewSession { hash: token.hash(), key: key.id, at: now, expires_at };
    state.store.create_session(session).await?;
    let life = expires_at.duration_since(now).unsigned_abs();
    let headers = [(SET_COOKIE, set_session_cookie(&token, life, is_encrypted(&extensions)))];
    let answer = Session { key: public(&key), expires_at: Some(expires_at) };
    Ok((StatusCode::CREATED, headers, Json(answer)).into_response())
}

/// What a caller logs in with.
enum Login {
    Key(Caller<AnyKey>),
    /// The token of a link.
    Link(String),
}

impl<S: Send + Sync> FromRequest<S> for Login {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let has_key = parts.extensions.get::<Arc<Identity>>().is_some();
        let caller = match has_key {
            true => Some(Caller::from_request_parts(&mut parts, state).await?),
            false => None,
        };
        let query = Query::<NoParameters>::from_request_parts(&mut parts, state).await.map(drop);
        let sent = Body::<CreateSession>::from_request(Request::from_parts(parts, body), state).await;
        let Some(caller) = caller else {
            // Who brings neither a key nor a token learns nothing else about the request.
            let token = sent.ok().and_then(|Body(request)| request.token);
            let token = token.ok_or_else(|| Refusal::new(ErrorCode::MissingToken, "Missing token"))?;
            return query.map(|()| Self::Link(token));
        };
        query?;
        if sent?.0.token.is_some() {
            let message = "the request has a key and `token`; give one of them";
            return Err(Refusal::new(ErrorCode::InvalidValue, message));
        }
        Ok(Self::Key(caller))
    }
}

/// Create a login link
///
/// Returns the address of the dashboard with a token that opens one browser session of this key, for 10 minutes, but not
/// longer than the key. The token stands in the fragment of the address, which browsers do not send; the page posts it to
/// `/api/session`. This operation needs the key itself: a session is refused. The address is that of `--public-url`, or
/// the one that this request was sent to if it is an address of the server, with the host of the key's sessions in place
/// of a name of the loopback interface.
#[utoipa::path(
    post, path = "/api/session/links", tag = "session", operation_id = "create_session_link",
    security(("bearer" = [])),
    responses((status = 201, description = "The link", body = SessionLink), SessionLinkRefused)
)]
async fn create_link(
    State(state): State<SessionState>,
    caller: Caller<AnyKey>,
    _: Query<NoParameters>,
    address: RequestAddress,
    _: NoBody,
) -> Result<Response, Refusal> {
    caller.require_key_itself()?;
    let url = address.for_link(state.public_url.as_ref(), &caller.key_hash)?;
    let link = session_links::create_link(&*state.store, &caller.key, &url).await?;
    Ok((StatusCode::CREATED, Json(link)).into_response())
}

/// Read the session
///
/// Returns the key of the caller, and the end of its session.
#[utoipa::path(
    get, path = "/api/session", tag = "session", operation_id = "read_session", security(("bearer" = [])),
    responses((status = 200, description = "The session, or the key that was sent", body = Session))
)]
async fn read(caller: Caller<AnyKey>, _: Query<NoParameters>) -> Answer<Session> {
    let expires_at = caller.session.map(|session| session.expires_at);
    Ok(Json(Session { key: public(&caller.key), expires_at }))
}

/// End the session
///
/// Ends the session of the cookie, and removes the cookie. A request with a key has no session, and ends none.
#[utoipa::path(
    delete, path = "/api/session", tag = "session", operation_id = "end_session", security(("bearer" = [])),
    responses((status = 200, description = "The session has ended", body = SessionEnded,
        headers(("Set-Cookie" = String, description = "The cookie, empty and expired"))
    ))
)]
async fn end(
    State(state): State<SessionState>,
    caller: Caller<AnyKey>,
    _: Query<NoParameters>,
    extensions: Extensions,
) -> Result<Response, Refusal> {
    let ended = match caller.session {
        Some(session) => state.store.end_session(session.hash).await?,
        None => false,
    };
    let headers = [(SET_COOKIE, clear_session_cookie(is_encrypted(&extensions)))];
    Ok((headers, Json(SessionEnded { ended })).into_response())
}

fn public(key: &Key) -> WhoAmIKey {
    WhoAmIKey { id: key.id, prefix: key.prefix.clone(), name: key.name.clone() }
}
