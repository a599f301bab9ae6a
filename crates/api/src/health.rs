//! The health of the server.

use serde::{Deserialize, Serialize};

use crate::{
    ErrorCode::StoreUnavailable,
    endpoint::{Access, Endpoint, Method, Route, Success},
};

/// Checks the health of the server: `GET /api/health`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckHealth {}

impl Endpoint for CheckHealth {
    const ROUTE: Route = Route {
        tag: "public",
        summary: "Check the health of the server",
        description: "Public. The status is `degraded` if one of `checks` is not `ok`. If the store is unavailable, the \
                      answer is 503.",
        answer_example: r#"{
            "status": "ok", "uptime": 12.5, "version": "0.1.0",
            "checks": {"store": "ok", "engine": "ok", "disk": "ok"}
        }"#,
        refusals: &[&[StoreUnavailable]],
        success: Success::Done("The status and the uptime of the server"),
        ..Route::new(Method::Get, "/api/health", "health", Access::Public)
    };
    type Path = ();
    type Answer = Health;
}

/// The overall state of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum HealthStatus {
    /// All checks passed.
    Ok,
    /// At least one check failed; see `checks`.
    Degraded,
}

/// The state of the server. Answer of `GET /api/health`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// The overall state.
    pub status: HealthStatus,
    /// Seconds since the server started.
    pub uptime: f64,
    /// The server's version.
    pub version: String,
    /// The result of each check.
    pub checks: HealthChecks,
}

/// The result of each check: `ok`, or a description of the problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HealthChecks {
    /// Whether the store answers.
    pub store: String,
    /// Whether VMs can be booted.
    pub engine: String,
    /// Whether the data directory has free space.
    pub disk: String,
}

/// The service and its documentation. Answer of `GET /`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Service {
    /// Always `skep`.
    pub name: String,
    /// The server's version.
    pub version: String,
    /// The path of the OpenAPI document.
    pub openapi: String,
    /// The path of the page that shows the document.
    pub docs: String,
}
