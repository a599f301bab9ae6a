//! `/api/session`: a browser's session begins, is shown, and ends.

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
use skep_store::{NewSession, Store};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Routes};
use crate::{
    body::NoBody,
    error::Refusal,
    extract::{AnyKey, Caller, NoParameters, Query},
    json::Json,
    openapi::refusals::BodyRefused,
    random,
    session::{cookie, is_encrypted, no_cookie},
};

/// What these routes use.
#[derive(Clone)]
pub(crate) struct SessionDesk {
    /// Where sessions are kept.
    pub store: Arc<dyn Store>,
}

/// The routes of this file.
pub(crate) fn routes(desk: SessionDesk) -> Routes {
    vec![routes!(create, read, end).with_state(desk)]
}

/// Begin a session
///
/// For browsers: sets a cookie that counts as this key on requests of the same origin, which browsers tell by `Origin` or
/// `Sec-Fetch-Site`. It lasts 12 hours and never longer than its key. A session cannot begin another one: this needs the
/// key itself.
#[utoipa::path(
    post, path = "/api/session", tag = "session", operation_id = "create_session", security(("bearer" = [])),
    responses((status = 201, description = "The session; its token is in the cookie alone", body = Session,
        headers(("Set-Cookie" = String, description = "`skep_session`; under TLS `__Host-skep_session`")),
        example = json!({
            "key": {"id": "key_01jv0000000000000000000000", "prefix": "sk-skep-prod-3f9a1c20", "name": "ci"},
            "expires_at": "2026-05-01T12:00:00.000Z"
        })
    ),
        BodyRefused)
)]
async fn create(
    State(desk): State<SessionDesk>,
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
    desk.store.create_session(session).await?;
    let life = expires_at.duration_since(now).unsigned_abs();
    let headers = [
        (SET_COOKIE, cookie(&token, life, is_encrypted(&extensions))),
        (CACHE_CONTROL, "no-store".to_owned()),
    ];
    let answer = Session { key: key(&caller.key), expires_at: Some(expires_at) };
    Ok((StatusCode::CREATED, headers, Json(answer)).into_response())
}

/// Read the session
///
/// As which key the caller counts, and until when.
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
/// The session of the cookie, which is taken away. A request with a key has none, and ends none.
#[utoipa::path(
    delete, path = "/api/session", tag = "session", operation_id = "end_session", security(("bearer" = [])),
    responses((status = 200, description = "There is no session any more", body = SessionEnded,
        headers(("Set-Cookie" = String, description = "The same cookie, empty and in the past"))
    ))
)]
async fn end(
    State(desk): State<SessionDesk>,
    caller: Caller<AnyKey>,
    _: Query<NoParameters>,
    extensions: Extensions,
) -> Result<Response, Refusal> {
    let ended = match caller.session {
        Some(session) => desk.store.end_session(session.hash).await?,
        None => false,
    };
    let headers = [(SET_COOKIE, no_cookie(is_encrypted(&extensions)))];
    Ok((headers, Json(SessionEnded { ended })).into_response())
}

fn key(key: &Key) -> WhoAmIKey {
    WhoAmIKey { id: key.id, prefix: key.prefix.clone(), name: key.name.clone() }
}
