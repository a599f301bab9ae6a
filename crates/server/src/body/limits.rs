//! The size limits of JSON bodies, by operation.

use http::Method;
use skep_api::endpoint::{Access, Route};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes, on a route that needs no key.
const PUBLIC: usize = 16 * KIB;

/// Operations whose bodies carry content (commands, many tickets), with their limits in bytes. That of an endpoint is in
/// its [`Route`].
const ROUTE_LIMITS: &[(Method, &str, usize)] = &[
    (Method::POST, "/api/exec", 48 * MIB),
    (Method::POST, "/api/swarm/vm/{pid}/exec", 48 * MIB),
    (Method::POST, "/api/tickets/batch", 16 * MIB),
    (Method::PATCH, "/api/tickets/{id}", 2 * MIB),
];

/// Arrays, objects and elements that a body may hold. In memory each takes up to a hundred times its bytes in the text.
pub(super) const MAX_VALUES: usize = 250_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyLimit(usize);

impl BodyLimit {
    /// The limit of an endpoint. Without a key, a body is short.
    pub(crate) const fn of_route(route: &Route) -> Self {
        match route.access {
            Access::Public if route.body_limit > PUBLIC => Self(PUBLIC),
            _ => Self(route.body_limit),
        }
    }

    /// The limit of an operation that is not an endpoint. `route` is the declared path, with its parameters in braces.
    pub(crate) fn for_operation(method: &Method, route: &str, is_public: bool) -> Self {
        let larger = ROUTE_LIMITS.iter().find(|(of, path, _)| of == method && *path == route);
        Self(match larger {
            Some((.., limit)) => *limit,
            None if is_public => PUBLIC,
            None => Route::BODY_LIMIT,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        self.0
    }
}

impl std::fmt::Display for BodyLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_multiple_of(MIB) {
            write!(f, "{} MiB", self.0 / MIB)
        } else {
            write!(f, "{} KiB", self.0 / KIB)
        }
    }
}

/// Counts the arrays, objects and elements of a text, without checking that it is JSON.
pub(super) fn count_values(json: &[u8]) -> usize {
    let (mut values, mut in_string, mut is_escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_its_limit() {
        for (method, route, is_public, text) in [
            (Method::POST, "/api/swarm/vm/{pid}/exec", false, "48 MiB"),
            (Method::POST, "/api/tickets/batch", false, "16 MiB"),
            (Method::PATCH, "/api/tickets/{id}", false, "2 MiB"),
            (Method::POST, "/api/tickets", false, "1 MiB"),
            (Method::PATCH, "/api/swarm/vm/{pid}", false, "1 MiB"),
            (Method::POST, "/api/session", true, "16 KiB"),
        ] {
            assert_eq!(
                BodyLimit::for_operation(&method, route, is_public).to_string(),
                text,
                "{method} {route}"
            );
        }
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (json, values) in [
            (r#"{"a": "[,{\"[,{", "b": [1, 2, []]}"#, 6),
            (r#"{"a": "\\", "b": 1}"#, 2),
            ("[[[[", 4),
            (r#""[[[["#, 0),
        ] {
            assert_eq!(count_values(json.as_bytes()), values, "{json}");
        }
    }
}
