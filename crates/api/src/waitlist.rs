//! The waitlist: people who asked to be notified when there is capacity.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::WaitlistId;

/// A request to join the waitlist. Body of `POST /api/waitlist`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JoinWaitlist {
    /// An email address that can receive mail from the internet; at most 254 bytes.
    #[cfg_attr(feature = "openapi", schema(max_length = 254, format = "email", example = "ada@example.com"))]
    pub email: String,
    /// The name of the person, at most 100 characters on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(max_length = 100, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$")
    )]
    pub name: Option<String>,
    /// The company of the person, at most 100 characters on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(max_length = 100, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$")
    )]
    pub company: Option<String>,
    /// The intended use, at most 2,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000, pattern = "^[^\\u0000]*$"))]
    pub use_case: Option<String>,
}

/// The outcome of joining. It is the same for new and known addresses, so that callers cannot probe for addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum JoinStatus {
    /// The address is on the waitlist.
    Ok,
}

/// The answer of `POST /api/waitlist`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Joined {
    /// Always `ok`.
    pub status: JoinStatus,
}

/// An entry of the waitlist. Later requests with the same address do not change it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaitlistEntry {
    /// The id of the entry.
    pub id: WaitlistId,
    /// The email address, in its first spelling.
    #[cfg_attr(feature = "openapi", schema(example = "ada@example.com"))]
    pub email: String,
    /// The name of the person.
    pub name: Option<String>,
    /// The company of the person.
    pub company: Option<String>,
    /// The intended use.
    pub use_case: Option<String>,
    /// When the person first joined.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub joined_at: Timestamp,
}

/// A page of the waitlist.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waitlist {
    /// The entries, newest first.
    pub entries: Vec<WaitlistEntry>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The answer of `DELETE /api/waitlist/{entry}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Removed {
    /// The id of the removed entry.
    pub id: WaitlistId,
    /// Always true.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub removed: bool,
}
