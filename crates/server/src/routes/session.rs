//! `/api/session`: creates, reads and ends browser sessions.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{
    Extensions, StatusCode,
    header::{CACHE_CONTROL, SET_COOKIE},
};
use jiff::Timestamp;
use skep_accounts::{SessionToken, session_end};
use skep_api::{
    ErrorCode,
    keys::{Key, WhoAmIKey},
    session::{Session, SessionEnded},
};
use skep_store::{NewSession, SessionStore};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Routes};
use crate::{
    body::NoBody,
    error::Refusal,
    extract::{AnyKey, Caller, NoParameters, Query},
    json::Json,
    openapi::refusals::BodyRefused,
    random,
    session::{clear_session_cookie, is_encrypted, set_session_cookie},
};

#[derive(Clone)]
pub(crate) struct SessionState {
    pub store: Arc<dyn SessionStore>,
}

pub(crate) fn routes(state: SessionState) -> Routes {
    vec![routes!(create, read, end).with_state(state)]
}

/// Create a session
///
/// For browsers: sets a cookie that is accepted instead of this key on same-origin requests, which browsers mark with
/// `Origin` or `Sec-Fetch-Site`. It lasts 12 hours, but not longer than its key. This operation needs the key itself; a
/// session cannot create another one.
#[utoipa::path(
    post, path = "/api/session", tag = "session", operation_id = "create_session", security(("bearer" = [])),
    responses((status = 201, description = "The session; its token is only in the cookie", body = Session,
        headers(("Set-Cookie" = String, description = "`skep_session`; under TLS `__Host-skep_session`")),
        example = json!({
            "key": {"id": "key_01jv0000000000000000000000", "prefix": "sk-skep-prod-3f9a1c20", "name": "ci"},
            "expires_at": "2026-05-01T12:00:00.000Z"
        })
    ),
        BodyRefused)
)]
async fn create(
    State(state): State<SessionState>,
    caller: Caller<AnyKey>,
    _: Query<NoParameters>,
    extensions: Extensions,
    _: NoBody,
) -> Result<Response, Refusal> {
    if caller.session.is_some() {
        return Err(Refusal::new(ErrorCode::MissingToken, "Missing token"));
    }
    let now = Timestamp::now();
    let expires_at = session_end(&caller.key, now);
    let token = SessionToken::from_random(random::bytes()?);
    let session = NewSession { hash: token.hash(), key: caller.key.id, at: now, expires_at };
    state.store.create_session(session).await?;
    let life = expires_at.duration_since(now).unsigned_abs();
    let headers = [
        (SET_COOKIE, set_session_cookie(&token, life, is_encrypted(&extensions))),
        (CACHE_CONTROL, "no-store".to_owned()),
    ];
    let answer = Session { key: key(&caller.key), expires_at: Some(expires_at) };
    Ok((StatusCode::CREATED, headers, Json(answer)).into_response())
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
    Ok(Json(Session { key: key(&caller.key), expires_at }))
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

fn key(key: &Key) -> WhoAmIKey {
    WhoAmIKey { id: key.id, prefix: key.prefix.clone(), name: key.name.clone() }
}
