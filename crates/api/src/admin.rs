//! The server itself.

use serde::{Deserialize, Serialize};

/// The answer of `POST /api/admin/restart`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Restarting {
    /// Always true: where it is not, the restart is refused.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub restarting: bool,
}
