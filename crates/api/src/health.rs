//! Answers of `GET /api/health` and `GET /`.

use serde::{Deserialize, Serialize};

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
