//! Maps a route and a method to the operation id of the OpenAPI document, which is the action of an audit entry.

use std::collections::HashMap;

use http::Method;
use utoipa::openapi::{OpenApi, path::PathItem};

/// The operation ids, by path and method.
#[derive(Debug, Default)]
pub(crate) struct Actions(HashMap<String, Vec<(Method, String)>>);

impl Actions {
    pub(crate) fn from_document(document: &OpenApi) -> Self {
        Self(document.paths.paths.iter().map(|(path, item)| (path.clone(), operations(item))).collect())
    }

    pub(crate) fn id(&self, route: &str, method: &Method) -> Option<&str> {
        // A handler of GET also answers HEAD.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let operations = self.0.get(route)?;
        operations.iter().find(|(one, _)| one == method).map(|(_, id)| id.as_str())
    }

    /// All ids, sorted.
    pub(crate) fn all(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.0.values().flatten().map(|(_, id)| id.as_str()).collect();
        all.sort_unstable();
        all
    }
}

fn operations(item: &PathItem) -> Vec<(Method, String)> {
    let described = [
        (Method::GET, &item.get),
        (Method::PUT, &item.put),
        (Method::POST, &item.post),
        (Method::DELETE, &item.delete),
        (Method::PATCH, &item.patch),
    ];
    let id = |(method, operation): (Method, &Option<utoipa::openapi::path::Operation>)| {
        Some((method, operation.as_ref()?.operation_id.clone()?))
    };
    described.into_iter().filter_map(id).collect()
}
