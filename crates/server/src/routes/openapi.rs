//! `GET /api/openapi.json`.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::Routes;
use crate::{
    error::Refusal,
    extract::{NoParameters, Query},
};

/// The document. Set after all routes were added, because it describes this route too.
pub(crate) type Document = Arc<OnceLock<Bytes>>;

pub(crate) fn routes(document: Document) -> Routes {
    vec![routes!(openapi).with_state(document)]
}

/// Read the OpenAPI document
///
/// Public. Returns this document, OpenAPI 3.1, generated from the code of the server.
#[utoipa::path(
    get, path = "/api/openapi.json", tag = "public", operation_id = "openapi", security(()),
    responses((status = 200, description = "The document", body = serde_json::Value,
        example = json!({"openapi": "3.1.0", "info": {"title": "skep", "version": "1"}, "paths": {}})))
)]
async fn openapi(
    State(document): State<Document>,
    _: Query<NoParameters>,
) -> Result<([(http::HeaderName, &'static str); 1], Bytes), Refusal> {
    let text = document.get().ok_or_else(|| Refusal::internal("the OpenAPI document was never made"))?;
    Ok(([(CONTENT_TYPE, "application/json")], text.clone()))
}
