//! The waitlist: people who asked to be notified when there is capacity.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    ErrorCode::{StoreUnavailable, UnknownWaitlistEntry},
    Failure, Scope, WaitlistId,
    endpoint::{Access, Endpoint, Method, PathField, PathId, Route, Success},
};

/// An entry of the waitlist, as a path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitlistRef {
    /// The id of the entry.
    Id(WaitlistId),
    /// The email address.
    Email(String),
}

impl fmt::Display for WaitlistRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Email(email) => f.write_str(email),
        }
    }
}

impl PathId for WaitlistRef {
    const FIELD: PathField = PathField {
        name: "entry",
        description: "The id of the entry, or the email address",
        example: "ada@example.com",
    };

    fn parse(text: &str) -> Result<Self, Failure> {
        Ok(WaitlistId::from_str(text).map_or_else(|_| Self::Email(text.to_owned()), Self::Id))
    }
}

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

impl Endpoint for JoinWaitlist {
    const ROUTE: Route = Route {
        tag: "public",
        summary: "Join the waitlist",
        description: "Public. The answer is the same for an email address that is on the list already. By default, \
                      requests are limited to five an hour from one IP address (IPv6: from one /64).",
        example: r#"{"email": "ada@example.com", "use_case": "agents that test"}"#,
        answer_example: r#"{"status": "ok"}"#,
        refusals: &[&[StoreUnavailable]],
        success: Success::Accepted("The address is on the list"),
        ..Route::new(Method::Post, "/api/waitlist", "join_waitlist", Access::Public)
    };
    type Path = ();
    type Answer = Joined;
}

/// Removes an entry from the waitlist: `DELETE /api/waitlist/{entry}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemoveFromWaitlist {}

impl Endpoint for RemoveFromWaitlist {
    const ROUTE: Route = Route {
        tag: "waitlist",
        summary: "Remove an entry from the waitlist",
        description: "Removes all data of an email address, by the id of its entry or by the address. This cannot be \
                      undone.",
        refusals: &[&[UnknownWaitlistEntry]],
        success: Success::Done("It was removed"),
        ..Route::new(
            Method::Delete,
            "/api/waitlist/{entry}",
            "remove_from_waitlist",
            Access::AccountKey(&[Scope::ServerAdmin]),
        )
    };
    type Path = WaitlistRef;
    type Answer = Removed;
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
