//! The credentials with which git on the server authenticates to hosts, as they are set and listed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    ErrorCode::UnknownCredential,
    Scope,
    endpoint::{Access, Endpoint, Method, Route, Success},
};

/// A route of credentials.
const CREDENTIALS: Route = Route {
    tag: "git",
    ..Route::new(Method::Get, "/api/git/credentials", "", Access::AccountKey(&[Scope::Admin]))
};

/// Lists the hosts that have a credential: the query of `GET /api/git/credentials`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListGitCredentials {
    /// Hosts on the page, 1 to 1,000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Endpoint for ListGitCredentials {
    const ROUTE: Route = Route {
        id: "list_git_credentials",
        summary: "List credentials",
        description: "Returns the hosts that have a token, but never a token.",
        access: Access::AccountKey(&[Scope::GitWrite]),
        success: Success::Done("A page of the hosts"),
        ..CREDENTIALS
    };
    type Path = ();
    type Answer = CredentialPage;
}

/// A token for a host.
// Without `Debug`, so that no log gets the token.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CredentialBody))]
pub struct SetGitCredential {
    /// The host, with the port if URLs contain one, and prefixed with `ssh://` for a private key.
    #[cfg_attr(feature = "openapi", schema(example = "git.example.com"))]
    pub host: String,
    /// The token; for ssh a private key without a passphrase, as `ssh-keygen` writes it. It is never returned.
    #[cfg_attr(feature = "openapi", schema(example = "a-token-of-that-host"))]
    pub token: String,
    /// The user name for git; default `x-access-token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
}

impl Endpoint for SetGitCredential {
    const ROUTE: Route = Route {
        method: Method::Post,
        id: "set_git_credential",
        summary: "Store a credential",
        description: "Git on the server uses it for this host, for all keys of the account: a token over https only, and \
                      the private key of an `ssh://` host over ssh only. It replaces the previous one of the host, is \
                      encrypted at rest, and never enters a VM.",
        example: r#"{"host": "git.example.com", "token": "a-token-of-that-host"}"#,
        success: Success::Created("It was stored"),
        ..CREDENTIALS
    };
    type Path = ();
    type Answer = KeptCredential;
}

/// Removes the credential of a host: the query of `DELETE /api/git/credentials`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemoveGitCredential {
    /// The host, as it was stored.
    #[cfg_attr(feature = "openapi", schema(example = "git.example.com"))]
    pub host: String,
}

impl Endpoint for RemoveGitCredential {
    const ROUTE: Route = Route {
        method: Method::Delete,
        id: "remove_git_credential",
        summary: "Delete a credential",
        description: "Git no longer authenticates to this host.",
        refusals: &[&[UnknownCredential]],
        success: Success::Done("It was deleted"),
        ..CREDENTIALS
    };
    type Path = ();
    type Answer = CredentialRemoved;
}

/// A host for which a token is stored. The token itself is never returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeptCredential {
    /// The host, with a port if it is not the default.
    #[cfg_attr(feature = "openapi", schema(example = "git.example.com"))]
    pub host: String,
    /// The user name that git sends to the host.
    #[cfg_attr(feature = "openapi", schema(example = "x-access-token"))]
    pub username: String,
    /// When the token was stored.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
}

/// A page of stored credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialPage {
    /// The credentials, sorted by host.
    pub credentials: Vec<KeptCredential>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The answer to the removal of a credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialRemoved {
    /// The host of the removed credential.
    #[cfg_attr(feature = "openapi", schema(example = "git.example.com"))]
    pub host: String,
    /// Always true.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub removed: bool,
}
