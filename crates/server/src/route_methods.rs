//! Checks the method and the `Accept` header of a request against the OpenAPI document before a handler runs.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, Method};
use skep_api::{ErrorCode, Failure};
use utoipa::openapi::{
    OpenApi, RefOr,
    path::{Operation, PathItem},
};

use crate::{error::Refusal, negotiate::accepts_one_of};

/// The methods of each route, and the media types of their answers.
#[derive(Debug, Default)]
pub(crate) struct RouteMethods(HashMap<String, Vec<(Method, Vec<String>)>>);

impl RouteMethods {
    pub(crate) fn from_document(document: &OpenApi) -> Self {
        Self(document.paths.paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect())
    }

    /// # Errors
    /// `method_not_allowed` for a method that the route does not have, `not_acceptable` where `Accept` matches no media
    /// type of the answer.
    fn check(&self, route: &str, method: &Method, headers: &HeaderMap) -> Result<(), Failure> {
        let Some(methods) = self.0.get(route) else { return Ok(()) };
        // GET's handler answers HEAD too.
        let wanted = if method == Method::HEAD { &Method::GET } else { method };
        let Some((_, forms)) = methods.iter().find(|(one, _)| one == wanted) else {
            let names: Vec<&str> = methods.iter().map(|(one, _)| one.as_str()).collect();
            let message = format!("this path does not take {method}; it takes {}", names.join(", "));
            return Err(Failure::new(ErrorCode::MethodNotAllowed, message));
        };
        if forms.is_empty() || accepts_one_of(headers, forms) {
            return Ok(());
        }
        let message =
            format!("`Accept` excludes every form of this answer; accept {}, or `*/*`", forms.join(" or "));
        Err(Failure::new(ErrorCode::NotAcceptable, message))
    }
}

/// The layer around all routes. The `Allow` header is added by the router.
pub(crate) async fn check_method(
    State(described): State<Arc<OnceLock<RouteMethods>>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    if let (Some(described), Some(route)) = (described.get(), request.extensions().get::<MatchedPath>()) {
        described.check(route.as_str(), request.method(), request.headers())?;
    }
    Ok(next.run(request).await)
}

fn methods(item: &PathItem) -> Vec<(Method, Vec<String>)> {
    let described = [
        (Method::GET, &item.get),
        (Method::PUT, &item.put),
        (Method::POST, &item.post),
        (Method::DELETE, &item.delete),
        (Method::PATCH, &item.patch),
    ];
    let with_forms =
        described.into_iter().filter_map(|(method, one)| Some((method, media_types(one.as_ref()?))));
    with_forms.collect()
}

/// The media types of the successful answers of an operation.
fn media_types(operation: &Operation) -> Vec<String> {
    let answers = operation.responses.responses.iter().filter(|(status, _)| status.starts_with(['2', '3']));
    let mut forms: Vec<String> = answers
        .filter_map(|(_, answer)| if let RefOr::T(answer) = answer { Some(answer) } else { None })
        .flat_map(|answer| answer.content.keys().cloned())
        .collect();
    forms.sort_unstable();
    forms.dedup();
    forms
}
