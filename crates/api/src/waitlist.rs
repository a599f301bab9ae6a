//! The waitlist: who asked to be told when there is room.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::WaitlistId;

/// The body of `POST /api/waitlist`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JoinWaitlist {
    /// An address of the public mail system; at most 254 bytes.
    #[cfg_attr(feature = "openapi", schema(max_length = 254, example = "ada@example.com"))]
    pub email: String,
    /// At most 100 characters, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 100))]
    pub name: Option<String>,
    /// At most 100 characters, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 100))]
    pub company: Option<String>,
    /// At most 2,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub use_case: Option<String>,
}

/// The answer of `POST /api/waitlist`: the same for every address, known or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum JoinStatus {
    /// The address is on the list.
    Ok,
}

/// The answer of `POST /api/waitlist`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Joined {
    /// Always `ok`.
    pub status: JoinStatus,
}

/// Somebody on the list. What they said first counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaitlistEntry {
    /// Its id.
    pub id: WaitlistId,
    /// The address, as it was first given.
    #[cfg_attr(feature = "openapi", schema(example = "ada@example.com"))]
    pub email: String,
    /// Who it is.
    pub name: Option<String>,
    /// For whom they work.
    pub company: Option<String>,
    /// What they want skep for.
    pub use_case: Option<String>,
    /// When they first asked.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub joined_at: Timestamp,
}

/// A page of the list.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waitlist {
    /// Newest first.
    pub entries: Vec<WaitlistEntry>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// The answer of `DELETE /api/waitlist/{entry}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Removed {
    /// The id of what was removed.
    pub id: WaitlistId,
    /// Always true.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub removed: bool,
}
