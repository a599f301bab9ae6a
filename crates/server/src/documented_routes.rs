//! Checks requests and refusals against the OpenAPI document: the method and the `Accept` header before a handler runs,
//! the code of a refusal after it.

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
    Header, OpenApi, RefOr,
    path::{Operation, PathItem},
    schema::Schema,
};

use crate::{
    error::{Refusal, SKEP_ERROR},
    negotiate::accepts_one_of,
};

/// The operations of each route.
#[derive(Debug, Default)]
pub(crate) struct DocumentedRoutes(HashMap<String, Vec<DocumentedOperation>>);

#[derive(Debug)]
struct DocumentedOperation {
    method: Method,
    /// The media types of the successful answers.
    media_types: Vec<String>,
    /// The codes of the refusals.
    codes: Vec<String>,
}

impl DocumentedRoutes {
    pub(crate) fn from_document(document: &OpenApi) -> Self {
        Self(document.paths.paths.iter().map(|(path, item)| (path.clone(), operations(item))).collect())
    }

    /// The operation, unless the path has no route.
    ///
    /// # Errors
    /// `method_not_allowed` for a method that the route does not have.
    fn find(&self, route: &str, method: &Method) -> Result<Option<&DocumentedOperation>, Failure> {
        let Some(operations) = self.0.get(route) else { return Ok(None) };
        // GET's handler answers HEAD too.
        let wanted = if method == Method::HEAD { &Method::GET } else { method };
        if let Some(found) = operations.iter().find(|one| one.method == *wanted) {
            return Ok(Some(found));
        }
        let names: Vec<&str> = operations.iter().map(|one| one.method.as_str()).collect();
        let message = format!("this path does not take {method}; it takes {}", names.join(", "));
        Err(Failure::new(ErrorCode::MethodNotAllowed, message))
    }
}

impl DocumentedOperation {
    /// # Errors
    /// `not_acceptable` where `Accept` matches no media type of the answer.
    fn check_accept(&self, headers: &HeaderMap) -> Result<(), Failure> {
        if self.media_types.is_empty() || accepts_one_of(headers, &self.media_types) {
            return Ok(());
        }
        let forms = self.media_types.join(" or ");
        let message = format!("`Accept` excludes every form of this answer; accept {forms}, or `*/*`");
        Err(Failure::new(ErrorCode::NotAcceptable, message))
    }

    /// Logs a refusal whose code the document does not declare: it is a fault of the server, and fails its tests.
    fn check_code(&self, route: &str, response: &Response) {
        let Some(code) = response.headers().get(SKEP_ERROR).and_then(|code| code.to_str().ok()) else {
            return;
        };
        if !self.codes.iter().any(|one| one == code) {
            let method = &self.method;
            tracing::error!(%method, route, code, "{method} {route} does not declare the refusal `{code}`");
            debug_assert!(false, "{method} {route} does not declare the refusal `{code}`");
        }
    }
}

/// The layer around all routes. The `Allow` header is added by the router.
pub(crate) async fn check_documented(
    State(documented): State<Arc<OnceLock<DocumentedRoutes>>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let Some((documented, route)) = documented.get().zip(route) else { return Ok(next.run(request).await) };
    let Some(operation) = documented.find(route.as_str(), request.method())? else {
        return Ok(next.run(request).await);
    };
    operation.check_accept(request.headers())?;
    let response = next.run(request).await;
    operation.check_code(route.as_str(), &response);
    Ok(response)
}

fn operations(item: &PathItem) -> Vec<DocumentedOperation> {
    let described = [
        (Method::GET, &item.get),
        (Method::PUT, &item.put),
        (Method::POST, &item.post),
        (Method::DELETE, &item.delete),
        (Method::PATCH, &item.patch),
    ];
    let documented = described.into_iter().filter_map(|(method, operation)| {
        let operation = operation.as_ref()?;
        Some(DocumentedOperation { method, media_types: media_types(operation), codes: codes(operation) })
    });
    documented.collect()
}

/// The codes in the header `Skep-Error` of all responses.
fn codes(operation: &Operation) -> Vec<String> {
    let responses = operation.responses.responses.values();
    let headers = responses.filter_map(|response| match response {
        RefOr::T(response) => response.headers.get("Skep-Error"),
        RefOr::Ref(_) => None,
    });
    let schemas = headers.filter_map(|header| match header {
        RefOr::T(Header { schema: Some(RefOr::T(Schema::Object(schema))), .. }) => {
            schema.enum_values.as_ref()
        }
        _ => None,
    });
    schemas.flatten().filter_map(|code| code.as_str().map(str::to_owned)).collect()
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
