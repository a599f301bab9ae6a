//! `GET /` leads browsers to the dashboard. `GET /docs`: Swagger UI for the OpenAPI document, served entirely from this
//! binary.

use std::{borrow::Cow, io::Read, sync::Arc};

use axum::{
    Json,
    response::{IntoResponse, Redirect, Response},
};
use flate2::read::GzDecoder;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
        REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
    },
};
use skep_api::{ErrorCode, health::Service};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};
use utoipa_swagger_ui::{Config, serve};

use super::Routes;
use crate::{
    error::{Refusal, UNKNOWN_ROUTE},
    extract::{NoParameters, Query, Segment},
    negotiate::prefers_html,
    openapi::refusals::DocsFileRefused,
};

/// The page, which only references its files.
const PAGE: &str = include_str!("docs/page.html");
/// The script that starts Swagger UI.
const START: &str = include_str!("docs/start.js");
/// Allows scripts, styles and requests of this origin only. Swagger UI needs inline styles; the page has no inline
/// scripts.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
/// Browsers revalidate the files, because an upgrade of the server may replace them.
const CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// The files of Swagger UI that the page references. The others are not served.
const FROM_SWAGGER_UI: [&str; 2] = ["swagger-ui.css", "swagger-ui-bundle.js"];

pub(crate) fn routes() -> Routes {
    vec![routes!(root).with_state(()), routes!(docs).with_state(()), routes!(docs_file).with_state(())]
}

/// The service
///
/// Public. Returns the name of the service and the paths of this document and of its page. Browsers, which prefer
/// `text/html`, are redirected to the dashboard at `/ui/`.
#[utoipa::path(
    get, path = "/", tag = "public", operation_id = "root", security(()),
    responses(
        (status = 200, description = "The service", body = Service, example = json!({
            "name": "skep", "version": "0.1.0", "openapi": "/api/openapi.json", "docs": "/docs"
        })),
        (status = 303, description = "Redirect to `/ui/`", content_type = "text/html", body = String,
            headers(("Location" = String, description = "`/ui/`")), example = json!("")),
    )
)]
async fn root(_: Query<NoParameters>, headers: HeaderMap) -> Response {
    let vary = [(VARY, HeaderValue::from_static("accept"))];
    if prefers_html(&headers) {
        return (vary, Redirect::to("/ui/")).into_response();
    }
    let (openapi, docs) = ("/api/openapi.json".to_owned(), "/docs".to_owned());
    let version = env!("CARGO_PKG_VERSION").to_owned();
    (vary, Json(Service { name: "skep".to_owned(), version, openapi, docs })).into_response()
}

/// The documentation
///
/// Public. This document as a page. Operations can be tried out with a key. The page loads nothing from other servers.
#[utoipa::path(
    get, path = "/docs", tag = "public", operation_id = "docs", security(()),
    responses((status = 200, description = "The page", content_type = "text/html", body = String,
        example = json!("<!doctype html><title>skep API</title>")
    ))
)]
async fn docs(_: Query<NoParameters>) -> Response {
    answer("text/html; charset=utf-8", Cow::Borrowed(PAGE.as_bytes()))
}

/// A file of the documentation
///
/// Public. A script or style of the page.
#[utoipa::path(
    get, path = "/docs/{file}", tag = "public", operation_id = "docs_file", security(()),
    params(("file" = String, Path, description = "`start.js`, `swagger-ui-bundle.js` or `swagger-ui.css`",
        example = "start.js")),
    responses(
        (status = 200, description = "The file", content(
            (String = "text/css", example = json!(".swagger-ui { color: #3b4151 }")),
            (String = "text/javascript", example = json!("SwaggerUIBundle({ url: \"/api/openapi.json\" })"))
        )),
        DocsFileRefused,
    )
)]
async fn docs_file(
    Segment(name): Segment,
    _: Query<NoParameters>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if name == "start.js" {
        return Ok(answer("text/javascript; charset=utf-8", Cow::Borrowed(START.as_bytes())));
    }
    if !FROM_SWAGGER_UI.contains(&name.as_str()) {
        return Err(Refusal::new(ErrorCode::UnknownRoute, UNKNOWN_ROUTE));
    }
    let config = Arc::new(Config::from("/api/openapi.json"));
    let file = serve(&name, config).map_err(|error| Refusal::internal(error.to_string()))?;
    let file = file.ok_or_else(|| Refusal::internal(format!("Swagger UI has no {name}")))?;
    let kind =
        if name.ends_with(".css") { "text/css; charset=utf-8" } else { "text/javascript; charset=utf-8" };
    if !file.gzpipped || takes_gzip(&headers) {
        let mut response = answer(kind, file.bytes);
        if file.gzpipped {
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        return Ok(response);
    }
    let mut plain = Vec::new();
    let read = GzDecoder::new(&*file.bytes).read_to_end(&mut plain);
    read.map_err(|error| Refusal::internal(format!("{name}: {error}")))?;
    Ok(answer(kind, Cow::Owned(plain)))
}

fn answer(kind: &'static str, bytes: Cow<'static, [u8]>) -> Response {
    let headers: [(HeaderName, HeaderValue); 6] = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CACHE_CONTROL, CACHE),
        (VARY, HeaderValue::from_static("accept-encoding")),
    ];
    (headers, bytes.into_owned()).into_response()
}

/// Whether `Accept-Encoding` allows gzip.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        named && weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|weight| weight > 0.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_only_if_accepted() {
        for (value, takes) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=x", false),
            ("identity", false),
            ("", false),
            ("x-gzip", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(takes_gzip(&headers), takes, "{value}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
