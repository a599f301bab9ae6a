//! The answers of `GET /api/health` and `GET /`.

use serde::{Deserialize, Serialize};

/// Whether all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum HealthStatus {
    /// Everything works.
    Ok,
    /// Something does not; `checks` says what.
    Degraded,
}

/// The answer of `GET /api/health`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// `ok` or `degraded`.
    pub status: HealthStatus,
    /// Seconds since the server started.
    pub uptime: f64,
    /// The server's version.
    pub version: String,
    /// What was checked.
    pub checks: HealthChecks,
}

/// Each part by itself: `ok`, or what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HealthChecks {
    /// The store answers.
    pub store: String,
    /// VMs can be booted.
    pub engine: String,
    /// The data directory has room.
    pub disk: String,
}

/// The answer of `GET /`.
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
