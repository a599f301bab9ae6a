//! `GET /ui/...`: the dashboard's page, the same for each of its paths, and its files.

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    extract::{Request, State},
    middleware::from_fn,
    response::{Html, IntoResponse, Redirect, Response},
    routing::get,
};
use data_encoding::BASE64;
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
};
use skep_api::ErrorCode;
use tower::ServiceExt;

use crate::{
    door::vm_listener::refuse_vms,
    error::{Refusal, UNKNOWN_ROUTE},
    random,
};

/// What stands for the nonce in the page.
const NONCE_PLACEHOLDER: &str = "CSP_NONCE";
const NOT_BUILT: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>skep</title>\
    <h1>skep</h1><p>This skep was built without its dashboard. <code>make run</code> builds both.</p>\
    <p><a href=\"/docs\">API documentation</a></p></html>";

/// The files of the dashboard.
#[derive(Debug, Clone, Copy)]
pub struct Dashboard {
    /// The page, with [`NONCE_PLACEHOLDER`] where the nonce goes.
    pub page: &'static str,
    /// Makes the router of the other files. It is called once, with the first request, because it decompresses them.
    pub files: fn() -> Router,
}

#[derive(Debug, Clone)]
struct DashboardState {
    dashboard: Option<Dashboard>,
    files: Arc<OnceLock<Router>>,
}

/// The routes. They are no operations of the API, so that its document does not list them.
pub(crate) fn router(dashboard: Option<Dashboard>) -> Router {
    let state = DashboardState { dashboard, files: Arc::default() };
    Router::new()
        .route("/ui", get(|| async { Redirect::permanent("/ui/") }))
        .route("/ui/", get(page))
        .route("/ui/{*path}", get(page))
        .nest_service("/ui/files", get(file).with_state(state.clone()))
        .layer(from_fn(refuse_vms))
        .with_state(state)
}

/// The page. Its script reads the path, which this server does not know.
async fn page(State(state): State<DashboardState>) -> Result<Response, Refusal> {
    let nonce = BASE64.encode(&random::bytes()?[..16]);
    let text = match state.dashboard {
        Some(dashboard) => dashboard.page.replace(NONCE_PLACEHOLDER, &nonce),
        None => NOT_BUILT.to_owned(),
    };
    let policy = policy(&nonce)?;
    // Each answer has a nonce of its own.
    let headers = [(CACHE_CONTROL, HeaderValue::from_static("no-store")), (CONTENT_SECURITY_POLICY, policy)];
    Ok(guarded((headers, Html(text)).into_response()))
}

async fn file(State(state): State<DashboardState>, request: Request) -> Result<Response, Refusal> {
    let unknown = || Refusal::new(ErrorCode::UnknownRoute, UNKNOWN_ROUTE);
    let make = state.dashboard.ok_or_else(unknown)?.files;
    let cell = Arc::clone(&state.files);
    let files = match state.files.get() {
        Some(files) => files.clone(),
        None => tokio::task::spawn_blocking(move || cell.get_or_init(make).clone())
            .await
            .map_err(|error| Refusal::internal(format!("the dashboard's files: {error}")))?,
    };
    let Ok(mut response) = files.oneshot(request).await;
    if response.status() == StatusCode::NOT_FOUND {
        return Err(unknown());
    }
    // A worker has the policy of its own file.
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy("")?);
    Ok(guarded(response))
}

/// What the page may load and run: files of this server only. Style elements, which the viewer of files makes, need the
/// nonce; the attributes by which charts and the graph place things cannot carry one.
fn policy(nonce: &str) -> Result<HeaderValue, Refusal> {
    let style = if nonce.is_empty() { String::new() } else { format!(" 'nonce-{nonce}'") };
    let text = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'{style}; style-src-attr 'unsafe-inline'; \
         img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(text).map_err(|error| Refusal::internal(format!("the page's policy: {error}")))
}

fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
