//! Administration of the server process.

use serde::{Deserialize, Serialize};

/// The answer of `POST /api/admin/restart`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Restarting {
    /// Always true. If the restart is not possible, the answer is an error.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub restarting: bool,
}
